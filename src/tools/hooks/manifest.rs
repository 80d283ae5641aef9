//! Parses hook declarations: the answer of an executable to `hook`, and declarative files. Pure.
//!
//! A declaration with any error is rejected completely: a guard with a mistyped `match` must not run at other
//! events. Unknown fields are reported and ignored.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value};

use super::event::HookEvent;
use super::hook::{
    FailMode, HookConditions, HookKind, Manifest, PayloadMessages, RUN_TIME_MAX, RUN_TIME_MIN,
};
use epitome_config::MANIFEST_KEYS;
use epitome_recipe::fields::{self, ExpectedKind, RecipeFields, choice, text, text_map, truth};
use epitome_thread::problem::{Problem, nearest};

/// Maximum events that a hook may register for; fewer event names exist.
const EVENTS_MAX: usize = 64;
/// Maximum characters quoted in a message: a program that is not a hook may print anything.
const QUOTED_CHARS_MAX: usize = 40;

/// The fields of declarative files in addition to those of a manifest.
const DECLARATIVE_FIELDS: [&str; 4] = ["then", "url", "headers", "secret"];
const MATCH_FIELDS: [&str; 6] =
    ["tool_name", "recipe", "invoked_by", "trigger", "usage_ratio_gte", "every_turns"];

/// The parsed declaration of a hook.
#[derive(Clone, Debug, PartialEq)]
pub struct ParsedManifest {
    /// The events, each with the name under which the hook registered. Never empty.
    pub events: Vec<(HookEvent, String)>,
    pub manifest: Manifest,
    /// How it is run; see [`HookKind::resolve`].
    pub kind: HookKind,
    /// Remarks on ignored parts.
    pub notes: Vec<Problem>,
}

/// The syntax of a declarative file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ManifestSyntax {
    Yaml,
    Json,
}

/// Settings for a hook from outside its declaration.
#[derive(Clone, Copy, Debug)]
pub struct Given<'a> {
    /// The timeout if the hook declares none.
    pub timeout: Duration,
    /// The user's overrides of the hook's fields, and the file that contains them.
    pub overrides: Option<(&'a Map<String, Value>, &'a Path)>,
    /// The hook's name in that file.
    pub name: &'a str,
}

/// The fields that a declarative file may have.
pub fn field_names() -> impl Iterator<Item = &'static str> {
    MANIFEST_KEYS.into_iter().chain(DECLARATIVE_FIELDS)
}

/// Parses an executable's answer to `hook`: one event name, several separated by white space or commas, or
/// one JSON object.
pub fn read_answer(path: &Path, answer: &str, given: Given<'_>) -> Result<ParsedManifest, Problem> {
    let answer = answer.trim_start_matches('\u{feff}').trim();
    let mut reader = ManifestReader::new(path, given);
    if answer.starts_with('{') {
        let fields = fields::from_json(answer, path, "its answer to `hook`").map_err(of_answer)?;
        reader.fields(&fields).map_err(of_answer)?;
    } else {
        let count = names(answer).count();
        if count == 0 {
            let message = "it names no event when it is called with `hook`";
            return Err(Problem::new(path, message).with_hint(events_hint()));
        }
        reader.position = Some((1, 1));
        reader.events(&Value::from(answer)).map_err(of_answer)?;
        reader.manifest.protocol = if count > 1 { 2 } else { 1 };
    }
    reader.notes = reader.notes.into_iter().map(of_answer).collect();
    for (name, is_given) in [("then", reader.then.is_some()), ("url", reader.url.is_some())] {
        if is_given {
            let message = format!("{name:?} has no effect in an executable's answer to `hook`");
            reader.notes.push(Problem::new(path, message));
        }
    }
    reader.finish(None)
}

