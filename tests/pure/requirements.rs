//! Checks `tests/requirements.md`: each row states a requirement that no other row states, and everything that a
//! row names exists. Whether a test shows what its row states is for the reader to judge.

#[path = "../processes/docs/prose.rs"]
mod prose;

use std::collections::BTreeSet;
use std::path::PathBuf;

/// The first two lines of each table.
const HEADER: [&str; 2] = ["| required | shown by |", "| --- | --- |"];

/// The prefixes of the second column if no test shows the requirement directly; a reason follows.
const WITHOUT_TEST: [&str; 2] = ["by design: ", "not done: "];

/// Evidence for a requirement besides tests, which are named `file::test`: the guide, fixtures, scripts of turns, and
/// benchmarks.
const SHOWS: [&str; 4] = ["docs/", "protocol-fixtures/", "tests/turn/", "benches/"];

/// One row of a table.
struct Row {
    required: String,
    shown: String,
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn text(path: &str) -> Option<String> {
    std::fs::read_to_string(root().join(path)).ok()
}

/// The rows of all tables.
fn rows() -> Vec<Row> {
    let page = text("tests/requirements.md").expect("the page exists");
    let mut rows = Vec::new();
    for line in page.lines().filter(|line| line.starts_with('|') && !HEADER.contains(line)) {
        let columns: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [required, shown] = columns[..] else { panic!("a row has two columns: {line}") };
        rows.push(Row { required: required.to_owned(), shown: shown.to_owned() });
    }
    rows
}

/// The texts between backquotes.
fn quoted(shown: &str) -> Vec<&str> {
    shown.split('`').skip(1).step_by(2).collect()
}

#[test]
fn every_row_has_a_unique_text_and_a_second_column() {
    let rows = rows();
    let mut faults = Vec::new();
    let mut known = BTreeSet::new();
    for row in &rows {
        if row.required.is_empty() {
            faults.push(format!("no requirement is stated for {}", row.shown));
        } else if !known.insert(row.required.to_lowercase()) {
            faults.push(format!("stated twice: {}", row.required));
        }
        if row.shown.is_empty() {
            faults.push(format!("the second column is empty: {}", row.required));
        }
    }
    assert!(!rows.is_empty(), "the page has no rows");
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
            faults.push(format!("{}: neither a test nor a reason", row.required));
        }
        for name in named {
            if !exists(name) {
                faults.push(format!("{}: {name} does not exist", row.required));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The number of requirements in each design document.
const DOCUMENTS: [(&str, u32); 5] =
    [("S000", 153), ("S001", 165), ("S002", 78), ("S003", 129), ("S004", 134)];

/// A requirement that no row has a number of can't be traced to its test.
#[test]
fn every_requirement_of_the_design_documents_has_a_row() {
    let mut known: BTreeSet<(String, u32)> = BTreeSet::new();
    let mut faults = Vec::new();
    for Row { required, .. } in rows() {
        let numbers = required.rsplit_once(" (").and_then(|(_, numbers)| numbers.strip_suffix(')'));
        let Some(numbers) = numbers.filter(|numbers| numbers.starts_with("S00")) else {
            faults.push(format!("without a number: {required}"));
            continue;
        };
        for number in numbers.split(' ') {
            let (document, range) = number.split_once('-').expect("a document and a number");
            let (first, last) = range.split_once("..").unwrap_or((range, range));
            let [first, last] = [first, last].map(|at| at.parse::<u32>().expect("a number"));
            known.extend((first..=last).map(|at| (document.to_owned(), at)));
        }
    }
    let all: BTreeSet<(String, u32)> = DOCUMENTS
        .iter()
        .flat_map(|(document, count)| (1..=*count).map(|at| ((*document).to_owned(), at)))
        .collect();
    faults.extend(all.difference(&known).map(|missing| format!("no row has {missing:?}")));
    faults.extend(known.difference(&all).map(|unknown| format!("{unknown:?} is no requirement")));
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Whether a test (`file::test`), a heading of the guide (`file#heading`) or a file exists. Any other name is not a
/// path, and is accepted.
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
