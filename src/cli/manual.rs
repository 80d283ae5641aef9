//! `epitome completions` and `epitome man`: made out of the table of words when they are asked for, so that they
//! are those of this very program.

use std::ffi::OsString;
use std::fmt::Write as _;

use clap::{Arg, ArgAction, Command, ValueHint};
use clap_complete::Shell;
use roff::{Roff, bold, italic, roman};

use super::words::{Flag, IDS, WORDS, Word};
use super::{CliError, serve, sessions, terminal};
use crate::shelf;
use crate::store::Store;

/// Ids of sessions that a shell is offered: the newest.
const IDS_MAX: usize = 100;

/// What a shell asks for the ids that it offers. Not for people.
const COMPLETE: &str = "__complete";

const HELP: &str = "\
epitome completions: words for the Tab key, sessions' ids among them

  epitome completions bash   for example into ~/.local/share/bash-completion/completions/epitome
  epitome completions zsh    into a file _epitome in a directory of $fpath
  epitome completions fish   into ~/.config/fish/completions/epitome.fish
";

/// What the man page says beside the table.
const DESCRIPTION: &str = "A coding agent for editors that speak the Agent Client Protocol. One daemon serves all \
                           windows; epitome acp starts it when it is needed. Each command has a --help of its own \
                           that says more than this page.";

const ENVIRONMENT: [(&str, &str); 5] = [
    ("EPITOME_HOME", "Where all files are; without it ~/.epitome and the directories of XDG."),
    ("EPITOME_LOG", "What is logged, as RUST_LOG has it elsewhere: debug, or epitome=debug,warn."),
    ("EPITOME_MODEL", "The model, as provider/name."),
    ("ANTHROPIC_API_KEY, OPENAI_API_KEY, GEMINI_API_KEY", "Keys."),
    ("EPITOME_LOCAL_URL", "A model server on this machine."),
];

pub fn completions(arguments: Vec<OsString>) -> Result<i32, CliError> {
    let text = match arguments.iter().map(|argument| argument.to_str()).collect::<Vec<_>>()[..] {
        [Some("bash")] => bash(),
        [Some("zsh")] => zsh(),
        [Some("fish")] => fish(),
        [Some("--help" | "-h")] => HELP.to_owned(),
        _ => return Err(CliError::usage("say for which shell: epitome completions bash, zsh or fish")),
    };
    terminal::print(&text).map(|()| 0)
}

pub fn man(arguments: Vec<OsString>) -> Result<i32, CliError> {
    match arguments.first().and_then(|argument| argument.to_str()) {
        None if arguments.is_empty() => terminal::print(&page()).map(|()| 0),
        Some("--help" | "-h") => {
            let help = "epitome man: the man page, on stdout\n\n`epitome man | man -l -` shows it.\n";
            terminal::print(help).map(|()| 0)
        }
        _ => Err(CliError::usage("`epitome man` takes nothing behind it")),
    }
}

/// Whether this is what a shell asks for while a person types.
pub fn is_complete(name: &str) -> bool {
    name == COMPLETE
}

/// The newest sessions, a line each: the id, a tab, the title.
pub fn complete(arguments: &[OsString]) -> Result<i32, CliError> {
    if arguments != ["sessions"] {
        return Err(CliError::usage("only sessions can be offered"));
    }
    let store = Store::new(&serve::paths());
    let listed = shelf::list(&store, None, shelf::Which::Prompted);
    store.settle();
    let mut lines = String::new();
    for header in listed?.sessions.into_iter().take(IDS_MAX) {
        let title = sessions::short_title(header.title.as_deref());
        // What ends a field or a line here must not be in one.
        let title: String = title.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let _ = writeln!(lines, "{}\t{title}", header.session);
    }
    terminal::print(&lines).map(|()| 0)
}

// ── Completions ────────────────────────────────────────────────────────────────────────────────────

