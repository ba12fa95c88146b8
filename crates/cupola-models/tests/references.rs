//! Reference checkpoints on the CPU backend: logits, greedy continuation, chunks.

#[allow(dead_code)]
#[path = "common/references.rs"]
mod references;

use cupola_backend::{Options, Runner};
use cupola_cpu::CpuBackend;
use cupola_formats::Checkpoint;
use cupola_graph::{BLOCK_TOKENS, Span, Step, fuse};
use references::{NAMES, Reference};
use std::path::Path;
use std::sync::Arc;

/// One sequence on the CPU.
struct Sequence {
    runner: Runner,
    blocks: Vec<u32>,
    length: usize,
}

impl Sequence {
    fn new(path: &Path, exact: bool) -> Sequence {
        let checkpoint = Checkpoint::open(path).unwrap();
        let model = cupola_models::build(&checkpoint).unwrap();
        let options = Options { exact, threads: Some(2), ..Options::default() };
        let backend = Arc::new(CpuBackend::open(&options).unwrap());
        let program = Arc::new(fuse(model.program));
        let mut runner = Runner::load(program, vec![backend], &model.parameters, &mut |_| {}).unwrap();
        // Not in order, so that the table matters.
        let blocks = vec![2, 0, 1];
        runner.reserve(blocks.len()).unwrap();
        Sequence { runner, blocks, length: 0 }
    }

    /// Appends tokens; gives the logits of each.
    fn run(&mut self, tokens: &[u32], rope_length: usize) -> Vec<f32> {
        let wanted: Vec<u32> = (0..tokens.len() as u32).collect();
        let span = Span { rows: tokens.len(), start: self.length, blocks: &self.blocks, rope_length };
        assert!(self.length + tokens.len() <= self.blocks.len() * BLOCK_TOKENS);
        let logits = self.runner.run(&Step { tokens, spans: &[span], wanted: &wanted }).unwrap();
        self.length += tokens.len();
        logits
    }
}

fn best(logits: &[f32]) -> u32 {
    let all = logits.iter().enumerate();
    all.max_by(|a, b| a.1.total_cmp(b.1)).map(|(i, _)| i as u32).unwrap()
}

/// Bound on any logit's error in exact mode, in standard deviations of the logits: both sides compute in f32.
const EXACT: f64 = 1e-4;
/// The same in default mode, where only the cache rounds, to f16: these weights are BF16, which meet f32 activations. Measured: up to
/// 8e-3.
const DEFAULT: f64 = 3e-2;

/// Whole prompt, chunks of it, and, in exact mode, the tokens that follow.
fn check(path: &Path, r: &Reference, exact: bool) {
    let name = path.display();
    let mut sequence = Sequence::new(path, exact);
    let logits = sequence.run(&r.tokens, r.tokens.len());
    let (largest, mean) = r.error(logits.iter().map(|v| f64::from(*v)));
    let close = largest < if exact { EXACT } else { DEFAULT };
    assert!(close, "{name}: off by {largest:e} of the spread of the logits, {mean:e} on average, exact {exact}");

    let mut chunked = Sequence::new(path, exact);
    let parts = r.tokens.chunks(7).flat_map(|chunk| chunked.run(chunk, r.tokens.len()));
    assert!(
        parts.map(f32::to_bits).eq(logits.iter().map(|v| v.to_bits())),
        "{name}: chunks change bits, exact {exact}"
    );

    if exact {
        let vocab = logits.len() / r.tokens.len();
        let mut last = logits[logits.len() - vocab..].to_vec();
        for (expected, gap) in r.greedy.iter().zip(&r.gaps) {
            let token = best(&last);
            if token != *expected {
                assert!(*gap < 0.01, "{name}: {token} instead of {expected}, which leads by {gap}");
                break;
            }
            last = sequence.run(&[token], sequence.length + 1);
        }
    }
}

#[test]
fn exact_mode_computes_what_the_reference_implementation_does() {
    for name in NAMES {
        let r = Reference::open(name);
        r.checkpoints().iter().for_each(|path| check(path, &r, true));
    }
}

#[test]
fn default_mode_is_close_to_the_reference_implementation() {
    for name in NAMES {
        let r = Reference::open(name);
        check(&r.folder, &r, false);
    }
}
