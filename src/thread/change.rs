//! The one vocabulary of what can happen to a thread, and its stored form.
//!
//! A change is appended and never rewritten. Variants are only ever added: an old journal must fold
//! to the same view in every later build.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::choices::{Mode, ModelName, Rule, ThoughtLevel};
use super::hooked::{Edit, HookRun, Spoken};
use super::message::{CallId, Card, Message, MessageId, PlanStep, ToolOutcome, ToolSpec, Usage};

/// The version of the stored form and of the fold, written into every `Opened`. A journal with a
/// higher one is refused and left untouched.
pub const FORMAT_VERSION: u32 = 1;

/// The dense number of an entry in its thread, from 0. Its public name is `e7`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seq(pub u64);

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "e{}", self.0)
    }
}

impl Seq {
    /// The entry's name outside of its thread, in the form of a UUID; the same whenever it is asked for.
    pub fn uuid_in(self, session: &str) -> String {
        let digest = Sha256::digest(format!("{session}/{self}"));
        let hex: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
    }
}

/// Names a session and its thread: `s_` and 20 lower-case hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SessionId(pub String);

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl SessionId {
    /// Whether the text can name a session at all. Ids become file names, so nothing else may pass.
    pub fn parse(text: &str) -> Option<SessionId> {
        let digits = text.strip_prefix("s_")?;
        let well_formed =
            digits.len() == 20 && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        well_formed.then(|| SessionId(text.to_owned()))
    }
}

/// An appended change: the unit of the journal, of a replay and of what clients follow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    pub seq: Seq,
    /// Milliseconds since the Unix epoch.
    pub at: u64,
    #[serde(flatten)]
    pub change: Change,
}

