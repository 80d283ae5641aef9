//! `epitome models`: lists models with context windows and prices, and the source of each number. Starts no session;
//! only `--refresh` and the search for a local server use the network.

use std::path::Path;

use serde_json::{Value, json};

use super::terminal;
use super::{CliError, methods, serve};
use crate::daemon::control::EnvironmentObject;
use crate::provider::endpoint::{self, provider_title};
use crate::thread::ModelName;

/// List models with context windows and prices
///
/// Each line has the name of a model, the sizes of its context window and of a reply in tokens, its prices in US
/// dollars per million input and output tokens, and what it accepts apart from text.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A letter after a number is its source, if that is not the built-in table:
  p  the provider
  c  your configuration
  l  a request that was rejected as too long
  ?  a guess
* marks the selected model, + the one that is used if none is selected.

Exit codes: 0 done, 1 failed or no model is usable, 2 wrong usage.")]
pub struct ModelsArgs {
    /// Show only the models of this provider, or with this text in their names
    #[arg(value_name = "PROVIDER|TEXT", default_value = "", hide_default_value = true)]
    filter: String,
    /// Include models of providers without an API key
    #[arg(long)]
    all: bool,
    /// Ask the providers for their lists now instead of once a day
    #[arg(long)]
    refresh: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn main(args: ModelsArgs) -> Result<i32, CliError> {
    let paths = serve::paths();
    let cwd = std::env::current_dir().ok();
    let settings = serve::settings(&paths, cwd.as_deref());
    // A directory whose name is not UTF-8 can't be sent, and has no session either.
    let cwd = cwd.as_deref().and_then(Path::to_str);
    let params = json!({
        "all": args.all, "refresh": args.refresh, "cwd": cwd, "environment": EnvironmentObject::current(),
    });
    let answer = methods::call(&paths, "models.list", params)?;
    let list = |field: &str| answer[field].as_array().map(Vec::as_slice).unwrap_or_default();
    for error in list("unanswered") {
        note!("epitome: {}", error.as_str().unwrap_or_default());
    }
    let filter = args.filter.to_lowercase();
    let wanted: Vec<&Value> = list("models").iter().filter(|model| matches_filter(model, &filter)).collect();
    match args.json {
        true => terminal::print_pretty(&wanted)?,
        false => terminal::print_visible(&text(&wanted))?,
    }
    let environment = serve::environment();
    let missing = match endpoint::resolve(&ModelName(format!("{filter}/any")), &settings, &environment) {
        _ if list("models").is_empty() => Some(endpoint::nothing_configured(&settings, &environment)),
        Err(why) if endpoint::built_in_providers().any(|known| known == filter) => Some(why),
        Ok(_) | Err(_) => None,
    };
    if let Some(why) = missing.filter(|_| wanted.is_empty()) {
        return Err(CliError::failed(why.message).hint_if(why.hint));
    }
    if wanted.is_empty() {
        let names = list("models").iter().map(|model| word(model, "name"));
        let words = names.flat_map(|name| [name, name.rsplit_once('/').map_or(name, |(_, short)| short)]);
        let all = match args.all {
            false => "`epitome models --all` includes providers without an API key",
            true => "`epitome models --all` without a filter shows all",
        };
        let unknown = CliError::failed(format!("no model has {filter:?} in its name"));
        return Err(unknown.meant(&filter, words, all));
    }
    Ok(0)
}

/// The names of all known models with their providers, for shell completion.
pub fn names() -> Result<Vec<(String, String)>, CliError> {
    let params = json!({ "all": true, "environment": EnvironmentObject::current() });
    let answer = methods::call(&serve::paths(), "models.list", params)?;
    let models = answer["models"].as_array().map(Vec::as_slice).unwrap_or_default();
    Ok(models
        .iter()
        .map(|model| (word(model, "name").to_owned(), provider_title(word(model, "provider")).to_owned()))
        .collect())
}

/// Whether a model belongs to this provider or has this text in its name.
fn matches_filter(model: &Value, filter: &str) -> bool {
    word(model, "provider") == filter || word(model, "name").to_lowercase().contains(filter)
}

fn word<'a>(model: &'a Value, field: &str) -> &'a str {
    model[field].as_str().unwrap_or_default()
}

