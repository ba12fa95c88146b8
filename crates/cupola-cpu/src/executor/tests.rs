//! Whole programs against an interpreter made of the reference's functions.

use crate::CpuBackend;
use crate::Tier;
use crate::ops::tests::{bits, numbers};
use crate::reference::{self, AttentionRow};
use cupola_backend::{Backend, MemoryWeights, Options, Runner};
use cupola_graph::*;
use cupola_quant::{Format, decode, encode};
use std::collections::HashMap;
use std::sync::Arc;

const VOCAB: usize = 50;
const WIDTH: usize = 64;

/// A program and its parameters.
struct Model {
    program: Arc<Program>,
    source: MemoryWeights,
}

fn model(program: Program) -> Model {
    let matrix = |(i, w): (usize, &Weight)| {
        let values: Vec<f32> = numbers(w.n_out * w.n_in, 100 + i as u64).iter().map(|x| 0.05 * x).collect();
        let mut bytes = vec![0; w.bytes()];
        encode(w.format, &values, &mut bytes).unwrap();
        (bytes, w.bytes() / w.n_out)
    };
    let matrices = program.weights.iter().enumerate().map(matrix).collect();
    let vectors = program.vectors.iter().enumerate().map(|(i, v)| numbers(v.len, 200 + i as u64)).collect();
    Model { program: Arc::new(program), source: MemoryWeights { matrices, vectors } }
}

/// Two layers with every op and attribute that there is.
fn everything(hidden_states: bool) -> Program {
    let mut g = Builder::new(VOCAB);
    let table = g.weight("embed", VOCAB, WIDTH, Format::Q8_0);
    let mut x = g.embed(table, 1.5);
    let ropes = [
        g.rope_table(RopeTable::plain(10000.0, 16)),
        g.rope_table(RopeTable {
            magnitude: 1.1,
            long: Some(LongRope { above: 36, inv_freq: vec![0.3; 4] }),
            ..RopeTable::plain(500.0, 8)
        }),
    ];
    let formats = [[Format::F32, Format::Q4_0, Format::Q5_1], [Format::BF16, Format::F16, Format::Q8_0]];
    for (l, [a, b, c]) in formats.into_iter().enumerate() {
        g.scope(format!("l{l}"));
        let w =
            |g: &mut Builder, name: &str, n_out, n_in, format| g.weight(format!("l{l}.{name}"), n_out, n_in, format);
        let (heads, kv_heads, dim) = (6, 2, 16);
        let norm = g.vector("attn_norm", WIDTH);
        let wq = w(&mut g, "q", heads * dim, WIDTH, a);
        let wk = w(&mut g, "k", kv_heads * dim, WIDTH, b);
        let wv = w(&mut g, "v", kv_heads * dim, WIDTH, c);
        let bq = (l == 0).then(|| g.vector("q.bias", heads * dim));
        let h = g.rms_norm(x, norm, 1e-5);
        let [q, k, v] = g.linears(h, [(wq, bq), (wk, None), (wv, None)]);
        let head_norm = Some(g.vector("q_norm", dim));
        let q = g.norm(q, Norm { kind: NormKind::Rms, group: dim, weight: head_norm, bias: None, eps: 1e-6 });
        let style = [RopeStyle::Halves, RopeStyle::Interleaved][l];
        let (q, k) = (g.rope(q, dim, style, ropes[l]), g.rope(k, dim, style, ropes[l]));
        let layer = g.kv_layer(KvLayer { heads: kv_heads, key_dim: dim, value_dim: dim });
        let sink = (l == 0).then(|| g.vector("sink", heads));
        let attention = g.attention(Attention {
            q,
            k,
            v,
            layer,
            heads,
            scale: 0.25,
            window: [None, Some(10)][l],
            softcap: [None, Some(3.0)][l],
            sink,
            out: q,
        });
        let wo = w(&mut g, "o", WIDTH, heads * dim, Format::BF16);
        let bo = Some(g.vector("o.bias", WIDTH));
        x = g.linear_add(attention, wo, bo, x);

        let (weight, bias) = (Some(g.vector("ffn_norm", WIDTH)), Some(g.vector("ffn_norm.bias", WIDTH)));
        let h = g.norm(x, Norm { kind: NormKind::Layer, group: WIDTH, weight, bias, eps: 1e-5 });
        let (gate, up) = (w(&mut g, "gate", 96, WIDTH, c), w(&mut g, "up", 96, WIDTH, b));
        let down = w(&mut g, "down", WIDTH, 96, Format::Q4_1);
        let bias = Some(g.vector("gate.bias", 96));
        let [gate, up] = g.linears(h, [(gate, bias), (up, None)]);
        let h = g.glu(gate, up, [Activation::Silu, Activation::GeluTanh][l]);
        let y = g.linear(h, down, None);
        let y = g.activate(y, [Activation::Gelu, Activation::Relu][l]);
        let y = g.scale(y, 0.7);
        x = g.add(x, y);
        let y = experts(&mut g, l, x);
        x = g.add(x, y);
    }
    g.scope("");
    let norm = g.vector("norm", WIDTH);
    if hidden_states {
        let x = g.rms_norm(x, norm, 1e-5);
        return g.finish(x).unwrap();
    }
    let x = g.take_wanted(x);
    let x = g.rms_norm(x, norm, 1e-5);
    let logits = g.linear(x, table, None);
    let logits = g.softcap(logits, 30.0);
    g.finish(logits).unwrap()
}

