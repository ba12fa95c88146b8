//! A program's parameters, read from a checkpoint when a device asks for them.

use crate::ModelError;
use crate::stored::{Matrix, Rows};
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

/// A vector: runs of `run` elements of a tensor, the first at `start`, the others `stride` elements apart; with a number added
/// to each.
#[derive(Debug)]
struct Vector<'c> {
    tensor: Tensor<'c>,
    format: Format,
    start: usize,
    run: usize,
    stride: usize,
    len: usize,
    offset: f32,
}

impl WeightSource for Parameters<'_> {
    fn rows(&self, id: WeightId, rows: Range<usize>) -> Result<Cow<'_, [u8]>, SourceError> {
        let matrix = self.matrices.get(id.index()).ok_or_else(|| unknown("weight", id.index()))?;
        let within = rows.start <= rows.end && rows.end <= matrix.n_out;
        let bytes = match within.then(|| matrix.locate(&rows)) {
            None => None,
            Some(Some(range)) => matrix.tensor.bytes.get(range).map(Cow::Borrowed),
            Some(None) => matrix.gather(&rows).map(Cow::Owned),
        };
        bytes.ok_or_else(|| SourceError {
            name: matrix.tensor.name.into(),
            message: format!("rows {rows:?} are not within its matrix of {}", matrix.n_out),
        })
    }

    fn vector(&self, id: VectorId) -> Result<Vec<f32>, SourceError> {
        let vector = self.vectors.get(id.index()).ok_or_else(|| unknown("vector", id.index()))?;
        let Vector { tensor, format, start, run, stride, len, offset } = vector;
        let place = |i: usize| i / run * stride + i % run;
        let mut values = match format.layout().block {
            // Of a large tensor only what is needed.
            1 => {
                let size = format.layout().bytes;
                let end = start + len.checked_sub(1).map_or(0, |last| place(last) + 1);
                let mut values = vec![0.0; end - start];
                cupola_quant::decode(*format, &tensor.bytes[start * size..end * size], &mut values)
                    .map_err(|e| SourceError { name: tensor.name.into(), message: e.to_string() })?;
                values
            }
            _ => decode(tensor, *format)?.split_off(*start),
        };
        if stride != run {
            values = (0..*len).map(|i| values[place(i)]).collect();
        }
        // An offset of zero must not turn -0 into +0.
        if *offset != 0.0 {
            values.iter_mut().for_each(|v| *v += offset);
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

/// The format of a tensor's rows of `columns` elements, and their bytes.
fn row_format(tensor: &Tensor<'_>, columns: usize) -> Result<(Format, usize), ModelError> {
    let unusable = || ModelError::Format { tensor: tensor.name.into(), dtype: tensor.dtype, columns };
    let Dtype::Weight(format) = tensor.dtype else { return Err(unusable()) };
    Ok((format, format.row_bytes(columns).ok_or_else(unusable)?))
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
        // A single row may be stored as a vector.
        let shape = [total, n_in];
        let row = total == 1 && self.checkpoint.tensor(name).is_some_and(|t| t.shape.len() == 1);
        let tensor = self.tensor(name, if row { &shape[1..] } else { &shape })?;
        let (format, row_bytes) = row_format(&tensor, n_in)?;
        let mut row = 0;
        Ok(n_out.map(|rows| {
            let part = row..row + rows;
            row = part.end;
            let label = if N == 1 { name.to_string() } else { format!("{name}[{}..{}]", part.start, part.end) };
            // The product fits: the tensor has this many bytes and more.
            let start = part.start * row_bytes;
            self.push(label, tensor, [rows, n_in], format, Rows::together(start, row_bytes))
        }))
    }

    /// Matrices that take turns in one tensor, head by head: `rows` rows of each for every head.
    pub fn by_head<const N: usize>(
        &mut self,
        name: &str,
        heads: usize,
        rows: [usize; N],
        n_in: usize,
    ) -> Result<[WeightId; N], ModelError> {
        let all: usize = rows.iter().sum();
        let tensor = self.tensor(name, &[heads * all, n_in])?;
        let (format, row_bytes) = row_format(&tensor, n_in)?;
        let mut first = 0;
        Ok(rows.map(|run| {
            let runs = Rows::Runs { start: first * row_bytes, run, stride: all * row_bytes, row_bytes };
            let label = format!("{name}[{heads} x {first}..{}]", first + run);
            first += run;
            self.push(label, tensor, [heads * run, n_in], format, runs)
        }))
    }

    /// The vectors that belong to the matrices of [`Loader::by_head`].
    pub fn vectors_by_head<const N: usize>(
        &mut self,
        name: &str,
        heads: usize,
        lengths: [usize; N],
    ) -> Result<[VectorId; N], ModelError> {
        let all: usize = lengths.iter().sum();
        let (tensor, format) = self.vector_tensor(name, &[heads * all])?;
        let mut start = 0;
        Ok(lengths.map(|run| {
            let len = heads * run;
            self.parameters.vectors.push(Vector { tensor, format, start, run, stride: all, len, offset: 0.0 });
            let label = format!("{name}[{heads} x {start}..{}]", start + run);
            start += run;
            self.builder.vector(label, len)
        }))
    }

    /// The matrices of a tensor `[count, n_out, n_in]`.
    pub fn bank(&mut self, name: &str, count: usize, n_out: usize, n_in: usize) -> Result<Vec<WeightId>, ModelError> {
        let tensor = self.tensor(name, &[count, n_out, n_in])?;
        let (format, row_bytes) = row_format(&tensor, n_in)?;
        let matrix = |i: usize| {
            let rows = Rows::together(i * n_out * row_bytes, row_bytes);
            self.push(format!("{name}[{i}]"), tensor, [n_out, n_in], format, rows)
        };
        Ok((0..count).map(matrix).collect())
    }

    /// Pairs of matrices `[n_out, n_in]` of a tensor `[count, 2 * n_out, n_in]`, the first above the second.
    pub fn bank_of_pairs(
        &mut self,
        name: &str,
        count: usize,
        n_out: usize,
        n_in: usize,
    ) -> Result<Vec<[WeightId; 2]>, ModelError> {
        let tensor = self.tensor(name, &[count, 2 * n_out, n_in])?;
        let (format, row_bytes) = row_format(&tensor, n_in)?;
        let mut matrix = |i: usize| {
            let rows = Rows::together(i * n_out * row_bytes, row_bytes);
            self.push(format!("{name}[{}][{}]", i / 2, i % 2), tensor, [n_out, n_in], format, rows)
        };
        Ok((0..count).map(|i| [matrix(2 * i), matrix(2 * i + 1)]).collect())
    }

    /// The matrices whose columns are the rows of a tensor `[count, n_in, parts * n_out]`, of which column `c` belongs to part
    /// `c % parts`: those of each part.
    pub fn columns<const PARTS: usize>(
        &mut self,
        name: &str,
        count: usize,
        n_out: usize,
        n_in: usize,
    ) -> Result<Vec<[WeightId; PARTS]>, ModelError> {
        let tensor = self.tensor(name, &[count, n_in, PARTS * n_out])?;
        let (format, row_bytes) = row_format(&tensor, PARTS * n_out)?;
        let size = row_bytes / (PARTS * n_out);
        if format.layout().block != 1 {
            return Err(ModelError::Format { tensor: name.into(), dtype: tensor.dtype, columns: n_in });
        }
        let mut matrix = |i: usize, part: usize| {
            let columns =
                Rows::Columns { start: i * n_in * row_bytes + part * size, step: PARTS * size, row_bytes, size };
            self.push(format!("{name}[{i}][{part}]"), tensor, [n_out, n_in], format, columns)
        };
        Ok((0..count).map(|i| std::array::from_fn(|part| matrix(i, part))).collect())
    }

    /// The matrices of the tensors `{name}_blocks` and `{name}_scales`, `[count, parts * n_out, n_in / 32, 16]` and
    /// `[count, parts * n_out, n_in / 32]`, of which row `r` belongs to part `r % parts`. See [`Rows::Mxfp4`].
    pub fn mxfp4<const PARTS: usize>(
        &mut self,
        name: &str,
        count: usize,
        n_out: usize,
        n_in: usize,
    ) -> Result<Vec<[WeightId; PARTS]>, ModelError> {
        let blocks = n_in / 32;
        if !n_in.is_multiple_of(32) {
            return Err(ModelError::hyperparameter(format!("the width of {name}"), "a multiple of 32", n_in));
        }
        let tensor = self.tensor(&format!("{name}_blocks"), &[count, PARTS * n_out, blocks, 16])?;
        let exponents = self.tensor(&format!("{name}_scales"), &[count, PARTS * n_out, blocks])?;
        for tensor in [&tensor, &exponents] {
            if !matches!(tensor.dtype, Dtype::U8 | Dtype::F8_E8M0) {
                return Err(ModelError::Format { tensor: tensor.name.into(), dtype: tensor.dtype, columns: n_in });
            }
        }
        let mut matrix = |i: usize, part: usize| {
            let rows = Rows::Mxfp4 { exponents, first: i * PARTS * n_out + part, step: PARTS, blocks };
            self.push(format!("{name}[{i}][{part}]"), tensor, [n_out, n_in], Format::MXFP4, rows)
        };
        Ok((0..count).map(|i| std::array::from_fn(|part| matrix(i, part))).collect())
    }

    fn push(
        &mut self,
        label: String,
        tensor: Tensor<'c>,
        [n_out, n_in]: [usize; 2],
        format: Format,
        rows: Rows<'c>,
    ) -> WeightId {
        self.parameters.matrices.push(Matrix { tensor, n_out, rows });
        self.builder.weight(label, n_out, n_in, format)
    }

    /// The vector of this name, with `offset` added to each element.
    pub fn vector(&mut self, name: &str, len: usize, offset: f32) -> Result<VectorId, ModelError> {
        let [[id]] = self.vectors::<1>(name, None, len, offset)?[..] else { unreachable!("one tensor is one vector") };
        Ok(id)
    }

    /// The vectors of a tensor `[count, parts * len]`, of whose rows element `c` belongs to part `c % parts`.
    pub fn bank_of_vectors<const PARTS: usize>(
        &mut self,
        name: &str,
        count: usize,
        len: usize,
    ) -> Result<Vec<[VectorId; PARTS]>, ModelError> {
        self.vectors(name, Some(count), len, 0.0)
    }

    fn vectors<const PARTS: usize>(
        &mut self,
        name: &str,
        count: Option<usize>,
        len: usize,
        offset: f32,
    ) -> Result<Vec<[VectorId; PARTS]>, ModelError> {
        let shape = [count.unwrap_or(1), PARTS * len];
        let (tensor, format) = self.vector_tensor(name, if count.is_some() { &shape } else { &shape[1..] })?;
        let mut vector = |i: usize, part: usize| {
            let start = i * PARTS * len + part;
            self.parameters.vectors.push(Vector { tensor, format, start, run: 1, stride: PARTS, len, offset });
            let label = if count.is_some() { format!("{name}[{i}][{part}]") } else { name.to_string() };
            self.builder.vector(label, len)
        };
        Ok((0..shape[0]).map(|i| std::array::from_fn(|part| vector(i, part))).collect())
    }

    /// Whether the checkpoint has this tensor.
    pub fn has(&self, name: &str) -> bool {
        self.checkpoint.tensor(name).is_some()
    }

    /// Whether it has this tensor as a matrix.
    pub fn has_rows(&self, name: &str) -> bool {
        self.checkpoint.tensor(name).is_some_and(|tensor| tensor.shape.len() == 2)
    }

    /// A tensor of numbers that become f32.
    fn vector_tensor(&mut self, name: &str, shape: &[usize]) -> Result<(Tensor<'c>, Format), ModelError> {
        let tensor = self.tensor(name, shape)?;
        match tensor.dtype {
            Dtype::Weight(format) => Ok((tensor, format)),
            dtype => Err(ModelError::Format { tensor: name.into(), dtype, columns: tensor.elements() }),
        }
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
    /// have none in this architecture: everything under `layers`, up to layer number `end` if there is one, and companions of
    /// tensors that are used.
    pub fn refuse_unused(&self, layers: &str, end: Option<usize>, ignored: &[&str]) -> Result<(), ModelError> {
        let owner = |name: &'c str| name.rsplit_once('.').map_or(name, |(owner, _)| owner);
        let owners: HashSet<&str> = self.used.iter().map(|name| owner(name)).collect();
        let beyond = |t: &Tensor<'c>| {
            let number = t.name.strip_prefix(layers).and_then(|rest| rest.split('.').next()?.parse::<usize>().ok());
            end.zip(number).is_some_and(|(end, number)| number >= end)
        };
        let dropped = |t: &Tensor<'c>| {
            !self.used.contains(t.name)
                && !beyond(t)
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
