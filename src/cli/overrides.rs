//! Options that override the configuration, common to `acp`, `run` and `compact`.

use crate::problem::nearest;
use crate::provider::endpoint::built_in_providers;
use crate::provider::models;
use crate::rules::RuleError;
use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use crate::session::registry::{ALLOW_OPTION, Overrides};
use crate::thread::{Mode, ModelName, ThoughtLevel};
use epitome_config::{CompactionThreshold, HookTrust, MAX_ROUNDS_MAX, Settings};

#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Configuration overrides")]
pub struct OverrideArgs {
    /// Model to use, as PROVIDER/NAME
    #[arg(long, value_name = "MODEL", value_parser = model)]
    model: Option<ModelName>,
    /// Permission mode: which tool calls run without asking
    // The alias, like those of other options here, is the name that SDKs of Claude Code pass.
    #[arg(long, alias = "permission-mode", value_name = "MODE", value_parser = modes())]
    mode: Option<Mode>,
    /// Thinking effort, where the model supports a choice
    #[arg(long, alias = "effort", value_name = "EFFORT", value_parser = efforts())]
    thought: Option<ThoughtLevel>,
    /// Limit of model calls in one turn
    #[arg(long, alias = "max-turns", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_ROUNDS_MAX)))]
    max_rounds: Option<u32>,
    /// Limit of the session's cost in US dollars, including subagents and summaries
    #[arg(long, alias = "max-budget-usd", value_name = "DOLLARS", value_parser = dollars)]
    max_cost: Option<f64>,
    /// Allow tool calls that match this rule, for example "bash(cargo test *)"; can be repeated
    #[arg(long, value_name = "RULE", value_parser = rule)]
    allow: Vec<String>,
    /// Refuse tool calls that match this rule; can be repeated
    #[arg(long, value_name = "RULE", value_parser = rule)]
    deny: Vec<String>,
    /// The same as --allow, as a comma-separated list
    // Name and form are those of another agent's option.
    #[arg(long, alias = "allowedTools", hide = true, value_name = "RULES", value_parser = rules)]
    allowed_tools: Vec<RuleList>,
    /// The same as --deny, as a comma-separated list
    #[arg(long, alias = "disallowedTools", hide = true, value_name = "RULES", value_parser = rules)]
    disallowed_tools: Vec<RuleList>,
    /// Run no hooks
    #[arg(long)]
    no_hooks: bool,
    /// Run the repository's hooks without asking
    #[arg(long)]
    trust_hooks: bool,
    /// Compact only on request, or when the provider rejects a request as too long
    #[arg(long)]
    disable_auto_compact: bool,
    /// Compact when this share of the context window is used, from 0 to 1; 0 disables it
    #[arg(long, value_name = "RATIO", value_parser = threshold)]
    compact_ratio: Option<CompactionThreshold>,
    #[command(flatten)]
    recipes: RecipeDirArgs,
}

/// Further directories with recipes.
#[derive(Debug, Default, clap::Args)]
pub struct RecipeDirArgs {
    /// Additional directory with recipes; can be repeated
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath, global = true)]
    recipe_dir: Vec<PathBuf>,
    /// The same, as a comma-separated list
    // Name and form are those of another agent's option.
    #[arg(long, value_name = "DIRS", value_delimiter = ',', global = true)]
    fragment_dirs: Vec<PathBuf>,
}

impl RecipeDirArgs {
    pub fn directories(self) -> Vec<PathBuf> {
        let directories = self.recipe_dir.into_iter().chain(self.fragment_dirs);
        directories.filter(|directory| !directory.as_os_str().is_empty()).collect()
    }
}

impl From<OverrideArgs> for Overrides {
    fn from(args: OverrideArgs) -> Overrides {
        Overrides {
            model: args.model.map(|model| model.0),
            mode: args.mode,
            thought: args.thought,
            max_rounds: args.max_rounds,
            max_cost: args.max_cost,
            allow: all(args.allow, args.allowed_tools),
            deny: all(args.deny, args.disallowed_tools),
            hooks: args.no_hooks.then_some(false),
            trust: args.trust_hooks.then_some(HookTrust::Run),
            auto_compact: args.disable_auto_compact.then_some(false),
            threshold: args.compact_ratio,
            recipe_dirs: args.recipes.directories(),
            routes: BTreeMap::new(),
        }
    }
}

