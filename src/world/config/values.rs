//! Kinds of single values that occur only in configuration files, and errors of values. An error states the expected
//! kind and never quotes a value that could be a secret.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value as Json, json};
use toml::de::DeValue;

use super::kind::{Kind, between, one_of, seconds, text, text_like, whole};
use super::{
    BeforeBreak, ChatKeys, CompactionThreshold, EditorWrites, SearchChoice, Summariser, TurnNotice,
    WireFormat,
};
use epitome_thread::{Mode, ModelName, ThoughtLevel};

/// Maximum configurable round limit; a larger number would amount to "no limit", with unlimited costs.
pub const MAX_ROUNDS_MAX: u32 = 10_000;

/// Replacement for a secret.
const MASKED: &str = "<masked>";

/// Why a value is rejected.
pub(super) struct ValueError {
    pub message: String,
    pub hint: Option<String>,
}

impl ValueError {
    pub fn new(message: impl Into<String>) -> ValueError {
        ValueError { message: message.into(), hint: None }
    }

    pub fn hint(self, hint: impl Into<String>) -> ValueError {
        ValueError { hint: Some(hint.into()), ..self }
    }
}

pub(super) fn wrong_type(what: &str, value: &DeValue<'_>) -> ValueError {
    let kind = match value.type_str() {
        "string" => "text",
        "integer" | "float" => "a number",
        "boolean" => "true or false",
        "array" => "a list",
        other => other,
    };
    ValueError::new(format!("this must be {what}, not {kind}"))
}

/// The error for a value that must be a number within limits. A number is named: its kind may be right.
pub(super) fn wrong_number(what: &str, value: &DeValue<'_>) -> ValueError {
    let given = match value {
        DeValue::Integer(integer) => integer.as_str(),
        DeValue::Float(float) => float.as_str(),
        _ => return wrong_type(what, value),
    };
    ValueError::new(format!("this must be {what}, not {given}"))
}

pub(super) fn names(value: &DeValue<'_>) -> Result<Vec<String>, ValueError> {
    let wrong = || wrong_type("a list of texts", value);
    let list = value.as_array().ok_or_else(wrong)?;
    list.iter().map(|item| item.get_ref().as_str().map(str::to_owned).ok_or_else(wrong)).collect()
}

pub(super) fn integer(value: &DeValue<'_>) -> Option<i64> {
    let integer = value.as_integer()?;
    i64::from_str_radix(integer.as_str(), integer.radix()).ok()
}

pub(super) fn number(value: &DeValue<'_>) -> Option<f64> {
    match value {
        DeValue::Float(float) => float.as_str().parse().ok(),
        DeValue::Integer(_) => integer(value).and_then(|whole| i32::try_from(whole).ok()).map(f64::from),
        _ => None,
    }
}

pub(super) fn tokens() -> Kind<u64> {
    whole(1..=i64::MAX, "a number of tokens above 0".to_owned())
}

pub(super) fn small_tokens() -> Kind<u32> {
    let all = tokens();
    let mut schema = all.schema().clone();
    schema["maximum"] = json!(u32::MAX);
    Kind::plain(schema, move |value| {
        u32::try_from(all.read(value)?).map_err(|_| ValueError::new("this number is too large"))
    })
}

pub(super) fn summariser() -> Kind<Summariser> {
    let written = |summariser: &Summariser| match summariser {
        Summariser::Cheapest => Json::Null,
        Summariser::Main => json!("main"),
        Summariser::Small => json!("small"),
        Summariser::None => json!("none"),
        Summariser::Named(name) => json!(name),
    };
    let schema = json!({ "type": "string", "examples": ["main", "small", "none"] });
    Kind::new(schema, written, |value| {
        Ok(match text().read(value)?.as_str() {
            "main" => Summariser::Main,
            "small" => Summariser::Small,
            "none" => Summariser::None,
            name => Summariser::Named(name.to_owned()),
        })
    })
}

/// The role in which summaries are sent: whether it is `system`.
pub(super) fn summary_role() -> Kind<bool> {
    let role = text_like(json!({ "enum": ["user", "system"] })).checked(|role| {
        let is_known = role == "user" || role == "system";
        (!is_known).then(|| ValueError::new("a summary has the role \"user\" or \"system\""))
    });
    role.into(|is_system| json!(if *is_system { "system" } else { "user" }), |role| role == "system")
}

/// A timeout for model calls, from one second to one hour.
pub(super) fn call_seconds() -> Kind<Duration> {
    seconds(1..=3_600)
}

