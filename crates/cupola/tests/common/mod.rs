//! A stand-in for a model, and a byte-level tokenizer.
#![allow(dead_code, reason = "each test file uses a part of this")]

use cupola::{
    CancelToken, Engine, EngineOptions, EngineParts, Event, GenerateOptions, Reply, Sampling, SessionOptions,
};
use cupola::{RunnerShape, StepRunner, Text};
use cupola_backend::BackendError;
use cupola_formats::template::TemplateSources;
use cupola_formats::tokenizer::{Tokenizer, TokenizerConfig};
use cupola_graph::{BLOCK_TOKENS, Step};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Logits after a sequence.
pub type Rule = Box<dyn FnMut(&[u32]) -> Vec<f32> + Send>;

/// What the model did.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// Rows of each sequence in each step.
    pub steps: Vec<Vec<usize>>,
    /// Blocks copied.
    pub copies: usize,
}

impl Log {
    pub fn rows(&self) -> usize {
        self.steps.iter().flatten().sum()
    }
}

/// A model whose cache holds tokens, and whose logits are a function of the tokens that it finds there. So a wrong block
/// table, a missing copy or a stale block changes the result.
pub struct Fake {
    shape: RunnerShape,
    rule: Rule,
    slots: HashMap<(u32, usize), u32>,
    blocks: usize,
    /// Blocks that the device can hold.
    pub memory: usize,
    /// Time that a step takes.
    pub pause: Duration,
    /// Fails the step with this number.
    pub fail_at: Option<usize>,
    pub panic_at: Option<usize>,
    pub log: Arc<Mutex<Log>>,
}

impl Fake {
    pub fn new(vocab: usize, rule: impl FnMut(&[u32]) -> Vec<f32> + Send + 'static) -> Fake {
        Fake {
            shape: RunnerShape { embeddings: vocab, logits: vocab, rope_limits: vec![] },
            rule: Box::new(rule),
            slots: HashMap::new(),
            blocks: 0,
            memory: usize::MAX,
            pause: Duration::ZERO,
            fail_at: None,
            panic_at: None,
            log: Arc::default(),
        }
    }

    /// Says these tokens after a prompt of `prompt` tokens, and the last of them for ever.
    pub fn script(vocab: usize, prompt: usize, says: &[u32]) -> Fake {
        let says = says.to_vec();
        Fake::new(vocab, move |tokens| {
            let at = (tokens.len() - prompt).min(says.len() - 1);
            one_hot(vocab, says[at])
        })
    }

    /// Logits that look random and depend on every token of the sequence and its place.
    pub fn chaos(vocab: usize) -> Fake {
        Fake::new(vocab, move |tokens| {
            let hash =
                tokens.iter().fold(17u64, |h, t| (h ^ u64::from(*t)).wrapping_mul(0x100_0000_01b3).rotate_left(23));
            let mut rng = cupola::Rng::new(hash);
            (0..vocab).map(|_| rng.next_f64() as f32 * 10.0).collect()
        })
    }

    pub fn rope_limits(mut self, limits: &[usize]) -> Fake {
        self.shape.rope_limits = limits.to_vec();
        self
    }

    pub fn pause(mut self, pause: Duration) -> Fake {
        self.pause = pause;
        self
    }

    /// An engine of this model with a byte-level tokenizer.
    pub fn engine(self, options: &EngineOptions) -> Engine {
        self.engine_with(options, Ok(byte_text()), vec![])
    }

    pub fn engine_with(self, options: &EngineOptions, text: Result<Text, String>, stop_tokens: Vec<u32>) -> Engine {
        let sampling = Sampling::greedy();
        let parts = EngineParts { runner: Box::new(self), text, stop_tokens, sampling, context: 4096 };
        Engine::from_parts(parts, options).unwrap()
    }
}

impl StepRunner for Fake {
    fn shape(&self) -> RunnerShape {
        self.shape.clone()
    }

