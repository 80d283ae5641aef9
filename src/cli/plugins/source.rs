//! Finds the plugin to install: a directory, a Git address, a package of npm, or an entry of a marketplace, which is
//! one of these.
//!
//! Git runs as a child process without hooks, prompts and submodules, npm without the scripts of packages, and both within
//! limits of time and size. The fetched files are in a scratch folder; nothing of it is run.

use std::fmt::{self, Display};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use super::copy::{self, scratch_below};
use crate::cli::{CliContext as _, CliError};
use crate::recipe::plugins::PluginFormat;
use crate::recipe::plugins::marketplace::{self, EntrySource, Marketplace, MarketplaceEntry};
use crate::tools::child_output::{self, OutputLimits};

/// How long one command may take.
const COMMAND_TIME_MAX: Duration = Duration::from_secs(5 * 60);
/// Maximum size of fetched files: a plugin and as much again in its compressed history.
const FETCHED_BYTES_MAX: u64 = 2 * copy::BYTES_MAX;
/// Maximum bytes of a command's output that are read.
const OUTPUT_BYTES_MAX: u64 = 16 * 1024;
/// How a package of npm is named on the command line.
const NPM: &str = "npm:";
/// The folder of an unpacked package.
const PACKAGE: &str = "package";
/// Marketplaces may name marketplaces' repositories, but not in a circle.
const STEPS_MAX: usize = 4;

/// A plugin's directory on this machine.
pub struct FoundPlugin {
    /// The origin, independent of the current directory: `find` finds the same plugin again.
    pub source: String,
    pub folder: PathBuf,
    /// The name of the directory, used if the plugin's manifest has no name.
    pub name: String,
    pub commit: Option<String>,
    /// The entry of its marketplace, if the plugin has no manifest.
    pub manifest: Option<Value>,
    /// Deletes the fetched files when dropped.
    _scratch: Option<TempDir>,
}

/// `[PLUGIN@]PLACE[#REFERENCE]`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PluginSource {
    plugin: Option<String>,
    location: SourceLocation,
    reference: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum SourceLocation {
    Folder(PathBuf),
    Git(String),
    Npm { package: String, registry: Option<String> },
}

impl Display for PluginSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(plugin) = &self.plugin {
            write!(f, "{plugin}@")?;
        }
        match (&self.location, &self.reference) {
            (SourceLocation::Folder(folder), _) => write!(f, "{}", folder.display()),
            // Only the entry of a marketplace names a registry; it isn't the source that was given.
            (SourceLocation::Npm { package, registry: _ }, _) => write!(f, "{NPM}{package}"),
            (SourceLocation::Git(url), None) => write!(f, "{url}"),
            (SourceLocation::Git(url), Some(reference)) => write!(f, "{url}#{reference}"),
        }
    }
}

