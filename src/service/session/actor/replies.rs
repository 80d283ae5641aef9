//! A session's model calls: builds and starts requests, streams replies and handles failures.

use std::time::Duration;

use super::Session;
use crate::background::BackgroundResult;
use crate::core::Core;
use crate::diagnostics;
use crate::effects::{ModelCall, ModelCallEvent};
use crate::instructions;
use crate::model_link::Located;
use crate::provider_errors::{sentence, with_full_stop};
use crate::reminders::{self, Topic};
use crate::work::{AfterScan, TurnFault};
use crate::{NoticeSeverity, SessionError, SessionEvent};
use epitome_platform::blocking;
use epitome_provider::collect::{ModelReply, ReplyPiece};
use epitome_provider::endpoint::Endpoint;
use epitome_provider::wire::Purpose;
use epitome_provider::{ErrorClass, ProviderError, REWIND_HINT, ReplyStop, retry};
use epitome_thread::text::tokens;
use epitome_thread::{Change, MessageId, ModelName, Origin, ReplyCut, ToolSpec, Usage};
use epitome_turn::{Effect, EffectResult, ModelResult, ReplyEnd, cut_of};

/// Shortest wait whose notice explains how to cancel it: no user could cancel a shorter one in time.
const CANCEL_HINT_FROM: Duration = Duration::from_secs(3);

const CANCEL_HINT: &str = "Cancel the turn (Esc, Ctrl-C or the stop button) to stop waiting.";

/// The purpose under which the log records the cost of an empty reply.
const EMPTY_REPLY: &str = "an empty reply";

/// The same for a reply that ended before any of it could be kept, for example while the model was thinking.
const CUT_REPLY: &str = "a reply that was cut off";

/// The user line that makes the agent continue from its own text.
const GO_ON: &str = "Go on.";

impl Session {
    /// Calls the model; the instruction files have already been checked.
    pub(super) fn call_with_instructions(&mut self) {
        let own = self.work.as_ref().and_then(|work| work.run.endpoint.clone());
        let Some(endpoint) = own.or_else(|| self.endpoint_for(&Effect::CallModel)) else { return };
        let ready = self.ensure_frame().and_then(|()| self.remind()).and_then(|()| self.append_user_line());
        let may_compact = self.work.as_ref().is_some_and(|work| work.turn.may_compact_before_call());
        if ready.is_ok() && may_compact && self.compactor.is_due_before(&mut self.core, &endpoint) {
            return self.answer_turn(EffectResult::Model(ModelResult::MustCompact));
        }
        let started = ready.map_err(|error| error.to_string()).and_then(|()| {
            let message = self.core.fresh_message();
            let counting = may_compact.then(|| self.core.count_before_call(&endpoint)).flatten();
            let encoded = self.core.encode(&endpoint, Purpose::Reply);
            let scope = self.core.trace.scope().clone();
            ModelCall::start(&self.core.services.http, scope, endpoint, encoded, message, counting)
                .map_err(|error| sentence(&error))
        });
        match started {
            Ok(call) => {
                if let Some(work) = &mut self.work {
                    work.model = Some(call);
                }
            }
            Err(message) => self.answer_turn(EffectResult::Model(ModelResult::Failed(message))),
        }
    }

    /// Appends a short user line if the view ends with the agent's own text, as hooks may leave it: newer models
    /// refuse to continue from that. A reply that the provider paused needs no such line.
    fn append_user_line(&mut self) -> Result<(), SessionError> {
        let is_paused = self.work.as_ref().is_some_and(|work| work.turn.is_paused());
        if is_paused || !self.core.thread.view().ends_with_agent() {
            return Ok(());
        }
        let message = self.core.message(GO_ON);
        let origin = Origin::Context { by: "epitome".to_owned() };
        self.core.commit(Change::Said { message, origin }).map(drop)
    }

    /// Returns the current model's endpoint; the user may have chosen another model during the turn. `None` while the
    /// search for its server runs, after which `ask` is performed again, and if there is no model, which is reported
    /// to the turn.
    pub(super) fn endpoint_for(&mut self, ask: &Effect) -> Option<Endpoint> {
        match self.core.locate() {
            Located::Ready => {
                self.core.model.recall_form(&self.core.settings);
                self.core.model.endpoint().cloned()
            }
            Located::Searching => {
                if let Some(work) = &mut self.work {
                    work.postponed = Some(ask.clone());
                }
                None
            }
            Located::Nowhere(error) => {
                self.fail_without_model(ask, &error);
                None
            }
        }
    }

