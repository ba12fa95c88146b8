//! Times a program on its devices, without choosing tokens.

use super::synthetic::Random;
use crate::failure::Result;
use crate::interrupt;
use cupola_backend::Runner;
use cupola_graph::{BLOCK_TOKENS, KvType, Op, Program, Rows, Span, Step};
use std::time::Instant;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// So many tokens at once, from an empty cache, for the logits after the last.
    Prompt(usize),
    /// So many tokens one after the other, from an empty cache.
    Generation(usize),
}

impl Phase {
    /// Tokens that are evaluated.
    pub fn tokens(self) -> usize {
        match self {
            Phase::Prompt(n) | Phase::Generation(n) => n,
        }
    }
}

/// Rows of a step at most, as the engine has them.
const STEP_ROWS: usize = 512;

/// Seconds that a phase takes.
pub fn measure(runner: &mut Runner, phase: Phase) -> Result<f64> {
    let n = phase.tokens();
    let table: Vec<u32> = (0..n.div_ceil(BLOCK_TOKENS) as u32).collect();
    runner.reserve(table.len())?;
    let vocab = runner.program().vocab as u64;
    let mut random = Random(n as u64);
    let tokens: Vec<u32> = (0..n).map(|_| (random.next() % vocab.max(1)) as u32).collect();
    let rows = match phase {
        Phase::Prompt(_) => STEP_ROWS,
        Phase::Generation(_) => 1,
    };
    let start = Instant::now();
    for (i, chunk) in tokens.chunks(rows).enumerate() {
        interrupt::check()?;
        let at = i * rows;
        let last = at + chunk.len() == n;
        let rope_length = if rows == 1 { at + 1 } else { n };
        let span = Span { rows: chunk.len(), start: at, blocks: &table, rope_length };
        let wanted = [chunk.len() as u32 - 1];
        let wanted = if last || rows == 1 { wanted.as_slice() } else { &[] };
        runner.run(&Step { tokens: chunk, spans: &[span], wanted })?;
    }
    Ok(start.elapsed().as_secs_f64())
}

/// What a phase has to do, whoever does it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// Bytes of weights, as stored, and of keys and values that have to be read at least.
    pub bytes: f64,
    /// Multiplications and additions.
    pub operations: f64,
}

impl Work {
    /// Of a phase of this program.
    pub fn of(program: &Program, phase: Phase, kv: KvType) -> Work {
        let n = phase.tokens();
        let (steps, outputs) = match phase {
            Phase::Prompt(_) => (n.div_ceil(STEP_ROWS), 1),
            Phase::Generation(_) => (n, n),
        };
        let mut work = Work { bytes: 0.0, operations: 0.0 };
        for op in &program.ops {
            if let Op::Attention(a) = op {
                let cache = program.kv[a.layer];
                // Pairs of a query and a key that it sees.
                let seen = |p: usize| a.window.map_or(p + 1, |w| w.min(p + 1)) as f64;
                let pairs: f64 = (0..n).map(seen).sum();
                work.operations += 2.0 * pairs * (a.heads * (cache.key_dim + cache.value_dim)) as f64;
                if let Phase::Generation(_) = phase {
                    work.bytes += pairs * cache.token_bytes(kv) as f64;
                }
            }
            // Of the embedding, a step reads a few rows.
            if matches!(op, Op::Embed { .. }) {
                continue;
            }
            let rows = op.outputs().first().map_or(Rows::All, |v| program.value(*v).rows);
            let (tokens, steps) = if rows == Rows::All { (n, steps) } else { (outputs, steps.min(outputs)) };
            for weight in op.weights() {
                let weight = program.weight(weight);
                work.bytes += steps as f64 * weight.bytes() as f64;
                work.operations += 2.0 * tokens as f64 * weight.n_out as f64 * weight.n_in as f64;
            }
        }
        work
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Shape;
    use cupola_quant::Format;

    /// Llama 3.2 1B: 973 M parameters in its layers, 263 M in the tied embedding.
    #[test]
    fn work_of_a_known_model() {
        let program = Shape::named("llama3-1b").unwrap().program(Format::Q8_0).unwrap();
        let (layers, head) = (16.0 * 60_817_408.0, 128_256.0 * 2048.0);
        let one = Work::of(&program, Phase::Generation(1), KvType::F16);
        // Attention of one token over itself: 32 heads of 64, twice, in 16 layers.
        assert_eq!(one.operations, 2.0 * (layers + head) + 2.0 * 16.0 * 32.0 * 128.0);
        // 34 bytes for 32 weights; 8 heads of 64 keys and values in 16 layers, 2 bytes each.
        assert_eq!(one.bytes, (layers + head) * 34.0 / 32.0 + 16.0 * 8.0 * 128.0 * 2.0);
        let prompt = Work::of(&program, Phase::Prompt(512), KvType::F16);
        let pairs = 512.0 * 513.0 / 2.0;
        // After the last attention, only the last token goes on: 511 others miss its output product and feed-forward.
        let missed = 511.0 * (2048.0 * 2048.0 + 3.0 * 2048.0 * 8192.0);
        assert_eq!(prompt.operations, 2.0 * (512.0 * layers - missed + head) + 2.0 * 16.0 * 32.0 * 128.0 * pairs);
        assert_eq!(prompt.bytes, (layers + head) * 34.0 / 32.0);
    }
}
