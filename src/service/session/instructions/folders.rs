//! Finds and reads instruction files, following the conventions of several agents.
//!
//! | file | convention of |
//! | --- | --- |
//! | `AGENTS.md` | agents.md; Epitome, Codex, opencode and others |
//! | `CLAUDE.md`, `.claude/CLAUDE.md`, `CLAUDE.local.md` | Claude Code (code.claude.com/docs/en/memory) |
//! | `GEMINI.md` | Gemini CLI (geminicli.com/docs/cli/gemini-md) |
//! | `.epitome/pins.md` | Epitome: what each compaction keeps, also that of other agents with `epitome compact` |
//! | `.cursor/rules/*.mdc` with `alwaysApply: true` | Cursor (docs.cursor.com/context/rules) |
//! | `memory/user.md`, `memory/projects/*.md` in the user's own directory | Epitome: what is remembered across sessions |
//! | the files named by `contextFileName` | extensions of Gemini CLI (geminicli.com/docs/extensions/reference) |
//!
//! All files of a directory apply, except duplicates and files that only import another one (`@AGENTS.md`).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::imports::{INSTRUCTION_BYTES_MAX, ImportSources, Importer, read};
use epitome_files::memory::MemoryFiles;
use epitome_files::paths::Paths;
use epitome_recipe::plugins::{Plugin, PluginCatalog};
use epitome_thread::problem::Problem;

/// Maximum number of Cursor rules per directory.
const RULES_MAX: usize = 64;
/// Maximum bytes of a `.git` file.
const GIT_FILE_BYTES_MAX: u64 = 4096;
/// The directory of Cursor's rules.
const RULES: &str = ".cursor/rules";

/// File names in a project directory, the most general first, so that later ones take precedence.
const OF_PROJECT: [&str; 6] =
    ["AGENTS.md", "GEMINI.md", ".claude/CLAUDE.md", "CLAUDE.md", "CLAUDE.local.md", ".epitome/pins.md"];
/// File names in the user's Epitome directory.
const OF_USER: [&str; 2] = ["AGENTS.md", "CLAUDE.md"];
/// The user's files for other agents, relative to the home directory. They apply if there is none for Epitome.
const OF_OTHER_AGENTS: [&str; 3] = [".codex/AGENTS.md", ".gemini/GEMINI.md", ".claude/CLAUDE.md"];

/// An instruction file and its text when it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstructionFile {
    pub path: PathBuf,
    pub text: String,
    /// The files whose text it includes.
    pub imports: Vec<PathBuf>,
}

/// A directory that may contain instructions. Files of a repository must lie within it; the user's own files may be
/// links to any location.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InstructionFolder {
    pub directory: PathBuf,
    pub within: Option<PathBuf>,
    /// The user's home directory, if this is the user's Epitome directory.
    pub home: Option<PathBuf>,
    /// The files of a plugin, or the user's memory; if there are any, no other file of the directory applies.
    pub only: Vec<PathBuf>,
    /// What its files may import; `None` if they can't import any.
    pub imports: Option<ImportSources>,
    /// The repository that has this one as a submodule. Its instructions are not read.
    pub superproject: Option<PathBuf>,
}

impl InstructionFolder {
    pub fn of_project(directory: &Path, within: Option<&Path>) -> InstructionFolder {
        let (directory, within) = (directory.to_path_buf(), within.map(Path::to_path_buf));
        InstructionFolder { directory, within, ..InstructionFolder::default() }
    }

    /// Lets its files import others.
    pub fn importing(self, paths: &Paths) -> InstructionFolder {
        InstructionFolder { imports: Some(ImportSources::of_user(paths)), ..self }
    }

    /// A plugin; `None` if it has no instructions.
    pub fn of_plugin(plugin: &Plugin) -> Option<InstructionFolder> {
        let folder = InstructionFolder::of_project(&plugin.folders.root, Some(&plugin.folders.root));
        let only = plugin.context.clone();
        (!only.is_empty()).then_some(InstructionFolder { only, ..folder })
    }

    /// The memory across sessions.
    pub fn of_memory(memory: &MemoryFiles) -> InstructionFolder {
        let only = memory.all().to_vec();
        InstructionFolder { only, ..InstructionFolder::of_project(&memory.directory, None) }
    }