pub(super) fn characters() -> Kind<usize> {
    between(0..=1_000_000, "characters")
}

pub(super) fn messages() -> Kind<usize> {
    between(0..=10_000, "messages")
}

pub(super) fn threshold() -> Kind<CompactionThreshold> {
    let written = |threshold: &CompactionThreshold| match threshold {
        CompactionThreshold::Never => json!(0),
        CompactionThreshold::Ratio(ratio) => json!(ratio),
        CompactionThreshold::Used(tokens) => json!(tokens),
        CompactionThreshold::Left(tokens) => json!(-i64::try_from(*tokens).unwrap_or(i64::MAX)),
    };
    let schema =
        json!({ "anyOf": [{ "type": "number", "minimum": 0, "maximum": 1 }, { "type": "integer" }] });
    Kind::new(schema, written, |value| match (integer(value), number(value)) {
        (Some(0), _) => Ok(CompactionThreshold::Never),
        (Some(tokens), _) if tokens > 1 => Ok(CompactionThreshold::Used(tokens.unsigned_abs())),
        (Some(tokens), _) if tokens < 0 => Ok(CompactionThreshold::Left(tokens.unsigned_abs())),
        (_, Some(ratio)) if ratio > 0.0 && ratio <= 1.0 => Ok(CompactionThreshold::Ratio(ratio)),
        (_, Some(0.0)) => Ok(CompactionThreshold::Never),
        _ => Err(wrong_number(
            "a ratio (0.80; 0 is never), tokens used (60000) or tokens left (-20000)",
            value,
        )),
    })
}

pub(super) fn model_name() -> Kind<String> {
    let schema = json!({ "type": "string", "examples": ["anthropic/claude-sonnet-5-5"] });
    Kind::plain(schema, |value| full_model_name(&text().read(value)?))
}

/// Completes a model's name with its provider.
pub(super) fn full_model_name(name: &str) -> Result<String, ValueError> {
    let full = ModelName::parse(name);
    if full.split().is_some() {
        return Ok(full.0);
    }
    let hint = "write provider/model, for example \"anthropic/claude-sonnet-5-5\"";
    Err(ValueError::new(format!("{name:?} names no provider")).hint(hint))
}

/// Any value as JSON; dates become strings.
pub(super) fn any() -> Kind<Json> {
    Kind::plain(json!({}), json_of)
}

fn json_of(value: &DeValue<'_>) -> Result<Json, ValueError> {
    Ok(match value {
        DeValue::String(text) => Json::from(&**text),
        DeValue::Boolean(truth) => Json::from(*truth),
        DeValue::Datetime(date) => Json::from(date.to_string()),
        DeValue::Integer(_) => {
            Json::from(integer(value).ok_or_else(|| wrong_type("a number of 64 bits", value))?)
        }
        DeValue::Float(_) => {
            let number = number(value).and_then(serde_json::Number::from_f64);
            Json::Number(number.ok_or_else(|| wrong_type("a finite number", value))?)
        }
        DeValue::Array(items) => {
            Json::Array(items.iter().map(|item| json_of(item.get_ref())).collect::<Result<_, _>>()?)
        }
        DeValue::Table(table) => {
            let fields =
                table.iter().map(|(name, value)| Ok((name.get_ref().to_string(), json_of(value.get_ref())?)));
            Json::Object(fields.collect::<Result<_, _>>()?)
        }
    })
}

pub(super) fn mode() -> Kind<Mode> {
    one_of("mode", &Mode::ALL, Mode::id)
}

pub(super) fn editor_writes() -> Kind<EditorWrites> {
    one_of("editor_writes", &EditorWrites::ALL, EditorWrites::id)
}

pub(super) fn search_choice() -> Kind<SearchChoice> {
    one_of("web_search", &SearchChoice::ALL, SearchChoice::id)
}

/// The address of a database. It is checked when the store is opened, where an invalid one is an error: other settings
/// have a default that can be used instead. A password in it is never shown.
pub(super) fn store() -> Kind<String> {
    let schema = json!({ "type": "string", "examples": ["postgres://user@host/database"] });
    let shown = |url: &String| match url.rsplit_once('@') {
        // A parameter, which is refused when the store is opened.
        _ if url.to_ascii_lowercase().contains("password") => json!("postgres://…"),
        Some((user, place)) if user.matches(':').count() > 1 => json!(format!("postgres://…@{place}")),
        _ => json!(url),
    };
    Kind::new(schema, shown, |value| text().read(value))
}

pub(super) fn before_break() -> Kind<BeforeBreak> {
    one_of("before_break", &BeforeBreak::ALL, BeforeBreak::id)
}