/// Everything that can happen to a thread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "snake_case")]
pub enum Change {
    /// Always the first entry, and only that.
    Opened {
        format: u32,
        session: SessionId,
        cwd: PathBuf,
    },
    /// The system text and the tools that every request of this thread begins with, frozen at the
    /// first model call.
    Framed {
        system: String,
        tools: Vec<ToolSpec>,
    },
    /// A prompt that came while a turn ran. Kept, not yet in the view.
    Queued {
        message: Message,
    },
    /// A user message entered the view.
    Said {
        message: Message,
        #[serde(default)]
        origin: Origin,
    },
    /// The person gave a command that Epitome carries out itself (`/compact`, `/undo`): shown to
    /// people, not to the model.
    Commanded {
        message: MessageId,
        typed: String,
    },
    /// The model's reply. `cut` tells why it is shorter than the model meant it to be.
    Replied {
        message: Message,
        model: ModelName,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        usage: Option<Usage>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cut: Option<Cut>,
    },
    /// A tool call got its one outcome.
    ToolFinished {
        outcome: ToolOutcome,
    },
    /// The view up to and with `through` is replaced by `summary`.
    Compacted {
        through: Seq,
        /// The user message that stands for all that was replaced.
        summary: Message,
        trigger: Trigger,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        focus: Option<String>,
        /// Tokens in context before and after, and the model's window then, as clients were shown them. Where there
        /// is no window, as in older logs, they are an estimate of the view alone.
        tokens_before: u64,
        tokens_after: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        window: Option<u64>,
        /// Who wrote the summary.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        model: Option<ModelName>,
        /// What writing it took.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        usage: Option<Usage>,
        /// What of the rest is shown shorter from now on.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        masks: Vec<Mask>,
        #[serde(default, skip_serializing_if = "Account::is_empty")]
        account: Account,
    },
    /// Old outcomes are shown shorter from now on, without a summary.
    Pruned {
        masks: Vec<Mask>,
        trigger: Trigger,
        /// Tokens in context before and after, and the model's window then, as clients were shown them. Where there
        /// is no window, as in older logs, they are an estimate of the view alone.
        tokens_before: u64,
        tokens_after: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        window: Option<u64>,
    },
    /// A hook put another history in the place of the view up to and with `through`.
    Mutated {
        through: Seq,
        messages: Vec<Spoken>,
        /// The hook, or the recipe whose text it is.
        by: String,
        /// Tokens in context before and after, and the model's window then, as clients were shown them. Where there
        /// is no window, as in older logs, they are an estimate of the view alone.
        tokens_before: u64,
        tokens_after: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        window: Option<u64>,
    },
    /// A hook edited single entries of the view: all of these or, where one is not possible, none.
    Edited {
        by: String,
        edits: Vec<Edit>,
    },
    /// A hook changed what a tool call is run with. The model keeps seeing what it asked for.
    CallChanged {
        call: CallId,
        input: serde_json::Value,
        card: Card,
        by: String,
    },
    /// A prompt that never entered the view, because a hook stopped it or the person cancelled before
    /// the hooks had seen it. `note` is the message that tells why.
    Withheld {
        message: Message,
        note: MessageId,
        why: Withheld,
    },
    /// What hooks did or asked for at one moment, and what was made of it. Runs that did nothing are not
    /// in it.
    Hooked {
        /// The canonical name of the moment.
        event: String,
        runs: Vec<HookRun>,
    },
    /// What the work is for, kept outside of the history; `None` ends it.
    GoalSet {
        goal: Option<String>,
    },
    /// The provider would not take the model's own thinking back: that of replies up to and with `through`
    /// is left out of every request from now on. `why` is what it said.
    ThinkingDropped {
        through: Seq,
        why: String,
    },
    /// The layer that `entry` made is taken back; what was appended since stays.
    Undone {
        entry: Seq,
    },
    /// A layer that was taken back holds again, in its old place.
    Redone {
        entry: Seq,
    },
    /// The conversation is taken back: the view is again what it was before the entry `to`. What was said from
    /// there on stays in the log. A layer like a compaction, which can be undone.
    Rewound {
        to: Seq,
    },
    /// Files were put back as they were before turns, or as they were before that. What they held is beside the
    /// log, not in it.
    FilesRewound {
        /// The first entry of the oldest turn whose changes were taken back.
        turn: Seq,
        /// The rewind's number in its session.
        rewind: u32,
        /// It took an earlier rewind back: the turns' changes stand again.
        #[serde(default, skip_serializing_if = "is_false")]
        undo: bool,
        /// The paths that were put back; not all, where there are very many.
        files: Vec<PathBuf>,
        /// How many more there were.
        #[serde(default, skip_serializing_if = "is_zero")]
        more: u32,
        /// How many were left as they are.
        #[serde(default, skip_serializing_if = "is_zero")]
        left: u32,
    },
    /// What stands before was taken over from another session, up to and with its entry `through`.
    Forked {
        from: SessionId,
        through: Seq,
    },
    /// Something that the person is told and the model is not.
    Noted {
        message: MessageId,
        text: String,
    },
    ModelChosen {
        model: ModelName,
    },
    ModeChosen {
        mode: Mode,
    },
    ThoughtChosen {
        level: ThoughtLevel,
    },
    Titled {
        title: String,
    },
    Planned {
        steps: Vec<PlanStep>,
    },
    /// The person allowed something for the rest of the session.
    Allowed {
        rule: Rule,
    },
    /// A model call beside the conversation's own was paid for: of an agent, of a callback, of a hook.
    Spent {
        model: ModelName,
        usage: Usage,
        /// Whose it was: the agent's, the recipe's or the hook's name.
        by: String,
    },
    /// The person took back what they had allowed for the rest of the session.
    Forgotten {
        rule: Rule,
    },
    TurnEnded {
        reason: StopReason,
        /// Tokens of the whole turn.
        usage: Usage,
        /// Hook runs of this turn that did and asked nothing.
        #[serde(default, skip_serializing_if = "is_zero")]
        quiet_hooks: u32,
    },
}

fn is_false(flag: &bool) -> bool {
    !*flag
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Change {
    /// The variant's name, for logs: what a change holds is never logged.
    pub fn kind(&self) -> &'static str {
        match self {
            Change::Opened { .. } => "opened",
            Change::Framed { .. } => "framed",
            Change::Queued { .. } => "queued",
            Change::Said { .. } => "said",
            Change::Commanded { .. } => "commanded",
            Change::Replied { .. } => "replied",
            Change::ToolFinished { .. } => "tool_finished",
            Change::Compacted { .. } => "compacted",
            Change::Mutated { .. } => "mutated",
            Change::Edited { .. } => "edited",
            Change::CallChanged { .. } => "call_changed",
            Change::Withheld { .. } => "withheld",
            Change::Hooked { .. } => "hooked",
            Change::GoalSet { .. } => "goal_set",
            Change::ThinkingDropped { .. } => "thinking_dropped",
            Change::Pruned { .. } => "pruned",
            Change::Undone { .. } => "undone",
            Change::Redone { .. } => "redone",
            Change::Rewound { .. } => "rewound",
            Change::FilesRewound { .. } => "files_rewound",
            Change::Forked { .. } => "forked",
            Change::Noted { .. } => "noted",
            Change::ModelChosen { .. } => "model_chosen",
            Change::ModeChosen { .. } => "mode_chosen",
            Change::ThoughtChosen { .. } => "thought_chosen",
            Change::Titled { .. } => "titled",
            Change::Planned { .. } => "planned",
            Change::Allowed { .. } => "allowed",
            Change::Spent { .. } => "spent",
            Change::Forgotten { .. } => "forgotten",
            Change::TurnEnded { .. } => "turn_ended",
        }
    }

    /// Whether an `Undone` of this entry means anything.
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

    /// Whether it is a layer over the view: something that `/undo` takes back. Pins alone are none.
    pub fn is_layer(&self) -> bool {
        match self {
            Change::Edited { edits, .. } => !edits.iter().all(Edit::only_pins),
            other => other.can_be_undone(),
        }
    }

    /// Whether it alters the view other than by appending.
    pub fn rewrites(&self) -> bool {
        match self {
            Change::Edited { edits, .. } => edits.iter().any(Edit::rewrites),
            Change::Undone { .. } | Change::Redone { .. } | Change::ThinkingDropped { .. } => true,
            other => other.can_be_undone(),
        }
    }
}

