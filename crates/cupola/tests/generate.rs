//! How replies begin, stream and end.

mod common;

use common::*;
use cupola::{
    Chat, Engine, EngineError, EngineOptions, Event, FinishReason, GenerateOptions, Sampling, SessionOptions,
};
use cupola::{SamplingError, StepError, message};
use std::collections::BTreeMap;
use std::ops::ControlFlow;

fn scripted(says: &[u32]) -> Engine {
    Fake::script(258, 1, says).engine(&EngineOptions::default())
}

/// A reply to one token, with the text of each event.
fn streamed(engine: &Engine, options: SessionOptions, n: usize) -> (cupola::Reply, Vec<String>) {
    let mut deltas = vec![];
    let mut session = engine.session(options).unwrap();
    let reply = session.generate(vec![65], &up_to(n), |event| {
        if let Event::Text(text) = event {
            deltas.push(text.to_string());
        }
        ControlFlow::Continue(())
    });
    (reply.unwrap(), deltas)
}

#[test]
fn trap_05_a_limit_inside_a_character_gives_one_replacement_character() {
    let lama = bytes("🦙");
    let engine = scripted(&lama);
    for n in 1..=4 {
        let (reply, deltas) = streamed(&engine, greedy(), n);
        let expected = if n == 4 { "🦙" } else { "\u{fffd}" };
        assert_eq!(reply.text, expected, "{n} bytes");
        assert_eq!(deltas, [expected], "{n} bytes: nothing is shown before it is certain");
        assert_eq!(reply.text, byte_tokenizer().decode(&lama[..n], true));
        assert_eq!((reply.finish, reply.tokens.len()), (FinishReason::Length, n));
    }
}

#[test]
fn trap_05_characters_stream_as_they_complete() {
    let (reply, deltas) = streamed(&scripted(&bytes("é🦙漢")), greedy(), 9);
    assert_eq!(deltas, ["é", "🦙", "漢"]);
    assert_eq!(reply.text, "é🦙漢");
}

#[test]
fn trap_07_every_stop_token_of_the_model_ends_a_reply() {
    for eos in [5, 6] {
        let engine = Fake::script(258, 1, &[72, 105, eos, 33]).engine_with(
            &EngineOptions::default(),
            Ok(byte_text()),
            vec![5, 6],
        );
        let (reply, _) = streamed(&engine, greedy(), 100);
        assert_eq!((reply.finish, reply.text.as_str(), reply.usage.reply_tokens), (FinishReason::Stop, "Hi", 2));
        // A stop token of the session adds to them, it does not replace them.
        let (reply, _) = streamed(&engine, SessionOptions { stop_tokens: vec![7], ..greedy() }, 100);
        assert_eq!(reply.finish, FinishReason::Stop);
        let (reply, _) = streamed(&engine, SessionOptions { stop_tokens: vec![105], ..greedy() }, 100);
        assert_eq!((reply.finish, reply.text.as_str()), (FinishReason::Stop, "H"));
        let (reply, _) = streamed(&engine, SessionOptions { ignore_eos: true, ..greedy() }, 4);
        assert_eq!((reply.finish, &reply.tokens[..]), (FinishReason::Length, &[72, 105, eos, 33][..]));
    }
}

#[test]
fn trap_13_logprobs_are_the_models_own_whatever_the_filters() {
    let engine = Fake::new(4, |_| vec![2.0, 1.0, 0.0, -1.0]).engine(&EngineOptions::default());
    let sampling = Sampling { top_p: 0.3, ..Sampling::default() };
    for (asked, given) in [(4, 4), (0, 0), (20, 4)] {
        let options = GenerateOptions { max_tokens: Some(1), logprobs: Some(asked), ..GenerateOptions::default() };
        let mut session =
            engine.session(SessionOptions { sampling: sampling.clone(), ..SessionOptions::default() }).unwrap();
        let mut seen = None;
        let reply = session.generate(vec![0], &options, |event| {
            if let Event::Token { logprob, .. } = event {
                seen = logprob.cloned();
            }
            ControlFlow::Continue(())
        });
        assert_eq!(reply.unwrap().tokens, [0]);
        let seen = seen.unwrap();
        assert!((seen.logprob - -0.4402).abs() < 1e-4);
        assert_eq!(seen.top.len(), given);
        for ((token, logprob), (id, expected)) in seen.top.iter().zip((0..).zip([-0.4402, -1.4402, -2.4402, -3.4402])) {
            assert!(*token == id && (logprob - expected).abs() < 1e-4f32, "{:?}", seen.top);
        }
    }
}

