//! Real models on the CPU.

mod common;

use common::{greedy, quiet, reply, up_to};
use cupola::sampler::{TokenLogprob, top_logprobs};
use cupola::{
    CancelToken, Chat, Engine, EngineError, EngineOptions, Event, FinishReason, GenerateOptions, PackedFolder, message,
};
use cupola_backend::Options;
use cupola_formats::safetensors::Safetensors;
use std::fs;
use std::ops::ControlFlow;
use std::path::PathBuf;

fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn reference(name: &str) -> PathBuf {
    root().join("tests/data/refs").join(name)
}

/// The words of a tensor of a reference's `expected.safetensors`.
fn expected(name: &str, tensor: &str) -> Vec<[u8; 4]> {
    let file = Safetensors::open(reference(name).join("expected.safetensors")).unwrap();
    file.tensor(tensor).unwrap().bytes.chunks_exact(4).map(|b| [b[0], b[1], b[2], b[3]]).collect()
}

fn ids(name: &str, tensor: &str) -> Vec<u32> {
    expected(name, tensor).into_iter().map(u32::from_le_bytes).collect()
}

fn load(name: &str, options: EngineOptions) -> Engine {
    Engine::load(reference(name), &options).unwrap()
}

fn exact() -> EngineOptions {
    EngineOptions { backend: Options { exact: true, ..Options::default() }, ..EngineOptions::default() }
}

#[test]
fn logits_and_greedy_tokens_are_those_of_the_reference() {
    for name in ["llama3", "qwen3", "phi3"] {
        let engine = load(name, exact());
        let tokens = ids(name, "input_ids");
        let logits: Vec<f32> = expected(name, "logits").into_iter().map(f32::from_le_bytes).collect();
        let found = engine.logits(&tokens).unwrap();
        assert_eq!(found.len(), logits.len());
        let square = |v: f32| f64::from(v).powi(2);
        let spread = (logits.iter().map(|v| square(*v)).sum::<f64>() / logits.len() as f64).sqrt() as f32;
        let error = found.iter().zip(&logits).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(error < 1e-4 * spread, "{name}: {error} of {spread}");
        assert_eq!(engine.greedy(&tokens, 16).unwrap(), ids(name, "greedy"), "{name}");
    }
}

#[test]
fn packed_copies_change_no_bits() {
    let folder = tempfile::tempdir().unwrap();
    let packed = PackedFolder { smallest: 0, ..PackedFolder::new(folder.path().join("packed")) };
    let keep = |engine: &Engine, cancel: &CancelToken| {
        let mut heard = vec![];
        engine.keep_packed(cancel, &mut |progress| heard.push(progress)).unwrap();
        (heard.len(), fs::read_dir(&packed.path).map_or(0, |files| files.count()))
    };
    for name in ["llama3", "gemma3"] {
        fs::remove_dir_all(&packed.path).ok();
        let cancelled = CancelToken::new();
        cancelled.cancel();
        let options = EngineOptions { packed: Some(packed.clone()), ..EngineOptions::default() };
        let tokens = ids(name, "input_ids");
        let without = load(name, EngineOptions::default());
        assert_eq!(keep(&without, &CancelToken::new()), (0, 0));
        assert_eq!(keep(&load(name, options.clone()), &cancelled), (0, 0));
        let first = load(name, options.clone());
        let (calls, files) = keep(&first, &CancelToken::new());
        assert!(calls > 1 && files == 1, "{name}: {calls} calls, {files} files");
        assert_eq!(keep(&first, &CancelToken::new()), (0, 1));
        let second = load(name, options);
        assert_eq!(keep(&second, &CancelToken::new()), (0, 1));
        let logits = without.logits(&tokens).unwrap();
        assert_eq!(first.logits(&tokens).unwrap(), logits);
        assert_eq!(second.logits(&tokens).unwrap(), logits);
    }
}

#[test]
fn an_evaluation_in_pieces_gives_the_logits_of_the_whole() {
    // phi3's rotary frequencies depend on the length of the whole, 40 tokens; 32 is where they change.
    for name in ["llama3", "phi3"] {
        let engine = load(name, EngineOptions::default());
        let (tokens, vocab) = (ids(name, "input_ids"), engine.vocab());
        let whole = engine.logits(&tokens).unwrap();
        let mut pieces = engine.evaluation(&tokens).unwrap();
        pieces.skip(13).unwrap();
        assert_eq!(pieces.position(), 13);
        for (n, expected) in [(1, 13..14), (0, 14..14), (19, 14..33), (100, 33..40), (1, 40..40)] {
            let expected = &whole[expected.start * vocab..expected.end * vocab];
            assert_eq!(pieces.logits(n).unwrap(), expected, "{name}: {n}");
        }
        assert_eq!(pieces.position(), 40);
    }
}

/// Log-probabilities of all tokens at every step of a greedy reply.
fn steps(engine: &Engine, prompt: &[u32], n: usize) -> Vec<TokenLogprob> {
    let options = GenerateOptions { logprobs: Some(engine.vocab()), ..up_to(n) };
    let mut seen = vec![];
    let reply = engine.session(greedy()).unwrap().generate(prompt, &options, |event| {
        if let Event::Token { logprob, .. } = event {
            seen.extend(logprob.cloned());
        }
        ControlFlow::Continue(())
    });
    assert_eq!(reply.unwrap().tokens.len(), n);
    seen
}

