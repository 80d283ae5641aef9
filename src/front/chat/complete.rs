//! Slash commands: those of the session, those of the chat, and what completes a draft. Files that a draft mentions. Pure.

use epitome_session_api::CommandInfo;
use epitome_thread::problem::nearest;

/// Files that are offered for a mention.
const FILES_MAX: usize = 8;

/// A command that the chat carries out without the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChatCommand {
    New,
    Sessions,
    /// With an argument, it is set to that value.
    Option(&'static str),
    Keys,
    Help,
    /// A prompt that has this name here.
    Prompt(&'static str),
    Diff,
    Copy,
    Quit,
}

const OWN: &[(&str, &str, ChatCommand)] = &[
    ("new", "Begin another session", ChatCommand::New),
    ("clear", "Begin another session; this one stays", ChatCommand::New),
    ("sessions", "Open a session, or search those of all directories", ChatCommand::Sessions),
    ("resume", "Open a session, or search those of all directories", ChatCommand::Sessions),
    ("model", "Choose the model", ChatCommand::Option("model")),
    ("mode", "Choose what runs without asking", ChatCommand::Option("mode")),
    ("thinking", "Choose how much the model thinks", ChatCommand::Option("thought_level")),
    ("cost", "Show tokens and cost", ChatCommand::Prompt("/usage")),
    ("diff", "Show the uncommitted changes", ChatCommand::Diff),
    ("copy", "Copy the last reply to the clipboard", ChatCommand::Copy),
    ("help", "List the commands", ChatCommand::Help),
    ("keys", "List the keys", ChatCommand::Keys),
    ("quit", "Leave; the session stays", ChatCommand::Quit),
    ("exit", "Leave; the session stays", ChatCommand::Quit),
];

/// The session's commands, then those of the chat. A recipe may have the name of one of these; it is then not offered.
pub fn commands(mut offered: Vec<CommandInfo>) -> Vec<CommandInfo> {
    let own = |(name, description, _): &(&str, &str, ChatCommand)| CommandInfo {
        name: (*name).to_owned(),
        description: (*description).to_owned(),
        hint: None,
        skill: None,
    };
    offered.retain(|command| OWN.iter().all(|(own, ..)| *own != command.name));
    offered.extend(OWN.iter().map(own));
    offered
}

/// The chat's own command in a draft, and its argument.
pub fn own_command(draft: &str) -> Option<(ChatCommand, &str)> {
    let draft = draft.trim();
    // Users of vi leave so.
    if matches!(draft, ":q" | ":q!" | ":wq") {
        return Some((ChatCommand::Quit, ""));
    }
    let typed = draft.strip_prefix('/')?;
    let (name, rest) = typed.split_once(char::is_whitespace).unwrap_or((typed, ""));
    let (.., command) = OWN.iter().find(|(own, ..)| *own == name)?;
    let takes_argument = matches!(command, ChatCommand::Option(_));
    (rest.is_empty() || takes_argument).then_some((*command, rest.trim()))
}

/// The chat's own commands, for `/help`.
pub fn own_help() -> String {
    let lines = OWN.iter().map(|(name, about, _)| format!("/{name}: {about}\n"));
    format!(
        "Commands of this chat:\n{}!COMMAND: Run a command, and show its output to the agent",
        lines.collect::<String>()
    )
}

/// Why a draft that looks like a command is none; `None` if it is one, or doesn't look like one.
pub fn unknown_command(draft: &str, commands: &[CommandInfo]) -> Option<String> {
    let name = draft.strip_prefix('/')?.split_whitespace().next()?;
    // A path, a comment or a regular expression.
    let is_name = name.starts_with(char::is_alphabetic) && !name.contains('/');
    if !is_name || commands.iter().any(|command| command.name == name) {
        return None;
    }
    let near = nearest(name, commands.iter().map(|command| command.name.as_str()));
    let near = near.map(|near| format!("; did you mean /{near}?")).unwrap_or_default();
    Some(format!("there is no command /{name}{near} · Enter again sends it as text"))
}

/// The files that complete a mention: names before directories, beginnings before other parts, short paths first.
pub fn matching_files<'a>(typed: &str, files: &'a [String]) -> Vec<&'a str> {
    let typed = typed.to_lowercase();
    if files.iter().any(|file| file.to_lowercase() == typed) {
        return Vec::new();
    }
    let rank = |file: &&String| {
        let path = file.to_lowercase();
        let name = path.rsplit('/').next().unwrap_or(&path);
        let rank = match () {
            // A mention ends at a blank.
            () if path.contains(char::is_whitespace) => return None,
            () if name.starts_with(&typed) => 0,
            () if path.starts_with(&typed) => 1,
            () if name.contains(&typed) => 2,
            () if path.contains(&typed) => 3,
            () if is_subsequence(&typed, &path) => 4,
            () => return None,
        };
        Some((rank, file.len()))
    };
    let mut found: Vec<_> = files.iter().filter_map(|file| Some((rank(&file)?, file.as_str()))).collect();
    found.sort_unstable();
    found.into_iter().take(FILES_MAX).map(|(_, file)| file).collect()
}

