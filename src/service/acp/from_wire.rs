//! Translates wire types to internal types: params, prompts, paths, capabilities. Pure.
//!
//! Errors name the field and its expected form, never its value: prompts and server definitions contain
//! secrets, and clients log errors.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use agent_client_protocol::v1::schema as wire;
use agent_client_protocol::v2::schema as wire_v2;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;
use wire::{ContentBlock, EmbeddedResourceResource};

use super::attached;
use super::model::AcpVersion;
use epitome_session_api::{
    self as session, EditorResponse, MCP_NAME_BYTES_MAX, MCP_SERVERS_MAX, McpSource, McpTransport,
    QuestionReply, QuestionSupport,
};
use epitome_thread::attached::prompt_too_large;
use epitome_thread::halves::replace_unpaired_surrogates;
use epitome_thread::{ClientInstructions, Content, SessionId};

/// ACP's code for a missing resource, and JSON-RPC's for an unknown method.
const RESOURCE_NOT_FOUND: i32 = -32002;
const METHOD_NOT_FOUND: i32 = -32601;

/// Characters kept of a client's error message.
const ERROR_CHARS_MAX: usize = 200;

/// Longest system prompt accepted from a client, in bytes. It is sent with every model call.
const SYSTEM_PROMPT_BYTES_MAX: usize = 256 * 1024;

/// The values of a boolean option, for clients that support only selections.
pub const ON: &str = "on";
pub const OFF: &str = "off";

/// The value of a boolean option as text.
pub fn on_or_off(is_on: bool) -> &'static str {
    if is_on { ON } else { OFF }
}

/// An error in the params: a sentence that begins with the field's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadParams(pub String);

/// Client capabilities that affect the agent's output. Missing ones count as unsupported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientTraits {
    pub version: AcpVersion,
    /// Shows `compaction_update`.
    pub compaction: bool,
    /// Shows `notice`.
    pub notices: bool,
    /// Shows command output in a terminal (`_meta.terminal_output`).
    pub terminal_output: bool,
    pub read_text_file: bool,
    pub write_text_file: bool,
    pub boolean_options: bool,
    /// Distinguishes skills from other commands.
    pub skills: bool,
    pub elicitation_form: bool,
    pub elicitation_url: bool,
    /// Can run the agent in a terminal to log in.
    pub auth_terminal: bool,
    /// Hides the message of a prompt's authentication error, but shows that of an error of `session/new`.
    pub drops_prompt_errors: bool,
    /// Shows subagents as separate sessions.
    pub subagents: bool,
    /// Shows plans by their ids (`plan_update`).
    pub plan_updates: bool,
    /// Supports `cursor_update`.
    pub cursors: bool,
    /// Shows only `data.details` of an error, not its message.
    pub details_alone: bool,
    /// Offers only its own writes for review, not the diffs of calls.
    pub reviews_writes: bool,
    /// Prints sessions from the entries of their logs, as Epitome's own commands do (`_meta.epitome.log`).
    pub reads_log: bool,
}

/// Names of clients that drop the message of a prompt's authentication error. Zed: `prompt` and `map_acp_error` in
/// `crates/agent_servers/src/acp.rs`.
const DROP_PROMPT_ERRORS: [&str; 1] = ["zed"];

/// Names of clients that show only `data.details` of an error. Without details, their users would only read
/// that the agent returned an error.
const SHOW_DETAILS_ALONE: [&str; 1] = ["toad"];

/// Names of clients whose review of changes contains only their own writes: Zed's Keep and Reject
/// (`AcpThread::write_text_file` in `crates/acp_thread/src/acp_thread.rs` updates the action log).
const REVIEW_WRITES: [&str; 1] = ["zed"];

/// Maximum number of characters of a client's name that are kept.
const CLIENT_NAME_CHARS_MAX: usize = 40;

/// The name that a client gives itself in the params of `initialize`.
pub fn client_name(params: Option<&RawValue>, version: AcpVersion) -> Option<String> {
    let name = RequestParams::read(params).ok()?.name_of_client(version)?;
    Some(name.chars().filter(|c| !c.is_control()).take(CLIENT_NAME_CHARS_MAX).collect())
}

