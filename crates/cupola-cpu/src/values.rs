//! The values of a step in memory.

use crate::memory::{Buffer, Line, OutOfMemory};
use cupola_graph::{MemoryPlan, Program, Rows, ValueId};
use std::cell::Cell;
use std::marker::PhantomData;

/// Floats of a cache line: buffers start at whole lines.
const LINE: usize = size_of::<Line>() / size_of::<f32>();

/// Memory of all values of a run of ops, as its plan lays it out.
pub(crate) struct Values {
    plan: MemoryPlan,
    memory: Buffer,
    /// Start of each of the plan's buffers, in floats.
    starts: Vec<usize>,
    rows: usize,
    wanted: usize,
}

impl Values {
    /// Values without memory.
    pub fn new(plan: MemoryPlan) -> Values {
        Values { plan, memory: Buffer::default(), starts: vec![], rows: 0, wanted: 0 }
    }

    /// Makes room for a step of `rows` rows of which `wanted` are wanted. Contents are undefined.
    pub fn prepare(&mut self, rows: usize, wanted: usize) -> Result<(), OutOfMemory> {
        (self.rows, self.wanted) = (rows, wanted);
        self.starts.clear();
        let mut end = 0usize;
        for buffer in &self.plan.buffers {
            self.starts.push(end);
            let rows = if buffer.rows == Rows::All { rows } else { wanted };
            let size = rows.checked_mul(buffer.width).and_then(|n| n.checked_next_multiple_of(LINE));
            end = size.and_then(|n| n.checked_add(end)).ok_or(OutOfMemory { bytes: usize::MAX })?;
        }
        self.memory.reserve(end / LINE)
    }

    /// Bytes that are allocated.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.memory)
    }

    /// Fills everything with NaNs, so that a test notices what is read before it is written.
    #[cfg(test)]
    pub fn poison(&mut self) {
        self.memory.iter_mut().for_each(|line| line.floats_mut().fill(f32::NAN));
    }

    /// All values. What lives in the same buffer at different times is the same memory.
    pub fn all(&mut self) -> Tensors<'_> {
        Tensors {
            plan: &self.plan,
            starts: &self.starts,
            memory: self.memory.as_mut_ptr().cast(),
            rows: self.rows,
            wanted: self.wanted,
            lifetime: PhantomData,
        }
    }
}

/// See [`Values::all`].
#[derive(Clone, Copy)]
pub(crate) struct Tensors<'a> {
    plan: &'a MemoryPlan,
    starts: &'a [usize],
    memory: *mut f32,
    rows: usize,
    wanted: usize,
    lifetime: PhantomData<&'a Cell<f32>>,
}

impl<'a> Tensors<'a> {
    /// The memory of a value.
    ///
    /// # Panics
    /// If the plan has no place for it.
    pub fn get(&self, program: &Program, id: ValueId) -> Tensor<'a> {
        let value = program.value(id);
        let buffer = self.plan.of_value[id.index()].expect("the plan places every value that its ops touch");
        let rows = if value.rows == Rows::All { self.rows } else { self.wanted };
        // SAFETY: `Values::prepare` made room for `rows * buffer.width` floats here, and no value is wider.
        let data = unsafe { self.memory.add(self.starts[buffer]) };
        Tensor { data, rows, width: value.width, lifetime: PhantomData }
    }
}

/// A value `[rows, width]`. It may share memory with another, so whoever accesses it must know what else is going on.
#[derive(Clone, Copy)]
pub(crate) struct Tensor<'a> {
    data: *mut f32,
    pub rows: usize,
    pub width: usize,
    lifetime: PhantomData<&'a Cell<f32>>,
}

// SAFETY: access is by unsafe methods only, whose callers keep threads apart.
unsafe impl Sync for Tensor<'_> {}
// SAFETY: as above.
unsafe impl Send for Tensor<'_> {}

impl<'a> Tensor<'a> {
    /// A tensor at the start of a buffer, to be accessed only while that lives and is not used otherwise.
    pub fn of(buffer: &mut Buffer, rows: usize, width: usize) -> Tensor<'a> {
        assert!(rows * width <= buffer.len() * LINE);
        Tensor { data: buffer.as_mut_ptr().cast(), rows, width, lifetime: PhantomData }
    }

    /// Elements.
    pub fn len(self) -> usize {
        self.rows * self.width
    }

    /// Whether both start at the same place: then one was made from the other's memory.
    pub fn is(self, other: Tensor<'_>) -> bool {
        self.data == other.data
    }

    /// Consecutive rows as a tensor.
    pub fn rows(self, first: usize, count: usize) -> Tensor<'a> {
        assert!(first + count <= self.rows);
        // SAFETY: in bounds by the assertion.
        Tensor { data: unsafe { self.data.add(first * self.width) }, rows: count, ..self }
    }

    /// The elements of a row.
    ///
    /// # Safety
    /// As for [`Tensor::cells`].
    pub unsafe fn row(self, row: usize) -> &'a [Cell<f32>] {
        // SAFETY: the caller's promise.
        unsafe { self.cells(row * self.width, (row + 1) * self.width) }
    }

    /// All elements.
    ///
    /// # Safety
    /// Nothing writes to this memory while the slice lives.
    pub unsafe fn read(self) -> &'a [f32] {
        // SAFETY: `rows * width` floats, initialised since memory starts as zeros.
        unsafe { std::slice::from_raw_parts(self.data, self.len()) }
    }

    /// All elements.
    ///
    /// # Safety
    /// Nothing else accesses this memory while the slice lives.
    pub unsafe fn write(self) -> &'a mut [f32] {
        // SAFETY: as above, and exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.data, self.len()) }
    }

    /// Elements from `start` to `end`.
    ///
    /// # Safety
    /// No other thread accesses these elements, and nothing has a plain reference to them, while the cells live.
    pub unsafe fn cells(self, start: usize, end: usize) -> &'a [Cell<f32>] {
        assert!(start <= end && end <= self.len());
        // SAFETY: in bounds by the assertion; a Cell is laid out as its content.
        unsafe { std::slice::from_raw_parts(self.data.add(start).cast(), end - start) }
    }
}
