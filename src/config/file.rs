//! Applies one configuration file to the settings. Walks the parsed TOML, so that each invalid value is
//! reported with its line and column while valid ones still take effect. Never repeats a value that could be
//! a secret.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use super::values::{
    ValueError, characters, header_map, max_repeats, max_rounds, messages, mode, model_name, seconds, share,
    small_tokens, summariser, summary_role, thought, threshold, truth, url, variable, wire_format,
};
use super::{
    BuiltInSettings, CompactionSettings, FileOwner, ProviderSettings, PruneSettings, Settings, WireFormat,
};
use epitome_problem::{Problem, nearest, place_in};

const KEYS: &[&str] = &[
    "model",
    "mode",
    "thought",
    "max_rounds",
    "max_repeats",
    "models",
    "providers",
    "compaction",
    "environment",
    "hooks",
    "agents",
    "mcp",
    "permissions",
    "sandbox",
    "secrets",
    "templates",
    "web_fetch",
];
/// Providers with a default address.
const BUILT_IN: [&str; 6] = ["anthropic", "openai", "gemini", "openrouter", "chatgpt", "local"];

/// Applies the text and returns its problems.
pub(super) fn apply(settings: &mut Settings, path: &Path, text: &str, owner: FileOwner<'_>) -> Vec<Problem> {
    let (table, errors) = DeTable::parse_recoverable(text);
    let mut reader = ConfigReader {
        path,
        text,
        owner,
        unreadable: BTreeSet::new(),
        native: Vec::new(),
        problems: Vec::new(),
    };
    for error in errors {
        let span = error.span().unwrap_or(0..0);
        let (line, _) = place_in(text, span.start);
        reader.problem(span, format!("not valid TOML: {}", error.message()), None);
        reader.unreadable.insert(line);
    }
    reader.root(settings, table.get_ref());
    reader.problems
}

pub(super) type TomlValue<'i> = toml::Spanned<DeValue<'i>>;

pub(super) struct ConfigReader<'a> {
    pub(super) path: &'a Path,
    text: &'a str,
    pub(super) owner: FileOwner<'a>,
    /// Lines that are not valid TOML. Further problems on them would only be consequences of the syntax
    /// error.
    unreadable: BTreeSet<u64>,
    /// Models with `compaction = "native"`, with the span of the setting.
    pub(super) native: Vec<(String, Range<usize>)>,
    problems: Vec<Problem>,
}

/// Reads the fields of a table, each by the expression of its name, and reports other names.
macro_rules! fields {
    ($reader:ident, $table:expr, $key:ident, $value:ident, { $($($name:literal)|+ => $read:expr,)* }) => {
        for ($key, $value) in $table {
            match &**$key.get_ref() {
                $($($name)|+ => $read,)*
                other => $reader.unknown($key.span(), other, &[$($($name),+),*]),
            }
        }
    };
}
pub(super) use fields;

