//! The config options of a session and its modes, as clients show them. They are part of each answer that opens a
//! session, so they are serialized from borrowed text, without a tree of values.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::Value;

use super::model::AcpVersion;
use epitome_session::{ModelOption, SessionOptions, provider_title};
use epitome_thread::{Mode, ModelName, ThoughtLevel};

/// Up to this many models are shown in one flat list, even from several providers.
const MODELS_FLAT_MAX: usize = 8;

/// Ids of a session's config options.
pub const MODEL: &str = "model";
pub const MODE: &str = "mode";
pub const THOUGHT: &str = "thought_level";
pub const AUTO_COMPACT: &str = "auto_compact";

/// The values of a boolean option, for clients that support only selections.
const ON: &str = "on";
const OFF: &str = "off";

/// A config option. Its id, and those of groups, have another key in each version of the protocol.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConfigOption<'a> {
    #[serde(flatten)]
    id: VersionedId<'a>,
    name: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    category: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    description: &'static str,
    #[serde(flatten)]
    value: OptionValue<'a>,
}

#[derive(Serialize)]
enum VersionedId<'a> {
    #[serde(rename = "id")]
    V1(&'a str),
    #[serde(rename = "configId")]
    V2(&'a str),
}

/// The type of an option, with its current value and those that can be chosen.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "lowercase", rename_all_fields = "camelCase")]
enum OptionValue<'a> {
    Select { current_value: &'a str, options: OptionChoices<'a> },
    Boolean { current_value: bool },
}

#[derive(Serialize)]
#[serde(untagged)]
enum OptionChoices<'a> {
    Flat(Vec<OptionChoice<'a>>),
    Grouped(Vec<ChoiceGroup<'a>>),
}

/// A value of an option.
#[derive(Serialize)]
struct OptionChoice<'a> {
    value: &'a str,
    name: Cow<'a, str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    description: &'a str,
}

#[derive(Serialize)]
struct ChoiceGroup<'a> {
    #[serde(flatten)]
    id: GroupId<'a>,
    name: Cow<'a, str>,
    options: Vec<OptionChoice<'a>>,
}

#[derive(Serialize)]
enum GroupId<'a> {
    #[serde(rename = "group")]
    V1(&'a str),
    #[serde(rename = "groupId")]
    V2(&'a str),
}

/// The modes in the older form, for clients that don't support the `mode` option.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Modes {
    current_mode_id: &'static str,
    available_modes: [ModeInfo; Mode::ALL.len()],
}

#[derive(Serialize)]
struct ModeInfo {
    id: &'static str,
    name: &'static str,
    description: &'static str,
}

pub fn modes(options: &SessionOptions) -> Modes {
    let info = |mode: Mode| ModeInfo { id: mode.id(), name: mode.name(), description: mode.description() };
    Modes { current_mode_id: options.mode.id(), available_modes: Mode::ALL.map(info) }
}

/// All config options of a session, most important first. `booleans`: whether the client supports boolean options.
pub fn config_options(
    options: &SessionOptions,
    version: AcpVersion,
    booleans: bool,
) -> Vec<ConfigOption<'_>> {
    let option = |id, name, category, value| {
        let id = match version {
            AcpVersion::V1 => VersionedId::V1(id),
            AcpVersion::V2 => VersionedId::V2(id),
        };
        ConfigOption { id, name, category, description: "", value }
    };
    let select = |id, name, category, current_value, choices| {
        option(id, name, category, OptionValue::Select { current_value, options: choices })
    };
    let mode = |mode: &Mode| choice(mode.id(), mode.name(), mode.description());
    let level = |level: &ThoughtLevel| {
        let remark = options.remarks.iter().find(|(remarked, _)| remarked == level);
        choice(level.id(), level_name(*level), remark.map_or("", |(_, remark)| remark))
    };
    let modes = OptionChoices::Flat(Mode::ALL.iter().map(mode).collect());
    let levels = OptionChoices::Flat(ThoughtLevel::ALL.iter().map(level).collect());
    let auto_compact = match booleans {
        true => OptionValue::Boolean { current_value: options.auto_compact },
        false => OptionValue::Select {
            current_value: if options.auto_compact { ON } else { OFF },
            options: OptionChoices::Flat(vec![choice(ON, "On", ""), choice(OFF, "Off", "")]),
        },
    };
    let auto_compact = ConfigOption {
        description: "Compact the conversation automatically before it fills the model's window",
        ..option(AUTO_COMPACT, "Automatic compaction", "", auto_compact)
    };
    let model = options.model.as_ref().map(|model| {
        select(MODEL, "Model", "model", model.0.as_str(), model_options(model, &options.models, version))
    });
    let others = [
        select(MODE, "Mode", "mode", options.mode.id(), modes),
        select(THOUGHT, "Thinking", "thought_level", options.thought.id(), levels),
        auto_compact,
    ];
    model.into_iter().chain(others).collect()
}

