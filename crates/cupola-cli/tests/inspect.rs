//! `inspect` and `devices` on sound, odd and hostile files.

mod common;

use common::{data, run, text};
use serde_json::json;

/// Files of `tests/data/gguf` that may be opened.
const SOUND: [&str; 2] = ["ok.gguf", "align24.gguf"];

#[test]
fn hostile_files_are_refused_with_a_message() {
    let mut seen = 0;
    for entry in std::fs::read_dir(data("gguf")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_string();
        if !name.ends_with(".gguf") || SOUND.contains(&name.as_str()) {
            continue;
        }
        for json in [&[][..], &["--json"]] {
            let done = run([&["inspect", text(&path), "--metadata", "--tensors", "--program"], json].concat());
            assert_eq!(done.code, 1, "{name}: {}", done.out);
            assert!(done.err.starts_with("error: ") && done.err.contains(&name), "{name}: {}", done.err);
            assert_eq!(done.err.lines().count(), 1, "{name}: {}", done.err);
            assert!(done.out.is_empty(), "{name}: {}", done.out);
        }
        run(["run", text(&path), "hello"]).fails_with(&[&name]);
        seen += 1;
    }
    assert!(seen > 25, "{seen} files");
}

#[test]
fn a_bare_file_is_shown_though_it_cannot_run() {
    let path = data("gguf/ok.gguf");
    let shown = run(["inspect", text(&path), "--metadata", "--tensors"]).code(0);
    assert!(shown.out.contains("GGUF version 3"), "{}", shown.out);
    assert!(shown.out.contains("runs here       no: "), "{}", shown.out);
    let whole = run(["inspect", text(&path), "--metadata", "--tensors", "--program", "--json"]).json();
    assert_eq!(whole["runs"], json!(false));
    assert!(whole["reason"].is_string());
    let tensors = whole["tensor_list"].as_array().unwrap();
    assert_eq!(json!(tensors.len()), whole["tensors"]);
    // The weights of a checkpoint by themselves.
    let file = run(["inspect", text(&data("refs/llama/model.safetensors"))]).code(0);
    assert!(file.out.contains("safetensors") && file.out.contains("BF16"), "{}", file.out);
    run(["inspect", text(&path), "--program"]).fails_with(&["there is no program"]);
}

#[test]
fn split_files_are_one_checkpoint() {
    let whole = run(["inspect", text(&data("gguf-py/split-00001-of-00003.gguf")), "--json"]).json();
    assert!(whole["tensors"].as_u64().unwrap() > 0);
    run(["inspect", text(&data("gguf-py/split-00002-of-00003.gguf"))]).fails_with(&["part 2", "first part"]);
}

#[test]
fn every_reference_checkpoint_is_described() {
    for entry in std::fs::read_dir(data("refs")).unwrap() {
        let path = entry.unwrap().path();
        if !path.is_dir() {
            continue;
        }
        let whole = run(["inspect", text(&path), "--program", "--json"]).json();
        assert_eq!(whole["runs"], json!(true), "{}: {whole}", path.display());
        let program = whole["program"].as_array().unwrap();
        assert!(program.iter().all(|op| op["device"] == "cpu"), "{}", path.display());
        let config: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(path.join("config.json")).unwrap()).unwrap();
        assert_eq!(whole["model"]["layers"], config["num_hidden_layers"]);
        assert_eq!(whole["model"]["vocabulary"], config["vocab_size"]);
        assert_eq!(whole["architecture"], config["model_type"]);
    }
}

/// 8 layers with keys and values of 4 heads of 32, in 2 bytes each.
#[test]
fn the_embedded_model_is_described() {
    let whole = run(["inspect", "embedded", "--metadata", "--json"]).json();
    assert_eq!(whole["memory"]["kv_per_token_f16"], json!(8 * 2 * 4 * 32 * 2));
    assert_eq!(whole["memory"]["kv_per_token_q8_0"], json!(8 * 2 * 4 * (32 + 4)));
    assert_eq!(whole["metadata"]["llama.context_length"], json!(512));
    assert_eq!(whole["metadata"]["tokenizer.ggml.tokens"]["length"], json!(4096));
    let text = run(["inspect", "embedded", "--program"]).code(0).out;
    assert!(text.lines().any(|line| line.starts_with("cpu ") && line.contains("attention")), "{text}");
}

#[test]
fn what_is_no_checkpoint_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    run(["inspect", text(folder.path())]).fails_with(&["neither a .gguf nor a .safetensors"]);
    run(["inspect", text(&data("gguf/README.md"))]).fails_with(&["not a GGUF file"]);
    run(["inspect", "no/such/path"]).fails_with(&["no/such/path"]);
    run(["inspect", ""]).fails_with(&["no file or folder"]);
    // Weights that are missing: what the config says is shown all the same.
    std::fs::copy(data("refs/llama/config.json"), folder.path().join("config.json")).unwrap();
    let done = run(["inspect", text(folder.path())]).code(1);
    assert!(done.out.contains("llama"), "{}", done.out);
}

#[test]
fn devices_are_listed() {
    assert!(run(["devices"]).code(0).out.starts_with("cpu:0"));
    let kinds = run(["devices", "--json"]).json();
    let cpu = kinds.as_array().unwrap().iter().find(|kind| kind["kind"] == "cpu").unwrap().clone();
    assert_eq!(cpu["devices"].as_array().unwrap().len(), 1);
}
