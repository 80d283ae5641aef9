//! Imports of instruction files: `@path` in a file includes the text of another one, as in Claude Code
//! (code.claude.com/docs/en/memory) and Gemini CLI (geminicli.com/docs/reference/memport).
//!
//! A path is relative to the importing file, absolute, or below `~`. Code is not searched for imports. What a cloned
//! repository imports is sent to the model's provider, so only its own files are read, and Markdown files of the user's
//! directories for agents.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use epitome_files::paths::Paths;
use epitome_thread::problem::Problem;
use epitome_tools::secret_paths::is_secret_name;

/// Maximum bytes of an instruction file. A larger file is cut, with a note.
pub(super) const INSTRUCTION_BYTES_MAX: usize = 64 * 1024;

/// Maximum number of files that import each other in a row.
const DEPTH_MAX: usize = 5;
/// Maximum number of files that one file imports, also indirectly.
const IMPORTS_MAX: usize = 64;
/// The user's directories for agents, relative to the home directory.
const OF_AGENTS: [&str; 4] = [".claude", ".codex", ".gemini", ".agents"];

/// What may be imported, besides the files of the repository.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportSources {
    home: Option<PathBuf>,
    own: Option<PathBuf>,
}

impl ImportSources {
    pub fn of_user(paths: &Paths) -> ImportSources {
        ImportSources { home: paths.user_home.clone(), own: Some(paths.home.clone()) }
    }

    fn target(&self, importing: &Path, path: &str) -> PathBuf {
        match path.strip_prefix("~/").zip(self.home.as_ref()) {
            Some((below, home)) => home.join(below),
            None => importing.parent().unwrap_or(importing).join(path),
        }
    }

    fn is_of_user(&self, real: &Path) -> bool {
        let agents = self.home.iter().flat_map(|home| OF_AGENTS.map(|name| home.join(name)));
        let is_below =
            |directory: PathBuf| directory.canonicalize().is_ok_and(|known| real.starts_with(known));
        real.extension().is_some_and(|extension| extension == "md")
            && agents.chain(self.own.clone()).any(is_below)
    }
}

/// One file with its imports.
pub struct Importer<'a> {
    sources: &'a ImportSources,
    /// The repository or plugin of the file; `None` for a file of the user.
    within: Option<&'a Path>,
    /// Files that are included anyway, and those that were imported already.
    included: Vec<PathBuf>,
    /// Files whose change changes the instructions.
    pub imported: Vec<PathBuf>,
    pub problems: Vec<Problem>,
}

