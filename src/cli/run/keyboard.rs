//! Reads the user's answers to questions on a separate thread.

use std::sync::Arc;
use std::sync::mpsc;

use crate::cli::queue::{InputQueue, RunInput};
use crate::cli::terminal;
use crate::session::UserDecision;

/// The source of answers.
pub enum Keyboard {
    /// No question has been asked yet.
    Unknown,
    /// A thread reads one line per request; `reading` while it does.
    Open { reading: bool, wanted: mpsc::SyncSender<()> },
    /// No answers can be read: there is no terminal, or its input has ended.
    Missing,
}

/// Starts the thread that reads the user's answers, one line per request. It ends with the process, because reading
/// from a terminal can't be cancelled.
pub fn listen(queue: &Arc<InputQueue>) -> Keyboard {
    let Some(mut keyboard) = terminal::keyboard() else { return Keyboard::Missing };
    let (wanted, wants) = mpsc::sync_channel(1);
    let queue = queue.clone();
    let spawned = std::thread::Builder::new().name("keyboard".to_owned()).spawn(move || {
        while let Ok(()) = wants.recv() {
            queue.put_input(RunInput::Typed(terminal::answer(&mut *keyboard)));
        }
    });
    match spawned {
        Ok(_) => Keyboard::Open { reading: false, wanted },
        Err(_) => Keyboard::Missing,
    }
}

/// The meaning of a typed line.
#[derive(Debug, PartialEq, Eq)]
pub enum TypedAnswer {
    Decision(UserDecision),
    /// Explain the possible answers.
    Explain,
    /// Ask the question again.
    Unclear,
}

/// Interprets a typed answer. An empty line means no.
pub fn answer(typed: &str) -> TypedAnswer {
    let (word, reason) = typed.split_once(' ').unwrap_or((typed, ""));
    let reason = reason.trim();
    TypedAnswer::Decision(match (word.trim_end_matches(',').to_ascii_lowercase().as_str(), reason) {
        ("?" | "help", "") => return TypedAnswer::Explain,
        ("y" | "yes", "") => UserDecision::AllowOnce,
        ("a" | "always", "") => UserDecision::AllowAlways,
        ("n" | "no" | "", "") => UserDecision::Reject,
        ("n" | "no", reason) => UserDecision::RejectBecause(reason.to_owned()),
        _ => return TypedAnswer::Unclear,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_plain_answer_allows() {
        for (typed, decision) in [
            ("y", UserDecision::AllowOnce),
            ("Always", UserDecision::AllowAlways),
            ("n", UserDecision::Reject),
            ("", UserDecision::Reject),
            ("no, use make", UserDecision::RejectBecause("use make".to_owned())),
            ("n  Not yet ", UserDecision::RejectBecause("Not yet".to_owned())),
        ] {
            assert_eq!(answer(typed), TypedAnswer::Decision(decision), "{typed:?}");
        }
        assert_eq!(answer("?"), TypedAnswer::Explain);
        for typed in ["yy", "y please", "always yes", "not now", "nope"] {
            assert_eq!(answer(typed), TypedAnswer::Unclear, "{typed:?}");
        }
    }
}
