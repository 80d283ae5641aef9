//! Types that are newer than the schema crate of the SDK, written by hand: cursors, skills and the keys of prompts. They are
//! in version 1.20 of `agent-client-protocol-schema`, but the SDK (5.2.0) requires exactly 1.17.0, and Cargo admits no
//! second version beside it. An SDK with a newer one replaces this file.

use std::collections::BTreeMap;
use std::path::Path;

use agent_client_protocol::v1::schema::{ContentBlock, Error};
use agent_client_protocol::v2::schema as wire;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::answers;
use super::from_wire::{BadParams, RequestParams};
use super::model::AcpVersion;
use super::updates::wire_path;
use epitome_session_api::CommandInfo;
use epitome_thread::{Content, PartId, Seq, SessionId};

/// Longest `idempotencyKey`, in characters: the schema's `maxLength`.
const KEY_CHARS_MAX: usize = 255;

/// `cursorId` of `session/fork`: the last entry that the fork includes.
pub fn fork_cursor(params: &RequestParams<'_>) -> Result<Option<Seq>, BadParams> {
    let Some(cursor) = params.optional::<String>("cursorId")? else { return Ok(None) };
    let unknown = || BadParams("`cursorId` was not issued by this agent".to_owned());
    entry_of(&cursor).ok_or_else(unknown).map(Some)
}

/// The entry that a text such as `e12` names.
pub fn entry_of(text: &str) -> Option<Seq> {
    text.parse::<PartId>().ok().filter(|part| part.part.is_none()).map(|part| part.entry)
}

/// The params of the update that announces a cursor: a position in the conversation where a fork can begin, after a
/// message of this kind. Its id is that of the last entry that the fork includes.
pub fn cursor_update(session: &SessionId, entry: Seq, kind: &str, message: &str) -> Value {
    json!({
        "sessionId": session.0,
        "update": {
            "sessionUpdate": "cursor_update",
            "cursorId": entry.to_string(),
            "anchor": { "type": kind, "messageId": message, "position": "after" },
            "capabilities": { "fork": {} },
        },
    })
}

/// The response to `initialize` of version 2, with the capability `session.prompt.skill`.
pub fn with_skill_capability(response: &wire::InitializeResponse) -> Result<Box<RawValue>, Error> {
    let mut response = serde_json::to_value(response).unwrap_or_default();
    response["capabilities"]["session"]["prompt"]["skill"] = json!({});
    answers::raw(&response)
}

/// The params of `session/prompt`.
pub struct SentPrompt {
    /// The skill that it starts. Only in version 2.
    pub skill: Option<String>,
    pub content: Vec<Content>,
    /// In version 1, it is from our own front end.
    pub key: Option<String>,
}

impl SentPrompt {
    pub fn read(params: &RequestParams<'_>, version: AcpVersion) -> Result<SentPrompt, BadParams> {
        if version == AcpVersion::V1 {
            return Ok(SentPrompt { skill: None, content: params.prompt()?, key: idempotency_key(params)? });
        }
        let (skill, content) = match skill_prompt(params)? {
            Some((skill, content)) => (Some(skill), content),
            None => (None, params.prompt()?),
        };
        Ok(SentPrompt { skill, content, key: idempotency_key(params)? })
    }
}

/// `idempotencyKey` of `session/prompt` in version 2 (schema 1.19 and later, `PromptRequest`): 1 to 255 opaque
/// characters, scoped to a session. A key inserts at most one message, and every request with it gets that message's
/// id. There is no capability for it.
fn idempotency_key(params: &RequestParams<'_>) -> Result<Option<String>, BadParams> {
    let key: Option<String> = params.optional("idempotencyKey")?;
    match key.as_ref().map(|key| key.chars().count()) {
        None | Some(1..=KEY_CHARS_MAX) => Ok(key),
        Some(_) => Err(BadParams(format!("`idempotencyKey` must have 1 to {KEY_CHARS_MAX} characters"))),
    }
}

/// A skill in the list of commands, for clients with `session.commands.skill`. Only in version 2.
pub fn skill(command: &CommandInfo, file: &Path) -> wire::AvailableCommand {
    let path = BTreeMap::from([("path".to_owned(), json!(wire_path(file)))]);
    let skill = wire::OtherAvailableCommand::new("skill", &command.name, &command.description, path);
    wire::AvailableCommand::Other(skill)
}

/// The skill that the first block of a prompt starts (`session.prompt.skill`), and the prompt as if the user had typed
/// it: the skill's command, with the text that follows as its arguments.
fn skill_prompt(params: &RequestParams<'_>) -> Result<Option<(String, Vec<Content>)>, BadParams> {
    let blocks: Vec<Value> = params.list("prompt")?;
    let Some(first) = blocks.first().filter(|block| block["type"] == "skill") else { return Ok(None) };
    let name = first["name"].as_str().filter(|name| !name.is_empty() && !name.contains(char::is_whitespace));
    let name = name.ok_or_else(|| BadParams("`prompt[0].name` must be the name of a skill".to_owned()))?;
    let mut typed = format!("/{name}");
    let mut rest = blocks[1..].iter().peekable();
    while let Some(text) = rest.peek().and_then(|block| block["text"].as_str()) {
        typed.push(' ');
        typed.push_str(text);
        rest.next();
    }
    let rest = rest.enumerate().map(|(at, block)| {
        serde_json::from_value::<ContentBlock>(block.clone()).map_err(|_| {
            BadParams(format!("block {} after the skill is not supported by this agent", at + 1))
        })
    });
    let first = std::iter::once(Ok(ContentBlock::from(typed)));
    let blocks: Vec<ContentBlock> = first.chain(rest).collect::<Result<_, _>>()?;
    Ok(Some((name.to_owned(), params.prompt_of(blocks)?)))
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::*;

    fn with<T>(json: &str, read: impl FnOnce(&RequestParams<'_>) -> T) -> T {
        let raw: &RawValue = serde_json::from_str(json).expect("JSON");
        read(&RequestParams::read(Some(raw)).expect("an object"))
    }

    #[test]
    fn a_cursor_is_an_entry() {
        assert_eq!(with(r#"{"cursorId":"e12"}"#, fork_cursor), Ok(Some(Seq(12))));
        assert_eq!(with("{}", fork_cursor), Ok(None));
        for bad in ["\"12\"", "\"e12.1\"", "\"\"", "12"] {
            assert!(with(&format!(r#"{{"cursorId":{bad}}}"#), fork_cursor).is_err(), "{bad}");
        }
    }
}
