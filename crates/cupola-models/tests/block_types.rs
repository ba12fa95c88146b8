//! A whole model in each format that a weight can have, from a GGUF file to logits.

use cupola_backend::{Activations, Options, Runner};
use cupola_cpu::CpuBackend;
use cupola_formats::Checkpoint;
use cupola_formats::gguf::{GgmlType, GgufWriter, Value};
use cupola_graph::{BLOCK_TOKENS, Span, Step, fuse};
use cupola_quant::{Format, decode, encode};
use std::path::Path;
use std::sync::Arc;

const HIDDEN: usize = 256;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 64;
const FEED_FORWARD: usize = 512;
const LAYERS: usize = 2;
/// No whole number of tiles of any kernel.
const VOCAB: usize = 67;
const TOKENS: [u32; 9] = [3, 66, 0, 17, 42, 42, 5, 31, 64];

/// Bounds on any logit's distance from exact mode, in standard deviations of the logits. Keys and values in f16 and activations
/// of 16 bits; measured: up to 2.2e-3.
const BITS_16: f32 = 1e-2;
/// With activations of 8 bits in the feed-forward and after attention; measured: up to 0.08.
const BITS_8: f32 = 0.2;

struct Random(u64);

impl Random {
    fn bits(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as u32
    }

    /// About normal, of deviation 1: the sum of 12 numbers from -1/2 to 1/2.
    fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.bits() as f32 / u32::MAX as f32 - 0.5).sum()
    }

    /// A matrix of `n` values: encoded, where the format has an encoder; otherwise random codes, the scales of whose blocks are
    /// made about 2^-7.
    fn matrix(&mut self, format: Format, n: usize) -> Vec<u8> {
        let layout = format.layout();
        let mut bytes = vec![0; n / layout.block * layout.bytes];
        if format.has_encoder() {
            let values: Vec<f32> = (0..n).map(|_| 0.06 * self.normal()).collect();
            encode(format, &values, &mut bytes).unwrap();
            return bytes;
        }
        bytes.iter_mut().for_each(|byte| *byte = self.bits() as u8);
        for block in bytes.chunks_exact_mut(layout.bytes) {
            match format {
                // The bits of the scale are the upper four of four numbers.
                Format::IQ1_M => (block[53], block[55]) = (block[53] & 0x3f, block[55] & 0x8f | 0x20),
                _ => block[1] = block[1] & 0x83 | 0x20,
            }
        }
        bytes
    }
}

/// A tensor of the model: name, shape, format, bytes.
struct Tensor(String, Vec<usize>, Format, Vec<u8>);

impl Tensor {
    fn values(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.1.iter().product()];
        decode(self.2, &self.3, &mut values).unwrap();
        values
    }

    fn in_f32(&self) -> Tensor {
        let bytes = self.values().iter().flat_map(|v| v.to_le_bytes()).collect();
        Tensor(self.0.clone(), self.1.clone(), Format::F32, bytes)
    }

    /// Norm weights that make the outputs of these matrices about 1.
    fn norm(name: &str, matrices: &[Tensor]) -> Tensor {
        let values: Vec<f32> = matrices.iter().flat_map(Tensor::values).collect();
        let square = values.iter().map(|v| v * v).sum::<f32>() / values.len() as f32;
        let weight = 1.0 / (square * HIDDEN as f32).sqrt();
        assert!(weight.is_finite(), "{name}");
        Tensor(name.into(), vec![HIDDEN], Format::F32, [weight; HIDDEN].iter().flat_map(|w| w.to_le_bytes()).collect())
    }
}

/// All matrices in one format.
fn model(format: Format) -> Vec<Tensor> {
    let mut random = Random(format as u64 + 1);
    let mut matrix = |name: &str, n_out: usize, n_in: usize| {
        Tensor(format!("{name}.weight"), vec![n_out, n_in], format, random.matrix(format, n_out * n_in))
    };
    let mut all = vec![matrix("token_embd", VOCAB, HIDDEN)];
    for l in 0..LAYERS {
        let mut of = |part: &str, n_out, n_in| matrix(&format!("blk.{l}.{part}"), n_out, n_in);
        let (q, kv) = (HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM);
        let qkv = [of("attn_q", q, HIDDEN), of("attn_k", kv, HIDDEN), of("attn_v", kv, HIDDEN)];
        all.push(Tensor::norm(&format!("blk.{l}.attn_norm.weight"), &qkv));
        all.extend(qkv);
        all.push(of("attn_output", HIDDEN, q));
        let gate_up = [of("ffn_gate", FEED_FORWARD, HIDDEN), of("ffn_up", FEED_FORWARD, HIDDEN)];
        all.push(Tensor::norm(&format!("blk.{l}.ffn_norm.weight"), &gate_up));
        all.extend(gate_up);
        all.push(of("ffn_down", HIDDEN, FEED_FORWARD));
    }
    let head = matrix("output", VOCAB, HIDDEN);
    all.push(Tensor::norm("output_norm.weight", std::slice::from_ref(&head)));
    all.push(head);
    all
}

