//! Runs every example of the guide in `docs/`: scripts print the output that the page shows, payloads are the
//! ones that hooks receive, declarations and recipes are parsed without warnings, and commands print what is
//! shown.
//!
//! The info string of a fence defines how a block is used:
//!
//! | fence | use |
//! | --- | --- |
//! | `sh hook=NAME` | installed in the hooks folder, and run with `hook` to list its events |
//! | `json stdin=NAME` | merged into the sample payload of the hook's first event, and passed to the hook |
//! | `json stdout=NAME` | the hook's output for the previous block; empty for none |
//! | `json payload=EVENT` | equal to that event's sample payload; with `adds` without the common fields |
//! | `json result=EVENT` | each line is parsed without a warning; with `same` all lines are equivalent |
//! | `json manifest` | parsed as an executable's answer to `hook` |
//! | `yaml declarative=FILE` | parsed as a declarative hook, and installed in the hooks folder |
//! | `json settings` | parsed as a settings file of Claude Code |
//! | `json mcp` | parsed as the `.mcp.json` of a repository, without a problem |
//! | `text problems` | the problems reported for the preceding settings |
//! | `text protocol` | each line occurs in the documentation of `src/tools/hooks/resident.rs` |
//! | `markdown recipe=ID` | parsed as a recipe with its handlers; also `command`, `skill`, `gemini` |
//! | `markdown agent=NAME` | parsed as an agent, without a warning |
//! | `toml config` | parsed as the user's settings |
//! | `console` | each line after `$ ` is run; `…` matches anything; with `nearly` numbers may differ slightly |
//!
//! `in=repo` installs a file in the repository instead of the home. `UPDATE=1 cargo test --test processes docs` writes
//! the actual output into `payload`, `stdout`, `problems` and `console` blocks that differ; review the diff.

mod handler;
mod home;
mod model;
mod page;
mod prose;
mod run;
mod sample;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use epitome_test_harness::user::program;

use epitome::provider::endpoint::built_in_providers;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn the_examples_in_hooks_md_work() {
    run::page(&root().join("docs/hooks.md"));
}

#[test]
fn the_examples_in_the_guides_work() {
    run::page(&root().join("docs/first-hook.md"));
    run::page(&root().join("docs/team-rules.md"));
    page_with_model("docs/long-conversations.md");
}

#[test]
fn the_commands_in_cli_md_have_this_help() {
    run::page(&root().join("docs/cli.md"));
}

#[test]
fn the_examples_in_web_search_md_and_memory_md_work() {
    run::page(&root().join("docs/web-search.md"));
    run::page(&root().join("docs/memory.md"));
}

#[test]
fn the_examples_in_diagnostics_md_work() {
    run::page(&root().join("docs/diagnostics.md"));
}

#[test]
fn the_examples_in_providers_md_work() {
    let path = root().join("docs/providers.md");
    run::page(&path);
    let page = text(&path) + &text(&root().join("docs/configuration.md"));
    let is_named = |name: &str| page.contains(&format!("`{name}`")) || page.contains(&format!("{name}/"));
    let missing: Vec<&str> = built_in_providers().filter(|name| !is_named(name)).collect();
    assert_eq!(missing, Vec::<&str>::new());
}

#[test]
fn the_examples_in_daemon_md_work() {
    run::page(&root().join("docs/daemon.md"));
}

#[test]
fn the_examples_in_permissions_md_work() {
    run::page(&root().join("docs/permissions.md"));
}

#[test]
fn the_examples_in_sandbox_md_work() {
    run::page(&root().join("docs/sandbox.md"));
}

#[test]
fn the_examples_in_mcp_md_work() {
    run::page(&root().join("docs/mcp.md"));
}

#[test]
fn the_examples_in_checkpoints_md_work() {
    run::page(&root().join("docs/checkpoints.md"));
}

#[test]
fn the_examples_in_recipes_md_work() {
    run::page(&root().join("docs/recipes.md"));
}

#[test]
fn the_examples_in_migrating_md_work() {
    run::page(&root().join("docs/migrating.md"));
}

#[test]
fn the_examples_in_configuration_md_work() {
    run::page(&root().join("docs/configuration.md"));
}

#[test]
fn the_examples_in_acp_v2_md_work() {
    run::page(&root().join("docs/acp-v2.md"));
}

#[test]
fn the_examples_in_subagents_md_work() {
    run::page(&root().join("docs/subagents.md"));
}

#[test]
fn the_examples_in_store_md_work() {
    run::page(&root().join("docs/store.md"));
}

/// Sessions use a scripted model; everything else is real.
fn page_with_model(page: &str) {
    let model = model::start();
    let environment = [("ANTHROPIC_API_KEY", "key".to_owned()), ("ANTHROPIC_BASE_URL", model.base_url())];
    run::page_with(&root().join(page), &environment);
    assert_eq!(model.refusals(), Vec::<String>::new());
}

#[test]
fn the_examples_in_compaction_md_work() {
    page_with_model("docs/compaction.md");
}

#[test]
fn the_examples_in_observe_md_work() {
    run::page(&root().join("docs/observe.md"));
}

/// The pages of the guide.
fn pages() -> Vec<String> {
    let names = |folder: &str| {
        let entries = std::fs::read_dir(root().join("docs").join(folder)).expect("there is a guide");
        let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter(|name| name.ends_with(".md")).map(|name| format!("{prefix}{name}")).collect::<Vec<_>>()
    };
    let mut pages = [names(""), names("builders")].concat();
    pages.sort();
    pages
}

