//! Shows a session as lines of text, as an editor would, and records it so that the demo can check the result.

use std::collections::HashMap;
use std::io::{self, Write};
use std::time::Duration;

use serde_json::Value;

use super::client::Person;
use crate::cli::plot::Bar;
use crate::cli::printer::diff_line;
use crate::cli::terminal::{Dress, Ink, harmless};
use crate::thread::diff::diff;

/// Pause after each streamed word on a terminal, about the pace of a fast model.
const WORD_PAUSE: Duration = Duration::from_millis(18);

/// Pause before something new begins.
const STEP_PAUSE: Duration = Duration::from_millis(450);

/// Lines of a tool's output that are shown.
const OUTPUT_LINES_MAX: usize = 3;

/// Longest of these lines, in characters.
const OUTPUT_CHARS_MAX: usize = 90;

/// Whether there are pauses for a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// With short pauses for reading.
    Person,
    /// Without pauses.
    Machine,
}

/// How updates are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attention {
    /// New: everything is shown.
    Live,
    /// Replayed: recorded only.
    Replay,
}

/// What was seen, for the checks.
#[derive(Debug, Default)]
pub struct Seen {
    /// Text of the agent since `forget`.
    pub said: String,
    /// The user's messages that were replayed.
    pub prompts: Vec<String>,
    /// Calls with their last status, in the order in which they were announced.
    pub calls: Vec<(String, String)>,
    /// Titles of permission cards.
    pub cards: Vec<String>,
    /// Tokens in context, by the last report, and the window.
    pub context: Option<(u64, u64)>,
}

pub struct Screen {
    pub dress: Dress,
    pub pace: Pace,
    pub attention: Attention,
    pub seen: Seen,
    titles: HashMap<String, String>,
    at_line_start: bool,
}

impl Screen {
    pub fn new(dress: Dress, pace: Pace) -> Screen {
        Screen {
            dress,
            pace,
            attention: Attention::Live,
            seen: Seen::default(),
            titles: HashMap::new(),
            at_line_start: true,
        }
    }

    /// A line of the demo itself, not of the session.
    pub fn narrate(&mut self, text: &str) {
        self.end_line();
        self.write(&format!("{}\n", self.dress.paint(Ink::Dim, text)));
    }

    /// A line as it is.
    pub fn line(&mut self, text: &str) {
        self.end_line();
        self.write(&format!("{text}\n"));
    }

    pub fn heading(&mut self, text: &str) {
        self.end_line();
        self.pause(STEP_PAUSE);
        self.write(&format!("\n{}\n", self.dress.paint(Ink::Bold, text)));
    }

    /// What the person typed.
    pub fn typed(&mut self, prompt: &str) {
        self.end_line();
        self.pause(STEP_PAUSE);
        self.write(&format!("{} {prompt}\n", self.dress.paint(Ink::Cyan, "you ▸")));
        self.pause(STEP_PAUSE);
        self.seen.said.clear();
    }

    /// The tokens in context, as a bar of the chart.
    pub fn bar(&self, label: &str) -> Result<Bar, String> {
        let (value, _) = self.seen.context.ok_or("the daemon did not tell how full the context is")?;
        Ok(Bar { label: label.to_owned(), value })
    }

    pub fn end_line(&mut self) {
        if !self.at_line_start {
            self.write("\n");
        }
    }

    fn text(&mut self, text: &str) {
        let text = harmless(text).into_owned();
        match self.pace {
            Pace::Machine => self.write(&text),
            Pace::Person => {
                for word in text.split_inclusive(' ') {
                    self.write(word);
                    self.pause(WORD_PAUSE);
                }
            }
        }
    }

