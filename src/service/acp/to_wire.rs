//! Translates a session's event stream to the updates for one client: one translator for live events and replays. Pure;
//! it remembers only what this client has been shown.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use agent_client_protocol::v2::schema as wire;
use serde_json::json;

use super::compaction_wire;
use super::from_wire::ClientTraits;
use super::model::{AcpVersion, CallUpdate, MessagePiece, TerminalChange, TerminalExit, Update};
use super::subagent_wire;
use super::tool_wire::{self, CallDetail};
use super::updates::{
    agent_line, chunks, cut_line, empty_line, ending_line, entry_line, follow_up, info_update, last_shown,
    line_id, log_update, notice, part_id, set_apart, user_message,
};
use super::v2;
use epitome_session_api::{
    BackgroundTerminal, CompactionState, NoticeSeverity, Position, Seen, SessionEvent, SessionState,
    TextKind, TextShown, UsageNow,
};
use epitome_thread::{
    CallId, CallOutput, Change, ChangeGroup, Content, Entry, Message, MessageId, Origin, OutcomeStatus,
    PLAN_TOOL, Seq, SessionId, ToolCall, ToolOutcome, WrittenBytes, describe, text,
};

/// Bytes of progress sent for one call before its result. Each update replaces the previous one and so
/// repeats the tail; without a limit, a chatty command would cost many times its output. Commands emit
/// progress less often the longer they run: one that writes continuously reaches this limit after about ten
/// minutes.
const PROGRESS_SENT_BYTES_MAX: usize = 1024 * 1024;

/// The same limit for a terminal, which receives each part of the output once.
const TERMINAL_SENT_BYTES_MAX: usize = 256 * 1024;

/// Bytes shown of a running command's output, from its end.
const PROGRESS_TAIL_BYTES_MAX: usize = 2 * 1024;

/// Notices kept until a turn starts, for clients that can only show them within one. Enough for one mistake in each of
/// a user's recipes; further notices are only logged.
const PENDING_NOTICES_MAX: usize = 64;

/// The part of one session that one client has been shown.
#[derive(Debug, Default)]
pub struct Cursor {
    /// The session's id, for updates that contain it.
    session: String,
    /// The parent session of a subagent.
    parent: Option<SessionId>,
    /// The working directory of its commands, once known.
    cwd: Option<PathBuf>,
    /// The last entry that was shown, and whether as part of a replay.
    after: Option<Seq>,
    in_replay: bool,
    live: Option<LiveMessage>,
    /// Calls that were announced and have no result yet.
    calls: HashMap<CallId, RunningCall>,
    compacting: compaction_wire::OpenCompaction,
    /// Replayed prompts that are still queued.
    queued: Vec<Arc<Entry>>,
    /// Queued prompts that were shown at the end of the turn in which they were queued.
    shown_unasked: HashSet<MessageId>,
    in_turn: bool,
    pending_notices: Vec<String>,
    notices_shown: u64,
    /// The last content of this turn that the client shows, if it is text.
    last_shown: Option<TextKind>,
    /// Id of the last agent line, unless text of the model followed it.
    line: Option<wire::MessageId>,
    /// Terminals whose commands run in the background. Only in version 2.
    terminals: HashSet<CallId>,
    /// Why the last prompt was kept out of the conversation.
    refused: Option<String>,
}

/// The message being streamed.
#[derive(Debug)]
struct LiveMessage {
    message: MessageId,
    parts: Vec<LivePart>,
}

#[derive(Debug)]
struct LivePart {
    part: u32,
    kind: TextKind,
    id: wire::MessageId,
    /// Bytes already sent to the client.
    sent: usize,
}

#[derive(Debug, Default)]
struct RunningCall {
    /// Its announcement, if the client has the conversation from elsewhere and may not know the call.
    announcement: Option<Box<CallUpdate>>,
    terminal: bool,
    tail: String,
    sent: usize,
    written: SentBytes,
}

/// The part of a command's output that was sent.
#[derive(Debug, Default)]
struct SentBytes {
    /// Offset up to which all bytes were sent.
    up_to: u64,
    /// Whether some bytes are missing.
    has_gap: bool,
    /// Whether the last bytes that the command wrote were sent.
    has_last: bool,
}

