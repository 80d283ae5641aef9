//! Everything that can happen to a thread, and its stored form.
//!
//! Changes are appended and never rewritten. Variants are only ever added: an old journal must fold to the
//! same view in every later build.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::choices::{Mode, ModelName, Rule, ThoughtLevel};
use super::hooked::{HistoryMessage, HookRun, ViewEdit};
use super::message::{
    CallDisplay, CallId, Message, MessageId, PlanStep, ToolCall, ToolOutcome, ToolSpec, Usage,
};
use super::opaque::{self, Opaque};
use super::pins::PINNED_BY_PERSON;
use crate::named_enum;

/// The version of the stored form and of the fold, written into every `Opened`. A journal with a higher
/// version is refused and left untouched. Version 2 chains the lines of a journal and records in each of them how
/// much was on the disk before it.
pub const FORMAT_VERSION: u32 = 2;

/// The number of an entry in its thread: consecutive, from 0. Shown as `e7`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seq(pub u64);

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "e{}", self.0)
    }
}

impl Seq {
    /// The entry's stable, globally unique name in UUID form, derived from the session id and the number.
    pub fn uuid_in(self, session: &str) -> String {
        let digest = Sha256::digest(format!("{session}/{self}"));
        let hex: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
    }
}

/// The id of a session and its thread: `s_` followed by 20 lower-case hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SessionId(pub String);

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl SessionId {
    /// Parses a session id. Ids become file names, so everything not of the exact form is rejected.
    pub fn parse(text: &str) -> Option<SessionId> {
        let digits = text.strip_prefix("s_")?;
        let well_formed =
            digits.len() == 20 && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        well_formed.then(|| SessionId(text.to_owned()))
    }
}

/// A numbered change: the unit of the journal, of a replay and of client updates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    pub seq: Seq,
    /// Milliseconds since the Unix epoch.
    pub at: u64,
    #[serde(flatten, serialize_with = "opaque::serialize")]
    pub change: Change,
}

impl Entry {
    /// Parses a stored entry. A kind of change that this build does not know or understand becomes
    /// [`Change::Unknown`], which serializes to the same JSON again. Only an opening entry must be understood.
    pub fn parse(json: &[u8]) -> Result<Entry, serde_json::Error> {
        serde_json::from_slice(json)
            .or_else(|error| opaque::entry(serde_json::from_slice(json)?).ok_or(error))
    }

    /// Like `parse`, for parsed JSON.
    pub fn from_json(json: &Value) -> Result<Entry, serde_json::Error> {
        Entry::deserialize(json).or_else(|error| opaque::entry(json.clone()).ok_or(error))
    }
}

