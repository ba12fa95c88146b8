//! Replies to prompts.

use crate::engine::ActiveSequence;
use crate::rng::fresh_seed;
use crate::sampler::{Sampler, Sampling, TokenLogprob, top_logprobs};
use crate::scheduler::Wanted;
use crate::stop::StopStrings;
use crate::text::Chat;
use crate::{CancelToken, Engine, EngineError};
use cupola_formats::tokenizer::TokenStream;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// What holds for all replies of a session.
#[derive(Clone, Debug, Default)]
pub struct SessionOptions {
    /// How tokens are chosen. [`Engine::recommended_sampling`] is what the model's makers would set.
    pub sampling: Sampling,
    /// Start of the random stream; absent: a different one each time. The stream goes on from reply to reply.
    pub seed: Option<u64>,
    /// Texts that end a reply. They are not shown.
    pub stop: Vec<String>,
    /// Tokens that end a reply, beside those that the model names. They are not shown.
    pub stop_tokens: Vec<u32>,
    /// Goes on after the tokens with which the model ends a reply.
    pub ignore_eos: bool,
    /// Shows special tokens as text.
    pub show_special: bool,
}

/// What holds for one reply.
#[derive(Clone, Debug, Default)]
pub struct GenerateOptions {
    /// Tokens at most. Absent: until the context is full. 0: the prompt is evaluated, so that it is in the cache, and
    /// that is all.
    pub max_tokens: Option<usize>,
    /// Log-probabilities with each token: its own, and those of so many of the most likely ones.
    pub logprobs: Option<usize>,
    /// Stops the reply from another thread.
    pub cancel: CancelToken,
}

/// What to reply to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// A text to continue, see [`Text::encode_prompt`](crate::Text::encode_prompt).
    Text(String),
    /// Tokens to continue, as they are.
    Tokens(Vec<u32>),
}

impl From<&str> for Prompt {
    fn from(text: &str) -> Prompt {
        Prompt::Text(text.into())
    }
}

impl From<String> for Prompt {
    fn from(text: String) -> Prompt {
        Prompt::Text(text)
    }
}

impl From<&[u32]> for Prompt {
    fn from(tokens: &[u32]) -> Prompt {
        Prompt::Tokens(tokens.into())
    }
}

impl From<Vec<u32>> for Prompt {
    fn from(tokens: Vec<u32>) -> Prompt {
        Prompt::Tokens(tokens)
    }
}

/// What happens while a reply is made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event<'a> {
    /// So much of the prompt has been evaluated, what was in the cache included.
    Prompt {
        /// Tokens that are done.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// A token has been chosen. Tokens that end the reply are not reported.
    Token {
        /// Its id.
        token: u32,
        /// If [`GenerateOptions::logprobs`] asks for it.
        logprob: Option<&'a TokenLogprob>,
    },
    /// Text has become certain: whole characters, of which no stop string can take anything back. Comes after the token
    /// that completed it, or after the last.
    Text(&'a str),
}

/// Why a reply ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended it, or a stop token.
    Stop,
    /// A stop string.
    StopString,
    /// [`GenerateOptions::max_tokens`].
    Length,
    /// Prompt and reply fill the context. Nothing is dropped to go on.
    ContextFull,
    /// A [`CancelToken`], or the callback.
    Cancelled,
}

/// A reply.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    /// The text, as the events gave it. Empty for models without a tokenizer.
    pub text: String,
    /// The tokens. With [`FinishReason::StopString`] they include those of the stop string.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub finish: FinishReason,
    /// Counts and times.
    pub usage: Usage,
}

/// What a reply took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of these, how many were in the cache: at most all but one.
    pub cached_tokens: usize,
    /// Tokens of the reply, without the one that ended it.
    pub reply_tokens: usize,
    /// Until the prompt was evaluated.
    pub prompt_time: Duration,
    /// From then until the end.
    pub reply_time: Duration,
}

