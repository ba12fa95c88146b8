//! What has been said.

use cupola::{Chat, message};
use serde_json::Value as Json;

/// A system message, and what user and model said in turn.
#[derive(Debug, Default)]
pub struct Conversation {
    system: Option<String>,
    turns: Vec<Json>,
}

impl Conversation {
    /// Begins with this system message.
    pub fn new(system: Option<String>) -> Conversation {
        Conversation { system: system.filter(|s| !s.is_empty()), turns: vec![] }
    }

    /// Forgets what was said, but not the system message.
    pub fn clear(&mut self) {
        self.turns.clear();
    }

    /// The user says something.
    pub fn ask(&mut self, text: &str) {
        self.turns.push(message("user", text));
    }

    /// The model replies.
    pub fn reply(&mut self, text: &str) {
        self.turns.push(message("assistant", text));
    }

    /// Takes back what the user said last, if there is no reply to it.
    pub fn take_back(&mut self) {
        if self.turns.last().is_some_and(|turn| turn["role"] == "user") {
            self.turns.pop();
        }
    }

    /// Everything, for the model.
    pub fn chat(&self) -> Chat {
        Chat::new(self.messages())
    }

    /// Everything as JSON.
    pub fn messages(&self) -> Vec<Json> {
        let system = self.system.iter().map(|text| message("system", text));
        system.chain(self.turns.iter().cloned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roles(c: &Conversation) -> Vec<String> {
        c.messages().iter().map(|m| m["role"].as_str().unwrap_or_default().to_string()).collect()
    }

    #[test]
    fn turns_come_and_go() {
        let mut c = Conversation::new(Some("Be brief.".into()));
        c.ask("one");
        c.reply("two");
        c.take_back();
        assert_eq!(roles(&c), ["system", "user", "assistant"]);
        c.ask("three");
        c.take_back();
        assert_eq!(roles(&c), ["system", "user", "assistant"]);
        c.clear();
        assert_eq!(roles(&c), ["system"]);
        assert!(Conversation::new(Some(String::new())).messages().is_empty());
    }
}
