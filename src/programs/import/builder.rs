//! Builds a log from another program's recording that satisfies the invariants of logs: every call has one outcome
//! after its reply, every turn has an end, and all ids are Epitome's.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{BrokenLines, ImportContext, TOKENS_MAX, part, text, text_part, thinking_part};
use epitome_thread::problem::Problem;
use epitome_thread::visible::shortened;
use epitome_thread::{
    CallDisplay, CallId, Change, CompactionStats, Content, Entry, FORMAT_VERSION, Location, Message,
    MessageId, ModelName, Origin, OutcomeContent, OutcomeStatus, PartId, ReplyCut, Seq, SessionId,
    StopReason, ToolCall, ToolKind, ToolOutcome, Trigger, Usage, ViewEdit,
};
use epitome_tokens::estimate;
use epitome_transfer::{ImportDraft, ImportFile, ImportSource};

/// Maximum number of characters in a title made from the first prompt.
const TITLE_CHARS_MAX: usize = 60;

/// Maximum number of kinds listed in a note, and characters of each.
const KINDS_SHOWN_MAX: usize = 12;
const KIND_CHARS_MAX: usize = 40;

/// Maximum number of characters in a call id that every provider accepts.
const CALL_ID_CHARS_MAX: usize = 64;

/// The latest time that can be displayed: the end of the year 9999, in milliseconds since the Unix epoch.
const LATEST: u64 = 253_402_207_200_000;

/// The author of texts that are pinned.
const OURS: &str = "epitome";

/// Precedes the text of a summary.
pub(super) const SUMMARY: &str = "A summary of what was said and done so far:\n\n";

/// A placeholder until the session gets its id.
const PLACEHOLDER: &str = "s_00000000000000000000";

/// Adds an entry that must not be placed between a call and its outcome.
type PendingEntry = Box<dyn FnOnce(&mut Builder)>;

/// A log under construction.
#[derive(Default)]
pub struct Builder {
    entries: Vec<Entry>,
    at: u64,
    next_message: u64,
    titled: bool,
    in_turn: bool,
    spent: Usage,
    /// The ids of calls in this log, by their original ids.
    calls: HashMap<String, CallId>,
    names: HashSet<CallId>,
    /// Calls without an outcome.
    open: Vec<CallId>,
    /// Adds messages and compactions after the outcomes of the open calls.
    pending: Vec<PendingEntry>,
    /// The parts of a reply that may be incomplete, and the model that writes it. Whatever follows in the log completes it.
    parts: Vec<Content>,
    model: String,
    /// The first entry of each message or line, by its id in the other agent's file.
    marks: HashMap<String, Seq>,
    notes: Vec<(String, usize)>,
    /// What was left out of an open set of kinds: how many of each.
    kinds: BTreeMap<&'static str, BTreeMap<String, usize>>,
    /// Complete sentences for the user.
    remarks: Vec<String>,
    foreign_id: Option<String>,
}

impl Builder {
    /// Begins a log. `cwd` and `at` are the directory and time of its start, if recorded.
    pub fn new(cwd: Option<&str>, at: Option<u64>, context: &ImportContext) -> Builder {
        let mut builder = Builder { at: at.unwrap_or(context.now).min(LATEST), ..Builder::default() };
        let session = SessionId(PLACEHOLDER.to_owned());
        let cwd = cwd.map_or(context.cwd, Path::new).to_path_buf();
        builder.push(Change::Opened { format: FORMAT_VERSION, session, cwd });
        builder
    }

    /// Begins a log whose messages do not have the ids of those in another one.
    pub fn beside(entries: &[Entry]) -> Builder {
        let ids = entries.iter().filter_map(|entry| Some(entry.change.shown_message()?.id.0 + 1));
        Builder { next_message: ids.max().unwrap_or_default(), ..Builder::default() }
    }

    /// Goes on with a log.
    pub fn over(entries: Vec<Entry>) -> Builder {
        let at = entries.last().map_or(0, |entry| entry.at);
        let empty = Builder::beside(&entries);
        Builder { at, entries, ..empty }
    }

    /// Adds an entry of another log.
    pub fn copy(&mut self, at: u64, change: Change) {
        self.at = at;
        self.titled |= matches!(change, Change::Titled { .. });
        self.push(change);
    }

    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub fn into_entries(self) -> Vec<Entry> {
        self.entries
    }

