//! `epitome mcp`: lists, adds and removes MCP servers in the user's settings, imports them from other agents, and
//! logs in to them.

mod config_edit;
pub mod import;
mod recall_server;

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::hooks::Project;
use super::{CliContext as _, CliError, serve, terminal};
use crate::atomic_file::{lock_for_change, replace_keeping_mode};
use crate::paths::Paths;
use crate::problem::Problem;
use crate::session::MCP_LOGINS;
use crate::tools::question::{QuestionKind, QuestionMessage, QuestionReply, QuestionSender, QuestionSupport};
use epitome_config::{McpServer, McpSource, McpTransport};
use epitome_hooks::servers;
use epitome_mcp::{FirstStart, Hub, McpContext, McpEvent, ServerState, is_logged_in, log_out};
use epitome_platform::root::read_regular_text;
use import::ImportedServers;

/// Timeout of a login; the user has ten minutes for it.
const LOGIN_TIME_MAX: Duration = Duration::from_secs(11 * 60);
/// Maximum bytes of another agent's file. Claude Code stores its entire state in one.
const IMPORT_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// List, add, remove and log in to MCP servers
#[derive(Debug, clap::Args)]
#[command(
    arg_required_else_help = false,
    arg = super::before_subcommand("json").action(clap::ArgAction::SetTrue)
)]
pub struct McpArgs {
    #[command(subcommand)]
    command: McpCommand,
}

#[derive(Debug, clap::Subcommand)]
enum McpCommand {
    /// List the configured servers, without starting them; `epitome doctor` starts them
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Add a server to config.toml
    Add(AddArgs),
    /// Remove a server from config.toml
    Remove {
        /// Name of the server
        name: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Import the servers of Claude Code and Codex
    Import {
        /// Do not ask for confirmation
        #[arg(long)]
        yes: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Log in to a server on the network, replacing any stored login
    Login {
        /// Name of the server
        name: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Serve stored sessions to other agents over MCP, on stdin and stdout
    Serve,
    /// Remove the stored login of a server
    Logout {
        /// Name of the server
        name: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, clap::Args)]
struct AddArgs {
    /// Name of the server
    name: String,
    /// Address of a server on the network, instead of a command
    #[arg(long, conflicts_with = "command")]
    url: Option<String>,
    /// Header for the server on the network
    #[arg(long = "header", value_name = "NAME=VALUE", requires = "url")]
    headers: Vec<String>,
    /// Variable with the key of the server on the network
    #[arg(long, value_name = "VARIABLE", requires = "url")]
    key_variable: Option<String>,
    /// Variable for the command; ${NAME} in the value is replaced when the server is started
    #[arg(long = "env", value_name = "NAME=VALUE", conflicts_with = "url")]
    env: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Command that starts the server, after --
    #[arg(last = true, required_unless_present = "url", value_name = "COMMAND")]
    command: Vec<String>,
}

pub fn main(args: McpArgs) -> Result<i32, CliError> {
    let paths = serve::paths();
    super::log::to_file(&paths);
    match args.command {
        McpCommand::List { json } => list(&Project::load(paths)?, json),
        McpCommand::Add(args) => add(&paths, args),
        McpCommand::Remove { name, json } => {
            change_config(&paths, |text| config_edit::remove_server(text, &name))?;
            done(json, "removed", &name, format!("{name} is removed from config.toml."))
        }
        McpCommand::Import { yes, json } => import(&paths, yes, json),
        McpCommand::Serve => recall_server::serve(&paths),
        McpCommand::Login { name, json } => login(&Project::load(paths)?, &name, json),
        McpCommand::Logout { name, json } => {
            let project = Project::load(paths)?;
            let url = url_of(&project, &name)?;
            let text = match log_out_of(&project, &url)? {
                true => format!("You are logged out of {name}."),
                false => format!("There was no stored login for {name}."),
            };
            done(json, "logged_out", &name, text)
        }
    }
}

fn done(as_json: bool, what: &str, name: &str, text: String) -> Result<i32, CliError> {
    match as_json {
        true => terminal::print_json(&json!({ what: [name] }))?,
        false => terminal::print_visible(&format!("{text}\n"))?,
    }
    Ok(0)
}

// ── The settings ───────────────────────────────────────────────────────────────────────────────────

fn list(project: &Project, as_json: bool) -> Result<i32, CliError> {
    let servers = &project.settings.mcp.servers;
    let logins = project.paths.data.join(MCP_LOGINS);
    if as_json {
        let of = |server: &McpServer| {
            json!({
                "name": server.name,
                "source": source(server),
                "transport": transport(server),
                "command": server.way.target(),
                "enabled": server.enabled,
                "loggedIn": has_login(project, &logins, server),
            })
        };
        let list: Vec<Value> = servers.iter().map(of).collect();
        let problems: Vec<Value> = project.settings_problems.iter().map(Problem::to_json).collect();
        let list = json!({ "servers": list, "problems": problems });
        return terminal::print(&format!("{list}\n")).map(|()| 0);
    }
    let mut text = String::new();
    if servers.is_empty() {
        text.push_str("No MCP server is configured. `epitome mcp add NAME -- COMMAND` adds one.\n");
    }
    for server in servers {
        let state = match (server.enabled, has_login(project, &logins, server)) {
            (false, _) => ", off",
            (true, true) => ", logged in",
            (true, false) => "",
        };
        let _ = writeln!(text, "{}  {} ({}{state})", server.name, server.way.target(), source(server));
    }
    // A server with a mistake is not among them.
    if !project.settings_problems.is_empty() {
        text.push_str("\nProblems of the settings:\n");
        project.settings_problems.iter().for_each(|problem| text.push_str(&format!("  {problem}\n")));
    }
    terminal::print_visible(&text)?;
    Ok(0)
}

fn source(server: &McpServer) -> &'static str {
    match server.from {
        McpSource::Client | McpSource::Person => "config.toml",
        McpSource::Repository { .. } => "repository",
    }
}

fn transport(server: &McpServer) -> &'static str {
    match server.way {
        McpTransport::Stdio { .. } => "stdio",
        McpTransport::Http { .. } => "http",
        McpTransport::Client { .. } => "client",
    }
}

fn has_login(project: &Project, logins: &Path, server: &McpServer) -> bool {
    match server.expanded(&project.environment) {
        Ok(McpTransport::Http { url, .. }) => is_logged_in(logins, &url),
        Ok(McpTransport::Stdio { .. } | McpTransport::Client { .. }) | Err(_) => false,
    }
}

fn add(paths: &Paths, args: AddArgs) -> Result<i32, CliError> {
    let AddArgs { name, url, headers, key_variable, env, json, command } = args;
    if name.trim().is_empty() || name.chars().any(char::is_control) {
        return Err(CliError::usage("a server's name must be a short text on one line"));
    }
    let way = match url {
        Some(url) if !url.starts_with("https://") && !url.starts_with("http://") => {
            return Err(CliError::usage("the address of a server begins with https:// or http://"));
        }
        Some(url) => McpTransport::Http { url, headers: pairs(&headers)?, key_variable },
        None => {
            let mut words = command.into_iter();
            let command = words.next().ok_or_else(|| CliError::usage("give a command after --, or --url"))?;
            McpTransport::Stdio { command, args: words.collect(), env: pairs(&env)? }
        }
    };
    let server = McpServer::new(name.clone(), McpSource::Person, way);
    change_config(paths, |text| config_edit::add_server(text, &server))?;
    done(json, "added", &name, format!("{name} is added to config.toml. New sessions use it."))
}

fn pairs(given: &[String]) -> Result<Vec<(String, String)>, CliError> {
    let pair = |text: &String| match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        // Don't quote the argument: it may be a key.
        Some(_) | None => Err(CliError::usage("variables and headers are given as NAME=VALUE")),
    };
    given.iter().map(pair).collect()
}