fn generated(shell: Shell) -> String {
    let mut root =
        Command::new("epitome").subcommands(WORDS.iter().map(command)).disable_help_subcommand(true);
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut root, "epitome", &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

fn command(word: &Word) -> Command {
    let flags = word.flags.iter().flat_map(|flags| flags.iter()).map(argument);
    let last = word.values.len().saturating_sub(1);
    let values = word.values.iter().enumerate().map(|(at, name)| {
        let action = if at == last { ArgAction::Append } else { ArgAction::Set };
        Arg::new(*name).value_name(*name).value_hint(hint(name)).action(action).required(false)
    });
    Command::new(word.name)
        .about(word.about)
        .args(flags)
        .args(values)
        .subcommands(word.below.iter().map(command))
        .disable_help_subcommand(true)
}

fn argument(flag: &Flag) -> Arg {
    let argument = Arg::new(flag.long).long(flag.long).help(flag.about);
    let argument = match flag.short {
        Some(short) => argument.short(short),
        None => argument,
    };
    match flag.value {
        None => argument.action(ArgAction::SetTrue),
        Some("MODE") => {
            argument.value_name("MODE").value_parser(["ask", "accept_edits", "read_only", "full"])
        }
        Some("FORMAT") => argument.value_name("FORMAT").value_parser(["markdown", "json", "raw"]),
        Some(name) => argument.value_name(name).value_hint(hint(name)),
    }
}

fn hint(value: &str) -> ValueHint {
    match value {
        "FILE" => ValueHint::FilePath,
        "DIR" => ValueHint::DirPath,
        // The generator leaves these to the shell; ids are put in below.
        "ID" | "SESSION" => ValueHint::Unknown,
        _ => ValueHint::Other,
    }
}

/// The commands behind which an id stands, as they are typed.
fn before_ids() -> Vec<String> {
    let mut found = Vec::new();
    let takes_id = |word: &Word| word.values.first().is_some_and(|value| IDS.contains(value));
    for word in WORDS {
        found.extend(takes_id(word).then(|| word.name.to_owned()));
        found.extend(
            word.below
                .iter()
                .filter(|below| takes_id(below))
                .map(|below| format!("{} {}", word.name, below.name)),
        );
    }
    found
}

/// The flags whose value is an id.
fn id_flags() -> Vec<&'static Flag> {
    let mut found: Vec<&Flag> = Vec::new();
    for word in WORDS.iter().flat_map(|word| [word].into_iter().chain(word.below)) {
        for flag in word.flags.iter().flat_map(|flags| flags.iter()) {
            let is_new = found.iter().all(|known| known.long != flag.long);
            if is_new && takes_id(flag) {
                found.push(flag);
            }
        }
    }
    found
}

fn takes_id(flag: &Flag) -> bool {
    flag.value.is_some_and(|value| IDS.contains(&value))
}

fn bash() -> String {
    let flags = id_flags().into_iter().flat_map(|flag| {
        [Some(format!("--{}", flag.long)), flag.short.map(|short| format!("-{short}"))].into_iter().flatten()
    });
    let flags = flags.collect::<Vec<_>>().join("|");
    let lines = before_ids().iter().map(|line| format!("\"{line}\"")).collect::<Vec<_>>().join("|");
    format!(
        r#"{}
_epitome_or_session() {{
    local before="${{COMP_WORDS[COMP_CWORD-1]}}" line="${{COMP_WORDS[*]:1:COMP_CWORD-1}}" ids=""
    case "$before" in {flags}) ids=1 ;; esac
    case "$line" in {lines}) ids=1 ;; esac
    COMPREPLY=()
    if [[ -n "$ids" ]]; then
        COMPREPLY=($(compgen -W "$(epitome {COMPLETE} sessions 2>/dev/null | cut -f1)" -- "${{COMP_WORDS[COMP_CWORD]}}"))
    fi
    [[ ${{#COMPREPLY[@]}} -gt 0 ]] || _epitome "$@"
}}

complete -F _epitome_or_session -o bashdefault -o default epitome
"#,
        generated(Shell::Bash)
    )
}

fn zsh() -> String {
    let mut text = generated(Shell::Zsh);
    for id in IDS {
        text = text.replace(&format!(":{id}:_default"), &format!(":{id}:_epitome_sessions"));
    }
    let sessions = format!(
        r#"_epitome_sessions() {{
    local -a found
    local line
    for line in ${{(f)"$(epitome {COMPLETE} sessions 2>/dev/null)"}}; do
        found+=("${{line%%$'\t'*}}:${{${{line#*$'\t'}}//:/\\:}}")
    done
    _describe -V session found
}}

"#
    );
    text.replacen("_epitome() {", &format!("{sessions}_epitome() {{"), 1)
}