/// Finds a plugin as it was named on the command line, or in a record (`cwd` is then `None`: it must not depend on the
/// current directory). `claude` is Claude Code's directory, which lists marketplaces; `scratch` is a directory for
/// fetched files.
pub fn find(
    text: &str,
    cwd: Option<&Path>,
    claude: Option<&Path>,
    scratch: &Path,
) -> Result<FoundPlugin, CliError> {
    let known = claude.map(marketplace::known).unwrap_or_default();
    let marketplace = |name: &str| known.get(name).cloned();
    let mut source = parse(text, cwd, marketplace)?;
    let resolved = source.to_string();
    let mut entry: Option<(MarketplaceEntry, PathBuf)> = None;
    for _ in 0..STEPS_MAX {
        let (folder, commit, fetched) = match &source.location {
            SourceLocation::Folder(folder) => (folder.clone(), None, None),
            SourceLocation::Git(url) => {
                let fetched = scratch_below(scratch)?;
                let commit = fetch(url, source.reference.as_deref(), fetched.path())?;
                (fetched.path().to_path_buf(), Some(commit), Some(fetched))
            }
            SourceLocation::Npm { package, registry } => {
                let fetched = scratch_below(scratch)?;
                unpack(package, registry.as_deref(), fetched.path())?;
                (fetched.path().join(PACKAGE), None, Some(fetched))
            }
        };
        let (found, folder) = match entry.take() {
            Some((found, below)) => (Some(found), inside(&folder, &below)?),
            None => (None, folder),
        };
        let list = match (&found, &source.plugin) {
            (Some(_), _) => None,
            // A directory may be a plugin and list itself.
            (None, None) if PluginFormat::of(&folder).is_some() => None,
            (None, _) => Marketplace::read(&folder).transpose().map_err(|problem| problem.to_string())?,
        };
        let name = || folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let Some(list) = list else {
            if let (None, Some(plugin)) = (&found, &source.plugin) {
                return Err(CliError::failed(format!(
                    "{} is not a marketplace, so it has no plugin {plugin:?}",
                    folder.display()
                )));
            }
            let has_manifest = PluginFormat::of(&folder).is_some();
            return Ok(FoundPlugin {
                source: resolved,
                name: found.as_ref().map_or_else(name, |entry| entry.name.clone()),
                manifest: found.and_then(|entry| entry.manifest).filter(|_| !has_manifest),
                folder,
                commit,
                _scratch: fetched,
            });
        };
        let chosen = choose(&list, source.plugin.as_deref(), text)?.clone();
        match &chosen.source {
            EntrySource::Folder(below) => {
                let folder = inside(&folder, below)?;
                let has_manifest = PluginFormat::of(&folder).is_some();
                let manifest = chosen.manifest.filter(|_| !has_manifest);
                let name = chosen.name;
                return Ok(FoundPlugin {
                    source: resolved,
                    folder,
                    name,
                    commit,
                    manifest,
                    _scratch: fetched,
                });
            }
            EntrySource::Git { url, reference, folder } => {
                let location = SourceLocation::Git(checked_url(url)?);
                let reference = reference.clone();
                source = PluginSource { plugin: None, location, reference };
                entry = Some((chosen.clone(), folder.clone()));
            }
            EntrySource::Npm { package, registry } => {
                let location = SourceLocation::Npm { package: package.clone(), registry: registry.clone() };
                source = PluginSource { plugin: None, location, reference: None };
                entry = Some((chosen.clone(), PathBuf::new()));
            }
            EntrySource::Unsupported(what) => {
                return Err(CliError::failed(format!(
                    "{} comes from {what}, which can't be installed here",
                    chosen.name
                )));
            }
        }
    }
    Err(CliError::failed(format!("{text} leads from one marketplace to the next")))
}

fn choose<'a>(
    list: &'a Marketplace,
    wanted: Option<&str>,
    text: &str,
) -> Result<&'a MarketplaceEntry, CliError> {
    let names = || list.entries.iter().map(|entry| entry.name.as_str()).collect::<Vec<_>>().join(", ");
    match (wanted, &list.entries[..]) {
        (Some(name), _) => list.find(name).ok_or_else(|| {
            CliError::failed(format!("the marketplace has no plugin {name:?}; it has {}", names()))
        }),
        (None, [only]) => Ok(only),
        (None, _) => Err(CliError::failed(format!(
            "{text} is a marketplace: name one of its plugins as PLUGIN@{text} ({})",
            names()
        ))),
    }
}

/// Returns a directory below another one. Symbolic links must not lead out of it.
fn inside(folder: &Path, below: &Path) -> Result<PathBuf, CliError> {
    let path = folder.join(below);
    let real = path.canonicalize().map_err(|error| format!("{} can't be read: {error}", path.display()))?;
    let root =
        folder.canonicalize().map_err(|error| format!("{} can't be read: {error}", folder.display()))?;
    match real.starts_with(root) {
        true => Ok(real),
        false => Err(CliError::failed(format!("{} leads out of its repository", path.display()))),
    }
}

/// A directory is written as a path: `owner/name` must not mean one that a repository contains.
fn parse(
    text: &str,
    cwd: Option<&Path>,
    marketplace: impl Fn(&str) -> Option<PathBuf>,
) -> Result<PluginSource, CliError> {
    if let Some(package) = text.strip_prefix(NPM) {
        let location = SourceLocation::Npm { package: package.to_owned(), registry: None };
        return Ok(PluginSource { plugin: None, location, reference: None });
    }
    // An address may contain a user name before its host.
    let is_plugin = |name: &str| !name.is_empty() && name != "git" && !name.contains([':', '/']);
    let (plugin, rest) = match text.split_once('@').filter(|(name, _)| is_plugin(name)) {
        Some((plugin, rest)) => (Some(plugin.to_owned()), rest),
        None => (None, text),
    };
    let is_path =
        matches!(rest, "." | "..") || ["/", "./", "../"].iter().any(|start| rest.starts_with(start));
    if is_path {
        let path = match (Path::new(rest).is_absolute(), cwd) {
            (true, _) => PathBuf::from(rest),
            (false, Some(cwd)) => cwd.join(rest),
            (false, None) => {
                return Err(CliError::failed(format!(
                    "{text} depends on the current directory: install it again"
                )));
            }
        };
        let folder = path.canonicalize().ok().filter(|path| path.is_dir());
        let folder = folder.ok_or_else(|| format!("{} is no directory", path.display()))?;
        return Ok(PluginSource { plugin, location: SourceLocation::Folder(folder), reference: None });
    }
    let (location, reference) = match rest.split_once('#') {
        Some((location, reference)) => (location, Some(reference.to_owned())),
        None => (rest, None),
    };
    let location = match marketplace(location).filter(|_| plugin.is_some()) {
        Some(folder) => SourceLocation::Folder(folder),
        None => SourceLocation::Git(address(location)?),
    };
    Ok(PluginSource { plugin, location, reference })
}

