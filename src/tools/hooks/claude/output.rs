//! Interprets the exit code, stdout and stderr of a Claude Code hook. Pure.
//!
//! With exit code 0, a JSON object is read field by field; any other text is context if the event uses
//! context. Exit code 2 blocks what the event can block, with stderr as the reason. Any other exit is a
//! failure, and work continues.

use serde_json::{Map, Value};

use super::payload::event_name;
use super::tools::{output_text, to_claude_input, to_our_input};
use crate::event::HookEvent;
use crate::fields::ObjectFields;
use crate::hook_context::{EventData, HookContext};
use crate::output::{HookOutput, PermissionDecision, ProcessExit, Utterance};
use crate::read::parsed;
use epitome_thread::{Role, terminal_text};

/// The reason if a hook gives none.
const NO_REASON: &str = "A hook stopped this without a reason.";

/// Interprets a run of a hook that registered for the event under the name `registered`. Returns `None` if the run
/// failed.
pub fn normalise(
    registered: &str,
    hook_context: &HookContext,
    exit: ProcessExit,
    stdout: &[u8],
    stderr: &str,
) -> Option<HookOutput> {
    let event = hook_context.what.event();
    match exit {
        ProcessExit::Code(0) => Some(read(event, registered, hook_context, &String::from_utf8_lossy(stdout))),
        ProcessExit::Code(2) => Some(blocked(event, stderr.trim())),
        ProcessExit::Code(_) | ProcessExit::Signal(_) | ProcessExit::TimedOut(_) => None,
    }
}

/// The output of a hook that ended in the background, when it can no longer decide anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LateOutput {
    /// A line for the user.
    pub notice: Option<String>,
    /// Context for the model.
    pub context: Option<String>,
}

/// Reads the output of a hook that ended in the background: `systemMessage` and `additionalContext` of a JSON object,
/// and stderr with exit code 2. Returns `None` if there is neither.
pub fn late_output(exit: ProcessExit, stdout: &[u8], stderr: &str) -> Option<LateOutput> {
    let (notice, context) = match exit {
        ProcessExit::Code(0) => {
            let stdout = String::from_utf8_lossy(stdout);
            let object: Map<String, Value> = parsed(stdout.trim()).and_then(serde_json::from_value).ok()?;
            let mut fields = ObjectFields::new("", &object);
            let special = fields.object("hookSpecificOutput");
            let context =
                special.and_then(|special| ObjectFields::new("", special).text("additionalContext"));
            (fields.text("systemMessage"), context)
        }
        ProcessExit::Code(2) => (None, Some(stderr.trim().to_owned()).filter(|said| !said.is_empty())),
        ProcessExit::Code(code) => (Some(format!("it ended in the background with code {code}")), None),
        ProcessExit::Signal(_) | ProcessExit::TimedOut(_) => {
            (Some("it was ended in the background".to_owned()), None)
        }
    };
    (notice.is_some() || context.is_some()).then_some(LateOutput { notice, context })
}

fn read(event: HookEvent, registered: &str, hook_context: &HookContext, stdout: &str) -> HookOutput {
    let stdout = stdout.trim();
    if !stdout.starts_with('{') {
        return plain(event, hook_context, stdout);
    }
    match parsed(stdout).and_then(serde_json::from_value::<Map<String, Value>>) {
        Ok(object) => {
            let mut reader =
                ClaudeOutputReader { event, registered, hook_context, output: HookOutput::default() };
            let mut fields = ObjectFields::new("", &object);
            reader.read(&mut fields);
            reader.output.warnings.extend(fields.into_warnings());
            reader.output
        }
        Err(error) => {
            let mut output = plain(event, hook_context, stdout);
            output.warnings.push(format!("its output begins like JSON but is not: {error}"));
            output
        }
    }
}

/// Text on stdout that is not JSON.
fn plain(event: HookEvent, hook_context: &HookContext, text: &str) -> HookOutput {
    let mut output = HookOutput::default();
    if text.is_empty() {
        return output;
    }
    let text = terminal_text::plain(text.to_owned());
    match event {
        HookEvent::UserMessageSend | HookEvent::SessionStart => output.context.push(text),
        HookEvent::PreCompact => {
            let EventData::PreCompact { custom_instructions, .. } = &hook_context.what else { return output };
            let before = custom_instructions.as_deref().map(str::trim).filter(|before| !before.is_empty());
            output.custom_instructions =
                Some(before.map_or_else(|| text.clone(), |before| format!("{before}\n\n{text}")));
        }
        // The other events use no text.
        _ => {}
    }
    output
}

/// The effect of `decision: block` and of exit code 2, by event.
fn blocked(event: HookEvent, reason: &str) -> HookOutput {
    let given = (!reason.is_empty()).then(|| reason.to_owned());
    let reason = given.clone().unwrap_or_else(|| NO_REASON.to_owned());
    let mut output = HookOutput::default();
    match event {
        HookEvent::BeforeToolCall | HookEvent::PermissionRequest => {
            output.decision = Some(PermissionDecision::Deny);
            output.decision_reason = Some(reason);
        }
        HookEvent::UserMessageSend | HookEvent::PreCompact => output.block = Some(given),
        HookEvent::AfterToolCall | HookEvent::TaskCompleted => output.context.push(reason),
        HookEvent::AgentStop => output.follow_ups.push(Utterance { role: Role::User, text: reason }),
        // Nothing can be blocked here: show the reason to the user.
        HookEvent::SessionStart
        | HookEvent::TurnEnd
        | HookEvent::PostCompact
        | HookEvent::SessionEnd
        | HookEvent::TurnFailed
        | HookEvent::Notification
        | HookEvent::SubagentStart => output.notice = given,
    }
    output
}

