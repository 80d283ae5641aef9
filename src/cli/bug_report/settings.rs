//! The settings and hooks sections of a bug report: settings without possible secrets, one per line; hooks with their
//! kinds and programs.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::Path;

use epitome_platform::root::read_regular_text;
use toml::Value;

use super::redact::is_secret_name;
use crate::cli::hooks::Project;
use crate::config::{CONFIG_BYTES_MAX, McpTransport, Settings};
use crate::hooks::claude::action::ClaudeAction;
use crate::hooks::hook::{Hook, HookKind};

/// Maximum length of a text in the settings, in characters; of longer ones only the length is reported.
const VALUE_CHARS_MAX: usize = 200;

/// Settings of an MCP server that often contain keys under any name.
const SERVER_SECRETS: [&str; 4] = ["args", "env", "headers", "url"];

/// Formats a settings file, one line per value.
pub(super) fn file(path: &Path) -> String {
    // A repository can contain anything in place of its settings.
    let text = match read_regular_text(path, CONFIG_BYTES_MAX) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return "there is none\n".to_owned(),
        Err(error) => return format!("it can't be read: {error}\n"),
    };
    match toml::from_str::<toml::Table>(&text) {
        Ok(table) => {
            let mut out = String::new();
            flatten(&Value::Table(table), "", false, &mut out);
            out
        }
        // The error quotes the line, which may contain a secret.
        Err(_) => format!("it has {} bytes and is not valid TOML; see the findings of doctor\n", text.len()),
    }
}

fn flatten(value: &Value, name: &str, is_secret: bool, out: &mut String) {
    let shown = match value {
        Value::Table(table) => {
            for (key, value) in table {
                let below = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
                let is_of_server = name.starts_with("mcp.servers.") && SERVER_SECRETS.contains(&key.as_str());
                flatten(value, &below, is_secret || is_of_server || is_secret_name(key), out);
            }
            return;
        }
        Value::Array(values) => {
            for (at, value) in values.iter().enumerate() {
                flatten(value, &format!("{name}[{at}]"), is_secret, out);
            }
            return;
        }
        Value::String(text) => match text.chars().count() {
            length if length > VALUE_CHARS_MAX => format!("<{length} characters>"),
            _ => format!("{text:?}"),
        },
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Boolean(truth) => truth.to_string(),
        Value::Datetime(time) => time.to_string(),
    };
    let shown = if is_secret { "<redacted>" } else { &shown };
    let _ = writeln!(out, "{name} = {shown}");
}

/// Returns the values of the settings and logins that authenticate the user.
pub(super) fn secrets(settings: &Settings, environment: &[(OsString, OsString)]) -> Vec<String> {
    let own = settings.providers.values().flat_map(|provider| provider.headers.values());
    let built_in = settings.built_in.values().flat_map(|provider| provider.headers.values());
    let logins = settings.logins.secrets().into_iter().map(|(_, key)| key);
    let servers = settings.mcp.servers.iter();
    let ways = servers.flat_map(|server| [Some(server.way.clone()), server.expanded(environment).ok()]);
    let of_servers = ways.flatten().flat_map(|way| match way {
        McpTransport::Stdio { env, .. } => env.into_iter().map(|(_, value)| value).collect::<Vec<_>>(),
        // The log has addresses, whose paths may contain keys.
        McpTransport::Http { url, headers, .. } => {
            let path = url.split_once("://").and_then(|(_, rest)| rest.split_once('/'));
            let path = path.map(|(_, path)| path.to_owned());
            headers.into_iter().map(|(_, value)| value).chain(path).collect()
        }
        McpTransport::Client { .. } => Vec::new(),
    });
    own.chain(built_in).cloned().chain(logins).chain(of_servers).collect()
}

pub(super) fn hooks(project: &Project) -> String {
    let found = project.discover();
    let mut out = String::new();
    for hook in &found.hooks {
        let events: Vec<&str> = hook.events.iter().map(|(_, name)| name.as_str()).collect();
        let _ = writeln!(out, "{} ({:?}, {}): {}", hook.name, hook.origin, events.join(", "), what(hook));
    }
    let _ = writeln!(
        out,
        "{} run, {} wait for trust, {} files are skipped",
        found.hooks.len(),
        found.untrusted.len(),
        found.skipped.len()
    );
    out
}