/// Changes `config.toml`. A new one can only be read by its owner, because it may contain keys.
fn change_config(
    paths: &Paths,
    change: impl FnOnce(&str) -> Result<String, CliError>,
) -> Result<(), CliError> {
    // Keep a symbolic link to the user's file.
    let file = paths.config_file();
    let file = file.canonicalize().unwrap_or(file);
    let unusable = format!("{} cannot be changed", file.display());
    let _lock = lock_for_change(&file).context(&unusable)?;
    let text = match std::fs::read_to_string(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error).context(unusable),
    };
    replace_keeping_mode(&file, change(&text)?.as_bytes()).context(unusable)
}

// ── Servers of other agents ────────────────────────────────────────────────────────────────────────

fn import(paths: &Paths, yes: bool, as_json: bool) -> Result<i32, CliError> {
    let cwd = serve::working_directory()?;
    let Some(home) = paths.user_home.clone().or_else(|| std::env::var_os("HOME").map(PathBuf::from)) else {
        return Err(CliError::failed("the home directory is unknown"));
    };
    let (claude, codex) = (home.join(".claude.json"), home.join(".codex/config.toml"));
    let known = serve::settings(paths, None).mcp.servers;
    let mut new: Vec<McpServer> = Vec::new();
    for (file, form, read) in [
        (claude, "JSON", Box::new(|text: &str| import::from_claude(text, &cwd)) as Box<ReadServers<'_>>),
        (codex, "TOML", Box::new(import::from_codex)),
    ] {
        let Some(text) = text_of(&file)? else { continue };
        let found = read(&text)
            .ok_or_else(|| CliError::failed(format!("{}: it is not valid {form}", file.display())))?;
        for skipped in found.skipped {
            note!("{}: {skipped}", file.display());
        }
        for server in found.servers {
            match known.iter().chain(&new).any(|other| other.name == server.name) {
                true => note!("{}: there is an MCP server {:?} already", file.display(), server.name),
                false => new.push(server),
            }
        }
    }
    if new.is_empty() {
        note!("There is no MCP server to import.");
    }
    for server in &new {
        note!("Would add {}:\n    {}", server.description(), server.runs().replace('\n', "\n    "));
    }
    if !new.is_empty() && (yes || terminal::agreed("Add them to config.toml?")?) {
        change_config(paths, |text| {
            new.iter().try_fold(text.to_owned(), |text, server| config_edit::add_server(&text, server))
        })?;
    } else {
        new.clear();
    }
    let names: Vec<&str> = new.iter().map(|server| server.name.as_str()).collect();
    match as_json {
        true => terminal::print_json(&json!({ "added": names }))?,
        false if names.is_empty() => {}
        false => terminal::print_visible(&format!("Added to config.toml: {}.\n", names.join(", ")))?,
    }
    Ok(0)
}

/// Parses the servers of a file.
type ReadServers<'a> = dyn Fn(&str) -> Option<ImportedServers> + 'a;

fn text_of(file: &Path) -> Result<Option<String>, CliError> {
    match read_regular_text(file, IMPORT_BYTES_MAX) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        text => text.map(Some).context(format_args!("{} cannot be read", file.display())),
    }
}

