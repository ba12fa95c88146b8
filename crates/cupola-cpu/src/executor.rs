//! Runs a segment's ops, one after the other.

mod experts;

use crate::attention::{self, Operands, attention};
use crate::backend::Shared;
use crate::cache::Cache;
use crate::memory::{Buffer, Line, OutOfMemory};
use crate::ops;
use crate::products::{self, Activations, Job, Matrix, Mode, ProductError, Write, products};
use crate::values::{Tensor, Tensors, Values};
use cupola_backend::{BackendError, Executable, HostValues, Segment};
use cupola_graph::{
    Epilogue, GatedLinear, Gating, GraphError, Linear, Linears, MemoryPlan, Norm, Op, Program, Rope, RopeTable, Step,
    ValueId, VectorId, WeightId, sensitive,
};
use experts::Experts;
use std::ops::Range;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

/// Elements of a row-wise op under which starting threads costs more than it gains.
const SERIAL_ELEMENTS: usize = 1 << 13;

/// A segment on the CPU.
pub(crate) struct Executor {
    shared: Arc<Shared>,
    program: Arc<Program>,
    ops: Range<usize>,
    /// How the products of each op of the program are computed.
    modes: Vec<Mode>,
    outputs: Vec<ValueId>,
    /// By [`WeightId`].
    weights: Vec<Option<Arc<Matrix>>>,
    vectors: Arc<Vec<Vec<f32>>>,
    /// Inputs of the segment that are first read by each of its ops: their memory may hold other values before.
    loads: Vec<Vec<ValueId>>,
    values: Values,
    /// By attention layer; only those of this segment.
    caches: Vec<Option<Cache>>,
    blocks: usize,
    scratch: Scratch,
    profile: bool,
}

/// Memory that ops use meanwhile; kept between steps.
#[derive(Default)]
struct Scratch {
    /// Normalised inputs of linear layers.
    normed: Buffer,
    /// The second product of a gated layer.
    up: Buffer,
    experts: Experts,
    products: products::Scratch,
    attention: attention::Scratch,
    /// Cosines and sines by rotary table: `[rows, 2, pairs]`.
    angles: Vec<Vec<f32>>,
}

impl Executor {
    pub fn new(shared: Arc<Shared>, segment: Segment, profile: bool) -> Result<Executor, BackendError> {
        let Segment { program, ops, weights, vectors, inputs, outputs } = segment;
        let device = |message: String| BackendError::Device { device: shared.device.to_string(), message };
        let mut matrices = vec![None; program.weights.len()];
        for id in program.ops[ops.clone()].iter().flat_map(Op::weights) {
            let matrix = weights.get(&id).and_then(|w| w.data.clone().downcast::<Matrix>().ok());
            let name = &program.weight(id).name;
            matrices[id.index()] = Some(matrix.ok_or_else(|| device(format!("weight {name} is not on this device")))?);
        }
        for id in program.ops[ops.clone()].iter().flat_map(Op::vectors) {
            let vector = program.vector(id);
            let found = vectors.get(id.index()).map_or(0, Vec::len);
            if found != vector.len {
                let (op, what) = ("vectors".to_string(), vector.name.clone());
                return Err(GraphError::Width { op, what, expected: vector.len, found }.into());
            }
        }
        let mut loads = vec![vec![]; ops.len()];
        for input in inputs {
            if let Some(first) = program.ops[ops.clone()].iter().position(|op| op.inputs().contains(&input)) {
                loads[first].push(input);
            }
        }
        let mut caches: Vec<Option<Cache>> = program.kv.iter().map(|_| None).collect();
        for op in &program.ops[ops.clone()] {
            if let Op::Attention(a) = op {
                caches[a.layer] = Some(Cache::new(program.kv[a.layer], shared.kv_type));
            }
        }
        let modes = sensitive(&program).into_iter().map(|sensitive| match shared.mode {
            Mode::Fast(Activations::Bits8) if sensitive => Mode::Fast(Activations::Bits16),
            mode => mode,
        });
        let modes = modes.collect();
        let values = Values::new(MemoryPlan::new(&program, &program.ops[ops.clone()], &outputs));
        Ok(Executor {
            shared,
            program,
            ops,
            modes,
            outputs,
            weights: matrices,
            vectors,
            loads,
            values,
            caches,
            blocks: 0,
            scratch: Scratch::default(),
            profile,
        })
    }