/// A mixture of six experts with a gated shared one.
fn experts(g: &mut Builder, l: usize, x: ValueId) -> ValueId {
    let formats = [Format::Q4_0, Format::BF16, Format::Q8_0, Format::F32, Format::Q4_0, Format::Q5_1];
    let expert = |format| {
        let mut part = |name: &str, n_out, n_in| {
            (g.weight(name, n_out, n_in, format), (l == 0).then(|| g.vector(format!("{name}.bias"), n_out)))
        };
        Expert { gate: part("gate", 32, WIDTH), up: part("up", 32, WIDTH), down: part("down", WIDTH, 32) }
    };
    let experts: Vec<Expert> = formats.into_iter().map(expert).collect();
    let (router, bias) = (g.weight("router", 6, WIDTH, Format::F32), g.vector("choice_bias", 6));
    let routing = [
        Routing {
            scores: Scores::SoftmaxOfChosen,
            choice_bias: None,
            groups: None,
            top_k: 2,
            normalise: false,
            scale: 1.0,
        },
        Routing {
            scores: Scores::Sigmoid,
            choice_bias: Some(bias),
            groups: Some(Groups { count: 3, top_k: 2, best: 2 }),
            top_k: 3,
            normalise: true,
            scale: 1.5,
        },
    ];
    let gating = [Gating::ClampedSwiglu { alpha: 1.702, limit: 0.5 }, Gating::Plain(Activation::Silu)][l];
    let logits = g.linear(x, router, None);
    let y = g.moe(Moe { x, logits, routing: routing[l].clone(), experts, gating, out: x });
    let weight = g.weight("shared_gate", 1, WIDTH, Format::F32);
    let by = g.linear(x, weight, None);
    let by = g.activate(by, Activation::Sigmoid);
    let shared = g.scale_rows(x, by);
    // Heads of 16 made of 12 and 4, which all heads share in the first layer.
    let (most, rest) = (g.weight("most", 48, WIDTH, Format::F32), g.weight("rest", [4, 16][l], WIDTH, Format::F32));
    let [most, rest] = g.linears(x, [(most, None), (rest, None)]);
    let joined = g.join_heads(most, rest, 4, 4);
    let y = g.add(y, joined);
    g.add(y, shared)
}

/// Tokens of one sequence in a step, from position `start` on.
#[derive(Clone)]
struct Part {
    sequence: usize,
    start: usize,
    tokens: Vec<u32>,
    /// Length by which RoPE chooses frequencies.
    rope_length: usize,
}

fn part(sequence: usize, positions: std::ops::Range<usize>) -> Part {
    let token = |p: usize| ((p * 7 + sequence * 13 + 1) % VOCAB) as u32;
    Part { sequence, start: positions.start, tokens: positions.map(token).collect(), rope_length: 40 }
}

/// What runs steps: the interpreter, or a backend.
trait Machine {
    fn step(&mut self, parts: &[Part], wanted: &[u32]) -> Vec<f32>;
}

type KeyValue = (Vec<f32>, Vec<f32>);

