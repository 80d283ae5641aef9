//! The environment of programs that run outside of the sandbox for the user: hooks, MCP servers, approved commands.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::TEMPORARY;
use super::paths::{STAGING, caches, home};
use crate::Workspace;
use epitome_files::atomic_file::{read_private, replace_in_private_directory};
use epitome_platform::program::without_changeable;
use epitome_platform::root::{Root, resolve};

type GivenVariables = Vec<(OsString, OsString)>;

/// The file with the directories of all sessions, beside the copies of settings, where no command can change it: a command
/// of another session may have put a program there, also before this process started.
const WORKSPACES: &str = "workspaces";

fn file_of_roots(workspace: &Workspace) -> Option<PathBuf> {
    Some(workspace.home()?.join(STAGING).join(WORKSPACES))
}

/// The directories that still exist.
fn noted_roots(workspace: &Workspace) -> BTreeSet<PathBuf> {
    let text = file_of_roots(workspace).and_then(|file| read_private(&file).ok()).unwrap_or_default();
    let mut noted: BTreeSet<PathBuf> = serde_json::from_str(&text).unwrap_or_default();
    noted.retain(|root| root.is_dir());
    noted
}

/// Notes the directories of a session that a command may change.
pub(super) fn note_roots(workspace: &Workspace, writable: &[PathBuf]) {
    let mut noted = noted_roots(workspace);
    let before = noted.len();
    let roots = workspace.roots().iter().map(Root::path).filter(|root| root.to_str().is_some());
    noted.extend(roots.map(Path::to_path_buf).filter(|root| writable.contains(root)));
    if let Some(file) = file_of_roots(workspace).filter(|_| noted.len() > before) {
        // If two sessions write at once, one of them does so again with its next command.
        let written = serde_json::to_vec(&noted).map_err(io::Error::from);
        if let Err(error) = written.and_then(|bytes| replace_in_private_directory(&file, &bytes)) {
            tracing::warn!(file = %file.display(), %error, "a session's directories can't be noted");
        }
    }
}

/// Returns the environment of a workspace without directories in which such a program would find what a sandboxed command
/// has put there: with `.venv/bin` on the `PATH`, a command could write a `bash` that the next hook started. Reads the disk.
pub fn outside(workspace: &Workspace) -> Arc<GivenVariables> {
    kept(workspace, &workspace.environment)
}

/// Whether no sandboxed command can have put a program there.
pub fn is_of_user(program: &Path, workspace: &Workspace) -> bool {
    let named = [Some(program.to_path_buf()), resolve(program).ok()];
    named.iter().all(|path| {
        let directory = path.as_ref().and_then(|path| path.parent()).unwrap_or(Path::new(""));
        !kept(workspace, &Arc::new(vec![("PATH".into(), directory.into())])).is_empty()
    })
}

fn kept(workspace: &Workspace, environment: &Arc<GivenVariables>) -> Arc<GivenVariables> {
    // Without a sandbox, commands can change all programs of the user.
    let Some(others) = &workspace.exposure().changeable else { return environment.clone() };
    let home = workspace.home();
    let real_home = home.as_ref().and_then(|home| resolve(home).ok());
    let roots: Vec<&Path> = workspace.roots().iter().map(Root::path).collect();
    let variable = workspace.variable("TMPDIR").map(PathBuf::from);
    let caches = home.iter().flat_map(|home| caches::in_home(home));
    let elsewhere: Vec<PathBuf> = TEMPORARY
        .map(PathBuf::from)
        .into_iter()
        .chain(variable)
        .chain(caches)
        .chain(others.clone())
        .collect();
    let home_of_user = real_home.as_deref().filter(|home| home::is_of_user(home));
    let noted = noted_roots(workspace);
    let all_roots = || roots.iter().copied().chain(noted.iter().map(PathBuf::as_path));
    let is_changeable = |path: &Path| {
        // In a session in the home, the directories on the `PATH` are read-only for commands.
        all_roots().any(|root| path.starts_with(root) && home_of_user != Some(root))
            || (path.is_relative() && roots.iter().any(|root| root.join(path).exists()))
            || elsewhere
                .iter()
                .any(|above| path.starts_with(above) && !is_protected(path, real_home.as_deref(), above))
    };
    Arc::new(without_changeable(environment, home.as_deref(), is_changeable))
}

