//! A whole program on one or several devices.

use crate::partition::{boundary, first_taker, partition, segments};
use crate::*;
use cupola_graph::{Program, Step, WeightId};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Why a program could not be put on its devices.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// No backend takes an op.
    #[error("no device takes \"{op}\": {reasons}")]
    NotTaken {
        /// The op as text.
        op: String,
        /// Each device with its reason.
        reasons: String,
    },
    /// A parameter could not be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A device failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// A program with its weights on devices, ready to run steps.
pub struct Runner {
    program: Arc<Program>,
    backends: Vec<Arc<dyn Backend>>,
    assignments: Vec<Assignment>,
    executables: Vec<Box<dyn Executable>>,
    weight_bytes: usize,
    blocks: usize,
}

impl Runner {
    /// Loads a program: gives every op to the first backend that wants it and can hold its weights, uploads, compiles.
    /// `progress` hears the bytes of each weight as stored, once it is on its device.
    pub fn load(
        program: Arc<Program>,
        backends: Vec<Arc<dyn Backend>>,
        source: &dyn WeightSource,
        progress: &mut dyn FnMut(usize),
    ) -> Result<Runner, LoadError> {
        let mut assignments = partition(&program, &backends);
        let mut uploaded: HashMap<(usize, WeightId), DeviceWeight> = HashMap::new();
        let mut refused: HashMap<(usize, WeightId), Decline> = HashMap::new();
        let mut reported: HashSet<WeightId> = HashSet::new();
        for (op, assignment) in program.ops.iter().zip(&mut assignments) {
            'backend: while let Some(b) = assignment.backend {
                for w in op.weights() {
                    if uploaded.contains_key(&(b, w)) {
                        continue;
                    }
                    let result = match refused.get(&(b, w)) {
                        Some(reason) => Err(UploadError::Decline(reason.clone())),
                        None => backends[b].upload(&program, w, source),
                    };
                    match result {
                        Ok(weight) => {
                            uploaded.insert((b, w), weight);
                            if reported.insert(w) {
                                progress(program.weight(w).bytes());
                            }
                        }
                        Err(UploadError::Source(e)) => return Err(e.into()),
                        Err(UploadError::Decline(reason)) => {
                            refused.insert((b, w), reason.clone());
                            assignment.declines.push((b, reason));
                            assignment.backend = first_taker(&program, op, &backends, b + 1, &mut assignment.declines);
                            continue 'backend;
                        }
                    }
                }
                break;
            }
            if assignment.backend.is_none() {
                let reason = |(b, why): &(usize, Decline)| format!("{}: {why}", backends[*b].device());
                let reasons = assignment.declines.iter().map(reason).collect::<Vec<_>>().join("; ");
                return Err(LoadError::NotTaken { op: program.describe(op), reasons });
            }
        }
        let vectors: Result<Vec<_>, _> =
            (0..program.vectors.len()).map(|i| source.vector(cupola_graph::VectorId(i as u32))).collect();
        let vectors = Arc::new(vectors?);
        let backend_of: Vec<usize> = assignments.iter().filter_map(|a| a.backend).collect();
        let mut executables = vec![];
        for (b, ops) in segments(&backend_of) {
            let ids = program.ops[ops.clone()].iter().flat_map(|op| op.weights());
            let weights = ids.filter_map(|w| Some((w, uploaded.get(&(b, w))?.clone()))).collect();
            let (inputs, outputs) = boundary(&program, &ops);
            let segment = Segment { program: program.clone(), ops, weights, vectors: vectors.clone(), inputs, outputs };
            executables.push(backends[b].compile(segment)?);
        }
        let weight_bytes = uploaded.values().map(|w| w.bytes).sum();
        Ok(Runner { program, backends, assignments, executables, weight_bytes, blocks: 0 })
    }

    /// The program.
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// The devices, best first.
    pub fn backends(&self) -> &[Arc<dyn Backend>] {
        &self.backends
    }

    /// Who runs each op.
    pub fn assignments(&self) -> &[Assignment] {
        &self.assignments
    }

    /// Bytes of weights on all devices.
    pub fn weight_bytes(&self) -> usize {
        self.weight_bytes
    }

    /// Bytes of caches and intermediate values on all devices.
    pub fn state_bytes(&self) -> usize {
        self.executables.iter().map(|e| e.bytes()).sum()
    }

    /// Key-value blocks that there is room for.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Makes room for at least `blocks` key-value blocks.
    pub fn reserve(&mut self, blocks: usize) -> Result<(), BackendError> {
        for e in &mut self.executables {
            e.reserve(blocks)?;
        }
        self.blocks = self.blocks.max(blocks);
        Ok(())
    }

    /// Copies a key-value block in every layer.
    pub fn copy_block(&mut self, from: u32, to: u32) -> Result<(), BackendError> {
        self.executables.iter_mut().try_for_each(|e| e.copy_block(from, to))
    }

    /// Runs a step; gives the program's output, `[wanted, width]` row-major (or all rows, for programs that return
    /// hidden states).
    pub fn run(&mut self, step: &Step<'_>) -> Result<Vec<f32>, BackendError> {
        step.check(self.program.vocab, self.blocks)?;
        let mut values = HostValues::new();
        for e in &mut self.executables {
            e.run(step, &mut values)?;
        }
        Ok(values.remove(&self.program.output).unwrap_or_default())
    }
}
