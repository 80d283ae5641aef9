//! Decides whether a call is allowed, denied, or needs to be confirmed by the user. Pure, except for one
//! check whether a path is a directory; it prompts nobody and stores nothing.
//!
//! "Always" never grants more than the permission prompt showed: this exact command line, all edits in this
//! workspace, or reads below the directory of the file.

use std::path::{Path, PathBuf};

use epitome_thread::{Mode, Rule};

use super::git_commands::changes_repository;
use super::secret_places::is_secret_name;
use super::{Access, Workspace, real_path};

pub mod ruled;

/// The decision about a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PermissionVerdict {
    Allow {
        by: AllowedBy,
    },
    /// The user decides. `always` is the rule that "always" would add, and its text in the prompt.
    Ask {
        always: Option<(Rule, String)>,
    },
    /// Denied without asking the user; `why` is for the model.
    Deny {
        why: String,
    },
}

/// Why the user wasn't asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowedBy {
    /// It touches nothing, or only reads what every mode permits.
    Harmless,
    Mode(Mode),
    /// The user chose "always" before.
    Rule(Rule),
}

/// Directories below which "always" is never offered: what is there belongs to processes and devices.
const OF_THE_SYSTEM: [&str; 4] = ["/proc", "/sys", "/dev", "/run"];

/// Text of the permission prompt for `Rule::EditsInWorkspace`.
const EDITS_IN_WORDS: &str = "all edits in this workspace for this session";

/// Decides about one access. The paths of `access` are already resolved.
pub fn decide(access: &Access, mode: Mode, rules: &[Rule], workspace: &Workspace) -> PermissionVerdict {
    match access {
        Access::Nothing => PermissionVerdict::Allow { by: AllowedBy::Harmless },
        Access::Read(paths) => read(paths, mode, rules, workspace),
        Access::Write(paths) => write(paths, mode, rules, workspace),
        Access::Command { line, confined, changes_git } => {
            command(line, *confined, *changes_git, mode, rules)
        }
        Access::Fetch { url: _, host } => fetch(host, mode, rules),
        Access::External { server, tool, reads_only } => external(server, tool, *reads_only, mode, rules),
    }
}

fn read(paths: &[PathBuf], mode: Mode, rules: &[Rule], workspace: &Workspace) -> PermissionVerdict {
    let secrets = workspace.secrets();
    let is_secret = paths.iter().any(|path| is_secret_name(path) || secrets.contain(path));
    let outside: Vec<&PathBuf> = paths.iter().filter(|path| !workspace.contains(path)).collect();
    if outside.is_empty() && !is_secret {
        return PermissionVerdict::Allow { by: AllowedBy::Harmless };
    }
    if mode == Mode::Full {
        return PermissionVerdict::Allow { by: AllowedBy::Mode(mode) };
    }
    if is_secret {
        return PermissionVerdict::Ask { always: None };
    }
    let Some(first) = outside.first() else {
        return PermissionVerdict::Allow { by: AllowedBy::Harmless };
    };
    let covering = |path: &Path| {
        rules.iter().find(|rule| matches!(rule, Rule::ReadsBelow { path: below } if path.starts_with(below)))
    };
    if let Some(rule) = covering(first)
        && outside.iter().all(|path| covering(path).is_some())
    {
        return PermissionVerdict::Allow { by: AllowedBy::Rule(rule.clone()) };
    }
    // One rule must cover all displayed paths and nothing above them, and never a home or other secret places.
    let directory = if first.is_dir() { Some(first.as_path()) } else { first.parent() };
    let home = workspace.home().map(|home| real_path(&home));
    let directory = directory.filter(|directory| {
        directory.parent().is_some()
            && outside.iter().all(|path| path.starts_with(directory))
            && !home.as_ref().is_some_and(|home| home.starts_with(directory))
            && !secrets.touch(directory)
            && !OF_THE_SYSTEM.iter().any(|system| directory.starts_with(system))
    });
    let always = directory.map(|directory| {
        let words = format!("reading below {} for this session", directory.display());
        (Rule::ReadsBelow { path: directory.to_path_buf() }, words)
    });
    PermissionVerdict::Ask { always }
}

