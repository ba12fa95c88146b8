//! What is in the way of an output, and what a command that fails leaves behind.

mod common;

use common::run;

#[test]
fn no_logits_are_left_if_the_greedy_tokens_do_not_fit() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.safetensors");
    let out = out.to_str().unwrap();
    run(["logits", "embedded", "--tokens", "1,2", "--greedy", "600", "--out", out])
        .fails_with(&["context of 512 tokens ended"]);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[cfg(unix)]
#[test]
fn devices_and_pipes_are_not_replaced() {
    use std::os::unix::fs::FileTypeExt;
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let out = pipe.to_str().unwrap();
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/refs/llama");
    run(["logits", "embedded", "--tokens", "1", "--out", out]).fails_with(&[out, "is a device or pipe, not a file"]);
    run(["quantize", model, out, "--type", "F16", "--force"]).fails_with(&[out, "is a device or pipe, not a file"]);
    assert!(pipe.metadata().unwrap().file_type().is_fifo());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn messages_do_not_command_the_terminal() {
    let done = run(["inspect", "./\u{1b}[2Jnot-there"]).code(1);
    assert!(done.err.contains("[2Jnot-there") && !done.err.contains('\u{1b}'), "{:?}", done.err);
}

#[test]
fn a_tokenizer_that_cannot_be_read_is_not_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let (model, out) = (folder.path().join("model"), folder.path().join("out.gguf"));
    std::fs::create_dir_all(model.join("tokenizer.json")).unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(common::data("refs/llama").join(file), model.join(file)).unwrap();
    }
    let (model, out_name) = (model.to_str().unwrap(), out.to_str().unwrap());
    run(["quantize", model, out_name, "--type", "F16"]).fails_with(&["tokenizer.json", "a folder, not a file"]);
    assert!(!out.exists());
}
