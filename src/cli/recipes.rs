//! `epitome recipes`: lists, shows, renders and checks recipes. Only `render` runs commands, and only those of
//! built-in recipes and of the user's recipes.

mod show;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::json;

use super::overrides::RecipeDirArgs;
use super::terminal;
use super::{CliError, serve};
use crate::config::Settings;
use crate::paths::Paths;
use crate::problem::Problem;
use crate::provider::endpoint;
use crate::recipe::catalog::{PROBLEMS_MAX, RecipeCatalog};
use crate::recipe::command::{self, RecipeArguments};
use crate::recipe::parse::{Recipe, RecipeSource};
use crate::recipe::render::{
    self, NOT_RUN, RenderContext, Rendered, RenderedPrompt, ShellCall, ShellOutputs,
};
use crate::recipe::shown;
use crate::thread::visible::visible;
use crate::tools::reaper::Reaper;
use crate::tools::shell_output::shell_output;
use crate::tools::{ToolContext, Toolbox, Workspace};

/// List, render and check slash commands
#[derive(Debug, clap::Args)]
#[command(
    arg_required_else_help = false,
    after_help = "Exit codes: 0 done, 1 failed or a recipe file has problems, 2 wrong usage."
)]
pub struct RecipesArgs {
    #[command(subcommand)]
    command: RecipesCommand,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(flatten)]
    directories: RecipeDirArgs,
}

#[derive(Debug, clap::Subcommand)]
enum RecipesCommand {
    /// List recipes with their files, and those that another recipe of the same name hides
    List,
    /// Show the metadata of a recipe and its file, without running anything
    Show {
        /// Name of a recipe
        #[arg(value_name = "RECIPE")]
        name: String,
    },
    /// Print the prompt that /NAME would send
    ///
    /// Shell commands in the recipe run only if it is built in or your own.
    Render {
        /// Name of a recipe
        #[arg(value_name = "RECIPE")]
        name: String,
        /// Arguments of the recipe as key=value, and free text, which may have options of its own
        #[arg(value_name = "KEY=VALUE|TEXT", allow_hyphen_values = true)]
        words: Vec<String>,
    },
    /// Report problems in recipe files, with line and column
    Check {
        /// Files or directories [default: the recipes of this directory]
        #[arg(value_name = "PATH", value_hint = clap::ValueHint::AnyPath)]
        files: Vec<PathBuf>,
    },
}

pub fn main(args: RecipesArgs) -> Result<i32, CliError> {
    let paths = serve::paths();
    let cwd = serve::working_directory()?;
    let recipes = RecipeListing { cwd, paths, json: args.json, extra: args.directories.directories() };
    match args.command {
        RecipesCommand::List => recipes.list().map(|()| 0),
        RecipesCommand::Show { name } => recipes.show(&name).map(|()| 0),
        RecipesCommand::Render { name, words } => recipes.render(&name, &words).map(|()| 0),
        RecipesCommand::Check { files } => recipes.check(&files),
    }
}

/// The recipes of a directory, and how they are printed.
struct RecipeListing {
    cwd: PathBuf,
    paths: Paths,
    json: bool,
    /// Additional directories with recipes.
    extra: Vec<PathBuf>,
}

impl RecipeListing {
    fn catalog(&self) -> RecipeCatalog {
        RecipeCatalog::load(&self.cwd, &self.paths, &self.extra)
    }

    fn list(&self) -> Result<(), CliError> {
        let mut catalog = self.catalog();
        catalog.recipes.sort_by(|a, b| a.id.cmp(&b.id));
        match self.json {
            true => terminal::print_pretty(&shown::list(&catalog)),
            false => terminal::print_visible(&show::list(&catalog, &self.cwd)),
        }
    }

    fn show(&self, name: &str) -> Result<(), CliError> {
        let catalog = self.catalog();
        let recipe = find(&catalog, name)?;
        let text = RecipeCatalog::source_text(recipe).map_err(|why| why.to_string())?;
        match self.json {
            true => {
                let mut fields = shown::fields(recipe);
                fields.insert("text".to_owned(), json!(text));
                terminal::print_pretty(&json!(fields))
            }
            false => terminal::print_visible(&format!("{}\n{text}", show::head(recipe))),
        }
    }

    fn render(&self, name: &str, words: &[String]) -> Result<(), CliError> {
        let catalog = self.catalog();
        let recipe = find(&catalog, name)?;
        let arguments = bind(recipe, words)?;
        let prompt = self.prompt(recipe, &arguments)?;
        for warning in &prompt.warnings {
            note!("epitome: {warning}");
        }
        match self.json {
            true => terminal::print_pretty(&json!({
                "id": recipe.id,
                "arguments": arguments.named,
                "input": arguments.free,
                "text": prompt.text,
                "warnings": prompt.warnings,
            })),
            false => terminal::print(&format!("{}\n", visible(&prompt.text))),
        }
    }

