//! Applies one configuration file to settings. Walks the parsed file, so that each wrong value is told
//! with its line and column and the right ones still hold. Repeats no value that could be a secret.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::{Compaction, ModelSettings, Owner, ProviderSettings, Settings, Threshold, WireFormat};
use crate::problem::{Problem, nearest, place_in};
use crate::thread::{Mode, ModelName, ThoughtLevel};

const KEYS: [&str; 9] =
    ["model", "mode", "thought", "max_rounds", "models", "providers", "compaction", "hooks", "templates"];
const MODEL_KEYS: [&str; 3] = ["context_window", "max_output", "betas"];
const PROVIDER_KEYS: [&str; 4] = ["wire", "base_url", "key_variable", "headers"];
/// Those that nothing reads yet are accepted: files may be shared with an agent that does.
const COMPACTION_KEYS: [&str; 16] = [
    "auto",
    "ratio",
    "compact_ratio",
    "threshold",
    "must_ratio",
    "preserve_ratio",
    "model",
    "max_summary_tokens",
    "summary_timeout_s",
    "timeout_s",
    "summary_role",
    "pin_share",
    "person_share",
    "message_chars",
    "prune",
    "output_reserve",
];
/// Rounds that can be configured; a larger number means "without end", which nobody wants to pay.
const MAX_ROUNDS_MAX: i64 = 10_000;

pub(super) fn modes() -> String {
    Mode::ALL.map(Mode::id).join(", ")
}

/// Reads the text and gives back what is wrong in it.
pub(super) fn apply(settings: &mut Settings, path: &Path, text: &str, owner: Owner<'_>) -> Vec<Problem> {
    let (table, errors) = DeTable::parse_recoverable(text);
    let mut reader = Reader { path, text, owner, unreadable: BTreeSet::new(), problems: Vec::new() };
    for error in errors {
        let span = error.span().unwrap_or(0..0);
        let (line, _) = place_in(text, span.start);
        reader.problem(span, format!("not valid TOML: {}", error.message()), None);
        reader.unreadable.insert(line);
    }
    reader.root(settings, table.get_ref());
    reader.problems
}

type Value<'i> = toml::Spanned<DeValue<'i>>;

struct Reader<'a> {
    path: &'a Path,
    text: &'a str,
    owner: Owner<'a>,
    /// Lines that are not TOML. Whatever else seems wrong with them follows from that.
    unreadable: BTreeSet<u64>,
    problems: Vec<Problem>,
}

