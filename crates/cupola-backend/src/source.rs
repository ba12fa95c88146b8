//! Where parameters come from.

use crate::SourceError;
use cupola_graph::{VectorId, WeightId};
use std::borrow::Cow;
use std::ops::Range;

/// Gives a program's parameters to the devices that load them.
pub trait WeightSource: Sync {
    /// Rows of a matrix, in the format that the program states: whole rows, one after the other.
    fn rows(&self, id: WeightId, rows: Range<usize>) -> Result<Cow<'_, [u8]>, SourceError>;

    /// A vector.
    fn vector(&self, id: VectorId) -> Result<Vec<f32>, SourceError>;

    /// Says that these rows have been copied elsewhere, so that memory that caches their file may be given back.
    /// They can still be read again.
    fn release(&self, id: WeightId, rows: Range<usize>) {
        let _ = (id, rows);
    }
}

/// Parameters that are in memory already.
#[derive(Clone, Debug, Default)]
pub struct MemoryWeights {
    /// Bytes of each matrix and of one of its rows, by [`WeightId`].
    pub matrices: Vec<(Vec<u8>, usize)>,
    /// Each vector, by [`VectorId`].
    pub vectors: Vec<Vec<f32>>,
}

impl WeightSource for MemoryWeights {
    fn rows(&self, id: WeightId, rows: Range<usize>) -> Result<Cow<'_, [u8]>, SourceError> {
        let (bytes, row) = self.matrices.get(id.index()).ok_or_else(|| missing("weight", id.index()))?;
        let range = rows.start.saturating_mul(*row)..rows.end.saturating_mul(*row);
        let found = bytes.get(range).ok_or_else(|| SourceError {
            name: format!("weight {}", id.index()),
            message: format!("rows {rows:?} of {row} bytes are not within {} bytes", bytes.len()),
        })?;
        Ok(Cow::Borrowed(found))
    }

    fn vector(&self, id: VectorId) -> Result<Vec<f32>, SourceError> {
        self.vectors.get(id.index()).cloned().ok_or_else(|| missing("vector", id.index()))
    }
}

fn missing(kind: &str, index: usize) -> SourceError {
    SourceError { name: format!("{kind} {index}"), message: "not provided".into() }
}
