//! A thread as text for people: the one readable form that the command line and tests show.
//!
//! Pure. It never leaves something out in silence: what is shortened says by how much.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use super::diff::{DiffLine, diff};
use super::{
    CallId, Card, Change, Content, Cut, Entry, Message, Origin, OutcomeStatus, PlanStatus, Seq, Shown,
    StopReason, Thread, ToolCall, ToolKind, ToolOutcome,
};

/// Lines of a tool's output, or of a summary, that the short form shows.
const SHORT_LINES_MAX: usize = 6;

/// How much is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// What was said in full; outputs and summaries by their first lines, thinking left out.
    Short,
    /// Everything.
    Full,
}

/// A whole thread: who said what, each tool call with what came of it, compactions in their place,
/// and which entries the model still sees.
pub fn readable(thread: &Thread, detail: Detail) -> String {
    let reader = Reader::new(thread, detail);
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

/// A whole thread as a Markdown document.
pub fn markdown(thread: &Thread) -> String {
    let outcomes = outcomes(thread);
    let mut text = format!("# {}\n\n", thread.title().unwrap_or("Conversation"));
    let _ = writeln!(text, "- Session: `{}`", thread.session());
    let _ = writeln!(text, "- Directory: `{}`", thread.cwd().display());
    for entry in thread.entries() {
        match &entry.change {
            Change::Said { message, origin } => {
                let _ = write!(text, "\n## You\n\n{}\n", said(message, origin));
            }
            Change::Commanded { typed, .. } => {
                let _ = write!(text, "\n## You\n\n`{typed}`\n");
            }
            Change::Replied { message, model, cut, .. } => {
                let _ = write!(text, "\n## Agent ({model})\n");
                for content in &message.content {
                    markdown_part(content, &outcomes, &mut text);
                }
                if let Some(cut) = cut {
                    let _ = write!(text, "\n*{}*\n", cut_words(cut));
                }
            }
            Change::Compacted { summary, .. } => {
                let line = one_line(&entry.change).unwrap_or_default();
                let _ = write!(text, "\n---\n\n*{line}*\n\n{}\n", quoted(&summary.text()));
            }
            Change::Undone { .. } | Change::Noted { .. } | Change::TurnEnded { .. } => {
                if let Some(line) = one_line(&entry.change) {
                    let _ = write!(text, "\n*{line}*\n");
                }
            }
            Change::Opened { .. }
            | Change::Framed { .. }
            | Change::Queued { .. }
            | Change::ToolFinished { .. }
            | Change::ModelChosen { .. }
            | Change::ModeChosen { .. }
            | Change::ThoughtChosen { .. }
            | Change::Titled { .. }
            | Change::Planned { .. }
            | Change::Allowed { .. }
            | Change::Mutated { .. }
            | Change::Edited { .. }
            | Change::CallChanged { .. }
            | Change::Withheld { .. }
            | Change::Hooked { .. }
            | Change::GoalSet { .. } => {}
        }
    }
    text
}

/// What a change is in one line, for those that are no message; `None` where there is nothing that
/// a person would want to read.
pub fn one_line(change: &Change) -> Option<String> {
    match change {
        Change::Compacted { tokens_before, tokens_after, .. } => Some(format!(
            "Compacted: {} → {} tokens. What was replaced is kept; /undo brings it back.",
            tokens(*tokens_before),
            tokens(*tokens_after)
        )),
        Change::Undone { entry } => {
            Some(format!("Undone: the compaction {entry} is taken back; what it replaced is in view again."))
        }
        Change::Noted { text, .. } => Some(text.clone()),
        Change::Planned { steps } => {
            let done = steps.iter().filter(|step| step.status == PlanStatus::Completed).count();
            let now = steps.iter().find(|step| step.status == PlanStatus::InProgress);
            let now = now.map(|step| format!(", now: {}", step.content)).unwrap_or_default();
            Some(format!("Plan: {done} of {} steps done{now}", steps.len()))
        }
        Change::ModelChosen { model } => Some(format!("Model: {model}")),
        Change::ModeChosen { mode } => Some(format!("Mode: {}", mode.id())),
        Change::TurnEnded { reason, .. } => ending(*reason).map(str::to_owned),
        Change::Opened { .. }
        | Change::Framed { .. }
        | Change::Queued { .. }
        | Change::Said { .. }
        | Change::Commanded { .. }
        | Change::Replied { .. }
        | Change::ToolFinished { .. }
        | Change::ThoughtChosen { .. }
        | Change::Titled { .. }
        | Change::Allowed { .. }
        | Change::Mutated { .. }
        | Change::Edited { .. }
        | Change::CallChanged { .. }
        | Change::Withheld { .. }
        | Change::Hooked { .. }
        | Change::GoalSet { .. } => None,
    }
}

/// Why a turn ended otherwise than well.
pub fn ending(reason: StopReason) -> Option<&'static str> {
    match reason {
        StopReason::EndTurn => None,
        StopReason::MaxTokens => Some("The model came to its output limit."),
        StopReason::MaxRounds => Some("The turn came to its limit of model calls."),
        StopReason::Refusal => Some("The model declined."),
        StopReason::Cancelled => Some("Cancelled."),
        StopReason::Failed => Some("The turn failed."),
        StopReason::Interrupted => Some("Interrupted: Epitome ended in the middle of this turn."),
    }
}

