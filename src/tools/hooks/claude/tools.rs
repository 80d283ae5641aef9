//! Translates tools for Claude Code's hooks: their names, the keys of their inputs, and the form of their
//! results. Pure, and tolerant of any input: keys without a counterpart are kept.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::hook_context::{HookCall, HookCallResult};

/// Epitome's tool names with Claude Code's.
const NAMES: [(&str, &str); 14] = [
    ("bash", "Bash"),
    ("bash_output", "BashOutput"),
    ("bash_kill", "KillShell"),
    ("file_read", "Read"),
    ("file_write", "Write"),
    ("file_edit", "Edit"),
    ("grep_tool", "Grep"),
    ("glob_tool", "Glob"),
    ("todo_write", "TodoWrite"),
    ("web_fetch", "WebFetch"),
    ("web_search", "WebSearch"),
    ("task", "Task"),
    ("skill", "Skill"),
    ("ask_user", "AskUserQuestion"),
];

/// Claude Code's name of a tool; tools without an entry have the same name in both.
pub fn tool_name(ours: &str) -> &str {
    NAMES.into_iter().find(|(name, _)| *name == ours).map_or(ours, |(_, theirs)| theirs)
}

/// Other names, past or present, that Claude Code uses for the same tool.
pub fn aliases(theirs: &str) -> &'static [&'static str] {
    match theirs {
        "Task" => &["Agent"],
        "Edit" => &["MultiEdit"],
        // It edits files like these, and Codex's hooks use the same names for it.
        APPLY_PATCH => &["Edit", "MultiEdit", "Write"],
        _ => &[],
    }
}

/// The tool whose input is a patch, which Claude Code does not have.
const APPLY_PATCH: &str = "apply_patch";

/// The files that a patch names.
pub fn files_of_patch<'a>(call: &'a HookCall) -> impl Iterator<Item = &'a str> {
    let patch = call.input.get("input").and_then(Value::as_str).filter(|_| call.tool == APPLY_PATCH);
    let heads = ["*** Add File: ", "*** Update File: ", "*** Delete File: ", "*** Move to: "];
    let file = move |line: &'a str| heads.iter().find_map(|head| line.trim().strip_prefix(head));
    patch.into_iter().flat_map(str::lines).filter_map(file).map(str::trim)
}

/// Names in agent files for Epitome's tools, in addition to those that hooks see: of tools that Claude Code has or had
/// as separate ones.
const IN_AGENT_FILES: [(&str, &str); 6] = [
    ("LS", "glob_tool"),
    ("NotebookRead", "file_read"),
    ("NotebookEdit", "file_edit"),
    ("TodoRead", "todo_write"),
    ("TaskOutput", "bash_output"),
    ("KillBash", "bash_kill"),
];

/// Whether this tool name in an agent file refers to `ours`. Published files write the names in any case.
pub fn is_name_of(name: &str, ours: &str) -> bool {
    let theirs = tool_name(ours);
    let is = |known: &str| name.eq_ignore_ascii_case(known);
    // An MCP server alone means all of its tools.
    let server = name.strip_suffix("__*").unwrap_or(name);
    let is_server = server.strip_prefix("mcp__").is_some_and(|server| !server.contains("__"));
    is(ours)
        || (is_server && ours.strip_prefix(server).is_some_and(|tool| tool.starts_with("__")))
        || is(theirs)
        || aliases(theirs).iter().any(|alias| is(alias))
        || IN_AGENT_FILES.iter().any(|(known, tool)| *tool == ours && is(known))
}

