//! The config options of a session, as clients show them. Pure.

use agent_client_protocol::v2::schema as wire;
use serde_json::Value;

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

/// All config options of a session, most important first, as version 2 has them. `booleans`: whether the client supports
/// boolean options.
pub fn config_options(options: &SessionOptions, booleans: bool) -> Vec<wire::SessionConfigOption> {
    let mode = |mode: &Mode| choice(mode.id(), mode.name(), mode.description());
    let level = |level: &ThoughtLevel| {
        let remark = options.remarks.iter().find(|(remarked, _)| remarked == level);
        choice(level.id(), level_name(*level), remark.map_or("", |(_, remark)| remark))
    };
    let modes: Vec<_> = Mode::ALL.iter().map(mode).collect();
    let levels: Vec<_> = ThoughtLevel::ALL.iter().map(level).collect();
    let name = "Automatic compaction";
    let auto_compact = match booleans {
        true => wire::SessionConfigOption::boolean(AUTO_COMPACT, name, options.auto_compact),
        false => {
            let current = if options.auto_compact { ON } else { OFF };
            let choices = vec![choice(ON, "On", ""), choice(OFF, "Off", "")];
            wire::SessionConfigOption::select(AUTO_COMPACT, name, current, choices)
        }
    };
    let model = options.model.as_ref().map(|model| {
        let choices = model_options(model, &options.models);
        wire::SessionConfigOption::select(MODEL, "Model", model.0.as_str(), choices)
            .category(wire::SessionConfigOptionCategory::Model)
    });
    let others = [
        wire::SessionConfigOption::select(MODE, "Mode", options.mode.id(), modes)
            .category(wire::SessionConfigOptionCategory::Mode),
        wire::SessionConfigOption::select(THOUGHT, "Thinking", options.thought.id(), levels)
            .category(wire::SessionConfigOptionCategory::ThoughtLevel),
        auto_compact.description("Compact the conversation automatically before it fills the model's window"),
    ];
    model.into_iter().chain(others).collect()
}

/// A value of an option; the description may be empty.
fn choice(value: &str, name: impl Into<String>, description: &str) -> wire::SessionConfigSelectOption {
    let description = (!description.is_empty()).then(|| description.to_owned());
    wire::SessionConfigSelectOption::new(value, name).description(description)
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
fn model_options(current: &ModelName, models: &[ModelOption]) -> wire::SessionConfigSelectOptions {
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
        let shown = |(model, about): (&ModelName, &str)| {
            let (provider, name) = parts(model);
            match groups.len() {
                0 | 1 => choice(&model.0, name, about),
                _ => choice(&model.0, format!("{name} ({})", provider_title(provider)), about),
            }
        };
        return all.into_iter().map(shown).collect::<Vec<_>>().into();
    }
    let group = |(provider, models): (&str, Vec<(&ModelName, &str)>)| {
        let choices = models.into_iter().map(|(model, about)| choice(&model.0, parts(model).1, about));
        wire::SessionConfigSelectGroup::new(provider, provider_title(provider), choices.collect())
    };
    groups.into_iter().map(group).collect::<Vec<_>>().into()
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