/// Everything that can happen to a thread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "snake_case")]
pub enum Change {
    /// The first entry of every log; it occurs nowhere else.
    Opened {
        format: u32,
        session: SessionId,
        cwd: PathBuf,
    },
    /// The frame: the system prompt and tool definitions of every request in this thread, frozen at the first
    /// model call.
    Framed {
        system: String,
        tools: Vec<ToolSpec>,
    },
    /// Instructions of the client for the entire session. The newest apply; the next frame contains them.
    ClientInstructed(ClientInstructions),
    /// A prompt that arrived during a turn. It is not in the view yet.
    Queued {
        message: Message,
    },
    /// A user message that entered the view.
    Said {
        message: Message,
        #[serde(default)]
        origin: Origin,
    },
    /// The key with which a client sent the prompt that this message is or will become: a repeated request with the
    /// same key must not insert it again. Written before the message, so that no crash separates the two.
    PromptKeyed {
        message: MessageId,
        key: String,
    },
    /// The user ran a command that Epitome executes itself (`/compact`, `/undo`). Shown to the user, not to
    /// the model.
    Commanded {
        message: MessageId,
        typed: String,
    },
    /// A reply of the model. `cut` is the reason if it stopped early.
    Replied {
        message: Message,
        model: ModelName,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        usage: Option<Usage>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cut: Option<ReplyCut>,
    },
    /// The outcome of a tool call. Each call gets exactly one.
    ToolFinished {
        outcome: ToolOutcome,
    },
    /// A compaction: `summary` replaces the view up to and including `through`.
    Compacted {
        through: Seq,
        /// The user message that replaces those entries.
        summary: Message,
        trigger: Trigger,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        focus: Option<String>,
        /// Tokens in context before and after, and the model's window at the time, as shown to clients.
        /// Without a window, as in older logs, the counts are an estimate of the view alone.
        tokens_before: u64,
        tokens_after: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        window: Option<u64>,
        /// The model that wrote the summary.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        model: Option<ModelName>,
        /// Tokens used to write the summary.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        usage: Option<Usage>,
        /// Kept entries that are shown shortened from now on.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        masks: Vec<Mask>,
        #[serde(default, skip_serializing_if = "CompactionStats::is_empty")]
        account: CompactionStats,
    },
    /// Pruning: old tool outcomes are shown shortened from now on, without a summary.
    Pruned {
        masks: Vec<Mask>,
        trigger: Trigger,
        /// Tokens in context before and after, and the model's window at the time, as shown to clients.
        /// Without a window, as in older logs, the counts are an estimate of the view alone.
        tokens_before: u64,
        tokens_after: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        window: Option<u64>,
    },
    /// A hook replaced the view up to and including `through` with another history.
    Mutated {
        through: Seq,
        messages: Vec<HistoryMessage>,
        /// The hook, or the recipe that provided the text.
        by: String,
        /// Tokens in context before and after, and the model's window at the time, as shown to clients.
        /// Without a window, as in older logs, the counts are an estimate of the view alone.
        tokens_before: u64,
        tokens_after: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        window: Option<u64>,
    },
    /// A hook edited single entries of the view. Edits are atomic: if one is not possible, none is made.
    Edited {
        by: String,
        edits: Vec<ViewEdit>,
    },
    /// A hook changed the input of a tool call. The model keeps seeing its original input.
    CallChanged {
        call: CallId,
        input: serde_json::Value,
        card: CallDisplay,
        by: String,
    },
    /// A prompt that never entered the view, because a hook blocked it or the user cancelled before the hooks
    /// had checked it. `note` is the id of the message with the reason.
    Withheld {
        message: Message,
        note: MessageId,
        why: Withheld,
    },
    /// The trail of one hook event: the runs that did or requested something, with the results.
    Hooked {
        /// The canonical name of the event.
        event: String,
        runs: Vec<HookRun>,
    },
    /// The goal of the work, stored outside of the history; `None` clears it.
    GoalSet {
        goal: Option<String>,
    },
    /// The provider rejected the model's own reasoning when it was sent back: the reasoning of replies up to
    /// and including `through` is omitted from all later requests. `why` is the provider's message.
    ThinkingDropped {
        through: Seq,
        why: String,
    },
    /// The layer made by `entry` is undone. Entries appended since then are kept.
    Undone {
        entry: Seq,
    },
    /// An undone layer is active again, at its old position.
    Redone {
        entry: Seq,
    },
    /// The conversation was rewound: the view is what it was before the entry `to`. The entries from there on stay in
    /// the log. This is a layer like a compaction and can be undone.
    Rewound {
        to: Seq,
    },
    /// Files were restored to their state before a turn or, to undo that, to their state before the rewind. Their
    /// contents are stored in checkpoints, not in the log.
    FilesRewound {
        /// The first entry of the oldest turn whose changes were undone.
        turn: Seq,
        /// The number of the rewind in its session.
        rewind: u32,
        /// Whether this undid an earlier rewind, which restored the changes of the turns.
        #[serde(default, skip_serializing_if = "is_false")]
        undo: bool,
        /// The restored paths; truncated if there are very many.
        files: Vec<PathBuf>,
        /// The number of restored paths not listed in `files`.
        #[serde(default, skip_serializing_if = "is_zero")]
        more: u32,
        /// The number of files that were left unchanged.
        #[serde(default, skip_serializing_if = "is_zero")]
        left: u32,
    },
    /// The session is a fork: all entries before this one were copied from the session `from`, up to and
    /// including its entry `through`.
    Forked {
        from: SessionId,
        through: Seq,
    },
    /// A notice that is shown to the user but not to the model.
    Noted {
        message: MessageId,
        text: String,
    },
    ModelChosen {
        model: ModelName,
    },
    ModeChosen {
        #[serde(deserialize_with = "super::choices::mode_or_ask")]
        mode: Mode,
    },
    ThoughtChosen {
        level: ThoughtLevel,
    },
    /// Whether the session compacts automatically, whatever is configured.
    AutoCompactChosen {
        is_on: bool,
    },
    Titled {
        title: String,
    },
    /// The user archived the session or restored it from the archive. Listings show archived ones only on request.
    Archived {
        archived: bool,
    },
    Planned {
        steps: Vec<PlanStep>,
    },
    /// The user allowed something for the rest of the session.
    Allowed {
        rule: Rule,
    },
    /// Tokens of a model call outside of the conversation itself: by a subagent, a callback or a hook.
    Spent {
        model: ModelName,
        usage: Usage,
        /// The name of the subagent, recipe or hook that made the call.
        by: String,
    },
    /// The user revoked a permission granted for the rest of the session.
    Forgotten {
        rule: Rule,
    },
    TurnEnded {
        reason: StopReason,
        /// Tokens of the entire turn.
        usage: Usage,
        /// The number of hook runs in this turn that did and requested nothing.
        #[serde(default, skip_serializing_if = "is_zero")]
        quiet_hooks: u32,
        /// Why it ended with `StopReason::Failed`. Earlier versions did not record it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failure: Option<String>,
    },
    /// Replaces an entry whose line is damaged or missing. The first one of a run has the total count, the others
    /// have 0.
    Lost {
        entries: u64,
    },
    /// The user knows that earlier entries are damaged or missing, and continues without them.
    DamageAccepted {
        /// The number of damaged places.
        places: u64,
        /// The number of lost entries.
        entries: u64,
    },
    /// A change that a newer version wrote: it is preserved and copied, but has no effect.
    #[serde(skip)]
    Unknown(Opaque),
}

