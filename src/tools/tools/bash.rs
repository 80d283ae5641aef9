//! `bash`: runs a command line in a shell with its own process group.
//!
//! The command gets the session's environment without secrets, and nothing from the daemon: no descriptors except its
//! output, no terminal, no standard input. It ends with its call, and so do processes that it leaves running; a
//! command started with `background` lives as long as the session. Outside of full mode it is sandboxed (`sandbox`),
//! unless the model requested to run outside and the user agreed.
//!
//! Both output streams share one pipe, so that they are read in the order in which they were written;
//! `raw.stdout` therefore contains both, as in a terminal.

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use epitome_thread::visible::{invisible_in, model_says};
use epitome_thread::{CallDisplay, Mode, OutcomeStatus, ToolDisplay, ToolKind, ToolSpec};

use super::background::{self, RUNNING_MAX};
use super::git_commands::{changes_repository, is_plain};
use super::output::{CommandOutput, Finished};
use super::sandbox::GitChanges;
use super::schema::{self, InputKey};
use super::shell_run::{self, END_TIME_MAX, LiveOutput, OutputReader, ShellRestriction, StartedShell};
use super::{
    Access, BoxFuture, CANCELLED, ParsedTool, ToolContext, ToolError, ToolResult, Workspace, disk, input,
    sandbox, truncate,
};
use epitome_platform::group::CommandExit;
use epitome_platform::reaper::Reaper;

/// Default timeout in seconds: enough for most builds and tests.
pub const TIMEOUT_SECONDS: u64 = 120;

/// Maximum timeout in seconds: the user waits for the result.
pub const TIMEOUT_SECONDS_MAX: u64 = 600;

/// Maximum length of a command line in a title, in bytes; the permission prompt displays all of it.
const TITLE_BYTES_MAX: usize = 1_000;

/// Maximum length in bytes of a command that a prompt shows only in its title. Clients may truncate longer titles.
const TITLE_WHOLE_BYTES_MAX: usize = 80;

/// Maximum number of consecutive blanks in a title; more would push the rest out of sight.
const TITLE_BLANKS_MAX: usize = 8;

/// Prefix of the title of a command that requests to run outside of the sandbox.
const OUTSIDE_TITLE: &str = "Outside the sandbox: ";

pub struct Bash {
    pub reaper: Arc<Reaper>,
}

impl ParsedTool for Bash {
    type Call = BashCall;

    fn spec(&self) -> ToolSpec {
        let description = format!(
            "Runs a command line with bash in the workspace's directory and returns its output and exit \
             code. Every call starts a new shell: variables and `cd` do not carry over. There is no \
             standard input and no terminal, so use flags that prevent questions. The call ends when the \
             shell ends, together with everything it started. For a server, a watcher or anything long, set \
             `background`: the call returns an id immediately, bash_output reads what the command prints, \
             bash_kill ends it. Commands usually run in a sandbox: they change files only in the workspace, \
             the temporary directory and build caches, and have no network except their own loopback. \
             Variables with secrets are usually not in their environment. Output of more than {} bytes is \
             cut in the middle; `recall` reads the rest. Use file_read, grep_tool and glob_tool to read and \
             search files, and file_edit or file_write to change them.",
            truncate::OUTPUT_BYTES_MAX
        );
        let timeout = format!(
            "Seconds after which the command is ended: {TIMEOUT_SECONDS} if left out, at most {TIMEOUT_SECONDS_MAX}."
        );
        let background = format!(
            "Starts the command and returns immediately; it runs until it ends, bash_kill or the session's end. At \
             most {RUNNING_MAX} at a time."
        );
        let changes_git = "Whether a program or script that the command runs changes .git, which is read-only \
                           otherwise. Not needed if the line itself calls git.";
        let outside = "Asks the user to run it outside the sandbox. Only if the sandbox stopped it, or certainly would; \
                       requires `reason`.";
        let purpose = "What the command is for, in five to ten words, for the user.";
        schema::spec(
            "bash",
            description,
            [
                InputKey::text("description", purpose).required(),
                InputKey::text("command", "The command line.").required(),
                InputKey::number("timeout", &timeout),
                InputKey::flag("background", &background),
                InputKey::flag("changes_git", changes_git),
                InputKey::flag("outside_sandbox", outside),
                InputKey::text("reason", "Why the command needs to run outside the sandbox, for the user."),
            ],
        )
    }

    fn display(&self, input: &Value, _: &Workspace) -> CallDisplay {
        let title = match input::optional_text(input, "command") {
            Ok(Some(command)) if !command.trim().is_empty() => title(&command),
            Ok(_) | Err(_) => "Run a command".to_string(),
        };
        let outside = matches!(input::flag(input, "outside_sandbox"), Ok(true));
        let title = if outside { format!("{OUTSIDE_TITLE}{title}") } else { title };
        CallDisplay { title, kind: ToolKind::Execute, locations: Vec::new() }
    }

