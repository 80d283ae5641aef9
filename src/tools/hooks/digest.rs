//! Digests to which consent is pinned: SHA-256 over a declaration and the contents of the files that it names.
//!
//! A single file has the digest that `sha256sum` prints. Several parts have the digest of their digests, so
//! that no byte can move from one part to the next.
//!
//! Only files that a line names directly are covered; files that a script reads or starts are not.
//!
//! The files are hashed right before each run. What runs in the sandbox is then opened by name. A script that runs outside
//! of it (`ApprovedScript`) is copied into memory, and the bytes that were hashed are those that run; so its `$0` is not its
//! path. Consent protects against what a repository *ships* and what commands write; nothing here protects against programs
//! that already run as the user.

use epitome_config::VariableError;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::claude::command_line::{DIRECTORIES_MAX, PATHS_MAX, files_named};
use super::hook::{Hook, HookKind};
use epitome_config::McpServer;
use epitome_platform::os::PermissionsExt as _;
use epitome_platform::root::read_regular;
use epitome_platform::sealed::SealedProgram;
use epitome_recipe::command::RecipeArguments;
use epitome_recipe::parse::Recipe;
use epitome_recipe::render::{self, RenderContext, Rendered, ShellCall, ShellOutputs};

/// Maximum size in bytes of a file that consent can be pinned to. The files are read before each run: 64 MiB
/// take about 50 ms on a processor with SHA instructions.
pub const FILE_BYTES_MAX: u64 = 64 << 20;

/// Why consent cannot be pinned to the version that is on the disk.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    #[error("{} cannot be read: {source}", .path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{} is not an ordinary file", .0.display())]
    NotAFile(PathBuf),
    #[error("{} has more than {} MiB", .0.display(), FILE_BYTES_MAX >> 20)]
    TooLarge(PathBuf),
    #[error("its line names more than {FILES_PINNED_MAX} files, so they cannot be pinned")]
    TooManyFiles,
    #[error("a file that it runs has changed since you allowed it; a new session asks again")]
    Changed,
    #[error("its line names more than {PATHS_MAX} paths, so they cannot be pinned")]
    TooManyPaths,
    #[error(
        "its line changes the directory too often (more than {DIRECTORIES_MAX} places), so the files that it names cannot \
         be pinned"
    )]
    TooManyDirectories,
    #[error(transparent)]
    Variable(#[from] VariableError),
}

/// The SHA-256 of files, in hexadecimal.
pub type FileDigests = BTreeMap<PathBuf, String>;

/// Whether a hook still matches its digest. Hashes the files each time, because size and times of a file can
/// be forged. The user's own hooks need no consent, so they are not checked. Blocks on disk I/O.
pub fn unchanged(hook: &Hook) -> bool {
    !hook.origin.is_repository() || hash_hook(hook).is_ok_and(|now| now == hook.digest)
}

/// Computes the digest of a hook's current version on disk.
pub fn hash_hook(hook: &Hook) -> Result<String, PinError> {
    hash_with(hook, hash_named)
}

/// The digest of a hook. `sum_of`: the digest of a file that the line of a settings file names.
fn hash_with(hook: &Hook, sum_of: impl Fn(&Path) -> Result<Sha256Sum, PinError>) -> Result<String, PinError> {
    let HookKind::Claude { line, group: _, matcher, only_if, options } = &hook.kind else {
        return hash_files(&hook.files);
    };
    // The settings file contains more than this line; the rest is irrelevant.
    let names = hook.events.iter().map(|(_, name)| name.as_str());
    let limit = hook.manifest.timeout.as_millis().to_string();
    let mut parts: Vec<Sha256Sum> =
        [line.as_str(), matcher, only_if, &limit].into_iter().chain(names).map(hash_text).collect();
    parts.extend(options.action.digested().map(|text| hash_text(&text)));
    for file in hook.files.iter().skip(1) {
        parts.push(sum_of(file)?);
    }
    Ok(joined(&parts))
}

