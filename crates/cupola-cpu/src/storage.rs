//! How one head's keys and values of a block are stored.
//!
//! Keys are `[key_dim][32 tokens]`: transposed, so that the scores of 32 keys are the lanes of a vector, and no sum goes
//! across lanes. Values are `[32 tokens][value_stride]`, `value_stride` being `value_dim` rounded up to whole vectors.

use crate::lanes::{LANES, Lanes};
use crate::memory::Line;
use crate::simd::Simd;
use cupola_graph::{BLOCK_TOKENS, KvType};
use half::{bf16, f16};
use std::marker::PhantomData;

/// Rows of floats, whole vectors wide, converted as they are read.
pub(crate) trait Rows: Copy {
    /// Whether reading is no more than a load.
    const PLAIN: bool;
    /// Number of rows.
    fn count(self) -> usize;
    /// Floats of a row.
    fn width(self) -> usize;
    /// 32 floats of a row.
    ///
    /// # Safety
    /// `row < self.count()` and `column + 32 <= self.width()`, `column` being a multiple of 32.
    unsafe fn read<S: Lanes>(self, s: S, row: usize, column: usize) -> S::V;
}

/// A way of storing.
pub(crate) trait Storage: 'static {
    type Keys<'a>: Rows;
    type Values<'a>: Rows;
    /// The keys in a head's part of a block.
    fn keys(lines: &[Line], key_dim: usize) -> Self::Keys<'_>;
    /// The values.
    fn values(lines: &[Line], stride: usize) -> Self::Values<'_>;
    /// Stores the key of a token.
    fn store_key<S: Simd>(s: S, key: &[f32], slot: usize, lines: &mut [Line]);
    /// Stores the value of a token.
    fn store_value<S: Simd>(s: S, value: &[f32], slot: usize, lines: &mut [Line]);
}

/// Lines that the keys or values of a head take in a block, `dim` being the key's width or the value's stride; absent if
/// that overflows.
pub(crate) fn head_lines(kv_type: KvType, dim: usize) -> Option<usize> {
    // No other type takes more, but for the padding of a few lines.
    let f32_lines = dim.checked_mul(BLOCK_TOKENS * size_of::<f32>())? / size_of::<Line>();
    Some(match kv_type {
        KvType::F32 => f32_lines,
        KvType::F16 | KvType::BF16 => f32_lines / 2,
        KvType::Q8_0 => {
            Codes::code_lines(dim) + dim.div_ceil(LANES) * BLOCK_TOKENS * size_of::<f32>() / size_of::<Line>()
        }
    })
}

/// A head's part of a block as elements of a type for which all bits are valid, at most as aligned as lines.
fn elements<E: Plain>(lines: &[Line]) -> &[E] {
    // SAFETY: see `Plain`.
    unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), size_of_val(lines) / size_of::<E>()) }
}

fn elements_mut<E: Plain>(lines: &mut [Line]) -> &mut [E] {
    // SAFETY: see `Plain`; the borrow is exclusive.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), size_of_val(lines) / size_of::<E>()) }
}

/// # Safety
/// All bits are valid, and alignment is at most that of [`Line`].
unsafe trait Plain: Copy {}
// SAFETY: numbers of at most four bytes.
unsafe impl Plain for f32 {}
// SAFETY: as above.
unsafe impl Plain for f16 {}
// SAFETY: as above.
unsafe impl Plain for bf16 {}
// SAFETY: as above.
unsafe impl Plain for i8 {}

/// Floats of one type.
pub(crate) struct Floats<E>(PhantomData<E>);

/// A type of float.
#[allow(private_bounds)]
pub(crate) trait Float: Plain + Default + 'static {
    const PLAIN: bool;
    fn read<S: Lanes>(s: S, x: &[Self; LANES]) -> S::V;
    fn write<S: Lanes>(s: S, v: S::V, out: &mut [Self; LANES]);
}

macro_rules! float {
    ($type:ty, $plain:literal, $read:ident, $write:ident) => {
        impl Float for $type {
            const PLAIN: bool = $plain;
            #[inline(always)]
            fn read<S: Lanes>(s: S, x: &[Self; LANES]) -> S::V {
                s.$read(x)
            }
            #[inline(always)]
            fn write<S: Lanes>(s: S, v: S::V, out: &mut [Self; LANES]) {
                s.$write(v, out)
            }
        }
    };
}
float!(f32, true, read, write);
float!(f16, false, read_f16, write_f16);
float!(bf16, false, read_bf16, write_bf16);

