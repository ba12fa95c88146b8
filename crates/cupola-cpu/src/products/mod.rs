//! Products of packed weight matrices with rows of activations: `y[rows, n_out] = x[rows, n_in] * w[n_out, n_in]^T`.
//!
//! | module | what |
//! |---|---|
//! | `matrix` | [`Matrix`]: weights packed in panels of 16 rows |
//! | `bits`, `levels`, `formats` | the packed form of each format |
//! | `activations` | rows of activations in the forms that products multiply |
//! | `arithmetic`, `fast` | fast mode |
//! | `exact` | exact mode |
//! | `output` | bias, and storing or adding |

// Kernels index several arrays with one counter, within bounds that differ from tier to tier.
#![allow(clippy::needless_range_loop)]

mod activations;
mod arithmetic;
mod bits;
mod exact;
mod fast;
mod formats;
mod levels;
mod matrix;
mod output;
#[cfg(test)]
mod tests;

pub use cupola_backend::Activations;
pub use matrix::{Matrix, MatrixError};

use crate::memory::{Buffer, OutOfMemory};
use crate::pool::Pool;
use crate::simd::{Kernel, Simd};
use crate::tier::Tier;
use activations::{Part, Prepared};
use cupola_quant::Format;
use exact::{ExactMatVec, ExactProduct, ExactRows, exact_work};
use fast::{FAST_ROWS, MatVec, Product, fast_work, parts};
use formats::{Packed, with_format};
use output::Output;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// How products are computed. In both modes a row's results have the same bits alone and in any batch, for any number of
/// threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// f32 activations, decoded weights, and one fixed order of summation: the
    /// same bits on every tier. In 32 lanes, lane `l` takes inputs `l`, `l + 32`, ... in order by fused multiply-add; lanes
    /// then fold by 16, 8, 4, 2 and 1.
    Exact,
    /// Weights in blocks: activations are rounded to integers of 16 or 8 bits with one scale for each 32, the largest
    /// magnitude over 32639 or 127. That changes `y` by at most `sum(|w_i| * d_i / 2)`, `d_i` being the scale of input
    /// `i`'s block; blocks below 1e-34 count as zeros.
    /// BF16 weights and 8 bits, where the processor multiplies BF16: activations are rounded to BF16, which changes `y`
    /// by at most `sum(|w_i * x_i|) / 256`. Other floats: f32 activations. To these errors comes that of summing in f32.
    Fast(Activations),
}

/// What happens to the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Write {
    /// `y = w * x + bias`
    #[default]
    Store,
    /// `y = (w * x + bias) + y`: a residual connection.
    Add,
}

/// One matrix to multiply.
pub struct Job<'a> {
    /// The weights.
    pub matrix: &'a Matrix,
    /// Which rows of the activations it is multiplied with: those of this segment.
    pub segment: usize,
    /// `[n_out]`
    pub bias: Option<&'a [f32]>,
    /// `[rows, n_out]`, rows being `y_stride` apart.
    pub y: &'a mut [f32],
    /// Elements from row to row of `y`: at least `n_out`.
    pub y_stride: usize,
    /// Store or add.
    pub write: Write,
}

impl<'a> Job<'a> {
    /// A job on the first segment, without bias, that stores rows one after the other.
    pub fn new(matrix: &'a Matrix, y: &'a mut [f32]) -> Self {
        Job { matrix, segment: 0, bias: None, y, y_stride: matrix.n_out(), write: Write::Store }
    }
}

/// Memory that products use meanwhile. Keep one for each thread that calls [`products`]: after the first call of a size
/// nothing is allocated.
#[derive(Default)]
pub struct Scratch {
    activations: Prepared,
    tasks: Vec<Task>,
    /// One for each thread of the pool.
    work: Vec<Mutex<Buffer>>,
}

impl Scratch {
    /// Empty scratch.
    pub fn new() -> Self {
        Scratch::default()
    }
}

/// Why products could not be computed. Nothing has been written then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum ProductError {
    #[error("{rows} rows of activations for matrices of {n_in} inputs are {expected} values, but there are {got}")]
    Input { rows: usize, n_in: usize, expected: usize, got: usize },
    #[error("job {job} needs the rows of segment {segment}, there are {segments} segments")]
    Segment { job: usize, segment: usize, segments: usize },
    #[error("jobs that share activations need the same number of inputs: job 0 has {first}, job {job} has {n_in}")]
    Mixed { first: usize, job: usize, n_in: usize },
    #[error("job {job}: output rows of {n_out} values cannot be {stride} apart")]
    Stride { job: usize, n_out: usize, stride: usize },
    #[error(
        "job {job}: {rows} output rows of {n_out} values, {stride} apart, need {expected} values, but there are {got}"
    )]
    Output { job: usize, rows: usize, n_out: usize, stride: usize, expected: usize, got: usize },
    #[error("job {job}: the bias has {got} values, the matrix {n_out} rows")]
    Bias { job: usize, n_out: usize, got: usize },
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
}