#[test]
fn chunks_caches_and_company_do_not_change_a_bit() {
    for name in ["llama3", "gemma3", "phi3"] {
        for backend in [Options::default(), exact().backend] {
            let options = |step_rows| EngineOptions { backend: backend.clone(), step_rows, ..EngineOptions::default() };
            let whole = load(name, options(512));
            let tokens = ids(name, "input_ids");
            // phi3 changes its rotary frequencies after 32 tokens: this reply grows past them.
            let prompt = &tokens[..30];
            let once = steps(&whole, prompt, 8);

            // Against the logits of each whole sequence, evaluated at once.
            let mut sequence = prompt.to_vec();
            for step in &once {
                let logits = whole.logits(&sequence).unwrap();
                let last = &logits[logits.len() - whole.vocab()..];
                assert_eq!(*step, top_logprobs(last, step.token, whole.vocab()).unwrap(), "{name}");
                sequence.push(step.token);
            }
            // Now all of it is in the cache.
            assert_eq!(steps(&whole, prompt, 8), once, "{name}: from the cache");
            assert_eq!(steps(&load(name, options(7)), prompt, 8), once, "{name}: in chunks of 7");
            let engine = &load(name, options(16));
            let together: Vec<_> = std::thread::scope(|scope| {
                let others: Vec<_> = [10, 33, 40].map(|n| &tokens[..n]).into();
                let others: Vec<_> =
                    others.into_iter().map(|p| scope.spawn(move || reply(engine, greedy(), p, 12))).collect();
                let found = steps(engine, prompt, 8);
                others.into_iter().for_each(|o| assert_eq!(o.join().unwrap().tokens.len(), 12));
                found
            });
            assert_eq!(together, once, "{name}: beside others");
        }
    }
}

#[test]
fn trap_07_stop_tokens_are_the_union_of_all_files() {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(reference("llama3").join("model.safetensors"), folder.path().join("model.safetensors")).unwrap();
    let config = fs::read_to_string(reference("llama3").join("config.json")).unwrap();
    for (eos, generation, expected) in [
        ("5", Some("[5, 6]"), vec![5, 6]),
        ("5", Some("6"), vec![5, 6]),
        ("[5, 7]", Some("null"), vec![5, 7]),
        ("5", None, vec![5]),
        ("null", Some("6"), vec![6]),
    ] {
        let config = config.replace("\"eos_token_id\": 2", &format!("\"eos_token_id\": {eos}"));
        fs::write(folder.path().join("config.json"), config).unwrap();
        let path = folder.path().join("generation_config.json");
        match generation {
            Some(ids) => fs::write(path, format!("{{\"eos_token_id\": {ids}}}")).unwrap(),
            None => fs::remove_file(path).unwrap(),
        }
        let engine = Engine::load(folder.path(), &EngineOptions::default()).unwrap();
        assert_eq!(engine.stop_tokens(), expected);
    }
}

#[test]
fn a_checkpoint_without_a_tokenizer_takes_tokens_only() {
    let engine = load("llama3", EngineOptions::default());
    let error = engine.tokenizer().unwrap_err();
    assert!(
        matches!(error, EngineError::NoTokenizer { .. }) && error.to_string().contains("tokenizer.json"),
        "{error}"
    );
    assert_eq!(reply(&engine, greedy(), &[1, 2], 3).tokens.len(), 3);
}

#[test]
fn what_cannot_be_loaded_says_why() {
    let options = EngineOptions::default();
    let message = |path: PathBuf| Engine::load(path, &options).unwrap_err().to_string();
    assert!(message(root().join("no/such/model.gguf")).contains("no/such/model.gguf"));
    let long = EngineOptions { context: Some(1 << 20), ..options.clone() };
    let error = Engine::load(reference("llama3"), &long).unwrap_err().to_string();
    assert!(error.contains("1048576") && error.contains("256"), "{error}");
    let device = EngineOptions { device: "cuda".parse().unwrap(), ..options.clone() };
    let error = Engine::load(reference("llama3"), &device).unwrap_err().to_string();
    assert!(error.contains("cuda") && error.contains("cpu:0"), "{error}");
}

fn stories() -> Engine {
    Engine::load(root().join("assets/stories-7m-q8_0.gguf"), &EngineOptions::default()).unwrap()
}

#[test]
fn a_story_streams_and_is_the_text_of_its_tokens() {
    let engine = stories();
    let mut session = engine.session(greedy()).unwrap();
    let mut text = String::new();
    let reply = session.generate("Once upon a time", &up_to(40), |event| {
        if let Event::Text(delta) = event {
            text += delta;
        }
        ControlFlow::Continue(())
    });
    let reply = reply.unwrap();
    assert_eq!(reply.text, text);
    assert_eq!(reply.text, engine.tokenizer().unwrap().decode(&reply.tokens, true));
    // English words: spaces, and nothing outside ASCII's letters and punctuation.
    assert!(text.split_whitespace().count() > 15 && text.is_ascii(), "{text}");
}

#[test]
fn a_chat_turn_ends_by_itself_and_the_next_one_finds_it() {
    let engine = stories();
    let mut session = engine.session(greedy()).unwrap();
    let mut chat = Chat::new(vec![message("user", "Write a story about a cat.")]);
    let first = session.chat(&chat, &GenerateOptions::default(), quiet).unwrap();
    assert_eq!(first.finish, FinishReason::Stop);
    assert!(!first.text.contains("<|"), "{}", first.text);
    chat.messages.extend([message("assistant", &first.text), message("user", "Another one.")]);
    let second = session.chat(&chat, &up_to(5), quiet).unwrap();
    // The first reply is part of the second prompt: found up to its last token, which was chosen but not evaluated.
    assert!(second.usage.cached_tokens >= first.usage.prompt_tokens + first.usage.reply_tokens, "{:?}", second.usage);
}
