//! Slash commands: those of the session, those of the chat, and what completes a draft. Pure.

use epitome_session_api::CommandInfo;

/// A command that the chat carries out without the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChatCommand {
    New,
    Sessions,
    Option(&'static str),
    Keys,
    Quit,
}

const OWN: &[(&str, &str, ChatCommand)] = &[
    ("new", "Begin another session", ChatCommand::New),
    ("sessions", "Open a session of this directory", ChatCommand::Sessions),
    ("model", "Choose the model", ChatCommand::Option("model")),
    ("mode", "Choose what runs without a question", ChatCommand::Option("mode")),
    ("thinking", "Choose how much the model thinks", ChatCommand::Option("thought_level")),
    ("keys", "List the keys", ChatCommand::Keys),
    ("quit", "Leave; the session stays", ChatCommand::Quit),
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

/// The chat's own command in a draft.
pub fn own_command(draft: &str) -> Option<ChatCommand> {
    let name = draft.trim().strip_prefix('/')?;
    OWN.iter().find(|(own, ..)| *own == name).map(|(.., command)| *command)
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
        assert_eq!(own_command("/quit "), Some(ChatCommand::Quit));
        assert_eq!(own_command("/quit now"), None);
        assert_eq!(own_command("quit"), None);
    }
}
