//! Ctrl-C: the first one asks the work to stop, a second one ends the program.

use crate::failure::{Failure, Result};
use cupola::CancelToken;
use std::sync::LazyLock;

static TOKEN: LazyLock<CancelToken> = LazyLock::new(CancelToken::new);

/// From now on, Ctrl-C cancels the token. If it is still cancelled at the next one, the work has not reacted: the program
/// ends at once with code 130. Before this call, Ctrl-C ends the program as usual.
pub fn listen() {
    // Made here, so that the handler finds it made.
    let token = TOKEN.clone();
    // An error means that a handler is installed already, or that the system has none: then Ctrl-C ends the program.
    let _ = ctrlc::set_handler(move || {
        if token.is_cancelled() {
            std::process::exit(130);
        }
        token.cancel();
    });
}

/// The token that Ctrl-C cancels.
pub fn token() -> CancelToken {
    TOKEN.clone()
}

/// For loops that work through a list: an error if the user asked to stop.
pub fn check() -> Result<()> {
    if TOKEN.is_cancelled() { Err(Failure::Interrupted) } else { Ok(()) }
}