    /// Sets the time of the following entries, if it is recorded. A time before that of the newest entry is ignored.
    pub fn at(&mut self, at: Option<u64>) {
        self.at = self.at.max(at.unwrap_or_default().min(LATEST));
    }

    /// Notes that the next entry is the first one of this message or line, for compactions that keep it.
    pub fn mark(&mut self, id: impl ToString) {
        self.marks.insert(id.to_string(), self.next_seq());
    }

    /// The first entry of a message or line.
    pub fn marked(&self, id: impl ToString) -> Option<Seq> {
        self.marks.get(&id.to_string()).copied()
    }

    /// The number of the next entry.
    pub fn next_seq(&self) -> Seq {
        Seq(self.entries.len() as u64)
    }

    /// Whether the log contains nothing but its opening entry and titles.
    pub fn is_empty(&self) -> bool {
        self.entries.iter().skip(1).all(|entry| matches!(entry.change, Change::Titled { .. }))
    }

    /// Counts something that can't be represented in a log. `what` is a plural.
    pub fn left_out(&mut self, what: &str) {
        self.left_out_times(1, what);
    }

    /// Counts something of a kind that may be unknown here. `what` is a plural.
    pub fn left_out_kind(&mut self, what: &'static str, kind: &str) {
        *self.kinds.entry(what).or_default().entry(kind.to_owned()).or_default() += 1;
    }

    pub fn left_out_times(&mut self, times: usize, what: &str) {
        match self.notes.iter_mut().find(|(known, _)| known == what) {
            Some((_, count)) => *count += times,
            None if times > 0 => self.notes.push((what.to_owned(), times)),
            None => {}
        }
    }

    /// Adds a note for the user about this import.
    pub fn remark(&mut self, sentence: impl Into<String>) {
        self.remarks.push(sentence.into());
    }

    /// Sets the session's id in the other agent, by which a second import is recognized.
    pub fn foreign_id(&mut self, id: &str) {
        self.foreign_id = Some(id.to_owned()).filter(|id| !id.is_empty());
    }

    /// Adds a prompt of the user, unless it is empty: ends an unfinished turn and starts a new one.
    pub fn prompt(&mut self, content: Vec<Content>) {
        if content.is_empty() {
            return;
        }
        self.turn_ended(StopReason::EndTurn);
        let message = self.message(content);
        if !self.titled {
            self.title(&first_line(&message.text()));
        }
        self.in_turn = true;
        self.push(Change::Said { message, origin: Origin::Person });
    }

    /// Adds a message for the model that the user did not type, unless it is empty.
    pub fn context(&mut self, content: Vec<Content>, by: &str) {
        if content.is_empty() {
            return;
        }
        self.replied(None, None);
        self.close_calls();
        let message = self.message(content);
        self.push(Change::Said { message, origin: Origin::Context { by: by.to_owned() } });
    }

    /// Adds a text.
    pub fn say(&mut self, words: String, origin: Origin) -> Seq {
        let message = self.message(vec![text(words)]);
        self.push(Change::Said { message, origin });
        Seq(self.next_seq().0 - 1)
    }

    /// Adds a text of which every message has all words, unless one has been added that is the same.
    pub fn pin(&mut self, words: String) {
        let by = Origin::Context { by: OURS.to_owned() };
        let is_same = |entry: &Entry| match &entry.change {
            Change::Said { message, origin } => *origin == by && message.text() == words,
            _ => false,
        };
        if !self.entries.iter().any(is_same) {
            let entry = self.say(words, by);
            let edits = vec![ViewEdit::Pin { at: PartId { entry, part: None } }];
            self.push(Change::Edited { by: OURS.to_owned(), edits });
        }
    }

    /// Adds an entry when `settle` is called: it must not be between a call and its outcome.
    pub fn later(&mut self, add: impl FnOnce(&mut Builder) + 'static) {
        self.pending.push(Box::new(add));
    }

    /// Adds the entries that wait for the outcomes of calls.
    pub fn settle(&mut self) {
        self.replied(None, None);
        for add in std::mem::take(&mut self.pending) {
            add(self);
        }
    }

    /// Adds the entries that wait, unless a call has no outcome yet.
    pub fn settle_when_idle(&mut self) {
        self.replied(None, None);
        if self.open.is_empty() {
            self.settle();
        }
    }

    pub fn title(&mut self, title: &str) {
        if !title.trim().is_empty() {
            self.titled = true;
            self.push(Change::Titled { title: title.trim().to_owned() });
        }
    }