    /// The candidate files, in ascending order of precedence.
    pub fn candidates(&self) -> Vec<PathBuf> {
        if !self.only.is_empty() {
            return self.only.clone();
        }
        if self.within.is_none() && self.home.is_some() {
            let own = OF_USER.map(|name| self.directory.join(name));
            let others = self.home.iter().flat_map(|home| OF_OTHER_AGENTS.map(|name| home.join(name)));
            return own.into_iter().chain(others).collect();
        }
        let rules = std::fs::read_dir(self.directory.join(RULES)).into_iter().flatten().flatten();
        let rules = rules.take(RULES_MAX).map(|rule| rule.path());
        let mut rules: Vec<PathBuf> = rules.filter(|path| is_rule(path)).collect();
        rules.sort();
        rules.into_iter().chain(OF_PROJECT.map(|name| self.directory.join(name))).collect()
    }

    pub fn read(&self) -> (Vec<InstructionFile>, Vec<Problem>) {
        let mut problems = Vec::new();
        let mut files: Vec<InstructionFile> = Vec::new();
        let mut seen = BTreeSet::new();
        let is_own = |path: &Path| path.parent() == Some(self.directory.as_path());
        for path in self.candidates() {
            // Files for other agents apply only if the user has none for Epitome.
            if self.home.is_some() && !is_own(&path) && files.iter().any(|file| is_own(&file.path)) {
                break;
            }
            match read(&path, self.within.as_deref()) {
                Ok(Some((real, bytes))) if seen.insert(real.clone()) => {
                    let (text, problem) = readable(&path, &bytes);
                    problems.extend(problem);
                    if let Some(text) = as_instructions(&path, text) {
                        files.push(InstructionFile { path, text, imports: Vec::new() });
                    }
                }
                Ok(_) => {}
                Err(why) => {
                    problems.push(Problem::new(path, format!("these instructions are not read: {why}")))
                }
            }
        }
        let mut files = without_repetitions(files);
        problems.extend(self.import(&mut files));
        problems.extend(self.superproject.as_deref().and_then(unread_superproject));
        (files, problems)
    }

    /// Adds the files that these import to their texts.
    fn import(&self, files: &mut [InstructionFile]) -> Vec<Problem> {
        let Some(sources) = &self.imports else { return Vec::new() };
        let root = self.within.as_deref().unwrap_or(&self.directory);
        let above = self.directory.ancestors().take_while(|directory| directory.starts_with(root));
        let of_project = above.flat_map(|directory| OF_PROJECT.map(|name| directory.join(name)));
        let mut included: Vec<PathBuf> = files.iter().map(|file| file.path.clone()).collect();
        included.extend(of_project.filter(|_| self.within.is_some()));
        let included: Vec<PathBuf> = included.iter().filter_map(|path| path.canonicalize().ok()).collect();
        let mut problems = Vec::new();
        for file in files {
            let mut importer = Importer::new(sources, self.within.as_deref(), included.clone());
            file.text = importer.expand(&file.path, &file.text);
            file.imports = importer.imported;
            problems.extend(importer.problems);
        }
        problems
    }
}

/// A notice about the instructions of a repository whose submodule is worked in.
fn unread_superproject(superproject: &Path) -> Option<Problem> {
    let names: Vec<&str> = OF_PROJECT.into_iter().filter(|name| superproject.join(name).is_file()).collect();
    let text = format!("the instructions of this superproject are not read: {}", names.join(", "));
    let hint = "they apply to sessions in its own directory; import what a submodule needs in its own file";
    (!names.is_empty()).then(|| Problem::new(superproject, text).with_hint(hint))
}

/// The repository of which this directory is a submodule. The `.git` file of a submodule names a directory in that of its
/// superproject; the one of a worktree doesn't.
fn superproject_of(root: &Path) -> Option<PathBuf> {
    let file = root.join(".git");
    let is_file =
        file.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.len() < GIT_FILE_BYTES_MAX);
    let names = is_file.then(|| std::fs::read_to_string(&file).ok()).flatten()?;
    let is_submodule = names.strip_prefix("gitdir:")?.contains("/modules/");
    let above = root.ancestors().skip(1).find(|directory| directory.join(".git").exists());
    above.filter(|_| is_submodule).map(Path::to_path_buf)
}