/// Why a reply is shorter than the model meant it to be.
pub fn cut_words(cut: &Cut) -> String {
    match cut {
        Cut::MaxTokens => "[cut at the model's output limit]".to_owned(),
        Cut::Refused { reason } if reason.is_empty() => "[the model declined]".to_owned(),
        Cut::Refused { reason } => format!("[the model declined: {reason}]"),
        Cut::Cancelled => "[cancelled here]".to_owned(),
        Cut::Broken { reason } => format!("[broken off: {reason}]"),
    }
}

/// A number of tokens as a person reads it: `950`, `12.4k`, `1.2M`.
pub fn tokens(count: u64) -> String {
    match count {
        0..1_000 => count.to_string(),
        1_000..999_950 => format!("{:.1}k", count as f64 / 1e3),
        _ => format!("{:.1}M", count as f64 / 1e6),
    }
}

/// How an outcome's status is called.
pub fn status(status: OutcomeStatus) -> &'static str {
    match status {
        OutcomeStatus::Completed => "completed",
        OutcomeStatus::Failed => "failed",
        OutcomeStatus::Denied => "denied",
        OutcomeStatus::Interrupted => "interrupted",
    }
}

/// What a call is called on one line.
pub fn call_title(call: &ToolCall) -> String {
    title(&call.name, &call.card)
}

/// The same before there is a call: the card's title, cut at its first line. A command's title is
/// the command, so that one gets its tool's name before it.
pub fn title(tool: &str, card: &Card) -> String {
    let mut lines = card.title.trim().lines();
    let first = lines.next().unwrap_or_default();
    let more = if lines.next().is_some() { " …" } else { "" };
    match (first, card.kind) {
        ("", _) => tool.to_owned(),
        (first, ToolKind::Execute) => format!("{tool} {first}{more}"),
        (first, _) => format!("{first}{more}"),
    }
}

/// Everything that is looked up while blocks are written.
struct Reader<'a> {
    detail: Detail,
    outcomes: HashMap<&'a CallId, &'a ToolOutcome>,
    calls: HashSet<&'a CallId>,
    in_view: HashSet<Seq>,
}