impl SentBytes {
    fn take(&mut self, written: Option<&WrittenBytes>) {
        match written {
            Some(written) if written.at == self.up_to => {
                self.up_to = written.end();
                self.has_last |= written.is_last;
            }
            Some(_) | None => self.has_gap = true,
        }
    }

    /// Whether a client has the complete output of a command that has ended or continues in the background.
    fn are_all(&self, goes_on: bool) -> bool {
        !self.has_gap && (self.has_last || (goes_on && self.up_to > 0))
    }
}

impl Cursor {
    pub fn new(session: &SessionId) -> Cursor {
        Cursor { session: session.0.clone(), ..Cursor::default() }
    }

    /// A cursor for a subagent started by `parent`.
    pub fn for_agent(agent: &SessionId, parent: &SessionId) -> Cursor {
        Cursor { parent: Some(parent.clone()), ..Cursor::new(agent) }
    }

    /// Takes the reason why the last prompt was kept out of the conversation.
    pub fn take_refused(&mut self) -> Option<String> {
        self.refused.take()
    }

    /// Sets the working directory of the session's commands.
    pub fn works_in(&mut self, cwd: &Path) {
        self.cwd = Some(cwd.to_path_buf());
    }

    /// The client's position in the session, from which another process can continue; `None` for a subagent, which ends
    /// with its process.
    pub fn position(&self) -> Option<Position> {
        if self.parent.is_some() {
            return None;
        }
        let text = self.live.as_ref().map(|live| TextShown {
            message: live.message,
            parts: live.parts.iter().map(|part| (part.part, part.kind, part.sent)).collect(),
        });
        let shown = self.calls.iter().filter(|(_, running)| running.terminal && running.sent > 0);
        let mut terminals: Vec<_> = shown.map(|(call, running)| (call.clone(), running.sent)).collect();
        terminals.extend(self.terminals.iter().map(|call| (call.clone(), 0)));
        terminals.sort_by(|(one, _), (other, _)| one.0.cmp(&other.0));
        let (after, replay, compaction) = (self.after, self.in_replay, self.compacting.id());
        let mut queued: Vec<MessageId> = self.shown_unasked.iter().copied().collect();
        queued.sort_unstable();
        Some(Position { after, replay, text, compaction, terminals, queued })
    }

    /// Continues from the position that an earlier process reached.
    fn take_over(&mut self, seen: Seen, traits: &ClientTraits, updates: &mut Vec<Update>) {
        let Seen { entries, position } = seen;
        for entry in entries {
            let out = SessionEvent::Entry { entry, replay: position.replay, own: true };
            let mut shown = Vec::new();
            self.translate(out, traits, &mut shown);
            for update in shown.into_iter().filter(|_| position.after.is_none()) {
                if let Update::Call(call) = update
                    && let Some(running) = self.calls.get_mut(&CallId(call.id.clone()))
                {
                    running.announcement = Some(call);
                }
            }
        }
        self.live = position.text.map(|text| {
            let part = |(part, kind, sent)| LivePart { part, kind, id: part_id(text.message, part), sent };
            LiveMessage { message: text.message, parts: text.parts.into_iter().map(part).collect() }
        });
        if let Some(part) = self.live.as_ref().and_then(|live| live.parts.last()) {
            (self.in_turn, self.last_shown) = (true, Some(part.kind));
        }
        self.compacting.take_over(position.compaction);
        self.shown_unasked.extend(position.queued);
        for (call, sent) in position.terminals {
            match self.calls.get_mut(&call) {
                Some(running) => running.sent = sent,
                // Background commands end with their process.
                None if traits.version == AcpVersion::V2 => {
                    let change = TerminalChange::Ended(TerminalExit::default());
                    updates.push(Update::Terminal { id: call, change });
                }
                None => {}
            }
        }
    }

    /// Ends every item that the client has seen start and that will not be continued.
    pub fn end(&mut self, version: AcpVersion, updates: &mut Vec<Update>) {
        self.compacting.close(updates);
        let mut open: Vec<CallId> = self.calls.keys().cloned().collect();
        open.sort_by(|one, other| one.0.cmp(&other.0));
        for call in open {
            let outcome = ToolOutcome::text(call, OutcomeStatus::Interrupted, "Stopped before it was done.");
            updates.extend(self.finish(&outcome, CallDetail::Live, version));
        }
    }