/// The directories whose instructions apply to `cwd`, farthest first so that the nearest takes precedence: plugins,
/// the user's own (Epitome's directory or those of other agents) and the memory, then from the repository's root down to `cwd`.
/// Reads the disk.
pub fn all(cwd: &Path, paths: &Paths) -> Vec<InstructionFolder> {
    let own = paths.home.as_path();
    let plugins = PluginCatalog::load(cwd, paths).plugins;
    let of_plugins = plugins.iter().filter_map(|plugin| InstructionFolder::of_plugin(plugin));
    let mut directories: Vec<&Path> = Vec::new();
    for directory in cwd.ancestors() {
        directories.push(directory);
        if directory.join(".git").exists() {
            break;
        }
    }
    if !directories.last().is_some_and(|root| root.join(".git").exists()) {
        // Outside a repository, parent directories may belong to other users.
        directories.truncate(1);
    }
    let root = directories.last().copied().unwrap_or(cwd);
    let below = directories.iter().rev().filter(|directory| **directory != own);
    let superproject = superproject_of(root);
    let of_project = below.map(|directory| InstructionFolder {
        superproject: superproject.clone().filter(|_| *directory == root),
        ..InstructionFolder::of_project(directory, Some(root)).importing(paths)
    });
    let home = Some(paths.user_home.as_deref().unwrap_or(own).to_path_buf());
    let of_user = InstructionFolder { home, ..InstructionFolder::of_project(own, None).importing(paths) };
    let of_memory = InstructionFolder::of_memory(&MemoryFiles::of(cwd, paths));
    of_plugins.chain([of_user, of_memory]).chain(of_project).collect()
}

fn is_rule(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "mdc")
}

/// A file's text as instructions; `None` for a Cursor rule that does not always apply.
fn as_instructions(path: &Path, text: String) -> Option<String> {
    if !is_rule(path) {
        return Some(text);
    }
    let mut lines = text.lines();
    if lines.next()?.trim() != "---" {
        return None;
    }
    let front: Vec<&str> = lines.by_ref().take_while(|line| line.trim() != "---").collect();
    let always = front
        .iter()
        .filter_map(|line| line.split_once(':'))
        .any(|(name, value)| name.trim() == "alwaysApply" && value.trim() == "true");
    always.then(|| lines.collect::<Vec<_>>().join("\n"))
}

/// Removes duplicates within a directory, files that only import others, and lines that import a file which is
/// included anyway.
fn without_repetitions(files: Vec<InstructionFile>) -> Vec<InstructionFile> {
    let all = files.clone();
    let imports = |file: &InstructionFile, line: &str| {
        let imported = line.trim().strip_prefix('@').filter(|path| !path.contains(char::is_whitespace));
        let target =
            imported.zip(file.path.parent()).map(|(path, folder)| folder.join(path.trim_start_matches("./")));
        target.is_some_and(|target| all.iter().any(|other| other.path == target && other.path != file.path))
    };
    let mut kept: Vec<InstructionFile> = Vec::new();
    for file in files {
        let lines: Vec<&str> = file.text.lines().filter(|line| !imports(&file, line)).collect();
        let text =
            if lines.len() == file.text.lines().count() { file.text.clone() } else { lines.join("\n") };
        let is_same = kept.iter().any(|other| other.text.trim() == text.trim());
        if !is_same && !text.trim().is_empty() {
            kept.push(InstructionFile { text, ..file });
        }
    }
    kept
}

