//! Reads the user's answers to questions on a thread of its own.

use std::sync::Arc;
use std::sync::mpsc;

use crate::cli::queue::{InputQueue, UserInput};
use crate::cli::terminal;
use crate::session::UserDecision;

/// Who answers questions.
pub enum Keyboard {
    /// No question was asked yet.
    Unknown,
    /// A thread reads one line whenever one is requested; `reading` while it does.
    Open {
        reading: bool,
        wanted: mpsc::SyncSender<()>,
    },
    Nobody,
}

/// Starts the thread that reads the user's answers, one line per request. It ends with the process, as reading from a
/// terminal can't be cancelled.
pub fn listen(queue: &Arc<InputQueue>) -> Keyboard {
    let Some(mut keyboard) = terminal::keyboard() else { return Keyboard::Nobody };
    let (wanted, wants) = mpsc::sync_channel(1);
    let queue = queue.clone();
    let spawned = std::thread::Builder::new().name("keyboard".to_owned()).spawn(move || {
        while let Ok(()) = wants.recv() {
            queue.put_input(UserInput::Typed(terminal::answer(&mut *keyboard)));
        }
    });
    match spawned {
        Ok(_) => Keyboard::Open { reading: false, wanted },
        Err(_) => Keyboard::Nobody,
    }
}

/// The decision of a typed answer; `None` if the question must be asked again. An empty line is not a yes.
pub fn decision(typed: &str) -> Option<UserDecision> {
    match typed.to_ascii_lowercase().as_str() {
        "y" | "yes" => Some(UserDecision::AllowOnce),
        "a" | "always" => Some(UserDecision::AllowAlways),
        "n" | "no" => Some(UserDecision::Reject),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_plain_answer_allows() {
        assert_eq!(decision("y"), Some(UserDecision::AllowOnce));
        assert_eq!(decision("Always"), Some(UserDecision::AllowAlways));
        assert_eq!(decision("n"), Some(UserDecision::Reject));
        assert_eq!(decision(""), None);
        assert_eq!(decision("yy"), None);
    }
}