    /// Adds a call to the reply. Each call gets a new id, even if its original id is repeated.
    pub fn call(&mut self, id: &Value, name: &Value, input: &Value) {
        let original = id.as_str().unwrap_or_default();
        let id = self.fresh_call(original);
        self.calls.insert(original.to_owned(), id.clone());
        let name = name.as_str().unwrap_or("tool").to_owned();
        let input = if input.is_object() { input.clone() } else { json!({ "input": input }) };
        let card =
            CallDisplay { title: title_of(&name, &input), kind: kind_of(&name), locations: paths_in(&input) };
        self.parts.push(Content::Call(ToolCall { id, name, input, card }));
    }

    /// How the newest part of the reply is shown, if it is a call.
    pub fn card(&mut self) -> Option<&mut CallDisplay> {
        match self.parts.last_mut() {
            Some(Content::Call(call)) => Some(&mut call.card),
            _ => None,
        }
    }

    /// Sets the model of the following replies.
    pub fn model(&mut self, model: String) {
        self.model = model;
    }

    /// Adds parts to the reply.
    pub fn add(&mut self, parts: impl IntoIterator<Item = Content>) {
        self.parts.extend(parts);
    }

    /// Adds a piece to the last part of the reply, or as a new part.
    pub fn add_piece(&mut self, piece: Content) {
        append(&mut self.parts, piece);
    }

