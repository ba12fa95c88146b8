//! Single ops on host memory, for library users and tests.
//!
//! They run as programs of one op, so with the kernels and the precision that the op has in a model. Each call uploads
//! its weights: for more than a call or two, load a program with a [`Runner`](crate::Runner).

use crate::{Backend, BackendError, HostValues, LoadError, MemoryWeights, Segment, SourceError, UploadError, Verdict};
use cupola_graph::{Attention, BLOCK_TOKENS, Builder, GraphError, KvLayer, Program, Rows, Span, Step, ValueId};
use cupola_quant::Format;
use std::collections::HashMap;
use std::sync::Arc;

/// One product of [`matmul`].
#[derive(Clone, Copy, Debug)]
pub struct MatmulJob<'a> {
    /// `[n_out, n_in]`, row-major, as `format` stores it.
    pub weight: &'a [u8],
    /// How the rows are stored.
    pub format: Format,
    /// Rows of the weight.
    pub n_out: usize,
    /// `[n_out]`.
    pub bias: Option<&'a [f32]>,
}

/// Matrix products that share an input: `weight . x (+ bias)` of each job, `[rows, n_out]` row-major. `x` is
/// `[rows, n_in]`.
///
/// # Errors
/// Lengths do not fit together, the backend declines the op or a weight ([`LoadError::NotTaken`]), or it fails.
pub fn matmul<const N: usize>(
    backend: &dyn Backend,
    x: &[f32],
    rows: usize,
    jobs: [MatmulJob<'_>; N],
) -> Result<[Vec<f32>; N], LoadError> {
    let n_in = width("x", x, rows)?;
    let mut source = MemoryWeights::default();
    for (number, MatmulJob { weight, format, n_out, bias }) in jobs.iter().enumerate() {
        let row_bytes = format.row_bytes(n_in).unwrap_or(0);
        if row_bytes.checked_mul(*n_out) != Some(weight.len()) {
            let message = format!("[{n_out}, {n_in}] in {format} does not take {} bytes", weight.len());
            return Err(SourceError { name: format!("weight {number}"), message }.into());
        }
        source.matrices.push((weight.to_vec(), row_bytes));
        source.vectors.extend(bias.map(<[f32]>::to_vec));
    }
    let mut g = Builder::new(1);
    let input = g.input("x", n_in, Rows::All);
    let jobs = jobs.map(|job| {
        let bias = job.bias.map(|bias| g.vector("bias", bias.len()));
        (g.weight("weight", job.n_out, n_in, job.format), bias)
    });
    let outs = g.linears(input, jobs);
    let program = g.finish(outs[0]).map_err(BackendError::from)?;
    let mut values = run(backend, program, &source, HostValues::from([(input, x.to_vec())]), rows)?;
    Ok(outs.map(|out| values.remove(&out).unwrap_or_default()))
}

/// What [`attention`] computes: see [`Attention`].
#[derive(Clone, Copy, Debug)]
pub struct AttentionJob<'a> {
    /// `[rows, heads * key_dim]`.
    pub q: &'a [f32],
    /// `[rows, kv.heads * key_dim]`.
    pub k: &'a [f32],
    /// `[rows, kv.heads * value_dim]`.
    pub v: &'a [f32],
    /// Query heads; a multiple of the key-value heads.
    pub heads: usize,
    /// Key-value heads and the width of both.
    pub kv: KvLayer,
    /// Factor on the scores.
    pub scale: f32,
    /// Keys that a query sees, itself included; absent: all.
    pub window: Option<usize>,
    /// Bound on the scores.
    pub softcap: Option<f32>,
    /// A score per query head, `[heads]`, that takes weight but has no value.
    pub sink: Option<&'a [f32]>,
}

/// Causal attention of a sequence of `rows` tokens over itself, `[rows, heads * value_dim]` row-major. Keys and values
/// are rounded to the backend's cache type ([`Options::kv`](crate::Options::kv)) as in a model.
///
/// # Errors
/// Lengths do not fit together, the backend declines the op ([`LoadError::NotTaken`]), or it fails.
pub fn attention(backend: &dyn Backend, job: &AttentionJob<'_>, rows: usize) -> Result<Vec<f32>, LoadError> {
    let mut g = Builder::new(1);
    let mut inputs = HostValues::new();
    let mut input = |name: &str, x: &[f32]| -> Result<ValueId, LoadError> {
        let id = g.input(name, width(name, x, rows)?, Rows::All);
        inputs.insert(id, x.to_vec());
        Ok(id)
    };
    let (q, k, v) = (input("q", job.q)?, input("k", job.k)?, input("v", job.v)?);
    let layer = g.kv_layer(job.kv);
    let sink = job.sink.map(|sink| g.vector("sink", sink.len()));
    let AttentionJob { heads, scale, window, softcap, .. } = *job;
    let out = g.attention(Attention { q, k, v, layer, heads, scale, window, softcap, sink, out: q });
    let program = g.finish(out).map_err(BackendError::from)?;
    let source = MemoryWeights { matrices: vec![], vectors: job.sink.map(<[f32]>::to_vec).into_iter().collect() };
    Ok(run(backend, program, &source, inputs, rows)?.remove(&out).unwrap_or_default())
}

/// Elements of each of the rows of `x`.
fn width(name: &str, x: &[f32], rows: usize) -> Result<usize, BackendError> {
    match x.len().checked_rem(rows) {
        Some(0) => Ok(x.len() / rows),
        _ => Err(GraphError::Step(format!("{name} has {} elements, which are not {rows} rows", x.len())).into()),
    }
}

/// Runs a program that is a single op on one sequence of `rows` tokens; gives the values that it writes.
fn run(
    backend: &dyn Backend,
    program: Program,
    source: &MemoryWeights,
    mut values: HostValues,
    rows: usize,
) -> Result<HostValues, LoadError> {
    let program = Arc::new(program);
    let op = &program.ops[0];
    let not_taken = |reason: crate::Decline| LoadError::NotTaken {
        op: program.describe(op),
        reasons: format!("{}: {reason}", backend.device()),
    };
    if let Verdict::Decline(reason) = backend.wants(&program, op) {
        return Err(not_taken(reason));
    }
    let mut weights = HashMap::new();
    for id in op.weights() {
        match backend.upload(&program, id, source) {
            Ok(weight) => weights.insert(id, weight),
            Err(UploadError::Decline(reason)) => return Err(not_taken(reason)),
            Err(UploadError::Source(error)) => return Err(error.into()),
        };
    }
    let mut executable = backend.compile(Segment {
        program: program.clone(),
        ops: 0..1,
        weights,
        vectors: Arc::new(source.vectors.clone()),
        inputs: op.inputs(),
        outputs: op.outputs(),
    })?;
    let blocks: Vec<u32> = (0..rows.div_ceil(BLOCK_TOKENS) as u32).collect();
    executable.reserve(blocks.len())?;
    let tokens = vec![0; rows];
    let span = Span { rows, start: 0, blocks: &blocks, rope_length: rows };
    executable.run(&Step { tokens: &tokens, spans: &[span], wanted: &[] }, &mut values)?;
    Ok(values)
}
