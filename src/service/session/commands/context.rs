//! `/context`: how full the window is and what fills it, as a bar chart. Pure.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::super::meter::Kinds;
use super::super::requests::last_usage;
use super::why::{counted, named};
use epitome_provider::spent::Spent;
use epitome_thread::text::{round, spent, tokens as short};
use epitome_thread::{CallId, Change, Message, ModelName, Origin, Thread};
use epitome_tokens::Ruler;

/// Tools whose results have a separate bar: those with the most tokens.
const TOOLS_SHOWN_MAX: usize = 5;

/// Columns of a bar that represents the full window.
const BAR_COLUMNS: u64 = 40;

/// Figures that the thread does not contain.
pub(super) struct ContextFigures {
    /// Tokens in context, as shown to clients.
    pub used: u64,
    /// `None` if no model is chosen.
    pub model: Option<ModelWindow>,
    pub next: NextCompaction,
    /// Total usage of all model calls of the thread.
    pub spent: Spent,
    /// The directory of the memory files.
    pub memory: PathBuf,
}

/// A model and its window, in tokens.
pub(super) struct ModelWindow {
    pub model: ModelName,
    pub size: u64,
    /// Tokens reserved for the reply.
    pub reserve: u64,
}

/// When the next automatic compaction is due.
pub(super) enum NextCompaction {
    Never,
    /// The last compactions gained nothing.
    Paused,
    /// It is due at this number of tokens.
    At(u64),
    /// It is due at this number of tokens, with a summary that is already written.
    Prepared(u64),
}

/// The parts of a request, in tokens.
#[derive(Debug, Default, PartialEq, Eq)]
struct RequestParts {
    kinds: Kinds,
    /// The outcomes among them by tool name, largest first.
    outcomes: Vec<(String, u64)>,
}

pub(super) fn text(ruler: &Ruler, thread: &Thread, facts: &ContextFigures) -> String {
    let used = short(facts.used);
    let mut out = match &facts.model {
        Some(ModelWindow { model, size, .. }) => {
            let percent = facts.used * 100 / (*size).max(1);
            format!("Context {used} of {} tokens of {model} ({percent} %).", round(*size))
        }
        None => format!("Context {used} tokens; no model is chosen, so its window is not known."),
    };
    out.push_str(" By part, as an estimate:\n\n");
    out.push_str(&plot(&RequestParts::measure(ruler, thread).scaled(facts.used).rows(thread), facts));
    if thread.frame().is_none() {
        out.push_str("\nSystem text and tools come with the first reply.\n");
    }
    let shown = thread.view().entries().len();
    let _ = writeln!(out, "\n- entries in view: {shown}; in the log: {}", thread.entries().len());
    let _ = writeln!(out, "- compactions: {}", compactions(thread));
    let _ = writeln!(out, "- pinned: {}", pinned(thread));
    if let Some(text) = memory(ruler, thread, &facts.memory) {
        let _ = writeln!(out, "- memory: {text}");
    }
    let next = match facts.next {
        NextCompaction::Never => "never".to_owned(),
        NextCompaction::Paused => {
            "paused, because the last ones gained nothing; /compact runs one".to_owned()
        }
        NextCompaction::At(tokens) => format!("at about {} tokens", short(tokens)),
        NextCompaction::Prepared(tokens) => {
            format!("at about {} tokens, with a summary that is already written", short(tokens))
        }
    };
    let _ = write!(out, "- next automatic compaction: {next}");
    if let Some(last) = last_usage(thread) {
        let _ = write!(out, "\n- the last model call: {}", spent(last, None));
        let _ = write!(out, "\n- all model calls: {}", spent(&facts.spent.usage, facts.spent.cost));
    }
    out
}

// ── The plot ───────────────────────────────────────────────────────────────────────────────────────

/// One aligned row per part, with a bar for its share of the window. The rows are indented, so that Markdown renders
/// them as code and a terminal shows the same.
fn plot(parts: &[(String, u64)], facts: &ContextFigures) -> String {
    let mut rows: Vec<(&str, u64, &str)> =
        parts.iter().map(|(label, tokens)| (label.as_str(), *tokens, "█")).collect();
    let mut whole: u64 = parts.iter().map(|(_, tokens)| tokens).sum();
    if let Some(ModelWindow { size, reserve, .. }) = &facts.model {
        whole = *size;
        rows.push(("kept for the reply", *reserve, "▒"));
        rows.push(("free", size.saturating_sub(facts.used + reserve), "░"));
    }
    let labels = rows.iter().map(|(label, ..)| label.chars().count()).max().unwrap_or(0);
    let numbers = rows.iter().map(|(_, tokens, _)| short(*tokens).len()).max().unwrap_or(0);
    let mut out = String::new();
    for (label, tokens, block) in rows {
        let gap = " ".repeat(labels - label.chars().count());
        let percent = percent(tokens, whole);
        let row = format!(
            "    {label}{gap}  {:>numbers$}  {percent:>5}  {}",
            short(tokens),
            bar(tokens, whole, block)
        );
        let _ = writeln!(out, "{}", row.trim_end());
    }
    out
}

fn percent(tokens: u64, whole: u64) -> String {
    match (tokens * 100).checked_div(whole) {
        Some(0) if tokens > 0 => "< 1 %".to_owned(),
        Some(percent) => format!("{percent} %"),
        None => "0 %".to_owned(),
    }
}