/// Whether a text contains these characters in their order.
fn is_subsequence(wanted: &str, text: &str) -> bool {
    let mut rest = text.chars();
    wanted.chars().all(|wanted| rest.any(|c| c == wanted))
}

/// The commands that complete a draft: first the command that it is, then those that begin with it, then those that
/// contain it.
pub fn completions<'a>(draft: &str, commands: &'a [CommandInfo]) -> Vec<&'a CommandInfo> {
    let Some(typed) = draft.strip_prefix('/').filter(|typed| !typed.contains(char::is_whitespace)) else {
        return Vec::new();
    };
    let is_it = |command: &&CommandInfo| command.name == typed;
    let begins = |command: &&CommandInfo| !is_it(command) && command.name.starts_with(typed);
    let contains = |command: &&CommandInfo| !command.name.starts_with(typed) && command.name.contains(typed);
    let all = || commands.iter();
    all().filter(is_it).chain(all().filter(begins)).chain(all().filter(contains)).collect()
}

/// The hint about the arguments of the command that a draft begins with, if none has been typed.
pub fn hint<'a>(draft: &str, commands: &'a [CommandInfo]) -> Option<&'a str> {
    let (name, rest) = draft.strip_prefix('/')?.split_once(' ')?;
    let command = commands.iter().find(|command| command.name == name)?;
    command.hint.as_deref().filter(|_| rest.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offered() -> Vec<CommandInfo> {
        let command = |name: &str| CommandInfo {
            name: name.to_owned(),
            description: "does it".to_owned(),
            hint: Some("[dry]".to_owned()),
            skill: None,
        };
        commands(["compact", "context", "undo", "quit"].map(command).to_vec())
    }

    #[test]
    fn drafts_are_completed_by_the_beginning_of_names() {
        let commands = offered();
        for (draft, expected) in [
            ("/comp", vec!["compact"]),
            ("/con", vec!["context"]),
            ("/und", vec!["undo"]),
            ("/ess", vec!["sessions"]),
            ("/mod", vec!["model", "mode"]),
            ("/mode", vec!["mode", "model"]),
            ("/compact ", vec![]),
            ("/nothing", vec![]),
            ("compact", vec![]),
            ("", vec![]),
            ("a /comp", vec![]),
        ] {
            let names: Vec<&str> = completions(draft, &commands).iter().map(|c| c.name.as_str()).collect();
            assert_eq!(names, expected, "{draft:?}");
        }
        assert_eq!(commands.iter().filter(|command| command.name == "quit").count(), 1);
    }

    #[test]
    fn the_hint_is_for_a_command_without_arguments() {
        let commands = offered();
        for (draft, expected) in
            [("/compact ", Some("[dry]")), ("/compact", None), ("/compact dry", None), ("/new ", None)]
        {
            assert_eq!(hint(draft, &commands), expected, "{draft:?}");
        }
    }

    #[test]
    fn only_a_whole_draft_is_a_command_of_the_chat() {
        assert_eq!(own_command("/quit "), Some((ChatCommand::Quit, "")));
        assert_eq!(own_command("/quit now"), None);
        assert_eq!(own_command("quit"), None);
        assert_eq!(own_command("/model a/b "), Some((ChatCommand::Option("model"), "a/b")));
    }

    /// Mistyped commands were sent to the model, and paid for.
    #[test]
    fn what_looks_like_a_command_and_is_none_is_named() {
        let commands = offered();
        for (draft, expected) in [
            ("/compcat", Some("did you mean /compact?")),
            ("/zzz now", Some("no command /zzz ·")),
            ("/compact dry", None),
            ("/usr/bin is full", None),
            ("/* a comment */", None),
            ("no command", None),
        ] {
            let why = unknown_command(draft, &commands);
            assert_eq!(why.is_some(), expected.is_some(), "{draft}: {why:?}");
            assert!(why.unwrap_or_default().contains(expected.unwrap_or_default()), "{draft}");
        }
    }

    #[test]
    fn files_are_found_by_parts_of_their_paths() {
        let files: Vec<String> = [
            "src/main.rs",
            "src/lib.rs",
            "old/src/lib.rs",
            "main.md",
            "docs/domain.md",
            "x/Makefile",
            "my main.rs",
        ]
        .map(str::to_owned)
        .to_vec();
        for (typed, expected) in [
            ("main", vec!["main.md", "src/main.rs", "docs/domain.md"]),
            ("src/", vec!["src/lib.rs", "src/main.rs", "old/src/lib.rs"]),
            ("slr", vec!["src/lib.rs", "old/src/lib.rs"]),
            ("make", vec!["x/Makefile"]),
            // Enter sends a name that is complete, and another one may contain it.
            ("src/lib.rs", vec![]),
            ("zzz", vec![]),
        ] {
            assert_eq!(matching_files(typed, &files), expected, "{typed}");
        }
    }
}
