//! Names the code that folds logs, so that a saved state of another build is not taken for one of this build.

use std::path::Path;
use std::{env, fs, io};

use sha2::{Digest, Sha256};

fn main() -> io::Result<()> {
    let mut files: Vec<_> = fs::read_dir(".")?.filter_map(|file| Some(file.ok()?.path())).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "rs"));
    files.sort();
    let mut digest = Sha256::new();
    for path in &files {
        println!("cargo:rerun-if-changed={}", path.display());
        // A checkout on Windows may have other ends of lines.
        digest.update(fs::read_to_string(path)?.replace('\r', ""));
    }
    let name: String = digest.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let out = env::var_os("OUT_DIR").unwrap_or_default();
    fs::write(Path::new(&out).join("fold_id.txt"), name)
}
