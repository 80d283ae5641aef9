//! Set-up lines: files of the workspace, the agent's environment, and restarts.

use std::fmt;

/// A set-up line, which has no gutter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Setup {
    /// `any agent`: the fixture is not specific to Epitome.
    AnyAgent,
    /// `needs sessionCapabilities.list`: skipped for agents whose `initialize` does not offer it.
    Needs(String),
    /// `only anthropic`: not run against the other wire formats of the scripted model.
    Only(String),
    /// `no model`: the agent gets no API key and no model address.
    NoModel,
    /// `aside usage title`: updates of these kinds are covered by other transcripts and not compared.
    Aside(Vec<String>),
    /// `file PATH: text`: a file of the workspace. `home PATH: text`: a file in the agent's home directory.
    File { place: FileLocation, path: String, body: FileBody },
    /// `env NAME=VALUE`
    Env { name: String, value: String },
    /// `then file PATH: text`: the file is changed to this text.
    ThenFile { path: String, body: FileBody },
    /// `then no file PATH`
    ThenNoFile { path: String },
    /// `restart`: the editor ends the agent by closing its input, and starts it again.
    Restart,
    /// `kill`: the agent is killed and started again.
    Kill,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileLocation {
    Workspace,
    Home,
}

/// The text of a file. Each line ends with a newline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileBody {
    /// The text after the colon.
    Line(String),
    /// `<<END` and the lines before `END`.
    Lines { end: String, lines: Vec<String> },
}

impl FileBody {
    /// The contents of the file.
    pub fn text(&self) -> String {
        match self {
            FileBody::Line(line) => format!("{line}\n"),
            FileBody::Lines { lines, .. } => lines.iter().map(|line| format!("{line}\n")).collect(),
        }
    }
}

impl Setup {
    /// Parses a line. `more` returns the lines up to an end marker, or `None` if it is missing.
    pub(super) fn read(
        line: &str,
        more: &mut dyn FnMut(&str) -> Option<Vec<String>>,
    ) -> Result<Setup, String> {
        let line = line.trim_end();
        for (word, place) in [
            ("file ", Some(FileLocation::Workspace)),
            ("home ", Some(FileLocation::Home)),
            ("then file ", None),
        ] {
            if let Some(rest) = line.strip_prefix(word) {
                return read_file(rest, more).map(|(path, body)| match place {
                    Some(place) => Setup::File { place, path, body },
                    None => Setup::ThenFile { path, body },
                });
            }
        }
        if let Some(path) = line.strip_prefix("then no file ") {
            return Ok(Setup::ThenNoFile { path: relative(path)? });
        }
        if let Some(rest) = line.strip_prefix("env ") {
            let (name, value) = rest.split_once('=').ok_or("a variable is written env NAME=VALUE")?;
            return Ok(Setup::Env { name: name.to_owned(), value: value.to_owned() });
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["any", "agent"] => Ok(Setup::AnyAgent),
            ["no", "model"] => Ok(Setup::NoModel),
            ["needs", capability] => Ok(Setup::Needs((*capability).to_owned())),
            ["only", wire] => Ok(Setup::Only((*wire).to_owned())),
            ["aside", kinds @ ..] if !kinds.is_empty() => {
                Ok(Setup::Aside(kinds.iter().map(|kind| (*kind).to_owned()).collect()))
            }
            ["restart"] => Ok(Setup::Restart),
            ["kill"] => Ok(Setup::Kill),
            _ => Err("a line begins with editor>, agent<, agent~, model?, model!, # or a word of set-up: \
                      file, home, env, then, aside, needs, only, any agent, no model, restart, kill"
                .into()),
        }
    }
}

fn read_file(
    rest: &str,
    more: &mut dyn FnMut(&str) -> Option<Vec<String>>,
) -> Result<(String, FileBody), String> {
    if let Some((path, end)) = rest.split_once(" <<") {
        let lines = more(end).ok_or_else(|| format!("the text has no end: a line {end} is missing"))?;
        return Ok((relative(path)?, FileBody::Lines { end: end.to_owned(), lines }));
    }
    let (path, text) = rest.split_once(':').ok_or("a file is written PATH: text, or PATH <<END")?;
    let text = text.strip_prefix(' ').unwrap_or(text);
    Ok((relative(path)?, FileBody::Line(text.to_owned())))
}

/// Checks that a path is relative: files are created only in the scratch directories.
fn relative(path: &str) -> Result<String, String> {
    let inside = !path.is_empty() && !path.starts_with('/') && path.split('/').all(|part| part != "..");
    if inside { Ok(path.to_owned()) } else { Err(format!("{path} is not inside of the workspace")) }
}

impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = |f: &mut fmt::Formatter<'_>, word: &str, path: &str, body: &FileBody| match body {
            FileBody::Line(text) => write!(f, "{}", format!("{word} {path}: {text}").trim_end()),
            FileBody::Lines { end, lines } => {
                writeln!(f, "{word} {path} <<{end}")?;
                lines.iter().try_for_each(|line| writeln!(f, "{line}"))?;
                f.write_str(end)
            }
        };
        match self {
            Setup::AnyAgent => f.write_str("any agent"),
            Setup::Needs(capability) => write!(f, "needs {capability}"),
            Setup::Only(wire) => write!(f, "only {wire}"),
            Setup::NoModel => f.write_str("no model"),
            Setup::Aside(kinds) => write!(f, "aside {}", kinds.join(" ")),
            Setup::File { place: FileLocation::Workspace, path, body } => file(f, "file", path, body),
            Setup::File { place: FileLocation::Home, path, body } => file(f, "home", path, body),
            Setup::Env { name, value } => write!(f, "env {name}={value}"),
            Setup::ThenFile { path, body } => file(f, "then file", path, body),
            Setup::ThenNoFile { path } => write!(f, "then no file {path}"),
            Setup::Restart => f.write_str("restart"),
            Setup::Kill => f.write_str("kill"),
        }
    }
}
