//! Shows a session as lines of text, as an editor would, and records it so that the demo can check the result.

use std::collections::HashMap;
use std::io::{self, Write};
use std::time::Duration;

use epitome_client::{ClientEvent, ContextUsage};

use crate::cli::printer::shown_lines;
use crate::cli::shown::{EventReader, ShownPart};
use crate::cli::terminal::{Color, Style};
use crate::session::{PermissionRequest, TextKind};
use crate::thread::visible::visible;
use crate::thread::{CallId, Change, OutcomeStatus, Seq, ToolDisplay, ToolOutcome, text};

/// Pause after each streamed word on a terminal, about the pace of a fast model.
const WORD_PAUSE: Duration = Duration::from_millis(18);

/// Pause before the next step.
const STEP_PAUSE: Duration = Duration::from_millis(450);

/// Pause for reading a page.
const PAGE_PAUSE: Duration = Duration::from_secs(4);

/// Maximum number of lines of a tool's output that are shown.
const OUTPUT_LINES_MAX: usize = 3;

/// The recorded contents, for the checks.
#[derive(Debug, Default)]
pub struct ScreenContents {
    /// The agent's text since `forget`.
    pub text: String,
    /// The messages of the user.
    pub prompts: Vec<String>,
    /// Calls with the status of their result, in the order of their announcement.
    pub calls: Vec<(CallId, Option<OutcomeStatus>)>,
    /// Titles of permission requests.
    pub permissions: Vec<String>,
    /// The entry of the newest compaction.
    pub compaction: Option<Seq>,
    /// The last report of how full the context is.
    pub context: Option<ContextUsage>,
}

pub struct Screen {
    pub style: Style,
    /// Whether to pause for the reader.
    pub has_pauses: bool,
    pub seen: ScreenContents,
    reader: EventReader,
    titles: HashMap<CallId, String>,
    at_line_start: bool,
}

impl Screen {
    pub fn new(style: Style, has_pauses: bool) -> Screen {
        Screen {
            style,
            has_pauses,
            seen: ScreenContents::default(),
            reader: EventReader::default(),
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
        self.seen.text.clear();
    }

    pub fn end_line(&mut self) {
        if !self.at_line_start {
            self.write("\n");
        }
    }

    fn type_words(&mut self, text: &str) {
        let text = visible(text).into_owned();
        for word in text.split_inclusive(' ') {
            self.write(word);
            self.pause(WORD_PAUSE);
        }
    }

    fn show_outcome(&mut self, outcome: &ToolOutcome) {
        let is_completed = outcome.status == OutcomeStatus::Completed;
        let dot = self.style.paint(if is_completed { Color::Green } else { Color::Red }, "●");
        let title = self.titles.get(&outcome.call).map_or("a tool", String::as_str);
        self.line(&format!("{dot} {} → {}", visible(title), outcome.status.id()));
        // The permission prompt has shown its diff.
        let is_text = |shown: &&ToolDisplay| matches!(shown, ToolDisplay::Text { .. });
        let shown: Vec<ToolDisplay> = outcome.shown.iter().filter(is_text).cloned().collect();
        for line in shown_lines(&shown, self.style, OUTPUT_LINES_MAX) {
            self.narrate(&format!("    {line}"));
        }
        self.pause(STEP_PAUSE);
    }

    /// Leaves time to read what was shown.
    pub fn pause_to_read(&self) {
        self.pause(PAGE_PAUSE);
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

    /// Shows and records an event. A replay is recorded only.
    pub fn show(&mut self, event: &ClientEvent) {
        let mut is_replay = false;
        if let ClientEvent::Entry { entry, replay } = event {
            is_replay = *replay;
            match &entry.change {
                Change::Said { message, origin } if origin.is_prompt() => {
                    self.seen.prompts.push(message.text());
                }
                Change::Compacted { .. } => self.seen.compaction = Some(entry.seq),
                Change::Commanded { typed, .. } => self.seen.prompts.push(typed.clone()),
                Change::TurnEnded { reason, .. } => {
                    if let Some(words) = text::ending(*reason) {
                        self.show_text(words, is_replay);
                    }
                }
                _ => {}
            }
        }
        for part in self.reader.read(event) {
            self.part(&part, is_replay);
        }
    }

    fn part(&mut self, part: &ShownPart<'_>, is_replay: bool) {
        match part {
            // Replayed text needs no check.
            ShownPart::Text { .. } if is_replay => {}
            ShownPart::Text { kind: TextKind::Reply, text, .. } | ShownPart::Notice(_, text) => {
                self.show_text(text, is_replay);
            }
            ShownPart::Line(text) => self.show_text(text, is_replay),
            ShownPart::Call(call) => {
                self.titles.insert(call.id.clone(), text::call_title(call));
                self.seen.calls.push((call.id.clone(), None));
            }
            ShownPart::Outcome(outcome) => {
                if let Some((_, status)) = self.seen.calls.iter_mut().find(|(call, _)| *call == outcome.call)
                {
                    *status = Some(outcome.status);
                }
                if !is_replay {
                    self.show_outcome(outcome);
                }
            }
            ShownPart::Usage(usage) => self.seen.context = Some(**usage),
            ShownPart::Text { kind: TextKind::Thinking, .. }
            | ShownPart::CallStarted(_)
            | ShownPart::CallProgress(..)
            | ShownPart::Compacting(_) => {}
        }
    }

    fn show_text(&mut self, text: &str, is_replay: bool) {
        self.seen.text.push_str(text);
        if is_replay {
            return;
        }
        if self.at_line_start {
            let who = self.style.paint(Color::Green, "agent ▸");
            self.write(&format!("{who} "));
        }
        self.type_words(text);
    }

    /// Shows a permission request, which is then allowed once.
    pub fn ask(&mut self, permission: &PermissionRequest) {
        let title = text::title(&permission.tool, &permission.card);
        let heading = format!("? permission: {}", visible(&title));
        self.line(&self.style.paint(Color::Yellow, &heading));
        let is_diff = |shown: &&ToolDisplay| matches!(shown, ToolDisplay::Diff { .. });
        let diffs: Vec<ToolDisplay> = permission.preview.iter().filter(is_diff).cloned().collect();
        for line in shown_lines(&diffs, self.style, usize::MAX) {
            self.line(&format!("    {line}"));
        }
        let always =
            permission.always.as_ref().map(|always| format!("[Always allow: {always}] ")).unwrap_or_default();
        self.line(&format!("    [Allow] {}[Reject]", visible(&always)));
        self.pause(STEP_PAUSE);
        self.narrate("    (the demo clicks \"Allow\" for you)");
        self.seen.permissions.push(title);
    }
}
