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
//! | `view`, `edited` | how entries and edits change the view |
//! | `layers`, `turns`, `pins` | what can be undone, redone or rewound; what is pinned |
//! | `rewritten` | what hooks have removed or replaced |
//! | `edits` | validation of edits requested by hooks |
//! | `describe` | the description of an entry that every list of entries uses |
//! | `text`, `lines`, `markdown`, `diff`, `visible`, `terminal_text` | rendering for the user |
//! | `compaction_settings`, `problem` | data that settings and other files of the user are read into |
//! | `attached`, `boundary`, `halves` | attachment limits, the Claude SDK's compaction record, JSON repair |
//!
//! This module is pure: it reads no clock, file or setting, and the same log always gives the same thread,
//! byte for byte.

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
pub mod halves;
pub mod hooked;
mod hosted_search;
mod layers;
mod lines;
mod markdown;
pub mod message;
mod opaque;
mod pins;
pub mod problem;
mod prompt_keys;
mod rewritten;
pub mod terminal_text;
pub mod text;
pub mod titles;
mod turns;
pub mod view;
pub mod visible;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use call_output::{CallOutput, WrittenBytes};
pub use change::*;
pub use choices::*;
pub use decided::{Decider, PermissionChoice, REFUSED_BECAUSE, RecordedDecision};
pub use describe::{EntryLine, EntryPart, describe};
pub use hooked::*;
pub use hosted_search::{FoundPage, HostedSearch};
pub use layers::{EntryVisibility, Layer, LayerRefusal};
pub use message::*;
pub use opaque::Opaque;
pub use pins::PINNED_BY_PERSON;
pub use prompt_keys::{KeyedPrompt, PromptKeys};
pub use rewritten::RewrittenEntries;
pub use turns::PromptedTurn;
pub use view::{View, ViewItem, ViewPart};

/// Maximum number of messages that a process may have shown but not logged when it ended: the streaming reply and
/// summary, and pending messages of hooks. The next process skips their ids, because a client would append to the
/// message that it shows under such an id.
const IN_FLIGHT_MESSAGES_MAX: u64 = 64;

/// Message ids from here on are not followed by those of new messages.
const MESSAGE_ID_MAX: u64 = 1 << 60;

