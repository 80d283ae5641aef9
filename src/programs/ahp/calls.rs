//! Translates tool calls and requests for permission.
//!
//! ```text
//!  pending ─► streaming ──(permission asked)──► pending-confirmation ──► running ──► completed
//!                 └──────────────(runs)────────────────────────────────────▲
//! ```

use ahp::ahp_types::state::{ConfirmationOption, ConfirmationOptionKind, ToolCallState};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::messages;
use super::session::SharedSession;

/// Output of a command that is kept, in bytes from its end. The daemon keeps no more itself.
const OUTPUT_BYTES_MAX: usize = 256 * 1024;

/// The state of a call of the active turn, as the daemon has sent it.
#[derive(Default)]
pub struct AgentCall {
    title: String,
    input: Option<Value>,
    content: Vec<Value>,
    /// The output of its command.
    output: Vec<u8>,
}

impl AgentCall {
    fn shown_input(&self) -> Option<String> {
        self.input.as_ref().map(|input| format!("{input:#}"))
    }
}

/// A request for permission that is not answered.
pub struct CallCard {
    /// The id of the daemon's request.
    pub request: Value,
    options: Vec<ConfirmationOption>,
}

impl CallCard {
    /// The id of the option for a decision; without a chosen one, the decision is for this call alone.
    pub fn option(&self, approved: bool, chosen: Option<&str>) -> Result<String, String> {
        let kind = if approved { ConfirmationOptionKind::Approve } else { ConfirmationOptionKind::Deny };
        let mut fitting = self.options.iter().filter(|option| option.kind == kind);
        let found = match chosen {
            Some(id) => fitting.find(|option| option.id == id),
            None => fitting.next(),
        };
        found.map(|option| option.id.clone()).ok_or_else(|| match chosen {
            Some(id) => format!("{id:?} is not an option for this decision"),
            None => "this decision was not offered".to_owned(),
        })
    }
}

impl SharedSession {
    /// A call is new, or has changed.
    pub(super) fn call(&mut self, update: &Value, now: Timestamp) {
        let Some(id) = update["toolCallId"].as_str() else { return };
        let status = update["status"].as_str();
        if self.work.draining || !self.announce(id, update, status, now) {
            return;
        }
        match status {
            Some("in_progress") => self.runs(id, now),
            Some("completed") => self.ended(id, None, now),
            Some("failed") => self.ended(id, Some("it failed"), now),
            Some("cancelled") => self.ended(id, Some("it was cancelled"), now),
            _ => {}
        }
        if update["content"].is_array() {
            self.show_content(id);
        }
    }

    /// Records an update of a call, and begins the call if it is new. Returns whether the call belongs to the active turn:
    /// the daemon may still send the end of an earlier one.
    fn announce(&mut self, id: &str, update: &Value, status: Option<&str>, now: Timestamp) -> bool {
        let is_new = self.phase(id).is_none();
        if is_new && !matches!(status, Some("pending" | "in_progress")) {
            return false;
        }
        let call = self.work.calls.entry(id.to_owned()).or_default();
        if let Some(title) = update["title"].as_str() {
            title.clone_into(&mut call.title);
        }
        if !update["rawInput"].is_null() {
            call.input = Some(update["rawInput"].clone());
        }
        if let Some(content) = update["content"].as_array() {
            content.clone_into(&mut call.content);
        }
        if is_new {
            let title = call.title.clone();
            let turn = self.turn(id, now);
            let name = update["name"].as_str().unwrap_or("tool");
            self.act(json!({
                "type": "chat/toolCallStart", "turnId": turn, "toolCallId": id, "toolName": name,
                "displayName": name, "intention": title,
            }));
        }
        true
    }

    /// A call runs: without a question, or because its card was answered in another window.
    fn runs(&mut self, id: &str, now: Timestamp) {
        let turn = self.turn(id, now);
        match self.phase(id) {
            Some(ToolCallState::Streaming(_)) => {
                let Some(call) = self.work.calls.get(id) else { return };
                self.act(json!({
                    "type": "chat/toolCallReady", "turnId": turn, "toolCallId": id,
                    "invocationMessage": call.title, "toolInput": call.shown_input(),
                    "confirmed": "not-needed",
                }));
            }
            Some(ToolCallState::PendingConfirmation(_)) => self.decided(&turn, id, true),
            _ => {}
        }
    }

