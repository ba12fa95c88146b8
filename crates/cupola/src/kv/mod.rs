//! Who owns which key-value block.
//!
//! A block holds the keys and values of [`BLOCK_TOKENS`] tokens in every layer; the device stores the contents, this
//! module decides what is where. A [`Sequence`] is one run of tokens being evaluated. Its full blocks move into a
//! [tree] keyed by their tokens, where other sequences with the same beginning find and share them; its last,
//! unfinished block is its own. When a sequence ends, everything that it evaluated stays in the tree until the space is
//! needed, least recently used first. So a conversation finds its earlier turns again, and a sequence whose text was
//! changed finds the part before the change.
//!
//! A sequence that continues in the middle of a block that others may need gets a copy of it first: a block in the
//! tree is never written to.

mod tree;

#[cfg(test)]
mod tests;

use cupola_graph::BLOCK_TOKENS;
use tree::{NodeId, Tree};

/// All blocks of a model, and what is in them.
#[derive(Debug)]
pub struct KvCache {
    tree: Tree,
    free: Vec<u32>,
    /// Blocks that the device has room for.
    capacity: usize,
    /// Up to here it asks for more room before it gives up cached tokens.
    preferred: usize,
    /// Up to here it may ask for more room.
    limit: usize,
}

/// Tokens that are being evaluated, and the blocks that hold them.
#[derive(Debug)]
pub struct Sequence {
    regime: usize,
    /// Tokens whose keys and values are in the blocks.
    tokens: Vec<u32>,
    /// Full blocks, shared through the tree: the first of `table`.
    shared: Vec<NodeId>,
    /// Block numbers in order; those after the shared ones belong to this sequence alone.
    table: Vec<u32>,
    copy: Option<Copy>,
}

/// A block of the tree whose first tokens this sequence shares, to be copied before it goes on.
#[derive(Clone, Copy, Debug)]
struct Copy {
    source: NodeId,
    from: u32,
    /// Absent until [`KvCache::extend`] has found a block.
    to: Option<u32>,
}

/// No block is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// Give the device room for this many, call [`KvCache::grown`], and try again.
    Grow(usize),
    /// All blocks are in use by sequences that are being evaluated.
    Full,
}

impl Sequence {
    /// A sequence that begins from nothing, and looks for nothing in the cache.
    pub fn new(regime: usize) -> Sequence {
        Sequence { regime, tokens: vec![], shared: vec![], table: vec![], copy: None }
    }

    /// Number of tokens whose keys and values are in the cache.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Block numbers, for [`Span::blocks`](cupola_graph::Span::blocks).
    pub fn table(&self) -> &[u32] {
        &self.table
    }

    /// A copy, from one block to another, that has to happen before the next step of this sequence.
    pub fn copy(&self) -> Option<(u32, u32)> {
        self.copy.and_then(|c| Some((c.from, c.to?)))
    }
}

impl KvCache {
    /// No blocks yet. Grows freely to `preferred` blocks, and to `limit` if sequences being evaluated need them.
    pub fn new(preferred: usize, limit: usize) -> KvCache {
        KvCache { tree: Tree::default(), free: vec![], capacity: 0, preferred: preferred.min(limit), limit }
    }

    /// Starts a sequence that will hold `tokens`, and finds as many of them as possible in the cache, though never the
    /// last: a step is needed to have its logits. The caller evaluates the tokens from [`Sequence::len`] on.
    ///
    /// Sequences only share within a `regime`: keys depend on the RoPE frequencies, which can depend on the length.
    pub fn start(&mut self, tokens: &[u32], regime: usize) -> Sequence {
        let mut s = Sequence::new(regime);
        let reusable = &tokens[..tokens.len().saturating_sub(1)];
        while let Some((node, common)) = self.tree.best_child(regime, s.shared.last().copied(), &reusable[s.len()..]) {
            s.tokens.extend_from_slice(&reusable[s.len()..s.len() + common]);
            if common == BLOCK_TOKENS {
                self.tree.take_user(node);
                s.shared.push(node);
                s.table.push(self.tree.block(node));
                continue;
            }
            if self.tree.is_free(node) && self.tree.tokens(node).len() == common {
                // An unfinished block that this sequence continues, and nobody else has: no copy needed.
                s.table.push(self.tree.remove(node));
            } else {
                self.tree.take_user(node);
                s.copy = Some(Copy { source: node, from: self.tree.block(node), to: None });
            }
            break;
        }
        s
    }