    /// Reports to the turn that an effect failed because there is no model.
    pub(super) fn fail_without_model(&mut self, ask: &Effect, error: &ProviderError) {
        if let Some(work) = &mut self.work {
            work.fault = TurnFault::classify(error);
        }
        let reason = sentence(error);
        let is_of_compaction = matches!(
            ask,
            Effect::PlanCompaction(_) | Effect::Summarise | Effect::Compose | Effect::AbandonCompaction(_)
        );
        match is_of_compaction {
            true => self.fail_compaction(reason),
            false => self.answer_turn(EffectResult::Model(ModelResult::Failed(reason))),
        }
    }

    /// Freezes the system prompt and the tools at the first model call. The instruction files must have been checked
    /// before.
    pub(super) fn ensure_frame(&mut self) -> Result<(), SessionError> {
        instructions::client::reframe(&mut self.core)?;
        if self.core.thread.frame().is_some() && !self.core.thread.is_frame_outdated() {
            return self.mcp.renew_frame(&mut self.core);
        }
        // MCP tools are limited to a share of the model's window, which is known only now.
        self.mcp.refresh_tools(&mut self.core);
        // So is the list of skills.
        let masker = self.tools.masker(&self.core);
        self.recipes.offer_skills(&mut self.core, &self.hooks, masker);
        let mut tools = self.core.services.toolbox.specs();
        self.subagents.name_in(&self.core, &mut tools);
        let contexts = self.hooks.take_contexts();
        let system = self.core.system_text(self.instructions.files(), contexts, &tools);
        let system = self.mcp.with_instructions(&system);
        if self.core.thread.frame().is_none() && !self.core.lineage.is_child() {
            self.warn_of_small_window(&system, &tools);
        }
        let left_out = self.core.model.left_out(&tools);
        self.core.model_learned(left_out);
        self.core.commit(Change::Framed { system, tools }).map(drop)
    }

    /// Says so if half of the model's window is gone before the conversation begins: servers of local models often load
    /// them with a small one, and what does not fit then looks like a fault of the model or of Epitome.
    fn warn_of_small_window(&self, system: &str, tools: &[ToolSpec]) {
        let Some(endpoint) = self.core.model.endpoint() else { return };
        let frame = self.core.ruler().frame(system, tools);
        if frame < endpoint.window / 2 {
            return;
        }
        let (name, window, frame) = (&endpoint.name, tokens(endpoint.window), tokens(frame));
        let text = format!(
            "The window of {name} is small: {window} tokens, of which the instructions and tools take about {frame}. \
             Few files and results fit into the rest. Have its server load it with a larger window (for Ollama: \
             OLLAMA_CONTEXT_LENGTH); if it has a larger one, set context_window in config.toml."
        );
        self.core.notify(NoticeSeverity::Warning, text);
    }

    /// Reminds the model of facts that its view does not contain. Requires that no tool call is open.
    fn remind(&mut self) -> Result<(), SessionError> {
        // The model continues from a reply that its provider paused: nothing may follow it.
        let is_paused = self.work.as_ref().is_some_and(|work| work.turn.is_paused());
        if !is_paused {
            self.instructions.remind(&mut self.core)?;
            let mut contexts = self.hooks.late().take_contexts();
            contexts.extend(self.tools.edits().take_news().map(|text| (diagnostics::BY.to_owned(), text)));
            for (by, mut text) in contexts {
                // Both may quote files.
                self.tools.masker(&self.core).map(|masker| masker.mask_in(&mut text));
                let context = self.core.context(by, text);
                self.core.commit(context)?;
            }
        }
        let (is_child, is_agent) = (self.core.lineage.is_child(), self.core.lineage.is_agent());
        // A child's view is its parent's. A callback has its own part in its parent's conversation.
        let goal = (!is_child).then(|| reminders::goal(&self.core.thread));
        let gets_mode = !is_paused && (!is_child || is_agent);
        let mode = gets_mode.then(|| reminders::plan_mode(self.core.thread.mode()));
        let mut topics: Vec<Topic> = goal.into_iter().chain(mode).collect();
        topics.extend(self.mcp.late_tools(&self.core));
        topics.extend(self.recipes.late_skills(&self.core));
        let commands = if is_paused { Vec::new() } else { self.tools.background().statuses() };
        if !is_paused {
            let view = self.core.model.reminded(self.core.thread.view());
            topics.push(reminders::background::topic(view, &commands, !is_child));
        }
        for topic in topics {
            let by = topic.by.to_owned();
            let view = self.core.model.reminded(self.core.thread.view());
            if let Some(words) = topic.missing(view) {
                let context = self.core.context(by, words);
                self.core.commit(context)?;
            }
        }
        for status in commands.iter().filter(|status| status.ended.is_some()) {
            if let Ok(command) = self.tools.background().find(&status.id) {
                command.mark_end_reported();
            }
        }
        Ok(())
    }

