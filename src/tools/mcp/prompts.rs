//! Prompts of servers as slash commands: `/mcp__SERVER__PROMPT`, with arguments by position or as `name=value`, as in
//! Claude Code.

use std::sync::Arc;

use rmcp::model::{ContentBlock, GetPromptResult, ResourceContents, Role};
use serde_json::{Map, Value};

use super::Hub;
use super::listed::{ServerPrompt, short};
use super::outcome;
use super::server::{ConnectionState, ServerHandle};
use epitome_thread::Content;
use epitome_tools::ToolError;

/// Maximum bytes of a prompt; a longer one is truncated.
const PROMPT_BYTES_MAX: usize = 128 * 1024;

/// Maximum messages of a prompt.
const CONTENT_MAX: usize = 32;

/// A prompt as listed by clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptCommand {
    pub name: String,
    pub description: String,
    pub hint: Option<String>,
}

/// A prompt with its arguments, before its text is fetched.
pub struct PromptCall {
    server: Arc<ServerHandle>,
    own_name: String,
    arguments: Map<String, Value>,
}

impl Hub {
    /// The prompts of all servers that are not gone.
    pub fn prompt_commands(&self) -> Vec<PromptCommand> {
        let offered = self.handles().filter(|server| !matches!(server.state(), ConnectionState::Gone(_)));
        let commands = offered.flat_map(|server| {
            let listing = server.listing();
            listing.prompts.iter().map(|prompt| command(&server.spec.name, prompt)).collect::<Vec<_>>()
        });
        commands.collect()
    }

    /// Parses the text typed after a prompt's command. Returns `None` if no server has the prompt; the error explains
    /// the usage.
    pub fn prompt_call(&self, command: &str, rest: &str) -> Option<Result<PromptCall, ToolError>> {
        self.handles().find_map(|server| {
            let listing = server.listing();
            let prompt = listing.prompts.iter().find(|prompt| prompt.command == command)?;
            let call = bind(prompt, rest).map(|arguments| PromptCall {
                server: server.clone(),
                own_name: prompt.own_name.clone(),
                arguments,
            });
            Some(call)
        })
    }
}

impl PromptCall {
    /// Fetches the prompt. The error is a sentence.
    pub async fn fetch(self) -> Result<Vec<Content>, ToolError> {
        let prompt = self.server.get_prompt(&self.own_name, self.arguments).await?;
        let content = content(prompt);
        match content.is_empty() {
            true => Err(ToolError::new(format!(
                "The prompt {:?} of the MCP server {} is empty.",
                short(&self.own_name),
                self.server.spec.name
            ))),
            false => Ok(content),
        }
    }
}

fn command(server: &str, prompt: &ServerPrompt) -> PromptCommand {
    let description = match prompt.description.as_str() {
        "" => format!("A prompt of the MCP server {server}"),
        said => format!("{said} ({server})"),
    };
    let hint = (!prompt.arguments.is_empty()).then(|| usage(prompt));
    PromptCommand { name: prompt.command.clone(), description, hint }
}

fn usage(prompt: &ServerPrompt) -> String {
    let argument = |(name, is_required): &(String, bool)| match is_required {
        true => format!("<{name}>"),
        false => format!("[{name}]"),
    };
    prompt.arguments.iter().map(argument).collect::<Vec<String>>().join(" ")
}

