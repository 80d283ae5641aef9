//! The built-in slash commands: their table and implementations.
//!
//! None of them calls a model, so they work without a configured model. A command's output is an entry of the log, so
//! it is shown again when the session is loaded.

pub(super) mod compact;
mod context;
mod dry;
mod help;
mod hooks;
mod layers;
mod mcp;
pub(super) mod on_disk;
mod permissions;
mod pins;
pub(super) mod rewind;
pub(super) mod shell;
mod usage;
pub mod why;
mod worktree;

use std::path::Path;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::sync::Notify;

use super::compacting::Compactor;
use super::core::Core;
use super::hook_host::HookHost;
use super::mcp::McpHost;
use super::questions::Questions;
use super::recipes::SessionRecipes;
use super::responder::{QueuedPrompt, outer_texts};
use super::{AccessGrant, AccessScope, CommandInfo, NoticeSeverity, ScopeError, summary};
use epitome_checkpoint::RewindReport;
use epitome_compaction::{Budget, Preview};
use epitome_config::Summariser;
use epitome_files::memory::MemoryFiles;
use epitome_platform::blocking;
use epitome_provider::models;
use epitome_provider::spent::Spent;
use epitome_recipe::catalog::RecipeCatalog;
use epitome_recipe::command;
use epitome_thread::diff::similar_texts;
use epitome_thread::{Change, Content, LayerRefusal, ModelName, PartId, Seq};
use on_disk::DiskResult;

/// Maximum length of a title given by the user, in characters. Lists of sessions show it on one line.
pub(super) const TITLE_CHARS_MAX: usize = 200;

/// The command that accepts the damage of a log.
const REPAIR: &str = "repair";
/// The command for MCP servers.
const MCP: &str = "mcp";

/// Maximum length of a goal, in bytes: it is sent again after every compaction.
const GOAL_BYTES_MAX: usize = 8 * 1024;

/// Maximum length of a name that is treated as a mistyped command, in bytes.
const COMMAND_BYTES_MAX: usize = 60;

/// How to use `/rewind`.
const REWIND_USAGE: &str = "Use /rewind with any of: an entry of the turn, such as e12 (default: the last turn); files or \
                            conversation (default: both); dry, to see what it would do; force, to also revert later \
                            changes by others; undo, to undo the last rewind. /checkpoints lists the turns.";

/// Minimum similarity, from 0 to 1, of a suggested command's name.
const NEARNESS: f32 = 0.6;

/// A built-in command. It takes precedence over a recipe with the same name.
pub(super) struct BuiltInCommand {
    name: &'static str,
    description: &'static str,
    hint: Option<&'static str>,
    /// Receives the text typed after the name.
    run: CommandFunction,
}

type CommandFunction = fn(&mut Core, &CommandContext<'_>, &str) -> CommandOutcome;

/// The components that commands report on.
pub(super) struct CommandContext<'a> {
    pub recipes: &'a SessionRecipes,
    pub hooks: &'a HookHost,
    pub mcp: &'a McpHost,
    pub compactor: &'a Compactor,
    pub questions: &'a Questions,
}

const fn built_in(
    name: &'static str,
    description: &'static str,
    hint: Option<&'static str>,
    run: CommandFunction,
) -> BuiltInCommand {
    BuiltInCommand { name, description, hint, run }
}

