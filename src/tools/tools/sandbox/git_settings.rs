//! Settings of repositories that a command may change unless they name a program.
//!
//! Git replaces `.git/config` atomically, for a remote, an upstream or an update of a submodule, and another Git
//! process may read it at any moment, in a prompt or an editor. A command therefore never changes the file itself: it
//! sees a link to a copy instead, which Git follows and changes. After the command has ended, the copy is compared
//! with the original, and replaces it if only settings that are known to be harmless differ.

use epitome_platform::os::{OpenOptionsExt, PermissionsExt};
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{LinkGuard, git};
use crate::normal;
use epitome_files::atomic_file::private_directory;
use epitome_platform::root::DirectoryEntry;
use epitome_platform::sandbox::SandboxPaths;

const REPORTED_MAX: usize = 8;

/// How old a directory with copies is if its daemon has not removed it.
const LEFTOVER_AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// Copies of settings that a command works with. Dropping it removes the copies.
#[derive(Debug)]
pub struct StagedSettings {
    directory: PathBuf,
    files: Vec<StagedFile>,
    /// The changes that the command may make.
    writable: Vec<PathBuf>,
}

#[derive(Debug)]
struct StagedFile {
    real: PathBuf,
    copy: PathBuf,
    before: Vec<u8>,
}

impl StagedSettings {
    /// Replaces the repositories' frozen settings by links to copies. `None` if there are none, or if no copy can be
    /// made; they stay frozen then.
    pub(super) fn stage(paths: &mut SandboxPaths, staging: &Path) -> Option<StagedSettings> {
        remove_leftovers(staging);
        let is_settings = |path: &&PathBuf| {
            let is_file = || path.symlink_metadata().is_ok_and(|file| file.is_file());
            path.ends_with("config") && is_file() && path.with_file_name("HEAD").exists()
        };
        let configs: Vec<PathBuf> = paths.frozen.iter().filter(is_settings).cloned().collect();
        if configs.is_empty() {
            return None;
        }
        let directory = staging.join(format!("git-{:016x}", fastrand::u64(..)));
        private_directory(&directory).ok()?;
        let writable = paths.writable.clone();
        let mut staged = StagedSettings { directory, files: Vec::new(), writable };
        for (number, real) in configs.into_iter().enumerate() {
            let Ok(before) = read(&real) else { continue };
            // Settings that can't be parsed can't be compared afterwards, so they are not copied.
            if GitSettings::parse(&before).is_none() {
                continue;
            }
            let copy = staged.directory.join(number.to_string()).join("config");
            let link = staged.directory.join(format!("{number}.link"));
            let made = fs::create_dir(staged.directory.join(number.to_string()))
                .and_then(|()| fs::write(&copy, &before))
                .and_then(|()| DirectoryEntry::at(&link)?.link_to(&copy));
            if made.is_err() {
                continue;
            }
            paths.frozen.retain(|path| *path != real);
            paths.replaced.push(real.clone());
            paths.links.push(link);
            staged.files.push(StagedFile { real, copy, before });
        }
        super::paths::open(paths, staged.directory.clone());
        Some(staged)
    }

    /// Applies the command's changes, and describes them for the model and the user.
    pub fn finish(self, guard: &LinkGuard) -> Vec<String> {
        self.files.iter().filter_map(|file| file.finish(guard, &self.writable)).collect()
    }
}

impl Drop for StagedSettings {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.directory) {
            tracing::debug!(path = %self.directory.display(), %error, "copies of settings remain");
        }
    }
}

impl StagedFile {
    fn finish(&self, guard: &LinkGuard, writable: &[PathBuf]) -> Option<String> {
        let name = self.real.display();
        let after = match read(&self.copy) {
            Ok(after) if after == self.before => return None,
            Ok(after) => after,
            Err(error) => return Some(format!("[changes to {name} were not applied: {error}]")),
        };
        let (Some(old), Some(new)) = (GitSettings::parse(&self.before), GitSettings::parse(&after)) else {
            return Some(format!("[changes to {name} were not applied: it can't be parsed any more]"));
        };
        let changed = old.differences(&new);
        let directory = self.real.parent()?;
        let refused = old.refused(&new, directory, &|path| is_elsewhere(path, directory, writable));
        if !refused.is_empty() {
            return Some(format!(
                "[{name} was left as it was: {} may make Git run a program or use other files. To set it, \
                 run the command outside the sandbox]",
                listed(refused)
            ));
        }
        match self.replace(&after, guard) {
            // Only the order or the comments differ.
            Ok(()) if changed.is_empty() => None,
            Ok(()) => Some(format!(
                "[changed in {name}: {}]",
                listed(changed.iter().map(|setting| setting.name()).collect())
            )),
            Err(error) => Some(format!("[changes to {name} were not applied: {error}]")),
        }
    }

