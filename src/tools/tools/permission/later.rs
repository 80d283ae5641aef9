//! Classifies files that are later executed or obeyed by programs that the user runs without thinking of these files.
//! Pure.
//! The file tools ask before they write any of them. The sandbox protects only those that are executed without an
//! explicit request (`runs_unasked`) from commands: a build may write the others, and checking out another
//! branch has to.

use std::path::Path;

/// The kind of directory that contains a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Surroundings {
    Project,
    /// The user's home directory, or a directory above it: hidden files there are the user's settings, and `bin`
    /// contains commands.
    Home,
}

/// Whether an entry with this name is executed or obeyed when a shell starts, a directory is entered or opened in an
/// editor, or a version control system or an agent runs.
pub(crate) fn runs_unasked(name: &str) -> bool {
    let name = &*name.to_ascii_lowercase();
    DIRECTORIES_THAT_RUN.contains(&name) || FILES_THAT_RUN.contains(&name)
}

/// Whether the file tools ask before they write a file with this path, relative to the workspace's directory.
pub(super) fn is_asked_about(path: &Path, surroundings: Surroundings) -> bool {
    let parts: Vec<String> = path.iter().map(|part| part.to_string_lossy().to_ascii_lowercase()).collect();
    let (name, above) = parts.split_last().map_or(("", &[][..]), |(name, above)| (name.as_str(), above));
    let is_at_home = surroundings == Surroundings::Home;
    // Tools look for settings and code in hidden files and directories, and so will new tools, so hidden entries count
    // unless they are known to be inert.
    let runs =
        |part: &String| runs_unasked(part) || (part.starts_with('.') && (is_at_home || !is_inert(part)));
    let is_installed = |part: &String| INSTALLED.contains(&part.as_str()) || (is_at_home && part == "bin");
    // Bare repositories are called `name.git`. Their worktrees are often in them.
    let is_of_git = |pair: &[String]| pair[0].ends_with(".git") && RUNS_IN_BARE.contains(&pair[1].as_str());
    let stem = name.split('.').next().unwrap_or(name);
    let is_settings = [".md", ".json", ".jsonc", ".toml", ".yml", ".yaml", ".js", ".cjs", ".mjs"]
        .iter()
        .any(|end| name.ends_with(end));
    parts.iter().any(runs)
        || above.iter().any(is_installed)
        || parts.windows(2).any(is_of_git)
        || OBEYED.contains(&name)
        || GIT_HOOKS.contains(&name)
        || (is_settings && OBEYED_STEMS.contains(&stem))
        || OBEYED_ENDINGS.iter().any(|ending| name.ends_with(ending))
}

/// Entries of a bare repository that name programs or contain them.
const RUNS_IN_BARE: [&str; 6] = ["config", "config.worktree", "commondir", "hooks", "modules", "worktrees"];

/// Directories whose files programs execute or obey automatically: hooks, tasks, settings with commands.
const DIRECTORIES_THAT_RUN: [&str; 23] = [
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
    ".helix",
    ".jj",
    ".mise",
    ".nova",
    ".pijul",
    ".sl",
    ".vim",
];

/// Files that shells, editors and tools execute at startup.
const FILES_THAT_RUN: [&str; 28] = [
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
    ".mise.toml",
    ".mise.local.toml",
    ".lvimrc",
    "config.fish",
];

/// Hidden files that no program executes or reads commands from. Names that contain "ignore" are inert too.
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

/// Directories without a leading dot whose files are executed by other files, or found through `PATH`.
const INSTALLED: [&str; 4] = ["node_modules", "venv", "virtualenv", "site-packages"];

/// Files without a leading dot that are executed or obeyed without being named in a command.
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

/// Prefixes of further such names, up to a dot: `mise.local.toml`, `CLAUDE.local.md`.
const OBEYED_STEMS: [&str; 8] =
    ["agents", "claude", "crush", "lefthook", "mise", "opencode", "pnpmfile", "windsurf"];

const OBEYED_ENDINGS: [&str; 6] =
    [".code-workspace", ".desktop", ".instructions.md", ".mdc", ".pth", ".sublime-project"];

/// Git's hooks; `core.hooksPath` may set any directory for them.
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

/// Whether a hidden file or directory, named in lower case, is known to be inert.
fn is_inert(name: &str) -> bool {
    let is_template = [".example", ".sample", ".template", ".dist"].iter().any(|end| name.ends_with(end));
    INERT.contains(&name) || name.contains("ignore") || (name.starts_with(".env") && is_template)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of 104 names of files that something executes or obeys later, 78 were written in `accept_edits` without a
    /// prompt, because only listed names were asked about.
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
            "repository.git/config",
            "repository.git/hooks/update",
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
        let asked = |path: &str, surroundings| is_asked_about(Path::new(path), surroundings);
        let silent: Vec<_> = later.iter().filter(|path| !asked(path, Surroundings::Project)).collect();
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
            // Regression: each edit of a worktree in a bare clone was asked about.
            "repository.git/main/src/main.rs",
        ];
        let wrong: Vec<_> = ordinary.iter().filter(|path| asked(path, Surroundings::Project)).collect();
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
        let silent: Vec<_> = at_home.iter().filter(|path| !asked(path, Surroundings::Home)).collect();
        assert!(silent.is_empty(), "{silent:?}");
        assert!(!asked("work/src/main.rs", Surroundings::Home));
    }

    /// There were two lists of such names, one for the file tools and one for the sandbox.
    #[test]
    fn only_what_runs_unasked_is_kept_from_commands() {
        let is_asked = |name: &str| is_asked_about(Path::new(name), Surroundings::Project);
        for name in [".git", ".GIT", ".envrc", ".vscode", ".bashrc", "config.fish", ".mcp.json"] {
            assert!(runs_unasked(name) && is_asked(name), "{name}");
        }
        for name in [".venv", ".eslintrc.js", ".gitattributes", ".next"] {
            assert!(!runs_unasked(name) && is_asked(name), "{name}");
        }
        for name in [".gitignore", ".github", "src", "Makefile", ".env.example"] {
            assert!(!runs_unasked(name) && !is_asked(name), "{name}");
        }
    }
}
