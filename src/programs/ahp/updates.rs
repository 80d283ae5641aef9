//! Translates the daemon's updates of a session to actions.

use ahp::ahp_types::state::{ResponsePart, TurnState};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::messages;
use super::session::{PromptRole, SharedSession, TurnEnd};
use epitome_session_api::TextKind;

impl SharedSession {
    /// Applies an update. Kinds that AHP has no place for are listed in `docs/builders/integrate.md`.
    pub fn update(&mut self, update: &Value, now: Timestamp) {
        let kind = update["sessionUpdate"].as_str().unwrap_or_default();
        match kind {
            "user_message" => self.user_message(update, now),
            "agent_message" => self.text(TextKind::Reply, update, true, now),
            "agent_message_chunk" => self.text(TextKind::Reply, update, false, now),
            "agent_thought" => self.text(TextKind::Thinking, update, true, now),
            "agent_thought_chunk" => self.text(TextKind::Thinking, update, false, now),
            "tool_call_update" => self.call(update, now),
            "terminal_update" => self.terminal(update, true),
            "terminal_output_chunk" => self.terminal(update, false),
            "session_info_update" => self.info(update),
            "notice" => {
                let texts = ["title", "description"].map(|name| update[name].as_str().unwrap_or_default());
                self.remark(texts.join("\n").trim().to_owned());
            }
            "compaction_update" => self.remark(match update["status"].as_str() {
                Some("completed") => "The conversation was compacted.".to_owned(),
                Some("failed") => {
                    format!("The compaction failed: {}", update["error"].as_str().unwrap_or("?"))
                }
                _ => return,
            }),
            "state_update" => self.work_state(update, now),
            other => tracing::debug!(kind = other, "an update has no counterpart"),
        }
    }

    /// Applies an update of a subagent, if it is about a call that a client was asked about.
    pub fn update_of_subagent(&mut self, update: &Value, now: Timestamp) {
        let call = update["toolCallId"].as_str().or(update["terminalId"].as_str());
        if call.is_some_and(|call| self.phase(call).is_some()) {
            self.update(update, now);
        }
    }

    /// A message of the user: a prompt of a client of this host, or of another window.
    fn user_message(&mut self, update: &Value, now: Timestamp) {
        let blocks = update["content"].as_array().map(Vec::as_slice).unwrap_or_default();
        let id = update["messageId"].as_str().unwrap_or_default();
        match self.take_sent(&messages::text_of(blocks)) {
            Some(PromptRole::Turn(turn)) if self.is_active(&turn) => {
                self.work.inserted = true;
                self.work.draining = false;
            }
            // The message of another window came first and has ended this turn; its turn takes this prompt in.
            Some(PromptRole::Turn(_)) if self.work.inserted => {}
            Some(PromptRole::Turn(turn)) if self.was_cancelled(&turn) => self.work.draining = true,
            Some(PromptRole::Steering(pending)) => self.pending_removed("steering", &pending),
            Some(PromptRole::Suggestion) => {}
            None if self.is_active(id) || self.chat.turns.iter().any(|turn| turn.id == id) => {}
            Some(PromptRole::Turn(_)) | None => {
                self.work.draining = false;
                self.end_turn(TurnEnd::Complete, now);
                self.begin_foreign(id, &messages::from_blocks(blocks), now);
            }
        }
    }

    fn was_cancelled(&self, turn: &str) -> bool {
        self.chat.turns.iter().any(|ended| ended.id == turn && ended.state == TurnState::Cancelled)
    }

    /// Text of the agent: a whole message or, unless `is_whole`, what follows.
    fn text(&mut self, kind: TextKind, update: &Value, is_whole: bool, now: Timestamp) {
        let id = update["messageId"].as_str().unwrap_or_default();
        let text = match &update["content"] {
            Value::Array(blocks) => messages::text_of(blocks),
            block => messages::text_of(std::slice::from_ref(block)),
        };
        if text.is_empty() || self.work.draining {
            return;
        }
        let turn = self.turn(id, now);
        let added = match self.shown_text(id) {
            None => {
                let kind = if kind == TextKind::Reply { "markdown" } else { "reasoning" };
                self.response_part(&turn, json!({ "kind": kind, "id": id, "content": text }));
                return self.end_unless_running(now);
            }
            Some(_) if !is_whole => text,
            // A window that was attached again is shown the message as a whole.
            Some(shown) => text.strip_prefix(shown).unwrap_or_default().to_owned(),
        };
        if !added.is_empty() {
            let name = if kind == TextKind::Reply { "chat/delta" } else { "chat/reasoning" };
            self.act(json!({ "type": name, "turnId": turn, "partId": id, "content": added }));
        }
    }

    fn shown_text(&self, id: &str) -> Option<&str> {
        let parts = &self.chat.active_turn.as_ref()?.response_parts;
        parts.iter().find_map(|part| match part {
            ResponsePart::Markdown(text) if text.id == id => Some(text.content.as_str()),
            ResponsePart::Reasoning(text) if text.id == id => Some(text.content.as_str()),
            _ => None,
        })
    }

    /// Adds a remark to the active turn. Without one, there is no place for it.
    fn remark(&mut self, text: String) {
        if let Some(active) = self.chat.active_turn.as_ref().filter(|_| !self.work.draining) {
            let turn = active.id.clone();
            self.response_part(&turn, json!({ "kind": "systemNotification", "content": text }));
        }
    }

    fn response_part(&mut self, turn: &str, part: Value) {
        self.act(json!({ "type": "chat/responsePart", "turnId": turn, "part": part }));
    }

    fn info(&mut self, update: &Value) {
        if let Some(title) = update["title"].as_str().filter(|title| *title != self.state.title) {
            self.act(json!({ "type": "session/titleChanged", "title": title }));
        }
    }

    fn work_state(&mut self, update: &Value, now: Timestamp) {
        self.work.background = update["background"].as_array().map_or(0, Vec::len);
        self.work.running = update["state"] != "idle";
        if self.work.running || std::mem::take(&mut self.work.draining) || !self.work.inserted {
            return;
        }
        let Some(turn) = self.chat.active_turn.as_ref().map(|active| active.id.clone()) else { return };
        if update["usage"].is_object() {
            let count = |name: &str| update["usage"][name].as_i64();
            let usage = json!({
                "inputTokens": count("inputTokens"), "outputTokens": count("outputTokens"),
                "cacheReadTokens": count("cachedReadTokens"),
            });
            self.act(json!({ "type": "chat/usage", "turnId": turn, "usage": usage }));
        }
        let (remark, end) = match update["stopReason"].as_str().unwrap_or_default() {
            "max_tokens" => ("The reply was cut: it reached the limit of tokens.", TurnEnd::Complete),
            "max_turn_requests" => {
                ("The turn ended: it reached the limit of requests to the model.", TurnEnd::Complete)
            }
            "refusal" => ("The model refused to answer.", TurnEnd::Complete),
            "cancelled" => ("", TurnEnd::Cancelled),
            "error" => {
                let message = update["error"]["message"].as_str().unwrap_or("the turn failed");
                ("", TurnEnd::Failed(message.to_owned()))
            }
            _ => ("", TurnEnd::Complete),
        };
        if !remark.is_empty() {
            self.remark(remark.to_owned());
        }
        self.end_turn(end, now);
    }

    /// Ends a turn that consists of text that the daemon sent while idle.
    fn end_unless_running(&mut self, now: Timestamp) {
        if !self.work.running && !self.work.replaying && self.work.inserted {
            self.end_turn(TurnEnd::Complete, now);
        }
    }
}