/// Where a user message comes from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "from", rename_all = "snake_case")]
pub enum Origin {
    /// Typed as it stands.
    #[default]
    Person,
    /// A recipe's text, rendered for what the person typed.
    Recipe { recipe: String, typed: String },
    /// Taken from the queue during a turn; the `Queued` entry that it came from.
    Queue { entry: Seq },
    /// A follow-up that a hook asked for.
    Hook { hook: String },
    /// Something that the model is told beside what the person says: a hook's context, the goal. Not
    /// shown as the person's words.
    Context { by: String },
    /// Instructions of the project that hold from here on: a file that lies below the working directory, or
    /// one that was changed since the system text was made. Not shown as the person's words.
    Instructions { path: PathBuf },
}

impl Origin {
    /// Whether a person said it, in whatever way; not a hook.
    pub fn is_prompt(&self) -> bool {
        match self {
            Origin::Person | Origin::Recipe { .. } | Origin::Queue { .. } => true,
            Origin::Hook { .. } | Origin::Context { .. } | Origin::Instructions { .. } => false,
        }
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
pub enum Cut {
    /// The model's output limit.
    MaxTokens,
    /// The model or its provider declined.
    Refused { reason: String },
    /// The person cancelled.
    Cancelled,
    /// The connection or the provider broke off.
    Broken { reason: String },
    /// The window was full before the reply was whole.
    WindowFull,
    /// A filter of the provider's held the reply back, or a part of it.
    Filtered { reason: String },
    /// The provider named a reason that is not known here, or a mistake of the model's.
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
    /// A hook or a recipe's handler asked for it.
    Hook,
    /// The next request might not have fitted.
    Must,
}

/// An outcome or a user message that is shown as another text, while the log keeps what it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mask {
    pub entry: Seq,
    pub text: String,
}

/// What became of the view in a compaction, for people: how much of it stays as it is, is shown shorter, is
/// covered by the summary, and what found no room.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    pub kept: Share,
    pub masked: Share,
    pub summarised: Share,
    /// Entries that are quoted word for word beside the summary.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quoted: Vec<Seq>,
    /// Lines of the tables computed from the log. Older logs count the facts here that they listed.
    pub facts: u32,
    /// Entries of instructions and of the user's words that there was no room for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<Seq>,
    /// Why no model's summary is in it, where one was wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback: Option<String>,
}

/// A part of a view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    pub entries: u32,
    pub tokens: u64,
}

impl Account {
    fn is_empty(&self) -> bool {
        *self == Account::default()
    }

    /// The numbers for programs: entries of each fate, lines of tables as `facts`, and why there is no model's summary.
    pub fn counts(&self) -> serde_json::Value {
        let mut counts = serde_json::json!({
            "kept": self.kept.entries,
            "masked": self.masked.entries,
            "summarised": self.summarised.entries,
            "quoted": self.quoted.len(),
            "facts": self.facts,
            "left_out": self.left_out.len(),
        });
        if let Some(why) = &self.fallback {
            counts["fallback"] = why.as_str().into();
        }
        counts
    }
}

/// Why a turn ended; ACP's stop reasons, and the one for a turn that a crash ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    EndTurn,
    MaxTokens,
    MaxRounds,
    Refusal,
    Cancelled,
    /// An error that the prompt's answer carried.
    Failed,
    /// The process ended first; written when the thread is opened again.
    Interrupted,
}

impl StopReason {
    /// The word for it in logs and in what programs read.
    pub fn id(self) -> &'static str {
        match self {
            StopReason::EndTurn => "end_turn",
            StopReason::MaxTokens => "max_tokens",
            StopReason::MaxRounds => "max_rounds",
            StopReason::Refusal => "refusal",
            StopReason::Cancelled => "cancelled",
            StopReason::Failed => "failed",
            StopReason::Interrupted => "interrupted",
        }
    }
}
