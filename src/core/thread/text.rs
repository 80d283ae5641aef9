//! Renders a thread as text for the user; used by the command line and by tests.
//!
//! Pure. Nothing is omitted silently: shortened text states by how much.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::sync::Arc;

use super::describe::{EntryLine, EntryPart, describe};
use super::diff::{DiffLine, diff};
pub use super::lines::*;
pub use super::markdown::{markdown, markdown_of};
use super::{
    CallId, Change, Content, Entries, Entry, HookRun, Message, MessageId, Origin, Role, Seq, Thread,
    ToolDisplay, ToolOutcome, ViewEdit,
};

/// Lines of a tool's output or a summary in the short form.
const SHORT_LINES_MAX: usize = 6;

/// The level of detail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DetailLevel {
    /// Messages in full, the first lines of outputs and summaries, no thinking.
    Short,
    /// Everything.
    Full,
}

/// Renders a complete thread: messages, tool calls with their outcomes, compactions at their positions, and which
/// entries the model still sees.
pub fn readable(thread: &Thread, detail: DetailLevel) -> String {
    let reader = TextRenderer::new(thread, detail);
    let mut text = heading(thread);
    for entry in thread.entries() {
        if let Some(block) = reader.block(entry) {
            text.push('\n');
            text.push_str(&block);
        }
    }
    text.push('\n');
    text.push_str(&view_line(thread));
    text
}

/// Lookup tables for rendering the entries.
struct TextRenderer<'a> {
    thread: &'a Thread,
    detail: DetailLevel,
    outcomes: HashMap<&'a CallId, (Seq, &'a ToolOutcome)>,
    /// The shown form of each entry in the view. For a history made by a hook, one of its messages.
    in_view: HashMap<Seq, &'a Arc<Entry>>,
    /// A note for each entry whose form in the view differs from the log.
    changed: HashMap<Seq, &'static str>,
}

impl<'a> TextRenderer<'a> {
    fn new(thread: &'a Thread, detail: DetailLevel) -> TextRenderer<'a> {
        let in_view: HashMap<Seq, &Arc<Entry>> =
            thread.view().entries().iter().map(|entry| (entry.seq, entry)).collect();
        TextRenderer {
            thread,
            detail,
            outcomes: outcomes_of(thread.entries()),
            changed: changed(thread, &in_view),
            in_view,
        }
    }

    fn block(&self, entry: &Entry) -> Option<String> {
        let seq = entry.seq;
        if let Change::ToolFinished { outcome } = &entry.change {
            // An outcome is shown below its call; only one without a call gets its own block.
            let is_lost = !self.thread.knows_call(&outcome.call.0);
            let text = || indented(&outcome.model_text(), 2);
            return is_lost.then(|| format!("{seq}  result of an unknown call\n{}", text()));
        }
        let EntryLine { heading, line, parts } = describe(&entry.change);
        let (title, remark) = match heading {
            Some(heading) => (heading, line),
            None => (line?, None),
        };
        let mut block = format!("{seq}  {title}{}\n", self.note(entry));
        for part in parts {
            self.part(part, &mut block);
        }
        if let Some(remark) = remark {
            block.push_str(&indented(&remark, 2));
        }
        Some(block)
    }

    /// How the entry differs in the view.
    fn note(&self, entry: &Entry) -> &'static str {
        let is_shown = self.in_view.contains_key(&entry.seq);
        match &entry.change {
            Change::Said { .. } | Change::Replied { .. } if !is_shown => "  [left the view]",
            Change::Compacted { .. } | Change::Mutated { .. } if !is_shown => "  [no longer in the view]",
            Change::Said { .. } | Change::Replied { .. } | Change::Compacted { .. } => {
                self.changed.get(&entry.seq).copied().unwrap_or_default()
            }
            Change::Withheld { .. } => "  [withheld]",
            _ => "",
        }
    }

    fn part(&self, part: EntryPart<'_>, block: &mut String) {
        let (text, by) = match part {
            EntryPart::Reply(message) => {
                return message.content.iter().for_each(|content| self.content(content, block));
            }
            EntryPart::Prompt(message, origin) => (prompt_text(message, origin), 2),
            EntryPart::Typed(typed) => (typed.to_owned(), 2),
            EntryPart::Run(run) => (run_line(run), 2),
            EntryPart::Summary(message) => (self.shortened(&message.text()), 4),
            EntryPart::Spoken(role, message) => (self.shortened(&role_and_text(role, message)), 4),
            EntryPart::Edit(edit) => (self.shortened(&edit_line(edit)), 4),
            EntryPart::Input(input) if self.detail == DetailLevel::Full => (input.to_string(), 4),
            _ => return,
        };
        block.push_str(&indented(&text, by));
    }