    pub(super) fn model_step(&mut self, step: ModelCallEvent) {
        let Some(work) = &mut self.work else { return };
        let Some(call) = &mut work.model else { return };
        match step {
            ModelCallEvent::Events(events) => {
                let message = call.message;
                let mut pieces: Vec<ReplyPiece> = Vec::new();
                for event in events {
                    call.seen |= event.is_shown();
                    let piece = call.collector.feed(event);
                    let more = piece.and_then(|piece| match pieces.last_mut() {
                        Some(last) => last.extend(piece),
                        None => Some(piece),
                    });
                    pieces.extend(more);
                }
                let shown: Vec<SessionEvent> =
                    pieces.into_iter().filter_map(|piece| live(message, piece)).collect();
                shown.iter().for_each(|out| self.core.announce(out));
                if !shown.is_empty()
                    && let Some(due) = self.core.log.draft.wrote()
                {
                    self.core.start(due, |()| BackgroundResult::DraftDue);
                }
            }
            ModelCallEvent::Finished => {
                let reply = call.take_reply();
                if reply.content.is_empty() && is_no_answer(&reply) && !call.seen && call.attempts == 0 {
                    call.retry_after(retry::BACKOFF_FIRST);
                    let spent = reply.usage.map(|usage| (call.model.clone(), usage));
                    let text = "The model sent an empty reply. Asking again.".to_owned();
                    self.core.notify(NoticeSeverity::Warning, text);
                    if let Some((model, usage)) = spent {
                        self.spend(model, usage, EMPTY_REPLY.to_owned());
                    }
                    return;
                }
                let call = work.model.take().expect("a finished call was running");
                self.reply_finished(reply, call.message, call.model);
            }
            ModelCallEvent::StillWaiting(left) => {
                let text = format!("Still waiting: trying again in {:.0} s.", left.as_secs_f64());
                self.core.notify(NoticeSeverity::Info, text);
            }
            ModelCallEvent::Quiet(quiet) => {
                let text = format!(
                    "Still waiting for {}: no data for {} s. {CANCEL_HINT}",
                    call.model,
                    quiet.as_secs()
                );
                self.core.notify(NoticeSeverity::Info, text);
            }
            ModelCallEvent::Full => {
                work.model = None;
                self.answer_turn(EffectResult::Model(ModelResult::MustCompact));
            }
            ModelCallEvent::Failed(error) => {
                // A conversation that was just compacted is not too long once more.
                let is_large = !work.turn.compacted_since_reply()
                    && self.core.tokens_in_context() >= self.core.model.window() / 2;
                let error = match work.turn.compacted_since_reply() {
                    true if error.class != ErrorClass::Empty => error,
                    _ => error.judged(call.attempts, is_large),
                };
                // A reply is not tried again if content that was shown has to stay in the conversation.
                let is_kept = call.seen && !call.collector.clone().cut().content.is_empty();
                let delay = match is_kept {
                    true => None,
                    false => retry::delay(&error.class, call.attempts + 1, fastrand::f64()),
                };
                match delay {
                    Some(delay) => {
                        if std::mem::take(&mut call.seen) {
                            call.message = self.core.fresh_message();
                        }
                        let spent = call.retry_after(delay);
                        let model = call.model.clone();
                        let text = waiting(&error, delay, call.attempts + 1);
                        self.core.notify(NoticeSeverity::Warning, text);
                        self.spend_on_cut_reply(model, spent);
                    }
                    None => {
                        let call = work.model.take().expect("a failed call was running");
                        let is_refused = error.class == ErrorClass::BadReasoning && !call.seen;
                        if is_refused && self.core.drop_thinking(&error) {
                            return self.scan_first(AfterScan::CallModel);
                        }
                        let own = self.work.as_mut().and_then(|work| work.run.endpoint.as_mut());
                        let Core { model, settings, thread, .. } = &mut self.core;
                        if !call.seen
                            && let Some(effects) =
                                model.take_other_form(&call.model, own, &error, thread, settings)
                        {
                            self.core.model_learned(effects);
                            return self.scan_first(AfterScan::CallModel);
                        }
                        self.call_failed(call, &error);
                    }
                }
            }
        }
    }

