//! The sections of `epitome doctor` for the program, the daemon and the user's configuration.

use epitome_platform::disk;
use epitome_platform::os::{PermissionsExt, can_write};
use std::ffi::OsString;
use std::io;
use std::path::Path;

use super::{DoctorLine, servers, storage};
use crate::cli::hooks::Project;
use crate::cli::{CliError, serve};
use crate::config::Settings;
use crate::daemon::runtime_dir::RuntimeDir;
use crate::paths::Paths;
use crate::problem::Problem;
use crate::provider::endpoint;
use crate::recipe::catalog::RecipeCatalog;
use crate::tools::sandbox;

/// The hint about a policy that can't be used.
const POLICY_TODO: &str = "the administrator of this machine can correct it";

/// The default environment variables for API keys and base URLs.
const KEY_VARIABLES: [&str; 6] = [
    "ANTHROPIC_API_KEY",
    "OPENAI_API_KEY",
    "GEMINI_API_KEY",
    "GOOGLE_API_KEY",
    "OPENROUTER_API_KEY",
    "EPITOME_LOCAL_URL",
];

/// With less free space than this, in bytes, a session or a build of its project soon can't write.
const SPACE_MIN: u64 = 32 * 1024 * 1024;

/// With less free space than this, in bytes, there is a warning.
const SPACE_LOW: u64 = 512 * 1024 * 1024;

/// Checks version, directories, free space, daemon and sandbox.
pub(super) fn lines(paths: &Paths) -> Vec<DoctorLine> {
    let program = std::env::current_exe();
    let program =
        program.map_or_else(|error| format!("(unknown: {error})"), |path| path.display().to_string());
    let mut lines =
        vec![DoctorLine::ok("program", format!("epitome {} at {program}", env!("CARGO_PKG_VERSION")))];
    // Epitome may have been started as another user, who owns it then.
    let journals = paths.data.join("journals");
    let sessions = if can_write(&paths.data) && journals.exists() { &journals } else { &paths.data };
    for (what, path) in [("settings", &paths.home), ("sessions", sessions), ("logs", &paths.log_directory())]
    {
        lines.push(directory(what, path));
    }
    lines.push(space("sessions", &paths.data, "EPITOME_HOME"));
    lines.push(space("temporary files", &std::env::temp_dir(), "TMPDIR"));
    lines.push(daemon(&RuntimeDir::new(paths)));
    lines.push(sandbox());
    lines
}

fn sandbox() -> DoctorLine {
    let support = sandbox::support();
    match support.gap() {
        None => DoctorLine::ok("sandbox", format!("commands are sandboxed ({})", support.words())),
        Some(gap) => DoctorLine::warning("sandbox", gap, "docs/sandbox.md explains them"),
    }
}

fn directory(what: &str, path: &Path) -> DoctorLine {
    let named = format!("{what} are in {}", path.display());
    match std::fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let above = path.ancestors().skip(1).find(|above| above.exists());
            match above.filter(|above| !can_write(above)) {
                Some(above) => DoctorLine::error(
                    "places",
                    format!("{named}, which can't be made: you can't write in {}", above.display()),
                    format!(
                        "chown, chmod or remount {}, or set EPITOME_HOME to another directory",
                        above.display()
                    ),
                ),
                None => DoctorLine::ok("places", format!("{named}, which does not exist yet")),
            }
        }
        Err(error) => DoctorLine::error(
            "places",
            format!("{named}: {error}"),
            "check the permissions of its parent directory",
        ),
        Ok(metadata) if !metadata.is_dir() => DoctorLine::error(
            "places",
            format!("{named}, which is not a directory"),
            "remove or rename the file",
        ),
        Ok(metadata) if !can_write(path) => {
            let mode = metadata.permissions().mode() & 0o777;
            let what = format!("{named}, where you can't write (mode {mode:o})");
            DoctorLine::error("places", what, format!("chown, chmod or remount {}", path.display()))
        }
        Ok(_) => DoctorLine::ok("places", named),
    }
}

/// Whether the file system of a directory has space for what is kept there.
fn space(what: &str, path: &Path, variable: &str) -> DoctorLine {
    // A directory that does not exist yet is made in this one.
    let existing = path.ancestors().find(|above| above.exists()).unwrap_or(path);
    match disk::free_bytes(existing) {
        Ok(free) => space_line(what, path, variable, free),
        Err(error) => {
            DoctorLine::ok("space", format!("the free space in {} is unknown: {error}", path.display()))
        }
    }
}

fn space_line(what: &str, path: &Path, variable: &str, free: u64) -> DoctorLine {
    let found = format!("{} free for {what} in {}", storage::size(free), path.display());
    let todo = || format!("delete other files there, or set {variable} to a directory on another disk");
    match free {
        0..SPACE_MIN => DoctorLine::error("space", format!("only {found}"), todo()),
        SPACE_MIN..SPACE_LOW => DoctorLine::warning("space", format!("only {found}"), todo()),
        SPACE_LOW.. => DoctorLine::ok("space", found),
    }
}