struct Interpreter {
    program: Arc<Program>,
    weights: Vec<Vec<f32>>,
    vectors: Vec<Vec<f32>>,
    /// Keys and values by layer and sequence, one entry for each token.
    history: HashMap<(usize, usize), Vec<KeyValue>>,
}

impl Interpreter {
    fn new(model: &Model) -> Interpreter {
        let decoded = |(w, (bytes, _)): (&Weight, &(Vec<u8>, usize))| {
            let mut values = vec![0.0; w.n_out * w.n_in];
            decode(w.format, bytes, &mut values).unwrap();
            values
        };
        let weights = model.program.weights.iter().zip(&model.source.matrices).map(decoded).collect();
        let vectors = model.source.vectors.clone();
        Interpreter { program: model.program.clone(), weights, vectors, history: HashMap::new() }
    }

    fn vector(&self, id: Option<VectorId>) -> Option<&[f32]> {
        id.map(|id| &*self.vectors[id.index()])
    }

    fn norm(&self, norm: &Norm, x: &[f32]) -> Vec<f32> {
        let mut y = x.to_vec();
        let (weight, bias) = (self.vector(norm.weight), self.vector(norm.bias));
        y.chunks_mut(norm.group).for_each(|x| reference::norm(norm.kind, x, weight, bias, norm.eps));
        y
    }

    /// Rows of products; `residual` is `[rows, n_out]`.
    fn linear(&self, x: &[f32], id: WeightId, bias: Option<VectorId>, residual: Option<&[f32]>) -> Vec<f32> {
        let Weight { n_in, n_out, .. } = *self.program.weight(id);
        let (weight, bias) = (&self.weights[id.index()], self.vector(bias));
        let mut y = vec![];
        for (r, x) in x.chunks(n_in).enumerate() {
            for o in 0..n_out {
                let residual = residual.map(|a| a[r * n_out + o]);
                y.push(reference::linear(&weight[o * n_in..][..n_in], x, bias.map(|b| b[o]), residual));
            }
        }
        y
    }

    fn attention(&mut self, a: &Attention, parts: &[Part], [q, k, v]: [&[f32]; 3]) -> Vec<f32> {
        let KvLayer { heads, key_dim, value_dim } = self.program.kv[a.layer];
        let (mut row, mut out) = (0, vec![]);
        for part in parts {
            let history = self.history.entry((a.layer, part.sequence)).or_default();
            history.truncate(part.start);
            for _ in &part.tokens {
                let (k, v) = (&k[row * heads * key_dim..], &v[row * heads * value_dim..]);
                history.push((k[..heads * key_dim].to_vec(), v[..heads * value_dim].to_vec()));
                for h in 0..a.heads {
                    let kv = h / (a.heads / heads);
                    let keys: Vec<&[f32]> = history.iter().map(|(k, _)| &k[kv * key_dim..][..key_dim]).collect();
                    let values: Vec<&[f32]> = history.iter().map(|(_, v)| &v[kv * value_dim..][..value_dim]).collect();
                    let query = AttentionRow {
                        q: &q[(row * a.heads + h) * key_dim..][..key_dim],
                        keys: &keys,
                        values: &values,
                        scale: a.scale,
                        window: a.window,
                        softcap: a.softcap,
                        sink: a.sink.map(|s| self.vectors[s.index()][h]),
                    };
                    let mut y = vec![0.0; value_dim];
                    query.compute(&mut y);
                    out.extend(y);
                }
                row += 1;
            }
        }
        out
    }

    fn moe(&self, m: &Moe, x: &[f32], logits: &[f32]) -> Vec<f32> {
        let n_in = self.program.value(m.x).width;
        let mut out = vec![];
        for (x, logits) in x.chunks(n_in).zip(logits.chunks(m.experts.len())) {
            let mut sum = vec![0.0f32; self.program.value(m.out).width];
            let weights = reference::route(&m.routing, self.vector(m.routing.choice_bias), logits);
            for (expert, weight) in m.experts.iter().zip(weights) {
                let Some(weight) = weight else { continue };
                let linear = |(id, bias): (WeightId, Option<VectorId>), x: &[f32]| self.linear(x, id, bias, None);
                let both = linear(expert.gate, x).into_iter().zip(linear(expert.up, x));
                let h: Vec<f32> = both.map(|(g, u)| reference::gate(m.gating, g, u)).collect();
                let y = linear(expert.down, &h);
                sum.iter_mut().zip(&y).for_each(|(s, y)| *s = weight.mul_add(*y, *s));
            }
            out.extend(sum);
        }
        out
    }