    /// Appends the client's updates for an event to `updates`. `Ask`, `Question`, `Withdrawn` and `Answer` are not
    /// updates and append nothing.
    pub fn translate(&mut self, out: SessionEvent, traits: &ClientTraits, updates: &mut Vec<Update>) {
        let from = updates.len();
        let is_line = matches!(&out, SessionEvent::Entry { entry, .. } if !matches!(entry.change, Change::Replied { .. }));
        self.add_event(out, traits, updates);
        let behind =
            |updates: &[Update], last| updates.iter().fold(last, |last, update| last_shown(update, last));
        // Clients of version 2 tell messages apart by their ids.
        if traits.version == AcpVersion::V2 {
            return;
        }
        let is_reply = |update: &Update| line_id(update).is_some();
        if let Some(first) = updates[from..].iter().position(is_reply).map(|first| from + first) {
            let line = std::mem::replace(&mut self.line, line_id(&updates[first]).filter(|_| is_line));
            if behind(&updates[from..first], self.last_shown) == Some(TextKind::Reply) {
                match line {
                    _ if is_line => set_apart(&mut updates[first]),
                    // The model's text must not be changed, so the preceding line is extended instead.
                    Some(line) => updates.insert(first, empty_line(&line)),
                    None => {}
                }
            }
        }
        self.last_shown = behind(&updates[from..], self.last_shown);
    }

    fn add_event(&mut self, out: SessionEvent, traits: &ClientTraits, updates: &mut Vec<Update>) {
        match out {
            SessionEvent::Entry { entry, replay, own } => {
                if is_from_user(&entry.change) {
                    self.last_shown = None;
                }
                if !replay {
                    self.notice_turn(&entry.change, updates);
                }
                let shown = Showing { replay, own, traits };
                let from = updates.len();
                self.entry(&entry, shown, updates);
                if traits.reads_log {
                    updates.truncate(from);
                    updates.push(log_update(json!({ "entry": entry, "replay": replay })));
                }
                (self.after, self.in_replay) = (Some(entry.seq), replay);
            }
            SessionEvent::Text { message, part, kind, text } => {
                self.enter_turn(updates);
                self.text(message, part, kind, text, updates);
            }
            SessionEvent::Seen(seen) => self.take_over(*seen, traits, updates),
            SessionEvent::CallStarted { call } => {
                self.announce_late(&call, updates);
                if let Some(running) = self.calls.get(&call) {
                    let started = tool_wire::started(&call, running.terminal);
                    updates.push(Update::Call(Box::new(started)));
                }
            }
            SessionEvent::CallProgress { call, output } => {
                self.announce_late(&call, updates);
                updates.extend(self.progress(&call, output, traits.version))
            }
            SessionEvent::CallFinished { outcome } if traits.reads_log => {
                updates.push(log_update(json!({ "outcome": outcome })));
            }
            SessionEvent::CallFinished { outcome } => {
                updates.extend(self.finish(&outcome, CallDetail::Live, traits.version));
            }
            SessionEvent::Compaction { id, state: CompactionState::Began { tokens } } if traits.reads_log => {
                updates.push(compaction_wire::began(id, tokens));
            }
            SessionEvent::Compaction { id, state } if traits.compaction => {
                self.compacting.state(id, state, updates);
            }
            // Other clients get a notice that it takes a while.
            SessionEvent::Compaction { state: CompactionState::Began { tokens }, .. } => {
                let text = format!("Compacting {} tokens…", text::tokens(tokens));
                self.notice(NoticeSeverity::Info, text, traits, updates);
            }
            SessionEvent::Compaction { .. } => {}
            SessionEvent::Usage(usage) => {
                updates.push(usage_update(&usage));
            }
            SessionEvent::Commands(commands) => {
                updates.push(Update::Commands { list: commands, shows_skills: traits.skills });
            }
            SessionEvent::Options(options) => {
                updates.push(Update::Options { options, shows_booleans: traits.boolean_options });
            }
            SessionEvent::Notice { severity, text } => self.notice(severity, text, traits, updates),
            SessionEvent::Subagent(now) => {
                if traits.subagents {
                    updates.push(Update::shared(subagent_wire::update(&now)));
                }
            }
            SessionEvent::State(state) => self.state(state, updates),
            SessionEvent::TerminalEnded { call, code, signal } => {
                if self.terminals.remove(&call) {
                    let change = TerminalChange::Ended(TerminalExit { code, signal });
                    updates.push(Update::Terminal { id: call, change });
                }
            }
            SessionEvent::Inserted { .. }
            | SessionEvent::Ask { .. }
            | SessionEvent::Question { .. }
            | SessionEvent::QuestionDone { .. }
            | SessionEvent::EditorRequest { .. }
            | SessionEvent::Withdrawn { .. }
            | SessionEvent::Answer { .. } => {}
        }
    }

