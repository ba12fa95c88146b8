//! State that outlives a step: the key-value cache of attention layers.
//!
//! Keys and values live in blocks of [`BLOCK_TOKENS`] tokens. A sequence has a table of block numbers; token `p` of the
//! sequence is slot `p % BLOCK_TOKENS` of block `table[p / BLOCK_TOKENS]`. A block number stands for the same block in
//! every layer. Who owns which block is the engine's business; a backend only stores them.

/// Tokens per key-value block.
pub const BLOCK_TOKENS: usize = 32;

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum KvType {
    /// 32-bit floats: what exact mode uses.
    F32,
    /// 16-bit IEEE floats.
    #[default]
    F16,
    /// 16-bit brain floats.
    BF16,
    /// 8-bit integers with a scale for each 32 elements of a head, the last group of a head being smaller if need be.
    Q8_0,
}

impl KvType {
    /// Bytes of one token's key or value of one head, `dim` wide.
    pub const fn bytes(self, dim: usize) -> usize {
        match self {
            KvType::F32 => 4 * dim,
            KvType::F16 | KvType::BF16 => 2 * dim,
            KvType::Q8_0 => dim + 4 * dim.div_ceil(32),
        }
    }
}

/// Shape of one attention layer's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayer {
    /// Key-value heads.
    pub heads: usize,
    /// Width of a key head.
    pub key_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
}

impl KvLayer {
    /// Bytes that one token takes in this layer.
    pub const fn token_bytes(&self, kv: KvType) -> usize {
        self.heads * (kv.bytes(self.key_dim) + kv.bytes(self.value_dim))
    }
}