/// In the order of `/help`. The names are those in `command::RESERVED`.
const BUILT_IN: &[BuiltInCommand] = &[
    built_in("help", "List the commands, and where recipes come from", None, |core, context, _| {
        let built_in: Vec<CommandInfo> = listed().collect();
        CommandOutcome::text(help::text(&built_in, context.recipes.catalog(), &core.services.paths.home))
    }),
    built_in("context", "Show how full the context window is, and what fills it", None, show_context),
    built_in(
        "usage",
        "Show usage: tokens and cost by model, agents, tool calls and time",
        None,
        |core, _, _| CommandOutcome::text(usage::text(&core.settings, &core.thread)),
    ),
    built_in(
        "goal",
        "Show, set or clear the goal of the work; it survives every compaction",
        Some("[goal | clear]"),
        goal,
    ),
    built_in(
        "hooks",
        "Show the hooks of this session, in the order in which they run",
        None,
        |core, context, _| {
            CommandOutcome::text(hooks::text(
                context.hooks.found(),
                core.settings.hooks.enabled,
                &core.thread,
            ))
        },
    ),
    built_in(
        MCP,
        "Show the MCP servers of this session, one of them in detail, or change its connection",
        Some("[NAME | reconnect NAME | login NAME | logout NAME | off NAME | on NAME]"),
        show_mcp,
    ),
    built_in(
        "permissions",
        "Show what may run without asking; revoke it, or keep it for this workspace",
        Some("[forget N | forget all | keep N]"),
        permissions::permissions,
    ),
    built_in(
        REPAIR,
        "Continue a session whose log is damaged, without the entries that are lost",
        None,
        repair,
    ),
    built_in("rename", "Change the title of this session", Some("the title"), rename),
    built_in(
        "undo",
        "Undo the last compaction, pin or hook edit, or an older one",
        Some("[entry, e.g. e12]"),
        layers::undo,
    ),
    built_in("redo", "Redo what was undone last, or another entry", Some("[entry, e.g. e12]"), layers::redo),
    built_in(
        "rewind",
        "Undo a turn: the files that it changed, the conversation, or both",
        Some("[entry, e.g. e12] [files | conversation] [dry] [force] | undo"),
        rewind::rewind,
    ),
    built_in(
        "shell",
        "Run a command here, in the sandbox; its output is shown to you and to the model",
        Some("command"),
        shell::shell,
    ),
    built_in(
        "checkpoints",
        "List the turns with the files that each of them changed",
        None,
        rewind::checkpoints,
    ),
    built_in(
        "history",
        "List the changes of the history, who asked for them, and what can be undone",
        None,
        layers::show_history,
    ),
    built_in(
        "pin",
        "Pin an entry or a text, so that every compaction keeps it unchanged; or list the pins",
        Some("[entry, e.g. e12 | text]"),
        pins::pin,
    ),
    built_in("unpin", "Unpin an entry, or all", Some("entry, e.g. e12 | all"), pins::unpin),
    built_in(
        "why",
        "Explain what compactions and hooks did here, who asked for it, and why",
        Some("[entry, e.g. e12 | hook]"),
        |core, _, typed| CommandOutcome::text(why::text(&core.thread, typed)),
    ),
    built_in(
        "worktree",
        "Make a Git worktree for another session; or merge the one of this session, or throw it away",
        Some("[NAME | merge | discard | list]"),
        worktree::worktree,
    ),
];

/// Commands for clients that may prompt but not approve: those that change neither files nor what may run.
const FOR_PROMPTERS: [&str; 13] = [
    "help",
    "context",
    "usage",
    "goal",
    "hooks",
    "rename",
    "undo",
    "redo",
    "checkpoints",
    "history",
    "pin",
    "unpin",
    "why",
];

impl BuiltInCommand {
    /// Checks the rights of the client that typed it.
    pub fn check(&self, grant: &AccessGrant) -> Result<(), ScopeError> {
        match FOR_PROMPTERS.contains(&self.name) {
            true => Ok(()),
            false => grant.check(&format!("/{}", self.name), AccessScope::Approve),
        }
    }
}

/// A larger view would not fit the window: the next prompt would only cause another compaction. The text is a part of a
/// sentence, from the size on.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "about {after} tokens, and {model} takes {window}, of which {reserve} are for its reply. Choose a model with a larger \
     window"
)]
pub(super) struct WindowOverflow {
    after: u64,
    model: ModelName,
    window: u64,
    reserve: u64,
}

