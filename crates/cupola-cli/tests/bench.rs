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
fn random_weights_need_no_file() {
    let args = ["bench", "--synthetic", "smollm2-135m", "--format", "Q8_0", "-p", "0", "-n", "1", "-r", "1"];
    let table = run(args).code(0).out;
    assert!(table.contains("134.5 M parameters") && table.contains("generate 1"), "{table}");
    assert!(!table.contains("prompt"), "{table}");
}