#[test]
fn trap_19_ids_outside_the_vocabulary_are_refused_and_harm_nobody() {
    let engine = Fake::chaos(8).engine(&EngineOptions::default());
    let expected = reply(&engine, greedy(), &[1, 2, 3], 20).tokens;
    let other = std::thread::spawn({
        let engine = engine.clone();
        move || (0..50).map(|_| reply(&engine, greedy(), &[1, 2, 3], 20).tokens).collect::<Vec<_>>()
    });
    for _ in 0..50 {
        for id in [8, u32::MAX] {
            let error = engine.session(greedy()).unwrap().generate(vec![1, id], &up_to(1), quiet).unwrap_err();
            assert!(matches!(error, EngineError::Token { place: "prompt", token, vocab: 8, .. } if token == id));
            let error = engine.session(SessionOptions { stop_tokens: vec![id], ..greedy() }).unwrap_err();
            assert!(matches!(error, EngineError::Token { place: "stop token", token, vocab: 8, .. } if token == id));
            let sampling = Sampling { logit_bias: BTreeMap::from([(id, 1.0)]), ..Sampling::greedy() };
            let error = engine.session(SessionOptions { sampling, ..greedy() }).unwrap_err();
            assert!(matches!(error, EngineError::Sampling(SamplingError::BiasToken { vocab: 8, .. })));
            assert!(engine.logits(&[id]).is_err());
        }
        // The last one that exists is fine everywhere.
        let sampling = Sampling { logit_bias: BTreeMap::from([(7, 100.0)]), ..Sampling::greedy() };
        let forced = reply(&engine, SessionOptions { sampling, stop_tokens: vec![6], ..greedy() }, &[7], 2);
        assert_eq!(forced.tokens, [7, 7]);
    }
    assert!(other.join().unwrap().into_iter().all(|tokens| tokens == expected));
}

#[test]
fn trap_19_a_tokenizer_larger_than_the_embedding_is_named() {
    // 200 embeddings under a tokenizer of 258 tokens: "é" is the bytes 195 and 169.
    let engine = Fake::script(200, 2, &[65]).engine(&EngineOptions::default());
    let mut session = engine.session(greedy()).unwrap();
    assert_eq!(session.generate("é", &up_to(1), quiet).unwrap().text, "A");
    let message = session.generate("ü🦙", &up_to(1), quiet).unwrap_err().to_string();
    assert!(message.contains("token 240") && message.contains("0 to 199") && message.contains("another"), "{message}");
    assert_eq!(session.generate("é", &up_to(1), quiet).unwrap().text, "A");
}

#[test]
fn trap_25_exactly_as_many_tokens_as_asked_for() {
    let engine = scripted(&[65]);
    for n in [0, 1, 2, 3, 100] {
        let (reply, deltas) = streamed(&engine, greedy(), n);
        assert_eq!((reply.tokens.len(), reply.usage.reply_tokens), (n, n));
        assert_eq!((reply.finish, deltas.concat()), (FinishReason::Length, "A".repeat(n)));
    }
}

#[test]
fn trap_25_a_limit_beyond_the_context_ends_with_the_context() {
    let options = EngineOptions { context: Some(10), ..EngineOptions::default() };
    let engine = Fake::script(258, 1, &[65]).engine(&options);
    for limit in [Some(10), Some(1000), None] {
        let generate = GenerateOptions { max_tokens: limit, ..GenerateOptions::default() };
        let reply = engine.session(greedy()).unwrap().generate(vec![65], &generate, quiet).unwrap();
        assert_eq!((reply.finish, reply.tokens.len()), (FinishReason::ContextFull, 9));
    }
    assert_eq!(reply(&engine, greedy(), &[65], 9).finish, FinishReason::Length);
}

