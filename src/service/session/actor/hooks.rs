//! Hooks for prompts and tool calls: the events for them and the handling of their results.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::Session;
use epitome_hooks::event::HookEvent;
use epitome_hooks::hook_context::{EventData, HookCall, HookCallResult, PromptAttachment};
use epitome_hooks::output::Resolution;
use epitome_hooks::words;
use epitome_thread::visible::fenced;
use epitome_thread::{
    CallId, Change, Content, Decider, HookRun, HookRunResult, Message, Origin, OutcomeContent, OutcomeStatus,
    RAW_FILES, RecordedDecision, ToolCall, ToolDisplay, ToolOutcome, Withheld,
};
use epitome_turn::EffectResult;

impl Session {
    // ── Prompts ────────────────────────────────────────────────────────────────────────────────

    /// Adds the context from session-start hooks: to the system prompt if the frame is not fixed yet, otherwise as
    /// messages.
    pub(super) fn start_resolved(&mut self, mut resolution: Resolution) {
        self.hooks.set_started();
        if let Some(exports) = resolution.exports.take() {
            self.core.workspace = Arc::new(self.core.workspace.exporting(exports));
        }
        let mut commits = self.record(HookEvent::SessionStart, &mut resolution);
        for (by, text) in resolution.context {
            match self.core.thread.frame() {
                None => self.hooks.add_context(text),
                Some(_) => commits.push(self.core.context(by, text)),
            }
        }
        self.answer_turn(EffectResult::Started(commits));
    }

    /// The event for a prompt that is about to enter the view; `None` in a child, whose prompt is not from a user.
    pub(super) fn prompt_event(&self, prompt: &Change) -> Option<EventData> {
        let Change::Said { message, .. } = prompt else { return None };
        let what = EventData::UserMessageSend { message: message.text(), attachments: attachments(message) };
        (self.core.lineage.depth == 0).then_some(what)
    }

    pub(super) fn prompt_resolved(&mut self, prompt: Change, mut resolution: Resolution) {
        let changed = resolution.message.take().filter(|text| {
            let is_blank = text.trim().is_empty();
            if is_blank {
                refuse_last(
                    &mut resolution.trail,
                    "changed message",
                    "a prompt can't be empty; it stays as it is",
                );
            }
            !is_blank
        });
        let mut commits = self.record(HookEvent::UserMessageSend, &mut resolution);
        let Change::Said { mut message, origin } = prompt else { return };
        if let Some((hook, reason)) = resolution.block.or(resolution.halt) {
            let note = self.core.fresh_message();
            if let Origin::Recipe { typed, .. } = origin {
                // Show the prompt as typed, not the recipe's complete text.
                message.set_text(typed);
            }
            // It also takes a queued prompt from the queue.
            commits.push(Change::Withheld { message, note, why: Withheld::Blocked { hook, reason } });
            return self.answer_turn(EffectResult::Greeted { commits, enters: false });
        }
        if let Some(text) = changed {
            message.set_text(text);
        }
        commits.push(Change::Said { message, origin });
        // Hooks may continue it as often as the one before.
        self.hooks.forget_continuations();
        let context: Vec<Change> =
            resolution.context.into_iter().map(|(by, text)| self.core.context(by, text)).collect();
        commits.extend(context);
        self.answer_turn(EffectResult::Greeted { commits, enters: true });
    }

    // ── Tool calls ─────────────────────────────────────────────────────────────────────────────

    /// The event for a call that the model requested, before the user is asked for permission; `None` if the call can't
    /// run.
    pub(super) fn call_event(&self, id: &CallId) -> Option<EventData> {
        let call = self.core.thread.call(id)?;
        let input = call.input.as_object()?;
        let runs =
            self.core.services.toolbox.get(&call.name).is_some() && !input.contains_key("invalid_json");
        runs.then(|| EventData::BeforeToolCall(self.hook_call(call, input.clone())))
    }

