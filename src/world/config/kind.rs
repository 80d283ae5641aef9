//! The kinds of values in a configuration file: how a value is read and written, and its JSON Schema. Reader and
//! schema use the same kinds, so they accept the same values.

use std::ops::RangeInclusive;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value as Json, json};
use toml::de::DeValue;

use super::values::{ValueError, integer, number, wrong_number, wrong_type};
use epitome_thread::problem::nearest;

type Read<T> = Box<dyn Fn(&DeValue<'_>) -> Result<T, ValueError>>;

/// A kind of value that is read as a `T`.
pub(super) struct Kind<T> {
    read: Read<T>,
    /// Converts the value to JSON, with secrets masked.
    written: Box<dyn Fn(&T) -> Json>,
    schema: Json,
}

impl<T: 'static> Kind<T> {
    pub fn new(
        schema: Json,
        written: impl Fn(&T) -> Json + 'static,
        read: impl Fn(&DeValue<'_>) -> Result<T, ValueError> + 'static,
    ) -> Kind<T> {
        Kind { read: Box::new(read), written: Box::new(written), schema }
    }

    /// A kind whose values are written as they are.
    pub fn plain(schema: Json, read: impl Fn(&DeValue<'_>) -> Result<T, ValueError> + 'static) -> Kind<T>
    where
        T: Serialize,
    {
        Kind::new(schema, |value| json!(value), read)
    }

    /// The values for which there is no error.
    pub fn checked(self, error: impl Fn(&T) -> Option<ValueError> + 'static) -> Kind<T> {
        let read = move |value: &DeValue<'_>| {
            let read = (self.read)(value)?;
            error(&read).map_or(Ok(read), Err)
        };
        Kind { read: Box::new(read), ..self }
    }

    /// The same values as another type.
    pub fn into<U: 'static>(self, written: impl Fn(&U) -> Json + 'static, into: fn(T) -> U) -> Kind<U> {
        Kind::new(self.schema, written, move |value| (self.read)(value).map(into))
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
    text_like(json!({ "type": "string" }))
}

/// A text whose schema says more than its type.
pub(super) fn text_like(schema: Json) -> Kind<String> {
    Kind::plain(schema, |value| value.as_str().map(str::to_owned).ok_or_else(|| wrong_type("text", value)))
}

pub(super) fn names() -> Kind<Vec<String>> {
    let schema = json!({ "type": "array", "items": { "type": "string" } });
    Kind::plain(schema, super::values::names)
}

pub(super) fn truth() -> Kind<bool> {
    Kind::plain(json!({ "type": "boolean" }), |value| {
        value.as_bool().ok_or_else(|| wrong_type("true or false", value))
    })
}

/// An integer within limits; `what` names the unit.
pub(super) fn between<N: TryFrom<i64> + Serialize + 'static>(
    limits: RangeInclusive<i64>,
    what: &'static str,
) -> Kind<N> {
    whole(limits.clone(), format!("{what} from {} to {}", limits.start(), limits.end()))
}

/// An integer within limits; `expected` describes it in an error.
pub(super) fn whole<N: TryFrom<i64> + Serialize + 'static>(
    limits: RangeInclusive<i64>,
    expected: String,
) -> Kind<N> {
    let mut schema = json!({ "type": "integer", "minimum": limits.start() });
    if *limits.end() < i64::MAX {
        schema["maximum"] = json!(limits.end());
    }
    Kind::plain(schema, move |value| {
        let within = integer(value).filter(|number| limits.contains(number));
        within.and_then(|number| N::try_from(number).ok()).ok_or_else(|| wrong_number(&expected, value))
    })
}

pub(super) fn seconds(limits: RangeInclusive<i64>) -> Kind<Duration> {
    between(limits, "a number of seconds").into(|time| json!(time.as_secs()), Duration::from_secs)
}

pub(super) fn milliseconds(limits: RangeInclusive<i64>) -> Kind<Duration> {
    let written = |time: &Duration| json!(u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
    between(limits, "a number of milliseconds").into(written, Duration::from_millis)
}

/// A number from 0 to 1.
pub(super) fn share() -> Kind<f64> {
    let schema = json!({ "type": "number", "minimum": 0, "maximum": 1 });
    real(schema, "a share of the window, from 0 to 1", |share| (0.0..=1.0).contains(share))
}

/// A finite number that fits; `expected` describes it in an error.
pub(super) fn real(schema: Json, expected: &'static str, fits: fn(&f64) -> bool) -> Kind<f64> {
    Kind::plain(schema, move |value| {
        let number = number(value).filter(|number| number.is_finite() && fits(number));
        number.ok_or_else(|| wrong_number(expected, value))
    })
}

/// One of several words; `what` names the choice in errors.
pub(super) fn one_of<T: PartialEq + Copy + 'static>(
    what: &'static str,
    all: &'static [T],
    id: fn(T) -> &'static str,
) -> Kind<T> {
    let ids: Vec<&str> = all.iter().map(|one| id(*one)).collect();
    let schema = json!({ "enum": ids });
    let written = move |one: &T| json!(id(*one));
    Kind::new(schema, written, move |value| {
        let word = text().read(value)?;
        let known = all.iter().copied().find(|one| id(*one) == word);
        let unknown = || ValueError::new(format!("there is no {what} {word:?}"));
        known.ok_or_else(|| unknown().hint(suggestion(&word, &ids)))
    })
}

/// Suggests the most similar known word, or lists all of them.
pub(super) fn suggestion(word: &str, known: &[&str]) -> String {
    match nearest(word, known.iter().copied()) {
        Some(near) => format!("did you mean {near:?}?"),
        None => format!("one of {}", known.join(", ")),
    }
}
