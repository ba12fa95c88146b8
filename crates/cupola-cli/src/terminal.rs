//! What the user sees: results on standard output, everything else on standard error.
//!
//! Colours and progress bars appear only on a terminal; `NO_COLOR` is respected.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::borrow::Cow;
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};
use std::time::Duration;

/// Where results go. Nothing is printed on a terminal's behalf: no colours, no control characters.
pub fn out() -> BufWriter<StdoutLock<'static>> {
    BufWriter::new(io::stdout().lock())
}

/// Writes JSON to standard output, on one line.
pub fn json_line(value: &serde_json::Value) -> crate::failure::Result<()> {
    let mut out = out();
    serde_json::to_writer(&mut out, value)?;
    writeln!(out)?;
    Ok(out.flush()?)
}

/// Writes JSON to standard output, laid out for reading.
pub fn json(value: &serde_json::Value) -> crate::failure::Result<()> {
    let mut out = out();
    serde_json::to_writer_pretty(&mut out, value)?;
    writeln!(out)?;
    Ok(out.flush()?)
}

/// A line for the user beside the result.
pub fn note(line: &str) {
    // Nothing can be said about a standard error that is closed.
    let _ = writeln!(io::stderr(), "{line}");
}

/// A note in dim letters.
pub fn quiet_note(line: &str) {
    note(&console::style(line).for_stderr().dim().to_string());
}

/// Says that something may not be what the user expects.
pub fn warning(message: &str) {
    note(&format!("{} {}", console::style("warning:").for_stderr().yellow().bold(), printable(message)));
}

/// Says why the command failed.
pub fn error(message: &str) {
    note(&format!("{} {}", console::style("error:").for_stderr().red().bold(), printable(message)));
}

/// Whether a person sits at standard input.
pub fn stdin_is_terminal() -> bool {
    io::stdin().is_terminal()
}

/// Whether a person reads standard output.
pub fn stdout_is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// A bar for `total` bytes (0: not known yet), on standard error. Hidden unless that is a terminal.
pub fn bytes_bar(action: &'static str, total: u64) -> ProgressBar {
    let template = "{prefix} {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}";
    styled(ProgressBar::new(total), template, action)
}

/// A bar for `total` steps, with a message.
pub fn steps_bar(action: &'static str, total: u64) -> ProgressBar {
    styled(ProgressBar::new(total), "{prefix} {wide_bar} {pos}/{len} {msg} {eta}", action)
}

/// A spinner with a message, for work of unknown length.
pub fn spinner(action: &'static str) -> ProgressBar {
    let bar = styled(ProgressBar::new_spinner(), "{prefix} {spinner} {msg}", action);
    if !bar.is_hidden() {
        bar.enable_steady_tick(Duration::from_millis(100));
    }
    bar
}

fn styled(bar: ProgressBar, template: &str, action: &'static str) -> ProgressBar {
    bar.set_draw_target(ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.with_prefix(action)
}

/// The text without characters that would command a terminal: models and files can contain any.
pub fn printable(text: &str) -> Cow<'_, str> {
    let commands = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    match text.contains(commands) {
        true => Cow::Owned(text.replace(commands, "\u{fffd}")),
        false => Cow::Borrowed(text),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn terminals_are_not_commanded() {
        assert_eq!(super::printable("a\tb\nc\u{1f98a}"), "a\tb\nc\u{1f98a}");
        assert_eq!(super::printable("\x1b[2J\r\u{9b}x"), "\u{fffd}[2J\u{fffd}\u{fffd}x");
    }
}
