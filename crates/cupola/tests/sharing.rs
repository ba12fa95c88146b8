//! Several sequences on one engine: the cache they share, steps they share, and stopping one of them.

mod common;

use common::*;
use cupola::{CancelToken, Engine, EngineError, EngineOptions, Event, FinishReason};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// What a reply is without anything in the cache.
fn alone(prompt: &[u32], n: usize) -> Vec<u32> {
    reply(&Fake::chaos(50).engine(&EngineOptions::default()), greedy(), prompt, n).tokens
}

fn prompt(n: usize, salt: u32) -> Vec<u32> {
    (0..n as u32).map(|i| (i * 7 + salt) % 50).collect()
}

#[test]
fn trap_29_a_prompt_that_is_in_the_cache_gets_fresh_logits() {
    for n in [1, 2, 31, 32, 33, 64, 100] {
        let fake = Fake::chaos(50);
        let log = fake.log.clone();
        let engine = fake.engine(&EngineOptions::default());
        let p = prompt(n, 0);
        let one_more = [&p[..], &[3]].concat();
        let first = reply(&engine, greedy(), &p, 5);
        for (again, least_cached) in [(&p[..], n - 1), (&p[..n.div_ceil(2)], n.div_ceil(2) - 1), (&one_more[..], n)] {
            let before = log.lock().unwrap().rows();
            let reply = reply(&engine, greedy(), again, 5);
            assert_eq!(reply.tokens, alone(again, 5), "prompt of {n}, then {}", again.len());
            assert!(reply.usage.cached_tokens < again.len());
            assert!(reply.usage.cached_tokens >= least_cached, "{n}: {}", reply.usage.cached_tokens);
            // The rest of the prompt, and the tokens of the reply but the last.
            let evaluated = log.lock().unwrap().rows() - before;
            assert_eq!(evaluated, again.len() - reply.usage.cached_tokens + 4);
        }
        assert_eq!(reply(&engine, greedy(), &p, 5).tokens, first.tokens);
    }
}

#[test]
fn logits_are_the_same_with_and_without_the_cache() {
    let engine = Fake::chaos(50).engine(&EngineOptions { step_rows: 13, ..EngineOptions::default() });
    let p = prompt(90, 1);
    let fresh = engine.logits(&p).unwrap();
    assert_eq!(fresh.len(), 90 * 50);
    for length in [10, 64, 89, 90] {
        reply(&engine, greedy(), &p[..length], 3);
        assert_eq!(engine.logits(&p).unwrap(), fresh);
        let best = |row: &[f32]| (0..50).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap() as u32;
        let expected = best(&fresh[(length - 1) * 50..length * 50]);
        assert_eq!(engine.greedy(&p[..length], 1).unwrap(), [expected]);
    }
}

#[test]
fn sequences_together_give_the_same_tokens_as_alone() {
    for step_rows in [1, 2, 7, 64, 512] {
        let options = EngineOptions { step_rows, ..EngineOptions::default() };
        let engine = Fake::chaos(50).engine(&options);
        // Beginnings in common, and lengths around a block.
        let prompts: Vec<Vec<u32>> =
            [(1, 0), (31, 0), (32, 0), (33, 0), (70, 0), (70, 5), (64, 9), (65, 9)].map(|(n, s)| prompt(n, s)).into();
        let threads: Vec<_> = prompts
            .into_iter()
            .map(|p| {
                let engine = engine.clone();
                std::thread::spawn(move || (reply(&engine, greedy(), &p, 40).tokens, p))
            })
            .collect();
        for thread in threads {
            let (tokens, p) = thread.join().unwrap();
            assert_eq!(tokens, alone(&p, 40), "{} tokens, steps of {step_rows}", p.len());
        }
    }
}

#[test]
fn sequences_that_generate_share_steps() {
    let fake = Fake::chaos(50).pause(Duration::from_millis(20));
    let log = fake.log.clone();
    let engine = fake.engine(&EngineOptions::default());
    std::thread::scope(|scope| {
        for salt in 0..3 {
            let engine = &engine;
            scope.spawn(move || reply(engine, greedy(), &prompt(5, salt), 30));
        }
    });
    // 3 times 30 steps without sharing.
    let steps = log.lock().unwrap().steps.len();
    assert!(steps < 60, "{steps} steps");
}