fn write(paths: &[PathBuf], mode: Mode, rules: &[Rule], workspace: &Workspace) -> PermissionVerdict {
    if mode == Mode::ReadOnly {
        return denied("Files cannot be changed");
    }
    if !paths.iter().all(|path| workspace.contains(path)) {
        return PermissionVerdict::Ask { always: None };
    }
    if mode == Mode::Full {
        return PermissionVerdict::Allow { by: AllowedBy::Mode(mode) };
    }
    // The error of an edit that doesn't match quotes the file to the model, so an edit is also a read.
    let secrets = workspace.secrets();
    let needs_caution =
        |path: &PathBuf| may_run_later(path, workspace) || is_secret_name(path) || secrets.contain(path);
    if paths.iter().any(needs_caution) {
        return PermissionVerdict::Ask { always: None };
    }
    if matches!(mode, Mode::AcceptEdits | Mode::Auto) {
        return PermissionVerdict::Allow { by: AllowedBy::Mode(mode) };
    }
    if rules.contains(&Rule::EditsInWorkspace) {
        return PermissionVerdict::Allow { by: AllowedBy::Rule(Rule::EditsInWorkspace) };
    }
    PermissionVerdict::Ask { always: Some((Rule::EditsInWorkspace, EDITS_IN_WORDS.to_string())) }
}

fn command(line: &str, confined: bool, changes_git: bool, mode: Mode, rules: &[Rule]) -> PermissionVerdict {
    let (rule, words) = match confined {
        true => (Rule::Command { line: line.to_string() }, "exactly this command for this session"),
        false => (
            Rule::CommandOutside { line: line.to_string() },
            "exactly this command outside the sandbox for this session",
        ),
    };
    match mode {
        Mode::ReadOnly => denied("Commands cannot be run"),
        Mode::Full => PermissionVerdict::Allow { by: AllowedBy::Mode(mode) },
        // `ruled::judge` has checked that the sandbox is complete.
        Mode::Auto if confined && !changes_git => PermissionVerdict::Allow { by: AllowedBy::Mode(mode) },
        // A rule about the line says nothing about what its programs do to a repository.
        _ if changes_git && !changes_repository(line) => PermissionVerdict::Ask { always: None },
        Mode::Ask | Mode::AcceptEdits | Mode::Auto if rules.contains(&rule) => {
            PermissionVerdict::Allow { by: AllowedBy::Rule(rule) }
        }
        Mode::Ask | Mode::AcceptEdits | Mode::Auto => {
            PermissionVerdict::Ask { always: Some((rule, words.to_string())) }
        }
    }
}

/// An address can leak data to the owner of the host, so fetching asks in every mode except full.
fn fetch(host: &str, mode: Mode, rules: &[Rule]) -> PermissionVerdict {
    if mode == Mode::Full {
        return PermissionVerdict::Allow { by: AllowedBy::Mode(mode) };
    }
    let words = format!("fetching from {host} for this session");
    remembered(Rule::Fetch { host: host.to_owned() }, words, rules)
}

fn external(server: &str, tool: &str, reads_only: bool, mode: Mode, rules: &[Rule]) -> PermissionVerdict {
    match mode {
        Mode::Full => PermissionVerdict::Allow { by: AllowedBy::Mode(mode) },
        Mode::ReadOnly if !reads_only => {
            denied("Tools of other servers that may change something cannot be called")
        }
        Mode::ReadOnly | Mode::Ask | Mode::AcceptEdits | Mode::Auto => {
            let words = format!("{tool} of the server {server} for this session");
            remembered(Rule::External { server: server.to_owned(), tool: tool.to_owned() }, words, rules)
        }
    }
}

