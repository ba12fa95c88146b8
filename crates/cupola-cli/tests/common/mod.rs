//! Runs the real program.

#![allow(dead_code)] // Each test file uses some of this.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The program, in an environment that none of its variables reach.
pub fn cupola() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cupola"));
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("CUPOLA_") || name.starts_with("HF_") {
            command.env_remove(name);
        }
    }
    command.env("HF_HUB_OFFLINE", "1").stdin(Stdio::null());
    command
}

/// What the program did.
pub struct Done {
    /// Its exit code.
    pub code: i32,
    /// Its standard output.
    pub out: String,
    /// Its standard error.
    pub err: String,
}

impl Done {
    /// Fails unless the code is this.
    #[track_caller]
    pub fn code(self, expected: i32) -> Done {
        assert_eq!(self.code, expected, "stdout: {}\nstderr: {}", self.out, self.err);
        self
    }

    /// Fails unless the program ended with 1 and a message that contains all of these.
    #[track_caller]
    pub fn fails_with(self, parts: &[&str]) {
        let done = self.code(1);
        assert!(done.err.starts_with("error: "), "{}", done.err);
        for part in parts {
            assert!(done.err.contains(part), "{part:?} is not in {}", done.err);
        }
    }

    /// The standard output as JSON.
    #[track_caller]
    pub fn json(self) -> serde_json::Value {
        let done = self.code(0);
        serde_json::from_str(&done.out).unwrap_or_else(|e| panic!("{e}: {}", done.out))
    }
}

impl From<Output> for Done {
    fn from(output: Output) -> Done {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("output is UTF-8");
        let (out, err) = (text(output.stdout), text(output.stderr));
        assert!(!err.contains("panicked"), "{err}");
        Done { code: output.status.code().expect("ended by itself"), out, err }
    }
}

/// Runs the program to its end.
pub fn run<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> Done {
    cupola().args(args).output().expect("the program starts").into()
}

/// Runs the program with this standard input.
pub fn run_with_input(args: &[&str], input: &str) -> Done {
    let mut command = cupola();
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("it reads");
    child.wait_with_output().expect("it ends").into()
}

/// A file or folder of the repository's test data.
pub fn data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(path)
}

/// A path as an argument.
pub fn text(path: &Path) -> &str {
    path.to_str().expect("test paths are UTF-8")
}
