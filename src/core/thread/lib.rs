//! The data model of a conversation: a [`Thread`] is the fold of an append-only log.
//!
//! - The **log** is a list of [`Entry`]s. Each contains one [`Change`]: a prompt, a reply, a tool outcome, a
//!   compaction, a changed setting, and so on. Entries are appended and never rewritten.
//! - The **view** ([`View`]) is what the model sees, computed from the log. A **layer** is an entry that
//!   changes the view other than by appending: a compaction, a pruning, a hook's new history or edits, a
//!   rewind. `/undo` and `/redo` append entries that turn a layer off and on.
//!
//! Only the session changes a thread: it appends an entry to the journal and passes it to [`Thread::apply`].
//! [`Thread::replay`] rebuilds the same thread from the journal.
//!
//! | files | contents |
//! | --- | --- |
//! | `change`, `message`, `choices`, `decided`, `hooked`, `opaque` | the stored types of the log |
//! | `entry_log` | the entries in memory, and those that a store keeps until they are needed |
//! | `view`, `edited` | how entries and edits change the view |
//! | `layers`, `turns`, `pins` | what can be undone, redone or rewound; what is pinned |
//! | `rewritten` | what hooks have removed or replaced |
//! | `usage_by_size` | the usage of model calls |
//! | `edits` | validation of edits requested by hooks |
//! | `describe` | the description of an entry that every list of entries uses |
//! | `text`, `lines`, `markdown`, `diff`, `visible`, `terminal_text` | rendering for the user |
//! | `compaction_settings`, `problem` | data that settings and other files of the user are read into |
//! | `attached`, `boundary`, `halves` | attachment limits, the Claude SDK's compaction record, JSON repair |
//!
//! This module is pure: it reads no clock, file or setting, and the same log always gives the same thread,
//! byte for byte. Only older entries may come from a store, which blocks while it reads them ([`OlderEntries`]).

pub mod attached;
pub mod boundary;
mod call_output;
pub mod change;
pub mod choices;
pub mod compaction_settings;
pub mod decided;
mod describe;
pub mod diff;
mod edited;
pub mod edits;
mod entry_log;
pub mod halves;
pub mod hooked;
mod hosted_search;
mod layers;
mod lines;
mod markdown;
pub mod message;
mod named_enum;
mod opaque;
mod pins;
pub mod problem;
mod prompt_keys;
mod rewritten;
pub mod terminal_text;
pub mod text;
pub mod titles;
mod turns;
mod usage_by_size;
pub mod view;
pub mod visible;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use call_output::{CallOutput, WrittenBytes};
pub use change::*;
pub use choices::*;
pub use decided::{Decider, PermissionChoice, REFUSED_BECAUSE, RecordedDecision};
pub use describe::{EntryLine, EntryPart, describe};
pub use entry_log::{Entries, EntryLog, OlderEntries, PAGE_ENTRIES};
pub use hooked::*;
pub use hosted_search::{FoundPage, HostedSearch};
pub use layers::{EntryVisibility, Layer, LayerRefusal};
pub use message::*;
pub use opaque::Opaque;
pub use pins::PINNED_BY_PERSON;
pub use prompt_keys::{KeyedPrompt, PromptKeys};
pub use rewritten::RewrittenEntries;
pub use turns::PromptedTurn;
pub use usage_by_size::{SizedUsage, UsageBySize, call_of};
pub use view::{View, ViewItem, ViewPart};

/// Maximum number of messages that a process may have shown but not logged when it ended: the streaming reply and
/// summary, and pending messages of hooks. The next process skips their ids, because a client would append to the
/// message that it shows under such an id.
const IN_FLIGHT_MESSAGES_MAX: u64 = 64;

/// Identifies the code that folds logs: it changes with each change of this crate, so a [`ThreadState`] that was saved by
/// another build is folded again.
pub const FOLD_ID: &str = include_str!(concat!(env!("OUT_DIR"), "/fold_id.txt"));

/// Message ids from here on are not followed by those of new messages.
const MESSAGE_ID_MAX: u64 = 1 << 60;

/// The state of a conversation, updated with each entry of its log.
///
/// A clone shares what grows with the log, until one of the two changes: each compaction works on a clone.
#[derive(Clone, Debug)]
pub struct Thread {
    entries: EntryLog,
    state: ThreadState,
}

