//! Activations in the forms that the products multiply.
//!
//! Rows come in segments: those of one segment meet the same matrices. A segment's rows are taken in groups of up to a tile's
//! size. All that belongs to a group is one *record*, in which the values of its
//! rows are interleaved, so that a tile walks each part with one pointer.

use super::exact::exact_position;
use crate::memory::{Buffer, Line, OutOfMemory};
use crate::pool::Pool;
use crate::simd::{Kernel, MAX_TILE, Quantised, Simd};
use crate::tier::Tier;
use std::ops::Range;

/// Rows are padded with zeros to this: the largest unit of any format.
const PAD: usize = 256;
/// Values to prepare below which starting threads costs more than it saves.
const SERIAL: usize = 1 << 14;

/// One form of the activations, in words of 4 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// 8-bit integers, four to a word: `[k/4]`.
    Codes,
    /// 16-bit integers, two to a word: `[k/2]`. Not beside `Codes`, which would have other scales.
    Pairs,
    /// Their scales, f32: `[k/32]`.
    Scales,
    /// For weights with an offset: minus the offset times the sum of the integers of each group, i32: `[k/group]`.
    Offsets { group: usize, offset: u8 },
    /// For weights with minima: the sum of each group, f32: `[k/group]`.
    Sums { group: usize },
    /// BF16 pairs: `[k/2]`.
    Bf16,
    /// f32: `[k]`.
    F32,
    /// f32, for the exact product of several rows: `[set][block][4]`, see `exact`.
    Exact,
}

impl Part {
    /// Words for a row of `k` values.
    fn words(self, k: usize) -> usize {
        match self {
            Part::Codes => k / 4,
            Part::Scales => k / 32,
            Part::Offsets { group, .. } | Part::Sums { group } => k / group,
            Part::Pairs | Part::Bf16 => k / 2,
            Part::F32 | Part::Exact => k,
        }
    }
}

/// Prepared activations of some rows; keeps its memory from one use to the next.
#[derive(Default)]
pub(crate) struct Prepared {
    /// Each part, and where it starts in a record, in words for each row of a full group.
    parts: Vec<(Part, usize)>,
    /// Values of a row, padded.
    k: usize,
    /// Rows of each group.
    groups: Vec<Range<usize>>,
    /// Groups of each segment.
    segments: Vec<Range<usize>>,
    tile: usize,
    /// Lines from record to record.
    record: usize,
    memory: Buffer,
}

impl Prepared {
    /// Prepares rows of `n_in` values for groups of up to `tile` rows; `segments` has the rows of each segment, together at
    /// least one.
    pub fn prepare(
        &mut self,
        pool: &Pool,
        tier: Tier,
        x: &[f32],
        segments: &[usize],
        tile: usize,
        parts: impl Iterator<Item = Part>,
    ) -> Result<(), OutOfMemory> {
        let rows: usize = segments.iter().sum();
        let n_in = x.len() / rows;
        self.k = n_in.next_multiple_of(PAD);
        self.tile = tile;
        self.group(segments);
        self.parts.clear();
        let mut words = 0;
        for part in parts {
            if !self.parts.iter().any(|(p, _)| *p == part) {
                self.parts.push((part, words));
                words += part.words(self.k);
            }
        }
        let bytes = words.checked_mul(4 * tile).ok_or(OutOfMemory { bytes: usize::MAX })?;
        self.record = bytes.div_ceil(size_of::<Line>());
        let lines = self.record.checked_mul(self.groups.len()).ok_or(OutOfMemory { bytes: usize::MAX })?;
        self.memory.reserve(lines)?;

        let mut memory = std::mem::take(&mut self.memory);
        let fill = |group: usize, record: &mut [Line]| {
            let rows = self.rows_of(group);
            let x = &x[rows.start * n_in..rows.end * n_in];
            self.fill(tier, x, rows.len(), words_of_mut(record));
        };
        if rows * n_in < SERIAL {
            for (group, record) in memory[..lines].chunks_exact_mut(self.record).enumerate() {
                fill(group, record);
            }
        } else {
            pool.run_slices(&mut memory[..lines], self.record, fill);
        }
        self.memory = memory;
        Ok(())
    }

    /// Writes the record of a group of `rows` rows.
    fn fill(&self, tier: Tier, x: &[f32], rows: usize, record: &mut [u32]) {
        let (k, tile, parts) = (self.k, self.tile, &self.parts[..]);
        match rows {
            1 => tier.run(Fill::<1> { x, k, tile, parts, record }),
            2 => tier.run(Fill::<2> { x, k, tile, parts, record }),
            3 => tier.run(Fill::<3> { x, k, tile, parts, record }),
            4 => tier.run(Fill::<4> { x, k, tile, parts, record }),
            5 => tier.run(Fill::<5> { x, k, tile, parts, record }),
            MAX_TILE => tier.run(Fill::<6> { x, k, tile, parts, record }),
            _ => unreachable!("no group has more rows than the largest tile"),
        }
    }

