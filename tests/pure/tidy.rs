//! Checks rules of the workspace that neither Cargo nor Clippy can check.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use toml::Table;

/// External crates that only these members may use. The conformance suite uses the official protocol types to check
/// other agents, and the chat is a client like any other.
const PRIVATE_CRATES: [(&str, &[&str]); 8] = [
    ("sled", &["store"]),
    ("agent-client-protocol", &["acp", "acp_check", "ahp", "chat", "client"]),
    ("ahp", &["ahp"]),
    ("ratatui", &["chat"]),
    ("reqwest", &["provider"]),
    ("jsonrpsee", &["daemon"]),
    ("rmcp", &["mcp"]),
    ("jsonrpsee-types", &["daemon"]),
];

/// The rooms below `src`, from the bottom.
const ROOMS: [&str; 7] = ["core", "world", "models", "tools", "service", "front", "programs"];

/// Crates that the members of the room `core`, which are pure, may not use.
const IMPURE: [&str; 5] = ["tokio", "reqwest", "notify", "sled", "platform"];

/// Limits on the session: fields of `Session` and of its `Core`, fields of any other struct, files with an `impl` of
/// `Core`, and methods of the two. All methods of `Session` stand below `actor`, and no function takes a session beside
/// them. Lower the limits when components take over parts of the session; never raise them.
const CORE_FIELDS_MAX: usize = 12;
const SESSION_FIELDS_MAX: usize = 15;
const SESSION_FILES_MAX: usize = 31;
const SESSION_METHODS_MAX: usize = 245;
const CORE_FILES_MAX: usize = 21;
const CORE_METHODS_MAX: usize = 77;

/// Limits on imports: for each crate below `src`, the files of its largest circle and the arrows in all its circles. A
/// crate that is not listed has circles of at most three files. Never raise them.
const CIRCLES_MAX: [(&str, usize, usize); 3] = [("cli", 4, 10), ("session", 3, 5), ("tools", 4, 11)];
const SMALL_CIRCLE: usize = 3;

/// Lines of code below `src`, without tests, comments and blank lines. Never raise it.
const CODE_LINES_MAX: usize = 139_339;

#[test]
fn the_drawing_shows_every_crate_in_its_room_above_its_dependencies() {
    let drawn = drawing();
    let members: BTreeSet<String> = members().into_iter().collect();
    assert_eq!(members, drawn.keys().cloned().collect());
    let height = |room: &str| ROOMS.iter().position(|it| *it == room).expect("a room");
    for member in &members {
        let room = &drawn[member];
        assert!(folder_of(member).ends_with(&format!("{room}/{member}")), "{member} is drawn in {room}");
        for (name, is_ours) in dependencies(member) {
            // The conformance suite runs other agents with the tests' scripted model, which is not in `src`.
            let is_drawn = is_ours && drawn.contains_key(&name);
            assert!(
                !is_drawn || height(&drawn[&name]) <= height(room),
                "{member} is drawn below {name}, which it uses"
            );
        }
    }
}

#[test]
fn the_program_links_none_of_what_few_use() {
    assert_eq!(listed("default-members"), ["."]);
    let mut linked = BTreeSet::new();
    let mut pending = dependencies_in("Cargo.toml");
    while let Some((name, is_ours)) = pending.pop() {
        if linked.insert(name.clone()) && is_ours {
            pending.extend(dependencies(&name));
        }
    }
    for name in ["import", "ahp", "acp_check", "transcript", "scripted_model", "rusqlite"] {
        assert!(!linked.contains(name), "the program links {name}");
    }
}

/// What compacts a text into another one runs where there is no thread, no socket and no database, in WebAssembly for example. It
/// linked all of them, by the crate that also finds sessions on this machine.
#[test]
fn transcripts_are_compacted_without_a_system() {
    let mut cargo = std::process::Command::new(env!("CARGO"));
    cargo.args(["tree", "--offline", "--edges", "normal", "--prefix", "none", "-p", "epitome-compact"]);
    let tree = cargo.arg("--no-default-features").current_dir(env!("CARGO_MANIFEST_DIR")).output();
    let tree = String::from_utf8(tree.expect("cargo runs").stdout).expect("text");
    let linked: BTreeSet<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(linked.contains("epitome-compaction"), "{tree}");
    for name in ["tokio", "mio", "hyper", "reqwest", "rusqlite", "sled", "epitome-platform", "epitome-files"]
    {
        assert!(!linked.contains(name), "it links {name}");
    }
}

