//! `epitome hooks`: lists hooks, trusts those of a repository, tests one, and shows logged runs.

mod log;
mod meaning;
mod try_out;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::terminal;
use super::{CliError, serve};
use crate::paths::Paths;
use crate::problem::Problem;
use crate::provider::endpoint;
use crate::provider::http::Http;
use crate::provider::network::Network;
use crate::session::{MCP_LISTINGS, MCP_LOGINS, sandbox_rules};
use crate::thread::visible::exact;
use crate::tools::Workspace;
use crate::tools::reaper::Reaper;
use crate::tools::sandbox::{self, of_server};
use epitome_config::{HookTrust as Policy, Settings};
use epitome_hooks::discover::{FoundHooks, HookSearch, UntrustedHook, discover};
use epitome_hooks::shown::{self, kind, word};
use epitome_hooks::trust::{TrustDecision, TrustStore, TrustSubject};
use epitome_mcp::{ListingCache, McpContext, SharedClient};

/// Number of digest digits that are shown, enough to distinguish two versions.
const DIGEST_SHOWN: usize = 12;

/// List, trust, test and trace hooks
///
/// Hooks of a repository never run before you trust them, and must be trusted again when they change.
#[derive(Debug, clap::Args)]
#[command(
    arg_required_else_help = false,
    arg = super::before_subcommand("json").action(clap::ArgAction::SetTrue)
)]
pub struct HooksArgs {
    #[command(subcommand)]
    command: HooksCommand,
}

