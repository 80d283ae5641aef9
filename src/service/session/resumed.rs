//! The events that a client has missed when it continues with another process, and the fate of its open prompts.
//!
//! Each piece shown to a client has a [`Position`], which the client's front end keeps. When its daemon dies, the
//! front end hands the last position to the next daemon. Everything after it is in the log, so the rest is a function
//! of the log and the position. Pure: the session sends the result.

use std::sync::Arc;

use super::{PendingPrompt, Position, Seen, SessionAnswer, SessionError, SessionEvent, TextShown};
use epitome_thread::{
    Change, Entry, EntryLog, MessageId, Origin, Seq, StopReason, ToolCall, Usage, Withheld,
};

/// The rest of a log after a position, and the fate of prompts.
#[derive(Debug)]
pub struct Rest {
    /// A `Seen` event, then everything after it.
    pub events: Vec<SessionEvent>,
    /// The calls that the client has seen start but not end.
    pub open_calls: Vec<ToolCall>,
    /// The compaction that the client has seen start and that was not committed.
    pub open_compaction: Option<MessageId>,
    /// The fate of each prompt, in the same order.
    pub prompts: Vec<FoundPrompt>,
}

/// A prompt in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundPrompt {
    pub fate: Fate,
    /// Its message, if the log has it.
    pub message: Option<MessageId>,
    /// Whether that is in the conversation.
    pub is_inserted: bool,
}

/// The message about a queued prompt whose turn ended without reading it.
pub(super) const KEPT: &str = "It is kept, and read with your next prompt.";

/// The fate of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Its turn ended with this entry.
    Ended { reason: StopReason, usage: Usage },
    /// Its turn failed, for this reason if the log has it.
    Failed(Option<String>),
    /// Its turn is still open. For a prompt that was queued, its entry.
    Open { queued: Option<Seq> },
    /// The process ended while the prompt waited, or the turn failed before it read it; the next turn takes it.
    Queued,
    /// The log has no such prompt: it was lost before it started. It is done if the client has sent it along.
    Lost,
}

impl Fate {
    /// The answer for the client, unless the turn continues.
    pub fn answer(self) -> Result<SessionAnswer, SessionError> {
        let interrupted = |what: &str| {
            let text = format!("Interrupted: Epitome's daemon ended before it could answer. {what}");
            Err(SessionError::Interrupted(text))
        };
        match self {
            Fate::Failed(failure) => {
                let unknown = || "The turn ended with an error. Send the prompt again.".to_owned();
                let message = failure.unwrap_or_else(unknown);
                Err(SessionError::Provider { message, hint: None })
            }
            Fate::Ended { reason: StopReason::Interrupted, .. } => {
                interrupted("Please send it again; what was done so far is in the session.")
            }
            Fate::Ended { reason, usage } => Ok(SessionAnswer::TurnEnded { reason, usage, meta: None }),
            // Also without an open turn, if it was queued after the last one had ended.
            Fate::Queued | Fate::Open { queued: Some(_) } => interrupted(KEPT),
            Fate::Open { queued: None } | Fate::Lost => {
                interrupted("Please send it again: it had not begun.")
            }
        }
    }
}

/// Computes the rest of a log after a position.
pub fn rest(entries: &EntryLog, position: &Position, prompts: &[PendingPrompt]) -> Rest {
    let from = position.after.map_or(Seq(0), |after| Seq(after.0 + 1));
    let (before, after) = (entries.before(from), entries.since(from));
    let messages: Vec<_> = prompts.iter().map(|prompt| keyed(entries, &prompt.key)).collect();
    let is_own =
        |entry: &Entry| entry.change.prompt().is_some_and(|message| messages.contains(&Some(message)));
    // A client's state does not reach beyond the end of a turn.
    let is_end = |entry: &Arc<Entry>| matches!(entry.change, Change::TurnEnded { .. });
    let mut turn: Vec<Arc<Entry>> =
        before.clone().rev().take_while(|entry| !is_end(entry)).cloned().collect();
    turn.reverse();
    let shown = turn.iter().chain(before.last().filter(|_| turn.is_empty()));
    let replay = position.replay;
    let seen = Seen { entries: shown.cloned().collect(), position: position.clone() };
    let mut events = vec![SessionEvent::Seen(Box::new(seen))];
    events.extend(after.clone().map(|entry| SessionEvent::Entry {
        entry: entry.clone(),
        replay,
        own: is_own(entry),
    }));
    let is_compacted = |id: &MessageId| {
        after
            .clone()
            .any(|entry| matches!(&entry.change, Change::Compacted { summary, .. } if summary.id == *id))
    };
    Rest {
        events,
        open_calls: open_calls(&turn),
        open_compaction: position.compaction.filter(|id| !is_compacted(id)),
        prompts: messages.iter().map(|message| found(entries, *message)).collect(),
    }
}