/// Returns the address of a repository; `owner/name` is one on GitHub.
fn address(text: &str) -> Result<String, CliError> {
    let is_part = |part: &str| {
        !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
    };
    match text.split_once('/') {
        Some((owner, name)) if is_part(owner) && is_part(name) && !owner.starts_with('.') => {
            Ok(format!("https://github.com/{owner}/{name}.git"))
        }
        _ => checked_url(text),
    }
}

/// Rejects addresses that Git would interpret as options or programs, and those without encryption.
fn checked_url(url: &str) -> Result<String, CliError> {
    let is_known = ["https://", "ssh://", "git@", "file:///"].iter().any(|start| url.starts_with(start));
    let is_plain = !url.contains(|c: char| c.is_whitespace() || c.is_control());
    match is_known && is_plain {
        true => Ok(url.to_owned()),
        false => Err(CliError::failed(format!(
            "{url:?} is neither a directory (./…, /…), nor a known marketplace, nor the address of a \
             Git repository (https://…, ssh://…, git@…, owner/name) or package (npm:…)"
        ))),
    }
}

/// Fetches one commit of a repository into a directory; returns its id.
fn fetch(url: &str, reference: Option<&str>, folder: &Path) -> Result<String, CliError> {
    let reference = reference.unwrap_or("HEAD");
    if reference.starts_with('-') || reference.contains(|c: char| c.is_whitespace() || c == ':') {
        return Err(CliError::failed(format!("{reference:?} is not a branch, tag or commit")));
    }
    git(folder, &["init", "--quiet"])?;
    let fetch =
        ["fetch", "--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules", "--", url, reference];
    git(folder, &fetch).map_err(|why| format!("{url} can't be fetched: {}", why.message))?;
    git(folder, &["checkout", "--quiet", "--detach", "FETCH_HEAD"])
        .map_err(|why| format!("{url} can't be checked out: {}", why.message))?;
    git(folder, &["rev-parse", "HEAD"]).map(|id| id.trim().to_owned())
}

/// Unpacks a package of npm into `PACKAGE` of a folder. Its dependencies are not installed.
fn unpack(package: &str, registry: Option<&str>, folder: &Path) -> Result<(), CliError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.~@/^".contains(c);
    // Anything else would be a folder, an address or an option for npm.
    let is_scoped = package.starts_with('@');
    let is_package = !package.starts_with(['-', '.', '/', '~']) && package.chars().all(is_plain);
    if !is_package || package.matches('/').count() > usize::from(is_scoped) || package.is_empty() {
        return Err(CliError::failed(format!(
            "{package:?} is not an npm package (NAME, @SCOPE/NAME, with @VERSION)"
        )));
    }
    let mut pack = Command::new("npm");
    pack.args(["pack", "--ignore-scripts", "--silent", "--pack-destination", "."]);
    if let Some(registry) = registry {
        if !registry.starts_with("https://") {
            return Err(CliError::failed(format!("the registry {registry:?} has no https address")));
        }
        pack.args(["--registry", registry]);
    }
    pack.args(["--", package]);
    let packed = run(pack, folder)
        .map_err(|why| format!("the package {package} can't be fetched: {}", why.message))?;
    let file = packed.lines().last().unwrap_or_default().trim();
    let mut tar = Command::new("tar");
    tar.args(["--no-same-owner", "-xzf", file]);
    run(tar, folder).map_err(|why| format!("the package {package} can't be unpacked: {}", why.message))?;
    // Its folder may have any name.
    let folders = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut folders: Vec<PathBuf> = folders.filter(|path| path.is_dir() && !path.is_symlink()).collect();
    match (folders.pop(), folders.is_empty()) {
        (Some(only), true) => fs::rename(&only, folder.join(PACKAGE)).context("it can't be moved"),
        _ => Err(CliError::failed(format!("the package {package} must have exactly one folder"))),
    }
}

