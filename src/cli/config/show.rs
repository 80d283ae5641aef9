//! `epitome config show`.

use std::fmt::Write as _;
use std::path::PathBuf;

use serde::Serialize;
use serde_json::{Value, json};

use crate::cli::CliError;
use crate::cli::terminal::{self, Color, Style};
use crate::problem::Problem;
use crate::secrets;
use crate::thread::visible::visible;
use epitome_config::{ConfigKey, LoadedSettings, SetValue};

/// Maximum width of the settings column; longer settings move their source to the right.
const SETTING_CHARS_MAX: usize = 60;

/// A setting and its origin.
#[derive(Debug, PartialEq, Serialize)]
struct ShownSetting {
    key: String,
    /// `null` if nothing is set.
    value: Value,
    source: SettingOrigin,
    /// The file or the variable.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum SettingOrigin {
    Default,
    File,
    Environment,
    Policy,
}

pub fn show(loaded: &LoadedSettings, prefix: &str, only_set: bool, json: bool) -> Result<i32, CliError> {
    let mut settings = settings(loaded);
    if !settings.iter().any(|setting| setting.key.starts_with(prefix)) {
        let known = settings.iter().map(|setting| setting.key.as_str());
        let unknown = CliError::failed(format!("there is no setting {prefix:?}"));
        return Err(unknown.meant(prefix, known, "`epitome config show` shows all"));
    }
    settings.retain(|setting| setting.key.starts_with(prefix));
    if only_set {
        settings.retain(|setting| setting.source != SettingOrigin::Default);
    }
    if json {
        let problems: Vec<Value> = loaded.problems.iter().map(Problem::to_json).collect();
        terminal::print_pretty(&json!({ "settings": settings, "problems": problems }))?;
    } else {
        terminal::print(&visible_lines(&settings, Style::for_stdout()))?;
        if !loaded.problems.is_empty() {
            note!("epitome: the settings have problems; `epitome config check` shows them");
        }
    }
    Ok(0)
}

/// Returns all settings in the parser's order, then those under names that the user chose.
fn settings(loaded: &LoadedSettings) -> Vec<ShownSetting> {
    let keys = loaded.settings.keys();
    let mut found: Vec<ShownSetting> = Vec::new();
    let mut known: Vec<String> = Vec::new();
    for group in keys.chunk_by(|_, next| next.is_alias) {
        let names: Vec<String> = group.iter().map(|key| key.path.join(".")).collect();
        let of_key = |set: &&SetValue| names.contains(&set.key.join("."));
        let sets: Vec<&SetValue> = loaded.values.iter().filter(of_key).collect();
        found.extend(settings_of(loaded, &group[0], &names[0], &sets));
        known.extend(names);
    }
    let chosen = loaded.values.iter().filter(|set| !known.contains(&set.key.join(".")));
    for set in chosen {
        let setting = set_by(loaded, &set.key.join("."), set);
        // A later layer overrides an earlier one.
        found.retain(|earlier| earlier.key != setting.key);
        found.push(setting);
    }
    found
}

fn settings_of(
    loaded: &LoadedSettings,
    key: &ConfigKey,
    name: &str,
    sets: &[&SetValue],
) -> Vec<ShownSetting> {
    let is_chosen = key.path.iter().any(|name| name == epitome_config::ANY_NAME);
    // Rules of all files are combined, and so are policies, so each has a separate source.
    let adds_up = key.path.first().is_some_and(|table| table == "permissions" || table == "policy");
    match sets {
        [] if is_chosen => Vec::new(),
        [] => {
            let value = key.value.clone().unwrap_or_default();
            vec![ShownSetting {
                key: name.to_owned(),
                value,
                source: SettingOrigin::Default,
                path: None,
                line: None,
            }]
        }
        sets if adds_up => sets.iter().map(|set| set_by(loaded, name, set)).collect(),
        [.., last] => vec![set_by(loaded, name, last)],
    }
}

fn set_by(loaded: &LoadedSettings, name: &str, set: &SetValue) -> ShownSetting {
    let source = match () {
        () if loaded.settings.policy.places().any(|policy| policy == set.path) => SettingOrigin::Policy,
        () if set.path.to_string_lossy().starts_with('$') => SettingOrigin::Environment,
        () => SettingOrigin::File,
    };
    let mut value = set.value.clone();
    if let Value::String(text) = &mut value {
        *text = secrets::mask(text).into_owned();
    }
    ShownSetting { key: name.to_owned(), value, source, path: Some(set.path.clone()), line: set.line }
}

fn visible_lines(settings: &[ShownSetting], style: Style) -> String {
    let written = |setting: &ShownSetting| match &setting.value {
        Value::Null => format!("{} is not set", setting.key),
        value => format!("{} = {value}", setting.key),
    };
    let lines: Vec<String> = settings.iter().map(|setting| visible(&written(setting)).into_owned()).collect();
    let widths = lines.iter().map(|line| line.chars().count()).filter(|width| *width <= SETTING_CHARS_MAX);
    let width = widths.max().unwrap_or_default();
    let mut out = String::new();
    for (setting, line) in settings.iter().zip(lines) {
        let source = match (&setting.path, setting.line) {
            (None, _) => "default".to_owned(),
            (Some(path), None) => path.display().to_string(),
            (Some(path), Some(number)) => format!("{}:{number}", path.display()),
        };
        let source = match setting.source {
            SettingOrigin::Policy if !source.starts_with("the policy") => format!("policy {source}"),
            _ => source,
        };
        let _ = writeln!(out, "{line:width$}  {}", style.paint(Color::Dim, &visible(&source)));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paths::Paths;

    fn shown(text: &str) -> Vec<String> {
        let home = tempfile::tempdir().expect("a directory");
        std::fs::write(home.path().join("config.toml"), text).expect("a file");
        let loaded = LoadedSettings::load(&Paths::below(home.path()), None, |name| {
            (name == "EPITOME_MODE").then(|| "auto".into())
        });
        let lines = visible_lines(&settings(&loaded), Style::Plain);
        let home = format!("{}/", home.path().display());
        lines
            .lines()
            .map(|line| line.replace(&home, "").split_whitespace().collect::<Vec<_>>().join(" "))
            .collect()
    }

    #[test]
    fn each_setting_is_shown_with_its_source() {
        let lines = shown(
            "max_rounds = 7\n[compaction]\nratio = 0.5\n[permissions]\ndeny = [\"bash(rm *)\",\n\"Edit\"]\n\
             [mcp.servers.tickets]\ncommand = \"tickets\"\nenv = { TOKEN = \"sk-secret\" }\n",
        );
        for line in [
            "model is not set default",
            "mode = \"auto\" $EPITOME_MODE",
            "max_rounds = 7 config.toml:1",
            "max_repeats = 5 default",
            "compaction.threshold = 0.5 config.toml:3",
            "permissions.deny = \"bash(rm *)\" config.toml:5",
            "permissions.deny = \"Edit\" config.toml:6",
            "permissions.allow = [] default",
            "mcp.servers.tickets.command = \"tickets\" config.toml:8",
            "mcp.servers.tickets.env = {\"TOKEN\":\"<masked>\"} config.toml:9",
        ] {
            assert!(lines.iter().any(|shown| shown == line), "{line} in {lines:#?}");
        }
        assert!(
            !lines
                .iter()
                .any(|line| line.contains('*') && !line.contains("rm *") || line.contains("sk-secret")),
            "{lines:#?}"
        );
    }
}
