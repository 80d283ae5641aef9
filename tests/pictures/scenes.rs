//! The pictures: which program, and what the model answers.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use epitome_scripted_model::{ModelStep, RecordedRequest, ScriptedModel};
use serde_json::json;
use tempfile::TempDir;

pub struct Scene {
    /// Of the file, without its extension.
    pub name: &'static str,
    /// What the picture shows, for those who can't see it.
    pub title: &'static str,
    /// Columns and rows.
    pub size: (u16, u16),
    /// The shell command.
    pub command: fn(&Stage) -> String,
    /// Programs that it needs.
    pub needs: &'static [&'static str],
    pub is_animated: bool,
}

pub const SCENES: &[Scene] = &[
    Scene {
        name: "demo",
        title: "epitome demo: a conversation is compacted, the compaction is undone, the daemon is killed, nothing is lost",
        size: (100, 32),
        command: |_| "epitome demo".to_owned(),
        needs: &[],
        is_animated: true,
    },
    Scene {
        name: "context",
        title: "epitome run in a terminal, and /context: what fills the context window",
        size: (100, 34),
        command: |_| {
            "epitome run 'The total is wrong. Find out why.' && epitome run --follow /context".to_owned()
        },
        needs: &[],
        is_animated: false,
    },
];

impl Scene {
    /// What prevents the scene, as a clause.
    pub fn missing(&self, stage: &Stage) -> Option<String> {
        let is_there = |program: &str| stage.path().any(|directory| directory.join(program).is_file());
        let missing = self.needs.iter().find(|program| !is_there(program))?;
        Some(format!("{missing} is not installed"))
    }
}

/// A home with nothing in it, a small project, and a model.
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
        std::fs::write(workspace.join("prices.py"), PRICES)?;
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

    fn path(&self) -> impl Iterator<Item = PathBuf> {
        std::env::split_paths(&self.path)
    }

    pub fn environment(&self) -> Vec<(&'static str, OsString)> {
        vec![
            ("PATH", self.path.clone()),
            ("HOME", self.directory.path().as_os_str().to_owned()),
            ("TERM", "xterm-256color".into()),
            ("LANG", "C.UTF-8".into()),
            ("SHELL", "/bin/sh".into()),
            ("ANTHROPIC_API_KEY", "sk-of-a-scripted-model".into()),
            ("ANTHROPIC_BASE_URL", self.model.base_url().into()),
        ]
    }
}

const PRICES: &str = "def total(prices, discount):\n    return sum(prices) - discount * 100\n";

/// The model reads the file, explains, and summarises when asked to.
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
        _ => {
            let _ = request;
            vec![
                text("The total in prices.py subtracts the discount as an amount; it is a fraction."),
                ModelStep::Usage { input: 10_900, output: 40 },
            ]
        }
    }
}