/// Rows of [`Floats`].
#[derive(Clone, Copy)]
pub(crate) struct FloatRows<'a, E> {
    elements: &'a [E],
    width: usize,
}

impl<'a, E: Float> FloatRows<'a, E> {
    #[inline(always)]
    pub fn new(elements: &'a [E], width: usize) -> Self {
        assert!(width > 0 && width.is_multiple_of(LANES));
        FloatRows { elements, width }
    }
}

impl<E: Float> Rows for FloatRows<'_, E> {
    const PLAIN: bool = E::PLAIN;
    #[inline(always)]
    fn count(self) -> usize {
        self.elements.len() / self.width
    }
    #[inline(always)]
    fn width(self) -> usize {
        self.width
    }
    #[inline(always)]
    unsafe fn read<S: Lanes>(self, s: S, row: usize, column: usize) -> S::V {
        // SAFETY: the caller's promise: the end is at most at `count * width`.
        E::read(s, unsafe { &*self.elements.as_ptr().add(row * self.width + column).cast() })
    }
}

impl<E: Float> Storage for Floats<E> {
    type Keys<'a> = FloatRows<'a, E>;
    type Values<'a> = FloatRows<'a, E>;

    #[inline(always)]
    fn keys(lines: &[Line], _: usize) -> FloatRows<'_, E> {
        FloatRows::new(elements(lines), BLOCK_TOKENS)
    }
    #[inline(always)]
    fn values(lines: &[Line], stride: usize) -> FloatRows<'_, E> {
        FloatRows::new(elements(lines), stride)
    }
    #[inline(always)]
    fn store_key<S: Simd>(s: S, key: &[f32], slot: usize, lines: &mut [Line]) {
        let mut rounded = [E::default(); LANES];
        for (part, columns) in key.chunks(LANES).zip(elements_mut::<E>(lines).chunks_mut(LANES * BLOCK_TOKENS)) {
            E::write(s, s.load_slice(part, 0), &mut rounded);
            for (column, x) in columns.chunks_exact_mut(BLOCK_TOKENS).zip(rounded) {
                column[slot] = x;
            }
        }
    }
    #[inline(always)]
    fn store_value<S: Simd>(s: S, value: &[f32], slot: usize, lines: &mut [Line]) {
        let elements = elements_mut::<E>(lines);
        let stride = elements.len() / BLOCK_TOKENS;
        let row = elements[slot * stride..][..stride].as_chunks_mut().0;
        for (out, part) in row.iter_mut().zip(value.chunks(LANES)) {
            E::write(s, s.load_slice(part, 0), out);
        }
    }
}

/// 8-bit integers with an f32 scale for each 32 elements of a token, rounded as activations are (`simd/quantise.rs`): an
/// element is off by at most half a scale, the largest magnitude over 127. The codes come first, then the scales:
/// `[groups][32 tokens]` for keys, `[32 tokens][groups]` for values.
pub(crate) struct Codes;

impl Codes {
    /// Lines before the first scale.
    #[inline(always)]
    fn code_lines(dim: usize) -> usize {
        (dim * BLOCK_TOKENS).div_ceil(size_of::<Line>())
    }

    /// The codes and the scales of a head's part.
    #[inline(always)]
    fn split(lines: &[Line], dim: usize) -> (&[i8], &[f32]) {
        let (codes, scales) = lines.split_at(Codes::code_lines(dim));
        (elements(codes), elements(scales))
    }

    #[inline(always)]
    fn split_mut(lines: &mut [Line], dim: usize) -> (&mut [i8], &mut [f32]) {
        let (codes, scales) = lines.split_at_mut(Codes::code_lines(dim));
        (elements_mut(codes), elements_mut(scales))
    }

    /// The codes and scales of up to 32 elements.
    #[inline(always)]
    fn round<S: Simd>(s: S, part: &[f32]) -> ([i8; LANES], f32) {
        let mut x = [0.0; LANES];
        x[..part.len()].copy_from_slice(part);
        let q = s.quantise8(&x);
        let mut codes = [0; LANES];
        for (codes, word) in codes.as_chunks_mut::<4>().0.iter_mut().zip(q.words) {
            *codes = word.to_le_bytes().map(|byte| byte as i8);
        }
        (codes, q.scale)
    }
}