impl<'a> Importer<'a> {
    pub fn new(sources: &'a ImportSources, within: Option<&'a Path>, included: Vec<PathBuf>) -> Importer<'a> {
        Importer { sources, within, included, imported: Vec::new(), problems: Vec::new() }
    }

    /// The text of a file with the files that it imports, each after the line that names it, or in place of a line that
    /// consists of nothing else.
    pub fn expand(&mut self, importing: &Path, text: &str) -> String {
        let mut size = text.len();
        self.expand_at(importing, text, 0, &mut size)
    }

    fn expand_at(&mut self, importing: &Path, text: &str, depth: usize, size: &mut usize) -> String {
        let mut expanded = String::with_capacity(text.len());
        let mut fence = None;
        for line in text.split_inclusive('\n') {
            let start = line.trim_start();
            let marker = ["```", "~~~"].into_iter().find(|marker| start.starts_with(marker));
            match (fence, marker) {
                (None, Some(marker)) => fence = Some(marker),
                (Some(open), Some(marker)) if open == marker => fence = None,
                _ => {}
            }
            let paths = if fence.is_some() || marker.is_some() { Vec::new() } else { mentions(line) };
            let is_alone = paths.len() == 1 && line.trim().len() == paths[0].len() + 1;
            let blocks: Vec<String> =
                paths.iter().filter_map(|path| self.import(importing, path, is_alone, depth, size)).collect();
            if !is_alone || blocks.is_empty() {
                expanded.push_str(line);
            }
            for block in blocks {
                if !expanded.is_empty() && !expanded.ends_with('\n') {
                    expanded.push('\n');
                }
                expanded.push_str(&block);
            }
        }
        expanded
    }

    /// The block of an imported file; `None` if it is not read, or is included elsewhere.
    fn import(
        &mut self,
        importing: &Path,
        path: &str,
        is_alone: bool,
        depth: usize,
        size: &mut usize,
    ) -> Option<String> {
        let target = self.sources.target(importing, path);
        let (real, text) = match self.read(&target) {
            Ok(Some(found)) => found,
            // Text also mentions people and packages, so only what looks like an import of a file is reported.
            Ok(None) if !is_alone && !path.ends_with(".md") => return None,
            Ok(None) => return self.leave_out(importing, path, "there is no such file"),
            Err(why) => return self.leave_out(importing, path, &why.to_string()),
        };
        if self.included.contains(&real) {
            return None;
        }
        *size += text.len();
        let why = if depth == DEPTH_MAX {
            Some("too many files import each other in a row")
        } else if self.imported.len() == IMPORTS_MAX {
            Some("too many files are imported")
        } else if *size > INSTRUCTION_BYTES_MAX {
            *size -= text.len();
            Some("the instructions with their imports are too long")
        } else {
            None
        };
        if let Some(why) = why {
            return self.leave_out(importing, path, why);
        }
        self.included.push(real);
        self.imported.push(target.clone());
        let text = self.expand_at(&target, &text, depth + 1, size);
        Some(format!("<imported path=\"{}\">\n{}\n</imported>\n", target.display(), text.trim_end()))
    }

    fn read(&self, target: &Path) -> io::Result<Option<(PathBuf, String)>> {
        let Ok(real) = target.canonicalize() else { return Ok(None) };
        if real.is_dir() {
            return Ok(None);
        }
        let is_in_repository =
            self.within.and_then(|root| root.canonicalize().ok()).is_some_and(|root| real.starts_with(root));
        if !is_in_repository && !self.sources.is_of_user(&real) {
            let text = "it is neither in the repository nor a Markdown file of your directories for agents";
            return Err(io::Error::other(text));
        }
        if is_secret_name(&real) {
            return Err(io::Error::other("its name suggests that it contains keys"));
        }
        let Some((real, bytes)) = read(&real, None)? else { return Ok(None) };
        match encoding_rs::UTF_8.decode(&bytes) {
            (text, _, false) if !text.contains('\0') => Ok(Some((real, text.into_owned()))),
            _ => Err(io::Error::other("it is not a text")),
        }
    }

    fn leave_out(&mut self, importing: &Path, path: &str, why: &str) -> Option<String> {
        self.problems.push(Problem::new(importing, format!("its import @{path} is not read: {why}")));
        None
    }
}

/// Reads a file up to one byte beyond the limit, with its canonical path; `None` if it does not exist. Repository
/// files are sent to the model's provider, so their links must not lead outside the repository.
pub(super) fn read(path: &Path, within: Option<&Path>) -> io::Result<Option<(PathBuf, Vec<u8>)>> {
    let real = match path.canonicalize() {
        Ok(real) => real,
        Err(error) if error.kind() == io::ErrorKind::NotFound && path.is_symlink() => {
            return Err(io::Error::other("the file that its link names does not exist"));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        // A file where a directory is expected.
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => return Ok(None),
        Err(error) => return Err(error),
    };
    if let Some(root) = within {
        let root = root.canonicalize()?;
        if !real.starts_with(root) {
            return Err(io::Error::other("the link leads out of the repository"));
        }
    }
    // Opening a pipe would block until it has a writer.
    if !real.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    let file = File::open(&real)?;
    file.take(INSTRUCTION_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
    Ok(Some((real, bytes)))
}

/// The paths that a line imports: words that begin with `@`, outside of code spans.
fn mentions(line: &str) -> Vec<&str> {
    let outside = line.split('`').enumerate().filter(|(index, _)| index % 2 == 0).map(|(_, part)| part);
    let words = outside.flat_map(str::split_whitespace);
    words
        .filter_map(|word| word.trim_start_matches(['(', '"', '\'']).strip_prefix('@'))
        .map(|path| path.trim_end_matches(['.', ',', ';', ':', '!', '?', ')', '"', '\'']))
        .filter(|path| !path.is_empty())
        .collect()
}
