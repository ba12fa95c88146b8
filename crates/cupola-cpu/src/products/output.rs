//! Where products write their results.

use super::matrix::PANEL;
use super::{Job, Write};
use std::marker::PhantomData;

/// The output of one job, shared by the threads that compute parts of it.
pub(crate) struct Output<'a> {
    y: *mut f32,
    len: usize,
    stride: usize,
    /// The activations' row that gives the first row here.
    first_row: usize,
    n_out: usize,
    bias: Option<&'a [f32]>,
    write: Write,
    borrow: PhantomData<&'a mut [f32]>,
}

// SAFETY: threads write disjoint elements, which `write` makes its callers promise.
unsafe impl Sync for Output<'_> {}

impl<'a> Output<'a> {
    /// `job.y` is checked by the caller to hold the rows that will be written, from row `first_row` of the activations on.
    pub fn new(job: &'a mut Job<'_>, first_row: usize) -> Self {
        Output {
            y: job.y.as_mut_ptr(),
            len: job.y.len(),
            stride: job.y_stride,
            first_row,
            n_out: job.matrix.n_out(),
            bias: job.bias,
            write: job.write,
            borrow: PhantomData,
        }
    }

    /// Finishes 16 outputs of one row of the activations: adds the bias, then stores, or adds to what is there.
    ///
    /// # Safety
    /// No other thread reads or writes outputs of this row and panel meanwhile.
    #[inline(always)]
    pub unsafe fn write(&self, row: usize, panel: usize, values: &[f32; 16]) {
        let first = panel * PANEL;
        let count = PANEL.min(self.n_out - first);
        let at = (row - self.first_row) * self.stride + first;
        assert!(at + count <= self.len);
        // SAFETY: in bounds by the assertion, and ours alone by this function's contract.
        let y = unsafe { std::slice::from_raw_parts_mut(self.y.add(at), count) };
        let mut sum = *values;
        if let Some(bias) = self.bias {
            for (v, bias) in sum.iter_mut().zip(&bias[first..]) {
                *v += bias;
            }
        }
        match self.write {
            Write::Store => y.copy_from_slice(&sum[..count]),
            Write::Add => {
                for (y, v) in y.iter_mut().zip(sum) {
                    *y += v;
                }
            }
        }
    }
}