/// As many columns as the part's share, rounded; a nonzero part gets at least a sliver.
fn bar(tokens: u64, whole: u64, block: &str) -> String {
    let columns = (tokens.min(whole) * BAR_COLUMNS + whole / 2).checked_div(whole).unwrap_or(0);
    match columns {
        0 if tokens > 0 => "▏".to_owned(),
        columns => block.repeat(usize::try_from(columns).unwrap_or(0)),
    }
}

impl RequestParts {
    fn measure(ruler: &Ruler, thread: &Thread) -> RequestParts {
        let kinds = Kinds::measure(ruler, thread);
        let tools = tools_of(thread);
        let mut by_tool: HashMap<&str, u64> = HashMap::new();
        for entry in thread.view().entries() {
            if let Change::ToolFinished { outcome } = &entry.change {
                let name = tools.get(&outcome.call).copied().unwrap_or("unknown");
                *by_tool.entry(name).or_default() += Kinds::measure_entry(ruler, entry).outcomes;
            }
        }
        let mut outcomes: Vec<(String, u64)> =
            by_tool.into_iter().map(|(name, tokens)| (name.to_owned(), tokens)).collect();
        outcomes.sort_by(|(a, more), (b, less)| less.cmp(more).then(a.cmp(b)));
        RequestParts { kinds, outcomes }
    }

    /// Scales the parts to a sum of `whole`: the total is known more precisely than the parts.
    fn scaled(mut self, whole: u64) -> RequestParts {
        let sum = self.kinds.sum();
        let share = |tokens: &mut u64| {
            let scaled = u128::from(*tokens) * u128::from(whole) / u128::from(sum.max(1));
            *tokens = u64::try_from(scaled).unwrap_or(u64::MAX);
        };
        self.kinds.each(share);
        self.outcomes.iter_mut().map(|(_, tokens)| tokens).for_each(share);
        self
    }

    /// The nonempty parts with their labels, in the order of a request.
    fn rows(&self, thread: &Thread) -> Vec<(String, u64)> {
        let tools = thread.frame().map_or(0, |(_, tools)| tools.len());
        let mut rows = vec![
            ("system text".to_owned(), self.kinds.system),
            (counted(tools, "tool"), self.kinds.tools),
            ("instructions".to_owned(), self.kinds.instructions),
            ("summaries".to_owned(), self.kinds.summaries),
            ("tables from the log".to_owned(), self.kinds.facts),
            ("your messages".to_owned(), self.kinds.person),
            ("replies".to_owned(), self.kinds.replies),
            ("thinking".to_owned(), self.kinds.thinking),
            ("tool calls".to_owned(), self.kinds.calls),
        ];
        for (name, tokens) in self.outcomes.iter().take(TOOLS_SHOWN_MAX) {
            rows.push((format!("results of {name}"), *tokens));
        }
        if let Some(rest) = self.outcomes.get(TOOLS_SHOWN_MAX..).filter(|rest| !rest.is_empty()) {
            let tokens = rest.iter().map(|(_, tokens)| tokens).sum();
            rows.push(("results of other tools".to_owned(), tokens));
        }
        rows.push(("added context".to_owned(), self.kinds.hooks));
        rows.push(("images and documents".to_owned(), self.kinds.attached));
        rows.retain(|(_, tokens)| *tokens > 0);
        rows
    }
}

/// The tool name of each call in the view.
fn tools_of(thread: &Thread) -> HashMap<&CallId, &str> {
    let replies = thread.view().entries().iter().filter_map(|entry| match &entry.change {
        Change::Replied { message, .. } => Some(message),
        _ => None,
    });
    replies.flat_map(Message::calls).map(|call| (&call.id, call.name.as_str())).collect()
}

fn compactions(thread: &Thread) -> String {
    let all = thread.entries().iter().filter(|entry| matches!(entry.change, Change::Compacted { .. }));
    let (undone, active): (Vec<_>, Vec<_>) = all.partition(|entry| thread.is_undone(entry.seq));
    match undone.len() {
        0 => active.len().to_string(),
        undone => format!("{}, and {undone} undone", active.len()),
    }
}

fn pinned(thread: &Thread) -> String {
    match thread.pinned() {
        pinned if pinned.is_empty() => "nothing".to_owned(),
        pinned => named(pinned.iter()),
    }
}

/// How much the memory files take, in the system text and where changes of them were added; `None` if there are none.
fn memory(ruler: &Ruler, thread: &Thread, directory: &Path) -> Option<String> {
    let frame = thread.frame().map(|(system, _)| system.to_owned());
    let added = thread.view().entries().iter().filter_map(|entry| match &entry.change {
        Change::Said { message, origin: Origin::Instructions { path } } if path.starts_with(directory) => {
            Some(message.text())
        }
        _ => None,
    });
    let texts: Vec<String> = frame.into_iter().chain(added).collect();
    let head = format!("<instructions path=\"{}/", directory.display());
    let blocks = texts.iter().flat_map(|text| text.split(head.as_str()).skip(1));
    let blocks = blocks.filter_map(|rest| rest.split_once("</instructions>")?.0.split_once("\">"));
    let (mut names, mut tokens) = (BTreeSet::new(), 0);
    for (name, text) in blocks {
        names.insert(name);
        tokens += ruler.text(text);
    }
    let names: Vec<&str> = names.into_iter().collect();
    (!names.is_empty()).then(|| {
        format!("about {} tokens from {}; `epitome memory` shows it", short(tokens), names.join(" and "))
    })
}

#[cfg(test)]
#[path = "context_tests.rs"]
mod tests;
