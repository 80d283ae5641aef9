//! Applies one configuration file to the settings. Walks the parsed TOML, so that each invalid value is reported with
//! its line and column while valid ones still take effect. Never quotes a value that could be a secret.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use serde_json::Value as Json;
use toml::de::{DeTable, DeValue};

use super::keys::{ConfigKey, KeyCollector, SetValue};
use super::kind::{Kind, Slot, share, truth};
use super::permissions::{asks_because, restricted_by};
use super::values::{
    ValueError, before_break, call_seconds, characters, chat_keys, editor_writes, headers, max_repeats,
    max_rounds, messages, mode, model_name, notify, search_choice, small_tokens, store, summariser,
    summary_role, thought, threshold, url, variable, wire_format,
};
use super::{
    BuiltInSettings, CompactionSettings, FileOwner, ProviderSettings, PruneSettings, Settings, WireFormat,
};
use crate::rules::{RulePattern, WrittenRule, covered};
use epitome_thread::problem::{Problem, nearest, position_in};

/// Providers with a default address.
pub const BUILT_IN: [&str; 21] = [
    "anthropic",
    "openai",
    "gemini",
    "openrouter",
    "chatgpt",
    "groq",
    "xai",
    "mistral",
    "deepseek",
    "together",
    "fireworks",
    "cerebras",
    "moonshot",
    "zai",
    "azure",
    "bedrock",
    "vertex",
    "ollama",
    "lmstudio",
    "vllm",
    "local",
];

/// Applies the text. Returns the values that it set, and its problems in line order.
pub(super) fn apply(
    settings: &mut Settings,
    path: &Path,
    text: &str,
    owner: FileOwner<'_>,
) -> (Vec<SetValue>, Vec<Problem>) {
    let (table, errors) = DeTable::parse_recoverable(text);
    let mut reader = ConfigReader::new(path, text, owner);
    for error in errors {
        let span = error.span().unwrap_or(0..0);
        let (line, _) = position_in(text, span.start);
        reader.problem(span, format!("not valid TOML: {}", error.message()), None);
        reader.unreadable.insert(line);
    }
    // Settings after an error may be missing. The words of the file show which ones these can be.
    if text.contains("budget") {
        reader.spend_nothing_until_corrected(0);
    }
    reader.ask_until_corrected(0, [covered("")]);
    reader.refuse_of_store(table.get_ref());
    reader.root(settings, table.get_ref());
    settings.permissions.append(&mut reader.asked);
    settings.budget.fault = settings.budget.fault.take().or(reader.budget_fault.take());
    reader.problems.sort_by_key(|problem| problem.position);
    (reader.values, reader.problems)
}

/// Returns every key that the user's file may contain, with its current value in these settings. The reader
/// enumerates its keys, so no second list is needed.
pub(super) fn keys(settings: &Settings) -> Vec<ConfigKey> {
    let mut reader = ConfigReader::new(Path::new(""), "", FileOwner::User { home: None });
    reader.collector = Some(KeyCollector::default());
    reader.root(&mut settings.clone(), &NO_TABLE);
    reader.collector.take().map(KeyCollector::finish).unwrap_or_default()
}

pub(super) type TomlValue<'i> = toml::Spanned<DeValue<'i>>;
pub(super) type TomlKey<'i> = toml::Spanned<Cow<'i, str>>;

/// Placeholders for a file, used when collecting keys.
static NO_TABLE: LazyLock<DeTable<'static>> = LazyLock::new(DeTable::new);
static NO_VALUE: LazyLock<TomlValue<'static>> =
    LazyLock::new(|| toml::Spanned::new(0..0, DeValue::Boolean(false)));

pub(super) struct ConfigReader<'a> {
    pub(super) path: &'a Path,
    text: &'a str,
    pub(super) owner: FileOwner<'a>,
    /// Lines that are not valid TOML. Further problems on them are only consequences of the syntax error.
    unreadable: BTreeSet<u64>,
    /// Models with `compaction = "native"`, with the span of the setting.
    pub(super) native: Vec<(String, Range<usize>)>,
    problems: Vec<Problem>,
    /// Permission rules that ask because of mistakes.
    asked: Vec<WrittenRule>,
    /// The mistake that forbids all spending.
    budget_fault: Option<String>,
    /// The path of tables and key that is being read.
    within: Vec<String>,
    /// The values that were set.
    values: Vec<SetValue>,
    /// If set, keys are collected instead of reading values.
    collector: Option<KeyCollector>,
}