/// Computes all jobs on activations `x`, `[rows, n_in]`, in one parallel region (two for many rows: the activations are
/// prepared first). The rows come in segments, `segments` having the number of rows of each; a job takes those of one. Most
/// products have one segment; experts have one each.
pub fn products(
    pool: &Pool,
    tier: Tier,
    mode: Mode,
    x: &[f32],
    segments: &[usize],
    jobs: &mut [Job<'_>],
    scratch: &mut Scratch,
) -> Result<(), ProductError> {
    check(x, segments, jobs)?;
    if segments.iter().all(|rows| *rows == 0) || jobs.is_empty() {
        return Ok(());
    }
    let single = segments.iter().all(|rows| *rows <= 1);
    let plan = Plan { tier, mode, single, tile: tier.run(TileSizes) };
    let tile = match mode {
        _ if single => 1,
        Mode::Fast(_) => plan.tile.rows,
        Mode::Exact => plan.tile.exact_rows,
    };
    let needed = jobs.iter().flat_map(|job| plan.parts(job.matrix.format()));
    scratch.activations.prepare(pool, tier, x, segments, tile, needed)?;
    let threads = pool.threads();
    plan.split(jobs, &scratch.activations, threads, &mut scratch.tasks);
    let work = plan.work(&scratch.activations);
    scratch.work.resize_with(scratch.work.len().max(threads), Mutex::default);
    for buffer in &mut scratch.work[..threads] {
        buffer.get_mut().unwrap_or_else(PoisonError::into_inner).reserve(work)?;
    }

    let Scratch { activations, tasks, work } = scratch;
    let mut outputs = Vec::with_capacity(jobs.len());
    for job in jobs {
        let first_row = activations.groups_of(job.segment).next().map_or(0, |group| activations.rows_of(group).start);
        outputs.push((job.matrix, Output::new(job, first_row)));
    }
    pool.run_chunks(tasks.len(), 1, |thread, chosen| {
        let mut work = work[thread].lock().unwrap_or_else(PoisonError::into_inner);
        for task in &tasks[chosen] {
            let (matrix, output) = &outputs[task.job];
            plan.compute(matrix, task, activations, output, &mut work);
        }
    });
    Ok(())
}

fn check(x: &[f32], segments: &[usize], jobs: &[Job<'_>]) -> Result<(), ProductError> {
    let Some(first) = jobs.first().map(|job| job.matrix.n_in()) else { return Ok(()) };
    let rows = segments.iter().fold(0, |sum: usize, rows| sum.saturating_add(*rows));
    let expected = rows.saturating_mul(first);
    if x.len() != expected {
        return Err(ProductError::Input { rows, n_in: first, expected, got: x.len() });
    }
    for (job, Job { matrix, segment, bias, y, y_stride, .. }) in jobs.iter().enumerate() {
        let (n_out, n_in, stride) = (matrix.n_out(), matrix.n_in(), *y_stride);
        let Some(&rows) = segments.get(*segment) else {
            return Err(ProductError::Segment { job, segment: *segment, segments: segments.len() });
        };
        if n_in != first {
            return Err(ProductError::Mixed { first, job, n_in });
        }
        if stride < n_out {
            return Err(ProductError::Stride { job, n_out, stride });
        }
        let expected = if rows == 0 { 0 } else { (rows - 1).saturating_mul(stride).saturating_add(n_out) };
        if y.len() < expected {
            return Err(ProductError::Output { job, rows, n_out, stride, expected, got: y.len() });
        }
        if let Some(bias) = bias.filter(|b| b.len() != n_out) {
            return Err(ProductError::Bias { job, n_out, got: bias.len() });
        }
    }
    Ok(())
}

/// Part of a job: these panels times these groups of activations.
struct Task {
    job: usize,
    panels: Range<usize>,
    groups: Range<usize>,
}

/// What a tier's tiles hold: rows of activations, and panels.
#[derive(Clone, Copy)]
struct TileSize {
    rows: usize,
    exact_rows: usize,
    panels: usize,
}

struct TileSizes;

impl Kernel for TileSizes {
    type Output = TileSize;
    const INTEGER_DOT: bool = true;
    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> TileSize {
        TileSize { rows: S::TILE, exact_rows: S::EXACT_TILE, panels: S::COLUMNS / S::HALVES }
    }
}

/// Packed weights that a mat-vec task reads at least: below, taking a task costs more than it evens out.
const TASK_BYTES: usize = 32 << 10;
/// Tasks for each thread, so that none waits long for another which the system has interrupted.
const TASKS_PER_THREAD: usize = 8;

struct Plan {
    tier: Tier,
    mode: Mode,
    /// Whether no segment has more than one row.
    single: bool,
    tile: TileSize,
}

impl Plan {
    /// The forms of the activations that a format needs.
    fn parts(&self, format: Format) -> [Part; 3] {
        match self.mode {
            Mode::Exact if self.single => [Part::F32; 3],
            Mode::Exact => [Part::Exact; 3],
            Mode::Fast(Activations::Bits16) => with_format!(format, C => parts::<<C as Packed>::Wide>()),
            Mode::Fast(Activations::Bits8) if self.bf16_dot(format) => parts::<formats::Bf16Dot>(),
            Mode::Fast(Activations::Bits8) => with_format!(format, C => parts::<C>()),
        }
    }

    /// Whether BF16 activations meet weights of this format, if they are rounded to 8 bits.
    fn bf16_dot(&self, format: Format) -> bool {
        format == Format::BF16 && self.tier.has_bf16_dot()
    }

    /// Lines of scratch for each thread.
    fn work(&self, activations: &Prepared) -> usize {
        match self.mode {
            _ if self.single => 0,
            Mode::Exact => exact_work(activations.padded()),
            Mode::Fast(_) => fast_work(self.tile.panels),
        }
    }

    /// Splits jobs into tasks. Results do not depend on how.
    fn split(&self, jobs: &[Job<'_>], activations: &Prepared, threads: usize, tasks: &mut Vec<Task>) {
        tasks.clear();
        let total: usize = jobs.iter().map(|job| job.matrix.packed_bytes()).sum();
        let panels_at_once = match self.mode {
            Mode::Fast(_) => self.tile.panels,
            Mode::Exact => 1,
        };
        for (job, Job { matrix, segment, .. }) in jobs.iter().enumerate() {
            let (panels, groups) = (matrix.panels(), activations.groups_of(*segment));
            let (step, groups_at_once) = if self.mat_vec(&groups, activations) {
                let bytes = (total / (threads * TASKS_PER_THREAD)).max(TASK_BYTES);
                ((bytes / (matrix.packed_bytes() / panels)).max(1), 1)
            } else {
                // As many rows at once as memory for sums allows, less if there are not enough panels for all threads.
                let wanted = (threads * TASKS_PER_THREAD).div_ceil(panels.div_ceil(panels_at_once) * jobs.len());
                let limit = (FAST_ROWS / self.tile.rows).max(1);
                (panels_at_once, groups.len().div_ceil(if threads == 1 { 1 } else { wanted }).clamp(1, limit))
            };
            for first in (0..panels).step_by(step) {
                for group in groups.clone().step_by(groups_at_once) {
                    let groups = group..groups.end.min(group + groups_at_once);
                    tasks.push(Task { job, panels: first..panels.min(first + step), groups });
                }
            }
        }
    }

    /// Whether groups are one row that the mat-vec takes: among others, that row is prepared for the tiled product, which in
    /// exact mode is something else.
    fn mat_vec(&self, groups: &Range<usize>, activations: &Prepared) -> bool {
        self.single || self.mode != Mode::Exact && groups.len() == 1 && activations.rows_of(groups.start).len() == 1
    }

    fn compute(&self, matrix: &Matrix, task: &Task, activations: &Prepared, output: &Output<'_>, work: &mut Buffer) {
        let format = matrix.format();
        match self.mode {
            Mode::Exact => with_format!(format, C => self.exact::<C>(matrix, task, activations, output, work)),
            Mode::Fast(Activations::Bits16) => {
                with_format!(format, C => self.fast::<<C as Packed>::Wide>(matrix, task, activations, output, work));
            }
            Mode::Fast(Activations::Bits8) if self.bf16_dot(format) => {
                self.fast::<formats::Bf16Dot>(matrix, task, activations, output, work);
            }
            Mode::Fast(Activations::Bits8) => {
                with_format!(format, C => self.fast::<C>(matrix, task, activations, output, work));
            }
        }
    }

    fn fast<C: Packed>(
        &self,
        matrix: &Matrix,
        task: &Task,
        activations: &Prepared,
        output: &Output<'_>,
        work: &mut Buffer,
    ) {
        let (panels, groups, format) = (task.panels.clone(), task.groups.clone(), PhantomData::<C>);
        if self.mat_vec(&groups, activations) {
            self.tier.run(MatVec { matrix, panels, group: groups.start, activations, output, format });
        } else {
            self.tier.run(Product { matrix, panel: panels.start, groups, activations, output, work, format });
        }
    }

    fn exact<C: Packed>(
        &self,
        matrix: &Matrix,
        task: &Task,
        activations: &Prepared,
        output: &Output<'_>,
        work: &mut Buffer,
    ) {
        let (panels, groups, format) = (task.panels.clone(), task.groups.clone(), PhantomData::<C>);
        if self.mat_vec(&groups, activations) {
            let (row, x) = (activations.rows_of(groups.start).start, activations.part(groups.start, Part::F32));
            self.tier.run(ExactMatVec { matrix, panels, row, x, output, format });
            return;
        }
        let group = |group| {
            let rows = activations.rows_of(group);
            ExactRows { first_row: rows.start, rows: rows.len(), x: activations.part(group, Part::Exact) }
        };
        let x_blocks = activations.padded() / 32;
        self.tier.run(ExactProduct { matrix, panel: panels.start, x_blocks, groups, group, output, work, format });
    }
}
