//! Methods about the daemon itself: its status, its metrics, and stopping it.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::runtime::Handle;

use super::fault::{Fault, Kind};
use super::params::Nothing;
use super::{Reply, Table, json_of};
use crate::Daemon;
use crate::build::{Build, VERSION};
use epitome_session::counts::Reading;
use epitome_session::cpu_worker;

pub(super) fn register(table: &mut Table) {
    table.blocking("status", status);
    // Not `blocking`: it must work even if the disk hangs.
    table.waiting("stop", |daemon, wanted, _| async move { stop(&daemon, wanted) });
    table.blocking("metrics", metrics);
}

fn status(daemon: &Arc<Daemon>, _: Nothing) -> Reply {
    let live = daemon.sessions.live_sessions();
    let attachments: Vec<Value> = daemon
        .attachments
        .list()
        .into_iter()
        .map(|(attached, waiting)| {
            json!({
                "client": attached.client, "kind": attached.kind, "version": attached.version,
                "pid": attached.pid, "cwd": attached.cwd, "since": milliseconds(attached.since),
                "waiting": waiting,
            })
        })
        .collect();
    let place = &daemon.place;
    Ok(json!({
        "version": VERSION,
        "build": json_of(Build::own())?,
        "pid": std::process::id(),
        "started_at": milliseconds(daemon.started_at),
        "home": daemon.paths.home,
        "data": daemon.paths.data,
        "logs": daemon.paths.log_directory(),
        "sockets": { "acp": place.acp_socket(), "control": place.control_socket() },
        "attachments": attachments,
        "waiting": json_of(&Waiting::now(daemon))?,
        "sessions": json_of(&live)?,
        "running_turns": live.iter().filter(|live| live.running).count(),
        "store_bytes": daemon.store.sizes()?.total(),
        "resident_bytes": resident_bytes(),
    }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Stop {
    /// Also stop while turns run: they are cancelled, and recorded as such.
    #[serde(default)]
    force: bool,
}

fn stop(daemon: &Arc<Daemon>, wanted: Stop) -> Reply {
    let running = daemon.sessions.live_sessions().iter().filter(|live| live.running).count();
    if running > 0 && !wanted.force {
        let turns = if running == 1 { "a turn runs".to_owned() } else { format!("{running} turns run") };
        return Err(Fault::new(Kind::Refused, format!("{turns} in this daemon"))
            .hint("wait for it, or stop it all the same with `force` (`epitome daemon stop --force`)"));
    }
    daemon.stop.send_replace(true);
    Ok(json!({ "stopping": true, "pid": std::process::id(), "running_turns": running }))
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Form {
    #[default]
    Json,
    /// The Prometheus text format, returned as `text`.
    Prometheus,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Measured {
    #[serde(default)]
    format: Form,
}

/// Everything that can be plotted. Counts cover this process since it started.
#[derive(Serialize)]
struct Figures {
    uptime_seconds: f64,
    resident_bytes: Option<u64>,
    attachments: usize,
    live_sessions: usize,
    running_turns: usize,
    session_clients: usize,
    session_watchers: usize,
    waiting: Waiting,
    #[serde(flatten)]
    counted: Reading,
}

/// Sizes of all queues at this moment, and the latency of the event loop.
#[derive(Serialize)]
struct Waiting {
    /// Prompts waiting for their turn, or for a turn to take them in.
    prompts: usize,
    /// Commands that clients have sent and sessions have not handled.
    events: usize,
    /// Items waiting for clients to read.
    items: usize,
    /// Sessions whose newest entries may not be on disk yet; a second at most.
    unsynced_sessions: usize,
    /// Bytes of entries that are not in the index yet.
    index_bytes: usize,
    /// Compaction decisions and plans waiting for the CPU worker.
    thoughts: usize,
    /// Tasks of the event loop, and those of them that it has not started.
    tasks: usize,
    queued_tasks: usize,
    /// How long a task spawned just now waited to run.
    loop_late_seconds: f64,
}

impl Waiting {
    /// Must be called on a thread that may block. All figures are kept anyway, except the event loop's
    /// latency, which is measured here.
    fn now(daemon: &Daemon) -> Waiting {
        let live = daemon.sessions.live_sessions();
        let runtime = Handle::current();
        let given = Instant::now();
        let late = runtime.block_on(runtime.spawn(async move { given.elapsed() }));
        Waiting {
            prompts: live.iter().map(|live| live.queued_prompts).sum(),
            events: live.iter().map(|live| live.waiting_events).sum(),
            items: daemon.attachments.list().iter().map(|(_, waiting)| waiting).sum(),
            unsynced_sessions: live.iter().filter(|live| live.unsynced).count(),
            index_bytes: daemon.store.index_waits(),
            thoughts: cpu_worker::waiting(),
            tasks: runtime.metrics().num_alive_tasks(),
            queued_tasks: runtime.metrics().global_queue_depth(),
            // The task is lost only with the runtime itself.
            loop_late_seconds: late.unwrap_or_default().as_secs_f64(),
        }
    }
}

fn metrics(daemon: &Arc<Daemon>, wanted: Measured) -> Reply {
    let live = daemon.sessions.live_sessions();
    let figures = Figures {
        uptime_seconds: daemon.started_at.elapsed().unwrap_or_default().as_secs_f64(),
        resident_bytes: resident_bytes(),
        attachments: daemon.attachments.list().len(),
        live_sessions: live.len(),
        running_turns: live.iter().filter(|live| live.running).count(),
        session_clients: live.iter().map(|live| live.clients).sum(),
        session_watchers: live.iter().map(|live| live.watchers).sum(),
        waiting: Waiting::now(daemon),
        counted: daemon.sessions.counts(),
    };
    match wanted.format {
        Form::Json => json_of(&figures),
        Form::Prometheus => Ok(json!({ "text": prometheus(&figures) })),
    }
}

/// Renders the figures in the Prometheus text format.
fn prometheus(figures: &Figures) -> String {
    let Figures { counted, waiting, .. } = figures;
    let gauges = [
        ("uptime_seconds", "How long the daemon has run.", figures.uptime_seconds),
        ("resident_bytes", "Memory of the daemon.", figures.resident_bytes.unwrap_or_default() as f64),
        ("attachments", "Connections of editors and shells.", figures.attachments as f64),
        ("live_sessions", "Sessions in memory.", figures.live_sessions as f64),
        ("running_turns", "Sessions whose turn runs or waits.", figures.running_turns as f64),
        ("session_clients", "Clients of live sessions.", figures.session_clients as f64),
        ("session_watchers", "Observers of live sessions.", figures.session_watchers as f64),
        ("waiting_prompts", "Prompts that wait for their turn.", waiting.prompts as f64),
        ("waiting_events", "What clients sent and sessions have not looked at.", waiting.events as f64),
        ("waiting_items", "Lines and news that wait for clients to read.", waiting.items as f64),
        ("unsynced_sessions", "Sessions with entries not yet on the disk.", waiting.unsynced_sessions as f64),
        ("index_waiting_bytes", "Entries that are not in the index yet.", waiting.index_bytes as f64),
        ("waiting_thoughts", "Decisions about compactions that wait.", waiting.thoughts as f64),
        ("tasks", "Tasks of the event loop.", waiting.tasks as f64),
        ("queued_tasks", "Tasks that the event loop has not begun.", waiting.queued_tasks as f64),
        ("loop_late_seconds", "How long a task waited for the event loop.", waiting.loop_late_seconds),
    ];
    let counters = [
        ("entries_total", "Entries written.", counted.entries as f64),
        ("turns_total", "Turns that ended.", counted.turns as f64),
        ("rounds_total", "Replies of models.", counted.rounds as f64),
        ("tool_calls_total", "Outcomes of tool calls.", counted.tool_calls as f64),
        ("hook_runs_total", "Runs of hooks.", counted.hook_runs as f64),
        ("compactions_total", "Compactions.", counted.compactions as f64),
        ("prunings_total", "Shortenings without a summary.", counted.prunings as f64),
        ("undone_total", "Changes of histories that were taken back.", counted.undone as f64),
        ("cost_dollars_total", "US dollars of model calls with known prices.", counted.cost),
    ];
    let mut text = String::new();
    for (kind, rows) in [("gauge", &gauges[..]), ("counter", &counters[..])] {
        for (name, help, value) in rows {
            let _ = write!(
                text,
                "# HELP epitome_{name} {help}\n# TYPE epitome_{name} {kind}\nepitome_{name} {value}\n"
            );
        }
    }
    text += "# HELP epitome_tokens_total Tokens of model calls.\n# TYPE epitome_tokens_total counter\n";
    let tokens = &counted.tokens;
    for (kind, count) in [
        ("input", tokens.input),
        ("output", tokens.output),
        ("cache_read", tokens.cache_read),
        ("cache_write", tokens.cache_write),
        ("thinking", tokens.thinking),
    ] {
        let _ = writeln!(text, "epitome_tokens_total{{kind=\"{kind}\"}} {count}");
    }
    text
}

fn milliseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Resident memory of this process; `None` where the system does not report it as Linux does.
fn resident_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}