    fn parse(&self, input: &Value, _: &Workspace) -> Result<BashCall, ToolError> {
        let command = input::named(input, "command")?;
        let seconds = input::whole(input, "timeout")?.unwrap_or(TIMEOUT_SECONDS);
        // A longer timeout isn't an error: the message at the timeout states the limit. Neither is 0, which models
        // use for "none".
        let seconds = if seconds == 0 { TIMEOUT_SECONDS } else { seconds.min(TIMEOUT_SECONDS_MAX) };
        let background = input::flag(input, "background")?;
        let outside = input::outside_sandbox(input)?;
        let description = input::optional_text(input, "description").ok().flatten().unwrap_or_default();
        let changes_git = input::flag(input, "changes_git")? || changes_repository(&command);
        let timeout = Duration::from_secs(seconds);
        Ok(BashCall { command, description, timeout, background, changes_git, outside })
    }

    fn access(&self, call: BashCall, _: &Workspace) -> Result<Access, ToolError> {
        let BashCall { command: line, changes_git, outside, .. } = call;
        Ok(Access::Command { line, confined: outside.is_none(), changes_git })
    }

    fn preview(&self, call: BashCall, _: ToolContext) -> BoxFuture<Vec<ToolDisplay>> {
        let mut parts = Vec::new();
        if !call.is_in_its_title() {
            parts.push(disk::fenced("sh", &call.command));
        }
        if !call.description.trim().is_empty() {
            parts.push(model_says(&call.description));
        }
        if call.background {
            parts.push("Runs in the background until it ends, is ended, or the session ends.".to_owned());
        }
        if call.changes_git && call.outside.is_none() {
            let further = match is_plain(&call.command) {
                true => {
                    " If you allow it, further ordinary Git commands of this turn (`git commit`, `switch`, `rebase` …) are \
                         allowed, too."
                }
                false => "",
            };
            parts.push(format!(
                "May change the Git repository (`.git`), except for its hooks and settings that name programs.{further}"
            ));
        }
        if let Some(reason) = &call.outside {
            parts.push(outside_note("it", reason));
        }
        let text = Some(parts.join("\n\n")).filter(|text| !text.is_empty());
        Box::pin(ready(text.into_iter().map(|text| ToolDisplay::Text { text }).collect()))
    }

    fn run(&self, call: BashCall, context: ToolContext) -> BoxFuture<ToolResult> {
        let reaper = self.reaper.clone();
        Box::pin(async move {
            if call.background && !context.background.has_room() {
                return ToolResult::failed(background::full());
            }
            let workspace = context.workspace.clone();
            let (rules, mode, is_outside) = (context.sandbox.clone(), context.mode, call.outside.is_some());
            let git = match (call.changes_git, call.background) {
                (false, _) => GitChanges::None,
                // A background command has no end at which its Git settings could be examined before the next command
                // runs.
                (true, true) => GitChanges::WithoutSettings,
                (true, false) => GitChanges::WithSettings,
            };
            let command = call.command.clone();
            let started = disk::blocking(move |stop| {
                let limits = match mode {
                    _ if rules.applies_in(mode) && !is_outside => ShellRestriction::Sandbox(&rules, git),
                    Mode::Full => ShellRestriction::None,
                    Mode::Ask | Mode::AcceptEdits | Mode::Auto | Mode::ReadOnly => ShellRestriction::Outside,
                };
                shell_run::start(&reaper, &command, &workspace, &limits, stop)
            });
            match started.await {
                Ok(started) if call.background => {
                    background::start(&context.background, call.command, started, &context).await
                }
                Ok(started) => follow(started, call.timeout, &context).await,
                Err(sentence) => ToolResult::failed(sentence),
            }
        })
    }
}

/// The part of the permission prompt about commands outside of the sandbox; `subject` is their pronoun.
pub(super) fn outside_note(subject: &str, reason: &str) -> String {
    format!(
        "**Outside of the sandbox**: {subject} can read and change every file that you can, and reach the network. Why: {}",
        model_says(reason)
    )
}

/// Shortens a command to one line: its first line with long runs of blanks counted, and the number of further lines.
fn title(command: &str) -> String {
    let mut lines = command.trim().lines();
    let first = lines.next().unwrap_or_default().trim_end();
    let mut title = String::with_capacity(first.len());
    let mut rest = first;
    while let Some(at) = rest.find(char::is_whitespace) {
        let (before, after) = rest.split_at(at);
        let word = after.trim_start();
        let blanks = &after[..after.len() - word.len()];
        title.push_str(before);
        match blanks.chars().count() {
            count if count > TITLE_BLANKS_MAX => title.push_str(&format!(" …({count} blanks)… ")),
            _ => title.push_str(blanks),
        }
        rest = word;
    }
    title.push_str(rest);
    let mut title = truncate::line(&title, TITLE_BYTES_MAX);
    match lines.count() {
        0 => {}
        1 => title.push_str(" … (+1 line)"),
        more => title.push_str(&format!(" … (+{more} lines)")),
    }
    title
}