    /// Divides segments into groups: those of a segment have the same number of rows or one less, so that no tile is nearly
    /// empty.
    fn group(&mut self, segments: &[usize]) {
        self.groups.clear();
        self.segments.clear();
        let mut row = 0;
        for rows in segments {
            let (first, count) = (self.groups.len(), rows.div_ceil(self.tile));
            for group in 0..count {
                let start = row;
                row += rows / count + usize::from(group < rows % count);
                self.groups.push(start..row);
            }
            self.segments.push(first..first + count);
        }
    }

    /// Groups of a segment.
    pub fn groups_of(&self, segment: usize) -> Range<usize> {
        self.segments[segment].clone()
    }

    /// Padded values of a row.
    pub fn padded(&self) -> usize {
        self.k
    }

    /// Rows of a group.
    #[inline(always)]
    pub fn rows_of(&self, group: usize) -> Range<usize> {
        self.groups[group].clone()
    }

    /// A part of a group: `[..][rows of the group]`. Empty if it was not prepared.
    #[inline(always)]
    pub fn part(&self, group: usize, part: Part) -> &[u32] {
        let Some(&(_, at)) = self.parts.iter().find(|(p, _)| *p == part) else { return &[] };
        let record = words_of(&self.memory[group * self.record..][..self.record]);
        &record[at * self.tile..][..part.words(self.k) * self.rows_of(group).len()]
    }
}

fn words_of(lines: &[Line]) -> &[u32] {
    // SAFETY: lines are plain bytes at an alignment greater than that of words.
    unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), lines.len() * 16) }
}

fn words_of_mut(lines: &mut [Line]) -> &mut [u32] {
    // SAFETY: as above; the borrow is exclusive.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), lines.len() * 16) }
}

/// To BF16, to nearest, ties to even; NaN stays NaN.
#[inline(always)]
fn bf16_bits(v: f32) -> u32 {
    let bits = v.to_bits();
    if v.is_nan() { bits >> 16 | 64 } else { (bits + 0x7fff + (bits >> 16 & 1)) >> 16 }
}

/// One of the two roundings, as a type: kernels use no closures.
trait Quantise<const WORDS: usize> {
    fn quantise<S: Simd>(s: S, x: &[f32; 32]) -> Quantised<WORDS>;
}

struct To8;
struct To16;

impl Quantise<8> for To8 {
    #[inline(always)]
    fn quantise<S: Simd>(s: S, x: &[f32; 32]) -> Quantised<8> {
        s.quantise8(x)
    }
}

impl Quantise<16> for To16 {
    #[inline(always)]
    fn quantise<S: Simd>(s: S, x: &[f32; 32]) -> Quantised<16> {
        s.quantise16(x)
    }
}

/// Writes the record of one group of `T` rows.
struct Fill<'a, const T: usize> {
    x: &'a [f32],
    k: usize,
    tile: usize,
    parts: &'a [(Part, usize)],
    record: &'a mut [u32],
}

impl<const T: usize> Kernel for Fill<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        for &(part, at) in self.parts {
            match part {
                Part::Codes => self.integers::<S, To8, 8>(s, part, at),
                Part::Pairs => self.integers::<S, To16, 16>(s, part, at),
                // Written with the integers.
                Part::Scales | Part::Offsets { .. } | Part::Sums { .. } => {}
                Part::Bf16 => self.bf16(at),
                Part::F32 => self.floats(at),
                Part::Exact => self.exact(at),
            }
        }
    }
}

/// The correction for a sum of integers, which has no meaning, and may be any number, if the block's scale is NaN.
#[inline(always)]
fn offsets(offset: u8, sum: i32) -> u32 {
    (-i32::from(offset)).wrapping_mul(sum) as u32
}

/// Block `b` of a row, with zeros after its end.
#[inline(always)]
fn block(row: &[f32], b: usize) -> [f32; 32] {
    let rest = row.get(32 * b..).unwrap_or(&[]);
    if let Some(whole) = rest.first_chunk() {
        return *whole;
    }
    let mut padded = [0.0; 32];
    padded[..rest.len()].copy_from_slice(rest);
    padded
}

