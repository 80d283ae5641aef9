//! `bash`: runs a command line in a shell of its own process group.
//!
//! The command gets the environment of the session and nothing of ours: no descriptor but its output,
//! no terminal, no standard input. It ends with its call. What it leaves running in the background is
//! ended too; there is no way to keep it.
//!
//! Both streams of the output share one pipe, so that they are read in the order in which they were
//! written; `raw.stdout` therefore holds both, as a terminal would show them.

use std::ffi::{OsStr, OsString};
use std::future::pending;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::time::{Instant, sleep};

use crate::thread::{Card, OutcomeContent, OutcomeStatus, Shown, ToolKind, ToolSpec};

use super::disk::Stop;
use super::group::{Ending, KILL_GRACE, Running};
use super::output::{Finished, Output};
use super::reaper::Reaper;
use super::{Access, BoxFuture, Tool, ToolContext, ToolResult, Workspace, disk, input, truncate};

/// Seconds that a command may take if the model does not say: most builds and tests are done by then.
pub const TIMEOUT_SECONDS: u64 = 120;

/// Seconds that the model may ask for: a person waits for the answer.
pub const TIMEOUT_SECONDS_MAX: u64 = 600;

/// How long output is still read when the shell has ended but something keeps the pipe open.
const DRAIN: Duration = Duration::from_millis(200);

/// How long after its KILL a command is waited for. One that hangs in the kernel is given up.
const GIVE_UP: Duration = Duration::from_secs(2);

/// Bytes read at once: the size of a Linux pipe.
const READ_BYTES: usize = 64 * 1024;

/// Bytes of output that are passed on while the command runs. Who follows has seen enough by then; the
/// end comes with the result.
const PROGRESS_BYTES_MAX: usize = 256 * 1024;

/// Bytes of a command line in a title; the permission card shows all of it beside.
const TITLE_BYTES_MAX: usize = 1_000;

/// What keeps programs from asking a person who is not there; each only where the environment says
/// nothing of it.
const NOT_INTERACTIVE: [(&str, &str); 5] = [
    ("GIT_TERMINAL_PROMPT", "0"),
    ("GIT_EDITOR", "true"),
    ("GIT_PAGER", "cat"),
    ("PAGER", "cat"),
    ("TERM", "dumb"),
];

pub struct Bash {
    reaper: Arc<Reaper>,
}

impl Bash {
    pub fn new(reaper: Arc<Reaper>) -> Bash {
        Bash { reaper }
    }
}

impl Tool for Bash {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: "bash".to_string(),
            description: format!(
                "Runs a command line with bash in the workspace's directory and returns its output and exit code. \
                 Every call starts a new shell: variables and `cd` do not carry over. There is no standard input \
                 and no terminal, so use flags that keep programs from asking. The call ends when the shell ends; \
                 whatever still runs in the background is ended then, so a server must be started, used and \
                 stopped in one command. Output of more than {} bytes is cut in the middle; `recall` reads the rest. Use file_read, \
                 grep_tool and glob_tool to read and search files, and file_edit or file_write to change them.",
                truncate::OUTPUT_BYTES_MAX
            ),
            schema: json!({
                "type": "object",
                "properties": {
                    "description": {
                        "type": "string",
                        "description": "What the command is for, in five to ten words for the person who reads along."
                    },
                    "command": {"type": "string", "description": "The command line."},
                    "timeout": {
                        "type": "integer",
                        "description": format!(
                            "Seconds after which the command is ended: {TIMEOUT_SECONDS} if left out, at most \
                             {TIMEOUT_SECONDS_MAX}."
                        )
                    }
                },
                "required": ["description", "command"]
            }),
        }
    }

    fn card(&self, input: &Value, _: &Workspace) -> Card {
        let title = match input::optional_text(input, "command") {
            Ok(Some(command)) if !command.trim().is_empty() => {
                truncate::line(command.trim(), TITLE_BYTES_MAX)
            }
            Ok(_) | Err(_) => "Run a command".to_string(),
        };
        Card { title, kind: ToolKind::Execute, locations: Vec::new() }
    }

    fn access(&self, input: &Value, _: &Workspace) -> Result<Access, String> {
        Call::read(input).map(|call| Access::Command { line: call.command, confined: true })
    }

    fn preview(&self, input: &Value, _: &Workspace) -> BoxFuture<Vec<Shown>> {
        let call = Call::read(input);
        let description = input::optional_text(input, "description").ok().flatten();
        Box::pin(async move {
            let Ok(call) = call else { return Vec::new() };
            let mut text = disk::fenced("sh", &call.command);
            if let Some(description) = description.filter(|text| !text.trim().is_empty()) {
                text = format!("{text}\n\n{}", description.trim());
            }
            vec![Shown::Text { text }]
        })
    }

    fn run(&self, input: Value, context: ToolContext) -> BoxFuture<ToolResult> {
        let reaper = self.reaper.clone();
        Box::pin(async move {
            let call = match Call::read(&input) {
                Ok(call) => call,
                Err(sentence) => return ToolResult::failed(sentence),
            };
            let workspace = context.workspace.clone();
            let (command, timeout) = (call.command, call.timeout);
            let started = disk::blocking(move |stop| start(&reaper, &command, &workspace, stop)).await;
            match started {
                Ok((running, output)) => follow(running, output, timeout, &context).await,
                Err(sentence) => ToolResult::failed(sentence),
            }
        })
    }
}

