//! Exact mode gives the same bits on every processor: its results as hashes, which an x86-64 processor with any instruction
//! set and an ARM processor must all find.
//!
//! What is right is tested elsewhere, against the definitions. The hashes were computed by the scalar code on x86-64; a
//! change of the order of a sum, of a polynomial or of a packed form that changes bits changes them.

use cupola_backend::{Backend, MemoryWeights, Options, Runner};
use cupola_cpu::products::{Job, Matrix, Mode, Scratch, products};
use cupola_cpu::{CpuBackend, Pool, Tier};
use cupola_graph::*;
use cupola_quant::Format;
use half::{bf16, f16};
use std::sync::Arc;

/// FNV-1a, 64 bits, of the little-endian bytes.
fn hash(values: &[f32]) -> u64 {
    let bytes = values.iter().flat_map(|v| v.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3))
}

struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    /// Between -1 and 1.
    fn values(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| (self.bits() & 0xff_ffff) as f32 / (1 << 23) as f32 - 1.0).collect()
    }

    /// Blocks of random bytes, with half-precision scales of about 2^-7 of either sign at these places.
    fn weights(&mut self, format: Format, n: usize) -> Vec<u8> {
        match format {
            Format::F32 => return self.values(n).iter().flat_map(|v| v.to_le_bytes()).collect(),
            Format::F16 => return self.values(n).iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect(),
            Format::BF16 => return self.values(n).iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect(),
            _ => {}
        }
        let &(_, scales, _) = FORMATS.iter().find(|f| f.0 == format).expect("every format has a line");
        let layout = format.layout();
        let mut bytes: Vec<u8> = (0..n / layout.block * layout.bytes).map(|_| self.bits() as u8).collect();
        for block in bytes.chunks_exact_mut(layout.bytes) {
            for at in scales {
                block[at + 1] = block[at + 1] & 0x83 | 0x20;
            }
            match format {
                // The scale is in the upper four bits of four numbers, its own highest in the last.
                Format::IQ1_M => (block[53], block[55]) = (block[53] & 0x3f, block[55] & 0x8f | 0x20),
                // Exponents of -8 to -1.
                Format::MXFP4 => block[0] = block[0] & 7 | 120,
                _ => {}
            }
        }
        bytes
    }
}

/// Each format, where its blocks have half-precision numbers, and the hash of its products.
const FORMATS: [(Format, &[usize], u64); 28] = [
    (Format::F32, &[], 0xcbfe_a1ee_1e8d_d4c3),
    (Format::F16, &[], 0x1709_2ecb_d667_b99c),
    (Format::BF16, &[], 0x4c3a_ce19_b8fa_a8a3),
    (Format::Q4_0, &[0], 0x6e4b_f501_b76c_7476),
    (Format::Q4_1, &[0, 2], 0x44eb_92b5_5c02_9b4d),
    (Format::Q5_0, &[0], 0x7be1_52a5_afe8_5ab5),
    (Format::Q5_1, &[0, 2], 0xa39f_b8cb_f9e4_643b),
    (Format::Q8_0, &[0], 0xbd95_c8c5_7084_60c3),
    (Format::Q2_K, &[80, 82], 0x085a_78e2_634e_5a8d),
    (Format::Q3_K, &[108], 0x8c41_ee20_4626_eb90),
    (Format::Q4_K, &[0, 2], 0xd078_7737_5aac_28aa),
    (Format::Q5_K, &[0, 2], 0x944d_ac8f_372e_e38f),
    (Format::Q6_K, &[208], 0x5bb1_d519_7cd6_cf10),
    (Format::IQ1_S, &[0], 0x9f84_3fb1_1108_c539),
    (Format::IQ1_M, &[], 0xbc51_7021_e736_1716),
    (Format::IQ2_XXS, &[0], 0x65a1_3d79_b337_483f),
    (Format::IQ2_XS, &[0], 0x7466_6dd9_3c2d_4367),
    (Format::IQ2_S, &[0], 0xb4a3_df05_4ce0_01c0),
    (Format::IQ3_XXS, &[0], 0x935f_6b9f_091d_acf1),
    (Format::IQ3_S, &[0], 0x4f71_8e5f_3917_0b71),
    (Format::IQ4_NL, &[0], 0x7a1f_5e64_6d6b_e73f),
    (Format::IQ4_XS, &[0], 0xc378_9553_face_e25b),
    (Format::TQ1_0, &[52], 0xd97b_90cf_f04c_90a3),
    (Format::TQ2_0, &[64], 0x3b64_f99a_3304_d35e),
    (Format::MXFP4, &[], 0x142b_ed45_dfa2_61bb),
    (Format::NVFP4, &[], 0x4896_f4e1_679d_05ee),
    (Format::Q1_0, &[0], 0xf55f_e632_9a9f_5430),
    (Format::Q2_0, &[0], 0xc546_07d9_bbcc_7218),
];

