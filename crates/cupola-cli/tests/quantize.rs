//! `quantize` and `logits`.

mod common;

use common::{data, run, text};
use safetensors::SafeTensors;
use serde_json::json;
use std::path::Path;

const EMBEDDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/stories-7m-q8_0.gguf");

fn tensor<T>(file: &[u8], name: &str, number: impl Fn([u8; 4]) -> T) -> Vec<T> {
    let tensors = SafeTensors::deserialize(file).unwrap();
    let bytes = tensors.tensor(name).unwrap().data();
    bytes.chunks_exact(4).map(|b| number(b.try_into().unwrap())).collect()
}

/// Largest error of a model's logits, as a share of the reference's standard deviation; and its greedy tokens.
fn compare(model: &Path, expected: &[u8]) -> (f32, Vec<i32>) {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("logits.safetensors");
    let ids = tensor(expected, "input_ids", i32::from_le_bytes);
    let list = ids.iter().map(i32::to_string).collect::<Vec<_>>().join(",");
    let args = ["logits", text(model), "--tokens", &list, "--greedy", "16", "--exact", "--out", text(&out)];
    run(args).code(0);
    let found = std::fs::read(&out).unwrap();
    assert_eq!(tensor(&found, "tokens", i32::from_le_bytes), ids);
    let (a, b) = (tensor(&found, "logits", f32::from_le_bytes), tensor(expected, "logits", f32::from_le_bytes));
    assert_eq!(a.len(), b.len());
    let mean = b.iter().sum::<f32>() / b.len() as f32;
    let deviation = (b.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / b.len() as f32).sqrt();
    let error = a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    (error / deviation, tensor(&found, "greedy", i32::from_le_bytes))
}

/// The reference checkpoints as GGUF files compute what transformers computed from the originals: names, permutations,
/// norms and frequencies have all survived.
#[test]
fn converted_references_compute_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let names = [
        "llama",
        "llama3",
        "llama_bias",
        "llama_head_dim",
        "llama_yarn",
        "mistral",
        "phi3",
        "qwen2",
        "qwen3",
        "smollm3",
    ];
    for name in names {
        let reference = data(&format!("refs/{name}"));
        let out = folder.path().join(format!("{name}.gguf"));
        run(["quantize", text(&reference), text(&out), "--type", "F32"]).code(0);
        let expected = std::fs::read(reference.join("expected.safetensors")).unwrap();
        let (error, greedy) = compare(&out, &expected);
        assert!(error < 1e-4, "{name}: {error}");
        assert_eq!(greedy, tensor(&expected, "greedy", i32::from_le_bytes), "{name}");
    }
}

/// llama.cpp takes the windows, the query scale and the layers' order of Gemma for granted.
#[test]
fn what_gguf_cannot_express_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.gguf");
    let convert = |name: &str| run(["quantize", text(&data(&format!("refs/{name}"))), text(&out), "--type", "F16"]);
    convert("gemma2").fails_with(&["gemma2", "query_pre_attn_scalar"]);
    convert("gemma3").fails_with(&["gemma3", "window"]);
    convert("qwen2_window").fails_with(&["qwen2", "sliding window"]);
    assert!(!out.exists());
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

/// A copy of a reference whose config has other values.
fn changed(name: &str, folder: &Path, changes: &[(&str, serde_json::Value)]) -> std::path::PathBuf {
    let (from, to) = (data(&format!("refs/{name}")), folder.join(name));
    std::fs::create_dir_all(&to).unwrap();
    std::fs::copy(from.join("model.safetensors"), to.join("model.safetensors")).unwrap();
    let mut config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(from.join("config.json")).unwrap()).unwrap();
    for (key, value) in changes {
        config[*key] = value.clone();
    }
    std::fs::write(to.join("config.json"), config.to_string()).unwrap();
    to
}

#[test]
fn what_cannot_run_is_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.gguf");
    for (key, value, expected) in [
        ("num_hidden_layers", json!(0), "num_hidden_layers"),
        ("num_attention_heads", json!(0), "heads"),
        ("tie_word_embeddings", json!(false), "lm_head"),
    ] {
        let model = changed("llama", folder.path(), &[(key, value)]);
        run(["quantize", text(&model), text(&out), "--type", "F16"]).fails_with(&[expected]);
        assert!(!out.exists());
    }
}

/// Some configs of Llama models have a window that transformers ignores.
#[test]
fn a_llama_has_no_window() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.gguf");
    let model = changed("llama", folder.path(), &[("sliding_window", json!(8))]);
    run(["quantize", text(&model), text(&out), "--type", "F32"]).code(0);
    let (error, _) = compare(&out, &std::fs::read(data("refs/llama").join("expected.safetensors")).unwrap());
    assert!(error < 1e-4, "{error}");
}

