//! The fixtures.

use std::path::PathBuf;

use epitome_transcript::Fixture;

pub fn fixtures_directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("protocol-fixtures")
}

/// All fixtures: name, path and text, sorted by name.
pub fn fixture_files() -> Vec<(String, PathBuf, String)> {
    let entries = std::fs::read_dir(fixtures_directory()).expect("the fixtures are in the repository");
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.expect("the directory can be read").path();
        if path.extension().is_some_and(|extension| extension == "txt") {
            let name = path.file_stem().expect("a file has a name").to_string_lossy().into_owned();
            let text = std::fs::read_to_string(&path).expect("a fixture is text");
            files.push((name, path, text));
        }
    }
    files.sort();
    files
}

pub fn parse(name: &str, text: &str) -> Fixture {
    Fixture::parse(text).unwrap_or_else(|error| panic!("{name}.txt: {error}"))
}
