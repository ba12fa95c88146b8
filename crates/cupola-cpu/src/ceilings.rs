//! What the machine can do at most, measured: the limits next to which speeds mean something.
//!
//! Generation is bound by reading weights, prompts by arithmetic. Both limits change from minute to minute on shared machines, so they
//! are to be measured in the same run as what is compared with them.

use crate::memory::{Buffer, Line, OutOfMemory};
use crate::pool::Pool;
use crate::simd::{Kernel, Simd};
use crate::tier::Tier;
use std::hint::black_box;
use std::time::Instant;

/// The machine's limits with all threads of a pool at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ceilings {
    /// Reading memory from one end to the other, in 10^9 bytes per second.
    pub read_gbs: f64,
    /// 8-bit multiplications and additions, in 10^9 per second.
    pub int8_gops: f64,
    /// The same for 16 bits.
    pub int16_gops: f64,
    /// The same for BF16. Without BF16 instructions products of BF16 run in f32, and this is [`Ceilings::f32_gflops`].
    pub bf16_gflops: f64,
    /// The same for f32.
    pub f32_gflops: f64,
}

/// Memory that is read: more than most caches hold.
const READ_BYTES: usize = 384 << 20;
/// What is read at a time.
const PIECE_BYTES: usize = 8 << 20;
/// Measurements of arithmetic of which the best counts.
const REPEATS: usize = 40;
/// Rounds of such a measurement: less than a millisecond.
const ROUNDS: usize = 1 << 15;

/// Measures all limits, with the best instructions of this processor; takes less than half a second, and 384 MiB of memory
/// meanwhile.
pub fn measure_ceilings(pool: &Pool) -> Result<Ceilings, OutOfMemory> {
    let tier = Tier::detect();
    let f32_gflops = peak(pool, tier, Kind::F32);
    Ok(Ceilings {
        read_gbs: ReadCeiling::new(pool)?.measure(pool),
        int8_gops: peak(pool, tier, Kind::Int8),
        int16_gops: peak(pool, tier, Kind::Int16),
        bf16_gflops: if tier.has_bf16_dot() { peak(pool, tier, Kind::Bf16) } else { f32_gflops },
        f32_gflops,
    })
}

/// Measures how fast memory can be read, as often as one likes.
pub struct ReadCeiling(Buffer);

impl ReadCeiling {
    /// Memory that it takes, all of it resident.
    pub const BYTES: usize = READ_BYTES;

    /// Takes 384 MiB of memory.
    pub fn new(pool: &Pool) -> Result<Self, OutOfMemory> {
        let mut buffer = Buffer::new(READ_BYTES / size_of::<Line>())?;
        // Memory that was never written is one page of zeros, read from the cache.
        pool.run_slices(&mut buffer, 1 << 14, |i, lines| lines.fill(Line([i as u8; 64])));
        Ok(ReadCeiling(buffer))
    }

    /// 10^9 bytes per second: the median of short pieces, few of which are disturbed by other processes.
    pub fn measure(&self, pool: &Pool) -> f64 {
        let mut rates = Vec::new();
        for piece in self.0.chunks_exact(PIECE_BYTES / size_of::<Line>()) {
            let share = piece.len() / pool.threads();
            let start = Instant::now();
            pool.run(|part| Tier::detect().run(Read { lines: &piece[part * share..][..share] }));
            let bytes = share * pool.threads() * size_of::<Line>();
            rates.push(bytes as f64 / start.elapsed().as_secs_f64() / 1e9);
        }
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    }
}

struct Read<'a> {
    lines: &'a [Line],
}

impl Kernel for Read<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut seen = [s.splat_i(0); 8];
        for lines in self.lines.chunks_exact(4) {
            for (i, line) in lines.iter().enumerate() {
                for half in 0..S::HALVES {
                    let at = 2 * i + half;
                    seen[at] = s.or(seen[at], s.load_i(line, half));
                }
            }
        }
        black_box(&seen);
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Int8,
    Int16,
    Bf16,
    F32,
}

