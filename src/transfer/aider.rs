//! Sessions of aider: its chat history, Markdown for people. Prompts are headings of the fourth level, what aider itself
//! says is quoted, the rest is the model's. There are no calls in it; edits are blocks in the model's text.
//!
//! A file has all chats of a project, and each began with nothing of those before it. They are one conversation here
//! whose newest chat is in view.

use std::path::Path;

use super::build::Builder;
use super::{AIDER_OPENING, Circumstances, Draft, File, Source, text};
use epitome_problem::Problem;
use epitome_thread::{StopReason, Trigger};

/// Who says what the person did not type.
const BY: &str = "aider";

/// Before what the person said.
const PROMPT: &str = "####";

/// Before what aider said, and what each of its lines ends with; a quotation of the model's ends as it likes.
const TOLD: &str = "> ";
const TOLD_END: &str = "  ";

/// Before the model of a chat, in what aider says.
const MODELS: [&str; 2] = ["Main model: ", "Model: "];

/// What aider says of each reply and is of no use later.
const SILENT: [&str; 2] = ["Tokens: ", "Cost: "];

/// In the place of what an earlier chat held.
const NEW_CHAT: &str = "A new chat begins here. What was said in the chats before it was not in its context.";

pub(super) fn read(file: File, text: &str, circumstances: &Circumstances) -> Result<Draft, Problem> {
    let cwd = file.path.parent().filter(|folder| folder.is_absolute()).unwrap_or(circumstances.cwd);
    let started = text.lines().find_map(opening).unwrap_or(circumstances.now);
    let mut reader = Reader::new(cwd, started);
    for line in text.lines() {
        reader.line(line);
    }
    reader.flush();
    if reader.log.is_empty() {
        return Err(file.problem(1, "nothing is said in this chat history"));
    }
    Ok(reader.log.finish(Source::Aider))
}

/// When a chat began, by its first line. aider writes the time of its machine.
fn opening(line: &str) -> Option<u64> {
    let time: jiff::civil::DateTime = line.strip_prefix(AIDER_OPENING)?.trim().parse().ok()?;
    let time = time.to_zoned(jiff::tz::TimeZone::system()).ok()?;
    u64::try_from(time.timestamp().as_millisecond()).ok()
}

struct Reader {
    log: Builder,
    model: String,
    /// Whether a chat began in which nobody has said anything yet.
    is_new: bool,
    /// Lines that belong together, of one kind at a time.
    prompt: Vec<String>,
    reply: Vec<String>,
    told: Vec<String>,
}

impl Reader {
    fn new(cwd: &Path, started: u64) -> Reader {
        Reader {
            log: Builder::new(cwd, started),
            model: "aider/unknown".to_owned(),
            is_new: true,
            prompt: Vec::new(),
            reply: Vec::new(),
            told: Vec::new(),
        }
    }

    fn line(&mut self, line: &str) {
        if line.starts_with(AIDER_OPENING) {
            self.flush();
            self.is_new = true;
            self.log.at(opening(line).unwrap_or_default());
        } else if let Some(said) =
            line.strip_prefix(PROMPT).filter(|said| said.is_empty() || said.starts_with(' '))
        {
            if !self.reply.is_empty() || !self.told.is_empty() {
                self.flush();
            }
            self.prompt.push(said.trim_end().trim_start_matches(' ').to_owned());
        } else if let Some(told) = line.strip_prefix(TOLD).filter(|_| line.ends_with(TOLD_END)) {
            self.told(told.trim_end());
        } else if !self.is_opening() {
            let is_blank = line.trim().is_empty();
            // Text after what aider said is of another reply.
            if !self.told.is_empty() && !is_blank {
                self.flush();
            }
            if !(is_blank && self.reply.is_empty()) {
                self.reply.push(line.to_owned());
            }
        }
    }

    /// Whether nobody has said anything in this chat: how it begins is aider's affair.
    fn is_opening(&self) -> bool {
        self.is_new && self.prompt.is_empty()
    }

    fn told(&mut self, told: &str) {
        if let Some(model) = MODELS.iter().find_map(|start| told.strip_prefix(start)) {
            let model = model.split(" with ").next().unwrap_or(model).trim();
            self.model = if model.contains('/') { model.to_owned() } else { format!("aider/{model}") };
        }
        if !self.is_opening() && !SILENT.iter().any(|start| told.starts_with(start)) {
            self.told.push(told.to_owned());
        }
    }

    fn flush(&mut self) {
        let [prompt, reply, told] = [&mut self.prompt, &mut self.reply, &mut self.told]
            .map(|lines| std::mem::take(lines).join("\n").trim().to_owned());
        if std::mem::take(&mut self.is_new) && !prompt.is_empty() && !self.log.is_empty() {
            self.log.turn_ended(StopReason::EndTurn);
            self.log.compacted(None, NEW_CHAT.to_owned(), Trigger::Manual, 0);
        }
        // A command of aider's, such as `/run`, has an answer of aider's alone.
        if prompt.starts_with('/') && reply.is_empty() {
            self.log.context(vec![text(format!("The person ran `{prompt}`:\n\n{told}"))], BY);
            return;
        }
        if !prompt.is_empty() {
            self.log.prompt(vec![text(prompt)]);
        }
        if !reply.is_empty() {
            self.log.reply(vec![text(reply)], &self.model, None, None);
        }
        if !told.is_empty() {
            self.log.context(vec![text(told)], BY);
        }
    }
}
