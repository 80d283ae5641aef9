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

mod commands;
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
    run::page(&root().join("docs/hooks-reference.md"));
}

#[test]
fn the_examples_in_the_guides_work() {
    run::page(&root().join("docs/team-rules.md"));
    run::page(&root().join("docs/see-and-undo.md"));
    page_with_model("docs/long-conversations.md");
}

#[test]
fn the_commands_in_cli_md_are_those_of_the_program() {
    let path = root().join("docs/cli.md");
    commands::page(&path);
    run::page(&path);
}

#[test]
fn the_examples_in_features_md_work() {
    run::page(&root().join("docs/features.md"));
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
fn the_examples_in_recipes_md_work() {
    run::page(&root().join("docs/recipes.md"));
}

#[test]
fn the_examples_in_other_agents_md_work() {
    run::page(&root().join("docs/other-agents.md"));
}

#[test]
fn the_examples_in_configuration_md_work() {
    run::page(&root().join("docs/configuration.md"));
}

#[test]
fn the_examples_for_operators_work() {
    run::page(&root().join("docs/operators/daemon.md"));
    run::page(&root().join("docs/operators/store.md"));
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

/// The pages of the guide.
fn pages() -> Vec<String> {
    let names = |folder: &str| {
        let entries = std::fs::read_dir(root().join("docs").join(folder)).expect("there is a guide");
        let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter(|name| name.ends_with(".md")).map(|name| format!("{prefix}{name}")).collect::<Vec<_>>()
    };
    let mut pages = [names(""), names("operators"), names("builders")].concat();
    pages.sort();
    pages
}

/// A page that no test runs would be unverified. `tests/sessions/control/page.rs` runs `builders/control.md`,
/// `tests/sessions/redteam` generates `builders/red-team.md`, `tests/processes/protocol.rs` compares the methods of
/// `builders/integrate.md` and the rules of `builders/conformance.md` with the agent and the suite, and
/// `tests/processes/acp_v2.rs`, `ahp.rs` and `programs.rs` do what `builders/integrate.md` describes besides.
/// `tests/services/import.rs` imports the formats listed in `other-agents.md`, `src/programs/compact/tests/program.rs` has its
/// options, `tests/processes/login.rs` logs in as described in `providers.md`, `tests/processes/worktrees.rs` works like the
/// chapter of `features.md`, `tests/sessions/inspect` checks what `see-and-undo.md` says about the inspector,
/// `tests/processes/packaging.rs` makes and installs what `install.md` lists, and `src/front/chat/keys.rs` looks for all keys
/// and commands of the chat in `chat.md`. `src/world/store_postgres/tests.rs` does what `operators/fleet.md` describes, with
/// real servers, `tests/processes/daemon/remote.rs` what `operators/remote.md` describes, `tests/processes/policy.rs` what
/// `operators/policy.md` does, and `tests/processes/programs.rs` reads `operators/github-action.md`. `builders/speed.md`
/// reports dated measurements, which no test can repeat, and `builders/architecture.md` describes the code.
#[test]
fn every_page_is_tested() {
    assert_eq!(
        pages(),
        [
            "README.md",
            "builders/architecture.md",
            "builders/conformance.md",
            "builders/control.md",
            "builders/integrate.md",
            "builders/red-team.md",
            "builders/reliability.md",
            "builders/speed.md",
            "chat.md",
            "cli.md",
            "compaction.md",
            "comparison.md",
            "configuration.md",
            "features.md",
            "hooks-reference.md",
            "hooks.md",
            "install.md",
            "long-conversations.md",
            "mcp.md",
            "operators/daemon.md",
            "operators/fleet.md",
            "operators/github-action.md",
            "operators/policy.md",
            "operators/remote.md",
            "operators/store.md",
            "other-agents.md",
            "permissions.md",
            "privacy.md",
            "providers.md",
            "recipes.md",
            "sandbox.md",
            "see-and-undo.md",
            "team-rules.md",
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

/// The files below a folder of the repository, except what builds leave there.
fn files(folder: &Path) -> Vec<PathBuf> {
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        !["target", "node_modules", ".git"].contains(&name.as_ref())
    };
    let entries = std::fs::read_dir(folder).expect("the folder is there").flatten().map(|entry| entry.path());
    let nested = entries.filter(is_ours).map(|path| if path.is_dir() { files(&path) } else { vec![path] });
    nested.flatten().collect()
}

/// Whether a page exists, and has the heading of an anchor.
fn is_there(target: &Path, anchor: &str) -> bool {
    target.exists()
        && (anchor.is_empty() || prose::anchors(&text(target)).iter().any(|known| known == anchor))
}

/// Everything that a reader may open: the pages, and the README of each folder.
#[test]
fn links_have_existing_targets() {
    let mut faults = Vec::new();
    let folders =
        ["docs", "editors", "adapters", "packaging", ".github"].map(|folder| files(&root().join(folder)));
    let top = std::fs::read_dir(root()).expect("the repository").flatten().map(|entry| entry.path());
    let others = ["benches/README.md", "protocol-fixtures/README.md"].map(|page| root().join(page));
    let pages = folders.into_iter().flatten().chain(top).chain(others);
    for page in pages.filter(|path| path.extension().is_some_and(|end| end == "md")) {
        for link in links(&text(&page)) {
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = match file {
                "" => page.clone(),
                file => page.parent().expect("a page is in a folder").join(file),
            };
            if !is_there(&target, anchor) {
                faults.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Pages were moved while help texts, errors and comments named the old ones.
#[test]
fn pages_that_the_program_names_exist() {
    let mut faults = Vec::new();
    // Inputs of tests are not pages, and recipes name those of other repositories.
    let is_checked = |file: &PathBuf| {
        let name = file.strip_prefix(root()).expect("it is below the root").to_string_lossy();
        !(name.ends_with(".md") || name.starts_with("src/") && name.contains("tests"))
    };
    let folders = ["src", "packaging", "tests/processes"].map(|folder| files(&root().join(folder)));
    for file in folders.into_iter().flatten().filter(is_checked) {
        let Ok(source) = std::fs::read_to_string(&file) else { continue };
        let source = source.split("\nmod tests {").next().unwrap_or_default();
        let is_whole =
            |at: usize| !source[..at].ends_with(|c: char| c.is_alphanumeric() || "/._-".contains(c));
        let mentions = source.match_indices("docs/").map(|(at, _)| at).filter(|at| is_whole(*at));
        for named in mentions.map(|at| &source[at..]) {
            let end =
                named.find(|c: char| !(c.is_alphanumeric() || "/._-#".contains(c))).unwrap_or(named.len());
            let (page, anchor) = named[..end].split_once('#').unwrap_or((&named[..end], ""));
            let page = page.trim_end_matches('.');
            if page.ends_with(".md") && !is_there(&root().join(page), anchor.trim_end_matches('.')) {
                faults.push(format!("{}: {page}#{anchor}", file.display()));
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