    /// Announces a call that the client does not know yet: some editors treat an update or a permission
    /// request for an unannounced call as an error.
    pub fn announce(&mut self, call: &ToolCall, traits: &ClientTraits, detail: CallDetail) -> Option<Update> {
        if let Some(known) = self.calls.get_mut(&call.id) {
            return known.announcement.take().map(Update::Call);
        }
        let terminal = traits.terminal_output && tool_wire::has_terminal(call) && detail == CallDetail::Live;
        self.calls.insert(call.id.clone(), RunningCall { terminal, ..RunningCall::default() });
        let terminal = terminal.then(|| tool_wire::terminal_of(call, self.cwd.as_deref()));
        Some(Update::Call(Box::new(tool_wire::announcement(call, terminal, detail))))
    }

    /// Announces a call that the client may not know, although it is in the conversation that it has.
    fn announce_late(&mut self, call: &CallId, updates: &mut Vec<Update>) {
        let announcement = self.calls.get_mut(call).and_then(|running| running.announcement.take());
        updates.extend(announcement.map(Update::Call));
    }

    /// Shows the session's state. Terminals are announced before the state lists them.
    fn state(&mut self, state: Arc<SessionState>, updates: &mut Vec<Update>) {
        for BackgroundTerminal { call, line } in &state.background {
            if self.terminals.insert(call.clone()) {
                let change = TerminalChange::Created { command: line.clone(), cwd: self.cwd.clone() };
                updates.push(Update::Terminal { id: call.clone(), change });
            }
        }
        updates.push(Update::State(state));
    }

