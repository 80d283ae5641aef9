//! Repositories that the index of another one links to: submodules. `git status` of the outer repository runs Git in
//! each of them, with its settings. The `.git` entry of such a repository names its Git directory and is therefore
//! protected at any depth. Repositories that are linked during a command are examined (`link_guard`), and entries that
//! could make Git run a program are renamed.
//!
//! A command can write anything into an index: paths that lead out of the working tree, directly or through symbolic
//! links, and repositories whose `.git` file names any directory. The renamed entry is therefore always one of the
//! repository that contains the index: a repository elsewhere is cut off instead.

use epitome_platform::os::OsStrExt;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::git;
use super::git_settings::{GitSettings, read};
use crate::buffers::DiskStamp;
use epitome_platform::child_output::{self, OutputLimits};
use epitome_platform::root::{DirectoryEntry, read_regular, resolve};

/// Maximum bytes of an index that is read: some two million files.
const INDEX_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// Limits of the command that lists settings.
const SETTINGS: OutputLimits<'static> =
    OutputLimits { time: Duration::from_secs(2), bytes: git::FILE_BYTES_MAX, is_over: &|| None };

/// Repositories beyond these limits are cut off.
const DEPTH_MAX: usize = 8;
const LINKED_MAX: usize = 4_096;

/// The mode of an index entry that links to a repository.
const LINK_MODE: u32 = 0o160_000;

/// The bits of a mode that make the difference.
const FILE_TYPE: u32 = 0o170_000;

/// The bits of an entry's flags that contain the length of its name; all are set for a longer name.
const NAME_LENGTH: u16 = 0xfff;

/// Suffix of renamed entries.
const ASIDE: &str = "refused";

/// The repositories that are linked directly or through others: their Git directories and working trees, each with the
/// entry that leads to it if it isn't part of the outer repository.
#[derive(Debug, Default)]
pub(super) struct Linked(BTreeMap<(PathBuf, PathBuf), Option<PathBuf>>);

struct OuterRepository<'a> {
    worktree: &'a Path,
    /// Its Git directory, resolved.
    git: &'a Path,
    /// The directories that contain the Git directories of its submodules, resolved.
    modules: Vec<PathBuf>,
    /// The entry that leads to this repository if it isn't part of its own outer repository.
    way_out: Option<PathBuf>,
}

/// The links of indexes, kept while the index files are unchanged.
#[derive(Debug, Default)]
pub(super) struct LinkCache {
    indexes: HashMap<PathBuf, (DiskStamp, Arc<[PathBuf]>)>,
    /// Links in commits, which become links of the index when the user checks them out, by Git directory.
    committed: HashMap<PathBuf, BTreeSet<PathBuf>>,
}

