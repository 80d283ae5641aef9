//! Interprets the exit code, stdout and stderr of a Claude Code hook. Pure.
//!
//! With exit code 0, a JSON object is read field by field; any other text is context if the event uses
//! context. Exit code 2 blocks what the event can block, with stderr as the reason. Any other end is a
//! failure, and work continues.

use serde_json::{Map, Value};

use super::claude_payload::event_name;
use super::claude_tools::{ours, output_text, theirs};
use super::event::HookEvent;
use super::moment::{Moment, What};
use super::output::{Exit, HookOutput, PermissionDecision, Utterance};
use epitome_thread::Role;

/// The reason if a hook gives none.
const NO_REASON: &str = "A hook stopped this without a reason.";

/// Interprets a run of a hook that registered for the event under the name `registered`; `None` if the run
/// failed.
pub fn normalise(
    registered: &str,
    moment: &Moment,
    exit: Exit,
    stdout: &[u8],
    stderr: &str,
) -> Option<HookOutput> {
    let event = moment.what.event();
    match exit {
        Exit::Code(0) => Some(read(event, registered, moment, &String::from_utf8_lossy(stdout))),
        Exit::Code(2) => Some(blocked(event, stderr.trim())),
        Exit::Code(_) | Exit::Signal(_) | Exit::TimedOut(_) => None,
    }
}

fn read(event: HookEvent, registered: &str, moment: &Moment, stdout: &str) -> HookOutput {
    let stdout = stdout.trim();
    if !stdout.starts_with('{') {
        return plain(event, moment, stdout);
    }
    match serde_json::from_str::<Map<String, Value>>(stdout) {
        Ok(fields) => Fields { event, registered, moment, output: HookOutput::default() }.read(&fields),
        Err(error) => {
            let mut output = plain(event, moment, stdout);
            output.warnings.push(format!("its output begins like JSON but is not: {error}"));
            output
        }
    }
}

/// Text on stdout that is not JSON.
fn plain(event: HookEvent, moment: &Moment, text: &str) -> HookOutput {
    let mut output = HookOutput::default();
    if text.is_empty() {
        return output;
    }
    match event {
        HookEvent::UserMessageSend | HookEvent::SessionStart => output.context.push(text.to_owned()),
        HookEvent::PreCompact => {
            let before = match &moment.what {
                What::PreCompact { custom_instructions, .. } => custom_instructions.as_deref(),
                What::SessionStart { .. }
                | What::UserMessageSend { .. }
                | What::BeforeToolCall(_)
                | What::AfterToolCall { .. }
                | What::TurnEnd(_)
                | What::AgentStop { .. }
                | What::PostCompact { .. }
                | What::SessionEnd { .. } => None,
            };
            let before = before.map(str::trim).filter(|before| !before.is_empty());
            output.custom_instructions =
                Some(before.map_or(text.to_owned(), |before| format!("{before}\n\n{text}")));
        }
        HookEvent::BeforeToolCall
        | HookEvent::AfterToolCall
        | HookEvent::TurnEnd
        | HookEvent::AgentStop
        | HookEvent::PostCompact
        | HookEvent::SessionEnd => {}
    }
    output
}

/// The effect of `decision: block` and of exit code 2, by event.
fn blocked(event: HookEvent, reason: &str) -> HookOutput {
    let given = (!reason.is_empty()).then(|| reason.to_owned());
    let reason = given.clone().unwrap_or_else(|| NO_REASON.to_owned());
    let mut output = HookOutput::default();
    match event {
        HookEvent::BeforeToolCall => {
            output.decision = Some(PermissionDecision::Deny);
            output.decision_reason = Some(reason);
        }
        HookEvent::UserMessageSend | HookEvent::PreCompact => output.block = Some(given),
        HookEvent::AfterToolCall => output.context.push(reason),
        HookEvent::AgentStop => output.follow_ups.push(Utterance { role: Role::User, text: reason }),
        // Nothing can be blocked here: show the reason to the user.
        HookEvent::SessionStart | HookEvent::TurnEnd | HookEvent::PostCompact | HookEvent::SessionEnd => {
            output.notice = given;
        }
    }
    output
}

struct Fields<'a> {
    event: HookEvent,
    registered: &'a str,
    moment: &'a Moment,
    output: HookOutput,
}

