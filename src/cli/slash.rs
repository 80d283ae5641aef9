//! Names the commands of a session as a shell has them: `/undo` is `epitome sessions undo ID` there.

use std::sync::LazyLock;

use clap::CommandFactory as _;
use regex::{Captures, Regex};

use super::{Cli, CliError};
use crate::recipe::command::RESERVED;
use crate::thread::SessionId;

/// A slash command with the arguments that messages name. What is in quotation marks is somebody's text, and
/// "added by /pin" says how it was.
static NAMED: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(
        "“[^”]*”|by /[a-z]+|(?P<before>^|\\s)`?/(?P<name>[a-z]+)(?P<words>(?: \
         (?:e[0-9]+(?:\\.[0-9]+)?|[A-Z]+|all|forget|keep|above|dry|files|conversation|force|undo)\\b)*)`?(?P<after>$|[^\\w/:-])",
    )
    .expect("a valid pattern")
});

/// Names the commands of a message of this session as a shell has them.
pub fn in_shell(text: &str, session: &SessionId) -> String {
    let named = |found: &Captures<'_>| {
        let given = |name: &str| found.name(name).map_or("", |part| part.as_str());
        match command(given("name"), given("words"), session) {
            Some(command) => format!("{}`{command}`{}", given("before"), given("after")),
            None => found[0].to_owned(),
        }
    };
    let shown = |line: &str| {
        // An item of a list is somebody's text, but for a hint at its end.
        let hint = || line.rfind("; /").filter(|_| line.ends_with("does it")).map_or(line.len(), |at| at + 2);
        let from = if line.trim_start().starts_with(['-', '*', '>']) { hint() } else { 0 };
        format!("{}{}", &line[..from], NAMED.replace_all(&line[from..], named))
    };
    text.split('\n').map(shown).collect::<Vec<_>>().join("\n")
}

fn command(name: &str, words: &str, session: &SessionId) -> Option<String> {
    let id = if session.0.is_empty() { "latest" } else { &session.0 };
    let option = |word: &str| match word {
        "dry" => " --dry-run".to_owned(),
        "files" | "conversation" | "force" | "undo" => format!(" --{word}"),
        _ => format!(" {word}"),
    };
    let words: String = words.split_whitespace().map(option).collect();
    match name {
        "compact" => Some(format!("epitome compact --resume {id}{words}")),
        _ if Cli::command().find_subcommand("sessions")?.find_subcommand(name).is_some() => {
            Some(format!("epitome sessions {name} {id}{words}"))
        }
        _ => RESERVED.contains(&name).then(|| format!("epitome run --resume {id} /{name}{words}")),
    }
}

impl CliError {
    /// The error of a session, for a shell.
    pub fn in_shell(self, session: &SessionId) -> CliError {
        let shown = |text: String| in_shell(&text, session);
        CliError { message: shown(self.message), hint: self.hint.map(shown), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a user of `epitome sessions rewind` was told to type `/undo`, which a shell does not have.
    #[test]
    fn a_shell_is_given_its_own_commands() {
        for (text, shown) in [
            (
                "Undone: your pin (e7). /redo restores it.",
                "Undone: your pin (e7). `epitome sessions redo s_1` restores it.",
            ),
            ("/unpin e2 first", "`epitome sessions unpin s_1 e2` first"),
            ("see /rewind undo undoes it", "see `epitome sessions rewind s_1 --undo` undoes it"),
            (
                "/rewind dry shows it; /compact above e40",
                "`epitome sessions rewind s_1 --dry-run` shows it; `epitome compact --resume s_1 above e40`",
            ),
            ("`/mcp NAME` lists the tools", "`epitome run --resume s_1 /mcp NAME` lists the tools"),
            (
                "/permissions forget all, or\n/why",
                "`epitome sessions permissions s_1 forget all`, or\n`epitome run --resume s_1 /why`",
            ),
            ("e2 “please explain /undo”", "e2 “please explain /undo”"),
            (
                "Pins:\n- e2: never use /undo here\n- e3: done; /undo undoes it",
                "Pins:\n- e2: never use /undo here\n- e3: done; `epitome sessions undo s_1` undoes it",
            ),
            ("added by /pin; you rewound it (/rewind)", "added by /pin; you rewound it (/rewind)"),
            ("read /history/of/rome, /undo-log and /tmp", "read /history/of/rome, /undo-log and /tmp"),
        ] {
            assert_eq!(in_shell(text, &SessionId("s_1".to_owned())), shown);
        }
        assert_eq!(in_shell("/undo", &SessionId(String::new())), "`epitome sessions undo latest`");
    }
}