    /// Makes room for `more` tokens after those that are there. On an error the sequence is still sound, and the call
    /// can be repeated.
    pub fn extend(&mut self, s: &mut Sequence, more: usize) -> Result<(), Shortage> {
        if let Some(Copy { to: to @ None, .. }) = &mut s.copy {
            let block = self.take_block()?;
            *to = Some(block);
            s.table.push(block);
        }
        let needed = s.len().saturating_add(more).div_ceil(BLOCK_TOKENS);
        while s.table.len() < needed {
            s.table.push(self.take_block()?);
        }
        Ok(())
    }

    /// Notes that a step has evaluated these tokens, for which there is room, and has done the copy that was due.
    pub fn commit(&mut self, s: &mut Sequence, tokens: &[u32]) {
        if let Some(copy) = s.copy.take() {
            self.tree.drop_user(copy.source);
        }
        s.tokens.extend_from_slice(tokens);
        debug_assert!(s.len() <= s.table.len() * BLOCK_TOKENS);
        while s.len() >= (s.shared.len() + 1) * BLOCK_TOKENS {
            let at = s.shared.len();
            let content = &s.tokens[at * BLOCK_TOKENS..(at + 1) * BLOCK_TOKENS];
            let (node, freed) = self.tree.insert(s.regime, s.shared.last().copied(), content, s.table[at]);
            self.free.extend(freed);
            self.tree.take_user(node);
            s.table[at] = self.tree.block(node);
            s.shared.push(node);
        }
    }

    /// Ends a sequence. What it evaluated stays in the cache for others, until its blocks are needed.
    pub fn finish(&mut self, mut s: Sequence) {
        let full = s.shared.len() * BLOCK_TOKENS;
        if let Some(copy) = s.copy.take() {
            // The copy never happened, so the tokens after the shared blocks are not there.
            self.tree.drop_user(copy.source);
            s.tokens.truncate(full);
        }
        let mut own = s.table.split_off(s.shared.len());
        if s.len() > full {
            let tail = own.remove(0);
            let (_, freed) = self.tree.insert(s.regime, s.shared.last().copied(), &s.tokens[full..], tail);
            own.extend(freed);
        }
        self.free.append(&mut own);
        for node in s.shared {
            self.tree.drop_user(node);
        }
    }

    /// The device has room for `capacity` blocks now.
    pub fn grown(&mut self, capacity: usize) {
        // Highest first: they are taken from the end.
        self.free.splice(0..0, (self.capacity as u32..capacity as u32).rev());
        self.capacity = self.capacity.max(capacity);
    }

    /// The device cannot hold more blocks than it does.
    pub fn cannot_grow(&mut self) {
        self.limit = self.capacity;
    }

    /// Blocks that the device has room for.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Blocks that it may have room for at most.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Blocks whose content nobody is using, but which may be found again.
    pub fn cached(&self) -> usize {
        self.tree.unused()
    }

    /// Blocks without content.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    fn take_block(&mut self) -> Result<u32, Shortage> {
        if let Some(block) = self.free.pop() {
            return Ok(block);
        }
        // Doubling keeps the cost of growing low where it moves what is there.
        let grow_to = |limit: usize| Shortage::Grow((2 * self.capacity).max(16).min(limit));
        if self.capacity < self.preferred.min(self.limit) {
            return Err(grow_to(self.preferred.min(self.limit)));
        }
        match self.tree.evict() {
            Some(block) => Ok(block),
            None if self.capacity < self.limit => Err(grow_to(self.limit)),
            None => Err(Shortage::Full),
        }
    }
}
