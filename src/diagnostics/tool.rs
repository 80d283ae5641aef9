//! The `diagnostics` tool: errors and warnings of a file, and definitions and references of a name, from a language
//! server.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};

use super::EditWatch;
use super::watch::{CHECK_TIME_MAX, FILE_BYTES_MAX};
use epitome_platform::file_uri;
use epitome_platform::root::read_regular_text;
use epitome_thread::{CallDisplay, ToolKind, ToolSpec};
use epitome_tools::{Access, BoxFuture, ParsedTool, ToolContext, ToolResult, Workspace};

/// Maximum diagnostics or locations that one call returns.
const LISTED_MAX: usize = 100;
/// Maximum characters of a line of code.
const LINE_CHARS_MAX: usize = 200;

pub struct DiagnosticsTool {
    pub watch: EditWatch,
}

pub struct DiagnosticsCall {
    path: PathBuf,
    wants: Wants,
}

enum Wants {
    Findings,
    Places { method: &'static str, line: u32, name: String },
}

impl ParsedTool for DiagnosticsTool {
    type Call = DiagnosticsCall;

    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: "diagnostics".to_owned(),
            description:
                "Asks the language server of a file for its errors and warnings, or where a name in it is \
                          defined or used. New errors of files that you edit are reported without this."
                    .to_owned(),
            schema: json!({
                "type": "object",
                "properties": {
                    "file_path": {"type": "string", "description": "The file."},
                    "action": {
                        "type": "string",
                        "enum": ["errors", "definition", "references"],
                        "description": "What is wanted; `errors` by default."
                    },
                    "line": {"type": "integer", "description": "For a name: its line, from 1."},
                    "name": {"type": "string", "description": "The name on that line."}
                },
                "required": ["file_path"]
            }),
        }
    }

    fn display(&self, input: &Value, _: &Workspace) -> CallDisplay {
        let text = |name: &str| input[name].as_str().unwrap_or_default();
        let named = || Some(text("name")).filter(|name| !name.is_empty()).unwrap_or("a name");
        let title = match text("action") {
            "definition" => format!("Find the definition of {}", named()),
            "references" => format!("Find the uses of {}", named()),
            _ => format!("Check {}", text("file_path")),
        };
        CallDisplay { title, kind: ToolKind::Search, locations: Vec::new() }
    }

    fn parse(&self, input: &Value, workspace: &Workspace) -> Result<DiagnosticsCall, String> {
        let path = input["file_path"].as_str().ok_or("`file_path` is missing: name a file.")?;
        let path = workspace.real(path);
        let method = match input["action"].as_str() {
            None | Some("errors") => return Ok(DiagnosticsCall { path, wants: Wants::Findings }),
            Some("definition") => "textDocument/definition",
            Some("references") => "textDocument/references",
            Some(other) => {
                return Err(format!("`action` is {other:?}; it is errors, definition or references."));
            }
        };
        let line = input["line"].as_u64().and_then(|line| u32::try_from(line).ok()).filter(|line| *line > 0);
        let name = input["name"].as_str().filter(|name| !name.is_empty());
        let line = line.ok_or("`line` is missing: the number of the line with the name, from 1.")?;
        let name = name.ok_or("`name` is missing: the name on that line.")?;
        Ok(DiagnosticsCall { path, wants: Wants::Places { method, line, name: name.to_owned() } })
    }

    fn access(&self, call: DiagnosticsCall, _: &Workspace) -> Result<Access, String> {
        Ok(Access::Read(vec![call.path]))
    }

    fn run(&self, call: DiagnosticsCall, context: ToolContext) -> BoxFuture<ToolResult> {
        let watch = self.watch.clone();
        Box::pin(async move {
            let (workspace, root) = (context.workspace.clone(), context.workspace.cwd.clone());
            let answer = match &call.wants {
                Wants::Findings => findings(&watch, &call.path, &root).await,
                Wants::Places { method, line, name } => {
                    places(&watch, &call.path, method, *line, name, workspace).await
                }
            };
            answer.map_or_else(ToolResult::failed, ToolResult::completed)
        })
    }
}

async fn findings(watch: &EditWatch, path: &Path, root: &Path) -> Result<String, String> {
    let (installed, found) = watch.findings(path).await?;
    let server = installed.server.name;
    let shown = path.strip_prefix(root).unwrap_or(path);
    let Some(mut found) = found else {
        return Ok(format!(
            "{server} has reported nothing about {} yet; it may still be loading.",
            shown.display()
        ));
    };
    if found.is_empty() {
        return Ok(format!("{server} reports no errors or warnings in {}.", shown.display()));
    }
    found.sort_by_key(|finding| (!finding.is_error, finding.line));
    let lines: Vec<String> = found.iter().take(LISTED_MAX).map(|finding| finding.shown(shown)).collect();
    let more = found.len().saturating_sub(LISTED_MAX);
    let more = if more == 0 { String::new() } else { format!("\n({more} more)") };
    Ok(format!("{}{more}", lines.join("\n")))
}

async fn places(
    watch: &EditWatch,
    path: &Path,
    method: &'static str,
    line: u32,
    name: &str,
    workspace: Arc<Workspace>,
) -> Result<String, String> {
    let (installed, client, text) = watch.open(path).await?;
    let code = text.lines().nth(line as usize - 1).unwrap_or_default();
    let before = code.find(name).map(|at| &code[..at]);
    let before =
        before.ok_or_else(|| format!("Line {line} of {} does not contain {name:?}.", path.display()))?;
    // The server must have the text to which the position refers.
    let turn = watch.turn(path);
    let turn = turn.lock().await;
    client.check(path, installed.language, &text, std::time::Duration::ZERO).await;
    drop(turn);
    let is_complete = client.is_idle_within(CHECK_TIME_MAX).await;
    let params = json!({
        "textDocument": {"uri": file_uri::of(path)},
        "position": {"line": line - 1, "character": before.encode_utf16().count()},
        "context": {"includeDeclaration": true},
    });
    let answer = client.request(method, params).await;
    let answer = answer.map_err(|why| format!("{} could not answer: {why}.", installed.server.name))?;
    let listed = tokio::task::spawn_blocking(move || lines_of(&answer, &workspace)).await;
    let mut lines = listed.map_err(|error| error.to_string())?;
    if lines.is_empty() {
        lines.push(format!("{} finds none for {name}.", installed.server.name));
    }
    if !is_complete {
        lines.push(format!("({} is still loading, so some may be missing.)", installed.server.name));
    }
    Ok(lines.join("\n"))
}

/// Formats the locations in a response, with their lines of code if the files are in the workspace. Reads files.
fn lines_of(answer: &Value, workspace: &Workspace) -> Vec<String> {
    let one = std::slice::from_ref(answer);
    let listed = answer.as_array().map_or(one, Vec::as_slice);
    let place = |location: &Value| {
        // A `Location` or a `LocationLink`.
        let target = location["uri"].as_str().or(location["targetUri"].as_str())?;
        let range = if location["range"].is_object() {
            &location["range"]
        } else {
            &location["targetSelectionRange"]
        };
        let line = usize::try_from(range["start"]["line"].as_u64()?).ok()?;
        let path = file_uri::path(target)?;
        let text = match workspace.contains(&path) {
            true => read_regular_text(&path, FILE_BYTES_MAX).unwrap_or_default(),
            false => String::new(),
        };
        let code: String =
            text.lines().nth(line).unwrap_or_default().trim().chars().take(LINE_CHARS_MAX).collect();
        Some(format!("{}:{}: {code}", workspace.display(&path), line + 1))
    };
    listed.iter().take(LISTED_MAX).filter_map(place).collect()
}