/// One conversation: its settings and its random stream. Between replies it occupies nothing of the cache, yet finds
/// there what it, or another session, has evaluated before, as long as the space was not needed for something else.
#[derive(Debug)]
pub struct Session {
    engine: Engine,
    options: SessionOptions,
    sampler: Sampler,
    seed: u64,
    tokens: Vec<u32>,
}

impl Session {
    pub(crate) fn new(engine: Engine, options: SessionOptions) -> Result<Session, EngineError> {
        check(&engine, &options)?;
        let seed = options.seed.unwrap_or_else(fresh_seed);
        let sampler = Sampler::new(options.sampling.clone(), seed, engine.vocab())?;
        Ok(Session { engine, options, sampler, seed, tokens: vec![] })
    }

    /// The model.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The options in force.
    pub fn options(&self) -> &SessionOptions {
        &self.options
    }

    /// Changes the options. A new seed starts a new random stream; without one the stream goes on. On an error nothing
    /// has changed.
    pub fn set_options(&mut self, options: SessionOptions) -> Result<(), EngineError> {
        check(&self.engine, &options)?;
        if let Some(seed) = options.seed.filter(|_| options.seed != self.options.seed) {
            self.seed = seed;
            self.sampler = Sampler::new(options.sampling.clone(), seed, self.engine.vocab())?;
        } else {
            self.sampler.set_sampling(options.sampling.clone())?;
        }
        self.options = options;
        Ok(())
    }