/// The part of a piece of the running reply that a client lacks; `None` if nothing.
pub(super) fn unseen(piece: SessionEvent, shown: Option<&TextShown>) -> Option<SessionEvent> {
    let SessionEvent::Text { message, part, kind, mut text } = piece else { return Some(piece) };
    let shown = shown.filter(|shown| shown.message == message);
    let parts = shown.map_or(&[][..], |shown| &shown.parts);
    let seen =
        parts.iter().find(|(index, of, _)| (*index, *of) == (part, kind)).map_or(0, |(.., bytes)| *bytes);
    let text = text.split_off(text.floor_char_boundary(seen));
    (!text.is_empty()).then_some(SessionEvent::Text { message, part, kind, text })
}

/// The calls of a turn without an outcome.
fn open_calls(turn: &[Arc<Entry>]) -> Vec<ToolCall> {
    let mut open: Vec<ToolCall> = Vec::new();
    for entry in turn {
        match &entry.change {
            Change::Replied { message, .. } => open.extend(message.calls().cloned()),
            Change::ToolFinished { outcome } => open.retain(|call| call.id != outcome.call),
            _ => {}
        }
    }
    open
}

/// The message that was sent with this key.
fn keyed(entries: &EntryLog, key: &str) -> Option<MessageId> {
    entries.iter().rev().find_map(|entry| match &entry.change {
        Change::PromptKeyed { message, key: known } if known == key => Some(*message),
        _ => None,
    })
}

fn found(entries: &EntryLog, message: Option<MessageId>) -> FoundPrompt {
    let is_it = |entry: &&Arc<Entry>| entry.change.prompt() == message;
    let at = message.and_then(|_| entries.iter().find(is_it)).map(|entry| entry.seq);
    let is_inserted = |entry: &Arc<Entry>| {
        matches!(entry.change, Change::Said { .. } | Change::Commanded { .. })
            && entry.change.prompt() == message
    };
    FoundPrompt {
        fate: fate(entries, at),
        message: message.filter(|_| at.is_some()),
        is_inserted: at.is_some_and(|at| entries.since(at).any(is_inserted)),
    }
}

