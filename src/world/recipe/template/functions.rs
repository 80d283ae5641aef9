//! Functions that depend only on their arguments. `and`, `or` and `bash` are implemented in the evaluator.

use std::cmp::Ordering;
use std::fmt::{self, Write};

use super::{OUTPUT_BYTES_MAX, TemplateValue};

/// Maximum width and precision of a `printf` verb; a larger one would only add padding.
const PRINTF_WIDTH_MAX: usize = 1000;

/// Calls a function. The error is a message; the evaluator adds the position.
pub fn call(name: &str, arguments: Vec<TemplateValue>) -> Result<TemplateValue, String> {
    match name {
        "default" => default(arguments),
        "not" => one(name, arguments).map(|value| TemplateValue::Bool(!value.truth())),
        "eq" => match arguments.as_slice() {
            [first, others @ ..] if !others.is_empty() => others
                .iter()
                .try_fold(false, |found, other| Ok(found || equal(first, other)?))
                .map(TemplateValue::Bool),
            _ => Err(too_few(name, 2)),
        },
        "ne" => {
            two(name, arguments).and_then(|(a, b)| equal(&a, &b)).map(|equal| TemplateValue::Bool(!equal))
        }
        "lt" | "le" | "gt" | "ge" => {
            let (a, b) = two(name, arguments)?;
            let order = compare(&a, &b)?;
            Ok(TemplateValue::Bool(match name {
                "lt" => order == Ordering::Less,
                "le" => order != Ordering::Greater,
                "gt" => order == Ordering::Greater,
                _ => order != Ordering::Less,
            }))
        }
        "len" => match one(name, arguments)? {
            TemplateValue::Text(text) => Ok(count(text.len())),
            TemplateValue::Map(map) => Ok(count(map.len())),
            TemplateValue::Missing => Ok(TemplateValue::Int(0)),
            other => Err(format!("len cannot count {}", other.kind())),
        },
        "index" => index(arguments),
        "print" => bounded(|text| print(text, &arguments)),
        "println" => bounded(|text| {
            for (at, argument) in arguments.iter().enumerate() {
                let space = if at == 0 { "" } else { " " };
                write!(text, "{space}{argument}")?;
            }
            text.write_char('\n')
        }),
        "printf" => {
            let [TemplateValue::Text(format), rest @ ..] = arguments.as_slice() else {
                return Err("printf needs its format as text first".to_owned());
            };
            bounded(|text| printf(text, format, rest))
        }
        other => Err(format!("{other} cannot be called here")),
    }
}

fn count(length: usize) -> TemplateValue {
    TemplateValue::Int(i64::try_from(length).unwrap_or(i64::MAX))
}

/// The values as the words of a command.
pub fn words(values: &[TemplateValue]) -> Result<Vec<String>, String> {
    let mut all = BoundedText::default();
    let word = |value: &TemplateValue| {
        let before = all.0.len();
        write!(all, "{value}").map_err(|_| too_long())?;
        Ok(all.0[before..].to_owned())
    };
    values.iter().map(word).collect()
}

/// A text of at most `OUTPUT_BYTES_MAX` bytes. Writing more fails, so that a short template can't fill the memory.
#[derive(Default)]
struct BoundedText(String);

impl Write for BoundedText {
    fn write_str(&mut self, piece: &str) -> fmt::Result {
        if self.0.len() + piece.len() > OUTPUT_BYTES_MAX {
            return Err(fmt::Error);
        }
        self.0.push_str(piece);
        Ok(())
    }
}

fn bounded(write: impl FnOnce(&mut BoundedText) -> fmt::Result) -> Result<TemplateValue, String> {
    let mut text = BoundedText::default();
    write(&mut text).map_err(|_| too_long())?;
    Ok(TemplateValue::Text(text.0))
}

fn too_long() -> String {
    format!("a text of more than {OUTPUT_BYTES_MAX} bytes comes out of this")
}

fn too_few(name: &str, wanted: usize) -> String {
    format!("{name} needs at least {wanted} arguments")
}

fn one(name: &str, arguments: Vec<TemplateValue>) -> Result<TemplateValue, String> {
    let given = arguments.len();
    <[TemplateValue; 1]>::try_from(arguments)
        .map(|[value]| value)
        .map_err(|_| format!("{name} needs one argument, not {given}"))
}

fn two(name: &str, arguments: Vec<TemplateValue>) -> Result<(TemplateValue, TemplateValue), String> {
    let given = arguments.len();
    <[TemplateValue; 2]>::try_from(arguments)
        .map(|[first, second]| (first, second))
        .map_err(|_| format!("{name} needs two arguments, not {given}"))
}

/// Returns the second argument if the first is missing or empty.
fn default(arguments: Vec<TemplateValue>) -> Result<TemplateValue, String> {
    let (value, fallback) = two("default", arguments)?;
    let empty = matches!(&value, TemplateValue::Missing)
        || matches!(&value, TemplateValue::Text(text) if text.is_empty());
    Ok(if empty { fallback } else { value })
}

fn equal(a: &TemplateValue, b: &TemplateValue) -> Result<bool, String> {
    use TemplateValue::{Bool, Float, Int, Missing};
    match (a, b) {
        (Bool(a), Bool(b)) => Ok(a == b),
        (Missing, Bool(_) | Int(_) | Float(_)) | (Bool(_) | Int(_) | Float(_), Missing) => Ok(false),
        _ => compare(a, b).map(Ordering::is_eq),
    }
}

