//! A program divided between a choosy device and the CPU gives the bits of the CPU alone.

use cupola_backend::*;
use cupola_cpu::CpuBackend;
use cupola_graph::*;
use cupola_quant::Format;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// The CPU under another name, which takes only some ops and has room for only some weights.
struct Choosy {
    cpu: CpuBackend,
    device: Device,
    takes: Takes,
    /// Bytes that are left.
    memory: Mutex<usize>,
    refusals: AtomicUsize,
}

impl Choosy {
    fn new(takes: Takes, memory: usize) -> Arc<Choosy> {
        let cpu = CpuBackend::open(&options()).unwrap();
        let device = Device { kind: "choosy".into(), ..cpu.device().clone() };
        Arc::new(Choosy { cpu, device, takes, memory: Mutex::new(memory), refusals: AtomicUsize::new(0) })
    }
}

impl Backend for Choosy {
    fn device(&self) -> &Device {
        &self.device
    }

    fn wants(&self, program: &Program, op: &Op) -> Verdict {
        if (self.takes)(op) { self.cpu.wants(program, op) } else { Verdict::Decline(Decline::Op(op.name().into())) }
    }

    fn upload(&self, program: &Program, id: WeightId, source: &dyn WeightSource) -> Result<DeviceWeight, UploadError> {
        let mut memory = self.memory.lock().unwrap();
        let needed = program.weight(id).bytes();
        match memory.checked_sub(needed) {
            Some(left) => *memory = left,
            None => {
                self.refusals.fetch_add(1, Ordering::Relaxed);
                return Err(Decline::Memory { needed: needed as u64, available: *memory as u64 }.into());
            }
        }
        self.cpu.upload(program, id, source)
    }

    fn compile(&self, segment: Segment) -> Result<Box<dyn Executable>, BackendError> {
        self.cpu.compile(segment)
    }

    fn stats(&self) -> Stats {
        self.cpu.stats()
    }
}

fn options() -> Options {
    Options { exact: true, threads: Some(2), profile: true, ..Options::default() }
}

/// Three small transformer layers with tied embeddings.
fn program() -> Program {
    let mut g = Builder::new(40);
    let table = g.weight("embed", 40, 32, Format::F32);
    let rope = g.rope_table(RopeTable::plain(10000.0, 8));
    let mut x = g.embed(table, 1.0);
    for l in 0..3 {
        g.scope(format!("l{l}"));
        let norm = g.vector("norm", 32);
        let h = g.rms_norm(x, norm, 1e-5);
        let [wq, wk, wv] = ["q", "k", "v"].map(|n| g.weight(format!("l{l}.{n}"), 32, 32, Format::F32));
        let [q, k, v] = g.linears(h, [(wq, None), (wk, None), (wv, None)]);
        let (q, k) = (g.rope(q, 8, RopeStyle::Halves, rope), g.rope(k, 8, RopeStyle::Halves, rope));
        let layer = g.kv_layer(KvLayer { heads: 4, key_dim: 8, value_dim: 8 });
        let (window, softcap, sink) = (None, None, None);
        let a = g.attention(Attention { q, k, v, layer, heads: 4, scale: 0.35, window, softcap, sink, out: q });
        let wo = g.weight(format!("l{l}.o"), 32, 32, Format::F32);
        x = g.linear_add(a, wo, None, x);
        let [gate, up] = ["gate", "up"].map(|n| g.weight(format!("l{l}.{n}"), 48, 32, Format::F32));
        let down = g.weight(format!("l{l}.down"), 32, 48, Format::F32);
        let h = g.rms_norm(x, norm, 1e-5);
        let [a, b] = g.linears(h, [(gate, None), (up, None)]);
        let h = g.glu(a, b, Activation::Silu);
        x = g.linear_add(h, down, None, x);
    }
    let x = g.take_wanted(x);
    let logits = g.linear(x, table, None);
    fuse(g.finish(logits).unwrap())
}

fn source(program: &Program) -> MemoryWeights {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 25) as f32 - 0.25
    };
    let mut bytes = |n: usize| (0..n).flat_map(|_| next().to_le_bytes()).collect::<Vec<u8>>();
    let matrices = program.weights.iter().map(|w| (bytes(w.n_out * w.n_in), 4 * w.n_in)).collect();
    let vectors = program.vectors.iter().map(|v| (0..v.len).map(|i| 1.0 + i as f32 / 64.0).collect()).collect();
    MemoryWeights { matrices, vectors }
}

fn load(backends: Vec<Arc<dyn Backend>>) -> Runner {
    let program = Arc::new(program());
    let mut loaded = 0;
    let runner = Runner::load(program.clone(), backends, &source(&program), &mut |n| loaded += n).unwrap();
    assert_eq!(loaded, program.weights.iter().map(Weight::bytes).sum::<usize>(), "each weight is reported once");
    runner
}

