//! Checks that the code follows its documented rules: module imports, beginnings of files, and output to
//! stdout.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Crates that only one module may name.
const PRIVATE_CRATES: [(&str, &str); 6] = [
    ("sled", "store"),
    ("agent_client_protocol", "acp"),
    ("reqwest", "provider"),
    ("jsonrpsee", "daemon"),
    ("rmcp", "mcp"),
    ("jsonrpsee_types", "daemon"),
];

#[test]
fn modules_import_only_what_the_table_in_lib_rs_allows() {
    let table = import_table();
    let mut faults = Vec::new();
    for (path, text) in sources() {
        let module = module_of(&path);
        let Some(allowed) = table.get(&module) else {
            if !matches!(module.as_str(), "lib" | "main") {
                faults.push(format!("{}: {module} is not in the table", path.display()));
            }
            continue;
        };
        for (at, line) in text.lines().enumerate() {
            if line.trim_start().starts_with("//") {
                continue;
            }
            for imported in crate_paths(line) {
                if imported != module && table.contains_key(&imported) && !allowed.contains(&imported) {
                    faults.push(format!("{}:{}: {module} imports {imported}", path.display(), at + 1));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn the_table_lists_every_module() {
    let table: BTreeSet<String> = import_table().into_keys().collect();
    let declared: BTreeSet<String> = read("src/lib.rs")
        .lines()
        .filter_map(|line| Some(line.strip_prefix("pub mod ")?.strip_suffix(';')?.to_owned()))
        .collect();
    assert_eq!(table, declared);
}

#[test]
fn private_crates_are_named_by_one_module_only() {
    for (path, text) in sources() {
        let module = module_of(&path);
        for (name, owner) in PRIVATE_CRATES {
            let names = |line: &str| {
                !line.trim_start().starts_with("//")
                    && (line.contains(&format!("{name}::")) || line.contains(&format!("use {name};")))
            };
            let named = text.lines().any(names);
            assert!(!named || module == owner, "{} names {name}, which is {owner}'s", path.display());
        }
    }
}

#[test]
fn every_file_begins_with_a_doc_comment() {
    for (path, text) in sources() {
        assert!(text.starts_with("//!"), "{} does not begin with //!", path.display());
    }
}

#[test]
fn only_the_command_line_prints() {
    for (path, text) in sources() {
        if matches!(module_of(&path).as_str(), "cli" | "main") {
            continue;
        }
        for (at, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            let prints = ["println!(", "print!(", "dbg!("].iter().any(|print| code.contains(print));
            assert!(!prints, "{}:{} prints, and stdout is the wire", path.display(), at + 1);
        }
    }
}

/// The imports allowed for each module, from the table in the crate's documentation.
fn import_table() -> BTreeMap<String, BTreeSet<String>> {
    let text = read("src/lib.rs");
    let rows = text.lines().filter_map(|line| line.strip_prefix("//! | `"));
    let table: BTreeMap<String, BTreeSet<String>> = rows
        .map(|row| {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            let allowed = cells[2].split(',').map(|name| name.trim().to_owned());
            (cells[0].trim_end_matches('`').to_owned(), allowed.filter(|name| !name.is_empty()).collect())
        })
        .collect();
    assert!(table.len() > 10, "the table was not found");
    table
}

/// The modules that a line names as `crate::MODULE`.
fn crate_paths(line: &str) -> Vec<String> {
    line.split("crate::")
        .skip(1)
        .map(|rest| rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect())
        .collect()
}

fn module_of(path: &Path) -> String {
    let inside = path.strip_prefix(Path::new(env!("CARGO_MANIFEST_DIR")).join("src")).expect("a source file");
    let first = inside.components().next().expect("a name").as_os_str().to_string_lossy().into_owned();
    first.trim_end_matches(".rs").to_owned()
}

fn sources() -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a readable folder") {
            let path = entry.expect("a readable entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).expect("a readable file");
                found.push((path, text));
            }
        }
    }
    found.sort();
    assert!(found.len() > 50, "the sources were not found");
    found
}

fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).expect("a readable file")
}