    pub(super) fn tool_seen(&mut self, id: CallId, mut resolution: Resolution) {
        let decided = resolution.decision.take();
        // `block` is also set for a denied call, and for a call at which a hook ends the turn.
        let denied = resolution.block.take();
        let changed = resolution.input.take().and_then(|(input, by)| self.changed_call(&id, input, by));
        let mut commits = self.record(HookEvent::BeforeToolCall, &mut resolution);
        self.hooks.request_halt(resolution.halt);
        self.tools.call(&id).notes = resolution.context;
        if let Some((hook, reason)) = denied {
            self.commit_all(commits);
            let by = Decider::Hook { hook: hook.clone() };
            self.note_decided(&id, Some(RecordedDecision { allowed: false, by }));
            let text = match reason.trim() {
                "" => format!("The hook {hook} stopped this call."),
                reason => reason.to_owned(),
            };
            let outcome = ToolOutcome::text(id, OutcomeStatus::Denied, text);
            return self.answer_turn(EffectResult::Ran(Box::new(outcome)));
        }
        self.tools.call(&id).by_hook = decided;
        commits.extend(changed);
        self.answer_turn(EffectResult::ToolSeen(id, commits));
    }

    /// The change that gives a call another input. The chain has verified that the tool accepts it.
    fn changed_call(&self, id: &CallId, input: Map<String, Value>, by: String) -> Option<Change> {
        let call = self.core.thread.call(id)?;
        let tool = self.core.services.toolbox.get(&call.name)?;
        let input = match tool.forwarded_call(&call.input) {
            Some((name, _)) => tool.wrap_forwarded(&name, Value::Object(input)),
            None => Value::Object(input),
        };
        if input == call.input {
            return None;
        }
        let card = tool.display(&input, &self.core.workspace);
        Some(Change::CallChanged { call: id.clone(), input, card, by })
    }

    /// The event for the outcome of a call, before the model, the clients and the log get it.
    pub(super) fn outcome_event(&mut self, outcome: &ToolOutcome) -> Option<EventData> {
        let id = &outcome.call;
        let started = self.tools.call(id).started;
        let took = started.map_or(Duration::ZERO, |at| at.elapsed());
        let call = self.core.thread.call(id)?;
        let (input, _) = self.core.thread.input_of(id).unwrap_or((&call.input, &call.card));
        let input = input.as_object().cloned().unwrap_or_default();
        Some(EventData::AfterToolCall {
            call: self.hook_call(call, input),
            result: result_of(call, outcome, took),
        })
    }

    /// Whether a hook will see the tool's output, which is then not shown before.
    pub(super) fn is_seen_before_shown(&mut self, call: &ToolCall) -> bool {
        if !self.may_run(HookEvent::AfterToolCall) {
            return false;
        }
        let input = call.input.as_object().cloned().unwrap_or_default();
        let outcome = ToolOutcome::text(call.id.clone(), OutcomeStatus::Completed, String::new());
        let result = result_of(call, &outcome, Duration::ZERO);
        let hook_context =
            self.hook_context(EventData::AfterToolCall { call: self.hook_call(call, input), result });
        let scripts = self.hooks.scripts(&hook_context, true);
        let declared =
            self.work.as_ref().is_some_and(|work| work.run.handlers.contains_key(&HookEvent::AfterToolCall));
        declared || !scripts.is_empty()
    }

    pub(super) fn outcome_seen(&mut self, mut outcome: ToolOutcome, mut resolution: Resolution) {
        let commits = self.record(HookEvent::AfterToolCall, &mut resolution);
        self.commit_all(commits);
        self.hooks.request_halt(resolution.halt);
        // A hook that removes secrets only saw the shown part, so the complete output must not be readable.
        outcome.whole = None;
        if let Some(result) = resolution.result {
            apply_result(&mut outcome, result);
        }
        self.outcome_settled(outcome);
    }

    /// Completes an outcome that hooks can no longer change. Appends what hooks noted before the call ran.
    pub(super) fn outcome_settled(&mut self, mut outcome: ToolOutcome) {
        let id = outcome.call.clone();
        let notes = std::mem::take(&mut self.tools.call(&id).notes);
        for (by, text) in notes {
            outcome.content.push(OutcomeContent::Text { text: words::note(&by, &text) });
        }
        self.answer_turn(EffectResult::Tool(id, Box::new(outcome)));
    }

    /// A call as reported to hooks. A call that forwards to another tool is reported as a call of that tool.
    pub(super) fn hook_call(&self, call: &ToolCall, input: Map<String, Value>) -> HookCall {
        let input = Value::Object(input);
        let other = self.core.services.toolbox.get(&call.name).and_then(|tool| tool.forwarded_call(&input));
        let (tool, input) = other.unwrap_or_else(|| (call.name.clone(), input));
        let input = input.as_object().cloned().unwrap_or_default();
        HookCall { id: call.id.0.clone(), tool, input, kind: call.card.kind }
    }