/// Runs Git in a folder; returns what it prints.
fn git(folder: &Path, arguments: &[&str]) -> Result<String, CliError> {
    let mut command = child_output::git(arguments);
    command.env("GIT_LFS_SKIP_SMUDGE", "1");
    run(command, folder)
}

/// Runs a command in a folder, within its limits; returns what it prints.
fn run(command: Command, folder: &Path) -> Result<String, CliError> {
    let too_large = || format!("it has more than {} MiB", FETCHED_BYTES_MAX >> 20);
    let limits = OutputLimits {
        time: COMMAND_TIME_MAX,
        bytes: OUTPUT_BYTES_MAX,
        is_over: &|| (size(folder, 0) > FETCHED_BYTES_MAX).then(too_large),
    };
    let output = child_output::output_of(command, folder, &limits);
    output.map_err(|why| CliError::failed(why.to_string().lines().last().unwrap_or_default().trim()))
}

/// Returns the size of a directory's files in bytes.
fn size(folder: &Path, depth: usize) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() && depth < copy::DEPTH_MAX => size(&entry.path(), depth + 1),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    });
    sizes.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_packages_are_given_to_npm() {
        let location = tempfile::tempdir().expect("a folder");
        for package in
            ["--eval", "", "./x", "/x", "a/b", "@a/b/c", "https://x.example/a.tgz", "a b", "file:x"]
        {
            let why = unpack(package, None, location.path()).expect_err("it is refused").message;
            assert!(why.contains("is not an npm package"), "{package}: {why}");
        }
        let why = unpack("x", Some("http://x.example"), location.path()).expect_err("it is refused").message;
        assert!(why.contains("no https address"), "{why}");
    }

    #[test]
    fn sources_are_directories_addresses_and_entries_of_marketplaces() {
        let scratch = tempfile::tempdir().expect("a folder");
        let location = scratch.path().canonicalize().expect("it exists");
        let own = location.join("own");
        fs::create_dir_all(own.join("tools")).expect("a folder");
        let git = |url: &str| SourceLocation::Git(url.to_owned());
        let known = |name: &str| (name == "acme").then(|| PathBuf::from("/m/acme"));
        let absolute = format!("fmt@{}", own.display());
        for (text, plugin, wanted, reference) in [
            ("./own", None, SourceLocation::Folder(own.clone()), None),
            ("../w/own/../own", None, SourceLocation::Folder(own.clone()), None),
            ("o/r", None, git("https://github.com/o/r.git"), None),
            ("o/r#v1", None, git("https://github.com/o/r.git"), Some("v1")),
            ("own/tools", None, git("https://github.com/own/tools.git"), None),
            ("https://x.example/r.git", None, git("https://x.example/r.git"), None),
            ("git@x.example:o/r.git", None, git("git@x.example:o/r.git"), None),
            ("https://me@x.example/r.git", None, git("https://me@x.example/r.git"), None),
            ("fmt@acme", Some("fmt"), SourceLocation::Folder("/m/acme".into()), None),
            ("fmt@./own", Some("fmt"), SourceLocation::Folder(own.clone()), None),
            (&absolute, Some("fmt"), SourceLocation::Folder(own.clone()), None),
            ("fmt@o/r#v1", Some("fmt"), git("https://github.com/o/r.git"), Some("v1")),
            ("fmt@git@x.example:r", Some("fmt"), git("git@x.example:r"), None),
            ("npm:@s/x@1", None, SourceLocation::Npm { package: "@s/x@1".to_owned(), registry: None }, None),
        ] {
            let text =
                text.replace("../w", &format!("../{}", location.file_name().expect("named").display()));
            let source = parse(&text, Some(&location), known);
            let (plugin, reference) = (plugin.map(str::to_owned), reference.map(str::to_owned));
            let wanted = PluginSource { plugin, location: wanted, reference };
            assert_eq!(source.as_ref(), Ok(&wanted), "{text}");
            // A record leads to the same source from any directory.
            if wanted.location != SourceLocation::Folder("/m/acme".into()) {
                assert_eq!(parse(&wanted.to_string(), None, known), Ok(wanted), "{text}");
            }
        }
        for text in [
            "--upload-pack=x",
            "ext::sh",
            "http://x.example/r",
            "nowhere",
            "own",
            "fmt@nowhere",
            "fmt@own",
            "../nowhere/r",
            "./own#v1",
        ] {
            assert!(parse(text, Some(&location), known).is_err(), "{text}");
        }
        for relative in ["./own", "fmt@./own"] {
            assert!(parse(relative, None, known).is_err(), "{relative}");
        }
    }
}