impl ClientTraits {
    /// The kinds of question that the client can show.
    pub fn questions(&self) -> QuestionSupport {
        QuestionSupport { forms: self.elicitation_form, urls: self.elicitation_url }
    }

    /// Reads the params of `initialize`. A capability of an unexpected type counts as missing.
    pub fn from_initialize(params: Option<&RawValue>, version: AcpVersion) -> ClientTraits {
        let params = RequestParams::read(params).unwrap_or_else(|_| RequestParams { fields: HashMap::new() });
        let traits = match version {
            AcpVersion::V1 => ClientTraits::of_v1(&params),
            AcpVersion::V2 => ClientTraits::of_v2(&params),
        };
        let name = params.name_of_client(version).unwrap_or_default();
        ClientTraits {
            version,
            drops_prompt_errors: DROP_PROMPT_ERRORS.contains(&name.as_str()),
            details_alone: SHOW_DETAILS_ALONE.contains(&name.as_str()),
            reviews_writes: REVIEW_WRITES.contains(&name.as_str()),
            ..traits
        }
    }

    fn of_v1(params: &RequestParams<'_>) -> ClientTraits {
        let given: wire::ClientCapabilities = params.lenient("clientCapabilities");
        let (session, elicitation) =
            (given.session.unwrap_or_default(), given.elicitation.unwrap_or_default());
        let meta = given.meta.unwrap_or_default();
        let in_meta = |key: &str| meta.get(key) == Some(&Value::Bool(true));
        ClientTraits {
            compaction: session.compaction.is_some(),
            notices: session.notices.is_some(),
            terminal_output: in_meta("terminal_output"),
            read_text_file: given.fs.read_text_file,
            write_text_file: given.fs.write_text_file,
            boolean_options: session.config_options.is_some_and(|options| options.boolean.is_some()),
            elicitation_form: elicitation.form.is_some(),
            elicitation_url: elicitation.url.is_some(),
            subagents: given.subagents.is_some(),
            plan_updates: given.plan.is_some(),
            cursors: params.has_unpublished("clientCapabilities", "/session/cursors"),
            auth_terminal: given.auth.terminal || in_meta("terminal-auth"),
            ..ClientTraits::default()
        }
    }

    /// Every client of version 2 shows what version 1 has capabilities for. Version 2 has no methods for the client's
    /// files and terminals.
    fn of_v2(params: &RequestParams<'_>) -> ClientTraits {
        let given: wire_v2::ClientCapabilities = params.lenient("capabilities");
        let elicitation = given.elicitation.unwrap_or_default();
        let reads_log =
            given.meta.is_some_and(|meta| meta.get("epitome").is_some_and(|own| own["log"] == true));
        ClientTraits {
            compaction: true,
            notices: true,
            terminal_output: true,
            boolean_options: true,
            skills: params.has_unpublished("capabilities", "/session/commands/skill"),
            elicitation_form: elicitation.form.is_some(),
            elicitation_url: elicitation.url.is_some(),
            subagents: !reads_log,
            cursors: true,
            auth_terminal: given.auth.is_some_and(|auth| auth.terminal.is_some()),
            reads_log,
            ..ClientTraits::default()
        }
    }
}

/// The params of one request, with each field still unparsed.
pub struct RequestParams<'a> {
    fields: HashMap<String, &'a RawValue>,
}

impl<'a> RequestParams<'a> {
    pub fn read(params: Option<&'a RawValue>) -> Result<RequestParams<'a>, BadParams> {
        let fields = match params {
            None => HashMap::new(),
            Some(params) => serde_json::from_str(params.get())
                .map_err(|_| BadParams("The parameters must be an object".to_owned()))?,
        };
        Ok(RequestParams { fields })
    }

    /// A field's JSON as it was sent.
    pub fn raw(&self, name: &str) -> Option<&'a RawValue> {
        self.fields.get(name).copied()
    }

    /// Parses a required field.
    pub fn required<T: DeserializeOwned>(&self, name: &str) -> Result<T, BadParams> {
        let raw = self.fields.get(name).ok_or_else(|| BadParams(format!("`{name}` is missing")))?;
        parse(name, raw)
    }