fn readable(path: &Path, bytes: &[u8]) -> (String, Option<Problem>) {
    // PowerShell writes UTF-16, which a byte order mark names.
    let (text, ..) = encoding_rs::UTF_8.decode(bytes);
    if text.len() <= INSTRUCTION_BYTES_MAX {
        return (text.into_owned(), None);
    }
    let cut = text.floor_char_boundary(INSTRUCTION_BYTES_MAX);
    let problem = Problem::new(path, format!("only the first {cut} bytes of these instructions are used"))
        .with_hint("move what is rarely needed into files that the instructions name");
    (format!("{}\n[cut here]", &text[..cut]), Some(problem))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct InstructionDisk(tempfile::TempDir);

    impl InstructionDisk {
        fn with(files: &[(&str, &str)]) -> InstructionDisk {
            let scratch = InstructionDisk(tempfile::tempdir().expect("a scratch directory"));
            for directory in ["repository/.git", "home/own"] {
                std::fs::create_dir_all(scratch.at(directory)).expect("a directory");
            }
            for (path, text) in files {
                let path = scratch.at(path);
                std::fs::create_dir_all(path.parent().expect("it has one")).expect("a directory");
                std::fs::write(path, text).expect("a file");
            }
            scratch
        }

        fn at(&self, path: &str) -> PathBuf {
            self.0.path().join(path)
        }

        fn read(&self, cwd: &str) -> (Vec<String>, Vec<String>) {
            let home = self.at("home");
            let paths = Paths { user_home: Some(home.clone()), ..Paths::below(&home.join("own")) };
            let places = all(&self.at(cwd), &paths);
            let (found, problems): (Vec<_>, Vec<_>) = places.iter().map(InstructionFolder::read).unzip();
            let texts = found.into_iter().flatten().map(|file| file.text);
            (texts.collect(), problems.into_iter().flatten().map(|problem| problem.message).collect())
        }
    }

    #[test]
    fn the_nearest_instructions_come_last() {
        let scratch = InstructionDisk::with(&[
            ("AGENTS.md", "somebody else's"),
            ("home/own/AGENTS.md", "mine"),
            ("home/.claude/CLAUDE.md", "mine for another agent"),
            ("repository/CLAUDE.md", "the project's"),
            ("repository/inner/AGENTS.md", "this folder's"),
        ]);
        let (texts, problems) = scratch.read("repository/inner");
        assert_eq!(texts, ["mine", "the project's", "this folder's"]);
        assert_eq!(problems, Vec::<String>::new());
    }

    /// Regression: `CLAUDE.md` was ignored next to an `AGENTS.md`.
    #[test]
    fn the_conventions_of_other_agents_count() {
        let rule = |front: &str| format!("---\ndescription: x\n{front}\n---\nRule {front}.");
        let scratch = InstructionDisk::with(&[
            ("repository/AGENTS.md", "for all"),
            ("repository/CLAUDE.md", "for Claude Code"),
            ("repository/CLAUDE.local.md", "my own"),
            ("repository/GEMINI.md", "for Gemini"),
            ("repository/.cursor/rules/a.mdc", &rule("alwaysApply: true")),
            ("repository/.cursor/rules/b.mdc", &rule("alwaysApply: false")),
            ("repository/.cursor/rules/notes.txt", "no rule"),
            ("home/.claude/CLAUDE.md", "mine"),
            ("home/.codex/AGENTS.md", "mine"),
        ]);
        let (texts, problems) = scratch.read("repository");
        let wanted =
            ["mine", "Rule alwaysApply: true.", "for all", "for Gemini", "for Claude Code", "my own"];
        assert_eq!((texts, problems), (wanted.map(str::to_owned).to_vec(), Vec::new()));
    }

    #[test]
    fn no_instructions_are_read_twice() {
        for (claude, wanted) in [
            ("for all\n", vec!["for all"]),
            ("@AGENTS.md\n", vec!["for all"]),
            ("@./AGENTS.md\n\nAlso this.", vec!["for all", "\nAlso this."]),
        ] {
            let scratch = InstructionDisk::with(&[
                ("repository/AGENTS.md", "for all"),
                ("repository/CLAUDE.md", claude),
            ]);
            assert_eq!(scratch.read("repository").0, wanted, "{claude}");
        }
        let scratch = InstructionDisk::with(&[("repository/AGENTS.md", "for all")]);
        std::os::unix::fs::symlink("AGENTS.md", scratch.at("repository/CLAUDE.md")).expect("a link");
        assert_eq!(scratch.read("repository").0, ["for all"]);
    }

    /// A link whose target had been moved was ignored without a word.
    #[test]
    fn a_link_that_leads_nowhere_is_reported() {
        let scratch = InstructionDisk::with(&[("repository/CLAUDE.md", "Rules.")]);
        std::os::unix::fs::symlink("gone.md", scratch.at("repository/AGENTS.md")).expect("a link");
        let (texts, problems) = scratch.read("repository");
        assert_eq!(texts, ["Rules."]);
        let [problem] = &problems[..] else { panic!("{problems:?}") };
        assert!(problem.contains("the file that its link names does not exist"), "{problem}");
    }

    /// `@RULES.md` in a `CLAUDE.md` was sent as text, so the rules were lost without a word.
    #[test]
    fn imports_are_read_where_they_may_be() {
        let scratch = InstructionDisk::with(&[
            (
                "repository/CLAUDE.md",
                "@docs/rules.md\nSee @docs/style.md, and `@code.md`.\n```\n@code.md\n```\n",
            ),
            ("repository/docs/rules.md", "Rules.\n@style.md\n@../CLAUDE.md\n@../AGENTS.md"),
            ("repository/docs/style.md", "Style."),
            ("repository/AGENTS.md", "for all @somebody and @scope/package"),
            ("repository/code.md", "never"),
            (
                "repository/inner/AGENTS.md",
                "@../AGENTS.md\n@~/.claude/mine.md\n@~/.claude/keys.json\n@.env\n@gone.md",
            ),
            ("repository/inner/.env", "KEY=1"),
            ("home/.claude/mine.md", "My own."),
            ("home/.claude/keys.json", "{}"),
        ]);
        let (texts, problems) = scratch.read("repository/inner");
        let block = |path: &str, text: &str| {
            format!("<imported path=\"{}\">\n{text}\n</imported>\n", scratch.at(path).display())
        };
        let style = block("repository/docs/style.md", "Style.");
        let rules = format!("Rules.\n{style}@../CLAUDE.md\n@../AGENTS.md");
        let rules = block("repository/docs/rules.md", &rules);
        let root = format!("{rules}See @docs/style.md, and `@code.md`.\n```\n@code.md\n```\n");
        assert_eq!(texts[..2], ["for all @somebody and @scope/package".to_owned(), root]);
        let mine = block("home/.claude/mine.md", "My own.");
        assert!(texts[2].starts_with(&format!("@../AGENTS.md\n{mine}@~/.claude/keys.json")), "{}", texts[2]);
        for (problem, why) in
            problems.iter().zip(["keys.json is not read: it is neither", "its name suggests", "no such file"])
        {
            assert!(problem.contains(why), "{problems:?}");
        }
        assert_eq!(problems.len(), 3, "{problems:?}");
    }

    /// Instructions that PowerShell had written reached the model as zeros between the letters.
    #[test]
    fn instructions_in_utf16_are_read() {
        let scratch = InstructionDisk::with(&[("repository/AGENTS.md", "@more.md")]);
        let utf16 = |text: &str| {
            [0xfeff].into_iter().chain(text.encode_utf16()).flat_map(u16::to_le_bytes).collect::<Vec<u8>>()
        };
        std::fs::write(scratch.at("repository/more.md"), utf16("Für später.")).expect("written");
        std::fs::write(scratch.at("repository/CLAUDE.md"), utf16("Kurz.\r\n")).expect("written");
        let (texts, problems) = scratch.read("repository");
        assert!(texts.concat().contains("Für später.") && texts.concat().contains("Kurz."), "{texts:?}");
        assert!(problems.is_empty(), "{problems:?}");
    }

    #[test]
    fn imports_are_bounded() {
        let chain: Vec<(String, String)> =
            (0..9).map(|at| (format!("repository/{at}.md"), format!("level {at}\n@{}.md", at + 1))).collect();
        let mut files: Vec<(&str, &str)> =
            chain.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
        let long = "x".repeat(INSTRUCTION_BYTES_MAX);
        files.extend([("repository/AGENTS.md", "@0.md\n@long.md"), ("repository/long.md", &long)]);
        let (texts, problems) = InstructionDisk::with(&files).read("repository");
        assert!(texts[0].contains("level 4") && !texts[0].contains("level 5"), "{texts:?}");
        assert!(problems[0].contains("@5.md is not read: too many files"), "{problems:?}");
        assert!(problems[1].contains("@long.md is not read: the instructions"), "{problems:?}");
    }

    #[test]
    fn the_instructions_of_a_superproject_are_named() {
        let scratch = InstructionDisk::with(&[
            ("repository/AGENTS.md", "for all"),
            ("repository/sub/.git", "gitdir: ../.git/modules/sub\n"),
            ("repository/tree/.git", "gitdir: /elsewhere/.git/worktrees/tree\n"),
        ]);
        let (texts, problems) = scratch.read("repository/sub");
        assert_eq!(texts, Vec::<String>::new());
        assert!(problems[0].contains("superproject are not read: AGENTS.md"), "{problems:?}");
        assert_eq!(scratch.read("repository/tree").1, Vec::<String>::new());
    }

    #[test]
    fn what_a_repository_links_to_outside_of_it_is_not_read() {
        // Otherwise a cloned repository could have a key file sent to the provider.
        let scratch = InstructionDisk::with(&[("key", "secret"), ("repository/real.md", "inside")]);
        let link = |to: &Path, from: &str| {
            std::os::unix::fs::symlink(to, scratch.at(from)).expect("a link");
        };
        link(&scratch.at("key"), "repository/AGENTS.md");
        link(Path::new("real.md"), "repository/CLAUDE.md");
        std::fs::create_dir(scratch.at("home/own/AGENTS.md")).expect("a directory");
        let (texts, problems) = scratch.read("repository");
        assert_eq!(texts, ["inside"]);
        assert!(problems[0].contains("not a regular file"), "{problems:?}");
        assert!(problems[1].contains("leads out of the repository"), "{problems:?}");
    }

    #[test]
    fn an_instruction_file_that_is_too_long_is_cut_and_named() {
        let (text, problem) =
            readable(Path::new("/w/AGENTS.md"), "é".repeat(INSTRUCTION_BYTES_MAX).as_bytes());
        assert!(text.ends_with("[cut here]"));
        assert!(problem.expect("a problem").message.contains("only the first"));
    }
}
