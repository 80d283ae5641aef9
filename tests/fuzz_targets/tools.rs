//! Command lines and patches written by models.

use std::path::Path;
use std::sync::{Arc, LazyLock};

use epitome_thread::OutcomeStatus;
use epitome_tools::command_line::{self, parts::CommandParts};
use epitome_tools::reaper::Reaper;
use epitome_tools::{Access, ToolContext, Toolbox, Workspace};
use serde_json::json;
use tokio::runtime::{Builder, Runtime};

/// Checks a command line. Rules that allow everything allow it, or report the part that they can't allow.
pub fn command_line(bytes: &[u8]) {
    let line = String::from_utf8_lossy(bytes);
    if let Some(part) = command_line::refused(&line, &[]) {
        assert!(!part.is_empty(), "what is refused is named");
    }
    let parts = CommandParts::parse(&line);
    let _ = (parts.arguments().count(), parts.names().count());
}

/// Disabled, because the tools of a patch start no process.
static REAPER: LazyLock<Arc<Reaper>> = LazyLock::new(|| Arc::new(Reaper::disabled()));

static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_current_thread().enable_all().build().expect("a runtime"));

const FILES: [(&str, &str); 2] =
    [("a.rs", "fn a() {\n    1\n}\n\nfn b() {\n    1\n}\n"), ("b.txt", "one\ntwo\nthree")];

/// Applies a patch to files of the workspace. It is applied completely, or nothing changes.
pub fn patch(bytes: &[u8]) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let root = directory.path().canonicalize().expect("it is there").join("w");
    std::fs::create_dir(&root).expect("made");
    for (name, text) in FILES {
        std::fs::write(root.join(name), text).expect("written");
    }
    let workspace = Arc::new(Workspace::new(root.clone(), Vec::new(), Arc::default()));
    let tools = Toolbox::built_in(REAPER.clone());
    let context = ToolContext::bare(workspace.clone());
    let run = |tool: &str, input| {
        RUNTIME.block_on(tools.get(tool).expect("a built-in tool").run(input, context.clone()))
    };
    for (name, _) in FILES {
        run("file_read", json!({"file_path": name}));
    }
    let input = json!({"input": String::from_utf8_lossy(bytes)});
    // Paths outside the workspace need permission, which the fuzzer does not grant.
    let access = tools.get("apply_patch").expect("a built-in tool").access(&input, &context.workspace);
    if !matches!(access, Ok(Access::Write(paths)) if paths.iter().all(|path| workspace.contains(path))) {
        return;
    }
    let result = run("apply_patch", input);
    if result.status != OutcomeStatus::Completed {
        for (name, text) in FILES {
            assert_eq!(read(&root.join(name)).as_deref(), Some(text), "{name} is unchanged");
        }
        assert_eq!(std::fs::read_dir(&root).expect("it is there").count(), FILES.len());
    }
}

fn read(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}
