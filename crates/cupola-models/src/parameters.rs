//! A program's parameters, read from a checkpoint when a device asks for them.

use crate::ModelError;
use cupola_backend::{SourceError, WeightSource};
use cupola_formats::{Checkpoint, Dtype, Tensor};
use cupola_graph::{Builder, VectorId, WeightId};
use cupola_quant::Format;
use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;

/// The parameters of a [`Model`](crate::Model): views of the checkpoint's tensors. Nothing is copied before a device
/// asks.
#[derive(Debug)]
pub struct Parameters<'c> {
    matrices: Vec<Matrix<'c>>,
    vectors: Vec<Vector<'c>>,
}

/// A matrix: consecutive rows of a tensor.
#[derive(Debug)]
struct Matrix<'c> {
    tensor: Tensor<'c>,
    /// Bytes of the tensor that are this matrix.
    bytes: Range<usize>,
    row_bytes: usize,
}

/// A vector: a tensor with a number added to each element.
#[derive(Debug)]
struct Vector<'c> {
    tensor: Tensor<'c>,
    format: Format,
    offset: f32,
}

impl Matrix<'_> {
    /// Where these rows lie in the tensor; `None` if they are not all within the matrix.
    fn locate(&self, rows: &Range<usize>) -> Option<Range<usize>> {
        let start = rows.start.checked_mul(self.row_bytes)?.checked_add(self.bytes.start)?;
        let end = rows.end.checked_mul(self.row_bytes)?.checked_add(self.bytes.start)?;
        (start <= end && end <= self.bytes.end).then_some(start..end)
    }
}

impl WeightSource for Parameters<'_> {
    fn rows(&self, id: WeightId, rows: Range<usize>) -> Result<Cow<'_, [u8]>, SourceError> {
        let matrix = self.matrices.get(id.index()).ok_or_else(|| unknown("weight", id.index()))?;
        let bytes = matrix.locate(&rows).and_then(|range| matrix.tensor.bytes.get(range));
        bytes.map(Cow::Borrowed).ok_or_else(|| SourceError {
            name: matrix.tensor.name.into(),
            message: format!("rows {rows:?} of {} bytes are not within it", matrix.row_bytes),
        })
    }

    fn vector(&self, id: VectorId) -> Result<Vec<f32>, SourceError> {
        let vector = self.vectors.get(id.index()).ok_or_else(|| unknown("vector", id.index()))?;
        let mut values = decode(&vector.tensor, vector.format)?;
        // An offset of zero must not turn -0 into +0.
        if vector.offset != 0.0 {
            values.iter_mut().for_each(|v| *v += vector.offset);
        }
        Ok(values)
    }

    fn release(&self, id: WeightId, rows: Range<usize>) {
        if let Some(matrix) = self.matrices.get(id.index())
            && let Some(range) = matrix.locate(&rows)
        {
            matrix.tensor.release_bytes(range);
        }
    }
}

fn unknown(kind: &str, index: usize) -> SourceError {
    SourceError { name: format!("{kind} {index}"), message: "is not a parameter of this model".into() }
}

fn decode(tensor: &Tensor, format: Format) -> Result<Vec<f32>, SourceError> {
    let mut values = vec![0.0; tensor.elements()];
    cupola_quant::decode(format, tensor.bytes, &mut values)
        .map_err(|e| SourceError { name: tensor.name.into(), message: e.to_string() })?;
    Ok(values)
}

/// Declares a program's parameters: finds each tensor, checks its shape and type, and remembers that it is used.
pub(crate) struct Loader<'c> {
    /// The program so far.
    pub builder: Builder,
    checkpoint: &'c Checkpoint,
    family: &'static str,
    parameters: Parameters<'c>,
    used: HashSet<&'c str>,
}