/// The fold of a log, without its entries: what a store saves of a thread, so that the next process need not fold the
/// log again.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ThreadState {
    /// The entries that change the view other than by appending, and those that undo or redo them, as [`outline`]s.
    view_changes: Vec<Arc<Entry>>,
    view: View,
    undone: HashSet<Seq>,
    calls: Arc<HashSet<CallId>>,
    open_calls: Vec<CallId>,
    queued: Vec<Arc<Entry>>,
    prompt_keys: Arc<PromptKeys>,
    next_message: u64,
    session: SessionId,
    cwd: PathBuf,
    framed: Option<Arc<Entry>>,
    /// The instructions of the client that the frame contains.
    framed_instructions: Option<Arc<Entry>>,
    /// The entries with instructions and other context that Epitome added for the model. A long log has few of these.
    context: Vec<Arc<Entry>>,
    /// The newest instructions of the client.
    client_instructed: Option<Arc<Entry>>,
    model: Option<ModelName>,
    mode: Mode,
    thought: ThoughtLevel,
    auto_compact: Option<bool>,
    title: Option<String>,
    plan: Vec<PlanStep>,
    rules: Vec<Rule>,
    spent: Usage,
    usage_by_size: UsageBySize,
    replies: u32,
    /// The time of the oldest entry. In an imported log, that is not always the first one.
    began_at: Option<u64>,
    has_ended_turn: bool,
    has_prompt: bool,
    in_turn: bool,
    /// Whether the turn takes queued prompts. A command doesn't, except `/compact`.
    reads_prompts: bool,
    goal: Option<String>,
}

impl ThreadState {
    /// The state of a log that consists of its opening entry.
    fn new(session: &SessionId, cwd: &Path) -> ThreadState {
        ThreadState {
            view_changes: Vec::new(),
            view: View::default(),
            undone: HashSet::new(),
            calls: Arc::default(),
            open_calls: Vec::new(),
            queued: Vec::new(),
            prompt_keys: Arc::default(),
            next_message: 0,
            session: session.clone(),
            cwd: cwd.to_path_buf(),
            framed: None,
            framed_instructions: None,
            context: Vec::new(),
            client_instructed: None,
            model: None,
            mode: Mode::default(),
            thought: ThoughtLevel::default(),
            auto_compact: None,
            title: None,
            plan: Vec::new(),
            rules: Vec::new(),
            spent: Usage::default(),
            usage_by_size: UsageBySize::default(),
            began_at: None,
            has_ended_turn: false,
            replies: 0,
            has_prompt: false,
            in_turn: false,
            reads_prompts: false,
            goal: None,
        }
    }
}

/// Why a log cannot be folded.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ReplayError {
    #[error("the log is empty")]
    Empty,
    #[error("the log does not begin with an opening entry")]
    NotOpened,
    #[error("found entry {found} instead of {expected}")]
    Gap { expected: Seq, found: Seq },
    #[error("the log has format {found}; this build reads up to {FORMAT_VERSION}")]
    Future { found: u32 },
}

impl Thread {
    /// Folds a complete log.
    pub fn replay(entries: impl IntoIterator<Item = Arc<Entry>>) -> Result<Thread, ReplayError> {
        let mut entries = entries.into_iter();
        let first = entries.next().ok_or(ReplayError::Empty)?;
        let Change::Opened { format, session, cwd } = &first.change else {
            return Err(ReplayError::NotOpened);
        };
        if *format > FORMAT_VERSION {
            return Err(ReplayError::Future { found: *format });
        }
        if first.seq != Seq(0) {
            return Err(ReplayError::Gap { expected: Seq(0), found: first.seq });
        }
        let mut thread = Thread { entries: EntryLog::default(), state: ThreadState::new(session, cwd) };
        thread.state.began_at = Some(first.at);
        thread.entries.push(first);
        thread.follow(entries)?;
        Ok(thread)
    }

    /// A thread whose log had `entries` entries when its state was saved. They are read from `older` when they are needed.
    pub fn restore(state: ThreadState, entries: u64, older: Arc<dyn OlderEntries>) -> Thread {
        Thread { entries: EntryLog::with_older(older, entries), state }
    }

    /// Applies the next entries of the log.
    pub fn follow(&mut self, entries: impl IntoIterator<Item = Arc<Entry>>) -> Result<(), ReplayError> {
        for entry in entries {
            if entry.seq != self.next_seq() {
                return Err(ReplayError::Gap { expected: self.next_seq(), found: entry.seq });
            }
            self.apply(entry);
        }
        Ok(())
    }