/// Parses a declarative file.
pub fn read_file(
    path: &Path,
    content: &str,
    syntax: ManifestSyntax,
    given: Given<'_>,
) -> Result<ParsedManifest, Problem> {
    let fields = match syntax {
        ManifestSyntax::Yaml => fields::from_yaml(content, path, 0, "the hook")?,
        ManifestSyntax::Json => fields::from_json(content, path, "the hook")?,
    };
    let mut reader = ManifestReader::new(path, given);
    reader.fields(&fields)?;
    let kind = match (reader.then.take(), reader.url.take()) {
        (Some(then), None) => HookKind::Declared { then },
        (None, Some(url)) => HookKind::Webhook {
            url,
            headers: std::mem::take(&mut reader.headers),
            secret: reader.secret.take(),
        },
        (then, _) => {
            let message = match then {
                Some(_) => "a hook has `then` or `url`, not both",
                None => "the hook does nothing: `then` and `url` are both missing",
            };
            let hint = "`then: { result: callback, callback: compact }` is a result, `url` posts the payload";
            return Err(Problem::new(path, message).with_hint(hint));
        }
    };
    if reader.resident {
        let problem = Problem::new(path, "`mode: resident` has no effect without an executable");
        reader.notes.push(Problem { position: fields.get("mode").map(|field| field.position), ..problem });
    }
    reader.finish(Some(kind))
}

/// Applies the user's overrides to a manifest that was parsed elsewhere. They can't change its events and kind.
pub fn overridden(
    manifest: Manifest,
    overrides: &Map<String, Value>,
    name: &str,
    file: &Path,
) -> (Manifest, Vec<Problem>) {
    let given = Given { timeout: manifest.timeout, overrides: None, name };
    let mut reader = ManifestReader { manifest, ..ManifestReader::new(file, given) };
    reader.overrides(overrides, file);
    (reader.manifest, reader.notes)
}

struct ManifestReader<'a> {
    path: &'a Path,
    given: Given<'a>,
    /// The position of the current field, if known.
    position: Option<(u64, u64)>,
    events: Vec<(HookEvent, String)>,
    manifest: Manifest,
    resident: bool,
    then: Option<Map<String, Value>>,
    url: Option<String>,
    headers: BTreeMap<String, String>,
    secret: Option<String>,
    notes: Vec<Problem>,
}