fn is_false(flag: &bool) -> bool {
    !*flag
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Change {
    /// The variant's name, for logs. The contents of a change are never logged.
    pub fn kind(&self) -> &'static str {
        self.class().0
    }

    /// The message of the user's prompt that the change records.
    pub fn prompt(&self) -> Option<MessageId> {
        match self {
            Change::Said {
                message,
                origin: Origin::Person | Origin::Recipe { .. } | Origin::Queue { .. },
            }
            | Change::Queued { message }
            | Change::Withheld { message, .. } => Some(message.id),
            Change::Commanded { message, .. } => Some(*message),
            _ => None,
        }
    }

    /// The group, for code that treats most changes alike.
    pub fn group(&self) -> ChangeGroup {
        self.class().1
    }

    fn class(&self) -> (&'static str, ChangeGroup) {
        match self {
            Change::Opened { .. } => ("opened", ChangeGroup::Lifecycle),
            Change::Framed { .. } => ("framed", ChangeGroup::Lifecycle),
            Change::ClientInstructed(_) => ("client_instructed", ChangeGroup::Setting),
            Change::Queued { .. } => ("queued", ChangeGroup::Message),
            Change::Said { .. } => ("said", ChangeGroup::Message),
            Change::PromptKeyed { .. } => ("prompt_keyed", ChangeGroup::Lifecycle),
            Change::Commanded { .. } => ("commanded", ChangeGroup::Message),
            Change::Replied { .. } => ("replied", ChangeGroup::Message),
            Change::ToolFinished { .. } => ("tool_finished", ChangeGroup::Message),
            Change::Compacted { .. } => ("compacted", ChangeGroup::View),
            Change::Mutated { .. } => ("mutated", ChangeGroup::View),
            Change::Edited { .. } => ("edited", ChangeGroup::View),
            Change::CallChanged { .. } => ("call_changed", ChangeGroup::Note),
            Change::Withheld { .. } => ("withheld", ChangeGroup::Message),
            Change::Hooked { .. } => ("hooked", ChangeGroup::Note),
            Change::GoalSet { .. } => ("goal_set", ChangeGroup::Note),
            Change::ThinkingDropped { .. } => ("thinking_dropped", ChangeGroup::View),
            Change::Pruned { .. } => ("pruned", ChangeGroup::View),
            Change::Undone { .. } => ("undone", ChangeGroup::View),
            Change::Redone { .. } => ("redone", ChangeGroup::View),
            Change::Rewound { .. } => ("rewound", ChangeGroup::View),
            Change::FilesRewound { .. } => ("files_rewound", ChangeGroup::Note),
            Change::Forked { .. } => ("forked", ChangeGroup::Lifecycle),
            Change::Noted { .. } => ("noted", ChangeGroup::Note),
            Change::ModelChosen { .. } => ("model_chosen", ChangeGroup::Setting),
            Change::ModeChosen { .. } => ("mode_chosen", ChangeGroup::Setting),
            Change::ThoughtChosen { .. } => ("thought_chosen", ChangeGroup::Setting),
            Change::AutoCompactChosen { .. } => ("auto_compact_chosen", ChangeGroup::Setting),
            Change::Titled { .. } => ("titled", ChangeGroup::Setting),
            Change::Archived { .. } => ("archived", ChangeGroup::Setting),
            Change::Planned { .. } => ("planned", ChangeGroup::Note),
            Change::Allowed { .. } => ("allowed", ChangeGroup::Setting),
            Change::Spent { .. } => ("spent", ChangeGroup::Note),
            Change::Forgotten { .. } => ("forgotten", ChangeGroup::Setting),
            Change::TurnEnded { .. } => ("turn_ended", ChangeGroup::Lifecycle),
            Change::Lost { .. } => ("lost", ChangeGroup::Note),
            Change::DamageAccepted { .. } => ("damage_accepted", ChangeGroup::Note),
            Change::Unknown(_) => ("unknown", ChangeGroup::Note),
        }
    }

    pub fn client_instructions(&self) -> Option<&ClientInstructions> {
        match self {
            Change::ClientInstructed(instructions) => Some(instructions),
            _ => None,
        }
    }

    /// The outcome of a tool call, if it is one.
    pub fn outcome(&self) -> Option<&ToolOutcome> {
        match self {
            Change::ToolFinished { outcome } => Some(outcome),
            _ => None,
        }
    }

    /// Whether it is a message, a reply or a result.
    pub fn is_spoken(&self) -> bool {
        matches!(self, Change::Said { .. } | Change::Replied { .. } | Change::ToolFinished { .. })
    }

    /// The message that it puts into the view: of the user, of the model, or of a compaction.
    pub fn shown_message(&self) -> Option<&Message> {
        match self {
            Change::Said { message, .. }
            | Change::Replied { message, .. }
            | Change::Compacted { summary: message, .. } => Some(message),
            _ => None,
        }
    }

    /// The calls of a reply.
    pub fn calls(&self) -> impl Iterator<Item = &ToolCall> {
        let reply = if let Change::Replied { message, .. } = self { Some(message) } else { None };
        reply.into_iter().flat_map(Message::calls)
    }

    /// Whether the user wrote it, even if it has not entered the view or never will.
    pub fn is_prompt(&self) -> bool {
        match self {
            Change::Said { origin, .. } => origin.is_prompt(),
            Change::Queued { .. } | Change::Commanded { .. } | Change::Withheld { .. } => true,
            _ => false,
        }
    }

    /// Whether it is a prompt for the model rather than a command; only turns with one count for the user.
    pub fn is_said_by_user(&self) -> bool {
        matches!(self, Change::Said { origin, .. } if origin.is_prompt())
    }

    /// The context sizes that a compaction, a pruning or a mutation recorded; `None` for any other change.
    pub fn context_sizes(&self) -> Option<ContextSizes> {
        match self {
            Change::Compacted { tokens_before, tokens_after, window, .. }
            | Change::Pruned { tokens_before, tokens_after, window, .. }
            | Change::Mutated { tokens_before, tokens_after, window, .. } => {
                Some(ContextSizes { before: *tokens_before, after: *tokens_after, window: *window })
            }
            _ => None,
        }
    }

    /// Whether an `Undone` for this entry has any effect.
    pub fn can_be_undone(&self) -> bool {
        matches!(
            self,
            Change::Compacted { .. }
                | Change::Pruned { .. }
                | Change::Mutated { .. }
                | Change::Edited { .. }
                | Change::Rewound { .. }
        )
    }

    /// Whether it is a layer that `/undo` can undo. A hook's edits that only pin are not: it may pin after each compaction,
    /// and `/undo` is then meant for the compaction.
    pub fn is_layer(&self) -> bool {
        match self {
            Change::Edited { by, edits } => by == PINNED_BY_PERSON || !edits.iter().all(ViewEdit::only_pins),
            other => other.can_be_undone(),
        }
    }

    /// Whether it changes the view other than by appending, or could if its edits were more than pins.
    pub fn concerns_view(&self) -> bool {
        self.can_be_undone() || self.rewrites()
    }

    /// Whether it changes the view other than by appending.
    pub fn rewrites(&self) -> bool {
        match self {
            Change::Edited { edits, .. } => edits.iter().any(ViewEdit::rewrites),
            Change::Undone { .. } | Change::Redone { .. } | Change::ThinkingDropped { .. } => true,
            other => other.can_be_undone(),
        }
    }
}

