//! `epitome agents`: lists and checks the definitions of subagents. Runs nothing.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::recipes::location;
use super::terminal;
use super::{CliError, serve};
use crate::problem::Problem;
use crate::recipe::agents::{AgentCatalog, AgentDefinition};
use crate::recipe::parse::RecipeSource;

/// Characters of a description in the list.
const DESCRIPTION_CHARS_MAX: usize = 100;

/// List and check agents for subtasks
#[derive(Debug, clap::Args)]
#[command(
    arg_required_else_help = false,
    after_help = "Exit codes: 0 done, 1 failed or a file defines no agent, 2 wrong usage."
)]
pub struct AgentsArgs {
    #[command(subcommand)]
    command: AgentsCommand,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum AgentsCommand {
    /// List the agents of this directory with their files
    List,
    /// Report files that define no agent, and fields without effect, with line and column
    Check {
        /// Files or directories [default: the agents of this directory]
        #[arg(value_name = "PATH", value_hint = clap::ValueHint::AnyPath)]
        files: Vec<PathBuf>,
    },
}

pub fn main(args: AgentsArgs) -> Result<i32, CliError> {
    let cwd = serve::working_directory()?;
    let all = || AgentCatalog::load(&cwd, &serve::paths());
    match args.command {
        AgentsCommand::List => list(&all(), &cwd, args.json).map(|()| 0),
        AgentsCommand::Check { files } if files.is_empty() => check(&all(), args.json),
        AgentsCommand::Check { files } => {
            let files: Vec<PathBuf> = files.iter().map(|file| cwd.join(file)).collect();
            if let Some(missing) = files.iter().find(|file| !file.exists()) {
                return Err(CliError::failed(format!("there is no {}", missing.display())));
            }
            check(&AgentCatalog::named(&files), args.json)
        }
    }
}

fn list(catalog: &AgentCatalog, cwd: &Path, as_json: bool) -> Result<(), CliError> {
    if as_json {
        let agents: Vec<Value> = catalog.agents.iter().map(to_json).collect();
        let shadowed: Vec<String> = catalog.shadowed.iter().map(|path| path.display().to_string()).collect();
        return terminal::print_pretty(&json!({
            "agents": agents, "shadowed": shadowed, "problems": problems(&catalog.problems),
        }));
    }
    let mut text = String::new();
    let width = catalog.agents.iter().map(|agent| agent.name.chars().count()).max().unwrap_or(0);
    for agent in &catalog.agents {
        let about = match agent.description.char_indices().nth(DESCRIPTION_CHARS_MAX) {
            Some((end, _)) => format!("{}…", agent.description[..end].trim_end()),
            None => agent.description.clone(),
        };
        let _ = writeln!(text, "{:width$}  {about} [{}]", agent.name, location(&agent.source, cwd));
    }
    for path in &catalog.shadowed {
        let _ = writeln!(text, "\nNot used, because an earlier file has the same name: {}", path.display());
    }
    if !catalog.problems.is_empty() {
        let count = catalog.problems.len();
        let _ = writeln!(text, "\nFiles that define no agent: {count}; `epitome agents check` shows them");
    }
    terminal::print_visible(&text)
}

fn check(catalog: &AgentCatalog, as_json: bool) -> Result<i32, CliError> {
    let code = i32::from(!catalog.problems.is_empty());
    if as_json {
        terminal::print_pretty(
            &json!({ "problems": problems(&catalog.problems), "remarks": problems(&catalog.remarks) }),
        )?;
        return Ok(code);
    }
    let lines = |text: &mut String, head: &str, problems: &[Problem]| {
        if !problems.is_empty() {
            let files: BTreeSet<&Path> = problems.iter().map(|problem| problem.path.as_path()).collect();
            let _ = writeln!(text, "{head}: {}", files.len());
            problems.iter().for_each(|problem| text.push_str(&format!("  {problem}\n")));
        }
    };
    let mut text = String::new();
    lines(&mut text, "Files that define no agent", &catalog.problems);
    lines(&mut text, "Agents with parts that have no effect", &catalog.remarks);
    if text.is_empty() {
        let own = catalog.agents.iter().filter(|agent| agent.source != RecipeSource::BuiltIn).count();
        let _ = writeln!(text, "{own} agents, nothing wrong");
    }
    terminal::print_visible(&text).map(|()| code)
}

fn problems(problems: &[Problem]) -> Vec<Value> {
    problems.iter().map(Problem::to_json).collect()
}

fn to_json(agent: &AgentDefinition) -> Value {
    let (kind, path) = match &agent.source {
        RecipeSource::BuiltIn => ("built_in", None),
        RecipeSource::User(path) => ("person", Some(path)),
        RecipeSource::Repository(path) => ("repository", Some(path)),
    };
    json!({
        "name": agent.name,
        "description": agent.description,
        "tools": agent.tools,
        "without": agent.without,
        "model": agent.model,
        "max_turns": agent.max_rounds,
        "read_only": agent.plans,
        "source": { "kind": kind, "path": path.map(|path| path.display().to_string()) },
    })
}
