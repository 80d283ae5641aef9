//! Commands that run beside the conversation: started by `bash`, read by `bash_output`, ended by `bash_kill`, by their
//! session's end, or by themselves.
//!
//! A session owns its `Background`; dropping that ends every command in it. A cancel of a turn does not: they are the
//! session's, not the turn's. How many there are and how much of their output is kept is bounded.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use regex::Regex;
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};

use super::output::{Cleaner, drawn};
use super::shell_run::{self, DRAIN, Reading, Started};
use super::{ToolContext, ToolResult, disk, sandbox, truncate};
use epitome_platform::group::Ending;
use epitome_thread::{OutcomeContent, OutcomeStatus, Shown};

/// Commands that may run at a time: a server, a watcher or two, a long build.
pub const RUNNING_MAX: usize = 8;

/// Commands that are kept when they have ended, so that their last words can be read.
const ENDED_MAX: usize = 16;

/// Bytes of output that are kept of each until they are read; of more, the newest.
const UNREAD_BYTES_MAX: usize = 1024 * 1024;

/// How long a new command is looked at before its start is answered: a server has said where it listens by then, and
/// one that can't run why.
const FIRST_LOOK: Duration = Duration::from_secs(1);

/// Bytes of a command line in what is said of it.
const LINE_BYTES_MAX: usize = 200;

/// What an id is made of, and how long it is: short enough to be copied without a slip, and rarely the same as one of
/// the session's earlier life.
const ID_LETTERS: &[u8] = b"abcdefghjkmnpqrstuvwxyz23456789";
const ID_LETTERS_COUNT: usize = 4;

/// The commands of one session.
#[derive(Default)]
pub struct Background {
    commands: Mutex<Vec<Kept>>,
}

struct Kept {
    command: Arc<Command>,
    task: AbortHandle,
}

/// A command that was started in the background.
pub struct Command {
    pub id: String,
    /// Its command line, cut.
    pub line: String,
    began: Instant,
    state: Mutex<State>,
    /// Counts what is new.
    news: watch::Sender<u64>,
    end: Notify,
    /// Of one that is held, whether it has a network.
    network: Option<bool>,
}

#[derive(Default)]
struct State {
    unread: String,
    /// Bytes that came before `unread`, read or not.
    before: u64,
    /// Bytes that were forgotten unread since the last reading.
    forgotten: u64,
    ending: Option<Ending>,
    /// The model was told of the end.
    is_end_told: bool,
}

/// What is known of a command without reading its output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    pub id: String,
    pub line: String,
    /// How it ended, in words, once it has.
    pub ended: Option<String>,
    pub is_end_told: bool,
}

impl Background {
    pub fn has_room(&self) -> bool {
        self.running() < RUNNING_MAX
    }

    /// How many run.
    pub fn running(&self) -> usize {
        self.commands().iter().filter(|kept| kept.command.state().ending.is_none()).count()
    }

    pub fn get(&self, id: &str) -> Option<Arc<Command>> {
        self.commands().iter().map(|kept| &kept.command).find(|command| command.id == id).cloned()
    }

    /// All that are known, the oldest first.
    pub fn standings(&self) -> Vec<Standing> {
        self.commands().iter().map(|kept| kept.command.standing()).collect()
    }

    /// Takes it in and follows it. `None` where there are too many: then it is ended.
    fn follow(&self, line: &str, started: Started, network: bool) -> Option<Arc<Command>> {
        let mut commands = self.commands();
        let running = commands.iter().filter(|kept| kept.command.state().ending.is_none()).count();
        if running >= RUNNING_MAX {
            return None;
        }
        let mut id = fresh_id();
        while commands.iter().any(|kept| kept.command.id == id) {
            id = fresh_id();
        }
        let command = Arc::new(Command {
            id,
            line: truncate::line(line.trim(), LINE_BYTES_MAX),
            began: Instant::now(),
            state: Mutex::default(),
            news: watch::Sender::new(0),
            end: Notify::new(),
            network: started.is_held.then_some(network),
        });
        let task = tokio::spawn(follow(command.clone(), started)).abort_handle();
        commands.push(Kept { command: command.clone(), task });
        let ended: Vec<String> = commands
            .iter()
            .filter(|kept| kept.task.is_finished())
            .map(|kept| kept.command.id.clone())
            .collect();
        for id in ended.iter().take(ended.len().saturating_sub(ENDED_MAX)) {
            commands.retain(|kept| kept.command.id != *id);
        }
        Some(command)
    }