    fn rope(&self, rope: &Rope, parts: &[Part], x: &[f32]) -> Vec<f32> {
        let table = &self.program.ropes[rope.table];
        let (mut cos, mut sin) = (vec![0.0; table.rotary_dim() / 2], vec![0.0; table.rotary_dim() / 2]);
        let positions = parts.iter().flat_map(|p| (p.start..).take(p.tokens.len()).map(|at| (at, p.rope_length)));
        let mut y = x.to_vec();
        for (row, (position, length)) in y.chunks_mut(self.program.value(rope.x).width).zip(positions) {
            table.cos_sin(position, length, &mut cos, &mut sin);
            row.chunks_mut(rope.head_dim).for_each(|head| reference::rope(rope.style, head, &cos, &sin));
        }
        y
    }
}

impl Machine for Interpreter {
    fn step(&mut self, parts: &[Part], wanted: &[u32]) -> Vec<f32> {
        let program = self.program.clone();
        let tokens: Vec<u32> = parts.iter().flat_map(|p| p.tokens.clone()).collect();
        let mut values: HashMap<ValueId, Vec<f32>> = HashMap::new();
        for op in &program.ops {
            let get = |id: &ValueId| &*values[id];
            let map = |x: &ValueId, f: &dyn Fn(f32) -> f32| values[x].iter().map(|x| f(*x)).collect::<Vec<f32>>();
            let results = match op {
                Op::Embed { table, scale, .. } => {
                    let row = |t: &u32| self.weights[table.index()][*t as usize * WIDTH..][..WIDTH].to_vec();
                    vec![tokens.iter().flat_map(row).map(|x| scale * x).collect()]
                }
                Op::Norm { x, norm, .. } => vec![self.norm(norm, get(x))],
                Op::Linears(l) => {
                    let normed = l.norm.as_ref().map(|n| self.norm(n, get(&l.x)));
                    let x = normed.as_deref().unwrap_or(get(&l.x));
                    let job = |j: &Linear| match j.epilogue {
                        Epilogue::Store => self.linear(x, j.weight, j.bias, None),
                        Epilogue::Add(r) => self.linear(x, j.weight, j.bias, Some(get(&r))),
                    };
                    l.jobs.iter().map(job).collect()
                }
                Op::GatedLinear(g) => {
                    let normed = g.norm.as_ref().map(|n| self.norm(n, get(&g.x)));
                    let x = normed.as_deref().unwrap_or(get(&g.x));
                    let (gate, up) = (self.linear(x, g.gate, g.gate_bias, None), self.linear(x, g.up, g.up_bias, None));
                    let both = gate.iter().zip(&up);
                    vec![both.map(|(x, y)| reference::activate(g.activation, *x) * y).collect()]
                }
                Op::Rope(r) => vec![self.rope(r, parts, get(&r.x))],
                Op::Attention(a) => {
                    let operands = [&*values[&a.q], &*values[&a.k], &*values[&a.v]];
                    vec![self.attention(a, parts, operands)]
                }
                Op::Glu { gate, up, activation, .. } => {
                    let both = get(gate).iter().zip(get(up));
                    vec![both.map(|(x, y)| reference::activate(*activation, *x) * y).collect()]
                }
                Op::Moe(m) => vec![self.moe(m, get(&m.x), get(&m.logits))],
                Op::JoinHeads { a, b, heads, b_dim, .. } => {
                    let (a_width, b_width) = (program.value(*a).width, program.value(*b).width);
                    let row = |(a, b): (&[f32], &[f32])| {
                        let head = |h: usize| {
                            let at = if b_width == *b_dim { 0 } else { h * b_dim };
                            [&a[h * (a_width / heads)..][..a_width / heads], &b[at..][..*b_dim]].concat()
                        };
                        (0..*heads).flat_map(head).collect::<Vec<_>>()
                    };
                    vec![get(a).chunks(a_width).zip(get(b).chunks(b_width)).flat_map(row).collect()]
                }
                Op::ScaleRows { x, by, .. } => {
                    let width = program.value(*x).width;
                    let rows = get(x).chunks(width).zip(get(by));
                    vec![rows.flat_map(|(row, by)| row.iter().map(move |x| by * x)).collect()]
                }
                Op::Activate { x, activation, .. } => vec![map(x, &|x| reference::activate(*activation, x))],
                Op::Add { a, b, .. } => vec![get(a).iter().zip(get(b)).map(|(a, b)| a + b).collect()],
                Op::Scale { x, by, .. } => vec![map(x, &|x| by * x)],
                Op::Softcap { x, cap, .. } => vec![map(x, &|x| reference::softcap(x, *cap))],
                Op::TakeWanted { x, .. } => {
                    let width = program.value(*x).width;
                    let row = |r: &u32| get(x)[*r as usize * width..][..width].to_vec();
                    vec![wanted.iter().flat_map(row).collect()]
                }
            };
            values.extend(op.outputs().into_iter().zip(results));
        }
        values.remove(&program.output).unwrap()
    }
}