    fn run_ops(&mut self, step: &Step<'_>, host: &HostValues) -> Result<(), Failure> {
        self.values.prepare(step.rows(), step.wanted.len())?;
        #[cfg(test)]
        self.values.poison();
        let tensors = self.values.all();
        let mut run = Run {
            shared: &self.shared,
            mode: self.shared.mode,
            program: &self.program,
            weights: &self.weights,
            vectors: &self.vectors,
            tensors,
            caches: &mut self.caches,
            scratch: &mut self.scratch,
            step,
        };
        run.angles(&self.program.ops[self.ops.clone()])?;
        let ops = self.ops.clone();
        for ((op, mode), loads) in self.program.ops[ops.clone()].iter().zip(&self.modes[ops]).zip(&self.loads) {
            run.mode = *mode;
            for &id in loads {
                run.load(id, host)?;
            }
            let start = self.profile.then(Instant::now);
            run.op(op)?;
            if let Some(start) = start {
                let mut stats = self.shared.stats.lock().unwrap_or_else(PoisonError::into_inner);
                stats.count(op.name(), run.bytes(op), start.elapsed());
            }
        }
        Ok(())
    }
}

impl Executable for Executor {
    fn reserve(&mut self, blocks: usize) -> Result<(), BackendError> {
        // The system promises more memory than there is, and fails when it is touched.
        let needed = self.caches.iter().flatten().try_fold(0, |sum: usize, c| sum.checked_add(c.bytes_of(blocks)?));
        let memory = self.shared.device.memory;
        if needed.is_none_or(|n| memory.is_some_and(|m| n as u64 > m)) {
            return Err(self.shared.out_of_memory(needed.unwrap_or(usize::MAX), memory));
        }
        let grown = self.caches.iter_mut().flatten().try_for_each(|c| c.reserve(blocks));
        if let Err(e) = grown {
            self.caches.iter_mut().flatten().for_each(|c| c.truncate(self.blocks));
            return Err(self.shared.out_of_memory(e.bytes, None));
        }
        self.blocks = self.blocks.max(blocks);
        Ok(())
    }

    fn copy_block(&mut self, from: u32, to: u32) -> Result<(), BackendError> {
        let (from, to) = (from as usize, to as usize);
        if from.max(to) >= self.blocks {
            let message = format!("cache block {} does not exist, there are {}", from.max(to), self.blocks);
            return Err(GraphError::Step(message).into());
        }
        self.caches.iter_mut().flatten().for_each(|c| c.copy_block(from, to));
        Ok(())
    }

    fn run(&mut self, step: &Step<'_>, values: &mut HostValues) -> Result<(), BackendError> {
        let shared = self.shared.clone();
        let failed = |failure: Failure| match failure {
            Failure::Memory(bytes) => shared.out_of_memory(bytes, None),
            Failure::Other(message) => BackendError::Device { device: shared.device.to_string(), message },
        };
        // Tables and blocks were checked against what all segments have; a segment alone may have fewer.
        step.check(self.program.vocab, self.blocks)?;
        self.run_ops(step, values).map_err(failed)?;
        let tensors = self.values.all();
        let mut written = Vec::with_capacity(self.outputs.len());
        for &id in &self.outputs {
            let tensor = tensors.get(&self.program, id);
            let mut out = Vec::new();
            out.try_reserve_exact(tensor.len()).map_err(|_| failed(Failure::Memory(4 * tensor.len())))?;
            // SAFETY: no op is running.
            out.extend_from_slice(unsafe { tensor.read() });
            written.push((id, out));
        }
        values.extend(written);
        Ok(())
    }

