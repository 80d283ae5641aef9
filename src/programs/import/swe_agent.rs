//! Trajectories of SWE-agent (`.traj`): the history of one task, as messages of OpenAI's form. Before it used calls, each reply had a
//! command line as its action, and the next message of the user was what that printed.

use serde_json::{Value, json};

use super::{ImportContext, document, list, messages};
use epitome_thread::problem::Problem;
use epitome_transfer::{ImportDraft, ImportFile, ImportSource};

pub(super) fn read(file: ImportFile, text: &str, context: &ImportContext) -> Result<ImportDraft, Problem> {
    let trajectory = document(file, text)?;
    // Demonstrations are another task.
    let own = list(&trajectory["history"]).filter(|message| message["is_demo"] != true);
    let mut pending = None;
    let messages: Vec<Value> =
        own.enumerate().map(|(at, message)| openai(message, at, &mut pending)).collect();
    messages::log_of(&messages, None, context).finish(ImportSource::SweAgent, file, None)
}

/// A message in OpenAI's form. `pending` is the call whose result follows.
fn openai(message: &Value, at: usize, pending: &mut Option<String>) -> Value {
    let mut message = message.clone();
    match message["role"].as_str() {
        Some("assistant") if message["action"].is_string() && !message["tool_calls"].is_array() => {
            let (id, arguments) =
                (format!("action_{at}"), json!({ "command": message["action"] }).to_string());
            *pending = Some(id.clone());
            let function = json!({ "name": "bash", "arguments": arguments });
            json!({ "role": "assistant", "content": message["thought"], "tool_calls": [{ "id": id, "function": function }] })
        }
        Some("user") if pending.is_some() => {
            json!({ "role": "tool", "tool_call_id": pending.take(), "content": message["content"] })
        }
        Some("tool") => {
            message["tool_call_id"] = message["tool_call_ids"][0].clone();
            message
        }
        _ => message,
    }
}