impl<'a> ManifestReader<'a> {
    fn new(path: &'a Path, given: Given<'a>) -> ManifestReader<'a> {
        ManifestReader {
            path,
            given,
            position: None,
            events: Vec::new(),
            manifest: Manifest { timeout: given.timeout, ..Manifest::default() },
            resident: false,
            then: None,
            url: None,
            headers: BTreeMap::new(),
            secret: None,
            notes: Vec::new(),
        }
    }

    fn fields(&mut self, fields: &RecipeFields) -> Result<(), Problem> {
        for (name, field) in fields {
            self.position = Some(field.position);
            self.field(name, &field.value)?;
        }
        Ok(())
    }

    /// Applies the user's overrides and checks that the declaration is complete. Without a `kind` it is an
    /// executable; the user may choose how it is run.
    fn finish(mut self, kind: Option<HookKind>) -> Result<ParsedManifest, Problem> {
        if let Some((overrides, file)) = self.given.overrides {
            self.overrides(overrides, file);
        }
        if self.events.is_empty() {
            return Err(Problem::new(self.path, "the hook names no event").with_hint(events_hint()));
        }
        let path = self.path.to_path_buf();
        let kind = kind.unwrap_or_else(|| match self.resident {
            true => HookKind::Resident { path },
            false => HookKind::Script { path },
        });
        Ok(ParsedManifest { events: self.events, manifest: self.manifest, kind, notes: self.notes })
    }

    /// Applies the user's overrides. An invalid value leaves the hook's own in effect.
    fn overrides(&mut self, overrides: &Map<String, Value>, file: &'a Path) {
        let own = std::mem::replace(&mut self.path, file);
        self.position = None;
        for (name, value) in overrides {
            let events = (name == "events").then(|| std::mem::take(&mut self.events));
            if let Err(problem) = self.field(name, value) {
                let message = format!("hooks.overrides.{:?}: {}", self.given.name, problem.message);
                self.notes.push(Problem { message, ..problem });
            }
            if let Some(events) = events.filter(|_| self.events.is_empty()) {
                self.events = events;
            }
        }
        self.path = own;
    }

    /// A problem of the current field.
    fn problem(&self, message: impl Into<String>) -> Problem {
        Problem { position: self.position, ..Problem::new(self.path, message) }
    }

    fn field(&mut self, name: &str, value: &Value) -> Result<(), Problem> {
        match name {
            _ if value.is_null() => Ok(()),
            "events" => self.events(value),
            "match" => self.matches(value),
            unknown if !field_names().any(|known| known == unknown) => {
                let hint = nearest(unknown, field_names()).map(did_you_mean);
                let problem = self.problem(format!("unknown field {:?}, ignored", short(unknown)));
                self.notes.push(Problem { hint, ..problem });
                Ok(())
            }
            _ => self
                .plain_field(name, value)
                .map_err(|wanted| self.problem(format!("{name:?} must be {wanted}"))),
        }
    }

    fn plain_field(&mut self, name: &str, value: &Value) -> Result<(), ExpectedKind> {
        let manifest = &mut self.manifest;
        match name {
            "protocol" => manifest.protocol = integer(value, 1, 2)? as u32,
            "timeout_ms" => {
                let (least, most) = (RUN_TIME_MIN.as_millis() as i64, RUN_TIME_MAX.as_millis() as i64);
                manifest.timeout = Duration::from_millis(integer(value, least, most)?.unsigned_abs());
            }
            "priority" => manifest.priority = integer(value, i32::MIN.into(), i32::MAX.into())? as i32,
            "fail_mode" => {
                manifest.fail_mode =
                    choice(value, &[("open", FailMode::Open), ("closed", FailMode::Closed)])?;
            }
            "exit_2_blocks" => manifest.exit_2_blocks = truth(value)?,
            "messages" => manifest.messages = Some(messages(value)?),
            "description" => manifest.description = text(value)?,
            "transcript" => manifest.transcript = truth(value)?,
            "mode" => self.resident = choice(value, &[("once", false), ("resident", true)])?,
            "then" => self.then = Some(value.as_object().ok_or("a map: the result")?.clone()),
            "url" => self.url = Some(url(value)?),
            "headers" => self.headers = text_map(value)?,
            "secret" => self.secret = Some(text(value)?),
            _ => {}
        }
        Ok(())
    }

    /// Parses the events. Unknown names are reported; one known name is sufficient.
    fn events(&mut self, value: &Value) -> Result<(), Problem> {
        let wrong = || self.problem("\"events\" must be a list of events").with_hint(events_hint());
        let names: Vec<&str> = match value {
            Value::String(text) => names(text).collect(),
            Value::Array(names) => {
                names.iter().map(Value::as_str).collect::<Option<_>>().ok_or_else(wrong)?
            }
            _ => return Err(wrong()),
        };
        let mut unknown = Vec::new();
        for name in names.into_iter().take(EVENTS_MAX) {
            match HookEvent::parse(name) {
                Some(event) if self.events.iter().any(|(known, _)| *known == event) => {}
                Some(event) => self.events.push((event, name.to_owned())),
                None => {
                    let known = HookEvent::ALL.into_iter().flat_map(|event| event.names().iter().copied());
                    let hint = nearest(name, known).map_or_else(events_hint, did_you_mean);
                    let problem = self.problem(format!("there is no event {:?}", short(name)));
                    unknown.push(problem.with_hint(hint));
                }
            }
        }
        if self.events.is_empty() && !unknown.is_empty() {
            return Err(unknown.swap_remove(0));
        }
        self.notes.append(&mut unknown);
        Ok(())
    }

    fn matches(&mut self, value: &Value) -> Result<(), Problem> {
        let fields = value.as_object().ok_or_else(|| self.problem("\"match\" must be a map"))?;
        let mut matches = HookConditions::default();
        for (name, value) in fields {
            let with_name = |wanted: ExpectedKind| self.problem(format!("\"match.{name}\" must be {wanted}"));
            match name.as_str() {
                _ if value.is_null() => {}
                "tool_name" => matches.tool_name = globs(value).map_err(with_name)?,
                "recipe" => matches.recipe = globs(value).map_err(with_name)?,
                "invoked_by" => matches.invoked_by = globs(value).map_err(with_name)?,
                "trigger" => matches.trigger = globs(value).map_err(with_name)?,
                "usage_ratio_gte" => {
                    let ratio = value.as_f64().filter(|ratio| (0.0..=1.0).contains(ratio));
                    let wanted = || with_name("a share of the window, from 0 to 1".to_owned());
                    matches.usage_ratio_gte = Some(ratio.ok_or_else(wanted)?);
                }
                "every_turns" => {
                    let turns = integer(value, 1, u32::MAX.into()).map_err(with_name)?;
                    matches.every_turns = Some(turns as u32);
                }
                unknown => {
                    let all = || format!("there are {}", MATCH_FIELDS.join(", "));
                    let hint = nearest(unknown, MATCH_FIELDS).map_or_else(all, did_you_mean);
                    // Ignoring it would run the hook more often than intended.
                    let problem = self.problem(format!("\"match\" has no {:?}", short(unknown)));
                    return Err(problem.with_hint(hint));
                }
            }
        }
        self.manifest.matches = matches;
        Ok(())
    }
}

