//! What consent is pinned to: SHA-256 over a declaration and the contents of the files that it names.
//!
//! One file alone has the digest that `sha256sum` prints. Several parts have the digest of their digests,
//! so that no byte can wander from one to the next.
//!
//! Only files that a line names itself are covered; what a script reads or starts in turn is not.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::hook::{Hook, Kind, Place};

/// Bytes of one file that consent can be pinned to. They are read before each run: 64 MiB take some
/// 50 ms where the processor helps.
pub const FILE_BYTES_MAX: u64 = 64 << 20;
/// Files of one declaration.
pub const FILES_MAX: usize = 32;
/// Words of one declaration that are looked at.
const WORDS_MAX: usize = 1024;
/// Bytes read at once.
const PIECE_BYTES: usize = 64 * 1024;

/// The variable by which Claude Code's hooks name their repository.
const PROJECT_VARIABLES: [&str; 2] = ["${CLAUDE_PROJECT_DIR}", "$CLAUDE_PROJECT_DIR"];

/// Whether a hook is still what its digest was made of. Hashes the files each time: size and time of a
/// file can be set to anything by who writes it. The person's own hooks need no consent, so there is
/// nothing to compare. Blocks on the disk.
pub fn unchanged(hook: &Hook) -> bool {
    match hook.place {
        Place::Enforced | Place::Person => true,
        Place::Repository => of_hook(hook).is_ok_and(|now| now == hook.digest),
    }
}

/// The digest of a hook as it is on disk now.
pub fn of_hook(hook: &Hook) -> Result<String, String> {
    match &hook.kind {
        Kind::Claude { line, group: _, matcher, only_if } => {
            // The settings file holds more than this line, and the rest is not about it.
            let names = hook.events.iter().map(|(_, name)| name.as_str());
            let mut parts: Vec<Sum> =
                [line.as_str(), matcher.as_str(), only_if.as_str()].into_iter().chain(names).map(of_text).collect();
            for file in hook.files.iter().skip(1) {
                parts.push(of_file(file)?);
            }
            Ok(joined(&parts))
        }
        Kind::Script { .. } | Kind::Resident { .. } | Kind::Declared { .. } | Kind::Webhook { .. } => {
            of_files(&hook.files)
        }
    }
}

/// The digest of a declaration's files, the declaration first.
pub fn of_files(files: &[PathBuf]) -> Result<String, String> {
    let parts: Vec<Sum> = files.iter().map(|file| of_file(file)).collect::<Result<_, _>>()?;
    Ok(joined(&parts))
}

/// The digest of a recipe or command that runs shell calls: of its place, its text and the files of the
/// repository, whose root is given, that the calls name. Blocks on the disk.
pub fn recipe_digest(root: &Path, path: &Path, text: &str) -> String {
    let folder = path.parent().unwrap_or(path);
    let bases: Vec<&Path> = folder.ancestors().take_while(|base| base.starts_with(root)).collect();
    let mut parts = vec![of_text(&path.to_string_lossy()), of_text(text)];
    for call in shell_calls(text) {
        for file in named_files(call, &bases, root) {
            // A file that is too large or cannot be read is as good as none for the call, and for us.
            parts.extend(of_file(&file));
        }
    }
    joined(&parts)
}

/// The files inside `root` that words of a shell line name, as seen from one of `bases`. Links are
/// followed; a file outside is not the repository's.
pub fn named_files(line: &str, bases: &[&Path], root: &Path) -> Vec<PathBuf> {
    let Ok(real_root) = root.canonicalize() else { return Vec::new() };
    let line = PROJECT_VARIABLES
        .iter()
        .fold(line.to_owned(), |line, name| line.replace(name, &root.to_string_lossy()));
    let mut seen = BTreeSet::new();
    let mut files = Vec::new();
    for word in words(&line) {
        for base in bases {
            let path = base.join(&word);
            let Ok(real) = path.canonicalize() else { continue };
            if real.is_file() && real.starts_with(&real_root) && files.len() < FILES_MAX && seen.insert(real)
            {
                files.push(path);
            }
        }
    }
    files
}

/// The words of a shell line without their quotes. Separators and redirections end a word. It is no
/// shell: a path that only comes about by substitution is not seen.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut quote = None;
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (Some(open), _) if letter == open => quote = None,
            (None, '"' | '\'') => quote = Some(letter),
            (None | Some('"'), '\\') => word.extend(letters.next()),
            (Some(_), _) => word.push(letter),
            (None, ';' | '|' | '&' | '<' | '>' | '(' | ')' | '`' | '=') => {
                words.push(std::mem::take(&mut word))
            }
            (None, _) if letter.is_whitespace() => words.push(std::mem::take(&mut word)),
            (None, _) => word.push(letter),
        }
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words.truncate(WORDS_MAX);
    words
}

/// The shell calls in a recipe's text: `{{bash …}}`, `` !`…` ``, `!{…}`.
fn shell_calls(text: &str) -> Vec<&str> {
    let mut calls = Vec::new();
    for (open, close) in [("{{", "}}"), ("!`", "`"), ("!{", "}")] {
        let mut rest = text;
        while let Some((_, behind)) = rest.split_once(open) {
            let Some((call, behind)) = behind.split_once(close) else { break };
            if open != "{{" || call.contains("bash") {
                calls.push(call);
            }
            rest = behind;
        }
    }
    calls
}

type Sum = [u8; 32];

fn of_text(text: &str) -> Sum {
    Sha256::digest(text.as_bytes()).into()
}

fn of_file(path: &Path) -> Result<Sum, String> {
    let unreadable = |error: io::Error| format!("{} cannot be read: {error}", path.display());
    // Opening a pipe would wait for its writer.
    if !path.metadata().map_err(unreadable)?.is_file() {
        return Err(format!("{} is not an ordinary file", path.display()));
    }
    let mut file = File::open(path).map_err(unreadable)?.take(FILE_BYTES_MAX + 1);
    let mut sum = Sha256::new();
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        match file.read(&mut piece) {
            Ok(0) => break,
            Ok(count) => sum.update(&piece[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(unreadable(error)),
        }
    }
    if file.limit() == 0 {
        return Err(format!("{} has more than {} MiB", path.display(), FILE_BYTES_MAX >> 20));
    }
    Ok(sum.finalize().into())
}

fn joined(parts: &[Sum]) -> String {
    match parts {
        [one] => hexadecimal(one),
        several => hexadecimal(&Sha256::digest(several.concat()).into()),
    }
}

fn hexadecimal(sum: &Sum) -> String {
    sum.iter().map(|byte| format!("{byte:02x}")).collect()
}
