//! Determines who wrote a message in the user's role: hosts and other agents send events, notices and reminders in it. Pure.

use std::borrow::Cow;

use epitome_thread::Content;

/// The author of a message in the user's role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Author {
    User,
    /// The user, but for the client and not for the agent: a command such as `/compact`.
    UserToClient,
    /// A program, by the name of the element in which it sent its text.
    Program(String),
}

/// Commands that only the client executes. What precedes one of them is the request that matters.
const CLIENT_COMMANDS: [&str; 13] = [
    "/clear", "/config", "/context", "/cost", "/exit", "/help", "/login", "/logout", "/model", "/quit",
    "/resume", "/status", "/usage",
];

/// Such a command that may be followed by the user's words about it.
const COMPACT: &str = "/compact";

/// Claude Code's notice that the user stopped a turn.
const INTERRUPTED: &str = "[Request interrupted by user";

/// Elements in which hosts send what the user typed, with `-` or `_`.
const OF_USER: [&str; 5] = ["user_input", "user_message", "user_prompt", "user_query", "user_request"];

/// Elements that hosts send with a line of their own before or after them, which elements of other names never have: a
/// user may paste an event and write below it what to do about it.
const WITH_TEXT_AROUND: [&str; 3] = ["agent-message", "task-notification", "teammate-message"];

/// The author of a message.
pub(super) fn author(content: &[Content]) -> Author {
    let mut author = Author::User;
    for part in content {
        author = match part {
            Content::Text { text } if text.trim().is_empty() => continue,
            Content::Text { text } => author_of_text(text),
            _ => Author::User,
        };
        if author == Author::User {
            break;
        }
    }
    author
}

/// The message without the parts that a program added to the user's.
pub(super) fn typed(content: &[Content]) -> Cow<'_, [Content]> {
    let is_added = |part: &Content| {
        let text = part.as_text().filter(|text| text.trim_start().starts_with('<'));
        text.is_some_and(|text| matches!(author_of_text(text), Author::Program(_)))
    };
    match author(content) == Author::User && content.iter().any(is_added) {
        true => content.iter().filter(|part| !is_added(part)).cloned().collect::<Vec<_>>().into(),
        false => content.into(),
    }
}

fn author_of_text(text: &str) -> Author {
    let text = text.trim();
    if text.split_whitespace().next() == Some(COMPACT) || CLIENT_COMMANDS.contains(&text) {
        return Author::UserToClient;
    }
    if text.starts_with(INTERRUPTED) && text.ends_with(']') && !text.contains('\n') {
        return Author::Program("notice".to_owned());
    }
    let after_line = || text.split_once(":\n").filter(|(line, _)| !line.contains('\n'));
    let begin = match text.starts_with('<') {
        true => text,
        false => after_line().map_or("", |(_, rest)| rest.trim_start()),
    };
    let Some((name, rest)) = element(begin) else { return Author::User };
    let is_whole = begin.len() == text.len() && is_elements(rest);
    match is_whole || WITH_TEXT_AROUND.contains(&name) {
        true => Author::Program(name.to_owned()),
        false => Author::User,
    }
}

/// Whether a text consists of elements that only programs write, or is blank.
fn is_elements(text: &str) -> bool {
    let mut rest = text.trim_start();
    while let Some((_, after)) = element(rest) {
        rest = after.trim_start();
    }
    rest.is_empty()
}

/// The name of the element that a text begins with, and the text after it. Only names of several words count: `<task>` and
/// `<div>` are also written and pasted by users.
fn element(text: &str) -> Option<(&str, &str)> {
    let inner = text.strip_prefix('<')?;
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let name = &inner[..inner.find(|c| !is_of_name(c))?];
    let is_of_program = name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.contains(['-', '_'])
        && !OF_USER.contains(&name.replace('-', "_").as_str());
    let (_, after) = inner.split_once(&format!("</{name}>")).filter(|_| is_of_program)?;
    Some((name, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Content {
        Content::Text { text: text.to_owned() }
    }

    /// A host's event with a bot's comments, and `/compact`, were once quoted as the user's last request.
    #[test]
    fn what_a_program_sent_is_not_by_the_user() {
        let by = |name: &str| Author::Program(name.to_owned());
        for (message, expected) in [
            ("<ci-monitor-event>\nbot: fix this\n</ci-monitor-event>", by("ci-monitor-event")),
            (
                "<recommended_plugins>a</recommended_plugins>\n<app_context>b</app_context>",
                by("recommended_plugins"),
            ),
            (
                "Another Claude session sent a message:\n<teammate-message id=\"x\">y</teammate-message>\nNo more.",
                by("teammate-message"),
            ),
            ("<task-notification>done</task-notification>\nRead the output file", by("task-notification")),
            ("[Request interrupted by user]", by("notice")),
            ("/compact keep the port", Author::UserToClient),
            ("/review this branch", Author::User),
            ("/status is wrong after a restart", Author::User),
            ("/status", Author::UserToClient),
            ("<user_query>\nfix the parser\n</user_query>", Author::User),
            ("[in German, please]", Author::User),
            ("/compactor is broken", Author::User),
            ("[Image #1]", Author::User),
            ("[x]", Author::User),
            ("<ci-event>red</ci-event>\nfix this", Author::User),
            ("Look at this:\n<my-element>a</my-element>", Author::User),
            ("<div>why is this red</div>", Author::User),
            ("<task>Review it.</task>", Author::User),
            ("<my-element> has no end", Author::User),
            ("a < b", Author::User),
            ("", Author::User),
            ("<日本-語>", Author::User),
        ] {
            assert_eq!(author(&[text(message)]), expected, "{message}");
        }
    }

    #[test]
    fn parts_that_a_program_added_are_left_out() {
        let reminder = text("<system-reminder>Be brief.</system-reminder>");
        let message = [text("Fix it."), reminder.clone()];
        assert_eq!((author(&message), typed(&message).as_ref()), (Author::User, &message[..1]));
        let image = Content::Image { mime_type: "image/png".to_owned(), data: String::new(), uri: None };
        let pictured = [reminder.clone(), image.clone()];
        assert_eq!((author(&pictured), typed(&pictured).as_ref()), (Author::User, &pictured[1..]));
        let alone = [reminder];
        assert_eq!(typed(&alone).as_ref(), &alone);
    }
}