    /// Parses a field that may be missing or null.
    pub fn optional<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, BadParams> {
        match self.fields.get(name) {
            None => Ok(None),
            Some(raw) => parse(name, raw),
        }
    }

    /// Parses a field that counts as missing if it is of an unexpected form.
    fn lenient<T: DeserializeOwned + Default>(&self, name: &str) -> T {
        self.optional(name).unwrap_or_default().unwrap_or_default()
    }

    /// The name of the client. Some leave out the version that the schema requires.
    fn name_of_client(&self, version: AcpVersion) -> Option<String> {
        let field = if version == AcpVersion::V2 { "info" } else { "clientInfo" };
        let client: Value = self.lenient(field);
        client["name"].as_str().map(str::to_owned)
    }

    /// Whether the client has a capability that the schema crate does not have yet.
    fn has_unpublished(&self, field: &str, pointer: &str) -> bool {
        self.lenient::<Value>(field).pointer(pointer).is_some_and(Value::is_object)
    }

    /// Parses a list element by element, so that an error names the index. A missing or null list is empty.
    pub fn list<T: DeserializeOwned>(&self, name: &str) -> Result<Vec<T>, BadParams> {
        let Some(raw) = self.fields.get(name).filter(|raw| raw.get() != "null") else {
            return Ok(Vec::new());
        };
        let elements: Vec<&RawValue> =
            serde_json::from_str(raw.get()).map_err(|_| BadParams(format!("`{name}` must be a list")))?;
        elements.iter().enumerate().map(|(at, raw)| parse(&format!("{name}[{at}]"), raw)).collect()
    }

    /// The session id, unvalidated.
    pub fn session_id(&self) -> Result<String, BadParams> {
        self.required("sessionId")
    }

    /// The absolute working directory; empty for a client that has none, and opens a session in its own.
    pub fn cwd(&self) -> Result<PathBuf, BadParams> {
        if self.lenient::<Value>("_meta").pointer("/epitome/ownDirectory") == Some(&Value::Bool(true)) {
            return Ok(PathBuf::new());
        }
        absolute("cwd", self.required("cwd")?)
    }

    /// Additional absolute directories.
    pub fn directories(&self) -> Result<Vec<PathBuf>, BadParams> {
        let paths: Vec<String> = self.list("additionalDirectories")?;
        paths
            .into_iter()
            .enumerate()
            .map(|(at, path)| absolute(&format!("additionalDirectories[{at}]"), path))
            .collect()
    }

    /// The MCP servers defined by the client.
    pub fn mcp_servers(&self, version: AcpVersion) -> Result<Vec<session::McpServer>, BadParams> {
        let servers: Vec<McpServerParams> = self.list("mcpServers")?;
        if servers.len() > MCP_SERVERS_MAX {
            return Err(BadParams(format!("`mcpServers` has more than {MCP_SERVERS_MAX} servers")));
        }
        let checked = |(at, server): (usize, McpServerParams)| {
            server.check(version).map_err(|why| BadParams(format!("`mcpServers[{at}]` {why}")))
        };
        servers.into_iter().enumerate().map(checked).collect()
    }

    /// The client's addition to the system prompt, or replacement of the agent's role. Anything that can't be followed
    /// exactly is an error, so that no session runs without it (`SystemPrompt` in the schema).
    pub fn system_prompt(&self) -> Result<Option<ClientInstructions>, BadParams> {
        let Some(prompt) = self.optional::<wire::SystemPrompt>("systemPrompt")? else { return Ok(None) };
        let wrong = |why: String| Err(BadParams(format!("`systemPrompt{why}")));
        let replaces_role = match prompt.mode {
            wire::SystemPromptMode::Append => false,
            wire::SystemPromptMode::Override => true,
            _ => return wrong(".mode` must be append or override".to_owned()),
        };
        let mut texts = Vec::with_capacity(prompt.content.len());
        for (at, block) in prompt.content.into_iter().enumerate() {
            match block {
                ContentBlock::Text(text) => texts.push(text.text),
                _ => return wrong(format!(".content[{at}]` must be text")),
            }
        }
        let text = texts.join("\n\n");
        match text.len() {
            _ if text.trim().is_empty() => wrong(".content` is empty".to_owned()),
            SYSTEM_PROMPT_BYTES_MAX.. => {
                wrong(format!(".content` has more than {} KiB", SYSTEM_PROMPT_BYTES_MAX / 1024))
            }
            _ => Ok(Some(ClientInstructions { text, replaces_role })),
        }
    }