impl<'c> Loader<'c> {
    pub fn new(checkpoint: &'c Checkpoint, family: &'static str, vocab: usize) -> Loader<'c> {
        let parameters = Parameters { matrices: vec![], vectors: vec![] };
        Loader { builder: Builder::new(vocab), checkpoint, family, parameters, used: HashSet::new() }
    }

    /// The matrix `[n_out, n_in]` of this name.
    pub fn matrix(&mut self, name: &str, n_out: usize, n_in: usize) -> Result<WeightId, ModelError> {
        let [id] = self.stacked(name, [n_out], n_in)?;
        Ok(id)
    }

    /// Matrices that are stored as one tensor, one above the other; `n_out` has the rows of each.
    pub fn stacked<const N: usize>(
        &mut self,
        name: &str,
        n_out: [usize; N],
        n_in: usize,
    ) -> Result<[WeightId; N], ModelError> {
        let total = n_out.iter().try_fold(0usize, |sum, n| sum.checked_add(*n));
        let total = total.ok_or_else(|| ModelError::hyperparameter(name, "a tensor of fewer rows", "an overflow"))?;
        let tensor = self.tensor(name, &[total, n_in])?;
        let unusable = || ModelError::Format { tensor: name.into(), dtype: tensor.dtype, columns: n_in };
        let Dtype::Weight(format) = tensor.dtype else { return Err(unusable()) };
        let row_bytes = format.row_bytes(n_in).ok_or_else(unusable)?;
        let mut row = 0;
        Ok(n_out.map(|rows| {
            let part = row..row + rows;
            row = part.end;
            let label = if N == 1 { name.to_string() } else { format!("{name}[{}..{}]", part.start, part.end) };
            // The product fits: the tensor has this many bytes and more.
            let bytes = part.start * row_bytes..part.end * row_bytes;
            self.parameters.matrices.push(Matrix { tensor, bytes, row_bytes });
            self.builder.weight(label, rows, n_in, format)
        }))
    }

    /// The vector of this name, with `offset` added to each element.
    pub fn vector(&mut self, name: &str, len: usize, offset: f32) -> Result<VectorId, ModelError> {
        let tensor = self.tensor(name, &[len])?;
        let Dtype::Weight(format) = tensor.dtype else {
            return Err(ModelError::Format { tensor: name.into(), dtype: tensor.dtype, columns: len });
        };
        self.parameters.vectors.push(Vector { tensor, format, offset });
        Ok(self.builder.vector(name, len))
    }

    fn tensor(&mut self, name: &str, shape: &[usize]) -> Result<Tensor<'c>, ModelError> {
        let missing = || ModelError::MissingTensor { tensor: name.into(), family: self.family };
        let tensor = self.checkpoint.tensor(name).ok_or_else(missing)?;
        if tensor.shape != shape {
            return Err(ModelError::Shape { tensor: name.into(), expected: shape.into(), found: tensor.shape.into() });
        }
        self.used.insert(tensor.name);
        Ok(tensor)
    }

    /// Refuses tensors that are part of this model but that it did not ask for, such as biases of projections that
    /// have none in this architecture: everything under `layers`, and companions of tensors that are used.
    pub fn refuse_unused(&self, layers: &str, ignored: &[&str]) -> Result<(), ModelError> {
        let owner = |name: &'c str| name.rsplit_once('.').map_or(name, |(owner, _)| owner);
        let owners: HashSet<&str> = self.used.iter().map(|name| owner(name)).collect();
        let dropped = |t: &Tensor<'c>| {
            !self.used.contains(t.name)
                && !ignored.iter().any(|end| t.name.ends_with(end))
                && (t.name.starts_with(layers) || owners.contains(owner(t.name)))
        };
        match self.checkpoint.tensors().find(dropped) {
            Some(t) => Err(ModelError::Unused { tensor: t.name.into(), family: self.family }),
            None => Ok(()),
        }
    }

    /// The parameters that were declared, and the builder that knows them.
    pub fn finish(self) -> (Builder, Parameters<'c>) {
        (self.builder, self.parameters)
    }
}
