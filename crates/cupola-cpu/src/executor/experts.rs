//! A mixture of experts as grouped products.

use super::{Failure, Run, Shared, scratch};
use crate::memory::Buffer;
use crate::ops;
use crate::products::Job;
use crate::routing::Routes;
use cupola_graph::{Expert, Moe};

/// Memory of a mixture of experts: rows sorted by expert.
#[derive(Default)]
pub(super) struct Experts {
    routes: Routes,
    /// Copies of the input's rows.
    x: Buffer,
    gate: Buffer,
    up: Buffer,
    down: Buffer,
}

impl Experts {
    /// Those that computed anything in the last op.
    pub fn used(&self) -> impl Iterator<Item = usize> {
        self.routes.used.iter().map(|(expert, _)| *expert)
    }

    pub fn bytes(&self) -> usize {
        [&self.x, &self.gate, &self.up, &self.down].into_iter().map(|b| size_of_val(&**b)).sum()
    }
}

// SAFETY of access to tensors: as in the parent module. The buffers here are this op's own.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Run<'_> {
    /// Sorts rows by expert, so that each expert's weights are read once, and computes all experts in two parallel products.
    pub(super) fn moe(&mut self, m: &Moe) -> Result<(), Failure> {
        let Shared { pool, tier, .. } = self.shared;
        let mut experts = std::mem::take(&mut self.scratch.experts);
        let Experts { routes, x: sorted, gate, up, down } = &mut experts;
        let (x, logits, out) = (self.tensor(m.x), self.tensor(m.logits), self.tensor(m.out));
        let choice_bias = self.vector(m.routing.choice_bias);
        routes.choose(pool, &m.routing, choice_bias, unsafe { logits.read() }, m.experts.len())?;
        let (top_k, count) = (m.routing.top_k, routes.chosen.len());
        let width = self.matrix(m.experts[0].gate.0).n_out();
        let (gate, up) = (scratch(gate, count, width)?, scratch(up, count, width)?);
        let down = scratch(down, count, out.width)?;

        let sizes: Vec<usize> = routes.used.iter().map(|(_, rows)| *rows).collect();
        // One row is the input of all its experts.
        let (x, segments) = if x.rows == 1 { (x, &[1][..]) } else { (scratch(sorted, count, x.width)?, &sizes[..]) };
        if x.rows != 1 {
            let from = self.tensor(m.x);
            self.rows(from.rows, top_k * x.width, |row| unsafe {
                for chosen in &routes.chosen[row * top_k..][..top_k] {
                    from.row(row).iter().zip(x.row(chosen.place as usize)).for_each(|(from, to)| to.set(from.get()));
                }
            });
        }
        let (mut jobs, mut row) = (Vec::with_capacity(2 * sizes.len()), 0);
        for (at, &(expert, rows)) in routes.used.iter().enumerate() {
            let Expert { gate: g, up: u, .. } = m.experts[expert];
            let segment = if segments.len() == 1 { 0 } else { at };
            for ((weight, bias), y) in [(g, gate), (u, up)] {
                let y = unsafe { y.rows(row, rows).write() };
                jobs.push(Job { segment, bias: self.vector(bias), ..Job::new(self.matrix(weight), y) });
            }
            row += rows;
        }
        self.products(x, segments, &mut jobs)?;
        drop(jobs);
        self.elements(gate.len(), |start, end| unsafe {
            let (up, gate) = (up.cells(start, end), gate.cells(start, end));
            ops::glu(*tier, m.gating, gate, up, gate);
        });
        let (mut jobs, mut row) = (Vec::with_capacity(sizes.len()), 0);
        for (segment, &(expert, rows)) in routes.used.iter().enumerate() {
            let (weight, bias) = m.experts[expert].down;
            let y = unsafe { down.rows(row, rows).write() };
            jobs.push(Job { segment, bias: self.vector(bias), ..Job::new(self.matrix(weight), y) });
            row += rows;
        }
        self.products(gate, &sizes, &mut jobs)?;
        drop(jobs);
        self.rows(out.rows, top_k * out.width, |row| unsafe {
            let y = out.row(row);
            y.iter().for_each(|y| y.set(0.0));
            for chosen in &routes.chosen[row * top_k..][..top_k] {
                ops::add_scaled(*tier, down.row(chosen.place as usize), chosen.weight, y);
            }
        });
        self.scratch.experts = experts;
        Ok(())
    }
}
