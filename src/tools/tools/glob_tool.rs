//! `glob_tool`: finds files by their paths, most recently modified first, because these are usually the relevant
//! ones. Reads no file contents.

use std::cmp::Reverse;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::Value;

use epitome_thread::titles::name_in_title;
use epitome_thread::{CallDisplay, ToolKind, ToolSpec};

use super::disk::CancelFlag;
use super::schema::{self, InputKey};
use super::walk::{self, Ignored, PathPattern};
use super::{Access, BoxFuture, ParsedTool, ToolContext, ToolError, ToolResult, Workspace, disk, input};

/// Maximum number of files listed per call: about 4,000 tokens of paths.
pub const RESULTS_MAX: usize = 200;

/// Number of files collected before all but the newest are dropped.
const COLLECTED_MAX: usize = 100 * RESULTS_MAX;

pub struct GlobTool;

impl ParsedTool for GlobTool {
    type Call = GlobCall;

    fn spec(&self) -> ToolSpec {
        let description = format!(
            "Finds files by a glob pattern, such as `**/*.rs` or `src/**/*.{{ts,tsx}}`; a pattern \
             without a slash matches names at any depth. Lists the newest first, at most \
             {RESULTS_MAX}. Skips what .gitignore names unless ignore_gitignore is true."
        );
        schema::spec(
            "glob_tool",
            description,
            [
                InputKey::text("pattern", "The glob pattern.").required(),
                InputKey::text("path", "The directory to search; the workspace's directory if left out."),
                InputKey::flag(
                    "ignore_gitignore",
                    "Also list files that .gitignore names; false if left out.",
                ),
            ],
        )
    }

    fn display(&self, input: &Value, workspace: &Workspace) -> CallDisplay {
        let kind = ToolKind::Search;
        let Ok(call) = self.parse(input, workspace) else {
            return CallDisplay { title: "Find files".to_string(), kind, locations: Vec::new() };
        };
        let mut title = format!("Find {}", name_in_title(kind, &call.given));
        if call.root != workspace.cwd {
            title.push_str(&format!(" in {}", workspace.describe(&call.root, kind)));
        }
        // Editors show a location in place of the title, and can't open a directory.
        CallDisplay { title, kind, locations: Vec::new() }
    }

    fn parse(&self, input: &Value, workspace: &Workspace) -> Result<GlobCall, ToolError> {
        let given = input::named(input, "pattern")?;
        let path = input::optional_named(input, "path")?;
        let all = input::flag(input, "ignore_gitignore")?;
        if Path::new(&given).components().any(|part| part == std::path::Component::ParentDir) {
            return Err(ToolError::new("`pattern` must not hold `..`; give the directory in `path`."));
        }
        let (root, pattern) = if Path::new(&given).is_absolute() {
            walk::split_absolute(&given)
        } else {
            (workspace.resolve(path.as_deref().unwrap_or(".")), given.clone())
        };
        let ignored = if all { Ignored::Included } else { Ignored::LeftOut };
        Ok(GlobCall { given, pattern, root, ignored })
    }

    fn access(&self, call: GlobCall, _: &Workspace) -> Result<Access, ToolError> {
        PathPattern::new(&[&call.pattern])?;
        Ok(Access::Read(vec![super::real_path(&call.root)]))
    }

    fn run(&self, call: GlobCall, context: ToolContext) -> BoxFuture<ToolResult> {
        disk::run(context, move |context, stop| find(&call, context, stop))
    }
}

pub struct GlobCall {
    /// The pattern as the model wrote it.
    given: String,
    /// Relative to `root`.
    pattern: String,
    root: PathBuf,
    ignored: Ignored,
}

fn find(call: &GlobCall, context: &ToolContext, stop: &CancelFlag) -> Result<ToolResult, ToolError> {
    let workspace = &*context.workspace;
    let pattern = PathPattern::new(&[&call.pattern])?;
    let root = context.permitted_path(&call.root)?;
    let trouble = |error| match disk::metadata(&root, workspace) {
        Ok(Some(file)) if !file.is_dir() => {
            ToolError::new(format!("{} is a file, not a directory to search.", workspace.display(&call.root)))
        }
        _ => disk::trouble("search", &call.root, workspace, error),
    };
    let secrets = workspace.secrets().below(&root);
    let mut found: Vec<(Reverse<SystemTime>, PathBuf)> = Vec::new();
    let mut count: u64 = 0;
    let end = walk::files(&root, workspace.roots(), call.ignored, stop, |file| {
        if pattern.matches(file.relative) && !secrets.contain(file.path) {
            let changed = file.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            found.push((Reverse(changed), file.relative.to_path_buf()));
            count += 1;
            if found.len() >= COLLECTED_MAX {
                found.sort();
                found.truncate(RESULTS_MAX);
            }
        }
        true
    });
    let end = end.map_err(trouble)?;
    found.sort();
    found.truncate(RESULTS_MAX);
    let lines: Vec<String> =
        found.iter().map(|(_, relative)| workspace.display(&call.root.join(relative))).collect();
    let mut text = lines.join("\n");
    if found.is_empty() {
        text = format!("No file in {} matches `{}`.", workspace.display(&call.root), call.given);
        if call.ignored == Ignored::LeftOut {
            text.push_str(
                " Files that .gitignore names were left out; ignore_gitignore=true lists them too.",
            );
        }
    }
    if count > found.len() as u64 {
        text.push_str(&format!(
            "\n[the {RESULTS_MAX} newest of {count} files; narrow the pattern to see others]"
        ));
    }
    if let Some(note) = end.note() {
        text.push_str(&format!("\n{note}"));
    }
    Ok(ToolResult::with_file_text(text))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::grep_tool::GrepTool;
    use super::*;
    use epitome_thread::Location;

    /// A client that shows a location in place of the title showed the workspace's directory for every search, and an
    /// editor offered to open it.
    #[test]
    fn searches_have_no_directory_as_a_location() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        fs::create_dir(directory.path().join("src")).expect("made");
        fs::write(directory.path().join("src/__init__.py"), "").expect("written");
        let cwd = directory.path().canonicalize().expect("it is there");
        let workspace = Workspace::new(cwd, Vec::new(), Default::default());
        let grep = |input| ParsedTool::display(&GrepTool, &input, &workspace);
        let glob = ParsedTool::display(&GlobTool, &serde_json::json!({"pattern": "**/*.py"}), &workspace);
        assert_eq!((glob.title.as_str(), glob.locations), ("Find `**/*.py`", vec![]));
        let below = grep(serde_json::json!({"pattern": "a*b*c", "path": "src"}));
        assert_eq!((below.title.as_str(), below.locations), ("Search for `a*b*c` in `src`", vec![]));
        let file = grep(serde_json::json!({"pattern": "a", "path": "src/__init__.py"}));
        assert_eq!(file.title, "Search for `a` in `src/__init__.py`");
        let path = workspace.cwd.join("src/__init__.py");
        assert_eq!(file.locations, [Location { path, line: None }]);
    }
}
