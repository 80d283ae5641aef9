//! Terminal input and output: capabilities, colors, prompts and sanitizing.
//!
//! Only this file writes escape sequences. Text from a model, a tool or a file must pass through `thread::visible`,
//! so that no output can move the cursor over a permission question.

use epitome_platform::terminal::{self, HiddenInput};
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};
use std::path::Path;

use serde::Serialize;

use super::{CliContext as _, CliError};
use crate::session_library;
use crate::thread::visible::visible;
pub use epitome_chat::markdown::Color;
use epitome_chat::markdown::StyledText;

/// Maximum length of an answer to a question, in bytes. One letter is expected; the limit is for pasted files.
const ANSWER_BYTES_MAX: u64 = 4 * 1024;

/// Maximum length of a hidden line in bytes, longer than any key; the rest is ignored.
const HIDDEN_BYTES_MAX: usize = 32 * 1024;

/// The width of a terminal that does not report one.
const COLUMNS: usize = 80;

/// How output may be styled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// A file, a pipe, or a terminal without escape sequences (`TERM=dumb`).
    Plain,
    /// A terminal whose user wants no colors (`NO_COLOR`).
    Terminal,
    Colors,
}

impl Style {
    pub fn for_stdout() -> Style {
        Style::detect(io::stdout().is_terminal(), |name| std::env::var_os(name))
    }

    pub fn for_stderr() -> Style {
        Style::detect(io::stderr().is_terminal(), |name| std::env::var_os(name))
    }

    fn detect(terminal: bool, get: impl Fn(&str) -> Option<std::ffi::OsString>) -> Style {
        // https://no-color.org: present and not empty, whatever its value.
        let no_colour = get("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = get("TERM").is_some_and(|value| value == "dumb");
        match (terminal && !dumb, no_colour) {
            (false, _) => Style::Plain,
            (true, true) => Style::Terminal,
            (true, false) => Style::Colors,
        }
    }

    /// Whether the output goes to a terminal.
    pub fn is_terminal(self) -> bool {
        match self {
            Style::Plain => false,
            Style::Terminal | Style::Colors => true,
        }
    }

    /// Returns the text in a color, if colors are enabled.
    pub fn paint(self, color: Color, text: &str) -> String {
        let code = match color {
            Color::Bold => "1",
            Color::Dim => "2",
            Color::Italic => "3",
            Color::Underline => "4",
            Color::Red => "31",
            Color::Green => "32",
            Color::Yellow => "33",
            Color::Magenta => "35",
            Color::Cyan => "36",
        };
        match self {
            Style::Colors => format!("\x1b[{code}m{text}\x1b[0m"),
            Style::Plain | Style::Terminal => text.to_owned(),
        }
    }

    /// Returns rendered text with escape sequences, if colors are enabled.
    pub fn paint_all(self, pieces: &[StyledText]) -> String {
        let painted = |piece: &StyledText| {
            piece.styles.iter().fold(piece.text.clone(), |text, color| self.paint(*color, &text))
        };
        pieces.iter().map(painted).collect()
    }
}

/// Returns the width of the terminal, in columns.
pub fn columns() -> usize {
    terminal::columns().filter(|columns| *columns > 0).unwrap_or(COLUMNS)
}

/// Returns the user's keyboard. `None` if questions would not be visible.
pub fn keyboard() -> Option<Box<dyn BufRead + Send>> {
    if !io::stderr().is_terminal() {
        return None;
    }
    if io::stdin().is_terminal() {
        return Some(Box::new(BufReader::new(io::stdin())));
    }
    // Stdin is piped, but a terminal may still exist.
    Some(Box::new(BufReader::new(terminal::keys().ok()?)))
}

/// Discards input that was typed before a question was shown, because it can't be an answer.
pub fn forget_typed() {
    if let Ok(keys) = terminal::keys() {
        terminal::forget_typed(&keys);
    }
}

/// Reads one answer; `None` at the end of input or on an error.
pub fn answer(keyboard: &mut dyn BufRead) -> Option<String> {
    let mut line = String::new();
    let count = keyboard.take(ANSWER_BYTES_MAX).read_line(&mut line).ok()?;
    (count > 0).then(|| line.trim().to_owned())
}

/// Reads a line without echo from the terminal of this process. `None` if the user cancels with Ctrl-C or Ctrl-D.
/// Fails without a terminal.
pub fn hidden_line(question: &str) -> io::Result<Option<String>> {
    let (keys, mut screen) = (terminal::keys()?, terminal::screen()?);
    let hidden = HiddenInput::begin(&keys)?;
    screen.write_all(question.as_bytes())?;
    let line = read_hidden(BufReader::new(&keys));
    drop(hidden);
    screen.write_all(b"\n")?;
    line
}

/// Reads keys up to the end of a line. Backspace and Ctrl-U work as in a visible line.
fn read_hidden(keys: impl BufRead) -> io::Result<Option<String>> {
    let mut line = Vec::new();
    for key in keys.bytes() {
        match key? {
            b'\r' | b'\n' => return Ok(Some(String::from_utf8_lossy(&line).into_owned())),
            // Ctrl-C, and Ctrl-D on an empty line.
            0x03 => return Ok(None),
            0x04 if line.is_empty() => return Ok(None),
            0x04 => {}
            0x08 | 0x7f => drop(line.pop()),
            0x15 => line.clear(),
            key if line.len() <= HIDDEN_BYTES_MAX => line.push(key),
            _ => {}
        }
    }
    Ok(None)
}

/// Asks a yes-or-no question; anything but a yes is a no.
pub fn confirm(keyboard: &mut dyn BufRead, question: &str) -> bool {
    forget_typed();
    // If stderr can't be written, the answer still counts.
    to_stderr(&format!("{question} [y]es, [n]o: "));
    matches!(answer(keyboard).as_deref(), Some("y" | "Y" | "yes" | "Yes"))
}

/// Like `confirm`, on the terminal of this process. Fails without one, and names the option that answers instead.
pub fn agreed(question: &str) -> Result<bool, CliError> {
    let keyboard = keyboard().ok_or_else(|| {
        CliError::failed("there is no terminal to ask for confirmation").hint("--yes does it without asking")
    });
    Ok(confirm(&mut *keyboard?, question))
}

/// Writes text to stderr. Escapes its invisible characters, since messages quote files, servers and models. Errors are
/// ignored: a closed stderr must not change what a command does.
pub fn to_stderr(text: &str) {
    let mut stderr = io::stderr().lock();
    drop(stderr.write_all(visible(text).as_bytes()).and_then(|()| stderr.flush()));
}

/// Shows what a command does on a terminal's stderr, in place of what this showed before.
pub fn progress(text: &str) {
    if Style::for_stderr().is_terminal() {
        let mut stderr = io::stderr().lock();
        drop(write!(stderr, "\r\x1b[2K{}", visible(text)).and_then(|()| stderr.flush()));
    }
}

/// Writes text to stdout. A reader that has closed the pipe (`| head`) is not an error.
pub fn print(text: &str) -> Result<(), CliError> {
    print_more(text).map(drop)
}

/// Like `print`, for text that quotes files, servers or models.
pub fn print_visible(text: &str) -> Result<(), CliError> {
    print(&visible(text))
}

/// Like `print_visible`, but files and pipes get the text as it is.
pub fn print_exported(text: &str) -> Result<(), CliError> {
    let is_terminal = Style::for_stdout() != Style::Plain;
    if is_terminal { print_visible(text) } else { print(text) }
}

/// Like `print`, for output without an end: returns whether the reader is still there.
pub fn print_more(text: &str) -> Result<bool, CliError> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(cannot_write(&error)),
    }
}