impl<'a> Reader<'a> {
    fn new(thread: &'a Thread, detail: Detail) -> Reader<'a> {
        let calls = thread.entries().iter().flat_map(|entry| match &entry.change {
            Change::Replied { message, .. } => message.calls().map(|call| &call.id).collect(),
            _ => Vec::new(),
        });
        Reader {
            detail,
            outcomes: outcomes(thread),
            calls: calls.collect(),
            in_view: thread.view().entries().iter().map(|entry| entry.seq).collect(),
        }
    }

    fn block(&self, entry: &Entry) -> Option<String> {
        let seq = entry.seq;
        let left = if self.in_view.contains(&seq) { "" } else { "  [left the view]" };
        let block = match &entry.change {
            Change::Said { message, origin } => {
                format!("{seq}  you{left}\n{}", indented(&said(message, origin), 2))
            }
            Change::Commanded { typed, .. } => format!("{seq}  you, to Epitome\n{}", indented(typed, 2)),
            Change::Queued { message } => {
                format!("{seq}  you, while the agent worked\n{}", indented(&message.text(), 2))
            }
            Change::Replied { message, model, cut, .. } => {
                let mut block = format!("{seq}  agent ({model}){left}\n");
                for content in &message.content {
                    self.part(content, &mut block);
                }
                if let Some(cut) = cut {
                    block.push_str(&indented(&cut_words(cut), 2));
                }
                block
            }
            // An outcome is shown below its call; only one without a call stands alone.
            Change::ToolFinished { outcome } if self.calls.contains(&outcome.call) => return None,
            Change::ToolFinished { outcome } => {
                format!("{seq}  result of an unknown call\n{}", indented(&outcome.model_text(), 2))
            }
            Change::Compacted { summary, .. } => {
                let line = one_line(&entry.change).unwrap_or_default();
                let gone = if left.is_empty() { "" } else { "  [no longer in the view]" };
                format!("{seq}  {line}{gone}\n{}", indented(&self.shortened(&summary.text()), 4))
            }
            Change::Undone { .. }
            | Change::Noted { .. }
            | Change::Planned { .. }
            | Change::ModelChosen { .. }
            | Change::ModeChosen { .. }
            | Change::TurnEnded { .. } => format!("{seq}  {}\n", one_line(&entry.change)?),
            Change::Framed { .. }
            | Change::Opened { .. }
            | Change::ThoughtChosen { .. }
            | Change::Titled { .. }
            | Change::Allowed { .. }
            | Change::Mutated { .. }
            | Change::Edited { .. }
            | Change::CallChanged { .. }
            | Change::Withheld { .. }
            | Change::Hooked { .. }
            | Change::GoalSet { .. } => return None,
        };
        Some(block)
    }

    fn part(&self, content: &Content, block: &mut String) {
        match content {
            Content::Text { text } => block.push_str(&indented(text, 2)),
            Content::Thinking { text, .. } => {
                if self.detail == Detail::Full && !text.is_empty() {
                    block.push_str(&indented(&format!("(thinking) {text}"), 2));
                }
            }
            Content::Call(call) => {
                let outcome = self.outcomes.get(&call.id);
                let words = outcome.map_or("no result yet", |outcome| status(outcome.status));
                let _ = writeln!(block, "  ● {} → {words}", call_title(call));
                if self.detail == Detail::Full {
                    block.push_str(&indented(&call.input.to_string(), 4));
                }
                if let Some(outcome) = outcome {
                    block.push_str(&indented(&self.shortened(&outcome_text(outcome)), 4));
                }
            }
            Content::Image { .. } | Content::Resource { .. } | Content::ResourceLink { .. } => {
                block.push_str(&indented(&attached(content), 2));
            }
        }
    }

    fn shortened(&self, text: &str) -> String {
        let count = text.lines().count();
        match self.detail {
            Detail::Short if count > SHORT_LINES_MAX => {
                let head: Vec<&str> = text.lines().take(SHORT_LINES_MAX).collect();
                format!("{}\n… {} more lines", head.join("\n"), count - SHORT_LINES_MAX)
            }
            Detail::Short | Detail::Full => text.to_owned(),
        }
    }
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

/// Which entries the model sees, and which it saw once.
fn view_line(thread: &Thread) -> String {
    let shown: Vec<Seq> = {
        let mut shown: Vec<Seq> = thread.view().entries().iter().map(|entry| entry.seq).collect();
        shown.sort_unstable();
        shown
    };
    let is_message = |entry: &&std::sync::Arc<Entry>| {
        matches!(
            entry.change,
            Change::Said { .. }
                | Change::Replied { .. }
                | Change::ToolFinished { .. }
                | Change::Compacted { .. }
        )
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

/// `e2 to e5, e9`.
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

fn outcomes(thread: &Thread) -> HashMap<&CallId, &ToolOutcome> {
    let found = thread.entries().iter().filter_map(|entry| match &entry.change {
        Change::ToolFinished { outcome } => Some((&outcome.call, outcome)),
        _ => None,
    });
    // A second outcome of a call counts for nothing, as in the view.
    let mut outcomes = HashMap::new();
    for (call, outcome) in found {
        outcomes.entry(call).or_insert(outcome);
    }
    outcomes
}

/// What the person sees of an outcome, as text.
fn outcome_text(outcome: &ToolOutcome) -> String {
    if outcome.shown.is_empty() {
        return outcome.model_text();
    }
    let parts = outcome.shown.iter().map(|shown| match shown {
        Shown::Text { text } => text.trim_end().to_owned(),
        Shown::Diff { path, old, new } => {
            let lines: Vec<String> = diff(old.as_deref(), new).iter().map(DiffLine::signed).collect();
            format!("{}\n{}", path.display(), lines.join("\n"))
        }
    });
    parts.collect::<Vec<String>>().join("\n")
}

/// What the person typed, with what they attached named behind it.
fn said(message: &Message, origin: &Origin) -> String {
    let mut text = match origin {
        Origin::Person | Origin::Queue { .. } | Origin::Hook { .. } | Origin::Context { .. } => {
            message.text()
        }
        Origin::Recipe { recipe, typed } => format!("{typed}\n(the recipe {recipe} made a prompt of it)"),
    };
    for content in &message.content {
        match content {
            Content::Image { .. } | Content::Resource { .. } | Content::ResourceLink { .. } => {
                let _ = write!(text, "\n{}", attached(content));
            }
            Content::Text { .. } | Content::Thinking { .. } | Content::Call(_) => {}
        }
    }
    text
}

fn attached(content: &Content) -> String {
    match content {
        Content::Image { mime_type, uri, .. } => {
            format!("[image, {mime_type}{}]", uri.as_ref().map(|uri| format!(", {uri}")).unwrap_or_default())
        }
        Content::Resource { uri, text } => format!("[{uri}, {} bytes]", text.len()),
        Content::ResourceLink { uri, .. } => format!("[{uri}]"),
        Content::Text { .. } | Content::Thinking { .. } | Content::Call(_) => String::new(),
    }
}

fn markdown_part(content: &Content, outcomes: &HashMap<&CallId, &ToolOutcome>, text: &mut String) {
    match content {
        Content::Text { text: said } => {
            let _ = write!(text, "\n{}\n", said.trim_end());
        }
        Content::Call(call) => {
            let outcome = outcomes.get(&call.id);
            let words = outcome.map_or("no result yet", |outcome| status(outcome.status));
            let _ = write!(text, "\n- **{}** → {words}\n", call_title(call).replace('*', "\\*"));
            if let Some(outcome) = outcome {
                let _ = write!(text, "\n{}\n", fenced(&outcome_text(outcome)));
            }
        }
        Content::Thinking { .. } => {}
        Content::Image { .. } | Content::Resource { .. } | Content::ResourceLink { .. } => {
            let _ = write!(text, "\n{}\n", attached(content));
        }
    }
}

fn quoted(text: &str) -> String {
    text.lines().map(|line| format!("> {line}").trim_end().to_owned()).collect::<Vec<String>>().join("\n")
}

/// A block that Markdown leaves alone, whatever fences the text has itself.
fn fenced(text: &str) -> String {
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest.max(2) + 1);
    format!("{fence}\n{}\n{fence}", text.trim_end_matches('\n'))
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