#[derive(Debug, clap::Subcommand)]
enum HooksCommand {
    /// List the hooks of this directory in the order they run, those not trusted yet, and skipped ones with reasons
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Trust hooks of this repository in their current version
    Trust {
        /// Hooks to trust [default: all that are not trusted yet]
        #[arg(value_name = "NAME|PATH")]
        names: Vec<String>,
        /// Refuse the hooks instead
        #[arg(long)]
        never: bool,
        /// Do not ask for confirmation
        #[arg(long)]
        yes: bool,
    },
    /// Run one hook and show how its output is interpreted, without applying it
    Test {
        /// Name of a hook
        name: String,
        /// Name of an event, for example turn_end
        event: String,
        /// Payload to send, or - for stdin [default: a sample]
        #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
        payload: Option<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show what hooks did and requested in a session, and the result
    Log {
        /// ID of a session, or a unique prefix
        #[arg(value_name = "SESSION", conflicts_with = "newest")]
        session: Option<String>,
        /// The newest session of this directory (the default)
        #[arg(long)]
        newest: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

pub fn main(args: HooksArgs) -> Result<i32, CliError> {
    let paths = serve::paths();
    super::log::to_file(&paths);
    match args.command {
        HooksCommand::List { json } => list(&Project::load(paths)?, json),
        HooksCommand::Trust { names, never, yes } => {
            let decision = if never { TrustDecision::Never } else { TrustDecision::Always };
            trust(&Project::load(paths)?, &names, decision, yes)
        }
        HooksCommand::Test { name, event, payload, json } => {
            try_out::test(&Project::load(paths)?, &name, &event, payload.as_deref(), json)
        }
        HooksCommand::Log { session, newest: _, json } => log::log(&paths, session.as_deref(), json),
    }
}

/// The working directory with its settings and trusted hooks.
pub(super) struct Project {
    pub paths: Paths,
    pub cwd: PathBuf,
    pub settings: Settings,
    pub settings_problems: Vec<Problem>,
    pub trust: TrustStore,
    pub trust_problem: Option<Problem>,
    pub environment: Arc<Vec<(OsString, OsString)>>,
    pub reaper: Arc<Reaper>,
}

impl Project {
    /// The context for starting the user's MCP servers. Those of a repository are not started, because that would
    /// need the user's consent.
    pub fn mcp_context(&self) -> McpContext {
        let rules = sandbox_rules(&self.settings, &self.paths);
        let workspace = self.workspace();
        McpContext {
            cwd: self.cwd.clone(),
            roots: vec![self.cwd.clone()],
            environment: sandbox::outside(&workspace),
            exposure: Arc::new(workspace.exposure().clone()),
            reaper: self.reaper.clone(),
            client: SharedClient::default(),
            http: Http::new().within(Network::read(&self.environment)),
            logins: self.paths.data.join(MCP_LOGINS),
            listings: ListingCache::new(self.paths.data.join(MCP_LISTINGS)),
            unchanged: Arc::new(|_| Err("it is the repository's".into())),
            sandbox: Arc::new(move |directory, sandbox| {
                of_server(&rules, &workspace, directory.to_path_buf(), sandbox.network)
            }),
            starts_at_use: false,
            ends_with_sessions: false,
        }
    }

    pub fn load(paths: Paths) -> Result<Project, CliError> {
        let cwd = serve::working_directory()?;
        let (settings, settings_problems) = Settings::load(&paths, Some(&cwd), |name| std::env::var_os(name));
        let (trust, trust_problem) = TrustStore::load(&paths, settings.hooks.trust);
        let environment = serve::environment();
        let reaper = Arc::new(Reaper::for_this_executable());
        Ok(Project { paths, cwd, settings, settings_problems, trust, trust_problem, environment, reaper })
    }

    pub fn workspace(&self) -> Workspace {
        let workspace = Workspace::new(self.cwd.clone(), Vec::new(), self.environment.clone());
        workspace.exposing(Arc::new(endpoint::exposure(&self.settings)))
    }

    /// Finds the hooks for this directory. Problems of the settings and the trust file are not included.
    pub fn discover(&self) -> FoundHooks {
        discover(&HookSearch {
            paths: &self.paths,
            workspace: &self.workspace(),
            settings: &self.settings.hooks,
            reaper: &self.reaper,
            sandbox: &Arc::new(sandbox_rules(&self.settings, &self.paths)),
            trust: &self.trust,
        })
    }

    fn find(&self) -> FoundHooks {
        let mut found = self.discover();
        let problems = self.settings_problems.iter().chain(&self.trust_problem);
        found.problems.splice(0..0, problems.cloned());
        found
    }
}

fn list(project: &Project, json: bool) -> Result<i32, CliError> {
    let found = project.find();
    if json {
        return terminal::print_json(&shown::found(&found)).map(|()| 0);
    }
    let text = match project.settings.hooks.enabled {
        true => text_of(&found),
        false => "Hooks are switched off (hooks.enabled in the settings).\n".to_owned(),
    };
    terminal::print_visible(&text).map(|()| 0)
}

fn text_of(found: &FoundHooks) -> String {
    let mut out = String::new();
    if found.hooks.is_empty() && found.untrusted.is_empty() {
        out.push_str("There are no hooks here.\n");
    }
    for hook in &found.hooks {
        let events: Vec<&str> = hook.events.iter().map(|(event, _)| event.name()).collect();
        let _ = writeln!(out, "{}  {}", hook.name, events.join(", "));
        let path = hook.files.first().map_or_else(String::new, |path| path.display().to_string());
        let (place, kind, digest) = (word(hook.origin), kind(hook), short(&hook.digest));
        let _ = writeln!(out, "    {place} · {kind} · {digest} · {path}");
        if !hook.manifest.description.is_empty() {
            let _ = writeln!(out, "    {}", hook.manifest.description);
        }
    }
    if !found.untrusted.is_empty() {
        out.push_str("\nNot trusted yet (`epitome hooks trust`):\n");
        found.untrusted.iter().for_each(|item| out.push_str(&waiting(item)));
    }
    if !found.skipped.is_empty() {
        out.push_str("\nSkipped:\n");
        for skipped in &found.skipped {
            let _ = writeln!(out, "  {}: {}", skipped.path.display(), skipped.reason);
        }
    }
    if !found.problems.is_empty() {
        out.push_str("\nProblems:\n");
        found.problems.iter().for_each(|problem| out.push_str(&format!("  {problem}\n")));
    }
    out
}

fn waiting(item: &UntrustedHook) -> String {
    let mut out = format!("  {}  {}\n", exact(&item.name), short(&item.digest));
    let _ = writeln!(out, "    {}:", exact(&item.what));
    // Further lines are indented, so that they can't look like ours.
    let _ = writeln!(out, "      {}", exact(&item.runs).replace('\n', "\n      "));
    for file in item.files.iter().map(|file| file.display().to_string()).filter(|file| *file != item.runs) {
        let _ = writeln!(out, "    {}", exact(&file));
    }
    out
}

fn short(digest: &str) -> &str {
    digest.get(..DIGEST_SHOWN).unwrap_or(digest)
}

fn trust(project: &Project, names: &[String], decision: TrustDecision, yes: bool) -> Result<i32, CliError> {
    match project.settings.hooks.trust {
        Policy::Ask => {}
        Policy::Run => note!("note: hooks.trust is run, so hooks of a repository run without asking"),
        Policy::Never => note!("note: hooks.trust is never, so no hook of a repository runs"),
    }
    let found = project.find();
    let chosen = chosen(&project.cwd, &found.untrusted, names)?;
    if chosen.is_empty() {
        terminal::print("No hook is waiting for a decision.\n")?;
        return Ok(0);
    }
    chosen.iter().for_each(|item| terminal::to_stderr(&waiting(item)));
    let question = match decision {
        TrustDecision::Never => "Never run these?",
        TrustDecision::Always | TrustDecision::Once => "Allow these until they change?",
    };
    if !yes && !terminal::agreed(question)? {
        return Err(CliError::failed("nothing was decided"));
    }
    let items: Vec<TrustSubject> = chosen
        .iter()
        .map(|item| TrustSubject { path: item.path.clone(), digest: item.digest.clone() })
        .collect();
    let mut trust = project.trust.clone();
    trust.remember(&items, decision)?;
    let what = match decision {
        TrustDecision::Never => "refused",
        TrustDecision::Always | TrustDecision::Once => "allowed",
    };
    terminal::print(
        &chosen.iter().map(|item| format!("{what} {}\n", exact(&item.name))).collect::<String>(),
    )?;
    Ok(0)
}

/// Returns the waiting hooks with these names or paths; all of them if no names are given.
fn chosen<'a>(
    cwd: &Path,
    waiting: &'a [UntrustedHook],
    names: &[String],
) -> Result<Vec<&'a UntrustedHook>, CliError> {
    let mut chosen: Vec<&UntrustedHook> = Vec::new();
    if names.is_empty() {
        return Ok(waiting.iter().collect());
    }
    for name in names {
        let path = cwd.join(name).canonicalize().ok();
        let means = |item: &&UntrustedHook| {
            item.name == *name || path.is_some() && item.path.canonicalize().ok() == path
        };
        let meant: Vec<&UntrustedHook> = waiting.iter().filter(means).collect();
        if meant.is_empty() {
            return Err(CliError::failed(format!("no hook {name} is waiting to be trusted"))
                .hint("`epitome hooks list` shows those that are"));
        }
        chosen.extend(meant);
    }
    Ok(chosen)
}