    /// Adds the parts of a reply, in the form of any provider or agent.
    pub fn add_parts<'a>(&mut self, parts: impl IntoIterator<Item = &'a Value>) {
        for value in parts {
            let called = &value["functionCall"];
            match value["type"].as_str() {
                Some("thinking") => self.add(thinking_part(&value["thinking"])),
                Some("reasoning") => self.add(thinking_part(&value["text"])),
                Some("tool_use") => self.call(&value["id"], &value["name"], &value["input"]),
                Some("toolCall") => self.call(&value["id"], &value["name"], &value["arguments"]),
                Some("redacted_thinking") => {}
                _ if called.is_object() => self.call(&called["id"], &called["name"], &called["args"]),
                _ if value["thought"] == true => self.add(thinking_part(&value["text"])),
                _ if value["text"].is_string() => self.add(text_part(&value["text"])),
                kind => match part(value) {
                    Some(content) => self.parts.push(content),
                    None => self.left_out_kind("parts of replies", kind.unwrap_or("without a kind")),
                },
            }
        }
    }

    /// Whether a reply has parts already.
    pub fn is_replying(&self) -> bool {
        !self.parts.is_empty()
    }

    /// The parts of the reply so far, which are taken back.
    pub fn take_reply(&mut self) -> Vec<Content> {
        std::mem::take(&mut self.parts)
    }

    /// Completes the reply, unless it is empty.
    pub fn replied(&mut self, usage: Option<Usage>, cut: Option<ReplyCut>) {
        if let Some(usage) = &usage {
            self.spent.add(usage);
        }
        let content = self.take_reply();
        if content.is_empty() {
            return;
        }
        self.close_calls();
        self.in_turn = true;
        let message = self.message(content);
        self.open.extend(message.calls().map(|call| call.id.clone()));
        self.push(Change::Replied { message, model: ModelName(self.model.clone()), usage, cut });
    }

    /// Ends the turn with a reply that ended so, unless it may go on with the results of the reply's calls.
    pub fn reply_ended(&mut self, end: Option<StopReason>, has_calls: bool) {
        match end {
            Some(StopReason::EndTurn | StopReason::MaxTokens) if has_calls => {}
            Some(end) => self.turn_ended(end),
            None => {}
        }
    }

    /// Adds the outcome of a call, and the exit code if it was a command. Ignores outcomes of unknown calls, and
    /// repeated ones, and returns whether it was added.
    pub fn outcome(
        &mut self,
        id: Option<&str>,
        status: OutcomeStatus,
        content: Vec<Content>,
        exit_code: Option<i64>,
    ) -> bool {
        self.replied(None, None);
        let call = self.calls.get(id.unwrap_or_default()).filter(|call| self.open.contains(call)).cloned();
        let Some(call) = call else {
            self.left_out("results of calls that are not in it");
            return false;
        };
        self.open.retain(|open| *open != call);
        let mut outcome = ToolOutcome::text(call, status, "");
        let content: Vec<OutcomeContent> = content.into_iter().filter_map(OutcomeContent::of).collect();
        if !content.is_empty() {
            outcome.content = content;
        }
        outcome.raw = exit_code.map(|code| json!({ "exitCode": code }));
        self.push(Change::ToolFinished { outcome });
        true
    }

    /// Sets the complete text of the newest entry, an outcome that the model read only in part.
    pub fn set_full_text(&mut self, text: String) {
        if let Some(Entry { change: Change::ToolFinished { outcome }, .. }) = self.entries.last_mut() {
            outcome.whole = Some(text);
        }
    }

    /// Adds the usage of a reply that was recorded separately.
    pub fn spent(&mut self, usage: &Usage) {
        self.spent.add(usage);
    }

    /// Adds a compaction by the other agent with a model's summary. See [`Builder::compacted`].
    pub fn summarized(&mut self, kept: Option<Seq>, summary: &str, trigger: Trigger, tokens_before: u64) {
        self.compacted(kept, format!("{SUMMARY}{summary}"), trigger, tokens_before);
    }

    /// Adds a compaction by the other agent. `summary` replaces everything before the entry `kept`, or everything so
    /// far if `kept` is `None`.
    pub fn compacted(&mut self, kept: Option<Seq>, summary: String, trigger: Trigger, tokens_before: u64) {
        self.replied(None, None);
        self.close_calls();
        let before = |seq: Seq| Seq(seq.0.saturating_sub(1));
        let through = kept.map_or(before(self.next_seq()), |kept| self.whole_rounds(before(kept)));
        let tokens_after = estimate(&summary);
        let summary = self.message(vec![text(summary)]);
        self.push(Change::Compacted {
            through,
            summary,
            trigger,
            focus: None,
            tokens_before: tokens_before.min(TOKENS_MAX),
            tokens_after,
            window: None,
            model: None,
            usage: None,
            masks: Vec::new(),
            account: CompactionStats::default(),
        });
    }

    /// Moves `through` before the reply whose calls have results after it, if any: a call and its results must not be
    /// separated.
    fn whole_rounds(&self, through: Seq) -> Seq {
        let behind = self.entries.iter().skip(through.0 as usize + 1);
        let first = behind
            .take_while(|entry| !matches!(entry.change, Change::Replied { .. } | Change::Compacted { .. }));
        let results: HashSet<&CallId> = first
            .filter_map(|entry| match &entry.change {
                Change::ToolFinished { outcome } => Some(&outcome.call),
                _ => None,
            })
            .collect();
        let made = self.entries.iter().take(through.0 as usize + 1).rfind(|entry| match &entry.change {
            Change::Replied { message, .. } => message.calls().any(|call| results.contains(&call.id)),
            _ => false,
        });
        made.map_or(through, |reply| Seq(reply.seq.0.saturating_sub(1)))
    }

    /// The first message from the entry `from` on: outcomes of open calls and the end of a turn may be before it. `from`
    /// if there is none.
    pub fn message_since(&self, from: Seq) -> Seq {
        let mut added = self.entries.iter().skip(from.0 as usize);
        added.find(|entry| entry.change.shown_message().is_some()).map_or(from, |entry| entry.seq)
    }

    pub fn push(&mut self, change: Change) {
        self.entries.push(Entry { seq: self.next_seq(), at: self.at, change });
    }

    /// Creates a message with the next id.
    fn message(&mut self, content: Vec<Content>) -> Message {
        let id = MessageId(self.next_message);
        self.next_message += 1;
        Message { id, content, author: None }
    }

    /// Ends the current turn, if any.
    pub fn turn_ended(&mut self, reason: StopReason) {
        self.replied(None, None);
        self.close_calls();
        if std::mem::take(&mut self.in_turn) {
            let usage = std::mem::take(&mut self.spent);
            self.push(Change::TurnEnded { reason, usage, quiet_hooks: 0, failure: None });
        }
    }

    /// Completes the log. `broken` are the lines that could not be read. A log without messages is an error.
    pub(super) fn finish(
        mut self,
        source: ImportSource,
        file: ImportFile,
        broken: Option<BrokenLines>,
    ) -> Result<ImportDraft, Problem> {
        self.replied(None, None);
        if self.is_empty() {
            return Err(match broken {
                Some((first, _)) => first,
                None => file.problem(1, "this session has no messages"),
            });
        }
        self.turn_ended(StopReason::EndTurn);
        let broken = broken.map(|(_, words)| words);
        let left_out = self.notes.iter().map(|(what, count)| format!("left out: {what} ({count})"));
        let of_kinds =
            self.kinds.iter().map(|(what, kinds)| format!("left out: {what} ({})", counted(kinds)));
        let notes = broken.into_iter().chain(self.remarks).chain(left_out).chain(of_kinds).collect();
        Ok(ImportDraft { source, session: None, foreign_id: self.foreign_id, notes, entries: self.entries })
    }

    /// Adds an outcome to each call without one, because providers require it.
    fn close_calls(&mut self) {
        for call in std::mem::take(&mut self.open) {
            let outcome = ToolOutcome::text(call, OutcomeStatus::Interrupted, "No result was recorded.");
            self.push(Change::ToolFinished { outcome });
        }
    }

    fn fresh_call(&mut self, foreign: &str) -> CallId {
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        let kept: String = foreign.chars().filter(|c| fits(*c)).take(CALL_ID_CHARS_MAX).collect();
        let mut id = CallId(kept);
        let mut number = self.names.len();
        while id.0.is_empty() || self.names.contains(&id) {
            number += 1;
            id = CallId(format!("call_{number}"));
        }
        self.names.insert(id.clone());
        id
    }
}