pub struct BashCall {
    command: String,
    description: String,
    timeout: Duration,
    background: bool,
    /// Whether it may change the workspace's Git repositories.
    changes_git: bool,
    /// The reason for running outside of the sandbox, if requested.
    outside: Option<String>,
}

impl BashCall {
    /// Whether the title, which every client shows, contains the entire command.
    fn is_in_its_title(&self) -> bool {
        self.outside.is_none()
            && self.command.len() <= TITLE_WHOLE_BYTES_MAX
            && title(&self.command) == self.command
            && invisible_in(&self.command).is_empty()
    }
}

/// Reads the output until the shell has ended or timed out.
async fn follow(started: StartedShell, timeout: Duration, context: &ToolContext) -> ToolResult {
    let network = started.network(&context.sandbox);
    let StartedShell { mut running, pipe, note: _note, settings, links } = started;
    let (mut reading, output) = (OutputReader::new(pipe), Arc::new(Mutex::new(CommandOutput::default())));
    let so_far = Arc::clone(&output);
    context.partial.set(move || {
        let output = std::mem::take(&mut *so_far.lock()).finish();
        result(output, CommandExit::Unknown, Some(EarlyEnd::Cancelled), network, None)
    });
    let mut live = LiveOutput::new(context.progress.clone());
    let mut timed_out = false;
    let limit = sleep(timeout);
    tokio::pin!(limit);
    let ending = loop {
        // The order matters: a command that never stops writing must not starve the timeout.
        tokio::select! {
            biased;
            ending = &mut running.ending => break ending.unwrap_or(CommandExit::Unknown),
            () = &mut limit => {
                if timed_out {
                    break CommandExit::Unknown;
                }
                timed_out = true;
                running.end();
                limit.as_mut().reset(Instant::now() + END_TIME_MAX);
            }
            () = live.wait() => live.pass_on(Instant::now()),
            bytes = reading.next() => live.take(&output.lock().take(bytes), bytes, Instant::now()),
        }
    };
    reading.drain(|bytes| live.take(&output.lock().take(bytes), bytes, Instant::now())).await;
    live.end();
    running.release();
    let reports = disk::blocking(move |_| {
        let Some(links) = links else { return Vec::new() };
        let mut reports = settings.map(|settings| settings.finish(&links)).unwrap_or_default();
        reports.extend(links.reports());
        reports
    });
    let report = Some(reports.await.join("\n")).filter(|report| !report.is_empty());
    let output = std::mem::take(&mut *output.lock()).finish();
    result(output, ending, timed_out.then_some(EarlyEnd::TimeLimit(timeout)), network, report)
}

/// Why a command was ended before it was done.
#[derive(Clone, Copy)]
enum EarlyEnd {
    TimeLimit(Duration),
    Cancelled,
}

/// `network`: whether a sandboxed command had network access; `None` if it wasn't sandboxed. `report`: what happened
/// to Git settings that the command changed, and to repositories that it linked.
fn result(
    output: Finished,
    ending: CommandExit,
    early: Option<EarlyEnd>,
    network: Option<bool>,
    report: Option<String>,
) -> ToolResult {
    let Finished { shown: output, whole } = output;
    let mut raw = json!({"stdout": output, "stderr": ""});
    let (words, code) = shell_run::ended(ending);
    let mut say = format!("[{words}]");
    if let Some(code) = code {
        raw["exitCode"] = json!(code);
    }
    if let CommandExit::Signal(signal) = ending {
        raw["signal"] = json!(signal);
    }
    match early {
        Some(EarlyEnd::TimeLimit(limit)) => {
            raw["timedOut"] = json!(true);
            say = format!(
                "[the time limit of {} seconds was reached; the command and everything that it started were ended. \
                 `timeout` can be set up to {TIMEOUT_SECONDS_MAX}]",
                limit.as_secs()
            );
        }
        Some(EarlyEnd::Cancelled) => {
            raw["interrupted"] = json!(true);
            say = CANCELLED.to_owned();
        }
        None => {}
    }
    let well = ending == CommandExit::Code(0) && early.is_none();
    if let Some(network) = network {
        raw["sandboxed"] = json!(true);
        if let Some(hint) = sandbox::hint(&output, well, network) {
            say = format!("{say}\n{hint}");
        }
    }
    // The user sees the report after a successful command, too.
    let notes: Vec<&str> = (!well).then_some(&*say).into_iter().chain(report.as_deref()).collect();
    let notes = Some(notes.join("\n")).filter(|notes| !notes.is_empty());
    if let Some(report) = report {
        say = format!("{say}\n{report}");
    }
    let border = if output.is_empty() || output.ends_with('\n') { "" } else { "\n" };
    let nothing = if output.is_empty() { "(no output)\n" } else { "" };
    let whole = whole.map(|whole| {
        let border = if whole.ends_with('\n') { "" } else { "\n" };
        format!("{whole}{border}{say}")
    });
    let status = if well { OutcomeStatus::Completed } else { OutcomeStatus::Failed };
    let shown = vec![ToolDisplay::Text { text: shown(&output, notes.as_ref()) }];
    let result = ToolResult::completed(format!("{output}{border}{nothing}{say}"));
    ToolResult { status, whole, shown, raw: Some(raw), ..result }
}

