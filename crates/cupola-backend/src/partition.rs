//! Divides a program among backends.

use crate::{Backend, Decline, Verdict};
use cupola_graph::{Op, Program, ValueId};
use std::ops::Range;
use std::sync::Arc;

/// Who runs an op.
#[derive(Clone, Debug, PartialEq)]
pub struct Assignment {
    /// Index of the backend that takes the op; absent if none does.
    pub backend: Option<usize>,
    /// Backends that come first and declined it, and why.
    pub declines: Vec<(usize, Decline)>,
}

/// Gives each op to the first backend in the list that wants it.
pub fn partition(program: &Program, backends: &[Arc<dyn Backend>]) -> Vec<Assignment> {
    let assign = |op: &Op| {
        let mut declines = vec![];
        let backend = first_taker(program, op, backends, 0, &mut declines);
        Assignment { backend, declines }
    };
    program.ops.iter().map(assign).collect()
}

/// The first backend from number `from` on that wants the op; adds those before it, and why they declined.
pub(crate) fn first_taker(
    program: &Program,
    op: &Op,
    backends: &[Arc<dyn Backend>],
    from: usize,
    declines: &mut Vec<(usize, Decline)>,
) -> Option<usize> {
    for (i, backend) in backends.iter().enumerate().skip(from) {
        match backend.wants(program, op) {
            Verdict::Take => return Some(i),
            Verdict::Decline(reason) => declines.push((i, reason)),
        }
    }
    None
}

/// Runs of consecutive ops with the same backend.
pub(crate) fn segments(backend_of: &[usize]) -> Vec<(usize, Range<usize>)> {
    let mut runs: Vec<(usize, Range<usize>)> = vec![];
    for (i, b) in backend_of.iter().enumerate() {
        match runs.last_mut() {
            Some((last, range)) if last == b => range.end = i + 1,
            _ => runs.push((*b, i..i + 1)),
        }
    }
    runs
}

/// Values that a run of ops reads from before it, and those that it writes for after it.
pub(crate) fn boundary(program: &Program, ops: &Range<usize>) -> (Vec<ValueId>, Vec<ValueId>) {
    let written: Vec<ValueId> = program.ops[ops.clone()].iter().flat_map(Op::outputs).collect();
    let read_later =
        |v: &ValueId| *v == program.output || program.ops[ops.end..].iter().any(|op| op.inputs().contains(v));
    let mut inputs: Vec<ValueId> = program.ops[ops.clone()].iter().flat_map(Op::inputs).collect();
    inputs.retain(|v| !written.contains(v));
    inputs.sort_unstable();
    inputs.dedup();
    let outputs = written.into_iter().filter(read_later).collect();
    (inputs, outputs)
}