/// Tokens in context before and after a change, and the model's window at the time, if it was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextSizes {
    pub before: u64,
    pub after: u64,
    pub window: Option<u64>,
}

/// The subject of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeGroup {
    /// A message of the user, the model or a tool.
    Message,
    /// A change of how the model sees earlier entries.
    View,
    /// A choice of the user that applies from here on.
    Setting,
    /// Information that accompanies the conversation, such as the plan or the trail of hooks.
    Note,
    /// The thread itself and its turns.
    Lifecycle,
}

/// A client's addition to the system prompt of its session, for example by an editor with its own persona.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientInstructions {
    pub text: String,
    /// Whether they replace Epitome's description of its role. Tools, permissions and project instructions stay.
    #[serde(default)]
    pub replaces_role: bool,
}

/// The source of a user message.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "from", rename_all = "snake_case")]
pub enum Origin {
    /// Typed by the user.
    #[default]
    Person,
    /// The text of a recipe, rendered for what the user typed.
    Recipe { recipe: String, typed: String },
    /// Taken from the queue; `entry` is its `Queued` entry.
    Queue { entry: Seq },
    /// A follow-up requested by a hook.
    Hook { hook: String },
    /// Additional information for the model, such as a hook's context or the goal. Not shown as the user's
    /// words.
    Context { by: String },
    /// Project instructions that apply from here on: an instruction file below the working directory, or one
    /// that changed after the system prompt was made. Not shown as the user's words.
    Instructions { path: PathBuf },
}

