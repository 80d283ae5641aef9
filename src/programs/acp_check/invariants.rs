//! Rules for all updates of version 2 that are not in the schema, whose unions take any variant. Pure.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::client::{Checked, failed};

/// Facts that an agent has announced about its sessions, as far as later updates depend on them.
#[derive(Default)]
pub struct Invariants {
    sessions: HashMap<String, AnnouncedUpdates>,
}

#[derive(Default)]
struct AnnouncedUpdates {
    /// Terminals, calls and subagents.
    ids: HashSet<String>,
    /// A state has listed the work in the background.
    reports_background: bool,
}

impl Invariants {
    /// Checks the parameters of one `session/update`.
    pub fn check(&mut self, params: &Value) -> Checked {
        let update = &params["update"];
        let got = || update.to_string();
        let session = params["sessionId"].as_str().unwrap_or_default();
        let known = self.sessions.entry(session.to_owned()).or_default();
        let id_of = |key: &str| match update[key].as_str() {
            Some(id) if !id.is_empty() => Ok(id.to_owned()),
            _ => failed(format!("`{key}` in this update"), got()),
        };
        match update["sessionUpdate"].as_str().unwrap_or_default() {
            gone @ ("tool_call" | "plan" | "current_mode_update") => {
                return failed(format!("no `{gone}`, which version 2 does not have"), got());
            }
            "user_message" | "agent_message" | "agent_thought" => drop(id_of("messageId")?),
            "user_message_chunk" | "agent_message_chunk" | "agent_thought_chunk" => drop(id_of("messageId")?),
            "tool_call_update" => {
                known.ids.insert(id_of("toolCallId")?);
                for content in update["content"].as_array().into_iter().flatten() {
                    diff(content)?;
                }
            }
            "tool_call_content_chunk" => diff(&update["content"])?,
            "terminal_update" => drop(known.ids.insert(id_of("terminalId")?)),
            "terminal_output_chunk" if !known.ids.contains(&id_of("terminalId")?) => {
                return failed("`terminal_update` before the output of a terminal", got());
            }
            "subagent_update" => drop(known.ids.insert(id_of("sessionId")?)),
            "state_update" => return known.state(update),
            _ => {}
        }
        Ok(())
    }
}

impl AnnouncedUpdates {
    fn state(&mut self, update: &Value) -> Checked {
        let state = update["state"].as_str().unwrap_or_default();
        if !matches!(state, "running" | "requires_action" | "idle") && !state.starts_with('_') {
            return failed("a known state", update.to_string());
        }
        let Some(background) = update["background"].as_array() else {
            return match self.reports_background {
                true => failed("`background` in every state, as in an earlier one", update.to_string()),
                false => Ok(()),
            };
        };
        self.reports_background = true;
        for item in background {
            let id = ["terminalId", "toolCallId", "sessionId"].into_iter().find_map(|key| item[key].as_str());
            if id.is_some_and(|id| !self.ids.contains(id)) {
                return failed(
                    "work that is announced before it is listed in `background`",
                    update.to_string(),
                );
            }
        }
        Ok(())
    }
}

/// Checks that a diff lists its changes with absolute paths.
fn diff(content: &Value) -> Checked {
    if content["type"] != "diff" {
        return Ok(());
    }
    let changes = content["changes"].as_array().filter(|changes| !changes.is_empty());
    let is_absolute =
        |path: &Value| path.as_str().is_some_and(|path| std::path::Path::new(path).is_absolute());
    match changes {
        Some(changes) if changes.iter().all(|change| is_absolute(&change["path"])) => Ok(()),
        _ => failed("a diff whose `changes` have absolute paths", content.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn is_right(updates: &[Value]) -> bool {
        let mut invariants = Invariants::default();
        let checked = updates
            .iter()
            .try_for_each(|update| invariants.check(&json!({ "sessionId": "s", "update": update })));
        checked.is_ok()
    }

    fn state(background: Value) -> Value {
        json!({ "sessionUpdate": "state_update", "state": "idle", "background": background })
    }

    #[test]
    fn work_in_the_background_is_announced_and_then_always_reported() {
        let terminal = json!({ "sessionUpdate": "terminal_update", "terminalId": "t" });
        let listed = state(json!([{ "type": "terminal", "terminalId": "t" }]));
        assert!(is_right(&[terminal.clone(), listed.clone(), state(json!([]))]));
        assert!(!is_right(std::slice::from_ref(&listed)));
        assert!(!is_right(&[terminal, listed, state(Value::Null)]));
        assert!(is_right(&[state(Value::Null)]));
    }

    #[test]
    fn updates_of_version_1_and_without_ids_are_wrong() {
        for wrong in [
            json!({ "sessionUpdate": "tool_call", "toolCallId": "c" }),
            json!({ "sessionUpdate": "agent_message_chunk", "content": { "type": "text", "text": "" } }),
            json!({ "sessionUpdate": "terminal_output_chunk", "terminalId": "t", "data": "" }),
            json!({ "sessionUpdate": "tool_call_update", "toolCallId": "c", "content": [
                { "type": "diff", "path": "/a", "oldText": null, "newText": "" },
            ]}),
            json!({ "sessionUpdate": "state_update", "state": "busy" }),
        ] {
            assert!(!is_right(std::slice::from_ref(&wrong)), "{wrong}");
        }
    }
}