/// Renamed keys of a tool's input: Epitome's, then Claude Code's.
fn keys(theirs: &str) -> &'static [(&'static str, &'static str)] {
    match theirs {
        "Bash" => &[("background", "run_in_background"), ("outside_sandbox", "dangerouslyDisableSandbox")],
        "BashOutput" => &[("id", "bash_id")],
        "KillShell" => &[("id", "shell_id")],
        "Read" => &[("line_limit", "limit")],
        "Write" => &[("text", "content")],
        "Edit" => &[("old_text", "old_string"), ("new_text", "new_string")],
        "Grep" => &[
            ("include", "glob"),
            ("ignore_case", "-i"),
            ("surround_lines", "-C"),
            ("max_results", "head_limit"),
        ],
        "Task" => &[("agent", "subagent_type")],
        "Skill" => &[("name", "skill"), ("arguments", "args")],
        _ => &[],
    }
}

/// Translates a call's input: Claude Code's keys, absolute paths, times in milliseconds.
pub fn to_claude_input(call: &HookCall, cwd: &Path) -> Map<String, Value> {
    let tool = tool_name(&call.tool);
    let mut input: Map<String, Value> = Map::new();
    for (key, value) in &call.input {
        let name = keys(tool).iter().find(|(ours, _)| ours == key).map_or(key.as_str(), |(_, theirs)| theirs);
        input.insert(name.to_owned(), value.clone());
    }
    // Scripts that protect files look there.
    if let Some(first) = files_of_patch(call).next() {
        input.insert("file_path".to_owned(), json!(cwd.join(first).to_string_lossy()));
    }
    if matches!(tool, "Read" | "Write" | "Edit")
        && let Some(path) = input.get("file_path").and_then(Value::as_str)
    {
        input["file_path"] = json!(cwd.join(path).to_string_lossy());
    }
    if tool == "Bash"
        && let Some(seconds) = input.get("timeout").and_then(Value::as_u64)
    {
        input["timeout"] = json!(seconds.saturating_mul(1000));
    }
    if tool == "TodoWrite" {
        for step in input.get_mut("todos").and_then(Value::as_array_mut).into_iter().flatten() {
            if let (Some(content), Some(step)) = (step.get("content").cloned(), step.as_object_mut()) {
                step.entry("activeForm").or_insert(content);
            }
        }
    }
    input
}

/// Translates an input changed by a hook back to Epitome's keys. The hook's input replaces the original completely,
/// so keys that it omits are dropped.
pub fn to_our_input(tool: &str, input: &Map<String, Value>) -> Map<String, Value> {
    let tool = tool_name(tool);
    let mut changed: Map<String, Value> = Map::new();
    for (key, value) in input {
        let name = keys(tool).iter().find(|(_, theirs)| theirs == key).map_or(key.as_str(), |(ours, _)| ours);
        // Ripgrep's other flag for the same option.
        let name = if tool == "Grep" && key == "context" { "surround_lines" } else { name };
        changed.insert(name.to_owned(), value.clone());
    }
    if tool == "Bash"
        && let Some(milliseconds) = changed.get("timeout").and_then(Value::as_u64)
    {
        changed["timeout"] = json!(milliseconds.div_ceil(1000));
    }
    if tool == APPLY_PATCH {
        changed.shift_remove("file_path");
    }
    if tool == "TodoWrite" {
        for step in changed.get_mut("todos").and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(step) = step.as_object_mut() {
                step.shift_remove("activeForm");
            }
        }
    }
    changed
}

