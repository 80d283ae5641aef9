//! Parses the fields of a manifest one by one. `manifest` parses the formats that contain them.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value};

use super::event::HookEvent;
use super::hook::{FailMode, Manifest, Match, Messages, RUN_TIME_MAX, RUN_TIME_MIN};
use super::manifest::{Declared, Form, Given, Secret};
use epitome_config::MANIFEST_KEYS;
use epitome_problem::{Problem, nearest};
use epitome_recipe::fields::{Fields, Wanted, choice, text, text_map, truth};

/// Maximum events that a hook may register for; there are fewer names of events.
pub(super) const EVENTS_MAX: usize = 64;
/// Maximum characters quoted in a message: a program that is not a hook may print anything.
const QUOTED_CHARS_MAX: usize = 40;

/// The fields of declarative files in addition to those of a manifest.
const DECLARED_FIELDS: [&str; 4] = ["then", "url", "headers", "secret"];
const MATCH_FIELDS: [&str; 6] =
    ["tool_name", "recipe", "invoked_by", "trigger", "usage_ratio_gte", "every_turns"];

pub(super) struct Reader<'a> {
    pub path: &'a Path,
    pub given: Given<'a>,
    pub events: Vec<(HookEvent, String)>,
    pub manifest: Manifest,
    pub resident: bool,
    pub then: Option<Map<String, Value>>,
    pub url: Option<String>,
    pub headers: BTreeMap<String, Secret>,
    pub secret: Option<Secret>,
    pub notes: Vec<Problem>,
}

impl<'a> Reader<'a> {
    pub fn new(path: &'a Path, given: Given<'a>) -> Reader<'a> {
        Reader {
            path,
            given,
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

    pub fn fields(&mut self, fields: &Fields) -> Result<(), Problem> {
        for (name, field) in fields {
            self.field(name, &field.value, Some(field.place)).map_err(|wrong| {
                let Wrong { message, hint } = wrong;
                at(self.path, Some(field.place), message, hint)
            })?;
        }
        Ok(())
    }

    /// Applies the user's overrides and checks that the declaration is complete.
    pub fn finish(mut self, form: Form) -> Result<Declared, Problem> {
        if let Some((overrides, file)) = self.given.overrides {
            self.overrides(overrides, file);
        }
        if self.events.is_empty() {
            return Err(at(self.path, None, "the hook names no event".to_owned(), events_hint()));
        }
        let form = match form {
            // The user may choose how their executable is run.
            Form::Script | Form::Resident if self.resident => Form::Resident,
            Form::Script | Form::Resident => Form::Script,
            Form::Result(_) | Form::Webhook { .. } => form,
        };
        Ok(Declared { events: self.events, manifest: self.manifest, form, notes: self.notes })
    }

    /// An invalid value leaves the hook's own in effect.
    pub fn overrides(&mut self, overrides: &Map<String, Value>, file: &'a Path) {
        let own = std::mem::replace(&mut self.path, file);
        for (name, value) in overrides {
            let events = (name == "events").then(|| std::mem::take(&mut self.events));
            if let Err(Wrong { message, hint }) = self.field(name, value, None) {
                let message = format!("hooks.overrides.{:?}: {message}", self.given.name);
                self.notes.push(at(file, None, message, hint));
            }
            if let Some(events) = events.filter(|_| self.events.is_empty()) {
                self.events = events;
            }
        }
        self.path = own;
    }

    fn field(&mut self, name: &str, value: &Value, place: Option<(u64, u64)>) -> Result<(), Wrong> {
        if value.is_null() {
            return Ok(());
        }
        let manifest = &mut self.manifest;
        let read: Result<(), Wanted> = match name {
            "events" => return self.events(value, place),
            "match" => return self.matches(value),
            "protocol" => whole(value, 1, 2).map(|protocol| manifest.protocol = protocol as u32),
            "timeout_ms" => {
                let (least, most) = (RUN_TIME_MIN.as_millis() as i64, RUN_TIME_MAX.as_millis() as i64);
                whole(value, least, most)
                    .map(|limit| manifest.timeout = Duration::from_millis(limit.unsigned_abs()))
            }
            "priority" => whole(value, i32::MIN.into(), i32::MAX.into())
                .map(|priority| manifest.priority = priority as i32),
            "fail_mode" => choice(value, &[("open", FailMode::Open), ("closed", FailMode::Closed)])
                .map(|mode| manifest.fail_mode = mode),
            "exit_2_blocks" => truth(value).map(|blocks| manifest.exit_2_blocks = blocks),
            "messages" => messages(value).map(|messages| manifest.messages = Some(messages)),
            "description" => text(value).map(|description| manifest.description = description),
            "transcript" => truth(value).map(|transcript| manifest.transcript = transcript),
            "mode" => {
                choice(value, &[("once", false), ("resident", true)]).map(|resident| self.resident = resident)
            }
            "then" => match value {
                Value::Object(then) => {
                    self.then = Some(then.clone());
                    Ok(())
                }
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                    Err("a map: the result".to_owned())
                }
            },
            "url" => url(value).map(|url| self.url = Some(url)),
            "headers" => text_map(value).map(|headers| {
                self.headers = headers.into_iter().map(|(name, value)| (name, Secret(value))).collect();
            }),
            "secret" => text(value).map(|secret| self.secret = Some(Secret(secret))),
            unknown => {
                let hint =
                    nearest(unknown, MANIFEST_KEYS.into_iter().chain(DECLARED_FIELDS)).map(did_you_mean);
                let message = format!("unknown field {:?}, ignored", short(unknown));
                self.notes.push(at(self.path, place, message, hint));
                Ok(())
            }
        };
        read.map_err(|wanted| Wrong { message: format!("{name:?} must be {wanted}"), hint: None })
    }

