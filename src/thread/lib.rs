//! A thread: the durable conversation behind a session, as the fold of its log.
//!
//! Pure data. Nothing here reads a clock, a file or a setting: the same log gives the same thread,
//! byte for byte.

pub mod attached;
pub mod boundary;
pub mod change;
pub mod choices;
pub mod decided;
pub mod diff;
mod edited;
pub mod edits;
pub mod halves;
pub mod hooked;
mod layers;
mod lines;
mod markdown;
pub mod message;
mod pins;
pub mod text;
mod turns;
pub mod view;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use change::*;
pub use choices::*;
pub use decided::{Answered, Decided, Decider};
pub use hooked::*;
pub use layers::{Fate, Layer};
pub use message::*;
pub use pins::PINNED_BY_PERSON;
pub use turns::PromptedTurn;
pub use view::{Piece, View, ViewItem};

/// Everything that a log says, kept up to date entry by entry.
#[derive(Clone, Debug)]
pub struct Thread {
    entries: Vec<Arc<Entry>>,
    view: View,
    undone: HashSet<Seq>,
    calls: HashSet<CallId>,
    open_calls: Vec<CallId>,
    queued: Vec<Arc<Entry>>,
    next_message: u64,
    session: SessionId,
    cwd: PathBuf,
    framed: Option<Arc<Entry>>,
    model: Option<ModelName>,
    mode: Mode,
    thought: ThoughtLevel,
    title: Option<String>,
    plan: Vec<PlanStep>,
    rules: Vec<Rule>,
    spent: Usage,
    in_turn: bool,
    goal: Option<String>,
}

/// A log that cannot be folded.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ReplayError {
    #[error("the log is empty")]
    Empty,
    #[error("the log does not begin with an opening entry")]
    NotOpened,
    #[error("entry {found} stands where {expected} must be")]
    Gap { expected: Seq, found: Seq },
    #[error("the log has format {found}; this build reads up to {FORMAT_VERSION}")]
    Future { found: u32 },
}

