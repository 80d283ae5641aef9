//! `epitome models`: lists models with context windows and prices, and the source of each number. Starts no session;
//! only `--refresh` and the search for a local server use the network.

use std::path::Path;

use serde_json::{Value, json};

use super::terminal::{self, harmless};
use super::{CliError, methods, serve};
use crate::daemon::control::Environment;
use crate::paths::Paths;
use crate::provider::catalog::{Catalog, Marks, Offer, Scope, provider_of};
use crate::provider::endpoint::{self, provider_title};
use crate::provider::http::Http;
use crate::provider::learned::{Learned, Source, When};
use crate::provider::listing::Life;
use crate::thread::ModelName;

/// Models that are listed. Only a few routers together have more.
const SHOWN_MAX: usize = 2_000;

/// List models with context windows and prices
///
/// Each line has the name of a model, the sizes of its context window and of a reply in tokens, its prices in US dollars
/// per million input and output tokens, and what it accepts apart from text.
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

impl ModelsArgs {
    fn scope(&self) -> Scope {
        if self.all { Scope::All } else { Scope::Usable }
    }
}

pub fn main(args: ModelsArgs) -> Result<i32, CliError> {
    let paths = serve::paths();
    let cwd = std::env::current_dir().ok();
    let settings = serve::settings(&paths, cwd.as_deref());
    if args.refresh {
        refresh(&paths, cwd.as_deref())?;
    }
    let environment = serve::environment();
    let learned = Learned::below(&paths.data);
    let local = serve::runtime()?.block_on(async {
        let http = Http::new();
        learned.load().await;
        if let Some(fault) = learned.fault() {
            eprintln!("epitome: {}", harmless(&fault));
        }
        let local = endpoint::find_local(&http, &endpoint::local_urls(&settings, &environment)).await;
        let catalog = Catalog {
            settings: &settings,
            environment: &environment,
            learned: &learned,
            local: local.as_ref(),
        };
        for place in catalog.places() {
            // A local server is always asked, as its loaded models change.
            if args.refresh || place.provider() != "local" {
                continue;
            }
            if let Err(error) = learned.refresh(&http, &place, When::Now).await {
                eprintln!("epitome: {}", harmless(&error.to_string()));
            }
        }
        learned.save().await;
        local
    });
    let catalog =
        Catalog { settings: &settings, environment: &environment, learned: &learned, local: local.as_ref() };
    show(&catalog, &args)
}

/// Refreshes the providers' lists in the daemon, if one runs, since it has them in memory.
fn refresh(paths: &Paths, cwd: Option<&Path>) -> Result<(), CliError> {
    let params = json!({ "refresh": true, "cwd": cwd, "environment": Environment::of_this_process() });
    let answered = methods::call(paths, "models.list", params)?;
    for error in answered["unanswered"].as_array().map(Vec::as_slice).unwrap_or_default() {
        eprintln!("epitome: {}", harmless(error.as_str().unwrap_or_default()));
    }
    Ok(())
}

fn show(catalog: &Catalog<'_>, args: &ModelsArgs) -> Result<i32, CliError> {
    let all = catalog.offers(args.scope(), SHOWN_MAX);
    let marks = catalog.marks();
    let filter = args.filter.to_lowercase();
    let wanted: Vec<&Offer> = all.iter().filter(|offer| fits(&offer.name, &filter)).collect();
    if args.json {
        let list: Vec<Value> = wanted.iter().map(|offer| offer.to_json(&marks)).collect();
        terminal::print(&format!("{:#}\n", json!(list)))?;
    } else {
        terminal::print(&harmless(&text(&wanted, &marks)))?;
    }
    if all.is_empty() {
        let nothing = endpoint::nothing_configured(catalog.settings, catalog.environment);
        return Err(CliError::failed(nothing.message, nothing.hint));
    }
    if wanted.is_empty() {
        let hint = match args.scope() {
            Scope::Usable => "`epitome models --all` includes providers without an API key",
            Scope::All => "`epitome models --all` without a filter shows all",
        };
        let message = format!("no model has {filter:?} in its name");
        return Err(CliError::failed(message, Some(hint.to_owned())));
    }
    Ok(0)
}

