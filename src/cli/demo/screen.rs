//! Shows a session as lines of text, as an editor would, and records it so that the demo can check the result.

use std::collections::HashMap;
use std::io::{self, Write};
use std::time::Duration;

use serde_json::Value;

use crate::cli::printer::diff_line;
use crate::cli::terminal::{Color, Style};
use crate::thread::diff::diff;
use crate::thread::visible::visible;

/// Pause after each streamed word on a terminal, about the pace of a fast model.
const WORD_PAUSE: Duration = Duration::from_millis(18);

/// Pause before the next step.
const STEP_PAUSE: Duration = Duration::from_millis(450);

/// Maximum number of lines of a tool's output that are shown.
const OUTPUT_LINES_MAX: usize = 3;

/// Maximum length of these lines, in characters.
const OUTPUT_CHARS_MAX: usize = 90;

/// The recorded contents, for the checks.
#[derive(Debug, Default)]
pub struct ScreenContents {
    /// The agent's text since `forget`.
    pub said: String,
    /// The replayed messages of the user.
    pub prompts: Vec<String>,
    /// Calls with their last status, in the order of their announcement.
    pub calls: Vec<(String, String)>,
    /// Titles of permission requests.
    pub permissions: Vec<String>,
    /// The last reported number of tokens in context, and the size of the window.
    pub context: Option<(u64, u64)>,
}

pub struct Screen {
    pub style: Style,
    /// Whether to pause for the reader.
    pub has_pauses: bool,
    /// Whether updates are being replayed: they are then recorded, but not shown.
    pub is_replay: bool,
    pub seen: ScreenContents,
    titles: HashMap<String, String>,
    at_line_start: bool,
}

impl Screen {
    pub fn new(style: Style, has_pauses: bool) -> Screen {
        Screen {
            style,
            has_pauses,
            is_replay: false,
            seen: ScreenContents::default(),
            titles: HashMap::new(),
            at_line_start: true,
        }
    }

    /// Prints a line of the demo, as opposed to the session.
    pub fn narrate(&mut self, text: &str) {
        self.end_line();
        self.write(&format!("{}\n", self.style.paint(Color::Dim, text)));
    }

    /// Prints a line unchanged.
    pub fn line(&mut self, text: &str) {
        self.end_line();
        self.write(&format!("{text}\n"));
    }

    pub fn heading(&mut self, text: &str) {
        self.end_line();
        self.pause(STEP_PAUSE);
        self.write(&format!("\n{}\n", self.style.paint(Color::Bold, text)));
    }

    /// Prints the user's input.
    pub fn typed(&mut self, prompt: &str) {
        self.end_line();
        self.pause(STEP_PAUSE);
        self.write(&format!("{} {prompt}\n", self.style.paint(Color::Cyan, "you ▸")));
        self.pause(STEP_PAUSE);
        self.seen.said.clear();
    }

    pub fn end_line(&mut self) {
        if !self.at_line_start {
            self.write("\n");
        }
    }

    fn text(&mut self, text: &str) {
        let text = visible(text).into_owned();
        for word in text.split_inclusive(' ') {
            self.write(word);
            self.pause(WORD_PAUSE);
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
        if self.is_replay || !is_final {
            return;
        }
        let color = if status == "completed" { Color::Green } else { Color::Red };
        let title = self.titles.get(&id).map_or("a tool", String::as_str);
        let line = format!("{} {} → {status}", self.style.paint(color, "●"), visible(title));
        self.line(&line);
        for content in update["content"].as_array().into_iter().flatten() {
            let Some(output) = content["content"]["text"].as_str() else { continue };
            let lines: Vec<&str> = output.lines().filter(|line| !line.starts_with("```")).collect();
            for line in lines.iter().take(OUTPUT_LINES_MAX) {
                let clipped: String = visible(line).chars().take(OUTPUT_CHARS_MAX).collect();
                self.narrate(&format!("    {clipped}"));
            }
            if lines.len() > OUTPUT_LINES_MAX {
                self.narrate(&format!("    … {} more lines", lines.len() - OUTPUT_LINES_MAX));
            }
        }
        self.pause(STEP_PAUSE);
    }

    fn pause(&self, time: Duration) {
        if self.has_pauses {
            // A pause for the reader only; it synchronizes nothing.
            std::thread::sleep(time);
        }
    }

    fn write(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        self.at_line_start = text.ends_with('\n');
        let mut stdout = io::stdout().lock();
        // The demo continues without a reader, because its exit code is a check.
        drop(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()));
    }

    /// Shows and records an update.
    pub fn update(&mut self, update: &Value) {
        let text = update["content"]["text"].as_str().unwrap_or_default();
        match update["sessionUpdate"].as_str() {
            Some("agent_message_chunk") => {
                self.seen.said.push_str(text);
                if !self.is_replay {
                    if self.at_line_start {
                        let who = self.style.paint(Color::Green, "agent ▸");
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

    /// Shows a permission request, and chooses the option that allows it once.
    pub fn choose(&mut self, request: &Value) -> String {
        let call = &request["toolCall"];
        let title = call["title"].as_str().unwrap_or_default().to_owned();
        let heading = format!("? permission: {}", visible(&title));
        self.line(&self.style.paint(Color::Yellow, &heading));
        for content in call["content"].as_array().into_iter().flatten() {
            if content["type"] == "diff" {
                let new = content["newText"].as_str().unwrap_or_default();
                for line in diff(content["oldText"].as_str(), new) {
                    self.line(&format!("    {}", diff_line(&line, self.style)));
                }
            }
        }
        let options = request["options"].as_array().into_iter().flatten();
        let names: Vec<String> =
            options.clone().filter_map(|option| Some(format!("[{}]", option["name"].as_str()?))).collect();
        self.line(&format!("    {}", visible(&names.join(" "))));
        self.pause(STEP_PAUSE);
        self.narrate("    (the demo clicks \"Allow\" for you)");
        self.seen.permissions.push(title);
        let allow = options.clone().find(|option| option["kind"] == "allow_once");
        allow.and_then(|option| option["optionId"].as_str()).unwrap_or_default().to_owned()
    }
}