    /// Frees the memory of the first entries of the log, which are in a store by now.
    pub fn move_older(&mut self, source: Arc<dyn OlderEntries>, entries: u64) {
        self.entries.move_older(source, entries);
    }

    /// Frees the memory of older entries that were read from a store. They are read again when they are needed.
    pub fn forget_older(&mut self) {
        self.entries.forget_older();
    }

    /// The state that a store saves.
    pub fn state(&self) -> &ThreadState {
        &self.state
    }

    /// Applies a change that is not committed to a copy of the thread, to see its effect.
    pub fn apply_trial(&mut self, change: Change) {
        let seq = self.next_seq();
        self.apply(Arc::new(Entry { seq, at: 0, change }));
    }

    /// Applies the next entry. Only the session's `commit` and `replay` call this.
    pub fn apply(&mut self, entry: Arc<Entry>) {
        assert_eq!(entry.seq, self.next_seq(), "entries are applied in the order of their log");
        self.entries.push(entry.clone());
        if entry.change.concerns_view() {
            self.state.view_changes.push(outline(&entry));
        }
        self.state.view.take(&entry);
        self.state.has_prompt |= entry.change.is_prompt();
        self.state.has_ended_turn |= matches!(entry.change, Change::TurnEnded { .. });
        self.state.began_at = self.state.began_at.map_or(Some(entry.at), |at| Some(at.min(entry.at)));
        self.state.usage_by_size.take(&entry.change);
        Arc::make_mut(&mut self.state.prompt_keys).take(&entry.change);
        match &entry.change {
            Change::Opened { .. } => unreachable!("an opening entry is only ever the first"),
            Change::Framed { .. } => {
                self.state.framed = Some(entry);
                self.state.framed_instructions = self.state.client_instructed.clone();
            }
            Change::ClientInstructed(_) => self.state.client_instructed = Some(entry),
            Change::Queued { message } => {
                self.saw_message(message.id);
                self.state.queued.push(entry);
            }
            Change::Said { message, origin } => {
                self.saw_message(message.id);
                if let Origin::Queue { entry: taken } = origin {
                    self.state.queued.retain(|queued| queued.seq != *taken);
                }
                // Context can precede its prompt, and a background callback can append a message between
                // turns; neither starts a turn.
                self.state.in_turn |= origin.is_prompt();
                self.state.reads_prompts |= origin.is_prompt();
                if matches!(origin, Origin::Context { .. } | Origin::Instructions { .. }) {
                    self.state.context.push(entry);
                }
            }
            Change::Replied { message, usage, .. } => {
                self.saw_message(message.id);
                self.state.replies = self.state.replies.saturating_add(1);
                if let Some(usage) = usage {
                    self.state.spent.add(usage);
                }
                for call in message.calls() {
                    Arc::make_mut(&mut self.state.calls).insert(call.id.clone());
                    self.state.open_calls.push(call.id.clone());
                }
            }
            Change::ToolFinished { outcome } => self.state.open_calls.retain(|open| *open != outcome.call),
            Change::Compacted { summary, usage, .. } => {
                self.saw_message(summary.id);
                if let Some(usage) = usage {
                    self.state.spent.add(usage);
                }
            }
            Change::Mutated { messages, .. } => {
                for spoken in messages {
                    self.saw_message(spoken.message.id);
                }
            }
            Change::Edited { edits, .. } => {
                for edit in edits {
                    if let ViewEdit::Append { message, .. } = edit {
                        self.saw_message(message.id);
                    }
                }
            }
            Change::Undone { entry: layer } => {
                // An imported log may name a later entry. Then there is nothing to undo, and that entry is not
                // suppressed when it comes.
                if *layer < entry.seq {
                    self.state.undone.insert(*layer);
                }
                self.fold_again(entry.seq);
            }
            Change::Redone { entry: layer } => {
                self.state.undone.remove(layer);
                self.fold_again(entry.seq);
            }
            Change::Rewound { to } => {
                self.state.queued.retain(|queued| queued.seq < *to);
                self.fold_again(entry.seq);
            }
            Change::Pruned { .. } | Change::FilesRewound { .. } | Change::Forked { .. } => {}
            Change::Noted { message, .. } | Change::PromptKeyed { message, .. } => self.saw_message(*message),
            Change::Commanded { message, .. } => {
                self.saw_message(*message);
                self.state.in_turn = true;
                self.state.reads_prompts = false;
            }
            Change::Withheld { message, note, .. } => {
                self.saw_message(message.id);
                self.saw_message(*note);
                // The prompt may have been waiting in the queue.
                self.state.queued.retain(|queued| {
                    !matches!(&queued.change, Change::Queued { message: waiting } if waiting.id == message.id)
                });
                self.state.in_turn = true;
            }
            Change::GoalSet { goal } => self.state.goal = goal.clone(),
            Change::CallChanged { .. } | Change::Hooked { .. } | Change::ThinkingDropped { .. } => {}
            Change::ModelChosen { model } => self.state.model = Some(model.clone()),
            Change::ModeChosen { mode } => self.state.mode = *mode,
            Change::ThoughtChosen { level } => self.state.thought = *level,
            Change::AutoCompactChosen { is_on } => self.state.auto_compact = Some(*is_on),
            Change::Titled { title } => self.state.title = Some(title.clone()),
            Change::Archived { .. } => {}
            Change::Planned { steps } => self.state.plan = steps.clone(),
            Change::Allowed { rule } => self.state.rules.push(rule.clone()),
            Change::Spent { usage, .. } => self.state.spent.add(usage),
            Change::Forgotten { rule } => self.state.rules.retain(|kept| kept != rule),
            Change::TurnEnded { reason, .. } => {
                self.state.in_turn = false;
                match reason {
                    // Prompts that such a turn did not read enter the view with the next prompt.
                    StopReason::Interrupted => self.state.next_message += IN_FLIGHT_MESSAGES_MAX,
                    StopReason::Failed => {}
                    StopReason::Cancelled => self.state.queued.clear(),
                    StopReason::EndTurn
                    | StopReason::MaxTokens
                    | StopReason::MaxRounds
                    | StopReason::Refusal => {
                        // Older versions did not record which prompts a hook had blocked.
                        if self.state.reads_prompts {
                            self.state.queued.clear();
                        }
                    }
                }
            }
            Change::Lost { .. } | Change::DamageAccepted { .. } => {}
            Change::Unknown(opaque) => {
                opaque.message().into_iter().for_each(|id| self.saw_message(MessageId(id)))
            }
        }
    }