/// Allows calls that match a stored rule; asks for others and offers "always".
fn remembered(rule: Rule, words: String, rules: &[Rule]) -> PermissionVerdict {
    match rules.contains(&rule) {
        true => PermissionVerdict::Allow { by: AllowedBy::Rule(rule) },
        false => PermissionVerdict::Ask { always: Some((rule, words)) },
    }
}

fn denied(what: &str) -> PermissionVerdict {
    PermissionVerdict::Deny {
        why: format!(
            "{what}: the session is in read-only mode. Do not try again and do not look for another way; go on \
             with reading and searching, or describe to the user what you would do. Only the user can change \
             the mode."
        ),
    }
}

/// Directories with files that other programs execute or obey (hooks, tasks, settings that contain commands), which
/// commands can't change. For file tools all hidden directories are like this.
pub(super) const DIRECTORIES_THAT_RUN: [&str; 16] = [
    ".git",
    ".hg",
    ".epitome",
    ".claude",
    ".kodelet",
    ".gemini",
    ".cursor",
    ".codex",
    ".vscode",
    ".devcontainer",
    ".idea",
    ".zed",
    ".husky",
    ".cargo",
    ".ssh",
    ".direnv",
];

/// Files that shells, editors and tools execute at startup.
pub(super) const FILES_THAT_RUN: [&str; 25] = [
    ".bashrc",
    ".bash_profile",
    ".bash_login",
    ".bash_logout",
    ".bash_aliases",
    ".profile",
    ".zshrc",
    ".zshenv",
    ".zprofile",
    ".zlogin",
    ".zlogout",
    ".kshrc",
    ".cshrc",
    ".tcshrc",
    ".login",
    ".xprofile",
    ".envrc",
    ".gitconfig",
    ".exrc",
    ".vimrc",
    ".nvimrc",
    ".nvim.lua",
    ".dir-locals.el",
    ".mcp.json",
    "config.fish",
];

/// Hidden files that no program executes or reads commands from, although most tools keep their settings in such
/// files. Names that contain "ignore" are like this too.
const INERT: [&str; 19] = [
    ".changelog",
    ".circleci",
    ".clang-format",
    ".codecov.yml",
    ".codespellrc",
    ".editorconfig",
    ".gitkeep",
    ".github",
    ".gitlab",
    ".gitlab-ci.yml",
    ".keep",
    ".mailmap",
    ".markdownlint.json",
    ".rustfmt.toml",
    ".taplo.toml",
    ".travis.yml",
    ".typos.toml",
    ".well-known",
    ".yamllint",
];

/// Directories without a dot whose files are executed by other files, or found through the path of commands.
const INSTALLED: [&str; 4] = ["node_modules", "venv", "virtualenv", "site-packages"];

/// Files without a dot that are executed or obeyed without being named in a command.
const OBEYED: [&str; 17] = [
    "agent.md",
    "agents.md",
    "claude.md",
    "codex.md",
    "crush.md",
    "gemini.md",
    "qwen.md",
    "skill.md",
    "warp.md",
    "copilot-instructions.md",
    "devcontainer.json",
    "bunfig.toml",
    "mcp.json",
    "prek.toml",
    "pyvenv.cfg",
    "sitecustomize.py",
    "usercustomize.py",
];

/// Beginnings of further such names, before a dot: `mise.local.toml`, `CLAUDE.local.md`.
const OBEYED_STEMS: [&str; 8] =
    ["agents", "claude", "crush", "lefthook", "mise", "opencode", "pnpmfile", "windsurf"];

const OBEYED_ENDINGS: [&str; 6] =
    [".code-workspace", ".desktop", ".instructions.md", ".mdc", ".pth", ".sublime-project"];

/// Git's hooks, which `core.hooksPath` may expect in any directory.
const GIT_HOOKS: [&str; 15] = [
    "applypatch-msg",
    "pre-applypatch",
    "post-applypatch",
    "pre-commit",
    "pre-merge-commit",
    "prepare-commit-msg",
    "commit-msg",
    "post-commit",
    "pre-rebase",
    "post-checkout",
    "post-merge",
    "pre-push",
    "post-rewrite",
    "fsmonitor-watchman",
    "reference-transaction",
];