    fn commands(&self) -> MutexGuard<'_, Vec<Kept>> {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // With its task goes what holds the command, and that ends it.
        for kept in self.commands().iter() {
            kept.task.abort();
        }
    }
}

fn fresh_id() -> String {
    let letters = (0..ID_LETTERS_COUNT).map(|_| char::from(ID_LETTERS[fastrand::usize(..ID_LETTERS.len())]));
    std::iter::once('b').chain(letters).collect()
}

/// Why no more can be started.
pub(super) fn full() -> String {
    format!("{RUNNING_MAX} commands run in the background already. End one with bash_kill first.")
}

/// Lets a command that was started run on; the answer to its start, with what it said first.
pub(super) async fn start(
    background: &Background,
    line: String,
    started: Started,
    context: &ToolContext,
) -> ToolResult {
    let Some(command) = background.follow(&line, started, context.sandbox.network) else {
        return ToolResult::failed(full());
    };
    command.wait(FIRST_LOOK, Wanted::End).await;
    let head = format!("Background command {} was started", command.id);
    command.result(&head)
}

/// The life of a command. Dropping it ends the command.
async fn follow(command: Arc<Command>, started: Started) {
    let Started { mut running, pipe, is_held: _ } = started;
    let (mut reading, mut cleaner) = (Reading::new(pipe), Cleaner::default());
    let ending = loop {
        tokio::select! {
            biased;
            ending = &mut running.ending => break ending.unwrap_or(Ending::Unknown),
            () = command.end.notified() => running.end(),
            bytes = reading.next() => command.take(&cleaner.clean(bytes)),
        }
    };
    let drained = sleep(DRAIN);
    tokio::pin!(drained);
    while reading.is_open() {
        tokio::select! {
            biased;
            () = &mut drained => break,
            bytes = reading.next() => command.take(&cleaner.clean(bytes)),
        }
    }
    running.release();
    command.take(&cleaner.finish());
    command.state().ending = Some(ending);
    command.tell();
}

/// What is waited for.
pub(super) enum Wanted {
    End,
    /// Anything new, or the end.
    News,
    /// A line that fits, among what was not read, or the end.
    Line(Regex),
}

impl Command {
    /// Asks it to end, and makes it end a moment later. Does not block.
    pub(super) fn kill(&self) {
        self.end.notify_one();
    }

    pub fn standing(&self) -> Standing {
        let state = self.state();
        Standing {
            id: self.id.clone(),
            line: self.line.clone(),
            ended: state.ending.map(|ending| shell_run::ended(ending).0),
            is_end_told: state.is_end_told,
        }
    }

    /// The model knows now that it has ended.
    pub fn end_is_told(&self) {
        self.state().is_end_told = true;
    }

    /// Waits for what is wanted, at most so long.
    pub(super) async fn wait(&self, at_most: Duration, wanted: Wanted) {
        let mut news = self.news.subscribe();
        let mut searched = 0;
        let there = async {
            loop {
                news.mark_unchanged();
                if self.has(&wanted, &mut searched) || news.changed().await.is_err() {
                    return;
                }
            }
        };
        // Late is no error: what there is by then is told.
        let _ = tokio::time::timeout(at_most, there).await;
    }