fn model(written: &str) -> Result<ModelName, Box<dyn std::error::Error + Send + Sync>> {
    let model = ModelName::parse(written);
    if model.split().is_some() {
        return Ok(model);
    }
    let part = written.to_lowercase();
    let known = built_in_providers().flat_map(models::provider_models).map(|known| known.name);
    let alike: Vec<&str> = known.filter(|name| name.contains(&part)).collect();
    let alike = if alike.is_empty() { "`epitome models` lists them".to_owned() } else { alike.join(", ") };
    Err(format!("models are named PROVIDER/NAME: {alike}").into())
}

/// A remark about a model's name that is probably mistyped. The name is used as it is: a provider may have new models.
pub fn doubtful_model(model: Option<&str>, settings: &Settings) -> Option<String> {
    let model = ModelName::parse(model?);
    if models::known(&model).is_some() || settings.models.contains_key(&model.0) {
        return None;
    }
    let (provider, _) = model.split()?;
    let near = nearest(&model.0, models::provider_models(provider).map(|known| known.name))?;
    Some(format!("{model} is not a known model; did you mean {near}?"))
}

/// A permission rule as in `[permissions] allow`.
fn rule(written: &str) -> Result<String, RuleError> {
    Settings::default().allow(written, ALLOW_OPTION).map(|()| written.to_owned())
}

/// Several rules in one argument.
#[derive(Clone, Debug)]
struct RuleList(Vec<String>);

fn all(mut rules: Vec<String>, lists: Vec<RuleList>) -> Vec<String> {
    rules.extend(lists.into_iter().flat_map(|list| list.0));
    rules
}

/// Splits a list of rules at commas outside of parentheses.
fn rules(written: &str) -> Result<RuleList, RuleError> {
    let mut depth = 0usize;
    let outside = |character: char| {
        match character {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        character == ',' && depth == 0
    };
    let parts = written.split(outside).map(str::trim).filter(|part| !part.is_empty());
    parts.map(rule).collect::<Result<_, _>>().map(RuleList)
}

fn dollars(written: &str) -> Result<f64, &'static str> {
    let dollars = written
        .trim_start_matches('$')
        .parse()
        .ok()
        .filter(|dollars: &f64| dollars.is_finite() && *dollars > 0.0);
    dollars.ok_or("expected a number of dollars above 0, such as 2.50")
}

fn efforts() -> impl TypedValueParser<Value = ThoughtLevel> {
    let ids = PossibleValuesParser::new(ThoughtLevel::ALL.map(ThoughtLevel::id));
    ids.try_map(|id| ThoughtLevel::parse(&id).ok_or("unknown effort"))
}

/// Permission modes as SDKs of Claude Code name them.
const FOREIGN_MODES: [(&str, Mode); 5] = [
    ("default", Mode::Ask),
    ("acceptEdits", Mode::AcceptEdits),
    ("auto", Mode::Auto),
    ("plan", Mode::ReadOnly),
    ("bypassPermissions", Mode::Full),
];

/// The name of a mode in SDKs of Claude Code.
pub fn foreign_mode(mode: Mode) -> &'static str {
    FOREIGN_MODES.iter().find(|(_, known)| *known == mode).map_or("default", |(name, _)| name)
}

/// The mode of this name, here or in SDKs of Claude Code.
pub fn mode_named(name: &str) -> Result<Mode, String> {
    let foreign = || FOREIGN_MODES.iter().find(|(known, _)| *known == name).map(|(_, mode)| *mode);
    Mode::parse(name).or_else(foreign).ok_or_else(|| {
        let names = Mode::ALL.map(Mode::id).join(", ");
        format!("there is no permission mode {name:?}: modes are {names}")
    })
}

fn modes() -> impl TypedValueParser<Value = Mode> {
    let values = Mode::ALL.map(|mode| PossibleValue::new(mode.id()).alias(foreign_mode(mode)));
    PossibleValuesParser::new(values).try_map(|name| mode_named(&name))
}

fn threshold(ratio: &str) -> Result<CompactionThreshold, &'static str> {
    CompactionThreshold::from_ratio(ratio).ok_or("expected a number from 0 to 1")
}
