//! `run` and `chat` with the embedded model.

mod common;

use common::{cupola, run, run_with_input};
use serde_json::json;
use std::io::Read;
use std::process::Stdio;

/// llama.cpp (llama-cpp-python 0.3.36) continues so with the embedded file, taking the likeliest token each time.
#[test]
fn the_embedded_model_continues_as_it_does_elsewhere() {
    let prompt = "Once upon a time, there was a little fox.";
    let args = ["run", "--raw", "--prompt", prompt, "--temp", "0", "--repeat-penalty", "1", "-n", "32", "--json"];
    let reply = run(args).json();
    let expected = [
        336, 288, 259, 374, 856, 310, 259, 440, 542, 16, 336, 677, 315, 259, 440, 936, 310, 847, 697, 623, 16, 893,
        387, 14, 284, 813, 259, 953, 790, 315, 264, 2309,
    ];
    assert_eq!(reply["tokens"], json!(expected));
    assert_eq!(reply["finish_reason"], "length");
    assert_eq!(reply["usage"]["reply_tokens"], 32);
    let text = reply["text"].as_str().unwrap();
    assert!(text.starts_with(" He was a little fox with a big heart. He lived in a big house"), "{text}");
}

#[test]
fn a_seed_repeats_a_story() {
    let story = |seed: &str| run(["run", "-n", "30", "--seed", seed]).code(0).out;
    let first = story("1");
    assert!(first.len() > 40 && first.ends_with('\n'), "{first}");
    assert_eq!(first, story("1"));
    assert_ne!(first, story("2"));
    // Streamed text is the text.
    let whole = run(["run", "-n", "30", "--seed", "1", "--json"]).json();
    assert_eq!(whole["text"].as_str().unwrap().trim_end(), first.trim_end());
    assert_eq!(whole["seed"], 1);
    // Threads do not change it.
    assert_eq!(first, run(["run", "-n", "30", "--seed", "1", "--threads", "1"]).code(0).out);
}

#[test]
fn limits_and_stops() {
    let reply = |args: &[&str]| run(["run", "--seed", "3", "--json"].iter().chain(args)).json();
    let nothing = reply(&["-n", "0"]);
    assert_eq!((&nothing["text"], &nothing["tokens"]), (&json!(""), &json!([])));
    for n in [1, 2, 3] {
        assert_eq!(reply(&["-n", &n.to_string()])["tokens"].as_array().unwrap().len(), n);
    }
    let stopped = reply(&["--stop", "the"]);
    assert_eq!(stopped["finish_reason"], "stop_string");
    assert!(!stopped["text"].as_str().unwrap().contains("the"));
    let full = reply(&["--context", "64", "--ignore-eos"]);
    assert_eq!(full["finish_reason"], "context_full");
    let usage = &full["usage"];
    assert_eq!(usage["prompt_tokens"].as_u64().unwrap() + usage["reply_tokens"].as_u64().unwrap(), 64);
    // A token that is ruled out does not come.
    let greedy = ["--temp", "0", "-n", "1"];
    let first = reply(&greedy)["tokens"][0].as_u64().unwrap();
    let bias = format!("{first}=-100");
    let other = reply(&[greedy.as_slice(), &["--logit-bias", &bias]].concat());
    assert_ne!(other["tokens"][0].as_u64().unwrap(), first);
}

#[test]
fn prompts_come_from_standard_input_too() {
    let args = ["run", "--raw", "--prompt", "Once upon a time", "-n", "8", "--temp", "0"];
    let direct = run(args).code(0).out;
    let piped = run_with_input(&["run", "embedded", "-", "--raw", "-n", "8", "--temp", "0"], "Once upon a time\n");
    assert_eq!(piped.code(0).out, direct);
}

#[test]
fn errors_say_what_to_do() {
    run(["run", "no-such-file.gguf"]).fails_with(&["no-such-file.gguf", "cupola run --prompt"]);
    run(["run", "Tell me a story"]).fails_with(&["cupola run --prompt"]);
    run(["run", "no-such-org/no-such-model", "x"]).fails_with(&["no-such-org/no-such-model"]);
    run(["run", "--prompt", "", "--raw", "--logit-bias", "4096=1"]).fails_with(&["4096", "4095"]);
    run(["run", "--context", "100000"]).fails_with(&["100000", "512"]);
    let long = "word ".repeat(600);
    run(["run", "--prompt", &long]).fails_with(&["512", "context"]);
    run(["run", "--device", "cuda"]).fails_with(&["cuda"]);
    run(["run", "--cpu", "abacus"]).fails_with(&["abacus"]);
    let file = run(["run", env!("CARGO_MANIFEST_DIR"), "hello"]);
    file.fails_with(&["neither a .gguf nor a .safetensors"]);
    let no_prompt = run(["run", concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/stories-7m-q8_0.gguf")]).code(2);
    assert!(no_prompt.err.contains("no prompt"), "{}", no_prompt.err);
}

#[test]
fn environment_variables_are_flags() {
    let with = |name: &str, value: &str| -> common::Done {
        cupola().env(name, value).args(["run", "-n", "1"]).output().unwrap().into()
    };
    with("CUPOLA_DEVICE", "cuda").fails_with(&["cuda"]);
    with("CUPOLA_CPU", "abacus").fails_with(&["abacus"]);
    with("CUPOLA_THREADS", "x").code(2);
    with("CUPOLA_EXACT", "1").code(0);
    with("CUPOLA_EXACT", "0").code(0);
}

#[test]
fn a_reader_who_leaves_ends_the_program_quietly() {
    let mut command = cupola();
    command.args(["run", "--ignore-eos", "--seed", "1"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut first = [0; 1];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let mut err = String::new();
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(err, "");
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_with_130_after_what_was_said() {
    let mut command = cupola();
    // Greedy text of this model goes round in circles until the context is full, however long that is.
    command.args(["run", "--ignore-eos", "--threads", "1", "--seed", "1", "--exact", "--verbose"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = [0; 1];
    let mut out = child.stdout.take().unwrap();
    out.read_exact(&mut first).unwrap();
    let kill = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(130));
    assert!(rest.ends_with('\n'), "{rest:?}");
}

#[test]
fn a_conversation_without_a_terminal() {
    let lines = "Tell me a story about a cat.\n/help\n\nAnother one, \\\nplease.\n/nope\n";
    let done = run_with_input(&["chat", "-n", "12", "--temp", "0", "--verbose"], lines).code(0);
    assert_eq!(done.err.matches("[prompt: ").count(), 2, "{}", done.err);
    assert!(done.err.contains("/clear") && done.err.contains("no command /nope"), "{}", done.err);
    // The second prompt holds the first turn, which is in the cache.
    assert!(done.err.contains("from the cache"), "{}", done.err);
    assert!(done.out.lines().count() >= 2, "{}", done.out);
    assert!(!done.out.contains("> "), "{}", done.out);
}

#[test]
fn a_conversation_can_be_saved_and_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (folder.path().join("one.json"), folder.path().join("two.json"));
    let lines = format!("Hello\n/save {}\n/clear\n/save {}\n", one.display(), two.display());
    run_with_input(&["chat", "-n", "4", "--system", "Be kind."], &lines).code(0);
    let read = |path| serde_json::from_str::<serde_json::Value>(&std::fs::read_to_string(path).unwrap()).unwrap();
    let said = read(&one);
    let roles: Vec<_> = said.as_array().unwrap().iter().map(|m| m["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["system", "user", "assistant"]);
    assert_eq!(read(&two), json!([{ "role": "system", "content": "Be kind." }]));
}