    fn entry(&mut self, entry: &Arc<Entry>, shown: Showing<'_>, updates: &mut Vec<Update>) {
        match &entry.change {
            // A replay starts over, regardless of what the client was shown before. Notices are not replayed, so
            // pending ones are kept, and their ids are not reused.
            Change::Opened { cwd, .. } if shown.replay => {
                *self = Cursor {
                    session: std::mem::take(&mut self.session),
                    parent: self.parent.take(),
                    cwd: Some(cwd.clone()),
                    pending_notices: std::mem::take(&mut self.pending_notices),
                    terminals: std::mem::take(&mut self.terminals),
                    notices_shown: self.notices_shown,
                    ..Cursor::default()
                }
            }
            // In version 2, a queued prompt is not a message yet, and one that was kept out never becomes one.
            Change::Queued { .. } if shown.is_v2() => {}
            Change::Withheld { why, .. } if shown.is_v2() => self.refused = text::withheld(why),
            Change::Queued { .. } if shown.replay => self.queued.push(entry.clone()),
            Change::Said { message, origin } => {
                if let Origin::Queue { entry: taken } = origin {
                    let waited = self.queued.len();
                    self.queued.retain(|queued| queued.seq != *taken);
                    // Already shown at the end of the turn in which it was queued and which a crash ended.
                    let is_known = self.shown_unasked.remove(&message.id);
                    if !shown.is_v2() && (is_known || shown.replay && self.queued.len() == waited) {
                        return;
                    }
                }
                match origin {
                    // Only for the model.
                    Origin::Context { .. } | Origin::Instructions { .. } => {}
                    // Clients of version 1 reject user messages in the middle of a turn.
                    Origin::Hook { hook } if !shown.replay && !shown.is_v2() => {
                        follow_up(message, hook, updates)
                    }
                    Origin::Hook { .. } => user_message(message, origin, updates),
                    Origin::Person if self.parent.is_some() => {
                        if let Some(parent) = &self.parent {
                            let agent = SessionId(self.session.clone());
                            subagent_wire::task(parent, &agent, message, updates);
                        }
                    }
                    Origin::Person | Origin::Recipe { .. } | Origin::Queue { .. } => {
                        if shown.replay || !shown.own || shown.is_v2() {
                            user_message(message, origin, updates);
                        }
                    }
                }
            }
            Change::Withheld { message, note, why } => {
                let is_this = |queued: &Entry| matches!(&queued.change, Change::Queued { message: queued } if queued.id == message.id);
                self.queued.retain(|queued| !is_this(queued));
                // Already shown at the end of the turn in which it was queued and which a crash ended.
                let known = self.shown_unasked.contains(&message.id);
                if (shown.replay || !shown.own) && !known {
                    user_message(message, &Origin::Person, updates);
                }
                if let Some(line) = text::withheld(why) {
                    agent_line(&note.to_string(), line, updates);
                }
            }
            Change::CallChanged { call, input, card, .. } => {
                self.announce_late(call, updates);
                if self.calls.contains_key(call) {
                    let detail = shown.detail();
                    updates.push(Update::Call(Box::new(tool_wire::changed(call, input, card, detail))));
                }
                entry_line(entry, updates);
            }
            Change::Commanded { message, typed } if shown.replay || !shown.own || shown.is_v2() => {
                let content = vec![Content::Text { text: typed.clone() }];
                user_message(&Message { id: *message, content, author: None }, &Origin::Person, updates);
            }
            Change::Replied { message, cut, .. } => {
                self.complete(message, &shown, updates);
                let detail = shown.detail();
                // The plan is shown by its own entry instead.
                let calls = message.calls().filter(|call| call.name != PLAN_TOOL);
                updates.extend(calls.filter_map(|call| self.announce(call, shown.traits, detail)));
                if let Some(line) = cut.as_ref().and_then(cut_line) {
                    let from = updates.len();
                    agent_line(&format!("{}.cut", message.id), line, updates);
                    if !shown.is_v2()
                        && message.content.iter().any(|content| matches!(content, Content::Text { .. }))
                    {
                        updates[from..].iter_mut().for_each(set_apart);
                    }
                }
            }
            Change::ToolFinished { outcome } => {
                updates.extend(self.finish(outcome, shown.detail(), shown.traits.version));
            }
            Change::Compacted { summary, .. } => {
                if shown.traits.compaction {
                    self.compacting.completed(&self.session, entry, updates);
                } else if let Some(line) = describe(&entry.change).line {
                    // Never the summary itself: it is long, and written for the model.
                    agent_line(&summary.id.to_string(), line, updates);
                }
            }
            // The command's own note describes it.
            Change::Rewound { .. }
            | Change::FilesRewound { .. }
            | Change::Undone { .. }
            | Change::Redone { .. } => {}
            Change::Noted { message, text } => agent_line(&message.to_string(), text.clone(), updates),
            Change::ModeChosen { mode } if !shown.replay => {
                updates.push(Update::Mode(*mode));
            }
            Change::Titled { title } => {
                // The time of an old title is not that of the last activity.
                let at = (!shown.replay).then_some(entry.at);
                updates.push(info_update(title, at));
            }
            Change::Planned { steps } => {
                updates.push(Update::Plan { steps: steps.clone(), by_id: shown.traits.plan_updates });
            }
            Change::TurnEnded { reason, failure, .. } => {
                for queued in std::mem::take(&mut self.queued) {
                    if let Change::Queued { message } = &queued.change {
                        user_message(message, &Origin::Person, updates);
                        self.shown_unasked.insert(message.id);
                    }
                }
                if let Some(line) = ending_line(*reason, failure.as_deref(), shown.replay) {
                    agent_line(&entry.seq.to_string(), line, updates);
                }
            }
            Change::GoalSet { .. }
            | Change::Forked { .. }
            | Change::Lost { .. }
            | Change::DamageAccepted { .. }
            | Change::Unknown(_) => entry_line(entry, updates),
            change if change.group() == ChangeGroup::View => entry_line(entry, updates),
            // Settings are shown as options, which the session sends separately. Records of hooks are shown only by
            // commands that read them.
            _ => {}
        }
    }

