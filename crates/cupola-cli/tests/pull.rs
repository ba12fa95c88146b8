//! `pull` and models by name, with what is in the cache.

mod common;

use common::{cupola, text};

/// The layout that the hub's own programs give their cache.
#[test]
fn what_was_fetched_before_needs_no_connection() {
    let home = tempfile::tempdir().unwrap();
    let repository = home.path().join("hub/models--org--story");
    let snapshot = repository.join("snapshots/0123abc");
    std::fs::create_dir_all(&snapshot).unwrap();
    std::fs::create_dir_all(repository.join("refs")).unwrap();
    std::fs::write(repository.join("refs/main"), "0123abc").unwrap();
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/stories-7m-q8_0.gguf");
    std::fs::copy(model, snapshot.join("story.gguf")).unwrap();
    let run = |args: &[&str]| -> common::Done {
        let mut command = cupola();
        command.args(args).env("HF_HOME", home.path()).output().unwrap().into()
    };
    let path = run(&["pull", "org/story"]).code(0).out;
    assert_eq!(path.trim_end(), text(&snapshot.join("story.gguf")));
    run(&["run", "org/story", "Tell me a story.", "-n", "3"]).code(0);
    assert!(run(&["inspect", "org/story"]).code(0).out.contains("stories-7m"));
    run(&["pull", "org/another"]).fails_with(&["org/another", "not in the cache"]);
    run(&["pull", "org/story", "--revision", "v2"]).fails_with(&["org/story@v2"]);
}
