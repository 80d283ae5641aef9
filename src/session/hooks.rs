//! Hooks at prompts and tool calls: what is asked of them, and what their answers mean.

use std::time::{Duration, Instant};

use serde_json::{Map, Value};

use super::actor::Session;
use super::{Out, Severity};
use epitome_hooks::event::HookEvent;
use epitome_hooks::moment::{Attachment, Call, CallResult, What};
use epitome_hooks::output::Resolution;
pub(super) use epitome_hooks::settle::refuse;
use epitome_hooks::words;
use epitome_thread::{
    CallId, Change, Content, Decided, Decider, HookRun, Message, Origin, OutcomeContent, OutcomeStatus,
    ToolCall, ToolOutcome, Verdict, Withheld,
};
use epitome_turn::{Answer as Told, HookAsk};

impl Session {
    // ── Prompts ────────────────────────────────────────────────────────────────────────────────

    /// The session starts, before its first prompt or compaction.
    pub(super) fn session_starts(&mut self) {
        // Where a cancel overtakes them, the next turn starts the session again.
        if !self.run_hooks(What::SessionStart { source: self.hooks.source() }, HookAsk::SessionStart) {
            self.hooks.set_started();
            self.tell(Told::Started(Vec::new()));
        }
    }

    /// What a session begins with goes into the system text while that is open, else behind what is
    /// there.
    pub(super) fn start_resolved(&mut self, mut resolution: Resolution) {
        self.hooks.set_started();
        let mut commits = self.record(HookEvent::SessionStart, &mut resolution);
        for (by, text) in resolution.context {
            match self.thread.frame() {
                None => self.hooks.add_context(text),
                Some(_) => commits.push(self.context(by, text)),
            }
        }
        self.tell(Told::Started(commits));
    }

    /// A prompt is about to enter the view. A callback's prompt is no person's.
    pub(super) fn greet(&mut self, said: Change) {
        let asked = match &said {
            Change::Said { message, .. } if self.lineage.depth == 0 => {
                let what =
                    What::UserMessageSend { message: message.text(), attachments: attachments(message) };
                self.run_hooks(what, HookAsk::Prompt(Box::new(said.clone())))
            }
            _ => false,
        };
        if !asked {
            self.tell(Told::Greeted { commits: vec![said], enters: true });
        }
    }

    pub(super) fn greeted(&mut self, said: Change, mut resolution: Resolution) {
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
        let Change::Said { mut message, origin } = said else { return };
        if let Some((hook, reason)) = resolution.block.or(resolution.halt) {
            let note = self.fresh_message();
            commits.push(match origin {
                // It is in the log already.
                Origin::Queue { .. } => Change::Noted { message: note, text: blocked_words(&hook, &reason) },
                Origin::Recipe { typed, .. } => {
                    // What was kept out is shown as the person gave it, not as the recipe's whole text.
                    message.set_text(typed);
                    Change::Withheld { message, note, why: Withheld::Blocked { hook, reason } }
                }
                Origin::Person
                | Origin::Hook { .. }
                | Origin::Context { .. }
                | Origin::Instructions { .. } => {
                    Change::Withheld { message, note, why: Withheld::Blocked { hook, reason } }
                }
            });
            return self.tell(Told::Greeted { commits, enters: false });
        }
        if let Some(text) = changed {
            message.set_text(text);
        }
        commits.push(Change::Said { message, origin });
        let context: Vec<Change> =
            resolution.context.into_iter().map(|(by, text)| self.context(by, text)).collect();
        commits.extend(context);
        self.tell(Told::Greeted { commits, enters: true });
    }

    /// Something that the model is told beside what the person says.
    pub(super) fn context(&mut self, by: String, text: String) -> Change {
        let text = format!("<context from=\"{by}\">\n{text}\n</context>");
        let message = Message { id: self.fresh_message(), content: vec![Content::Text { text }] };
        Change::Said { message, origin: Origin::Context { by } }
    }

    // ── Tool calls ─────────────────────────────────────────────────────────────────────────────

    /// The model wants a call; hooks see it before anybody is asked for permission.
    pub(super) fn before_tool(&mut self, id: CallId) {
        let known = self.thread.call(&id).and_then(|call| {
            let input = call.input.as_object()?;
            let runs = self.services.toolbox.get(&call.name).is_some() && !input.contains_key("invalid_json");
            runs.then(|| self.hook_call(call, input.clone()))
        });
        let asked = known
            .is_some_and(|call| self.run_hooks(What::BeforeToolCall(call), HookAsk::BeforeTool(id.clone())));
        if !asked {
            self.tell(Told::ToolSeen(id, Vec::new()));
        }
    }

