//! The crate's build script, which runs when a file of the crate has changed. It names the code that folds logs, so that a
//! saved state of another build is not taken for one of this build.

#![expect(clippy::disallowed_methods, reason = "a build script reads files; the crate does not")]

use std::path::Path;
use std::{env, fs, io};

use sha2::{Digest, Sha256};

fn main() -> io::Result<()> {
    let mut files: Vec<_> = fs::read_dir(".")?.filter_map(|file| Some(file.ok()?.path())).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "rs"));
    files.sort();
    let mut digest = Sha256::new();
    for path in &files {
        // A checkout on Windows may have other ends of lines.
        digest.update(fs::read_to_string(path)?.replace('\r', ""));
    }
    let name: String = digest.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let out = env::var_os("OUT_DIR").unwrap_or_default();
    fs::write(Path::new(&out).join("fold_id.txt"), name)
}
