//! Trajectories of SWE-agent (`.traj`): the history of one task, as messages of OpenAI's form. Before it used calls, each reply had a
//! command line as its action, and the next message of the user was what that printed.

use serde_json::{Value, json};

use super::builder::Builder;
use super::{ImportContext, list, messages, model_name};
use epitome_transfer::ImportFile;

pub(super) fn read(trajectory: &Value, _: ImportFile, context: &ImportContext) -> Builder {
    let mut log = Builder::new(None, None, context);
    log.model(model_name(None, "unknown", None));
    let mut pending = None;
    // Demonstrations are another task.
    let own = list(&trajectory["history"]).filter(|message| message["is_demo"] != true);
    own.enumerate().for_each(|(at, message)| messages::add(&mut log, &openai(message, at, &mut pending)));
    log
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
