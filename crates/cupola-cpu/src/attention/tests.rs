//! Attention against the reference, against f64 arithmetic, and against itself in other divisions of the work.

use super::*;
use crate::memory::Buffer;
use crate::ops::tests::{bits, numbers};
use crate::products::Activations;
use crate::reference::AttentionRow;
use cupola_graph::{KvType, ValueId};
use half::{bf16, f16};

/// An attention layer and one sequence's queries, keys and values.
#[derive(Clone)]
struct Case {
    op: Attention,
    layer: KvLayer,
    kv_type: KvType,
    sink: Option<Vec<f32>>,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

impl Case {
    fn new(heads: usize, kv_heads: usize, key_dim: usize, value_dim: usize, tokens: usize) -> Case {
        let op = Attention {
            q: ValueId(0),
            k: ValueId(1),
            v: ValueId(2),
            layer: 0,
            heads,
            scale: 1.0 / (key_dim as f32).sqrt(),
            window: None,
            softcap: None,
            sink: None,
            out: ValueId(3),
        };
        Case {
            op,
            layer: KvLayer { heads: kv_heads, key_dim, value_dim },
            kv_type: KvType::F32,
            sink: None,
            q: numbers(tokens * heads * key_dim, 1),
            k: numbers(tokens * kv_heads * key_dim, 2),
            v: numbers(tokens * kv_heads * value_dim, 3),
        }
    }

    fn window(mut self, window: usize) -> Case {
        self.op.window = Some(window);
        self
    }

    fn stored_as(mut self, kv_type: KvType) -> Case {
        self.kv_type = kv_type;
        self
    }

    fn capped(mut self, cap: f32) -> Case {
        self.op.softcap = Some(cap);
        self
    }

    fn with_sinks(mut self) -> Case {
        self.sink = Some(numbers(self.op.heads, 4));
        self
    }

    fn tokens(&self) -> usize {
        self.k.len() / (self.layer.heads * self.layer.key_dim)
    }

    /// Rows `range` of a matrix of this many columns per token.
    fn rows<'a>(all: &'a [f32], tokens: usize, range: &Range<usize>) -> &'a [f32] {
        let width = all.len() / tokens;
        &all[range.start * width..range.end * width]
    }

    /// Keys or values, `dim` wide, as the cache rounds them.
    fn rounded(&self, x: &[f32], dim: usize) -> Vec<f32> {
        match self.kv_type {
            KvType::F32 => x.to_vec(),
            KvType::F16 => x.iter().map(|x| f16::from_f32(*x).to_f32()).collect(),
            KvType::BF16 => x.iter().map(|x| bf16::from_f32(*x).to_f32()).collect(),
            KvType::Q8_0 => {
                let group = |x: &[f32]| {
                    let top = x.iter().fold(0.0, |top: f32, x| top.max(x.abs()));
                    let (scale, inverse) = if top == 0.0 { (0.0, 0.0) } else { (top / 127.0, 127.0 / top) };
                    x.iter().map(|x| (x * inverse).round_ties_even() * scale).collect::<Vec<_>>()
                };
                x.chunks(dim).flat_map(|head| head.chunks(32)).flat_map(group).collect()
            }
        }
    }

    /// One query head at one position.
    fn head(&self, position: usize, head: usize, f: impl FnOnce(AttentionRow<'_>, &mut [f32])) -> Vec<f32> {
        let KvLayer { heads, key_dim, value_dim } = self.layer;
        let (k, v) = (self.rounded(&self.k, key_dim), self.rounded(&self.v, value_dim));
        let kv_head = head / (self.op.heads / heads);
        let keys: Vec<&[f32]> = (0..=position).map(|j| &k[(j * heads + kv_head) * key_dim..][..key_dim]).collect();
        let values: Vec<&[f32]> =
            (0..=position).map(|j| &v[(j * heads + kv_head) * value_dim..][..value_dim]).collect();
        let row = AttentionRow {
            q: &self.q[(position * self.op.heads + head) * key_dim..][..key_dim],
            keys: &keys,
            values: &values,
            scale: self.op.scale,
            window: self.op.window,
            softcap: self.op.softcap,
            sink: self.sink.as_ref().map(|s| s[head]),
        };
        let mut out = vec![0.0; value_dim];
        f(row, &mut out);
        out
    }

    fn all_heads(&self, f: impl Fn(AttentionRow<'_>, &mut [f32])) -> Vec<f32> {
        let places = (0..self.tokens()).flat_map(|p| (0..self.op.heads).map(move |h| (p, h)));
        places.flat_map(|(p, h)| self.head(p, h, &f)).collect()
    }

    fn reference(&self) -> Vec<f32> {
        self.all_heads(|row, out| row.compute(out))
    }

    /// The definition in f64.
    fn truth(&self) -> Vec<f32> {
        self.all_heads(|row, out| {
            let first = row.window.map_or(0, |w| row.keys.len().saturating_sub(w));
            let dot =
                |a: &[f32], b: &[f32]| -> f64 { a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum() };
            let scores: Vec<f64> = row.keys[first..]
                .iter()
                .map(|k| {
                    let s = dot(row.q, k) * f64::from(row.scale);
                    row.softcap.map_or(s, |c| f64::from(c) * (s / f64::from(c)).tanh())
                })
                .collect();
            let m = scores.iter().copied().chain(row.sink.map(f64::from)).fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = scores.iter().copied().chain(row.sink.map(f64::from)).map(|s| (s - m).exp()).sum();
            for (d, out) in out.iter_mut().enumerate() {
                let weighted = scores.iter().zip(&row.values[first..]).map(|(s, v)| (s - m).exp() * f64::from(v[d]));
                *out = (weighted.sum::<f64>() / total) as f32;
            }
        })
    }
}

/// One sequence in a step: rows `range` of a case, its cache blocks being those of the table.
struct Part<'a> {
    case: &'a Case,
    range: Range<usize>,
    table: &'a [u32],
}

