//! A single pass over the newest part of the log that collects tool calls with their results, and the agent's messages.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::script;
pub(super) use super::status::CallStatus;
use super::status::{continues, has_exit_code, notified, output, plain, running_as, status_of};
use crate::calls::{RECALL, text_of};
use crate::input::SummaryReader;
use epitome_shell::ShellStatement;
use epitome_thread::{
    CallDisplay, CallId, Change, Content, Message, OutcomeContent, PlanStep, Seq, Thread, ToolCall,
    ToolDisplay, ToolOutcome,
};

/// The newest entries of the log that the tables are about, and the bytes of their texts. Without a limit, the cost of a
/// compaction would grow with the conversation, although there is only room for the newest of what the tables find.
pub(super) const ENTRIES_MAX: usize = 20_000;
const ENTRIES_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Bytes kept of the results of one command that is read several times while it runs; then of the newest alone.
const RESULTS_BYTES_MAX: usize = 64 * 1024;

/// Bytes of the newest command lines that are parsed. This takes about 0.2 µs a byte.
const PARSED_BYTES_MAX: usize = 512 * 1024;

/// The calls and replies of a conversation, oldest first, without those removed by a rewind or a hook.
pub(super) struct ConversationHistory<'a> {
    pub cwd: &'a Path,
    pub calls: Vec<CallRecord<'a>>,
    /// Replies outside of the kept view that contain text.
    pub replies: Vec<(Seq, &'a Message)>,
    /// The plan of Epitome's plan tool.
    pub plan: &'a [PlanStep],
    pub reader: &'a SummaryReader,
}

/// A tool call and its result. A script that calls several tools is a record for each.
#[derive(Clone)]
pub(super) struct CallRecord<'a> {
    /// The entry of the newest result, or of the call if there is no result.
    pub entry: Seq,
    pub name: Cow<'a, str>,
    pub input: Cow<'a, Value>,
    pub card: &'a CallDisplay,
    /// The part of the result that the user sees.
    pub shown: &'a [ToolDisplay],
    /// Whether it is outside of the view after the compaction.
    pub has_left: bool,
    text: Cow<'a, str>,
    pub status: CallStatus,
    /// The number of calls in the same script; 0 if it is not in one.
    siblings: usize,
    statements: OnceCell<Option<Vec<ShellStatement>>>,
}

impl<'a> ConversationHistory<'a> {
    pub fn collect(
        thread: &'a Thread,
        kept: &HashSet<Seq>,
        reader: &'a SummaryReader,
    ) -> ConversationHistory<'a> {
        let rewritten = thread.rewritten();
        let mut history = ConversationHistory {
            cwd: thread.cwd(),
            calls: Vec::new(),
            replies: Vec::new(),
            plan: thread.plan(),
            reader,
        };
        let mut open: HashMap<&CallId, Range<usize>> = HashMap::new();
        // The records of commands that still run, by the names that their agents gave them.
        let mut running: HashMap<String, Vec<usize>> = HashMap::new();
        let mut left = ENTRIES_BYTES_MAX;
        let newest = thread.active_entries().rev().take(ENTRIES_MAX).take_while(|entry| {
            left = left.saturating_sub(bytes_of(&entry.change));
            left > 0
        });
        for entry in newest.collect::<Vec<_>>().into_iter().rev() {
            let is_hidden = rewritten.contains(entry.seq);
            match &entry.change {
                Change::Replied { message, .. } if !is_hidden => {
                    let has_left = !kept.contains(&entry.seq);
                    let is_shown =
                        |call: &&ToolCall| call.name != RECALL && !rewritten.contains_call(&call.id);
                    for call in message.calls().filter(is_shown) {
                        let first = history.calls.len();
                        history.calls.extend(CallRecord::of(call, entry.seq, has_left));
                        open.insert(&call.id, first..history.calls.len());
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
                    // A script stays the calls that it had.
                    if let Some([record]) = open.get(call).map(|at| &mut history.calls[at.clone()]) {
                        record.input = Cow::Borrowed(input);
                        record.card = card;
                    }
                }
                Change::ToolFinished { outcome } => {
                    if let Some(records) = open.remove(&outcome.call) {
                        history.finish(records, entry.seq, (!is_hidden).then_some(outcome), &mut running);
                    }
                }
                Change::Said { message, .. } if !is_hidden => {
                    let text = message.content.iter().find_map(Content::as_text).unwrap_or_default();
                    if let Some((name, status)) = notified(text) {
                        for at in running.remove(name).unwrap_or_default() {
                            (history.calls[at].entry, history.calls[at].status) = (entry.seq, status);
                        }
                    }
                }
                _ => {}
            }
        }
        history.limit_parsing();
        history
    }

    /// Leaves the oldest command lines unparsed.
    fn limit_parsing(&self) {
        let mut bytes = 0;
        for call in self.calls.iter().rev() {
            bytes += call.command().map_or(0, |line| line.len());
            if bytes > PARSED_BYTES_MAX {
                let _ = call.statements.set(None);
            }
        }
    }