#[test]
fn context_edges() {
    for context in [1, 31, 32, 33, 64] {
        let options = EngineOptions { context: Some(context), ..EngineOptions::default() };
        let engine = Fake::script(258, 1, &[65]).engine(&options);
        let full = reply(&engine, greedy(), &vec![65; context], 5);
        assert_eq!((full.finish, full.tokens.len()), (FinishReason::ContextFull, 0), "context {context}");
        if context > 1 {
            let room = reply(&engine, greedy(), &vec![65; context - 1], 5);
            assert_eq!((room.finish, room.tokens.len()), (FinishReason::ContextFull, 1), "context {context}");
        }
        let error = engine.session(greedy()).unwrap().generate(vec![65; context + 1], &up_to(1), quiet).unwrap_err();
        assert!(
            matches!(error, EngineError::PromptTooLong { tokens, context: c } if tokens == context + 1 && c == context)
        );
        let message = error.to_string();
        assert!(message.contains(&(context + 1).to_string()) && message.contains(&context.to_string()), "{message}");
    }
}

#[test]
fn options_out_of_range_are_refused() {
    let parts = || cupola::EngineParts {
        runner: Box::new(Fake::chaos(4)),
        text: Err("none".into()),
        stop_tokens: vec![],
        sampling: Sampling::greedy(),
        context: 100,
    };
    let load = |options: EngineOptions| Engine::from_parts(parts(), &options);
    assert_eq!(load(EngineOptions { context: Some(0), ..EngineOptions::default() }).unwrap().context(), 100);
    assert_eq!(load(EngineOptions::default()).unwrap().context(), 100);
    for (options, option) in [
        (EngineOptions { context: Some(101), ..EngineOptions::default() }, "context"),
        (EngineOptions { step_rows: 0, ..EngineOptions::default() }, "step_rows"),
        (EngineOptions { cache_tokens: Some(100), ..EngineOptions::default() }, "cache_tokens"),
    ] {
        let message = load(options).unwrap_err().to_string();
        assert!(message.starts_with(option), "{message}");
    }
    assert!(load(EngineOptions { cache_tokens: Some(160), ..EngineOptions::default() }).is_ok());
}

#[test]
fn an_empty_prompt_is_an_error() {
    let engine = scripted(&[65]);
    let mut session = engine.session(greedy()).unwrap();
    assert!(matches!(session.generate(vec![], &up_to(1), quiet), Err(EngineError::EmptyPrompt)));
    assert!(matches!(session.generate("", &up_to(1), quiet), Err(EngineError::EmptyPrompt)));
    assert!(matches!(engine.logits(&[]), Err(EngineError::EmptyPrompt)));
}

#[test]
fn a_stop_string_across_tokens_ends_the_reply_and_is_not_shown() {
    let engine = scripted(&bytes("one\n\nUser: two"));
    let options = SessionOptions { stop: vec!["\n\nUser:".into()], ..greedy() };
    let (reply, deltas) = streamed(&engine, options, 100);
    assert_eq!((reply.finish, reply.text.as_str()), (FinishReason::StopString, "one"));
    assert_eq!(deltas.concat(), "one");
    // The tokens are those that the model gave.
    assert_eq!(reply.tokens, bytes("one\n\nUser:"));
}

#[test]
fn text_held_back_for_a_stop_string_is_shown_when_the_reply_ends() {
    let engine = scripted(&bytes("a\n\nUs!"));
    let options = SessionOptions { stop: vec!["\n\nUser:".into()], ..greedy() };
    let (reply, deltas) = streamed(&engine, options.clone(), 4);
    assert_eq!((reply.text.as_str(), deltas), ("a\n\nU", vec!["a".to_string(), "\n\nU".into()]));
    assert_eq!(streamed(&engine, options, 6).0.text, "a\n\nUs!");
}

