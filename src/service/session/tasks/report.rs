//! The results of an agent: its final message for the model and the user, its figures for programs, and its
//! complete transcript. Pure.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::child::{ChildError, ChildOutcome};
use epitome_config::Settings;
use epitome_provider::spent::{call_of, cost_of_change};
use epitome_thread::{Change, Entry, OutcomeStatus, StopReason, ToolDisplay, Usage, text};
use epitome_tools::task::TaskRequest;
use epitome_tools::{ToolResult, truncate};

/// Maximum bytes of an agent's transcript in the log.
const TRANSCRIPT_BYTES_MAX: usize = 512 * 1024;

pub(super) struct AgentReport<'a> {
    pub agent: &'a str,
    pub request: &'a TaskRequest,
    pub settings: &'a Settings,
    /// A remark for the user about how it was started.
    pub remark: Option<String>,
}

impl AgentReport<'_> {
    pub(super) fn result(
        self,
        ran: Result<ChildOutcome, ChildError>,
        entries: &[Arc<Entry>],
        took: Duration,
    ) -> ToolResult {
        let (reply, stopped_by, reason, failure) = match ran {
            Ok(outcome) => (outcome.text, outcome.stopped_by, Some(outcome.reason), outcome.failure),
            Err(error) => (String::new(), None, None, Some(error.to_string())),
        };
        let mut notes = Vec::new();
        if let Some(bound) = stopped_by {
            notes.push(format!(
                "The agent reached its limit of {} and was stopped before it was done.",
                bound.what()
            ));
        }
        if reason == Some(StopReason::MaxTokens) {
            notes.push("Its last message was cut off at its model's output limit.".to_owned());
        }
        if let Some(why) = &failure {
            notes.push(format!("The agent {} did not finish: {}.", self.agent, why.trim_end_matches('.')));
        }
        notes.extend(self.remark);
        let reply = match reply.trim() {
            "" => "The agent said nothing.".to_owned(),
            reply => reply.to_owned(),
        };
        let notes: String = notes.iter().map(|note| format!("\n\n[{note}]")).collect();
        let reply = format!("{reply}{notes}");
        let ended = match (stopped_by, &failure) {
            (Some(bound), _) => bound.id(),
            (None, Some(_)) if reason == Some(StopReason::Cancelled) => "cancelled",
            (None, Some(_)) => "failed",
            (None, None) => "done",
        };
        let mut usage = Usage::default();
        let mut cost = None;
        let mut model = None;
        for entry in entries {
            if let Some((called, spent)) = call_of(&entry.change) {
                usage.add(spent);
                model = model.or(Some(called.clone()));
            }
            if let Some(dollars) = cost_of_change(self.settings, &entry.change) {
                *cost.get_or_insert(0.0) += dollars;
            }
        }
        let count = |is: fn(&Change) -> bool| entries.iter().filter(|entry| is(&entry.change)).count();
        let raw = json!({
            "agent": self.agent,
            "model": model.map(|model| model.0),
            "ended": ended,
            "rounds": count(|change| matches!(change, Change::Replied { .. })),
            "calls": count(|change| matches!(change, Change::ToolFinished { .. })),
            "compactions": count(|change| matches!(change, Change::Compacted { .. })),
            "seconds": took.as_secs_f64(),
            "tokens": {
                "input": usage.input,
                "output": usage.output,
                "cacheRead": usage.cache_read,
                "cacheWrite": usage.cache_write,
                "thinking": usage.thinking,
            },
            "cost": cost.map(text::rounded_dollars),
        });
        ToolResult {
            status: if failure.is_some() { OutcomeStatus::Failed } else { OutcomeStatus::Completed },
            shown: vec![ToolDisplay::Text { text: reply.clone() }],
            whole: Some(transcript(self.request, entries)),
            raw: Some(raw),
            ..ToolResult::completed(reply)
        }
    }
}

/// What an agent said last, as a paragraph; empty if it said nothing.
pub(crate) fn last_words(entries: &[Arc<Entry>]) -> String {
    let said = entries.iter().rev().find_map(|entry| match &entry.change {
        Change::Replied { message, .. } => Some(message.text()).filter(|text| !text.trim().is_empty()),
        _ => None,
    });
    said.map(|said| format!("{}\n\n", said.trim())).unwrap_or_default()
}

/// An agent's transcript from its task to its last message, as Markdown; of a long one the beginning and the end.
pub(crate) fn transcript(request: &TaskRequest, entries: &[Arc<Entry>]) -> String {
    // The first prompt repeats the task.
    let begun = entries.iter().position(|entry| matches!(entry.change, Change::Said { .. }));
    let work = text::markdown_of(&entries[begun.map_or(0, |at| at + 1)..]);
    let whole = format!("# {}\n\n## Task\n\n{}\n{work}", request.description.trim(), request.prompt.trim());
    truncate::head_and_tail(&whole, TRANSCRIPT_BYTES_MAX, TRANSCRIPT_BYTES_MAX / 4, truncate::KEPT_NOWHERE)
}