/// A script of a repository that the user has approved.
#[derive(Clone)]
pub struct ApprovedScript {
    path: PathBuf,
    /// The hook of a settings file that consists of it.
    hook: Option<Hook>,
    /// The approved digest.
    digest: String,
}

impl ApprovedScript {
    /// The executable with this digest.
    pub fn executable(path: &Path, digest: &str) -> ApprovedScript {
        ApprovedScript { path: path.to_path_buf(), hook: None, digest: digest.to_owned() }
    }

    /// The script that is all that a hook in this directory runs; `None` if it may run anything else.
    pub fn of(hook: &Hook, cwd: &Path) -> Option<ApprovedScript> {
        let path = hook.script(cwd)?;
        let of_settings = matches!(hook.kind, HookKind::Claude { .. }).then(|| hook.clone());
        Some(ApprovedScript { path, hook: of_settings, digest: hook.digest.clone() })
    }

    /// Copies the script into memory, where it can't change before it runs. Fails if it is not the approved one; `None` if it
    /// is not executable, if the system can't execute it from there, or if its first line names a file that is not
    /// `is_trusted`. Blocks on disk I/O.
    pub fn copy(&self, is_trusted: impl Fn(&Path) -> bool) -> Result<Option<SealedProgram>, PinError> {
        let unreadable = |source| PinError::Unreadable { path: self.path.clone(), source };
        let bytes = read_regular(&self.path, FILE_BYTES_MAX).map_err(unreadable)?;
        let sum = Sha256::digest(&bytes);
        let sum_of = |file: &Path| if file == self.path { Ok(sum) } else { hash_named(file) };
        let now =
            self.hook.as_ref().map_or_else(|| Ok(format!("{sum:x}")), |hook| hash_with(hook, sum_of))?;
        if now != self.digest {
            return Err(PinError::Changed);
        }
        let interpreter = bytes.strip_prefix(b"#!").map(|rest| rest.split(|byte| *byte == b'\n').next());
        let interpreter = interpreter.flatten().map(String::from_utf8_lossy);
        let is_program = interpreter.as_ref().map_or(bytes.starts_with(b"\x7fELF"), |line| {
            line.split_whitespace().filter(|word| word.contains('/')).all(|word| is_trusted(Path::new(word)))
        });
        let may_run = self.path.metadata().is_ok_and(|file| file.permissions().mode() & 0o111 != 0);
        Ok(SealedProgram::new(&bytes).ok().filter(|_| is_program && may_run))
    }
}

/// The digest of a declaration's files, the declaration first.
pub fn hash_files(files: &[PathBuf]) -> Result<String, PinError> {
    let parts: Vec<Sha256Sum> = files.iter().map(|file| hash_file(file)).collect::<Result<_, _>>()?;
    Ok(joined(&parts))
}

/// The digest of a recipe or command that needs consent: all of its fields, and the files below `roots` that its
/// calls and the defaults of its arguments name. The first root is the directory in which they run. Blocks on disk
/// I/O.
pub fn recipe_digest(path: &Path, recipe: &Recipe, roots: &[PathBuf]) -> Result<String, PinError> {
    // Any field may decide what runs, such as a default that becomes a program's argument. The last of these depends
    // on other files.
    let fields = format!("{:?}", Recipe { unknown_handlers: Vec::new(), ..recipe.clone() });
    let mut parts = vec![hash_text(&path.to_string_lossy()), hash_text(&fields)];
    let cwd = roots.first().map(|root| root.display().to_string()).unwrap_or_default();
    let surroundings = RenderContext { cwd, ..RenderContext::default() };
    let variables = render::variables(recipe, &surroundings);
    let put = |call: String, (name, value): &(&str, String)| call.replace(&format!("${{{name}}}"), value);
    let calls = render::shell_calls(recipe);
    let written = calls.iter().map(|call| variables.iter().fold((*call).to_owned(), put));
    // Also the parts of a call that are put together: `printf "scripts/%s" .name`.
    let defaults = recipe.defaults().filter(|_| !calls.is_empty());
    let named_defaults = defaults.map(|(name, text)| (name.to_owned(), text.to_owned())).collect();
    let arguments = RecipeArguments { named: named_defaults, free: String::new() };
    let rendered = match render::render(recipe, &arguments, &surroundings, &ShellOutputs::new()) {
        Ok(Rendered::Needs(calls)) => calls.iter().map(ShellCall::line).collect(),
        Ok(Rendered::Done(_)) | Err(_) => Vec::new(),
    };
    let texts = arguments.named.values().cloned();
    for line in written.chain(rendered).chain(texts) {
        for file in named(&line, roots)? {
            parts.push(hash_named(&file)?);
        }
    }
    Ok(joined(&parts))
}