/// Why a command does nothing.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum CommandRefusal {
    #[error("the model sees nothing at {0} or after it.")]
    NothingFrom(Seq),
    #[error("the model sees nothing before {0}.")]
    NothingBefore(Seq),
    #[error(
        "`above` needs the first entry that stays, as in /compact above e40; {0:?} is not an entry. `epitome sessions show` has the numbers. If \"above\" is the first word of your focus, begin with another one."
    )]
    AboveNothing(String),
    #[error("{0:?} is not an option of /rewind. {REWIND_USAGE}")]
    RewindOption(String),
    #[error("undo always undoes the last rewind and takes no entry. {REWIND_USAGE}")]
    UndoWithEntry,
    #[error("{0} is not part of a turn that began with a prompt. /checkpoints lists them")]
    NoTurnAt(Seq),
    #[error("there is no turn {0} to rewind")]
    NoTurn(&'static str),
    #[error("there is no rewind to undo")]
    NoRewind,
    #[error("the conversation would take {0}, or type /rewind files")]
    RewindOverflow(#[source] WindowOverflow),
    #[error(
        "{with} {layer} the conversation takes {overflow} and type /{command} again, or ask the model to look up what you \
         need with its tool recall, or compact less than all with /compact above and an entry"
    )]
    LayerOverflow {
        with: &'static str,
        layer: String,
        #[source]
        overflow: WindowOverflow,
        command: &'static str,
    },
    #[error(transparent)]
    Layer(#[from] LayerRefusal),
    #[error("{0} has no text; /why with an entry explains it")]
    NoText(PartId),
    #[error("{0} has no text to pin")]
    Blank(PartId),
    #[error("{part} was undone; /redo {} redoes it", part.entry)]
    Undone { part: PartId },
    #[error("a hook changed {0}, and a pin would restore the old text")]
    Rewritten(PartId),
}

/// The result of a command.
#[derive(Default)]
pub(super) struct CommandOutcome {
    pub changes: Vec<Change>,
    /// The text for the user, which follows the changes.
    pub text: Option<String>,
    /// The `_meta` of the answer.
    pub meta: Option<serde_json::Value>,
    /// Disk work on which the result depends; all other fields are then empty.
    pub later: Option<LaterWork>,
    /// Stops this work when the user cancels.
    pub stop: Option<Arc<Notify>>,
    /// The rewind of files that the changes report.
    pub rewound_files: Option<RewindReport>,
}

type DiskWork = Box<dyn FnOnce() -> DiskResult + Send>;

/// The same, with questions to the user. `None` after a panic.
type LaterWork = BoxFuture<'static, Option<DiskResult>>;

impl CommandOutcome {
    pub fn text(text: impl Into<String>) -> CommandOutcome {
        CommandOutcome { text: Some(text.into()), ..CommandOutcome::default() }
    }

    /// A text that says why nothing is done.
    fn refused(command: &str, text: impl Into<String>) -> CommandOutcome {
        CommandOutcome::text(text).with(command, serde_json::json!({ "status": "refused" }))
    }

    fn from_changes(changes: Vec<Change>) -> CommandOutcome {
        CommandOutcome { changes, ..CommandOutcome::default() }
    }

    fn later(work: DiskWork) -> CommandOutcome {
        CommandOutcome::eventually(Box::pin(async move { blocking::start(work).await.ok() }))
    }

    fn eventually(work: LaterWork) -> CommandOutcome {
        CommandOutcome { later: Some(work), ..CommandOutcome::default() }
    }

    /// Adds machine-readable data about the command to `_meta`, under this name.
    pub fn with(self, command: &str, data: serde_json::Value) -> CommandOutcome {
        CommandOutcome { meta: Some(serde_json::json!({ "epitome": { command: data } })), ..self }
    }
}

impl Core {
    /// Returns the tokens in context before and after a change of the view.
    fn sizes_with(&self, change: Change) -> Result<(u64, u64), WindowOverflow> {
        let mut then = self.thread.clone();
        then.apply_trial(change);
        let ruler = self.ruler();
        let (before, after) = (ruler.in_context(&self.thread), ruler.in_context(&then));
        let reserve = self.reserve();
        match self.model.endpoint() {
            Some(endpoint) if after > before && after.saturating_add(reserve) > endpoint.window => {
                Err(WindowOverflow { after, model: endpoint.name.clone(), window: endpoint.window, reserve })
            }
            Some(_) | None => Ok((before, after)),
        }
    }
}

impl BuiltInCommand {
    /// Runs the command; `rest` is the text typed after its name.
    pub(super) fn run(&self, core: &mut Core, context: &CommandContext<'_>, rest: &str) -> CommandOutcome {
        (self.run)(core, context, rest)
    }
}

