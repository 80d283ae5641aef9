//! The normalized output of one hook, and the combined result of all hooks of an event.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value};

pub use epitome_config::rules::PermissionDecision;
use epitome_thread::{HookRun, PartId, Role, Seq};

/// A hook's result after normalization. Fields that the hook did not set are empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HookOutput {
    /// Blocks the action that the event announces, with an optional reason.
    pub block: Option<Option<String>>,
    pub decision: Option<PermissionDecision>,
    /// The reason for the decision.
    pub decision_reason: Option<String>,
    /// A changed tool input.
    pub input: Option<Map<String, Value>>,
    /// A changed prompt.
    pub message: Option<String>,
    /// Additional context for the model.
    pub context: Vec<String>,
    /// A changed tool result.
    pub output: Option<ResultChange>,
    /// The exact text of a tool result for the model.
    pub output_text: Option<String>,
    pub action: HistoryAction,
    pub follow_ups: Vec<Utterance>,
    /// Continue after a mutation or callback at the agent's stop.
    pub go_on: bool,
    /// A line shown to the user.
    pub notice: Option<String>,
    pub edits: Option<RequestedEdits>,
    pub custom_instructions: Option<String>,
    /// A complete summary; no model is called.
    pub summary: Option<String>,
    /// Ends the turn, with a reason for the user (Claude Code's `continue: false`).
    pub halt: Option<String>,
    /// Warnings about single fields.
    pub warnings: Vec<String>,
}

/// A requested change of the history.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum HistoryAction {
    #[default]
    None,
    Mutate {
        messages: Vec<Utterance>,
        /// Number of newest messages that stay verbatim after the given ones.
        preserve_recent: usize,
        target: Option<String>,
    },
    Callback(CallbackRequest),
    /// The text replaces the history, as its summary (`swap_context`).
    Swap {
        summary: String,
        keep: HistoryTail,
    },
    /// A compaction like that of `/compact` (`compact_context`, the threshold).
    Compact {
        keep: HistoryTail,
        threshold: bool,
    },
}

/// The tail of the history that stays verbatim after a summary.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum HistoryTail {
    #[default]
    Nothing,
    /// This many of the newest messages.
    Messages(usize),
    /// The newest part, as a fraction of the window from 0 to 1.
    Ratio(f64),
}

/// The raw outcome of one run, before its result is read.
#[derive(Clone, Debug, PartialEq)]
pub enum RawOutcome {
    /// A process ended or was killed. Both outputs are bounded; `stderr` keeps its end.
    Ended {
        exit: ProcessExit,
        stdout: Vec<u8>,
        stdout_cut: bool,
        stderr: String,
    },
    /// A webhook responded with a 2xx status. The body is bounded.
    Replied {
        status: u16,
        body: Vec<u8>,
    },
    /// A result without a process of its own: an object from a resident or declared hook (`Object`), or the
    /// output of a handler or function (`Answered`).
    Object(Map<String, Value>),
    Answered(Box<HookOutput>),
    /// It could not be run or returned no result; contains a message.
    Failed(String),
    /// It was not started; contains the reason.
    Skipped(String),
    /// An outcome with remarks from the code that ran it.
    Remarked(Box<RawOutcome>, Vec<String>),
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessExit {
    Code(i32),
    Signal(i32),
    /// It was killed at its time limit.
    TimedOut(std::time::Duration),
}

impl fmt::Display for ProcessExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProcessExit::Code(code) => write!(f, "ended with exit code {code}"),
            ProcessExit::Signal(signal) => write!(f, "was ended by signal {signal}"),
            ProcessExit::TimedOut(limit) => write!(f, "did not end within {} s", limit.as_secs()),
        }
    }
}

/// A recipe or function that a hook calls.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CallbackRequest {
    pub name: String,
    pub args: BTreeMap<String, String>,
    pub target: Option<String>,
    /// Whether it runs in the background.
    pub asynchronous: bool,
    /// Whether its text is appended to the history, whatever the recipe declares (`action: summary`).
    pub text_only: bool,
}

