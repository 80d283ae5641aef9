//! Sessions of aider: its chat history, a Markdown file for users. Prompts are headings of the fourth level, aider's
//! messages are quoted, and everything else is from the model. There are no tool calls; edits are blocks in the
//! model's text.
//!
//! The file contains all chats of a project, each of which started without the earlier ones. They are
//! imported as one conversation with the newest chat in view.

use std::path::Path;

use super::builder::Builder;
use super::{AIDER_OPENING, ImportContext, ran, text};
use epitome_thread::{StopReason, Trigger};
use epitome_transfer::ImportFile;

/// The author of messages that the user did not type.
const BY: &str = "aider";

/// Prefix of a user's line.
const PROMPT: &str = "####";

/// Prefix and suffix of aider's lines. Quotations by the model do not have this suffix.
const NOTICE: &str = "> ";
const NOTICE_END: &str = "  ";

/// Prefixes of the model's name, in aider's messages.
const MODELS: [&str; 2] = ["Main model: ", "Model: "];

/// Messages of aider about each reply that are not imported.
const SILENT: [&str; 2] = ["Tokens: ", "Cost: "];

/// The replacement for the contents of earlier chats.
const NEW_CHAT: &str = "A new chat begins here. What was said in the chats before it was not in its context.";

pub(super) fn read(file: ImportFile, text: &str, context: &ImportContext) -> Builder {
    let folder = file.path.parent().filter(|folder| folder.is_absolute()).and_then(Path::to_str);
    let mut reader = AiderReader {
        log: Builder::new(folder, text.lines().find_map(opening), context),
        is_new: true,
        prompt: Vec::new(),
        reply: Vec::new(),
        notices: Vec::new(),
    };
    reader.log.model("aider/unknown".to_owned());
    text.lines().for_each(|line| reader.line(line));
    reader.flush();
    reader.log
}

/// The start time of a chat, from its first line. aider writes local time.
fn opening(line: &str) -> Option<u64> {
    let time: jiff::civil::DateTime = line.strip_prefix(AIDER_OPENING)?.trim().parse().ok()?;
    let time = time.to_zoned(jiff::tz::TimeZone::system()).ok()?;
    u64::try_from(time.timestamp().as_millisecond()).ok()
}

struct AiderReader {
    log: Builder,
    /// Whether a chat has started but has no prompt yet.
    is_new: bool,
    /// Pending lines, of one kind at a time.
    prompt: Vec<String>,
    reply: Vec<String>,
    notices: Vec<String>,
}

impl AiderReader {
    fn line(&mut self, line: &str) {
        if line.starts_with(AIDER_OPENING) {
            self.flush();
            self.is_new = true;
            self.log.at(opening(line));
        } else if let Some(words) =
            line.strip_prefix(PROMPT).filter(|words| words.is_empty() || words.starts_with(' '))
        {
            if !self.reply.is_empty() || !self.notices.is_empty() {
                self.flush();
            }
            self.prompt.push(words.trim_end().trim_start_matches(' ').to_owned());
        } else if let Some(notice) = line.strip_prefix(NOTICE).filter(|_| line.ends_with(NOTICE_END)) {
            self.add_notice(notice.trim_end());
        } else if !self.is_opening() {
            let is_blank = line.trim().is_empty();
            // Text after a message of aider belongs to another reply.
            if !self.notices.is_empty() && !is_blank {
                self.flush();
            }
            if !(is_blank && self.reply.is_empty()) {
                self.reply.push(line.to_owned());
            }
        }
    }

    /// Whether the chat has no prompt yet. Everything before the first prompt is aider's start-up output.
    fn is_opening(&self) -> bool {
        self.is_new && self.prompt.is_empty()
    }

    fn add_notice(&mut self, notice: &str) {
        if let Some(model) = MODELS.iter().find_map(|start| notice.strip_prefix(start)) {
            let model = model.split(" with ").next().unwrap_or(model).trim();
            let provider = if model.contains('/') { "" } else { "aider/" };
            self.log.model(format!("{provider}{model}"));
        }
        if !self.is_opening() && !SILENT.iter().any(|start| notice.starts_with(start)) {
            self.notices.push(notice.to_owned());
        }
    }

    fn flush(&mut self) {
        let [prompt, reply, notices] = [&mut self.prompt, &mut self.reply, &mut self.notices]
            .map(|lines| std::mem::take(lines).join("\n").trim().to_owned());
        if std::mem::take(&mut self.is_new) && !prompt.is_empty() && !self.log.is_empty() {
            self.log.turn_ended(StopReason::EndTurn);
            self.log.compacted(None, NEW_CHAT.to_owned(), Trigger::Manual, 0);
        }
        // Only aider responds to its commands, such as `/run`.
        if prompt.starts_with('/') && reply.is_empty() {
            self.log.context(vec![ran(&prompt, &notices)], BY);
            return;
        }
        if !prompt.is_empty() {
            self.log.prompt(vec![text(prompt)]);
        }
        if !reply.is_empty() {
            self.log.add([text(reply)]);
            self.log.replied(None, None);
        }
        if !notices.is_empty() {
            self.log.context(vec![text(notices)], BY);
        }
    }
}
