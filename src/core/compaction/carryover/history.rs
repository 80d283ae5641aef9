//! A single pass over the newest part of the log that collects tool calls with their results, and the agent's messages.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use serde_json::Value;

use super::{Deadline, PART_TIME_MAX};
use crate::prune::RECALL;
use epitome_thread::{
    CallDisplay, CallId, Change, Content, Message, OutcomeContent, OutcomeStatus, PlanStep, REFUSED_BECAUSE,
    Seq, Thread, ToolCall, ToolOutcome,
};

/// The newest entries of the log that the tables are about. Without a limit, the cost of a compaction would grow with the
/// conversation until the tables exceed their time, although there is only room for the newest of what they find.
pub(super) const ENTRIES_MAX: usize = 20_000;

/// Claude Code's result for a call that the user refused, and the text in it that precedes the user's message.
const REFUSED: &str = "The user doesn't want to proceed with this tool use.";
const REFUSED_WITH: &str = "the user said:\n";

/// Claude Code's result for a call that was not run because another call of the same reply failed.
const NOT_RUN: &str = "<tool_use_error>Sibling tool call errored";

/// Tools whose result is the user's answer to a question: Epitome's, and those of agents whose sessions are imported.
const QUESTION_TOOLS: [&str; 4] =
    ["ask_user", "AskUserQuestion", "ask_followup_question", "request_user_input"];

/// The calls and replies of a conversation, oldest first, without those removed by a rewind or a hook.
pub(super) struct ConversationHistory<'a> {
    pub cwd: &'a Path,
    calls: Vec<CallRecord<'a>>,
    /// Replies outside of the kept view that contain text.
    replies: Vec<(Seq, &'a Message)>,
    /// The plan of Epitome's plan tool.
    pub plan: &'a [PlanStep],
    deadline: Deadline,
}

/// A tool call and its result.
#[derive(Clone, Copy)]
pub(super) struct CallRecord<'a> {
    /// The entry of the result, or of the call if there is no result.
    pub entry: Seq,
    pub name: &'a str,
    pub input: &'a Value,
    pub card: &'a CallDisplay,
    /// `None` if there is no result yet, or if a hook removed it.
    pub outcome: Option<&'a ToolOutcome>,
    /// Whether it is outside of the view after the compaction.
    pub has_left: bool,
}

/// The result of a call according to the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallStatus {
    Succeeded,
    Failed,
    /// Refused, interrupted or unknown, which says nothing about the result it would have had.
    Unknown,
}

impl<'a> ConversationHistory<'a> {
    pub fn collect(thread: &'a Thread, kept: &HashSet<Seq>) -> ConversationHistory<'a> {
        let rewritten = thread.rewritten();
        let mut history = ConversationHistory {
            cwd: thread.cwd(),
            calls: Vec::new(),
            replies: Vec::new(),
            plan: thread.plan(),
            deadline: Deadline::after(PART_TIME_MAX),
        };
        let mut open: HashMap<&CallId, usize> = HashMap::new();
        let newest: Vec<_> = thread.active_entries().rev().take(ENTRIES_MAX).collect();
        for entry in newest.into_iter().rev() {
            history.deadline.check();
            let is_hidden = rewritten.contains(entry.seq);
            match &entry.change {
                Change::Replied { message, .. } if !is_hidden => {
                    let has_left = !kept.contains(&entry.seq);
                    let is_shown =
                        |call: &&ToolCall| call.name != RECALL && !rewritten.contains_call(&call.id);
                    for call in message.calls().filter(is_shown) {
                        open.insert(&call.id, history.calls.len());
                        history.calls.push(CallRecord {
                            entry: entry.seq,
                            name: &call.name,
                            input: &call.input,
                            card: &call.card,
                            outcome: None,
                            has_left,
                        });
                    }
                    let has_text = message
                        .content
                        .iter()
                        .any(|part| matches!(part, Content::Text { text } if !text.trim().is_empty()));
                    if has_left && has_text {
                        history.replies.push((entry.seq, message));
                    }
                }
                Change::CallChanged { call, input, card, .. } => {
                    if let Some(at) = open.get(call) {
                        history.calls[*at].input = input;
                        history.calls[*at].card = card;
                    }
                }
                Change::ToolFinished { outcome } => {
                    if let Some(at) = open.remove(&outcome.call) {
                        let call = &mut history.calls[at];
                        call.entry = entry.seq;
                        call.outcome = (!is_hidden).then_some(outcome);
                    }
                }
                _ => {}
            }
        }
        history
    }

    /// Computes a part with the time that each part has.
    pub fn timed<T>(&self, compute: impl FnOnce(&Self) -> T) -> T {
        self.deadline.restart(PART_TIME_MAX);
        compute(self)
    }

    /// The calls, oldest first, as long as there is time.
    pub fn calls(&self) -> impl DoubleEndedIterator<Item = &CallRecord<'a>> {
        self.calls.iter().inspect(|_| self.deadline.check())
    }