pub(super) fn notify() -> Kind<TurnNotice> {
    one_of("notify", &TurnNotice::ALL, TurnNotice::id)
}

pub(super) fn chat_keys() -> Kind<ChatKeys> {
    one_of("chat_keys", &ChatKeys::ALL, ChatKeys::id)
}

pub(super) fn thought() -> Kind<ThoughtLevel> {
    one_of("thought level", &ThoughtLevel::ALL, ThoughtLevel::id)
}

pub(super) fn max_rounds() -> Kind<u32> {
    let most = i64::from(MAX_ROUNDS_MAX);
    whole(1..=most, format!("a whole number from 1 to {most}"))
}

/// The limit of repeated rounds. One round repeats nothing, so 1 would stop each turn.
pub(super) fn max_repeats() -> Kind<u32> {
    let most = MAX_ROUNDS_MAX;
    let schema = json!({ "type": "integer", "minimum": 0, "maximum": most, "not": { "const": 1 } });
    Kind::plain(schema, move |value| {
        let repeats = integer(value).and_then(|repeats| u32::try_from(repeats).ok());
        let allowed = repeats.filter(|repeats| *repeats == 0 || (2..=most).contains(repeats));
        let expected = || format!("0 for no limit, or a whole number from 2 to {most}");
        allowed.ok_or_else(|| wrong_type(&expected(), value))
    })
}

pub(super) fn wire_format() -> Kind<WireFormat> {
    one_of("wire format", &WireFormat::ALL, WireFormat::id)
}

pub(super) fn url() -> Kind<String> {
    let schema = json!({ "type": "string", "pattern": "^https?://." });
    // The user name, path and query of an address may contain keys.
    let written = |url: &String| {
        let origin = super::origin(url);
        let is_all = url.trim_end_matches('/') == origin;
        json!(if is_all { url.clone() } else { format!("{origin}/…") })
    };
    Kind::new(schema, written, |value| {
        let url = text().read(value)?;
        let host = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
        if host.is_none_or(str::is_empty) {
            return Err(ValueError::new("a base URL begins with https:// or http://"));
        }
        Ok(url)
    })
}

/// The name of an environment variable. Users may paste the key here by mistake, so errors don't quote the value.
pub(super) fn variable() -> Kind<String> {
    let schema = json!({ "type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]*$" });
    text_like(schema).checked(|name| {
        let error = || ValueError::new("key_variable must be the name of an environment variable");
        let example = "for example key_variable = \"MY_PROVIDER_KEY\"; the key itself stays out of this file";
        (!is_variable(name)).then(|| error().hint(example))
    })
}

/// Whether this can be the name of an environment variable.
pub(super) fn is_variable(name: &str) -> bool {
    name.starts_with(|c: char| c == '_' || c.is_ascii_alphabetic())
        && name.bytes().all(|byte| byte == b'_' || byte.is_ascii_alphanumeric())
}

/// Texts by name: headers or variables. Their values may be keys.
pub(super) fn header_map() -> Kind<BTreeMap<String, String>> {
    let schema = json!({ "type": "object", "additionalProperties": { "type": "string" } });
    let written =
        |map: &BTreeMap<String, String>| map.keys().map(|name| (name.clone(), json!(MASKED))).collect();
    Kind::new(schema, written, |value| {
        let table = value.as_table().ok_or_else(|| wrong_type("a table of text", value))?;
        let pairs = table.iter().map(|(name, value)| {
            let wrong = || wrong_type(&format!("text, for {:?}", name.get_ref()), value.get_ref());
            let text = value.get_ref().as_str().ok_or_else(wrong)?;
            Ok((name.get_ref().to_string(), text.to_owned()))
        });
        pairs.collect()
    })
}

/// Headers of requests. Errors don't quote their names: one may be a misplaced key.
pub(super) fn headers() -> Kind<BTreeMap<String, String>> {
    header_map().checked(|headers| {
        let is_in_name = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        let is_name = |name: &String| !name.is_empty() && name.bytes().all(is_in_name);
        let error = || ValueError::new("the name of a header has invalid characters");
        let hint = "it has letters, digits and dashes, for example \"X-Team\"";
        (!headers.keys().all(is_name)).then(|| error().hint(hint))
    })
}

/// The arguments of a program. Any of them may be a key.
pub(super) fn arguments() -> Kind<Vec<String>> {
    super::kind::names().into(|list: &Vec<String>| json!(format!("<{} arguments>", list.len())), |list| list)
}