impl Origin {
    /// Whether the user wrote it, directly or through a recipe or the queue.
    pub fn is_prompt(&self) -> bool {
        matches!(self, Origin::Person | Origin::Recipe { .. } | Origin::Queue { .. })
    }
}

/// Why a prompt did not enter the view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum Withheld {
    Blocked { hook: String, reason: String },
    Cancelled,
}

/// Why a reply stopped early.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum ReplyCut {
    /// The output limit of the model was reached.
    MaxTokens,
    /// The model or its provider refused.
    Refused { reason: String },
    /// The user cancelled.
    Cancelled,
    /// The connection or the provider failed.
    Broken { reason: String },
    /// The window was full before the reply was complete.
    WindowFull,
    /// A filter of the provider withheld all or part of the reply.
    Filtered { reason: String },
    /// The provider reported an unknown reason, or an error of the model.
    Other { reason: String },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trigger {
    /// `/compact` or the command line.
    Manual,
    /// The provider refused a request as too long.
    Overflow,
    /// The configured share of the window was reached.
    Threshold,
    /// A hook or a recipe's handler requested it.
    Hook,
    /// The next request might not fit.
    Must,
}

impl Trigger {
    /// Whether the compaction happens without a request by the user or a hook.
    pub fn is_automatic(self) -> bool {
        match self {
            Trigger::Threshold | Trigger::Must | Trigger::Overflow => true,
            Trigger::Manual | Trigger::Hook => false,
        }
    }
}

