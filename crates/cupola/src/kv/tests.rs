//! Block ownership, with a stand-in for the device that remembers which token is in which slot.

use super::*;
use crate::Rng;
use std::collections::{HashMap, HashSet};

/// What a device would hold: the token in each slot.
#[derive(Default)]
struct Contents(HashMap<(u32, usize), u32>);

impl Contents {
    fn copy(&mut self, from: u32, to: u32) {
        for slot in 0..BLOCK_TOKENS {
            if let Some(token) = self.0.get(&(from, slot)).copied() {
                self.0.insert((to, slot), token);
            }
        }
    }

    fn write(&mut self, table: &[u32], at: usize, token: u32) {
        self.0.insert((table[at / BLOCK_TOKENS], at % BLOCK_TOKENS), token);
    }

    fn read(&self, table: &[u32], length: usize) -> Vec<u32> {
        (0..length).map(|at| self.0[&(table[at / BLOCK_TOKENS], at % BLOCK_TOKENS)]).collect()
    }
}

/// A cache that always gets the room that it asks for.
struct World {
    cache: KvCache,
    contents: Contents,
}

impl World {
    fn new(preferred: usize, limit: usize) -> World {
        World { cache: KvCache::new(preferred, limit), contents: Contents::default() }
    }

    fn extend(&mut self, s: &mut Sequence, more: usize) -> Result<(), Shortage> {
        loop {
            match self.cache.extend(s, more) {
                Err(Shortage::Grow(blocks)) => {
                    assert!(blocks > self.cache.capacity() && blocks <= self.cache.limit());
                    self.cache.grown(blocks);
                }
                other => return other,
            }
        }
    }

    /// Evaluates tokens, as a step would.
    fn step(&mut self, s: &mut Sequence, tokens: &[u32]) {
        self.extend(s, tokens.len()).unwrap();
        if let Some((from, to)) = s.copy() {
            self.contents.copy(from, to);
        }
        for (i, token) in tokens.iter().enumerate() {
            self.contents.write(s.table(), s.len() + i, *token);
        }
        self.cache.commit(s, tokens);
        assert_eq!(self.contents.read(s.table(), s.len()), s.tokens);
    }

    /// Evaluates a whole prompt and ends the sequence; gives how many tokens were in the cache.
    fn prompt(&mut self, tokens: &[u32]) -> usize {
        let mut s = self.cache.start(tokens, 0);
        let cached = s.len();
        self.step(&mut s, &tokens[cached..]);
        self.cache.finish(s);
        cached
    }

    /// Each block is in one place: free, cached, or in the table of someone.
    fn check(&self, sequences: &[Sequence]) {
        let own = sequences.iter().flat_map(|s| &s.table[s.shared.len()..]).copied();
        let mut seen = HashSet::new();
        for block in self.cache.free.iter().copied().chain(self.cache.tree.all_blocks()).chain(own) {
            assert!(seen.insert(block), "block {block} is in two places");
        }
        assert_eq!(seen.len(), self.cache.capacity(), "a block is lost");
    }
}

fn tokens(n: usize) -> Vec<u32> {
    (0..n as u32).collect()
}

#[test]
fn trap_29_a_prompt_in_the_cache_is_found_but_for_its_last_token() {
    for n in [1, 2, 31, 32, 33, 64, 65, 100] {
        let mut w = World::new(64, 64);
        assert_eq!(w.prompt(&tokens(n)), 0, "{n}");
        assert_eq!(w.prompt(&tokens(n)), n - 1, "{n}: the same again");
        assert_eq!(w.prompt(&tokens(n / 2 + 1)), n / 2, "{n}: its first half");
        assert_eq!(w.prompt(&tokens(n + 1)), n, "{n}: one more");
        w.check(&[]);
    }
}

#[test]
fn a_changed_prompt_shares_what_comes_before_the_change() {
    let mut w = World::new(64, 64);
    w.prompt(&tokens(100));
    for at in [0, 1, 31, 32, 33, 64, 98] {
        let mut changed = tokens(100);
        changed[at] = 999;
        assert_eq!(w.cache.start(&changed, 0).len(), at, "changed at {at}");
        // That sequence was dropped without being ended; start over.
        w = World::new(64, 64);
        w.prompt(&tokens(100));
        assert_eq!(w.prompt(&changed), at, "changed at {at}");
        // The original is still whole.
        assert_eq!(w.prompt(&tokens(100)), 99, "changed at {at}");
        w.check(&[]);
    }
}

#[test]
fn sequences_share_full_blocks_and_copy_unfinished_ones() {
    let mut w = World::new(64, 64);
    w.prompt(&tokens(40));
    let mut a = w.cache.start(&tokens(60), 0);
    let mut b = w.cache.start(&tokens(60), 0);
    // One takes the unfinished block over, so that the other finds only the full one.
    assert_eq!((a.len(), b.len()), (40, 32));
    w.step(&mut a, &(40..60).collect::<Vec<_>>());
    w.step(&mut b, &(32..60).collect::<Vec<_>>());
    assert_eq!(a.table()[0], b.table()[0]);
    assert_ne!(a.table()[1], b.table()[1]);
    // Both fill their second block alike: from then on it is shared too.
    w.step(&mut a, &[60, 61, 62, 63]);
    w.step(&mut b, &[60, 61, 62, 63]);
    assert_eq!(a.table(), b.table());
    // They go apart.
    w.step(&mut a, &[1]);
    w.step(&mut b, &[2]);
    assert_ne!(a.table()[2], b.table()[2]);
    w.check(&[a, b]);
}