    /// Commits changes that need no particular order within the turn.
    pub(super) fn commit_all(&mut self, changes: Vec<Change>) {
        for change in changes {
            if let Err(error) = self.core.commit(change) {
                return self.abandon(&error);
            }
        }
    }
}

/// Records a refusal in the trail of the last hook that asked for this.
fn refuse_last(trail: &mut [HookRun], asked: &str, why: &str) {
    if let Some(run) = trail.iter_mut().rev().find(|run| run.asked.contains(asked)) {
        run.verdict = HookRunResult::Refused;
        run.remarks.push(why.to_owned());
    }
}

/// No tool denies its own call, so a denied one was stopped by a hook.
fn result_of(call: &ToolCall, outcome: &ToolOutcome, took: Duration) -> HookCallResult {
    let text = outcome.model_text();
    let success = outcome.status == OutcomeStatus::Completed;
    let blocked = outcome.status == OutcomeStatus::Denied;
    HookCallResult {
        success,
        error: (!success).then(|| text.clone()),
        metadata_type: Some(if blocked { "blocked".to_owned() } else { call.name.clone() }),
        metadata: outcome.raw.clone(),
        text,
        milliseconds: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
        blocked,
    }
}

/// Applies a hook's result to an outcome. The user sees the same text as the model, because the tool's own display may
/// contain something that a hook removed. Where hooks only added something, that display stays.
fn apply_result(outcome: &mut ToolOutcome, result: HookCallResult) {
    let is_success = outcome.status == OutcomeStatus::Completed;
    let is_same = result.success == is_success && result.metadata == outcome.raw;
    let text = outcome.model_text();
    if let Some(added) = result.text.strip_prefix(text.as_str()).filter(|_| is_same && !text.is_empty()) {
        return append(outcome, added);
    }
    outcome.content.retain(|content| match content {
        OutcomeContent::Text { .. } => false,
        OutcomeContent::Image { .. } | OutcomeContent::Document { .. } => true,
    });
    outcome.content.insert(0, OutcomeContent::Text { text: result.text });
    outcome.shown.clear();
    let files =
        outcome.raw.as_ref().and_then(|raw| raw.get(RAW_FILES)).filter(|files| are_states(files)).cloned();
    outcome.raw = result.metadata;
    // Hooks change what is said about files, not which of them the model has read.
    if let Some(files) = files.filter(|_| outcome.raw.as_ref().is_none_or(Value::is_object)) {
        outcome.raw.get_or_insert_with(|| json!({}))[RAW_FILES] = files;
    }
    outcome.status = match (result.success, outcome.status) {
        (true, _) => OutcomeStatus::Completed,
        (false, OutcomeStatus::Completed) => OutcomeStatus::Failed,
        (false, status) => status,
    };
}

/// Whether these are only the states of files, and not something of a foreign tool that has the same name.
fn are_states(files: &Value) -> bool {
    let is_state = |file: &Value| {
        file.as_object().is_some_and(|file| file.keys().all(|key| matches!(key.as_str(), "path" | "state")))
    };
    files.as_array().is_some_and(|files| files.iter().all(is_state))
}

/// Appends to the text of an outcome, and to what the user sees.
fn append(outcome: &mut ToolOutcome, added: &str) {
    if !outcome.shown.is_empty() && !added.trim().is_empty() {
        outcome.shown.push(ToolDisplay::Text { text: fenced("", added.trim()) });
    }
    let last = outcome.content.iter_mut().rev().find_map(|content| match content {
        OutcomeContent::Text { text } => Some(text),
        OutcomeContent::Image { .. } | OutcomeContent::Document { .. } => None,
    });
    if let Some(text) = last {
        text.push_str(added);
    }
}

fn attachments(message: &Message) -> Vec<PromptAttachment> {
    let of = |kind, uri: Option<&String>, mime_type: Option<&String>| {
        Some(PromptAttachment { kind, uri: uri.cloned(), mime_type: mime_type.cloned() })
    };
    let attached = message.content.iter().filter_map(|content| match content {
        Content::Image { mime_type, uri, .. } => of("image", uri.as_ref(), Some(mime_type)),
        Content::Document { mime_type, .. } => of("document", None, Some(mime_type)),
        Content::Resource { uri, .. } => of("resource", Some(uri), None),
        Content::ResourceLink { uri, .. } => of("resource_link", Some(uri), None),
        Content::Text { .. } | Content::Thinking { .. } | Content::Call(_) | Content::Search(_) => None,
    });
    attached.collect()
}
