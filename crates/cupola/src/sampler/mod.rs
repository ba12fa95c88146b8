//! From logits to a token.
//!
//! The chain, in its order. Each stage sees what the one before left:
//!
//! 1. **logit bias**: added to the logit of its token. A plain addition: with logits of ordinary size, -100 bans and
//!    +100 forces.
//! 2. **repetition penalty**: once for every distinct token of prompt and reply (or of their last
//!    [`repetition_window`](Sampling::repetition_window) tokens), a positive logit is divided by it and a negative one
//!    multiplied.
//! 3. **presence and frequency penalty**: over the reply alone, subtracted once per token that occurs, and once per
//!    occurrence.
//! 4. **temperature**: 0 takes the best token, and no later stage matters. Otherwise probabilities are the softmax of
//!    `logits / temperature`.
//! 5. **top-k**: keeps the `k` best.
//! 6. **top-p**: of those, keeps the smallest number of best ones whose probabilities (renormalised) add up to `p`.
//! 7. **min-p**: of those, keeps the ones with at least `min_p` times the probability of the best.
//! 8. **draw**: walks the remaining tokens in the order of their ids with one number of the seeded [`Rng`].
//!
//! Stages 5 to 7 always keep the best token. Of equal tokens, the lower id is the better one.

mod filter;
mod logprobs;
mod penalty;

pub use filter::Candidate;
pub use logprobs::{LOGPROB_FLOOR, TokenLogprob, logprobs, top_logprobs};

use crate::Rng;
use std::collections::BTreeMap;

/// How tokens are chosen. The default draws from the model's own distribution: temperature 1, everything else off.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Added to the logits of these tokens.
    pub logit_bias: BTreeMap<u32, f32>,
    /// Above 1 discourages tokens that have occurred, prompt included. 1: off.
    pub repetition_penalty: f32,
    /// How many of the last tokens the repetition penalty looks at; absent: all.
    pub repetition_window: Option<usize>,
    /// Subtracted from tokens that the reply contains. 0: off.
    pub presence_penalty: f32,
    /// Subtracted from tokens for each time that the reply contains them. 0: off.
    pub frequency_penalty: f32,
    /// Under 1 sharpens the distribution, above 1 flattens it. 0: always the best token.
    pub temperature: f32,
    /// How many of the best tokens are kept. 0: all.
    pub top_k: usize,
    /// Probability that the kept tokens have to reach together. 1: off. 0: the best token alone.
    pub top_p: f32,
    /// Probability that a token needs, as a share of the best token's. 0: off.
    pub min_p: f32,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling {
            logit_bias: BTreeMap::new(),
            repetition_penalty: 1.0,
            repetition_window: None,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
        }
    }
}

/// A token cannot be chosen this way.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SamplingError {
    /// A setting outside its range.
    #[error("{setting} is {found}: it must be {expected}")]
    Range {
        /// The field of [`Sampling`].
        setting: &'static str,
        /// In words.
        expected: &'static str,
        /// What came.
        found: f32,
    },
    /// A bias for a token that does not exist.
    #[error("logit bias for token {token}: the model has the tokens 0 to {}", vocab.saturating_sub(1))]
    BiasToken {
        /// The id.
        token: u32,
        /// Tokens of the model.
        vocab: usize,
    },
    /// A bias that is infinite or not a number.
    #[error("logit bias for token {token} is {found}: it must be a finite number (-100 bans a token)")]
    BiasValue {
        /// The id.
        token: u32,
        /// What came.
        found: f32,
    },
    /// The model gave no usable logits.
    #[error(
        "the logit of token {token} is {found}: the model computed something that is not a finite number. \
         Its file may be damaged, or its values too large for the precision in use; try the exact mode"
    )]
    NotFinite {
        /// The id.
        token: usize,
        /// The logit.
        found: f32,
    },
    /// Every token has a logit of minus infinity.
    #[error("no token is left to choose from: the model and the logit bias rule out all {vocab} of them")]
    NoneLeft {
        /// Tokens of the model.
        vocab: usize,
    },
    /// Logits for another number of tokens than the sampler was made for.
    #[error("the sampler is for {expected} tokens, but there are {found} logits")]
    Length {
        /// Tokens of the model.
        expected: usize,
        /// Logits that came.
        found: usize,
    },
}

impl Sampling {
    /// Always the best token.
    pub fn greedy() -> Sampling {
        Sampling { temperature: 0.0, ..Sampling::default() }
    }