    fn content(&self, content: &Content, block: &mut String) {
        match content {
            Content::Text { text } => block.push_str(&indented(text, 2)),
            Content::Thinking { text, .. } => {
                if self.detail == DetailLevel::Full && !text.is_empty() {
                    block.push_str(&indented(&format!("(thinking) {text}"), 2));
                }
            }
            Content::Call(call) => {
                let outcome = self.outcomes.get(&call.id);
                let words = outcome.map_or("no result yet", |(_, outcome)| outcome.status.id());
                let seen =
                    outcome.and_then(|(entry, _)| self.changed.get(entry)).copied().unwrap_or_default();
                let _ = writeln!(block, "  ● {} → {words}{seen}", call_title(call));
                if self.detail == DetailLevel::Full {
                    block.push_str(&indented(&call.input.to_string(), 4));
                }
                if let Some((_, outcome)) = outcome {
                    let text = match (self.detail, &outcome.whole) {
                        (DetailLevel::Full, Some(whole)) => whole.clone(),
                        (DetailLevel::Full, None) | (DetailLevel::Short, _) => outcome_text(outcome),
                    };
                    block.push_str(&indented(&self.shortened(&text), 4));
                }
            }
            Content::Search(search) => block.push_str(&indented(&search.text(), 2)),
            Content::Image { .. }
            | Content::Document { .. }
            | Content::Resource { .. }
            | Content::ResourceLink { .. } => block.push_str(&indented(&attached(content), 2)),
        }
    }

    fn shortened(&self, text: &str) -> String {
        let count = text.lines().count();
        match self.detail {
            DetailLevel::Short if count > SHORT_LINES_MAX => {
                let head: Vec<&str> = text.lines().take(SHORT_LINES_MAX).collect();
                format!("{}\n… {} more lines", head.join("\n"), count - SHORT_LINES_MAX)
            }
            DetailLevel::Short | DetailLevel::Full => text.to_owned(),
        }
    }
}

/// Notes on all entries whose form in the view differs from the log.
fn changed(thread: &Thread, in_view: &HashMap<Seq, &Arc<Entry>>) -> HashMap<Seq, &'static str> {
    let holds = thread.entries().iter().filter(|entry| !thread.is_undone(entry.seq));
    let masked: HashSet<Seq> = holds
        .flat_map(|entry| match &entry.change {
            Change::Pruned { masks, .. } | Change::Compacted { masks, .. } => masks.as_slice(),
            _ => &[],
        })
        .map(|mask| mask.entry)
        .collect();
    let differs = in_view
        .values()
        .filter(|shown| thread.entry(shown.seq).is_some_and(|entry| entry.change != shown.change));
    let rewritten = thread.rewritten();
    let words = differs.map(|shown| {
        let words = if rewritten.contains(shown.seq) {
            "  [changed in the view by a hook]"
        } else if masked.contains(&shown.seq) {
            "  [shortened in the view]"
        } else if matches!(shown.change, Change::Replied { .. }) {
            "  [without its thinking in the view]"
        } else {
            "  [changed in the view]"
        };
        (shown.seq, words)
    });
    words.collect()
}

fn heading(thread: &Thread) -> String {
    let mut text = format!("{}  {}\n", thread.session(), thread.title().unwrap_or("(no title)"));
    let model = thread.model().map(|model| format!(" · model {model}")).unwrap_or_default();
    let _ = writeln!(
        text,
        "{} · mode {}{model} · {} entries",
        thread.cwd().display(),
        thread.mode().id(),
        thread.entries().len()
    );
    text
}

/// Lists the entries that the model sees, and those that left the view.
fn view_line(thread: &Thread) -> String {
    let shown: Vec<Seq> = {
        let mut shown: Vec<Seq> = thread.view().entries().iter().map(|entry| entry.seq).collect();
        shown.sort_unstable();
        shown.dedup();
        shown
    };
    let is_message = |entry: &&Arc<Entry>| match &entry.change {
        Change::Said { .. }
        | Change::Replied { .. }
        | Change::ToolFinished { .. }
        | Change::Compacted { .. }
        | Change::Mutated { .. } => true,
        Change::Edited { edits, .. } => edits.iter().any(|edit| matches!(edit, ViewEdit::Append { .. })),
        _ => false,
    };
    let gone: Vec<Seq> = thread
        .entries()
        .iter()
        .filter(is_message)
        .map(|entry| entry.seq)
        .filter(|seq| shown.binary_search(seq).is_err())
        .collect();
    match (shown.is_empty(), gone.is_empty()) {
        (true, true) => "Nothing was said yet.\n".to_owned(),
        (_, true) => format!("The model sees all of it: {}.\n", ranges(&shown)),
        (_, false) => format!("The model sees {}. Left the view: {}.\n", ranges(&shown), ranges(&gone)),
    }
}

/// Formats numbers as `e2 to e5, e9`.
fn ranges(seqs: &[Seq]) -> String {
    let mut runs: Vec<(Seq, Seq)> = Vec::new();
    for seq in seqs {
        match runs.last_mut() {
            Some((_, last)) if last.0 + 1 == seq.0 => *last = *seq,
            Some(_) | None => runs.push((*seq, *seq)),
        }
    }
    let words: Vec<String> = runs
        .into_iter()
        .map(|(first, last)| if first == last { first.to_string() } else { format!("{first} to {last}") })
        .collect();
    words.join(", ")
}

