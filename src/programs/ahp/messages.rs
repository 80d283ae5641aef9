//! Prompts and the contents of calls in the forms of both protocols. Pure.

use ahp::ahp_types::state::{
    Message, MessageAttachment, MessageKind, MessageOrigin, ToolResultContent,
    ToolResultEmbeddedResourceContent, ToolResultTextContent,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Output of a running command that is shown, in bytes from its end.
const RUNNING_OUTPUT_BYTES_MAX: usize = 16 * 1024;

/// A value of the protocol, whose form does not depend on data.
pub fn of_form<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("it has the form of the protocol")
}

/// A message with this text and nothing else.
pub fn message(kind: MessageKind, text: String) -> Message {
    Message { text, origin: MessageOrigin { kind }, attachments: None, model: None, agent: None, meta: None }
}

/// The text of a prompt's blocks. It is what a prompt is recognized by.
pub fn text_of(blocks: &[Value]) -> String {
    let texts: Vec<&str> = blocks
        .iter()
        .filter(|block| block["type"] == "text")
        .filter_map(|block| block["text"].as_str())
        .collect();
    texts.join("\n")
}

/// The message for a prompt of another window.
pub fn from_blocks(blocks: &[Value]) -> Message {
    let attachments: Vec<MessageAttachment> = blocks.iter().filter_map(attachment).collect();
    let attachments = (!attachments.is_empty()).then_some(attachments);
    Message { attachments, ..message(MessageKind::User, text_of(blocks)) }
}

fn attachment(block: &Value) -> Option<MessageAttachment> {
    let resource =
        |label: &str, uri: &str| of_form(json!({ "type": "resource", "label": label, "uri": uri }));
    match block["type"].as_str()? {
        "resource_link" => Some(resource(block["name"].as_str()?, block["uri"].as_str()?)),
        "resource" => {
            let uri = block["resource"]["uri"].as_str()?;
            Some(resource(uri.rsplit('/').next().unwrap_or(uri), uri))
        }
        "image" => Some(of_form(json!({
            "type": "embeddedResource", "label": "image", "displayKind": "image",
            "data": block["data"].as_str()?, "contentType": block["mimeType"].as_str()?,
        }))),
        _ => None,
    }
}

/// The blocks of a prompt for a client's message. The error names what the agent does not accept.
pub fn to_blocks(message: &Message) -> Result<Vec<Value>, String> {
    let mut blocks = Vec::new();
    if !message.text.is_empty() {
        blocks.push(json!({ "type": "text", "text": message.text }));
    }
    for attachment in message.attachments.iter().flatten() {
        blocks.push(match attachment {
            MessageAttachment::Resource(file) => {
                json!({ "type": "resource_link", "name": file.label, "uri": file.uri })
            }
            MessageAttachment::EmbeddedResource(image) if image.content_type.starts_with("image/") => {
                json!({ "type": "image", "data": image.data, "mimeType": image.content_type })
            }
            MessageAttachment::EmbeddedResource(file) => json!({ "type": "resource", "resource": {
                "uri": format!("attachment:///{}", file.label), "blob": file.data, "mimeType": file.content_type,
            } }),
            MessageAttachment::Simple(part) => match &part.model_representation {
                Some(text) => json!({ "type": "text", "text": text }),
                None => return Err(format!("the attachment {:?} has nothing that a model can read", part.label)),
            },
            MessageAttachment::Annotations(_) | MessageAttachment::Chat(_) | MessageAttachment::Unknown(_) => {
                return Err("attachments of annotations and chats are not supported".to_owned());
            }
        });
    }
    match blocks.is_empty() {
        true => Err("the message is empty".to_owned()),
        false => Ok(blocks),
    }
}

