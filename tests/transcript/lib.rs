//! The readable transcript of a protocol connection, used as fixture, recording and documentation.
//!
//! Pure: converts text to data and back. Starts no processes and reads no files. The runner of fixtures is
//! `cli::check`, the scripted model is `tests/scripted_model`.
//!
//! ```text
//! # The model reads a file and answers.
//! file notes.txt: milk, bread
//!
//! editor> initialize
//! agent<  result {"protocolVersion":1,"*":"*"}
//! editor> session/new
//! agent<  result {"sessionId":"$S1","*":"*"}
//! agent~  session/update $S1 available_commands /compact /undo
//! editor> session/prompt $S1 "what is in notes.txt?"
//! model?  user "what is in notes.txt?"
//! model!  call file_read {"file_path":"notes.txt"}
//! agent<  session/update $S1 tool_call file_read pending
//! agent<  session/update $S1 tool_call_update file_read completed
//! model?  result file_read "milk, bread"
//! model!  text "Milk and bread."
//! agent<  session/update $S1 text "Milk and bread."
//! agent<  result end_turn
//! ```
//!
//! `protocol-fixtures/README.md` documents the complete grammar.

pub mod agent;
pub mod book;
pub mod call_shape;
pub mod editor;
mod model;
pub mod names;
mod record;
pub mod setup;
pub mod update;
pub mod words;

pub use book::MessageDirection;
pub use model::{ModelStep, ScriptedStop, SeenPart};
pub use record::Recorder;

use std::fmt;

use agent::Expected;
use editor::EditorAct;
use setup::Setup;
use words::{GUTTER, LineWord};

/// The lines of a transcript.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fixture {
    pub lines: Vec<FixtureLine>,
}

/// A line, or several lines that form a unit (a file's text, a wide JSON value).
#[derive(Clone, Debug, PartialEq)]
pub struct FixtureLine {
    /// The number of its first line in the file, from 1.
    pub number: usize,
    pub what: LineContent,
    /// The text after `# ` on the same line.
    pub comment: Option<String>,
}

/// The contents of a line.
#[derive(Clone, Debug, PartialEq)]
pub enum LineContent {
    Blank,
    /// A line that is only a comment.
    Comment,
    Setup(Setup),
    /// `editor>`
    Editor(Vec<LineWord>, EditorAct),
    /// `agent<`: the next message of the agent.
    Agent(Vec<LineWord>, Expected),
    /// `agent~`: a message of the agent at any time before the editor's next line.
    AgentFree(Vec<LineWord>, Expected),
    /// `model?`
    Sees(SeenPart),
    /// `model!`
    Says(ModelStep),
}

/// An error in a transcript, with its line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct ParseError {
    pub line: usize,
    pub message: String,
}

impl Fixture {
    /// Parses a transcript. Unrecognized lines are errors.
    pub fn parse(text: &str) -> Result<Fixture, ParseError> {
        let mut lines = Vec::new();
        let mut source = text.lines().enumerate().map(|(at, line)| (at + 1, line)).peekable();
        while let Some((number, first)) = source.next() {
            let wrong = |message: String| ParseError { line: number, message };
            let mut whole = first.to_owned();
            if is_message(first) {
                while let Some((_, more)) = source.next_if(|(_, line)| continues(line)) {
                    whole.push('\n');
                    whole.push_str(more);
                }
            }
            let (what, comment) = if first.trim().is_empty() {
                (LineContent::Blank, None)
            } else if let Some(comment) = first.strip_prefix('#') {
                (LineContent::Comment, Some(comment.trim().to_owned()))
            } else if is_message(first) {
                let (words, comment) = words::read(&whole[GUTTER - 1..]).map_err(wrong)?;
                (read_message(&first[..GUTTER - 1], words).map_err(wrong)?, comment)
            } else {
                let mut body = |end: &str| {
                    let mut lines = Vec::new();
                    for (_, line) in source.by_ref() {
                        if line == end {
                            return Some(lines);
                        }
                        lines.push(line.to_owned());
                    }
                    None
                };
                (LineContent::Setup(Setup::read(first, &mut body).map_err(wrong)?), None)
            };
            lines.push(FixtureLine { number, what, comment });
        }
        Ok(Fixture { lines })
    }

    /// The first comment, which describes the transcript.
    pub fn title(&self) -> &str {
        let comments = self.lines.iter().filter(|line| line.what == LineContent::Comment);
        comments.filter_map(|line| line.comment.as_deref()).next().unwrap_or("")
    }

    /// Whether an expected message has this word, for example that of a kind of updates.
    pub fn expects(&self, word: &str) -> bool {
        let is_it = |found: &LineWord| matches!(found, LineWord::Bare(bare) if bare == word);
        self.lines.iter().any(|line| match &line.what {
            LineContent::Agent(words, _) | LineContent::AgentFree(words, _) => words.iter().any(is_it),
            _ => false,
        })
    }

    /// All set-up lines.
    pub fn setups(&self) -> impl Iterator<Item = &Setup> {
        self.lines
            .iter()
            .filter_map(|line| if let LineContent::Setup(setup) = &line.what { Some(setup) } else { None })
    }

    /// Whether it can be run against any agent: it is marked as such, or it contains no lines of a model.
    pub fn is_for_any_agent(&self) -> bool {
        let marked = self.setups().any(|setup| *setup == Setup::AnyAgent);
        marked
            || !self.lines.iter().any(|line| matches!(line.what, LineContent::Sees(_) | LineContent::Says(_)))
    }
}

/// Writes the canonical text, which [`Fixture::parse`] parses to the same lines.
impl fmt::Display for Fixture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

impl fmt::Display for FixtureLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let comment = self.comment.as_deref();
        let text = match &self.what {
            LineContent::Blank => String::new(),
            LineContent::Comment => format!("# {}", comment.unwrap_or("")).trim_end().to_owned(),
            LineContent::Setup(setup) => setup.to_string(),
            LineContent::Editor(words, _) => words::write("editor>", words, comment),
            LineContent::Agent(words, _) => words::write("agent<", words, comment),
            LineContent::AgentFree(words, _) => words::write("agent~", words, comment),
            LineContent::Sees(seen) => words::write("model?", &seen.words(), comment),
            LineContent::Says(step) => words::write("model!", &step.words(), comment),
        };
        f.write_str(&text)
    }
}

fn is_message(line: &str) -> bool {
    ["editor>", "agent< ", "agent~ ", "model? ", "model! "].iter().any(|gutter| line.starts_with(gutter))
}

/// Whether the line continues the previous one: it is indented to the gutter.
fn continues(line: &str) -> bool {
    line.len() > GUTTER && line.bytes().take(GUTTER).all(|b| b == b' ')
}

fn read_message(gutter: &str, words: Vec<LineWord>) -> Result<LineContent, String> {
    match gutter {
        "editor>" => EditorAct::read(&words).map(|act| LineContent::Editor(words, act)),
        "agent< " => Expected::read(&words).map(|expected| LineContent::Agent(words, expected)),
        "agent~ " => Expected::read(&words).map(|expected| LineContent::AgentFree(words, expected)),
        "model? " => SeenPart::read(&words).map(LineContent::Sees),
        _ => ModelStep::read(&words).map(LineContent::Says),
    }
}

#[cfg(test)]
mod tests;
