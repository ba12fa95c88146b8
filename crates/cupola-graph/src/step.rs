//! One run of a program on a ragged batch.

use crate::{BLOCK_TOKENS, GraphError};

/// Tokens to run, whose they are, and whose outputs are wanted.
#[derive(Clone, Debug)]
pub struct Step<'a> {
    /// Token ids, `[rows]`: the spans' tokens, one span after the other.
    pub tokens: &'a [u32],
    /// Which rows belong to which sequence, in row order. A sequence appears at most once.
    pub spans: &'a [Span<'a>],
    /// Rows whose outputs are wanted, ascending. May be empty: then the step only fills the caches.
    pub wanted: &'a [u32],
}

/// Consecutive tokens of one sequence within a step: a chunk of its prompt, or a single new token.
#[derive(Clone, Debug)]
pub struct Span<'a> {
    /// Rows of this span.
    pub rows: usize,
    /// Position in the sequence of the span's first token; all earlier tokens are in the cache.
    pub start: usize,
    /// The sequence's block table. It covers at least `start + rows` tokens.
    pub blocks: &'a [u32],
    /// Length by which a length-dependent RoPE chooses its frequencies: the whole prompt's for each chunk of a prompt
    /// (so that chunking does not change the result), otherwise `start + rows`.
    pub rope_length: usize,
}

impl Step<'_> {
    /// Number of tokens in the step.
    pub fn rows(&self) -> usize {
        self.tokens.len()
    }

    /// Checks everything that a backend may then rely on: spans cover the rows, tables cover the tokens and name
    /// blocks under `blocks`, token ids are under `vocab`, wanted rows exist and ascend.
    pub fn check(&self, vocab: usize, blocks: usize) -> Result<(), GraphError> {
        let fail = |m: String| Err(GraphError::Step(m));
        let covered = self.spans.iter().try_fold(0usize, |n, s| n.checked_add(s.rows));
        if covered != Some(self.rows()) {
            return fail(format!("spans cover {covered:?} rows, but there are {} tokens", self.rows()));
        }
        if let Some(t) = self.tokens.iter().find(|t| **t as usize >= vocab) {
            return fail(format!("token id {t} is outside the vocabulary of {vocab}"));
        }
        for s in self.spans {
            let Some(end) = s.start.checked_add(s.rows) else {
                return fail(format!("position {} + {} rows overflows", s.start, s.rows));
            };
            let needed = end.div_ceil(BLOCK_TOKENS);
            if s.blocks.len() < needed {
                return fail(format!("{end} tokens need {needed} cache blocks, the table has {}", s.blocks.len()));
            }
            if let Some(b) = s.blocks[..needed].iter().find(|b| **b as usize >= blocks) {
                return fail(format!("cache block {b} does not exist, there are {blocks}"));
            }
            if s.rope_length < end {
                return fail(format!("rope length {} is shorter than the {end} tokens of its sequence", s.rope_length));
            }
        }
        if !self.wanted.is_sorted_by(|a, b| a < b) || self.wanted.last().is_some_and(|r| *r as usize >= self.rows()) {
            return fail(format!("wanted rows must ascend and be under {}, got {:?}", self.rows(), self.wanted));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(tokens: &[u32], spans: &[Span], wanted: &[u32]) -> String {
        Step { tokens, spans, wanted }.check(10, 4).map_or_else(|e| e.to_string(), |()| "ok".into())
    }

    fn span(rows: usize, start: usize, blocks: &[u32]) -> Span<'_> {
        Span { rows, start, blocks, rope_length: start.saturating_add(rows) }
    }

    #[test]
    fn a_sound_step_passes() {
        assert_eq!(message(&[1, 2, 9], &[span(2, 0, &[0]), span(1, 63, &[1, 3])], &[1, 2]), "ok");
        assert_eq!(message(&[], &[], &[]), "ok");
    }

    #[test]
    fn every_broken_rule_is_named() {
        assert!(message(&[1], &[span(2, 0, &[0])], &[]).contains("spans cover"));
        assert!(message(&[10], &[span(1, 0, &[0])], &[]).contains("token id 10 is outside the vocabulary of 10"));
        assert!(message(&[1], &[span(1, 32, &[0])], &[]).contains("33 tokens need 2 cache blocks, the table has 1"));
        assert!(message(&[1], &[span(1, 0, &[4])], &[]).contains("cache block 4 does not exist"));
        assert!(message(&[1], &[span(1, usize::MAX, &[0])], &[]).contains("overflows"));
        assert!(message(&[1, 1], &[span(2, 0, &[0])], &[1, 1]).contains("must ascend"));
        assert!(message(&[1, 1], &[span(2, 0, &[0])], &[2]).contains("under 2"));
        let short = Span { rope_length: 1, ..span(2, 0, &[0]) };
        assert!(message(&[1, 1], &[short], &[]).contains("rope length 1"));
    }
}
