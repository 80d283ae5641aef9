//! Methods about the daemon itself: how it is, what it has done, and its end.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::fault::{Fault, Kind};
use super::params::Nothing;
use super::{Reply, Table, json_of};
use crate::daemon::Daemon;
use crate::session::counts::Reading;

pub(super) fn register(table: &mut Table) {
    table.blocking("status", status);
    // Where the disk hangs it must be possible to end it.
    table.waiting("stop", |daemon, wanted, _| async move { stop(&daemon, wanted) });
    table.blocking("metrics", metrics);
}

fn status(daemon: &Arc<Daemon>, _: Nothing) -> Reply {
    let live = daemon.sessions.live_sessions();
    let attachments: Vec<Value> = daemon
        .attachments
        .list()
        .into_iter()
        .map(|attached| {
            json!({
                "client": attached.client, "kind": attached.kind, "version": attached.version,
                "pid": attached.pid, "cwd": attached.cwd, "since": milliseconds(attached.since),
            })
        })
        .collect();
    let place = &daemon.place;
    Ok(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "started_at": milliseconds(daemon.started_at),
        "home": daemon.paths.home,
        "data": daemon.paths.data,
        "logs": daemon.paths.log_directory(),
        "sockets": { "acp": place.acp_socket(), "control": place.control_socket() },
        "attachments": attachments,
        "sessions": json_of(&live)?,
        "running_turns": live.iter().filter(|live| live.running).count(),
        "store_bytes": daemon.store.sizes()?.total(),
        "resident_bytes": resident_bytes(),
    }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Stop {
    /// Also while turns run: they are cancelled, and recorded as such.
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
    /// The text that Prometheus reads, as `text`.
    Prometheus,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Measured {
    #[serde(default)]
    format: Form,
}

/// All that can be plotted. Counts are of this process, since it started.
#[derive(Serialize)]
struct Figures {
    uptime_seconds: f64,
    resident_bytes: Option<u64>,
    attachments: usize,
    live_sessions: usize,
    running_turns: usize,
    session_clients: usize,
    session_watchers: usize,
    #[serde(flatten)]
    counted: Reading,
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
        counted: daemon.sessions.counts(),
    };
    match wanted.format {
        Form::Json => json_of(&figures),
        Form::Prometheus => Ok(json!({ "text": prometheus(&figures) })),
    }
}

/// The figures in Prometheus' text format.
fn prometheus(figures: &Figures) -> String {
    let Figures { counted, .. } = figures;
    let gauges = [
        ("uptime_seconds", "How long the daemon has run.", figures.uptime_seconds),
        ("resident_bytes", "Memory of the daemon.", figures.resident_bytes.unwrap_or_default() as f64),
        ("attachments", "Connections of editors and shells.", figures.attachments as f64),
        ("live_sessions", "Sessions in memory.", figures.live_sessions as f64),
        ("running_turns", "Sessions whose turn runs or waits.", figures.running_turns as f64),
        ("session_clients", "Clients of live sessions.", figures.session_clients as f64),
        ("session_watchers", "Observers of live sessions.", figures.session_watchers as f64),
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

/// The memory of this process, where the system tells it as Linux does.
fn resident_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}