    fn bytes(&self) -> usize {
        let Scratch { normed, up, experts, attention, angles, .. } = &self.scratch;
        let caches: usize = self.caches.iter().flatten().map(Cache::bytes).sum();
        let angles: usize = angles.iter().map(|a| size_of_val(&**a)).sum();
        caches
            + self.values.bytes()
            + size_of_val(&**normed)
            + size_of_val(&**up)
            + experts.bytes()
            + attention.bytes()
            + angles
    }
}

/// Why a step failed.
enum Failure {
    /// Out of memory, with the bytes that were asked for.
    Memory(usize),
    Other(String),
}

impl From<OutOfMemory> for Failure {
    fn from(e: OutOfMemory) -> Failure {
        Failure::Memory(e.bytes)
    }
}

impl From<ProductError> for Failure {
    fn from(e: ProductError) -> Failure {
        match e {
            ProductError::OutOfMemory(e) => e.into(),
            e => Failure::Other(e.to_string()),
        }
    }
}

/// One step.
struct Run<'a> {
    shared: &'a Shared,
    /// How the current op is computed.
    mode: Mode,
    program: &'a Program,
    weights: &'a [Option<Arc<Matrix>>],
    vectors: &'a [Vec<f32>],
    tensors: Tensors<'a>,
    caches: &'a mut [Option<Cache>],
    scratch: &'a mut Scratch,
    step: &'a Step<'a>,
}