#[test]
fn a_stop_string_of_several_bytes_a_character() {
    let engine = scripted(&bytes("日本🦙漢字"));
    let (reply, deltas) = streamed(&engine, SessionOptions { stop: vec!["🦙漢".into()], ..greedy() }, 100);
    assert_eq!((reply.text.as_str(), deltas.concat().as_str()), ("日本", "日本"));
    assert_eq!(reply.finish, FinishReason::StopString);
}

#[test]
fn stop_strings_that_cannot_work_are_refused() {
    let empty = SessionOptions { stop: vec![String::new()], ..greedy() };
    assert!(matches!(scripted(&[65]).session(empty), Err(EngineError::EmptyStopString)));
    let mute = Fake::chaos(8).engine_with(&EngineOptions::default(), Err("no tokenizer.json".into()), vec![]);
    let some = SessionOptions { stop: vec!["x".into()], ..greedy() };
    assert!(mute.session(some).unwrap_err().to_string().contains("no tokenizer.json"));
    // Without text, tokens still work.
    assert_eq!(reply(&mute, greedy(), &[1], 3).tokens.len(), 3);
    assert!(mute.session(greedy()).unwrap().generate("x", &up_to(1), quiet).is_err());
}

#[test]
fn the_callback_can_stop_a_reply() {
    let engine = scripted(&bytes("abcdef"));
    let mut session = engine.session(greedy()).unwrap();
    let mut text = String::new();
    let reply = session.generate(vec![65], &up_to(100), |event| {
        if let Event::Text(t) = event {
            text += t;
        }
        if text == "abc" { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let reply = reply.unwrap();
    assert_eq!((reply.finish, reply.text.as_str(), reply.tokens.len()), (FinishReason::Cancelled, "abc", 3));
    assert_eq!(session.tokens(), [&[65][..], &bytes("abc")].concat());
    assert_eq!(session.generate(vec![65], &up_to(6), quiet).unwrap().text, "abcdef");
}

#[test]
fn the_prompt_is_reported_as_it_is_evaluated() {
    let engine = Fake::chaos(8).engine(&EngineOptions { step_rows: 10, ..EngineOptions::default() });
    let mut session = engine.session(greedy()).unwrap();
    let mut seen = vec![];
    let prompt = vec![1; 25];
    let reply = session.generate(prompt, &up_to(1), |event| {
        if let Event::Prompt { done, total } = event {
            seen.push((done, total));
        }
        ControlFlow::Continue(())
    });
    assert_eq!(reply.unwrap().usage.prompt_tokens, 25);
    assert_eq!(seen, [(10, 25), (20, 25), (25, 25)]);
}

#[test]
fn the_seed_decides_the_reply() {
    let engine = Fake::chaos(200).engine(&EngineOptions::default());
    let tokens = |seed| reply(&engine, SessionOptions { seed, ..SessionOptions::default() }, &[1], 30).tokens;
    assert_eq!(tokens(Some(5)), tokens(Some(5)));
    assert_ne!(tokens(Some(5)), tokens(Some(6)));
    assert_ne!(tokens(None), tokens(None));
    let session = engine.session(SessionOptions::default()).unwrap();
    let again = SessionOptions { seed: Some(session.seed()), ..SessionOptions::default() };
    let mut session = session;
    assert_eq!(session.generate(vec![1], &up_to(30), quiet).unwrap().tokens, reply(&engine, again, &[1], 30).tokens);
}

#[test]
fn a_chat_follows_the_template_and_finds_its_earlier_turns() {
    let fake = Fake::new(258, |_| one_hot(258, 257));
    let log = fake.log.clone();
    let engine = fake.engine_with(&EngineOptions::default(), Ok(byte_text()), vec![257]);
    let mut session = engine.session(greedy()).unwrap();
    let mut chat = Chat::new(vec![message("user", &"long ".repeat(30))]);
    let first = session.chat(&chat, &up_to(10), quiet).unwrap();
    assert_eq!((first.finish, first.text.as_str(), first.usage.cached_tokens), (FinishReason::Stop, "", 0));
    chat.messages.extend([message("assistant", ""), message("user", "more")]);
    let second = session.chat(&chat, &up_to(10), quiet).unwrap();
    assert_eq!(second.usage.cached_tokens, first.usage.prompt_tokens);
    let new = second.usage.prompt_tokens - second.usage.cached_tokens;
    assert_eq!(log.lock().unwrap().rows(), first.usage.prompt_tokens + new);
}

#[test]
fn trap_03_special_tokens_in_a_message_stay_text() {
    let engine = scripted(&[65]);
    let tokens = engine.chat_tokens(&Chat::new(vec![message("user", "A<|im_end|>B")])).unwrap();
    let [start, end] = [256, 257];
    let expected =
        [&[start][..], &bytes("user\nA<|im_end|>B"), &[end], &bytes("\n"), &[start], &bytes("assistant\n")].concat();
    assert_eq!(tokens, expected);
    // In a raw prompt they are tokens, as its documentation says.
    assert_eq!(engine.text().unwrap().encode_prompt("<|im_end|>").unwrap(), [257]);
}

#[test]
fn a_model_without_a_template_says_so() {
    let text = cupola::Text::new(byte_tokenizer(), Default::default());
    let engine = Fake::chaos(258).engine_with(&EngineOptions::default(), Ok(text), vec![]);
    let error = engine.chat_tokens(&Chat::new(vec![message("user", "x")])).unwrap_err();
    assert!(matches!(error, EngineError::NoTemplate), "{error}");
}

#[test]
fn a_failed_step_is_an_error_and_the_next_reply_is_right() {
    let mut fake = Fake::chaos(50);
    fake.fail_at = Some(3);
    let engine = fake.engine(&EngineOptions { step_rows: 16, ..EngineOptions::default() });
    let prompt: Vec<u32> = (0..40).collect();
    let mut session = engine.session(greedy()).unwrap();
    let error = session.generate(&prompt[..], &up_to(10), quiet).unwrap_err();
    assert!(error.to_string().contains("told to fail"), "{error}");
    let expected = reply(&Fake::chaos(50).engine(&EngineOptions::default()), greedy(), &prompt, 10).tokens;
    assert_eq!(session.generate(&prompt[..], &up_to(10), quiet).unwrap().tokens, expected);
}

#[test]
fn logits_that_are_not_numbers_are_an_error() {
    let engine = Fake::new(4, |_| vec![0.0, f32::NAN, 0.0, 0.0]).engine(&EngineOptions::default());
    let error = engine.session(greedy()).unwrap().generate(vec![1], &up_to(1), quiet).unwrap_err();
    assert!(matches!(error, EngineError::Sampling(SamplingError::NotFinite { token: 1, .. })), "{error}");
}

#[test]
fn a_model_that_panics_is_broken_but_does_not_hang() {
    let mut fake = Fake::chaos(8);
    fake.panic_at = Some(1);
    let engine = fake.engine(&EngineOptions::default());
    let mut session = engine.session(greedy()).unwrap();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = session.generate(vec![1], &up_to(5), quiet);
    }));
    assert!(panicked.is_err());
    let error = engine.session(greedy()).unwrap().generate(vec![1], &up_to(1), quiet).unwrap_err();
    assert!(matches!(error, EngineError::Step(StepError::Broken)), "{error}");
}

#[test]
fn a_callback_that_panics_gives_its_blocks_back() {
    let options = EngineOptions { context: Some(64), cache_tokens: Some(96), ..EngineOptions::default() };
    let engine = Fake::chaos(8).engine(&options);
    for _ in 0..10 {
        let mut session = engine.session(greedy()).unwrap();
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _ = session.generate(vec![1; 60], &up_to(5), |_| panic!("told to panic"));
        }));
        assert!(panicked.is_err());
    }
    assert_eq!(reply(&engine, greedy(), &[2; 60], 4).tokens.len(), 4);
}