#[test]
fn a_long_prompt_does_not_hold_up_a_reply() {
    let fake = Fake::chaos(50).pause(Duration::from_millis(20));
    let log = fake.log.clone();
    let engine = fake.engine(&EngineOptions { step_rows: 64, ..EngineOptions::default() });
    let tokens = AtomicUsize::new(0);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let count = |event: Event<'_>| {
                tokens.fetch_add(usize::from(matches!(event, Event::Token { .. })), Ordering::SeqCst);
                if stop.load(Ordering::SeqCst) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            engine.session(greedy()).unwrap().generate(prompt(3, 0), &up_to(1000), count).unwrap();
        });
        while tokens.load(Ordering::SeqCst) < 3 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let before = tokens.load(Ordering::SeqCst);
        reply(&engine, greedy(), &prompt(400, 1), 1);
        // 400 rows at 8 a step make 50 steps, with a token of the other in each; in steps of 64 it would be 7. The other
        // misses some when the machine is busy.
        let meanwhile = tokens.load(Ordering::SeqCst) - before;
        stop.store(true, Ordering::SeqCst);
        assert!(meanwhile >= 15, "{meanwhile} tokens while the prompt was evaluated");
    });
    let mixed = log.lock().unwrap().steps.iter().filter(|rows| rows.len() == 2).count();
    assert!(mixed >= 15, "{mixed} mixed steps");
}

#[test]
fn trap_27_cancelling_from_another_thread_stops_at_once() {
    let fake = Fake::chaos(50);
    let log = fake.log.clone();
    let engine = fake.engine(&EngineOptions::default());
    let p = prompt(5, 0);
    let (third, wait_for_third) = mpsc::channel();
    let (cancelled, wait_for_cancel) = mpsc::channel();
    std::thread::scope(|scope| {
        let options = up_to(1000);
        let cancel = options.cancel.clone();
        let (engine, p) = (&engine, &p);
        let running = scope.spawn(move || {
            let mut session = engine.session(greedy()).unwrap();
            let mut tokens = 0;
            let first = session.generate(&p[..], &options, |event| {
                tokens += usize::from(matches!(event, Event::Token { .. }));
                if tokens == 3 && matches!(event, Event::Token { .. }) {
                    third.send(()).unwrap();
                    wait_for_cancel.recv().unwrap();
                }
                ControlFlow::Continue(())
            });
            // The session can be used again.
            (first.unwrap(), session.generate(&p[..], &up_to(10), quiet).unwrap())
        });
        wait_for_third.recv().unwrap();
        cancel.cancel();
        cancelled.send(()).unwrap();
        let (first, second) = running.join().unwrap();
        assert_eq!((first.finish, first.tokens), (FinishReason::Cancelled, alone(p, 3)));
        assert_eq!(second.tokens, alone(p, 10));
    });
    // The prompt and 2 of the 3 tokens; then the prompt's last token and 9 of the 10.
    assert_eq!(log.lock().unwrap().steps.len(), 3 + 10);
    let cache = engine.cache_use();
    assert_eq!(cache.free + cache.cached, cache.blocks, "nothing is held any more");
}

#[test]
fn trap_27_cancelling_during_the_prompt_keeps_what_was_done() {
    let engine = Fake::chaos(50)
        .pause(Duration::from_millis(5))
        .engine(&EngineOptions { step_rows: 10, ..EngineOptions::default() });
    let mut session = engine.session(greedy()).unwrap();
    let options = up_to(5);
    let cancelled = session.generate(prompt(95, 0), &options, |event| {
        if matches!(event, Event::Prompt { done: 40, .. }) {
            options.cancel.cancel();
        }
        ControlFlow::Continue(())
    });
    let cancelled = cancelled.unwrap();
    assert_eq!((cancelled.finish, cancelled.tokens.len()), (FinishReason::Cancelled, 0));
    let again = session.generate(prompt(95, 0), &up_to(5), quiet).unwrap();
    assert_eq!(again.usage.cached_tokens, 40);
    assert_eq!(again.tokens, alone(&prompt(95, 0), 5));
    // Cancelled before it began.
    let none = session.generate(prompt(9, 3), &options, quiet).unwrap();
    assert_eq!((none.finish, none.usage.cached_tokens), (FinishReason::Cancelled, 0));
}

#[test]
fn trap_27_cancelling_a_waiting_request_does_not_wait_for_its_turn() {
    // The second request waits for the first one's step.
    let engine = Fake::chaos(50).pause(Duration::from_millis(1500)).engine(&EngineOptions::default());
    std::thread::scope(|scope| {
        let first = scope.spawn(|| reply(&engine, greedy(), &prompt(3, 0), 1));
        std::thread::sleep(Duration::from_millis(100));
        let options = up_to(1);
        let cancel = options.cancel.clone();
        let started = Instant::now();
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            cancel.cancel();
        });
        let second = engine.session(greedy()).unwrap().generate(prompt(4, 1), &options, quiet).unwrap();
        assert_eq!(second.finish, FinishReason::Cancelled);
        assert!(started.elapsed() < Duration::from_millis(1000), "{:?}", started.elapsed());
        first.join().unwrap();
    });
}