struct OnBackend {
    runner: Runner,
    backend: Arc<CpuBackend>,
}

/// Blocks of each sequence.
const TABLES: [[u32; 2]; 2] = [[3, 0], [1, 4]];

impl OnBackend {
    fn new(model: &Model, options: &Options) -> OnBackend {
        let backend = Arc::new(CpuBackend::open(options).unwrap());
        let backends: Vec<Arc<dyn Backend>> = vec![backend.clone()];
        let mut runner = Runner::load(model.program.clone(), backends, &model.source, &mut |_| {}).unwrap();
        runner.reserve(2).unwrap();
        runner.reserve(5).unwrap();
        OnBackend { runner, backend }
    }
}

impl Machine for OnBackend {
    fn step(&mut self, parts: &[Part], wanted: &[u32]) -> Vec<f32> {
        let tokens: Vec<u32> = parts.iter().flat_map(|p| p.tokens.clone()).collect();
        let span = |p: &Part| Span {
            rows: p.tokens.len(),
            start: p.start,
            blocks: &TABLES[p.sequence],
            rope_length: p.rope_length,
        };
        let spans: Vec<Span<'static>> = parts.iter().map(span).collect();
        self.runner.run(&Step { tokens: &tokens, spans: &spans, wanted }).unwrap()
    }
}

/// Two sequences, mixed in every way; all outputs in a row.
fn conversation(machine: &mut dyn Machine) -> Vec<f32> {
    let mut out = vec![];
    out.extend(machine.step(&[part(0, 0..33)], &[32]));
    out.extend(machine.step(&[part(1, 0..20), part(0, 33..34)], &[3, 19, 20]));
    out.extend(machine.step(&[part(1, 20..30)], &[]));
    out.extend(machine.step(&[part(0, 34..35), part(1, 30..31)], &[0, 1]));
    out.extend(machine.step(&[part(0, 35..40), part(1, 31..38)], &[4, 11]));
    out.extend(machine.step(&[], &[]));
    out
}

fn options(exact: bool, threads: usize, tier: Tier) -> Options {
    Options { exact, threads: Some(threads), cpu_tier: Some(tier.name().into()), ..Options::default() }
}

#[test]
fn exact_mode_has_the_bits_of_the_reference() {
    for hidden_states in [false, true] {
        let expected = conversation(&mut Interpreter::new(&model(everything(hidden_states))));
        assert!(expected.iter().all(|x| x.is_finite()));
        for program in [everything(hidden_states), fuse(everything(hidden_states))] {
            let model = model(program);
            let again = conversation(&mut Interpreter::new(&model));
            assert_eq!(bits(&again), bits(&expected), "fusion changed the meaning");
            for tier in Tier::available() {
                for threads in [1, 3] {
                    let found = conversation(&mut OnBackend::new(&model, &options(true, threads, tier)));
                    assert_eq!(bits(&found), bits(&expected), "{tier}, {threads} threads");
                }
            }
        }
    }
}

