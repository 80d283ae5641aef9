//! Reminders: facts that the model has to know and its view does not contain. Pure.
//!
//! The model knows only what is in its view: a mutation, an undo or a mask may have removed something from it, and a
//! compaction's summary may have kept it. So no state is kept here: before each model call, each topic is compared
//! with the view, and missing text is appended to it. Instruction files have a separate comparison
//! (`instructions::known`).

pub(super) mod background;
#[cfg(test)]
pub(super) mod logs_tests;

use std::sync::Arc;

use epitome_compaction::{GOAL_HEAD, goal_words};
use epitome_thread::{Change, Content, Entry, Mode, Origin, Seq, Thread, View};

const GOAL_ENDED: &str = "The goal of the work is ended; there is none now.";

/// The beginning of `PLAN_MODE_ON`, also in logs of older builds.
const PLAN_MODE_HEAD: &str = "Plan mode is on:";

const PLAN_MODE_ON: &str = "Plan mode is on: nothing may be changed now. Read and search as far as you need, then \
present a plan: what you would change, where, in which order, and how you would check it; say what you are not sure of. \
Don't try to edit files or to run commands: they are refused. The user reads the plan and ends plan mode to have it \
carried out.";

const PLAN_MODE_OFF: &str = "Plan mode is off: you may change files and run commands again, as the user allows. If \
they have agreed to a plan, carry it out.";

/// The entries of a view that reminders are compared with. As long as a view is only appended to, only its new entries are
/// read: a long conversation has few of these.
#[derive(Debug, Default)]
pub(super) struct RemindedEntries {
    revision: Option<Seq>,
    /// Entries of the view that were read, and the last of them.
    read: usize,
    last: Option<Arc<Entry>>,
    entries: Vec<Arc<Entry>>,
}

impl RemindedEntries {
    pub fn of(&mut self, view: &View) -> &[Arc<Entry>] {
        let last = self.read.checked_sub(1).and_then(|last| view.entries().get(last));
        // Entries that could not be written were removed, whatever was appended since.
        let is_continued = last.map(Arc::as_ptr) == self.last.as_ref().map(Arc::as_ptr);
        if self.revision != Some(view.revision()) || !is_continued {
            *self = RemindedEntries { revision: Some(view.revision()), ..RemindedEntries::default() };
        }
        let new = &view.entries()[self.read..];
        self.read += new.len();
        self.last = view.entries().last().cloned();
        self.entries.extend(new.iter().filter(|entry| may_remind(&entry.change)).cloned());
        &self.entries
    }
}

fn may_remind(change: &Change) -> bool {
    match change {
        Change::Said { origin, .. } => matches!(origin, Origin::Context { .. }),
        Change::ToolFinished { outcome } => background::state_in(outcome).is_some(),
        change => matches!(change, Change::Compacted { .. }),
    }
}

/// A fact that the model has to know.
pub(super) struct Topic {
    /// The origin of its messages in the log. No hook has this name: hooks are named after files.
    pub by: &'static str,
    pub what: ReminderText,
}

pub(super) enum ReminderText {
    /// A state; its newest text in the view counts.
    State {
        /// The current text; `None` for the default state.
        now: Option<String>,
        /// If the state has returned to the default: the second text is added if the newest text contains the first.
        over: (&'static str, &'static str),
        /// The text that marks the topic in a summary.
        summary_head: Option<&'static str>,
    },
    /// Lines that are each added once, after a head. Each is a marker, by which it is found in the view, and the
    /// line.
    Lines { head: String, lines: Vec<(String, String)> },
    /// Lines already found to be missing from the view.
    Missing(Vec<String>),
}

impl Topic {
    /// Returns the text to add to the view with these entries; `None` if it already contains it.
    pub fn missing(self, view: &[Arc<Entry>]) -> Option<String> {
        let by = self.by;
        let texts = || view.iter().rev().filter_map(|entry| text_by(by, &entry.change));
        let lines = match self.what {
            ReminderText::State { now, over: (before, over), summary_head } => {
                let newest = view.iter().rev().find_map(|entry| match (&entry.change, summary_head) {
                    // A summary is long, and seldom has the topic.
                    (Change::Compacted { summary, .. }, Some(head)) => {
                        let mut texts = summary.content.iter().filter_map(Content::as_text);
                        texts.any(|text| text.contains(head)).then(|| summary.text())
                    }
                    (change, _) => text_by(by, change),
                });
                let has = |words: &str| newest.as_ref().is_some_and(|text| text.contains(words));
                return match now {
                    Some(now) => (!has(&now)).then_some(now),
                    None => (has(before) && !has(over)).then(|| over.to_owned()),
                };
            }
            ReminderText::Lines { head, lines } => {
                let is_new = |marker: &String| !texts().any(|text| text.contains(marker));
                let new: Vec<String> =
                    lines.into_iter().filter(|(marker, _)| is_new(marker)).map(|(_, line)| line).collect();
                let head = Some(head).filter(|head| !head.is_empty() && !new.is_empty());
                head.into_iter().chain(new).collect()
            }
            ReminderText::Missing(lines) => lines,
        };
        (!lines.is_empty()).then(|| lines.join("\n"))
    }
}

