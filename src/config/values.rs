//! Parsers for single values of a configuration file. Each reports the expected kind if the value has
//! another; none repeats a value that could be a secret.

use std::collections::BTreeMap;
use std::time::Duration;

use toml::de::DeValue;

use super::{CompactionThreshold, EditorWrites, Summariser, WireFormat};
use epitome_thread::{Mode, ModelName, ThoughtLevel};

/// Highest configurable round limit; a larger number would mean "no limit", which nobody wants to pay for.
const MAX_ROUNDS_MAX: i64 = 10_000;

/// Why a value is rejected.
pub(super) struct ValueError {
    pub message: String,
    pub hint: Option<String>,
}

/// The error for a value of the wrong type.
pub(super) fn wrong_type(what: &str, value: &DeValue<'_>) -> ValueError {
    ValueError {
        message: format!("this must be {what}, not a value of the kind {}", value.type_str()),
        hint: None,
    }
}

pub(super) fn text(value: &DeValue<'_>) -> Result<String, ValueError> {
    value.as_str().map(str::to_owned).ok_or_else(|| wrong_type("text", value))
}

pub(super) fn names(value: &DeValue<'_>) -> Result<Vec<String>, ValueError> {
    let wrong = || wrong_type("a list of texts", value);
    let list = value.as_array().ok_or_else(wrong)?;
    list.iter().map(|item| item.get_ref().as_str().map(str::to_owned).ok_or_else(wrong)).collect()
}

pub(super) fn truth(value: &DeValue<'_>) -> Result<bool, ValueError> {
    value.as_bool().ok_or_else(|| wrong_type("true or false", value))
}

pub(super) fn integer(value: &DeValue<'_>) -> Option<i64> {
    let integer = value.as_integer()?;
    i64::from_str_radix(integer.as_str(), integer.radix()).ok()
}

pub(super) fn tokens(value: &DeValue<'_>) -> Result<u64, ValueError> {
    let tokens = integer(value).and_then(|tokens| u64::try_from(tokens).ok()).filter(|tokens| *tokens > 0);
    tokens.ok_or_else(|| wrong_type("a number of tokens above 0", value))
}

pub(super) fn small_tokens(value: &DeValue<'_>) -> Result<u32, ValueError> {
    let tokens = tokens(value)?;
    u32::try_from(tokens)
        .map_err(|_| ValueError { message: "this number is too large".to_owned(), hint: None })
}

pub(super) fn summariser(value: &DeValue<'_>) -> Result<Summariser, ValueError> {
    Ok(match text(value)?.as_str() {
        "main" => Summariser::Main,
        "small" => Summariser::Small,
        "none" => Summariser::Nobody,
        name => Summariser::Named(name.to_owned()),
    })
}

/// The only role in which a summary is sent. The key exists for files that are shared with other programs.
pub(super) fn summary_role(value: &DeValue<'_>) -> Result<(), ValueError> {
    match text(value)?.as_str() {
        "user" => Ok(()),
        // A summary contains text from tool results, which must not carry the authority of a system message.
        _ => Err(ValueError {
            message: "a summary is always sent as a message of the user's".to_owned(),
            hint: Some("summary_role = \"user\", or leave it out".to_owned()),
        }),
    }
}

/// A duration for model calls, from one second to one hour.
pub(super) fn seconds(value: &DeValue<'_>) -> Result<Duration, ValueError> {
    between(value, 1..=3_600, "seconds").map(Duration::from_secs)
}

pub(super) fn characters(value: &DeValue<'_>) -> Result<usize, ValueError> {
    between(value, 0..=1_000_000, "characters").map(|number| number as usize)
}

pub(super) fn messages(value: &DeValue<'_>) -> Result<usize, ValueError> {
    between(value, 0..=10_000, "messages").map(|number| number as usize)
}

pub(super) fn number(value: &DeValue<'_>) -> Option<f64> {
    match value {
        DeValue::Float(float) => float.as_str().parse().ok(),
        DeValue::Integer(_) => integer(value).and_then(|whole| i32::try_from(whole).ok()).map(f64::from),
        _ => None,
    }
}

pub(super) fn share(value: &DeValue<'_>) -> Result<f64, ValueError> {
    let share = number(value).filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| wrong_type("a share of the window, from 0 to 1", value))
}

pub(super) fn threshold(value: &DeValue<'_>) -> Result<CompactionThreshold, ValueError> {
    match (integer(value), number(value)) {
        (Some(0), _) => Ok(CompactionThreshold::Never),
        (Some(tokens), _) if tokens > 1 => Ok(CompactionThreshold::Used(tokens.unsigned_abs())),
        (Some(tokens), _) if tokens < 0 => Ok(CompactionThreshold::Left(tokens.unsigned_abs())),
        (_, Some(ratio)) if ratio > 0.0 && ratio <= 1.0 => Ok(CompactionThreshold::Ratio(ratio)),
        (_, Some(0.0)) => Ok(CompactionThreshold::Never),
        _ => {
            Err(wrong_type("a ratio (0.80; 0 is never), tokens used (60000) or tokens left (-20000)", value))
        }
    }
}

pub(super) fn model_name(value: &DeValue<'_>) -> Result<Option<String>, ValueError> {
    let name = full_model_name(&text(value)?);
    Ok(Some(name.map_err(|(message, hint)| ValueError { message, hint: Some(hint) })?))
}

