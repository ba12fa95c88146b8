//! Why a command did not do what it was asked for, and the exit code that says so.

use crate::terminal;
use std::error::Error;
use std::fmt::Display;
use std::io;
use std::process::ExitCode;

/// The result of everything that a command does.
pub type Result<T> = std::result::Result<T, Failure>;

/// How a command ends early.
#[derive(Debug)]
pub enum Failure {
    /// It could not be done. The messages lead from the command to the cause.
    Failed(Vec<String>),
    /// The arguments make no sense together.
    Usage(String),
    /// The user pressed Ctrl-C.
    Interrupted,
    /// Whoever read the output has stopped, as in `| head`: there is nobody left to tell.
    NobodyReads,
}

impl Failure {
    /// A failure with a message of its own.
    pub fn new(message: impl Into<String>) -> Failure {
        Failure::Failed(vec![message.into()])
    }

    /// Puts what was being done before the cause.
    pub fn within(self, what: impl Display) -> Failure {
        match self {
            Failure::Failed(mut chain) => {
                chain.insert(0, what.to_string());
                Failure::Failed(chain)
            }
            other => other,
        }
    }

    /// Tells the user, and gives the exit code: 1 failed, 2 wrong usage, 130 interrupted.
    pub fn report(self) -> ExitCode {
        match self {
            Failure::Failed(chain) => {
                let mut messages = chain.into_iter();
                terminal::error(&messages.next().unwrap_or_default());
                messages.for_each(|m| terminal::note(&format!("  because: {}", terminal::printable(&m))));
                ExitCode::from(1)
            }
            Failure::Usage(message) => {
                terminal::error(&message);
                ExitCode::from(2)
            }
            Failure::Interrupted => ExitCode::from(130),
            Failure::NobodyReads => ExitCode::SUCCESS,
        }
    }
}

/// The whole chain of causes. A cause that its parent's message already contains is not repeated.
impl<E: Error + 'static> From<E> for Failure {
    fn from(error: E) -> Failure {
        let mut cause: Option<&(dyn Error + 'static)> = Some(&error);
        let mut chain: Vec<String> = vec![];
        while let Some(e) = cause {
            if e.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe) {
                return Failure::NobodyReads;
            }
            let message = e.to_string();
            if !chain.last().is_some_and(|last| last.contains(&message)) {
                chain.push(message);
            }
            cause = e.source();
        }
        Failure::Failed(chain)
    }
}

/// Adds what was being done to an error.
pub trait Within<T> {
    /// Puts `what` before the cause.
    fn within(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<Failure>> Within<T> for std::result::Result<T, E> {
    fn within(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|e| e.into().within(what()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{message}")]
    struct Chained {
        message: &'static str,
        source: Option<Box<Chained>>,
    }

    #[test]
    fn a_cause_is_named_once() {
        let inner = Chained { message: "inner", source: None };
        let middle = Chained { message: "middle: inner", source: Some(Box::new(inner)) };
        let outer = Chained { message: "outer", source: Some(Box::new(middle)) };
        let Failure::Failed(chain) = Failure::from(outer).within("top") else { panic!() };
        assert_eq!(chain, ["top", "outer", "middle: inner"]);
    }

    #[test]
    fn a_reader_who_left_is_no_failure() {
        let gone = io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(matches!(Failure::from(gone), Failure::NobodyReads));
    }
}