// SAFETY of all access to tensors here: ops run one after the other. The memory plan gives the values that an op touches
// memory of their own, except that an output may have the memory of an input which is read at its own place only
// (`Op::in_place`); such ops read and write cells. Threads get rows, or ranges of elements, of their own.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<'a> Run<'a> {
    fn tensor(&self, id: ValueId) -> Tensor<'a> {
        self.tensors.get(self.program, id)
    }

    fn vector(&self, id: Option<VectorId>) -> Option<&'a [f32]> {
        id.map(|id| self.vectors[id.index()].as_slice())
    }

    fn matrix(&self, id: WeightId) -> &'a Matrix {
        self.weights[id.index()].as_deref().expect("every weight of the segment's ops was checked when it was compiled")
    }

    /// Copies a value from the host.
    fn load(&self, id: ValueId, host: &HostValues) -> Result<(), Failure> {
        let (tensor, name) = (self.tensor(id), &self.program.value(id).name);
        let found = host.get(&id).map_or(&[][..], Vec::as_slice);
        if found.len() != tensor.len() {
            let message = format!("value {name} has {} elements, expected {}", found.len(), tensor.len());
            return Err(Failure::Other(message));
        }
        unsafe { tensor.write() }.copy_from_slice(found);
        Ok(())
    }

    /// Computes the rotations of every table that the ops use, once for all of them.
    fn angles(&mut self, ops: &[Op]) -> Result<(), Failure> {
        self.scratch.angles.resize_with(self.program.ropes.len(), Vec::new);
        for (index, table) in self.program.ropes.iter().enumerate() {
            if ops.iter().any(|op| matches!(op, Op::Rope(r) if r.table == index)) {
                let angles = &mut self.scratch.angles[index];
                let (rows, width) = (self.step.rows(), table.rotary_dim());
                let len = rows.checked_mul(width).ok_or(Failure::Memory(usize::MAX))?;
                angles.clear();
                angles.try_reserve(len).map_err(|_| Failure::Memory(4 * len))?;
                angles.resize(len, 0.0);
                fill_angles(&self.shared.pool, table, self.step, angles);
            }
        }
        Ok(())
    }

    fn op(&mut self, op: &Op) -> Result<(), Failure> {
        let tier = self.shared.tier;
        match op {
            Op::Embed { table, scale, out } => self.embed(*table, *scale, self.tensor(*out)),
            Op::Norm { x, norm, out } => self.norm(norm, self.tensor(*x), self.tensor(*out)),
            Op::Linears(l) => self.linears(l)?,
            Op::GatedLinear(g) => self.gated(g)?,
            Op::Rope(r) => self.rope(r),
            Op::Attention(a) => {
                let operands = unsafe {
                    Operands {
                        q: self.tensor(a.q).read(),
                        k: self.tensor(a.k).read(),
                        v: self.tensor(a.v).read(),
                        sink: self.vector(a.sink),
                        out: self.tensor(a.out),
                    }
                };
                let cache = self.caches[a.layer]
                    .as_mut()
                    .expect("every attention of the segment has a cache since it was compiled");
                let mode = (&self.shared.pool, tier, self.mode);
                attention(mode, a, cache, self.step.spans, &operands, &mut self.scratch.attention)?;
            }
            Op::Glu { gate, up, activation, out } => {
                let (gate, up, out) = (self.tensor(*gate), self.tensor(*up), self.tensor(*out));
                self.elements(out.len(), |start, end| unsafe {
                    let (gate, up) = (gate.cells(start, end), up.cells(start, end));
                    ops::glu(tier, Gating::Plain(*activation), gate, up, out.cells(start, end));
                });
            }
            Op::Moe(m) => self.moe(m)?,
            Op::JoinHeads { a, b, heads, b_dim, out } => {
                let (a, b, out) = (self.tensor(*a), self.tensor(*b), self.tensor(*out));
                let a_dim = a.width / heads;
                let shared = b.width == *b_dim;
                self.rows(out.rows, out.width, |row| unsafe {
                    let (a, b) = (a.row(row), b.row(row));
                    for (head, out) in out.row(row).chunks_exact(a_dim + b_dim).enumerate() {
                        let b_head = if shared { 0 } else { head };
                        let (a, b) = (&a[head * a_dim..][..a_dim], &b[b_head * b_dim..][..*b_dim]);
                        out.iter().zip(a.iter().chain(b)).for_each(|(out, x)| out.set(x.get()));
                    }
                });
            }
            Op::ScaleRows { x, by, out } => {
                let (x, by, out) = (self.tensor(*x), unsafe { self.tensor(*by).read() }, self.tensor(*out));
                self.rows(out.rows, out.width, |row| unsafe {
                    ops::scale(tier, x.row(row), by[row], out.row(row));
                });
            }
            Op::Activate { x, activation, out } => {
                let (x, out) = (self.tensor(*x), self.tensor(*out));
                self.elements(out.len(), |start, end| unsafe {
                    ops::activate(tier, *activation, x.cells(start, end), out.cells(start, end));
                });
            }
            Op::Add { a, b, out } => {
                let (a, b, out) = (self.tensor(*a), self.tensor(*b), self.tensor(*out));
                self.elements(out.len(), |start, end| unsafe {
                    ops::add(tier, a.cells(start, end), b.cells(start, end), out.cells(start, end));
                });
            }
            Op::Scale { x, by, out } => {
                let (x, out) = (self.tensor(*x), self.tensor(*out));
                self.elements(out.len(), |start, end| unsafe {
                    ops::scale(tier, x.cells(start, end), *by, out.cells(start, end));
                });
            }
            Op::Softcap { x, cap, out } => {
                let (x, out) = (self.tensor(*x), self.tensor(*out));
                self.elements(out.len(), |start, end| unsafe {
                    ops::softcap(tier, x.cells(start, end), *cap, out.cells(start, end));
                });
            }
            Op::TakeWanted { x, out } => {
                let width = self.program.value(*x).width;
                let (x, out) = unsafe { (self.tensor(*x).read(), self.tensor(*out).write()) };
                for (row, out) in self.step.wanted.iter().zip(out.chunks_exact_mut(width)) {
                    out.copy_from_slice(&x[*row as usize * width..][..width]);
                }
            }
        }
        Ok(())
    }

    fn embed(&self, table: WeightId, scale: f32, out: Tensor<'_>) {
        let (matrix, tier) = (self.matrix(table), self.shared.tier);
        let width = out.width;
        let embed = |row: usize, out: &mut [f32]| {
            matrix.decode_row(tier, self.step.tokens[row] as usize, out);
            if scale != 1.0 {
                out.iter_mut().for_each(|x| *x *= scale);
            }
        };
        let out = unsafe { out.write() };
        if out.len() < SERIAL_ELEMENTS {
            out.chunks_exact_mut(width).enumerate().for_each(|(row, out)| embed(row, out));
        } else {
            self.shared.pool.run_slices(out, width, embed);
        }
    }

    fn norm(&self, norm: &Norm, x: Tensor<'_>, out: Tensor<'_>) {
        let (weight, bias) = (self.vector(norm.weight), self.vector(norm.bias));
        let tier = self.shared.tier;
        self.rows(x.rows, x.width, |row| unsafe {
            ops::norm(tier, norm.kind, norm.group, weight, bias, norm.eps, x.row(row), out.row(row));
        });
    }

    /// The input of linear layers: `x`, or its normalisation in scratch.
    fn normed(&mut self, x: ValueId, norm: Option<&Norm>) -> Result<Tensor<'a>, Failure> {
        let x = self.tensor(x);
        let Some(norm) = norm else { return Ok(x) };
        let normed = scratch(&mut self.scratch.normed, x.rows, x.width)?;
        self.norm(norm, x, normed);
        Ok(normed)
    }

    fn linears(&mut self, l: &Linears) -> Result<(), Failure> {
        let x = self.normed(l.x, l.norm.as_ref())?;
        let mut jobs = Vec::with_capacity(l.jobs.len());
        for &Linear { weight, bias, epilogue, out } in &l.jobs {
            let out = self.tensor(out);
            let write = match epilogue {
                Epilogue::Store => Write::Store,
                Epilogue::Add(residual) => {
                    let residual = self.tensor(residual);
                    if !residual.is(out) {
                        unsafe { out.write().copy_from_slice(residual.read()) };
                    }
                    Write::Add
                }
            };
            jobs.push(Job { bias: self.vector(bias), write, ..Job::new(self.matrix(weight), unsafe { out.write() }) });
        }
        self.products(x, &[x.rows], &mut jobs)
    }

    fn gated(&mut self, g: &GatedLinear) -> Result<(), Failure> {
        let x = self.normed(g.x, g.norm.as_ref())?;
        let out = self.tensor(g.out);
        let up = scratch(&mut self.scratch.up, out.rows, out.width)?;
        let job = |weight, bias, y: Tensor<'a>| Job {
            bias: self.vector(bias),
            ..Job::new(self.matrix(weight), unsafe { y.write() })
        };
        let mut jobs = [job(g.gate, g.gate_bias, out), job(g.up, g.up_bias, up)];
        self.products(x, &[x.rows], &mut jobs)?;
        let tier = self.shared.tier;
        self.elements(out.len(), |start, end| unsafe {
            let (up, out) = (up.cells(start, end), out.cells(start, end));
            ops::glu(tier, Gating::Plain(g.activation), out, up, out);
        });
        Ok(())
    }

    /// Products of the rows of `x`, which come in segments.
    fn products(&mut self, x: Tensor<'_>, segments: &[usize], jobs: &mut [Job<'_>]) -> Result<(), Failure> {
        let Shared { pool, tier, .. } = self.shared;
        products(pool, *tier, self.mode, unsafe { x.read() }, segments, jobs, &mut self.scratch.products)?;
        Ok(())
    }

    fn rope(&self, rope: &Rope) {
        let (x, out) = (self.tensor(rope.x), self.tensor(rope.out));
        let angles = &self.scratch.angles[rope.table];
        let pairs = self.program.ropes[rope.table].rotary_dim() / 2;
        let tier = self.shared.tier;
        self.rows(x.rows, x.width, |row| unsafe {
            let (cos, sin) = angles[2 * row * pairs..][..2 * pairs].split_at(pairs);
            ops::rope(tier, rope.style, rope.head_dim, cos, sin, x.row(row), out.row(row));
        });
    }

    /// Calls `f` for every row, on all threads if there is enough to do.
    fn rows(&self, rows: usize, width: usize, f: impl Fn(usize) + Sync) {
        if rows * width < SERIAL_ELEMENTS {
            (0..rows).for_each(f);
        } else {
            let grain = (SERIAL_ELEMENTS / width.max(1)).clamp(1, rows.div_ceil(self.shared.pool.threads()));
            self.shared.pool.run_chunks(rows, grain, |_, chosen| chosen.for_each(&f));
        }
    }

    /// Calls `f` for ranges that cover all elements, on all threads if there is enough to do.
    fn elements(&self, n: usize, f: impl Fn(usize, usize) + Sync) {
        if n < SERIAL_ELEMENTS {
            f(0, n);
        } else {
            self.shared.pool.run_chunks(n, SERIAL_ELEMENTS / 2, |_, chosen| f(chosen.start, chosen.end));
        }
    }

    /// Bytes of weights and cache that an op reads.
    fn bytes(&self, op: &Op) -> u64 {
        let weights = match op {
            Op::Embed { table, .. } => {
                let matrix = self.matrix(*table);
                self.step.rows() * (matrix.packed_bytes() / matrix.n_out())
            }
            Op::Moe(m) => {
                let used = self.scratch.experts.used().map(|expert| &m.experts[expert]);
                used.flat_map(|e| [e.gate.0, e.up.0, e.down.0]).map(|w| self.matrix(w).packed_bytes()).sum()
            }
            _ => op.weights().into_iter().map(|w| self.matrix(w).packed_bytes()).sum(),
        };
        let cache = match op {
            Op::Attention(a) => {
                let seen = |s: &cupola_graph::Span<'_>| {
                    (s.start + s.rows).min(a.window.map_or(usize::MAX, |w| w.saturating_add(s.rows)))
                };
                let tokens: usize = self.step.spans.iter().map(seen).sum();
                tokens * self.program.kv[a.layer].token_bytes(self.shared.kv_type)
            }
            _ => 0,
        };
        (weights + cache) as u64
    }
}

/// `rows * width` floats of scratch.
fn scratch<'a>(buffer: &mut Buffer, rows: usize, width: usize) -> Result<Tensor<'a>, OutOfMemory> {
    let floats = rows.checked_mul(width).ok_or(OutOfMemory { bytes: usize::MAX })?;
    buffer.reserve(floats.div_ceil(size_of::<Line>() / size_of::<f32>()))?;
    Ok(Tensor::of(buffer, rows, width))
}

fn fill_angles(pool: &crate::Pool, table: &RopeTable, step: &Step<'_>, angles: &mut [f32]) {
    let width = table.rotary_dim();
    if width == 0 {
        return;
    }
    let mut rest = angles;
    for span in step.spans {
        let (mine, others) = rest.split_at_mut(span.rows * width);
        rest = others;
        let fill = |row: usize, angles: &mut [f32]| {
            let (cos, sin) = angles.split_at_mut(width / 2);
            table.cos_sin(span.start + row, span.rope_length, cos, sin);
        };
        if mine.len() < 256 {
            mine.chunks_exact_mut(width).enumerate().for_each(|(row, angles)| fill(row, angles));
        } else {
            pool.run_slices(mine, width, fill);
        }
    }
}

#[cfg(test)]
mod tests;
