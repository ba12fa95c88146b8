//! Models of well-known shapes with random weights, made in memory: to measure speed without a file.

use crate::failure::{Failure, Result};
use crate::quantize::storable;
use cupola_backend::{SourceError, WeightSource};
use cupola_formats::config::{RopeKind, RopeParameters};
use cupola_graph::{
    Activation, Attention, Builder, KvLayer, Norm, NormKind, Program, RopeStyle, VectorId, WeightId, fuse,
};
use cupola_quant::Format;
use std::borrow::Cow;
use std::ops::Range;

/// The sizes of a decoder of the llama kind.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// What the user calls it.
    pub name: &'static str,
    layers: usize,
    hidden: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    feed_forward: usize,
    vocab: usize,
    tied: bool,
    qk_norm: bool,
}

#[rustfmt::skip]
const SHAPES: [Shape; 10] = [
    shape("1b",           16, 2048, 32,  8,  64,  8192,  32000, false, false),
    shape("llama3-1b",    16, 2048, 32,  8,  64,  8192, 128256, true,  false),
    shape("llama3-3b",    28, 3072, 24,  8, 128,  8192, 128256, true,  false),
    shape("llama3-8b",    32, 4096, 32,  8, 128, 14336, 128256, false, false),
    shape("smollm2-135m", 30,  576,  9,  3,  64,  1536,  49152, true,  false),
    shape("smollm2-1.7b", 24, 2048, 32, 32,  64,  8192,  49152, true,  false),
    shape("qwen3-0.6b",   28, 1024, 16,  8, 128,  3072, 151936, true,  true),
    shape("qwen3-1.7b",   28, 2048, 16,  8, 128,  6144, 151936, true,  true),
    shape("qwen3-4b",     36, 2560, 32,  8, 128,  9728, 151936, true,  true),
    shape("qwen3-8b",     36, 4096, 32,  8, 128, 12288, 151936, false, true),
];

#[allow(clippy::too_many_arguments)] // A row of the table above.
const fn shape(
    name: &'static str,
    layers: usize,
    hidden: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    feed_forward: usize,
    vocab: usize,
    tied: bool,
    qk_norm: bool,
) -> Shape {
    Shape { name, layers, hidden, heads, kv_heads, head_dim, feed_forward, vocab, tied, qk_norm }
}

impl Shape {
    /// The shape of this name.
    pub fn named(name: &str) -> std::result::Result<Shape, String> {
        SHAPES
            .into_iter()
            .find(|s| s.name.eq_ignore_ascii_case(name))
            .ok_or_else(|| format!("unknown shape; known are {}", SHAPES.map(|s| s.name).join(", ")))
    }

    /// The program with all matrices in one format, where their rows allow it.
    pub fn program(&self, format: Format) -> Result<Program> {
        let mut g = Builder::new(self.vocab);
        let q_width = self.heads * self.head_dim;
        let kv_width = self.kv_heads * self.head_dim;
        let rope = RopeParameters { theta: 500_000.0, partial_rotary_factor: None, kind: RopeKind::Default };
        let rope = cupola_models::rope::table(&rope, self.head_dim)?;
        let rope = g.rope_table(rope);
        let norm = |g: &mut Builder, group: usize| {
            let weight = Some(g.vector("norm", group));
            Norm { kind: NormKind::Rms, group, weight, bias: None, eps: 1e-5 }
        };
        let matrix = |g: &mut Builder, name: &str, n_out, n_in| g.weight(name, n_out, n_in, storable(format, n_in));

        let embedding = matrix(&mut g, "embed", self.vocab, self.hidden);
        let mut x = g.embed(embedding, 1.0);
        for layer in 0..self.layers {
            g.scope(format!("l{layer}"));
            let attention_norm = norm(&mut g, self.hidden);
            let h = g.norm(x, attention_norm);
            let weights = [("q", q_width), ("k", kv_width), ("v", kv_width)];
            let jobs = weights.map(|(name, n_out)| (matrix(&mut g, name, n_out, self.hidden), None));
            let [mut q, mut k, v] = g.linears(h, jobs);
            if self.qk_norm {
                let (q_norm, k_norm) = (norm(&mut g, self.head_dim), norm(&mut g, self.head_dim));
                (q, k) = (g.norm(q, q_norm), g.norm(k, k_norm));
            }
            (q, k) =
                (g.rope(q, self.head_dim, RopeStyle::Halves, rope), g.rope(k, self.head_dim, RopeStyle::Halves, rope));
            let cache = KvLayer { heads: self.kv_heads, key_dim: self.head_dim, value_dim: self.head_dim };
            let mut a = g_attention(&mut g, [q, k, v], cache, self);
            if layer + 1 == self.layers {
                (x, a) = (g.take_wanted(x), g.take_wanted(a));
            }
            let o = matrix(&mut g, "o", self.hidden, q_width);
            x = g.linear_add(a, o, None, x);
            let ffn_norm = norm(&mut g, self.hidden);
            let h = g.norm(x, ffn_norm);
            let jobs = ["gate", "up"].map(|name| (matrix(&mut g, name, self.feed_forward, self.hidden), None));
            let [gate, up] = g.linears(h, jobs);
            let h = g.glu(gate, up, Activation::Silu);
            let down = matrix(&mut g, "down", self.hidden, self.feed_forward);
            x = g.linear_add(h, down, None, x);
        }
        g.scope("");
        let output_norm = norm(&mut g, self.hidden);
        let h = g.norm(x, output_norm);
        let output = if self.tied { embedding } else { matrix(&mut g, "output", self.vocab, self.hidden) };
        let logits = g.linear(h, output, None);
        Ok(fuse(g.finish(logits)?))
    }
}