impl Linked {
    /// Finds the repositories linked from those with these working trees, whose paths contain no links.
    pub(super) fn find<'a>(worktrees: impl Iterator<Item = &'a Path>, cache: &mut LinkCache) -> Linked {
        let mut linked = Linked::default();
        for worktree in worktrees {
            let Some(git) = directory_of(worktree) else { continue };
            // `None` if a command could have written the `.git` entry that names the directory.
            let common = git::directory(worktree);
            let own = common.iter().flat_map(|common| [common.join("modules"), git.join("modules")]);
            let outer = OuterRepository { worktree, git: &git, modules: own.collect(), way_out: None };
            linked.add(&outer, DEPTH_MAX, cache);
            // Git uses a directory that is here already for a new submodule.
            if let Some(common) = common {
                let (modules, beyond) = git::modules(&common);
                linked.0.extend(modules.into_iter().map(|module| ((module.clone(), module), None)));
                linked.0.extend(beyond.into_iter().map(|path| ((path.clone(), path.clone()), Some(path))));
            }
        }
        linked
    }

    fn add(&mut self, outer: &OuterRepository<'_>, depth: usize, cache: &mut LinkCache) {
        let committed = cache.committed.get(outer.git).cloned().unwrap_or_default();
        let links = cache.links_of(outer.git);
        if links.is_none() {
            let index = outer.git.join("index");
            self.0.insert((index.clone(), outer.worktree.to_path_buf()), Some(index));
        }
        for path in links.unwrap_or_default().iter().chain(&committed) {
            let worktree = outer.worktree.join(path);
            let entry = worktree.join(".git");
            let unclear = git::is_unclear(&entry).then(|| entry.clone());
            let Some(git) = unclear.clone().or_else(|| directory_of(&worktree)) else { continue };
            let next = depth.checked_sub(1).filter(|_| self.0.len() < LINKED_MAX);
            let way_out = outer.way_out.clone().or(unclear).or_else(|| outer.way_out_by(path, &git));
            let way_out = way_out.or_else(|| next.is_none().then_some(entry));
            let is_new = self.0.insert((git.clone(), worktree.clone()), way_out.clone()).is_none();
            if let Some(depth) = next.filter(|_| is_new) {
                let mut modules = outer.modules.clone();
                modules.push(git.join("modules"));
                let inner = OuterRepository { worktree: &worktree, git: &git, modules, way_out };
                self.add(&inner, depth, cache);
            }
        }
    }

    /// The `.git` entries of their working trees.
    pub(super) fn entries(&self) -> impl Iterator<Item = PathBuf> {
        self.0.keys().map(|(_, worktree)| worktree.join(".git"))
    }

    /// Renames entries that could make Git run a program in repositories that were not linked `before`, except for
    /// those whose settings are `frozen`. Returns a description of each.
    pub(super) fn refuse_new(&self, before: &Linked, frozen: &[PathBuf]) -> Vec<String> {
        let is_frozen = |git: &PathBuf| frozen.iter().any(|above| git.starts_with(above));
        let refused = self.0.iter().filter_map(|((git, worktree), way_out)| match way_out {
            Some(entry) if !before.0.contains_key(&(git.clone(), worktree.clone())) => cut_off(entry, git),
            None if !before.contains(git) && !is_frozen(git) => refuse(git),
            Some(_) | None => None,
        });
        refused.collect()
    }

    fn contains(&self, git: &Path) -> bool {
        let mut from = self.0.range((git.to_path_buf(), PathBuf::new())..);
        from.next().is_some_and(|((found, _), _)| found == git)
    }
}

impl OuterRepository<'_> {
    /// Returns the entry of this repository through which a link of its index leads to a repository that isn't a part
    /// of it; `None` for a submodule.
    fn way_out_by(&self, path: &Path, git: &Path) -> Option<PathBuf> {
        // Git itself writes no such paths, but it follows them.
        if path.components().any(|part| !matches!(part, Component::Normal(_))) {
            return Some(self.git.join("index"));
        }
        let inner = self.worktree.join(path);
        let below = inner.ancestors().take_while(|above| *above != self.worktree);
        if let Some(link) = below.filter(|above| above.is_symlink()).last() {
            return Some(link.to_path_buf());
        }
        let entry = inner.join(".git");
        let is_part = git == entry || self.modules.iter().any(|modules| git.starts_with(modules));
        (!is_part).then_some(entry)
    }
}

/// Returns the Git directory of a working tree, resolved.
fn directory_of(worktree: &Path) -> Option<PathBuf> {
    let git = resolve(&worktree.join(".git")).ok()?;
    if git.is_dir() { Some(git) } else { git::named_directory(worktree) }
}

/// Whether ordinary commands of Git in this directory run no program of the workspace: it is the root of a repository without
/// hooks and without settings that could name a program, or in no repository, where they only fail.
pub(crate) fn runs_only_git(root: &Path) -> bool {
    let is_repository =
        |above: &Path| [".git", "HEAD"].iter().any(|name| above.join(name).symlink_metadata().is_ok());
    if !root.ancestors().any(is_repository) {
        return true;
    }
    let Some(git) = git::directory(root).filter(|git| running_entries(git).is_empty()) else { return false };
    let own_settings = git::named_directory(root).map(|own| own.join(git::OF_WORKTREES));
    let has_own =
        own_settings.is_some_and(|settings| settings != git.join(git::OF_WORKTREES) && settings.exists());
    // The user's own settings may name a directory for hooks.
    let list = child_output::git(&["config", "--list", "--name-only", "--show-scope"]);
    let names = child_output::output_of(list, root, &SETTINGS);
    // Epitome sets it for its own command.
    let is_set = |line: &str| {
        line.split_once('\t').is_none_or(|(scope, name)| scope != "command" && name == "core.hookspath")
    };
    !has_own && names.is_ok_and(|names| !names.lines().any(is_set))
}

