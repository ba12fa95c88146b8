//! Keys and values of one attention layer: blocks of 32 tokens, each the parts of one key-value head after the other (see
//! [`crate::storage`]).

use crate::Tier;
use crate::lanes::LANES;
use crate::memory::{Buffer, Line, OutOfMemory};
use crate::simd::{Kernel, Simd};
use crate::storage::{Codes, Floats, Storage, head_lines};
use cupola_graph::{BLOCK_TOKENS, KvLayer, KvType};
use half::{bf16, f16};
use std::marker::PhantomData;

/// Blocks that are allocated together. Memory is only touched once tokens are stored.
const SLAB_BLOCKS: usize = 16;

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

    /// The part of a block that has the keys of a head.
    ///
    /// # Panics
    /// If there is no such block or head.
    pub fn keys(&self, block: usize, head: usize) -> &[Line] {
        let lines = self.head_lines(self.layer.key_dim);
        &self.slabs[block / SLAB_BLOCKS].keys[self.place(block, head, lines)..][..lines]
    }

    /// The part of a block that has the values of a head.
    ///
    /// # Panics
    /// As [`Cache::keys`].
    pub fn values(&self, block: usize, head: usize) -> &[Line] {
        let lines = self.head_lines(self.value_stride());
        &self.slabs[block / SLAB_BLOCKS].values[self.place(block, head, lines)..][..lines]
    }

    /// Access for threads that store tokens at the same time.
    pub fn slots(&mut self) -> Slots<'_> {
        let memory = self.slabs.iter_mut().map(|s| (s.keys.as_mut_ptr(), s.values.as_mut_ptr())).collect();
        Slots { cache: self, memory }
    }

    fn place(&self, block: usize, head: usize, head_lines: usize) -> usize {
        assert!(head < self.layer.heads);
        (block % SLAB_BLOCKS * self.layer.heads + head) * head_lines
    }

    /// Lines of a head's keys or values in a block. [`Cache::reserve`] refuses sizes that overflow.
    fn head_lines(&self, dim: usize) -> usize {
        head_lines(self.kv_type, dim).unwrap_or(0)
    }

    /// Lines of all heads' keys or values in a block.
    fn block_lines(&self, dim: usize) -> Option<usize> {
        head_lines(self.kv_type, dim)?.checked_mul(self.layer.heads)
    }
}

fn copy_lines(slabs: &mut [Slab], of: fn(&mut Slab) -> &mut Buffer, lines: usize, from: usize, to: usize) {
    let range = |block: usize| block % SLAB_BLOCKS * lines..(block % SLAB_BLOCKS + 1) * lines;
    match slabs.get_disjoint_mut([from / SLAB_BLOCKS, to / SLAB_BLOCKS]) {
        Ok([source, target]) => of(target)[range(to)].copy_from_slice(&of(source)[range(from)]),
        Err(_) => of(&mut slabs[from / SLAB_BLOCKS]).copy_within(range(from), range(to).start),
    }
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
            KvType::F32 => unsafe { self.store_as::<Floats<f32>>(tier, block, slot, head, key, value) },
            // SAFETY: the caller's promise.
            KvType::F16 => unsafe { self.store_as::<Floats<f16>>(tier, block, slot, head, key, value) },
            // SAFETY: the caller's promise.
            KvType::BF16 => unsafe { self.store_as::<Floats<bf16>>(tier, block, slot, head, key, value) },
            // SAFETY: the caller's promise.
            KvType::Q8_0 => unsafe { self.store_as::<Codes>(tier, block, slot, head, key, value) },
        }
    }

    unsafe fn store_as<K: Storage>(
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
        let (key_lines, value_lines) =
            (self.cache.head_lines(key_dim), self.cache.head_lines(self.cache.value_stride()));
        // SAFETY: inside the slab (`place` checks the head), and ours alone by the caller's promise.
        let (keys, values) = unsafe {
            let keys = keys.add(self.cache.place(block, head, key_lines));
            let values = values.add(self.cache.place(block, head, value_lines));
            (std::slice::from_raw_parts_mut(keys, key_lines), std::slice::from_raw_parts_mut(values, value_lines))
        };
        tier.run(Store { keys, values, slot, key, value, storage: PhantomData::<K> });
    }
}

/// Stores one token's key and value in a head's part of a block.
struct Store<'a, K> {
    keys: &'a mut [Line],
    values: &'a mut [Line],
    slot: usize,
    key: &'a [f32],
    value: &'a [f32],
    storage: PhantomData<K>,
}

impl<K: Storage> Kernel for Store<'_, K> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        K::store_key(s, self.key, self.slot, self.keys);
        K::store_value(s, self.value, self.slot, self.values);
    }
}