#[expect(clippy::cast_precision_loss, reason = "only compares with a float, which has no more precision")]
fn compare(a: &TemplateValue, b: &TemplateValue) -> Result<Ordering, String> {
    use TemplateValue::{Float, Int, Missing, Text};
    let order = |a: f64, b: f64| a.partial_cmp(&b).ok_or_else(|| "these numbers have no order".to_owned());
    match (a, b) {
        (Int(a), Int(b)) => Ok(a.cmp(b)),
        (Int(a), Float(b)) => order(*a as f64, *b),
        (Float(a), Int(b)) => order(*a, *b as f64),
        (Float(a), Float(b)) => order(*a, *b),
        (Text(a), Text(b)) => Ok(a.cmp(b)),
        (Missing, Missing) => Ok(Ordering::Equal),
        (Missing, Text(b)) => Ok("".cmp(b)),
        (Text(a), Missing) => Ok(a.as_str().cmp("")),
        _ => {
            let hint = match (a, b) {
                (Text(_), Int(number)) | (Int(number), Text(_)) => {
                    format!("; arguments are text, write \"{number}\" in quotes")
                }
                _ => String::new(),
            };
            Err(format!("{} and {} cannot be compared{hint}", a.kind(), b.kind()))
        }
    }
}

fn index(arguments: Vec<TemplateValue>) -> Result<TemplateValue, String> {
    let mut arguments = arguments.into_iter();
    let mut value = arguments.next().ok_or_else(|| too_few("index", 1))?;
    for key in arguments {
        value = match (&value, &key) {
            (TemplateValue::Map(map), TemplateValue::Text(name)) => {
                map.get(name).cloned().unwrap_or(TemplateValue::Missing)
            }
            (TemplateValue::Text(text), TemplateValue::Int(at)) => usize::try_from(*at)
                .ok()
                .and_then(|at| text.as_bytes().get(at))
                .map(|byte| TemplateValue::Int(i64::from(*byte)))
                .ok_or_else(|| format!("the text has no byte {at}"))?,
            (TemplateValue::Missing, _) => TemplateValue::Missing,
            (value, key) => return Err(format!("{} cannot be indexed by {}", value.kind(), key.kind())),
        };
    }
    Ok(value)
}

/// Go's `Sprint`: a space between operands when neither of them is a string.
fn print(text: &mut BoundedText, arguments: &[TemplateValue]) -> fmt::Result {
    let mut previous_is_text = true;
    for argument in arguments {
        let is_text = matches!(argument, TemplateValue::Text(_));
        let space = if previous_is_text || is_text { "" } else { " " };
        write!(text, "{space}{argument}")?;
        previous_is_text = is_text;
    }
    Ok(())
}

/// Go's `Sprintf` for the verbs s, v, q, d, x, t, f and %, with width, precision, `-` and `0`. As in Go, a
/// mistake shows in the output (`%!d(string=x)`) and is not an error.
fn printf(text: &mut BoundedText, format: &str, arguments: &[TemplateValue]) -> fmt::Result {
    let mut arguments = arguments.iter();
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        text.write_str(&rest[..at])?;
        rest = &rest[at + 1..];
        let flags_end = rest.find(|c: char| !matches!(c, '-' | '0' | '+' | ' ' | '#')).unwrap_or(rest.len());
        let flags = &rest[..flags_end];
        rest = &rest[flags_end..];
        let width = take_number(&mut rest).unwrap_or(0);
        let precision = rest.strip_prefix('.').map(|behind| {
            rest = behind;
            take_number(&mut rest).unwrap_or(0)
        });
        let Some(verb) = rest.chars().next() else {
            text.write_str("%!(NOVERB)")?;
            break;
        };
        rest = &rest[verb.len_utf8()..];
        if verb == '%' {
            text.write_char('%')?;
            continue;
        }
        let piece = match arguments.next() {
            Some(value) => verb_text(verb, value, precision),
            None => format!("%!{verb}(MISSING)"),
        };
        let missing = width.saturating_sub(piece.chars().count());
        if flags.contains('-') {
            write!(text, "{piece}{:missing$}", "")?;
        } else if flags.contains('0') && matches!(verb, 'd' | 'f' | 'x') {
            let (sign, digits) = piece.split_at(usize::from(piece.starts_with('-')));
            write!(text, "{sign}{}{digits}", "0".repeat(missing))?;
        } else {
            write!(text, "{:missing$}{piece}", "")?;
        }
    }
    text.write_str(rest)
}

fn take_number(rest: &mut &str) -> Option<usize> {
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (digits, behind) = rest.split_at(end);
    *rest = behind;
    if digits.is_empty() {
        return None;
    }
    Some(digits.parse().unwrap_or(PRINTF_WIDTH_MAX).min(PRINTF_WIDTH_MAX))
}

fn verb_text(verb: char, value: &TemplateValue, precision: Option<usize>) -> String {
    match (verb, value) {
        ('s' | 'v', value) => match precision {
            Some(length) if verb == 's' => value.to_string().chars().take(length).collect(),
            _ => value.to_string(),
        },
        ('q', value) => format!("{:?}", value.to_string()),
        ('d', TemplateValue::Int(value)) => value.to_string(),
        ('x', TemplateValue::Int(value)) => format!("{value:x}"),
        ('x', TemplateValue::Text(text)) => text.bytes().map(|byte| format!("{byte:02x}")).collect(),
        ('t', TemplateValue::Bool(value)) => value.to_string(),
        ('f', TemplateValue::Float(value)) => format!("{:.*}", precision.unwrap_or(6), value),
        (verb, value) => format!("%!{verb}({value})"),
    }
}