    fn call(&mut self, update: &Value) {
        let id = update["toolCallId"].as_str().unwrap_or_default().to_owned();
        if let Some(title) = update["title"].as_str() {
            self.titles.insert(id.clone(), title.to_owned());
        }
        // The protocol allows omitting the status of a pending call.
        let status = update["status"].as_str().unwrap_or("pending");
        match self.seen.calls.iter_mut().find(|(known, _)| *known == id) {
            Some((_, last)) => *last = status.to_owned(),
            None => self.seen.calls.push((id.clone(), status.to_owned())),
        }
        let is_final = matches!(status, "completed" | "failed");
        if self.attention == Attention::Replay || !is_final {
            return;
        }
        let ink = if status == "completed" { Ink::Green } else { Ink::Red };
        let title = self.titles.get(&id).map_or("a tool", String::as_str);
        let line = format!("{} {} → {status}", self.dress.paint(ink, "●"), harmless(title));
        self.line(&line);
        for content in update["content"].as_array().into_iter().flatten() {
            let Some(output) = content["content"]["text"].as_str() else { continue };
            let lines: Vec<&str> = output.lines().filter(|line| !line.starts_with("```")).collect();
            for line in lines.iter().take(OUTPUT_LINES_MAX) {
                let clipped: String = harmless(line).chars().take(OUTPUT_CHARS_MAX).collect();
                self.narrate(&format!("    {clipped}"));
            }
            if lines.len() > OUTPUT_LINES_MAX {
                self.narrate(&format!("    … {} more lines", lines.len() - OUTPUT_LINES_MAX));
            }
        }
        self.pause(STEP_PAUSE);
    }

    fn pause(&self, time: Duration) {
        match self.pace {
            // Only for the reader; nothing is waited for.
            Pace::Person => std::thread::sleep(time),
            Pace::Machine => {}
        }
    }

    fn write(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        self.at_line_start = text.ends_with('\n');
        let mut stdout = io::stdout().lock();
        // The demo continues without a reader, as its exit code is a check.
        drop(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()));
    }
}

impl Person for Screen {
    fn sees(&mut self, update: &Value) {
        let text = update["content"]["text"].as_str().unwrap_or_default();
        match update["sessionUpdate"].as_str() {
            Some("agent_message_chunk") => {
                self.seen.said.push_str(text);
                if self.attention == Attention::Live {
                    if self.at_line_start {
                        let who = self.dress.paint(Ink::Green, "agent ▸");
                        self.write(&format!("{who} "));
                    }
                    self.text(text);
                }
            }
            Some("user_message_chunk") => self.seen.prompts.push(text.to_owned()),
            Some("tool_call" | "tool_call_update") => self.call(update),
            Some("usage_update") => {
                if let (Some(used), Some(size)) = (update["used"].as_u64(), update["size"].as_u64()) {
                    self.seen.context = Some((used, size));
                }
            }
            // Other updates (commands, options, title, plan) need the UI of an editor.
            Some(_) | None => {}
        }
    }

    fn chooses(&mut self, card: &Value) -> String {
        let call = &card["toolCall"];
        let title = call["title"].as_str().unwrap_or_default().to_owned();
        let heading = format!("? permission: {}", harmless(&title));
        self.line(&self.dress.paint(Ink::Yellow, &heading));
        for content in call["content"].as_array().into_iter().flatten() {
            if content["type"] == "diff" {
                let new = content["newText"].as_str().unwrap_or_default();
                for line in diff(content["oldText"].as_str(), new) {
                    self.line(&format!("    {}", diff_line(&line, self.dress)));
                }
            }
        }
        let options = card["options"].as_array().into_iter().flatten();
        let names: Vec<String> =
            options.clone().filter_map(|option| Some(format!("[{}]", option["name"].as_str()?))).collect();
        self.line(&format!("    {}", harmless(&names.join(" "))));
        self.pause(STEP_PAUSE);
        self.narrate("    (the demo clicks \"Allow\" for you)");
        self.seen.cards.push(title);
        let allow = options.clone().find(|option| option["kind"] == "allow_once");
        allow.and_then(|option| option["optionId"].as_str()).unwrap_or_default().to_owned()
    }
}