fn fish() -> String {
    let mut text = generated(Shell::Fish);
    let ids = format!("-k -a \"(epitome {COMPLETE} sessions 2>/dev/null)\"");
    for line in before_ids() {
        let _ = writeln!(text, "complete -c epitome -n \"{}\" -f {ids}", behind(&line));
    }
    for word in WORDS {
        // Where another command stands, its flags are not offered.
        for flag in word.flags.iter().flat_map(|flags| flags.iter()).filter(|flag| takes_id(flag)) {
            let short = flag.short.map_or_else(String::new, |short| format!(" -s {short}"));
            let condition = behind(word.name);
            let _ = writeln!(text, "complete -c epitome -n \"{condition}\" -l {}{short} -x {ids}", flag.long);
        }
    }
    text
}

/// That fish stands behind these words.
fn behind(line: &str) -> String {
    // The functions are of the generated part: the first word is the command, a later one stands anywhere.
    match line.split_once(' ') {
        None => format!("__fish_epitome_using_subcommand {line}"),
        Some((first, second)) => {
            format!("__fish_epitome_using_subcommand {first}; and __fish_seen_subcommand_from {second}")
        }
    }
}

// ── The page ───────────────────────────────────────────────────────────────────────────────────────

fn page() -> String {
    let mut roff = Roff::new();
    let version = concat!("epitome ", env!("CARGO_PKG_VERSION"));
    roff.control("TH", ["EPITOME", "1", "", version, "User Commands"]);
    roff.control("SH", ["NAME"]);
    roff.text([roman("epitome - a coding agent for editors, with compaction that you can trust")]);
    roff.control("SH", ["SYNOPSIS"]);
    roff.text([bold("epitome"), roman(" "), italic("COMMAND"), roman(" ["), italic("OPTIONS"), roman("]")]);
    roff.control("SH", ["DESCRIPTION"]);
    roff.text([roman(DESCRIPTION)]);
    roff.control("SH", ["COMMANDS"]);
    for word in WORDS {
        entry(&mut roff, "epitome", word);
        for below in word.below {
            entry(&mut roff, &format!("epitome {}", word.name), below);
        }
    }
    roff.control("SH", ["ENVIRONMENT"]);
    for (name, about) in ENVIRONMENT {
        roff.control("TP", []);
        roff.text([bold(name)]);
        roff.text([roman(about)]);
    }
    roff.control("SH", ["EXIT STATUS"]);
    roff.text([roman("0 done, 1 failed, 2 wrong usage, 130 cancelled by Ctrl-C.")]);
    roff.render()
}

fn entry(roff: &mut Roff, before: &str, word: &Word) {
    let mut head = vec![bold(format!("{before} {}", word.name))];
    for value in word.values {
        head.extend([roman(" ["), italic(*value), roman("]")]);
    }
    roff.control("SS", []);
    roff.text(head);
    roff.text([roman(word.about)]);
    for flag in word.flags.iter().flat_map(|flags| flags.iter()) {
        let mut head = vec![bold(format!("--{}", flag.long))];
        if let Some(short) = flag.short {
            head.insert(0, bold(format!("-{short}, ")));
        }
        if let Some(value) = flag.value {
            head.extend([roman(" "), italic(value)]);
        }
        roff.control("TP", []);
        roff.text(head);
        roff.text([roman(flag.about)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_offered_where_they_are_taken() {
        let lines = before_ids();
        for line in ["sessions show", "sessions delete", "inspect", "hooks log"] {
            assert!(lines.iter().any(|known| known == line), "{line}");
        }
        assert!(!lines.iter().any(|line| line == "sessions list"));
        let flags: Vec<&str> = id_flags().iter().map(|flag| flag.long).collect();
        assert_eq!(flags, ["resume", "conversation-id", "session"]);
        assert!(zsh().contains("ID:_epitome_sessions") && !zsh().contains(":ID:_default"));
        assert!(
            fish().contains("__fish_epitome_using_subcommand sessions; and __fish_seen_subcommand_from show")
        );
    }

    #[test]
    fn the_page_has_every_command_and_flag() {
        // A hyphen that is to be copied and an apostrophe are written otherwise there.
        let page = page().replace("\\-", "-").replace("\\*(Aq", "'");
        for word in WORDS.iter().flat_map(|word| [word].into_iter().chain(word.below)) {
            for flag in word.flags.iter().flat_map(|flags| flags.iter()) {
                let written = format!("--{}", flag.long);
                assert!(page.contains(&written), "{written}");
            }
            assert!(page.contains(word.about), "{}", word.about);
        }
    }
}