    /// `configOptions` of a request that opens a session: ids and values of its initial options. Malformed options are
    /// skipped, since unknown options and values are ignored too; only an unknown `type` is an error.
    pub fn initial_options(&self) -> Result<Vec<(String, String)>, BadParams> {
        let given: Vec<Value> = self.list("configOptions")?;
        let mut options = Vec::with_capacity(given.len());
        for (at, mut option) in given.into_iter().enumerate() {
            match option.get("type").map(Value::as_str) {
                Some(Some("id" | "boolean")) => {}
                Some(_) => {
                    let why = format!("`configOptions[{at}].type` is not one that this agent knows");
                    return Err(BadParams(why));
                }
                None => {
                    let fields = option.as_object_mut();
                    drop(fields.map(|fields| fields.insert("type".to_owned(), "id".into())));
                }
            }
            let Ok(option) = serde_json::from_value::<wire_v2::InitialSessionConfigOption>(option) else {
                continue;
            };
            let value = match option.value {
                wire_v2::SessionConfigOptionValue::Id { value, .. } => value.0.to_string(),
                wire_v2::SessionConfigOptionValue::Boolean { value, .. } => on_or_off(value).to_owned(),
                _ => continue,
            };
            let id = option.config_id.0.to_string();
            if options.iter().any(|(known, _)| *known == id) {
                return Err(BadParams(format!("`configOptions` sets {id:?} twice")));
            }
            options.push((id, value));
        }
        Ok(options)
    }

    /// The value of an option as text; a boolean is `on` or `off`. A value whose `type` is unknown is an error.
    pub fn option_value(&self) -> Result<String, BadParams> {
        let (kind, value): (Option<String>, Value) = (self.optional("type")?, self.required("value")?);
        let wanted = match (kind.as_deref(), value) {
            (None | Some("id"), Value::String(value)) => return Ok(value),
            (Some("boolean"), Value::Bool(is_on)) => return Ok(on_or_off(is_on).to_owned()),
            (None, _) => "a string, or a boolean with `\"type\": \"boolean\"`",
            (Some("id"), _) => "a string, as `type` is id",
            (Some("boolean"), _) => "a boolean, as `type` is boolean",
            (Some(_), _) => return Err(BadParams("`type` must be id or boolean".to_owned())),
        };
        Err(BadParams(format!("`value` must be {wanted}")))
    }

    /// The content of a prompt.
    pub fn prompt(&self) -> Result<Vec<Content>, BadParams> {
        if !self.fields.contains_key("prompt") {
            return Err(BadParams("`prompt` is missing".to_owned()));
        }
        self.prompt_of(self.list("prompt")?)
    }

    /// Converts the blocks of a prompt to its content.
    pub fn prompt_of(&self, blocks: Vec<ContentBlock>) -> Result<Vec<Content>, BadParams> {
        let content: Vec<Content> = blocks
            .into_iter()
            .enumerate()
            .filter_map(|(at, block)| content(at, block).transpose())
            .collect::<Result<_, _>>()?;
        let says_something = content.iter().any(|content| match content {
            Content::Text { text } => !text.trim().is_empty(),
            Content::Image { .. }
            | Content::Document { .. }
            | Content::Resource { .. }
            | Content::ResourceLink { .. } => true,
            Content::Thinking { .. } | Content::Call(_) | Content::Search(_) => false,
        });
        if !says_something {
            return Err(BadParams("`prompt` is empty".to_owned()));
        }
        match prompt_too_large(&content) {
            Some(why) => Err(BadParams(format!("`prompt` has {why}"))),
            None => Ok(content),
        }
    }
}

