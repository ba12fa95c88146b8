//! Loads a model and streams its reply to a question:
//! `cargo run --release --example stream -- MODEL "Why is the sky blue?"`

use cupola::{Chat, Engine, EngineOptions, Event, GenerateOptions, SessionOptions, message};
use std::error::Error;
use std::io::Write;
use std::ops::ControlFlow;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(model), Some(question)) = (args.next(), args.next()) else {
        return Err("give a model (a folder or a GGUF file) and a question".into());
    };

    let engine = Engine::load(model, &EngineOptions::default())?;
    let sampling = engine.recommended_sampling().clone();
    let mut session = engine.session(SessionOptions { sampling, ..SessionOptions::default() })?;

    let chat = Chat::new(vec![message("user", &question)]);
    let options = GenerateOptions { max_tokens: Some(400), ..GenerateOptions::default() };
    let reply = session.chat(&chat, &options, |event| {
        if let Event::Text(text) = event {
            print!("{text}");
            let _ = std::io::stdout().flush();
        }
        ControlFlow::Continue(())
    })?;
    println!("\n({} tokens, {:?})", reply.tokens.len(), reply.finish);
    Ok(())
}
