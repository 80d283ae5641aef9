//! The flags that hold above all configuration: `acp`, `run` and `compact` have them in common.

use std::path::PathBuf;

use lexopt::ValueExt;

use super::CliError;
use crate::config::{Threshold, Trust};
use crate::session::registry::Overrides;
use crate::thread::{Mode, ModelName};

const FLAGS: [&str; 8] = [
    "model",
    "mode",
    "no-hooks",
    "trust-hooks",
    "disable-auto-compact",
    "compact-ratio",
    "recipe-dir",
    "fragment-dirs",
];

pub fn is_flag(name: &str) -> bool {
    FLAGS.contains(&name)
}

/// Takes one of the flags and its value.
pub fn set(overrides: &mut Overrides, flag: &str, parser: &mut lexopt::Parser) -> Result<(), CliError> {
    match flag {
        "model" => {
            let written = parser.value()?.string()?;
            let model = ModelName::written(&written);
            if model.split().is_none() {
                return Err(CliError::usage(format!("a model is named provider/name, not {written:?}")));
            }
            overrides.model = Some(model.0);
        }
        "mode" => overrides.mode = Some(mode_named(&parser.value()?.string()?)?),
        "no-hooks" => overrides.hooks = Some(false),
        "trust-hooks" => overrides.trust = Some(Trust::Run),
        "disable-auto-compact" => overrides.auto_compact = Some(false),
        "compact-ratio" => {
            let ratio = parser.value()?.string()?;
            let threshold = Threshold::of_ratio(&ratio).ok_or_else(|| {
                CliError::usage(format!("--compact-ratio is a number from 0 to 1, not {ratio:?}"))
            })?;
            overrides.threshold = Some(threshold);
        }
        "recipe-dir" | "fragment-dirs" => recipe_dirs(&mut overrides.recipe_dirs, flag, parser)?,
        other => return Err(CliError::usage(format!("there is no flag --{other}"))),
    }
    Ok(())
}

/// Takes further folders with recipes: `--recipe-dir DIR`, or `--fragment-dirs DIR,DIR`, which is the name
/// and the form of another agent's flag.
pub fn recipe_dirs(dirs: &mut Vec<PathBuf>, flag: &str, parser: &mut lexopt::Parser) -> Result<(), CliError> {
    match flag {
        "fragment-dirs" => {
            let list = parser.value()?.string()?;
            dirs.extend(list.split(',').filter(|dir| !dir.is_empty()).map(PathBuf::from));
        }
        _ => dirs.push(PathBuf::from(parser.value()?)),
    }
    Ok(())
}

fn mode_named(id: &str) -> Result<Mode, CliError> {
    let known = Mode::ALL.map(Mode::id).join(", ");
    Mode::parse(id).ok_or_else(|| CliError::usage(format!("there is no mode {id:?}; there are {known}")))
}
