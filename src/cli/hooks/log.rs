//! `epitome hooks log`: shows the hook runs recorded in the log of a session.

use std::fmt::Write as _;
use std::sync::Arc;

use super::super::terminal;
use super::super::{serve, sessions};
use super::CliError;
use crate::paths::Paths;
use crate::thread::text::verdict;
use crate::thread::visible::visible;
use crate::thread::{Change, Entry, HookRun, SessionId};
use epitome_hooks::shown;
use epitome_store::{SessionQuery, Store};

pub(super) fn log(paths: &Paths, session: Option<&str>, json: bool) -> Result<i32, CliError> {
    serve::with_store(paths, |store| print(store, &session_of(store, session)?, json)).map(|()| 0)
}

fn session_of(store: &Store, session: Option<&str>) -> Result<SessionId, CliError> {
    if let Some(session) = session {
        return sessions::find(store, session);
    }
    let cwd = sessions::real_directory(&serve::working_directory()?)?;
    let newest = SessionQuery { cwd: Some(cwd), limit: Some(1), ..SessionQuery::default() };
    let newest = store.page(&newest)?.headers.pop();
    newest.map(|header| header.session).ok_or_else(|| {
        CliError::failed("this directory has no sessions")
            .hint("`epitome sessions list` shows those of other directories")
    })
}

fn print(store: &Store, session: &SessionId, json: bool) -> Result<(), CliError> {
    let (entries, damage) = store.read_with_damage(session)?;
    if let Some(damage) = damage {
        note!("epitome: {damage}");
    }
    let out = match json {
        true => shown::trail(&entries).iter().map(|line| format!("{line}\n")).collect(),
        false => text(session, &entries),
    };
    terminal::print(&out)
}

fn text(session: &SessionId, entries: &[Arc<Entry>]) -> String {
    let mut out = String::new();
    for entry in entries {
        match &entry.change {
            Change::Hooked { event, runs } => {
                runs.iter().for_each(|run| out.push_str(&line(&entry.seq.to_string(), event, run)));
            }
            Change::TurnEnded { quiet_hooks: quiet @ 1.., .. } => {
                let runs = if *quiet == 1 { "1 run".to_owned() } else { format!("{quiet} runs") };
                let _ = writeln!(out, "{}  {runs} of hooks did nothing", entry.seq);
            }
            // Other entries are not about hooks.
            _ => {}
        }
    }
    if out.is_empty() {
        out = format!("No hook ran in {session}.\n");
    }
    out
}

fn line(entry: &str, event: &str, run: &HookRun) -> String {
    let asked = if run.asked.is_empty() { String::new() } else { format!(": {}", run.asked) };
    let (hook, result, took) = (&run.hook, verdict(run.verdict), run.milliseconds);
    let text = format!("{entry}  {event}  {hook}  {result}{asked} ({}, {took} ms)", run.end);
    let mut out = format!("{}\n", visible(&text).replace('\n', " "));
    let stderr = (!run.stderr.is_empty()).then(|| format!("stderr: {}", run.stderr));
    for remark in run.remarks.iter().chain(&stderr) {
        for line in visible(remark).lines() {
            let _ = writeln!(out, "    {line}");
        }
    }
    out
}
