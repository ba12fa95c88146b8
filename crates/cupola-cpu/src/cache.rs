//! Keys and values of one attention layer.
//!
//! A block of 32 tokens holds, for each key-value head, its keys as `[key_dim][32]` and its values as
//! `[32][value_stride]`, `value_stride` being `value_dim` rounded up to whole vectors. Keys are transposed so that the
//! scores of 32 keys are the lanes of a vector: no sum goes across lanes.

use crate::Tier;
use crate::lanes::{LANES, Lanes};
use crate::memory::{Buffer, Line, OutOfMemory};
use crate::simd::{Kernel, Simd};
use cupola_graph::{BLOCK_TOKENS, KvLayer, KvType};
use half::{bf16, f16};

/// Blocks that are allocated together. Memory is only touched once tokens are stored.
const SLAB_BLOCKS: usize = 16;

/// A type of key or value.
pub(crate) trait Element: Copy + Default + Send + Sync + 'static {
    /// Its name.
    const TYPE: KvType;
    fn read<S: Lanes>(s: S, x: &[Self; LANES]) -> S::V;
    fn write<S: Lanes>(s: S, v: S::V, out: &mut [Self; LANES]);
}

macro_rules! element {
    ($type:ty, $name:ident, $read:ident, $write:ident) => {
        impl Element for $type {
            const TYPE: KvType = KvType::$name;
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
element!(f32, F32, read, write);
element!(f16, F16, read_f16, write_f16);
element!(bf16, BF16, read_bf16, write_bf16);

/// Memory of some blocks.
struct Slab {
    keys: Buffer,
    values: Buffer,
}

/// The cache of one attention layer.
pub(crate) struct Cache {
    layer: KvLayer,
    kv_type: KvType,
    slabs: Vec<Slab>,
}

impl Cache {
    /// A cache without blocks.
    pub fn new(layer: KvLayer, kv_type: KvType) -> Cache {
        Cache { layer, kv_type, slabs: vec![] }
    }

    /// Bytes of `blocks` blocks; absent if that overflows.
    pub fn bytes_of(&self, blocks: usize) -> Option<usize> {
        let lines = self.block_lines(self.layer.key_dim)?.checked_add(self.block_lines(self.value_stride())?)?;
        lines.checked_mul(size_of::<Line>())?.checked_mul(blocks.checked_next_multiple_of(SLAB_BLOCKS)?)
    }

    /// Makes room for at least `blocks` blocks.
    pub fn reserve(&mut self, blocks: usize) -> Result<(), OutOfMemory> {
        let lines = |block_lines: Option<usize>| {
            block_lines.and_then(|n| n.checked_mul(SLAB_BLOCKS)).ok_or(OutOfMemory { bytes: usize::MAX })
        };
        while self.slabs.len() * SLAB_BLOCKS < blocks {
            let keys = Buffer::new(lines(self.block_lines(self.layer.key_dim))?)?;
            let values = Buffer::new(lines(self.block_lines(self.value_stride()))?)?;
            self.slabs.push(Slab { keys, values });
        }
        Ok(())
    }

    /// Gives back blocks so that at most as many slabs stay as `blocks` need: undoes a `reserve`.
    pub fn truncate(&mut self, blocks: usize) {
        self.slabs.truncate(blocks.div_ceil(SLAB_BLOCKS));
    }

    /// Bytes that are reserved.
    pub fn bytes(&self) -> usize {
        self.slabs.iter().map(|s| size_of::<Line>() * (s.keys.len() + s.values.len())).sum()
    }

    /// The layer's shape.
    pub fn layer(&self) -> KvLayer {
        self.layer
    }

    /// How elements are stored.
    pub fn kv_type(&self) -> KvType {
        self.kv_type
    }

    /// Elements from one value to the next.
    pub fn value_stride(&self) -> usize {
        self.layer.value_dim.next_multiple_of(LANES)
    }

    /// Copies a block.
    pub fn copy_block(&mut self, from: usize, to: usize) {
        let (keys, values) = (self.block_lines(self.layer.key_dim), self.block_lines(self.value_stride()));
        copy_lines(&mut self.slabs, |s| &mut s.keys, keys.unwrap_or(0), from, to);
        copy_lines(&mut self.slabs, |s| &mut s.values, values.unwrap_or(0), from, to);
    }

    /// Keys of a head in a block, `[key_dim][32]`.
    ///
    /// # Panics
    /// If there is no such block or head, or elements have another type.
    pub fn keys<E: Element>(&self, block: usize, head: usize) -> &[E] {
        let n = self.layer.key_dim * BLOCK_TOKENS;
        &elements::<E>(self.kv_type, &self.slabs[block / SLAB_BLOCKS].keys)[self.place(block, head, n)..][..n]
    }

    /// Values of a head in a block, `[32][value_stride]`.
    ///
    /// # Panics
    /// As [`Cache::keys`].
    pub fn values<E: Element>(&self, block: usize, head: usize) -> &[E] {
        let n = self.value_stride() * BLOCK_TOKENS;
        &elements::<E>(self.kv_type, &self.slabs[block / SLAB_BLOCKS].values)[self.place(block, head, n)..][..n]
    }

    /// Access for threads that store tokens at the same time.
    pub fn slots(&mut self) -> Slots<'_> {
        let memory = self.slabs.iter_mut().map(|s| (s.keys.as_mut_ptr(), s.values.as_mut_ptr())).collect();
        Slots { cache: self, memory }
    }

    fn place(&self, block: usize, head: usize, head_elements: usize) -> usize {
        assert!(head < self.layer.heads);
        (block % SLAB_BLOCKS * self.layer.heads + head) * head_elements
    }

    /// Lines of a block of `dim` elements for each head and token. A block is whole lines, since it has 32 tokens.
    fn block_lines(&self, dim: usize) -> Option<usize> {
        let elements = self.layer.heads.checked_mul(dim)?.checked_mul(BLOCK_TOKENS)?;
        Some(elements.checked_mul(self.kv_type.bytes())? / size_of::<Line>())
    }
}

fn copy_lines(slabs: &mut [Slab], of: fn(&mut Slab) -> &mut Buffer, lines: usize, from: usize, to: usize) {
    let range = |block: usize| block % SLAB_BLOCKS * lines..(block % SLAB_BLOCKS + 1) * lines;
    match slabs.get_disjoint_mut([from / SLAB_BLOCKS, to / SLAB_BLOCKS]) {
        Ok([source, target]) => of(target)[range(to)].copy_from_slice(&of(source)[range(from)]),
        Err(_) => of(&mut slabs[from / SLAB_BLOCKS]).copy_within(range(from), range(to).start),
    }
}

fn elements<E: Element>(kv_type: KvType, lines: &[Line]) -> &[E] {
    assert_eq!(kv_type, E::TYPE);
    // SAFETY: E is f32, f16 or bf16, for which all bits are valid; lines are more aligned.
    unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), size_of_val(lines) / size_of::<E>()) }
}