/// Whether writing this file can cause something to be executed later without a prompt, or change what agents do.
///
/// Hidden files and directories are where tools look for settings and code; new ones do it too, so that they count
/// unless they are known to be inert. Only the path below the workspace's directory counts: a workspace that is itself
/// below a `.claude` directory is an ordinary one.
fn may_run_later(path: &Path, workspace: &Workspace) -> bool {
    let (root, rest) = match workspace.roots().containing(path) {
        Some((root, rest)) => (Some(root.path()), rest),
        None => (None, path),
    };
    let home = workspace.home().map(|home| real_path(&home));
    // There, hidden files are the person's own settings, and commands are found in `bin`.
    let has_home = root.zip(home.as_ref()).is_some_and(|(root, home)| home.starts_with(root));
    let parts: Vec<String> = rest.iter().map(|part| part.to_string_lossy().to_ascii_lowercase()).collect();
    let (name, above) = parts.split_last().map_or(("", &[][..]), |(name, above)| (name.as_str(), above));
    let is_hidden = |part: &String| part.starts_with('.') && (has_home || !is_inert(part));
    let is_installed = |part: &String| INSTALLED.contains(&part.as_str()) || (has_home && part == "bin");
    let stem = name.split('.').next().unwrap_or(name);
    let is_settings = [".md", ".json", ".jsonc", ".toml", ".yml", ".yaml", ".js", ".cjs", ".mjs"]
        .iter()
        .any(|end| name.ends_with(end));
    parts.iter().any(is_hidden)
        || above.iter().any(is_installed)
        || OBEYED.contains(&name)
        || FILES_THAT_RUN.contains(&name)
        || GIT_HOOKS.contains(&name)
        || (is_settings && OBEYED_STEMS.contains(&stem))
        || OBEYED_ENDINGS.iter().any(|ending| name.ends_with(ending))
}