/// Reads the response to an elicitation. Anything other than a clear answer counts as cancelled.
pub fn elicited(result: &Value) -> QuestionReply {
    match result.get("action").and_then(Value::as_str) {
        Some("accept") => {
            let content = result.get("content").and_then(Value::as_object).cloned();
            QuestionReply::Accepted(content.unwrap_or_default())
        }
        Some("decline") => QuestionReply::Declined,
        Some(_) | None => QuestionReply::Cancelled,
    }
}

/// Reads the editor's text of a file from its response.
pub fn editor_text(mut result: Value) -> EditorResponse {
    match result.get_mut("content").map(Value::take) {
        Some(Value::String(text)) => EditorResponse::Text(text),
        Some(_) | None => EditorResponse::Failed("its answer has no text".to_owned()),
    }
}

/// Phrases in the errors of editors for a file that does not exist, for editors that don't use ACP's code.
const NO_SUCH_FILE: [&str; 3] = ["not found", "no such file", "enoent"];

/// Translates an editor's error. A missing file is a valid result.
pub fn unfulfilled(error: &RawValue) -> EditorResponse {
    let error: Value = serde_json::from_str(error.get()).unwrap_or_default();
    let message: String =
        error["message"].as_str().unwrap_or("an error without words").chars().take(ERROR_CHARS_MAX).collect();
    let words = message.to_lowercase();
    let is_missing =
        error["code"] == RESOURCE_NOT_FOUND || NO_SUCH_FILE.iter().any(|part| words.contains(part));
    // Editors that don't implement the method report similar messages.
    match is_missing && error["code"] != METHOD_NOT_FOUND {
        true => EditorResponse::Missing,
        false => EditorResponse::Failed(message),
    }
}

/// Parses a session id sent by a client; `None` if it is invalid.
pub fn session_id(text: &str) -> Option<SessionId> {
    SessionId::parse(text)
}

/// The definition of an MCP server. Its fields depend on its type.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct McpServerParams {
    #[serde(rename = "type")]
    kind: Option<String>,
    name: String,
    command: Option<String>,
    args: Option<Vec<String>>,
    env: Option<Vec<NamedValue>>,
    url: Option<String>,
    headers: Option<Vec<NamedValue>>,
    server_id: Option<String>,
}

/// A variable or a header.
#[derive(Deserialize)]
struct NamedValue {
    name: String,
    value: String,
}

impl McpServerParams {
    /// Validates the definition. In version 2, each server has a type, and a program an absolute path. Errors never repeat
    /// values, which may contain API keys.
    fn check(self, version: AcpVersion) -> Result<session::McpServer, &'static str> {
        let name = self.name;
        let pairs = |pairs: Option<Vec<NamedValue>>| {
            pairs.unwrap_or_default().into_iter().map(|pair| (pair.name, pair.value)).collect()
        };
        // Programs have no type in version 1, whose schema reads a server of an unknown type as a program.
        let is_program = version == AcpVersion::V1 && self.command.is_some();
        let kind = self.kind.as_deref().filter(|kind| !is_program || ["http", "sse", "acp"].contains(kind));
        let way = match (kind, version) {
            (None, AcpVersion::V1) | (Some("stdio"), _) => {
                let command =
                    self.command.filter(|command| !command.is_empty()).ok_or("needs a `command`")?;
                if version == AcpVersion::V2 && !Path::new(&command).is_absolute() {
                    return Err("needs an absolute `command`");
                }
                McpTransport::Stdio { command, args: self.args.unwrap_or_default(), env: pairs(self.env) }
            }
            // Many endpoints of the older transport also support the newer one, which is tried first.
            (Some("http"), _) | (Some("sse"), AcpVersion::V1) => {
                let is_address = |url: &String| url.starts_with("https://") || url.starts_with("http://");
                let url = self.url.filter(is_address);
                let url = url.ok_or("needs a `url` that begins with https:// or http://")?;
                McpTransport::Http { url, headers: pairs(self.headers), key_variable: None }
            }
            (Some("acp"), _) => {
                let is_short = |id: &String| !id.is_empty() && id.len() <= MCP_NAME_BYTES_MAX;
                let id = self.server_id.filter(is_short).ok_or("needs a short `serverId`")?;
                McpTransport::Client { id }
            }
            _ => return Err("has a transport that is not supported"),
        };
        if name.trim().is_empty() || name.len() > MCP_NAME_BYTES_MAX || name.chars().any(char::is_control) {
            return Err("needs a short `name` in one line");
        }
        Ok(session::McpServer::new(name, McpSource::Client, way))
    }
}

