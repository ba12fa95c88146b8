//! Programs mean what the reference implementation computes, whatever a device makes of them.

#[path = "common/interpreter.rs"]
mod interpreter;
#[allow(dead_code)]
#[path = "common/references.rs"]
mod references;

use references::{NAMES, Reference};

#[test]
fn programs_mean_what_the_reference_implementation_computes() {
    let mut ggufs = 0;
    for name in NAMES {
        let r = Reference::open(name);
        for path in r.checkpoints() {
            ggufs += usize::from(path.is_file());
            let checkpoint = cupola_formats::Checkpoint::open(&path).unwrap();
            let model = cupola_models::build(&checkpoint).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            let all: Vec<usize> = (0..r.tokens.len()).collect();
            let found = interpreter::run(&model.program, &model.parameters, &r.tokens, &all);
            let (error, _) = r.error(found);
            assert!(error < 5e-5, "{}: off by {error:e} of the spread of the logits", path.display());
        }
    }
    assert_eq!(ggufs, 36);
}
