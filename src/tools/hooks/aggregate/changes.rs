//! Changes that a hook makes to the hook context itself, which later hooks see.

use serde_json::{Map, Value};

use super::{Aggregate, RunRecord};
use crate::hook_context::{EventData, HookCallResult};
use crate::output::{PermissionDecision, ResultChange};
use crate::words;
use epitome_thread::{FOREIGN_DEPTH_MAX, is_deeper};

impl Aggregate {
    /// Why a change is refused: it was based on the hook context before a change by a concurrent hook.
    fn conflict(&self) -> Option<String> {
        let by = self.changed_by.as_ref().filter(|_| self.is_concurrent)?;
        Some(format!("{by}, which ran at the same time, was first"))
    }

    pub(super) fn input(&mut self, input: Map<String, Value>, account: &mut RunRecord) {
        let conflict = self.conflict();
        let EventData::BeforeToolCall(call) = &mut self.hook_context.what else { return };
        if call.input == input {
            return;
        }
        if let Some(why) = conflict {
            return account.refused("changed input", why);
        }
        if input.values().any(|value| is_deeper(value, FOREIGN_DEPTH_MAX - 1)) {
            let why = format!("it has more than {FOREIGN_DEPTH_MAX} levels of nesting");
            return account.refused("changed input", why);
        }
        if let Some(Err(why)) = self.takes.as_ref().map(|takes| (takes.0)(&input)) {
            let tool = &call.tool;
            let why =
                format!("the changed input is not one that {tool} takes, so the call keeps its own: {why}");
            return account.refused("changed input", why);
        }
        call.input = input.clone();
        account.done("changed input");
        // The hook that allowed the call saw a different input.
        if let Some((PermissionDecision::Allow, by, _)) = &self.resolution.decision
            && *by != account.hook
        {
            account.remarks.push(format!("{by} allowed the call with another input, which no longer counts"));
            self.resolution.decision = None;
        }
        self.resolution.input = Some((input, account.hook.clone()));
        self.changed_by = Some(account.hook.clone());
    }

    pub(super) fn message(&mut self, text: String, account: &mut RunRecord) {
        let conflict = self.conflict();
        let EventData::UserMessageSend { message, .. } = &mut self.hook_context.what else { return };
        if *message == text {
            return;
        }
        if let Some(why) = conflict {
            return account.refused("changed message", why);
        }
        message.clone_from(&text);
        account.done("changed message");
        self.resolution.message = Some(text);
        self.changed_by = Some(account.hook.clone());
    }

    pub(super) fn instructions(&mut self, text: String, account: &mut RunRecord) {
        let EventData::PreCompact { custom_instructions, .. } = &mut self.hook_context.what else { return };
        if custom_instructions.as_deref() == Some(text.as_str()) {
            return;
        }
        *custom_instructions = Some(text.clone());
        account.done("changed instructions");
        self.resolution.custom_instructions = Some(text);
    }

    pub(super) fn context(&mut self, texts: Vec<String>, account: &mut RunRecord) {
        if texts.is_empty() {
            return;
        }
        account.done("add context");
        for mut text in texts {
            let size = text.len();
            if size > self.context_room {
                let most = words::CONTEXT_BYTES_MAX / 1024;
                account.remarks.push(format!(
                    "its context of {size} bytes was cut: the hooks of one event may add {most} KiB"
                ));
            }
            words::cut(&mut text, self.context_room);
            self.context_room = self.context_room.saturating_sub(size);
            match &mut self.hook_context.what {
                // A tool result is one text for the model, so the note becomes part of it.
                EventData::AfterToolCall { result, .. } => {
                    result.text.push_str(&format!("\n\n{}", words::note(&account.hook, &text)));
                    self.resolution.result = Some(result.clone());
                    continue;
                }
                EventData::PreCompact { context, .. } => context.push(text.clone()),
                _ => {}
            }
            self.resolution.context.push((account.hook.clone(), text));
        }
    }

    pub(super) fn result(
        &mut self,
        change: Option<ResultChange>,
        text: Option<String>,
        account: &mut RunRecord,
    ) {
        let conflict = self.conflict();
        let EventData::AfterToolCall { result, .. } = &mut self.hook_context.what else { return };
        let gives_metadata = change.as_ref().is_some_and(|change| change.metadata.is_some());
        let mut changed = change.map_or_else(|| result.clone(), |change| changed(result, change));
        if let Some(text) = text {
            changed.text = text;
        }
        // The metadata repeats what the text no longer has.
        if !gives_metadata && !changed.text.starts_with(&result.text) {
            changed.metadata = None;
        }
        if changed == *result {
            return;
        }
        if let Some(why) = conflict {
            return account.refused("changed output", why);
        }
        account.done("changed output");
        *result = changed.clone();
        self.resolution.result = Some(changed);
        self.changed_by = Some(account.hook.clone());
    }
}

/// Applies a hook's change to a tool result.
///
/// A result that becomes a success loses its error unless the hook gave one. If the error or the metadata
/// changed, the text for the model is derived from them, so that it contains nothing that the hook removed:
/// for a failure the error; otherwise the metadata's `output` or `text`, or the metadata if it is a string;
/// otherwise the metadata as JSON. A hook that wants a different text sets `output_text`.
///
/// A result with nothing but its success replaces everything, as kodelet's does.
fn changed(result: &HookCallResult, change: ResultChange) -> HookCallResult {
    if let ResultChange { success: Some(success), error: None, metadata: None, metadata_type } = change {
        let metadata_type = metadata_type.or_else(|| result.metadata_type.clone());
        let (error, metadata, text) = (None, None, words::REPLACED.to_owned());
        return HookCallResult { success, error, metadata_type, metadata, text, ..result.clone() };
    }
    let success = change.success.unwrap_or(result.success);
    let error = match change.error {
        Some(error) => Some(error).filter(|error| !error.is_empty()),
        None if success && change.success == Some(true) => None,
        None => result.error.clone(),
    };
    let metadata = change.metadata.or_else(|| result.metadata.clone());
    let same = error == result.error && metadata == result.metadata;
    let text = match (&error, &metadata) {
        _ if same => result.text.clone(),
        (Some(error), _) if !success => error.clone(),
        (_, Some(metadata)) => words::metadata(metadata),
        (Some(error), None) => error.clone(),
        (None, None) => result.text.clone(),
    };
    HookCallResult {
        success,
        error,
        metadata_type: change.metadata_type.or_else(|| result.metadata_type.clone()),
        metadata,
        text,
        ..result.clone()
    }
}