    /// Checks every setting for a model of `vocab` tokens.
    pub fn check(&self, vocab: usize) -> Result<(), SamplingError> {
        let range = |setting, found: f32, ok: bool, expected| {
            if found.is_finite() && ok { Ok(()) } else { Err(SamplingError::Range { setting, expected, found }) }
        };
        let (repetition, temperature) = (self.repetition_penalty, self.temperature);
        range("repetition_penalty", repetition, repetition > 0.0, "a finite number above 0")?;
        range("presence_penalty", self.presence_penalty, true, "a finite number")?;
        range("frequency_penalty", self.frequency_penalty, true, "a finite number")?;
        range("temperature", temperature, temperature >= 0.0, "a finite number from 0 on")?;
        range("top_p", self.top_p, (0.0..=1.0).contains(&self.top_p), "a number from 0 to 1")?;
        range("min_p", self.min_p, (0.0..=1.0).contains(&self.min_p), "a number from 0 to 1")?;
        for (&token, &bias) in &self.logit_bias {
            if token as usize >= vocab {
                return Err(SamplingError::BiasToken { token, vocab });
            }
            if !bias.is_finite() {
                return Err(SamplingError::BiasValue { token, found: bias });
            }
        }
        Ok(())
    }
}

/// Chooses the tokens of one sequence.
#[derive(Clone, Debug)]
pub struct Sampler {
    sampling: Sampling,
    rng: Rng,
    vocab: usize,
    /// Prompt and reply.
    history: Vec<u32>,
    /// Occurrences in the reply.
    counts: BTreeMap<u32, u32>,
}

impl Sampler {
    /// A sampler for a model of `vocab` tokens.
    pub fn new(sampling: Sampling, seed: u64, vocab: usize) -> Result<Sampler, SamplingError> {
        sampling.check(vocab)?;
        Ok(Sampler { sampling, rng: Rng::new(seed), vocab, history: vec![], counts: BTreeMap::new() })
    }

    /// The settings.
    pub fn sampling(&self) -> &Sampling {
        &self.sampling
    }

    /// Changes the settings; the random stream goes on. On an error nothing has changed.
    pub fn set_sampling(&mut self, sampling: Sampling) -> Result<(), SamplingError> {
        sampling.check(self.vocab)?;
        self.sampling = sampling;
        Ok(())
    }

    /// Starts a reply to a prompt. The random stream goes on where it was.
    pub fn begin(&mut self, prompt: &[u32]) {
        self.history.clear();
        self.history.extend_from_slice(prompt);
        self.counts.clear();
    }

    /// Chooses the next token and remembers it. `logits` holds what the penalties made of them afterwards.
    pub fn sample(&mut self, logits: &mut [f32]) -> Result<u32, SamplingError> {
        self.adjust(logits)?;
        let token = if self.sampling.temperature == 0.0 {
            // Some logit is finite, or `adjust` had failed.
            filter::best(logits)
        } else {
            let kept = self.kept(logits);
            filter::draw(&kept, self.rng.next_f64())
        };
        self.history.push(token);
        *self.counts.entry(token).or_insert(0) += 1;
        Ok(token)
    }

    /// What [`Sampler::sample`] would draw from: the tokens that all stages keep, in the order of their ids, with
    /// probabilities that add up to 1.
    pub fn distribution(&self, logits: &mut [f32]) -> Result<Vec<Candidate>, SamplingError> {
        self.adjust(logits)?;
        if self.sampling.temperature == 0.0 {
            return Ok(vec![Candidate { token: filter::best(logits), weight: 1.0 }]);
        }
        let mut kept = self.kept(logits);
        let total: f64 = kept.iter().map(|c| f64::from(c.weight)).sum();
        for c in &mut kept {
            c.weight = (f64::from(c.weight) / total) as f32;
        }
        Ok(kept)
    }

    /// Stages 1 to 3, and a check that something can be chosen.
    fn adjust(&self, logits: &mut [f32]) -> Result<(), SamplingError> {
        let Sampling { logit_bias, repetition_penalty, repetition_window, .. } = &self.sampling;
        if logits.len() != self.vocab {
            return Err(SamplingError::Length { expected: self.vocab, found: logits.len() });
        }
        // Before anything is added: what is not finite now came from the model.
        if let Some((token, &found)) = logits.iter().enumerate().find(|(_, l)| l.is_nan() || **l == f32::INFINITY) {
            return Err(SamplingError::NotFinite { token, found });
        }
        for (&token, &bias) in logit_bias {
            logits[token as usize] += bias;
        }
        let window = repetition_window.unwrap_or(usize::MAX);
        let seen = &self.history[self.history.len().saturating_sub(window)..];
        penalty::repetition(logits, seen, *repetition_penalty);
        penalty::occurrence(logits, &self.counts, self.sampling.presence_penalty, self.sampling.frequency_penalty);
        // Extreme settings reward without bound: the largest number is reward enough.
        logits.iter_mut().for_each(|l| *l = l.min(f32::MAX));
        if logits.iter().all(|l| *l == f32::NEG_INFINITY) {
            return Err(SamplingError::NoneLeft { vocab: self.vocab });
        }
        Ok(())
    }

    /// Stages 4 to 7.
    fn kept(&self, logits: &[f32]) -> Vec<Candidate> {
        let s = &self.sampling;
        let mut kept = filter::top_k(logits, s.top_k);
        filter::softmax(&mut kept, s.temperature);
        filter::top_p(&mut kept, s.top_p);
        filter::min_p(&mut kept, s.min_p);
        kept.sort_unstable_by_key(|c| c.token);
        kept
    }
}

#[cfg(test)]
mod tests;