/// The entries of a Git directory that may make Git run a program.
pub(super) fn running_entries(git: &Path) -> Vec<&'static str> {
    let is_there = |name: &&str| git.join(name).symlink_metadata().is_ok();
    let is_empty = |file: fs::Metadata| file.is_file() && file.len() == 0;
    [
        ("config", is_config_harmless(git)),
        ("hooks", is_without_hooks(git)),
        // These entries refer to or contain other settings; a linked repository needs neither.
        ("commondir", !git.join("commondir").is_symlink() && git::is_own_common_directory(git)),
        ("config.worktree", git.join("config.worktree").symlink_metadata().is_ok_and(is_empty)),
    ]
    .into_iter()
    .filter_map(|(name, is_harmless)| (!is_harmless).then_some(name))
    .filter(is_there)
    .collect()
}

fn refuse(git: &Path) -> Option<String> {
    let refused = running_entries(git);
    if refused.is_empty() {
        return None;
    }
    let moved = refused.iter().all(|name| put_aside(&git.join(name)).is_ok());
    let done = match moved {
        true => format!("\".{ASIDE}\" was added to their names"),
        false => "They could not be renamed, so look at them before you use Git there".to_owned(),
    };
    Some(format!(
        "[{} is a repository that another one links to now. These could make Git run a program: {}. {done}]",
        git.display(),
        refused.join(", ")
    ))
}