    /// Unknown names are reported; one known name is sufficient.
    fn events(&mut self, value: &Value, place: Option<(u64, u64)>) -> Result<(), Wrong> {
        let wrong =
            || Wrong { message: "\"events\" must be a list of events".to_owned(), hint: events_hint() };
        let names: Vec<&str> = match value {
            Value::String(names) => {
                names.split(|c: char| c.is_whitespace() || c == ',').filter(|name| !name.is_empty()).collect()
            }
            Value::Array(names) => {
                names.iter().map(Value::as_str).collect::<Option<_>>().ok_or_else(wrong)?
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => return Err(wrong()),
        };
        let mut unknown = Vec::new();
        for name in names.into_iter().take(EVENTS_MAX) {
            match HookEvent::parse(name) {
                Some(event) if self.events.iter().any(|(known, _)| *known == event) => {}
                Some(event) => self.events.push((event, name.to_owned())),
                None => {
                    let known = HookEvent::ALL.into_iter().flat_map(|event| event.names().iter().copied());
                    let hint = nearest(name, known).map(did_you_mean).or_else(events_hint);
                    unknown.push(Wrong { message: format!("there is no event {:?}", short(name)), hint });
                }
            }
        }
        match unknown.is_empty() || !self.events.is_empty() {
            true => {
                let notes = unknown.into_iter().map(|wrong| at(self.path, place, wrong.message, wrong.hint));
                self.notes.extend(notes);
                Ok(())
            }
            false => Err(unknown.swap_remove(0)),
        }
    }

    fn matches(&mut self, value: &Value) -> Result<(), Wrong> {
        let wrong = |message: String| Wrong { message, hint: None };
        let fields = value.as_object().ok_or_else(|| wrong("\"match\" must be a map".to_owned()))?;
        let mut matches = Match::default();
        for (name, value) in fields {
            let read: Result<(), Wanted> = match name.as_str() {
                _ if value.is_null() => Ok(()),
                "tool_name" => globs(value).map(|globs| matches.tool_name = globs),
                "recipe" => globs(value).map(|globs| matches.recipe = globs),
                "invoked_by" => globs(value).map(|globs| matches.invoked_by = globs),
                "trigger" => globs(value).map(|globs| matches.trigger = globs),
                "usage_ratio_gte" => match value.as_f64().filter(|ratio| (0.0..=1.0).contains(ratio)) {
                    Some(ratio) => {
                        matches.usage_ratio_gte = Some(ratio);
                        Ok(())
                    }
                    None => Err("a share of the window, from 0 to 1".to_owned()),
                },
                "every_turns" => {
                    whole(value, 1, u32::MAX.into()).map(|turns| matches.every_turns = Some(turns as u32))
                }
                unknown => {
                    let hint = nearest(unknown, MATCH_FIELDS)
                        .map(did_you_mean)
                        .or_else(|| Some(format!("there are {}", MATCH_FIELDS.join(", "))));
                    // Ignoring it would run the hook more often than intended.
                    return Err(Wrong { message: format!("\"match\" has no {:?}", short(unknown)), hint });
                }
            };
            read.map_err(|wanted| wrong(format!("\"match.{name}\" must be {wanted}")))?;
        }
        self.manifest.matches = matches;
        Ok(())
    }
}

/// Why a value is rejected.
struct Wrong {
    message: String,
    hint: Option<String>,
}

pub(super) fn at(path: &Path, place: Option<(u64, u64)>, message: String, hint: Option<String>) -> Problem {
    Problem { path: path.to_path_buf(), place, message, hint }
}

/// Moves a position inside an answer into the message, since it is not a position in the executable file.
pub(super) fn of_answer(problem: Problem) -> Problem {
    let Problem { path, place, message, hint } = problem;
    let message = match place {
        Some((line, column)) => format!("{message} (line {line}, column {column} of its answer to `hook`)"),
        None => message,
    };
    Problem { path, place: None, message, hint }
}

pub(super) fn events_hint() -> Option<String> {
    Some(format!("the events are {}", HookEvent::ALL.map(HookEvent::name).join(", ")))
}

fn did_you_mean(known: &str) -> String {
    format!("did you mean {known:?}?")
}

fn short(word: &str) -> String {
    word.chars().take(QUOTED_CHARS_MAX).collect()
}

fn whole(value: &Value, least: i64, most: i64) -> Result<i64, Wanted> {
    let number = value.as_i64().filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| format!("a whole number from {least} to {most}"))
}