/// Appends a piece to the last part, or as a new part.
pub(super) fn append(parts: &mut Vec<Content>, piece: Content) {
    match (parts.last_mut(), piece) {
        (Some(Content::Text { text }), Content::Text { text: more }) => text.push_str(&more),
        (Some(Content::Thinking { text, .. }), Content::Thinking { text: more, .. }) => text.push_str(&more),
        (_, piece) => parts.push(piece),
    }
}

/// Lists kinds with their counts, the most frequent first.
fn counted(kinds: &BTreeMap<String, usize>) -> String {
    let mut sorted: Vec<(&String, &usize)> = kinds.iter().collect();
    sorted.sort_by_key(|(_, count)| Reverse(**count));
    let shown = sorted.iter().take(KINDS_SHOWN_MAX);
    let mut shown: Vec<String> =
        shown.map(|(kind, count)| format!("{count} {}", shortened(kind, KIND_CHARS_MAX))).collect();
    let others: usize = sorted.iter().skip(KINDS_SHOWN_MAX).map(|(_, count)| **count).sum();
    shown.extend((others > 0).then(|| format!("{others} others")));
    shown.join(", ")
}

/// The title made from the first prompt.
pub(super) fn first_line(text: &str) -> String {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    shortened(line, TITLE_CHARS_MAX)
}

/// Returns the kind of a tool by its name in common agents.
fn kind_of(name: &str) -> ToolKind {
    // Some agents write the same names in other ways: `read_file` and `ReadFile`.
    match name.to_ascii_lowercase().replace('_', "").as_str() {
        "read" | "fileread" | "ls" | "view" | "viewimage" | "readfile" | "readfiles" | "readmanyfiles"
        | "readmediafile" | "listdirectory" | "listfiles" => ToolKind::Read,
        "edit" | "multiedit" | "notebookedit" | "write" | "fileedit" | "filewrite" | "applypatch"
        | "applydiff" | "create" | "editor" | "replace" | "replaceinfile" | "strreplace"
        | "strreplacefile" | "writefile" | "writetofile" => ToolKind::Edit,
        "grep" | "find" | "glob" | "greptool" | "globtool" | "searchfilecontent" | "searchfiles" => {
            ToolKind::Search
        }
        "bash" | "shell" | "localshell" | "execcommand" | "executecommand" | "runcommands"
        | "runshellcommand" => ToolKind::Execute,
        "webfetch" | "websearch" | "googlewebsearch" | "fetchurl" | "searchweb" => ToolKind::Fetch,
        _ => ToolKind::Other,
    }
}

/// Returns the files named in a call's input.
fn paths_in(input: &Value) -> Vec<Location> {
    let path = ["path", "file_path"].iter().find_map(|key| input.get(*key)?.as_str()).map(PathBuf::from);
    path.filter(|path| path.is_absolute()).map(|path| Location { path, line: None }).into_iter().collect()
}

fn title_of(name: &str, input: &Value) -> String {
    let what =
        ["command", "cmd", "path", "file_path", "pattern"].iter().find_map(|key| input.get(*key)?.as_str());
    let what = what.and_then(|what| what.lines().next());
    what.unwrap_or(name).to_owned()
}