/// A page that no test runs would be unverified. `tests/sessions/control/page.rs` runs the page on the control API,
/// `tests/sessions/redteam` generates the page on attacks, `tests/services/import.rs` imports the formats listed in
/// `docs/import.md`, `tests/processes/protocol.rs` compares the methods of `docs/acp.md` and the rules of
/// `docs/conformance.md` with the agent and the suite, `tests/processes/acp_v2.rs` tests the behavior that
/// `docs/acp-v2.md` describes, `tests/processes/ahp.rs` that of `docs/ahp.md`, `tests/processes/login.rs` logs in as
/// described in `docs/login.md`, `tests/processes/programs.rs` does what `docs/programs.md` and `docs/github-action.md`
/// describe, `tests/processes/worktrees.rs` the same for `docs/worktrees.md`, `tests/sessions/inspect` checks the
/// examples of `docs/inspect.md`, `tests/processes/packaging.rs` makes and installs what `docs/install.md` lists, and
/// `src/front/chat/keys.rs` looks for all keys and commands of the chat in `docs/chat.md`. `src/world/store_postgres/tests.rs` does
/// what `docs/fleet.md` describes, with real servers, `tests/processes/daemon/remote.rs` what `docs/remote.md`
/// describes, and `tests/processes/policy.rs` what `docs/policy.md` does. `src/programs/compact/tests/program.rs` does what
/// `docs/other-agents.md` describes. `docs/builders/speed.md` reports dated measurements, which no
/// test can repeat, and `docs/builders/architecture.md` describes the code.
#[test]
fn every_page_is_tested() {
    assert_eq!(
        pages(),
        [
            "README.md",
            "acp-v2.md",
            "acp.md",
            "ahp.md",
            "builders/architecture.md",
            "builders/red-team.md",
            "builders/reliability.md",
            "builders/speed.md",
            "chat.md",
            "checkpoints.md",
            "cli.md",
            "compaction.md",
            "comparison.md",
            "configuration.md",
            "conformance.md",
            "control.md",
            "daemon.md",
            "diagnostics.md",
            "first-hook.md",
            "fleet.md",
            "github-action.md",
            "hooks.md",
            "import.md",
            "inspect.md",
            "install.md",
            "login.md",
            "long-conversations.md",
            "mcp.md",
            "memory.md",
            "migrating.md",
            "observe.md",
            "other-agents.md",
            "permissions.md",
            "policy.md",
            "privacy.md",
            "programs.md",
            "providers.md",
            "recipes.md",
            "remote.md",
            "sandbox.md",
            "store.md",
            "subagents.md",
            "team-rules.md",
            "web-search.md",
            "worktrees.md",
        ]
    );
}

#[test]
fn the_index_links_to_every_page() {
    let index = links(&text(&root().join("docs/README.md")));
    let missing = pages().into_iter().filter(|page| page != "README.md" && !index.contains(page));
    assert_eq!(missing.collect::<Vec<_>>(), Vec::<String>::new());
}

/// A page named `epitome why`, which does not exist: it is a command of a session.
#[test]
fn documented_commands_exist() {
    let home = tempfile::tempdir().expect("a home");
    let help = |words: &[&str]| -> Option<String> {
        let mut command = std::process::Command::new(program());
        let ran = command.arg("help").args(words).env("EPITOME_HOME", home.path()).output();
        let ran = ran.expect("the program runs");
        ran.status.success().then(|| String::from_utf8_lossy(&ran.stdout).into_owned())
    };
    // Programs of their own, and a command whose absence `docs/cli.md` explains.
    let others = ["ahp", "check", "import", "worktree"];
    let mut known: HashMap<Vec<String>, bool> = HashMap::new();
    let mut faults = Vec::new();
    let guide = pages().into_iter().map(|page| format!("docs/{page}"));
    for page in guide.chain(["README.md".to_owned()]) {
        let prose = prose::prose(&text(&root().join(&page)));
        let spans = prose.split('`').skip(1).step_by(2);
        for command in spans.filter_map(|span| span.strip_prefix("epitome ")) {
            let is_word = |word: &&str| word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-');
            let is_option = |word: &&str| word.starts_with('-');
            let words = command.split_whitespace().take_while(|word| is_word(word) && !is_option(word));
            let words: Vec<&str> = words.take(2).collect();
            let Some(first) = words.first().filter(|first| !others.contains(first)) else { continue };
            let exists =
                known.entry(words.iter().map(|word| (*word).to_owned()).collect()).or_insert_with(|| {
                    // Without subcommands, the second word is an argument.
                    help(&[first]).is_some_and(|help_of| {
                        words.len() == 1 || !help_of.contains("\nCommands:") || help(&words).is_some()
                    })
                });
            if !*exists {
                faults.push(format!("{page}: there is no `epitome {}`", words.join(" ")));
            }
        }
    }
    assert_eq!(faults, Vec::<String>::new());
}

#[test]
fn links_have_existing_targets() {
    let mut faults = Vec::new();
    let others = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "editors/README.md", "benches/README.md"];
    let guide = pages().into_iter().map(|page| format!("docs/{page}"));
    for page in others.into_iter().map(str::to_owned).chain(guide) {
        let path = root().join(&page);
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

/// The targets of a page's links, except those to other sites.
fn links(page: &str) -> Vec<String> {
    let prose = prose::prose(page);
    let behind = prose.split("](").skip(1);
    let targets = behind.filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
    targets.filter(|target| !target.contains("://")).map(str::to_owned).collect()
}
