//! Times a program on its devices, without choosing tokens.

use super::synthetic::Random;
use crate::failure::Result;
use crate::interrupt;
use cupola_backend::Runner;
use cupola_graph::{BLOCK_TOKENS, KvType, Op, Program, Rows, Span, Step};
use std::time::Instant;

/// What is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// So many tokens at once, for the logits after the last.
    Prompt(usize),
    /// So many tokens one after the other.
    Generation(usize),
}

impl Phase {
    /// Tokens of a sequence that are evaluated.
    pub fn tokens(self) -> usize {
        match self {
            Phase::Prompt(n) | Phase::Generation(n) => n,
        }
    }
}

/// A phase and where it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// What is timed.
    pub phase: Phase,
    /// Tokens that each sequence has in the cache before.
    pub depth: usize,
    /// Sequences that go on together, each step taking a token of every one. 1 for prompts.
    pub batch: usize,
}

impl Task {
    /// Tokens that are evaluated while the time is taken.
    pub fn tokens(self) -> usize {
        self.phase.tokens().saturating_mul(self.batch)
    }

    /// Tokens that the cache has to hold.
    pub fn cache_tokens(self) -> usize {
        self.depth.saturating_add(self.phase.tokens()).saturating_mul(self.batch)
    }
}

/// Rows of a step at most, as the engine has them.
const STEP_ROWS: usize = 512;

/// A task whose sequences are in the cache up to its depth. It can be timed again and again, until another one is made.
pub struct Trial {
    task: Task,
    /// Of one sequence; all have the same.
    tokens: Vec<u32>,
    /// Block table of each sequence.
    tables: Vec<Vec<u32>>,
}

impl Trial {
    /// Evaluates what comes before the task.
    pub fn prepare(runner: &mut Runner, task: Task) -> Result<Trial> {
        let length = task.depth + task.phase.tokens();
        let blocks = length.div_ceil(BLOCK_TOKENS) as u32;
        let tables: Vec<Vec<u32>> = (0..task.batch as u32).map(|i| (i * blocks..(i + 1) * blocks).collect()).collect();
        runner.reserve(tables.len() * blocks as usize)?;
        let vocab = runner.program().vocab as u64;
        let mut random = Random(length as u64);
        let tokens: Vec<u32> = (0..length).map(|_| (random.next() % vocab.max(1)) as u32).collect();
        for table in &tables {
            run_chunks(runner, &tokens[..task.depth], 0, table, false)?;
        }
        Ok(Trial { task, tokens, tables })
    }

    /// Seconds that the task takes.
    pub fn measure(&self, runner: &mut Runner) -> Result<f64> {
        let Task { phase, depth, batch } = self.task;
        let wanted: Vec<u32> = (0..batch as u32).collect();
        let start = Instant::now();
        match phase {
            Phase::Prompt(_) => {
                for table in &self.tables {
                    run_chunks(runner, &self.tokens[depth..], depth, table, true)?;
                }
            }
            Phase::Generation(_) => {
                for (i, token) in self.tokens.iter().enumerate().skip(depth) {
                    interrupt::check()?;
                    let span = |table| Span { rows: 1, start: i, blocks: table, rope_length: i + 1 };
                    let spans: Vec<Span<'_>> = self.tables.iter().map(|t| span(t)).collect();
                    runner.run(&Step { tokens: &vec![*token; batch], spans: &spans, wanted: &wanted })?;
                }
            }
        }
        Ok(start.elapsed().as_secs_f64())
    }
}

/// Evaluates tokens of one sequence in steps as large as possible, and if `wanted` the logits after the last.
fn run_chunks(runner: &mut Runner, tokens: &[u32], start: usize, table: &[u32], wanted: bool) -> Result<()> {
    let end = start + tokens.len();
    let mut at = start;
    for chunk in tokens.chunks(STEP_ROWS) {
        interrupt::check()?;
        let span = Span { rows: chunk.len(), start: at, blocks: table, rope_length: end };
        at += chunk.len();
        let last = [chunk.len() as u32 - 1];
        let wanted = if wanted && at == end { last.as_slice() } else { &[] };
        runner.run(&Step { tokens: chunk, spans: &[span], wanted })?;
    }
    Ok(())
}

