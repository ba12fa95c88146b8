//! Against numpy on the logits that transformers computed for the reference checkpoints: each has 40 tokens, of which a
//! context of 40 scores the last 19.

use super::*;
use cupola::EngineOptions;
use cupola_backend::Options;
use cupola_formats::safetensors::Safetensors;
use std::path::PathBuf;

fn reference(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/refs")).join(name)
}

fn tokens(name: &str) -> Vec<u32> {
    let file = Safetensors::open(reference(name).join("expected.safetensors")).unwrap();
    let bytes = file.tensor("input_ids").unwrap().bytes;
    bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

fn load(name: &str, exact: bool) -> Engine {
    let backend = Options { exact, ..Options::default() };
    Engine::load(reference(name), &EngineOptions { backend, ..EngineOptions::default() }).unwrap()
}

fn near(found: f64, expected: f64, tolerance: f64) {
    assert!((found - expected).abs() <= tolerance * expected.abs(), "{found}, expected {expected}");
}

#[test]
fn perplexity_is_that_of_the_reference_logits() {
    for (name, nll, perplexity, error, nll_of_last_8) in [
        ("llama3", 6.731867136427542, 838.7117942489878, 321.1608671121089, 6.3115522608152785),
        ("qwen3", 6.52704164792006, 683.3735585619792, 220.4358753407081, 7.103364917923344),
    ] {
        let (engine, tokens) = (load(name, true), tokens(name));
        let mut heard = vec![];
        let windows = Windows::new(&tokens, &[], 40, None, None);
        let scores = score(&engine, None, &windows, |s| heard.push(s.model.count())).unwrap();
        assert_eq!(heard, [19]);
        near(scores.model.nll().0, nll, 1e-4);
        near(scores.model.perplexity().0, perplexity, 1e-3);
        near(scores.model.perplexity().1, error, 1e-3);
        assert_eq!(scores.divergence.summary(), None);
        // A stride of 8 makes the window of 36 one of 40.
        let windows = Windows::new(&tokens, &[], 36, Some(8), None);
        near(score(&engine, None, &windows, |_| ()).unwrap().model.nll().0, nll_of_last_8, 1e-4);
    }
}

/// Two checkpoints that were given the same tokens.
#[test]
fn divergence_is_that_of_the_reference_logits() {
    let ids = tokens("phi3");
    assert_eq!(ids, tokens("llama_linear"));
    let (base, model) = (load("llama_linear", true), load("phi3", true));
    let windows = Windows::new(&ids, &[], 40, None, None);
    let scores = score(&model, Some(&base), &windows, |_| ()).unwrap();
    let found = scores.divergence.summary().unwrap();
    near(found.mean.0, 6.829511299277659, 1e-4);
    near(found.mean.1, 0.7323182178763523, 1e-3);
    near(found.median, 6.467052430021479, 1e-3);
    near(found.percentile_99, 11.782257394804583, 1e-3);
    near(found.largest, 11.79431986557853, 1e-3);
    near(found.agreement.0, 4.0 / 19.0, 1e-12);
    near(found.rms_difference, 0.00814983884276573, 1e-3);
    // The base is scored as by itself.
    let alone = score(&base, None, &windows, |_| ()).unwrap();
    assert_eq!(scores.base, alone.model);
}

#[test]
fn a_model_does_not_diverge_from_itself_but_from_exact_mode() {
    let tokens: Vec<u32> = tokens("qwen2").repeat(4);
    let windows = Windows::new(&tokens, &[1], 24, None, None);
    assert_eq!(windows.count(), 6);
    let (fast, again, exact) = (load("qwen2", false), load("qwen2", false), load("qwen2", true));
    let same = score(&fast, Some(&again), &windows, |_| ()).unwrap();
    let summary = same.divergence.summary().unwrap();
    assert_eq!((summary.mean, summary.largest, summary.rms_difference), ((0.0, 0.0), 0.0, 0.0));
    assert_eq!(summary.agreement.0, 1.0);
    assert_eq!(same.model, same.base);
    let other = score(&fast, Some(&exact), &windows, |_| ()).unwrap().divergence.summary().unwrap();
    assert!(other.mean.0 > 0.0 && other.mean.0 < 0.01, "{other:?}");
}