    /// The thread as it would be after this change.
    pub fn with(&self, change: Change) -> Thread {
        let mut after = self.clone();
        after.apply(Arc::new(Entry { seq: self.next_seq(), at: 0, change }));
        after
    }

    /// The number of the next entry.
    pub fn next_seq(&self) -> Seq {
        Seq(self.entries.len() as u64)
    }

    /// The id of the next message. It does not change until an entry that contains it is applied.
    pub fn next_message(&self) -> MessageId {
        MessageId(self.state.next_message)
    }

    pub fn entries(&self) -> &EntryLog {
        &self.entries
    }

    pub fn entry(&self, seq: Seq) -> Option<&Arc<Entry>> {
        self.entries.get(usize::try_from(seq.0).ok()?)
    }

    /// Whether the log has this entry of a view as it is, so that no layer has changed its content.
    pub fn is_as_logged(&self, shown: &Arc<Entry>) -> bool {
        self.entry(shown.seq).is_some_and(|own| Arc::ptr_eq(own, shown) || own == shown)
    }

    /// The entries that change the view other than by appending (compactions, edits, rewinds and so on), and those that
    /// undo or redo them, oldest first. A long log has few of these, and they have no texts: the summaries, masks and new
    /// histories are in the entries with these numbers.
    pub fn view_changes(&self) -> &[Arc<Entry>] {
        &self.state.view_changes
    }

    /// The entries with instructions and other context that Epitome added for the model, oldest first.
    pub fn context(&self) -> &[Arc<Entry>] {
        &self.state.context
    }

    pub fn view(&self) -> &View {
        &self.state.view
    }

    pub fn session(&self) -> &SessionId {
        &self.state.session
    }

    pub fn cwd(&self) -> &Path {
        &self.state.cwd
    }

    /// The frozen system prompt and tool definitions, after the first model call.
    pub fn frame(&self) -> Option<(&str, &[ToolSpec])> {
        match &self.state.framed.as_ref()?.change {
            Change::Framed { system, tools } => Some((system, tools)),
            _ => None,
        }
    }