fn daemon(runtime_dir: &RuntimeDir) -> DoctorLine {
    match std::fs::symlink_metadata(runtime_dir.path()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return DoctorLine::ok("daemon", "no daemon is running; the first window starts one");
        }
        Err(error) => {
            let what = format!("{} can't be examined: {error}", runtime_dir.path().display());
            return DoctorLine::error("daemon", what, "check the permissions of its parent directory");
        }
        Ok(_) => {}
    }
    if let Err(error) = runtime_dir.check() {
        return DoctorLine::error(
            "daemon",
            error.to_string(),
            "remove it, or set XDG_RUNTIME_DIR or EPITOME_HOME elsewhere",
        );
    }
    let socket = runtime_dir.acp_socket();
    match epitome_platform::local::connect(&socket) {
        Ok(_) => DoctorLine::ok("daemon", format!("a daemon answers at {}", socket.display())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            DoctorLine::ok("daemon", "no daemon is running; the first window starts one")
        }
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => DoctorLine::ok(
            "daemon",
            "no daemon is running; the next start replaces the socket of one that was killed",
        ),
        Err(error) => {
            let what = format!("{} can't be connected to: {error}", socket.display());
            DoctorLine::error(
                "daemon",
                what,
                "end the process `epitome daemon serve`, then open an editor again",
            )
        }
    }
}

/// Checks settings, recipes, hooks, MCP servers and keys, as they apply to a session in this directory.
pub(super) fn files(
    paths: &Paths,
    get: impl Fn(&str) -> Option<OsString>,
) -> Result<Vec<DoctorLine>, CliError> {
    let unread = serve::read_policy(paths).err();
    let project = Project::load(paths.clone())?;
    let Project { cwd, settings, settings_problems: problems, .. } = &project;
    let mut lines = Vec::new();
    lines.extend(unread.map(|error| {
        let problem = Problem::new(paths.config_file(), error.message);
        DoctorLine::problem("policy", &problem)
    }));
    let unusable = settings.policy.refuses_model(None);
    let is_of_policy =
        |problem: &&Problem| unusable.as_ref().is_some_and(|why| why.contains(&problem.to_string()));
    let of_files = problems.iter().filter(|problem| !is_of_policy(problem));
    lines.extend(of_files.map(|problem| match unusable {
        // No part of a policy with a mistake is used.
        Some(_) if problem.path == paths.policy_file() => {
            DoctorLine::error("policy", problem.to_string(), POLICY_TODO)
        }
        Some(_) | None => DoctorLine::problem("settings", problem),
    }));
    if problems.is_empty() {
        lines.push(DoctorLine::ok("settings", settings_file(&paths.config_file())));
    }
    match &unusable {
        Some(why) => lines.push(DoctorLine::error("policy", why, POLICY_TODO)),
        None => {
            let applies = |place: &Path| DoctorLine::ok("policy", format!("{} applies", place.display()));
            lines.extend(settings.policy.places().map(applies));
        }
    }
    let catalog = RecipeCatalog::load(cwd, paths, &[]);
    lines.push(DoctorLine::ok(
        "recipes",
        format!("{} can be used in {}", catalog.recipes.len(), cwd.display()),
    ));
    lines.extend(catalog.problems.iter().map(|problem| DoctorLine::problem("recipes", problem)));
    lines.extend(project.trust_problem.iter().map(|problem| DoctorLine::problem("hooks", problem)));
    let found = project.discover();
    lines.push(match (settings.hooks.enabled, found.hooks.len()) {
        (false, _) => DoctorLine::ok("hooks", "switched off in the settings"),
        (true, hooks) => DoctorLine::ok("hooks", format!("{hooks} run in {}", cwd.display())),
    });
    for hook in &found.untrusted {
        let what = format!("{} came with the repository and is not trusted yet", hook.name);
        lines.push(DoctorLine::warning("hooks", what, "`epitome hooks trust` shows what it does"));
    }
    lines.extend(found.problems.iter().map(|problem| DoctorLine::problem("hooks", problem)));
    lines.extend(servers::lines(&project));
    lines.push(keys(settings, get));
    lines.push(withheld(settings));
    Ok(lines)
}

/// The variables of this shell that commands don't get: a build that needs one fails without a reason that is easy to see.
fn withheld(settings: &Settings) -> DoctorLine {
    let environment: Vec<(OsString, OsString)> = std::env::vars_os().collect();
    let names = endpoint::exposure(settings).withheld(&environment).join(", ");
    let names = if names.is_empty() { "none" } else { &names };
    let what = format!("withheld from commands, unless `environment.commands` names them: {names}");
    DoctorLine::ok("variables", what)
}

fn settings_file(file: &Path) -> String {
    match file.exists() {
        true => format!("read from {}", file.display()),
        false => format!("there is no {}; defaults apply", file.display()),
    }
}