    /// The replies, oldest first, as long as there is time.
    pub fn replies(&self) -> impl DoubleEndedIterator<Item = &(Seq, &'a Message)> {
        self.replies.iter().inspect(|_| self.deadline.check())
    }
}

impl<'a> CallRecord<'a> {
    pub fn result(&self) -> CallStatus {
        let Some(outcome) = self.outcome else { return CallStatus::Unknown };
        let exit_code = outcome.raw.as_ref().and_then(|raw| raw.get("exitCode")).and_then(Value::as_i64);
        match outcome.status {
            OutcomeStatus::Denied | OutcomeStatus::Interrupted => CallStatus::Unknown,
            _ if is_refusal(outcome) => CallStatus::Unknown,
            _ if first_text(outcome).is_some_and(|text| text.starts_with(NOT_RUN)) => CallStatus::Unknown,
            OutcomeStatus::Failed => CallStatus::Failed,
            OutcomeStatus::Completed if exit_code.is_some_and(|code| code != 0) => CallStatus::Failed,
            OutcomeStatus::Completed => CallStatus::Succeeded,
        }
    }

    /// Whether the call only updates the plan, which is shown separately.
    pub fn is_planning(&self) -> bool {
        let name = self.name.to_ascii_lowercase();
        ["todo", "plan", "taskcreate", "taskupdate", "tasklist"].iter().any(|tool| name.contains(tool))
    }

    /// The result as the model read it.
    pub fn text(&self) -> &'a str {
        self.outcome.and_then(first_text).unwrap_or_default()
    }

    /// The command line of a call that runs a command, without the shell around it.
    pub fn command(&self) -> Option<String> {
        // Editing tools have a `command` argument too, such as `{"command": "view", "path": …}`.
        if self.path().is_some() {
            return None;
        }
        let value = ["command", "cmd", "script", "commandLine"].iter().find_map(|key| self.input.get(key))?;
        let line = match value {
            Value::String(line) => line.clone(),
            // For example `["bash", "-lc", "make"]`.
            Value::Array(words) => {
                let words: Vec<&str> = words.iter().filter_map(Value::as_str).collect();
                match words.as_slice() {
                    [_, option, line] if option.starts_with('-') && option.ends_with('c') => {
                        (*line).to_owned()
                    }
                    words => words.join(" "),
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => return None,
        };
        (!line.trim().is_empty()).then_some(line)
    }

    /// The file named in the input.
    pub fn path(&self) -> Option<&'a str> {
        const KEYS: [&str; 9] = [
            "file_path",
            "path",
            "filePath",
            "absolute_path",
            "notebook_path",
            "target_file",
            "file",
            "filename",
            "relative_path",
        ];
        KEYS.iter()
            .find_map(|key| self.input.get(key))
            .and_then(Value::as_str)
            .filter(|path| !path.is_empty())
    }

    /// The first text in the input under one of these keys.
    pub fn input_text(&self, keys: &[&str]) -> Option<&'a str> {
        keys.iter().find_map(|key| self.input.get(key)).and_then(Value::as_str)
    }
}

/// The user's message in a tool result: given when refusing a call, or as the answer to a question.
///
/// `is_asked`: whether the call asked the user something ([`is_question`]).
pub(crate) fn user_reply(is_asked: bool, outcome: &ToolOutcome) -> Option<(&'static str, &str)> {
    let text = first_text(outcome)?;
    let reply = if is_refusal(outcome) {
        let foreign = || text.split_once(REFUSED_WITH).map(|(_, reason)| reason);
        ("refusing a call", text.strip_prefix(REFUSED_BECAUSE).or_else(foreign)?)
    } else if is_asked && outcome.status == OutcomeStatus::Completed {
        ("answering a question", text)
    } else {
        return None;
    };
    (!reply.1.trim().is_empty()).then_some(reply)
}

/// Whether a tool asks the user something.
pub(crate) fn is_question(tool: &str) -> bool {
    QUESTION_TOOLS.contains(&tool)
}

fn is_refusal(outcome: &ToolOutcome) -> bool {
    outcome.status == OutcomeStatus::Denied
        || first_text(outcome).is_some_and(|text| text.starts_with(REFUSED))
}

fn first_text(outcome: &ToolOutcome) -> Option<&str> {
    outcome.content.iter().find_map(OutcomeContent::as_text)
}