#[test]
fn some_external_crates_have_one_user_only() {
    for member in members() {
        let used: Vec<String> = dependencies(&member).into_iter().map(|(name, _)| name).collect();
        for (name, owners) in PRIVATE_CRATES {
            assert!(
                owners.contains(&member.as_str()) || !used.iter().any(|used| used == name),
                "{member} uses {name}"
            );
        }
        for name in IMPURE {
            let is_pure = folder_of(&member).starts_with("src/core/");
            assert!(!is_pure || !used.iter().any(|used| used == name), "{member} is pure and uses {name}");
        }
    }
}

#[test]
fn every_file_begins_with_documentation() {
    for (path, text) in sources() {
        assert!(text.starts_with("//!"), "{} does not begin with //!", path.display());
    }
}

/// With 13 types called `Kind` and 15 called `State`, neither a search nor an error message identified a type.
#[test]
fn type_names_are_unique() {
    let mut owners: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    // Either the one or the other is compiled, with the same types.
    let of_others = ["portable", "windows"];
    let is_compiled =
        |path: &Path| !path.components().any(|part| of_others.iter().any(|other| part.as_os_str() == *other));
    for (path, text) in sources().into_iter().filter(|(path, _)| is_compiled(path)) {
        for name in type_names(&text) {
            owners.entry(name.to_owned()).or_default().push(path.clone());
        }
    }
    assert!(owners.len() > 500, "the types were not found");
    let repeated: Vec<_> = owners.into_iter().filter(|(_, paths)| paths.len() > 1).collect();
    assert!(repeated.is_empty(), "several types have the same name: {repeated:#?}");
}

#[test]
fn associated_types_may_repeat() {
    let text = "pub struct A;\nimpl B for A {\n    type C = A;\n}\nmod d {\n    pub(super) enum E {}\n    type F = A;\n}\n";
    assert_eq!(type_names(text), ["A", "E", "F"]);
}

#[test]
fn the_session_is_a_core_that_only_shrinks() {
    let session = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/service/session");
    let texts: Vec<String> =
        sources().into_iter().filter(|(path, _)| path.starts_with(&session)).map(|(_, text)| text).collect();
    let fields = |is_wanted: &dyn Fn(&str) -> bool| {
        let structs =
            texts.iter().flat_map(|text| blocks(text, |head| is_item(head, "struct ") && is_wanted(head)));
        structs.map(|body| members_of(&body, |line| line.contains(": "))).max().unwrap_or(0)
    };
    let is_core = |head: &str| [" Session {", " Core {"].iter().any(|name| head.ends_with(name));
    for (found, max) in [(fields(&is_core), CORE_FIELDS_MAX), (fields(&|_| true), SESSION_FIELDS_MAX)] {
        assert!(found <= max, "a struct has {found} fields");
    }
    for (name, files_max, methods_max) in
        [("Session", SESSION_FILES_MAX, SESSION_METHODS_MAX), ("Core", CORE_FILES_MAX, CORE_METHODS_MAX)]
    {
        let head = format!("impl {name} {{");
        let (mut files, mut methods) = (0, 0);
        for text in &texts {
            let implementations = blocks(text, |line| line == head);
            files += usize::from(!implementations.is_empty());
            let is_method = |line: &str| is_item(line.trim_start(), "fn ");
            methods += implementations.iter().map(|body| members_of(body, is_method)).sum::<usize>();
        }
        println!("{name}: {files} files, {methods} methods");
        assert!(files <= files_max, "{files} files have an `impl {name}`");
        assert!(methods <= methods_max, "`{name}` has {methods} methods");
    }
}

#[test]
fn only_the_actor_changes_a_session() {
    let session = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/service/session");
    let is_below_actor =
        |path: &Path| path == session.join("actor.rs") || path.starts_with(session.join("actor"));
    for (path, text) in sources().into_iter().filter(|(path, _)| path.starts_with(&session)) {
        let implements = text.lines().any(|line| line == "impl Session {");
        assert!(!implements || is_below_actor(&path), "{} has an `impl Session`", path.display());
        let mut heads = text.lines().filter(|line| is_item(line, "fn "));
        let takes = |head: &str| {
            let words: Vec<&str> = head.split(|character: char| !character.is_alphanumeric()).collect();
            words.contains(&"Session") && (head.contains("&Session") || head.contains("&mut Session"))
        };
        assert!(!heads.any(takes), "a function in {} takes a session", path.display());
    }
}