/// A tool's result as `tool_response`, without the fields that are unknown here, such as the previous content of a
/// changed file.
pub fn response(call: &HookCall, result: &HookCallResult, cwd: &Path) -> Value {
    let input = to_claude_input(call, cwd);
    let given = |key: &str| input.get(key).cloned().unwrap_or(Value::Null);
    let known = |key: &str| result.metadata.as_ref().and_then(|metadata| metadata.get(key));
    match tool_name(&call.tool) {
        "Bash" => json!({
            "stdout": known("stdout").cloned().unwrap_or_else(|| json!(result.text)),
            "stderr": known("stderr").cloned().unwrap_or_else(|| json!("")),
            "interrupted": known("timedOut").is_some_and(|yes| yes == true) || known("signal").is_some(),
            "isImage": false,
        }),
        "Read" => read_response(&result.text, given("file_path")),
        "Write" => json!({
            "filePath": given("file_path"),
            "content": given("content"),
            "structuredPatch": [],
            "originalFile": null,
        }),
        "Edit" => json!({
            "filePath": given("file_path"),
            "oldString": given("old_string"),
            "newString": given("new_string"),
            "originalFile": null,
            "structuredPatch": [],
            "userModified": false,
            "replaceAll": input.get("replace_all").is_some_and(|all| all == true),
        }),
        "Grep" => json!({"mode": "content", "content": result.text, "numLines": result.text.lines().count()}),
        "Glob" => {
            let files: Vec<&str> = result.text.lines().filter(|line| !line.starts_with('[')).collect();
            json!({
                "filenames": files,
                "numFiles": files.len(),
                "durationMs": result.milliseconds,
                "truncated": files.len() < result.text.lines().count(),
            })
        }
        "TodoWrite" => json!({"oldTodos": [], "newTodos": given("todos")}),
        "Task" => {
            let tokens = known("tokens").and_then(Value::as_object);
            let total: u64 = tokens.into_iter().flat_map(Map::values).filter_map(Value::as_u64).sum();
            json!({
                "status": "completed",
                "prompt": given("prompt"),
                "content": [{"type": "text", "text": result.text}],
                "totalDurationMs": result.milliseconds,
                "totalTokens": total,
                "totalToolUseCount": known("calls").cloned().unwrap_or_else(|| json!(0)),
            })
        }
        _ => result.metadata.clone().unwrap_or_else(|| json!(result.text)),
    }
}

/// The lines of a file without the line numbers shown to the model.
fn read_response(text: &str, path: Value) -> Value {
    let numbered = |line: &str| {
        let (number, line) = line.split_once('\t')?;
        Some((number.trim().parse::<u64>().ok()?, line.to_owned()))
    };
    let lines: Vec<(u64, String)> = text.lines().map_while(numbered).collect();
    let Some((start, _)) = lines.first() else {
        return json!({"type": "text", "file": {"filePath": path, "content": text}});
    };
    let content: Vec<&str> = lines.iter().map(|(_, line)| line.as_str()).collect();
    json!({
        "type": "text",
        "file": {
            "filePath": path,
            "content": content.join("\n"),
            "numLines": lines.len(),
            "startLine": start,
        },
    })
}

/// The text of a tool output supplied by a hook: a string, an object in one of the forms of `response`, or
/// content blocks.
pub fn output_text(output: &Value) -> String {
    let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    let blocks = |value: &Value| {
        let texts: Vec<String> =
            value.as_array()?.iter().map(|block| text(block, "text")).collect::<Option<_>>()?;
        Some(texts.join("\n"))
    };
    let shell = || {
        let (stdout, stderr) = (text(output, "stdout")?, text(output, "stderr").unwrap_or_default());
        let border = if stdout.is_empty() || stderr.is_empty() || stdout.ends_with('\n') { "" } else { "\n" };
        Some(format!("{stdout}{border}{stderr}"))
    };
    output
        .as_str()
        .map(str::to_owned)
        .or_else(shell)
        .or_else(|| text(output.get("file")?, "content"))
        .or_else(|| text(output, "content"))
        .or_else(|| blocks(output.get("content")?))
        .or_else(|| blocks(output))
        .unwrap_or_else(|| output.to_string())
}

#[cfg(test)]
mod tests {
    use super::is_name_of;

    /// Regression: the name of a server matched nothing, so an agent file could not take a server's tools away.
    #[test]
    fn a_server_means_all_of_its_tools() {
        for name in ["mcp__a", "mcp__a__*", "mcp__a__b"] {
            assert!(is_name_of(name, "mcp__a__b"), "{name}");
            assert!(!is_name_of(name, "mcp__ab__c") && !is_name_of(name, "bash"), "{name}");
        }
        assert!(!is_name_of("mcp__", "mcp__a__b") && !is_name_of("mcp__a__c", "mcp__a__b"));
    }
}
