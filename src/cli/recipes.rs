//! `epitome recipes`: which recipes there are, what they would send, what is wrong with their files. It
//! changes nothing; only `render` runs something, and only what the person's own recipes ask for.

mod request;
mod show;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::json;

use super::terminal::{self, harmless};
use super::{CliError, serve};
use crate::config::Settings;
use crate::paths::Paths;
use crate::problem::Problem;
use crate::recipe::catalog::{Catalog, PROBLEMS_MAX};
use crate::recipe::command::{self, Arguments};
use crate::recipe::parse::{Recipe, Source};
use crate::recipe::render::{self, NOT_RUN, Prompt, Rendered, ShellCall, ShellOutputs, Surroundings};
use crate::recipe::shown;
use crate::tools::reaper::Reaper;
use crate::tools::shell_output::shell_output;
use crate::tools::{Toolbox, Workspace};
use request::{Action, Form, Request};

const HELP: &str = "\
epitome recipes: the slash commands of this directory

  epitome recipes list
        all of them, with where they come from, and those that another one hides
  epitome recipes show NAME
        what a recipe says of itself, and its file; runs nothing
  epitome recipes render NAME [key=value...] [free text...]
        the text that /NAME would send; commands in it run if the recipe is your own or built in
  epitome recipes check [PATH...]
        what is wrong with recipe files, with line and column; those of this directory unless named

      --json             as JSON
      --recipe-dir DIR   look there, too (also --fragment-dirs DIR,DIR)

Exit codes: 0 done, 1 it failed or there is something wrong, 2 wrong usage.
";

pub fn main(arguments: Vec<OsString>) -> Result<i32, CliError> {
    let Some(request) = Request::parse(arguments)? else {
        terminal::print(HELP)?;
        return Ok(0);
    };
    let paths = serve::paths();
    let cwd = std::env::current_dir()
        .map_err(|error| CliError::failed(format!("the working directory is not known: {error}"), None))?;
    let desk = Desk { cwd, paths, form: request.form, extra: request.extra };
    match request.action {
        Action::List => desk.list().map(|()| 0),
        Action::Show { name } => desk.show(&name).map(|()| 0),
        Action::Render { name, words } => desk.render(&name, &words).map(|()| 0),
        Action::Check { files } => desk.check(&files),
    }
}

/// What every command needs.
struct Desk {
    cwd: PathBuf,
    paths: Paths,
    form: Form,
    extra: Vec<PathBuf>,
}

impl Desk {
    fn catalog(&self) -> Catalog {
        Catalog::load(&self.cwd, &self.paths, &self.extra)
    }

    fn list(&self) -> Result<(), CliError> {
        let mut catalog = self.catalog();
        catalog.recipes.sort_by(|a, b| a.id.cmp(&b.id));
        match self.form {
            Form::Json => print_json(&shown::list(&catalog)),
            Form::Text => terminal::print(&harmless(&show::list(&catalog, &self.cwd))),
        }
    }

    fn show(&self, name: &str) -> Result<(), CliError> {
        let catalog = self.catalog();
        let recipe = find(&catalog, name)?;
        let text = match &recipe.source {
            Source::BuiltIn => Catalog::built_in_text(&recipe.id).unwrap_or_default().to_owned(),
            Source::Person(path) | Source::Repository(path) => {
                std::fs::read_to_string(path).map_err(|error| {
                    CliError::failed(format!("{} can't be read: {error}", path.display()), None)
                })?
            }
        };
        match self.form {
            Form::Json => {
                let mut fields = shown::fields(recipe);
                fields.insert("text".to_owned(), json!(text));
                print_json(&json!(fields))
            }
            Form::Text => terminal::print(&harmless(&format!("{}\n{text}", show::head(recipe)))),
        }
    }

    fn render(&self, name: &str, words: &[String]) -> Result<(), CliError> {
        let catalog = self.catalog();
        let recipe = find(&catalog, name)?;
        let arguments = bind(recipe, words)?;
        let prompt = self.prompt(recipe, &arguments)?;
        for warning in &prompt.warnings {
            eprintln!("epitome: {}", harmless(warning));
        }
        match self.form {
            Form::Json => print_json(&json!({
                "id": recipe.id,
                "arguments": arguments.named,
                "input": arguments.free,
                "text": prompt.text,
                "warnings": prompt.warnings,
            })),
            Form::Text => terminal::print(&format!("{}\n", harmless(&prompt.text))),
        }
    }

