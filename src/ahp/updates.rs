//! Translates the daemon's updates of a session to actions.

use ahp::ahp_types::state::{ResponsePart, TurnState};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::actions::{self, TextPart, TurnEnd, of_form};
use super::messages;
use super::session::{PromptRole, SharedSession};

impl SharedSession {
    /// Applies an update. Kinds that AHP has no place for are listed in `docs/ahp.md`.
    pub fn update(&mut self, update: &Value, now: Timestamp) {
        let kind = update["sessionUpdate"].as_str().unwrap_or_default();
        match kind {
            "user_message" => self.user_message(update, now),
            "agent_message" => self.text(TextPart::Reply, update, true, now),
            "agent_message_chunk" => self.text(TextPart::Reply, update, false, now),
            "agent_thought" => self.text(TextPart::Thinking, update, true, now),
            "agent_thought_chunk" => self.text(TextPart::Thinking, update, false, now),
            "tool_call_update" => self.call(update, now),
            "terminal_update" => self.terminal(update),
            "terminal_output_chunk" => self.terminal_output(update),
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
            Some(PromptRole::Steering(pending)) => {
                self.apply(actions::pending_removed("steering", &pending), None);
            }
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
    fn text(&mut self, kind: TextPart, update: &Value, is_whole: bool, now: Timestamp) {
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
                self.apply(actions::text_started(&turn, kind, id, text), None);
                return self.end_unless_running(now);
            }
            Some(_) if !is_whole => text,
            // A window that was attached again is shown the message as a whole.
            Some(shown) => text.strip_prefix(shown).unwrap_or_default().to_owned(),
        };
        if !added.is_empty() {
            self.apply(actions::text_added(&turn, kind, id, added), None);
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
            let remark = actions::notification(&active.id, &text);
            self.apply(remark, None);
        }
    }

    fn info(&mut self, update: &Value) {
        if let Some(title) = update["title"].as_str().filter(|title| *title != self.state.title) {
            self.apply(of_form(json!({ "type": "session/titleChanged", "title": title })), None);
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
            self.apply(actions::usage(&turn, &update["usage"]), None);
        }
        let remark = match update["stopReason"].as_str() {
            Some("max_tokens") => Some("The reply was cut: it reached the limit of tokens."),
            Some("max_turn_requests") => {
                Some("The turn ended: it reached the limit of requests to the model.")
            }
            Some("refusal") => Some("The model refused to answer."),
            _ => None,
        };
        if let Some(remark) = remark {
            self.apply(actions::notification(&turn, remark), None);
        }
        let end = match update["stopReason"].as_str() {
            Some("cancelled") => TurnEnd::Cancelled,
            Some("error") => {
                let message = update["error"]["message"].as_str().unwrap_or("the turn failed");
                TurnEnd::Failed(message.to_owned())
            }
            _ => TurnEnd::Complete,
        };
        self.end_turn(end, now);
    }

    /// Ends a turn that consists of text that the daemon sent while idle.
    fn end_unless_running(&mut self, now: Timestamp) {
        if !self.work.running && !self.work.replaying && self.work.inserted {
            self.end_turn(TurnEnd::Complete, now);
        }
    }
}