    fn ended(&mut self, id: &str, failed: Option<&str>, now: Timestamp) {
        let turn = self.turn(id, now);
        if let (Some(ToolCallState::PendingConfirmation(_)), Some(_)) = (self.phase(id), failed) {
            return self.decided(&turn, id, false);
        }
        self.runs(id, now);
        let Some(call) = self.work.calls.remove(id) else { return };
        if !matches!(self.phase(id), Some(ToolCallState::Running(_))) {
            // A client has denied it.
            return;
        }
        let content = messages::call_content(&call.content, &call.output, false);
        let mut result =
            json!({ "success": failed.is_none(), "pastTenseMessage": call.title, "content": content });
        if let Some(why) = failed {
            result["error"] = json!({ "message": why });
        }
        self.act(json!({
            "type": "chat/toolCallComplete", "turnId": turn, "toolCallId": id, "result": result,
        }));
    }

    /// The decision about a call was made elsewhere.
    fn decided(&mut self, turn: &str, id: &str, approved: bool) {
        self.work.cards.remove(id);
        let (confirmed, reason) = if approved { (Some("user-action"), None) } else { (None, Some("denied")) };
        self.act(json!({
            "type": "chat/toolCallConfirmed", "turnId": turn, "toolCallId": id, "approved": approved,
            "confirmed": confirmed, "reason": reason,
        }));
    }

    fn show_content(&mut self, id: &str) {
        let Some(ToolCallState::Running(running)) = self.phase(id) else { return };
        let (Some(active), Some(call)) = (&self.chat.active_turn, self.work.calls.get(id)) else { return };
        let content = messages::call_content(&call.content, &call.output, true);
        if running.content.as_deref().unwrap_or_default() != content {
            self.act(json!({
                "type": "chat/toolCallContentChanged", "turnId": active.id, "toolCallId": id,
                "content": content,
            }));
        }
    }

    /// Output of a terminal: what follows or, if it `replaces`, all of it. The terminal of a call has the call's id. Of what
    /// an earlier call still writes, nothing is shown.
    pub(super) fn terminal(&mut self, update: &Value, replaces: bool) {
        let data = if replaces { &update["output"]["data"] } else { &update["data"] };
        let (Some(id), Some(data)) = (update["terminalId"].as_str(), data.as_str()) else { return };
        let Some(call) = self.work.calls.get_mut(id) else { return };
        let Ok(bytes) = STANDARD.decode(data) else { return };
        if replaces {
            call.output.clear();
        }
        call.output.extend(bytes);
        let excess = call.output.len().saturating_sub(OUTPUT_BYTES_MAX);
        call.output.drain(..excess);
        self.show_content(id);
    }

    /// The daemon asks for permission. Returns whether clients can be asked; if not, its other windows can.
    pub fn ask(&mut self, request: Value, params: &Value, now: Timestamp) -> bool {
        let call = &params["subject"]["toolCall"];
        let Some(id) = call["toolCallId"].as_str().filter(|_| params["subject"]["type"] == "tool_call")
        else {
            return false;
        };
        if self.work.draining || !self.announce(id, call, Some("pending"), now) {
            return false;
        }
        let options: Vec<ConfirmationOption> =
            params["options"].as_array().into_iter().flatten().filter_map(confirmation_option).collect();
        let turn = self.turn(id, now);
        let Some(known) = self.work.calls.get(id) else { return false };
        let shown = messages::card(&known.title, &known.content);
        let title = params["title"].as_str().unwrap_or(&known.title);
        let asks = json!({
            "type": "chat/toolCallReady", "turnId": turn, "toolCallId": id, "confirmationTitle": title,
            "invocationMessage": { "markdown": shown }, "toolInput": known.shown_input(), "options": options,
        });
        self.work.cards.insert(id.to_owned(), CallCard { request, options });
        self.act(asks);
        true
    }

    /// The daemon no longer waits for an answer. The fate of the call follows.
    pub fn withdraw(&mut self, request: &Value) -> bool {
        let cards = self.work.cards.len();
        self.work.cards.retain(|_, card| card.request != *request);
        self.work.cards.len() < cards
    }
}

fn confirmation_option(option: &Value) -> Option<ConfirmationOption> {
    let kind = option["kind"].as_str()?;
    Some(ConfirmationOption {
        id: option["optionId"].as_str()?.to_owned(),
        label: option["name"].as_str()?.to_owned(),
        kind: match kind {
            "allow_once" | "allow_always" => ConfirmationOptionKind::Approve,
            _ => ConfirmationOptionKind::Deny,
        },
        group: None,
    })
}