struct Machine {
    pool: Pool,
    tier: Tier,
    mode: Mode,
    scratch: Scratch,
}

impl Machine {
    fn new(threads: usize, tier: Tier, mode: Mode) -> Machine {
        Machine { pool: Pool::new(threads), tier, mode, scratch: Scratch::default() }
    }

    /// One step on a cache that all parts share; gives each part's output.
    fn step(&mut self, cache: &mut Cache, parts: &[Part<'_>]) -> Vec<Vec<f32>> {
        let case = parts[0].case;
        let join = |of: fn(&Case) -> &[f32]| -> Vec<f32> {
            parts.iter().flat_map(|p| Case::rows(of(p.case), p.case.tokens(), &p.range)).copied().collect()
        };
        let (q, k, v) = (join(|c| &c.q), join(|c| &c.k), join(|c| &c.v));
        let spans: Vec<Span<'_>> = parts
            .iter()
            .map(|p| Span { rows: p.range.len(), start: p.range.start, blocks: p.table, rope_length: p.range.end })
            .collect();
        let width = case.op.heads * case.layer.value_dim;
        let rows: usize = parts.iter().map(|p| p.range.len()).sum();
        let mut memory = Buffer::new((rows * width).div_ceil(16).max(1)).unwrap();
        memory.iter_mut().for_each(|l| l.floats_mut().fill(f32::NAN));
        let out = Tensor::of(&mut memory, rows, width);
        let operands = Operands { q: &q, k: &k, v: &v, sink: case.sink.as_deref(), out };
        attention((&self.pool, self.tier, self.mode), &case.op, cache, &spans, &operands, &mut self.scratch).unwrap();
        // SAFETY: nothing is running.
        let mut all = unsafe { out.read() };
        let mut outputs = vec![];
        for p in parts {
            let (mine, rest) = all.split_at(p.range.len() * width);
            outputs.push(mine.to_vec());
            all = rest;
        }
        outputs
    }

    /// A whole sequence in steps of these sizes, in a cache of its own with shuffled blocks.
    fn sequence(&mut self, case: &Case, chunks: &[usize]) -> Vec<f32> {
        let blocks = case.tokens().div_ceil(BLOCK_TOKENS);
        let mut cache = Cache::new(case.layer, case.kv_type);
        cache.reserve(blocks + 1).unwrap();
        let table: Vec<u32> = (0..blocks as u32).rev().collect();
        let (mut start, mut out) = (0, vec![]);
        for n in chunks {
            out.extend(self.step(&mut cache, &[Part { case, range: start..start + n, table: &table }]).remove(0));
            start += n;
        }
        assert_eq!(start, case.tokens());
        out
    }
}

fn machines() -> Vec<Machine> {
    let with = |mode| Tier::available().into_iter().map(move |tier| Machine::new(1, tier, mode));
    with(Mode::Exact).chain(with(Mode::Fast(Activations::Bits16))).collect()
}

fn cases() -> Vec<Case> {
    let mut cases = vec![];
    for tokens in [1, 2, 31, 32, 33, 64, 65] {
        cases.push(Case::new(2, 1, 8, 8, tokens));
        cases.push(Case::new(9, 3, 64, 64, tokens));
    }
    cases.extend([
        Case::new(1, 1, 1, 1, 40),
        Case::new(6, 2, 33, 5, 70),
        Case::new(7, 1, 40, 96, 70),
        Case::new(16, 1, 16, 33, 70),
        Case::new(70, 1, 4, 4, 35),
        Case::new(4, 4, 128, 80, 40),
        Case::new(6, 2, 16, 16, 100).window(1),
        Case::new(6, 2, 16, 16, 100).window(3),
        Case::new(6, 2, 16, 16, 100).window(32),
        Case::new(6, 2, 16, 16, 100).window(33),
        Case::new(2, 2, 16, 16, 100).window(1000).capped(2.0),
        Case::new(2, 1, 16, 16, 70).capped(0.5).with_sinks(),
        Case::new(4, 2, 16, 16, 70).with_sinks().window(20),
    ]);
    cases
}

#[test]
fn exact_mode_has_the_bits_of_the_reference() {
    for case in cases() {
        let expected = case.reference();
        for tier in Tier::available() {
            let found = Machine::new(1, tier, Mode::Exact).sequence(&case, &[case.tokens()]);
            assert_eq!(bits(&found), bits(&expected), "{tier}: {:?} {:?}, {}", case.op, case.layer, case.tokens());
        }
    }
}

#[test]
fn results_are_those_of_f64_arithmetic() {
    for case in cases() {
        for kv_type in [KvType::F32, KvType::F16, KvType::BF16, KvType::Q8_0] {
            let case = case.clone().stored_as(kv_type);
            let truth = case.truth();
            for mut machine in machines() {
                let found = machine.sequence(&case, &[case.tokens()]);
                // Scores reach 16 * sqrt(dim): their rounding, not that of the sums, decides.
                for (x, y) in found.iter().zip(&truth) {
                    assert!((x - y).abs() < 1e-4, "{x} is not {y}: {:?} {:?} {kv_type:?}", case.op, case.layer);
                }
            }
        }
    }
}

#[test]
fn chunks_do_not_matter() {
    let cases = [
        Case::new(6, 2, 16, 24, 100).stored_as(KvType::F16),
        Case::new(9, 3, 64, 64, 100).window(33).stored_as(KvType::BF16),
        Case::new(12, 1, 16, 24, 100).with_sinks().window(40),
        Case::new(4, 2, 33, 72, 100).stored_as(KvType::Q8_0),
    ];
    for case in cases {
        for mut machine in machines() {
            let whole = machine.sequence(&case, &[100]);
            for chunks in [&[1; 100][..], &[99, 1], &[31, 1, 33, 35], &[32, 32, 32, 4], &[7, 93]] {
                assert_eq!(bits(&machine.sequence(&case, chunks)), bits(&whole), "{chunks:?} {:?}", machine.mode);
            }
        }
    }
}

/// Long contexts and few heads, so that threads divide the keys among them.
#[test]
fn threads_do_not_matter() {
    let cases = [
        Case::new(2, 1, 16, 16, 1200).stored_as(KvType::F16),
        Case::new(5, 1, 32, 40, 700).with_sinks(),
        Case::new(2, 1, 64, 64, 900).window(600).stored_as(KvType::BF16),
        Case::new(3, 1, 48, 64, 700).stored_as(KvType::Q8_0),
    ];
    for case in cases {
        let n = case.tokens();
        for mode in [Mode::Exact, Mode::Fast(Activations::Bits16)] {
            let run = |threads| Machine::new(threads, Tier::detect(), mode).sequence(&case, &[n - 21, 1, 17, 1, 1, 1]);
            let one = bits(&run(1));
            for threads in [2, 3, 8] {
                assert_eq!(bits(&run(threads)), one, "{threads} threads, {mode:?}");
            }
        }
    }
}

#[test]
fn other_sequences_in_the_batch_do_not_matter() {
    [KvType::F16, KvType::Q8_0].into_iter().for_each(other_sequences_do_not_matter);
}

fn other_sequences_do_not_matter(kv_type: KvType) {
    let (a, b) = (Case::new(6, 2, 16, 24, 50), Case::new(6, 2, 16, 24, 90));
    let (a, mut b) = (a.stored_as(kv_type), b.stored_as(kv_type));
    b.q.reverse();
    b.k.reverse();
    b.v.reverse();
    for mut machine in machines() {
        let alone = [machine.sequence(&a, &[50]), machine.sequence(&b, &[90])];
        let mut cache = Cache::new(a.layer, a.kv_type);
        cache.reserve(6).unwrap();
        let tables = [[5, 0], [1, 4]];
        let table_b = [tables[1][0], tables[1][1], 2];
        let mut step = |x: Range<usize>, y: Range<usize>| {
            let parts = [Part { case: &a, range: x, table: &tables[0] }, Part { case: &b, range: y, table: &table_b }];
            machine.step(&mut cache, &parts)
        };
        let (mut found_a, mut found_b) = (vec![], vec![]);
        for (x, y) in [(0..1, 0..64), (1..40, 64..65), (40..40, 65..80), (40..50, 80..90)] {
            let outputs = step(x, y);
            found_a.extend(outputs[0].clone());
            found_b.extend(outputs[1].clone());
        }
        assert_eq!(bits(&found_a), bits(&alone[0]), "{:?}", machine.mode);
        assert_eq!(bits(&found_b), bits(&alone[1]), "{:?}", machine.mode);
    }
}

/// A block is shared until its second owner writes to a copy of it.
#[test]
fn copied_blocks_continue_like_the_original() {
    [KvType::F16, KvType::Q8_0].into_iter().for_each(a_copied_block_continues_like_the_original);
}

fn a_copied_block_continues_like_the_original(kv_type: KvType) {
    let case = Case::new(4, 2, 8, 40, 64).stored_as(kv_type);
    let mut other = case.clone();
    other.k[50 * 16..].iter_mut().for_each(|x| *x = -*x);
    for mut machine in machines() {
        let expected = machine.sequence(&case, &[64]);
        for copy in [7, 20] {
            let mut cache = Cache::new(case.layer, case.kv_type);
            cache.reserve(21).unwrap();
            machine.step(&mut cache, &[Part { case: &case, range: 0..50, table: &[3, 1] }]);
            cache.copy_block(1, copy);
            machine.step(&mut cache, &[Part { case: &other, range: 50..64, table: &[3, copy as u32] }]);
            let found = machine.step(&mut cache, &[Part { case: &case, range: 50..64, table: &[3, 1] }]).remove(0);
            assert_eq!(bits(&found), bits(&expected[50 * 4 * 40..]));
        }
    }
}

/// Slots of a block that hold an earlier sequence's infinities must not leak into results.
#[test]
fn stale_slots_do_not_matter() {
    [KvType::F16, KvType::Q8_0].into_iter().for_each(stale_slots_do_not_matter_as);
}

fn stale_slots_do_not_matter_as(kv_type: KvType) {
    let mut bad = Case::new(2, 1, 8, 8, 96).stored_as(kv_type);
    bad.k.fill(f32::INFINITY);
    bad.v.fill(f32::NAN);
    for window in [None, Some(10)] {
        let mut case = Case::new(2, 1, 8, 8, 70).stored_as(kv_type);
        case.op.window = window;
        for mut machine in machines() {
            let expected = machine.sequence(&case, &[70]);
            let mut cache = Cache::new(case.layer, case.kv_type);
            cache.reserve(3).unwrap();
            machine.step(&mut cache, &[Part { case: &bad, range: 0..96, table: &[0, 1, 2] }]);
            let found = machine.step(&mut cache, &[Part { case: &case, range: 0..70, table: &[0, 1, 2] }]).remove(0);
            assert_eq!(bits(&found), bits(&expected));
        }
    }
}

/// A key that is infinite belongs to its own token, not to those before it.
#[test]
fn later_tokens_of_a_step_do_not_matter() {
    for kv_type in [KvType::F32, KvType::Q8_0] {
        let case = Case::new(2, 1, 8, 8, 70).stored_as(kv_type);
        let mut poisoned = case.clone();
        poisoned.v[60 * 8..].fill(f32::INFINITY);
        for mut machine in machines() {
            let (a, b) = (machine.sequence(&case, &[70]), machine.sequence(&poisoned, &[70]));
            assert_eq!(bits(&a[..60 * 16]), bits(&b[..60 * 16]));
        }
    }
}

/// With zero queries all visible keys weigh the same, and one-hot values show which they are.
#[test]
fn a_window_counts_the_query_itself() {
    let mut case = Case::new(1, 1, 2, 6, 6).window(3);
    case.q.fill(0.0);
    case.v = (0..36).map(|i| if i / 6 == i % 6 { 1.0 } else { 0.0 }).collect();
    for mut machine in machines() {
        for chunks in [&[6][..], &[1; 6], &[4, 2]] {
            let out = machine.sequence(&case, chunks);
            for (p, row) in out.chunks(6).enumerate() {
                let seen: Vec<usize> = (0..6).filter(|j| row[*j] > 0.0).collect();
                assert_eq!(seen, (p.saturating_sub(2)..=p).collect::<Vec<_>>());
                let weight = 1.0 / [1.0, 2.0, 3.0, 3.0, 3.0, 3.0][p];
                assert!(seen.iter().all(|j| (row[*j] - weight).abs() < 1e-6));
            }
        }
    }
}

/// Query head h reads key-value head h / (H / KV).
#[test]
fn query_heads_read_their_own_group() {
    for (heads, kv_heads) in [(6, 2), (7, 1), (9, 3)] {
        let mut case = Case::new(heads, kv_heads, 4, 1, 40);
        case.v = (0..40 * kv_heads).map(|i| (i % kv_heads) as f32).collect();
        for mut machine in machines() {
            let out = machine.sequence(&case, &[39, 1]);
            for (i, x) in out.iter().enumerate() {
                let expected = (i % heads / (heads / kv_heads)) as f32;
                assert!((x - expected).abs() < 1e-6, "head {} of {heads} over {kv_heads}", i % heads);
            }
        }
    }
}

/// Scores 1 and 2 beside a sink of 3: e^1, e^2 over e^1 + e^2 + e^3.
#[test]
fn a_sink_takes_weight() {
    let mut case = Case::new(1, 1, 1, 2, 2);
    (case.op.scale, case.sink) = (1.0, Some(vec![3.0]));
    (case.q, case.k, case.v) = (vec![0.0, 1.0], vec![1.0, 2.0], vec![1.0, 0.0, 0.0, 1.0]);
    for mut machine in machines() {
        let out = machine.sequence(&case, &[2]);
        assert!((out[2] - 0.090_031).abs() < 1e-6 && (out[3] - 0.244_728).abs() < 1e-6, "{out:?}");
    }
}

/// Scores 50 and 100 under a cap of 50 are 38.079708 and 48.201379.
#[test]
fn scores_are_scaled_then_capped() {
    let mut case = Case::new(1, 1, 1, 2, 2).capped(50.0);
    case.op.scale = 0.5;
    (case.q, case.k, case.v) = (vec![0.0, 1.0], vec![100.0, 200.0], vec![1.0, 0.0, 0.0, 1.0]);
    let ratio = (38.079_708f64 - 48.201_379).exp();
    for mut machine in machines() {
        let out = machine.sequence(&case, &[2]);
        let expected = (ratio / (1.0 + ratio)) as f32;
        assert!((out[2] - expected).abs() < 1e-4 * expected, "{out:?}");
    }
}
