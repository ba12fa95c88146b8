//! Hashes of a prompt's logits under every way of running it on the CPU.

use cupola_backend::{Options, Runner};
use cupola_cpu::CpuBackend;
use cupola_formats::Checkpoint;
use cupola_graph::{BLOCK_TOKENS, Span, Step, fuse};
use std::path::Path;
use std::sync::Arc;

/// Tokens of the prompt in each step.
pub const CHUNKS: [usize; 3] = [1, 7, 512];
/// Sequences that run together, the prompt's among them.
pub const BATCHES: [usize; 2] = [1, 5];
pub const THREADS: [usize; 2] = [1, 2];

pub type Error = Box<dyn std::error::Error>;

/// Hashes of all logits of a prompt of `length` tokens: one for each batch of each chunk.
pub fn hashes(path: &Path, length: usize, exact: bool, tier: &str, threads: usize) -> Result<Vec<u64>, Error> {
    let checkpoint = Checkpoint::open(path)?;
    let model = cupola_models::build(&checkpoint)?;
    let options = Options { exact, threads: Some(threads), cpu_tier: Some(tier.into()), ..Options::default() };
    let backend = Arc::new(CpuBackend::open(&options)?);
    let program = Arc::new(fuse(model.program));
    let vocab = program.vocab;
    let mut runner = Runner::load(program, vec![backend], &model.parameters, &mut |_| {})?;
    let mut found = vec![];
    for chunk in CHUNKS {
        for batch in BATCHES {
            found.push(hash(&mut runner, vocab, length, chunk, batch)?);
        }
    }
    Ok(found)
}

/// Token `position` of a sequence: any that differ.
fn token(sequence: usize, position: usize, vocab: usize) -> u32 {
    ((position * 7919 + sequence * 104_729 + 11) % vocab) as u32
}

fn hash(runner: &mut Runner, vocab: usize, length: usize, chunk: usize, batch: usize) -> Result<u64, Error> {
    // In a batch the prompt is neither first nor last, and its neighbours advance at paces of their own.
    let prompt = batch / 2;
    let pace = |sequence: usize| if sequence == prompt { chunk } else { 1 + (sequence * 3 + chunk) % 9 };
    let steps = length.div_ceil(chunk);
    let blocks_each = length.max(9 * steps).div_ceil(BLOCK_TOKENS);
    runner.reserve(batch * blocks_each)?;
    // Interleaved, so that no sequence's blocks are consecutive.
    let tables: Vec<Vec<u32>> =
        (0..batch).map(|s| (0..blocks_each).map(|b| (b * batch + s) as u32).collect()).collect();
    let mut lengths = vec![0; batch];
    // FNV-1a, 64 bits (Fowler, Noll and Vo), of the bytes of all logits.
    let mut hash = 0xcbf2_9ce4_8422_2325;
    while lengths[prompt] < length {
        let (mut tokens, mut spans, mut wanted) = (vec![], vec![], vec![]);
        for sequence in 0..batch {
            let start = lengths[sequence];
            let rows = if sequence == prompt { chunk.min(length - start) } else { pace(sequence) };
            if sequence == prompt {
                wanted.extend((tokens.len()..tokens.len() + rows).map(|row| row as u32));
            }
            tokens.extend((start..start + rows).map(|position| token(sequence.abs_diff(prompt), position, vocab)));
            let rope_length = if sequence == prompt { length } else { start + rows };
            spans.push(Span { rows, start, blocks: &tables[sequence], rope_length });
            lengths[sequence] += rows;
        }
        let logits = runner.run(&Step { tokens: &tokens, spans: &spans, wanted: &wanted })?;
        let bytes = logits.iter().flat_map(|logit| logit.to_le_bytes());
        hash = bytes.fold(hash, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    }
    Ok(hash)
}