/// Names of keys that a message lists if none of them resembles the one that was written.
const KEYS_LISTED_MAX: usize = 8;

/// The words between a mistake and its consequence.
pub(super) const UNTIL_CORRECTED: &str = "; until it is corrected, ";

/// Reads the fields of a table, each with the expression for its name, and reports other names. A field's first name
/// is the current one; the others are aliases.
macro_rules! fields {
    ($reader:ident, $table:expr, $key:ident, $value:ident, { $($($name:literal)|+ => $read:expr,)* }) => {
        let names: &[&[&'static str]] = &[$(&[$($name),+]),*];
        for ($key, $value) in $reader.entries($table, names) {
            $reader.enter(&$key);
            match &**$key.get_ref() {
                $($($name)|+ => $read,)*
                _ => $reader.unknown(&$key, $value, &names.concat()),
            }
            $reader.leave();
        }
    };
}
pub(super) use fields;

impl<'a> ConfigReader<'a> {
    fn new(path: &'a Path, text: &'a str, owner: FileOwner<'a>) -> ConfigReader<'a> {
        ConfigReader {
            path,
            text,
            owner,
            unreadable: BTreeSet::new(),
            native: Vec::new(),
            problems: Vec::new(),
            asked: Vec::new(),
            budget_fault: None,
            within: Vec::new(),
            values: Vec::new(),
            collector: None,
        }
    }

    /// Returns the entries of a table whose keys are `names`, or are chosen by the user if `names` is empty. When
    /// collecting keys, there is one entry for each.
    pub(super) fn entries<'v, 'i>(
        &mut self,
        table: &'v DeTable<'i>,
        names: &[&[&'static str]],
    ) -> Vec<(TomlKey<'i>, &'v TomlValue<'i>)> {
        let Some(collector) = &mut self.collector else {
            return table.iter().map(|(key, value)| (key.clone(), value)).collect();
        };
        let names = collector.names(&self.within, names);
        names.into_iter().map(|name| (toml::Spanned::new(0..0, Cow::Borrowed(name)), &*NO_VALUE)).collect()
    }

    pub(super) fn enter(&mut self, key: &TomlKey<'_>) {
        self.within.push(key.get_ref().to_string());
    }

    pub(super) fn leave(&mut self) {
        self.within.pop();
    }

    /// Returns whether keys are collected; if so, adds the current key with this schema.
    pub(super) fn collects(&mut self, schema: &Json, value: Option<Json>) -> bool {
        let Some(collector) = &mut self.collector else { return false };
        collector.add(&self.within, schema.clone(), value);
        true
    }

    pub(super) fn value_count(&self) -> usize {
        self.values.len()
    }

    /// Discards the values set since `count`, because the table that contains them is not used.
    pub(super) fn unset(&mut self, count: usize) {
        self.values.truncate(count);
    }

    /// Records a value of the current key.
    pub(super) fn note_value(&mut self, span: Range<usize>, value: Json) {
        let (path, line) = self.position(span);
        self.values.push(SetValue { key: self.within.clone(), value, path, line: Some(line) });
    }

    pub(super) fn problem(&mut self, span: Range<usize>, message: String, hint: Option<String>) {
        let position = position_in(self.text, span.start);
        // If a value is missing, the parser makes one up, with an empty span.
        let is_made_up = span == (0..0) && !self.unreadable.is_empty();
        if !is_made_up && !self.unreadable.contains(&position.0) {
            let (path, position) = (self.path.to_path_buf(), Some(position));
            self.problems.push(Problem { path, position, message, hint, is_notice: false });
        }
    }

    pub(super) fn problem_count(&self) -> usize {
        self.problems.len()
    }

    /// Returns the path of the file and the line number of a span.
    pub(super) fn position(&self, span: Range<usize>) -> (PathBuf, u64) {
        (self.path.to_path_buf(), position_in(self.text, span.start).0)
    }

    fn root(&mut self, settings: &mut Settings, table: &DeTable<'_>) {
        fields!(self, table, key, value, {
            "model" => if self.is_users(&key) { self.set(value, &mut settings.model, model_name()); },
            "mode" => if self.is_users(&key) { self.set(value, &mut settings.mode, mode()); },
            "thought" => self.set(value, &mut settings.thought, thought()),
            "max_rounds" => {
                if self.is_users(&key) { self.limit(value, &mut settings.max_rounds, max_rounds()); }
            },
            "max_repeats" => {
                if self.is_users(&key) { self.set(value, &mut settings.max_repeats, max_repeats()); }
            },
            "editor_writes" => {
                if self.is_users(&key) { self.set(value, &mut settings.editor_writes, editor_writes()); }
            },
            "acp_v2" => if self.is_users(&key) { self.set(value, &mut settings.acp_v2, truth()); },
            "notify" => if self.is_users(&key) { self.set(value, &mut settings.notify, notify()); },
            "chat_keys" => if self.is_users(&key) { self.set(value, &mut settings.chat_keys, chat_keys()); },
            "store" => if self.is_users(&key) { self.set(value, &mut settings.store, store()); },
            "memory" => if self.is_users(&key) { self.set(value, &mut settings.memory, truth()); },
            "telemetry" => if self.is_users(&key) { self.telemetry(value, settings); },
            "models" => self.models(value, settings),
            "providers" => if self.is_users(&key) { self.providers(value, settings); },
            "compaction" => self.compaction(value, &mut settings.compaction),
            "environment" => if self.is_users(&key) { self.exposure(value, &mut settings.exposure); },
            "hooks" => if self.is_users(&key) { self.hooks(value, &mut settings.hooks); },
            "diagnostics" => if self.is_users(&key) {
                self.diagnostics(value, &mut settings.diagnostics);
            },
            "budget" => if self.is_users(&key) { self.budget(value, &mut settings.budget); },
            "agents" => if self.is_users(&key) { self.agents(value, &mut settings.agents); },
            "mcp" => self.mcp(value, &mut settings.mcp),
            "permissions" => self.permissions(value, &mut settings.permissions),
            "policy" => if self.is_policys(&key) { self.policy(value, &mut settings.policy); },
            "sandbox" => if self.is_users(&key) { self.sandbox(value, &mut settings.sandbox); },
            "secrets" => if self.is_users(&key) { self.secrets(value, &mut settings.mask_secrets); },
            "templates" => self.templates(value, settings),
            "web_fetch" => if self.is_users(&key) { self.web_fetch(value, settings); },
            "web_search" => {
                if self.is_users(&key) { self.set(value, &mut settings.web_search, search_choice()); }
            },
        });
        self.check_native(settings);
    }

    /// Whether a key may be set in this file; if not, reports that only the user may set it.
    fn is_users(&mut self, key: &TomlKey<'_>) -> bool {
        !self.refused(key.span(), key.get_ref())
    }

    /// Whether this file is a policy; if not, reports that a key can only be set there.
    fn is_policys(&mut self, key: &TomlKey<'_>) -> bool {
        if let FileOwner::Policy { .. } = self.owner {
            return true;
        }
        let hint = "it is for the administrator's policy.toml, see docs/operators/policy.md".to_owned();
        self.problem(key.span(), format!("{:?} can't be set here", key.get_ref()), Some(hint));
        false
    }

    /// Refuses a key that only the user may set; returns whether it was refused.
    pub(super) fn refused(&mut self, span: Range<usize>, name: &str) -> bool {
        let FileOwner::Repository { instead } = self.owner else { return false };
        let hint = format!("if you want it, set it in {}", instead.display());
        self.problem(span, format!("a repository cannot set {name:?}"), Some(hint));
        true
    }

    pub(super) fn unknown(&mut self, key: &TomlKey<'_>, value: &TomlValue<'_>, known: &[&'static str]) {
        let (name, before) = (key.get_ref(), self.problem_count());
        let near = nearest(name, known.iter().copied());
        let meant = near.map(|key| format!("did you mean {key:?}?"));
        let all = || (known.len() <= KEYS_LISTED_MAX).then(|| format!("the keys are {}", known.join(", ")));
        self.problem(key.span(), format!("unknown key {name:?}"), meant.or_else(all));
        let table = self.within.split_last().map_or(&[][..], |(_, table)| table);
        match near {
            Some("sandbox") if table.is_empty() => self.ask_until_corrected(before, [covered("Bash")]),
            Some("budget") if table.is_empty() => self.spend_nothing_until_corrected(before),
            _ => {
                let restricted = restricted_by(table, near, name, value.get_ref());
                self.ask_until_corrected(before, restricted);
            }
        }
    }

    /// A mistake must not lift a restriction. If there was one since `before`, what may be restricted is asked for. A
    /// policy with a mistake stops everything anyway.
    pub(super) fn ask_until_corrected(
        &mut self,
        before: usize,
        restricted: impl IntoIterator<Item = RulePattern>,
    ) {
        let restricted = Vec::from_iter(restricted);
        let calls = match &*restricted {
            _ if matches!(self.owner, FileOwner::Policy { .. }) => return,
            [] => return,
            all if all.contains(&covered("")) => "Epitome asks before every call",
            [RulePattern { tool, about: None }] => &format!("Epitome asks before every call of {tool}"),
            _ => "Epitome asks before the calls that it names",
        };
        if let Some(problem) = self.until_corrected(before, calls) {
            self.asked.extend(restricted.into_iter().map(|pattern| asks_because(&problem, pattern)));
        }
    }

    /// The same for a limit on cost: nothing is spent. Only the user's own file sets some.
    pub(super) fn spend_nothing_until_corrected(&mut self, before: usize) {
        let fault = self.problems.get(before).map(Problem::to_string);
        if let (FileOwner::User { .. }, Some(fault)) = (self.owner, fault) {
            self.until_corrected(before, "no model is called");
            self.budget_fault.get_or_insert(fault);
        }
    }

    /// Says what applies because of the first problem since `before`.
    fn until_corrected(&mut self, before: usize, applies: &str) -> Option<Problem> {
        let problem = self.problems.get_mut(before)?;
        let joint = if problem.message.contains(UNTIL_CORRECTED) { " and " } else { UNTIL_CORRECTED };
        problem.message += &format!("{joint}{applies}");
        Some(problem.clone())
    }

    /// Sets a field if the value is valid; otherwise reports a problem.
    pub(super) fn set<T: 'static, F: Slot<T>>(
        &mut self,
        value: &TomlValue<'_>,
        field: &mut F,
        kind: Kind<T>,
    ) {
        let current = Slot::<T>::current(&*field).map(|current| kind.written(current));
        if self.collects(kind.schema(), current) {
            return;
        }
        match kind.read(value.get_ref()) {
            Ok(read) => {
                self.note_value(value.span(), kind.written(&read));
                Slot::<T>::put(field, read);
            }
            Err(ValueError { message, hint }) => self.problem(value.span(), message, hint),
        }
    }

    pub(super) fn table<'v, 'i>(&mut self, value: &'v TomlValue<'i>, what: &str) -> Option<&'v DeTable<'i>> {
        if self.collector.is_some() {
            return Some(&*NO_TABLE);
        }
        let table = value.get_ref().as_table();
        if table.is_none() {
            self.problem(value.span(), format!("{what} must be a table"), None);
        }
        table
    }

    fn templates(&mut self, value: &TomlValue<'_>, settings: &mut Settings) {
        let Some(table) = self.table(value, "templates") else { return };
        fields!(self, table, key, value, {
            "go_compat" => self.set(value, &mut settings.go_compat, truth()),
        });
    }

    fn telemetry(&mut self, value: &TomlValue<'_>, settings: &mut Settings) {
        let Some(table) = self.table(value, "telemetry") else { return };
        fields!(self, table, key, value, {
            "endpoint" => self.set(value, &mut settings.telemetry, url()),
        });
    }

    fn web_fetch(&mut self, value: &TomlValue<'_>, settings: &mut Settings) {
        let Some(table) = self.table(value, "web_fetch") else { return };
        fields!(self, table, key, value, {
            "private_networks" => self.set(value, &mut settings.fetch_private, truth()),
        });
    }

    fn providers(&mut self, value: &TomlValue<'_>, settings: &mut Settings) {
        let Some(table) = self.table(value, "providers") else { return };
        for (name, value) in self.entries(table, &[]) {
            let (problems, values) = (self.problems.len(), self.value_count());
            self.enter(&name);
            self.provider(&name, value, settings);
            self.leave();
            if self.problems.len() > problems {
                self.unset(values);
            }
        }
    }

    fn provider(&mut self, name: &TomlKey<'_>, value: &TomlValue<'_>, settings: &mut Settings) {
        let before = self.problems.len();
        let Some(table) = self.table(value, "a provider") else { return };
        let mut wire = None;
        let mut base_url = None;
        let mut key_variable = None;
        let mut header_fields = BTreeMap::new();
        fields!(self, table, key, value, {
            "wire" => self.set(value, &mut wire, wire_format()),
            "base_url" => self.set(value, &mut base_url, url()),
            "key_variable" => self.set(value, &mut key_variable, variable()),
            "headers" => self.set(value, &mut header_fields, headers()),
        });
        let headers = header_fields;
        let name_text = name.get_ref().to_string();
        match (wire, base_url) {
            _ if self.problems.len() > before => {}
            (Some(wire), Some(base_url)) => {
                let provider = ProviderSettings { wire, base_url, key_variable, headers };
                settings.providers.insert(name_text, provider);
            }
            (wire, None) if BUILT_IN.contains(&&*name_text) => {
                if name_text == "local" && key_variable.is_some() {
                    let message = "a local server that wants a key needs wire and base_url".to_owned();
                    let hint = "those that are detected automatically need no key";
                    self.problem(name.span(), message, Some(hint.to_owned()));
                    return;
                }
                if let FileOwner::Policy { .. } = self.owner {
                    // The user's entry would be used first.
                    settings.providers.remove(&name_text);
                }
                settings.built_in.insert(name_text, BuiltInSettings { wire, key_variable, headers });
            }
            (wire, _) => {
                let missing = if wire.is_none() { "wire" } else { "base_url" };
                let message = format!("the provider {name_text:?} has no {missing}");
                let wires = WireFormat::ALL.map(|wire| format!("{:?}", wire.id())).join(", ");
                let hint = format!("wire is one of {wires}; base_url = \"https://…\"");
                self.problem(name.span(), message, Some(hint));
            }
        }
    }

    fn compaction(&mut self, value: &TomlValue<'_>, compaction: &mut CompactionSettings) {
        let Some(table) = self.table(value, "compaction") else { return };
        fields!(self, table, key, value, {
            "auto" => self.set(value, &mut compaction.auto, truth()),
            "threshold" | "ratio" | "compact_ratio" => {
                self.set(value, &mut compaction.threshold, threshold());
            },
            "must_ratio" => self.set(value, &mut compaction.must_ratio, share()),
            "preserve_ratio" => self.set(value, &mut compaction.preserve_ratio, share()),
            "model" => {
                let own = matches!(value.get_ref().as_str(), Some("main" | "small" | "none"));
                if own || !self.refused(key.span(), "compaction.model") {
                    self.set(value, &mut compaction.model, summariser());
                }
            },
            "max_summary_tokens" => self.set(value, &mut compaction.max_summary_tokens, small_tokens()),
            "pin_share" => self.set(value, &mut compaction.pin_share, share()),
            "person_share" => self.set(value, &mut compaction.person_share, share()),
            "output_reserve" => self.set(value, &mut compaction.output_reserve, small_tokens()),
            "ahead" => self.set(value, &mut compaction.ahead, truth()),
            "before_break" => self.set(value, &mut compaction.before_break, before_break()),
            "summary_timeout_s" => self.set(value, &mut compaction.summary_timeout, call_seconds()),
            "timeout_s" => self.set(value, &mut compaction.timeout, call_seconds()),
            "message_chars" => self.set(value, &mut compaction.message_chars, characters()),
            "prune" => self.prune(value, &mut compaction.prune),
            "summary_role" => self.set(value, &mut compaction.summary_as_system, summary_role()),
        });
    }

    fn prune(&mut self, value: &TomlValue<'_>, prune: &mut PruneSettings) {
        let Some(table) = self.table(value, "compaction.prune") else { return };
        fields!(self, table, key, value, {
            "min_chars" => self.set(value, &mut prune.min_chars, characters()),
            "keep_chars" => self.set(value, &mut prune.keep_chars, characters()),
            "keep_recent" => self.set(value, &mut prune.keep_recent, messages()),
        });
    }
}