impl<'a, const T: usize> Fill<'a, T> {
    /// The rows, each `n_in` long.
    #[inline(always)]
    fn rows(&self) -> impl Iterator<Item = (usize, &'a [f32])> + use<'a, T> {
        self.x.chunks_exact(self.x.len() / T).enumerate()
    }

    /// A part that starts at `at`, as words of `T` rows.
    #[inline(always)]
    fn part(&mut self, part: Part, at: usize) -> &mut [[u32; T]] {
        self.record[at * self.tile..][..part.words(self.k) * T].as_chunks_mut().0
    }

    /// Integers, their scales, and corrections.
    #[inline(always)]
    fn integers<S: Simd, Q: Quantise<WORDS>, const WORDS: usize>(&mut self, s: S, integers: Part, at: usize) {
        let parts = self.parts;
        for (t, row) in self.rows() {
            for b in 0..self.k / 32 {
                let q = Q::quantise(s, &block(row, b));
                let words = &mut self.part(integers, at)[WORDS * b..][..WORDS];
                for (out, word) in words.iter_mut().zip(q.words) {
                    out[t] = word;
                }
                let sum = q.sums[0].wrapping_add(q.sums[1]);
                for &(part, at) in parts {
                    match part {
                        Part::Scales => self.part(part, at)[b][t] = q.scale.to_bits(),
                        Part::Offsets { group: 16, offset } => {
                            let out = &mut self.part(part, at)[2 * b..][..2];
                            out[0][t] = offsets(offset, q.sums[0]);
                            out[1][t] = offsets(offset, q.sums[1]);
                        }
                        Part::Offsets { offset, .. } => {
                            self.part(part, at)[b][t] = offsets(offset, sum);
                        }
                        Part::Sums { group: 16 } => {
                            let out = &mut self.part(part, at)[2 * b..][..2];
                            out[0][t] = (q.scale * q.sums[0] as f32).to_bits();
                            out[1][t] = (q.scale * q.sums[1] as f32).to_bits();
                        }
                        Part::Sums { .. } => self.part(part, at)[b][t] = (q.scale * sum as f32).to_bits(),
                        Part::Codes | Part::Pairs | Part::Bf16 | Part::F32 | Part::Exact => {}
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn bf16(&mut self, at: usize) {
        for (t, row) in self.rows() {
            for (b, out) in self.part(Part::Bf16, at).as_chunks_mut::<16>().0.iter_mut().enumerate() {
                let x = block(row, b);
                for i in 0..16 {
                    out[i][t] = bf16_bits(x[2 * i]) | bf16_bits(x[2 * i + 1]) << 16;
                }
            }
        }
    }

    #[inline(always)]
    fn floats(&mut self, at: usize) {
        for (t, row) in self.rows() {
            for (b, out) in self.part(Part::F32, at).as_chunks_mut::<32>().0.iter_mut().enumerate() {
                let x = block(row, b);
                for i in 0..32 {
                    out[i][t] = x[i].to_bits();
                }
            }
        }
    }

    #[inline(always)]
    fn exact(&mut self, at: usize) {
        let blocks = self.k / 32;
        for (t, row) in self.rows() {
            let out = self.part(Part::Exact, at);
            for b in 0..blocks {
                for (l, v) in block(row, b).iter().enumerate() {
                    out[exact_position(32 * b + l, blocks)][t] = v.to_bits();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_rounds_to_nearest_even() {
        for (v, want) in [
            (1.0, 0x3f80),
            (f32::from_bits(0x3f80_8000), 0x3f80),
            (f32::from_bits(0x3f81_8000), 0x3f82),
            (f32::from_bits(0x3f80_8001), 0x3f81),
            (f32::INFINITY, 0x7f80),
            (-0.0, 0x8000),
        ] {
            assert_eq!(bf16_bits(v), want, "{v}");
        }
        assert!(f32::from_bits(bf16_bits(f32::from_bits(0x7f80_0001)) << 16).is_nan());
    }

    #[test]
    fn groups_are_even_and_end_with_their_segment() {
        let mut a = Prepared::default();
        let x = vec![1.0; 21 * 64];
        a.prepare(&Pool::new(1), Tier::SCALAR, &x, &[13, 0, 1, 7], 6, [Part::F32].into_iter()).unwrap();
        let groups = |segment| a.groups_of(segment).map(|g| a.rows_of(g)).collect::<Vec<_>>();
        assert_eq!(groups(0), [0..5, 5..9, 9..13]);
        assert_eq!(groups(1), []);
        assert!(groups(2).iter().eq([&(13..14)]));
        assert_eq!(groups(3), [14..18, 18..21]);
    }
}
