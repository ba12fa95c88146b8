//! `perplexity`.

mod common;

use common::{data, run, text};
use std::fs;

/// A text of some two thousand tokens.
fn licence() -> std::path::PathBuf {
    data("../../LICENSE-APACHE")
}

#[test]
fn a_text_is_scored_in_windows() {
    let file = licence();
    let whole = run(["perplexity", "embedded", text(&file), "--context", "64", "--chunks", "3", "--json"]).json();
    assert_eq!(whole["windows"], 3);
    // Half of each window but one token.
    assert_eq!(whole["scored_tokens"], 3 * 31);
    let nll = whole["nll"]["value"].as_f64().unwrap();
    let perplexity = whole["perplexity"]["value"].as_f64().unwrap();
    // The model knows stories, not licences, but it knows more than nothing.
    assert!((nll.exp() / perplexity - 1.0).abs() < 1e-12 && nll > 1.0 && nll < 12.0, "{whole}");
    assert!(whole["base"].is_null());

    let args = ["perplexity", "embedded", text(&file), "-c", "64", "--stride", "16", "--chunks", "2", "--json"];
    let strided = run(args).json();
    assert_eq!((&strided["windows"], &strided["scored_tokens"]), (&2.into(), &32.into()));
    let table = run(["perplexity", "embedded", text(&file), "--context", "64", "--chunks", "3"]).code(0).out;
    assert!(table.contains(&format!("perplexity       {perplexity:.4} \u{b1} ")), "{table}");
}

#[test]
fn a_base_is_the_same_model_unless_told_otherwise() {
    let file = licence();
    let args = |more: &[&'static str]| {
        let mut args = vec!["perplexity", "embedded", text(&file), "--context", "32", "--chunks", "2", "--json"];
        args.extend(more);
        run(args).json()["base"].clone()
    };
    let same = args(&["--kl", "embedded"]);
    assert_eq!(same["kl_divergence"]["mean"]["value"], 0.0);
    assert_eq!(same["kl_divergence"]["same_best_token"]["value"], 1.0);
    let exact = args(&["--kl-exact"]);
    assert_eq!(exact["name"], "embedded");
    let mean = exact["kl_divergence"]["mean"]["value"].as_f64().unwrap();
    assert!(mean > 0.0 && mean < 0.01, "{exact}");
    let coarse = args(&["--kl-activations", "8"]);
    assert!(coarse["kl_divergence"]["mean"]["value"].as_f64().unwrap() > 0.0, "{coarse}");
    assert_eq!(args(&["--exact", "--kl-exact"])["kl_divergence"]["largest"], 0.0);
}

#[test]
fn what_cannot_be_scored_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        text(&path).to_string()
    };
    let short = file("short.txt", b"Once upon a time");
    run(["perplexity", "embedded", &short]).fails_with(&["short.txt has ", "a window takes 512", "--context"]);
    let binary = file("binary.txt", b"\xff\xfe");
    run(["perplexity", "embedded", &binary]).fails_with(&["binary.txt is not a text in UTF-8"]);
    run(["perplexity", "embedded", "no-such-file"]).fails_with(&["cannot read no-such-file"]);
    let long = ["perplexity", "embedded", &short, "--context", "1000000"];
    run(long).fails_with(&["context is 1000000", "at most"]);
    let other = data("refs/llama");
    run(["perplexity", "embedded", &short, "--kl", text(&other), "-c", "8"]).fails_with(&["384", "vocabulary"]);
    run(["perplexity", text(&other), &short, "-c", "8"]).fails_with(&["tokenizer"]);
}
