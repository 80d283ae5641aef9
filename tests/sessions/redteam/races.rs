//! Directories that a command exchanges for links between the permission decision on a file tool's call and its
//! execution.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use epitome::thread::{OutcomeStatus, ToolOutcome};
use epitome::tools::reaper::Reaper;
use epitome::tools::{ToolContext, ToolResult, Toolbox, Workspace};
use serde_json::{Value, json};

use super::range::SECRET;

/// A workspace with a directory `d`, and a home with the same files.
struct Scene {
    base: PathBuf,
    workspace: Arc<Workspace>,
    _directory: tempfile::TempDir,
}

impl Scene {
    fn new() -> Scene {
        let directory = tempfile::tempdir().expect("a scratch directory");
        let base = directory.path().canonicalize().expect("it is there");
        for (place, text) in [("w", "ours\n"), ("home", SECRET)] {
            for file in ["d/hosts.yml", "d/e/deep.txt"] {
                put(&base.join(place).join(file), text.as_bytes());
            }
            put(&base.join(place).join("d/x.png"), &[b"\x89PNG\r\n\x1a\n", text.as_bytes()].concat());
        }
        let environment = vec![("HOME".into(), base.join("home").into())];
        let workspace = Workspace::new(base.join("w"), Vec::new(), Arc::new(environment));
        Scene { base, workspace: Arc::new(workspace), _directory: directory }
    }

    /// Decides on a call, exchanges directories, and runs the call.
    fn run(&self, tool: &str, input: Value, is_decided: bool, exchange: impl FnOnce(&Path)) -> ToolResult {
        let toolbox = Toolbox::built_in(Arc::new(Reaper::disabled()));
        let tool = toolbox.get(tool).expect("a tool").clone();
        let access = tool.access(&input, &self.workspace).expect("a valid call");
        let decided = is_decided.then(|| Arc::new(access));
        let context = ToolContext { decided, ..ToolContext::bare(self.workspace.clone()) };
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
        // The model has read the files, so only the exchange can make the call fail.
        let read = toolbox.get("file_read").expect("a tool").clone();
        for file in ["d/hosts.yml", "d/e/deep.txt"] {
            runtime.block_on(
                read.run(json!({ "file_path": file }), ToolContext { decided: None, ..context.clone() }),
            );
        }
        exchange(&self.base);
        runtime.block_on(tool.run(input, context))
    }

    /// The files in the home, by path and content.
    fn home(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let mut found = Vec::new();
        let mut open = vec![self.base.join("home")];
        while let Some(path) = open.pop() {
            match path.is_dir() {
                true => {
                    open.extend(fs::read_dir(&path).expect("listed").map(|entry| entry.expect("one").path()))
                }
                false => found.push((path.clone(), fs::read(&path).expect("read"))),
            }
        }
        found.sort();
        found
    }
}

fn put(path: &Path, bytes: &[u8]) {
    fs::create_dir_all(path.parent().expect("it has one")).expect("made");
    fs::write(path, bytes).expect("written");
}

fn calls() -> Vec<(&'static str, Value)> {
    let patch = |lines: &str| json!({ "input": format!("*** Begin Patch\n{lines}\n*** End Patch") });
    vec![
        ("file_read", json!({"file_path": "d/hosts.yml"})),
        ("file_read", json!({"file_path": "d/e/deep.txt"})),
        ("file_read", json!({"file_path": "$W/d/hosts.yml"})),
        ("view_image", json!({"path": "d/x.png"})),
        ("file_write", json!({"file_path": "d/hosts.yml", "text": "x"})),
        ("file_write", json!({"file_path": "d/new.txt", "text": "x"})),
        ("file_write", json!({"file_path": "d/new/er/file.txt", "text": "x"})),
        ("file_edit", json!({"file_path": "d/hosts.yml", "old_text": "ours", "new_text": "x"})),
        ("apply_patch", patch("*** Add File: d/new.txt\n+x")),
        ("apply_patch", patch("*** Delete File: d/hosts.yml")),
        ("apply_patch", patch("*** Update File: d/hosts.yml\n@@\n-ours\n+x")),
        ("apply_patch", patch("*** Update File: d/hosts.yml\n*** Move to: d/moved.yml\n@@\n-ours\n+x")),
        ("grep_tool", json!({"pattern": "frog", "path": "d"})),
        ("grep_tool", json!({"pattern": "frog", "path": "d/hosts.yml"})),
        ("glob_tool", json!({"pattern": "*", "path": "d"})),
    ]
}

fn link_to_home(base: &Path) {
    fs::rename(base.join("w/d"), base.join("w/was")).expect("renamed");
    symlink(base.join("home/d"), base.join("w/d")).expect("linked");
}

/// Replaces the session's own directory.
fn replace_root(base: &Path) {
    fs::rename(base.join("w"), base.join("old")).expect("renamed");
    fs::create_dir(base.join("w")).expect("made");
    put(&base.join("w/d/hosts.yml"), SECRET.as_bytes());
    put(&base.join("w/d/e/deep.txt"), SECRET.as_bytes());
    put(&base.join("w/d/x.png"), SECRET.as_bytes());
}

fn attempt(exchange: fn(&Path), wanted: &str) {
    let mut faults = Vec::new();
    for (tool, input) in calls() {
        let scene = Scene::new();
        let before = scene.home();
        let input = input.to_string().replace("$W", &scene.base.join("w").display().to_string());
        let result = scene.run(tool, serde_json::from_str(&input).expect("JSON"), true, exchange);
        let outcome = ToolOutcome {
            content: result.content.clone(),
            ..ToolOutcome::text(epitome::thread::CallId("c".into()), result.status, "")
        };
        let text = outcome.model_text();
        let is_refused = result.status == OutcomeStatus::Failed && text.contains(wanted);
        let all = format!("{result:?}");
        if !is_refused || all.contains(SECRET) || scene.home() != before {
            faults.push(format!("- {tool} {input}: {text}"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Regression: a background command exchanged a directory for a link in a loop. 91 of 118 writes that needed no
/// permission landed outside of the workspace, and 13 of 66 reads returned files that the sandbox hides.
#[test]
fn a_directory_exchanged_between_decision_and_run_is_not_followed() {
    attempt(link_to_home, "was replaced. Nothing was read or written.");
}

/// Regression: after `mv work old && ln -s ~ work`, the home directory served as the workspace.
#[test]
fn a_replaced_workspace_is_not_used() {
    attempt(replace_root, "was replaced since the session began");
}