#[test]
fn fast_mode_is_close_to_the_reference_and_does_not_depend_on_fusion_or_threads() {
    let expected = conversation(&mut Interpreter::new(&model(everything(false))));
    for tier in Tier::available() {
        let run = |program, threads| conversation(&mut OnBackend::new(&model(program), &options(false, threads, tier)));
        let found = run(everything(false), 1);
        let scale = expected.iter().map(|x| x * x).sum::<f32>().sqrt();
        let error = expected.iter().zip(&found).map(|(x, y)| (x - y) * (x - y)).sum::<f32>().sqrt();
        assert!(error < 0.03 * scale, "{tier}: {error} of {scale}");
        for (program, threads) in [(everything(false), 3), (fuse(everything(false)), 1), (fuse(everything(false)), 2)] {
            assert_eq!(bits(&run(program, threads)), bits(&found), "{tier}, {threads} threads");
        }
    }
}

/// The last token's outputs, its sequence having come in these chunks, alone or beside another sequence.
#[test]
fn chunks_and_company_do_not_matter() {
    let model = model(fuse(everything(false)));
    for exact in [true, false] {
        let run = |ends: &[usize], company: bool| {
            let mut machine = OnBackend::new(&model, &options(exact, 2, Tier::detect()));
            let (mut start, mut last) = (0, vec![]);
            for (i, end) in ends.iter().enumerate() {
                let mut parts = vec![part(0, start..*end)];
                if company {
                    parts.insert(0, part(1, 3 * i..3 * i + 3));
                }
                let rows: usize = parts.iter().map(|p| p.tokens.len()).sum();
                last = machine.step(&parts, &[rows as u32 - 1]);
                start = *end;
            }
            bits(&last)
        };
        let whole = run(&[38], false);
        let one_by_one: Vec<usize> = (1..=38).collect();
        for (ends, company) in [(&[38][..], true), (&[31, 38], false), (&[5, 6, 38], true), (&one_by_one, false)] {
            assert_eq!(run(ends, company), whole, "{ends:?}");
        }
    }
}

#[test]
fn statistics_count_ops_and_bytes() {
    let model = model(fuse(everything(false)));
    let options = Options { profile: true, ..options(false, 1, Tier::detect()) };
    let mut machine = OnBackend::new(&model, &options);
    machine.step(&[part(0, 0..3)], &[2]);
    let stats = machine.backend.stats();
    for op in &model.program.ops {
        let expected = model.program.ops.iter().filter(|o| o.name() == op.name()).count() as u64;
        assert_eq!(stats.ops[op.name()].calls, expected, "{}", op.name());
    }
    // Keys and values of 3 tokens, 2 heads of 16, f16, two layers.
    assert_eq!(stats.ops["attention"].bytes, 3 * 2 * 2 * 16 * 2 * 2);
    assert!(stats.ops["linears"].bytes > 0 && stats.declines.is_empty());
}

#[test]
fn wrong_steps_and_parameters_are_errors() {
    let good = model(everything(false));
    let backend: Arc<dyn Backend> = Arc::new(CpuBackend::open(&Options::default()).unwrap());
    let load = |model: &Model| {
        Runner::load(model.program.clone(), vec![backend.clone()], &model.source, &mut |_| {}).map(|_| ()).unwrap_err()
    };
    let mut short = model(everything(false));
    short.source.vectors[0].pop();
    assert!(load(&short).to_string().contains("attn_norm is 63 wide, expected 64"));
    let mut missing = model(everything(false));
    missing.source.matrices.pop();
    assert!(load(&missing).to_string().contains("not provided"));
    let mut cut = model(everything(false));
    cut.source.matrices[0].1 -= 1;
    assert!(load(&cut).to_string().contains("the source gave"));

    let mut machine = OnBackend::new(&good, &Options::default());
    assert!(machine.runner.copy_block(0, 5).unwrap_err().to_string().contains("block 5 does not exist, there are 5"));
    let step = Step { tokens: &[VOCAB as u32], spans: &[], wanted: &[] };
    assert!(machine.runner.run(&step).is_err());
    let before = machine.runner.state_bytes();
    let error = machine.runner.reserve(usize::MAX / 2).unwrap_err().to_string();
    assert!(error.contains("out of memory"), "{error}");
    assert_eq!(machine.runner.state_bytes(), before);
    machine.step(&[part(0, 0..3)], &[2]);
}