fn what(hook: &Hook) -> String {
    match &hook.kind {
        HookKind::Script { path } => format!("runs {}", file_name(path)),
        HookKind::Resident { path } => format!("keeps {} running", file_name(path)),
        HookKind::Declared { .. } => "declared".to_owned(),
        HookKind::Webhook { url, .. } => {
            let host = url.split("://").nth(1).unwrap_or_default();
            let host = host.split(['/', '?', '#']).next().unwrap_or_default();
            format!("posts to {}", host.rsplit('@').next().unwrap_or_default())
        }
        HookKind::Claude { options, .. } if options.action != ClaudeAction::Command => {
            format!("{} something", options.action.verb())
        }
        HookKind::Claude { line, .. } => format!("a line for the shell that runs {}", program(line)),
    }
}

/// Returns the program that a shell command runs. Variable assignments before it may contain secrets and are skipped.
fn program(line: &str) -> &str {
    let word = line.split_whitespace().find(|word| !word.contains('=')).unwrap_or("?");
    file_name(Path::new(word.trim_matches(['"', '\''])))
}

fn file_name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or("?")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_program_of_a_command_line_is_shown() {
        for (line, wanted) in [
            ("/home/ann/bin/guard --key=abc def", "guard"),
            ("API_TOKEN=abc curl -H 'x: y' https://x", "curl"),
            ("\"$CLAUDE_PROJECT_DIR\"/check.sh a", "check.sh"),
            ("", "?"),
        ] {
            assert_eq!(program(line), wanted, "{line}");
        }
    }

    #[test]
    fn settings_are_shown_without_possible_secrets() {
        let home = tempfile::tempdir().expect("a temporary directory");
        let path = home.path().join("config.toml");
        let text = "model = \"g/m\"\nmax_rounds = 3\n[providers.g]\nbase_url = \"https://g.example.com/v1\"\n\
                    key_variable = \"G_KEY\"\nheaders = { x-tenant = \"acme\", n = 5 }\napi_key = \"abc\"\n\
                    [mcp.servers.tickets]\ncommand = \"npx\"\nargs = [\"--pin\", \"4711\"]\nenv = { FOO = \"bar\" }\n\
                    [mcp.servers.\"a.b\"]\nurl = \"https://b.example.com/mcp/4711\"\n";
        std::fs::write(&path, text).expect("a file");
        let report = file(&path);
        for line in [
            "model = \"g/m\"",
            "max_rounds = 3",
            "providers.g.base_url = \"https://g.example.com/v1\"",
            "providers.g.key_variable = \"G_KEY\"",
            "providers.g.headers.x-tenant = <redacted>",
            "providers.g.headers.n = <redacted>",
            "providers.g.api_key = <redacted>",
            "mcp.servers.tickets.command = \"npx\"",
            "mcp.servers.tickets.args[1] = <redacted>",
            "mcp.servers.tickets.env.FOO = <redacted>",
            "mcp.servers.a.b.url = <redacted>",
        ] {
            assert!(report.lines().any(|shown| shown == line), "{line} is not in\n{report}");
        }
        assert!(!report.contains("4711"), "{report}");
        std::fs::write(&path, "api_key = 'abc").expect("a file");
        assert!(!file(&path).contains("abc"));
    }

    /// A repository had a pipe in place of its settings, and the report waited for somebody to write into it.
    #[test]
    fn settings_that_are_no_ordinary_file_are_not_read() {
        let repository = tempfile::tempdir().expect("a temporary directory");
        let path = repository.path().join("config.toml");
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.expect("mkfifo runs").success());
        assert_eq!(file(&path), "it can't be read: it is not a regular file\n");
        std::fs::remove_file(&path).expect("it is there");
        std::os::unix::fs::symlink("/dev/zero", &path).expect("a link");
        assert_eq!(file(&path), "it can't be read: it is not a regular file\n");
    }
}
