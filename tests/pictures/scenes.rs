//! The scenes: the program of each picture, and the model's replies.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use epitome_scripted_model::{ModelStep, RecordedRequest, ScriptedModel};
use serde_json::json;
use tempfile::TempDir;

pub struct Scene {
    /// File name without extension.
    pub name: &'static str,
    /// Describes the picture, for users who can't see it.
    pub title: &'static str,
    /// Columns and rows.
    pub size: (u16, u16),
    /// The shell command.
    pub command: fn(&Stage) -> Result<String>,
    /// Keys to type. A still picture shows the screen on which the last of them are typed.
    pub keys: &'static [Keys],
    /// Required programs.
    pub needs: &'static [&'static str],
    /// Required directories below `EDITOR_PACKAGES`.
    pub packages: &'static [&'static str],
    pub is_animated: bool,
}

/// Keys that are typed once this text is on the screen and the screen has settled.
pub struct Keys {
    pub after: &'static str,
    pub typed: &'static str,
}

const fn keys(after: &'static str, typed: &'static str) -> Keys {
    Keys { after, typed }
}

pub const SCENES: &[Scene] = &[
    Scene {
        name: "demo",
        title: "epitome demo: a pin, a preview, a compaction and its undo, and a session that survives kill -9",
        size: (100, 32),
        command: |_| Ok("epitome demo".to_owned()),
        keys: &[],
        needs: &[],
        packages: &[],
        is_animated: true,
    },
    Scene {
        name: "context",
        title: "epitome run in a terminal, and /context: what fills the context window",
        size: (100, 34),
        command: |_| {
            Ok("epitome run 'The total is wrong. Find out why.' && epitome run --follow /context".to_owned())
        },
        keys: &[],
        needs: &[],
        packages: &[],
        is_animated: false,
    },
    Scene {
        name: "chat",
        title: "epitome: the chat in a terminal, with a question, an answer, a card with a diff, and a preview of a compaction",
        size: (100, 34),
        command: |_| Ok("epitome".to_owned()),
        keys: &[
            keys("Ask for something", "The total is wrong. Find out why.\r"),
            keys("It should be", "/compact dry keep=0\r"),
            keys("does exactly this", "Mend it.\r"),
            keys("3. Reject", ""),
        ],
        needs: &[],
        packages: &[],
        is_animated: false,
    },
    Scene {
        name: "neovim",
        title: "Neovim with CodeCompanion: a question, the answer, and /compact",
        size: (110, 40),
        command: neovim,
        keys: &[
            keys("def total", ":CodeCompanionChat\r"),
            keys("Welcome to CodeCompanion", "iThe total is wrong. Find out why.\x1b\r"),
            keys("It should be", "Go/compact\x1b\r"),
            keys("Compacted", ""),
        ],
        needs: &["nvim"],
        packages: &["codecompanion.nvim", "plenary.nvim"],
        is_animated: false,
    },
    Scene {
        name: "emacs",
        title: "Emacs with agent-shell: a question, the answer, and /compact",
        size: (110, 40),
        command: emacs,
        keys: &[
            keys("Epitome>", "The total is wrong. Find out why.\r"),
            keys("It should be", "/compact\r"),
            keys("Compacted", ""),
        ],
        needs: &["emacs"],
        packages: &["agent-shell", "acp.el", "shell-maker"],
        is_animated: false,
    },
    Scene {
        name: "toad",
        title: "Toad: a question, the answer, and /compact",
        size: (110, 40),
        command: |_| Ok("toad acp 'epitome acp' .".to_owned()),
        keys: &[
            keys("How can I help", "The total is wrong. Find out why."),
            keys("Find out why.", "\r"),
            keys("It should be", "/"),
            keys("/compact", "compact"),
            keys("/compact", "\r"),
            keys("additional instructions", "\r"),
            keys("Compacted", ""),
        ],
        needs: &["toad"],
        packages: &[],
        is_animated: false,
    },
];

impl Scene {
    /// The missing requirement of this scene, as a clause; `None` if nothing is missing.
    pub fn missing(&self, stage: &Stage) -> Option<String> {
        let is_there = |program: &str| stage.path().any(|directory| directory.join(program).is_file());
        let program = self.needs.iter().find(|program| !is_there(program));
        let package = self.packages.iter().find(|name| !stage.package(name).is_dir());
        let missing = program.or(package)?;
        Some(format!("{missing} is not installed"))
    }
}

/// An empty home, a small project, and a model.
pub struct Stage {
    directory: TempDir,
    model: ScriptedModel,
    path: OsString,
}