/// Assigns the typed text to the arguments: `name=value` by name, other words in order, and the rest of the text to the
/// last argument.
fn bind<'t>(prompt: &ServerPrompt, rest: &'t str) -> Result<Map<String, Value>, ToolError> {
    let is_argument = |name: &str| prompt.arguments.iter().any(|(known, _)| known == name);
    let named = |word: &'t str| word.split_once('=').filter(|(name, _)| is_argument(name));
    let wrong = |why: &str| {
        ToolError::new(format!("/{} {why}. Usage: /{} {}", prompt.command, prompt.command, usage(prompt)))
    };
    let mut bound = Map::new();
    let mut rest = rest.trim();
    while !rest.is_empty() {
        let (word, after) = first_word(rest);
        if let Some((name, value)) = named(word) {
            bound.insert(name.to_owned(), unquoted(value).into());
            rest = after;
            continue;
        }
        let mut open = prompt.arguments.iter().filter(|(name, _)| !bound.contains_key(name));
        let Some((name, _)) = open.next() else {
            return Err(wrong("takes fewer arguments"));
        };
        let is_last = open.next().is_none();
        if is_last && !after.split_whitespace().any(|word| named(word).is_some()) {
            bound.insert(name.clone(), unquoted(rest).into());
            break;
        }
        bound.insert(name.clone(), unquoted(word).into());
        rest = after;
    }
    let missing =
        prompt.arguments.iter().find(|(name, is_required)| *is_required && !bound.contains_key(name));
    match missing {
        Some((name, _)) => Err(wrong(&format!("needs {name}"))),
        None => Ok(bound),
    }
}

/// Splits off the first word, in which a part in double quotes may contain spaces.
fn first_word(text: &str) -> (&str, &str) {
    let mut is_quoted = false;
    let end = text.find(|c: char| {
        is_quoted ^= c == '"';
        c.is_whitespace() && !is_quoted
    });
    let (word, rest) = text.split_at(end.unwrap_or(text.len()));
    (word, rest.trim_start())
}

fn unquoted(text: &str) -> &str {
    text.strip_prefix('"')
        .and_then(|text| text.strip_suffix('"'))
        .filter(|text| !text.contains('"'))
        .unwrap_or(text)
}

/// Converts a prompt's messages to the content of one user message.
fn content(prompt: GetPromptResult) -> Vec<Content> {
    let mut room = PROMPT_BYTES_MAX;
    let mut cut = |text: String| {
        let kept = text[..text.floor_char_boundary(room)].to_owned();
        room -= kept.len();
        kept
    };
    let messages = prompt.messages.into_iter().filter_map(|message| {
        Some(match message.content {
            ContentBlock::Text(text) if message.role == Role::Assistant => {
                Content::Text { text: cut(format!("[Assistant] {}", text.text)) }
            }
            ContentBlock::Text(text) => Content::Text { text: cut(text.text) },
            ContentBlock::Resource(embedded) => match embedded.resource {
                ResourceContents::TextResourceContents { uri, text, .. } => {
                    Content::Resource { uri: short(&uri), text: cut(text) }
                }
                _ => return None,
            },
            ContentBlock::ResourceLink(link) => {
                Content::ResourceLink { uri: link.uri, name: short(&link.name) }
            }
            ContentBlock::Image(image) => {
                let mime_type = outcome::checked_image(&image.data).ok()?;
                Content::Image { mime_type: mime_type.to_owned(), data: image.data, uri: None }
            }
            _ => return None,
        })
    });
    messages.take(CONTENT_MAX).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn arguments_are_given_by_name_or_position() {
        let prompt = ServerPrompt {
            own_name: "review".to_owned(),
            command: "mcp__docs__review".to_owned(),
            description: String::new(),
            arguments: vec![("file".to_owned(), true), ("focus".to_owned(), false)],
        };
        for (typed, bound) in [
            ("a.rs", json!({"file": "a.rs"})),
            ("a.rs the error paths", json!({"file": "a.rs", "focus": "the error paths"})),
            ("\"a b.rs\" \"speed\"", json!({"file": "a b.rs", "focus": "speed"})),
            ("focus=speed a.rs", json!({"focus": "speed", "file": "a.rs"})),
            ("file=\"a b.rs\"", json!({"file": "a b.rs"})),
            ("x=1", json!({"file": "x=1"})),
        ] {
            assert_eq!(bind(&prompt, typed).map(Value::Object), Ok(bound), "{typed}");
        }
        let missing = bind(&prompt, " ").expect_err("the file is required");
        assert_eq!(
            missing.to_string(),
            "/mcp__docs__review needs file. Usage: /mcp__docs__review <file> [focus]"
        );
        let none = ServerPrompt { arguments: Vec::new(), ..prompt };
        assert!(bind(&none, "x").is_err());
    }
}