impl Thread {
    /// Folds a whole log.
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
            calls: HashSet::new(),
            open_calls: Vec::new(),
            queued: Vec::new(),
            next_message: 0,
            session: session.clone(),
            cwd: cwd.clone(),
            framed: None,
            model: None,
            mode: Mode::default(),
            thought: ThoughtLevel::default(),
            title: None,
            plan: Vec::new(),
            rules: Vec::new(),
            spent: Usage::default(),
            in_turn: false,
            goal: None,
            entries: vec![first],
        };
        for entry in entries {
            if entry.seq != thread.next_seq() {
                return Err(ReplayError::Gap { expected: thread.next_seq(), found: entry.seq });
            }
            thread.apply(entry);
        }
        Ok(thread)
    }

    /// Takes in the next entry. Only the session's commit and `replay` call this.
    pub fn apply(&mut self, entry: Arc<Entry>) {
        assert_eq!(entry.seq, self.next_seq(), "entries are applied in the order of their log");
        self.entries.push(entry.clone());
        self.view.take(&entry);
        match &entry.change {
            Change::Opened { .. } => unreachable!("an opening entry is only ever the first"),
            Change::Framed { .. } => self.framed = Some(entry),
            Change::Queued { message } => {
                self.saw_message(message.id);
                self.queued.push(entry);
            }
            Change::Said { message, origin } => {
                self.saw_message(message.id);
                match origin {
                    Origin::Queue { entry: taken } => self.queued.retain(|queued| queued.seq != *taken),
                    Origin::Person
                    | Origin::Recipe { .. }
                    | Origin::Hook { .. }
                    | Origin::Context { .. }
                    | Origin::Instructions { .. } => {}
                }
                // Context may come before the prompt that it is for, and a background callback says its
                // words between turns: alone they begin nothing.
                self.in_turn |= !matches!(
                    origin,
                    Origin::Context { .. } | Origin::Instructions { .. } | Origin::Hook { .. }
                );
            }
            Change::Replied { message, usage, .. } => {
                self.saw_message(message.id);
                if let Some(usage) = usage {
                    self.spent.add(usage);
                }
                for call in message.calls() {
                    self.calls.insert(call.id.clone());
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
                    if let Edit::Append { message, .. } = edit {
                        self.saw_message(message.id);
                    }
                }
            }
            Change::Undone { entry: layer } => {
                // A log from elsewhere may name an entry that is still to come: there is nothing to take back,
                // and nothing is held back when it comes.
                if *layer < entry.seq {
                    self.undone.insert(*layer);
                }
                self.fold_again(entry.seq);
            }
            Change::Redone { entry: layer } => {
                self.undone.remove(layer);
                self.fold_again(entry.seq);
            }
            Change::Rewound { .. } => self.fold_again(entry.seq),
            Change::Pruned { .. } | Change::FilesRewound { .. } | Change::Forked { .. } => {}
            Change::Noted { message, .. } => self.saw_message(*message),
            Change::Commanded { message, .. } => {
                self.saw_message(*message);
                self.in_turn = true;
            }
            Change::Withheld { message, note, .. } => {
                self.saw_message(message.id);
                self.saw_message(*note);
                // It may have waited for its turn.
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
            Change::Titled { title } => self.title = Some(title.clone()),
            Change::Planned { steps } => self.plan = steps.clone(),
            Change::Allowed { rule } => self.rules.push(rule.clone()),
            Change::Spent { usage, .. } => self.spent.add(usage),
            Change::Forgotten { rule } => self.rules.retain(|kept| kept != rule),
            Change::TurnEnded { reason, .. } => {
                self.in_turn = false;
                match reason {
                    // Nobody took them back: they enter the view with the next prompt.
                    StopReason::Interrupted => {}
                    StopReason::EndTurn
                    | StopReason::MaxTokens
                    | StopReason::MaxRounds
                    | StopReason::Refusal
                    | StopReason::Cancelled
                    | StopReason::Failed => self.queued.clear(),
                }
            }
        }
    }

    /// The number that the next entry gets.
    pub fn next_seq(&self) -> Seq {
        Seq(self.entries.len() as u64)
    }

    /// The id that the next message gets. It stays the same until a change that carries it is applied.
    pub fn next_message(&self) -> MessageId {
        MessageId(self.next_message)
    }

    pub fn entries(&self) -> &[Arc<Entry>] {
        &self.entries
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

    /// The frozen system text and tools, once there was a model call.
    pub fn frame(&self) -> Option<(&str, &[ToolSpec])> {
        match &self.framed.as_ref()?.change {
            Change::Framed { system, tools } => Some((system, tools)),
            _ => None,
        }
    }

    /// The entry that holds the frame, for a request that outlives a borrow of the thread.
    pub fn frame_entry(&self) -> Option<&Arc<Entry>> {
        self.framed.as_ref()
    }

    /// A call of the newest reply that made one of this id.
    pub fn call(&self, id: &CallId) -> Option<&ToolCall> {
        self.entries.iter().rev().find_map(|entry| match &entry.change {
            Change::Replied { message, .. } => message.calls().find(|call| call.id == *id),
            _ => None,
        })
    }

    /// What a call is run with: its own input and card, or those that a hook gave it last.
    pub fn input_of(&self, id: &CallId) -> Option<(&serde_json::Value, &Card)> {
        self.entries.iter().rev().find_map(|entry| match &entry.change {
            Change::CallChanged { call, input, card, .. } if call == id => Some((input, card)),
            Change::Replied { message, .. } => {
                message.calls().find(|call| call.id == *id).map(|call| (&call.input, &call.card))
            }
            _ => None,
        })
    }

    /// What the work is for, if that was said.
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

    pub fn title(&self) -> Option<&str> {
        self.title.as_deref()
    }

    pub fn plan(&self) -> &[PlanStep] {
        &self.plan
    }

    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// All tokens that model calls of this thread have taken, those of its agents and callbacks among them.
    pub fn spent(&self) -> Usage {
        self.spent
    }

    /// Calls of the model that have no outcome yet.
    pub fn open_calls(&self) -> &[CallId] {
        &self.open_calls
    }

    /// Prompts that wait for the running turn, or were left by a turn that a crash ended; oldest first.
    pub fn queued(&self) -> &[Arc<Entry>] {
        &self.queued
    }

    /// Whether a call of this id was already made.
    pub fn knows_call(&self, id: &str) -> bool {
        self.calls.contains(&CallId(id.to_owned()))
    }

    /// Whether a turn began and has not ended, as after a crash.
    pub fn in_turn(&self) -> bool {
        self.in_turn
    }

    /// Whether a person ever said something here; what has no prompt is not listed.
    pub fn has_prompt(&self) -> bool {
        self.entries.iter().any(|entry| match &entry.change {
            Change::Said { origin, .. } => origin.is_prompt(),
            Change::Queued { .. } | Change::Commanded { .. } | Change::Withheld { .. } => true,
            _ => false,
        })
    }

    /// The newest compaction that is not undone.
    pub fn last_compaction(&self) -> Option<&Arc<Entry>> {
        self.newest_active(|change| matches!(change, Change::Compacted { .. }))
    }

    /// The layer that `/undo` takes back: the newest compaction, mutation or edit that is not undone.
    pub fn last_layer(&self) -> Option<&Arc<Entry>> {
        self.newest_active(Change::is_layer)
    }

    /// Whether this entry was taken back.
    pub fn is_undone(&self, entry: Seq) -> bool {
        self.undone.contains(&entry)
    }

    /// Whether a rewind that holds has taken this entry back.
    pub fn is_taken_back(&self, entry: Seq) -> bool {
        self.taken_back_by(entry).is_some()
    }

    /// Whether a hook rewrote this entry, alone or with the history around it, and that still holds.
    pub fn is_rewritten(&self, entry: Seq) -> bool {
        let after = self.standing().filter(|later| later.seq >= entry);
        after.into_iter().any(|later| match &later.change {
            Change::Mutated { through, .. } => *through >= entry,
            Change::Edited { edits, .. } => {
                edits.iter().any(|edit| edit.rewrites() && edit.at().is_some_and(|part| part.entry == entry))
            }
            _ => false,
        })
    }

    /// The `through` of a layer that leaves the view from its entry `kept_from` on (`View::entries`), or
    /// from a little before, where a round would be split. What an older layer has put in front goes in
    /// any case.
    pub fn through(&self, kept_from: usize) -> Seq {
        // What is not in the view, a command's own entries say, makes no difference.
        let newest = || self.view.entries().iter().map(|entry| entry.seq).max().unwrap_or_default();
        self.view.through(kept_from).unwrap_or_else(newest)
    }

    /// What `wanted` finds in the newest entry that it finds something in and that the view has only grown since: every
    /// layer since is undone, and no older one was.
    pub fn newest_unchanged<T>(&self, wanted: impl Fn(&Entry) -> Option<T>) -> Option<(Seq, T)> {
        // From here on the log had another view than it has now.
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
                // What it brought again is seen as when it was made.
                Change::Redone { entry: layer } => below = below.min(Seq(layer.0 + 1)),
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

    /// The newest one that holds, and that no rewind has taken back.
    fn newest_active(&self, is_one: impl Fn(&Change) -> bool) -> Option<&Arc<Entry>> {
        let holds = |entry: &&Arc<Entry>| !self.undone.contains(&entry.seq) && !self.is_taken_back(entry.seq);
        self.entries.iter().rev().filter(|entry| is_one(&entry.change)).find(holds)
    }

    /// The entries that the view is made of, oldest first.
    pub fn standing(&self) -> impl Iterator<Item = &Arc<Entry>> {
        view::standing(&self.entries, |seq| !self.undone.contains(&seq))
    }

    fn saw_message(&mut self, id: MessageId) {
        self.next_message = self.next_message.max(id.0 + 1);
    }
}