fn messages(value: &Value) -> Result<Messages, Wanted> {
    let read = match value.as_str() {
        Some("full") => Some(Messages::Full),
        Some("none") => Some(Messages::None),
        Some(other) => {
            other.strip_prefix("last:").and_then(|count| count.trim().parse().ok()).map(Messages::Last)
        }
        None => None,
    };
    read.ok_or_else(|| "\"full\", \"last:N\" or \"none\"".to_owned())
}

/// A list of globs, or a single one; commas are part of `{a,b}`.
fn globs(value: &Value) -> Result<Vec<String>, Wanted> {
    let globs = match value {
        Value::String(glob) => vec![glob.clone()],
        Value::Array(items) => {
            let items = items.iter().map(|item| item.as_str().map(str::to_owned));
            items.collect::<Option<_>>().ok_or_else(|| "a list of globs".to_owned())?
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {
            return Err("a list of globs".to_owned());
        }
    };
    for glob in &globs {
        globset::Glob::new(glob)
            .map_err(|error| format!("a list of globs, and {glob:?} is none: {}", error.kind()))?;
    }
    Ok(globs)
}

fn url(value: &Value) -> Result<String, Wanted> {
    let url = value.as_str().filter(|url| {
        let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
        rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/'))
            && !url.contains(char::is_whitespace)
    });
    url.map(str::to_owned).ok_or_else(|| "an address that begins with https:// or http://".to_owned())
}