/// A prompt in two chunks, then tokens one by one beside a second sequence, with a copied block on the way.
fn conversation(runner: &mut Runner) -> Vec<u32> {
    runner.reserve(4).unwrap();
    let token = |i: u32| i * 11 % 40;
    let prompt: Vec<u32> = (0..36).map(token).collect();
    let span = |rows, start, blocks| Span { rows, start, blocks, rope_length: start + rows };
    let mut out = vec![];
    let mut run = |runner: &mut Runner, tokens: &[u32], spans: &[Span<'_>], wanted: &[u32]| {
        out.extend(runner.run(&Step { tokens, spans, wanted }).unwrap());
    };
    run(runner, &prompt[..20], &[span(20, 0, &[2])], &[]);
    run(runner, &prompt[20..], &[span(16, 20, &[2, 0])], &[0, 15]);
    runner.copy_block(0, 3).unwrap();
    for i in 0..3 {
        let spans = [span(1, 36 + i, &[2, 3]), span(1, i, &[1])];
        run(runner, &[token(50 + i as u32), token(7 + i as u32)], &spans, &[0, 1]);
    }
    run(runner, &[5], &[span(1, 36, &[2, 0])], &[0]);
    assert_eq!(out.len(), (2 + 6 + 1) * 40);
    assert!(out.iter().all(|x| x.is_finite()));
    out.iter().map(|x| x.to_bits()).collect()
}

fn cpu() -> Arc<dyn Backend> {
    Arc::new(CpuBackend::open(&options()).unwrap())
}

type Takes = fn(&Op) -> bool;

fn choices() -> [(&'static str, Takes); 5] {
    [
        ("all", |_| true),
        ("products", |op| matches!(op, Op::Linears(_) | Op::GatedLinear(_))),
        ("attention", |op| matches!(op, Op::Attention(_))),
        ("everything else", |op| !matches!(op, Op::Linears(_) | Op::Attention(_))),
        ("nothing", |_| false),
    ]
}

#[test]
fn ops_may_go_to_any_device() {
    let expected = conversation(&mut load(vec![cpu()]));
    for (name, takes) in choices() {
        let choosy = Choosy::new(takes, usize::MAX);
        let mut runner = load(vec![choosy.clone(), cpu()]);
        for (op, assignment) in runner.program().ops.iter().zip(runner.assignments()) {
            assert_eq!(assignment.backend, Some(if takes(op) { 0 } else { 1 }));
            assert_eq!(assignment.declines.len(), usize::from(!takes(op)));
        }
        assert_eq!(conversation(&mut runner), expected, "{name}");
        let taken = runner.program().ops.iter().filter(|op| takes(op)).map(|op| op.name());
        let names: std::collections::BTreeSet<_> = taken.collect();
        assert_eq!(choosy.stats().ops.keys().copied().collect::<std::collections::BTreeSet<_>>(), names);
    }
}

#[test]
fn weights_that_do_not_fit_go_elsewhere() {
    let expected = conversation(&mut load(vec![cpu()]));
    let whole: usize = program().weights.iter().map(Weight::bytes).sum();
    for memory in [0, whole / 4, whole / 2, whole - 1] {
        let choosy = Choosy::new(|_| true, memory);
        let mut runner = load(vec![choosy.clone(), cpu()]);
        let declined: Vec<_> = runner.assignments().iter().flat_map(|a| &a.declines).collect();
        assert!(declined.iter().all(|(b, why)| *b == 0 && matches!(why, Decline::Memory { .. })));
        assert!(!declined.is_empty() && declined[0].1.to_string().contains("bytes are needed"));
        // No weight is offered twice to a device that had no room for it.
        assert!(choosy.refusals.load(Ordering::Relaxed) <= declined.len());
        assert_eq!(conversation(&mut runner), expected, "{memory} of {whole} bytes");
    }
}

#[test]
fn a_program_that_nobody_takes_is_an_error() {
    let program = Arc::new(program());
    let choosy: Arc<dyn Backend> = Choosy::new(|op| !matches!(op, Op::Attention(_)), usize::MAX);
    let error = Runner::load(program.clone(), vec![choosy], &source(&program), &mut |_| {}).map(|_| ()).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("attention") && text.contains("choosy:0") && text.contains("no kernel"), "{text}");
}

#[test]
fn state_survives_a_reserve() {
    let expected = conversation(&mut load(vec![cpu()]));
    let mut runner = load(vec![Choosy::new(choices()[1].1, usize::MAX), cpu()]);
    runner.reserve(1).unwrap();
    runner.reserve(40).unwrap();
    assert_eq!(runner.blocks(), 40);
    assert_eq!(conversation(&mut runner), expected);
}
