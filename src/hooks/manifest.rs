//! Parses hook declarations: the answer of an executable to `hook`, and declarative files. Pure.
//!
//! A declaration with any error is rejected as a whole: a guard with a mistyped `match` must not run at other
//! times. Unknown fields are reported and ignored.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value};

use super::event::HookEvent;
use super::hook::Manifest;
use super::manifest_fields::{EVENTS_MAX, Reader, at, events_hint, of_answer};
use epitome_problem::Problem;
use epitome_recipe::fields::{self, Field, Fields};

/// The parsed declaration of a hook.
#[derive(Clone, Debug, PartialEq)]
pub struct Declared {
    /// The events, each with the name under which the hook registered. Never empty.
    pub events: Vec<(HookEvent, String)>,
    pub manifest: Manifest,
    pub form: Form,
    /// Remarks on ignored parts.
    pub notes: Vec<Problem>,
}

/// What is run.
#[derive(Clone, PartialEq)]
pub enum Form {
    /// The executable that answered, in a new process each time.
    Script,
    /// The executable that answered, as one process per session.
    Resident,
    /// Nothing: the result is declared.
    Result(Map<String, Value>),
    /// The payload is posted. Header values and the secret are as declared, see `Secret`.
    Webhook { url: String, headers: BTreeMap<String, Secret>, secret: Option<Secret> },
}

impl std::fmt::Debug for Form {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Form::Script => f.write_str("Script"),
            Form::Resident => f.write_str("Resident"),
            Form::Result(then) => f.debug_tuple("Result").field(then).finish(),
            // A URL can contain a key as well.
            Form::Webhook { url: _, headers, secret } => f
                .debug_struct("Webhook")
                .field("headers", headers)
                .field("secret", secret)
                .finish_non_exhaustive(),
        }
    }
}

/// A declared value that may be secret: `$NAME` refers to an environment variable, so that no key has to be
/// written to a file. Any other text is literal.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub(super) String);

impl Secret {
    /// The name of the variable that it refers to, if any.
    pub fn variable(&self) -> Option<&str> {
        let name = self.0.strip_prefix('$')?;
        let name = name.strip_prefix('{').and_then(|name| name.strip_suffix('}')).unwrap_or(name);
        let letters = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        (letters && !name.is_empty()).then_some(name)
    }

    /// The value to send; the error names the variable that is not set.
    pub fn resolve(&self, environment: &[(OsString, OsString)]) -> Result<String, String> {
        let Some(variable) = self.variable() else { return Ok(self.0.clone()) };
        let value =
            environment.iter().find(|(name, _)| name == variable).and_then(|(_, value)| value.to_str());
        let value = value.filter(|value| !value.is_empty());
        value.map(str::to_owned).ok_or_else(|| format!("the environment variable {variable} is not set"))
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.variable() {
            Some(variable) => write!(f, "${variable}"),
            None => f.write_str("(hidden)"),
        }
    }
}

/// The syntax of a declarative file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syntax {
    Yaml,
    Json,
}

/// Settings for a hook besides its own declaration.
#[derive(Clone, Copy, Debug)]
pub struct Given<'a> {
    /// The timeout if the hook declares none.
    pub timeout: Duration,
    /// The user's overrides of the hook's fields, and the file that contains them.
    pub overrides: Option<(&'a Map<String, Value>, &'a Path)>,
    /// The hook's name in that file.
    pub name: &'a str,
}

/// Parses an executable's answer to `hook`: one event name, several separated by white space or commas, or
/// one JSON object.
pub fn read_answer(path: &Path, answer: &str, given: Given<'_>) -> Result<Declared, Problem> {
    let answer = answer.trim_start_matches('\u{feff}').trim();
    let (fields, protocol) = if answer.starts_with('{') {
        let fields = fields::from_json(answer, path, "its answer to `hook`").map_err(of_answer)?;
        (fields, None)
    } else {
        let words = answer.split(|c: char| c.is_whitespace() || c == ',').filter(|word| !word.is_empty());
        let words: Vec<Value> = words.take(EVENTS_MAX).map(Value::from).collect();
        if words.is_empty() {
            return Err(at(
                path,
                None,
                "it names no event when it is called with `hook`".to_owned(),
                events_hint(),
            ));
        }
        let protocol = if words.len() > 1 { 2 } else { 1 };
        let field = Field { value: Value::Array(words), place: (1, 1) };
        (Fields::from([("events".to_owned(), field)]), Some(protocol))
    };
    let mut reader = Reader::new(path, given);
    reader.fields(&fields).map_err(of_answer)?;
    reader.notes = reader.notes.into_iter().map(of_answer).collect();
    if let Some(protocol) = protocol {
        reader.manifest.protocol = protocol;
    }
    for (name, _) in reader.then.iter().map(|_| ("then", ())).chain(reader.url.iter().map(|_| ("url", ()))) {
        let message = format!("{name:?} has no effect in an executable's answer to `hook`");
        reader.notes.push(Problem { path: path.to_path_buf(), place: None, message, hint: None });
    }
    let form = if reader.resident { Form::Resident } else { Form::Script };
    reader.finish(form)
}

/// Parses a declarative file.
pub fn read_file(path: &Path, content: &str, syntax: Syntax, given: Given<'_>) -> Result<Declared, Problem> {
    // Some editors start files with a byte order mark.
    let content = content.trim_start_matches('\u{feff}');
    let fields = match syntax {
        Syntax::Yaml => fields::from_yaml(content, path, 0, "the hook")?,
        Syntax::Json => fields::from_json(content, path, "the hook")?,
    };
    let mut reader = Reader::new(path, given);
    reader.fields(&fields)?;
    let form = match (reader.then.take(), reader.url.take()) {
        (Some(then), None) => Form::Result(then),
        (None, Some(url)) => {
            Form::Webhook { url, headers: std::mem::take(&mut reader.headers), secret: reader.secret.take() }
        }
        (then, _) => {
            let message = match then {
                Some(_) => "a hook has `then` or `url`, not both",
                None => "the hook does nothing: `then` and `url` are both missing",
            };
            let hint = "`then: { result: callback, callback: compact }` is a result, `url` posts the payload";
            return Err(at(path, None, message.to_owned(), Some(hint.to_owned())));
        }
    };
    if reader.resident {
        let message = "`mode: resident` has no effect without an executable".to_owned();
        reader.notes.push(at(path, fields.get("mode").map(|field| field.place), message, None));
    }
    reader.finish(form)
}

/// Applies the user's overrides to a manifest that was parsed elsewhere. Events and the way of running stay.
pub fn overridden(
    manifest: Manifest,
    overrides: &Map<String, Value>,
    name: &str,
    file: &Path,
) -> (Manifest, Vec<Problem>) {
    let given = Given { timeout: manifest.timeout, overrides: None, name };
    let mut reader = Reader { manifest, ..Reader::new(file, given) };
    reader.overrides(overrides, file);
    (reader.manifest, reader.notes)
}