#[test]
fn a_block_in_use_by_another_is_copied_before_it_is_written_to() {
    let mut w = World::new(64, 64);
    w.prompt(&tokens(64));
    let long = w.cache.start(&tokens(70), 0);
    assert_eq!(long.len(), 64);
    let mut other = w.cache.start(&[&tokens(50)[..], &[7, 7, 7]].concat(), 0);
    assert_eq!(other.len(), 50);
    assert_eq!(other.copy(), None, "no block for the copy yet");
    w.step(&mut other, &[7, 7]);
    assert_eq!(w.contents.read(long.table(), 64), tokens(64));
    w.check(&[long, other]);
}

#[test]
fn the_least_recently_used_goes_first_and_from_its_end() {
    let mut w = World::new(4, 4);
    let (a, b) = (tokens(64), (1000..1064).collect::<Vec<u32>>());
    w.prompt(&a);
    w.prompt(&b);
    assert_eq!((w.cache.free(), w.cache.cached()), (0, 4));
    // Touch a, then ask for one block: the end of b goes.
    assert_eq!(w.prompt(&a), 63);
    assert_eq!(w.prompt(&[5; 10]), 0);
    assert_eq!(w.cache.start(&b, 0).len(), 32);
    w.check(&[]);
}

#[test]
fn blocks_that_are_in_use_are_never_taken() {
    let mut w = World::new(2, 3);
    let mut a = w.cache.start(&tokens(64), 0);
    w.step(&mut a, &tokens(64));
    let mut b = w.cache.start(&[9; 64], 0);
    w.step(&mut b, &[9; 32]);
    assert_eq!(w.extend(&mut b, 1), Err(Shortage::Full));
    assert_eq!(w.extend(&mut b, 1), Err(Shortage::Full));
    assert_eq!(w.contents.read(a.table(), 64), tokens(64));
    w.cache.finish(a);
    assert_eq!(w.extend(&mut b, 1), Ok(()));
    w.check(&[b]);
}

#[test]
fn room_is_asked_for_in_growing_portions_and_cached_tokens_go_before_the_limit_is_used() {
    let mut cache = KvCache::new(40, 100);
    let mut s = Sequence::new(0);
    assert_eq!(cache.extend(&mut s, 1), Err(Shortage::Grow(16)));
    cache.grown(16);
    assert_eq!(cache.extend(&mut s, 16 * BLOCK_TOKENS + 1), Err(Shortage::Grow(32)));
    cache.grown(32);
    assert_eq!(cache.extend(&mut s, 32 * BLOCK_TOKENS + 1), Err(Shortage::Grow(40)));
    cache.grown(40);
    assert_eq!(cache.extend(&mut s, 40 * BLOCK_TOKENS), Ok(()));
    cache.commit(&mut s, &tokens(40 * BLOCK_TOKENS));
    cache.finish(s);
    assert_eq!(cache.cached(), 40);
    // All are cached: they are used before the cache grows past what it prefers.
    let mut s = Sequence::new(0);
    assert_eq!(cache.extend(&mut s, 40 * BLOCK_TOKENS), Ok(()));
    assert_eq!(cache.cached(), 0);
    assert_eq!(cache.extend(&mut s, 40 * BLOCK_TOKENS + 1), Err(Shortage::Grow(80)));
    cache.cannot_grow();
    assert_eq!(cache.extend(&mut s, 40 * BLOCK_TOKENS + 1), Err(Shortage::Full));
}

#[test]
fn a_step_that_failed_leaves_nothing_behind() {
    let mut w = World::new(8, 8);
    w.prompt(&tokens(40));
    // A copy that never happened: what it would have held must not be offered to others.
    let mut s = w.cache.start(&tokens(20), 0);
    assert_eq!(s.len(), 19);
    w.extend(&mut s, 1).unwrap();
    assert!(s.copy().is_some());
    w.cache.finish(s);
    w.check(&[]);
    assert_eq!(w.prompt(&tokens(40)), 39);
}

#[test]
fn other_rotary_frequencies_share_nothing() {
    let mut w = World::new(8, 8);
    w.prompt(&tokens(40));
    assert_eq!(w.cache.start(&tokens(40), 1).len(), 0);
}

/// Many sequences with common beginnings, at random; contents and ownership are checked all along.
#[test]
fn random_use_keeps_every_block_and_every_token() {
    for seed in 0..30 {
        let mut rng = Rng::new(seed);
        let mut random = |n: u64| (rng.next_u64() % n) as usize;
        let mut w = World::new(12, 20);
        let mut running: Vec<(Sequence, Vec<u32>)> = vec![];
        for _ in 0..400 {
            if running.len() < 3 && random(2) == 0 {
                // Few different tokens, so that beginnings coincide.
                let n = 1 + random(90);
                let every = 20 + random(30);
                let prompt: Vec<u32> =
                    (0..n).map(|i| if i % every == every - 1 { random(2) as u32 } else { 0 }).collect();
                let s = w.cache.start(&prompt, 0);
                assert!(s.len() < prompt.len());
                running.push((s, prompt));
            } else if !running.is_empty() {
                let at = random(running.len() as u64);
                let (mut s, mut goal) = running.swap_remove(at);
                if s.len() == goal.len() {
                    goal.push(random(2) as u32);
                }
                let n = (goal.len() - s.len()).min(1 + random(40));
                let end = random(4) == 0 || w.extend(&mut s, n).is_err();
                if end {
                    w.cache.finish(s);
                } else {
                    let next = goal[s.len()..s.len() + n].to_vec();
                    w.step(&mut s, &next);
                    running.push((s, goal));
                }
            }
            for (s, _) in running.iter().filter(|(s, _)| s.copy.is_none()) {
                assert_eq!(w.contents.read(s.table(), s.len()), s.tokens);
            }
            let (sequences, goals): (Vec<_>, Vec<_>) = running.into_iter().unzip();
            w.check(&sequences);
            running = sequences.into_iter().zip(goals).collect();
        }
    }
}
