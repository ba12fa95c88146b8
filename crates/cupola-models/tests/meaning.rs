//! Programs mean what the reference implementation computes.

#[path = "common/interpreter.rs"]
mod interpreter;
#[path = "common/references.rs"]
mod references;

use references::{NAMES, Reference};

#[test]
fn logits_are_those_of_the_reference_implementation() {
    for name in NAMES {
        let r = Reference::open(name);
        let checkpoint = cupola_formats::Checkpoint::open(&r.folder).unwrap();
        let model = cupola_models::build(&checkpoint).unwrap_or_else(|e| panic!("{name}: {e}"));
        let all: Vec<usize> = (0..r.tokens.len()).collect();
        let found = interpreter::run(&model.program, &model.parameters, &r.tokens, &all);
        let error = r.error(&found);
        println!("{name} {error:.2e}");
        assert!(error < 1e-4, "{name}: {error} of the spread of the logits");
    }
}