struct ClaudeOutputReader<'a> {
    event: HookEvent,
    registered: &'a str,
    hook_context: &'a HookContext,
    output: HookOutput,
}

impl ClaudeOutputReader<'_> {
    fn read(&mut self, fields: &mut ObjectFields<'_>) {
        // `AsideHooks` moves a hook with `async: true` to the background; any other value is reported here.
        let _ = fields.optional_flag("async");
        let reason = fields.text("reason");
        if let Some(decision) = fields.text("decision") {
            match decision.as_str() {
                "block" => self.output = blocked(self.event, reason.as_deref().unwrap_or_default()),
                "approve" if self.event == HookEvent::BeforeToolCall => {
                    self.output.decision = Some(PermissionDecision::Allow);
                    self.output.decision_reason = reason.clone();
                }
                "approve" => {}
                _ => fields.warn_value("decision", &decision, "approve or block"),
            }
        }
        if let Some(special) = fields.object("hookSpecificOutput") {
            let mut special_fields = ObjectFields::new("hookSpecificOutput", special);
            self.special(&mut special_fields);
            fields.take_warnings(special_fields);
        }
        if let Some(message) = fields.text("systemMessage") {
            self.output.notice = Some(message);
        }
        if fields.optional_flag("continue") == Some(false) {
            let why = fields.text("stopReason").or(reason).unwrap_or_else(|| NO_REASON.to_owned());
            self.output.halt = Some(why);
            // Ending the turn takes precedence over continuing.
            self.output.follow_ups.clear();
        }
    }

    fn special(&mut self, fields: &mut ObjectFields<'_>) {
        if let Some(name) = fields.text("hookEventName")
            && name != self.registered
            && Some(name.as_str()) != event_name(self.hook_context)
        {
            let registered = self.registered;
            return fields.warn(format!(
                "`hookSpecificOutput` is for `{name}`, not for `{registered}`, and is ignored"
            ));
        }
        if let Some(context) = fields.text("additionalContext") {
            self.context(context, fields);
        }
        match &self.hook_context.what {
            EventData::BeforeToolCall(call) => {
                if let Some(decision) = fields.text("permissionDecision") {
                    self.output.decision = permission(&decision, fields);
                }
                if let Some(reason) = fields.text("permissionDecisionReason") {
                    self.output.decision_reason = Some(reason);
                }
                // An input returned unchanged is not a change.
                if let Some(input) = fields.object("updatedInput")
                    && *input != to_claude_input(call, &self.hook_context.base.cwd)
                {
                    self.output.input = Some(to_our_input(&call.tool, input));
                }
            }
            EventData::PermissionRequest(_) => self.answer(fields),
            EventData::AfterToolCall { .. } => {
                let updated = fields.any("updatedToolOutput").or_else(|| fields.any("updatedMCPToolOutput"));
                self.output.output_text = updated.map(output_text);
            }
            EventData::SessionStart { .. } if fields.any("initialUserMessage").is_some() => {
                fields.warn("`initialUserMessage` is not supported".to_owned());
            }
            _ => {}
        }
    }

    /// The answer to a permission request: `decision: {behavior, message}`.
    fn answer(&mut self, fields: &mut ObjectFields<'_>) {
        let Some(decision) = fields.object("decision") else { return };
        let mut inner = ObjectFields::new("decision", decision);
        match inner.text("behavior").as_deref() {
            Some("allow") => self.output.decision = Some(PermissionDecision::Allow),
            Some("deny") => self.output.decision = Some(PermissionDecision::Deny),
            Some(other) => inner.warn_value("behavior", other, "allow or deny"),
            None => {}
        }
        self.output.decision_reason = inner.text("message");
        for name in ["updatedInput", "updatedPermissions"] {
            if inner.any(name).is_some() {
                inner.warn(format!("`{name}` is not supported"));
            }
        }
        fields.take_warnings(inner);
    }

    /// Text for the model: additional context or, at a stop, a message to continue with.
    fn context(&mut self, text: String, fields: &mut ObjectFields<'_>) {
        match self.event {
            HookEvent::AgentStop => self.output.follow_ups.push(Utterance { role: Role::User, text }),
            HookEvent::SessionStart
            | HookEvent::UserMessageSend
            | HookEvent::BeforeToolCall
            | HookEvent::AfterToolCall
            | HookEvent::TaskCompleted => self.output.context.push(text),
            HookEvent::TurnEnd
            | HookEvent::PreCompact
            | HookEvent::PostCompact
            | HookEvent::SessionEnd
            | HookEvent::TurnFailed
            | HookEvent::PermissionRequest
            | HookEvent::Notification
            | HookEvent::SubagentStart => {
                fields.warn(format!("`{}` has no `additionalContext`", self.registered));
            }
        }
    }
}

fn permission(decision: &str, fields: &mut ObjectFields<'_>) -> Option<PermissionDecision> {
    let known = PermissionDecision::parse(decision);
    match decision {
        _ if known.is_some() => {}
        // It leaves the decision to the caller of a headless run, which does not exist in Epitome.
        "defer" => fields.warn("`permissionDecision` `defer` is not supported".to_owned()),
        _ => fields.warn_value("permissionDecision", decision, "allow, ask or deny"),
    }
    known
}
