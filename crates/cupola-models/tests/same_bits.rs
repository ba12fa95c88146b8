//! A prompt's logits have the same bits however it is run: in exact mode on every instruction set too.

#[path = "common/logit_hashes.rs"]
mod logit_hashes;
#[allow(dead_code)]
#[path = "common/references.rs"]
mod references;

use cupola_cpu::Tier;
use logit_hashes::{BATCHES, CHUNKS, THREADS, hashes};
use references::folder;
use std::path::{Path, PathBuf};

fn embedded() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/stories-7m-q8_0.gguf")
}

/// Windows and four norms; experts in MXFP4 with sinks; experts that a sigmoid and a bias choose; every kernel of Q8_0.
fn models() -> Vec<PathBuf> {
    ["llama3", "gemma3", "gpt_oss_mxfp4", "glm4_moe"].map(folder).into_iter().chain([embedded()]).collect()
}

/// Hashes over threads, chunks and batches.
fn all(path: &Path, exact: bool, tier: &str) -> Vec<u64> {
    let hashes: Vec<u64> =
        THREADS.iter().flat_map(|threads| hashes(path, 40, exact, tier, *threads).unwrap()).collect();
    assert_eq!(hashes.len(), THREADS.len() * CHUNKS.len() * BATCHES.len());
    hashes
}

#[test]
fn exact_mode_on_every_instruction_set() {
    for path in models() {
        let first = all(&path, true, "scalar")[0];
        for tier in Tier::available() {
            let hashes = all(&path, true, tier.name());
            assert!(hashes.iter().all(|h| *h == first), "{} on {tier}: {hashes:x?}", path.display());
        }
    }
}

#[test]
fn default_mode_on_each_instruction_set() {
    for path in models() {
        for tier in Tier::available() {
            let hashes = all(&path, false, tier.name());
            assert!(hashes.iter().all(|h| *h == hashes[0]), "{} on {tier}: {hashes:x?}", path.display());
        }
    }
}