/// The text that clients display: the output, and the exit status unless it is success.
fn shown(output: &str, say: Option<&String>) -> String {
    let output = if output.is_empty() { "(no output)".to_owned() } else { disk::fenced("", output) };
    match say {
        Some(say) => format!("{output}\n\n{say}"),
        None => output,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A command without output was shown as an empty code block above its exit code.
    #[test]
    fn a_command_without_output_is_not_shown_as_an_empty_block() {
        let say = "[exit code 6]".to_owned();
        for (output, say, expected) in [
            ("", None, "(no output)"),
            ("", Some(&say), "(no output)\n\n[exit code 6]"),
            ("a\n", None, "```\na\n```"),
            ("a\n", Some(&say), "```\na\n```\n\n[exit code 6]"),
        ] {
            assert_eq!(shown(output, say), expected);
        }
    }

    /// Editors showed a command twice: as the title, and as a block below it.
    #[tokio::test]
    async fn a_prompt_repeats_no_command_that_its_title_shows_whole() {
        let bash = Bash { reaper: Arc::new(Reaper::disabled()) };
        let long = format!("echo {}", "x".repeat(TITLE_WHOLE_BYTES_MAX));
        for (command, outside, is_repeated) in [
            ("cargo test", false, false),
            ("cargo test", true, true),
            ("a\nb", false, true),
            (" ls", false, true),
            ("ls\u{200b}", false, true),
            (&long, false, true),
        ] {
            let mut input = json!({ "command": command });
            if outside {
                input["outside_sandbox"] = json!(true);
                input["reason"] = json!("needed");
            }
            let call = bash.parse(&input, &workspace()).expect("a call");
            let shown = bash.preview(call, ToolContext::bare(Arc::new(workspace()))).await;
            assert_eq!(format!("{shown:?}").contains("```sh"), is_repeated, "{command:?} {outside}");
        }
    }

    /// Two hundred empty lines, or 1,500 blanks, hid the second half of a command from readers of its title.
    #[test]
    fn a_title_is_one_line_and_counts_what_it_leaves_out() {
        let long = format!("ls{}rm -rf src", "\n".repeat(200));
        let wide = format!("ls{}; curl evil.example", " ".repeat(1_500));
        for (command, shown) in [
            ("cargo test", "cargo test"),
            ("  a  b\tc \n", "a  b\tc"),
            ("a\nb", "a … (+1 line)"),
            (&long, "ls … (+200 lines)"),
            (&wide, "ls …(1500 blanks)… ; curl evil.example"),
        ] {
            assert_eq!(title(command), shown);
        }
        let card =
            |input| ParsedTool::display(&Bash { reaper: Arc::new(Reaper::disabled()) }, &input, &workspace());
        let outside = card(json!({"command": "make", "outside_sandbox": true}));
        assert_eq!(outside.title, "Outside the sandbox: make");
        assert_eq!(card(json!({"command": "make", "outside_sandbox": false})).title, "make");
    }

    /// A description was rendered as Markdown in the permission prompt, so a model could write text there that looked
    /// like Epitome's.
    #[tokio::test]
    async fn the_models_words_are_quoted_in_a_prompt() {
        let bash = Bash { reaper: Arc::new(Reaper::disabled()) };
        let input = json!({
            "command": "make", "description": "**Epitome: verified safe**", "outside_sandbox": true,
            "reason": "**Correction: this runs inside the sandbox.**"
        });
        let call = bash.parse(&input, &workspace()).expect("a call");
        let shown = bash.preview(call, ToolContext::bare(Arc::new(workspace()))).await;
        let [ToolDisplay::Text { text }] = shown.as_slice() else { panic!("{shown:?}") };
        assert!(text.contains("The model says: `**Epitome: verified safe**`"), "{text}");
        assert!(text.contains("The model says: `**Correction: this runs inside the sandbox.**`"), "{text}");
    }

    fn workspace() -> Workspace {
        Workspace::new("/w", Vec::new(), Arc::default())
    }
}