/// Carries out the arguments of `/mcp` that control a server; `None` for others, and for other commands.
pub(super) fn control_server(
    core: &mut Core,
    mcp: &mut McpHost,
    built_in: &BuiltInCommand,
    rest: &str,
) -> Option<String> {
    (built_in.name == MCP).then(|| mcp::control_server(core, mcp, rest)).flatten()
}

/// Returns the built-in command in a text, if any.
pub(super) fn find(typed: &str) -> Option<&'static BuiltInCommand> {
    let name = command::parse(typed)?.name;
    BUILT_IN.iter().find(|built_in| built_in.name == name)
}

/// The name in a text that looks like a command, whether there is one or not. A path such as /tmp or /usr/bin does not.
pub fn name_in(typed: &str) -> Option<&str> {
    let name = command::parse(typed)?.name;
    let is_word = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | ':');
    let is_name = name.len() <= COMMAND_BYTES_MAX && name.chars().all(is_word) && !name.ends_with(':');
    (is_name && !Path::new("/").join(name).exists()).then_some(name)
}

/// The notice about a text that looks like a command but isn't one. The text is sent to the model.
fn unknown(typed: &str, known: &[CommandInfo]) -> Option<String> {
    let name = name_in(typed)?;
    let names: Vec<&str> = known.iter().map(|command| command.name.as_str()).collect();
    let near = similar_texts(name, &names, 1, NEARNESS);
    let near = near.first().map(|near| format!(" Did you mean /{near}?")).unwrap_or_default();
    Some(format!("There is no command /{name}; it was sent as text.{near} /help lists all."))
}

/// Whether a text is the command that accepts the damage of a log, which must happen before anything is written.
pub(super) fn is_repair(typed: &str) -> bool {
    find(typed).is_some_and(|built_in| built_in.name == REPAIR)
}

pub(super) fn is_built_in(name: &str) -> bool {
    command::RESERVED.contains(&name)
}

/// The commands that clients list first.
const FIRST: [&str; 3] = ["compact", "undo", "context"];

/// A command's position in lists: lower ranks come first.
pub(super) fn rank(name: &str) -> usize {
    FIRST.iter().position(|first| *first == name).unwrap_or(FIRST.len())
}

/// The built-in commands in the form that clients list.
pub(super) fn listed() -> impl Iterator<Item = CommandInfo> {
    BUILT_IN.iter().map(|built_in| CommandInfo {
        name: built_in.name.to_owned(),
        description: built_in.description.to_owned(),
        hint: built_in.hint.map(str::to_owned),
        skill: None,
    })
}

/// The slash commands in the order for clients: the most used ones, then the other built-in ones in the order of
/// `/help`, then the recipes by name. `prompts`: those of MCP servers.
pub(super) fn command_list(catalog: &RecipeCatalog, prompts: &[CommandInfo]) -> Arc<[CommandInfo]> {
    let mut recipes = catalog.commands();
    recipes.sort_by(|a, b| a.name.cmp(&b.name));
    let mut list: Vec<CommandInfo> = listed().chain(recipes).collect();
    let is_new = |prompt: &&CommandInfo| !list.iter().any(|known| known.name == prompt.name);
    let prompts: Vec<CommandInfo> = prompts.iter().filter(is_new).cloned().collect();
    list.extend(prompts);
    list.sort_by_key(|command| rank(&command.name));
    list.into()
}

impl SessionRecipes {
    /// The slash commands for clients.
    pub(super) fn command_list(&self) -> Arc<[CommandInfo]> {
        command_list(self.catalog(), self.prompts())
    }

    /// Notifies the user if a typed text looks like a command but isn't one.
    pub(super) fn report_unknown(&self, core: &Core, content: &[Content]) {
        let list = self.command_list();
        let typed = outer_texts(content).next().filter(|_| !core.lineage.is_child());
        let Some((typed, text)) = typed.and_then(|(_, typed)| Some((typed, unknown(typed, &list)?))) else {
            return;
        };
        match command::parse(typed).and_then(|parsed| Some((parsed.name, self.catalog().fault(parsed.name)?)))
        {
            Some((name, problem)) => core.notify(
                NoticeSeverity::Warning,
                format!("The recipe /{name} can't be used, so your text was sent as it is: {problem}"),
            ),
            None => core.notify(NoticeSeverity::Info, text),
        }
    }
}

