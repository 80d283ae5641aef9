//! Every example of the guide in `docs/` is run: scripts print what the page says that they print, payloads
//! are those that hooks are given, declarations and recipes are read without a remark, and what is typed
//! answers as shown.
//!
//! A block says what it is behind the language of its fence:
//!
//! | fence | what is done |
//! | --- | --- |
//! | `sh hook=NAME` | put into the hooks folder, and asked with `hook` what it handles |
//! | `json stdin=NAME` | laid over the sample payload of the hook's first event, and given to it |
//! | `json stdout=NAME` | what the hook printed for the block before; empty for nothing |
//! | `json payload=EVENT` | equal to the sample payload of that moment; with `adds` but for the fields of all |
//! | `json result=EVENT` | each line is read without a warning; with `same` all lines mean the same |
//! | `json manifest` | read as an executable's answer to `hook` |
//! | `yaml declarative=FILE` | read as a declarative hook, and put into the hooks folder |
//! | `json settings` | read as a settings file of Claude Code |
//! | `json mcp` | read as the `.mcp.json` of a repository, without a problem |
//! | `text problems` | what was told of the settings before |
//! | `text protocol` | each line stands in the documentation of `src/hooks/resident.rs` |
//! | `markdown recipe=ID` | read as a recipe, also its handlers; likewise `command`, `skill`, `gemini` |
//! | `markdown agent=NAME` | read as an agent, without a remark |
//! | `toml config` | read as the person's settings |
//! | `console` | each line behind `$ ` is typed in a repository; `…` stands for anything, and with `nearly` numbers may be a little off |
//!
//! `in=repo` puts a file into the repository instead of the home. `UPDATE=1 cargo test --test docs` writes
//! what comes out into `payload`, `stdout`, `problems` and `console` blocks that differ; review the diff.

#[path = "docs/handler.rs"]
mod handler;
#[path = "docs/home.rs"]
mod home;
#[path = "docs/model.rs"]
mod model;
#[path = "docs/page.rs"]
mod page;
#[path = "docs/prose.rs"]
mod prose;
#[path = "docs/run.rs"]
mod run;
#[path = "docs/sample.rs"]
mod sample;

use std::path::{Path, PathBuf};

// The worked handler names its crate's modules as it would in the crate.
use epitome::hooks::{self, moment, output};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn the_examples_of_the_page_on_hooks_hold() {
    run::page(&root().join("docs/hooks.md"));
}

#[test]
fn the_examples_of_the_page_on_permissions_hold() {
    run::page(&root().join("docs/permissions.md"));
}

#[test]
fn the_examples_of_the_page_on_the_sandbox_hold() {
    run::page(&root().join("docs/sandbox.md"));
}

#[test]
fn the_examples_of_the_page_on_mcp_hold() {
    run::page(&root().join("docs/mcp.md"));
}

#[test]
fn the_examples_of_the_page_on_checkpoints_hold() {
    run::page(&root().join("docs/checkpoints.md"));
}

#[test]
fn the_examples_of_the_page_on_recipes_hold() {
    run::page(&root().join("docs/recipes.md"));
}

#[test]
fn the_examples_of_the_page_on_migrating_hold() {
    run::page(&root().join("docs/migrating.md"));
}

#[test]
fn the_examples_of_the_page_on_configuration_hold() {
    run::page(&root().join("docs/configuration.md"));
}

#[test]
fn the_examples_of_the_page_on_agents_hold() {
    run::page(&root().join("docs/subagents.md"));
}

#[test]
fn the_examples_of_the_page_on_the_store_hold() {
    run::page(&root().join("docs/store.md"));
}

/// Its sessions talk to a scripted model; all else is as a person would see it.
#[test]
fn the_examples_of_the_page_on_compaction_hold() {
    let model = model::start();
    let environment = [("ANTHROPIC_API_KEY", "key".to_owned()), ("ANTHROPIC_BASE_URL", model.base_url())];
    run::page_with(&root().join("docs/compaction.md"), &environment);
    assert_eq!(model.refusals(), Vec::<String>::new());
}

#[test]
fn the_examples_of_the_page_on_seeing_hold() {
    run::page(&root().join("docs/observe.md"));
}

/// A page that no test above runs would be a page of promises. `tests/control/page.rs` plays that on the control
/// API, `tests/redteam` writes what was tried, `tests/import.rs` imports what `docs/import.md` lists; what
/// `docs/inspect.md` shows is looked at by `tests/inspect`.
#[test]
fn no_page_is_left_out() {
    let entries = std::fs::read_dir(root().join("docs")).expect("there is a guide");
    let mut pages: Vec<String> = entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.ends_with(".md"))
        .collect();
    pages.sort();
    assert_eq!(
        pages,
        [
            "checkpoints.md",
            "compaction.md",
            "configuration.md",
            "control.md",
            "hooks.md",
            "import.md",
            "inspect.md",
            "mcp.md",
            "migrating.md",
            "observe.md",
            "permissions.md",
            "recipes.md",
            "red-team.md",
            "sandbox.md",
            "store.md",
            "subagents.md",
        ]
    );
}

#[test]
fn links_lead_somewhere() {
    let mut faults = Vec::new();
    let pages = ["README.md", "CONTRIBUTING.md", "docs/hooks.md", "docs/recipes.md", "docs/migrating.md"];
    for page in pages.iter().chain(&[
        "docs/compaction.md",
        "docs/configuration.md",
        "docs/control.md",
        "docs/import.md",
        "docs/inspect.md",
        "docs/observe.md",
        "docs/store.md",
    ]) {
        let path = root().join(page);
        let content = text(&path);
        for link in links(&content) {
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = match file {
                "" => path.clone(),
                file => path.parent().expect("a page is in a folder").join(file),
            };
            let is_there = match anchor {
                "" => target.exists(),
                anchor => {
                    target.is_file() && prose::anchors(&text(&target)).iter().any(|known| known == anchor)
                }
            };
            if !is_there {
                faults.push(format!("{page}: {link}"));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The targets of a page's links, but for those to other sites.
fn links(page: &str) -> Vec<String> {
    let prose = prose::prose(page);
    let behind = prose.split("](").skip(1);
    let targets = behind.filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
    targets.filter(|target| !target.contains("://")).map(str::to_owned).collect()
}