/// Creates a file that only the user can read. An existing file is not overwritten.
pub fn write_new(path: &Path, text: &str) -> Result<(), CliError> {
    session_library::write_new(path, text).map_err(|error| {
        let hint = match error.kind() {
            io::ErrorKind::AlreadyExists => "choose another name, or remove it first",
            _ => "name a file in a directory where you can write, or print to stdout",
        };
        CliError::failed(format!("{} can't be written: {error}", path.display())).hint(hint)
    })
}

/// Prints a value as one line of JSON.
pub fn print_json(value: &(impl Serialize + ?Sized)) -> Result<(), CliError> {
    let json = json_line(value).context(NOT_JSON)?;
    print(&format!("{json}\n"))
}

/// Prints a value as indented JSON.
pub fn print_pretty(value: &(impl Serialize + ?Sized)) -> Result<(), CliError> {
    let json = serde_json::to_string_pretty(value).context(NOT_JSON)?;
    print(&format!("{}\n", without_controls(json)))
}

/// A value as one line of JSON that can't control a terminal.
pub fn json_line(value: &(impl Serialize + ?Sized)) -> serde_json::Result<String> {
    serde_json::to_string(value).map(without_controls)
}

/// Escapes the control characters that JSON may have in its texts: the second set of them (U+0080 to U+009F), of which one
/// begins a terminal's commands, and U+007F.
fn without_controls(json: String) -> String {
    let is_unsafe = |c: char| c.is_control() && c != '\n';
    if !json.contains(is_unsafe) {
        return json;
    }
    let escaped = |c| if is_unsafe(c) { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() };
    json.chars().map(escaped).collect()
}

const NOT_JSON: &str = "the output can't be encoded as JSON";

pub fn cannot_write(error: &io::Error) -> CliError {
    CliError::failed(format!("the output can't be written: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a user looked at `--json` in a terminal, and a server's text changed the terminal's title.
    #[test]
    fn json_controls_no_terminal() {
        let text = "\u{9d}0;owned\u{9c}\u{7f}\u{1b}[2J\nü";
        let json = json_line(text).expect("it is JSON");
        assert!(!json.contains(char::is_control), "{json:?}");
        assert_eq!(serde_json::from_str::<String>(&json).expect("it is JSON"), text);
    }

    #[test]
    fn colours_are_for_terminals_of_people_who_want_them() {
        let cases = [
            (false, "TERM", "xterm", Style::Plain),
            (true, "TERM", "xterm", Style::Colors),
            (true, "NO_COLOR", "1", Style::Terminal),
            (true, "NO_COLOR", "", Style::Colors),
            (true, "TERM", "dumb", Style::Plain),
        ];
        for (terminal, variable, value, expected) in cases {
            let get = |name: &str| (name == variable).then(|| value.into());
            assert_eq!(Style::detect(terminal, get), expected, "{variable}={value}");
        }
    }

    #[test]
    fn a_hidden_line_can_be_corrected_and_cancelled() {
        for (typed, expected) in [
            ("sk-1\r", Some("sk-1")),
            ("sk-2\n", Some("sk-2")),
            ("xx\u{7f}\u{8}sk-3\r", Some("sk-3")),
            ("wrong\u{15}sk-4\r", Some("sk-4")),
            ("sk-5\u{3}", None),
            ("\u{4}", None),
            ("sk-6", None),
        ] {
            let line = read_hidden(typed.as_bytes()).expect("it can be read");
            assert_eq!(line.as_deref(), expected, "{typed:?}");
        }
    }

    #[test]
    fn only_a_yes_confirms() {
        for (typed, expected) in [("y\n", true), ("yes\n", true), ("n\n", false), ("\n", false), ("", false)]
        {
            assert_eq!(confirm(&mut typed.as_bytes(), "Really?"), expected, "{typed:?}");
        }
    }
}
