//! `epitome bug-report`: writes one text file with diagnostics. It contains no API keys and no conversation content;
//! users are asked to read it before they send it, because not every form of key can be detected.

mod redact;
mod settings;
mod structure;

use std::fmt::Write as _;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::hooks::Project;
use super::terminal;
use super::{CliError, daemon, doctor, serve, sessions};
use crate::daemon::control::ControlClient;
use crate::daemon::runtime_dir::RuntimeDir;
use crate::paths::Paths;
use crate::session_library;
use crate::store::Store;
use crate::thread::visible::visible;
use epitome_platform::os::{host_name, kernel_release};
use redact::ReportRedactor;

/// Maximum number of log lines that are included.
const LOG_LINES: usize = 500;

/// Maximum length of a log line, in characters.
const LOG_LINE_CHARS_MAX: usize = 2_000;

/// Fields of the daemon's status that are included. The others contain project directories.
const STATUS_FIELDS: [&str; 6] =
    ["version", "started_at", "running_turns", "store_bytes", "resident_bytes", "pid"];

/// Write diagnostics to a file, without keys
///
/// The file has the version, the system, the status of the daemon, settings without secrets, hooks by their programs,
/// the findings of `epitome doctor`, and the last 500 lines of the log. API keys are removed by their form, by their
/// names and by the values in the environment; your home directory becomes ~ and your name <user>. Nothing is sent:
/// read the file before you send it.
#[derive(Debug, clap::Args)]
pub struct BugReportArgs {
    /// File to create, or - for stdout [default: epitome-bug-report-DATE.txt]
    #[arg(value_hint = clap::ValueHint::FilePath)]
    file: Option<PathBuf>,
    /// Add the structure of a session: kinds of entries, sizes, tools and their results, times and tokens
    #[arg(long, value_name = "ID")]
    session: Option<String>,
}

const PREAMBLE: &str = "\
This is a bug report of Epitome. It contains the version, the system, the state of the daemon, settings, hooks, what
doctor finds, the last lines of the log, and, if you named one, the structure of a session.

Keys and what identifies you were removed by a program, which knows many shapes of keys, but not all. The log may
quote what a provider answered. Read it before you send it, and remove what you don't want to share.
";

pub fn main(args: BugReportArgs) -> Result<i32, CliError> {
    let paths = serve::paths();
    let report = serve::with_store(&paths, |store| report(&paths, store, args.session.as_deref()))?;
    let report = visible(&report).into_owned();
    if args.file.as_deref() == Some(Path::new("-")) {
        return terminal::print(&report).map(|()| 0);
    }
    let file = args.file.unwrap_or_else(|| {
        let now = jiff::Zoned::now().strftime("%Y-%m-%d-%H%M%S");
        PathBuf::from(format!("epitome-bug-report-{now}.txt"))
    });
    terminal::write_new(&file, &report)?;
    let message = format!(
        "{} has the report ({} bytes). Nothing was sent: read it before you send it.\n",
        file.display(),
        report.len()
    );
    terminal::print_visible(&message).map(|()| 0)
}

fn report(paths: &Paths, store: &Store, session: Option<&str>) -> Result<String, CliError> {
    let project = Project::load(paths.clone())?;
    let redactor = redactor(paths, &project);
    let structure = session.map(|typed| structure(store, typed)).transpose()?;
    let mut out = PREAMBLE.to_owned();
    let mut section = |title: &str, text: &str| {
        let text = redactor.clean(text);
        let _ = write!(out, "\n── {title} ──\n\n{}\n", text.trim_end());
    };
    section("System", &system());
    section("Daemon", &serve::runtime()?.block_on(daemon_now(&RuntimeDir::new(paths))));
    section("Settings", &settings::file(&paths.config_file()));
    section("Settings of this directory", &settings::file(&project.cwd.join(".epitome/config.toml")));
    section("Hooks of this directory", &settings::hooks(&project));
    section("Doctor", &doctor::findings(store)?);
    if let Some((id, structure)) = structure {
        section(&format!("Session {id}"), &structure);
    }
    let log = last_of_log(&redactor, &paths.log_directory());
    let _ = write!(out, "\n── The last {LOG_LINES} lines of the log ──\n\n{log}");
    Ok(out)
}

