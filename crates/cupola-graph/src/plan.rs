//! Memory plan: which values may share memory.

use crate::{Op, Program, Rows, ValueId};

/// Memory for the values of a run of ops: values that are never needed at the same time share a buffer.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryPlan {
    /// The buffers.
    pub buffers: Vec<Buffer>,
    /// Buffer of each value that the ops touch, by [`ValueId`].
    pub of_value: Vec<Option<usize>>,
}

/// A buffer of `width` elements for each row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Elements per row: the widest value that lives here.
    pub width: usize,
    /// Rows of its values.
    pub rows: Rows,
}

impl MemoryPlan {
    /// A plan for `ops`, a run of the program's ops. Values in `keep` are needed after the last of them.
    ///
    /// An output takes the buffer of an input that it may overwrite (see [`Op::in_place`]), otherwise the free buffer
    /// that fits best, otherwise a new one.
    pub fn new(program: &Program, ops: &[Op], keep: &[ValueId]) -> MemoryPlan {
        let mut last = vec![0; program.values.len()];
        for (i, op) in ops.iter().enumerate() {
            for v in op.inputs().into_iter().chain(op.outputs()) {
                last[v.index()] = i;
            }
        }
        for v in keep {
            last[v.index()] = usize::MAX;
        }
        let mut plan = MemoryPlan { buffers: vec![], of_value: vec![None; program.values.len()] };
        let mut free: Vec<usize> = vec![];
        for (i, op) in ops.iter().enumerate() {
            let mut dying: Vec<ValueId> = op.inputs().into_iter().filter(|v| last[v.index()] == i).collect();
            dying.sort_unstable();
            dying.dedup();
            // Inputs that come from outside the run get their buffer at first use.
            for v in op.inputs() {
                if plan.of_value[v.index()].is_none() {
                    plan.place(program, v, &mut free);
                }
            }
            for out in op.outputs() {
                let same_shape = |x: &ValueId| {
                    let (a, b) = (program.value(*x), program.value(out));
                    op.in_place(*x) && a.width == b.width && a.rows == b.rows
                };
                match dying.iter().position(same_shape) {
                    Some(at) => plan.of_value[out.index()] = plan.of_value[dying.remove(at).index()],
                    None => plan.place(program, out, &mut free),
                }
            }
            let unread = op.outputs().into_iter().filter(|v| last[v.index()] == i);
            for v in dying.into_iter().chain(unread) {
                free.extend(plan.of_value[v.index()]);
            }
        }
        plan
    }

    /// Elements for a step of `rows` rows of which `wanted` are wanted.
    pub fn elements(&self, rows: usize, wanted: usize) -> usize {
        let of = |b: &Buffer| b.width * if b.rows == Rows::All { rows } else { wanted };
        self.buffers.iter().map(of).sum()
    }

    fn place(&mut self, program: &Program, v: ValueId, free: &mut Vec<usize>) {
        let value = program.value(v);
        // Best fit: the smallest that is wide enough, otherwise the widest, which then grows.
        let fit = |b: &usize| {
            let width = self.buffers[*b].width;
            if width >= value.width { (0, width - value.width) } else { (1, value.width - width) }
        };
        let candidates = free.iter().copied().enumerate().filter(|(_, b)| self.buffers[*b].rows == value.rows);
        let best = candidates.min_by_key(|(_, b)| fit(b)).map(|(at, _)| at);
        let buffer = match best {
            Some(at) => free.swap_remove(at),
            None => {
                self.buffers.push(Buffer { width: 0, rows: value.rows });
                self.buffers.len() - 1
            }
        };
        let b = &mut self.buffers[buffer];
        b.width = b.width.max(value.width);
        self.of_value[v.index()] = Some(buffer);
    }
}