/// The digest of a server: its definition and the files that it names. Returns the digest of each file as well.
pub fn hash_server(server: &McpServer, files: Vec<PathBuf>) -> Result<(String, FileDigests), PinError> {
    let mut parts = vec![hash_text(&server.definition())];
    let mut sums = BTreeMap::new();
    for file in files {
        let sum = hash_named(&file)?;
        parts.push(hash_text(&file.to_string_lossy()));
        parts.push(sum);
        sums.insert(file, format!("{sum:x}"));
    }
    Ok((joined(&parts), sums))
}

/// Whether this is the digest of a file that does not exist.
pub fn is_missing(digest: &str) -> bool {
    digest == format!("{:x}", Sha256Sum::default())
}

/// Maximum existing files that one line may name: they are read before each run.
pub const FILES_PINNED_MAX: usize = 64;

/// The paths below `roots` that words of a shell line name, existing or not: every word could be the name of a
/// file, and a file that is created later is a change. The line may run in any of the roots. Fails if the line
/// names too many existing files, since one of them would go unchecked.
pub fn named(line: &str, roots: &[PathBuf]) -> Result<Vec<PathBuf>, PinError> {
    let mut files: Vec<PathBuf> = Vec::new();
    for root in roots {
        let found = files_named(line, root)?;
        // Files elsewhere on the machine did not come with the repository.
        files.extend(found.into_iter().filter(|file| roots.iter().any(|root| file.starts_with(root))));
    }
    files.sort();
    files.dedup();
    if files.iter().filter(|file| file.is_file()).count() > FILES_PINNED_MAX {
        return Err(PinError::TooManyFiles);
    }
    Ok(files)
}

type Sha256Sum = sha2::digest::Output<Sha256>;

/// The digest of a named file. A missing file has one as well, zero, so that its creation is a change.
fn hash_named(path: &Path) -> Result<Sha256Sum, PinError> {
    if path.is_file() { hash_file(path) } else { Ok(Sha256Sum::default()) }
}

fn hash_text(text: &str) -> Sha256Sum {
    Sha256::digest(text)
}

fn hash_file(path: &Path) -> Result<Sha256Sum, PinError> {
    let unreadable = |source: io::Error| PinError::Unreadable { path: path.to_path_buf(), source };
    // Opening a named pipe would block until a writer appears.
    if !path.metadata().map_err(unreadable)?.is_file() {
        return Err(PinError::NotAFile(path.to_path_buf()));
    }
    let mut file = File::open(path).map_err(unreadable)?.take(FILE_BYTES_MAX + 1);
    let mut sum = Sha256::new();
    if io::copy(&mut file, &mut sum).map_err(unreadable)? > FILE_BYTES_MAX {
        return Err(PinError::TooLarge(path.to_path_buf()));
    }
    Ok(sum.finalize())
}

fn joined(parts: &[Sha256Sum]) -> String {
    match parts {
        [one] => format!("{one:x}"),
        several => format!("{:x}", Sha256::digest(several.concat())),
    }
}
