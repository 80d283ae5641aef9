//! The person's answers to questions: read on a thread of their own, understood here.

use std::sync::Arc;
use std::sync::mpsc;

use crate::cli::queue::{News, Queue};
use crate::cli::terminal;
use crate::session::Decision;

/// Who answers questions.
pub enum Keyboard {
    /// Nothing was asked yet.
    Unknown,
    /// A thread reads one line each time that one is wanted; `reading` while it does.
    Open {
        reading: bool,
        wanted: mpsc::SyncSender<()>,
    },
    Nobody,
}

/// Starts the thread that reads the person's answers, one line whenever one is wanted. It ends with
/// the process: a read of a terminal can't be called off.
pub fn listen(queue: &Arc<Queue>) -> Keyboard {
    let Some(mut keyboard) = terminal::keyboard() else { return Keyboard::Nobody };
    let (wanted, wants) = mpsc::sync_channel(1);
    let queue = queue.clone();
    let spawned = std::thread::Builder::new().name("keyboard".to_owned()).spawn(move || {
        while let Ok(()) = wants.recv() {
            queue.tell(News::Typed(terminal::answer(&mut *keyboard)));
        }
    });
    match spawned {
        Ok(_) => Keyboard::Open { reading: false, wanted },
        Err(_) => Keyboard::Nobody,
    }
}

/// What a typed answer means; `None` for one that has to be asked again. An empty line is no yes.
pub fn decision(typed: &str) -> Option<Decision> {
    match typed.to_ascii_lowercase().as_str() {
        "y" | "yes" => Some(Decision::AllowOnce),
        "a" | "always" => Some(Decision::AllowAlways),
        "n" | "no" => Some(Decision::Reject),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_plain_answer_allows() {
        assert_eq!(decision("y"), Some(Decision::AllowOnce));
        assert_eq!(decision("Always"), Some(Decision::AllowAlways));
        assert_eq!(decision("n"), Some(Decision::Reject));
        assert_eq!(decision(""), None);
        assert_eq!(decision("yy"), None);
    }
}