/// Whether a model belongs to this provider or has this text in its name.
fn fits(name: &ModelName, filter: &str) -> bool {
    provider_of(name) == filter || name.0.to_lowercase().contains(filter)
}

/// The models as tables, one per provider.
fn text(offers: &[&Offer], marks: &Marks) -> String {
    let mut out = String::new();
    let rows: Vec<[String; 5]> = offers.iter().map(|offer| row(offer)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths = [width(0), width(1), width(2), width(3)];
    let mut group = "";
    for (offer, row) in offers.iter().zip(&rows) {
        let provider = provider_of(&offer.name);
        if provider != group {
            let gap = if group.is_empty() { "" } else { "\n" };
            let key = if offer.is_usable { "" } else { "  (no key)" };
            out += &format!("{gap}{} ({provider}){key}\n", provider_title(provider));
            group = provider;
        }
        let mark = match &offer.name {
            name if marks.chosen.as_ref() == Some(name) => '*',
            name if marks.default.as_ref() == Some(name) => '+',
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

fn row(offer: &Offer) -> [String; 5] {
    let number = |tokens: u64, source: Source| match tokens {
        0 => "-".to_owned(),
        tokens => format!("{tokens}{}", letter(source)),
    };
    let price = offer.price.map_or("-".to_owned(), |price| format!("${}/${}", price.input, price.output));
    let mut rest: Vec<String> = Vec::new();
    for (has, word) in [
        (offer.abilities.images, "images"),
        (offer.abilities.documents, "documents"),
        (offer.thinks(), "thinking"),
    ] {
        if has {
            rest.push(word.to_owned());
        }
    }
    match &offer.life {
        Life::Active => {}
        Life::Ending { on: Some(day) } => rest.push(format!("ends {day}")),
        Life::Ending { on: None } => rest.push("is being retired".to_owned()),
    }
    [
        offer.name.0.clone(),
        number(offer.window.0, offer.window.1),
        number(u64::from(offer.max_output.0), offer.max_output.1),
        price,
        rest.join(", "),
    ]
}

/// The letter for the source of a number; the help explains it.
fn letter(source: Source) -> &'static str {
    match source {
        Source::Table => " ",
        Source::Endpoint => "p",
        Source::Config => "c",
        Source::Overflow => "l",
        Source::Guess => "?",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::abilities::{Abilities, Thinking};
    use crate::provider::models::Price;

    #[test]
    fn a_table_says_what_each_model_holds_and_who_says_so() {
        let offer = |name: &str, window, price| Offer {
            name: ModelName(name.into()),
            window,
            max_output: (64_000, Source::Table),
            price,
            abilities: Abilities {
                images: true,
                documents: false,
                thinking: Thinking::Budget { optional: true },
            },
            life: Life::Active,
            is_usable: true,
        };
        let price = Price { input: 2.0, output: 10.0, cache_read: 0.1, cache_write: 2.5, long: None };
        let first = offer("anthropic/claude-a", (1_000_000, Source::Endpoint), Some(price));
        let second = Offer { is_usable: false, ..offer("local/qwen", (4_096, Source::Overflow), None) };
        let marks = Marks { chosen: Some(second.name.clone()), default: Some(first.name.clone()) };
        assert_eq!(
            text(&[&first, &second], &marks),
            "Anthropic (anthropic)\n\
             + anthropic/claude-a  1000000p  64000   $2/$10  images, thinking\n\
             \n\
             This machine (local)  (no key)\n\
             * local/qwen             4096l  64000   -       images, thinking\n"
        );
        assert_eq!(text(&[], &marks), "");
    }

    #[test]
    fn a_filter_is_a_provider_or_a_part_of_a_name() {
        let name = ModelName("openai/GPT-6-sol".into());
        for (filter, expected) in [("", true), ("openai", true), ("gpt-6", true), ("gemini", false)] {
            assert_eq!(fits(&name, filter), expected, "{filter}");
        }
    }
}