    /// The seed in use, whoever chose it.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Prompt and reply of the last call.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Continues a conversation: brings it into the form that the model's chat template gives it, and replies. The whole
    /// conversation is given each time; of what is as before, nothing is evaluated again.
    pub fn chat(
        &mut self,
        chat: &Chat,
        options: &GenerateOptions,
        on_event: impl FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<Reply, EngineError> {
        let tokens = self.engine.chat_tokens(chat)?;
        let engine = self.engine.clone();
        let stream = engine.tokenizer()?.stream(!self.options.show_special);
        self.reply(tokens, Some(stream), options, on_event)
    }

    /// Continues a prompt.
    pub fn generate(
        &mut self,
        prompt: impl Into<Prompt>,
        options: &GenerateOptions,
        on_event: impl FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<Reply, EngineError> {
        let tokens = match prompt.into() {
            Prompt::Text(text) => self.engine.text()?.encode_prompt(&text)?,
            Prompt::Tokens(tokens) => tokens,
        };
        let engine = self.engine.clone();
        let stream = engine.tokenizer().ok().map(|t| t.stream_continuing(!self.options.show_special));
        self.reply(tokens, stream, options, on_event)
    }

    fn reply(
        &mut self,
        prompt: Vec<u32>,
        stream: Option<TokenStream<'_>>,
        options: &GenerateOptions,
        on_event: impl FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<Reply, EngineError> {
        self.engine.check_prompt(&prompt)?;
        self.sampler.begin(&prompt);
        self.tokens = prompt;
        let mut output = Output::new(stream, self.options.stop.clone(), on_event);
        let mut usage = Usage { prompt_tokens: self.tokens.len(), ..Usage::default() };
        let started = Instant::now();
        let engine = self.engine.clone();
        let mut sequence = engine.begin(&self.tokens);
        usage.cached_tokens = sequence.len();

        let total = self.tokens.len();
        let logits = sequence.evaluate(&self.tokens, total, Wanted::Last, &options.cancel, |done| {
            (output.on_event)(Event::Prompt { done, total })
        })?;
        usage.prompt_time = started.elapsed();
        let finish = match logits {
            Some(logits) => self.continue_from(logits, &mut sequence, options, &mut output)?,
            None => FinishReason::Cancelled,
        };
        let text = output.finish();
        usage.reply_tokens = self.tokens.len() - total;
        usage.reply_time = started.elapsed() - usage.prompt_time;
        Ok(Reply { text, tokens: self.tokens[total..].to_vec(), finish, usage })
    }

    /// Chooses token after token, beginning with these logits.
    fn continue_from(
        &mut self,
        mut logits: Vec<f32>,
        sequence: &mut ActiveSequence<'_>,
        options: &GenerateOptions,
        output: &mut Output<'_, impl FnMut(Event<'_>) -> ControlFlow<()>>,
    ) -> Result<FinishReason, EngineError> {
        let context = self.engine.context();
        let mut left = options.max_tokens.unwrap_or(usize::MAX);
        loop {
            if left == 0 {
                return Ok(FinishReason::Length);
            }
            if self.tokens.len() >= context {
                return Ok(FinishReason::ContextFull);
            }
            // Log-probabilities are the model's own, before the sampler changes the logits.
            let plain = options.logprobs.map(|_| logits.clone());
            let token = self.sampler.sample(&mut logits)?;
            if self.is_stop(token) {
                return Ok(FinishReason::Stop);
            }
            self.tokens.push(token);
            left -= 1;
            let logprob = plain.zip(options.logprobs).and_then(|(logits, n)| top_logprobs(&logits, token, n));
            let flow = output.token(token, logprob.as_ref());
            if output.stop.stopped() {
                return Ok(FinishReason::StopString);
            }
            if flow.is_break() || options.cancel.is_cancelled() {
                return Ok(FinishReason::Cancelled);
            }
            if left == 0 || self.tokens.len() >= context {
                continue;
            }
            let proceed = |_| ControlFlow::Continue(());
            match sequence.evaluate(&self.tokens, self.tokens.len(), Wanted::Last, &options.cancel, proceed)? {
                Some(next) => logits = next,
                None => return Ok(FinishReason::Cancelled),
            }
        }
    }

    fn is_stop(&self, token: u32) -> bool {
        let named_by_model = !self.options.ignore_eos && self.engine.stop_tokens().contains(&token);
        named_by_model || self.options.stop_tokens.contains(&token)
    }
}

/// Fails for options that cannot work with this model.
fn check(engine: &Engine, options: &SessionOptions) -> Result<(), EngineError> {
    options.sampling.check(engine.vocab())?;
    engine.check_tokens("stop token", &options.stop_tokens, engine.vocab())?;
    if options.stop.iter().any(String::is_empty) {
        return Err(EngineError::EmptyStopString);
    }
    if !options.stop.is_empty() {
        // Without text no stop string would ever be found.
        engine.text()?;
    }
    Ok(())
}

/// Turns tokens into events and collects the text.
struct Output<'a, F> {
    stream: Option<TokenStream<'a>>,
    stop: StopStrings,
    text: String,
    on_event: F,
    /// Whether the callback wants no more.
    closed: bool,
}

impl<'a, F: FnMut(Event<'_>) -> ControlFlow<()>> Output<'a, F> {
    fn new(stream: Option<TokenStream<'a>>, stop: Vec<String>, on_event: F) -> Output<'a, F> {
        Output { stream, stop: StopStrings::new(stop), text: String::new(), on_event, closed: false }
    }

    fn token(&mut self, token: u32, logprob: Option<&TokenLogprob>) -> ControlFlow<()> {
        self.closed = (self.on_event)(Event::Token { token, logprob }).is_break();
        let piece = self.stream.as_mut().and_then(|s| s.push(token)).unwrap_or_default();
        let shown = self.stop.push(&piece);
        self.show(shown);
        if self.closed { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Shows what was held back, and gives the whole text.
    fn finish(mut self) -> String {
        let rest = self.stream.take().and_then(TokenStream::finish).unwrap_or_default();
        let shown = self.stop.push(&rest) + &self.stop.finish();
        self.show(shown);
        self.text
    }

    fn show(&mut self, text: String) {
        if !text.is_empty() && !self.closed {
            self.text += &text;
            self.closed = (self.on_event)(Event::Text(&text)).is_break();
        }
    }
}