    pub(super) fn reply_finished(&mut self, reply: ModelReply, message: MessageId, model: ModelName) {
        let own = self.work.as_ref().and_then(|work| work.run.endpoint.as_ref());
        let effects = self.core.model.learn_from_reply(&model, own);
        self.core.model_learned(effects);
        let (stop, reason) = match &reply.stop {
            Some(ReplyStop::Finished) | None => (ReplyEnd::Finished, String::new()),
            Some(ReplyStop::Paused) => (ReplyEnd::Paused, String::new()),
            Some(ReplyStop::MaxTokens) => (ReplyEnd::MaxTokens, String::new()),
            Some(ReplyStop::WindowExceeded) => (ReplyEnd::WindowFull, String::new()),
            Some(ReplyStop::Refused { reason }) => (ReplyEnd::Refused, reason.clone()),
            Some(ReplyStop::Filtered { reason }) => (ReplyEnd::Filtered, reason.clone()),
            Some(ReplyStop::Other { reason }) => (ReplyEnd::Other, reason.clone()),
        };
        if reply.content.is_empty() && is_no_answer(&reply) {
            let text = if stop == ReplyEnd::Other {
                format!("The model stopped without a reply: {reason}.")
            } else {
                "The model sent an empty reply.".to_owned()
            };
            let text = format!("{text} Type \"go on\", or try another model.");
            let replied = Box::new(Change::Noted { message, text });
            self.answer_turn(EffectResult::Model(ModelResult::Reply { replied, stop }));
            return;
        }
        let cut = cut_of(stop, &reason);
        let replied = Box::new(self.core.replied(reply, message, model, cut));
        self.answer_turn(EffectResult::Model(ModelResult::Reply { replied, stop }));
    }

    pub(super) fn call_failed(&mut self, call: ModelCall, error: &ProviderError) {
        tracing::warn!(session = %self.core.id(), class = ?error.class, %error, "a model call failed");
        // Thinking that broke off was shown, but no provider takes it back.
        let reply = call.collector.cut();
        let is_kept = call.seen && !reply.content.is_empty();
        let mut reason = give_up_message(error, call.seen, is_kept, call.attempts + 1);
        let is_refused_again =
            error.class == ErrorClass::Refused && self.core.thread.view().follows_unanswered_prompt();
        if is_refused_again && error.hint.is_none() {
            reason = format!("{} {REWIND_HINT}", with_full_stop(&reason));
        }
        if let Some(work) = &mut self.work {
            work.fault = TurnFault::classify(error);
        }
        let effects = self.core.model.learn_window(&call.model, &error.class, &self.core.thread);
        self.core.model_learned(effects);
        let partial = match is_kept {
            true => {
                let cut = Some(ReplyCut::Broken { reason: reason.clone() });
                Some(self.core.replied(reply, call.message, call.model, cut))
            }
            false => {
                self.spend_on_cut_reply(call.model, reply.usage);
                None
            }
        };
        let is_full = matches!(error.class, ErrorClass::TooLong { .. });
        let answer = match partial {
            Some(replied) => {
                // An overflow that the provider reports in the middle of its stream counts as well.
                let stop = if is_full { ReplyEnd::WindowFull } else { ReplyEnd::Broken };
                ModelResult::Reply { replied: Box::new(replied), stop }
            }
            None if is_full => ModelResult::TooLong(reason),
            None => ModelResult::Failed(reason),
        };
        self.answer_turn(EffectResult::Model(answer));
    }