struct Call {
    command: String,
    timeout: Duration,
}

impl Call {
    fn read(input: &Value) -> Result<Call, String> {
        let command = input::named(input, "command")?;
        let seconds = input::whole(input, "timeout")?.unwrap_or(TIMEOUT_SECONDS);
        // More is not an error: the model reads the limit when it is reached. Nor is 0, which models
        // use for "none".
        let seconds = if seconds == 0 { TIMEOUT_SECONDS } else { seconds.min(TIMEOUT_SECONDS_MAX) };
        Ok(Call { command, timeout: Duration::from_secs(seconds) })
    }
}

/// Starts the shell; gives back where its output can be read.
fn start(
    reaper: &Arc<Reaper>,
    line: &str,
    workspace: &Workspace,
    stop: &Stop,
) -> Result<(Running, pipe::Receiver), String> {
    if stop.requested() {
        return Err("The call was cancelled before its command was started.".to_string());
    }
    if !workspace.cwd.is_dir() {
        return Err(format!(
            "The workspace's directory {} is gone; no command can be run.",
            workspace.cwd.display()
        ));
    }
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::ArgumentListTooLong => {
            "The command line is too long for the system. Write a script with file_write and run that."
                .to_string()
        }
        _ => format!("The command could not be started: {error}."),
    };
    let (read, write) = io::pipe().map_err(failed)?;
    let mut command = Command::new(shell(&workspace.environment));
    command.arg("-c").arg(line).current_dir(&workspace.cwd).stdin(Stdio::null());
    command.stdout(Stdio::from(OwnedFd::from(write.try_clone().map_err(failed)?)));
    command.stderr(Stdio::from(OwnedFd::from(write)));
    command.env_clear().envs(workspace.environment.iter().map(|(name, value)| (name, value)));
    let given = |name: &str| workspace.environment.iter().any(|(given, _)| given == name);
    for (name, value) in NOT_INTERACTIVE.iter().filter(|(name, _)| !given(name)) {
        command.env(name, value);
    }
    if !given("HOME")
        && let Some(home) = workspace.home()
    {
        command.env("HOME", home);
    }
    // The shell would look at it and find that it is the editor's.
    command.env("PWD", &workspace.cwd).env_remove("OLDPWD");
    let running = reaper.spawn(&mut command).map_err(failed)?;
    // Our copies of the pipe's other end are in `command`; while they are open there is no end.
    drop(command);
    let read = pipe::Receiver::from_owned_fd(OwnedFd::from(read)).map_err(failed)?;
    Ok((running, read))
}

