//! Realistic prompts by kind of work: the text decides how well drafts are accepted.
//!
//! The texts are part of the binary and never change under one version, so that probes of different
//! days and hosts are comparable.

use std::fmt::Write;
use std::str::FromStr;

use serde::Serialize;

/// Version of all texts; a change of any text is a new version.
pub const VERSION: &str = "v1";

/// Kinds of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PromptSet {
    /// Everyday questions, short prompts.
    Chat,
    /// Programming, where drafts are accepted best.
    Code,
    /// Free writing, where they are accepted worst.
    Prose,
    /// Questions about a document of several thousand tokens.
    Long,
    /// Turns of tool-using agents with a history.
    Agent,
}

impl PromptSet {
    /// Every set.
    pub const ALL: [PromptSet; 5] =
        [PromptSet::Chat, PromptSet::Code, PromptSet::Prose, PromptSet::Long, PromptSet::Agent];

    /// The name on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            PromptSet::Chat => "chat",
            PromptSet::Code => "code",
            PromptSet::Prose => "prose",
            PromptSet::Long => "long",
            PromptSet::Agent => "agent",
        }
    }

    /// The prompts of the set, in the order of the file.
    #[must_use]
    pub fn prompts(self) -> Vec<Prompt> {
        let text = match self {
            PromptSet::Chat => include_str!("prompts/chat.txt"),
            PromptSet::Code => include_str!("prompts/code.txt"),
            PromptSet::Prose => include_str!("prompts/prose.txt"),
            PromptSet::Long => include_str!("prompts/long.txt"),
            PromptSet::Agent => include_str!("prompts/agent.txt"),
        };
        let mut prompts = parse(text);
        if self == PromptSet::Long {
            let document = document();
            for message in prompts.iter_mut().flat_map(|prompt| &mut prompt.messages) {
                message.content = message.content.replace("{document}", &document);
            }
        }
        prompts
    }
}

impl FromStr for PromptSet {
    type Err = String;

    fn from_str(text: &str) -> Result<PromptSet, String> {
        PromptSet::ALL.into_iter().find(|set| set.name() == text).ok_or_else(|| {
            let names: Vec<&str> = PromptSet::ALL.iter().map(|set| set.name()).collect();
            format!("unknown prompt set {text:?}; the sets are {}", names.join(", "))
        })
    }
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: &'static str,
    /// Its text.
    pub content: String,
}

/// A conversation that waits for an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    /// Name within its set.
    pub id: &'static str,
    /// What is sent.
    pub messages: Vec<Message>,
}

impl Prompt {
    /// The conversation with a salt in front, so that no prefix of it is in any cache.
    #[must_use]
    pub fn salted(&self, salt: &str) -> Vec<Message> {
        let mut messages = self.messages.clone();
        if let Some(first) = messages.first_mut() {
            first.content = format!("Reference {salt}.\n\n{}", first.content);
        }
        messages
    }
}

/// Reads `=== id` and `--- role` headings with text below each.
fn parse(text: &'static str) -> Vec<Prompt> {
    let mut prompts: Vec<Prompt> = Vec::new();
    for line in text.lines() {
        if let Some(id) = line.strip_prefix("=== ") {
            prompts.push(Prompt { id, messages: Vec::new() });
        } else if let (Some(role), Some(prompt)) = (line.strip_prefix("--- "), prompts.last_mut()) {
            prompt.messages.push(Message { role, content: String::new() });
        } else if let Some(message) = prompts.last_mut().and_then(|p| p.messages.last_mut()) {
            message.content.push_str(line);
            message.content.push('\n');
        }
    }
    for message in prompts.iter_mut().flat_map(|prompt| &mut prompt.messages) {
        message.content.truncate(message.content.trim_end().len());
    }
    prompts
}

/// Rows of the table below the handbook.
const N_READINGS: usize = 150;

/// The handbook and a table of readings: long, and not a repetition of one passage.
fn document() -> String {
    let mut document = include_str!("prompts/handbook.txt").to_owned();
    document.push_str("\nReadings (time; float cm; radar cm; spread cm; battery V; quality)\n");
    // Any deterministic sequence does; this one looks like tides with weather on top.
    for i in 0..N_READINGS {
        let t = i as f64 * 0.1;
        let weather = 22.0 * (t / 7.0).sin() + ((i * 7919) % 11) as f64 - 5.0;
        let float = 41.0 * (t * 0.506).sin() + weather;
        let radar = float + ((i * 104_729) % 9) as f64 * 0.4 - 1.6;
        let spread = if i % 37 == 11 { 19.4 } else { 2.0 + ((i * 31) % 17) as f64 * 0.3 };
        let volts = 12.7 - 0.011 * i as f64;
        let quality = if i % 23 == 7 { 'C' } else { 'A' };
        let (hour, minute) = (i / 10 % 24, i % 10 * 6);
        // Writing to a string cannot fail.
        let _ = writeln!(
            document,
            "{hour:02}:{minute:02}; {float:.1}; {radar:.1}; {spread:.1}; {volts:.2}; {quality}"
        );
    }
    document
}

#[cfg(test)]
mod tests {
    use super::PromptSet;

    #[test]
    fn every_set_ends_with_a_question() {
        for set in PromptSet::ALL {
            let prompts = set.prompts();
            assert!(prompts.len() >= 3, "{set:?}");
            let mut ids: Vec<&str> = prompts.iter().map(|prompt| prompt.id).collect();
            ids.sort_unstable();
            ids.dedup();
            assert_eq!(ids.len(), prompts.len());
            for prompt in prompts {
                assert_eq!(prompt.messages.last().unwrap().role, "user", "{}", prompt.id);
                for message in &prompt.messages {
                    assert!(["system", "user", "assistant"].contains(&message.role));
                    assert!(!message.content.is_empty() && !message.content.contains("{document}"));
                }
            }
        }
    }

    #[test]
    fn long_prompts_are_long() {
        for prompt in PromptSet::Long.prompts() {
            assert!(prompt.messages[0].content.len() > 10_000);
        }
    }

    /// The texts are what version v1 says: a changed text needs a new version and new numbers here.
    #[test]
    fn the_texts_of_this_version_do_not_change() {
        let hash = |set: PromptSet| {
            let mut hash = 0xCBF2_9CE4_8422_2325_u64;
            for message in set.prompts().iter().flat_map(|prompt| &prompt.messages) {
                for byte in message.content.bytes() {
                    hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3);
                }
            }
            format!("{} {hash:016x}", set.name())
        };
        let expected = [
            "chat a542eb0d34e02aaf",
            "code 4ab4e3bd1a050548",
            "prose 3f11577a677b697a",
            "long a210cb802cbcceba",
            "agent 3d4373581c2408de",
        ];
        assert_eq!(PromptSet::ALL.map(hash), expected);
    }

    #[test]
    fn a_salt_stands_in_front() {
        let prompt = &PromptSet::Agent.prompts()[0];
        let salted = prompt.salted("77-12");
        assert!(salted[0].content.starts_with("Reference 77-12."));
        assert_eq!(salted[1..], prompt.messages[1..]);
    }

    #[test]
    fn unknown_sets_are_refused_by_name() {
        assert_eq!("code".parse(), Ok(PromptSet::Code));
        assert!("poem".parse::<PromptSet>().unwrap_err().contains("chat, code"));
    }
}