// ── Logins ─────────────────────────────────────────────────────────────────────────────────────────

fn server_named<'p>(project: &'p Project, name: &str) -> Result<&'p McpServer, CliError> {
    let found = project.settings.mcp.servers.iter().find(|server| server.name == name);
    found.ok_or_else(|| {
        CliError::failed(format!("there is no MCP server {name:?}")).hint("`epitome mcp list` lists them")
    })
}

fn url_of(project: &Project, name: &str) -> Result<String, CliError> {
    match server_named(project, name)?.expanded(&project.environment) {
        Ok(McpTransport::Http { url, .. }) => Ok(url),
        Ok(McpTransport::Stdio { .. } | McpTransport::Client { .. }) => {
            Err(CliError::failed(format!("{name} needs no login: it is not reached over the network")))
        }
        Err(why) => Err(why).context(format_args!("{name} cannot be used")),
    }
}

/// Removes the stored login of the server at this address. Returns whether there was one.
fn log_out_of(project: &Project, url: &str) -> Result<bool, CliError> {
    log_out(&project.paths.data.join(MCP_LOGINS), url).context("the login cannot be removed")
}

/// Completes the first start of a server whose session has ended; the server is read from stdin.
pub fn first_start() -> Result<i32, CliError> {
    let start: FirstStart =
        serde_json::from_reader(std::io::stdin()).context("no MCP server can be read from stdin")?;
    let project = Project::load(serve::paths())?;
    let (roots, environment) = (project.paths.repository_roots(&project.cwd), project.environment.clone());
    let context = McpContext {
        // The session has asked about it.
        unchanged: Arc::new(move |server| Ok(servers::unchanged(server, &roots, &environment)?)),
        ..project.mcp_context()
    };
    let name = start.server.name.clone();
    let completed = serve::runtime()?.block_on(start.complete(context));
    completed.map(|()| 0).context(format_args!("the MCP server {name} is not connected"))
}

/// Connects the server, which shows the link for its login if it requires one.
fn login(project: &Project, name: &str, as_json: bool) -> Result<i32, CliError> {
    let url = url_of(project, name)?;
    let server = server_named(project, name)?.clone();
    if matches!(server.from, McpSource::Repository { .. }) {
        return Err(CliError::failed(format!("{name} came with the repository"))
            .hint("open a session here, allow the server, and log in there"));
    }
    // A server that does not recognize its tokens may fail instead of asking for a login.
    log_out_of(project, &url)?;
    let state = serve::runtime()?.block_on(async {
        let context = project.mcp_context();
        // Links are not shown as questions here, so that of the login arrives as a notice.
        let (questions, mut asked) = QuestionSender::new();
        questions.set_shows(QuestionSupport { forms: true, urls: false });
        tokio::spawn(async move {
            while let Some(message) = asked.recv().await {
                let QuestionMessage::Question { question, reply } = message else { continue };
                drop(reply.send(match question.wants == QuestionKind::consent() {
                    true if terminal::agreed(&question.message).unwrap_or(false) => {
                        QuestionReply::Accepted(serde_json::Map::new())
                    }
                    true => QuestionReply::Declined,
                    false => QuestionReply::Unable,
                }));
            }
        });
        let (mut hub, mut news) = Hub::new(context, questions);
        hub.start([server], |_| false);
        let settled = async {
            loop {
                match (news.recv().await, hub.statuses().first().map(|status| status.state.clone())) {
                    (Some(McpEvent::Remark(text)), _) => note!("{text}"),
                    (Some(McpEvent::Changed { .. }), Some(ServerState::Ready)) => return Ok(()),
                    (Some(McpEvent::Gone { why, .. }), _) => return Err(why),
                    (Some(McpEvent::Changed { .. } | McpEvent::ModelWanted { .. }), _) => {}
                    (None, _) => return Err("it ended".to_owned()),
                }
            }
        };
        tokio::time::timeout(LOGIN_TIME_MAX, settled).await.unwrap_or(Err("it took too long".to_owned()))
    });
    state.context(format_args!("{name} is not connected"))?;
    done(as_json, "connected", name, format!("{name} is connected."))
}