/// What a task has to do, whoever does it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// Bytes of weights, as stored, and of keys and values that have to be read at least.
    pub bytes: f64,
    /// Multiplications and additions.
    pub operations: f64,
}

impl Work {
    /// Of a task with this program.
    pub fn of(program: &Program, task: Task, kv: KvType) -> Work {
        let Task { phase, depth, batch } = task;
        let n = phase.tokens();
        let (steps, outputs) = match phase {
            Phase::Prompt(_) => (n.div_ceil(STEP_ROWS), 1),
            Phase::Generation(_) => (n, n),
        };
        let mut work = Work { bytes: 0.0, operations: 0.0 };
        for op in &program.ops {
            if let Op::Attention(a) = op {
                let cache = program.kv[a.layer];
                // Keys that a query at this position sees, its own included.
                let seen = |p: usize| a.window.map_or(p + 1, |w| w.min(p + 1)) as f64;
                let pairs: f64 = (depth..depth + n).map(seen).sum();
                work.operations += 2.0 * (batch as f64 * pairs) * (a.heads * (cache.key_dim + cache.value_dim)) as f64;
                // A step reads what was there before it once for all its rows.
                let read = match phase {
                    Phase::Prompt(_) => (0..n).step_by(STEP_ROWS).map(|at| seen(depth + at) - 1.0).sum(),
                    Phase::Generation(_) => pairs,
                };
                work.bytes += batch as f64 * read * cache.token_bytes(kv) as f64;
            }
            // Of the embedding, a step reads a few rows.
            if matches!(op, Op::Embed { .. }) {
                continue;
            }
            let rows = op.outputs().first().map_or(Rows::All, |v| program.value(*v).rows);
            let (rows, steps) = if rows == Rows::All { (n, steps) } else { (outputs, steps.min(outputs)) };
            for weight in op.weights() {
                let weight = program.weight(weight);
                work.bytes += steps as f64 * weight.bytes() as f64;
                work.operations += 2.0 * (rows * batch) as f64 * weight.n_out as f64 * weight.n_in as f64;
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
        let work = |phase, depth, batch| Work::of(&program, Task { phase, depth, batch }, KvType::F16);
        let one = work(Phase::Generation(1), 0, 1);
        // Attention of one token over itself: 32 heads of 64, twice, in 16 layers.
        assert_eq!(one.operations, 2.0 * (layers + head) + 2.0 * 16.0 * 32.0 * 128.0);
        // 34 bytes for 32 weights; 8 heads of 64 keys and values in 16 layers, 2 bytes each.
        assert_eq!(one.bytes, (layers + head) * 34.0 / 32.0 + 16.0 * 8.0 * 128.0 * 2.0);
        let prompt = work(Phase::Prompt(512), 0, 1);
        let pairs = 512.0 * 513.0 / 2.0;
        // After the last attention, only the last token goes on: 511 others miss its output product and feed-forward.
        let missed = 511.0 * (2048.0 * 2048.0 + 3.0 * 2048.0 * 8192.0);
        assert_eq!(prompt.operations, 2.0 * (512.0 * layers - missed + head) + 2.0 * 16.0 * 32.0 * 128.0 * pairs);
        assert_eq!(prompt.bytes, (layers + head) * 34.0 / 32.0);

        // Three sequences read the weights once, but each its own 1000 keys and values and the new one.
        let deep = work(Phase::Generation(1), 1000, 3);
        assert_eq!(deep.operations, 3.0 * (2.0 * (layers + head) + 1001.0 * 2.0 * 16.0 * 32.0 * 128.0));
        assert_eq!(deep.bytes, (layers + head) * 34.0 / 32.0 + 3.0 * 1001.0 * 16.0 * 8.0 * 128.0 * 2.0);
        // 600 tokens take two steps, which read the 1000 before the first and 1512 before the second.
        let deep = work(Phase::Prompt(600), 1000, 1);
        let missed = missed / 511.0;
        assert_eq!(deep.bytes, (2.0 * layers - missed + head) * 34.0 / 32.0 + 2512.0 * 16.0 * 8.0 * 128.0 * 2.0);
    }
}
