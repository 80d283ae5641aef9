//! The outcome of one rule or fixture, with the messages that show it.

use std::collections::VecDeque;

use epitome_transcript::{MessageDirection, Recorder};

/// The protocol's error for a missing login.
pub(crate) const AUTH_REQUIRED: i64 = -32000;

/// Maximum characters of the actual message in a failure report.
const GOT_CHARACTERS_MAX: usize = 1200;

/// Whether the protocol demands what a rule checks, with a MUST.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleLevel {
    Required,
    Recommended,
}

/// The result of a fixture.
#[derive(Clone, Debug, PartialEq)]
pub enum FixtureOutcome {
    Passed,
    Failed(FixtureFailure),
    /// The agent doesn't advertise this capability.
    NotOffered(String),
    /// The fixture does not apply to this setting, for this reason.
    NotMeant(String),
}

/// The first difference between a fixture and a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FixtureFailure {
    /// The line of the fixture, from 1; 0 for a rule.
    pub line: usize,
    pub expected: String,
    pub got: String,
    /// Further information: the model's calls, the agent's error output.
    pub notes: Vec<String>,
    /// The last messages before it.
    pub transcript: Vec<String>,
}

/// Why a run stops early.
pub enum Halt {
    Failed(Box<FixtureFailure>),
    NotOffered(String),
    /// The agent does nothing without a login.
    NeedsLogin,
}

impl FixtureFailure {
    pub fn new(line: usize, expected: impl Into<String>, got: impl Into<String>) -> FixtureFailure {
        let (expected, got) = (expected.into(), shortened(got.into()));
        FixtureFailure { line, expected, got, notes: Vec::new(), transcript: Vec::new() }
    }
}

impl Halt {
    pub fn wrong(line: usize, expected: impl Into<String>, got: impl Into<String>) -> Halt {
        Halt::Failed(Box::new(FixtureFailure::new(line, expected, got)))
    }
}

/// Shortens long messages in a report.
fn shortened(text: String) -> String {
    match text.char_indices().nth(GOT_CHARACTERS_MAX) {
        Some((at, _)) => format!("{} … ({} characters)", &text[..at], text.chars().count()),
        None => text,
    }
}

/// Maximum messages of a run that are kept for a report.
const MESSAGES_MAX: usize = 10_000;

/// How many of the last messages a report shows, and the characters of each.
const SHOWN_MESSAGES: usize = 6;
const SHOWN_CHARACTERS: usize = 240;

/// The messages of a run.
#[derive(Default)]
pub struct RunTranscript {
    lines: VecDeque<(MessageDirection, Vec<u8>)>,
}

impl RunTranscript {
    pub(crate) fn record(&mut self, direction: MessageDirection, line: &[u8]) {
        self.lines.push_back((direction, line.to_vec()));
        if self.lines.len() > MESSAGES_MAX {
            self.lines.pop_front();
        }
    }

    /// Returns the last messages in the format of fixtures, each as one line that may be cut.
    pub(crate) fn last_messages(&self) -> Vec<String> {
        let mut all = Vec::new();
        let mut recorder = Recorder::new(&mut all);
        for (direction, line) in &self.lines {
            // A vector takes all.
            let _ = recorder.line(*direction, line);
        }
        let mut messages: Vec<String> = Vec::new();
        for line in String::from_utf8_lossy(&all).lines().skip(1) {
            match messages.last_mut().filter(|_| line.starts_with("        ")) {
                Some(begun) => begun.push_str(line.trim_start()),
                None => messages.push(line.to_owned()),
            }
        }
        messages.drain(..messages.len().saturating_sub(SHOWN_MESSAGES));
        messages.into_iter().map(|message| cut(&message)).collect()
    }
}

pub(crate) fn cut(message: &str) -> String {
    match message.char_indices().nth(SHOWN_CHARACTERS) {
        Some((at, _)) => format!("{} …", &message[..at]),
        None => message.to_owned(),
    }
}