/// Creates a redactor with the secrets of this environment and these settings.
fn redactor(paths: &Paths, project: &Project) -> ReportRedactor {
    let named: Vec<&str> = project.settings.key_variables().collect();
    let variables = std::env::vars_os().filter_map(|(name, value)| {
        let (name, value) = (name.into_string().ok()?, value.to_string_lossy().into_owned());
        (redact::is_secret_name(&name) || named.contains(&&*name)).then_some(value)
    });
    let text = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let home = paths.user_home.as_deref();
    let of_home = home.and_then(Path::file_name).and_then(|name| name.to_str()).map(str::to_owned);
    let user = text("USER").or_else(|| text("LOGNAME")).or(of_home);
    let host = host_name();
    ReportRedactor::new(
        variables.chain(settings::secrets(&project.settings, &project.environment)),
        home,
        user.as_deref(),
        Some(&host),
    )
}

fn system() -> String {
    let first_line = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let release = first_line("/etc/os-release");
    let name = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    let set = |name: &str| if std::env::var_os(name).is_some() { "set" } else { "not set" };
    format!(
        "epitome {}\nsystem {} {} ({})\nkernel {}\nprocessors {}\nEPITOME_HOME {}, EPITOME_LOG {}, \
         XDG_RUNTIME_DIR {}\n",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::OS,
        std::env::consts::ARCH,
        name.unwrap_or("unknown").trim_matches('"'),
        kernel_release(),
        std::thread::available_parallelism().map_or(0, usize::from),
        set("EPITOME_HOME"),
        set("EPITOME_LOG"),
        set("XDG_RUNTIME_DIR")
    )
}

async fn daemon_now(runtime_dir: &RuntimeDir) -> String {
    let client = match ControlClient::connect(runtime_dir).await {
        Ok(Some(client)) => client,
        Ok(None) => return "none runs\n".to_owned(),
        Err(fault) => return format!("{}\n", fault.message),
    };
    let mut out = String::new();
    for method in ["status", "metrics"] {
        let answered = match daemon::call(&client, method, json!({})).await {
            Ok(answer) => {
                let wanted = |name: &str| method == "metrics" || STATUS_FIELDS.contains(&name);
                let fields = answer.as_object().cloned().unwrap_or_default();
                let fields = fields.into_iter().filter(|(name, _)| wanted(name));
                Value::Object(fields.collect()).to_string()
            }
            Err(error) => error.message,
        };
        let _ = writeln!(out, "{method} {answered}");
    }
    out
}

fn structure(store: &Store, typed: &str) -> Result<(String, String), CliError> {
    let id = sessions::find(store, typed)?;
    let read = session_library::read(store, &id)?;
    let mut text = structure::text(&read.thread);
    if let Some(damage) = read.damage {
        let _ = writeln!(text, "damaged after that: {damage}");
    }
    Ok((id.0, text))
}

/// Returns the newest log lines, from as many days as needed. Redacts before truncating, because a PEM block is
/// recognized by its first line.
fn last_of_log(redactor: &ReportRedactor, directory: &Path) -> String {
    let mut text = String::new();
    for path in daemon::logs_of(directory).iter().rev() {
        // Read twice as many, so that PEM blocks are complete.
        let lines =
            File::open(path).and_then(|file| daemon::last_lines(&mut BufReader::new(file), 2 * LOG_LINES));
        match lines {
            Ok(lines) => text.insert_str(0, &lines),
            Err(error) => {
                let _ = writeln!(text, "{} can't be read: {error}", path.display());
            }
        }
        if text.lines().count() >= LOG_LINES {
            break;
        }
    }
    let clean = redactor.clean(&text);
    let lines: Vec<&str> = clean.lines().collect();
    let mut out = String::new();
    for line in &lines[lines.len().saturating_sub(LOG_LINES)..] {
        let end = line.char_indices().nth(LOG_LINE_CHARS_MAX).map_or(line.len(), |(at, _)| at);
        out.push_str(&line[..end]);
        out.push_str(if end < line.len() { "…\n" } else { "\n" });
    }
    if out.is_empty() { "there is none\n".to_owned() } else { out }
}
