//! Runs the example recipe and the example provider of `CONTRIBUTING.md` exactly as printed. The example tool and hook
//! handler are compiled elsewhere: `src/tools/tools/lib_tests.rs`, `tests/processes/docs/handler.rs`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use epitome::config::Settings;
use epitome::paths::Paths;
use epitome::provider::endpoint;
use epitome::recipe::command::bind;
use epitome::recipe::parse::{RecipeSource, parse};
use epitome::recipe::render::{RenderContext, Rendered, ShellOutputs, render};
use epitome::thread::ModelName;

/// The first block of this language in a section.
fn block(section: &str, language: &str) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("CONTRIBUTING.md");
    let page = std::fs::read_to_string(page).expect("it is there");
    let (_, section) = page.split_once(&format!("\n## {section}\n")).expect("the section is there");
    let (_, rest) = section.split_once(&format!("\n```{language}\n")).expect("it has a block");
    rest.split_once("\n```").expect("the block ends").0.to_owned()
}

/// The README once named its test command in a sentence only. `.ci/run` looks for a line that begins with it, found none,
/// and no change landed.
#[test]
fn the_readme_names_the_two_commands_on_lines_of_their_own() {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let readme = std::fs::read_to_string(readme).expect("it is there");
    let commands: Vec<&str> = readme
        .lines()
        .filter(|line| line.starts_with("cargo "))
        .map(|line| line.split('#').next().unwrap_or_default().trim())
        .collect();
    assert_eq!(commands, ["cargo run --profile quick -- demo", "cargo test --workspace"]);
}

#[test]
fn the_worked_recipe_renders() {
    let text = block("Add a recipe, worked", "markdown");
    let source = RecipeSource::User(PathBuf::from("/r/explain.md"));
    let parsed = parse("explain", source, &text).expect("it is valid");
    assert_eq!(parsed.notes, []);
    let arguments =
        bind(&parsed.recipe, "path=src/lib.rs why so many modules?").expect("it is called correctly");
    let rendered = render(&parsed.recipe, &arguments, &RenderContext::default(), &ShellOutputs::default());
    let Ok(Rendered::Done(prompt)) = rendered else { panic!("{rendered:?}") };
    assert!(prompt.text.starts_with("Explain src/lib.rs to somebody"), "{}", prompt.text);
    assert!(prompt.text.ends_with("They also ask: why so many modules?"), "{}", prompt.text);
    assert!(bind(&parsed.recipe, "").is_err(), "the file is required");
}

#[test]
fn the_worked_provider_is_configured() {
    let home = tempfile::tempdir().expect("a temporary directory");
    let paths = Paths::below(home.path());
    std::fs::create_dir_all(paths.config_file().parent().expect("it is in a directory")).expect("made");
    std::fs::write(paths.config_file(), block("Add a provider, worked", "toml")).expect("written");
    let (settings, problems) = Settings::load(&paths, None, |_| None);
    assert_eq!(problems, []);
    let environment: [(OsString, OsString); 1] = [("ROUTER_KEY".into(), "k".into())];
    let model = ModelName("router/qwen/qwen3-coder".into());
    let endpoint = endpoint::resolve(&model, &settings, &environment).expect("the key is set");
    assert_eq!((endpoint.base_url.as_str(), endpoint.window), ("https://router.example/api/v1", 262_144));
}