/// A value of an option; the description may be empty.
fn choice<'a>(value: &'a str, name: impl Into<Cow<'a, str>>, description: &'a str) -> OptionChoice<'a> {
    OptionChoice { value, name: name.into(), description }
}

/// The value of an option in a request: a string, or a boolean as `true` or `false`.
pub fn option_value(value: &Value) -> Option<&str> {
    match value {
        Value::String(value) => Some(value),
        Value::Bool(is_on) => Some(if *is_on { ON } else { OFF }),
        _ => None,
    }
}

/// The values of the model option. They are grouped by provider if there are many, from several providers: a short list
/// is easier to scan without groups, and not every client shows groups.
fn model_options<'a>(
    current: &'a ModelName,
    models: &'a [ModelOption],
    version: AcpVersion,
) -> OptionChoices<'a> {
    let is_there = models.iter().any(|choice| choice.name == *current);
    let current = (!is_there).then_some((current, ""));
    let models = models.iter().map(|model| (&model.name, model.about.as_str()));
    let all: Vec<(&ModelName, &str)> = current.into_iter().chain(models).collect();
    let mut groups: Vec<(&str, Vec<(&ModelName, &str)>)> = Vec::new();
    for model in &all {
        let (provider, _) = parts(model.0);
        match groups.iter_mut().find(|(of, _)| *of == provider) {
            Some((_, group)) => group.push(*model),
            None => groups.push((provider, vec![*model])),
        }
    }
    if groups.len() < 2 || all.len() <= MODELS_FLAT_MAX {
        let shown = |(model, about): (&'a ModelName, &'a str)| {
            let (provider, name) = parts(model);
            match groups.len() {
                0 | 1 => choice(&model.0, name, about),
                _ => choice(&model.0, format!("{name} ({})", provider_title(provider)), about),
            }
        };
        return OptionChoices::Flat(all.into_iter().map(shown).collect());
    }
    let group = |(provider, models): (&'a str, Vec<(&'a ModelName, &'a str)>)| {
        let id = match version {
            AcpVersion::V1 => GroupId::V1(provider),
            AcpVersion::V2 => GroupId::V2(provider),
        };
        let options = models.into_iter().map(|(model, about)| choice(&model.0, parts(model).1, about));
        ChoiceGroup { id, name: provider_title(provider).into(), options: options.collect() }
    };
    OptionChoices::Grouped(groups.into_iter().map(group).collect())
}

/// Splits a model's name into provider and name.
fn parts(name: &ModelName) -> (&str, &str) {
    name.split().unwrap_or(("", &name.0))
}

fn level_name(level: ThoughtLevel) -> &'static str {
    match level {
        ThoughtLevel::Off => "Off",
        ThoughtLevel::Low => "Low",
        ThoughtLevel::Medium => "Medium",
        ThoughtLevel::High => "High",
        ThoughtLevel::Max => "Maximum",
    }
}