    /// The streamed part of the running reply, for a client that attaches in the middle of it.
    pub(super) fn live_text(&self) -> Vec<SessionEvent> {
        let Some(call) = self.work.as_ref().and_then(|work| work.model.as_ref()) else { return Vec::new() };
        let message = call.message;
        call.collector.shown().into_iter().filter_map(|piece| live(message, piece)).collect()
    }
}

impl Session {
    /// Returns the part of an unfinished reply that was received. If it is empty, only its cost is recorded.
    pub(super) fn partial_reply(&mut self, call: ModelCall, cut: ReplyCut) -> Option<Change> {
        let reply = call.collector.cut();
        if reply.content.is_empty() {
            self.spend_on_cut_reply(call.model, reply.usage);
            return None;
        }
        Some(self.core.replied(reply, call.message, call.model, Some(cut)))
    }

    fn spend_on_cut_reply(&mut self, model: ModelName, usage: Option<Usage>) {
        if let Some(usage) = usage.filter(|usage| *usage != Usage::default()) {
            self.spend(model, usage, CUT_REPLY.to_owned());
        }
    }

    /// Saves the streamed part of the running reply, which a crash would lose.
    pub(super) fn save_draft(&mut self) {
        let call = self.work.as_ref().and_then(|work| work.model.as_ref());
        let save = call.and_then(|call| {
            self.core.log.draft.save(call.message, call.model.clone(), call.collector.shown())
        });
        match save {
            Some(save) => {
                self.core.start(blocking::run(save), BackgroundResult::DraftSaved);
            }
            None => self.core.log.draft.skip(),
        }
    }
}

/// Whether an empty reply does not even give a reason.
fn is_no_answer(reply: &ModelReply) -> bool {
    matches!(reply.stop, None | Some(ReplyStop::Finished | ReplyStop::Other { .. }))
}

/// Converts a piece of a streaming reply to the event for clients.
fn live(message: MessageId, piece: ReplyPiece) -> Option<SessionEvent> {
    match piece {
        ReplyPiece::Text { part, kind, text } => Some(SessionEvent::Text { message, part, kind, text }),
        // A call is shown with its arguments, which arrive with the complete reply.
        ReplyPiece::CallOpened { .. } => None,
    }
}

/// The notice while a failed call waits for the retry number `attempt`.
fn waiting(error: &ProviderError, delay: Duration, attempt: u32) -> String {
    let message = with_full_stop(&error.message);
    let tries = retry::ATTEMPTS_MAX;
    let mut text =
        format!("{message} Trying again in {:.1} s (try {attempt} of {tries}).", delay.as_secs_f64());
    if delay >= CANCEL_HINT_FROM {
        text.push_str(&format!(" {CANCEL_HINT}"));
    }
    text
}

/// The message for a call that is not retried; `seen` if a part of its reply was shown, and `is_kept` if a part stays in
/// the conversation.
fn give_up_message(error: &ProviderError, seen: bool, is_kept: bool, attempts: u32) -> String {
    let message = with_full_stop(&error.message);
    if error.hint.is_some() {
        sentence(error)
    } else if is_kept {
        format!("{message} Send the prompt again; the conversation so far is kept.")
    } else if seen {
        format!("{message} Send the prompt again; this reply was discarded.")
    } else if error.class == ErrorClass::Broken {
        format!("{message} Send the prompt again, or choose another model.")
    } else if matches!(error.class, ErrorClass::Retry { .. }) {
        format!(
            "{message} Tried {attempts} times. Send the prompt again in a few minutes, or choose another model."
        )
    } else {
        sentence(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection was cut after the model had only been thinking. The user was shown that "what was said so far is
    /// kept", but no provider takes thinking back that it has not finished, so nothing was.
    #[test]
    fn the_error_says_whether_the_shown_part_is_kept() {
        let error = ProviderError::new(ErrorClass::Broken, "It broke off");
        for (seen, is_kept, expected) in [
            (true, true, "It broke off. Send the prompt again; the conversation so far is kept."),
            (true, false, "It broke off. Send the prompt again; this reply was discarded."),
            (false, false, "It broke off. Send the prompt again, or choose another model."),
        ] {
            assert_eq!(give_up_message(&error, seen, is_kept, 1), expected);
        }
    }
}