fn content(at: usize, block: ContentBlock) -> Result<Option<Content>, BadParams> {
    let unsupported =
        |what: &str| Err(BadParams(format!("`prompt[{at}]` is {what}, which this agent does not take")));
    Ok(Some(match block {
        ContentBlock::Text(text) if text.text.is_empty() => return Ok(None),
        ContentBlock::Text(text) => Content::Text { text: text.text },
        ContentBlock::Image(image) => attached::image(&format!("prompt[{at}]"), image)?,
        ContentBlock::ResourceLink(link) => Content::ResourceLink { uri: link.uri, name: link.name },
        ContentBlock::Resource(embedded) => match embedded.resource {
            EmbeddedResourceResource::TextResourceContents(resource) => {
                Content::Resource { uri: resource.uri, text: resource.text }
            }
            EmbeddedResourceResource::BlobResourceContents(resource) => {
                attached::blob(&format!("prompt[{at}]"), resource)?
            }
            _ => return unsupported("a resource of an unknown kind"),
        },
        ContentBlock::Audio(audio) => attached::audio(&format!("prompt[{at}]"), &audio.data)?,
        _ => return unsupported("content of an unknown type"),
    }))
}

/// Parses an absolute path without NUL bytes.
pub fn absolute(field: &str, path: String) -> Result<PathBuf, BadParams> {
    if path.contains('\0') {
        return Err(BadParams(format!("`{field}` contains a NUL byte")));
    }
    let path = PathBuf::from(path);
    if path.is_absolute() { Ok(path) } else { Err(BadParams(format!("`{field}` must be an absolute path"))) }
}

fn parse<T: DeserializeOwned>(name: &str, raw: &RawValue) -> Result<T, BadParams> {
    match serde_json::from_str(raw.get()) {
        Ok(value) => Ok(value),
        Err(error) => {
            let wrong = |error: serde_json::Error| {
                BadParams(format!("`{name}` {}", what_is_wrong(&error.to_string())))
            };
            let whole = replace_unpaired_surrogates(raw.get()).ok_or_else(|| wrong(error))?;
            serde_json::from_str(&whole).map_err(wrong)
        }
    }
}