    /// The entry that contains the frame, for a request that outlives a borrow of the thread.
    pub fn frame_entry(&self) -> Option<&Arc<Entry>> {
        self.state.framed.as_ref()
    }

    /// The instructions of the client.
    pub fn client_instructions(&self) -> Option<&ClientInstructions> {
        self.state.client_instructed.as_ref()?.change.client_instructions()
    }

    /// Whether the client gave other instructions since the frame was made.
    pub fn is_frame_outdated(&self) -> bool {
        matches!((&self.state.framed, &self.state.client_instructed), (Some(framed), Some(newest)) if newest.seq > framed.seq)
    }

    /// The instructions of the client that the frame contains.
    pub fn framed_client_instructions(&self) -> Option<&ClientInstructions> {
        self.state.framed_instructions.as_ref()?.change.client_instructions()
    }

    /// The call with this id, in the newest reply that contains one.
    pub fn call(&self, id: &CallId) -> Option<&ToolCall> {
        self.entries.iter().rev().find_map(|entry| entry.change.calls().find(|call| call.id == *id))
    }

    /// The input and display of a call: its own, or the last ones that a hook gave it.
    pub fn input_of(&self, id: &CallId) -> Option<(&serde_json::Value, &CallDisplay)> {
        self.entries.iter().rev().find_map(|entry| match &entry.change {
            Change::CallChanged { call, input, card, .. } if call == id => Some((input, card)),
            change => change.calls().find(|call| call.id == *id).map(|call| (&call.input, &call.card)),
        })
    }

    /// The number of replies in the log.
    pub fn replies(&self) -> u32 {
        self.state.replies
    }

    /// The goal of the work, if one is set.
    pub fn goal(&self) -> Option<&str> {
        self.state.goal.as_deref()
    }

    pub fn model(&self) -> Option<&ModelName> {
        self.state.model.as_ref()
    }

    pub fn mode(&self) -> Mode {
        self.state.mode
    }

    pub fn thought(&self) -> ThoughtLevel {
        self.state.thought
    }

    /// Whether the user wants automatic compactions in this session; `None` if the settings decide.
    pub fn auto_compact(&self) -> Option<bool> {
        self.state.auto_compact
    }

    pub fn title(&self) -> Option<&str> {
        self.state.title.as_deref()
    }

    pub fn plan(&self) -> &[PlanStep] {
        &self.state.plan
    }

    pub fn rules(&self) -> &[Rule] {
        &self.state.rules
    }

    /// Tokens used by all model calls of this thread, including those of its subagents and callbacks.
    pub fn spent(&self) -> Usage {
        self.state.spent
    }

    /// The usage of model calls by model and size, for prices that depend on the size.
    pub fn usage_by_size(&self) -> &UsageBySize {
        &self.state.usage_by_size
    }

    /// The time of the oldest entry, in milliseconds since the Unix epoch, if a turn has ended.
    pub fn worked_since(&self) -> Option<u64> {
        self.state.began_at.filter(|_| self.state.has_ended_turn)
    }

    /// Tool calls that have no outcome yet.
    pub fn open_calls(&self) -> &[CallId] {
        &self.state.open_calls
    }

    /// Prompts that wait for the running turn, or for the next one after a turn that a crash or an error ended; oldest
    /// first.
    pub fn queued(&self) -> &[Arc<Entry>] {
        &self.state.queued
    }

    /// The keys with which clients have sent prompts.
    pub fn prompt_keys(&self) -> &PromptKeys {
        &self.state.prompt_keys
    }

    /// Whether a call with this id was already made.
    pub fn knows_call(&self, id: &str) -> bool {
        self.state.calls.contains(&CallId(id.to_owned()))
    }

    /// Whether a turn has started and not ended, as after a crash.
    pub fn in_turn(&self) -> bool {
        self.state.in_turn
    }

    /// Whether the user has ever sent a prompt. Sessions without one are not listed.
    pub fn has_prompt(&self) -> bool {
        self.state.has_prompt
    }

    /// The newest active compaction.
    pub fn last_compaction(&self) -> Option<&Arc<Entry>> {
        self.newest_active(|change| matches!(change, Change::Compacted { .. }))
    }

    /// The layer that `/undo` undoes: the newest active one.
    pub fn last_layer(&self) -> Option<&Arc<Entry>> {
        self.newest_active(Change::is_layer)
    }

    /// Whether this layer is undone.
    pub fn is_undone(&self, entry: Seq) -> bool {
        self.state.undone.contains(&entry)
    }