impl Reader<'_> {
    fn problem(&mut self, span: Range<usize>, message: String, hint: Option<String>) {
        let place = place_in(self.text, span.start);
        if !self.unreadable.contains(&place.0) {
            let (path, place) = (self.path.to_path_buf(), Some(place));
            self.problems.push(Problem { path, place, message, hint });
        }
    }

    fn root(&mut self, settings: &mut Settings, table: &DeTable<'_>) {
        for (key, value) in table {
            let name: &str = key.get_ref();
            let of_person = matches!(name, "model" | "mode" | "max_rounds" | "providers" | "hooks");
            if of_person && self.refused(key.span(), name) {
                continue;
            }
            match name {
                "model" => self.set(value, &mut settings.model, model_name),
                "mode" => self.set(value, &mut settings.mode, mode),
                "thought" => self.set(value, &mut settings.thought, thought),
                "max_rounds" => self.set(value, &mut settings.max_rounds, max_rounds),
                "models" => self.models(value, settings),
                "providers" => self.providers(value, &mut settings.providers),
                "compaction" => self.compaction(value, &mut settings.compaction),
                "hooks" | "templates" => {}
                _ => self.unknown(key.span(), name, &KEYS),
            }
        }
    }

    /// Refuses a key that only the person may set; says whether it did.
    fn refused(&mut self, span: Range<usize>, name: &str) -> bool {
        let Owner::Repository { instead } = self.owner else { return false };
        let hint = format!("if you want it, set it in {}", instead.display());
        self.problem(span, format!("a repository cannot set {name:?}"), Some(hint));
        true
    }

    fn unknown(&mut self, span: Range<usize>, name: &str, known: &[&'static str]) {
        let hint = nearest(name, known.iter().copied()).map(|key| format!("did you mean {key:?}?"));
        self.problem(span, format!("unknown key {name:?}"), hint);
    }

    /// Sets a field if the value is right, tells what is wrong otherwise.
    fn set<T>(
        &mut self,
        value: &Value<'_>,
        field: &mut T,
        read: impl FnOnce(&DeValue<'_>) -> Result<T, Wrong>,
    ) {
        match read(value.get_ref()) {
            Ok(read) => *field = read,
            Err(Wrong { message, hint }) => self.problem(value.span(), message, hint),
        }
    }

    fn table<'v, 'i>(&mut self, value: &'v Value<'i>, what: &str) -> Option<&'v DeTable<'i>> {
        let table = value.get_ref().as_table();
        if table.is_none() {
            self.problem(value.span(), format!("{what} must be a table"), None);
        }
        table
    }

    fn models(&mut self, value: &Value<'_>, settings: &mut Settings) {
        let Some(models) = self.table(value, "models") else { return };
        for (name, value) in models {
            // `models.small` names a model; the others are tables.
            if name.get_ref() == "small" && value.get_ref().is_str() {
                self.refused(name.span(), "models.small");
                continue;
            }
            let Some(table) = self.table(value, "what is known of a model") else { continue };
            let mut model: ModelSettings =
                settings.models.get(&**name.get_ref()).cloned().unwrap_or_default();
            for (key, value) in table {
                match &**key.get_ref() {
                    "context_window" => {
                        self.set(value, &mut model.context_window, |value| tokens(value).map(Some));
                    }
                    "max_output" => {
                        self.set(value, &mut model.max_output, |value| small_tokens(value).map(Some))
                    }
                    "betas" => {}
                    other => self.unknown(key.span(), other, &MODEL_KEYS),
                }
            }
            settings.models.insert(name.get_ref().to_string(), model);
        }
    }

    fn providers(&mut self, value: &Value<'_>, providers: &mut BTreeMap<String, ProviderSettings>) {
        let Some(table) = self.table(value, "providers") else { return };
        for (name, value) in table {
            let before = self.problems.len();
            let Some(table) = self.table(value, "a provider") else { continue };
            let mut wire = None;
            let mut base_url = None;
            let mut key_variable = None;
            let mut headers = BTreeMap::new();
            for (key, value) in table {
                match &**key.get_ref() {
                    "wire" => self.set(value, &mut wire, |value| wire_format(value).map(Some)),
                    "base_url" => self.set(value, &mut base_url, |value| url(value).map(Some)),
                    "key_variable" => self.set(value, &mut key_variable, |value| variable(value).map(Some)),
                    "headers" => self.set(value, &mut headers, header_map),
                    other => self.unknown(key.span(), other, &PROVIDER_KEYS),
                }
            }
            match (wire, base_url) {
                _ if self.problems.len() > before => {}
                (Some(wire), Some(base_url)) => {
                    let provider = ProviderSettings { wire, base_url, key_variable, headers };
                    providers.insert(name.get_ref().to_string(), provider);
                }
                (wire, _) => {
                    let missing = if wire.is_none() { "wire" } else { "base_url" };
                    let message = format!("the provider {:?} has no {missing}", name.get_ref());
                    let hint = "wire = \"anthropic\" or \"openai_chat\", base_url = \"https://…\"";
                    self.problem(name.span(), message, Some(hint.to_owned()));
                }
            }
        }
    }

    fn compaction(&mut self, value: &Value<'_>, compaction: &mut Compaction) {
        let Some(table) = self.table(value, "compaction") else { return };
        for (key, value) in table {
            match &**key.get_ref() {
                "auto" => self.set(value, &mut compaction.auto, truth),
                "threshold" | "ratio" | "compact_ratio" => {
                    self.set(value, &mut compaction.threshold, threshold);
                }
                "must_ratio" => self.set(value, &mut compaction.must_ratio, share),
                "preserve_ratio" => self.set(value, &mut compaction.preserve_ratio, share),
                "model" => {
                    let own = matches!(value.get_ref().as_str(), Some("main" | "small"));
                    if own || !self.refused(key.span(), "compaction.model") {
                        self.set(value, &mut compaction.model, |value| text(value).map(Some));
                    }
                }
                "max_summary_tokens" => self.set(value, &mut compaction.max_summary_tokens, small_tokens),
                "pin_share" => self.set(value, &mut compaction.pin_share, share),
                "person_share" => self.set(value, &mut compaction.person_share, share),
                "output_reserve" => self.set(value, &mut compaction.output_reserve, small_tokens),
                known if COMPACTION_KEYS.contains(&known) => {}
                other => self.unknown(key.span(), other, &COMPACTION_KEYS),
            }
        }
    }
}

struct Wrong {
    message: String,
    hint: Option<String>,
}

/// A value of the wrong kind.
fn wanted(what: &str, value: &DeValue<'_>) -> Wrong {
    Wrong {
        message: format!("this must be {what}, not a value of the kind {}", value.type_str()),
        hint: None,
    }
}

fn text(value: &DeValue<'_>) -> Result<String, Wrong> {
    value.as_str().map(str::to_owned).ok_or_else(|| wanted("text", value))
}

fn truth(value: &DeValue<'_>) -> Result<bool, Wrong> {
    value.as_bool().ok_or_else(|| wanted("true or false", value))
}

fn whole(value: &DeValue<'_>) -> Option<i64> {
    let integer = value.as_integer()?;
    i64::from_str_radix(integer.as_str(), integer.radix()).ok()
}

fn tokens(value: &DeValue<'_>) -> Result<u64, Wrong> {
    let tokens = whole(value).and_then(|tokens| u64::try_from(tokens).ok()).filter(|tokens| *tokens > 0);
    tokens.ok_or_else(|| wanted("a number of tokens above 0", value))
}

fn small_tokens(value: &DeValue<'_>) -> Result<u32, Wrong> {
    let tokens = tokens(value)?;
    u32::try_from(tokens).map_err(|_| Wrong { message: "this number is too large".to_owned(), hint: None })
}

fn number(value: &DeValue<'_>) -> Option<f64> {
    match value {
        DeValue::Float(float) => float.as_str().parse().ok(),
        DeValue::Integer(_) => whole(value).and_then(|whole| i32::try_from(whole).ok()).map(f64::from),
        _ => None,
    }
}

fn share(value: &DeValue<'_>) -> Result<f64, Wrong> {
    let share = number(value).filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| wanted("a share of the window, from 0 to 1", value))
}