/// See [`Cache::slots`].
pub(crate) struct Slots<'a> {
    cache: &'a Cache,
    memory: Vec<(*mut Line, *mut Line)>,
}

// SAFETY: threads write disjoint places, which `Slots::store` makes its callers promise; the cache is mutably borrowed.
unsafe impl Sync for Slots<'_> {}

impl Slots<'_> {
    /// Stores one token's key and value of one head.
    ///
    /// # Safety
    /// No other thread accesses this head of this block meanwhile.
    ///
    /// # Panics
    /// If the block, head or slot does not exist, or the lengths are wrong.
    pub unsafe fn store(&self, tier: Tier, block: usize, slot: usize, head: usize, key: &[f32], value: &[f32]) {
        match self.cache.kv_type {
            // SAFETY: the caller's promise.
            KvType::F32 => unsafe { self.store_as::<f32>(tier, block, slot, head, key, value) },
            // SAFETY: the caller's promise.
            KvType::F16 => unsafe { self.store_as::<f16>(tier, block, slot, head, key, value) },
            // SAFETY: the caller's promise.
            KvType::BF16 => unsafe { self.store_as::<bf16>(tier, block, slot, head, key, value) },
        }
    }

    unsafe fn store_as<E: Element>(
        &self,
        tier: Tier,
        block: usize,
        slot: usize,
        head: usize,
        key: &[f32],
        value: &[f32],
    ) {
        let KvLayer { key_dim, value_dim, .. } = self.cache.layer;
        assert!(slot < BLOCK_TOKENS && key.len() == key_dim && value.len() == value_dim);
        let (keys, values) = self.memory[block / SLAB_BLOCKS];
        let (n_keys, n_values) = (key_dim * BLOCK_TOKENS, self.cache.value_stride() * BLOCK_TOKENS);
        // SAFETY: inside the slab (`place` checks the head), of the type that the cache was made for, and ours alone by
        // the caller's promise.
        let (keys, values) = unsafe {
            let keys = keys.cast::<E>().add(self.cache.place(block, head, n_keys));
            let values = values.cast::<E>().add(self.cache.place(block, head, n_values));
            (std::slice::from_raw_parts_mut(keys, n_keys), std::slice::from_raw_parts_mut(values, n_values))
        };
        tier.run(Store { keys, values, slot, key, value });
    }
}

/// Stores one token's key and value in a head's part of a block.
struct Store<'a, E> {
    keys: &'a mut [E],
    values: &'a mut [E],
    slot: usize,
    key: &'a [f32],
    value: &'a [f32],
}

impl<E: Element> Kernel for Store<'_, E> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut rounded = [E::default(); LANES];
        for (part, columns) in self.key.chunks(LANES).zip(self.keys.chunks_mut(LANES * BLOCK_TOKENS)) {
            E::write(s, s.load_slice(part, 0), &mut rounded);
            for (column, x) in columns.chunks_exact_mut(BLOCK_TOKENS).zip(rounded) {
                column[self.slot] = x;
            }
        }
        let stride = self.values.len() / BLOCK_TOKENS;
        let row = self.values[self.slot * stride..][..stride].as_chunks_mut().0;
        for (out, part) in row.iter_mut().zip(self.value.chunks(LANES)) {
            E::write(s, s.load_slice(part, 0), out);
        }
    }
}