fn text(models: &[&Value]) -> String {
    let mut out = String::new();
    let rows: Vec<[String; 5]> = models.iter().map(|model| row(model)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths = [width(0), width(1), width(2), width(3)];
    let mut group = "";
    for (model, row) in models.iter().zip(&rows) {
        let provider = word(model, "provider");
        if provider != group {
            let gap = if group.is_empty() { "" } else { "\n" };
            let key = if model["usable"] == true { "" } else { "  (no key)" };
            out += &format!("{gap}{} ({provider}){key}\n", provider_title(provider));
            group = provider;
        }
        let mark = match (&model["chosen"], &model["default"]) {
            (Value::Bool(true), _) => '*',
            (_, Value::Bool(true)) => '+',
            _ => ' ',
        };
        let [name, window, output, price, rest] = row;
        let line = format!(
            "{mark} {name:0$}  {window:>1$}  {output:>2$}  {price:3$}  {rest}",
            widths[0], widths[1], widths[2], widths[3]
        );
        out += line.trim_end();
        out.push('\n');
    }
    out
}

fn row(model: &Value) -> [String; 5] {
    let number = |number: &Value| match number["tokens"].as_u64() {
        None => "-".to_owned(),
        Some(tokens) => format!("{tokens}{}", letter(word(number, "from"))),
    };
    let price = &model["dollars_per_million_tokens"];
    let price = match (price["input"].as_f64(), price["output"].as_f64()) {
        (Some(input), Some(output)) => format!("${input}/${output}"),
        _ => "-".to_owned(),
    };
    let abilities = ["images", "documents", "thinking"].into_iter().filter(|name| model[*name] == true);
    let mut rest: Vec<String> = abilities.map(str::to_owned).collect();
    match model["ends"].as_str() {
        Some(day) => rest.push(format!("ends {day}")),
        None if model["ending"] == true => rest.push("is being retired".to_owned()),
        None => {}
    }
    let name = word(model, "name").to_owned();
    [name, number(&model["window"]), number(&model["max_output"]), price, rest.join(", ")]
}

/// The letter for the source of a number; the help explains the letters.
fn letter(source: &str) -> &'static str {
    match source {
        "provider" => "p",
        "config" => "c",
        "learned" => "l",
        "guess" => "?",
        _ => " ",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::abilities::{Abilities, Thinking};
    use crate::provider::catalog::{CurrentModels, OfferedModel};
    use crate::provider::learned::FactSource;
    use crate::provider::listing::Lifecycle;
    use crate::provider::models::ModelPrice;

    #[test]
    fn a_table_says_what_each_model_holds_and_who_says_so() {
        let offer = |name: &str, window, price| OfferedModel {
            name: ModelName(name.into()),
            window,
            max_output: (64_000, FactSource::Table),
            price,
            abilities: Abilities {
                images: true,
                documents: false,
                audio: false,
                thinking: Thinking::Budget { optional: true },
            },
            life: Lifecycle::Active,
            is_usable: true,
        };
        let price = ModelPrice { input: 2.0, output: 10.0, cache_read: 0.1, cache_write: 2.5, long: None };
        let first = offer("anthropic/claude-a", (1_000_000, FactSource::Endpoint), Some(price));
        let second =
            OfferedModel { is_usable: false, ..offer("local/qwen", (4_096, FactSource::Overflow), None) };
        let marks = CurrentModels { chosen: Some(second.name.clone()), default: Some(first.name.clone()) };
        assert_eq!(
            text(&[&first.to_json(&marks), &second.to_json(&marks)]),
            "Anthropic (anthropic)\n\
             + anthropic/claude-a  1000000p  64000   $2/$10  images, thinking\n\
             \n\
             This machine (local)  (no key)\n\
             * local/qwen             4096l  64000   -       images, thinking\n"
        );
        assert_eq!(text(&[]), "");
    }

    #[test]
    fn a_filter_is_a_provider_or_a_part_of_a_name() {
        let model = json!({ "name": "openai/GPT-6-sol", "provider": "openai" });
        for (filter, expected) in [("", true), ("openai", true), ("gpt-6", true), ("gemini", false)] {
            assert_eq!(matches_filter(&model, filter), expected, "{filter}");
        }
    }
}