/// The state of a conversation, updated with each entry of its log.
///
/// A clone shares what grows with the log, until one of the two changes: each compaction works on a clone.
#[derive(Clone, Debug)]
pub struct Thread {
    entries: Arc<Vec<Arc<Entry>>>,
    /// The entries that change the view other than by appending, and those that undo or redo them.
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
    replies: u32,
    in_turn: bool,
    /// Whether the turn takes queued prompts. A command doesn't, except `/compact`.
    reads_prompts: bool,
    goal: Option<String>,
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
        let mut thread = Thread {
            view: View::default(),
            undone: HashSet::new(),
            calls: Arc::default(),
            open_calls: Vec::new(),
            queued: Vec::new(),
            prompt_keys: Arc::default(),
            next_message: 0,
            session: session.clone(),
            cwd: cwd.clone(),
            framed: None,
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
            replies: 0,
            in_turn: false,
            reads_prompts: false,
            goal: None,
            entries: Arc::new(vec![first]),
            view_changes: Vec::new(),
        };
        for entry in entries {
            if entry.seq != thread.next_seq() {
                return Err(ReplayError::Gap { expected: thread.next_seq(), found: entry.seq });
            }
            thread.apply(entry);
        }
        Ok(thread)
    }

    /// Applies a change that is not committed to a copy of the thread, to see its effect.
    pub fn apply_trial(&mut self, change: Change) {
        let seq = self.next_seq();
        self.apply(Arc::new(Entry { seq, at: 0, change }));
    }

    /// Applies the next entry. Only the session's `commit` and `replay` call this.
    pub fn apply(&mut self, entry: Arc<Entry>) {
        assert_eq!(entry.seq, self.next_seq(), "entries are applied in the order of their log");
        Arc::make_mut(&mut self.entries).push(entry.clone());
        if entry.change.concerns_view() {
            self.view_changes.push(entry.clone());
        }
        self.view.take(&entry);
        Arc::make_mut(&mut self.prompt_keys).take(&entry.change);
        match &entry.change {
            Change::Opened { .. } => unreachable!("an opening entry is only ever the first"),
            Change::Framed { .. } => self.framed = Some(entry),
            Change::ClientInstructed(_) => self.client_instructed = Some(entry),
            Change::Queued { message } => {
                self.saw_message(message.id);
                self.queued.push(entry);
            }
            Change::Said { message, origin } => {
                self.saw_message(message.id);
                if let Origin::Queue { entry: taken } = origin {
                    self.queued.retain(|queued| queued.seq != *taken);
                }
                // Context can precede its prompt, and a background callback can append a message between
                // turns; neither starts a turn.
                self.in_turn |= origin.is_prompt();
                self.reads_prompts |= origin.is_prompt();
                if matches!(origin, Origin::Context { .. } | Origin::Instructions { .. }) {
                    self.context.push(entry);
                }
            }
            Change::Replied { message, usage, .. } => {
                self.saw_message(message.id);
                self.replies = self.replies.saturating_add(1);
                if let Some(usage) = usage {
                    self.spent.add(usage);
                }
                for call in message.calls() {
                    Arc::make_mut(&mut self.calls).insert(call.id.clone());
                    self.open_calls.push(call.id.clone());
                }
            }
            Change::ToolFinished { outcome } => self.open_calls.retain(|open| *open != outcome.call),
            Change::Compacted { summary, usage, .. } => {
                self.saw_message(summary.id);
                if let Some(usage) = usage {
                    self.spent.add(usage);
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
                    self.undone.insert(*layer);
                }
                self.fold_again(entry.seq);
            }
            Change::Redone { entry: layer } => {
                self.undone.remove(layer);
                self.fold_again(entry.seq);
            }
            Change::Rewound { to } => {
                self.queued.retain(|queued| queued.seq < *to);
                self.fold_again(entry.seq);
            }
            Change::Pruned { .. } | Change::FilesRewound { .. } | Change::Forked { .. } => {}
            Change::Noted { message, .. } | Change::PromptKeyed { message, .. } => self.saw_message(*message),
            Change::Commanded { message, .. } => {
                self.saw_message(*message);
                self.in_turn = true;
                self.reads_prompts = false;
            }
            Change::Withheld { message, note, .. } => {
                self.saw_message(message.id);
                self.saw_message(*note);
                // The prompt may have been waiting in the queue.
                self.queued.retain(|queued| {
                    !matches!(&queued.change, Change::Queued { message: waiting } if waiting.id == message.id)
                });
                self.in_turn = true;
            }
            Change::GoalSet { goal } => self.goal = goal.clone(),
            Change::CallChanged { .. } | Change::Hooked { .. } | Change::ThinkingDropped { .. } => {}
            Change::ModelChosen { model } => self.model = Some(model.clone()),
            Change::ModeChosen { mode } => self.mode = *mode,
            Change::ThoughtChosen { level } => self.thought = *level,
            Change::AutoCompactChosen { is_on } => self.auto_compact = Some(*is_on),
            Change::Titled { title } => self.title = Some(title.clone()),
            Change::Archived { .. } => {}
            Change::Planned { steps } => self.plan = steps.clone(),
            Change::Allowed { rule } => self.rules.push(rule.clone()),
            Change::Spent { usage, .. } => self.spent.add(usage),
            Change::Forgotten { rule } => self.rules.retain(|kept| kept != rule),
            Change::TurnEnded { reason, .. } => {
                self.in_turn = false;
                match reason {
                    // Prompts that such a turn did not read enter the view with the next prompt.
                    StopReason::Interrupted => self.next_message += IN_FLIGHT_MESSAGES_MAX,
                    StopReason::Failed => {}
                    StopReason::Cancelled => self.queued.clear(),
                    StopReason::EndTurn
                    | StopReason::MaxTokens
                    | StopReason::MaxRounds
                    | StopReason::Refusal => {
                        // Older versions did not record which prompts a hook had blocked.
                        if self.reads_prompts {
                            self.queued.clear();
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
        MessageId(self.next_message)
    }

    pub fn entries(&self) -> &[Arc<Entry>] {
        &self.entries
    }

    pub fn entry(&self, seq: Seq) -> Option<&Arc<Entry>> {
        self.entries.get(usize::try_from(seq.0).ok()?)
    }

    /// The entries that change the view other than by appending (compactions, edits, rewinds and so on), and those that
    /// undo or redo them, oldest first. A long log has few of these.
    pub fn view_changes(&self) -> &[Arc<Entry>] {
        &self.view_changes
    }

    /// The entries with instructions and other context that Epitome added for the model, oldest first.
    pub fn context(&self) -> &[Arc<Entry>] {
        &self.context
    }

    pub fn view(&self) -> &View {
        &self.view
    }

    pub fn session(&self) -> &SessionId {
        &self.session
    }

    pub fn cwd(&self) -> &Path {
        &self.cwd
    }

    /// The frozen system prompt and tool definitions, after the first model call.
    pub fn frame(&self) -> Option<(&str, &[ToolSpec])> {
        match &self.framed.as_ref()?.change {
            Change::Framed { system, tools } => Some((system, tools)),
            _ => None,
        }
    }

    /// The entry that contains the frame, for a request that outlives a borrow of the thread.
    pub fn frame_entry(&self) -> Option<&Arc<Entry>> {
        self.framed.as_ref()
    }

    /// The instructions of the client.
    pub fn client_instructions(&self) -> Option<&ClientInstructions> {
        self.client_instructed.as_ref()?.change.client_instructions()
    }

    /// Whether the client gave other instructions since the frame was made.
    pub fn is_frame_outdated(&self) -> bool {
        matches!((&self.framed, &self.client_instructed), (Some(framed), Some(newest)) if newest.seq > framed.seq)
    }

    /// The instructions of the client that the frame contains.
    pub fn framed_client_instructions(&self) -> Option<&ClientInstructions> {
        let framed = self.framed.as_ref()?.seq;
        let before = self.entries.iter().rev().skip_while(|entry| entry.seq > framed);
        before.into_iter().find_map(|entry| entry.change.client_instructions())
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
        self.replies
    }

    /// The goal of the work, if one is set.
    pub fn goal(&self) -> Option<&str> {
        self.goal.as_deref()
    }

    pub fn model(&self) -> Option<&ModelName> {
        self.model.as_ref()
    }

    pub fn mode(&self) -> Mode {
        self.mode
    }

    pub fn thought(&self) -> ThoughtLevel {
        self.thought
    }

    /// Whether the user wants automatic compactions in this session; `None` if the settings decide.
    pub fn auto_compact(&self) -> Option<bool> {
        self.auto_compact
    }

    pub fn title(&self) -> Option<&str> {
        self.title.as_deref()
    }

    pub fn plan(&self) -> &[PlanStep] {
        &self.plan
    }

    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Tokens used by all model calls of this thread, including those of its subagents and callbacks.
    pub fn spent(&self) -> Usage {
        self.spent
    }

    /// Tool calls that have no outcome yet.
    pub fn open_calls(&self) -> &[CallId] {
        &self.open_calls
    }

    /// Prompts that wait for the running turn, or for the next one after a turn that a crash or an error ended; oldest
    /// first.
    pub fn queued(&self) -> &[Arc<Entry>] {
        &self.queued
    }

    /// The keys with which clients have sent prompts.
    pub fn prompt_keys(&self) -> &PromptKeys {
        &self.prompt_keys
    }

    /// Whether a call with this id was already made.
    pub fn knows_call(&self, id: &str) -> bool {
        self.calls.contains(&CallId(id.to_owned()))
    }

    /// Whether a turn has started and not ended, as after a crash.
    pub fn in_turn(&self) -> bool {
        self.in_turn
    }

    /// Whether the user has ever sent a prompt. Sessions without one are not listed.
    pub fn has_prompt(&self) -> bool {
        self.entries.iter().any(|entry| entry.change.is_prompt())
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
        self.undone.contains(&entry)
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
        let newest = || self.view.entries().iter().map(|entry| entry.seq).max().unwrap_or_default();
        self.view.through(kept_from).unwrap_or_else(newest)
    }

    /// Returns the first value that `wanted` finds, searching backwards, in an entry since which the view has
    /// only grown: every later layer is undone, and no older layer was undone or redone since.
    pub fn newest_unchanged<T>(&self, wanted: impl Fn(&Entry) -> Option<T>) -> Option<(Seq, T)> {
        // From this entry on, the log's view differed from the current one.
        let mut below = self.next_seq();
        for entry in self.entries.iter().rev() {
            let is_undone = self.undone.contains(&entry.seq);
            if entry.seq < below
                && !is_undone
                && let Some(found) = wanted(entry)
            {
                return Some((entry.seq, found));
            }
            match &entry.change {
                Change::Undone { entry: layer } if !self.undone.contains(layer) => {}
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
        self.view = View::fold(&self.entries, &self.undone);
        self.view.set_revision(revision);
    }

    /// The newest active change of the view that matches: neither undone nor rewound.
    fn newest_active(&self, is_one: impl Fn(&Change) -> bool) -> Option<&Arc<Entry>> {
        let holds = |entry: &&Arc<Entry>| !self.undone.contains(&entry.seq) && !self.is_taken_back(entry.seq);
        self.view_changes.iter().rev().filter(|entry| is_one(&entry.change)).find(holds)
    }

    /// The entries that make up the view, oldest first.
    pub fn active_entries(&self) -> impl DoubleEndedIterator<Item = &Arc<Entry>> {
        self.active_among(&self.entries)
    }

    /// The active compactions, edits and other changes of the view, oldest first.
    pub fn active_view_changes(&self) -> impl DoubleEndedIterator<Item = &Arc<Entry>> {
        self.active_among(&self.view_changes)
    }

    fn active_among<'a>(
        &'a self,
        entries: &'a [Arc<Entry>],
    ) -> impl DoubleEndedIterator<Item = &'a Arc<Entry>> {
        let is_active = |seq: Seq| !self.undone.contains(&seq);
        view::active_among(entries, view::rewound(&self.view_changes, is_active), is_active)
    }

    fn saw_message(&mut self, id: MessageId) {
        // An imported log may have any ids. Numbers must be left for new messages.
        if id.0 < MESSAGE_ID_MAX {
            self.next_message = self.next_message.max(id.0 + 1);
        }
    }
}

#[cfg(test)]
mod gaps_tests;