/// 10^9 multiplications and additions per second: the best of several short measurements.
fn peak(pool: &Pool, tier: Tier, kind: Kind) -> f64 {
    // Without vector instructions a round takes a hundred times as long.
    let rounds = if tier == Tier::SCALAR { ROUNDS / 64 } else { ROUNDS };
    let mut best = 0.0f64;
    let mut operations = 0;
    for _ in 0..REPEATS {
        let start = Instant::now();
        operations = match kind {
            Kind::Int8 => on_all(pool, |tier| tier.run(Int8 { rounds })),
            Kind::Int16 => on_all(pool, |tier| tier.run(Int16 { rounds })),
            Kind::Bf16 => on_all(pool, |tier| tier.run(Bf16 { rounds })),
            Kind::F32 => on_all(pool, |tier| tier.run(F32 { rounds })),
        };
        best = best.max(1.0 / start.elapsed().as_secs_f64());
    }
    operations as f64 * best / 1e9
}

fn on_all(pool: &Pool, f: impl Fn(Tier) -> usize + Sync) -> usize {
    let operations = std::sync::atomic::AtomicUsize::new(0);
    pool.run(|_| {
        operations.fetch_add(f(Tier::detect()), std::sync::atomic::Ordering::Relaxed);
    });
    operations.into_inner()
}

/// Independent sums, to hide the latency of each: enough for two units of latency 5, few enough for 16 registers.
const SUMS: usize = 12;

/// Kernels that do nothing but multiply and add; they return the number of operations.
macro_rules! peak_kernel {
    ($name:ident, $integers:literal, $bf16:literal, $inputs:literal, |$s:ident, $sum:ident, $a:ident, $b:ident| $step:expr) => {
        struct $name {
            rounds: usize,
        }
        impl Kernel for $name {
            type Output = usize;
            const INTEGER_DOT: bool = $integers;
            const BF16_DOT: bool = $bf16;
            #[inline(always)]
            fn run<S: Simd>(self, $s: S) -> usize {
                let mut sums = [black_box($s.splat_i(0)); SUMS];
                let $b = black_box($s.splat_i(0x0101_0101));
                for _ in 0..self.rounds {
                    // Unknown to the compiler, else it multiplies once.
                    let $a = black_box($s.splat_i(0x0201_0201));
                    for _ in 0..4 {
                        for $sum in &mut sums {
                            *$sum = $step;
                        }
                    }
                }
                black_box(&sums);
                self.rounds * 4 * SUMS * S::ROWS * $inputs * 2
            }
        }
    };
}
// Where multiplying and adding integers are two instructions, the compiler would multiply once for all sums if it were not by the
// sums themselves, which are zero.
peak_kernel!(Int8, true, false, 4, |s, sum, a, _b| s.dot(*sum, a, *sum));
peak_kernel!(Int16, true, false, 2, |s, sum, a, _b| s.dot_pairs(*sum, a, *sum));
peak_kernel!(Bf16, false, true, 2, |s, sum, a, b| s.as_i(s.dot_bf16(s.as_f(*sum), a, b)));
peak_kernel!(F32, false, false, 1, |s, sum, a, b| s.as_i(s.fma_fast(s.as_f(a), s.as_f(b), s.as_f(*sum))));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_positive_and_in_order() {
        let c = measure_ceilings(&Pool::new(1)).unwrap();
        assert!(c.read_gbs > 0.1 && c.read_gbs < 1e5, "{c:?}");
        assert!(c.f32_gflops > 0.1 && c.f32_gflops < 1e6, "{c:?}");
        // Four 8-bit or two 16-bit products fit where one f32 does; half of that is left for emulations.
        assert!(c.int16_gops > 0.5 * c.f32_gflops, "{c:?}");
        assert!(c.int8_gops > 0.5 * c.f32_gflops && c.bf16_gflops > 0.5 * c.f32_gflops, "{c:?}");
    }
}
