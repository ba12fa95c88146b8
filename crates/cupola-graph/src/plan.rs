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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::*;
    use cupola_quant::Format;

    /// Numbers under `n`, the same for the same seed.
    struct Random(u64);

    impl Random {
        fn under(&mut self, n: usize) -> usize {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) as usize % n
        }
    }

    /// A program of random ops on random earlier values, old ones less likely.
    fn random_program(random: &mut Random) -> Program {
        let mut g = Builder::new(10);
        let table = g.weight("embed", 10, 8, Format::F32);
        let mut values = vec![g.embed(table, 1.0)];
        for _ in 0..random.under(30) + 1 {
            let x = values[values.len() - 1 - random.under(values.len().min(5))];
            let (width, wanted) = (g.width(x), g.shape(x).1 == Rows::Wanted);
            let like: Vec<ValueId> = values.iter().copied().filter(|v| g.shape(*v) == g.shape(x)).collect();
            let y = like[random.under(like.len())];
            let n_out = [8, 8, 16][random.under(3)];
            let w = g.weight("w", n_out, width, Format::F32);
            let w2 = g.weight("w2", n_out, width, Format::F32);
            let next = match random.under(10) {
                0 => g.add(x, y),
                1 => g.glu(x, y, Activation::Silu),
                2 => g.scale(x, 2.0),
                3 => g.norm(x, Norm { kind: NormKind::Rms, group: width, weight: None, bias: None, eps: 1e-5 }),
                4 if !wanted => g.take_wanted(x),
                5 => {
                    let [a, b] = g.linears(x, [(w, None), (w2, None)]);
                    values.push(a);
                    b
                }
                6 => {
                    let [a, b] = g.linears(x, [(w, None), (w2, None)]);
                    g.glu(a, b, Activation::Silu)
                }
                7 if n_out == width => g.linear_add(x, w, None, y),
                8 if !wanted && width == 8 => {
                    let w = g.weight("q", 16, 8, Format::F32);
                    let q = g.linear(x, w, None);
                    let layer = g.kv_layer(KvLayer { heads: 1, key_dim: 8, value_dim: 8 });
                    let attention = Attention {
                        q,
                        k: x,
                        v: like.iter().copied().find(|v| g.width(*v) == 8).unwrap_or(x),
                        layer,
                        heads: 2,
                        scale: 1.0,
                        window: None,
                        softcap: None,
                        sink: None,
                        out: x,
                    };
                    g.attention(attention)
                }
                _ => g.linear(x, w, None),
            };
            values.push(next);
        }
        let output = values[values.len() - 1 - random.under(values.len().min(3))];
        g.finish(output).unwrap()
    }

    /// Runs a plan with the names of values in place of values: a buffer holds the value that was last written there.
    fn check(program: &Program, ops: &[Op], keep: &[ValueId]) {
        let plan = MemoryPlan::new(program, ops, keep);
        let buffer = |v: ValueId| plan.of_value[v.index()].unwrap();
        let mut holds: Vec<Option<ValueId>> = vec![None; plan.buffers.len()];
        let mut written = vec![false; program.values.len()];
        for op in ops {
            for x in op.inputs() {
                if !written[x.index()] {
                    // It comes from outside, and is put there now.
                    (holds[buffer(x)], written[x.index()]) = (Some(x), true);
                }
            }
            for x in op.inputs() {
                assert_eq!(holds[buffer(x)], Some(x), "{}: an input was overwritten\n{program}", program.describe(op));
            }
            let outputs = op.outputs();
            for (i, out) in outputs.iter().enumerate() {
                assert!(outputs[..i].iter().all(|o| buffer(*o) != buffer(*out)), "two outputs share a buffer");
                for x in op.inputs().into_iter().filter(|x| buffer(*x) == buffer(*out)) {
                    let (a, b) = (program.value(x), program.value(*out));
                    assert!(op.in_place(x) && (a.width, a.rows) == (b.width, b.rows), "{}", program.describe(op));
                }
                let (place, value) = (plan.buffers[buffer(*out)], program.value(*out));
                assert!(place.width >= value.width && place.rows == value.rows);
                (holds[buffer(*out)], written[out.index()]) = (Some(*out), true);
            }
        }
        for v in keep {
            assert_eq!(holds[buffer(*v)], Some(*v), "a value that is needed later was overwritten");
        }
    }

    /// Values that later ops read, and the output.
    fn kept(program: &Program, end: usize, written: &[ValueId]) -> Vec<ValueId> {
        let read = |v: &ValueId| program.ops[end..].iter().any(|op| op.inputs().contains(v)) || *v == program.output;
        written.iter().copied().filter(read).collect()
    }

    #[test]
    fn live_values_never_share_memory() {
        let mut random = Random(1);
        for _ in 0..2000 {
            let program = random_program(&mut random);
            for program in [program.clone(), fuse(program)] {
                let n = program.ops.len();
                let (a, b) = (random.under(n), random.under(n));
                for ops in [0..n, a.min(b)..a.max(b) + 1] {
                    let written: Vec<ValueId> = program.ops[ops.clone()].iter().flat_map(Op::outputs).collect();
                    check(&program, &program.ops[ops.clone()], &kept(&program, ops.end, &written));
                }
            }
        }
    }

    /// A chain needs two buffers however long it is, and one where every op works in place.
    #[test]
    fn memory_is_reused() {
        let mut g = Builder::new(10);
        let table = g.weight("embed", 10, 8, Format::F32);
        let w = g.weight("w", 8, 8, Format::F32);
        let mut x = g.embed(table, 1.0);
        for _ in 0..10 {
            x = g.linear(x, w, None);
            x = g.activate(x, Activation::Silu);
        }
        let p = g.finish(x).unwrap();
        let plan = MemoryPlan::new(&p, &p.ops, &[x]);
        assert_eq!((plan.buffers.len(), plan.elements(3, 1)), (2, 2 * 3 * 8));
        let plan = MemoryPlan::new(&p, &p.ops[1..2], &[]);
        assert_eq!(plan.buffers.len(), 2);
    }

    #[test]
    fn wanted_rows_have_buffers_of_their_own() {
        let mut g = Builder::new(10);
        let table = g.weight("embed", 10, 8, Format::F32);
        let x = g.embed(table, 1.0);
        let x = g.take_wanted(x);
        let x = g.scale(x, 2.0);
        let p = g.finish(x).unwrap();
        let plan = MemoryPlan::new(&p, &p.ops, &[x]);
        assert_eq!((plan.buffers.len(), plan.elements(100, 3)), (2, 100 * 8 + 3 * 8));
    }
}
