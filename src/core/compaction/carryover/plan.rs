//! The plan: the steps of todo tools (Epitome's and those of imported sessions), and the last approved plan.

use serde_json::{Value, json};

use super::files::changes_a_file;
use super::git::commits_of;
use super::history::{CallRecord, CallStatus, ConversationHistory};
use super::quote::{BoundedLines, clip, clip_line, noted};
use super::{Facts, LostKind, Render};
use epitome_thread::Seq;

/// Bytes of a step, and of a completed step.
const STEP_BYTES_MAX: usize = 400;
const DONE_BYTES_MAX: usize = 110;

/// Largest share of the plan's room for the text of an approved plan, in percent.
const APPROVED_PERCENT: usize = 45;

struct TrackedStep {
    /// The id used by `TaskUpdate`; empty for tools that always send the complete list.
    id: String,
    status: String,
    text: String,
}

impl TrackedStep {
    fn is_done(&self) -> bool {
        matches!(self.status.as_str(), "completed" | "done" | "cancelled")
    }
}

/// The current steps, and the last approved plan with its entry.
type PlanState = (Vec<TrackedStep>, PlanAge, Option<(Seq, String)>);

/// When the steps were last updated, and what was done since: work may have overtaken them.
#[derive(Default)]
struct PlanAge {
    updated: Option<Seq>,
    commits: usize,
    edits: usize,
}

impl PlanAge {
    /// A line about the age; `None` if nothing was done since.
    fn line(&self, history: &ConversationHistory<'_>) -> Option<String> {
        let counted = |(count, what)| match count {
            0 => None,
            1 => Some(format!("1 {what}")),
            count => Some(format!("{count} {what}s")),
        };
        let since = [(self.commits, "commit"), (self.edits, "edit")];
        let since: Vec<String> = since.into_iter().filter_map(counted).collect();
        let updated = self.updated.filter(|_| !since.is_empty())?;
        Some(format!("(last updated{}; since then {})", history.place(" in ", updated), since.join(" and ")))
    }
}

fn state(history: &ConversationHistory<'_>) -> PlanState {
    let mut steps: Vec<TrackedStep> = Vec::new();
    let mut age = PlanAge::default();
    let mut approved = None;
    for call in &history.calls {
        match call.is_planning() {
            true => age = PlanAge { updated: Some(call.entry), ..PlanAge::default() },
            false => {
                age.commits += commits_of(call);
                age.edits += usize::from(call.status == CallStatus::Succeeded && changes_a_file(call));
            }
        }
        let tool = call.name.to_ascii_lowercase();
        match tool.as_str() {
            "taskcreate" => steps.push(created(call, steps.len())),
            "taskupdate" => update(call, &mut steps),
            "exitplanmode" | "exit_plan_mode" if call.status == CallStatus::Succeeded => {
                approved = Some((call.entry, call.input_text(&["plan"]).unwrap_or(call.text()).to_owned()));
            }
            _ if tool.contains("todo") || tool.contains("plan") => {
                if let Some(list) = listed(&call.input) {
                    steps = list;
                }
            }
            _ => {}
        }
    }
    // Epitome's plan tool takes precedence: its steps are the plan in the log.
    if !history.plan.is_empty() {
        steps = listed(&json!({ "plan": history.plan })).unwrap_or_default();
    }
    (steps, age, approved)
}

/// The steps of the plan that are not done.
pub(super) fn open_steps(history: &ConversationHistory<'_>) -> Facts {
    let steps = state(history).0.into_iter().filter(|step| !step.is_done());
    steps.map(|step| (LostKind::Step, None, step.text)).collect()
}

pub(super) fn compute<'a>(history: &ConversationHistory<'a>) -> Render<'a> {
    let (steps, age, approved) = state(history);
    let approved = approved.map(|(entry, text)| (noted([history.place("", entry)]), text));
    let age = age.line(history).filter(|_| steps.iter().any(|step| !step.is_done()));
    Box::new(move |bytes_max| {
        let mut lines = BoundedLines::within(bytes_max);
        let mut left_out = 0;
        if let Some(age) = &age {
            lines.push(age.clone());
        }
        for step in steps.iter().filter(|step| !step.is_done()) {
            let line = format!("- [{}] {}", step.status, clip_line(&step.text, STEP_BYTES_MAX));
            left_out += usize::from(!lines.push(line));
        }
        if left_out > 0 {
            lines.push(format!("- … and {left_out} more open steps"));
        }
        if let Some((place, text)) = &approved {
            let head = format!("Approved plan{place}:\n");
            let room = (bytes_max * APPROVED_PERCENT / 100).min(lines.left());
            let text = clip(text, room.saturating_sub(head.len() + 1));
            if !text.is_empty() {
                lines.push(format!("{head}{text}"));
            }
        }
        for step in steps.iter().rev().filter(|step| step.is_done()) {
            if !lines.push(format!("- [{}] {}", step.status, clip_line(&step.text, DONE_BYTES_MAX))) {
                break;
            }
        }
        lines.text()
    })
}

/// A list of steps in the input, as used by TodoWrite, update_plan and similar tools.
fn listed(input: &Value) -> Option<Vec<TrackedStep>> {
    let list = ["todos", "plan", "items", "tasks"].iter().find_map(|key| input.get(key)?.as_array())?;
    let step = |item: &Value| {
        let text = ["content", "step", "text", "title", "description"]
            .iter()
            .find_map(|key| item.get(key)?.as_str())?;
        let status = item.get("status").and_then(Value::as_str).unwrap_or("pending").to_owned();
        Some(TrackedStep { id: String::new(), status, text: text.to_owned() })
    };
    Some(list.iter().filter_map(step).collect())
}

/// The step of a `TaskCreate`. Its id is the number in the result; without one, the next number.
fn created(call: &CallRecord<'_>, known: usize) -> TrackedStep {
    let result = call.text();
    let named =
        result.split_once('#').map(|(_, rest)| rest.chars().take_while(char::is_ascii_digit).collect());
    let id = named.filter(|id: &String| !id.is_empty()).unwrap_or_else(|| (known + 1).to_string());
    let subject = call.input_text(&["subject", "title", "content"]).unwrap_or_default();
    let text = match call.input_text(&["description"]) {
        Some(more) if !more.is_empty() => format!("{subject}: {more}"),
        Some(_) | None => subject.to_owned(),
    };
    TrackedStep { id, status: "pending".to_owned(), text }
}

fn update(call: &CallRecord<'_>, steps: &mut Vec<TrackedStep>) {
    let id = match call.input.get("taskId").or_else(|| call.input.get("id")) {
        Some(Value::String(id)) => id.clone(),
        Some(Value::Number(id)) => id.to_string(),
        Some(_) | None => return,
    };
    let Some(status) = call.input_text(&["status"]) else { return };
    if status == "deleted" {
        steps.retain(|step| step.id != id);
    } else if let Some(step) = steps.iter_mut().find(|step| step.id == id) {
        step.status = status.to_owned();
    }
}