/// The `bash` of the environment's PATH, else the system's, else `sh`.
pub fn shell(environment: &[(OsString, OsString)]) -> PathBuf {
    let path = environment.iter().find(|(name, _)| name == "PATH").map(|(_, path)| path.as_os_str());
    let directories: Vec<PathBuf> = std::env::split_paths(path.unwrap_or(OsStr::new(""))).collect();
    let runs = |path: &PathBuf| {
        path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    let ours = directories.iter().filter(|directory| directory.is_absolute()).map(|path| path.join("bash"));
    let system = ["/bin/bash", "/usr/bin/bash"].map(PathBuf::from);
    ours.chain(system).find(runs).unwrap_or_else(|| Path::new("/bin/sh").to_path_buf())
}

/// Reads the output until the shell has ended, or its time is up.
async fn follow(
    mut running: Running,
    pipe: pipe::Receiver,
    timeout: Duration,
    context: &ToolContext,
) -> ToolResult {
    let mut reading = Reading::new(pipe, context);
    let mut timed_out = false;
    let limit = sleep(timeout);
    tokio::pin!(limit);
    let ending = loop {
        // In this order, or a command that never stops writing would never be stopped.
        tokio::select! {
            biased;
            ending = &mut running.ending => break ending.unwrap_or(Ending::Unknown),
            () = &mut limit => {
                if timed_out {
                    break Ending::Unknown;
                }
                timed_out = true;
                running.end();
                limit.as_mut().reset(Instant::now() + KILL_GRACE + GIVE_UP);
            }
            () = reading.next() => {}
        }
    };
    let drained = sleep(DRAIN);
    tokio::pin!(drained);
    while reading.pipe.is_some() {
        tokio::select! {
            biased;
            () = &mut drained => break,
            () = reading.next() => {}
        }
    }
    running.release();
    result(reading.output.finish(), ending, timed_out.then_some(timeout))
}

/// The reading end of a command's output.
struct Reading<'a> {
    /// `None` once the other end is closed.
    pipe: Option<pipe::Receiver>,
    buffer: Vec<u8>,
    output: Output,
    passed_on: usize,
    context: &'a ToolContext,
}

impl Reading<'_> {
    fn new(pipe: pipe::Receiver, context: &ToolContext) -> Reading<'_> {
        Reading {
            pipe: Some(pipe),
            buffer: vec![0; READ_BYTES],
            output: Output::default(),
            passed_on: 0,
            context,
        }
    }

    /// Takes what there is to read; never resolves when there will be nothing more. May be dropped at
    /// any time without losing a byte.
    async fn next(&mut self) {
        let Some(pipe) = &mut self.pipe else { return pending().await };
        match pipe.read(&mut self.buffer).await {
            Ok(0) | Err(_) => self.pipe = None,
            Ok(length) => {
                let text = self.output.take(&self.buffer[..length]);
                if !text.is_empty() && self.passed_on < PROGRESS_BYTES_MAX {
                    self.passed_on += text.len();
                    (self.context.progress)(text);
                }
            }
        }
    }
}

fn result(output: Finished, ending: Ending, timed_out: Option<Duration>) -> ToolResult {
    // A shell reports the end by a signal in this form too.
    const BY_SIGNAL: i32 = 128;
    let Finished { shown: output, whole } = output;
    let mut raw = json!({"stdout": output, "stderr": ""});
    let mut say = match ending {
        Ending::Code(code) => {
            raw["exitCode"] = json!(code);
            format!("[exit code {code}]")
        }
        Ending::Signal(signal) => {
            raw["exitCode"] = json!(BY_SIGNAL + signal);
            raw["signal"] = json!(signal);
            format!("[ended by signal {signal}, exit code {}]", BY_SIGNAL + signal)
        }
        Ending::Unknown => "[the exit code is not known]".to_string(),
    };
    if let Some(limit) = timed_out {
        raw["timedOut"] = json!(true);
        say = format!(
            "[the time limit of {} seconds was reached; the command and everything that it started were ended. \
             `timeout` can be set up to {TIMEOUT_SECONDS_MAX}]",
            limit.as_secs()
        );
    }
    let border = if output.is_empty() || output.ends_with('\n') { "" } else { "\n" };
    let nothing = if output.is_empty() { "(no output)\n" } else { "" };
    let whole = whole.map(|whole| {
        let border = if whole.ends_with('\n') { "" } else { "\n" };
        format!("{whole}{border}{say}")
    });
    let well = ending == Ending::Code(0) && timed_out.is_none();
    ToolResult {
        status: if well { OutcomeStatus::Completed } else { OutcomeStatus::Failed },
        content: vec![OutcomeContent::Text { text: format!("{output}{border}{nothing}{say}") }],
        whole,
        shown: vec![Shown::Text {
            text: match well {
                true => disk::fenced("", &output),
                false => format!("{}\n\n{say}", disk::fenced("", &output)),
            },
        }],
        locations: Vec::new(),
        raw: Some(raw),
        plan: None,
    }
}
