//! Checks the configuration files that users copy into their editors.
//!
//! JSON is parsed. Lua and Emacs Lisp are not: only their brackets, strings and comments are checked, and that they
//! start the right program. Whether an editor accepts the files is not checked.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

const PROGRAM: &str = "/absolute/path/to/epitome";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("editors")
}

fn text(path: &str) -> String {
    std::fs::read_to_string(folder().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn parsed(path: &str) -> Value {
    serde_json::from_str(&text(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn zed_jetbrains_and_vs_code_start_epitome_with_acp() {
    let start = |server: &Value| (server["command"].clone(), server["args"].clone(), server["env"].clone());
    let wanted = (json!(PROGRAM), json!(["acp"]), json!({}));
    let zed = parsed("zed/settings.json");
    assert_eq!(start(&zed["agent_servers"]["Epitome"]), wanted);
    assert_eq!(zed["agent_servers"]["Epitome"]["type"], "custom");
    assert_eq!(start(&parsed("jetbrains/acp.json")["agent_servers"]["Epitome"]), wanted);
    let code = parsed("vscode/settings.json");
    assert_eq!(start(&code["acp.agents"]["Epitome"]), wanted);
    assert_eq!(code["acp.autoApprovePermissions"], "ask");
}

#[test]
fn the_zed_keymap_opens_the_agent_of_its_settings() {
    let bindings = &parsed("zed/keymap.json")[0]["bindings"];
    let action = bindings.as_object().and_then(|keys| keys.values().next()).expect("a key is bound");
    assert_eq!(action[0], "agent::NewExternalAgentThread");
    assert_eq!(action[1]["agent"]["custom"]["name"], "Epitome");
}

#[test]
fn acpx_has_the_command_in_one_line() {
    assert_eq!(parsed("acpx/config.json")["agents"]["epitome"]["command"], format!("{PROGRAM} acp"));
}

#[test]
fn lua_files_are_balanced_and_start_epitome_with_acp() {
    for (path, start) in [
        ("neovim/codecompanion.lua", format!(r#"default = {{ "{PROGRAM}", "acp" }}"#)),
        ("neovim/avante.lua", format!("command = \"{PROGRAM}\",\n      args = {{ \"acp\" }}")),
    ] {
        let text = text(path);
        assert!(text.contains(&start), "{path}");
        let words = balanced(&text, "--").unwrap_or_else(|error| panic!("{path}: {error}"));
        let count = |word: &str| words.iter().filter(|found| *found == word).count();
        assert_eq!(count("function"), count("end"), "{path}: each function has its end");
    }
}

#[test]
fn the_emacs_file_is_balanced_and_starts_epitome_with_acp() {
    let text = text("emacs/epitome.el");
    balanced(&text, ";").unwrap_or_else(|error| panic!("{error}"));
    assert!(text.contains(&format!(":command \"{PROGRAM}\"")) && text.contains(":command-params '(\"acp\")"));
    assert!(
        text.lines().next().is_some_and(|line| line.contains("lexical-binding: t")),
        "the lambda is a closure"
    );
}

#[test]
fn the_readme_shows_each_file_verbatim() {
    let page = text("README.md");
    let mut files = 0;
    for editor in std::fs::read_dir(folder()).expect("the folder is there").flatten() {
        // The registry entry does not belong to an editor.
        if !editor.path().is_dir() || editor.file_name() == "registry" {
            continue;
        }
        for file in std::fs::read_dir(editor.path()).expect("it can be listed").flatten() {
            let path = file.path();
            let name =
                path.strip_prefix(folder()).expect("it lies below").to_string_lossy().replace('\\', "/");
            let shown = page.split_once(&format!("`{name}`:\n\n```")).map(|(_, behind)| behind);
            let shown = shown.unwrap_or_else(|| panic!("README.md does not show {name}"));
            let (_, shown) = shown.split_once('\n').expect("a language follows the fence");
            let shown = shown.split_once("```").expect("the fence is closed").0;
            assert_eq!(shown, text(&name), "{name} differs from what README.md shows");
            files += 1;
        }
    }
    assert_eq!(files, 8);
}

#[test]
fn the_bracket_check_finds_errors() {
    assert!(balanced("(a \"(\" ; )\n)", ";").is_ok());
    for (wrong, comment) in [("(a", ";"), ("(a]", ";"), ("a)", ";"), ("\"a", ";"), ("{ -- }", "--")] {
        assert!(balanced(wrong, comment).is_err(), "{wrong}");
    }
}

/// Checks brackets and strings; returns the words outside of strings and comments.
fn balanced(text: &str, comment: &str) -> Result<Vec<String>, String> {
    let mut open = Vec::new();
    let mut words = vec![String::new()];
    for (index, line) in text.lines().enumerate() {
        let mut in_string = false;
        let mut characters = line.char_indices();
        while let Some((at, character)) = characters.next() {
            let wrong = || format!("line {}: {character:?} does not fit", index + 1);
            match character {
                '\\' if in_string => drop(characters.next()),
                '"' => in_string = !in_string,
                _ if in_string => {}
                _ if line[at..].starts_with(comment) => break,
                '(' => open.push(')'),
                '[' => open.push(']'),
                '{' => open.push('}'),
                ')' | ']' | '}' if open.pop() != Some(character) => return Err(wrong()),
                _ => {}
            }
            let is_word = !in_string && (character.is_alphanumeric() || character == '_');
            match words.last_mut() {
                Some(word) if is_word => word.push(character),
                _ => words.push(String::new()),
            }
        }
        if in_string {
            return Err(format!("line {}: a string is not closed", index + 1));
        }
        words.push(String::new());
    }
    if open.is_empty() { Ok(words) } else { Err(format!("{} brackets are not closed", open.len())) }
}

/// The build of the ACP registry rejects an entry whose version differs from the one in its addresses, and icons with
/// fixed colors.
#[test]
fn the_registry_entry_is_of_this_version() {
    let entry = parsed("registry/epitome/agent.json");
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!((&entry["id"], &entry["version"]), (&json!("epitome"), &json!(version)));
    let targets = entry["distribution"]["binary"].as_object().expect("there are binaries");
    assert!(targets.keys().all(|platform| platform.starts_with("linux-")), "Epitome runs on Linux only");
    for (platform, target) in targets {
        let archive = target["archive"].as_str().unwrap_or_default();
        assert!(archive.contains(&format!("/v{version}/epitome-{version}-")), "{platform}: {archive}");
        assert_eq!((&target["cmd"], &target["args"]), (&json!("./epitome"), &json!(["acp"])), "{platform}");
        assert!(target.as_object().is_some_and(|target| target.len() == 3), "{platform} has other keys");
    }
    let icon = text("registry/epitome/icon.svg");
    assert!(icon.contains(r#"width="16" height="16""#));
    let paints = icon.split("fill=\"").skip(1).chain(icon.split("stroke=\"").skip(1));
    for paint in paints.filter_map(|rest| rest.split('"').next()) {
        assert!(matches!(paint, "currentColor" | "none" | "inherit"), "{paint}");
    }
}
