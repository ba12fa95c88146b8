//! Messages of several lines.

/// Puts lines together into messages: a backslash at the end continues on the next line, and three quotation marks
/// begin and end a block.
#[derive(Debug, Default)]
pub struct Input {
    lines: Vec<String>,
    block: bool,
}

const QUOTES: &str = "\"\"\"";

impl Input {
    /// Takes a line; gives the message if it is complete.
    pub fn push(&mut self, line: &str) -> Option<String> {
        let mut line = line;
        if !self.block && self.lines.is_empty() {
            let start = line.trim_start();
            if let Some(rest) = start.strip_prefix(QUOTES) {
                self.block = true;
                line = rest;
            }
        }
        if self.block {
            let Some((text, _)) = line.split_once(QUOTES) else {
                self.lines.push(line.into());
                return None;
            };
            self.lines.push(text.into());
            let message = self.take();
            return Some(message.trim_matches('\n').into());
        }
        match line.strip_suffix('\\') {
            Some(start) => {
                self.lines.push(start.into());
                None
            }
            None => {
                self.lines.push(line.into());
                Some(self.take())
            }
        }
    }

    /// Whether a message has begun that is not complete.
    pub fn is_open(&self) -> bool {
        self.block || !self.lines.is_empty()
    }

    /// What has been put together so far; the next line begins a new message.
    pub fn take(&mut self) -> String {
        self.block = false;
        std::mem::take(&mut self.lines).join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::Input;

    fn messages(lines: &[&str]) -> Vec<String> {
        let mut input = Input::default();
        let complete = lines.iter().filter_map(|line| input.push(line)).collect();
        assert!(!input.is_open());
        complete
    }

    #[test]
    fn lines_blocks_and_continuations() {
        assert_eq!(messages(&["hello", "", "you"]), ["hello", "", "you"]);
        assert_eq!(messages(&["one\\", "two\\", "three", "four"]), ["one\ntwo\nthree", "four"]);
        assert_eq!(messages(&["\"\"\"", "a \\", "  b", "\"\"\"", "c"]), ["a \\\n  b", "c"]);
        assert_eq!(messages(&["\"\"\"one line\"\"\""]), ["one line"]);
        assert_eq!(messages(&["say \"\"\"x\"\"\""]), ["say \"\"\"x\"\"\""]);
    }

    #[test]
    fn an_open_message_can_be_dropped() {
        let mut input = Input::default();
        assert_eq!(input.push("\"\"\"a"), None);
        assert!(input.is_open());
        assert_eq!(input.take(), "a");
        assert_eq!(input.push("b"), Some("b".into()));
    }
}