/// Whether a hidden file or directory, given in lower case, is known to be inert.
fn is_inert(name: &str) -> bool {
    let is_template = [".example", ".sample", ".template", ".dist"].iter().any(|end| name.ends_with(end));
    INERT.contains(&name) || name.contains("ignore") || (name.starts_with(".env") && is_template)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A workspace of the user `/home/me`.
    fn at(cwd: &str) -> Workspace {
        Workspace::new(cwd, Vec::new(), std::sync::Arc::new(vec![("HOME".into(), "/home/me".into())]))
    }

    const ASK_ONCE: PermissionVerdict = PermissionVerdict::Ask { always: None };

    fn judge(access: &Access, mode: Mode, rules: &[Rule]) -> PermissionVerdict {
        decide(access, mode, rules, &at("/w"))
    }

    fn reading(path: &str) -> Access {
        Access::Read(vec![path.into()])
    }

    fn writing(path: &str) -> Access {
        Access::Write(vec![path.into()])
    }

    fn running(line: &str, confined: bool) -> Access {
        Access::Command { line: line.into(), confined, changes_git: false }
    }

    fn external_tool(tool: &str, reads_only: bool) -> Access {
        Access::External { server: "tracker".into(), tool: tool.into(), reads_only }
    }

    fn by_mode(mode: Mode) -> PermissionVerdict {
        PermissionVerdict::Allow { by: AllowedBy::Mode(mode) }
    }

    /// `a` allowed, `o` asked without "always", `A` asked with "always", `d` denied.
    fn letter(verdict: PermissionVerdict) -> char {
        match verdict {
            PermissionVerdict::Allow { .. } => 'a',
            PermissionVerdict::Ask { always: None } => 'o',
            PermissionVerdict::Ask { always: Some(_) } => 'A',
            PermissionVerdict::Deny { .. } => 'd',
        }
    }

    /// A command that may change `.git` can make the user's own Git run something.
    #[test]
    fn changes_of_repositories_are_asked_about() {
        let command =
            |line: &str, changes_git| Access::Command { line: line.into(), confined: true, changes_git };
        let known = |line: &str| [Rule::Command { line: line.into() }];
        let ask = |line: &str| PermissionVerdict::Ask { always: Some((known(line)[0].clone(), "".into())) };
        let allowed = |verdict: PermissionVerdict| matches!(verdict, PermissionVerdict::Allow { .. });
        assert!(allowed(judge(&command("make", false), Mode::Auto, &[])));
        assert!(allowed(judge(&command("make", false), Mode::Ask, &known("make"))));
        assert_eq!(judge(&command("make", true), Mode::Auto, &[]), ASK_ONCE);
        assert_eq!(judge(&command("make", true), Mode::Ask, &known("make")), ASK_ONCE);
        let commit = command("git commit -m x", true);
        assert!(std::mem::discriminant(&judge(&commit, Mode::Auto, &[])) == std::mem::discriminant(&ask("")));
        assert!(allowed(judge(&commit, Mode::Ask, &known("git commit -m x"))));
    }

    #[test]
    fn decisions_by_mode() {
        // Columns: ask, accept_edits, auto, read_only, full.
        let table = [
            (Access::Nothing, "aaaaa"),
            (reading("/w/src/main.rs"), "aaaaa"),
            (reading("/usr/share/doc/copyright"), "AAAAa"),
            (reading("/etc/hostname"), "ooooa"),
            (reading("/home/me/notes.txt"), "ooooa"),
            (reading("/home/other/notes.txt"), "AAAAa"),
            (reading("/proc/1/status"), "ooooa"),
            (reading("/w/.env"), "ooooa"),
            (reading("/home/me/.ssh/id_ed25519"), "ooooa"),
            (writing("/w/src/main.rs"), "Aaada"),
            (writing("/w/.git/hooks/pre-commit"), "oooda"),
            (writing("/w/.epitome/config.toml"), "oooda"),
            (writing("/w/.devcontainer/devcontainer.json"), "oooda"),
            (writing("/w/sub/.envrc"), "oooda"),
            (writing("/w/sub/.dir-locals.el"), "oooda"),
            (writing("/w/.env"), "oooda"),
            (writing("/etc/hosts"), "ooodo"),
            (running("cargo test", true), "AAada"),
            (running("cargo test", false), "AAAda"),
            (Access::Fetch { url: "https://docs.rs/serde".into(), host: "docs.rs".into() }, "AAAAa"),
            (external_tool("look", true), "AAAAa"),
            (external_tool("write", false), "AAAda"),
        ];
        for (access, expected) in table {
            let letters: String = Mode::ALL.iter().map(|mode| letter(judge(&access, *mode, &[]))).collect();
            assert_eq!(letters, expected, "{access:?}");
        }
    }

    #[test]
    fn always_for_a_command_covers_only_that_line() {
        let asked = judge(&running("ls", true), Mode::Ask, &[]);
        let PermissionVerdict::Ask { always: Some((rule, _)) } = asked else { panic!("{asked:?}") };
        assert_eq!(rule, Rule::Command { line: "ls".into() });
        let rules = [rule.clone()];
        let allowed = PermissionVerdict::Allow { by: AllowedBy::Rule(rule) };
        assert_eq!(judge(&running("ls", true), Mode::Ask, &rules), allowed);
        for other in ["ls ", "ls -l", "rm x # ls", "ls; rm x", "LS"] {
            assert_eq!(letter(judge(&running(other, true), Mode::Ask, &rules)), 'A', "{other}");
        }
    }

    #[test]
    fn always_for_an_edit_excludes_files_executed_later() {
        let rules = [Rule::EditsInWorkspace];
        assert_eq!(letter(judge(&writing("/w/a"), Mode::Ask, &rules)), 'a');
        assert_eq!(judge(&writing("/w/.claude/settings.json"), Mode::Ask, &rules), ASK_ONCE);
        assert_eq!(judge(&writing("/elsewhere/a"), Mode::Ask, &rules), ASK_ONCE);
        assert_eq!(letter(judge(&writing("/w/a"), Mode::ReadOnly, &rules)), 'd');
        let mixed = Access::Write(vec!["/w/a".into(), "/elsewhere/a".into()]);
        assert_eq!(judge(&mixed, Mode::AcceptEdits, &rules), ASK_ONCE);
    }

    #[test]
    fn workspace_below_a_settings_directory_is_ordinary() {
        let workspace = at("/me/.claude/worktrees/one");
        let decide = |path: &str| letter(decide(&writing(path), Mode::AcceptEdits, &[], &workspace));
        assert_eq!(decide("/me/.claude/worktrees/one/src/main.rs"), 'a');
        assert_eq!(decide("/me/.claude/worktrees/one/.claude/settings.json"), 'o');
        assert_eq!(decide("/me/.claude/worktrees/one/.git"), 'o');
    }

    #[test]
    fn always_for_a_read_covers_the_directory_of_the_file() {
        let asked = judge(&reading("/elsewhere/docs/a.md"), Mode::Ask, &[]);
        let rule = Rule::ReadsBelow { path: "/elsewhere/docs".into() };
        let words = "reading below /elsewhere/docs for this session".to_string();
        assert_eq!(asked, PermissionVerdict::Ask { always: Some((rule.clone(), words)) });
        let rules = [rule];
        assert_eq!(letter(judge(&reading("/elsewhere/docs/deep/b.md"), Mode::ReadOnly, &rules)), 'a');
        assert_eq!(letter(judge(&reading("/elsewhere/docs2/b.md"), Mode::Ask, &rules)), 'A');
        assert_eq!(judge(&reading("/elsewhere/docs/.env"), Mode::Ask, &rules), ASK_ONCE);
    }

    #[test]
    fn always_for_a_search_covers_the_searched_directory() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let asked = judge(&Access::Read(vec![directory.path().to_path_buf()]), Mode::Ask, &[]);
        let PermissionVerdict::Ask { always: Some((rule, _)) } = asked else { panic!("{asked:?}") };
        assert_eq!(rule, Rule::ReadsBelow { path: directory.path().to_path_buf() });
    }

    #[test]
    fn always_is_not_offered_for_the_root_directory() {
        assert_eq!(judge(&reading("/"), Mode::Ask, &[]), ASK_ONCE);
        assert_eq!(judge(&reading("/vmlinuz"), Mode::Ask, &[]), ASK_ONCE);
    }

    #[test]
    fn a_denial_tells_the_model_not_to_try_again() {
        let PermissionVerdict::Deny { why } = judge(&writing("/w/a"), Mode::ReadOnly, &[]) else {
            panic!("denied")
        };
        assert!(why.contains("read-only mode") && why.contains("Do not try again"), "{why}");
    }

    #[test]
    fn full_mode_says_that_the_mode_allowed_it() {
        assert_eq!(judge(&running("ls", true), Mode::Full, &[]), by_mode(Mode::Full));
    }

    /// Of 104 names of files that something executes or obeys later, 78 were written in `accept_edits` without a
    /// prompt, because each was to be on a list.
    #[test]
    fn files_that_run_later_are_asked() {
        let later = [
            ".gitmodules",
            ".gitattributes",
            ".githooks/pre-push",
            ".ripgreprc",
            ".claude.json",
            ".opencode/plugin/x.js",
            "opencode.json",
            "opencode.jsonc",
            ".windsurf/rules.md",
            ".roo/mcp.json",
            ".kiro/hooks/a",
            ".amp/x",
            ".lldbinit",
            ".gdbinit",
            ".ycm_extra_conf.py",
            ".pre-commit-config.yaml",
            "mise.toml",
            "mise.local.toml",
            ".mise.toml",
            ".tool-versions",
            ".yarnrc.yml",
            ".pnpmfile.cjs",
            "epitome.code-workspace",
            ".venv/bin/python",
            "venv/bin/activate",
            "node_modules/.bin/tsc",
            "node_modules/left-pad/index.js",
            ".mvn/extensions.xml",
            "AGENTS.md",
            "sub/AGENTS.md",
            "CLAUDE.md",
            "CLAUDE.local.md",
            "GEMINI.md",
            ".github/copilot-instructions.md",
            ".github/instructions/a.instructions.md",
            ".clinerules",
            ".cursorrules",
            ".aider.conf.yml",
            ".continue/config.yaml",
            ".new-agent/hooks.toml",
            ".eslintrc.js",
            ".prettierrc",
            ".rubocop.yml",
            ".pylintrc",
            ".npmrc",
            ".bundle/config",
            ".irbrc",
            ".pryrc",
            ".psqlrc",
            ".sqliterc",
            ".inputrc",
            ".tmux.conf",
            ".screenrc",
            ".emacs.d/init.el",
            ".config/nvim/init.lua",
            ".local/bin/ls",
            ".Rprofile",
            ".julia/config/startup.jl",
            ".ghci",
            ".ocamlinit",
            ".perldb",
            ".pdbrc",
            ".pythonrc",
            ".hgrc",
            ".hushlogin",
            ".zshrc.local",
            ".bash_completion",
            ".fleet/run.json",
            ".nova/x",
            ".sublime/x",
            ".theia/x",
            ".idea/runConfigurations/x.xml",
            ".run/x.run.xml",
            ".settings/x",
            ".vs/tasks.vs.json",
            ".kakrc",
            ".helix/config.toml",
            ".nvimrc",
            ".exrc",
            ".netrwhist",
            ".lefthook.yml",
            "lefthook.yml",
            "hooks/pre-commit",
            "hooks/post-checkout",
            ".jj/repo/config.toml",
            ".sl/config",
            ".direnv/bin/x",
            ".envrc",
            ".devcontainer.json",
            ".gitpod.yml",
            ".vagrant/x",
            ".nix/x",
            ".terraformrc",
            ".storybook/main.ts",
            ".yarn/releases/yarn.cjs",
            ".pnp.cjs",
            ".cargo/config.toml",
            ".husky/pre-commit",
            "lib/sitecustomize.py",
            "a.pth",
            "evil.desktop",
            "bunfig.toml",
        ];
        let asked = |path: &str, cwd: &str| {
            letter(decide(&writing(&format!("{cwd}/{path}")), Mode::AcceptEdits, &[], &at(cwd))) == 'o'
        };
        let silent: Vec<_> = later.iter().filter(|path| !asked(path, "/w")).collect();
        assert!(silent.is_empty(), "{silent:?}");
        let ordinary = [
            "src/main.rs",
            "README.md",
            "Makefile",
            "package.json",
            "bin/tool",
            ".gitignore",
            "sub/.dockerignore",
            ".editorconfig",
            ".github/workflows/ci.yml",
            ".github/ISSUE_TEMPLATE/bug.md",
            ".env.example",
            ".gitlab-ci.yml",
            "docs/agents/intro.md",
            "src/claude.rs",
            "src/mise.py",
            "src/hooks/pre_commit.rs",
            "tests/data/.keep",
            "claude/notes.md",
        ];
        let wrong: Vec<_> = ordinary.iter().filter(|path| asked(path, "/w")).collect();
        assert!(wrong.is_empty(), "{wrong:?}");
        let at_home = [
            ".config/autostart/x.desktop",
            ".config/systemd/user/x.service",
            ".local/bin/x",
            "bin/ls",
            ".config/fish/conf.d/x.fish",
            ".config/git/config",
            ".xinitrc",
            ".config/nvim/init.lua",
            ".gitignore",
        ];
        let silent: Vec<_> = at_home.iter().filter(|path| !asked(path, "/home/me")).collect();
        assert!(silent.is_empty(), "{silent:?}");
        assert!(!asked("work/src/main.rs", "/home/me"));
    }
}