    /// Replaces the file as Git does, holding its lock file.
    fn replace(&self, text: &[u8], guard: &LinkGuard) -> io::Result<()> {
        // The kernel would remove the mount that protects the file from the other command.
        if !guard.is_alone() {
            return Err(io::Error::other("another command that may change the repository is running"));
        }
        let lock = self.real.with_extension("lock");
        let mode = self.real.symlink_metadata()?.permissions().mode();
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&lock)?;
        let mut replace = || -> io::Result<()> {
            if read(&self.real)? != self.before {
                return Err(io::Error::other("it was changed in the meantime"));
            }
            file.write_all(text)?;
            file.sync_all()?;
            fs::rename(&lock, &self.real)
        };
        replace().inspect_err(|_| drop(fs::remove_file(&lock)))
    }
}

/// Removes the copies of daemons that were killed. No command runs so long.
fn remove_leftovers(staging: &Path) {
    for entry in fs::read_dir(staging).into_iter().flatten().flatten() {
        let age = entry.metadata().and_then(|found| found.modified()).map(|made| made.elapsed());
        if age.is_ok_and(|age| age.is_ok_and(|age| age > LEFTOVER_AGE)) {
            // Another daemon may be removing it too.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn listed(mut names: Vec<String>) -> String {
    names.sort();
    names.dedup();
    let more = names.len().saturating_sub(REPORTED_MAX);
    names.truncate(REPORTED_MAX);
    match more {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}

/// Reads a settings file without following links, which others may have created there.
pub(super) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let file = DirectoryEntry::at(path)?.read()?;
    if !file.metadata()?.is_file() || file.metadata()?.len() > git::FILE_BYTES_MAX {
        return Err(io::Error::other("it is not a file, or too large"));
    }
    file.take(git::FILE_BYTES_MAX).read_to_end(&mut text)?;
    Ok(text)
}

/// A strictly parsed settings file: programs differ in how they read unusual ones.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct GitSettings(Vec<GitSetting>);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct GitSetting {
    section: String,
    subsection: Option<String>,
    /// Empty for a line that can't be parsed; the line is then in `value` and must not change.
    key: String,
    value: String,
}

impl GitSettings {
    /// Parses settings. `None` if it is not certain where a section begins or a value ends.
    pub(super) fn parse(text: &[u8]) -> Option<GitSettings> {
        let text = std::str::from_utf8(text).ok()?;
        let (mut section, mut subsection) = (String::new(), None);
        let mut settings = Vec::new();
        for line in text.split('\n') {
            let line = line.trim_matches([' ', '\t', '\r']);
            if line.is_empty() || line.starts_with(['#', ';']) {
                continue;
            }
            if line.ends_with('\\') || line.starts_with('\u{feff}') {
                return None;
            }
            if let Some(header) = line.strip_prefix('[') {
                (section, subsection) = header_of(header)?;
                continue;
            }
            let (key, value) = match line.split_once('=') {
                Some((key, value)) => (key.trim_end_matches([' ', '\t']), plain(value)),
                None => (line, Some("true".to_owned())),
            };
            let is_key = key.starts_with(|c: char| c.is_ascii_alphabetic())
                && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
            let (key, value) = match value.filter(|_| is_key) {
                Some(value) => (key.to_ascii_lowercase(), value),
                None => (String::new(), line.to_owned()),
            };
            settings.push(GitSetting {
                section: section.clone(),
                subsection: subsection.clone(),
                key,
                value,
            });
        }
        Some(GitSettings(settings))
    }

    /// Whether no setting makes Git run a program, for a repository that Git has just created.
    pub(super) fn are_harmless_when_new(&self, git: &Path) -> bool {
        const OF_NEW: [&str; 3] = ["bare", "precomposeunicode", "repositoryformatversion"];
        self.0.iter().all(|setting| {
            let is_of_new = setting.section == "core" && OF_NEW.contains(&setting.key.as_str())
                || setting.section == "extensions"
                    && ["objectformat", "refstorage"].contains(&setting.key.as_str());
            // A clone names what it was made from.
            (is_of_new && setting.subsection.is_none()) || setting.is_harmless(git, &|_| true)
        }) && self.lost_remotes().next().is_none()
    }

    /// The names of settings in `new` that a command may not have changed.
    fn refused(&self, new: &GitSettings, git: &Path, is_safe: &dyn Fn(&str) -> bool) -> Vec<String> {
        let changed = self.differences(new);
        let lost = new.lost_remotes().filter(|lost| !self.lost_remotes().any(|before| before == *lost));
        let harmful = changed.iter().filter(|setting| !setting.is_harmless(git, is_safe)).chain(lost);
        let mut refused: Vec<String> = harmful.map(GitSetting::name).collect();
        // Of several values of a setting, Git uses the last one.
        if refused.is_empty() && self.of_programs(git).ne(new.of_programs(git)) {
            refused.push("the order of settings".to_owned());
        }
        refused
    }

    /// Settings that name no known remote: Git takes their values for directories, to whose hooks it pushes.
    fn lost_remotes(&self) -> impl Iterator<Item = &GitSetting> {
        let is_remote = |name: &str| {
            self.0.iter().any(|one| {
                one.section == "remote" && one.key == "url" && one.subsection.as_deref() == Some(name)
            })
        };
        let of_remotes =
            self.0.iter().filter(|one| ["remote", "pushremote", "pushdefault"].contains(&one.key.as_str()));
        of_remotes.filter(move |one| one.value != "." && !is_remote(&one.value))
    }

    /// The settings that may make Git run something, in their order.
    fn of_programs(&self, directory: &Path) -> impl Iterator<Item = &GitSetting> {
        self.0.iter().filter(move |one| !one.is_harmless(directory, &|_| true))
    }

    /// Returns the settings that only one of the two has.
    fn differences(&self, other: &GitSettings) -> Vec<GitSetting> {
        let mut only_here = self.0.clone();
        let mut only_there = Vec::new();
        for setting in &other.0 {
            match only_here.iter().position(|own| own == setting) {
                Some(at) => drop(only_here.remove(at)),
                None => only_there.push(setting.clone()),
            }
        }
        only_here.append(&mut only_there);
        only_here
    }
}

/// Parses a section header after its opening bracket into section and subsection.
fn header_of(header: &str) -> Option<(String, Option<String>)> {
    let header = header.strip_suffix(']')?;
    let (section, subsection) = match header.split_once([' ', '\t']) {
        None => (header, None),
        Some((section, rest)) => {
            let quoted = rest.trim_matches([' ', '\t']).strip_prefix('"')?.strip_suffix('"')?;
            (section, Some(quoted))
        }
    };
    let is_plain = |text: &str| !text.chars().any(|c| c == '"' || c == '\\' || c.is_control());
    let is_name = !section.is_empty() && section.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    (is_name && subsection.is_none_or(is_plain))
        .then(|| (section.to_ascii_lowercase(), subsection.map(str::to_owned)))
}

/// Parses a value without escapes and comments; it must be quoted entirely or not at all.
fn plain(value: &str) -> Option<String> {
    let value = value.trim_matches([' ', '\t']);
    let quoted = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
    let inner = quoted.unwrap_or(value);
    let ends_it = |c: char| c == '"' || c == '\\' || c.is_control() || (quoted.is_none() && "#;".contains(c));
    (!inner.contains(ends_it)).then(|| inner.to_owned())
}

/// Settings that name no program, file or other repository, with the sections that they are in.
const HARMLESS: [(&str, &[&str]); 13] = [
    ("user", &["name", "email"]),
    ("branch", &["autosetupmerge", "autosetuprebase"]),
    ("core", &["autocrlf", "eol", "filemode", "ignorecase", "logallrefupdates", "symlinks"]),
    ("fetch", &["prune", "prunetags"]),
    ("init", &["defaultbranch"]),
    ("merge", &["ff", "conflictstyle"]),
    ("pull", &["ff", "rebase"]),
    ("push", &["followtags"]),
    ("rebase", &["autosquash", "autostash", "updaterefs"]),
    ("rerere", &["enabled"]),
    ("status", &["short", "branch", "showuntrackedfiles"]),
    ("submodule", &["active", "recurse", "fetchjobs"]),
    ("tag", &["sort"]),
];

/// The same for subsections. Addresses are checked separately.
const HARMLESS_IN_SUBSECTIONS: [(&str, &[&str]); 3] = [
    ("branch", &["description", "merge", "pushremote", "rebase", "remote"]),
    ("remote", &["fetch", "prune", "push", "pushurl", "skipfetchall", "tagopt", "url"]),
    ("submodule", &["active", "branch", "fetchrecursesubmodules", "ignore", "shallow", "update", "url"]),
];

impl GitSetting {
    fn name(&self) -> String {
        let GitSetting { section, subsection, key, .. } = self;
        let key = if key.is_empty() { "an unusual line" } else { key };
        match subsection {
            Some(subsection) => format!("{section}.{subsection}.{key}"),
            None => format!("{section}.{key}"),
        }
    }

    /// Whether this setting makes Git run no program and use only files of this repository. `is_safe`: whether a directory of
    /// this machine may be a remote.
    fn is_harmless(&self, git: &Path, is_safe: &dyn Fn(&str) -> bool) -> bool {
        let GitSetting { section, subsection, key, value } = self;
        let known = match subsection {
            Some(_) => &HARMLESS_IN_SUBSECTIONS[..],
            None => &HARMLESS[..],
        };
        if section == "core" && key == "worktree" && subsection.is_none() {
            return is_own_worktree(git, value);
        }
        let is_known = known.iter().any(|(own, keys)| own == section && keys.contains(&key.as_str()));
        let is_safe_address = match key.as_str() {
            "url" | "pushurl" => {
                let is_path = !value.contains(':') && !value.starts_with('-');
                is_on_a_network(value) || (is_path && is_safe(value))
            }
            _ => true,
        };
        // Git executes a value of the form `!command`.
        let is_safe_update =
            key != "update" || ["checkout", "rebase", "merge", "none"].contains(&value.as_str());
        is_known && is_safe_address && is_safe_update
    }
}

/// Whether an address is one of a repository on another machine. Git runs the hooks of a repository on this one, and `ext::sh`
/// and the like name a program.
fn is_on_a_network(address: &str) -> bool {
    let is_plain = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && !text.contains("::")
            && !text.contains(char::is_control)
    };
    match address.split_once("://") {
        Some((scheme, rest)) => ["https", "http", "ssh", "git"].contains(&scheme) && is_plain(rest),
        // `user@host:path`. A path on Windows begins with a single letter.
        None => address.split_once(':').is_some_and(|(host, path)| {
            host.len() > 1
                && !host.contains(['/', '\\'])
                && is_plain(host)
                && is_plain(address)
                && !path.is_empty()
        }),
    }
}