impl ConfigReader<'_> {
    pub(super) fn problem(&mut self, span: Range<usize>, message: String, hint: Option<String>) {
        let place = place_in(self.text, span.start);
        if !self.unreadable.contains(&place.0) {
            let (path, place) = (self.path.to_path_buf(), Some(place));
            self.problems.push(Problem { path, place, message, hint });
        }
    }

    pub(super) fn problem_count(&self) -> usize {
        self.problems.len()
    }

    /// The path of the file and the line number of a span.
    pub(super) fn place(&self, span: Range<usize>) -> (PathBuf, u64) {
        (self.path.to_path_buf(), place_in(self.text, span.start).0)
    }

    fn root(&mut self, settings: &mut Settings, table: &DeTable<'_>) {
        for (key, value) in table {
            let name: &str = key.get_ref();
            let is_of_user = matches!(
                name,
                "model"
                    | "mode"
                    | "max_rounds"
                    | "max_repeats"
                    | "providers"
                    | "environment"
                    | "hooks"
                    | "agents"
                    | "sandbox"
                    | "secrets"
                    | "web_fetch"
            );
            if is_of_user && self.refused(key.span(), name) {
                continue;
            }
            match name {
                "model" => self.set(value, &mut settings.model, model_name),
                "mode" => self.set(value, &mut settings.mode, mode),
                "thought" => self.set(value, &mut settings.thought, thought),
                "max_rounds" => self.set(value, &mut settings.max_rounds, max_rounds),
                "max_repeats" => self.set(value, &mut settings.max_repeats, max_repeats),
                "models" => self.models(value, settings),
                "providers" => self.providers(value, settings),
                "compaction" => self.compaction(value, &mut settings.compaction),
                "environment" => self.exposure(value, &mut settings.exposure),
                "hooks" => self.hooks(value, &mut settings.hooks),
                "agents" => self.agents(value, &mut settings.agents),
                "mcp" => self.mcp(value, &mut settings.mcp),
                "sandbox" => {
                    let home = match self.owner {
                        FileOwner::User { home } => home,
                        FileOwner::Repository { .. } => None,
                    };
                    self.sandbox(value, &mut settings.sandbox, home);
                }
                "permissions" => self.permissions(value, &mut settings.permissions),
                "secrets" => self.secrets(value, &mut settings.mask_secrets),
                "templates" => self.templates(value, settings),
                "web_fetch" => self.web_fetch(value, settings),
                _ => self.unknown(key.span(), name, KEYS),
            }
        }
        self.check_native(settings);
    }

    /// Refuses a key that only the user may set; returns whether it was refused.
    pub(super) fn refused(&mut self, span: Range<usize>, name: &str) -> bool {
        let FileOwner::Repository { instead } = self.owner else { return false };
        let hint = format!("if you want it, set it in {}", instead.display());
        self.problem(span, format!("a repository cannot set {name:?}"), Some(hint));
        true
    }

    pub(super) fn unknown(&mut self, span: Range<usize>, name: &str, known: &[&'static str]) {
        let hint = nearest(name, known.iter().copied()).map(|key| format!("did you mean {key:?}?"));
        self.problem(span, format!("unknown key {name:?}"), hint);
    }

    /// Sets a field if the value is valid; otherwise reports a problem.
    pub(super) fn set<T, F: From<T>>(
        &mut self,
        value: &TomlValue<'_>,
        field: &mut F,
        read: impl FnOnce(&DeValue<'_>) -> Result<T, ValueError>,
    ) {
        match read(value.get_ref()) {
            Ok(read) => *field = read.into(),
            Err(ValueError { message, hint }) => self.problem(value.span(), message, hint),
        }
    }

    pub(super) fn table<'v, 'i>(&mut self, value: &'v TomlValue<'i>, what: &str) -> Option<&'v DeTable<'i>> {
        let table = value.get_ref().as_table();
        if table.is_none() {
            self.problem(value.span(), format!("{what} must be a table"), None);
        }
        table
    }

    fn templates(&mut self, value: &TomlValue<'_>, settings: &mut Settings) {
        let Some(table) = self.table(value, "templates") else { return };
        fields!(self, table, key, value, {
            "go_compat" => self.set(value, &mut settings.go_compat, truth),
        });
    }

    fn web_fetch(&mut self, value: &TomlValue<'_>, settings: &mut Settings) {
        let Some(table) = self.table(value, "web_fetch") else { return };
        fields!(self, table, key, value, {
            "private_networks" => self.set(value, &mut settings.fetch_private, truth),
        });
    }

    fn providers(&mut self, value: &TomlValue<'_>, settings: &mut Settings) {
        let Some(table) = self.table(value, "providers") else { return };
        for (name, value) in table {
            let before = self.problems.len();
            let Some(table) = self.table(value, "a provider") else { continue };
            let mut wire = None;
            let mut base_url = None;
            let mut key_variable = None;
            let mut headers = BTreeMap::new();
            fields!(self, table, key, value, {
                "wire" => self.set(value, &mut wire, wire_format),
                "base_url" => self.set(value, &mut base_url, url),
                "key_variable" => self.set(value, &mut key_variable, variable),
                "headers" => self.set(value, &mut headers, header_map),
            });
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
                        continue;
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
    }

    fn compaction(&mut self, value: &TomlValue<'_>, compaction: &mut CompactionSettings) {
        let Some(table) = self.table(value, "compaction") else { return };
        fields!(self, table, key, value, {
            "auto" => self.set(value, &mut compaction.auto, truth),
            "threshold" | "ratio" | "compact_ratio" => {
                self.set(value, &mut compaction.threshold, threshold);
            },
            "must_ratio" => self.set(value, &mut compaction.must_ratio, share),
            "preserve_ratio" => self.set(value, &mut compaction.preserve_ratio, share),
            "model" => {
                let own = matches!(value.get_ref().as_str(), Some("main" | "small" | "none"));
                if own || !self.refused(key.span(), "compaction.model") {
                    self.set(value, &mut compaction.model, summariser);
                }
            },
            "max_summary_tokens" => self.set(value, &mut compaction.max_summary_tokens, small_tokens),
            "pin_share" => self.set(value, &mut compaction.pin_share, share),
            "person_share" => self.set(value, &mut compaction.person_share, share),
            "output_reserve" => self.set(value, &mut compaction.output_reserve, small_tokens),
            "ahead" => self.set(value, &mut compaction.ahead, truth),
            "summary_timeout_s" => self.set(value, &mut compaction.summary_timeout, seconds),
            "timeout_s" => self.set(value, &mut compaction.timeout, seconds),
            "message_chars" => self.set(value, &mut compaction.message_chars, characters),
            "prune" => self.prune(value, &mut compaction.prune),
            "summary_role" => self.set(value, &mut (), summary_role),
        });
    }

    fn prune(&mut self, value: &TomlValue<'_>, prune: &mut PruneSettings) {
        let Some(table) = self.table(value, "compaction.prune") else { return };
        fields!(self, table, key, value, {
            "min_chars" => self.set(value, &mut prune.min_chars, characters),
            "keep_chars" => self.set(value, &mut prune.keep_chars, characters),
            "keep_recent" => self.set(value, &mut prune.keep_recent, messages),
        });
    }
}
