//! What the engine needs of a loaded model.

use cupola_backend::{BackendError, Runner};
use cupola_graph::Step;

/// Runs steps of a model: [`Runner`], or a stand-in for it.
pub trait StepRunner: Send {
    /// Facts that the engine plans with.
    fn shape(&self) -> RunnerShape;

    /// Makes room for at least `blocks` key-value blocks. On an error there are as many as before.
    fn reserve(&mut self, blocks: usize) -> Result<(), BackendError>;

    /// Copies a key-value block.
    fn copy_block(&mut self, from: u32, to: u32) -> Result<(), BackendError>;

    /// Runs a step and gives its logits, `[wanted, logits]` row-major.
    fn run(&mut self, step: &Step<'_>) -> Result<Vec<f32>, BackendError>;
}

/// Sizes of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunnerShape {
    /// Rows of the embedding: token ids that it takes are under this.
    pub embeddings: usize,
    /// Logits per row: token ids that it gives are under this.
    pub logits: usize,
    /// Lengths above which the rotary frequencies change, ascending. A sequence that grows past one is evaluated anew.
    pub rope_limits: Vec<usize>,
}

impl RunnerShape {
    /// How many limits a sequence of `length` tokens is past. Keys and values are only shared between equals.
    pub(crate) fn regime(&self, length: usize) -> usize {
        self.rope_limits.iter().filter(|limit| length > **limit).count()
    }
}

impl StepRunner for Runner {
    fn shape(&self) -> RunnerShape {
        let program = self.program();
        let mut rope_limits: Vec<usize> =
            program.ropes.iter().filter_map(|table| table.long.as_ref().map(|long| long.above)).collect();
        rope_limits.sort_unstable();
        rope_limits.dedup();
        RunnerShape { embeddings: program.vocab, logits: program.value(program.output).width, rope_limits }
    }

    fn reserve(&mut self, blocks: usize) -> Result<(), BackendError> {
        Runner::reserve(self, blocks)
    }

    fn copy_block(&mut self, from: u32, to: u32) -> Result<(), BackendError> {
        Runner::copy_block(self, from, to)
    }

    fn run(&mut self, step: &Step<'_>) -> Result<Vec<f32>, BackendError> {
        Runner::run(self, step)
    }
}