/// Each line has to be read and maintained. Additions are paid for by deletions.
#[test]
fn the_code_only_shrinks() {
    let is_test =
        |path: &Path| path.iter().any(|part| part == "tests") || path.to_string_lossy().ends_with("tests.rs");
    let is_code = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with("//");
    let texts = sources().into_iter().filter(|(path, _)| !is_test(path)).map(|(_, text)| text);
    let code: usize = texts
        .map(|text| {
            text.split("#[cfg(test)]\nmod tests {").next().unwrap_or("").lines().filter(is_code).count()
        })
        .sum();
    println!("{code} lines of code");
    assert!(code <= CODE_LINES_MAX, "{code} lines of code below src");
}

/// Files that import each other in a circle can only be understood together.
#[test]
fn imports_run_in_few_circles() {
    let mut crates: BTreeMap<String, BTreeMap<Vec<String>, String>> = BTreeMap::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for (path, text) in sources() {
        let below = path.strip_prefix(&root).expect("a source").with_extension("");
        let mut parts: Vec<String> =
            below.iter().map(|part| part.to_str().expect("a name").to_owned()).collect();
        let is_test = |part: &String| {
            ["test", "tests", "benches", "simulation"].contains(&part.as_str())
                || part.ends_with("_test")
                || part.ends_with("_tests")
        };
        if parts.len() < 2 || parts.iter().any(is_test) {
            continue;
        }
        // Below a room are crates; the command line is a module of the package itself.
        let room = parts.remove(0);
        let member = if room == "cli" { room } else { parts.remove(0) };
        parts.pop_if(|last| ["lib", "mod", "main"].contains(&last.as_str()));
        crates.entry(member).or_default().insert(parts, text);
    }
    for (member, files) in crates {
        let arrows = arrows(&files);
        let ahead: BTreeMap<_, _> = files.keys().map(|file| (file, reachable(&arrows, file))).collect();
        let circle =
            |file: &Vec<String>| ahead[file].iter().filter(|other| ahead[*other].contains(file)).count();
        let largest = files.keys().map(circle).max().unwrap_or(0);
        let back = arrows.iter().filter(|(from, to)| ahead[to].contains(from)).count();
        println!("{member}: circle of {largest}, {back} arrows back");
        let listed = CIRCLES_MAX.iter().find(|(name, ..)| *name == member);
        let (largest_max, back_max) =
            listed.map_or((SMALL_CIRCLE, usize::MAX), |(_, circle, back)| (*circle, *back));
        assert!(largest <= largest_max, "{largest} files of {member} import each other in a circle");
        assert!(back <= back_max, "{back} imports of {member} run back up");
    }
}

/// The imports between the files of a crate, by the longest path that names a file.
fn arrows(files: &BTreeMap<Vec<String>, String>) -> BTreeSet<(Vec<String>, Vec<String>)> {
    let mut found = BTreeSet::new();
    for (file, text) in files {
        let text = text.split("#[cfg(test)]\nmod tests {").next().expect("a first part");
        let code: Vec<&str> = text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
        let code = code.join("\n");
        for head in ["super::", "crate::"] {
            for (at, _) in code.match_indices(head) {
                let before = code[..at].chars().next_back();
                if before.is_some_and(|before| before.is_alphanumeric() || before == '_' || before == ':') {
                    continue;
                }
                let mut rest = &code[at..];
                let mut base: &[String] = if head == "crate::" { &[] } else { file };
                rest = rest.strip_prefix("crate::").unwrap_or(rest);
                while let Some(higher) = rest.strip_prefix("super::") {
                    rest = higher;
                    base = &base[..base.len().saturating_sub(1)];
                }
                let names = match rest.strip_prefix('{') {
                    Some(list) => list.split(';').next().unwrap_or_default().split(',').collect(),
                    None => vec![rest],
                };
                for name in names {
                    let is_of_path =
                        |character: char| character.is_alphanumeric() || "_:".contains(character);
                    let path = name.trim_start();
                    let path = &path[..path.find(|character| !is_of_path(character)).unwrap_or(path.len())];
                    let mut target = base.to_vec();
                    target.extend(path.split("::").filter(|part| !part.is_empty()).map(str::to_owned));
                    while target.len() > base.len() && !files.contains_key(&target) {
                        target.pop();
                    }
                    if target.len() > base.len() && target != *file {
                        found.insert((file.clone(), target));
                    }
                }
            }
        }
    }
    found
}

/// The files that a file imports, directly or through others.
fn reachable(arrows: &BTreeSet<(Vec<String>, Vec<String>)>, from: &[String]) -> BTreeSet<Vec<String>> {
    let mut found = BTreeSet::new();
    let mut open = vec![from.to_vec()];
    while let Some(file) = open.pop() {
        for (_, to) in arrows.iter().filter(|(importer, _)| *importer == file) {
            if found.insert(to.clone()) {
                open.push(to.clone());
            }
        }
    }
    found
}

