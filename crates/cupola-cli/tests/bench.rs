//! `bench`.

mod common;

use common::run;
use serde_json::json;

#[test]
fn speeds_come_with_their_limits() {
    let args = ["bench", "embedded", "-p", "8,16", "-n", "2", "-r", "2", "--threads", "1", "--json"];
    let whole = run(args).json();
    let tests = whole["tests"].as_array().unwrap();
    let names: Vec<_> = tests.iter().map(|t| (t["test"].as_str().unwrap(), t["tokens"].as_u64().unwrap())).collect();
    assert_eq!(names, [("prompt", 8), ("prompt", 16), ("generate", 2)]);
    for test in tests {
        assert_eq!(test["seconds"].as_array().unwrap().len(), 2);
        let rate = test["tokens_per_second"]["median"].as_f64().unwrap();
        assert!(rate > 0.0);
        for share in ["share_of_reading", "share_of_arithmetic"] {
            assert!(test[share].as_f64().unwrap() > 0.0, "{test}");
        }
    }
    assert_eq!(whole["runs"][0]["threads"], json!(1));
    assert!(whole["runs"][0]["limits"]["read_gb_per_second"].as_f64().unwrap() > 0.0);
    assert_eq!(whole["model"]["formats"], "Q8_0");
}

#[test]
fn depths_and_batches_multiply() {
    let args = ["bench", "embedded", "-p", "4", "-n", "2", "-d", "0,40", "-b", "1,3", "-r", "2", "--json"];
    let whole = run(args).json();
    let tests = whole["tests"].as_array().unwrap();
    let names: Vec<_> = tests.iter().map(|t| format!("{} {} {}", t["test"], t["depth"], t["batch"])).collect();
    let at = |depth| [("prompt", 1), ("generate", 1), ("generate", 3)].map(|(t, b)| format!("{t:?} {depth} {b}"));
    let expected = [at(0), at(40)].concat();
    assert_eq!(names, expected);
    for test in tests {
        let sequences = test["batch"].as_f64().unwrap();
        let tokens = test["tokens"].as_f64().unwrap() * sequences;
        let (seconds, rate) = (&test["seconds"], &test["tokens_per_second"]);
        let mean = (tokens / seconds[0].as_f64().unwrap() + tokens / seconds[1].as_f64().unwrap()) / 2.0;
        assert!((rate["mean"].as_f64().unwrap() / mean - 1.0).abs() < 1e-9, "{test}");
        assert!(test["read_gb_per_second"].as_f64().unwrap() > 0.0, "{test}");
    }
    // Three sequences read the weights once, and what is in the cache is read too.
    let bytes = |i: usize| tests[i]["gb_per_second"].as_f64().unwrap() * median(&tests[i]["seconds"]);
    assert!(bytes(2) < 1.1 * bytes(1) && bytes(4) > bytes(1), "{whole}");
}

fn median(seconds: &serde_json::Value) -> f64 {
    (seconds[0].as_f64().unwrap() + seconds[1].as_f64().unwrap()) / 2.0
}

#[test]
fn limits_can_be_left_out() {
    let args = ["bench", "embedded", "-p", "4", "-n", "2", "-r", "1", "--no-limits"];
    let table = run(args).code(0).out;
    assert!(!table.contains("limits") && table.contains(" - "), "{table}");
    let whole = run(args.iter().chain(&["--json"])).json();
    assert!(whole["runs"][0]["limits"].is_null() && whole["tests"][0]["share_of_reading"].is_null(), "{whole}");
    // The file has 8 MiB; the memory that measuring reading takes would be 384 MiB more.
    let peak = whole["peak_memory_bytes"].as_u64();
    assert!(peak.is_none_or(|n| n < 200 << 20), "{peak:?}");
    let with_limits = run(args.iter().take(8).chain(&["--json"])).json()["peak_memory_bytes"].as_u64();
    assert!(with_limits.is_none_or(|n| n < 200 << 20), "{with_limits:?}");
}

#[test]
fn random_weights_need_no_file() {
    let args = ["bench", "--synthetic", "smollm2-135m", "--format", "Q8_0", "-p", "0", "-n", "1", "-r", "1"];
    let table = run(args).code(0).out;
    assert!(table.contains("134.5 M parameters") && table.contains("generate 1"), "{table}");
    assert!(!table.contains("prompt"), "{table}");
}
