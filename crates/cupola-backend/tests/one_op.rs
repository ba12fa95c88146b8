//! Single ops on the CPU, bit by bit against the scalar reference.

use cupola_backend::{AttentionJob, Backend, LoadError, MatmulJob, Options, attention, matmul};
use cupola_cpu::CpuBackend;
use cupola_cpu::reference::{self, AttentionRow};
use cupola_graph::KvLayer;
use cupola_quant::{Format, decode, encode};

fn cpu() -> CpuBackend {
    CpuBackend::open(&Options { exact: true, threads: Some(2), ..Options::default() }).unwrap()
}

/// Numbers between -1 and 1, the same for the same seed.
fn numbers(seed: u32, n: usize) -> Vec<f32> {
    let mut state = seed;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    std::iter::repeat_with(next).take(n).collect()
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn products_are_those_of_the_reference() {
    let backend = cpu();
    for (format, n_in) in [(Format::F32, 1), (Format::F32, 33), (Format::Q8_0, 64), (Format::Q4_K, 256)] {
        for (rows, n_out) in [(1, 1), (1, 17), (3, 16), (33, 15)] {
            let (x, bias) = (numbers(1, rows * n_in), numbers(2, n_out));
            let mut weight = vec![0; n_out * format.row_bytes(n_in).unwrap()];
            encode(format, &numbers(3, n_out * n_in), &mut weight).unwrap();
            let mut values = vec![0.0; n_out * n_in];
            decode(format, &weight, &mut values).unwrap();

            let plain = MatmulJob { weight: &weight, format, n_out, bias: None };
            let biased = MatmulJob { bias: Some(&bias), ..plain };
            let found = matmul(&backend, &x, rows, [plain, biased]).unwrap();
            for (found, bias) in found.iter().zip([None, Some(&bias)]) {
                let row = |x| {
                    let weights = values.chunks(n_in).enumerate();
                    weights.map(move |(o, w)| reference::linear(w, x, bias.map(|b| b[o]), None))
                };
                let expected: Vec<f32> = x.chunks(n_in).flat_map(row).collect();
                assert_eq!(bits(found), bits(&expected), "{format}: {rows} rows of {n_in} to {n_out}");
            }
        }
    }
}

#[test]
fn attention_is_that_of_the_reference() {
    let backend = cpu();
    let kv = KvLayer { heads: 2, key_dim: 24, value_dim: 8 };
    let heads = 6;
    let sink = numbers(4, heads);
    for rows in [1, 2, 31, 32, 33, 100] {
        let q = numbers(1, rows * heads * kv.key_dim);
        let k = numbers(2, rows * kv.heads * kv.key_dim);
        let v = numbers(3, rows * kv.heads * kv.value_dim);
        for (window, softcap, sink) in [(None, None, None), (Some(5), Some(2.0), Some(&sink[..]))] {
            let job = AttentionJob { q: &q, k: &k, v: &v, heads, kv, scale: 0.3, window, softcap, sink };
            let found = attention(&backend, &job, rows).unwrap();
            let mut expected = vec![0.0; rows * heads * kv.value_dim];
            for (at, out) in expected.chunks_mut(kv.value_dim).enumerate() {
                let (row, head) = (at / heads, at % heads);
                let shared = head / (heads / kv.heads);
                let keys: Vec<_> = k.chunks(kv.key_dim).skip(shared).step_by(kv.heads).take(row + 1).collect();
                let values: Vec<_> = v.chunks(kv.value_dim).skip(shared).step_by(kv.heads).take(row + 1).collect();
                let q = &q[at * kv.key_dim..][..kv.key_dim];
                let sink = sink.map(|s| s[head]);
                AttentionRow { q, keys: &keys, values: &values, scale: 0.3, window, softcap, sink }.compute(out);
            }
            assert_eq!(bits(&found), bits(&expected), "{rows} rows, window {window:?}");
        }
    }
}

#[test]
fn what_does_not_fit_is_an_error() {
    let backend: &dyn Backend = &cpu();
    let weight = [0u8; 64];
    let job = MatmulJob { weight: &weight, format: Format::F32, n_out: 4, bias: None };
    let error = |x: &[f32], rows, job| matmul(backend, x, rows, [job]).unwrap_err().to_string();
    assert_eq!(matmul(backend, &[0.0; 8], 2, [job]).unwrap(), [vec![0.0; 8]]);
    assert!(error(&[0.0; 8], 3, job).contains("x has 8 elements, which are not 3 rows"));
    assert!(error(&[], 0, job).contains("x has 0 elements"));
    assert!(error(&[0.0; 8], 1, job).contains("[4, 8] in F32 does not take 64 bytes"));
    assert!(error(&[0.0; 4], 1, MatmulJob { n_out: 5, ..job }).contains("[5, 4]"));
    assert!(error(&[0.0; 4], 1, MatmulJob { bias: Some(&[0.0]), ..job }).contains("bias is 1 wide, expected 4"));
    assert!(error(&[0.0; 4], 1, MatmulJob { weight: &[], n_out: 0, ..job }).contains("has no elements"));
    assert!(matches!(
        matmul(backend, &[0.0; 4], 1, [MatmulJob { format: Format::Q4_0, ..job }]),
        Err(LoadError::Source(_))
    ));

    let kv = KvLayer { heads: 1, key_dim: 4, value_dim: 4 };
    let x = [0.0; 8];
    let job = AttentionJob { q: &x, k: &x, v: &x, heads: 1, kv, scale: 1.0, window: None, softcap: None, sink: None };
    assert_eq!(attention(backend, &job, 2).unwrap(), [0.0; 8]);
    let error = |job| attention(backend, &job, 2).unwrap_err().to_string();
    assert!(error(AttentionJob { v: &x[1..], ..job }).contains("v has 7 elements"));
    assert!(error(AttentionJob { heads: 2, ..job }).contains("attention: q is"));
}
