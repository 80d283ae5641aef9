//! Methods about the daemon itself: its status, its metrics, and stopping it.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::runtime::Handle;

use super::fault::{Fault, FaultKind};
use super::params::NoParams;
use super::{MethodResult, MethodTable, fields, json_of};
use crate::Daemon;
use crate::build::{Build, VERSION};
use epitome_platform::process::resident_bytes;
use epitome_session::cpu_worker;

pub(super) fn register(table: &mut MethodTable) {
    table.blocking("status", status);
    // Not `blocking`: it must work even if the disk hangs.
    table.waiting("stop", |daemon, wanted, _| async move { stop(&daemon, wanted) });
    table.blocking("metrics", metrics);
}

fn status(daemon: &Arc<Daemon>, _: NoParams) -> MethodResult {
    let live = daemon.sessions.live_sessions();
    let attachments: Vec<Value> = daemon
        .attachments
        .list()
        .into_iter()
        .map(|(attached, (waiting, name))| {
            let grant = attached.grant.as_ref();
            json!({
                "client": attached.client, "kind": attached.kind, "version": attached.version,
                "pid": attached.pid, "cwd": attached.cwd.as_deref().map(Path::to_string_lossy),
                "since": milliseconds(attached.since),
                "waiting": waiting, "name": name, "token": grant.map(|grant| &grant.name),
                "scope": grant.map(|grant| grant.scope.name()),
            })
        })
        .collect();
    let runtime_dir = &daemon.runtime_dir;
    Ok(json!({
        "version": VERSION,
        "build": json_of(Build::current())?,
        "pid": std::process::id(),
        "started_at": milliseconds(daemon.started_at),
        "home": daemon.paths.home.to_string_lossy(),
        "data": daemon.paths.data.to_string_lossy(),
        "logs": daemon.paths.log_directory().to_string_lossy(),
        "sockets": {
            "acp": runtime_dir.acp_socket().to_string_lossy(),
            "control": runtime_dir.control_socket().to_string_lossy(),
        },
        "attachments": attachments,
        "waiting": waiting(daemon),
        "sessions": json_of(&live)?,
        "running_turns": live.iter().filter(|live| live.running).count(),
        "store_bytes": daemon.store.sizes()?.total(),
        "resident_bytes": resident_bytes(),
    }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StopParams {
    /// Also stop while turns run: they are cancelled, and recorded as such.
    #[serde(default)]
    force: bool,
}

fn stop(daemon: &Arc<Daemon>, wanted: StopParams) -> MethodResult {
    let running = daemon.sessions.live_sessions().iter().filter(|live| live.running).count();
    if running > 0 && !wanted.force {
        let turns = if running == 1 { "a turn runs".to_owned() } else { format!("{running} turns run") };
        return Err(Fault::new(FaultKind::Refused, format!("{turns} in this daemon"))
            .hint("wait for it, or stop it all the same with `force` (`epitome daemon stop --force`)"));
    }
    daemon.stop.send_replace(true);
    Ok(json!({ "stopping": true, "pid": std::process::id(), "running_turns": running }))
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum MetricsFormat {
    #[default]
    Json,
    /// The Prometheus text format, returned as `text`.
    Prometheus,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MetricsParams {
    #[serde(default)]
    format: MetricsFormat,
}

/// Sizes of all queues at this moment, and the latency of the event loop. Must be called on a thread that may block. All
/// figures are kept anyway, except the latency, which is measured here.
fn waiting(daemon: &Daemon) -> Value {
    let live = daemon.sessions.live_sessions();
    let runtime = Handle::current();
    let given = Instant::now();
    let late = runtime.block_on(runtime.spawn(async move { given.elapsed() }));
    json!({
        "prompts": live.iter().map(|live| live.queued_prompts).sum::<usize>(),
        "events": live.iter().map(|live| live.waiting_events).sum::<usize>(),
        "items": daemon.attachments.list().iter().map(|(_, (waiting, _))| waiting).sum::<usize>(),
        "unsynced_sessions": live.iter().filter(|live| live.unsynced).count(),
        "index_bytes": daemon.store.index_waits(),
        "thoughts": cpu_worker::waiting(),
        "tasks": runtime.metrics().num_alive_tasks(),
        "queued_tasks": runtime.metrics().global_queue_depth(),
        // The task is lost only with the runtime itself.
        "loop_late_seconds": late.unwrap_or_default().as_secs_f64(),
    })
}

/// Everything that can be plotted. Counts cover this process since it started.
fn metrics(daemon: &Arc<Daemon>, wanted: MetricsParams) -> MethodResult {
    let live = daemon.sessions.live_sessions();
    let mut figures = fields(json!({
        "uptime_seconds": daemon.started_at.elapsed().unwrap_or_default().as_secs_f64(),
        "resident_bytes": resident_bytes(),
        "attachments": daemon.attachments.list().len(),
        "live_sessions": live.len(),
        "running_turns": live.iter().filter(|live| live.running).count(),
        "session_clients": live.iter().map(|live| live.clients).sum::<usize>(),
        "session_watchers": live.iter().map(|live| live.watchers).sum::<usize>(),
        "waiting": waiting(daemon),
        "appends": json_of(&daemon.store.append_times())?,
    }));
    figures.extend(fields(json_of(&daemon.sessions.counts())?));
    let figures = Value::Object(figures);
    match wanted.format {
        MetricsFormat::Json => Ok(figures),
        MetricsFormat::Prometheus => Ok(json!({ "text": prometheus(&figures) })),
    }
}

/// The figures as Prometheus calls them, each with its place in the JSON form.
const GAUGES: [(&str, &str, &str); 16] = [
    ("uptime_seconds", "/uptime_seconds", "How long the daemon has run."),
    ("resident_bytes", "/resident_bytes", "Memory of the daemon."),
    ("attachments", "/attachments", "Connections of editors and shells."),
    ("live_sessions", "/live_sessions", "Sessions in memory."),
    ("running_turns", "/running_turns", "Sessions whose turn runs or waits."),
    ("session_clients", "/session_clients", "Clients of live sessions."),
    ("session_watchers", "/session_watchers", "Observers of live sessions."),
    ("waiting_prompts", "/waiting/prompts", "Prompts that wait for their turn."),
    ("waiting_events", "/waiting/events", "Messages of clients that sessions have not processed."),
    ("waiting_items", "/waiting/items", "Lines and news that wait for clients to read."),
    ("unsynced_sessions", "/waiting/unsynced_sessions", "Sessions with entries not yet on the disk."),
    ("index_waiting_bytes", "/waiting/index_bytes", "Entries that are not in the index yet."),
    ("waiting_thoughts", "/waiting/thoughts", "Decisions about compactions that wait."),
    ("tasks", "/waiting/tasks", "Tasks of the event loop."),
    ("queued_tasks", "/waiting/queued_tasks", "Tasks that the event loop has not begun."),
    ("loop_late_seconds", "/waiting/loop_late_seconds", "How long a task waited for the event loop."),
];

const COUNTERS: [(&str, &str, &str); 9] = [
    ("entries_total", "/entries", "Entries written."),
    ("turns_total", "/turns", "Turns that ended."),
    ("rounds_total", "/rounds", "Replies of models."),
    ("tool_calls_total", "/tool_calls", "Outcomes of tool calls."),
    ("hook_runs_total", "/hook_runs", "Runs of hooks."),
    ("compactions_total", "/compactions", "Compactions."),
    ("prunings_total", "/prunings", "Shortenings without a summary."),
    ("undone_total", "/undone", "Changes of histories that were undone."),
    ("cost_dollars_total", "/cost", "US dollars of model calls with known prices."),
];

/// Renders the figures in the Prometheus text format.
fn prometheus(figures: &Value) -> String {
    let mut text = String::new();
    for (kind, rows) in [("gauge", &GAUGES[..]), ("counter", &COUNTERS[..])] {
        for (name, place, help) in rows {
            let value = figures.pointer(place).and_then(Value::as_f64).unwrap_or_default();
            let _ = write!(
                text,
                "# HELP epitome_{name} {help}\n# TYPE epitome_{name} {kind}\nepitome_{name} {value}\n"
            );
        }
    }
    text += "# HELP epitome_tokens_total Tokens of model calls.\n# TYPE epitome_tokens_total counter\n";
    for kind in ["input", "output", "cache_read", "cache_write", "thinking"] {
        let _ = writeln!(text, "epitome_tokens_total{{kind=\"{kind}\"}} {}", figures["tokens"][kind]);
    }
    histogram(&mut text, &figures["appends"]);
    text
}

fn histogram(text: &mut String, appends: &Value) {
    let (name, backend) = ("epitome_append_seconds", &appends["backend"]);
    let _ = writeln!(text, "# HELP {name} Time to append an entry to a log.\n# TYPE {name} histogram");
    let within = appends["within"].as_array().into_iter().flatten();
    let within = within.map(|within| (within[0].to_string(), &within[1]));
    for (bound, count) in within.chain([("+Inf".to_owned(), &appends["count"])]) {
        let _ = writeln!(text, "{name}_bucket{{backend={backend},le=\"{bound}\"}} {count}");
    }
    for (part, value) in [("sum", &appends["sum_seconds"]), ("count", &appends["count"])] {
        let _ = writeln!(text, "{name}_{part}{{backend={backend}}} {value}");
    }
}

fn milliseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