    pub(super) fn tool_seen(&mut self, id: CallId, mut resolution: Resolution) {
        let decided = resolution.decision.take();
        // A denied call, and one at which a hook ends the turn, is a blocked one.
        let denied = resolution.block.take();
        let changed = resolution.input.take().and_then(|(input, by)| self.changed_call(&id, input, by));
        let mut commits = self.record(HookEvent::BeforeToolCall, &mut resolution);
        if let Some(work) = &mut self.work {
            work.halt = work.halt.take().or(resolution.halt);
            if !resolution.context.is_empty() {
                work.notes.insert(id.clone(), resolution.context);
            }
        }
        if let Some((hook, reason)) = denied {
            self.commit_all(commits);
            let by = Decider::Hook { hook: hook.clone() };
            self.note_decided(&id, Some(Decided { allowed: false, by }));
            let text = match reason.trim() {
                "" => format!("The hook {hook} stopped this call."),
                reason => reason.to_owned(),
            };
            let outcome = ToolOutcome::text(id, OutcomeStatus::Denied, text);
            return self.tell(Told::Ran(Box::new(outcome)));
        }
        if let Some(decided) = decided
            && let Some(work) = &mut self.work
        {
            work.decisions.insert(id.clone(), decided);
        }
        commits.extend(changed);
        self.tell(Told::ToolSeen(id, commits));
    }

    /// The change that has a call run with another input; the chain has seen to it that the tool takes it.
    fn changed_call(&self, id: &CallId, input: Map<String, Value>, by: String) -> Option<Change> {
        let call = self.thread.call(id)?;
        let tool = self.services.toolbox.get(&call.name)?;
        let input = match tool.forwarded_call(&call.input) {
            Some((name, _)) => tool.wrap_forwarded(&name, Value::Object(input)),
            None => Value::Object(input),
        };
        if input == call.input {
            return None;
        }
        let card = tool.card(&input, &self.workspace);
        Some(Change::CallChanged { call: id.clone(), input, card, by })
    }

    /// A call has its outcome; hooks see it before the model, the client and the log do.
    pub(super) fn after_tool(&mut self, outcome: ToolOutcome) {
        let id = outcome.call.clone();
        let started = self.work.as_mut().and_then(|work| work.started.remove(&id));
        let took = started.map_or(Duration::ZERO, |at| at.elapsed());
        let what = self.thread.call(&id).map(|call| {
            let (input, _) = self.thread.input_of(&id).unwrap_or((&call.input, &call.card));
            let input = input.as_object().cloned().unwrap_or_default();
            What::AfterToolCall { call: self.hook_call(call, input), result: result_of(call, &outcome, took) }
        });
        let asked =
            what.is_some_and(|what| self.run_hooks(what, HookAsk::AfterTool(Box::new(outcome.clone()))));
        if !asked {
            self.outcome_settled(outcome);
        }
    }

    /// Whether a hook will see what this tool prints: then it is not shown before.
    pub(super) fn is_seen_before_shown(&mut self, call: &ToolCall) -> bool {
        if !self.may_run(HookEvent::AfterToolCall) {
            return false;
        }
        let input = call.input.as_object().cloned().unwrap_or_default();
        let outcome = ToolOutcome::text(call.id.clone(), OutcomeStatus::Completed, String::new());
        let result = result_of(call, &outcome, Duration::ZERO);
        let moment = self.moment(What::AfterToolCall { call: self.hook_call(call, input), result });
        let scripts = self.hooks.scripts(&moment, true);
        let declared =
            self.work.as_ref().is_some_and(|work| work.handlers.contains_key(&HookEvent::AfterToolCall));
        declared || !scripts.is_empty()
    }

    pub(super) fn outcome_seen(&mut self, mut outcome: ToolOutcome, mut resolution: Resolution) {
        let commits = self.record(HookEvent::AfterToolCall, &mut resolution);
        self.commit_all(commits);
        if let Some(work) = &mut self.work {
            work.halt = work.halt.take().or(resolution.halt);
        }
        // A hook that takes secrets out has seen what is shown alone: nobody may read the rest.
        outcome.whole = None;
        if let Some(result) = resolution.result {
            apply_result(&mut outcome, result);
        }
        self.outcome_settled(outcome);
    }