    /// Whether an active rewind removed this entry from the conversation.
    pub fn is_taken_back(&self, entry: Seq) -> bool {
        self.rewound_by(entry).is_some()
    }

    /// The `through` of a layer that keeps the view from entry `kept_from` (an index into `View::entries`),
    /// or from slightly earlier if a round would be split. Entries that an older layer put in front are
    /// always replaced.
    pub fn through(&self, kept_from: usize) -> Seq {
        // Entries outside of the view, such as those of the command itself, make no difference.
        let newest = || self.state.view.entries().iter().map(|entry| entry.seq).max().unwrap_or_default();
        self.state.view.through(kept_from).unwrap_or_else(newest)
    }

    /// Returns the first value that `wanted` finds, searching backwards, in an entry since which the view has
    /// only grown: every later layer is undone, and no older layer was undone or redone since.
    pub fn newest_unchanged<T>(&self, wanted: impl Fn(&Entry) -> Option<T>) -> Option<(Seq, T)> {
        // From this entry on, the log's view differed from the current one.
        let mut below = self.next_seq();
        for entry in self.entries.iter().rev() {
            let is_undone = self.state.undone.contains(&entry.seq);
            if entry.seq < below
                && !is_undone
                && let Some(found) = wanted(entry)
            {
                return Some((entry.seq, found));
            }
            match &entry.change {
                Change::Undone { entry: layer } if !self.state.undone.contains(layer) => {}
                Change::Undone { entry: layer } => below = below.min(*layer),
                // A redone layer itself counts as if it had never been undone.
                Change::Redone { entry: layer } => below = below.min(Seq(layer.0.saturating_add(1))),
                Change::Rewound { to } if !is_undone => below = below.min(*to),
                change if change.rewrites() && !is_undone && !self.is_taken_back(entry.seq) => return None,
                _ => {}
            }
        }
        None
    }

    fn fold_again(&mut self, revision: Seq) {
        self.state.view = View::fold(&self.entries, &self.state.undone);
        self.state.view.set_revision(revision);
    }

    /// The newest active change of the view that matches: neither undone nor rewound.
    fn newest_active(&self, is_one: impl Fn(&Change) -> bool) -> Option<&Arc<Entry>> {
        let holds =
            |entry: &&Arc<Entry>| !self.state.undone.contains(&entry.seq) && !self.is_taken_back(entry.seq);
        let newest = self.state.view_changes.iter().rev().filter(|entry| is_one(&entry.change)).find(holds);
        self.entry(newest?.seq)
    }

    /// The entries that make up the view, oldest first.
    pub fn active_entries(&self) -> impl DoubleEndedIterator<Item = &Arc<Entry>> {
        self.active_among(&self.entries)
    }

    /// The active ones of [`Thread::view_changes`], oldest first.
    pub fn active_view_changes(&self) -> impl DoubleEndedIterator<Item = &Arc<Entry>> {
        self.active_among(&self.state.view_changes)
    }

    fn active_among<'a>(
        &'a self,
        entries: impl Into<Entries<'a>>,
    ) -> impl DoubleEndedIterator<Item = &'a Arc<Entry>> {
        let is_active = |seq: Seq| !self.state.undone.contains(&seq);
        let rewound = view::rewound((&self.state.view_changes).into(), is_active);
        view::active_among(entries.into(), rewound, is_active)
    }

    fn saw_message(&mut self, id: MessageId) {
        // An imported log may have any ids. Numbers must be left for new messages.
        if id.0 < MESSAGE_ID_MAX {
            self.state.next_message = self.state.next_message.max(id.0 + 1);
        }
    }
}

/// A change of the view without the texts that it contains. A state is read whenever its session is opened, and the texts
/// of all compactions of a long log are many times the view.
fn outline(entry: &Arc<Entry>) -> Arc<Entry> {
    let mut outline = match &entry.change {
        Change::Compacted { .. } | Change::Pruned { .. } | Change::Mutated { .. } => Entry::clone(entry),
        _ => return entry.clone(),
    };
    match &mut outline.change {
        Change::Compacted { summary, masks, .. } => {
            summary.content.clear();
            masks.clear();
        }
        Change::Pruned { masks, .. } => masks.clear(),
        Change::Mutated { messages, .. } => messages.clear(),
        _ => {}
    }
    Arc::new(outline)
}

#[cfg(test)]
mod gaps_tests;