/// Completes a model's name with its provider. An error is a message and a hint.
pub(super) fn full_model_name(name: &str) -> Result<String, (String, String)> {
    let full = ModelName::parse(name);
    if full.split().is_some() {
        return Ok(full.0);
    }
    let hint = "write provider/model, for example \"anthropic/claude-sonnet-5-5\"".to_owned();
    Err((format!("{name:?} names no provider"), hint))
}

/// An integer within limits; `what` names the unit.
pub(super) fn between(
    value: &DeValue<'_>,
    limits: std::ops::RangeInclusive<i64>,
    what: &str,
) -> Result<u64, ValueError> {
    let within = integer(value).filter(|number| limits.contains(number));
    let within = within.and_then(|number| u64::try_from(number).ok());
    within.ok_or_else(|| wrong_type(&format!("{what} from {} to {}", limits.start(), limits.end()), value))
}

/// Any value as JSON; dates become strings.
pub(super) fn json(value: &DeValue<'_>) -> Result<serde_json::Value, ValueError> {
    use serde_json::Value as Json;
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
            Json::Array(items.iter().map(|item| json(item.get_ref())).collect::<Result<_, _>>()?)
        }
        DeValue::Table(table) => {
            let fields =
                table.iter().map(|(name, value)| Ok((name.get_ref().to_string(), json(value.get_ref())?)));
            Json::Object(fields.collect::<Result<_, _>>()?)
        }
    })
}

pub(super) fn mode(value: &DeValue<'_>) -> Result<Mode, ValueError> {
    let id = text(value)?;
    let unknown = || ValueError {
        message: format!("there is no mode {id:?}"),
        hint: Some(format!("one of {}", modes())),
    };
    Mode::parse(&id).ok_or_else(unknown)
}

pub(super) fn editor_writes(value: &DeValue<'_>) -> Result<EditorWrites, ValueError> {
    let id = text(value)?;
    let unknown = || ValueError {
        message: format!("editor_writes can't be {id:?}"),
        hint: Some(format!("one of {}", EditorWrites::ALL.map(EditorWrites::id).join(", "))),
    };
    EditorWrites::parse(&id).ok_or_else(unknown)
}

pub(super) fn thought(value: &DeValue<'_>) -> Result<ThoughtLevel, ValueError> {
    let id = text(value)?;
    let levels = ThoughtLevel::ALL.map(ThoughtLevel::id).join(", ");
    let unknown = || ValueError {
        message: format!("there is no thought level {id:?}"),
        hint: Some(format!("one of {levels}")),
    };
    ThoughtLevel::parse(&id).ok_or_else(unknown)
}

pub(super) fn max_rounds(value: &DeValue<'_>) -> Result<u32, ValueError> {
    let rounds = integer(value).filter(|rounds| (1..=MAX_ROUNDS_MAX).contains(rounds));
    let rounds = rounds.and_then(|rounds| u32::try_from(rounds).ok());
    rounds.ok_or_else(|| wrong_type(&format!("a whole number from 1 to {MAX_ROUNDS_MAX}"), value))
}

/// One round repeats nothing, so 1 would stop each turn.
pub(super) fn max_repeats(value: &DeValue<'_>) -> Result<u32, ValueError> {
    let repeats = integer(value).filter(|repeats| *repeats == 0 || (2..=MAX_ROUNDS_MAX).contains(repeats));
    let repeats = repeats.and_then(|repeats| u32::try_from(repeats).ok());
    let sentence = format!("0 for no limit, or a whole number from 2 to {MAX_ROUNDS_MAX}");
    repeats.ok_or_else(|| wrong_type(&sentence, value))
}

pub(super) fn wire_format(value: &DeValue<'_>) -> Result<WireFormat, ValueError> {
    let id = text(value)?;
    let ids = || WireFormat::ALL.map(WireFormat::id).join(", ");
    WireFormat::ALL.into_iter().find(|wire| wire.id() == id).ok_or_else(|| ValueError {
        message: format!("there is no wire format {id:?}"),
        hint: Some(format!("one of {}", ids())),
    })
}

pub(super) fn url(value: &DeValue<'_>) -> Result<String, ValueError> {
    let url = text(value)?;
    let host = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    if host.is_none_or(str::is_empty) {
        let message = "a base URL begins with https:// or http://".to_owned();
        return Err(ValueError { message, hint: None });
    }
    Ok(url)
}

/// The name of an environment variable. Users paste the key itself here by mistake, so the value is not
/// repeated.
pub(super) fn variable(value: &DeValue<'_>) -> Result<String, ValueError> {
    let name = text(value)?;
    let plain = !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.bytes().all(|byte| byte == b'_' || byte.is_ascii_alphanumeric());
    if plain {
        Ok(name)
    } else {
        let hint = Some(
            "for example key_variable = \"MY_PROVIDER_KEY\"; the key itself stays out of this file"
                .to_owned(),
        );
        Err(ValueError {
            message: "key_variable must be the name of an environment variable".to_owned(),
            hint,
        })
    }
}

pub(super) fn header_map(value: &DeValue<'_>) -> Result<BTreeMap<String, String>, ValueError> {
    let table = value.as_table().ok_or_else(|| wrong_type("a table of text", value))?;
    table
        .iter()
        .map(|(name, value)| {
            let wrong = || wrong_type(&format!("text, in the header {:?}", name.get_ref()), value.get_ref());
            Ok((name.get_ref().to_string(), value.get_ref().as_str().map(str::to_owned).ok_or_else(wrong)?))
        })
        .collect()
}

pub(super) fn modes() -> String {
    Mode::ALL.map(Mode::id).join(", ")
}