/// Whether a path is in no directory that the command may change. Git runs the hooks of a repository to which it pushes.
fn is_elsewhere(path: &str, git: &Path, writable: &[PathBuf]) -> bool {
    let outer = git.ancestors().find(|above| above.ends_with(".git")).and_then(Path::parent);
    let real = outer.and_then(|outer| outer.join(path).canonicalize().ok());
    real.is_some_and(|real| !writable.iter().any(|above| real.starts_with(above)))
}

/// Whether a submodule's settings name the working tree that refers back to the submodule's directory.
fn is_own_worktree(git: &Path, worktree: &str) -> bool {
    let worktree = normal(&git.join(worktree));
    let named = git::named_directory(&worktree);
    worktree.parent().is_some() && named.is_some_and(|named| git.canonicalize().is_ok_and(|git| git == named))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "[core]\n\tbare = false\n[alias]\n\tx = \"!f() { echo \\\"$1\\\"; }; f\"\n";

    fn refused(after: &str) -> Vec<String> {
        let parse = |text: &str| GitSettings::parse(text.as_bytes()).expect("it is readable");
        parse(BEFORE).refused(&parse(&format!("{BEFORE}{after}")), Path::new("/w/.git"), &|_| false)
    }

    /// The order of settings was not compared, so a command could bring a program back that a later line switches off.
    #[test]
    fn the_order_of_settings_that_name_programs_is_kept() {
        let parse = |text: &str| GitSettings::parse(text.as_bytes()).expect("it is readable");
        let [on, off, me] =
            ["[core]\n\tfsmonitor = ./x\n", "[core]\n\tfsmonitor = false\n", "[user]\n\tname = me\n"];
        for (after, expected) in [
            (format!("{me}{on}{off}"), &[][..]),
            (format!("{on}{me}{off}"), &[]),
            (format!("{off}{on}{me}"), &["the order of settings"]),
        ] {
            let refused =
                parse(&format!("{on}{off}{me}")).refused(&parse(&after), Path::new("/w/.git"), &|_| false);
            assert_eq!(refused, expected, "{after}");
        }
    }

    #[test]
    fn settings_that_name_no_program_are_taken_over() {
        for harmless in [
            "[remote \"up\"]\n\turl = https://example.com/a.git\n\tfetch = +refs/heads/*:refs/remotes/up/*\n",
            "[branch \"main\"]\n\tremote = up\n\tmerge = refs/heads/main\n[remote \"up\"]\n\turl = https://example.com/a.git\n",
            "[branch \"topic\"]\n\tremote = .\n\tmerge = refs/heads/main\n",
            "[submodule \"lib\"]\n\tactive = true\n\turl = git@example.com:lib.git\n",
            "[user]\n\tname = \"A # B\"\n\temail = a@b\n",
            "# a comment\n",
        ] {
            assert_eq!(refused(harmless), [""; 0], "{harmless}");
        }
        for (harmful, name) in [
            ("[core]\n\tfsmonitor = ./x\n", "core.fsmonitor"),
            ("[CORE]\n FSMonitor=./x\n", "core.fsmonitor"),
            ("[core]\n\thooksPath = h\n", "core.hookspath"),
            ("[core]\n\tworktree = /home/me\n", "core.worktree"),
            ("[include]\n\tpath = x\n", "include.path"),
            ("[includeIf \"gitdir:/\"]\n\tpath = x\n", "includeif.gitdir:/.path"),
            ("[filter \"x\"]\n\tsmudge = ./x\n", "filter.x.smudge"),
            ("[submodule \"lib\"]\n\tupdate = !./x\n", "submodule.lib.update"),
            ("[remote \"o\"]\n\turl = ext::sh -c x\n", "remote.o.url"),
            // The hooks of a repository in the workspace ran with the user's next `git push`.
            ("[remote \"o\"]\n\tpushurl = build/cache.git\n", "remote.o.pushurl"),
            ("[remote \"o\"]\n\turl = file:///w/build/cache.git\n", "remote.o.url"),
            ("[branch \"main\"]\n\tpushRemote = ./build/cache.git\n", "branch.main.pushremote"),
            // Git takes a name without a remote for a directory.
            ("[branch \"main\"]\n\tremote = cache\n", "branch.main.remote"),
            ("[push]\n\tdefault = current\n", "push.default"),
            ("[remote \"o\"]\n\tuploadpack = ./x\n", "remote.o.uploadpack"),
            ("[extensions]\n\tworktreeConfig = true\n", "extensions.worktreeconfig"),
            ("[url \"https://evil/\"]\n\tinsteadOf = https://\n", "url.https://evil/.insteadof"),
            ("[alias]\n\tst = \"!x\" ; y\n", "alias.an unusual line"),
            ("[user]\n\tname = a\u{b}b\n", "user.an unusual line"),
        ] {
            assert_eq!(refused(harmful), [name], "{harmful}");
        }
    }

    /// Settings that Git and other programs may parse differently are rejected.
    #[test]
    fn unclear_files_are_not_read() {
        for unclear in [
            "[core]\n\tx = a\\\n\tfsmonitor = ./x\n",
            "[core] fsmonitor = ./x\n",
            "[core.sub]\n\tx = 1\n",
            "[a \"b\\\"]\n[core]\"]\n",
            "\u{feff}[core]\n",
            "[user\n\tname = a\n",
        ] {
            assert_eq!(GitSettings::parse(unclear.as_bytes()), None, "{unclear}");
        }
        assert_eq!(GitSettings::parse(b"[user]\n\tname = \xff\n"), None);
    }
}
