//! Build script: computes a digest of the program's sources, which distinguishes two builds of the same version but
//! is the same for copies of one build.

#![expect(clippy::print_stdout, reason = "a build script prints its instructions for Cargo")]

use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};

/// The sources of the program, relative to this crate. If the crate is built from its own package they don't exist;
/// then only its own sources are hashed, and the version distinguishes builds.
const SOURCES: [&str; 4] = ["../../src", "../../recipes", "../../Cargo.toml", "../../Cargo.lock"];

fn main() {
    let mut files = Vec::new();
    let is_in_workspace = SOURCES.iter().all(|source| Path::new(source).exists());
    let sources: &[&str] = if is_in_workspace { &SOURCES } else { &["."] };
    for source in sources {
        println!("cargo::rerun-if-changed={source}");
        collect(Path::new(source), &mut files);
    }
    files.sort();
    let mut digest = DefaultHasher::new();
    for file in files {
        digest.write(file.as_os_str().as_encoded_bytes());
        // If a file disappears in the meantime, the compiler notices.
        digest.write(&fs::read(&file).unwrap_or_default());
        digest.write_u8(0xff);
    }
    println!("cargo::rustc-env=EPITOME_SOURCES={:016x}", digest.finish());
}

fn collect(path: &Path, files: &mut Vec<PathBuf>) {
    match fs::read_dir(path) {
        Ok(entries) => entries.flatten().for_each(|entry| collect(&entry.path(), files)),
        Err(_) => files.push(path.to_path_buf()),
    }
}
