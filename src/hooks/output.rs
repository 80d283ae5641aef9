//! What one hook said, free of spellings, and what all hooks of a moment together mean.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use epitome_thread::{HookRun, Part, Role, Seq};

/// A hook's result after normalisation. Every field that a hook did not give is empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HookOutput {
    /// It stops what is about to happen, with its reason where it gave one.
    pub block: Option<Option<String>>,
    pub decision: Option<PermissionDecision>,
    /// Why it decided so.
    pub decision_reason: Option<String>,
    /// A changed tool input.
    pub input: Option<Map<String, Value>>,
    /// A changed prompt.
    pub message: Option<String>,
    /// What the model is told beside.
    pub context: Vec<String>,
    /// A changed tool result.
    pub output: Option<ResultChange>,
    /// The exact text of a tool's outcome for the model.
    pub output_text: Option<String>,
    pub action: Action,
    pub follow_ups: Vec<Utterance>,
    /// Go on after a mutation or callback at the agent's stop.
    pub go_on: bool,
    /// A line for the person.
    pub notice: Option<String>,
    pub edits: Option<RequestedEdits>,
    pub custom_instructions: Option<String>,
    /// The summary itself; no model is called.
    pub summary: Option<String>,
    /// End the whole turn, with a reason for the person (Claude Code's `continue: false`).
    pub halt: Option<String>,
    /// What was wrong with single fields.
    pub warnings: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PermissionDecision {
    Allow,
    Ask,
    Deny,
}

/// What a hook wants done to the history.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Action {
    #[default]
    None,
    Mutate {
        messages: Vec<Utterance>,
        /// The newest so many messages stay verbatim behind the given ones.
        preserve_recent: usize,
        target: Option<String>,
    },
    Callback(Callback),
    /// The text takes the place of the history, as its summary (`swap_context`).
    Swap {
        summary: String,
        keep: Keep,
    },
    /// A compaction like that of `/compact` (`compact_context`, the threshold).
    Compact {
        keep: Keep,
        threshold: bool,
    },
}

/// What of the newest part of the history stays verbatim behind a summary.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Keep {
    #[default]
    Nothing,
    /// The newest so many messages.
    Messages(usize),
    /// The newest share of the window, from 0 to 1.
    Ratio(f64),
}

/// What became of one run, before its result is read.
#[derive(Clone, Debug, PartialEq)]
pub enum Ran {
    /// A process ended, or was ended. Both outputs are bounded; `stderr` keeps its end.
    Ended {
        exit: Exit,
        stdout: Vec<u8>,
        stdout_cut: bool,
        stderr: String,
    },
    /// A webhook gave a good answer. The body is bounded.
    Replied {
        status: u16,
        body: Vec<u8>,
    },
    /// A result without a process of its own: a resident hook's or declared object (`Object`), or a
    /// handler's or function's own words (`Answered`).
    Object(Map<String, Value>),
    Answered(Box<HookOutput>),
    /// It could not be run, or did not come to a result: a sentence.
    Failed(String),
    /// It was not started: a sentence.
    Skipped(String),
    /// The same, with what whoever ran it noticed on the way.
    Remarked(Box<Ran>, Vec<String>),
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Code(i32),
    Signal(i32),
    /// It was ended at its time limit.
    TimedOut(std::time::Duration),
}

/// A recipe or function that a hook calls.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Callback {
    pub name: String,
    pub args: BTreeMap<String, String>,
    pub target: Option<String>,
    /// In the background.
    pub asynchronous: bool,
    /// Its text is put behind the history, whatever the recipe declares (`action: summary`).
    pub text_only: bool,
}

/// A message as hooks write it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Utterance {
    pub role: Role,
    pub text: String,
}

/// A tool result as hooks write it; absent fields stay as they are.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResultChange {
    pub success: Option<bool>,
    pub error: Option<String>,
    pub metadata_type: Option<String>,
    pub metadata: Option<Value>,
}

/// `context_edits`, as asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestedEdits {
    /// Of the view that they were made for; `None` takes the payload's.
    pub revision: Option<Seq>,
    pub edits: Vec<RequestedEdit>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestedEdit {
    Pin(Part),
    Unpin(Part),
    Mask(Part, String),
    Drop(Part),
    Replace(Part, String),
    Append(Utterance),
}

/// What all hooks of a moment together mean. Where hooks disagree, the earlier one was heard and the
/// later one is in the trail as a conflict.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Resolution {
    /// The hook that stops it, and why.
    pub block: Option<(String, String)>,
    /// The strictest decision: deny before ask before allow; by whom, and why.
    pub decision: Option<(PermissionDecision, String, Option<String>)>,
    /// The input to run with, where a hook changed it, and which.
    pub input: Option<(Map<String, Value>, String)>,
    /// The prompt's text, where a hook changed it.
    pub message: Option<String>,
    /// Context for the model, behind who gave it. A tool result's is a part of `result`'s text instead.
    pub context: Vec<(String, String)>,
    /// The tool result, where a hook changed it.
    pub result: Option<super::moment::CallResult>,
    /// What is to be done to the history, and who asked for it.
    pub action: Action,
    pub action_by: String,
    pub edits: Vec<(String, RequestedEdits)>,
    /// Follow-ups with who asked for them, without exact repetitions.
    pub follow_ups: Vec<(String, Utterance)>,
    pub go_on: bool,
    /// Lines for the person, behind who gave them.
    pub notices: Vec<(String, String)>,
    pub custom_instructions: Option<String>,
    /// By whom, and the summary.
    pub summary: Option<(String, String)>,
    /// End the turn: by whom, and why.
    pub halt: Option<(String, String)>,
    pub trail: Vec<HookRun>,
    /// Runs that did and asked nothing.
    pub quiet: u32,
    /// Their names: what is declared to run once has run then.
    pub quiet_names: Vec<String>,
}
