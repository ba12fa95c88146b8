//! A loaded model that any number of sessions share.

use crate::kv::{KvCache, Sequence, Shortage};
use crate::load::{Loaded, Progress};
use crate::packed::PackedFolder;
use crate::runner::{RunnerShape, StepRunner};
use crate::sampler::Sampling;
use crate::scheduler::{Active, Job, Scheduler, Wanted};
use crate::session::{GenerateOptions, Session, SessionOptions};
use crate::text::{Chat, Text};
use crate::{CancelToken, EngineError, StepError};
use cupola_backend::{DeviceChoice, Options};
use cupola_formats::tokenizer::Tokenizer;
use cupola_graph::BLOCK_TOKENS;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Context if none is asked for, where the model allows it: enough for long conversations, and on a model of 8 billion
/// parameters still only about a gigabyte of cache.
pub const DEFAULT_CONTEXT: usize = 8192;

/// How a model is loaded.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Where it runs.
    pub device: DeviceChoice,
    /// How it runs: exact mode, threads, type of the key-value cache.
    pub backend: Options,
    /// Where copies of weights are, in the form that a device computes with, so that they need not be made anew. Absent:
    /// nowhere. They are only made by [`Engine::keep_packed`].
    pub packed: Option<PackedFolder>,
    /// Tokens of prompt and reply together that a sequence may have. Absent: the model's own limit, but at most
    /// [`DEFAULT_CONTEXT`]. 0: the model's own limit. More than that is an error.
    pub context: Option<usize>,
    /// Tokens that the key-value cache may hold for all sessions together; at least a context and a block. Absent: four
    /// contexts. Memory for the first context is taken as it fills, and for more only when several sequences that are
    /// being generated need it.
    pub cache_tokens: Option<usize>,
    /// Rows of a step at most: longer prompts are evaluated in chunks of this.
    pub step_rows: usize,
}

impl Default for EngineOptions {
    fn default() -> EngineOptions {
        EngineOptions {
            device: DeviceChoice::Auto,
            backend: Options::default(),
            packed: None,
            context: None,
            cache_tokens: None,
            step_rows: 512,
        }
    }
}

/// What an engine is made of, for models that do not come from a checkpoint.
pub struct EngineParts {
    /// The model.
    pub runner: Box<dyn StepRunner>,
    /// Tokenizer and templates, or why there are none.
    pub text: Result<Text, String>,
    /// Tokens that end a reply.
    pub stop_tokens: Vec<u32>,
    /// How the model's makers recommend to sample.
    pub sampling: Sampling,
    /// Tokens that the model's positions reach.
    pub context: usize,
}

/// What is in the key-value cache, in blocks of 32 tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheUse {
    /// Blocks that the devices have room for now.
    pub blocks: usize,
    /// Blocks that they may have room for at most.
    pub limit: usize,
    /// Of [`blocks`](CacheUse::blocks), how many are empty.
    pub free: usize,
    /// Of [`blocks`](CacheUse::blocks), how many only wait for a prompt that begins like an earlier one.
    pub cached: usize,
}

/// A loaded model. Clones share it; all methods can be called from several threads.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

struct Shared {
    scheduler: Scheduler,
    cache: Mutex<KvCache>,
    /// Why the device could not give the cache all the room that it may have.
    out_of_memory: OnceLock<StepError>,
    shape: RunnerShape,
    text: Result<Text, String>,
    stop_tokens: Vec<u32>,
    sampling: Sampling,
    context: usize,
    loaded: Option<Loaded>,
}

impl Engine {
    /// An engine of these parts. Of the options, only the sizes matter here.
    pub fn from_parts(parts: EngineParts, options: &EngineOptions) -> Result<Engine, EngineError> {
        Engine::assemble(parts, None, options)
    }

