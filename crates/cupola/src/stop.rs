//! Stop strings in text that arrives piece by piece.

/// Finds stop strings across the borders of pieces, and holds back text that may turn out to be part of one.
///
/// The result does not depend on how the text is cut into pieces: the stop string that is complete first wins, and of
/// those that end at the same place the longest. Its text, and everything after it, is not shown.
#[derive(Clone, Debug, Default)]
pub struct StopStrings {
    strings: Vec<String>,
    /// Text that is not shown yet: it ends with the beginning of a stop string.
    held: String,
    stopped: bool,
}

impl StopStrings {
    /// A matcher for these strings; empty ones never match.
    pub fn new(strings: impl IntoIterator<Item = String>) -> StopStrings {
        let strings = strings.into_iter().filter(|s| !s.is_empty()).collect();
        StopStrings { strings, held: String::new(), stopped: false }
    }

    /// Takes the next piece and gives the text that can be shown now. After a stop string nothing more is shown.
    pub fn push(&mut self, piece: &str) -> String {
        if self.stopped {
            return String::new();
        }
        self.held.push_str(piece);
        // `find` gives the first occurrence of each string, which is also the one that ends first.
        let found = self.strings.iter().filter_map(|s| self.held.find(s).map(|start| (start + s.len(), start)));
        if let Some((_, start)) = found.min() {
            self.stopped = true;
            self.held.truncate(start);
            return std::mem::take(&mut self.held);
        }
        let rest = self.held.split_off(self.held.len() - self.undecided());
        std::mem::replace(&mut self.held, rest)
    }

    /// Whether a stop string has occurred.
    pub fn stopped(&self) -> bool {
        self.stopped
    }

    /// Ends the text: gives what was held back.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Length of the longest end of the held text that is the beginning of a stop string.
    fn undecided(&self) -> usize {
        let longest = self.strings.iter().map(|s| s.len() - 1).max().unwrap_or(0);
        let from = self.held.len().saturating_sub(longest);
        let starts = (from..self.held.len()).filter(|at| self.held.is_char_boundary(*at));
        let mut ends = starts.map(|at| &self.held[at..]);
        ends.find(|end| self.strings.iter().any(|s| s.starts_with(end))).map_or(0, str::len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everything shown, and whether it stopped.
    fn run(stops: &[&str], pieces: &[&str]) -> (String, bool) {
        let mut m = StopStrings::new(stops.iter().map(|s| s.to_string()));
        let mut shown: String = pieces.iter().map(|p| m.push(p)).collect();
        let stopped = m.stopped();
        shown += &m.finish();
        (shown, stopped)
    }

    /// All ways to cut a text into two pieces, and into single characters.
    fn every_cut(text: &str, check: impl Fn(&[&str])) {
        let mut cuts: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        cuts.push(text.len());
        for at in &cuts {
            let (a, b) = text.split_at(*at);
            check(&[a, b]);
        }
        check(&cuts.windows(2).map(|w| &text[w[0]..w[1]]).collect::<Vec<_>>());
    }

    #[test]
    fn a_stop_string_is_found_across_pieces_and_not_shown() {
        every_cut("one. END two", |pieces| assert_eq!(run(&["END"], pieces), ("one. ".into(), true), "{pieces:?}"));
        every_cut("é🦙漢字x", |pieces| assert_eq!(run(&["🦙漢"], pieces), ("é".into(), true), "{pieces:?}"));
        // A beginning that fails in the middle of another.
        every_cut("aaab!", |pieces| assert_eq!(run(&["aab"], pieces), ("a".into(), true), "{pieces:?}"));
    }

    #[test]
    fn text_that_only_looked_like_one_is_shown() {
        every_cut("EN ENd EN", |pieces| assert_eq!(run(&["END"], pieces), ("EN ENd EN".into(), false), "{pieces:?}"));
        every_cut("abc", |pieces| assert_eq!(run(&[""], pieces), ("abc".into(), false)));
        every_cut("abc", |pieces| assert_eq!(run(&[], pieces), ("abc".into(), false)));
    }

    #[test]
    fn the_first_complete_one_wins_then_the_longest() {
        every_cut("xabcd", |pieces| {
            assert_eq!(run(&["abcd", "bc"], pieces), ("xa".into(), true), "{pieces:?}");
            assert_eq!(run(&["bc", "abc"], pieces), ("x".into(), true), "{pieces:?}");
        });
    }

    #[test]
    fn only_what_is_undecided_is_held_back() {
        let mut m = StopStrings::new(["\n\nUser:".to_string()]);
        let shown = ["Hi", "\n", "\n", "Us", "e", "d"].map(|p| m.push(p));
        assert_eq!(shown, ["Hi", "", "", "", "", "\n\nUsed"]);
        assert_eq!(m.finish(), "");
    }

    #[test]
    fn nothing_is_shown_after_a_stop() {
        let mut m = StopStrings::new(["x".to_string()]);
        assert_eq!((m.push("axb"), m.push("c"), m.finish()), ("a".into(), String::new(), String::new()));
    }
}