/// Reports that a command has ignored the rest of its prompt.
pub(super) fn report_unsent_attachments(core: &Core, prompt: &QueuedPrompt) {
    if prompt.content.len() > 1 {
        let text = "Only the command ran; the rest of the prompt was ignored.".to_owned();
        core.notify(NoticeSeverity::Info, text);
    }
}

/// The damage has been accepted before this command was committed.
fn repair(core: &mut Core, _: &CommandContext<'_>, _: &str) -> CommandOutcome {
    let lost =
        core.thread.entries().iter().filter(|entry| matches!(entry.change, Change::Lost { .. })).count();
    let text = match lost {
        0 => "The log of this session is complete.".to_owned(),
        1 => "1 entry of this session is lost; its place is marked, and everything else is here.".to_owned(),
        lost => {
            format!(
                "{lost} entries of this session are lost; their places are marked, and everything else is here."
            )
        }
    };
    CommandOutcome::text(text)
}

fn show_context(
    core: &mut Core,
    CommandContext { compactor, .. }: &CommandContext<'_>,
    _: &str,
) -> CommandOutcome {
    let facts = context::ContextFigures {
        used: core.tokens_in_context(),
        model: core.model.endpoint().map(|endpoint| context::ModelWindow {
            model: endpoint.name.clone(),
            size: endpoint.window,
            reserve: core.reserve(),
        }),
        next: match (compactor.is_paused(core), compactor.next_at(core)) {
            (true, _) => context::NextCompaction::Paused,
            (false, Some(tokens)) if compactor.is_prepared(core) => context::NextCompaction::Prepared(tokens),
            (false, Some(tokens)) => context::NextCompaction::At(tokens),
            (false, None) => context::NextCompaction::Never,
        },
        spent: Spent::total(&core.settings, &core.thread),
        memory: MemoryFiles::directory(&core.services.paths),
    };
    CommandOutcome::text(context::text(&core.ruler(), &core.thread, &facts))
}

fn show_mcp(
    _: &mut Core,
    CommandContext { mcp, hooks, .. }: &CommandContext<'_>,
    name: &str,
) -> CommandOutcome {
    if let Some(status) = mcp.statuses().iter().find(|status| status.spec.name == name) {
        return CommandOutcome::text(mcp::detailed_text(status));
    }
    let waiting: Vec<String> = mcp.untrusted(hooks).into_iter().map(|server| server.what).collect();
    CommandOutcome::text(mcp::text(&mcp.statuses(), &waiting))
}

/// The result of a `/compact` that can't be made.
pub(super) fn no_compaction(why: &str) -> CommandOutcome {
    let data = serde_json::json!({ "status": "refused", "reason": why });
    CommandOutcome::text(format!("Not compacted: {why}")).with("compaction", data)
}

/// Reports what a compaction would do.
pub(super) fn dry_run(
    core: &mut Core,
    preview: &Preview,
    budget: &Budget,
    command: String,
) -> CommandOutcome {
    let (text, data) =
        with_figures(core, preview, budget, command, |figures| (dry::text(figures), dry::json(figures)));
    CommandOutcome::text(text).with("compaction", data)
}

/// Offers a compaction before the provider forgets the conversation, if it pays.
pub(super) fn offer_before_break(core: &mut Core, preview: &Preview, budget: &Budget) -> Option<String> {
    with_figures(core, preview, budget, String::new(), dry::offer)
}