/// The content of a call. `output` is what its command has written so far.
pub fn call_content(parts: &[Value], output: &[u8], is_running: bool) -> Vec<ToolResultContent> {
    let text = |text: String| Some(ToolResultContent::Text(ToolResultTextContent { text }));
    let part = |part: &Value| match part["type"].as_str()? {
        "content" if part["content"]["type"] == "text" => text(part["content"]["text"].as_str()?.to_owned()),
        "content" if part["content"]["type"] == "image" => {
            Some(ToolResultContent::EmbeddedResource(ToolResultEmbeddedResourceContent {
                data: part["content"]["data"].as_str()?.to_owned(),
                content_type: part["content"]["mimeType"].as_str()?.to_owned(),
            }))
        }
        "diff" => text(change(part)),
        "terminal" if !output.is_empty() => {
            let hidden = if is_running { output.len().saturating_sub(RUNNING_OUTPUT_BYTES_MAX) } else { 0 };
            text(String::from_utf8_lossy(&output[hidden..]).into_owned())
        }
        _ => None,
    };
    parts.iter().filter_map(part).collect()
}

/// The text of a permission request besides the input of its call: the title, and every change and text.
pub fn card(title: &str, parts: &[Value]) -> String {
    let mut shown = vec![fenced("", title)];
    for part in parts {
        match part["type"].as_str() {
            Some("diff") => shown.push(fenced("diff", &change(part))),
            Some("content") => shown.extend(part["content"]["text"].as_str().map(str::to_owned)),
            Some(_) | None => {}
        }
    }
    shown.join("\n\n")
}

/// A change of files as a patch, or the paths if it is too large for one.
fn change(diff: &Value) -> String {
    if let Some(patch) = diff["patch"]["text"].as_str() {
        return patch.to_owned();
    }
    let changes = diff["changes"].as_array().into_iter().flatten();
    let lines = changes.map(|change| {
        let text = |name: &str| change[name].as_str().unwrap_or_default();
        format!("{} {} (too large to show)\n", text("operation"), text("path"))
    });
    lines.collect()
}

/// A code block that its text can't end.
fn fenced(language: &str, text: &str) -> String {
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or_default();
    let fence = "`".repeat(longest.max(2) + 1);
    format!("{fence}{language}\n{text}\n{fence}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_shows_the_whole_change_and_no_text_ends_its_code_block() {
        let patch = "+```\n+rm -rf /\n+````";
        let parts = [
            json!({ "type": "diff", "changes": [], "patch": { "format": "git_patch", "text": patch } }),
            json!({ "type": "content", "content": { "type": "text", "text": "It has invisible characters." } }),
        ];
        let shown = card("Write a", &parts);
        let expected = "```\nWrite a\n```\n\n`````diff\n{patch}\n`````\n\nIt has invisible characters.";
        assert_eq!(shown, expected.replace("{patch}", patch));
        let large = json!({ "type": "diff", "changes": [{ "operation": "modify", "path": "/w/a" }] });
        assert!(card("Write a", &[large]).contains("modify /w/a (too large to show)"));
    }

    #[test]
    fn a_prompt_keeps_its_attachments_in_both_directions() {
        let blocks = vec![
            json!({ "type": "text", "text": "Look" }),
            json!({ "type": "resource_link", "name": "a.rs", "uri": "file:///w/a.rs" }),
            json!({ "type": "image", "data": "AAAA", "mimeType": "image/png" }),
        ];
        assert_eq!(to_blocks(&from_blocks(&blocks)), Ok(blocks));
        assert!(to_blocks(&message(MessageKind::User, String::new())).is_err());
    }

    #[test]
    fn a_running_command_shows_the_end_of_its_output() {
        let parts = [json!({ "type": "terminal", "terminalId": "c1" })];
        let output = vec![b'x'; RUNNING_OUTPUT_BYTES_MAX + 1];
        let bytes = |is_running| match &call_content(&parts, &output, is_running)[..] {
            [ToolResultContent::Text(text)] => text.text.len(),
            other => panic!("{other:?}"),
        };
        assert_eq!((bytes(true), bytes(false)), (RUNNING_OUTPUT_BYTES_MAX, RUNNING_OUTPUT_BYTES_MAX + 1));
        assert!(call_content(&parts, b"", true).is_empty());
    }
}