    /// Whether it is there; lines before `searched`, counted in bytes from the beginning, don't fit.
    fn has(&self, wanted: &Wanted, searched: &mut u64) -> bool {
        let state = self.state();
        if state.ending.is_some() {
            return true;
        }
        match wanted {
            Wanted::End => false,
            Wanted::News => !state.unread.is_empty(),
            Wanted::Line(pattern) => {
                let from = usize::try_from(searched.saturating_sub(state.before)).unwrap_or(usize::MAX);
                let text = state.unread.get(from..).unwrap_or_default();
                let found = text.lines().any(|line| pattern.is_match(line));
                // The last line may go on.
                let whole = text.rfind('\n').map_or(0, |border| border + 1);
                *searched = state.before + (from.min(state.unread.len()) + whole) as u64;
                found
            }
        }
    }

    /// What is new since it was asked for last, and how the command stands.
    pub(super) fn result(&self, head: &str) -> ToolResult {
        let (unread, forgotten, ending) = {
            let mut state = self.state();
            let unread = std::mem::take(&mut state.unread);
            state.before += unread.len() as u64;
            state.is_end_told = state.ending.is_some();
            (unread, std::mem::take(&mut state.forgotten), state.ending)
        };
        let output = drawn(&unread);
        let shown =
            truncate::head_and_tail(&output, truncate::OUTPUT_BYTES_MAX, truncate::OUTPUT_HEAD_BYTES, REST);
        let mut raw = json!({"stdout": shown, "stderr": ""});
        let mut background = json!({"id": self.id, "state": "running"});
        let stands = match ending {
            None => format!("still runs, for {} s now", self.began.elapsed().as_secs()),
            Some(ending) => {
                let (words, code) = shell_run::ended(ending);
                background["state"] = Value::from("ended");
                if let Some(code) = code {
                    raw["exitCode"] = Value::from(code);
                }
                format!("has ended: {words}")
            }
        };
        raw["background"] = background;
        let mut say = format!("[{head}; it {stands}]");
        if forgotten > 0 {
            say = format!(
                "[{forgotten} bytes of its output before this are lost: they were not read in time]\n{say}"
            );
        }
        if let Some(hint) = self.network.and_then(|network| {
            sandbox::hint(&shown, matches!(ending, None | Some(Ending::Code(0))), network)
        }) {
            say = format!("{say}\n{hint}");
        }
        let border = if shown.is_empty() || shown.ends_with('\n') { "" } else { "\n" };
        let nothing = if shown.is_empty() { "(no new output)\n" } else { "" };
        // First what it is: where old outcomes are cut, their beginning stays.
        let text = format!("Background command {}: `{}`\n{shown}{border}{nothing}{say}", self.id, self.line);
        let is_cut = shown.len() != output.len();
        ToolResult {
            status: OutcomeStatus::Completed,
            content: vec![OutcomeContent::Text { text }],
            whole: is_cut.then(|| format!("{output}\n{say}")),
            shown: vec![Shown::Text { text: format!("{}\n\n{say}", disk::fenced("", &shown)) }],
            locations: Vec::new(),
            raw: Some(raw),
            plan: None,
        }
    }

    fn take(&self, text: &str) {
        if text.is_empty() {
            return;
        }
        let mut state = self.state();
        state.unread.push_str(text);
        // Only now and then, so that each byte is moved once on average.
        if state.unread.len() > 2 * UNREAD_BYTES_MAX {
            let from = state.unread.ceil_char_boundary(state.unread.len() - UNREAD_BYTES_MAX);
            state.unread.drain(..from);
            state.before += from as u64;
            state.forgotten += from as u64;
        }
        drop(state);
        self.tell();
    }

    fn tell(&self) {
        self.news.send_modify(|count| *count += 1);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How the model gets what was left out of an answer.
const REST: &str = "`recall` reads the rest";

/// What is said where no command has the id.
pub(super) fn unknown(background: &Background, id: &str) -> String {
    let standings = background.standings();
    let known: Vec<&str> = standings.iter().map(|standing| standing.id.as_str()).collect();
    let known = match known.is_empty() {
        true => "There are none".to_string(),
        false => format!("There are {}", known.join(", ")),
    };
    format!(
        "There is no background command {id:?} in this session. {known}. Those of an earlier life of the session \
         ended with it."
    )
}