    /// Renders, and runs what the recipe asks for where it may.
    fn prompt(&self, recipe: &Recipe, arguments: &Arguments) -> Result<Prompt, CliError> {
        let (settings, problems) =
            Settings::load(&self.paths, Some(&self.cwd), |name| std::env::var_os(name));
        for problem in problems {
            eprintln!("epitome: {}", harmless(&problem.to_string()));
        }
        let surroundings = Surroundings {
            conversation_id: String::new(),
            cwd: self.cwd.display().to_string(),
            date: jiff::Zoned::now().date().to_string(),
            go_compat: settings.go_compat,
        };
        let mut outputs = ShellOutputs::new();
        loop {
            match render::render(recipe, arguments, &surroundings, &outputs) {
                Ok(Rendered::Done(prompt)) => return Ok(prompt),
                Ok(Rendered::Needs(calls)) => outputs.extend(self.outputs(&recipe.source, calls)?),
                Err(problem) => return Err(CliError::failed(problem.to_string(), None)),
            }
        }
    }

    /// What calls print. Those of a repository's recipe do not run: nobody has said that they may.
    fn outputs(&self, source: &Source, calls: Vec<ShellCall>) -> Result<ShellOutputs, CliError> {
        match source {
            Source::Repository(_) => {
                return Ok(calls.into_iter().map(|call| (call, NOT_RUN.to_owned())).collect());
            }
            Source::BuiltIn | Source::Person(_) => {}
        }
        let toolbox = Toolbox::built_in(Arc::new(Reaper::of_this_executable()));
        let workspace = Arc::new(Workspace {
            cwd: self.cwd.clone(),
            directories: Vec::new(),
            environment: serve::environment(),
        });
        serve::runtime()?.block_on(async {
            let mut outputs = ShellOutputs::new();
            for call in calls {
                let output = shell_output(&toolbox, &workspace, &call.line()).await;
                outputs.insert(call, output);
            }
            Ok(outputs)
        })
    }

    fn check(&self, files: &[PathBuf]) -> Result<i32, CliError> {
        let catalog = match files {
            [] => self.catalog(),
            files => Catalog::named(&self.cwd, &self.paths, files),
        };
        let problems = &catalog.problems;
        match self.form {
            Form::Json => print_json(&json!(problems.iter().map(Problem::to_json).collect::<Vec<_>>()))?,
            Form::Text => {
                let mut text: String = problems.iter().map(|problem| format!("{problem}\n")).collect();
                match problems.len() {
                    0 => text += &format!("{} recipes, nothing wrong\n", catalog.recipes.len()),
                    // Each catalog keeps so many; more of them would say nothing new.
                    PROBLEMS_MAX.. => text += "and perhaps more\n",
                    _ => {}
                }
                terminal::print(&harmless(&text))?;
            }
        }
        Ok(i32::from(!problems.is_empty()))
    }
}

fn find<'a>(catalog: &'a Catalog, name: &str) -> Result<&'a Recipe, CliError> {
    let name = name.trim_start_matches('/');
    catalog.find(name).map(AsRef::as_ref).ok_or_else(|| {
        let near = crate::problem::nearest(name, catalog.recipes.iter().map(|recipe| recipe.id.as_str()));
        let hint = match near {
            Some(near) => format!("did you mean {near:?}?"),
            None => "`epitome recipes list` shows what there is".to_owned(),
        };
        CliError::failed(format!("there is no recipe {name:?}"), Some(hint))
    })
}

/// The arguments of a call whose words a shell has split already.
fn bind(recipe: &Recipe, words: &[String]) -> Result<Arguments, CliError> {
    let mut arguments = Arguments::default();
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
    let usage = || Some(format!("/{} {}", recipe.id, command::hint(recipe)));
    command::complete(recipe, arguments).map_err(|message| CliError { message, hint: usage(), code: 2 })
}

/// A path as a person in a directory would write it.
fn display(path: &Path, cwd: &Path) -> String {
    path.strip_prefix(cwd).unwrap_or(path).display().to_string()
}

fn print_json(value: &serde_json::Value) -> Result<(), CliError> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| CliError::failed(format!("no JSON can be made of it: {error}"), None))?;
    terminal::print(&format!("{text}\n"))
}
