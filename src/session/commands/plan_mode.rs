//! Plan mode and the model: whether it knows that it may change nothing now, or has to be told. Pure.
//!
//! The system text stays as it is. As with the goal, what the model knows is what its view says: a compaction or an
//! undo may have taken it out, so the view is read before each model call.

use epitome_thread::{Change, Mode, Origin, Thread};

/// Who tells it, in the log. No hook has this name: a hook's is that of a file.
pub(crate) const BY: &str = "/mode";

const ON: &str = "Plan mode is on: nothing may be changed now. Read and search as far as you need, then present a plan: \
what you would change, where, in which order, and how you would check it; say what you are not sure of. Don't try to \
edit files or to run commands: they are refused. The person reads the plan and takes you out of plan mode to have it \
carried out.";

const OFF: &str = "Plan mode is off: you may change files and run commands again, as the person allows. If they have \
agreed to a plan, carry it out.";

/// What the model has to be told of the mode; `None` where its view says the same, and where it is as it always was.
pub(crate) fn untold(thread: &Thread) -> Option<&'static str> {
    let newest = thread.view().entries().iter().rev().find_map(|entry| match &entry.change {
        Change::Said { message, origin: Origin::Context { by } } if by == BY => Some(message.text()),
        _ => None,
    });
    let knows = |words: &str| newest.as_ref().is_some_and(|told| told.contains(words));
    match thread.mode() {
        Mode::ReadOnly => (!knows(ON)).then_some(ON),
        Mode::Ask | Mode::AcceptEdits | Mode::Full => knows(ON).then_some(OFF),
    }
}

#[cfg(test)]
mod tests {
    use super::super::why::tests::thread;
    use super::*;
    use epitome_thread::{Content, Message, MessageId};

    fn told(text: &str) -> Change {
        let content = vec![Content::Text { text: format!("<context>\n{text}\n</context>") }];
        let message = Message { id: MessageId(0), content };
        Change::Said { message, origin: Origin::Context { by: BY.to_owned() } }
    }

    /// Each row is a log behind its opening entry, and what the model is then told.
    #[test]
    fn the_model_is_told_of_plan_mode_where_its_view_says_otherwise() {
        let mode = |mode| Change::ModeChosen { mode };
        for (story, log, wanted) in [
            ("it may do what it always may", vec![mode(Mode::Full)], None),
            ("plan mode is new", vec![mode(Mode::ReadOnly)], Some(ON)),
            ("it was told", vec![mode(Mode::ReadOnly), told(ON)], None),
            ("it is over", vec![mode(Mode::ReadOnly), told(ON), mode(Mode::Ask)], Some(OFF)),
            ("the end was told", vec![mode(Mode::ReadOnly), told(ON), mode(Mode::Ask), told(OFF)], None),
            ("it was never told of it", vec![mode(Mode::ReadOnly), mode(Mode::Ask)], None),
            (
                "it is on again",
                vec![mode(Mode::ReadOnly), told(ON), mode(Mode::Ask), told(OFF), mode(Mode::ReadOnly)],
                Some(ON),
            ),
        ] {
            assert_eq!(untold(&thread(log)), wanted, "{story}");
        }
    }
}
