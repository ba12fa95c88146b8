//! How well a model foretells a text, and how far two ways of computing it are apart.

mod divergence;
mod likelihood;
mod windows;

pub use divergence::Divergence;
pub use likelihood::Likelihood;
pub use windows::{MIN_CONTEXT, Windows};

use crate::failure::{Failure, Result};
use crate::interrupt;
use cupola::Engine;
use std::slice::ChunksExact;

/// Memory for the logits of one engine.
const LOGITS_BYTES: usize = 32 << 20;

/// What was found on the windows so far.
#[derive(Clone, Debug, Default)]
pub struct Scores {
    /// Of the model.
    pub model: Likelihood,
    /// Of the model that it is compared with.
    pub base: Likelihood,
    /// From the base to the model.
    pub divergence: Divergence,
}

/// Scores a text, window by window. With a `base`, both engines evaluate the same tokens in turn, so that only few logits
/// are there at a time. `on_window` hears the scores after each window.
pub fn score(
    model: &Engine,
    base: Option<&Engine>,
    windows: &Windows<'_>,
    mut on_window: impl FnMut(&Scores),
) -> Result<Scores> {
    let vocab = model.vocab();
    let rows = (LOGITS_BYTES / size_of::<f32>() / vocab.max(1)).clamp(16, 512);
    let mut scores = Scores::default();
    for (tokens, scored) in windows.iter() {
        let mut of_model = model.evaluation(&tokens)?;
        let mut of_base = base.map(|engine| engine.evaluation(&tokens)).transpose()?;
        of_model.skip(scored.start)?;
        if let Some(of_base) = &mut of_base {
            of_base.skip(scored.start)?;
        }
        // The token after each row is what the row foretells.
        for next in tokens[scored.start + 1..=scored.end].chunks(rows) {
            interrupt::check()?;
            let logits = of_model.logits(next.len())?;
            let base_logits = of_base.as_mut().map(|e| e.logits(next.len())).transpose()?;
            scores.add(next, logits.chunks_exact(vocab), base_logits.as_ref().map(|l| l.chunks_exact(vocab)))?;
        }
        on_window(&scores);
    }
    Ok(scores)
}

impl Scores {
    fn add(&mut self, next: &[u32], model: ChunksExact<'_, f32>, base: Option<ChunksExact<'_, f32>>) -> Result<()> {
        let mut base = base;
        for (token, logits) in next.iter().zip(model) {
            let own = likelihood::log_probability(logits, *token);
            self.model.add(checked("model", own)?);
            if let Some(base_logits) = base.as_mut().and_then(Iterator::next) {
                let other = likelihood::log_probability(base_logits, *token);
                self.base.add(checked("base", other)?);
                self.divergence.add(base_logits, logits, own.exp() - other.exp());
            }
        }
        Ok(())
    }
}

/// A single token of probability 0 or without a probability would make every mean useless.
fn checked(whose: &str, log_probability: f64) -> Result<f64> {
    match log_probability.is_finite() {
        true => Ok(log_probability),
        false => Err(Failure::new(format!(
            "the {whose} gives a token of the text the log-probability {log_probability}: its weights or its computation \
             are broken"
        ))),
    }
}

#[cfg(test)]
mod tests;
