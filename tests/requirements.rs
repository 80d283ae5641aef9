//! Checks `tests/requirements.md`: each requirement is in exactly one line, and everything that a line names
//! exists. Whether a test proves what its line says is for the reader to judge.

#[path = "docs/prose.rs"]
mod prose;

use std::collections::BTreeMap;
use std::path::PathBuf;

/// The documents, and the requirement numbers of each.
const DOCUMENTS: [(&str, &str); 5] =
    [("S000", "1-153"), ("S001", "1-165"), ("S002", "1-78"), ("S003", "1-129"), ("S004", "1-134")];

/// The prefixes of the third column if there is no test.
const WITHOUT_TEST: [&str; 2] = ["by design: ", "not done: "];

/// Locations of fixtures, scripts, measures and the guide; tests are named after `::`.
const SHOWS: [&str; 4] = ["docs/", "protocol-fixtures/", "tests/turn/", "benches/"];

/// One line of a table.
struct Row {
    document: String,
    numbers: Vec<u32>,
    shown: String,
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn text(path: &str) -> Option<String> {
    std::fs::read_to_string(root().join(path)).ok()
}

fn rows() -> Vec<Row> {
    let table = text("tests/requirements.md").expect("the table is there");
    let mut document = String::new();
    let mut rows = Vec::new();
    for line in table.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            document = title.split(':').next().unwrap_or_default().to_owned();
        }
        let columns: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [numbers, _, shown] = columns[..] else { continue };
        if numbers.starts_with(|c: char| c.is_ascii_digit()) {
            rows.push(Row { document: document.clone(), numbers: parsed(numbers), shown: shown.to_owned() });
        }
    }
    rows
}

/// Expands `1-3, 8` to 1, 2, 3 and 8.
fn parsed(numbers: &str) -> Vec<u32> {
    let number = |text: &str| text.parse::<u32>().unwrap_or_else(|_| panic!("no number: {numbers}"));
    let parts = numbers.split(", ").map(|part| part.split_once('-').unwrap_or((part, part)));
    parts.flat_map(|(first, last)| number(first)..=number(last)).collect()
}

/// The texts between backquotes.
fn quoted(shown: &str) -> Vec<&str> {
    shown.split('`').skip(1).step_by(2).collect()
}

#[test]
fn every_requirement_is_in_exactly_one_line() {
    let mut faults = Vec::new();
    let rows = rows();
    for (document, numbers) in DOCUMENTS {
        let wanted = parsed(numbers);
        let mut count: BTreeMap<u32, u32> = wanted.iter().map(|number| (*number, 0)).collect();
        for number in rows.iter().filter(|row| row.document == document).flat_map(|row| &row.numbers) {
            *count.entry(*number).or_default() += 1;
        }
        for (number, count) in count {
            match (wanted.contains(&number), count) {
                (true, 1) => {}
                (true, 0) => faults.push(format!("{document}-{number} is missing")),
                (true, _) => faults.push(format!("{document}-{number} is there {count} times")),
                (false, _) => faults.push(format!("{document}-{number} does not stand here")),
            }
        }
    }
    let known = |row: &Row| DOCUMENTS.iter().any(|(document, _)| *document == row.document);
    assert!(rows.iter().all(known), "a line stands below no document");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn everything_named_in_the_table_exists() {
    let mut faults = Vec::new();
    for row in rows() {
        let named = quoted(&row.shown);
        let shows = |name: &&str| SHOWS.iter().any(|start| name.starts_with(start)) || name.contains("::");
        let explained = WITHOUT_TEST.iter().any(|word| row.shown.starts_with(word));
        if !explained && (named.is_empty() || !named.iter().all(shows)) {
            faults.push(format!("{} {:?}: neither a test nor a reason", row.document, row.numbers));
        }
        for name in named {
            if !exists(name) {
                faults.push(format!("{} {:?}: there is no {name}", row.document, row.numbers));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Whether a name refers to something: `file::test`, `file#heading` of the guide, or a file. Any other name
/// is not a path, and is accepted.
fn exists(name: &str) -> bool {
    if let Some((file, test)) = name.split_once("::").filter(|(file, _)| file.ends_with(".rs")) {
        return text(file).is_some_and(|text| text.contains(&format!("fn {test}(")));
    }
    if let Some((file, anchor)) = name.split_once('#') {
        return text(file).is_some_and(|text| prose::anchors(&text).iter().any(|known| known == anchor));
    }
    let is_path = ["src/", "tests/", "docs/", "protocol-fixtures/", "benches/"];
    !is_path.iter().any(|start| name.starts_with(start)) || root().join(name).exists()
}