/// A tool outcome or user message that is shown as another text. The log keeps the original.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mask {
    pub entry: Seq,
    pub text: String,
}

/// The effect of a compaction on the view, for the user: how much is kept, shortened or summarized, and what was
/// left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompactionStats {
    pub kept: PartSize,
    pub masked: PartSize,
    pub summarised: PartSize,
    /// Entries that are quoted verbatim next to the summary. In older logs, also those quoted without their middle.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quoted: Vec<Seq>,
    /// Entries that are quoted without their middle or without attached files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shortened: Vec<Seq>,
    /// Lines of the tables computed from the log. In older logs, the number of facts listed.
    pub facts: u32,
    /// Entries with instructions or the user's words that did not fit. In older logs, also those of `left_out_earlier`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<Seq>,
    /// Earlier words of the user, for which there could be no room. Their number grows with the conversation, so they
    /// are not listed. Boxed, because each entry of a log takes as much memory as the largest change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_out_earlier: Option<Box<EarlierWords>>,
    /// Why there is no model-written summary although one was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback: Option<String>,
    /// Whether the model's summary reached its limit before its end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_cut_off: bool,
}

/// The user's words up to an entry, without those that are kept or quoted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EarlierWords {
    pub through: Seq,
    pub entries: u32,
}

/// The size of a part of the view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartSize {
    pub entries: u32,
    pub tokens: u64,
}

impl CompactionStats {
    fn is_empty(&self) -> bool {
        *self == CompactionStats::default()
    }

    /// The number of entries that did not fit.
    pub fn left_out_count(&self) -> usize {
        self.left_out.len() + self.left_out_earlier.as_ref().map_or(0, |earlier| earlier.entries as usize)
    }

    /// The numbers as JSON: entries kept, masked and so on, table lines as `facts`, and the reason if there
    /// is no model-written summary.
    pub fn counts(&self) -> serde_json::Value {
        let mut counts = serde_json::json!({
            "kept": self.kept.entries,
            "masked": self.masked.entries,
            "summarised": self.summarised.entries,
            "quoted": self.quoted.len(),
            "shortened": self.shortened.len(),
            "facts": self.facts,
            "left_out": self.left_out_count(),
        });
        if let Some(why) = &self.fallback {
            counts["fallback"] = why.as_str().into();
        }
        counts
    }
}

named_enum! {
    /// Why a turn ended: ACP's stop reasons, plus some for failures and crashes.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum StopReason {
        EndTurn = "end_turn",
        MaxTokens = "max_tokens",
        MaxRounds = "max_rounds",
        Refusal = "refusal",
        Cancelled = "cancelled",
        /// An error, reported in the answer to the prompt.
        Failed = "failed",
        /// The process ended first. Written when the thread is opened again.
        Interrupted = "interrupted",
    }
}
