//! The `diagnostics` tool: errors and warnings of a file, and definitions and references of a name, from a language
//! server.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::EditWatch;
use super::watch::{CHECK_TIME_MAX, FILE_BYTES_MAX};
use epitome_platform::file_uri;
use epitome_thread::{CallDisplay, ToolKind, ToolSpec};
use epitome_tools::ToolError;
use epitome_tools::schema::{self, InputKey};
use epitome_tools::secret_paths::is_secret_name;
use epitome_tools::{Access, BoxFuture, ParsedTool, ToolContext, ToolResult, Workspace, disk};

/// Maximum diagnostics or locations that one call returns.
const LISTED_MAX: usize = 100;
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
        schema::spec(
            "diagnostics",
            "Asks the language server of a file for its errors and warnings, or where a name in it is defined or used. \
             New errors of files that you edit are reported without this.",
            [
                InputKey::text("file_path", "The file.").required(),
                InputKey::choice(
                    "action",
                    &["errors", "definition", "references"],
                    "What is wanted; `errors` by default.",
                ),
                InputKey::number("line", "For a name: its line, from 1."),
                InputKey::text("name", "The name on that line."),
            ],
        )
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

    fn parse(&self, input: &Value, workspace: &Workspace) -> Result<DiagnosticsCall, ToolError> {
        let path = input["file_path"]
            .as_str()
            .ok_or_else(|| ToolError::new("`file_path` is missing: name a file."))?;
        let path = workspace.real(path);
        let method = match input["action"].as_str() {
            None | Some("errors") => return Ok(DiagnosticsCall { path, wants: Wants::Findings }),
            Some("definition") => "textDocument/definition",
            Some("references") => "textDocument/references",
            Some(other) => {
                return Err(ToolError::new(format!(
                    "`action` is {other:?}; it is errors, definition or references."
                )));
            }
        };
        let line = input["line"].as_u64().and_then(|line| u32::try_from(line).ok()).filter(|line| *line > 0);
        let name = input["name"].as_str().filter(|name| !name.is_empty());
        let line = line.ok_or_else(|| {
            ToolError::new("`line` is missing: the number of the line with the name, from 1.")
        })?;
        let name = name.ok_or_else(|| ToolError::new("`name` is missing: the name on that line."))?;
        Ok(DiagnosticsCall { path, wants: Wants::Places { method, line, name: name.to_owned() } })
    }

    fn access(&self, call: DiagnosticsCall, _: &Workspace) -> Result<Access, ToolError> {
        Ok(Access::Read(vec![call.path]))
    }

    fn run(&self, call: DiagnosticsCall, context: ToolContext) -> BoxFuture<ToolResult> {
        let watch = self.watch.clone();
        Box::pin(async move {
            let answer = match &call.wants {
                Wants::Findings => findings(&watch, &call.path, &context.workspace.cwd).await,
                Wants::Places { method, line, name } => {
                    places(&watch, &call.path, method, *line, name, context).await
                }
            };
            answer.map_or_else(ToolResult::failed, ToolResult::completed)
        })
    }
}

async fn findings(watch: &EditWatch, path: &Path, root: &Path) -> Result<String, ToolError> {
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
    context: ToolContext,
) -> Result<String, ToolError> {
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
    let listed = tokio::task::spawn_blocking(move || lines_of(&answer, &context)).await;
    let mut lines = listed.map_err(|error| error.to_string())?;
    if lines.is_empty() {
        lines.push(format!("{} finds none for {name}.", installed.server.name));
    }
    if !is_complete {
        lines.push(format!("({} is still loading, so some may be missing.)", installed.server.name));
    }
    Ok(lines.join("\n"))
}

/// Formats the locations in a response, with their lines of code if the files are in the workspace. The server is not
/// trusted, so it gets no text of files that searches skip. Reads files.
fn lines_of(answer: &Value, context: &ToolContext) -> Vec<String> {
    let workspace = &*context.workspace;
    let secrets = workspace.secrets();
    let is_shown =
        |real: &PathBuf| !is_secret_name(real) && !secrets.contain(real) && !context.hidden.hides(real);
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
        let real = path.canonicalize().ok().filter(is_shown);
        let text =
            real.and_then(|real| disk::small_text(&real, FILE_BYTES_MAX, workspace)).unwrap_or_default();
        let code: String =
            text.lines().nth(line).unwrap_or_default().trim().chars().take(LINE_CHARS_MAX).collect();
        Some(format!("{}:{}: {code}", workspace.display(&path), line + 1))
    };
    listed.iter().take(LISTED_MAX).filter_map(place).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;

    use super::*;

    /// A language server runs code of the repository, in the sandbox. If its answer named a file with keys, the agent read
    /// that file for it.
    #[test]
    fn places_in_secret_files_are_listed_without_their_text() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let base = directory.path().canonicalize().expect("it is there");
        let root = base.join("w");
        fs::create_dir(&root).expect("made");
        for (file, text) in [("w/a.rs", "fn a() {}\n"), ("w/.env", "KEY=the-key\n"), ("outside", "the-key\n")]
        {
            fs::write(base.join(file), text).expect("written");
        }
        std::os::unix::fs::symlink(base.join("outside"), root.join("link")).expect("linked");
        let place =
            |name: &str| json!({"uri": file_uri::of(&root.join(name)), "range": {"start": {"line": 0}}});
        let answer = json!([place("a.rs"), place(".env"), place("link")]);
        let context = ToolContext::bare(Arc::new(Workspace::new(&root, Vec::new(), Arc::default())));
        assert_eq!(lines_of(&answer, &context), ["a.rs:1: fn a() {}", ".env:1: ", "link:1: "]);
    }
}