    fn reserve(&mut self, blocks: usize) -> Result<(), BackendError> {
        if blocks > self.memory {
            return Err(BackendError::OutOfMemory {
                device: "fake:0".into(),
                needed: blocks as u64,
                available: Some(self.memory as u64),
                advice: "Use a smaller context.".into(),
            });
        }
        self.blocks = self.blocks.max(blocks);
        Ok(())
    }

    fn copy_block(&mut self, from: u32, to: u32) -> Result<(), BackendError> {
        self.log.lock().unwrap().copies += 1;
        for slot in 0..BLOCK_TOKENS {
            if let Some(token) = self.slots.get(&(from, slot)).copied() {
                self.slots.insert((to, slot), token);
            }
        }
        Ok(())
    }

    fn run(&mut self, step: &Step<'_>) -> Result<Vec<f32>, BackendError> {
        step.check(self.shape.embeddings, self.blocks)?;
        std::thread::sleep(self.pause);
        let number = {
            let mut log = self.log.lock().unwrap();
            log.steps.push(step.spans.iter().map(|s| s.rows).collect());
            log.steps.len() - 1
        };
        assert_ne!(self.panic_at, Some(number), "told to panic");
        if self.fail_at == Some(number) {
            return Err(BackendError::Device { device: "fake:0".into(), message: "told to fail".into() });
        }
        let mut row = 0;
        let mut logits = vec![];
        for span in step.spans {
            let place = |at: usize| (span.blocks[at / BLOCK_TOKENS], at % BLOCK_TOKENS);
            for at in span.start..span.start + span.rows {
                self.slots.insert(place(at), step.tokens[row]);
                if step.wanted.contains(&(row as u32)) {
                    let seen: Vec<u32> = (0..=at).map(|i| self.slots[&place(i)]).collect();
                    logits.extend((self.rule)(&seen));
                }
                row += 1;
            }
        }
        Ok(logits)
    }
}

pub fn one_hot(vocab: usize, token: u32) -> Vec<f32> {
    (0..vocab as u32).map(|t| if t == token { 10.0 } else { 0.0 }).collect()
}

/// Token `b` is the byte `b`; 256 and 257 are `<|im_start|>` and `<|im_end|>`.
pub fn byte_tokenizer() -> Tokenizer {
    // GPT-2's alphabet: printable bytes are themselves, the others follow from U+0100.
    let mut next = 0x100;
    let mut letter = |b: u32| match b {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => char::from_u32(b).unwrap(),
        _ => {
            next += 1;
            char::from_u32(next - 1).unwrap()
        }
    };
    let vocab: Map<String, Value> = (0..256).map(|b| (letter(b).to_string(), json!(b))).collect();
    let added = |id: u32, content: &str| {
        json!({"id": id, "content": content, "special": true, "normalized": false, "lstrip": false, "rstrip": false,
               "single_word": false})
    };
    let json = json!({
        "version": "1.0",
        "added_tokens": [added(256, "<|im_start|>"), added(257, "<|im_end|>")],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    });
    Tokenizer::from_json(json.to_string().as_bytes(), &TokenizerConfig::default()).unwrap()
}

/// Turns as `<|im_start|>role\ncontent<|im_end|>\n`.
const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
                        {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

pub fn byte_text() -> Text {
    let sources = TemplateSources::from_config(&Value::from(TEMPLATE)).unwrap();
    Text::new(byte_tokenizer(), sources)
}

pub fn bytes(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

pub fn greedy() -> SessionOptions {
    SessionOptions { sampling: Sampling::greedy(), ..SessionOptions::default() }
}

pub fn up_to(n: usize) -> GenerateOptions {
    GenerateOptions { max_tokens: Some(n), cancel: CancelToken::new(), logprobs: None }
}

pub fn quiet(_: Event<'_>) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// A reply to tokens from a fresh session.
pub fn reply(engine: &Engine, options: SessionOptions, prompt: &[u32], n: usize) -> Reply {
    engine.session(options).unwrap().generate(prompt, &up_to(n), quiet).unwrap()
}
