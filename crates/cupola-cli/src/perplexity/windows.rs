//! Which tokens of a text are scored, and what the model sees before them.
//!
//! The windows are those of llama.cpp's `llama-perplexity`, so that figures can be compared. Without a stride, windows of
//! `context` tokens follow each other, and in each the second half but its first token is scored: every scored token has
//! at least half a context before it. With a stride, windows of `context + stride / 2` tokens begin every `stride`
//! tokens, and in each the last `stride` are scored. Where the model wants begin-of-text tokens, they take the place of a
//! window's first tokens.

use std::ops::Range;

/// The windows of a text.
#[derive(Clone, Debug)]
pub struct Windows<'t> {
    tokens: &'t [u32],
    /// What each window begins with.
    prefix: &'t [u32],
    /// Tokens of a window.
    length: usize,
    /// Tokens from the beginning of one window to that of the next.
    step: usize,
    /// Rows of a window whose logits are scored, against the token that follows.
    scored: Range<usize>,
    count: usize,
}

/// Tokens of context at least: there is room for the tokens that begin a text, and something left to score.
pub const MIN_CONTEXT: usize = 8;

impl<'t> Windows<'t> {
    /// The windows of `tokens`, at most `limit`. `context` is at least [`MIN_CONTEXT`], `stride` from 1 to `context`.
    /// Without a whole window there are none.
    pub fn new(
        tokens: &'t [u32],
        prefix: &'t [u32],
        context: usize,
        stride: Option<usize>,
        limit: Option<usize>,
    ) -> Windows<'t> {
        let length = Windows::length_for(context, stride);
        let step = stride.unwrap_or(context);
        let scored = stride.map_or(context / 2, |s| length - s - 1)..length - 1;
        let count = match (tokens.len().checked_sub(length), stride) {
            (None, _) => 0,
            (Some(_), None) => tokens.len() / length,
            (Some(rest), Some(stride)) => rest.div_ceil(stride).max(1),
        };
        Windows { tokens, prefix, length, step, scored, count: limit.map_or(count, |n| n.min(count)) }
    }

    /// Tokens that a window has.
    pub fn length_for(context: usize, stride: Option<usize>) -> usize {
        context + stride.unwrap_or(0) / 2
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Each window's tokens and its rows that are scored.
    pub fn iter(&self) -> impl Iterator<Item = (Vec<u32>, Range<usize>)> {
        (0..self.count).map(|i| {
            let mut window = self.tokens[i * self.step..][..self.length].to_vec();
            for (token, prefix) in window.iter_mut().zip(self.prefix) {
                *token = *prefix;
            }
            (window, self.scored.clone())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// First token, last token, and the tokens that are scored.
    fn seen(n: u32, stride: Option<usize>) -> Vec<(u32, u32, Vec<u32>)> {
        let tokens: Vec<u32> = (0..n).collect();
        let windows = Windows::new(&tokens, &[], 8, stride, None);
        let one = |(t, s): (Vec<u32>, Range<usize>)| (t[0], *t.last().unwrap(), t[s.start + 1..=s.end].to_vec());
        windows.iter().map(one).collect()
    }

    /// 8 tokens of context: 3 of the last 4 are scored.
    #[test]
    fn windows_follow_each_other() {
        assert_eq!(seen(7, None), []);
        assert_eq!(seen(8, None), [(0, 7, vec![5, 6, 7])]);
        assert_eq!(seen(23, None), [(0, 7, vec![5, 6, 7]), (8, 15, vec![13, 14, 15])]);
    }

    /// A stride of 3: windows of 9, the last 3 are scored, none twice.
    #[test]
    fn windows_overlap() {
        assert_eq!(seen(8, Some(3)), []);
        assert_eq!(seen(9, Some(3)), [(0, 8, vec![6, 7, 8])]);
        assert_eq!(seen(15, Some(3)), [(0, 8, vec![6, 7, 8]), (3, 11, vec![9, 10, 11])]);
        assert_eq!(seen(16, Some(3)).last().unwrap(), &(6, 14, vec![12, 13, 14]));
        for stride in 1..=8 {
            for n in 0..60 {
                for (first, last, scored) in seen(n, Some(stride)) {
                    assert_eq!(scored.len(), stride);
                    assert!(last < n && last - first == 7 + stride as u32 / 2 && scored[0] > first);
                }
            }
        }
    }

    #[test]
    fn a_prefix_replaces_and_a_limit_cuts() {
        let tokens: Vec<u32> = (0..40).collect();
        let windows: Vec<_> = Windows::new(&tokens, &[99], 8, None, Some(2)).iter().map(|w| w.0).collect();
        assert_eq!(windows, [[99, 1, 2, 3, 4, 5, 6, 7], [99, 9, 10, 11, 12, 13, 14, 15]]);
    }
}