    /// Shows a call's result, if the client knows the call.
    fn finish(&mut self, outcome: &ToolOutcome, detail: CallDetail, version: AcpVersion) -> Vec<Update> {
        let mut updates = Vec::new();
        self.announce_late(&outcome.call, &mut updates);
        let Some(running) = self.calls.remove(&outcome.call) else { return updates };
        match version {
            AcpVersion::V1 if running.terminal => {
                updates.extend(tool_wire::terminal_outcome(outcome, running.sent, detail));
            }
            AcpVersion::V2 if running.terminal => {
                let goes_on = tool_wire::runs_on(outcome);
                if goes_on {
                    self.terminals.insert(outcome.call.clone());
                }
                let has_all = running.written.are_all(goes_on);
                updates.extend(tool_wire::own_terminal_outcome(outcome, has_all, detail));
            }
            AcpVersion::V1 | AcpVersion::V2 => {
                updates.push(Update::Call(Box::new(tool_wire::outcome(outcome, detail))));
            }
        }
        updates
    }

    /// Sends a piece of the streamed message.
    fn text(
        &mut self,
        message: MessageId,
        part: u32,
        kind: TextKind,
        text: String,
        updates: &mut Vec<Update>,
    ) {
        if self.live.as_ref().is_none_or(|live| live.message != message) {
            self.live = Some(LiveMessage { message, parts: Vec::new() });
        }
        let live = self.live.as_mut().expect("it was set when it was not this message");
        let at = match live.parts.iter().rposition(|known| known.part == part) {
            Some(at) => at,
            None => {
                live.parts.push(LivePart { part, kind, id: part_id(message, part), sent: 0 });
                live.parts.len() - 1
            }
        };
        let known = &mut live.parts[at];
        known.sent += text.len();
        chunks(known.kind, &known.id, MessagePiece::More, text, updates);
    }

    /// Sends the part of a committed message that was not streamed. Parts are matched by their position among
    /// parts of the same kind, because a cancelled reply may lack a part that was streamed. Parts without
    /// text (thinking that only its provider can read) were not streamed, nor were the provider's searches.
    fn complete(&mut self, message: &Message, shown: &Showing<'_>, updates: &mut Vec<Update>) {
        let live = self.live.take().filter(|live| live.message == message.id);
        let streamed = live.map(|live| live.parts).unwrap_or_default();
        let mut thinking = streamed.iter().filter(|part| part.kind == TextKind::Thinking);
        let mut reply = streamed.iter().filter(|part| part.kind == TextKind::Reply);
        for (index, content) in message.content.iter().enumerate() {
            let sources;
            let (kind, text, part) = match content {
                Content::Text { text } | Content::Thinking { text, .. } if text.is_empty() => continue,
                Content::Text { text } => (TextKind::Reply, text, reply.next()),
                Content::Thinking { text, .. } => (TextKind::Thinking, text, thinking.next()),
                Content::Search(search) => {
                    if let Some((call, outcome)) = search.as_call(message.id, index) {
                        let detail = shown.detail();
                        updates.extend(self.announce(&call, shown.traits, detail));
                        updates.extend(self.finish(&outcome, detail, shown.traits.version));
                    }
                    sources = search.sources();
                    if sources.is_empty() {
                        continue;
                    }
                    (TextKind::Reply, &sources, reply.next())
                }
                Content::Call(_)
                | Content::Image { .. }
                | Content::Document { .. }
                | Content::Resource { .. }
                | Content::ResourceLink { .. } => continue,
            };
            let sent = part.map_or(0, |part| part.sent);
            let Some(missing) = text.get(sent..).filter(|missing| !missing.is_empty()) else { continue };
            let id = part.map_or_else(|| part_id(message.id, index as u32), |part| part.id.clone());
            let piece = if sent == 0 { MessagePiece::First } else { MessagePiece::More };
            chunks(kind, &id, piece, missing.to_owned(), updates);
        }
    }

