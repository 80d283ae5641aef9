//! The goal and the model: whether it knows the goal of the work, or has to be told. Pure.
//!
//! What the model knows is what its view says: a mutation, an undo or a mask may have taken the goal out
//! of it, and a compaction's summary has brought it along. So nothing is remembered here; the view is
//! read before each model call.

use epitome_compaction::{GOAL_HEAD, goal_words};
use epitome_thread::{Change, Origin, Thread};

/// Who tells it, in the log. No hook has this name: a hook's is that of a file.
pub(crate) const BY: &str = "/goal";

const ENDED: &str = "The goal of the work is ended; there is none now.";

/// What the model has to be told of the goal; `None` where its view says the same.
pub(crate) fn untold(thread: &Thread) -> Option<String> {
    let words = thread.goal().map_or_else(|| ENDED.to_owned(), goal_words);
    let newest = thread.view().entries().iter().rev().find_map(|entry| match &entry.change {
        Change::Said { message, origin: Origin::Context { by } } if by == BY => Some(message.text()),
        Change::Compacted { summary, .. } => Some(summary.text()).filter(|text| text.contains(GOAL_HEAD)),
        _ => None,
    });
    match (newest, thread.goal()) {
        (Some(said), _) => (!said.contains(&words)).then_some(words),
        (None, Some(_)) => Some(words),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use epitome_thread::{Content, Message, MessageId, Role, Seq, Spoken, Trigger};

    use super::super::why::tests::thread;

    fn message(text: &str) -> Message {
        Message { id: MessageId(0), content: vec![Content::Text { text: text.to_owned() }] }
    }

    fn person(text: &str) -> Change {
        Change::Said { message: message(text), origin: Origin::Person }
    }

    fn goal(goal: Option<&str>) -> Change {
        Change::GoalSet { goal: goal.map(str::to_owned) }
    }

    fn told(text: &str) -> Change {
        Change::Said { message: message(text), origin: Origin::Context { by: BY.to_owned() } }
    }

    fn compacted(through: u64, text: &str) -> Change {
        Change::Compacted {
            through: Seq(through),
            summary: message(text),
            trigger: Trigger::Manual,
            focus: None,
            tokens_before: 9,
            tokens_after: 1,
            window: None,
            model: None,
            usage: None,
            masks: Vec::new(),
            account: Default::default(),
        }
    }

    fn mutated(through: u64) -> Change {
        let messages = vec![Spoken { role: Role::User, message: message("Another past.") }];
        Change::Mutated {
            through: Seq(through),
            messages,
            by: "hook".into(),
            tokens_before: 9,
            tokens_after: 1,
            window: None,
        }
    }

    /// Each row is a log behind its opening entry, e0, and what the model is then told.
    #[test]
    fn the_model_is_told_what_its_view_does_not_say() {
        let (a, b) = (goal_words("A"), goal_words("B"));
        let (set_a, set_b) = (goal(Some("A")), goal(Some("B")));
        let said_a = told(&format!("<context>\n{a}\n</context>"));
        for (story, log, wanted) in [
            ("there is none", vec![person("hi")], None),
            ("it is new", vec![person("hi"), set_a.clone()], Some(a.clone())),
            ("it was told", vec![set_a.clone(), said_a.clone()], None),
            ("it is another now", vec![set_a.clone(), said_a.clone(), set_b.clone()], Some(b.clone())),
            ("it is ended", vec![set_a.clone(), said_a.clone(), goal(None)], Some(ENDED.to_owned())),
            ("the end was told", vec![set_a.clone(), said_a.clone(), goal(None), told(ENDED)], None),
            ("it ended before it was told", vec![set_a.clone(), goal(None)], None),
            (
                "a compaction brought it along",
                vec![set_a.clone(), said_a.clone(), compacted(2, &format!("Past.\n\n{a}"))],
                None,
            ),
            (
                "it changed since the compaction",
                vec![set_a.clone(), said_a.clone(), compacted(2, &a), set_b.clone()],
                Some(b.clone()),
            ),
            (
                "an old one stands behind the summary, which has the new one",
                vec![set_a.clone(), said_a.clone(), set_b.clone(), compacted(1, &b)],
                Some(b.clone()),
            ),
            ("a hook replaced the history", vec![set_a.clone(), said_a.clone(), mutated(2)], Some(a.clone())),
            (
                "that was undone",
                vec![set_a.clone(), said_a.clone(), mutated(2), Change::Undone { entry: Seq(3) }],
                None,
            ),
            ("a person's words are not the goal's", vec![set_a.clone(), person(&a)], Some(a.clone())),
        ] {
            assert_eq!(untold(&thread(log)), wanted, "{story}");
        }
    }
}
