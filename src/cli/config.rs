//! `epitome config`: shows the settings, their origin and their problems, and prints their JSON Schema.

mod schema;
mod show;

use std::path::{Path, PathBuf};

use serde_json::json;

use super::text_editor::TextEditor;
use super::{CliContext as _, CliError, serve, terminal};
use crate::paths::Paths;
use crate::problem::Problem;
use crate::thread::visible::visible;
use epitome_config::{LoadedSettings, Settings};

/// Show, check and edit the settings
#[derive(Debug, clap::Args)]
#[command(
    arg_required_else_help = false,
    after_help = "\
Settings are described in docs/configuration.md.

Exit codes: 0 done, 1 failed or there are problems, 2 wrong usage."
)]
pub struct ConfigArgs {
    #[command(subcommand)]
    command: ConfigCommand,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum ConfigCommand {
    /// Print the path of your settings file
    ///
    /// With --json, also that of the repository's, and whether they exist.
    Path,
    /// Show each setting and its source: a file and line, a variable, the policy, or the default
    ///
    /// Secrets are masked.
    Show {
        /// Only settings whose name begins with this, for example compaction
        #[arg(value_name = "KEY", default_value = "", hide_default_value = true)]
        key: String,
        /// Show only settings that are set
        #[arg(long)]
        set: bool,
    },
    /// Report everything that is wrong in the settings, with line and column
    Check,
    /// Open your settings file in $VISUAL or $EDITOR, and check it afterwards
    Edit,
    /// Print the JSON Schema of a kind of file, for editors that complete from it
    ///
    /// For example `epitome config schema > ~/.epitome/config.schema.json`, and as the first line of config.toml
    /// `#:schema ./config.schema.json`.
    Schema {
        /// Settings, the front matter of a recipe, or a declarative hook
        #[arg(value_name = "FILE", value_enum, default_value_t = schema::SchemaFile::Config)]
        file: schema::SchemaFile,
    },
}

pub fn main(args: ConfigArgs) -> Result<i32, CliError> {
    let paths = serve::paths();
    let cwd = serve::working_directory()?;
    match args.command {
        ConfigCommand::Path => path(&paths, &cwd, args.json).map(|()| 0),
        ConfigCommand::Show { key, set } => show::show(&load(&paths, &cwd), &key, set, args.json),
        ConfigCommand::Check => check(&load(&paths, &cwd).problems, args.json),
        ConfigCommand::Edit => edit(&paths, &cwd),
        ConfigCommand::Schema { file } => terminal::print_pretty(&file.schema()).map(|()| 0),
    }
}

fn load(paths: &Paths, cwd: &Path) -> LoadedSettings {
    let unread = serve::read_policy(paths).err();
    let mut loaded = LoadedSettings::load(paths, Some(cwd), |name| std::env::var_os(name));
    loaded.problems.extend(unread.map(|error| {
        Problem::new(paths.config_file(), error.message).with_hint("the policy in the database is unknown")
    }));
    loaded
}

fn path(paths: &Paths, cwd: &Path, json: bool) -> Result<(), CliError> {
    let users = paths.config_file();
    if !json {
        return terminal::print(&format!("{}\n", visible(&users.display().to_string())));
    }
    let file = |path: PathBuf| json!({ "path": path.to_string_lossy(), "exists": path.is_file() });
    let repository = Settings::repository_file(cwd);
    terminal::print_pretty(&json!({ "user": file(users), "repository": file(repository) }))
}

fn check(problems: &[Problem], json: bool) -> Result<i32, CliError> {
    if json {
        terminal::print_pretty(&problems.iter().map(Problem::to_json).collect::<Vec<_>>())?;
    } else if problems.is_empty() {
        terminal::print("The settings have no problems.\n")?;
    } else {
        let text: String = problems.iter().map(|problem| format!("{problem}\n")).collect();
        terminal::print_visible(&text)?;
    }
    Ok(i32::from(!problems.is_empty()))
}

/// The initial content of a new settings file.
const TEMPLATE: &str = "\
# Settings of Epitome. `epitome config show` shows all of them, `epitome config check` finds mistakes.

# model = \"anthropic/claude-sonnet-5-5\"
# mode = \"ask\"            # or accept_edits, auto, read_only, full
# thought = \"medium\"      # or off, low, high, max

# [permissions]
# allow = [\"bash(cargo test *)\"]
# deny = [\"bash(git push *)\"]

# [compaction]
# threshold = 0.80        # a share of the context window
";

fn edit(paths: &Paths, cwd: &Path) -> Result<i32, CliError> {
    let file = paths.config_file();
    let editor = TextEditor::of_user(&file)?;
    if !file.exists() {
        let made = file.parent().map_or(Ok(()), std::fs::create_dir_all);
        made.context(format_args!("{} can't be made", file.display()))?;
        terminal::write_new(&file, TEMPLATE)?;
    }
    editor.edit(&file)?;
    check(&load(paths, cwd).problems, false)
}
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_is_valid_when_its_lines_are_uncommented() {
        let text: String = TEMPLATE
            .lines()
            .filter_map(|line| line.strip_prefix("# "))
            .filter(|line| line.contains(" = ") || line.starts_with('['))
            .map(|line| format!("{line}\n"))
            .collect();
        let home = tempfile::tempdir().expect("a directory");
        std::fs::write(home.path().join("config.toml"), &text).expect("a file");
        let loaded = LoadedSettings::load(&Paths::below(home.path()), None, |_| None);
        assert_eq!(loaded.problems, []);
        assert_eq!(loaded.settings.permissions.len(), 2, "{text}");
    }
}