    fn progress(&mut self, call: &CallId, output: CallOutput, version: AcpVersion) -> Option<Update> {
        let CallOutput { text, written } = output;
        let bytes =
            written.as_ref().filter(|_| version == AcpVersion::V2).map(|written| written.bytes.clone());
        let is_empty = bytes.as_ref().map_or(text.is_empty(), Vec::is_empty);
        if self.terminals.contains(call) {
            return (!is_empty).then(|| Update::TerminalOutput { id: call.clone(), text, bytes });
        }
        let running = self.calls.get_mut(call)?;
        let most = if running.terminal { TERMINAL_SENT_BYTES_MAX } else { PROGRESS_SENT_BYTES_MAX };
        if running.sent >= most {
            return None;
        }
        Some(if running.terminal {
            running.sent += text.len();
            running.written.take(written.as_ref());
            if is_empty {
                return None;
            }
            Update::TerminalOutput { id: call.clone(), text, bytes }
        } else if text.is_empty() {
            return None;
        } else {
            running.tail.push_str(&text);
            let from =
                running.tail.ceil_char_boundary(running.tail.len().saturating_sub(PROGRESS_TAIL_BYTES_MAX));
            running.tail.drain(..from);
            running.sent += running.tail.len();
            Update::Call(Box::new(tool_wire::progress(call, &running.tail)))
        })
    }

    fn notice(
        &mut self,
        severity: NoticeSeverity,
        text: String,
        traits: &ClientTraits,
        updates: &mut Vec<Update>,
    ) {
        if text.trim().is_empty() {
            return;
        }
        if traits.notices {
            updates.push(notice(severity, &text));
        } else if self.in_turn {
            self.show_as_thought(text, updates);
        } else if self.pending_notices.len() < PENDING_NOTICES_MAX {
            // Some editors treat chunks outside a turn as an error.
            self.pending_notices.push(text);
        }
    }

    /// Tracks whether a turn is running, from live entries.
    fn notice_turn(&mut self, change: &Change, updates: &mut Vec<Update>) {
        match change {
            // Context may precede the prompt that starts the turn.
            Change::Said { origin: Origin::Context { .. } | Origin::Instructions { .. }, .. } => {}
            Change::Said { .. }
            | Change::Commanded { .. }
            | Change::Withheld { .. }
            | Change::Replied { .. } => self.enter_turn(updates),
            Change::TurnEnded { .. } => self.in_turn = false,
            _ => {}
        }
    }

    fn enter_turn(&mut self, updates: &mut Vec<Update>) {
        self.in_turn = true;
        for text in std::mem::take(&mut self.pending_notices) {
            self.show_as_thought(text, updates);
        }
    }

    fn show_as_thought(&mut self, text: String, updates: &mut Vec<Update>) {
        self.notices_shown += 1;
        let id = wire::MessageId::new(format!("n{}", self.notices_shown));
        let from = updates.len();
        chunks(TextKind::Thinking, &id, MessagePiece::First, text, updates);
        if self.last_shown == Some(TextKind::Thinking) {
            updates[from..].iter_mut().take(1).for_each(set_apart);
        }
        self.last_shown = Some(TextKind::Thinking);
    }
}

/// Whether the entry is a user message, after which the client's next text starts a new block. Includes the client's
/// own prompts.
fn is_from_user(change: &Change) -> bool {
    change.is_prompt() && !matches!(change, Change::Queued { .. })
}

/// The fill level of the context window; `_meta.usage` has the usage of the last model call.
fn usage_update(usage: &UsageNow) -> Update {
    let meta = json!({ "usage": v2::tokens(&usage.last) });
    let mut update = wire::UsageUpdate::new(usage.used, usage.size).meta(meta.as_object().cloned());
    if let Some(cost) = usage.cost.filter(|cost| cost.is_finite()) {
        update = update.cost(wire::Cost::new(text::rounded_dollars(cost), "USD"));
    }
    Update::shared(wire::SessionUpdate::UsageUpdate(update))
}

/// How an entry is shown.
#[derive(Clone, Copy)]
struct Showing<'a> {
    replay: bool,
    own: bool,
    traits: &'a ClientTraits,
}

impl Showing<'_> {
    fn detail(&self) -> CallDetail {
        if self.replay { CallDetail::Replay } else { CallDetail::Live }
    }

    fn is_v2(&self) -> bool {
        self.traits.version == AcpVersion::V2
    }
}

#[cfg(test)]
#[path = "tests/to_wire.rs"]
mod tests;