    pub(crate) fn assemble(
        parts: EngineParts,
        loaded: Option<Loaded>,
        options: &EngineOptions,
    ) -> Result<Engine, EngineError> {
        let EngineParts { runner, text, stop_tokens, sampling, context: longest } = parts;
        let context = match options.context {
            None => longest.min(DEFAULT_CONTEXT),
            Some(0) => longest,
            Some(n) if n <= longest => n,
            Some(found) => {
                let expected = format!("at most {longest}, the model's own limit (0 stands for it)");
                return Err(EngineError::Option { option: "context", found, expected });
            }
        };
        if options.step_rows == 0 {
            let expected = "at least 1".into();
            return Err(EngineError::Option { option: "step_rows", found: 0, expected });
        }
        // One block more than a full sequence has: it may begin with a copy of another's.
        let least = context.div_ceil(BLOCK_TOKENS) + 1;
        let limit = match options.cache_tokens {
            None => 4 * least,
            Some(tokens) if tokens / BLOCK_TOKENS >= least => tokens / BLOCK_TOKENS,
            Some(found) => {
                let expected = format!("at least {}, a context of {context} and a block", least * BLOCK_TOKENS);
                return Err(EngineError::Option { option: "cache_tokens", found, expected });
            }
        };
        let shape = runner.shape();
        let scheduler = Scheduler::new(runner, options.step_rows);
        let cache = Mutex::new(KvCache::new(least, limit));
        let out_of_memory = OnceLock::new();
        let shared = Shared { scheduler, cache, out_of_memory, shape, text, stop_tokens, sampling, context, loaded };
        Ok(Engine { shared: Arc::new(shared) })
    }

    /// A new conversation. Sessions are light: what they have in common in the cache they share.
    pub fn session(&self, options: SessionOptions) -> Result<Session, EngineError> {
        Session::new(self.clone(), options)
    }

    /// Tokens that a sequence may have, prompt and reply together.
    pub fn context(&self) -> usize {
        self.shared.context
    }

    /// Number of logits that the model gives: token ids that it can choose are under this.
    pub fn vocab(&self) -> usize {
        self.shared.shape.logits
    }

    /// Tokens that end a reply: every one that the checkpoint names in any of its files.
    pub fn stop_tokens(&self) -> &[u32] {
        &self.shared.stop_tokens
    }

    /// How the model's makers recommend to sample; what they leave open is as in [`Sampling::default`].
    pub fn recommended_sampling(&self) -> &Sampling {
        &self.shared.sampling
    }

    /// Where the model came from and where it runs; absent for an engine made of parts.
    pub fn loaded(&self) -> Option<&Loaded> {
        self.shared.loaded.as_ref()
    }

    /// Writes a copy of the weights to [`EngineOptions::packed`], unless it is there, or would be too large or too small for
    /// it. The next start is then quicker: on Linux, 30 ms instead of 400 for each gigabyte. The engine can be used meanwhile.
    /// If it is cancelled, nothing is left behind. `progress` hears the bytes written.
    pub fn keep_packed(&self, cancel: &CancelToken, progress: &mut dyn FnMut(Progress)) -> Result<(), EngineError> {
        let Some(Loaded { backends, packed: Some(folder), .. }) = self.loaded() else { return Ok(()) };
        for backend in backends {
            // Asked for when the size is known, which is only where there is something to write.
            let mut room = None;
            backend.keep_packed(&mut |done, total| {
                let room = room.get_or_insert_with(|| folder.make_room(total));
                if cancel.is_cancelled() || !matches!(room, Ok(true)) {
                    return ControlFlow::Break(());
                }
                progress(Progress { done, total });
                ControlFlow::Continue(())
            })?;
            room.transpose()?;
        }
        Ok(())
    }

    /// How full the key-value cache is.
    pub fn cache_use(&self) -> CacheUse {
        let cache = self.cache();
        let (blocks, limit) = (cache.capacity(), cache.limit());
        CacheUse { blocks, limit, free: cache.free(), cached: cache.cached() }
    }

