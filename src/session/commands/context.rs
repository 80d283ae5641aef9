//! `/context`: how full the window is, and of what. Pure.

use std::fmt::Write as _;

use crate::provider::spent::Spent;
use crate::thread::text::{spent, tokens as short};
use crate::thread::{Change, ModelName, Origin, Thread, Usage};
use crate::tokens::Ruler;

/// Pins that are named; of more it says how many.
const PINS_SHOWN_MAX: usize = 20;

/// What the thread itself does not know.
pub(super) struct Facts {
    /// Tokens in context, as clients are shown.
    pub used: u64,
    /// The model and its window, in tokens; `None` where none is chosen.
    pub model: Option<(ModelName, u64)>,
    pub next: Next,
    /// What all model calls of the thread took.
    pub spent: Spent,
}

/// When a compaction happens by itself.
pub(super) enum Next {
    Never,
    /// The last ones gained nothing.
    Paused,
    /// At so many tokens.
    At(u64),
}

/// The parts of a request, in tokens.
#[derive(Debug, Default, PartialEq, Eq)]
struct Parts {
    frame: u64,
    summaries: u64,
    person: u64,
    hooks: u64,
    replies: u64,
    outcomes: u64,
}

pub(super) fn text(ruler: &Ruler, thread: &Thread, facts: &Facts) -> String {
    let used = short(facts.used);
    let mut out = match &facts.model {
        Some((name, window)) => {
            let percent = facts.used * 100 / (*window).max(1);
            format!("The context takes about {used} of {} tokens of {name} ({percent} %).", short(*window))
        }
        None => {
            format!("The context takes about {used} tokens; no model is chosen, so its window is not known.")
        }
    };
    out.push_str(" By part, as an estimate:\n\n");
    let parts = Parts::of(ruler, thread);
    match thread.frame() {
        Some((_, tools)) => {
            let _ = writeln!(out, "- system text and {} tools: {}", tools.len(), short(parts.frame));
        }
        None => out.push_str("- system text and tools: none yet, they come with the first reply\n"),
    }
    for (name, tokens) in [
        ("summaries", parts.summaries),
        ("what you said", parts.person),
        ("replies and calls", parts.replies),
        ("outcomes of tools", parts.outcomes),
        ("context, follow-ups and histories of hooks", parts.hooks),
    ] {
        let _ = writeln!(out, "- {name}: {}", short(tokens));
    }
    let shown = thread.view().entries().len();
    let _ = writeln!(out, "\n- entries in view: {shown}; in the log: {}", thread.entries().len());
    let _ = writeln!(out, "- compactions: {}", compactions(thread));
    let _ = writeln!(out, "- pinned: {}", pinned(thread));
    let next = match facts.next {
        Next::Never => "never by itself".to_owned(),
        Next::Paused => "paused, because the last ones gained nothing; /compact makes one".to_owned(),
        Next::At(tokens) => format!("at about {} tokens", short(tokens)),
    };
    let _ = write!(out, "- next automatic compaction: {next}");
    if let Some(last) = last_call(thread) {
        let _ = write!(out, "\n- the last model call: {}", spent(last, None));
        let _ = write!(out, "\n- all model calls: {}", spent(&facts.spent.usage, facts.spent.cost));
    }
    out
}

/// What the newest reply took.
fn last_call(thread: &Thread) -> Option<&Usage> {
    thread.entries().iter().rev().find_map(|entry| match &entry.change {
        Change::Replied { usage, .. } => usage.as_ref(),
        _ => None,
    })
}

impl Parts {
    fn of(ruler: &Ruler, thread: &Thread) -> Parts {
        let frame = ruler.frame_of(thread);
        let mut parts = Parts { frame, ..Parts::default() };
        for entry in thread.view().entries() {
            let part = match &entry.change {
                Change::Said { origin, .. } => match origin {
                    Origin::Person | Origin::Recipe { .. } | Origin::Queue { .. } => &mut parts.person,
                    Origin::Hook { .. } | Origin::Context { .. } | Origin::Instructions { .. } => {
                        &mut parts.hooks
                    }
                },
                Change::Compacted { .. } => &mut parts.summaries,
                Change::ToolFinished { .. } => &mut parts.outcomes,
                // Nothing else is in a view.
                _ => &mut parts.replies,
            };
            *part += ruler.entry(entry);
        }
        parts
    }
}

fn compactions(thread: &Thread) -> String {
    let all = thread.entries().iter().filter(|entry| matches!(entry.change, Change::Compacted { .. }));
    let (undone, held): (Vec<_>, Vec<_>) = all.partition(|entry| thread.is_undone(entry.seq));
    match undone.len() {
        0 => held.len().to_string(),
        undone => format!("{}, and {undone} taken back", held.len()),
    }
}

fn pinned(thread: &Thread) -> String {
    let pinned = thread.pinned();
    if pinned.is_empty() {
        return "nothing".to_owned();
    }
    let mut names: Vec<String> = pinned.iter().take(PINS_SHOWN_MAX).map(ToString::to_string).collect();
    if pinned.len() > PINS_SHOWN_MAX {
        names.push(format!("and {} more", pinned.len() - PINS_SHOWN_MAX));
    }
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::super::why::tests::{long_story, thread};
    use super::*;

    #[test]
    fn each_part_is_counted_once() {
        let thread = long_story();
        let parts = Parts::of(&Ruler::of(None), &thread);
        let sum = parts.summaries + parts.person + parts.hooks + parts.replies + parts.outcomes;
        assert_eq!(sum, Ruler::of(None).view(thread.view()));
        assert!(parts.frame == 0 && parts.person > 0 && parts.hooks > 0, "{parts:?}");
    }

    #[test]
    fn a_new_session_has_an_empty_window() {
        let facts = Facts { used: 0, model: None, next: Next::Never, spent: Spent::default() };
        assert_eq!(
            text(&Ruler::of(None), &thread(Vec::new()), &facts),
            "The context takes about 0 tokens; no model is chosen, so its window is not known. By part, as an \
             estimate:\n\n\
             - system text and tools: none yet, they come with the first reply\n\
             - summaries: 0\n\
             - what you said: 0\n\
             - replies and calls: 0\n\
             - outcomes of tools: 0\n\
             - context, follow-ups and histories of hooks: 0\n\
             \n\
             - entries in view: 0; in the log: 1\n\
             - compactions: 0\n\
             - pinned: nothing\n\
             - next automatic compaction: never by itself"
        );
    }

    #[test]
    fn the_window_and_the_next_compaction_are_told() {
        let facts = |next| Facts {
            used: 50_000,
            model: Some((ModelName("anthropic/claude".into()), 200_000)),
            next,
            spent: Spent::default(),
        };
        let told = text(&Ruler::of(None), &long_story(), &facts(Next::At(160_000)));
        for part in [
            "about 50.0k of 200.0k tokens of anthropic/claude (25 %)",
            "compactions: 1, and 1 taken back",
            "pinned: e2",
            "at about 160.0k tokens",
        ] {
            assert!(told.contains(part), "{part} in:\n{told}");
        }
        assert!(text(&Ruler::of(None), &long_story(), &facts(Next::Paused)).contains("paused"));
    }
}