#[test]
fn every_type_can_be_written_and_read() {
    let folder = tempfile::tempdir().unwrap();
    let types = [
        "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q3_K_S",
        "Q3_K_M", "Q3_K_L", "Q4_K_S", "Q4_K_M", "Q5_K_S", "q5_k_m",
    ];
    for name in types {
        let out = folder.path().join(format!("{name}.gguf"));
        let report = run(["quantize", EMBEDDED, text(&out), "--type", name, "--json"]).json();
        let size = std::fs::metadata(&out).unwrap().len();
        assert_eq!(report["bytes"], json!(size));
        let inspected = run(["inspect", text(&out), "--json"]).json();
        assert_eq!(inspected["runs"], json!(true), "{name}");
        assert_eq!(inspected["chat_template"], json!(true), "{name}");
        if name.len() <= 4 {
            // 57 matrices, of which the output keeps at least Q6_K, and 17 norms in F32.
            let matrices = match name {
                "F32" => 74,
                "F16" | "BF16" | "Q8_0" | "Q6_K" => 57,
                _ => 56,
            };
            assert_eq!(inspected["formats"][name]["tensors"], json!(matrices), "{name}: {inspected}");
        }
        run(["run", text(&out), "Tell me a story.", "-n", "2"]).code(0);
    }
}

#[test]
fn mixtures_give_sensitive_matrices_more() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.gguf");
    let report = run(["quantize", EMBEDDED, text(&out), "--type", "Q4_K_M", "--json"]).json();
    // Layers 0, 3, 6 and 7 of 8, attn_v and ffn_down; and the tied embedding.
    assert_eq!(report["formats"]["Q6_K"]["tensors"], json!(9));
    assert_eq!(report["formats"]["Q4_K"]["tensors"], json!(48));
    let args = ["--type", "Q4_0", "--output-type", "Q8_0", "--force", "--json"];
    let report = run(["quantize", EMBEDDED, text(&out)].iter().chain(&args)).json();
    assert_eq!(report["formats"]["Q8_0"]["tensors"], json!(1));
}

#[test]
fn rows_that_do_not_fit_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.gguf");
    // Hidden size 64, feed-forward 96.
    let done = run(["quantize", text(&data("refs/llama")), text(&out), "--type", "Q4_K"]).code(0);
    assert!(done.err.contains("Q5_0 instead of Q4_K") && done.err.contains("96 values"), "{}", done.err);
    assert!(done.err.contains("no tokenizer.json"), "{}", done.err);
    let formats = run(["inspect", text(&out), "--json"]).json()["formats"].clone();
    assert!(formats["Q4_K"].is_null() && formats["Q5_0"].is_object(), "{formats}");
}

#[test]
fn files_are_not_replaced_by_accident() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.gguf");
    std::fs::write(&out, "precious").unwrap();
    run(["quantize", EMBEDDED, text(&out), "--type", "Q8_0"]).fails_with(&["exists", "--force"]);
    assert_eq!(std::fs::read(&out).unwrap(), b"precious");
    run(["quantize", EMBEDDED, text(&out), "--type", "Q8_0", "--force"]).code(0);
    // Nothing had to change, so nothing did.
    assert_eq!(std::fs::read(&out).unwrap(), std::fs::read(EMBEDDED).unwrap());
    let itself = run(["quantize", text(&out), text(&out), "--type", "Q4_0", "--force"]).code(2);
    assert!(itself.err.contains("the input itself"), "{}", itself.err);
    run(["quantize", EMBEDDED, text(folder.path()), "--type", "Q8_0"]).fails_with(&["is a folder"]);
    run(["quantize", "nowhere", text(&out), "--type", "Q8_0"]).fails_with(&["nowhere"]);
    let deep = folder.path().join("no/such/folder/out.gguf");
    run(["quantize", EMBEDDED, text(&deep), "--type", "Q8_0"]).fails_with(&["no/such/folder"]);
}

#[test]
fn logits_of_a_text() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("l.safetensors");
    run(["logits", "embedded", "--prompt", "Once upon a time", "--out", text(&out)]).code(0);
    let file = std::fs::read(&out).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let names: Vec<&str> = tensors.names().into_iter().collect();
    assert!(names.contains(&"tokens") && names.contains(&"logits") && !names.contains(&"greedy"), "{names:?}");
    // Begin of text, and the four tokens that llama.cpp makes of it.
    assert_eq!(tensor(&file, "tokens", i32::from_le_bytes), [0, 1839, 963, 259, 866]);
    assert_eq!(tensors.tensor("logits").unwrap().shape(), [5, 4096]);
    run(["logits", "embedded", "--tokens", "4096", "--out", text(&out)]).fails_with(&["4096", "4095"]);
    run(["logits", "embedded", "--prompt", "x", "--out", text(folder.path())]).fails_with(&["is a folder"]);
}