/// Keeps the part of a parser's message that describes the schema, and drops the part that quotes the value.
fn what_is_wrong(message: &str) -> Cow<'static, str> {
    if let Some(rest) = message.strip_prefix("missing field `")
        && let Some((field, _)) = rest.split_once('`')
    {
        return format!("lacks `{field}`").into();
    }
    let quotes_a_value = ["invalid type: ", "invalid value: ", "invalid length ", "unknown variant `"]
        .iter()
        .any(|start| message.starts_with(start));
    let without_position = message.rsplit_once(" at line ").map_or(message, |(what, _)| what);
    match without_position.rsplit_once(", expected ") {
        Some((_, expected)) if quotes_a_value => format!("must be {expected}").into(),
        Some(_) | None => "is not of the expected form".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(json: &str) -> Box<RawValue> {
        RawValue::from_string(json.to_owned()).expect("the test's JSON is valid")
    }

    fn prompt(blocks: &str) -> Result<Vec<Content>, BadParams> {
        RequestParams::read(Some(&raw(&format!(r#"{{"sessionId":"s","prompt":{blocks}}}"#))))
            .and_then(|p| p.prompt())
    }

    fn fault<T: std::fmt::Debug>(result: Result<T, BadParams>) -> String {
        result.expect_err("the parameters are bad").0
    }

    #[test]
    fn an_editors_answer_is_text_missing_file_or_failure() {
        let text = |json: &str| editor_text(serde_json::from_str(json).expect("the test's JSON is valid"));
        assert_eq!(text(r#"{"content":"a\n"}"#), EditorResponse::Text("a\n".into()));
        assert!(matches!(text(r#"{"text":"a\n"}"#), EditorResponse::Failed(_)));
        for (error, is_missing) in [
            (r#"{"code":-32002,"message":"Resource not found"}"#, true),
            (r#"{"code":-32603,"message":"ENOENT: no such file or directory"}"#, true),
            (r#"{"code":-32601,"message":"Method not found"}"#, false),
            (r#"{"code":-32603,"message":"Internal error"}"#, false),
            (r#"{"code":"odd"}"#, false),
            ("7", false),
        ] {
            assert_eq!(unfulfilled(&raw(error)) == EditorResponse::Missing, is_missing, "{error}");
        }
    }

    #[test]
    fn a_prompt_becomes_content() {
        let content = prompt(
            r#"[{"type":"text","text":"look"},
                {"type":"resource_link","uri":"file:///a.rs","name":"a.rs"},
                {"type":"resource","resource":{"uri":"file:///b.rs","text":"fn b() {}"}},
                {"type":"resource","resource":{"uri":"file:///c/d.pdf","blob":"JVBERi0x"}},
                {"type":"image","data":"iVBORw0KGgo=","mimeType":"image/png"}]"#,
        )
        .expect("the prompt is good");
        assert_eq!(
            content,
            [
                Content::Text { text: "look".into() },
                Content::ResourceLink { uri: "file:///a.rs".into(), name: "a.rs".into() },
                Content::Resource { uri: "file:///b.rs".into(), text: "fn b() {}".into() },
                Content::Document {
                    mime_type: "application/pdf".into(),
                    data: "JVBERi0x".into(),
                    name: Some("d.pdf".into()),
                },
                Content::Image { mime_type: "image/png".into(), data: "iVBORw0KGgo=".into(), uri: None },
            ]
        );
    }

    #[test]
    fn unpaired_surrogates_are_replaced() {
        let content =
            prompt(r#"[{"type":"text","text":"\ud83d\ude00 \ud83d \ude00 \\ud83d \ud83d\u0041 é"}]"#);
        let text = "😀 \u{fffd} \u{fffd} \\ud83d \u{fffd}A é".to_owned();
        assert_eq!(content, Ok(vec![Content::Text { text }]));
    }

    #[test]
    fn an_empty_prompt_is_rejected() {
        for blocks in ["[]", "null", r#"[{"type":"text","text":""}]"#, r#"[{"type":"text","text":" \n"}]"#] {
            assert_eq!(fault(prompt(blocks)), "`prompt` is empty");
        }
    }

    #[test]
    fn errors_name_the_field_and_never_the_value() {
        let secret = "sk-secret, expected nothing";
        for (blocks, expected) in [
            (format!(r#""{secret}""#), "`prompt` must be a list"),
            (format!(r#"[{{"type":"text","text":["{secret}"]}}]"#), "`prompt[0]` must be a string"),
            (format!(r#"[{{"type":"text","txet":"{secret}"}}]"#), "`prompt[0]` lacks `text`"),
            (
                r#"[{"type":"text","text":"a"},{"type":"audio","data":"","mimeType":"audio/wav"}]"#
                    .to_owned(),
                "`prompt[1]` is not audio of a known type: WAV, MP3, FLAC, Ogg, AIFF or AAC",
            ),
        ] {
            assert_eq!(fault(prompt(&blocks)), expected);
        }
        let unknown = fault(prompt(&format!(r#"[{{"type":"{secret}"}}]"#)));
        assert!(unknown.starts_with("`prompt[0]` ") && !unknown.contains("secret"), "{unknown}");
    }

    #[test]
    fn only_an_unknown_type_of_an_initial_option_is_an_error() {
        let json = r#"{"configOptions":[
            {"configId":"mode","value":"allow"},
            {"configId":"thought_level","type":"id","value":"high"},
            {"configId":"web","type":"boolean","value":true},
            {"configId":"search","value":true},
            {"configId":7,"value":"x"},
            "nonsense"]}"#;
        let options =
            |json| RequestParams::read(Some(&raw(json))).and_then(|params| params.initial_options());
        let read = options(json).expect("nothing in it is refused");
        let text = |(id, value): &(String, String)| format!("{id}={value}");
        assert_eq!(read.iter().map(text).collect::<Vec<_>>(), ["mode=allow", "thought_level=high", "web=on"]);
        assert_eq!(options("{}"), Ok(Vec::new()));
        let unknown = r#"{"configOptions":[{"configId":"mode","type":"slider","value":3}]}"#;
        assert!(options(unknown).is_err());
        // The last one won, silently.
        let twice =
            r#"{"configOptions":[{"configId":"mode","value":"ask"},{"configId":"mode","value":"full"}]}"#;
        assert!(options(twice).is_err_and(|why| why.0.contains("twice")));
    }

    #[test]
    fn mcp_servers_are_parsed_without_leaking_secrets() {
        let params = raw(r#"{"mcpServers":[{"name":"a","command":"/a","args":[],"env":[]},
                              {"type":"http","name":"b","url":"https://b","headers":[]},
                              {"type":"sse","name":"c","url":"https://c/sse","headers":[]},
                              {"type":"local","name":"d","command":"/d","args":[],"env":[]}]}"#);
        assert_eq!(
            RequestParams::read(Some(&params))
                .unwrap()
                .mcp_servers(AcpVersion::V1)
                .unwrap()
                .iter()
                .map(|server| server.name.as_str())
                .collect::<Vec<_>>(),
            ["a", "b", "c", "d"]
        );
        let params = raw(r#"{"mcpServers":[{"name":"a","env":[{"name":"KEY","value":"sk-secret"}]}]}"#);
        let fault = fault(RequestParams::read(Some(&params)).unwrap().mcp_servers(AcpVersion::V1));
        assert!(fault.starts_with("`mcpServers[0]` ") && !fault.contains("secret"), "{fault}");
    }

    #[test]
    fn paths_must_be_absolute() {
        for (params, expected) in [
            (r#"{}"#, "`cwd` is missing"),
            (r#"{"cwd":5}"#, "`cwd` must be a string"),
            (r#"{"cwd":"src"}"#, "`cwd` must be an absolute path"),
            (r#"{"cwd":"/a\u0000b"}"#, "`cwd` contains a NUL byte"),
        ] {
            assert_eq!(fault(RequestParams::read(Some(&raw(params))).unwrap().cwd()), expected);
        }
        let params = raw(r#"{"additionalDirectories":["/a","b"]}"#);
        assert_eq!(
            fault(RequestParams::read(Some(&params)).unwrap().directories()),
            "`additionalDirectories[1]` must be an absolute path"
        );
        assert_eq!(
            fault(RequestParams::read(Some(&raw("[1]"))).map(|_| ())),
            "The parameters must be an object"
        );
    }

    #[test]
    fn capabilities_of_the_wrong_type_are_ignored() {
        let traits = |json: &str| ClientTraits::from_initialize(Some(&raw(json)), AcpVersion::V1);
        assert_eq!(ClientTraits::from_initialize(None, AcpVersion::V1), ClientTraits::default());
        assert_eq!(traits(r#"[1,"x"]"#), ClientTraits::default());
        assert_eq!(
            traits(
                r#"{"clientCapabilities":{"session":{"compaction":true,"notices":null},"fs":7,"_meta":[]}}"#
            ),
            ClientTraits::default()
        );
        assert_eq!(
            traits(
                r#"{"clientCapabilities":{"session":{"compaction":{},"notices":{"new":1}},"subagents":{},
                    "fs":{"readTextFile":true},"_meta":{"terminal_output":true}}}"#
            ),
            ClientTraits {
                compaction: true,
                notices: true,
                read_text_file: true,
                terminal_output: true,
                subagents: true,
                ..ClientTraits::default()
            }
        );
        assert_eq!(
            traits(r#"{"clientInfo":{"name":"toad"},"clientCapabilities":[]}"#),
            ClientTraits { details_alone: true, ..ClientTraits::default() }
        );
        assert_eq!(
            traits(r#"{"clientInfo":{"name":"zed"},"clientCapabilities":{"auth":{"terminal":true}}}"#),
            ClientTraits {
                auth_terminal: true,
                drops_prompt_errors: true,
                reviews_writes: true,
                ..ClientTraits::default()
            }
        );
        assert_eq!(traits(r#"{"clientInfo":"toad"}"#), ClientTraits::default());
    }
}