    /// No hook changes an outcome any more. Behind it stands what they said before the call ran.
    fn outcome_settled(&mut self, mut outcome: ToolOutcome) {
        let id = outcome.call.clone();
        let notes = self.work.as_mut().and_then(|work| work.notes.remove(&id)).unwrap_or_default();
        for (by, text) in notes {
            outcome.content.push(OutcomeContent::Text { text: words::note(&by, &text) });
        }
        self.tell(Told::Tool(id, Box::new(outcome)));
    }

    /// A call as hooks know it: one that stands for a call of another tool is that one.
    fn hook_call(&self, call: &ToolCall, input: Map<String, Value>) -> Call {
        let input = Value::Object(input);
        let other = self.services.toolbox.get(&call.name).and_then(|tool| tool.forwarded_call(&input));
        let (tool, input) = other.unwrap_or_else(|| (call.name.clone(), input));
        let input = input.as_object().cloned().unwrap_or_default();
        Call { id: call.id.0.clone(), tool, input, kind: call.card.kind }
    }

    /// Commits what does not wait for the turn's own order.
    pub(super) fn commit_all(&mut self, changes: Vec<Change>) {
        for change in changes {
            if let Err(error) = self.commit(change) {
                return self.abandon(&error);
            }
        }
    }

    /// When a call began to run.
    pub(super) fn mark_started(&mut self, id: &CallId) {
        if let Some(work) = &mut self.work {
            work.started.insert(id.clone(), Instant::now());
        }
    }

    /// Tells the person something that is no part of the conversation.
    pub(super) fn say(&self, severity: Severity, text: String) {
        self.announce(&Out::Notice { severity, text });
    }
}

/// Puts a refusal into the trail of the last hook that asked for this.
fn refuse_last(trail: &mut [HookRun], asked: &str, why: &str) {
    if let Some(run) = trail.iter_mut().rev().find(|run| run.asked.contains(asked)) {
        run.verdict = Verdict::Refused;
        run.remarks.push(why.to_owned());
    }
}

fn blocked_words(hook: &str, reason: &str) -> String {
    match reason.trim() {
        "" => format!("The hook {hook} stopped this prompt."),
        reason => format!("The hook {hook} stopped this prompt: {reason}"),
    }
}

/// No tool denies its own call: what is denied here was stopped by a hook.
fn result_of(call: &ToolCall, outcome: &ToolOutcome, took: Duration) -> CallResult {
    let text = outcome.model_text();
    let success = outcome.status == OutcomeStatus::Completed;
    let blocked = outcome.status == OutcomeStatus::Denied;
    CallResult {
        success,
        error: (!success).then(|| text.clone()),
        metadata_type: Some(if blocked { "blocked".to_owned() } else { call.name.clone() }),
        metadata: outcome.raw.clone(),
        text,
        milliseconds: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
        blocked,
    }
}

/// What hooks left of an outcome. What the person sees is what the model reads: the tool's own display
/// may hold what a hook took out.
fn apply_result(outcome: &mut ToolOutcome, result: CallResult) {
    outcome.content.retain(|content| match content {
        OutcomeContent::Text { .. } => false,
        OutcomeContent::Image { .. } | OutcomeContent::Document { .. } => true,
    });
    outcome.content.insert(0, OutcomeContent::Text { text: result.text });
    outcome.shown.clear();
    outcome.raw = result.metadata;
    outcome.status = match (result.success, outcome.status) {
        (true, _) => OutcomeStatus::Completed,
        (false, OutcomeStatus::Completed) => OutcomeStatus::Failed,
        (false, status) => status,
    };
}

fn attachments(message: &Message) -> Vec<Attachment> {
    let of = |kind, uri: Option<&String>, mime_type: Option<&String>| {
        Some(Attachment { kind, uri: uri.cloned(), mime_type: mime_type.cloned() })
    };
    let attached = message.content.iter().filter_map(|content| match content {
        Content::Image { mime_type, uri, .. } => of("image", uri.as_ref(), Some(mime_type)),
        Content::Document { mime_type, .. } => of("document", None, Some(mime_type)),
        Content::Resource { uri, .. } => of("resource", Some(uri), None),
        Content::ResourceLink { uri, .. } => of("resource_link", Some(uri), None),
        Content::Text { .. } | Content::Thinking { .. } | Content::Call(_) => None,
    });
    attached.collect()
}