fn keys(settings: &Settings, get: impl Fn(&str) -> Option<OsString>) -> DoctorLine {
    let mut names: Vec<&str> = KEY_VARIABLES.into_iter().chain(settings.key_variables()).collect();
    names.dedup();
    let (there, missing): (Vec<&str>, Vec<&str>) =
        names.into_iter().partition(|name| get(name).is_some_and(|value| !value.is_empty()));
    let logins = settings.logins.providers();
    if there.is_empty() && logins.is_empty() {
        let what = format!("none of {} is set here, and no login is stored", missing.join(", "));
        let todo = "`epitome login` stores a key; a local server at its usual address needs none";
        return DoctorLine::warning("keys", what, todo);
    }
    if there.is_empty() {
        return DoctorLine::ok("keys", format!("stored logins: {}", logins.join(", ")));
    }
    let mut what = format!("set in this shell: {}", there.join(", "));
    if !missing.is_empty() {
        what += &format!("; not set: {}", missing.join(", "));
    }
    if !logins.is_empty() {
        what += &format!("; stored logins: {}", logins.join(", "));
    }
    DoctorLine::ok("keys", what + ". An editor may have another environment")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::doctor::Status;

    #[test]
    fn keys_are_named_and_never_shown() {
        let settings = Settings::default();
        let secret = |name: &str| (name == "OPENAI_API_KEY").then(|| OsString::from("sk-very-secret"));
        let line = keys(&settings, secret);
        assert_eq!(line.status, Status::Ok);
        assert!(line.what.starts_with("set in this shell: OPENAI_API_KEY; not set: ANTHROPIC_API_KEY"));
        assert!(!line.what.contains("secret"));
        assert_eq!(keys(&settings, |_| None).status, Status::Warning);
        assert_eq!(keys(&settings, |_| Some(OsString::new())).status, Status::Warning, "empty is not set");
    }

    /// A missing file was once reported as read.
    #[test]
    fn settings_that_are_not_there_are_not_read() {
        let home = tempfile::tempdir().expect("a temporary directory");
        let file = home.path().join("config.toml");
        assert_eq!(settings_file(&file), format!("there is no {}; defaults apply", file.display()));
        std::fs::write(&file, "").expect("a file");
        assert_eq!(settings_file(&file), format!("read from {}", file.display()));
    }

    /// With a read-only home directory nothing worked, but everything was reported as fine: the directories did not
    /// exist yet, and it was not checked whether they could be created.
    #[test]
    fn a_directory_that_is_not_there_has_to_be_one_that_can_be_made() {
        let home = tempfile::tempdir().expect("a temporary directory");
        assert_eq!(directory("logs", &home.path().join("deep/log")).status, Status::Ok);
        // Not even root can create a directory there.
        let line = directory("logs", Path::new("/proc/self/log"));
        assert_eq!(line.status, Status::Error, "{}", line.what);
        assert!(line.what.contains("you can't write in /proc/self"), "{}", line.what);
    }

    /// With a full disk nothing could be saved, but everything was reported as fine.
    #[test]
    fn a_full_disk_is_an_error_and_little_space_a_warning() {
        let line = |free| space_line("sessions", Path::new("/data"), "EPITOME_HOME", free);
        for (free, status, what) in [
            (0, Status::Error, "only 0 bytes free for sessions in /data"),
            (40_000_000, Status::Warning, "only 40 MB free for sessions in /data"),
            (50_000_000_000, Status::Ok, "50 GB free for sessions in /data"),
        ] {
            assert_eq!((line(free).status, line(free).what.as_str()), (status, what));
        }
        assert!(line(0).todo.is_some_and(|todo| todo.contains("EPITOME_HOME")));
        // The directory does not exist yet.
        let home = tempfile::tempdir().expect("a temporary directory");
        let line = space("sessions", &home.path().join("deep/data"), "EPITOME_HOME");
        assert!(line.what.contains(" free for sessions in "), "{}", line.what);
    }

    #[test]
    fn a_daemon_that_is_not_there_is_no_trouble_and_a_foreign_directory_is() {
        let home = tempfile::tempdir().expect("a temporary directory");
        let runtime_dir = RuntimeDir { directory: home.path().join("run") };
        assert_eq!(daemon(&runtime_dir).status, Status::Ok);
        runtime_dir.prepare().expect("ours");
        assert!(daemon(&runtime_dir).what.contains("no daemon is running"));
        let socket = std::os::unix::net::UnixListener::bind(runtime_dir.acp_socket()).expect("a socket");
        assert!(daemon(&runtime_dir).what.contains("a daemon answers"));
        drop(socket);
        assert!(daemon(&runtime_dir).what.contains("was killed"));
        std::fs::remove_dir_all(runtime_dir.path()).expect("ours");
        std::fs::write(runtime_dir.path(), "").expect("a file");
        assert_eq!(daemon(&runtime_dir).status, Status::Error);
    }
}