fn threshold(value: &DeValue<'_>) -> Result<Threshold, Wrong> {
    match (whole(value), number(value)) {
        (Some(0), _) => Ok(Threshold::Never),
        (Some(tokens), _) if tokens > 1 => Ok(Threshold::Used(tokens.unsigned_abs())),
        (Some(tokens), _) if tokens < 0 => Ok(Threshold::Left(tokens.unsigned_abs())),
        (_, Some(ratio)) if ratio > 0.0 && ratio <= 1.0 => Ok(Threshold::Ratio(ratio)),
        (_, Some(0.0)) => Ok(Threshold::Never),
        _ => Err(wanted("a ratio (0.80; 0 is never), tokens used (60000) or tokens left (-20000)", value)),
    }
}

fn model_name(value: &DeValue<'_>) -> Result<Option<String>, Wrong> {
    let name = text(value)?;
    check_model_name(&name).map_err(|(message, hint)| Wrong { message, hint: Some(hint) })?;
    Ok(Some(name))
}

/// What is wrong with a model's name, and what to do about it.
pub(super) fn check_model_name(name: &str) -> Result<(), (String, String)> {
    if ModelName(name.to_owned()).split().is_some() {
        return Ok(());
    }
    let hint = "write provider/model, for example \"anthropic/claude-sonnet-5-5\"".to_owned();
    Err((format!("{name:?} names no provider"), hint))
}

fn mode(value: &DeValue<'_>) -> Result<Mode, Wrong> {
    let id = text(value)?;
    let unknown =
        || Wrong { message: format!("there is no mode {id:?}"), hint: Some(format!("one of {}", modes())) };
    Mode::parse(&id).ok_or_else(unknown)
}

fn thought(value: &DeValue<'_>) -> Result<ThoughtLevel, Wrong> {
    let id = text(value)?;
    let levels = ThoughtLevel::ALL.map(ThoughtLevel::id).join(", ");
    let unknown = || Wrong {
        message: format!("there is no thought level {id:?}"),
        hint: Some(format!("one of {levels}")),
    };
    ThoughtLevel::parse(&id).ok_or_else(unknown)
}

fn max_rounds(value: &DeValue<'_>) -> Result<u32, Wrong> {
    let rounds = whole(value).filter(|rounds| (1..=MAX_ROUNDS_MAX).contains(rounds));
    let rounds = rounds.and_then(|rounds| u32::try_from(rounds).ok());
    rounds.ok_or_else(|| wanted(&format!("a whole number from 1 to {MAX_ROUNDS_MAX}"), value))
}

fn wire_format(value: &DeValue<'_>) -> Result<WireFormat, Wrong> {
    match text(value)?.as_str() {
        "anthropic" => Ok(WireFormat::AnthropicMessages),
        "openai_chat" => Ok(WireFormat::OpenAiChat),
        other => Err(Wrong {
            message: format!("there is no wire format {other:?}"),
            hint: Some("one of anthropic, openai_chat".to_owned()),
        }),
    }
}

fn url(value: &DeValue<'_>) -> Result<String, Wrong> {
    let url = text(value)?;
    let host = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    if host.is_none_or(str::is_empty) {
        let message = "a base URL begins with https:// or http://".to_owned();
        return Err(Wrong { message, hint: None });
    }
    Ok(url)
}

/// The name of a variable. People paste the key itself here, so the value is not repeated.
fn variable(value: &DeValue<'_>) -> Result<String, Wrong> {
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
        Err(Wrong { message: "key_variable must be the name of an environment variable".to_owned(), hint })
    }
}

fn header_map(value: &DeValue<'_>) -> Result<BTreeMap<String, String>, Wrong> {
    let table = value.as_table().ok_or_else(|| wanted("a table of text", value))?;
    table
        .iter()
        .map(|(name, value)| {
            let wrong = || wanted(&format!("text, in the header {:?}", name.get_ref()), value.get_ref());
            Ok((name.get_ref().to_string(), value.get_ref().as_str().map(str::to_owned).ok_or_else(wrong)?))
        })
        .collect()
}