fn write(path: &Path, tensors: &[Tensor]) {
    let mut writer = GgufWriter::new();
    let number = |n: usize| Value::U32(n as u32);
    for (key, value) in [
        ("general.architecture", Value::String("llama".into())),
        ("llama.block_count", number(LAYERS)),
        ("llama.context_length", number(256)),
        ("llama.embedding_length", number(HIDDEN)),
        ("llama.feed_forward_length", number(FEED_FORWARD)),
        ("llama.attention.head_count", number(HEADS)),
        ("llama.attention.head_count_kv", number(KV_HEADS)),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
    ] {
        writer.set(key, value).unwrap();
    }
    for Tensor(name, shape, format, _) in tensors {
        writer.declare(name, shape, GgmlType::from(*format)).unwrap();
    }
    let mut file = writer.create(path).unwrap();
    for Tensor(name, _, _, bytes) in tensors {
        file.write(name, bytes).unwrap();
    }
    file.finish().unwrap();
}

/// The logits of all tokens, `chunk` of them in a step.
fn logits(path: &Path, options: Options, chunk: usize) -> Vec<f32> {
    let checkpoint = Checkpoint::open(path).unwrap();
    let model = cupola_models::build(&checkpoint).unwrap();
    let backend = Arc::new(CpuBackend::open(&options).unwrap());
    let mut runner =
        Runner::load(Arc::new(fuse(model.program)), vec![backend], &model.parameters, &mut |_| {}).unwrap();
    let blocks = [0];
    assert!(TOKENS.len() <= BLOCK_TOKENS);
    runner.reserve(1).unwrap();
    let mut all = vec![];
    for (step, tokens) in TOKENS.chunks(chunk).enumerate() {
        let wanted: Vec<u32> = (0..tokens.len() as u32).collect();
        let span = Span { rows: tokens.len(), start: step * chunk, blocks: &blocks, rope_length: TOKENS.len() };
        all.extend(runner.run(&Step { tokens, spans: &[span], wanted: &wanted }).unwrap());
    }
    all
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn every_format_from_file_to_logits() {
    let folder = tempfile::tempdir().unwrap();
    let (stored, decoded) = (folder.path().join("stored.gguf"), folder.path().join("decoded.gguf"));
    for format in Format::ALL {
        let tensors = model(format);
        write(&stored, &tensors);
        write(&decoded, &tensors.iter().map(Tensor::in_f32).collect::<Vec<_>>());

        let exact = Options { exact: true, threads: Some(1), ..Options::default() };
        let reference = logits(&decoded, exact.clone(), TOKENS.len());
        let deviation = (reference.iter().map(|x| x * x).sum::<f32>() / reference.len() as f32).sqrt();
        assert!(deviation > 0.2 && deviation < 5.0, "{format}: the logits' spread is {deviation}");
        let of_one = &reference[..VOCAB];
        assert!(of_one.iter().any(|x| *x != of_one[0]), "{format}: all logits are {}", of_one[0]);

        for (threads, chunk) in [(1, TOKENS.len()), (2, 4), (2, 1)] {
            let found = logits(&stored, Options { threads: Some(threads), ..exact.clone() }, chunk);
            assert_eq!(bits(&found), bits(&reference), "{format}, exact, {threads} threads, chunks of {chunk}");
        }
        for (activations, bound) in [(Activations::Bits16, BITS_16), (Activations::Bits8, BITS_8)] {
            let options = |threads| Options { threads: Some(threads), activations, ..Options::default() };
            let whole = logits(&stored, options(1), TOKENS.len());
            let error = whole.iter().zip(&reference).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / deviation;
            assert!(error < bound, "{format}, {activations:?}: off by {error} of the spread");
            assert_eq!(bits(&logits(&stored, options(2), 1)), bits(&whole), "{format}, {activations:?}: one by one");
        }
    }
}
