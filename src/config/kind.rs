//! The kinds of values in a configuration file: how a value is read and written, and its JSON Schema. Reader and
//! schema use the same kinds, so they accept the same values.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use serde_json::{Value as Json, json};
use toml::de::DeValue;

use super::values::{ValueError, integer, number, wrong_number, wrong_type};
use epitome_problem::nearest;

type Read<T> = Box<dyn Fn(&DeValue<'_>) -> Result<T, ValueError>>;

/// A kind of value that is read as a `T`.
pub(super) struct Kind<T> {
    read: Read<T>,
    /// Converts the value to JSON, with secrets masked.
    written: fn(&T) -> Json,
    schema: Json,
}

impl<T> Kind<T> {
    pub fn new(
        schema: Json,
        written: fn(&T) -> Json,
        read: impl Fn(&DeValue<'_>) -> Result<T, ValueError> + 'static,
    ) -> Kind<T> {
        Kind { read: Box::new(read), written, schema }
    }

    pub fn read(&self, value: &DeValue<'_>) -> Result<T, ValueError> {
        (self.read)(value)
    }

    pub fn written(&self, value: &T) -> Json {
        (self.written)(value)
    }

    pub fn schema(&self) -> &Json {
        &self.schema
    }
}

/// The target of a setting's value: the setting, or `Some` of it.
pub(super) trait Slot<T> {
    fn put(&mut self, value: T);
    fn current(&self) -> Option<&T>;
}

impl<T> Slot<T> for T {
    fn put(&mut self, value: T) {
        *self = value;
    }

    fn current(&self) -> Option<&T> {
        Some(self)
    }
}

impl<T> Slot<T> for Option<T> {
    fn put(&mut self, value: T) {
        *self = Some(value);
    }

    fn current(&self) -> Option<&T> {
        self.as_ref()
    }
}

pub(super) fn text() -> Kind<String> {
    Kind::new(
        json!({ "type": "string" }),
        |text| json!(text),
        |value| value.as_str().map(str::to_owned).ok_or_else(|| wrong_type("text", value)),
    )
}

pub(super) fn names() -> Kind<Vec<String>> {
    let schema = json!({ "type": "array", "items": { "type": "string" } });
    Kind::new(schema, |names| json!(names), super::values::names)
}

pub(super) fn truth() -> Kind<bool> {
    Kind::new(
        json!({ "type": "boolean" }),
        |truth| json!(truth),
        |value| value.as_bool().ok_or_else(|| wrong_type("true or false", value)),
    )
}

/// An integer within limits; `what` names the unit.
pub(super) fn between<N: TryFrom<i64> + Copy + Display>(
    limits: RangeInclusive<i64>,
    what: &'static str,
) -> Kind<N> {
    whole(limits.clone(), format!("{what} from {} to {}", limits.start(), limits.end()))
}

/// An integer within limits; `expected` describes it in an error.
pub(super) fn whole<N: TryFrom<i64> + Copy + Display>(
    limits: RangeInclusive<i64>,
    expected: String,
) -> Kind<N> {
    let schema = integer_schema(&limits);
    Kind::new(
        schema,
        |number| number.to_string().parse::<u64>().map_or(Json::Null, Json::from),
        move |value| {
            let within = integer(value).filter(|number| limits.contains(number));
            within.and_then(|number| N::try_from(number).ok()).ok_or_else(|| wrong_number(&expected, value))
        },
    )
}

fn integer_schema(limits: &RangeInclusive<i64>) -> Json {
    let mut schema = json!({ "type": "integer", "minimum": limits.start() });
    if *limits.end() < i64::MAX {
        schema["maximum"] = json!(limits.end());
    }
    schema
}

/// A duration in whole seconds.
pub(super) fn seconds(limits: RangeInclusive<i64>) -> Kind<Duration> {
    let number = between::<u64>(limits, "a number of seconds");
    Kind::new(
        number.schema.clone(),
        |time| json!(time.as_secs()),
        move |value| number.read(value).map(Duration::from_secs),
    )
}

/// A duration in whole milliseconds.
pub(super) fn milliseconds(limits: RangeInclusive<i64>) -> Kind<Duration> {
    let number = between::<u64>(limits, "a number of milliseconds");
    Kind::new(
        number.schema.clone(),
        |time| json!(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
        move |value| number.read(value).map(Duration::from_millis),
    )
}

/// A number from 0 to 1.
pub(super) fn share() -> Kind<f64> {
    Kind::new(
        json!({ "type": "number", "minimum": 0, "maximum": 1 }),
        |share| json!(share),
        |value| {
            let share = number(value).filter(|share| (0.0..=1.0).contains(share));
            share.ok_or_else(|| wrong_number("a share of the window, from 0 to 1", value))
        },
    )
}

/// One of several words; `what` names the choice in errors.
pub(super) fn one_of<T: PartialEq + Copy + 'static>(
    what: &'static str,
    all: &'static [T],
    id: fn(T) -> &'static str,
    written: fn(&T) -> Json,
) -> Kind<T> {
    let ids: Vec<&str> = all.iter().map(|one| id(*one)).collect();
    let schema = json!({ "enum": ids });
    Kind::new(schema, written, move |value| {
        let word = text().read(value)?;
        let known = all.iter().copied().find(|one| id(*one) == word);
        known.ok_or_else(|| ValueError {
            message: format!("there is no {what} {word:?}"),
            hint: Some(suggestion(&word, &ids)),
        })
    })
}

/// Suggests the most similar known word, or lists all of them.
pub(super) fn suggestion(word: &str, known: &[&str]) -> String {
    match nearest(word, known.iter().copied()) {
        Some(near) => format!("did you mean {near:?}?"),
        None => format!("one of {}", known.join(", ")),
    }
}