    /// Tokenizer and chat templates.
    pub fn text(&self) -> Result<&Text, EngineError> {
        self.shared.text.as_ref().map_err(|reason| EngineError::NoTokenizer { reason: reason.clone() })
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> Result<&Tokenizer, EngineError> {
        Ok(self.text()?.tokenizer())
    }

    /// The tokens of a conversation, as [`Session::chat`] gives them to the model.
    pub fn chat_tokens(&self, chat: &Chat) -> Result<Vec<u32>, EngineError> {
        let text = self.text()?;
        Ok(text.render(chat)?.encode(text.tokenizer())?)
    }

    /// Logits after each token, `[tokens, vocab]` row-major. Evaluates every token anew.
    pub fn logits(&self, tokens: &[u32]) -> Result<Vec<f32>, EngineError> {
        self.evaluation(tokens)?.logits(tokens.len())
    }

    /// The same piece by piece, for sequences whose logits together would take much memory.
    pub fn evaluation<'a>(&'a self, tokens: &'a [u32]) -> Result<Evaluation<'a>, EngineError> {
        self.check_prompt(tokens)?;
        Ok(Evaluation { tokens, sequence: self.begin_apart(tokens.len()) })
    }

    /// The `n` most likely tokens one after the other: each is the best after `tokens` and those before it. Fewer if the
    /// context ends. Tokens that end a reply do not end it.
    pub fn greedy(&self, tokens: &[u32], n: usize) -> Result<Vec<u32>, EngineError> {
        let options = SessionOptions { sampling: Sampling::greedy(), ignore_eos: true, ..SessionOptions::default() };
        let generate = GenerateOptions { max_tokens: Some(n), ..GenerateOptions::default() };
        let reply = self.session(options)?.generate(tokens, &generate, |_| ControlFlow::Continue(()))?;
        Ok(reply.tokens)
    }

    /// Fails for prompts that the model cannot take.
    pub(crate) fn check_prompt(&self, tokens: &[u32]) -> Result<(), EngineError> {
        if tokens.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        if tokens.len() > self.context() {
            return Err(EngineError::PromptTooLong { tokens: tokens.len(), context: self.context() });
        }
        self.check_tokens("prompt", tokens, self.shared.shape.embeddings)
    }

    /// Fails for the first token that is not under `vocab`.
    pub(crate) fn check_tokens(&self, place: &'static str, tokens: &[u32], vocab: usize) -> Result<(), EngineError> {
        match tokens.iter().find(|t| **t as usize >= vocab) {
            None => Ok(()),
            Some(&token) => {
                let text = self.tokenizer().ok().and_then(|t| t.id_to_token(token));
                Err(EngineError::Token { place, token, text, vocab })
            }
        }
    }

    /// A sequence that will hold `tokens`, with what is in the cache of them.
    pub(crate) fn begin(&self, tokens: &[u32]) -> ActiveSequence<'_> {
        let regime = self.shared.shape.regime(tokens.len());
        self.activate(self.cache().start(tokens, regime), regime)
    }

    /// A sequence that will hold `length` tokens, with nothing from the cache.
    fn begin_apart(&self, length: usize) -> ActiveSequence<'_> {
        let regime = self.shared.shape.regime(length);
        self.activate(Sequence::new(regime), regime)
    }

    fn activate(&self, sequence: Sequence, regime: usize) -> ActiveSequence<'_> {
        let active = self.shared.scheduler.activate();
        ActiveSequence { engine: self, regime, sequence: Some(sequence), _active: active }
    }

    /// Makes room for `more` tokens, growing the device's cache if it has to.
    fn extend(&self, sequence: &mut Sequence, more: usize) -> Result<(), EngineError> {
        loop {
            let mut cache = self.cache();
            match cache.extend(sequence, more) {
                Ok(()) => return Ok(()),
                Err(Shortage::Full) => {
                    let full = EngineError::CacheFull { limit: cache.limit() };
                    return Err(self.shared.out_of_memory.get().cloned().map_or(full, EngineError::Step));
                }
                Err(Shortage::Grow(blocks)) => {
                    // Growing waits for the step that is running: others must be able to use the cache meanwhile.
                    drop(cache);
                    match self.shared.scheduler.with_runner(|runner| runner.reserve(blocks))? {
                        Ok(()) => self.cache().grown(blocks),
                        Err(error) => {
                            // What is cached for later may still make room for this sequence.
                            self.cache().cannot_grow();
                            let _ = self.shared.out_of_memory.set(error.into());
                        }
                    }
                }
            }
        }
    }

    fn cache(&self) -> MutexGuard<'_, KvCache> {
        self.shared.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Engine");
        debug.field("shape", &self.shared.shape).field("context", &self.shared.context).finish_non_exhaustive()
    }
}