/// Whether a home below a directory for temporary files contains the path: commands can't change it.
fn is_protected(path: &Path, home: Option<&Path>, temporary: &Path) -> bool {
    home.is_some_and(|home| home != temporary && home.starts_with(temporary) && path.starts_with(home))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// An approved script was run outside of the sandbox by an interpreter that a command had put into the workspace.
    #[test]
    fn a_program_that_a_command_can_change_is_not_the_users() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let base = directory.path().canonicalize().expect("it is there");
        fs::create_dir_all(base.join("w")).expect("made");
        std::os::unix::fs::symlink("/bin/sh", base.join("w/sh")).expect("linked");
        let workspace = Workspace::new(base.join("w"), Vec::new(), Arc::default());
        for (program, expected) in
            [("/usr/bin/env", true), ("w/sh", false), ("w/missing", false), ("tools/sh", false)]
        {
            let path = if program.starts_with('w') { base.join(program) } else { program.into() };
            assert_eq!(is_of_user(&path, &workspace), expected, "{program}");
        }
    }

    /// A command put a program into a directory on the `PATH`. After a restart of the daemon, the hooks of other sessions found
    /// it there.
    #[test]
    fn directories_of_earlier_sessions_are_remembered() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let base = directory.path().canonicalize().expect("it is there");
        fs::create_dir_all(base.join("srv/one/bin")).expect("made");
        fs::create_dir_all(base.join("srv/two")).expect("made");
        let workspace = |cwd: &str| {
            let path = base.join("srv/one/bin").into_os_string();
            let environment =
                vec![("PATH".into(), path), ("HOME".into(), base.join("home").into_os_string())];
            Workspace::new(base.join("srv").join(cwd), Vec::new(), Arc::new(environment))
        };
        // Nothing of `/tmp` is otherwise kept.
        let is_noted = || noted_roots(&workspace("two")).contains(&base.join("srv/one"));
        assert!(!is_noted());
        note_roots(&workspace("one"), &[]);
        assert!(!is_noted(), "commands can't change it");
        note_roots(&workspace("one"), &[base.join("srv/one")]);
        assert!(is_noted());
        fs::remove_dir_all(base.join("srv/one")).expect("removed");
        note_roots(&workspace("two"), &[base.join("srv/two")]);
        let left = noted_roots(&workspace("two"));
        assert_eq!(left.into_iter().collect::<Vec<_>>(), [base.join("srv/two")]);
    }

    /// With an activated virtual environment, a command wrote `.venv/bin/bash`, with which the user's next hook was started.
    #[test]
    fn programs_outside_are_not_found_where_commands_write() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let base = directory.path().canonicalize().expect("it is there");
        for made in [
            "home/w/.venv/bin",
            "home/w/tools/edit",
            "home/env/bin",
            "home/other/.git",
            "home/other/bin",
            "home/.nvm/.git",
            "home/.nvm/bin",
            "home/bin",
        ] {
            fs::create_dir_all(base.join(made)).expect("made");
        }
        fs::write(base.join("home/.bashrc"), "").expect("written");
        fs::write(base.join("home/w/edit"), "").expect("written");
        fs::write(base.join("home/env/pyvenv.cfg"), "").expect("written");
        fs::set_permissions(base.join("home/w/edit"), fs::Permissions::from_mode(0o755)).expect("set");
        std::os::unix::fs::symlink(base.join("home/w"), base.join("home/link")).expect("linked");
        let at = |name: &str| base.join("home").join(name).display().to_string();
        let outside_of = |cwd: &str| -> Vec<String> {
            let path = [
                "w/.venv/bin",
                "w/later",
                "link/node_modules/.bin",
                "other/bin",
                "env/bin",
                ".nvm/bin",
                "bin",
            ]
            .map(at);
            let path =
                format!("{}:.:/proc/self/cwd/bin:{}:/tmp/bin:/usr/bin", path.join(":"), at(".cache/pip/bin"));
            let environment = [
                ("PATH", path),
                ("HOME", base.join("home").display().to_string()),
                ("PYTHONPATH", at("w/lib")),
                ("BASH_ENV", at("w/env.sh")),
                ("NODE_OPTIONS", format!("--require {}", at("w/.pnp.cjs"))),
                ("JAVA_TOOL_OPTIONS", format!("-javaagent:{}", at("w/x.jar"))),
                ("EDITOR", format!("{} --wait", at("w/edit"))),
                ("VISUAL", "./edit".to_owned()),
                ("LESSEDIT", "tools/edit".to_owned()),
                ("GIT_SSH_COMMAND", format!("ssh -F {}", at("w/ssh_config"))),
                // Programs obey the settings that these name, or run what is there.
                ("XDG_CONFIG_HOME", at("w/.config")),
                ("PYTHONPYCACHEPREFIX", at("w/.pycache")),
                ("LD_AUDIT", at("w/later.so")),
                ("LD_PRELOAD", "later/x.so".to_owned()),
                ("JAVA_HOME", at("link/jdk")),
                ("KUBECONFIG", at("w/kube")),
                ("DATABASE", at("w/db.sqlite")),
            ];
            let environment = environment.map(|(name, value)| (name.into(), value.into())).to_vec();
            let workspace = Workspace::new(base.join(cwd), Vec::new(), Arc::new(environment));
            let shown =
                |(name, value): &(OsString, OsString)| format!("{}={}", name.display(), value.display());
            outside(&workspace).iter().map(shown).collect()
        };
        let expected = format!("PATH={}:{}:/usr/bin", at(".nvm/bin"), at("bin"));
        let home = format!("HOME={}", at("").trim_end_matches('/'));
        assert_eq!(outside_of("home/w"), [expected.clone(), home, format!("DATABASE={}", at("w/db.sqlite"))]);
        assert!(
            outside_of("home")[0].contains(&at("bin")),
            "commands of a session in a home can't change it"
        );
    }
}
