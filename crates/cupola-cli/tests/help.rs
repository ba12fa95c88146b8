//! Help texts, versions and wrong usage.

mod common;

use common::run;

const COMMANDS: [&str; 9] = ["run", "chat", "bench", "inspect", "devices", "pull", "quantize", "logits", "perplexity"];

#[test]
fn every_command_explains_itself_with_examples() {
    let all = run(["--help"]).code(0).out;
    for command in COMMANDS {
        assert!(all.contains(&format!("\n  {command} ")), "{command} is not in {all}");
        let help = run([command, "--help"]).code(0);
        assert!(help.out.contains("Examples:\n  cupola"), "{command}: {}", help.out);
        assert!(help.err.is_empty());
        let long = help.out.lines().find(|line| line.chars().count() > 120);
        assert_eq!(long, None, "{command}");
        assert!(run([command, "-h"]).code(0).out.len() <= help.out.len());
    }
}

#[test]
fn the_version_is_the_packages() {
    assert_eq!(run(["--version"]).code(0).out, format!("cupola {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn wrong_usage_is_2() {
    let cases: &[&[&str]] = &[
        &[],
        &["nope"],
        &["--nope"],
        &["run", "--temp", "-1"],
        &["run", "--temp", "nan"],
        &["run", "--top-p", "1.5"],
        &["run", "--min-p", "x"],
        &["run", "--top-k", "-1"],
        &["run", "--repeat-penalty", "0"],
        &["run", "--logit-bias", "1"],
        &["run", "--logit-bias", "4294967296=1"],
        &["run", "--seed", "-1"],
        &["run", "-n", "-1"],
        &["run", "--stop", ""],
        &["run", "--threads", "0"],
        &["run", "--device", "toaster"],
        &["run", "--kv-type", "q4"],
        &["run", "--context", "many"],
        &["run", "embedded", "a", "b"],
        &["run", "embedded", "a", "--prompt", "b"],
        &["run", "--raw", "--system", "x"],
        &["chat", "embedded", "a"],
        &["bench", "embedded", "--synthetic", "1b"],
        &["bench", "--synthetic", "900b"],
        &["bench", "-p", "0", "-n", "0"],
        &["bench", "-p", "99999999"],
        &["bench", "-r", "0"],
        &["bench", "-b", "0"],
        &["bench", "-d", "99999", "-b", "8"],
        &["bench", "--threads", "1,x"],
        &["inspect"],
        &["pull"],
        &["pull", "no-slash"],
        &["pull", "../a"],
        &["pull", "a/b@"],
        &["quantize", "a", "b"],
        &["quantize", "a", "b", "--type", "Q4_K_XXL"],
        &["quantize", "a", "--type", "Q8_0"],
        &["perplexity", "embedded"],
        &["perplexity", "embedded", "x", "--context", "7"],
        &["perplexity", "embedded", "x", "--context", "8", "--stride", "9"],
        &["perplexity", "embedded", "x", "--chunks", "0"],
        &["logits", "embedded", "--out", "x"],
        &["logits", "embedded", "--tokens", "1,-2", "--out", "x"],
        &["logits", "embedded", "--tokens", "1", "--prompt", "x", "--out", "x"],
    ];
    for case in cases {
        let done = run(*case);
        assert_eq!(done.code, 2, "{case:?}: {}", done.err);
        assert!(done.out.is_empty(), "{case:?}: {}", done.out);
        assert!(!done.err.is_empty(), "{case:?}");
    }
}

#[test]
fn colours_need_a_terminal() {
    assert!(!run(["--help"]).out.contains('\x1b'));
    assert!(!run(["nope"]).err.contains('\x1b'));
}