impl Stage {
    pub fn set(program: &Path) -> Result<Stage> {
        let directory = tempfile::tempdir()?;
        let workspace = directory.path().join("shop");
        std::fs::create_dir_all(&workspace)?;
        std::fs::write(workspace.join("prices.py"), prices())?;
        let parent = program.parent().context("the program is in a directory")?;
        let path = std::env::join_paths(
            std::iter::once(parent.to_owned())
                .chain(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())),
        )?;
        let mut replies = 0;
        let model = ScriptedModel::start(move |request| {
            replies += 1;
            reply(request, replies)
        })?;
        Ok(Stage { directory, model, path })
    }

    pub fn workspace(&self) -> PathBuf {
        self.directory.path().join("shop")
    }

    /// The directory of an editor's package.
    fn package(&self, name: &str) -> PathBuf {
        PathBuf::from(std::env::var_os("EDITOR_PACKAGES").unwrap_or_default()).join(name)
    }

    /// Writes a file, and returns its path as text.
    fn file(&self, name: &str, text: &str) -> Result<String> {
        let path = self.directory.path().join(name);
        std::fs::write(&path, text)?;
        Ok(path.display().to_string())
    }

    fn path(&self) -> impl Iterator<Item = PathBuf> {
        std::env::split_paths(&self.path)
    }

    pub fn environment(&self) -> Vec<(&'static str, OsString)> {
        vec![
            ("PATH", self.path.clone()),
            ("HOME", self.directory.path().as_os_str().to_owned()),
            // The daemon of the picture is not that of its maker.
            ("XDG_RUNTIME_DIR", self.directory.path().as_os_str().to_owned()),
            ("TERM", "xterm-256color".into()),
            ("COLORTERM", "truecolor".into()),
            ("LANG", "C.UTF-8".into()),
            ("SHELL", "/bin/sh".into()),
            ("ANTHROPIC_API_KEY", "sk-of-a-scripted-model".into()),
            ("ANTHROPIC_BASE_URL", self.model.base_url().into()),
        ]
    }
}

impl Drop for Stage {
    /// Ends the daemon that the program of the picture has started.
    fn drop(&mut self) {
        let stop = Command::new("epitome")
            .args(["daemon", "stop"])
            .env_clear()
            .envs(self.environment())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        // Without a daemon there is nothing to stop.
        drop(stop);
    }
}

/// Neovim with the configuration that the guide shows.
fn neovim(stage: &Stage) -> Result<String> {
    let ours = include_str!("../../editors/neovim/codecompanion.lua").replace(PLACEHOLDER, "epitome");
    let packages = ["plenary.nvim", "codecompanion.nvim"]
        .map(|name| format!("vim.opt.rtp:append({:?})\n", stage.package(name).display().to_string()));
    let quiet = "vim.opt.shortmess:append('I')\nvim.opt.laststatus = 2\n";
    let init = stage.file("init.lua", &format!("{}{quiet}{ours}", packages.concat()))?;
    Ok(format!("nvim --clean -u {init} prices.py"))
}

/// Emacs with the configuration that the guide shows.
fn emacs(stage: &Stage) -> Result<String> {
    let ours = include_str!("../../editors/emacs/epitome.el").replace(PLACEHOLDER, "epitome");
    let packages = ["shell-maker", "acp.el", "agent-shell"]
        .map(|name| format!("(add-to-list 'load-path {:?})\n", stage.package(name).display().to_string()));
    let start = "(setq inhibit-startup-screen t)\n(menu-bar-mode -1)\n(load-theme 'modus-vivendi)\n(require 'agent-shell)\n\
                 (add-hook 'emacs-startup-hook (lambda ()\n  \
                 (agent-shell-start :config (car agent-shell-agent-configs))\n  (delete-other-windows)))\n";
    let init = stage.file("init.el", &format!("{}{ours}\n{start}", packages.concat()))?;
    Ok(format!("emacs -nw -q -l {init}"))
}

/// Replaced by the program's path in the editors' files.
const PLACEHOLDER: &str = "/absolute/path/to/epitome";

/// A file long enough to be worth a compaction.
fn prices() -> String {
    let rows = (1..=150)
        .map(|number| format!("    \"article-{number:03}\": {}.{:02},\n", number * 3 % 97, number * 7 % 100));
    format!(
        "def total(prices, discount):\n    return sum(prices) - discount * 100\n\n\nPRICES = {{\n{}}}\n",
        rows.collect::<String>()
    )
}

/// The model reads the file, explains it, and writes a summary when asked to.
fn reply(request: &RecordedRequest, number: usize) -> Vec<ModelStep> {
    let text = |text: &str| ModelStep::Text(text.to_owned());
    match number {
        1 => vec![
            text("I'll look at how the total is computed."),
            ModelStep::Call { name: "file_read".to_owned(), input: json!({"file_path": "prices.py"}) },
            ModelStep::Usage { input: 9_800, output: 60 },
        ],
        2 => vec![
            text(
                "`discount` is a **fraction** (0.1 means 10 %), but `total` subtracts `discount * 100` as an amount.\n\nIt \
                 should be:\n\n```python\nreturn sum(prices) * (1 - discount)\n```",
            ),
            ModelStep::Usage { input: 10_400, output: 120 },
        ],
        3 if request.last_user_text().ends_with("Mend it.") => vec![
            text("The discount is a fraction, so the sum is multiplied."),
            ModelStep::Call {
                name: "file_edit".to_owned(),
                input: json!({
                    "file_path": "prices.py",
                    "old_text": "sum(prices) - discount * 100",
                    "new_text": "sum(prices) * (1 - discount)",
                }),
            },
            ModelStep::Usage { input: 10_900, output: 60 },
        ],
        _ => {
            vec![
                text("The total in prices.py subtracts the discount as an amount; it is a fraction."),
                ModelStep::Usage { input: 10_900, output: 40 },
            ]
        }
    }
}
