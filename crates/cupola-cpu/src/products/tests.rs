//! All formats, tiers, modes and awkward shapes against sums written out from the definitions.

use super::*;
use crate::pool::Pool;
use cupola_quant::decode;
use half::bf16;

/// Both widths of activations, and all modes.
const WIDTHS: [Activations; 2] = [Activations::Bits16, Activations::Bits8];
const MODES: [Mode; 3] = [Mode::Fast(Activations::Bits16), Mode::Fast(Activations::Bits8), Mode::Exact];

struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    /// Between -1 and 1, small ones more often.
    fn value(&mut self) -> f32 {
        let mut unit = || (self.bits() & 0xff_ffff) as f32 / (1 << 23) as f32 - 1.0;
        unit() * unit()
    }

    fn values(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.value()).collect()
    }

    /// Blocks of random bytes in which half-precision scales and minima are about 2^-7, of either sign.
    fn weights(&mut self, format: Format, n: usize) -> Vec<u8> {
        let layout = format.layout();
        let halves: &[usize] = match format {
            Format::Q4_0 | Format::Q5_0 | Format::Q8_0 | Format::Q1_0 | Format::Q2_0 => &[0],
            Format::IQ1_S | Format::IQ2_XXS | Format::IQ2_XS | Format::IQ2_S => &[0],
            Format::IQ3_XXS | Format::IQ3_S | Format::IQ4_NL | Format::IQ4_XS => &[0],
            Format::TQ1_0 => &[52],
            Format::TQ2_0 => &[64],
            Format::IQ1_M | Format::MXFP4 | Format::NVFP4 => &[],
            Format::Q4_1 | Format::Q5_1 | Format::Q4_K | Format::Q5_K => &[0, 2],
            Format::Q2_K => &[80, 82],
            Format::Q3_K => &[108],
            Format::Q6_K => &[208],
            Format::F32 => return self.values(n).iter().flat_map(|v| v.to_le_bytes()).collect(),
            Format::F16 => {
                return self.values(n).iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect();
            }
            Format::BF16 => return self.values(n).iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect(),
        };
        let mut bytes: Vec<u8> = (0..n / layout.block * layout.bytes).map(|_| self.bits() as u8).collect();
        for block in bytes.chunks_exact_mut(layout.bytes) {
            for at in halves {
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

/// A random matrix, packed and decoded.
struct Case {
    matrix: Matrix,
    w: Vec<f32>,
    n_in: usize,
    n_out: usize,
}

impl Case {
    fn new(random: &mut Random, format: Format, n_out: usize, n_in: usize) -> Case {
        let bytes = random.weights(format, n_out * n_in);
        let mut w = vec![0.0; n_out * n_in];
        decode(format, &bytes, &mut w).unwrap();
        Case { matrix: Matrix::pack(format, n_out, n_in, &bytes, &Pool::new(1)).unwrap(), w, n_in, n_out }
    }

    fn row(&self, o: usize) -> &[f32] {
        &self.w[o * self.n_in..][..self.n_in]
    }

    fn product(&self, pool: &Pool, tier: Tier, mode: Mode, x: &[f32]) -> Vec<f32> {
        let rows = x.len() / self.n_in;
        let mut y = vec![f32::NAN; rows * self.n_out];
        let mut jobs = [Job::new(&self.matrix, &mut y)];
        products(pool, tier, mode, x, &[rows], &mut jobs, &mut Scratch::new()).unwrap();
        y
    }
}

fn bits(v: &[f32]) -> Vec<u32> {
    v.iter().map(|v| v.to_bits()).collect()
}

/// Widths that a format can have: whole blocks, and whole and partial units; any for floats.
fn widths(format: Format) -> &'static [usize] {
    match format.layout().block {
        1 => &[1, 31, 32, 33, 100, 257, 576],
        32 => &[32, 64, 96, 256, 576],
        64 => &[64, 128, 192, 576],
        128 => &[128, 256, 384],
        _ => &[256, 768],
    }
}

/// The order that exact mode promises.
fn exact_sum(w: &[f32], x: &[f32]) -> f32 {
    let mut lanes = [0.0f32; 32];
    for (k, (w, x)) in w.iter().zip(x).enumerate() {
        lanes[k % 32] = w.mul_add(*x, lanes[k % 32]);
    }
    for h in [16, 8, 4, 2, 1] {
        for i in 0..h {
            lanes[i] += lanes[i + h];
        }
    }
    lanes[0]
}

#[test]
fn decoded_rows_have_the_reference_bits() {
    let mut random = Random(3);
    for format in Format::ALL {
        for (n_out, &n_in) in [1, 15, 16, 17, 48].iter().flat_map(|o| widths(format).iter().map(move |i| (*o, i))) {
            let case = Case::new(&mut random, format, n_out, n_in);
            for tier in Tier::available() {
                let mut row = vec![f32::NAN; n_in];
                for o in 0..n_out {
                    case.matrix.decode_row(tier, o, &mut row);
                    assert_eq!(bits(&row), bits(case.row(o)), "{format} {n_out}x{n_in} row {o} {tier}");
                }
            }
        }
    }
}

#[test]
fn exact_products_follow_the_order_bit_for_bit() {
    let (mut random, pool) = (Random(5), Pool::new(2));
    let check = |random: &mut Random, format, n_out, n_in, all_rows: &[usize]| {
        let case = Case::new(random, format, n_out, n_in);
        let x = random.values(25 * n_in);
        let want: Vec<f32> =
            (0..25 * n_out).map(|i| exact_sum(case.row(i % n_out), &x[i / n_out * n_in..][..n_in])).collect();
        for tier in Tier::available() {
            for &rows in all_rows {
                let y = case.product(&pool, tier, Mode::Exact, &x[..rows * n_in]);
                assert_eq!(bits(&y), bits(&want[..rows * n_out]), "{format} {n_out}x{n_in} {rows} rows {tier}");
            }
        }
    };
    for format in Format::ALL {
        for &n_in in widths(format) {
            for n_out in [1, 15, 16, 17, 48] {
                check(&mut random, format, n_out, n_in, &[0, 1, 2, 3, 5, 6, 7, 13, 25]);
            }
        }
        check(&mut random, format, 100, 2560, &[1, 25]);
    }
}

/// Activations as fast mode takes them, and the bound of what that changes for each.
fn rounded(format: Format, tier: Tier, to: Activations, x: &[f32]) -> (Vec<f32>, Vec<f64>) {
    if format.is_float() {
        if format == Format::BF16 && to == Activations::Bits8 && tier.has_bf16_dot() {
            let x16 = x.iter().map(|v| bf16::from_f32(*v).to_f32()).collect();
            return (x16, x.iter().map(|v| f64::from(v.abs()) / 256.0).collect());
        }
        return (x.to_vec(), vec![0.0; x.len()]);
    }
    let largest = if to == Activations::Bits8 { 127.0f32 } else { 32639.0 };
    let (mut values, mut bounds) = (Vec::new(), Vec::new());
    for block in x.chunks(32) {
        let top = block.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        for v in block {
            let code = if top < 1e-34 { 0.0 } else { (v * (largest / top)).round_ties_even() };
            values.push(code * (top / largest));
            bounds.push(f64::from(top) / f64::from(largest) * 0.5);
        }
    }
    (values, bounds)
}

/// Fast results, each within what summing in f32 may do of the sum with rounded activations, and within the documented
/// bound of the true one.
fn check_fast(case: &Case, tier: Tier, to: Activations, x: &[f32], y: &[f32]) {
    let format = case.matrix.format();
    for (row, y) in x.chunks_exact(case.n_in).zip(y.chunks_exact(case.n_out)) {
        let (rounded, bounds) = rounded(format, tier, to, row);
        for (o, &y) in y.iter().enumerate() {
            let (mut near, mut size, mut truth, mut bound) = (0.0f64, 0.0f64, 0.0f64, 0.0f64);
            for (i, &w) in case.row(o).iter().enumerate() {
                near += f64::from(w) * f64::from(rounded[i]);
                size += (f64::from(w) * f64::from(rounded[i])).abs();
                truth += f64::from(w) * f64::from(row[i]);
                bound += f64::from(w).abs() * bounds[i];
            }
            // Formats with minima sum terms that are larger than the values: codes times scales, and minima.
            let slack = 1e-5 * (size + minima(case, o, &rounded)) + 1e-30;
            let what = || format!("{format} {}x{} output {o} {tier} {to:?}: {y} for {near}", case.n_out, case.n_in);
            assert!((f64::from(y) - near).abs() <= slack, "{}", what());
            assert!((f64::from(y) - truth).abs() <= bound * 1.0001 + slack, "{}, truth {truth}", what());
        }
    }
}

/// A bound of the minima's part in the size of a sum: no more than the spread of a row's weights, for each input.
fn minima(case: &Case, o: usize, x: &[f32]) -> f64 {
    let top = case.row(o).iter().fold(0.0f32, |m, v| m.max(v.abs()));
    x.iter().map(|v| f64::from(v.abs() * top)).sum()
}

#[test]
fn fast_products_stay_within_the_documented_bound() {
    let (mut random, pool) = (Random(7), Pool::new(2));
    let check = |random: &mut Random, format, n_out, n_in, all_rows: &[usize]| {
        let case = Case::new(random, format, n_out, n_in);
        let x = random.values(25 * n_in);
        for tier in Tier::available() {
            for &rows in all_rows {
                let x = &x[..rows * n_in];
                for to in WIDTHS {
                    check_fast(&case, tier, to, x, &case.product(&pool, tier, Mode::Fast(to), x));
                }
            }
        }
    };
    for format in Format::ALL {
        for &n_in in widths(format) {
            for n_out in [1, 15, 16, 17, 48] {
                check(&mut random, format, n_out, n_in, &[0, 1, 2, 7, 25]);
            }
        }
        check(&mut random, format, 100, 2560, &[1, 3, 6, 25]);
    }
}

#[test]
fn a_row_has_the_same_bits_alone_and_in_any_batch_for_any_number_of_threads() {
    let mut random = Random(11);
    let pools = [1, 2, 3].map(Pool::new);
    for format in Format::ALL {
        let n_in = match format.layout().block {
            128 | 256 => 1280,
            64 => 1344,
            _ => 1312,
        };
        let case = Case::new(&mut random, format, 49, n_in);
        let x = random.values(25 * n_in);
        for tier in Tier::available() {
            for mode in MODES {
                let alone: Vec<f32> =
                    x.chunks_exact(n_in).flat_map(|x| case.product(&pools[0], tier, mode, x)).collect();
                for pool in &pools {
                    for rows in [1, 2, 3, 4, 5, 6, 7, 13, 25] {
                        let y = case.product(pool, tier, mode, &x[..rows * n_in]);
                        let want = bits(&alone[..rows * 49]);
                        assert_eq!(bits(&y), want, "{format} {rows} rows {tier} {mode:?} {pool:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn more_rows_than_are_summed_at_once() {
    let (mut random, pool) = (Random(13), Pool::new(2));
    let case = Case::new(&mut random, Format::Q5_1, 33, 64);
    let rows = 2 * FAST_ROWS + 5;
    let x = random.values(rows * 64);
    for tier in Tier::available() {
        for to in WIDTHS {
            check_fast(&case, tier, to, &x, &case.product(&pool, tier, Mode::Fast(to), &x));
        }
        let y = case.product(&pool, tier, Mode::Exact, &x);
        for (i, y) in y.iter().enumerate() {
            assert_eq!(y.to_bits(), exact_sum(case.row(i % 33), &x[i / 33 * 64..][..64]).to_bits());
        }
    }
}

/// Rows of a segment meet only its matrices, with the bits that they have alone.
#[test]
fn segments_are_products_of_their_own() {
    let (mut random, pool, n_in) = (Random(29), Pool::new(2), 256);
    let formats = [Format::Q4_K, Format::F32, Format::Q8_0, Format::BF16, Format::Q4_K];
    let cases: Vec<Case> = formats.iter().map(|f| Case::new(&mut random, *f, 35, n_in)).collect();
    for segments in [[1, 1, 1, 1, 1], [1, 0, 14, 2, 7], [0, 0, 0, 0, 3], [1, 0, 1, 1, 0], [0; 5]] {
        let x = random.values(segments.iter().sum::<usize>() * n_in);
        for tier in Tier::available() {
            for mode in MODES {
                let mut outputs: Vec<Vec<f32>> = segments.iter().map(|rows| vec![f32::NAN; rows * 35]).collect();
                let job = |(segment, y)| {
                    let case: &Case = &cases[segment];
                    Job { segment, ..Job::new(&case.matrix, y) }
                };
                let mut jobs: Vec<Job<'_>> = outputs.iter_mut().map(Vec::as_mut_slice).enumerate().map(job).collect();
                products(&pool, tier, mode, &x, &segments, &mut jobs, &mut Scratch::new()).unwrap();
                let mut rest = &x[..];
                for (case, (rows, y)) in cases.iter().zip(segments.iter().zip(&outputs)) {
                    let (x, others) = rest.split_at(rows * n_in);
                    rest = others;
                    if *rows > 0 {
                        assert_eq!(bits(y), bits(&case.product(&pool, tier, mode, x)), "{segments:?} {tier} {mode:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn several_jobs_with_bias_residual_and_stride() {
    let (mut random, pool) = (Random(17), Pool::new(2));
    let (n_in, formats) = (256, [Format::Q4_K, Format::Q6_K, Format::BF16, Format::Q8_0, Format::Q2_K]);
    let cases: Vec<Case> = formats.iter().map(|f| Case::new(&mut random, *f, 23, n_in)).collect();
    let bias = random.values(23);
    for tier in Tier::available() {
        for mode in MODES {
            for rows in [1, 4, 9] {
                let x = random.values(rows * n_in);
                let before = random.values(rows * 30);
                let mut outputs: Vec<Vec<f32>> = cases.iter().map(|_| before.clone()).collect();
                let mut jobs: Vec<Job<'_>> = (cases.iter().zip(&mut outputs).enumerate())
                    .map(|(i, (case, y))| Job {
                        segment: 0,
                        matrix: &case.matrix,
                        bias: (i != 1).then_some(&bias[..]),
                        y,
                        y_stride: 30,
                        write: if i < 3 { Write::Add } else { Write::Store },
                    })
                    .collect();
                products(&pool, tier, mode, &x, &[rows], &mut jobs, &mut Scratch::new()).unwrap();
                for (i, (case, y)) in cases.iter().zip(&outputs).enumerate() {
                    let plain = case.product(&pool, tier, mode, &x);
                    for (at, y) in y.iter().enumerate() {
                        let (row, o) = (at / 30, at % 30);
                        if o >= 23 {
                            assert_eq!(*y, before[at], "what lies between rows is not touched");
                            continue;
                        }
                        let sum = plain[row * 23 + o] + if i != 1 { bias[o] } else { 0.0 };
                        let want = if i < 3 { before[at] + sum } else { sum };
                        assert_eq!(y.to_bits(), want.to_bits(), "{} {tier} {mode:?}", case.matrix.format());
                    }
                }
            }
        }
    }
}

#[test]
fn zeros_huge_values_and_zero_blocks() {
    let (mut random, pool) = (Random(19), Pool::new(1));
    for format in Format::ALL {
        let case = Case::new(&mut random, format, 17, 256);
        for tier in Tier::available() {
            for rows in [1, 3] {
                for mode in MODES {
                    let y = case.product(&pool, tier, mode, &vec![0.0; rows * 256]);
                    assert!(y.iter().all(|y| *y == 0.0), "{format} {tier} {mode:?}");
                }
                let mut x = random.values(rows * 256);
                for (i, v) in x.iter_mut().enumerate() {
                    *v *= [0.0, 1e30, 1e-30, 1.0, 1e-39, 1e4, 1.0, 0.0][i / 32 % 8];
                }
                for to in WIDTHS {
                    // Products of the largest block are all that counts, up to its error.
                    check_fast(&case, tier, to, &x, &case.product(&pool, tier, Mode::Fast(to), &x));
                }
            }
        }
    }
}

#[test]
fn a_nan_or_infinity_is_not_hidden() {
    let (mut random, pool) = (Random(23), Pool::new(1));
    for format in Format::ALL {
        let case = Case::new(&mut random, format, 16, 256);
        for (tier, bad) in Tier::available().into_iter().flat_map(|t| [(t, f32::NAN), (t, f32::INFINITY)]) {
            for (mode, rows) in MODES.into_iter().flat_map(|m| [(m, 1), (m, 2)]) {
                let mut x = random.values(rows * 256);
                x[100] = bad;
                let y = case.product(&pool, tier, mode, &x);
                assert!(y[..16].iter().all(|y| !y.is_finite()), "{format} {tier} {mode:?}");
                assert!(y[16..].iter().all(|y| y.is_finite()), "{format} {tier} {mode:?}");
            }
        }
    }
}

#[test]
fn packing_piece_by_piece_gives_the_same() {
    let (mut random, pool) = (Random(29), Pool::new(2));
    for format in [Format::Q4_0, Format::Q3_K, Format::F16] {
        let bytes = random.weights(format, 70 * 256);
        let row = format.row_bytes(256).unwrap();
        let whole = Matrix::pack(format, 70, 256, &bytes, &pool).unwrap();
        let mut pieces = Matrix::new(format, 70, 256).unwrap();
        for (first, end) in [(32, 64), (0, 32), (64, 70)] {
            pieces.pack_rows(first, &bytes[first * row..end * row], &pool).unwrap();
        }
        assert_eq!(whole.packed_bytes(), pieces.packed_bytes());
        for p in 0..whole.panels() {
            for (a, b) in whole.panel(p).iter().zip(pieces.panel(p)) {
                assert_eq!(a.0, b.0);
            }
        }
    }
}

#[test]
fn packed_size_is_near_the_original() {
    for format in Format::ALL {
        let packed = Matrix::new(format, 1024, 2048).unwrap().packed_bytes();
        let ratio = packed as f64 / (1024 * format.row_bytes(2048).unwrap()) as f64;
        // What the documentation of the formats says.
        let most = match format {
            Format::IQ1_S => 2.17,
            Format::IQ1_M => 2.08,
            Format::IQ2_XXS => 1.64,
            Format::IQ2_XS => 1.57,
            Format::IQ2_S => 1.42,
            Format::IQ3_XXS => 1.43,
            Format::IQ3_S => 1.28,
            Format::TQ1_0 => 1.26,
            _ => 1.06,
        };
        assert!((1.0..most).contains(&ratio), "{format}: {ratio}");
    }
}

#[test]
fn wrong_sizes_are_errors_that_say_so() {
    let pool = Pool::new(1);
    let pack = |n_out, n_in, len| Matrix::pack(Format::Q4_0, n_out, n_in, &vec![0; len], &pool).unwrap_err();
    assert_eq!(pack(0, 32, 0), MatrixError::Empty { n_out: 0, n_in: 32 });
    assert_eq!(pack(1, 33, 18), MatrixError::PartialBlock { format: Format::Q4_0, n_in: 33, block: 32 });
    assert!(matches!(pack(2, 32, 35), MatrixError::WrongSize { expected: 36, got: 35, .. }));
    assert!(matches!(pack(usize::MAX / 2, usize::MAX / 64 * 32, 3), MatrixError::TooLarge { .. }));
    let mut m = Matrix::new(Format::Q4_0, 40, 32).unwrap();
    let rows = vec![0; 40 * 18];
    assert!(matches!(m.pack_rows(8, &rows[..16 * 18], &pool), Err(MatrixError::Rows { .. })));
    assert!(matches!(m.pack_rows(0, &rows[..15 * 18], &pool), Err(MatrixError::Rows { .. })));
    assert!(matches!(m.pack_rows(48, &rows[..16 * 18], &pool), Err(MatrixError::Rows { .. })));
    assert!(matches!(m.pack_rows(0, &rows[..17], &pool), Err(MatrixError::PartialRow { .. })));

    let other = Matrix::new(Format::Q4_0, 40, 64).unwrap();
    let (mut y, mut z) = (vec![1.0; 80], vec![1.0; 80]);
    let x = [0.0; 64];
    let run = |jobs: &mut [Job<'_>], x: &[f32], rows| {
        products(&pool, Tier::SCALAR, MODES[0], x, &[rows], jobs, &mut Scratch::new())
    };
    assert!(matches!(run(&mut [Job::new(&m, &mut y)], &x[..63], 2), Err(ProductError::Input { .. })));
    assert!(matches!(run(&mut [Job::new(&m, &mut y[..79])], &x, 2), Err(ProductError::Output { .. })));
    let mut jobs = [Job { y_stride: 39, ..Job::new(&m, &mut y) }];
    assert!(matches!(run(&mut jobs, &x, 2), Err(ProductError::Stride { .. })));
    let mut jobs = [Job { bias: Some(&x[..39]), ..Job::new(&m, &mut y) }];
    assert!(matches!(run(&mut jobs, &x, 2), Err(ProductError::Bias { .. })));
    let mut jobs = [Job::new(&m, &mut y), Job::new(&other, &mut z)];
    assert!(matches!(run(&mut jobs, &x[..32], 1), Err(ProductError::Mixed { .. })));
    assert!(y.iter().chain(&z).all(|v| *v == 1.0), "nothing is written on an error");
    assert_eq!(run(&mut [], &[], 0), Ok(()));
}