/// The outcome of each call, with its entry. A second one is ignored, as in the view.
pub(super) fn outcomes_of<'a>(
    entries: impl Into<Entries<'a>>,
) -> HashMap<&'a CallId, (Seq, &'a ToolOutcome)> {
    let newest_first = entries.into().rev().filter_map(|entry| Some((entry.seq, entry.change.outcome()?)));
    newest_first.map(|(entry, outcome)| (&outcome.call, (entry, outcome))).collect()
}

/// The text of an outcome as shown to the user.
pub(super) fn outcome_text(outcome: &ToolOutcome) -> String {
    if outcome.shown.is_empty() {
        return outcome.model_text();
    }
    let parts = outcome.shown.iter().map(|shown| match shown {
        ToolDisplay::Text { text } => text.trim_end().to_owned(),
        ToolDisplay::Diff { path, old, new } => {
            let lines: Vec<String> = diff(old.as_deref(), new).iter().map(DiffLine::signed).collect();
            format!("{}\n{}", path.display(), lines.join("\n"))
        }
    });
    parts.collect::<Vec<String>>().join("\n")
}

/// The author of a message.
pub(super) fn speaker(message: &Message, origin: &Origin) -> String {
    match origin {
        Origin::Person | Origin::Recipe { .. } | Origin::Queue { .. } => {
            message.author.clone().unwrap_or_else(|| "you".to_owned())
        }
        Origin::Hook { hook } => format!("the hook {hook}"),
        Origin::Context { by } => format!("context, from {by}"),
        Origin::Instructions { path } => format!("instructions, from {}", path.display()),
    }
}

/// A message of a hook's history, with its role.
pub(super) fn role_and_text(role: Role, message: &Message) -> String {
    format!("{}: {}", role.id(), message.text())
}

fn edit_line(edit: &ViewEdit) -> String {
    let named = edit.at().map(|part| format!(" {part}")).unwrap_or_default();
    let text = match edit {
        ViewEdit::Pin { .. } | ViewEdit::Unpin { .. } | ViewEdit::Drop { .. } => String::new(),
        ViewEdit::Mask { note, .. } => note.clone(),
        ViewEdit::Replace { content, .. } => {
            Message { id: MessageId(0), content: content.clone(), author: None }.text()
        }
        ViewEdit::Append { role, message } => role_and_text(*role, message),
    };
    let colon = if text.is_empty() { "" } else { ": " };
    format!("{}{named}{colon}{text}", edit.op())
}

/// A run of a hook: its request, its result and the remarks.
fn run_line(run: &HookRun) -> String {
    let asked = if run.asked.is_empty() { String::new() } else { format!(" asked for {}", run.asked) };
    let mut line = format!(
        "{} ({}, {} ms, {}){asked}: {}",
        run.hook,
        run.event,
        run.milliseconds,
        run.end,
        verdict(run.verdict)
    );
    for remark in &run.remarks {
        let _ = write!(line, "\n  {}", remark.replace('\n', "\n  "));
    }
    line
}

/// The text that the user typed, followed by the names of the attachments.
pub(super) fn prompt_text(message: &Message, origin: &Origin) -> String {
    let mut text = match origin {
        Origin::Recipe { recipe, typed } => format!("{typed}\n(the recipe {recipe} made a prompt of it)"),
        Origin::Person
        | Origin::Queue { .. }
        | Origin::Hook { .. }
        | Origin::Context { .. }
        | Origin::Instructions { .. } => message.text(),
    };
    for content in message.content.iter().filter(|content| content.is_attachment()) {
        let _ = write!(text, "\n{}", attached(content));
    }
    text
}

pub(super) fn attached(content: &Content) -> String {
    match content {
        Content::Image { mime_type, uri, .. } => {
            format!("[image, {mime_type}{}]", uri.as_ref().map(|uri| format!(", {uri}")).unwrap_or_default())
        }
        Content::Document { mime_type, name, .. } => format!(
            "[document, {mime_type}{}]",
            name.as_ref().map(|name| format!(", {name}")).unwrap_or_default()
        ),
        Content::Resource { uri, text } => format!("[{uri}, {} bytes]", text.len()),
        Content::ResourceLink { uri, .. } => format!("[{uri}]"),
        Content::Text { .. } | Content::Thinking { .. } | Content::Call(_) | Content::Search(_) => {
            String::new()
        }
    }
}

fn indented(text: &str, by: usize) -> String {
    let mut indented = String::with_capacity(text.len() + 16);
    for line in text.trim_end().lines() {
        if !line.is_empty() {
            indented.extend(std::iter::repeat_n(' ', by));
        }
        indented.push_str(line);
        indented.push('\n');
    }
    indented
}

#[cfg(test)]
#[path = "text_tests.rs"]
mod tests;