fn g_attention(
    g: &mut Builder,
    [q, k, v]: [cupola_graph::ValueId; 3],
    cache: KvLayer,
    shape: &Shape,
) -> cupola_graph::ValueId {
    let layer = g.kv_layer(cache);
    let scale = 1.0 / (shape.head_dim as f32).sqrt();
    g.attention(Attention {
        q,
        k,
        v,
        layer,
        heads: shape.heads,
        scale,
        window: None,
        softcap: None,
        sink: None,
        out: q,
    })
}

/// Random weights: rows are pieces of one pool for each format, so that making them costs a copy.
pub struct RandomWeights<'p> {
    program: &'p Program,
    pools: Vec<(Format, Vec<u8>)>,
}

/// Values in a pool: more than the longest row.
const POOL: usize = 1 << 18;

impl<'p> RandomWeights<'p> {
    /// Weights for a program.
    pub fn new(program: &'p Program) -> Result<RandomWeights<'p>> {
        let mut random = Random(1);
        // Small enough that activations stay of ordinary size through all layers.
        let values: Vec<f32> = (0..POOL).map(|_| 0.04 * random.next_signed()).collect();
        let mut pools: Vec<(Format, Vec<u8>)> = vec![];
        for weight in &program.weights {
            if pools.iter().any(|(f, _)| *f == weight.format) {
                continue;
            }
            let bytes = weight.format.row_bytes(POOL).unwrap_or(0);
            let mut pool = vec![0; bytes];
            cupola_quant::encode(weight.format, &values, &mut pool)?;
            pools.push((weight.format, pool));
        }
        if program.weights.iter().any(|w| w.n_in > POOL) {
            return Err(Failure::new("a matrix has too many columns for synthetic weights"));
        }
        Ok(RandomWeights { program, pools })
    }
}

impl WeightSource for RandomWeights<'_> {
    fn rows(&self, id: WeightId, rows: Range<usize>) -> std::result::Result<Cow<'_, [u8]>, SourceError> {
        let weight = self.program.weight(id);
        let missing = || SourceError { name: weight.name.clone(), message: "has no pool".into() };
        let (_, pool) = self.pools.iter().find(|(f, _)| *f == weight.format).ok_or_else(missing)?;
        let block = weight.format.layout().bytes;
        let row = weight.format.row_bytes(weight.n_in).ok_or_else(missing)?;
        let starts = (pool.len() - row) / block + 1;
        let mut bytes = Vec::with_capacity(row * rows.len());
        for r in rows {
            let start = Random(((u64::from(id.0)) << 32) + r as u64).next() as usize % starts * block;
            bytes.extend_from_slice(&pool[start..start + row]);
        }
        Ok(Cow::Owned(bytes))
    }

    fn vector(&self, id: VectorId) -> std::result::Result<Vec<f32>, SourceError> {
        Ok(vec![1.0; self.program.vector(id).len])
    }
}

/// SplitMix64 (Steele, Lea and Flood 2014): good enough for numbers that only have to look like weights.
pub struct Random(pub u64);

impl Random {
    /// 64 random bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from -1 to 1.
    fn next_signed(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parameters as the models' cards state them, in millions.
    #[test]
    fn shapes_have_the_published_number_of_parameters() {
        let cards =
            [("llama3-1b", 1235), ("llama3-8b", 8030), ("smollm2-135m", 134), ("qwen3-0.6b", 596), ("qwen3-8b", 8190)];
        for (name, millions) in cards {
            let program = Shape::named(name).unwrap().program(Format::Q4_0).unwrap();
            let matrices: usize = program.weights.iter().map(|w| w.n_out * w.n_in).sum();
            let vectors: usize = program.vectors.iter().map(|v| v.len).sum();
            assert_eq!((matrices + vectors).div_euclid(1_000_000), millions, "{name}");
        }
    }

    #[test]
    fn rows_have_the_bytes_that_their_format_makes() {
        let program = Shape::named("smollm2-135m").unwrap().program(Format::Q4_K).unwrap();
        let weights = RandomWeights::new(&program).unwrap();
        for (i, w) in program.weights.iter().enumerate() {
            let id = WeightId(i as u32);
            assert_eq!(weights.rows(id, 3..5).unwrap().len(), 2 * w.bytes() / w.n_out);
            assert_eq!(weights.rows(id, 3..5).unwrap(), weights.rows(id, 3..5).unwrap());
        }
        assert_ne!(weights.rows(WeightId(1), 0..1).unwrap(), weights.rows(WeightId(1), 1..2).unwrap());
    }
}