/// A matrix times 1 and 7 rows, the one row alone and within the others.
#[test]
fn products_of_every_format() {
    const N_OUT: usize = 21;
    const N_IN: usize = 768;
    const ROWS: usize = 7;
    for format in Format::ALL {
        assert!(FORMATS.iter().any(|f| f.0 == format), "{format} needs a line in this test");
    }
    let (pool, mut scratch) = (Pool::new(2), Scratch::new());
    let mut wrong = vec![];
    for (format, _, expected) in FORMATS {
        let mut random = Random(u64::from(format.ggml_type()) + 1);
        let matrix = Matrix::pack(format, N_OUT, N_IN, &random.weights(format, N_OUT * N_IN), &pool).unwrap();
        let x = random.values(ROWS * N_IN);
        for tier in Tier::available() {
            let mut run = |rows: usize| {
                let mut y = vec![f32::NAN; rows * N_OUT];
                let mut jobs = [Job::new(&matrix, &mut y)];
                products(&pool, tier, Mode::Exact, &x[..rows * N_IN], &[rows], &mut jobs, &mut scratch).unwrap();
                y
            };
            let (one, all) = (run(1), run(ROWS));
            assert!(all.iter().all(|y| y.is_finite()), "{format} {tier}");
            assert_eq!(hash(&one), hash(&all[..N_OUT]), "{format} {tier}: alone and with others");
            if hash(&all) != expected {
                wrong.push(format!("{format} {tier}: {:#018x}, not {expected:#018x}", hash(&all)));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

const VOCAB: usize = 50;
const WIDTH: usize = 64;

/// Two layers in which every op and attribute occurs.
fn program() -> Program {
    let mut g = Builder::new(VOCAB);
    let table = g.weight("embed", VOCAB, WIDTH, Format::Q8_0);
    let mut x = g.embed(table, 1.5);
    let long = Some(LongRope { above: 36, inv_freq: vec![0.3, 0.2, 0.1, 0.05] });
    let ropes = [
        g.rope_table(RopeTable::plain(10000.0, 16)),
        g.rope_table(RopeTable { magnitude: 1.1, long, ..RopeTable::plain(500.0, 8) }),
    ];
    let (heads, kv_heads, dim) = (6, 2, 16);
    for (l, format) in [Format::Q5_0, Format::F16].into_iter().enumerate() {
        g.scope(format!("l{l}"));
        let norm = g.vector("attn_norm", WIDTH);
        let wq = g.weight("q", heads * dim, WIDTH, format);
        let wk = g.weight("k", kv_heads * dim, WIDTH, Format::Q4_1);
        let wv = g.weight("v", kv_heads * dim, WIDTH, format);
        let bias = g.vector("q.bias", heads * dim);
        let h = g.rms_norm(x, norm, 1e-5);
        let [q, k, v] = g.linears(h, [(wq, Some(bias)), (wk, None), (wv, None)]);
        let head_norm = Some(g.vector("q_norm", dim));
        let q = g.norm(q, Norm { kind: NormKind::Rms, group: dim, weight: head_norm, bias: None, eps: 1e-6 });
        let style = [RopeStyle::Halves, RopeStyle::Interleaved][l];
        let (q, k) = (g.rope(q, dim, style, ropes[l]), g.rope(k, dim, style, ropes[l]));
        let layer = g.kv_layer(KvLayer { heads: kv_heads, key_dim: dim, value_dim: dim });
        let sink = (l == 0).then(|| g.vector("sink", heads));
        let (window, softcap) = ([None, Some(10)][l], [None, Some(3.0)][l]);
        let a = Attention { q, k, v, layer, heads, scale: 0.25, window, softcap, sink, out: q };
        let a = g.attention(a);
        let wo = g.weight("o", WIDTH, heads * dim, Format::BF16);
        let bias = g.vector("o.bias", WIDTH);
        x = g.linear_add(a, wo, Some(bias), x);

        let (weight, bias) = (Some(g.vector("ffn_norm", WIDTH)), Some(g.vector("ffn_norm.bias", WIDTH)));
        let h = g.norm(x, Norm { kind: NormKind::Layer, group: WIDTH, weight, bias, eps: 1e-5 });
        let gate = g.weight("gate", 96, WIDTH, Format::F32);
        let up = g.weight("up", 96, WIDTH, Format::Q4_0);
        let down = g.weight("down", WIDTH, 96, Format::Q5_1);
        let [gate, up] = g.linears(h, [(gate, None), (up, None)]);
        let h = g.glu(gate, up, [Activation::Silu, Activation::GeluTanh][l]);
        let y = g.linear(h, down, None);
        let y = g.activate(y, [Activation::Gelu, Activation::Relu][l]);
        let y = g.scale(y, 0.7);
        x = g.add(x, y);
    }
    g.scope("");
    let norm = g.vector("norm", WIDTH);
    let x = g.take_wanted(x);
    let x = g.rms_norm(x, norm, 1e-5);
    let logits = g.linear(x, table, None);
    let logits = g.softcap(logits, 30.0);
    g.finish(logits).unwrap()
}

/// The hash of [`logits`].
const LOGITS: u64 = 0x7431_cc75_af27_b39b;

/// The logits of all 45 tokens of a sequence, which comes in these chunks.
fn logits(program: &Arc<Program>, source: &MemoryWeights, options: &Options, chunks: &[usize]) -> Vec<f32> {
    let backends: Vec<Arc<dyn Backend>> = vec![Arc::new(CpuBackend::open(options).unwrap())];
    let mut runner = Runner::load(program.clone(), backends, source, &mut |_| {}).unwrap();
    runner.reserve(2).unwrap();
    let (mut start, mut out) = (0, vec![]);
    for &rows in chunks {
        let tokens: Vec<u32> = (start..start + rows).map(|p| (p * 7 % VOCAB) as u32).collect();
        let wanted: Vec<u32> = (0..rows as u32).collect();
        let spans = [Span { rows, start, blocks: &[1, 0], rope_length: 45 }];
        out.extend(runner.run(&Step { tokens: &tokens, spans: &spans, wanted: &wanted }).unwrap());
        start += rows;
    }
    out
}

#[test]
fn logits_of_a_program_with_every_op() {
    let program = Arc::new(fuse(program()));
    let mut random = Random(99);
    let source = MemoryWeights {
        matrices: program
            .weights
            .iter()
            .map(|w| (random.weights(w.format, w.n_out * w.n_in), w.bytes() / w.n_out))
            .collect(),
        vectors: program.vectors.iter().map(|v| random.values(v.len)).collect(),
    };
    for tier in Tier::available() {
        for (threads, chunks) in [(1, &[45][..]), (2, &[31, 1, 1, 12])] {
            let options = Options {
                exact: true,
                threads: Some(threads),
                cpu_tier: Some(tier.name().into()),
                ..Options::default()
            };
            let found = logits(&program, &source, &options, chunks);
            assert!(found.len() == 45 * VOCAB && found.iter().all(|x| x.is_finite() && x.abs() < 30.0));
            let found = hash(&found);
            assert_eq!(found, LOGITS, "{tier}, {threads} threads, chunks {chunks:?}: {found:#018x}");
        }
    }
}