/// A sequence whose tokens are evaluated piece by piece; made by [`Engine::evaluation`]. The pieces do not change the
/// result.
pub struct Evaluation<'a> {
    tokens: &'a [u32],
    sequence: ActiveSequence<'a>,
}

impl Evaluation<'_> {
    /// Tokens that have been evaluated.
    pub fn position(&self) -> usize {
        self.sequence.len()
    }

    /// Evaluates the next `n` tokens, or as many as are left, and gives the logits after each, `[n, vocab]` row-major.
    pub fn logits(&mut self, n: usize) -> Result<Vec<f32>, EngineError> {
        self.advance(n, Wanted::All)
    }

    /// Evaluates the next `n` tokens, or as many as are left, without making logits.
    pub fn skip(&mut self, n: usize) -> Result<(), EngineError> {
        self.advance(n, Wanted::Nothing).map(|_| ())
    }

    fn advance(&mut self, n: usize, wanted: Wanted) -> Result<Vec<f32>, EngineError> {
        let end = self.position().saturating_add(n).min(self.tokens.len());
        let never = CancelToken::new();
        let logits = self.sequence.evaluate(self.tokens, end, wanted, &never, |_| ControlFlow::Continue(()))?;
        Ok(logits.unwrap_or_default())
    }
}

/// A sequence while it is being evaluated. When it is dropped, however that comes about, its blocks go back.
pub(crate) struct ActiveSequence<'a> {
    engine: &'a Engine,
    regime: usize,
    /// Always there, until it is dropped.
    sequence: Option<Sequence>,
    _active: Active<'a>,
}

impl ActiveSequence<'_> {
    /// Number of tokens in the cache.
    pub fn len(&self) -> usize {
        self.sequence.as_ref().map_or(0, Sequence::len)
    }

    /// Evaluates the part of `tokens[..end]` that is not in the cache yet, and gives the wanted logits of it. `tokens` is
    /// the whole sequence. `on_chunk` hears how many tokens are done. Absent if it was stopped before the end; what was done
    /// until then stays in the cache.
    pub fn evaluate(
        &mut self,
        tokens: &[u32],
        end: usize,
        wanted: Wanted,
        cancel: &CancelToken,
        mut on_chunk: impl FnMut(usize) -> ControlFlow<()>,
    ) -> Result<Option<Vec<f32>>, EngineError> {
        let engine = self.engine;
        self.enter_regime(tokens);
        let Some(sequence) = &mut self.sequence else { return Ok(None) };
        engine.extend(sequence, end - sequence.len())?;
        let mut logits = vec![];
        while sequence.len() < end {
            if cancel.is_cancelled() {
                return Ok(None);
            }
            let start = sequence.len();
            let job = Job {
                tokens: tokens[start..end].to_vec(),
                start,
                blocks: sequence.table().to_vec(),
                rope_length: tokens.len(),
                wanted,
                copy: sequence.copy(),
            };
            let Some(done) = engine.shared.scheduler.run(job, cancel)? else { return Ok(None) };
            engine.cache().commit(sequence, &tokens[start..start + done.rows]);
            if logits.is_empty() {
                logits = done.logits;
            } else {
                logits.extend_from_slice(&done.logits);
            }
            if on_chunk(sequence.len()).is_break() {
                return Ok(None);
            }
        }
        Ok(Some(logits))
    }

    /// A sequence that grows past a length at which the rotary frequencies change has to be evaluated from its beginning.
    fn enter_regime(&mut self, tokens: &[u32]) {
        let regime = self.engine.shared.shape.regime(tokens.len());
        if regime != self.regime {
            self.regime = regime;
            let mut cache = self.engine.cache();
            if let Some(old) = self.sequence.take() {
                cache.finish(old);
            }
            self.sequence = Some(cache.start(tokens, regime));
        }
    }
}

impl Drop for ActiveSequence<'_> {
    fn drop(&mut self) {
        if let Some(sequence) = self.sequence.take() {
            self.engine.cache().finish(sequence);
        }
    }
}
