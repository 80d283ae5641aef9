//! Files that users write or import, and the output of their hooks.

use std::path::{Path, PathBuf};

use epitome_config::Settings;
use epitome_files::paths::Paths;
use epitome_hooks::claude;
use epitome_hooks::event::HookEvent;
use epitome_hooks::hook::HookOrigin;
use epitome_hooks::normalise::normalise;
use epitome_hooks::read::{self, ParsedStdout};
use epitome_import::ImportContext;
use epitome_recipe::agents;
use epitome_recipe::command::bind;
use epitome_recipe::parse::{self, RecipeSource};
use epitome_recipe::render::{RenderContext, Rendered, ShellOutputs, render};
use epitome_thread::{Change, SessionId, Thread};
use epitome_transfer::json_lines;

/// Parses a recipe or an agent. If it can be parsed, it can be rendered, or rendering returns an error.
pub fn recipe(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let source = || RecipeSource::User(PathBuf::from("/r/x.md"));
    drop(agents::parse(source(), &text));
    let Ok(parsed) = parse::parse("x", source(), &text) else { return };
    let arguments = ["", "one \"two words\" --flag=3 'x", "$1 $ARGUMENTS {{.x}} !`id`"];
    for arguments in arguments.iter().filter_map(|arguments| bind(&parsed.recipe, arguments).ok()) {
        let outputs = ShellOutputs::default();
        match render(&parsed.recipe, &arguments, &RenderContext::default(), &outputs) {
            Ok(Rendered::Needs(calls)) => {
                let outputs = calls.into_iter().map(|call| (call, "$1 !`id`".to_owned())).collect();
                drop(render(&parsed.recipe, &arguments, &RenderContext::default(), &outputs));
            }
            Ok(Rendered::Done(_)) => {}
            Err(problem) => assert!(!problem.message.is_empty()),
        }
    }
}

/// Reads the standard output of a hook, at every event.
pub fn hook_output(bytes: &[u8]) {
    if let ParsedStdout::Object { object, .. } = read::read(bytes) {
        for event in HookEvent::ALL {
            normalise(event, &object);
        }
    }
}

/// Parses Claude Code's settings. Each hook that is not used is reported with a position in the file.
pub fn hook_settings(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let path = Path::new("/w/.claude/settings.json");
    let (_, problems) = claude::parse(path, &text, HookOrigin::User, Path::new("/w"));
    let lines = text.split('\n').count() as u64;
    for problem in problems {
        let line = problem.position.map_or(1, |(line, _)| line);
        assert!((1..=lines).contains(&line), "line {line} of {lines}: {}", problem.message);
    }
}

/// Loads a configuration file. An invalid one never prevents a start.
pub fn config(bytes: &[u8]) {
    let home = tempfile::tempdir().expect("a temporary directory");
    let paths = Paths::below(home.path());
    let file = paths.config_file();
    std::fs::create_dir_all(file.parent().expect("it is in a directory")).expect("made");
    std::fs::write(&file, bytes).expect("written");
    let (_, problems) = Settings::load(&paths, None, |_| None);
    for problem in problems {
        assert!(problem.path == file && !problem.message.is_empty(), "{problem:?}");
    }
    String::from_utf8_lossy(bytes).lines().for_each(|line| drop(epitome_config::rules::parse(line)));
}

/// Imports a conversation of another agent. The result is a valid log, and can be exported and imported again.
pub fn import(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let context = ImportContext { cwd: Path::new("/w"), now: 1, read_sibling: &|_| None };
    let Ok(drafts) = epitome_import::read(Path::new("/x/a.jsonl"), &text, &context) else { return };
    for draft in drafts {
        let is_empty = draft.entries.len() <= 1;
        let session = SessionId("s_00000000000000000001".into());
        let entries = draft.into_entries(&session);
        assert!(matches!(entries[0].change, Change::Opened { .. }), "a log begins with `Opened`");
        let thread = Thread::replay(entries.clone()).expect("a valid log");
        assert_eq!(thread.next_seq().0, entries.len() as u64);
        let exported = json_lines(&session, &entries).expect("entries are JSON");
        let again = epitome_import::read(Path::new("/x/a.jsonl"), &exported, &context);
        assert!(is_empty || again.is_ok(), "{again:?}");
    }
}