/// The room of each member in the drawing in the crate documentation.
fn drawing() -> BTreeMap<String, String> {
    let text = read("src/lib.rs");
    let drawn =
        text.split("//! # The rooms").nth(1).expect("a chapter").split("```").nth(1).expect("a drawing");
    let mut room = String::new();
    let mut found = BTreeMap::new();
    for line in drawn.lines().filter_map(|line| line.strip_prefix("//! ")) {
        let Some((before, rest)) = line.split_once(['┌', '│', '└', '─']) else { continue };
        if !before.trim().is_empty() {
            before.trim().clone_into(&mut room);
        }
        found.insert(rest.split_whitespace().next().expect("a name").to_owned(), room.clone());
    }
    found
}

/// The directory names of the members that ship; those below `tests/` are for development.
fn members() -> Vec<String> {
    let paths = listed("members").into_iter();
    paths
        .filter(|path| path.starts_with("src/"))
        .filter_map(|path| path.rsplit('/').next().map(str::to_owned))
        .collect()
}

/// The folder of a member.
fn folder_of(member: &str) -> String {
    let mut folders = listed("members").into_iter();
    folders.find(|path| path.rsplit('/').next() == Some(member)).expect("a member of the workspace")
}

/// A list in the workspace manifest.
fn listed(key: &str) -> Vec<String> {
    let root: Table = read("Cargo.toml").parse().expect("a manifest");
    let listed = root["workspace"][key].as_array().expect("a list");
    listed.iter().map(|path| path.as_str().expect("a path").to_owned()).collect()
}

/// A member's dependencies, and whether each is a member.
fn dependencies(member: &str) -> Vec<(String, bool)> {
    dependencies_in(&format!("{}/Cargo.toml", folder_of(member)))
}

fn dependencies_in(manifest: &str) -> Vec<(String, bool)> {
    let manifest: Table = read(manifest).parse().expect("a manifest");
    let Some(named) = manifest.get("dependencies").and_then(|table| table.as_table()) else {
        return Vec::new();
    };
    let ours = |name: &str| name.strip_prefix("epitome-").map(|name| (name.replace('-', "_"), true));
    named.keys().map(|name| ours(name).unwrap_or_else(|| (name.clone(), false))).collect()
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

/// The bodies, as lines, of the top-level items whose first line is wanted.
fn blocks(text: &str, is_wanted: impl Fn(&str) -> bool) -> Vec<Vec<&str>> {
    let mut found = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.ends_with('{') && is_wanted(line) {
            found.push(lines.by_ref().take_while(|line| *line != "}").collect());
        }
    }
    found
}

/// Whether a line begins an item of this kind, whatever its visibility.
fn is_item(line: &str, kind: &str) -> bool {
    let line = line.strip_prefix("pub").map_or(line, |rest| match rest.strip_prefix('(') {
        Some(rest) => rest.split_once(") ").map_or(rest, |(_, rest)| rest),
        None => rest.trim_start(),
    });
    line.strip_prefix("async ").unwrap_or(line).starts_with(kind)
}

/// The types that a file declares, except the associated types of traits and impls.
fn type_names(text: &str) -> Vec<&str> {
    let mut names = Vec::new();
    // Indentation of the `impl` or `trait` whose head or body is being read.
    let (mut head, mut body): (Option<usize>, Option<usize>) = (None, None);
    for line in text.lines() {
        let item = line.trim_start();
        let indent = line.len() - item.len();
        if body == Some(indent) && item.starts_with('}') {
            body = None;
        }
        let is_of_body = body.is_some_and(|outer| indent == outer + 4);
        for kind in ["struct ", "enum ", "trait ", "union ", "type "] {
            if is_item(item, kind) && !(kind == "type " && is_of_body) {
                let start = item.find(kind).expect("the item has its keyword") + kind.len();
                let rest = &item[start..];
                let end = rest.find(|character: char| !character.is_alphanumeric()).unwrap_or(rest.len());
                if rest.starts_with(char::is_uppercase) {
                    names.push(&rest[..end]);
                }
            }
        }
        if body.is_none() && (is_item(item, "impl") || is_item(item, "trait ")) {
            head = Some(indent);
        }
        if item.ends_with(['{', '}', ';']) {
            let opened = head.take();
            body = if item.ends_with('{') { opened.or(body) } else { body };
        }
    }
    names
}

/// The number of direct members in a body.
fn members_of(body: &[&str], is_member: impl Fn(&str) -> bool) -> usize {
    let own = body
        .iter()
        .filter(|line| line.starts_with("    ") && !line[4..].starts_with([' ', '/', '#', '}', ')']));
    own.filter(|line| is_member(line)).count()
}