impl Fields<'_> {
    fn read(mut self, fields: &Map<String, Value>) -> HookOutput {
        if self.flag(fields, "async") == Some(true) {
            self.warn("`async` is not followed: its end was waited for");
        }
        let reason = self.text(fields, "reason");
        if let Some(decision) = self.text(fields, "decision") {
            self.decide(&decision, reason.clone());
        }
        if let Some(special) = self.object(fields, "hookSpecificOutput") {
            self.special(&special);
        }
        if let Some(message) = self.text(fields, "systemMessage") {
            self.output.notice = Some(message);
        }
        if self.flag(fields, "continue") == Some(false) {
            let why = self.text(fields, "stopReason").or(reason).unwrap_or_else(|| NO_REASON.to_owned());
            self.output.halt = Some(why);
            // Ending the turn takes precedence over continuing.
            self.output.follow_ups.clear();
        }
        self.output
    }

    fn decide(&mut self, decision: &str, reason: Option<String>) {
        match decision {
            "block" => {
                let told = blocked(self.event, reason.as_deref().unwrap_or_default());
                self.output = HookOutput { warnings: std::mem::take(&mut self.output.warnings), ..told };
            }
            "approve" if self.event == HookEvent::BeforeToolCall => {
                self.output.decision = Some(PermissionDecision::Allow);
                self.output.decision_reason = reason;
            }
            "approve" => {}
            other => self.warn(&format!("`decision` is `{other}`, not `approve` or `block`")),
        }
    }

    fn special(&mut self, special: &Map<String, Value>) {
        if let Some(name) = self.text(special, "hookEventName")
            && name != self.registered
            && Some(name.as_str()) != event_name(self.moment)
        {
            let registered = self.registered;
            return self.warn(&format!(
                "`hookSpecificOutput` is for `{name}`, not for `{registered}`, and is not followed"
            ));
        }
        if let Some(context) = self.text(special, "additionalContext") {
            self.context(context);
        }
        match &self.moment.what {
            What::BeforeToolCall(call) => {
                if let Some(decision) = self.text(special, "permissionDecision") {
                    self.permission(&decision);
                }
                if let Some(reason) = self.text(special, "permissionDecisionReason") {
                    self.output.decision_reason = Some(reason);
                }
                // An input returned unchanged is not a change.
                if let Some(input) = self.object(special, "updatedInput")
                    && input != theirs(call, &self.moment.base.cwd)
                {
                    self.output.input = Some(ours(&call.tool, &input));
                }
            }
            What::AfterToolCall { .. } => {
                let updated = ["updatedToolOutput", "updatedMCPToolOutput"];
                let updated =
                    updated.iter().find_map(|key| special.get(*key).filter(|value| !value.is_null()));
                self.output.output_text = updated.map(output_text);
            }
            What::SessionStart { .. } if special.contains_key("initialUserMessage") => {
                self.warn("`initialUserMessage` is not followed");
            }
            What::SessionStart { .. }
            | What::UserMessageSend { .. }
            | What::TurnEnd(_)
            | What::AgentStop { .. }
            | What::PreCompact { .. }
            | What::PostCompact { .. }
            | What::SessionEnd { .. } => {}
        }
    }

    fn permission(&mut self, decision: &str) {
        self.output.decision = match decision {
            "allow" => Some(PermissionDecision::Allow),
            "ask" => Some(PermissionDecision::Ask),
            "deny" => Some(PermissionDecision::Deny),
            // `defer` leaves the decision to the caller of a headless run, which does not exist here.
            "defer" => return self.warn("`permissionDecision` `defer` is not followed"),
            other => {
                return self
                    .warn(&format!("`permissionDecision` is `{other}`, not `allow`, `ask` or `deny`"));
            }
        };
    }

    /// Text for the model: additional context or, at a stop, a message to continue with.
    fn context(&mut self, text: String) {
        match self.event {
            HookEvent::AgentStop => self.output.follow_ups.push(Utterance { role: Role::User, text }),
            HookEvent::SessionStart
            | HookEvent::UserMessageSend
            | HookEvent::BeforeToolCall
            | HookEvent::AfterToolCall => self.output.context.push(text),
            HookEvent::TurnEnd | HookEvent::PreCompact | HookEvent::PostCompact | HookEvent::SessionEnd => {
                self.warn(&format!("`{}` has no `additionalContext`", self.registered));
            }
        }
    }

    fn text(&mut self, fields: &Map<String, Value>, key: &str) -> Option<String> {
        match fields.get(key)? {
            Value::Null => None,
            Value::String(text) => (!text.trim().is_empty()).then(|| text.clone()),
            Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
                self.warn(&format!("`{key}` is not a text"));
                None
            }
        }
    }

    fn flag(&mut self, fields: &Map<String, Value>, key: &str) -> Option<bool> {
        match fields.get(key)? {
            Value::Null => None,
            Value::Bool(flag) => Some(*flag),
            Value::String(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
                self.warn(&format!("`{key}` is not true or false"));
                None
            }
        }
    }

    fn object(&mut self, fields: &Map<String, Value>, key: &str) -> Option<Map<String, Value>> {
        match fields.get(key)? {
            Value::Null => None,
            Value::Object(object) => Some(object.clone()),
            Value::Bool(_) | Value::String(_) | Value::Number(_) | Value::Array(_) => {
                self.warn(&format!("`{key}` is not an object"));
                None
            }
        }
    }

    fn warn(&mut self, sentence: &str) {
        self.output.warnings.push(sentence.to_owned());
    }
}