/// Splits a list of names.
fn names(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| c.is_whitespace() || c == ',').filter(|name| !name.is_empty())
}

/// Moves a position inside an answer into the message, since it is not a position in the executable file.
fn of_answer(problem: Problem) -> Problem {
    let Some((line, column)) = problem.position else { return problem };
    let message = format!("{} (line {line}, column {column} of its answer to `hook`)", problem.message);
    Problem { position: None, message, ..problem }
}

fn events_hint() -> String {
    format!("the events are {}", HookEvent::ALL.map(HookEvent::name).join(", "))
}

fn did_you_mean(known: &str) -> String {
    format!("did you mean {known:?}?")
}

fn short(word: &str) -> String {
    word.chars().take(QUOTED_CHARS_MAX).collect()
}

fn integer(value: &Value, least: i64, most: i64) -> Result<i64, ExpectedKind> {
    let number = value.as_i64().filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| format!("a whole number from {least} to {most}"))
}

fn messages(value: &Value) -> Result<PayloadMessages, ExpectedKind> {
    let wanted = "\"full\", \"last:N\" or \"none\"";
    Ok(match value.as_str().ok_or(wanted)? {
        "full" => PayloadMessages::Full,
        "none" => PayloadMessages::None,
        other => {
            let count = other.strip_prefix("last:").and_then(|count| count.trim().parse().ok());
            PayloadMessages::Last(count.ok_or(wanted)?)
        }
    })
}

/// A list of globs, or a single one; commas are part of `{a,b}`.
fn globs(value: &Value) -> Result<Vec<String>, ExpectedKind> {
    let items = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    let globs = items.iter().map(|item| item.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>();
    let globs = globs.ok_or("a list of globs")?;
    for glob in &globs {
        globset::Glob::new(glob)
            .map_err(|error| format!("a list of globs, and {glob:?} is not valid: {}", error.kind()))?;
    }
    Ok(globs)
}

fn url(value: &Value) -> Result<String, ExpectedKind> {
    let url = value.as_str().filter(|url| {
        let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
        rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/'))
            && !url.contains(char::is_whitespace)
    });
    url.map(str::to_owned).ok_or_else(|| "an address that begins with https:// or http://".to_owned())
}