    /// Renders a recipe and runs its shell commands where that is permitted.
    fn prompt(&self, recipe: &Recipe, arguments: &RecipeArguments) -> Result<RenderedPrompt, CliError> {
        let settings = serve::settings(&self.paths, Some(&self.cwd));
        let surroundings = RenderContext {
            conversation_id: String::new(),
            cwd: self.cwd.display().to_string(),
            date: jiff::Zoned::now().date().to_string(),
            go_compat: settings.go_compat,
            quotes_arguments: false,
        };
        let mut outputs = ShellOutputs::new();
        loop {
            match render::render(recipe, arguments, &surroundings, &outputs) {
                Ok(Rendered::Done(prompt)) => return Ok(prompt),
                Ok(Rendered::Needs(calls)) => {
                    outputs.extend(self.outputs(&recipe.source, calls, &settings)?)
                }
                Err(problem) => return Err(problem.into()),
            }
        }
    }

    /// Returns the output of shell commands. Those of a repository's recipe do not run, because the user has not
    /// approved them.
    fn outputs(
        &self,
        source: &RecipeSource,
        calls: Vec<ShellCall>,
        settings: &Settings,
    ) -> Result<ShellOutputs, CliError> {
        match source {
            RecipeSource::Repository(_) => {
                return Ok(calls.into_iter().map(|call| (call, NOT_RUN.to_owned())).collect());
            }
            RecipeSource::BuiltIn | RecipeSource::User(_) => {}
        }
        let toolbox = Toolbox::built_in(Arc::new(Reaper::for_this_executable()));
        let workspace = Workspace::new(self.cwd.clone(), Vec::new(), serve::environment());
        let workspace = workspace.exposing(Arc::new(endpoint::exposure(settings)));
        let context = ToolContext::bare(Arc::new(workspace));
        serve::runtime()?.block_on(async {
            let mut outputs = ShellOutputs::new();
            for call in calls {
                let output = shell_output(&toolbox, &context, &call.line()).await;
                outputs.insert(call, output);
            }
            Ok(outputs)
        })
    }

    fn check(&self, files: &[PathBuf]) -> Result<i32, CliError> {
        let catalog = match files {
            [] => self.catalog(),
            files => RecipeCatalog::named(&self.cwd, &self.paths, files),
        };
        let problems = &catalog.problems;
        match self.json {
            true => {
                terminal::print_pretty(&json!(problems.iter().map(Problem::to_json).collect::<Vec<_>>()))?
            }
            false => {
                let mut text: String = problems.iter().map(|problem| format!("{problem}\n")).collect();
                match problems.len() {
                    0 => text += &format!("{} recipes, nothing wrong\n", catalog.recipes.len()),
                    // A catalog keeps at most this many.
                    PROBLEMS_MAX.. => text += "and perhaps more\n",
                    _ => {}
                }
                terminal::print_visible(&text)?;
            }
        }
        Ok(i32::from(!problems.is_empty()))
    }
}

/// Finds a recipe by its name or an alias, also a hidden one. The error explains a file that can't be used.
pub fn find<'a>(catalog: &'a RecipeCatalog, name: &str) -> Result<&'a Recipe, CliError> {
    let name = name.trim_start_matches('/');
    catalog.find(name).map(AsRef::as_ref).ok_or_else(|| {
        if let Some(problem) = catalog.fault(name) {
            return CliError::failed(format!("the recipe {name:?} can't be used: {problem}"))
                .hint("`epitome recipes check` shows all faults");
        }
        let visible = catalog.recipes.iter().filter(|recipe| !recipe.hidden);
        let known: Vec<&str> = visible.map(|recipe| recipe.id.as_str()).collect();
        let unknown = CliError::failed(format!("there is no recipe {name:?}"));
        unknown.meant(name, known.iter().copied(), format!("there are: {}", known.join(", ")))
    })
}

/// Parses the arguments of a recipe from words that a shell has already split.
fn bind(recipe: &Recipe, words: &[String]) -> Result<RecipeArguments, CliError> {
    let mut arguments = RecipeArguments::default();
    let mut free = Vec::new();
    for word in words {
        match word.split_once('=').filter(|(key, _)| recipe.arguments.contains_key(*key)) {
            Some((key, value)) => {
                if arguments.named.insert(key.to_owned(), value.to_owned()).is_some() {
                    return Err(CliError::usage(format!("{key:?} is given twice")));
                }
            }
            None => free.push(word.as_str()),
        }
    }
    arguments.free = free.join(" ");
    let usage = || format!("/{} {}", recipe.id, command::hint(recipe));
    command::complete(recipe, arguments).map_err(|why| CliError::usage(why.to_string()).hint(usage()))
}

/// The source of a recipe or an agent: a path, relative to the working directory if it is below it.
pub fn location(source: &RecipeSource, cwd: &Path) -> String {
    match source {
        RecipeSource::BuiltIn => "built in".to_owned(),
        RecipeSource::User(path) | RecipeSource::Repository(path) => {
            path.strip_prefix(cwd).unwrap_or(path).display().to_string()
        }
    }
}