#[test]
fn a_full_cache_is_an_error_and_room_comes_back() {
    // Room for one context and a block.
    let options = EngineOptions { context: Some(64), cache_tokens: Some(96), ..EngineOptions::default() };
    let engine = Fake::chaos(50).engine(&options);
    let mut error = None;
    let mut outer = engine.session(greedy()).unwrap();
    let first = outer.generate(prompt(60, 0), &up_to(1), |event| {
        if matches!(event, Event::Token { .. }) {
            error = engine.session(greedy()).unwrap().generate(prompt(60, 1), &up_to(1), quiet).err();
        }
        ControlFlow::Continue(())
    });
    assert_eq!(first.unwrap().tokens, alone(&prompt(60, 0), 1));
    let error = error.unwrap();
    assert!(matches!(error, EngineError::CacheFull { limit: 3 }), "{error}");
    assert_eq!(reply(&engine, greedy(), &prompt(60, 1), 4).tokens, alone(&prompt(60, 1), 4));
}

#[test]
fn a_device_out_of_memory_reuses_what_is_cached_or_says_so() {
    let fake = |memory| {
        let mut fake = Fake::chaos(50);
        fake.memory = memory;
        fake.engine(&EngineOptions { context: Some(1024), ..EngineOptions::default() })
    };
    // 16 blocks are what is asked for first, and 512 tokens.
    let engine = fake(16);
    for salt in 0..5 {
        assert_eq!(reply(&engine, greedy(), &prompt(400, salt), 4).tokens, alone(&prompt(400, salt), 4));
    }
    let error = engine.session(greedy()).unwrap().generate(prompt(600, 0), &up_to(1), quiet).unwrap_err();
    assert!(error.to_string().contains("out of memory"), "{error}");
    assert_eq!(reply(&engine, greedy(), &prompt(400, 9), 4).tokens, alone(&prompt(400, 9), 4));
    let error = fake(0).session(greedy()).unwrap().generate(prompt(1, 0), &up_to(1), quiet).unwrap_err();
    assert!(error.to_string().contains("out of memory"), "{error}");
}

#[test]
fn many_conversations_in_little_room() {
    // Each is changed and continued while others push it out of the cache.
    let options = EngineOptions { context: Some(256), cache_tokens: Some(320), ..EngineOptions::default() };
    let engine = Fake::chaos(50).engine(&options);
    for round in 0..4 {
        for salt in 0..4 {
            let p = [&prompt(100, salt)[..], &prompt(10 * round, salt + 1)].concat();
            assert_eq!(reply(&engine, greedy(), &p, 20).tokens, alone(&p, 20), "round {round}, {salt}");
            // Between replies, nobody holds on to anything.
            let cache = engine.cache_use();
            assert_eq!(cache.free + cache.cached, cache.blocks);
            assert!(cache.blocks <= cache.limit && cache.limit == 10, "{cache:?}");
        }
    }
}

#[test]
fn growing_past_a_rotary_limit_evaluates_the_sequence_anew() {
    let fake = Fake::chaos(50).rope_limits(&[40]);
    let log = fake.log.clone();
    let engine = fake.engine(&EngineOptions::default());
    // 38 tokens, then 2 that still fit under the limit, then all 41 at once, then one at a time.
    let p = prompt(38, 0);
    let r = reply(&engine, greedy(), &p, 6);
    assert_eq!(r.tokens, alone(&p, 6));
    assert_eq!(log.lock().unwrap().steps, [[38], [1], [1], [41], [1], [1]]);
    // A longer prompt finds only what was evaluated with the frequencies of its length.
    let whole = [&p[..], &r.tokens].concat();
    assert_eq!(reply(&engine, greedy(), &whole, 1).usage.cached_tokens, 43);
    assert_eq!(reply(&engine, greedy(), &whole[..40], 1).usage.cached_tokens, 39);
}

#[test]
fn engines_and_sessions_can_go_to_other_threads() {
    fn check<T: Send + Sync>() {}
    check::<Engine>();
    check::<CancelToken>();
    check::<EngineError>();
    fn send<T: Send>() {}
    send::<cupola::Session>();
}
