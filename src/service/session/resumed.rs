//! The events that a client has missed when it continues with another process, and the fate of its open prompts.
//!
//! Each piece shown to a client has a [`Position`], which the client's front end keeps. When its daemon dies, the
//! front end hands the last position to the next daemon. Everything after it is in the log, so the rest is a function
//! of the log and the position. Pure: the session sends the result.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{PendingPrompt, Position, Seen, SessionAnswer, SessionError, SessionEvent, TextShown};
use epitome_thread::{
    Change, Content, Entry, EntryLog, MessageId, Origin, Seq, StopReason, ToolCall, Usage, Withheld,
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
    pub fates: Vec<Fate>,
    /// The message that each prompt became in the conversation, if it did.
    pub inserted: Vec<Option<MessageId>>,
    /// The entry of each prompt, if the log has it.
    pub found: Vec<Option<Seq>>,
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
    /// The log has no such prompt: it was lost before it started.
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
    let found = find(entries, prompts);
    let is_own = |entry: &Entry| {
        let queued = match &entry.change {
            Change::Said { origin: Origin::Queue { entry }, .. } => *entry,
            _ => entry.seq,
        };
        found.contains(&Some(queued))
    };
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
        inserted: found.iter().map(|at| message_of(entries, (*at)?)).collect(),
        fates: found.iter().map(|at| fate(entries, *at)).collect(),
        found,
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

/// Finds the entry of each prompt. A client's prompts enter the log in the order in which it sent them, and after
/// everything that it had been shown by then. Answered prompts are in the log, except for those that were cancelled
/// before. Of the prompts that it still waits for, and of those whose answer was an error, the assignment that finds most of
/// them counts, and for each the newest entry with the same text. Each entry belongs to one prompt.
fn find(entries: &EntryLog, prompts: &[PendingPrompt]) -> Vec<Option<Seq>> {
    if prompts.is_empty() {
        return Vec::new();
    }
    let queued = entries.iter().filter_map(|entry| match &entry.change {
        Change::Queued { message } => Some(message.id),
        _ => None,
    });
    let queued: BTreeSet<MessageId> = queued.collect();
    let is_of = |prompt: &PendingPrompt, entry: &Entry| {
        let was_queued =
            matches!(&entry.change, Change::Withheld { message, .. } if queued.contains(&message.id));
        prompt.sent_after.is_none_or(|after| entry.seq > after)
            && !was_queued
            && is_prompt(&entry.change, &prompt.content)
    };
    let mut answered: BTreeSet<Seq> = BTreeSet::new();
    for prompt in prompts.iter().filter(|prompt| prompt.ticket.is_none() && !prompt.has_failed) {
        let is_it = |entry: &&Arc<Entry>| {
            !answered.contains(&entry.seq)
                && is_of(prompt, entry)
                && (!prompt.was_cancelled || is_cancelled(&fate(entries, Some(entry.seq))))
        };
        if let Some(entry) = entries.iter().find(is_it) {
            answered.insert(entry.seq);
        }
    }
    let by_key = |prompt: &PendingPrompt| {
        prompt.ticket?;
        keyed(entries, prompt.key.as_ref()?)
    };
    let mut found: Vec<Option<Seq>> = prompts.iter().map(by_key).collect();
    let open = prompts.iter().enumerate();
    let is_open = |prompt: &PendingPrompt| prompt.ticket.is_some() || prompt.has_failed;
    let open: Vec<_> = open.filter(|(_, prompt)| is_open(prompt) && prompt.key.is_none()).collect();
    let is_candidate = |entry: &&Arc<Entry>| {
        !answered.contains(&entry.seq) && open.iter().any(|(_, prompt)| is_of(prompt, entry))
    };
    let candidates: Vec<&Arc<Entry>> = entries.iter().filter(is_candidate).collect();
    // The longest common subsequence: any prompts may be missing in the log, and must not take the entries of others with
    // the same text. `longest[i][j]` is its length for the first prompts and candidates.
    let mut longest = vec![vec![0; candidates.len() + 1]; open.len() + 1];
    for (i, (_, prompt)) in open.iter().enumerate() {
        for (j, entry) in candidates.iter().enumerate() {
            longest[i + 1][j + 1] = match is_of(prompt, entry) {
                true => longest[i][j] + 1,
                false => longest[i][j + 1].max(longest[i + 1][j]),
            };
        }
    }
    let (mut i, mut j) = (open.len(), candidates.len());
    while i > 0 && j > 0 {
        let (at, prompt) = open[i - 1];
        if is_of(prompt, candidates[j - 1]) {
            found[at] = Some(candidates[j - 1].seq);
            (i, j) = (i - 1, j - 1);
        } else if longest[i][j - 1] >= longest[i - 1][j] {
            j -= 1;
        } else {
            i -= 1;
        }
    }
    found
}

/// The first entry of the message that was sent with this key.
fn keyed(entries: &EntryLog, key: &str) -> Option<Seq> {
    let id = entries.iter().rev().find_map(|entry| match &entry.change {
        Change::PromptKeyed { message, key: known } if known == key => Some(*message),
        _ => None,
    })?;
    let is_it = |entry: &&Arc<Entry>| match &entry.change {
        Change::Said { message, .. } | Change::Queued { message } | Change::Withheld { message, .. } => {
            message.id == id
        }
        Change::Commanded { message, .. } => *message == id,
        _ => false,
    };
    entries.iter().find(is_it).map(|entry| entry.seq)
}

/// The message of a prompt's entry, if it is in the conversation.
fn message_of(entries: &EntryLog, prompt: Seq) -> Option<MessageId> {
    let mut after = entries.since(prompt);
    match &after.next()?.change {
        Change::Said { message, .. } => Some(message.id),
        Change::Commanded { message, .. } => Some(*message),
        Change::Queued { message } => {
            let is_taken = |entry: &Arc<Entry>| matches!(entry.change, Change::Said { origin: Origin::Queue { entry }, .. } if entry == prompt);
            after.any(is_taken).then_some(message.id)
        }
        _ => None,
    }
}

/// Whether a change records the prompt with this content.
fn is_prompt(change: &Change, content: &[Content]) -> bool {
    let is_typed = |typed: &str| {
        content.iter().any(|part| matches!(part, Content::Text { text } if text.trim() == typed.trim()))
    };
    match change {
        Change::Said { origin: Origin::Recipe { typed, .. }, .. } | Change::Commanded { typed, .. } => {
            is_typed(typed)
        }
        Change::Said { message, origin: Origin::Person } | Change::Queued { message } => {
            message.content == content
        }
        Change::Withheld { message, .. } => message.content == content || is_typed(&message.text()),
        _ => false,
    }
}

fn is_cancelled(fate: &Fate) -> bool {
    matches!(fate, Fate::Ended { reason: StopReason::Cancelled, .. })
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
    use epitome_thread::CallId;
    use epitome_thread::{CallDisplay, Message, ModelName, OutcomeStatus, ToolOutcome};

    fn log(changes: Vec<Change>) -> EntryLog {
        let entry = |(seq, change)| Arc::new(Entry { seq: Seq(seq), at: 0, change });
        (0..).zip(changes).map(entry).collect::<Vec<_>>().into()
    }

    fn content(text: &str) -> Vec<Content> {
        vec![Content::Text { text: text.to_owned() }]
    }

    fn said(text: &str) -> Change {
        Change::Said {
            message: Message { id: MessageId(1), content: content(text), author: None },
            origin: Origin::Person,
        }
    }

    fn queued(text: &str, id: u64) -> Change {
        Change::Queued { message: Message { id: MessageId(id), content: content(text), author: None } }
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

    fn prompt(text: &str, sent_after: u64) -> PendingPrompt {
        PendingPrompt {
            ticket: Some(Ticket(1)),
            content: content(text),
            sent_after: Some(Seq(sent_after)),
            key: None,
            was_cancelled: false,
            has_failed: false,
        }
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
            said("go"),
            called("c1"),
            finished("c1"),
            called("c2"),
            finished("c2"),
            ended(StopReason::EndTurn),
        ]);
        let rest = rest(&entries, &after(1), &[prompt("go", 0)]);
        assert_eq!(rest.fates, [Fate::Lost], "the prompt was sent after e0");
        let rest = super::rest(&entries, &after(1), &[PendingPrompt { sent_after: None, ..prompt("go", 0) }]);
        assert_eq!(shown(&rest), ["tool_finished", "replied", "tool_finished", "turn_ended"]);
        assert_eq!(rest.open_calls.iter().map(|call| call.id.0.as_str()).collect::<Vec<_>>(), ["c1"]);
        assert_eq!(rest.fates, [Fate::Ended { reason: StopReason::EndTurn, usage: Usage::default() }]);
    }

    /// A user sent the same text again while the first answer was on its way. The daemon died before it had taken the
    /// second prompt, which was answered like the first, as if it had been processed.
    #[test]
    fn an_answered_prompt_is_not_taken_for_a_lost_one_with_the_same_words() {
        let entries = log(vec![said("before"), said("go"), ended(StopReason::EndTurn)]);
        let answered = PendingPrompt { ticket: None, ..prompt("go", 0) };
        let rest = super::rest(&entries, &after(2), &[answered.clone(), prompt("go", 0)]);
        assert_eq!(rest.fates[1], Fate::Lost);
        let again = log(vec![said("go"), ended(StopReason::EndTurn)]);
        let twice = log(entries.iter().chain(&again).map(|entry| entry.change.clone()).collect());
        let rest = super::rest(&twice, &after(2), &[answered, prompt("go", 0)]);
        assert_eq!(rest.fates[1], Fate::Ended { reason: StopReason::EndTurn, usage: Usage::default() });
    }

    /// Regression: a client that returned after its turn had failed was not given the reason.
    #[test]
    fn a_failed_turn_is_answered_with_its_reason() {
        let (reason, usage) = (StopReason::Failed, Usage::default());
        let failed = Change::TurnEnded { reason, usage, quiet_hooks: 0, failure: Some("No credit.".into()) };
        let entries = log(vec![said("before"), said("go"), failed]);
        let rest = rest(&entries, &after(1), &[prompt("go", 0)]);
        let answer = rest.fates[0].clone().answer().expect_err("it failed");
        assert!(answer.to_string().contains("No credit."), "{answer}");
    }

    #[test]
    fn the_clients_own_prompt_is_not_shown_to_it_again() {
        let entries = log(vec![
            said("one"),
            ended(StopReason::EndTurn),
            said("theirs"),
            ended(StopReason::EndTurn),
            said("mine"),
            ended(StopReason::Interrupted),
        ]);
        let rest = rest(&entries, &after(1), &[prompt("mine", 1)]);
        assert_eq!(shown(&rest), ["said", "turn_ended", "said*", "turn_ended"]);
        assert!(matches!(rest.fates[..], [Fate::Ended { reason: StopReason::Interrupted, .. }]));
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

    /// The same text was answered earlier; the second prompt never reached the log.
    #[test]
    fn a_lost_prompt_is_not_taken_for_an_earlier_one_with_the_same_words() {
        let entries = log(vec![said("continue"), ended(StopReason::EndTurn)]);
        assert_eq!(rest(&entries, &after(1), &[prompt("continue", 1)]).fates, [Fate::Lost]);
    }

    /// Regression: a user cancelled a prompt that still waited for its turn, and sent the same words again. The daemon died
    /// when the log had only the second one. It was kept for the next turn, but reported as not begun, so the user sent it
    /// a third time, and the model read it twice.
    #[test]
    fn a_kept_prompt_is_not_taken_for_one_that_was_cancelled_before_it_was_in_the_log() {
        let cancelled = PendingPrompt { ticket: None, was_cancelled: true, ..prompt("more", 0) };
        let mut changes = vec![said("go"), queued("more", 3), ended(StopReason::Interrupted)];
        let prompts = [cancelled, prompt("more", 0)];
        assert_eq!(rest(&log(changes.clone()), &after(0), &prompts).fates[1], Fate::Queued);
        // The one that was cancelled is in the log, and the other is not.
        let withdrawn = Change::Withheld {
            message: Message { id: MessageId(3), content: content("more"), author: None },
            note: MessageId(3),
            why: Withheld::Cancelled,
        };
        changes.insert(2, withdrawn);
        let rest = rest(&log(changes), &after(0), &prompts);
        assert_eq!(rest.fates[1], Fate::Lost);
    }

    /// Regression: a user sent `/rewind files` a second time, and the daemon died before it was in the log. It was taken
    /// for the first one, so the prompt between them, which was before neither, was reported as not begun.
    #[test]
    fn a_lost_prompt_does_not_take_the_place_of_an_older_one() {
        let entries = log(vec![said("again"), said("other"), ended(StopReason::EndTurn)]);
        let sent = |text: &str| PendingPrompt { sent_after: None, ..prompt(text, 0) };
        let rest = rest(&entries, &Position::default(), &[sent("again"), sent("other"), sent("again")]);
        let ended = Fate::Ended { reason: StopReason::EndTurn, usage: Usage::default() };
        assert_eq!(rest.fates, [ended.clone(), ended, Fate::Lost]);
    }

    /// Regression: a daemon died before it had begun a second `/rewind files`; the next one did a later prompt, and died
    /// before its answers had arrived. The second `/rewind files` was taken for the first one, so the prompt between them
    /// was reported as not begun, although it was done.
    #[test]
    fn a_prompt_that_an_earlier_daemon_lost_does_not_take_the_place_of_an_older_one() {
        let end = || ended(StopReason::EndTurn);
        let entries = log(vec![said("again"), end(), said("other"), end(), said("later"), end()]);
        let sent = |text: &str| PendingPrompt { sent_after: None, ..prompt(text, 0) };
        let prompts = ["again", "other", "again", "undo", "later"].map(sent);
        let rest = rest(&entries, &Position::default(), &prompts);
        let ended = || Fate::Ended { reason: StopReason::EndTurn, usage: Usage::default() };
        assert_eq!(rest.fates, [ended(), ended(), Fate::Lost, Fate::Lost, ended()]);
    }

    /// Regression: two prompts with the same text were answered as interrupted by the next daemon, which did another one, and died
    /// while it did a third with that text (world 923887). The entries of the first two were free for later prompts, so the one in
    /// between was reported as not begun, although it was done.
    #[test]
    fn a_prompt_that_was_answered_with_an_error_keeps_its_entry() {
        let end = || ended(StopReason::EndTurn);
        let entries =
            log(vec![said("again"), queued("again", 2), end(), said("other"), end(), said("again"), end()]);
        let sent = |text: &str| PendingPrompt { sent_after: None, ..prompt(text, 0) };
        let failed = |text: &str| PendingPrompt { ticket: None, has_failed: true, ..sent(text) };
        let prompts = [failed("again"), failed("again"), sent("other"), sent("again"), sent("again")];
        let found = rest(&entries, &Position::default(), &prompts).found;
        assert_eq!(found[2..], [Some(Seq(3)), None, Some(Seq(5))]);
        // The log lacks what was refused.
        let refused = [failed("again"), sent("again")];
        let entries = log(vec![said("again"), end()]);
        assert_eq!(rest(&entries, &Position::default(), &refused).found, [None, Some(Seq(0))]);
    }

    /// Regression: a prompt waited while a command was done, and the daemon was killed. The next one answered the prompt with the
    /// end of the command's turn, although the model had never read it.
    #[test]
    fn a_queued_prompt_does_not_end_with_the_turn_of_a_command() {
        let command = Change::Commanded { message: MessageId(3), typed: "/rewind files".to_owned() };
        let mut changes = vec![said("first"), queued("second", 2), command, ended(StopReason::EndTurn)];
        let fate = |changes: &[Change]| fate(&log(changes.to_vec()), Some(Seq(1)));
        assert_eq!(fate(&changes), Fate::Open { queued: Some(Seq(1)) });

        let message = Message { id: MessageId(2), content: content("second"), author: None };
        changes.push(Change::Said { message, origin: Origin::Queue { entry: Seq(1) } });
        assert_eq!(fate(&changes), Fate::Open { queued: Some(Seq(1)) });
        changes.push(ended(StopReason::MaxTokens));
        let reason = StopReason::MaxTokens;
        assert_eq!(fate(&changes), Fate::Ended { reason, usage: Usage::default() });
    }

    #[test]
    fn queued_prompts_share_the_end_of_their_turn_or_wait_for_the_next() {
        let taken = |entry| Change::Said {
            message: Message { id: MessageId(3), content: content("more"), author: None },
            origin: Origin::Queue { entry: Seq(entry) },
        };
        let mut changes = vec![said("go"), queued("more", 3), taken(1), ended(StopReason::EndTurn)];
        let prompts = [PendingPrompt { sent_after: None, ..prompt("go", 0) }, prompt("more", 0)];
        let rest = rest(&log(changes.clone()), &after(0), &prompts);
        assert_eq!(shown(&rest), ["queued*", "said*", "turn_ended"]);
        assert!(
            rest.fates.iter().all(|fate| matches!(fate, Fate::Ended { reason: StopReason::EndTurn, .. }))
        );
        changes.truncate(2);
        let open = super::rest(&log(changes.clone()), &after(0), &prompts).fates;
        assert_eq!(open, [Fate::Open { queued: None }, Fate::Open { queued: Some(Seq(1)) }]);
        for reason in [StopReason::Interrupted, StopReason::Failed] {
            let changes = changes.iter().cloned().chain([ended(reason)]).collect();
            let ended = super::rest(&log(changes), &after(0), &prompts).fates;
            assert_eq!(ended[1], Fate::Queued);
        }
    }
}
