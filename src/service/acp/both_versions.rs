//! Types whose schema has the same names in both versions of the protocol, such as the options of a session. This file is a
//! module of `v1` and of `v2`, each with the types of its version. Pure.

use super::wire;
use crate::answers::{
    AUTH_ADVICE, AUTH_METHOD, AUTH_NAME, LoginCommand, LoginOffer, TERMINAL_ADVICE, TERMINAL_METHOD,
    TERMINAL_NAME,
};
use crate::from_wire::{OFF, ON, on_or_off};
use crate::updates::wire_path;
use epitome_session_api::{ModelOption, SessionOptions, provider_title};
use epitome_thread::{
    Location, Mode, ModelName, PlanPriority, PlanStatus, PlanStep, ThoughtLevel, ToolKind, Usage,
};

/// Up to this many models are shown in one flat list, even from several providers.
const MODELS_FLAT_MAX: usize = 8;

/// Ids of a session's config options.
pub const MODEL: &str = "model";
pub const MODE: &str = "mode";
pub const THOUGHT: &str = "thought_level";
pub const AUTO_COMPACT: &str = "auto_compact";

/// All config options of a session, most important first. `booleans`: whether the client supports
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
            let current = on_or_off(options.auto_compact);
            let choices = vec![choice(ON, "On", ""), choice(OFF, "Off", "")];
            wire::SessionConfigOption::select(AUTO_COMPACT, name, current, choices)
        }
    };
    let model = options.model.as_ref().map(|model| {
        let choices = model_options(model, &options.models);
        wire::SessionConfigOption::select(MODEL, "Model", model.0.clone(), choices)
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
    wire::SessionConfigSelectOption::new(value.to_owned(), name).description(description)
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
        wire::SessionConfigSelectGroup::new(provider.to_owned(), provider_title(provider), choices.collect())
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

pub fn tool_kind(kind: ToolKind) -> wire::ToolKind {
    match kind {
        ToolKind::Read => wire::ToolKind::Read,
        ToolKind::Edit => wire::ToolKind::Edit,
        ToolKind::Delete => wire::ToolKind::Delete,
        ToolKind::Move => wire::ToolKind::Move,
        ToolKind::Search => wire::ToolKind::Search,
        ToolKind::Execute => wire::ToolKind::Execute,
        ToolKind::Think => wire::ToolKind::Think,
        ToolKind::Fetch => wire::ToolKind::Fetch,
        ToolKind::Other => wire::ToolKind::Other,
    }
}

pub fn location(location: &Location) -> wire::ToolCallLocation {
    wire::ToolCallLocation::new(wire_path(&location.path)).line(location.line.filter(|line| *line > 0))
}

/// The capabilities for sessions that have the same form in both versions.
pub fn session_capabilities() -> wire::SessionCapabilities {
    let system_prompt = wire::SessionSystemPromptModeCapabilities::new()
        .override_(wire::SessionSystemPromptOverrideCapabilities::new());
    wire::SessionCapabilities::new()
        .delete(wire::SessionDeleteCapabilities::new())
        .additional_directories(wire::SessionAdditionalDirectoriesCapabilities::new())
        .system_prompt(wire::SessionSystemPromptCapabilities::new().mode(system_prompt))
        .fork(wire::SessionForkCapabilities::new())
        .archive(wire::SessionArchiveCapabilities::new())
        .status(wire::SessionStatusCapabilities::new())
        .title(wire::SessionTitleCapabilities::new())
        .options(wire::SessionOptionsCapabilities::new())
}

/// The authentication methods offered while no model is usable. With a terminal, the first one stores a key; its `args`
/// are appended to the command that starts the agent. `meta` makes its `_meta`.
pub fn auth_methods(
    offer: LoginOffer,
    meta: impl FnOnce(LoginCommand) -> Option<wire::Meta>,
) -> Vec<wire::AuthMethod> {
    let terminal = |command| {
        let method = wire::AuthMethodTerminal::new(TERMINAL_METHOD, TERMINAL_NAME)
            .description(TERMINAL_ADVICE)
            .args(vec!["login".to_owned()])
            .meta(meta(command));
        wire::AuthMethod::Terminal(method)
    };
    let key =
        wire::AuthMethod::Agent(wire::AuthMethodAgent::new(AUTH_METHOD, AUTH_NAME).description(AUTH_ADVICE));
    match offer {
        LoginOffer::None => Vec::new(),
        LoginOffer::Key => vec![key],
        LoginOffer::Terminal(command) => vec![terminal(command), key],
    }
}

/// The complete plan.
pub fn plan(id: &'static str, steps: &[PlanStep]) -> wire::SessionUpdate {
    let items = wire::PlanItems::new(id, steps.iter().map(plan_entry).collect());
    wire::SessionUpdate::PlanUpdate(wire::PlanUpdate::new(wire::PlanUpdateContent::Items(items)))
}

pub fn plan_entry(step: &PlanStep) -> wire::PlanEntry {
    let priority = match step.priority {
        PlanPriority::High => wire::PlanEntryPriority::High,
        PlanPriority::Medium => wire::PlanEntryPriority::Medium,
        PlanPriority::Low => wire::PlanEntryPriority::Low,
    };
    let status = match step.status {
        PlanStatus::Pending => wire::PlanEntryStatus::Pending,
        PlanStatus::InProgress => wire::PlanEntryStatus::InProgress,
        PlanStatus::Completed => wire::PlanEntryStatus::Completed,
    };
    wire::PlanEntry::new(&step.content, priority, status)
}

/// Token usage. Clients also read it in `_meta`.
pub fn tokens(usage: &Usage) -> wire::Usage {
    wire::Usage::new(usage.total(), usage.input, usage.output)
        .cached_read_tokens(usage.cache_read)
        .cached_write_tokens(usage.cache_write)
        .thought_tokens(usage.thinking)
}