/// Renames the entry that leads to a repository elsewhere. `None` if it is gone.
fn cut_off(entry: &Path, git: &Path) -> Option<String> {
    let done = match put_aside(entry) {
        Ok(()) => format!("\".{ASIDE}\" was added to the name"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => format!("It could not be renamed ({error}), so look at it before you use Git there"),
    };
    Some(format!(
        "[{} leads Git to {}, which is not a part of the repository, or can't be examined, and could make Git run a \
         program. {done}]",
        entry.display(),
        git.display()
    ))
}

/// Renames an entry without following links.
pub(super) fn put_aside(path: &Path) -> io::Result<()> {
    let entry = DirectoryEntry::at(path)?;
    let name = entry.name().to_string_lossy().into_owned();
    let aside = format!("{name}.{ASIDE}");
    match path.with_file_name(&aside).symlink_metadata() {
        Ok(_) => entry.rename_to(&format!("{aside}-{:08x}", fastrand::u32(..))),
        Err(_) => entry.rename_to(&aside),
    }
}

fn is_config_harmless(git: &Path) -> bool {
    match read(&git.join("config")) {
        Ok(text) => GitSettings::parse(&text).is_some_and(|settings| settings.are_harmless_when_new(git)),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// Whether the hooks directory contains only Git's samples.
fn is_without_hooks(git: &Path) -> bool {
    let hooks = git.join("hooks");
    let Ok(kind) = hooks.symlink_metadata() else { return true };
    let mut entries = fs::read_dir(&hooks).into_iter().flatten();
    kind.is_dir()
        && entries
            .all(|entry| entry.is_ok_and(|entry| entry.file_name().to_string_lossy().ends_with(".sample")))
}

impl LinkCache {
    /// Adds links that were committed in the repository of this working tree.
    pub(super) fn add_committed(&mut self, worktree: &Path, links: Vec<PathBuf>) {
        let Some(git) = directory_of(worktree).filter(|_| !links.is_empty()) else { return };
        self.committed.entry(git).or_default().extend(links);
    }

    /// Returns the paths of the links in the index of a repository. `None` if it can't be read here.
    fn links_of(&mut self, git: &Path) -> Option<Arc<[PathBuf]>> {
        let index = git.join("index");
        let Ok(file) = index.metadata() else { return Some(Arc::default()) };
        let stamp = DiskStamp::of(&file);
        if let Some((known, links)) = self.indexes.get(&index)
            && *known == stamp
        {
            return Some(links.clone());
        }
        let bytes = match read_regular(&index, INDEX_BYTES_MAX) {
            // It was replaced or removed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Some(Arc::default()),
            read => read.ok()?,
        };
        let (mut links, mut is_whole, mut is_read) = (Vec::new(), true, false);
        // The hash length is stored in the settings; usually, an index can be parsed with only one of the two.
        for hash in [20, 32] {
            let Some(mut part) = IndexPart::parse(&bytes, hash, false) else { continue };
            links.append(&mut part.links);
            // `git update-index --split-index`
            if let Some(shared) = part.shared {
                is_whole = false;
                let bytes = read_regular(&git.join(format!("sharedindex.{shared}")), INDEX_BYTES_MAX);
                let shared = IndexPart::parse(&bytes.unwrap_or_default(), hash, part.has_unnamed);
                let Some(mut shared) = shared else { continue };
                links.append(&mut shared.links);
            }
            is_read = true;
        }
        let links: Arc<[PathBuf]> = Some(links).filter(|_| is_read)?.into();
        if self.indexes.len() >= LINKED_MAX {
            self.indexes.clear();
        }
        if stamp.is_settled() && is_whole {
            self.indexes.insert(index, (stamp, links.clone()));
        }
        Some(links)
    }
}

#[derive(Debug, Default)]
struct IndexPart {
    links: Vec<PathBuf>,
    /// Whether a link replaces an entry of the shared file, which has its name.
    has_unnamed: bool,
    /// The hash of a file with further entries.
    shared: Option<String>,
}

impl IndexPart {
    /// `None` if it can't be parsed with hashes of this length. `every`: whether each entry counts as a link.
    fn parse(index: &[u8], hash_bytes: usize, every: bool) -> Option<IndexPart> {
        let (header, mut rest) = index.split_first_chunk::<12>()?;
        let number = |bytes: &[u8]| Some(u32::from_be_bytes(*bytes.first_chunk()?));
        let (version, count) = (number(&header[4..])?, number(&header[8..])?);
        if !header.starts_with(b"DIRC") || !(2..=4).contains(&version) {
            return None;
        }
        let mut part = IndexPart::default();
        let mut name: Vec<u8> = Vec::new();
        for _ in 0..count {
            let entry = rest;
            let is_link = number(entry.get(24..)?)? & FILE_TYPE == LINK_MODE;
            let flags_at = 40 + hash_bytes;
            let flags = u16::from_be_bytes(*entry.get(flags_at..)?.first_chunk()?);
            let mut at = flags_at + if flags & 0x4000 != 0 && version > 2 { 4 } else { 2 };
            if version == 4 {
                // The number of bytes of the previous name that are dropped.
                let mut byte = *entry.get(at)?;
                let mut removed = usize::from(byte & 0x7f);
                at += 1;
                while byte & 0x80 != 0 {
                    byte = *entry.get(at)?;
                    removed = removed.checked_add(1)?.checked_mul(128)? | usize::from(byte & 0x7f);
                    at += 1;
                }
                name.truncate(name.len().checked_sub(removed)?);
            } else {
                name.clear();
            }
            // Like Git, take the length from the flags if they have it.
            let text = entry.get(at..)?;
            let length = match usize::from(flags & NAME_LENGTH) {
                length if length < usize::from(NAME_LENGTH) => length.checked_sub(name.len())?,
                _ => text.iter().position(|byte| *byte == 0)?,
            };
            name.extend(text.get(..length)?);
            at += length + 1;
            if version < 4 {
                at = at.next_multiple_of(8);
            }
            let path = name.split(|byte| *byte == 0).next().unwrap_or_default();
            match path.is_empty() {
                true => part.has_unnamed |= is_link,
                false if every || is_link => part.links.push(OsStr::from_bytes(path).into()),
                false => {}
            }
            rest = entry.get(at..)?;
        }
        while let Some((extension, behind)) = rest.split_first_chunk::<8>() {
            let bytes = usize::try_from(number(&extension[4..])?).ok()?;
            if let (b"link", Some(hash)) = (&extension[..4], behind.get(..hash_bytes)) {
                part.shared = Some(hash.iter().map(|byte| format!("{byte:02x}")).collect());
            }
            let Some(next) = behind.get(bytes..) else { break };
            rest = next;
        }
        Some(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In `auto`, each commit was a question, so users wrote rules for all commits, which covered hooks that run the workspace's
    /// `Makefile`.
    #[test]
    fn git_runs_nothing_else_without_hooks_and_settings_that_name_programs() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let root = directory.path().canonicalize().expect("it is there");
        let init = std::process::Command::new("git").args(["init", "-q", "."]).current_dir(&root).status();
        if !init.is_ok_and(|ended| ended.success()) {
            return eprintln!("skipped: there is no git");
        }
        let config = root.join(".git/config");
        let plain = fs::read_to_string(&config).expect("it is there");
        assert!(runs_only_git(&root));
        fs::create_dir(root.join("sub")).expect("made");
        assert!(!runs_only_git(&root.join("sub")), "a bare repository could be made there");
        for setting in
            ["[core]\n\thooksPath = .husky\n", "[filter \"x\"]\n\tclean = ./x\n", "[include]\n\tpath = x\n"]
        {
            fs::write(&config, format!("{plain}{setting}")).expect("written");
            assert!(!runs_only_git(&root), "{setting}");
        }
        fs::write(&config, &plain).expect("written");
        fs::write(root.join(".git/hooks/pre-commit"), "make").expect("written");
        assert!(!runs_only_git(&root));
    }

    fn git(directory: &Path, line: &str) {
        let mut command = std::process::Command::new("sh");
        command.args(["-ec", line]).current_dir(directory).env("HOME", directory);
        assert!(command.status().expect("sh runs").success(), "{line}");
    }

    /// In each version of the format, as written by Git.
    #[test]
    fn links_are_read_from_an_index() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let root = directory.path();
        if std::process::Command::new("git").arg("--version").output().is_err() {
            eprintln!("skipped: there is no git");
            return;
        }
        for (format, version) in [("sha1", 2), ("sha1", 3), ("sha1", 4), ("sha256", 2), ("sha256", 4)] {
            let name = format!("{format}-{version}");
            let empty = if format == "sha1" { "1".repeat(40) } else { "1".repeat(64) };
            git(
                root,
                &format!(
                    "git init -q --object-format={format} {name}; cd {name}; mkdir -p a/very/deep; touch a/very/deep/file \
                     b; git add .; git update-index --add --cacheinfo 160000,{empty},a/very/deep/lib; git update-index \
                     --add --cacheinfo 160000,{empty},z; touch n; git add -N n; git update-index --index-version \
                     {version}"
                ),
            );
            let links = LinkCache::default().links_of(&root.join(name).join(".git"));
            assert_eq!(
                *links.expect("it is read"),
                [PathBuf::from("a/very/deep/lib"), "z".into()],
                "{format} {version}"
            );
        }
        assert!(IndexPart::parse(b"DIRC\0\0\0\x02\xff\xff\xff\xff", 20, false).is_none());
    }

    /// With 1,024 harmless repositories, or in an index of more than 256 MiB, a command could link another one that was not
    /// searched.
    #[test]
    fn what_is_beyond_the_limits_is_cut_off() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let root = directory.path().canonicalize().expect("it is there");
        if std::process::Command::new("git").arg("--version").output().is_err() {
            return eprintln!("skipped: there is no git");
        }
        git(&root, "git init -q .");
        let hash = "1".repeat(40);
        let listed: String = (0..=LINKED_MAX).map(|n| format!("160000 {hash}\tmany/{n:05}\n")).collect();
        fs::write(root.join("listed"), listed).expect("written");
        (0..=LINKED_MAX)
            .for_each(|n| fs::create_dir_all(root.join(format!("many/{n:05}/.git"))).expect("made"));
        git(&root, "git update-index --add --index-info < listed");
        let refused = || {
            let linked = Linked::find(std::iter::once(root.as_path()), &mut LinkCache::default());
            linked.refuse_new(&Linked::default(), &[]).len()
        };
        assert_eq!(refused(), 1);
        assert!(root.join(format!("many/{LINKED_MAX:05}/.git.refused")).exists());
        assert_eq!(refused(), 0);
        let index = fs::OpenOptions::new().write(true).open(root.join(".git/index")).expect("it is there");
        index.set_len(INDEX_BYTES_MAX + 1).expect("set");
        assert_eq!(refused(), 1);
        assert!(root.join(".git/index.refused").exists());
    }

    /// A command could add a link with `git update-index --split-index`: entries in the shared file were not read.
    #[test]
    fn links_are_read_from_a_split_index() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let root = directory.path();
        if std::process::Command::new("git").arg("--version").output().is_err() {
            eprintln!("skipped: there is no git");
            return;
        }
        for (name, more) in [
            ("shared", "git update-index --split-index"),
            // The entry of a file becomes a link.
            (
                "replaced",
                "git rm -q --cached z; touch z; git add z; git update-index --split-index; git update-index --cacheinfo 160000,$H,z",
            ),
        ] {
            let line = format!(
                "git init -q {name}; cd {name}; H={}; git config splitIndex.maxPercentChange 100; touch b; git add b; \
                 git update-index --add --cacheinfo 160000,$H,z; {more}",
                "1".repeat(40)
            );
            git(root, &line);
            let git = root.join(name).join(".git");
            let shared = fs::read_dir(&git).expect("there").flatten();
            let shared =
                shared.filter(|entry| entry.file_name().to_string_lossy().starts_with("sharedindex."));
            assert!(shared.count() > 0, "{name}");
            let links = LinkCache::default().links_of(&git).expect("it is read");
            assert!(links.contains(&PathBuf::from("z")), "{name}");
        }
    }
}