fn with_figures<T>(
    core: &mut Core,
    preview: &Preview,
    budget: &Budget,
    command: String,
    report: impl FnOnce(&dry::DryRunFigures<'_>) -> T,
) -> T {
    let (least, most) = preview.tokens_after;
    let (now, least) = core.context_sizes((preview.tokens_before, least));
    let (_, most) = core.context_sizes((preview.tokens_before, most));
    let endpoint = core.model.endpoint();
    let other = endpoint.and_then(|endpoint| summary::writer_name(&core.settings, endpoint, now));
    report(&dry::DryRunFigures {
        thread: &core.thread,
        preview,
        now,
        then: (least, most),
        window: core.model.window(),
        frame: budget.frame,
        model: endpoint.map(|endpoint| &endpoint.name),
        writer: match &other {
            Some(name) => dry::SummaryWriter::Other(name),
            None if core.settings.compaction.model == Summariser::None => dry::SummaryWriter::NoModel,
            None => dry::SummaryWriter::Same,
        },
        small: endpoint
            .filter(|_| core.settings.compaction.model == Summariser::Cheapest)
            .and_then(|endpoint| models::small(&core.settings, Some(endpoint))),
        summary_max: budget.summary_max,
        prices: &|model, usage| models::cost(&core.settings, model, usage),
        command,
    })
}

fn goal(core: &mut Core, _: &CommandContext<'_>, typed: &str) -> CommandOutcome {
    let goal = match typed {
        "" => {
            let text = match core.thread.goal() {
                Some(goal) => format!("The goal is: {goal}\n\n/goal clear ends it."),
                None => "No goal is set. /goal TEXT sets one.".to_owned(),
            };
            return CommandOutcome::text(text);
        }
        "clear" if core.thread.goal().is_none() => return CommandOutcome::text("No goal is set."),
        "clear" => None,
        long if long.len() > GOAL_BYTES_MAX => {
            let text = format!(
                "Not set: a goal has at most {GOAL_BYTES_MAX} bytes, and this has {}. Keep it short, and \
                 put the details into a file that it names.",
                long.len()
            );
            return CommandOutcome::text(text);
        }
        goal => Some(goal.to_owned()),
    };
    // The entry's own text is shown; the model is informed before its next reply.
    CommandOutcome::from_changes(vec![Change::GoalSet { goal }])
}

fn rename(_: &mut Core, _: &CommandContext<'_>, typed: &str) -> CommandOutcome {
    let title = typed.split_whitespace().collect::<Vec<_>>().join(" ");
    let length = title.chars().count();
    if title.is_empty() {
        return CommandOutcome::refused("rename", "Give the title: /rename TITLE.");
    }
    if length > TITLE_CHARS_MAX {
        let text =
            format!("Not renamed: a title has at most {TITLE_CHARS_MAX} characters, and this has {length}.");
        return CommandOutcome::refused("rename", text);
    }
    let text = format!("This session is now called: {title}");
    let meta = serde_json::json!({ "status": "done", "title": title });
    CommandOutcome { changes: vec![Change::Titled { title }], ..CommandOutcome::text(text) }
        .with("rename", meta)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_are_those_whose_names_are_reserved() {
        let mut names: Vec<String> = listed().map(|command| command.name).collect();
        names.sort();
        assert_eq!(names, command::RESERVED);
    }

    /// `/nope` was sent to the model as text without any notice.
    #[test]
    fn a_text_that_looks_like_a_command_is_reported_unless_it_is_a_path() {
        let list: Vec<CommandInfo> = listed().collect();
        for (typed, expected) in [
            ("/nope", Some("There is no command /nope; it was sent as text. /help lists all.")),
            (
                "/udno e12",
                Some("There is no command /udno; it was sent as text. Did you mean /undo? /help lists all."),
            ),
            ("/tmp is full", None),
            ("/tmp: what is in it?", None),
            ("/usr/bin is full", None),
            ("/no/such/place", None),
            ("/* a comment */", None),
            ("nope", None),
        ] {
            assert_eq!(unknown(typed, &list).as_deref(), expected, "{typed}");
        }
    }

    /// Clients sorted commands by name: /checkpoints came first, and a slow client ran it on Enter.
    #[test]
    fn the_most_used_commands_are_listed_first() {
        let names: Vec<String> =
            SessionRecipes::default().command_list().iter().map(|command| command.name.clone()).collect();
        assert_eq!(names[..4], ["undo", "context", "help", "usage"]);
        assert_eq!(rank("compact"), 0);
    }

    #[test]
    fn a_command_is_found_by_what_is_typed() {
        let name = |typed| find(typed).map(|built_in| built_in.name);
        assert_eq!(name("/goal ship it"), Some("goal"));
        assert_eq!(name(" /why e12"), Some("why"));
        assert_eq!(name("/goals"), None);
        assert_eq!(name("goal"), None);
    }
}