/// A message as written by hooks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Utterance {
    pub role: Role,
    pub text: String,
}

/// A tool result as written by hooks; missing fields stay unchanged.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResultChange {
    pub success: Option<bool>,
    pub error: Option<String>,
    pub metadata_type: Option<String>,
    pub metadata: Option<Value>,
}

/// `context_edits`, as requested.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestedEdits {
    /// The revision of the view that the edits refer to; `None` means that of the payload.
    pub revision: Option<Seq>,
    pub edits: Vec<RequestedEdit>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestedEdit {
    Pin(PartId),
    Unpin(PartId),
    Mask(PartId, String),
    Drop(PartId),
    Replace(PartId, String),
    Append(Utterance),
}

/// The combined result of all hooks of an event. If hooks disagree, the earlier one wins and the later one is
/// in the trail as a conflict.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Resolution {
    /// The blocking hook and its reason.
    pub block: Option<(String, String)>,
    /// The strictest decision (deny, then ask, then allow), the hook, and its reason.
    pub decision: Option<(PermissionDecision, String, Option<String>)>,
    /// The changed input, if any, and the hook that changed it.
    pub input: Option<(Map<String, Value>, String)>,
    /// The changed prompt text, if any.
    pub message: Option<String>,
    /// Context for the model, each with the name of its hook. Context for a tool result is part of
    /// `result`'s text instead.
    pub context: Vec<(String, String)>,
    /// The changed tool result, if any.
    pub result: Option<super::hook_context::HookCallResult>,
    /// The requested change of the history; `action_by` is the hook that requested it.
    pub action: HistoryAction,
    pub action_by: String,
    pub edits: Vec<(String, RequestedEdits)>,
    /// Follow-ups with the hooks that requested them, without exact duplicates.
    pub follow_ups: Vec<(String, Utterance)>,
    pub go_on: bool,
    /// Lines for the user, each with the name of its hook.
    pub notices: Vec<(String, String)>,
    pub custom_instructions: Option<String>,
    /// The name of the hook, and its summary.
    pub summary: Option<(String, String)>,
    /// Ends the turn: the hook and its reason.
    pub halt: Option<(String, String)>,
    /// Shell code with which the session's later commands begin, from hooks for its start.
    pub exports: Option<String>,
    pub trail: Vec<HookRun>,
    /// Number of runs that requested nothing and had no remarks.
    pub quiet: u32,
    /// The names of the hooks of these runs, which count for hooks that are declared to run once.
    pub quiet_names: Vec<String>,
}

impl Resolution {
    /// Calls a function for each text that becomes part of the conversation, except for `result`.
    pub fn for_each_text(&mut self, mut change: impl FnMut(&mut String)) {
        self.message.iter_mut().chain(&mut self.custom_instructions).for_each(&mut change);
        self.context.iter_mut().chain(&mut self.summary).for_each(|(_, text)| change(text));
        self.follow_ups.iter_mut().for_each(|(_, said)| change(&mut said.text));
        for edit in self.edits.iter_mut().flat_map(|(_, wanted)| &mut wanted.edits) {
            match edit {
                RequestedEdit::Mask(_, text)
                | RequestedEdit::Replace(_, text)
                | RequestedEdit::Append(Utterance { text, .. }) => change(text),
                RequestedEdit::Pin(_) | RequestedEdit::Unpin(_) | RequestedEdit::Drop(_) => {}
            }
        }
        match &mut self.action {
            HistoryAction::Mutate { messages, .. } => {
                messages.iter_mut().for_each(|said| change(&mut said.text));
            }
            HistoryAction::Swap { summary, .. } => change(summary),
            HistoryAction::None | HistoryAction::Callback(_) | HistoryAction::Compact { .. } => {}
        }
    }
}