fn fate(entries: &EntryLog, prompt: Option<Seq>) -> Fate {
    let Some(prompt) = prompt else { return Fate::Lost };
    let after = entries.since(prompt);
    let queued = after.clone().next().and_then(|entry| match &entry.change {
        Change::Queued { message } => Some(message.id),
        _ => None,
    });
    // Also later, by a client that cancelled it before it was connected again.
    let is_withdrawn = after.clone().any(|entry| match &entry.change {
        Change::Withheld { message, why: Withheld::Cancelled, .. } => queued == Some(message.id),
        _ => false,
    });
    if is_withdrawn {
        return Fate::Ended { reason: StopReason::Cancelled, usage: Usage::default() };
    }
    let (mut is_taken, mut is_command, mut end) = (false, false, None);
    for entry in after {
        match &entry.change {
            Change::Said { origin: Origin::Queue { entry }, .. } => is_taken |= *entry == prompt,
            Change::Withheld { message, .. } => is_taken |= queued == Some(message.id),
            // The turn of a command takes no prompts.
            Change::Commanded { .. } => is_command |= queued.is_some() && !is_taken,
            Change::TurnEnded { reason: StopReason::EndTurn, .. } if is_command && !is_taken => {
                is_command = false;
            }
            change @ Change::TurnEnded { .. } => {
                end = Some(change);
                break;
            }
            _ => {}
        }
    }
    match end {
        Some(Change::TurnEnded { reason: StopReason::Interrupted | StopReason::Failed, .. })
            if queued.is_some() && !is_taken =>
        {
            Fate::Queued
        }
        Some(Change::TurnEnded { reason: StopReason::Failed, failure, .. }) => Fate::Failed(failure.clone()),
        Some(Change::TurnEnded { reason, usage, .. }) => Fate::Ended { reason: *reason, usage: *usage },
        _ => Fate::Open { queued: queued.map(|_| prompt) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{TextKind, Ticket};
    use epitome_thread::{CallDisplay, CallId, Content, Message, ModelName, OutcomeStatus, ToolOutcome};

    fn log(changes: Vec<Change>) -> EntryLog {
        let entry = |(seq, change)| Arc::new(Entry { seq: Seq(seq), at: 0, change });
        (0..).zip(changes).map(entry).collect::<Vec<_>>().into()
    }

    fn message(id: u64) -> Message {
        Message { id: MessageId(id), content: Vec::new(), author: None }
    }

    fn said(id: u64) -> Change {
        Change::Said { message: message(id), origin: Origin::Person }
    }

    fn queued(id: u64) -> Change {
        Change::Queued { message: message(id) }
    }

    fn taken(id: u64, entry: u64) -> Change {
        Change::Said { message: message(id), origin: Origin::Queue { entry: Seq(entry) } }
    }

    /// Announces the message of the prompt with a key.
    fn sent(key: &str, id: u64) -> Change {
        Change::PromptKeyed { message: MessageId(id), key: key.to_owned() }
    }

    fn called(id: &str) -> Change {
        let call = ToolCall {
            id: CallId(id.to_owned()),
            name: "bash".to_owned(),
            input: serde_json::json!({}),
            card: CallDisplay::default(),
        };
        let message = Message { id: MessageId(2), content: vec![Content::Call(call)], author: None };
        Change::Replied { message, model: ModelName("a/b".to_owned()), usage: None, cut: None }
    }

    fn finished(id: &str) -> Change {
        let outcome = ToolOutcome::text(CallId(id.to_owned()), OutcomeStatus::Completed, "ok");
        Change::ToolFinished { outcome }
    }

    fn ended(reason: StopReason) -> Change {
        Change::TurnEnded { reason, usage: Usage::default(), quiet_hooks: 0, failure: None }
    }

    fn prompt(key: &str) -> PendingPrompt {
        PendingPrompt { ticket: Ticket(1), key: key.to_owned(), content: None, was_cancelled: false }
    }

    fn fates(entries: &EntryLog, prompts: &[&str]) -> Vec<Fate> {
        let prompts: Vec<_> = prompts.iter().map(|key| prompt(key)).collect();
        rest(entries, &Position::default(), &prompts).prompts.into_iter().map(|found| found.fate).collect()
    }

    fn done() -> Fate {
        Fate::Ended { reason: StopReason::EndTurn, usage: Usage::default() }
    }

    fn after(seq: u64) -> Position {
        Position { after: Some(Seq(seq)), ..Position::default() }
    }

    /// The kinds of the entries that are sent, with an asterisk for the client's own.
    fn shown(rest: &Rest) -> Vec<String> {
        let one = |out: &SessionEvent| match out {
            SessionEvent::Entry { entry, own, .. } => {
                Some(format!("{}{}", entry.change.kind(), if *own { "*" } else { "" }))
            }
            _ => None,
        };
        rest.events.iter().filter_map(one).collect()
    }

    /// An editor window that was one second behind its daemon when that died kept calls "in progress" forever, and
    /// its user was asked to resend a prompt whose turn had ended.
    #[test]
    fn a_client_gets_everything_after_its_position_and_the_end_of_its_turn() {
        let entries = log(vec![
            sent("go", 1),
            said(1),
            called("c1"),
            finished("c1"),
            called("c2"),
            finished("c2"),
            ended(StopReason::EndTurn),
        ]);
        let rest = rest(&entries, &after(2), &[prompt("go")]);
        assert_eq!(shown(&rest), ["tool_finished", "replied", "tool_finished", "turn_ended"]);
        assert_eq!(rest.open_calls.iter().map(|call| call.id.0.as_str()).collect::<Vec<_>>(), ["c1"]);
        let wanted = FoundPrompt { fate: done(), message: Some(MessageId(1)), is_inserted: true };
        assert_eq!(rest.prompts, [wanted]);
    }

    /// Prompts used to be found by their words. Among the faults of that: the second of two prompts with the same words had
    /// not reached the log, and was answered with the end of the first; or one that was done was answered as not begun.
    #[test]
    fn prompts_with_the_same_words_have_fates_of_their_own() {
        let end = || ended(StopReason::EndTurn);
        let entries = log(vec![sent("a", 1), said(1), end(), sent("b", 2), said(2), end(), sent("c", 3)]);
        assert_eq!(fates(&entries, &["a", "b", "c", "d"]), [done(), done(), Fate::Lost, Fate::Lost]);
        assert_eq!(fates(&entries, &["d", "b"]), [Fate::Lost, done()]);
    }

    /// Regression: a client that returned after its turn had failed was not given the reason.
    #[test]
    fn a_failed_turn_is_answered_with_its_reason() {
        let (reason, usage) = (StopReason::Failed, Usage::default());
        let failed = Change::TurnEnded { reason, usage, quiet_hooks: 0, failure: Some("No credit.".into()) };
        let entries = log(vec![said(1), sent("go", 2), said(2), failed]);
        let answer = fates(&entries, &["go"])[0].clone().answer().expect_err("it failed");
        assert!(answer.to_string().contains("No credit."), "{answer}");
    }

    #[test]
    fn the_clients_own_prompt_is_not_shown_to_it_again() {
        let entries = log(vec![
            said(1),
            ended(StopReason::EndTurn),
            sent("theirs", 2),
            said(2),
            ended(StopReason::EndTurn),
            sent("mine", 3),
            said(3),
            ended(StopReason::Interrupted),
        ]);
        let rest = rest(&entries, &after(1), &[prompt("mine")]);
        let wanted = ["prompt_keyed", "said", "turn_ended", "prompt_keyed", "said*", "turn_ended"];
        assert_eq!(shown(&rest), wanted);
        assert!(matches!(rest.prompts[0].fate, Fate::Ended { reason: StopReason::Interrupted, .. }));
    }

    /// Regression: the server of a window was killed while a reply was streamed, and its daemon went on. At the next server, the
    /// window showed the beginning of the reply twice.
    #[test]
    fn a_client_that_returns_to_a_streaming_reply_gets_the_rest_of_it() {
        let piece = |text: &str| SessionEvent::Text {
            message: MessageId(3),
            part: 1,
            kind: TextKind::Reply,
            text: text.to_owned(),
        };
        let shown = |message, bytes| TextShown {
            message: MessageId(message),
            parts: vec![(0, TextKind::Thinking, 9), (1, TextKind::Reply, bytes)],
        };
        for (shown, wanted) in [
            (None, Some("one two")),
            (Some(shown(3, 4)), Some("two")),
            (Some(shown(3, 7)), None),
            (Some(shown(3, 99)), None),
            (Some(shown(2, 4)), Some("one two")),
        ] {
            let rest = match unseen(piece("one two"), shown.as_ref()) {
                Some(SessionEvent::Text { text, .. }) => Some(text),
                _ => None,
            };
            assert_eq!(rest.as_deref(), wanted, "{shown:?}");
        }
    }

    /// Regression: a user cancelled a prompt that still waited for its turn, and sent the same words again. The daemon died
    /// when the log had only the second one. It was kept for the next turn, but reported as not begun, so the user sent it
    /// a third time, and the model read it twice.
    #[test]
    fn a_prompt_that_was_withdrawn_is_cancelled_and_the_next_one_is_kept() {
        let why = Withheld::Cancelled;
        let withdrawn = Change::Withheld { message: message(2), note: MessageId(2), why };
        let mut changes = vec![said(1), sent("a", 2), queued(2), withdrawn, sent("b", 3), queued(3)];
        changes.push(ended(StopReason::Interrupted));
        let cancelled = Fate::Ended { reason: StopReason::Cancelled, usage: Usage::default() };
        assert_eq!(fates(&log(changes), &["a", "b"]), [cancelled, Fate::Queued]);
    }

    /// Regression: a prompt waited while a command was done, and the daemon was killed. The next one answered the prompt with the
    /// end of the command's turn, although the model had never read it.
    #[test]
    fn a_queued_prompt_does_not_end_with_the_turn_of_a_command() {
        let command = Change::Commanded { message: MessageId(3), typed: "/rewind files".to_owned() };
        let mut changes = vec![said(1), queued(2), command, ended(StopReason::EndTurn)];
        let fate = |changes: &[Change]| fate(&log(changes.to_vec()), Some(Seq(1)));
        assert_eq!(fate(&changes), Fate::Open { queued: Some(Seq(1)) });

        changes.push(taken(2, 1));
        assert_eq!(fate(&changes), Fate::Open { queued: Some(Seq(1)) });
        changes.push(ended(StopReason::MaxTokens));
        let reason = StopReason::MaxTokens;
        assert_eq!(fate(&changes), Fate::Ended { reason, usage: Usage::default() });
    }

    #[test]
    fn queued_prompts_share_the_end_of_their_turn_or_wait_for_the_next() {
        let begun = [sent("go", 1), said(1), sent("more", 2), queued(2)];
        let with = |changes: &[Change]| log(begun.iter().chain(changes).cloned().collect());
        let entries = with(&[taken(2, 3), ended(StopReason::EndTurn)]);
        let rest = rest(&entries, &after(1), &[prompt("go"), prompt("more")]);
        assert_eq!(shown(&rest), ["prompt_keyed", "queued*", "said*", "turn_ended"]);
        assert_eq!(fates(&entries, &["go", "more"]), [done(), done()]);
        let open = [Fate::Open { queued: None }, Fate::Open { queued: Some(Seq(3)) }];
        assert_eq!(fates(&with(&[]), &["go", "more"]), open);
        for reason in [StopReason::Interrupted, StopReason::Failed] {
            assert_eq!(fates(&with(&[ended(reason)]), &["more"]), [Fate::Queued]);
        }
    }
}