    /// Adds a result to the records of its call, and to the command whose output the call read.
    fn finish(
        &mut self,
        records: Range<usize>,
        entry: Seq,
        outcome: Option<&'a ToolOutcome>,
        running: &mut HashMap<String, Vec<usize>>,
    ) {
        for call in &mut self.calls[records.clone()] {
            call.entry = entry;
        }
        let Some(outcome) = outcome else { return };
        let text = plain(text_of(outcome));
        let printed = match &text {
            Cow::Borrowed(text) => Cow::Borrowed(output(text)),
            Cow::Owned(text) => Cow::Owned(output(text).to_owned()),
        };
        let mut continued: Vec<usize> = Vec::new();
        for at in records.clone() {
            if let Some(name) = continues(&self.calls[at].input) {
                continued.extend(running.remove(&*name).unwrap_or_default());
            }
        }
        for at in continued.iter().copied() {
            let reader = &self.calls[records.start];
            let name = reader.name.to_ascii_lowercase();
            let is_interrupt = reader.input_text(&["chars"]).is_some_and(|chars| chars.contains('\x03'));
            let status = match is_interrupt || name.contains("kill") || name.contains("stop") {
                true => CallStatus::Unknown,
                false => self.calls[at].status_with(outcome, &text),
            };
            let call = &mut self.calls[at];
            (call.entry, call.status) = (entry, status);
            let is_room = call.text.len() + printed.len() <= RESULTS_BYTES_MAX;
            let all = || Cow::Owned(format!("{}\n{printed}", call.text).trim_start().to_owned());
            call.text = if is_room { all() } else { printed.clone() };
        }
        for call in &mut self.calls[records.clone()] {
            // The result of a call that reads the output of a command is that of the command.
            call.status = match continued.is_empty() {
                true => call.status_with(outcome, &text),
                false => CallStatus::Unknown,
            };
            call.text = printed.clone();
            call.shown = &outcome.shown;
        }
        if let Some(name) = running_as(outcome, &text) {
            running.insert(name.to_owned(), continued.into_iter().chain(records).collect());
        }
    }

    /// A place in the log, with these words before it; empty if the reader of the message has no log.
    pub fn place(&self, before: &str, entry: Seq) -> String {
        self.reader.place(entry).map_or(String::new(), |entry| format!("{before}{entry}"))
    }
}

/// The bytes of the texts in an entry that tables are made of.
fn bytes_of(change: &Change) -> usize {
    let results = change.outcome().into_iter().flat_map(|outcome| &outcome.content);
    let inputs = change.calls().filter_map(|call| call.input.as_object()).flat_map(Map::values);
    let texts = results.filter_map(OutcomeContent::as_text).chain(inputs.filter_map(Value::as_str));
    texts.map(str::len).sum()
}

impl<'a> CallRecord<'a> {
    /// The records of a call.
    fn of(call: &'a ToolCall, entry: Seq, has_left: bool) -> Vec<CallRecord<'a>> {
        let record = CallRecord {
            entry,
            name: Cow::Borrowed(&call.name),
            input: Cow::Borrowed(&call.input),
            card: &call.card,
            shown: &[],
            has_left,
            text: Cow::Borrowed(""),
            status: CallStatus::Unknown,
            siblings: 0,
            statements: OnceCell::new(),
        };
        let called = script::calls(&call.name, &call.input);
        if called.is_empty() {
            return vec![record];
        }
        let siblings = called.len();
        let of_script = |(name, argument): (String, Value)| {
            let input = if argument.is_object() { argument } else { json!({ "input": argument }) };
            CallRecord { name: Cow::Owned(name), input: Cow::Owned(input), siblings, ..record.clone() }
        };
        called.into_iter().map(of_script).collect()
    }

    /// The status with a result. That of a script says nothing about a command in it.
    fn status_with(&self, outcome: &ToolOutcome, text: &str) -> CallStatus {
        match status_of(outcome, text) {
            CallStatus::Succeeded
                if self.siblings > 0 && self.command().is_some() && !has_exit_code(outcome, text) =>
            {
                CallStatus::Unknown
            }
            CallStatus::Failed | CallStatus::Silent if self.siblings > 1 => CallStatus::Unknown,
            status => status,
        }
    }

    /// Whether its result is known, though not its status.
    pub fn has_result(&self) -> bool {
        self.status != CallStatus::Unknown || self.siblings > 0
    }

    /// The statements of the command line; `None` if it is none, or can't be parsed.
    pub fn statements(&self) -> Option<&[ShellStatement]> {
        let parse = || epitome_shell::statements(&self.command()?);
        self.statements.get_or_init(parse).as_deref()
    }

    /// Whether the call only updates the plan, which is shown separately.
    pub fn is_planning(&self) -> bool {
        let name = self.name.to_ascii_lowercase();
        ["todo", "plan", "taskcreate", "taskupdate", "tasklist"].iter().any(|tool| name.contains(tool))
    }

    /// The result as the model read it, without the lines above a command's output; of a command that was read several
    /// times, all that was read.
    pub fn text(&self) -> &str {
        &self.text
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
                    ["apply_patch", _] => return None,
                    words => words.join(" "),
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => return None,
        };
        (!line.trim().is_empty()).then_some(line)
    }

    /// The file named in the input.
    pub fn path(&self) -> Option<&str> {
        const KEYS: [&str; 10] = [
            "file_path",
            "path",
            "filePath",
            "absolute_path",
            "absolutePath",
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

    /// The patch in the input. Codex had a shell command for it once.
    pub fn patch(&self) -> Option<&str> {
        let in_command = || match self.input.get("command")?.as_array()?.as_slice() {
            [program, patch] if program == "apply_patch" => patch.as_str(),
            _ => None,
        };
        self.input_text(&["patch", "input", "patchText", "diff"]).or_else(in_command)
    }

    /// The directory in which a call runs its command, if the input names one.
    pub fn directory(&self) -> Option<&str> {
        self.input_text(&["workdir", "cwd", "dir_path"])
    }

    /// The first text in the input under one of these keys.
    pub fn input_text(&self, keys: &[&str]) -> Option<&str> {
        keys.iter().find_map(|key| self.input.get(key)).and_then(Value::as_str)
    }
}