/// The text of a context message from this speaker.
pub(super) fn text_by(speaker: &str, change: &Change) -> Option<String> {
    match change {
        Change::Said { message, origin: Origin::Context { by } } if by == speaker => Some(message.text()),
        _ => None,
    }
}

pub(super) fn goal(thread: &Thread) -> Topic {
    let what = ReminderText::State {
        now: thread.goal().map(goal_words),
        over: ("", GOAL_ENDED),
        summary_head: Some(GOAL_HEAD),
    };
    Topic { by: "/goal", what }
}

/// Whether plan mode is on. The system prompt is the same in all modes.
pub(super) fn plan_mode(mode: Mode) -> Topic {
    let now = match mode {
        Mode::ReadOnly => Some(PLAN_MODE_ON.to_owned()),
        Mode::Ask | Mode::AcceptEdits | Mode::Auto | Mode::Full => None,
    };
    Topic {
        by: "/mode",
        what: ReminderText::State { now, over: (PLAN_MODE_HEAD, PLAN_MODE_OFF), summary_head: None },
    }
}

#[cfg(test)]
mod tests {
    use super::logs_tests::{compacted, context, mutated, person, thread};
    use super::*;

    /// The text that a topic adds to the view of a thread, which must be the same with its reminders alone.
    fn missing(topic: impl Fn() -> Topic, thread: &Thread) -> Option<String> {
        let all = topic().missing(thread.view().entries());
        assert_eq!(topic().missing(RemindedEntries::default().of(thread.view())), all);
        all
    }

    /// Each prompt read the entire view again for each topic, so that a turn took longer the longer a conversation was.
    #[test]
    fn reminders_are_followed_through_appends_and_changes_of_the_view() {
        let mut log = thread(vec![context("/goal", "A"), person("hi")]);
        let mut reminded = RemindedEntries::default();
        assert_eq!(reminded.of(log.view()).len(), 1);
        for (change, known) in [
            (context("/goal", "B"), 2),
            (person("more"), 2),
            (mutated(3), 0),
            (Change::Undone { entry: Seq(5) }, 2),
        ] {
            let entry = Entry { seq: log.next_seq(), at: 0, change };
            log.apply(Arc::new(entry));
            let found = reminded.of(log.view()).to_vec();
            let cold = RemindedEntries::default().of(log.view()).to_vec();
            assert_eq!((found.len(), found == cold), (known, true), "behind {}", log.next_seq());
        }
    }

    /// Regression: the goal was added to the view before a call, and the disk was full. The turn ended, the goal was removed
    /// again, and with the next prompt the view was as long as before, so the model was never sent its goal.
    #[test]
    fn a_reminder_that_could_not_be_written_is_sent_again() {
        let mut reminded = RemindedEntries::default();
        assert_eq!(reminded.of(thread(vec![person("hi"), context("/goal", "A")]).view()).len(), 1);
        assert_eq!(reminded.of(thread(vec![person("hi"), person("again")]).view()).len(), 0);
    }