/// Keys of [`Codes`]: a row has the scales of its group.
#[derive(Clone, Copy)]
pub(crate) struct KeyCodes<'a> {
    codes: &'a [[i8; LANES]],
    scales: &'a [[f32; LANES]],
}

impl Rows for KeyCodes<'_> {
    const PLAIN: bool = false;
    #[inline(always)]
    fn count(self) -> usize {
        self.codes.len()
    }
    #[inline(always)]
    fn width(self) -> usize {
        LANES
    }
    #[inline(always)]
    unsafe fn read<S: Lanes>(self, s: S, row: usize, _: usize) -> S::V {
        // SAFETY: the caller's promise; there is a row of scales for every 32 rows of codes or less.
        unsafe { s.read_i8(self.codes.get_unchecked(row)) * s.read(self.scales.get_unchecked(row / LANES)) }
    }
}

/// Values of [`Codes`]: each 32 columns of a row have a scale of their own.
#[derive(Clone, Copy)]
pub(crate) struct ValueCodes<'a> {
    /// `[tokens * groups]`.
    codes: &'a [[i8; LANES]],
    scales: &'a [f32],
    groups: usize,
}

impl Rows for ValueCodes<'_> {
    const PLAIN: bool = false;
    #[inline(always)]
    fn count(self) -> usize {
        BLOCK_TOKENS
    }
    #[inline(always)]
    fn width(self) -> usize {
        self.groups * LANES
    }
    #[inline(always)]
    unsafe fn read<S: Lanes>(self, s: S, row: usize, column: usize) -> S::V {
        let at = row * self.groups + column / LANES;
        // SAFETY: the caller's promise; `Codes::values` checked that there are as many codes and scales.
        unsafe { s.read_i8(self.codes.get_unchecked(at)) * s.all(*self.scales.get_unchecked(at)) }
    }
}

impl Storage for Codes {
    type Keys<'a> = KeyCodes<'a>;
    type Values<'a> = ValueCodes<'a>;

    #[inline(always)]
    fn keys(lines: &[Line], key_dim: usize) -> KeyCodes<'_> {
        let (codes, scales) = Codes::split(lines, key_dim);
        let (codes, scales) = (&codes.as_chunks().0[..key_dim], scales.as_chunks().0);
        assert!(scales.len() >= key_dim.div_ceil(LANES));
        KeyCodes { codes, scales }
    }
    #[inline(always)]
    fn values(lines: &[Line], stride: usize) -> ValueCodes<'_> {
        let (codes, scales) = Codes::split(lines, stride);
        let (codes, groups) = (codes.as_chunks().0, stride / LANES);
        assert!(codes.len() >= groups * BLOCK_TOKENS && scales.len() >= groups * BLOCK_TOKENS);
        ValueCodes { codes, scales, groups }
    }
    #[inline(always)]
    fn store_key<S: Simd>(s: S, key: &[f32], slot: usize, lines: &mut [Line]) {
        let (all, scales) = Codes::split_mut(lines, key.len());
        let groups = all.chunks_mut(LANES * BLOCK_TOKENS).zip(scales.chunks_exact_mut(BLOCK_TOKENS));
        for (part, (columns, scales)) in key.chunks(LANES).zip(groups) {
            let (codes, scale) = Codes::round(s, part);
            scales[slot] = scale;
            for (column, code) in columns.chunks_exact_mut(BLOCK_TOKENS).zip(codes).take(part.len()) {
                column[slot] = code;
            }
        }
    }
    #[inline(always)]
    fn store_value<S: Simd>(s: S, value: &[f32], slot: usize, lines: &mut [Line]) {
        let groups = value.len().div_ceil(LANES);
        let (codes, scales) = Codes::split_mut(lines, groups * LANES);
        let codes = codes.as_chunks_mut().0[slot * groups..].iter_mut();
        for ((part, codes), scale) in value.chunks(LANES).zip(codes).zip(&mut scales[slot * groups..]) {
            (*codes, *scale) = Codes::round(s, part);
        }
    }
}
