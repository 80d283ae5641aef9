//! Which part of a conversation is compacted.

use std::borrow::Cow;
use std::path::Path;

use serde_json::{Value, json};

use super::CompactError;
use epitome_import::{has_call, is_result};
use epitome_thread::problem::Problem;

/// A conversation as its agent has written it.
#[derive(Clone, Copy)]
pub struct AgentTranscript<'a> {
    /// For messages about the file.
    pub path: &'a Path,
    pub text: &'a str,
    /// The working directory of a conversation that names none.
    pub cwd: &'a Path,
    /// Whether it is the messages of a request, or a request with them, and not the file of an agent.
    pub is_request: bool,
    /// Reads another file of the same session, by its path relative to the directory of this one.
    pub read_sibling: &'a dyn Fn(&Path) -> Option<String>,
    /// The entry from which on nothing is compacted: its `id` or `uuid`, or in a request the number of messages before it.
    pub before: Option<&'a str>,
}

/// The messages of a request that stay as they are.
pub(crate) struct KeptMessages {
    /// Those of the system, which come first.
    system: Vec<Value>,
    newest: Vec<Value>,
    /// Whether they are items of OpenAI's Responses.
    are_items: bool,
}

impl KeptMessages {
    /// The conversation from now on.
    pub fn behind(self, message: &str) -> Vec<Value> {
        let message = match self.are_items {
            true => json!({
                "type": "message", "role": "user", "content": [{ "type": "input_text", "text": message }]
            }),
            false => json!({ "role": "user", "content": message }),
        };
        self.system.into_iter().chain([message]).chain(self.newest).collect()
    }
}

impl<'a> AgentTranscript<'a> {
    /// The text to compact, and for a request the messages that stay: at least the `keep` newest.
    pub(crate) fn split(&self, keep: usize) -> Result<(Cow<'a, str>, Option<KeptMessages>), CompactError> {
        if !self.is_request {
            return Ok((self.lines_before()?, None));
        }
        let request = serde_json::from_str::<Value>(self.text).map_err(|error| {
            CompactError::Unreadable(Problem::new(self.path, format!("this is not JSON: {error}")))
        })?;
        self.split_request(request, keep)
    }

    fn split_request(
        &self,
        mut request: Value,
        keep: usize,
    ) -> Result<(Cow<'a, str>, Option<KeptMessages>), CompactError> {
        let are_items = request["input"].is_array();
        let list = match &mut request {
            Value::Array(list) => list,
            Value::Object(fields) => {
                let list = fields.get_mut(if are_items { "input" } else { "messages" });
                list.and_then(Value::as_array_mut).ok_or_else(no_list)?
            }
            _ => return Err(no_list()),
        };
        let count = list.len();
        let cut = match self.before {
            Some(before) => before.parse().ok().filter(|at| *at <= count).ok_or_else(|| {
                CompactError::Usage(format!(
                    "--before takes a number up to {count} for a request, not {before:?}"
                ))
            })?,
            None => count.saturating_sub(keep),
        };
        let cut = whole_rounds(list, cut);
        let newest = list.split_off(cut);
        let is_system = |message: &&Value| matches!(message["role"].as_str(), Some("system" | "developer"));
        let system = list.iter().filter(is_system).cloned().collect();
        let kept = KeptMessages { system, newest, are_items };
        Ok((Cow::Owned(request.to_string()), Some(kept)))
    }

    fn lines_before(&self) -> Result<Cow<'a, str>, CompactError> {
        let Some(before) = self.before else { return Ok(Cow::Borrowed(self.text)) };
        let mut end = 0;
        for line in self.text.split_inclusive('\n') {
            let is_it = serde_json::from_str::<Value>(line).is_ok_and(|value| {
                [&value["id"], &value["uuid"]].iter().any(|id| id.as_str() == Some(before))
            });
            if is_it {
                return Ok(Cow::Borrowed(&self.text[..end]));
            }
            end += line.len();
        }
        Err(CompactError::Unreadable(Problem::new(self.path, format!("no entry has the id {before:?}"))))
    }
}

fn no_list() -> CompactError {
    CompactError::Usage("this has no list of messages".to_owned())
}

/// Moves a cut before the message whose calls have results behind it: a call and its results must not be separated.
fn whole_rounds(list: &[Value], mut cut: usize) -> usize {
    let is_behind = |cut: usize| list.get(cut).is_some_and(is_result);
    if is_behind(cut) {
        while cut > 0 && (is_behind(cut) || !has_call(&list[cut])) {
            cut -= 1;
        }
        while cut > 0 && list[cut]["type"] == "function_call" && list[cut - 1]["type"] == "function_call" {
            cut -= 1;
        }
    }
    cut
}