    /// Each row is a log after its opening entry, e0, and the expected reminder.
    #[test]
    fn the_goal_is_sent_if_the_view_has_another() {
        let (a, b) = (goal_words("A"), goal_words("B"));
        let goal = |goal: Option<&str>| Change::GoalSet { goal: goal.map(str::to_owned) };
        let (set_a, set_b) = (goal(Some("A")), goal(Some("B")));
        let sent = |text: &str| context("/goal", text);
        let sent_a = sent(&a);
        for (story, log, wanted) in [
            ("there is none", vec![person("hi")], None),
            ("it is new", vec![person("hi"), set_a.clone()], Some(a.clone())),
            ("it was sent", vec![set_a.clone(), sent_a.clone()], None),
            ("it is another now", vec![set_a.clone(), sent_a.clone(), set_b.clone()], Some(b.clone())),
            ("it is ended", vec![set_a.clone(), sent_a.clone(), goal(None)], Some(GOAL_ENDED.to_owned())),
            ("the end was sent", vec![set_a.clone(), sent_a.clone(), goal(None), sent(GOAL_ENDED)], None),
            ("it ended before it was sent", vec![set_a.clone(), goal(None)], None),
            (
                "a compaction brought it along",
                vec![set_a.clone(), sent_a.clone(), compacted(2, &format!("Past.\n\n{a}"))],
                None,
            ),
            (
                "it changed since the compaction",
                vec![set_a.clone(), sent_a.clone(), compacted(2, &a), set_b.clone()],
                Some(b.clone()),
            ),
            (
                "an old one follows the summary, which has the new one",
                vec![set_a.clone(), sent_a.clone(), set_b.clone(), compacted(1, &b)],
                Some(b.clone()),
            ),
            ("a hook replaced the history", vec![set_a.clone(), sent_a.clone(), mutated(2)], Some(a.clone())),
            (
                "that was undone",
                vec![set_a.clone(), sent_a.clone(), mutated(2), Change::Undone { entry: Seq(3) }],
                None,
            ),
            ("a message of the user's is not the goal", vec![set_a.clone(), person(&a)], Some(a.clone())),
        ] {
            let thread = thread(log);
            assert_eq!(missing(|| super::goal(&thread), &thread), wanted, "{story}");
        }
    }

    #[test]
    fn plan_mode_is_sent_if_the_view_says_otherwise() {
        let mode = |mode| Change::ModeChosen { mode };
        let (on, off) = (|| context("/mode", PLAN_MODE_ON), || context("/mode", PLAN_MODE_OFF));
        for (story, log, wanted) in [
            ("it may do what it always may", vec![mode(Mode::Full)], None),
            ("plan mode is new", vec![mode(Mode::ReadOnly)], Some(PLAN_MODE_ON)),
            ("it was sent", vec![mode(Mode::ReadOnly), on()], None),
            ("it is over", vec![mode(Mode::ReadOnly), on(), mode(Mode::Ask)], Some(PLAN_MODE_OFF)),
            ("the end was sent", vec![mode(Mode::ReadOnly), on(), mode(Mode::Ask), off()], None),
            ("it was never sent", vec![mode(Mode::ReadOnly), mode(Mode::Ask)], None),
            (
                "it is on again",
                vec![mode(Mode::ReadOnly), on(), mode(Mode::Ask), off(), mode(Mode::ReadOnly)],
                Some(PLAN_MODE_ON),
            ),
            (
                "it was turned on by an older build, in other words",
                vec![
                    mode(Mode::ReadOnly),
                    context("/mode", "Plan mode is on: nothing may be changed now."),
                    mode(Mode::Ask),
                ],
                Some(PLAN_MODE_OFF),
            ),
        ] {
            let thread = thread(log);
            assert_eq!(missing(|| plan_mode(thread.mode()), &thread).as_deref(), wanted, "{story}");
        }
    }

    #[test]
    fn each_line_is_sent_once_after_its_head() {
        let line = |name: &str| (format!("{name}:"), format!("{name}: does it"));
        let list = |names: &[&str]| Topic {
            by: "skills",
            what: ReminderText::Lines {
                head: "New:".to_owned(),
                lines: names.iter().map(|name| line(name)).collect(),
            },
        };
        for (story, log, names, wanted) in [
            ("there are none", vec![], vec![], None),
            ("they are new", vec![], vec!["a", "b"], Some("New:\na: does it\nb: does it")),
            ("one was sent", vec![context("skills", "a: did it")], vec!["a", "b"], Some("New:\nb: does it")),
            ("all were sent", vec![context("skills", "a: x\nb: y"), person("hi")], vec!["a", "b"], None),
            ("another said it", vec![context("mcp", "a: x")], vec!["a"], Some("New:\na: does it")),
            (
                "a hook replaced the history",
                vec![context("skills", "a: x"), mutated(1)],
                vec!["a"],
                Some("New:\na: does it"),
            ),
        ] {
            let thread = thread(log);
            assert_eq!(missing(|| list(&names), &thread).as_deref(), wanted, "{story}");
        }
    }
}
