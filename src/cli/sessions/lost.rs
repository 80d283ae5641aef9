//! `epitome sessions lost`: shows what another agent's compaction lost.

use std::fmt::Write as _;

use super::{find, local_time, print_json};
use crate::cli::CliError;
use crate::cli::terminal;
use crate::compaction::{self, LostContent, LostKind};
use crate::session_library;
use crate::store::Store;
use crate::thread::visible::one_line;
use crate::thread::{Change, Seq, Thread, text};
use crate::transfer::ENCRYPTED;

/// Maximum number of items of each kind that are shown.
const SHOWN_MAX: usize = 12;

/// Maximum length of an item's text, in characters.
const TEXT_CHARS_MAX: usize = 72;

pub(super) fn lost(store: &Store, id: &str, json: bool) -> Result<i32, CliError> {
    let session = find(store, id)?;
    let thread = session_library::read(store, &session)?.thread;
    let lost = compaction::lost(&thread);
    if json {
        return print_json(&lost).map(|()| 0);
    }
    let mut out = lost.as_ref().map_or_else(|| format!("No other agent has compacted {session}.\n"), report);
    if lost.is_some_and(|lost| is_encrypted(&thread, lost.entry)) {
        out.push_str("Its summary is encrypted, so only what was kept in plain text could be compared.\n");
    }
    terminal::print_visible(&out).map(|()| 0)
}

fn is_encrypted(thread: &Thread, compaction: Seq) -> bool {
    let entry = thread.entries().iter().find(|entry| entry.seq == compaction);
    entry.is_some_and(|entry| match &entry.change {
        Change::Compacted { summary, .. } => summary.text().contains(ENCRYPTED),
        _ => false,
    })
}

fn report(lost: &LostContent) -> String {
    let which = match lost.compactions {
        1 => "The compaction".to_owned(),
        count => format!("The newest of {count} compactions"),
    };
    let mut out = format!(
        "{which} ({}, {}) left a summary of {} tokens. It no longer mentions\n",
        lost.entry,
        local_time(lost.at),
        text::tokens(lost.tokens),
    );
    for (kind, count) in lost.counts.iter().filter(|(_, count)| *count > 0) {
        let forgotten: Vec<_> = lost.forgotten.iter().filter(|item| item.kind == *kind).collect();
        let what = match kind {
            LostKind::Said => "of your messages",
            LostKind::File => "changed files",
            LostKind::Failing => "commands that failed when last run",
            LostKind::Step => "open steps of the plan",
        };
        let _ = writeln!(out, "\n  {} of {count} {what}", forgotten.len());
        for item in forgotten.iter().rev().take(SHOWN_MAX) {
            let mark = if item.is_ours { "kept" } else { "    " };
            let entry = item.entry.map(|entry| entry.to_string()).unwrap_or_default();
            let _ = writeln!(out, "    {mark}  {entry:<6} {}", one_line(&item.text, TEXT_CHARS_MAX));
        }
        if forgotten.len() > SHOWN_MAX {
            let _ = writeln!(out, "          and {} more", forgotten.len() - SHOWN_MAX);
        }
    }
    let ours = lost.forgotten.iter().filter(|item| item.is_ours).count();
    let tokens = text::tokens(lost.our_tokens);
    let _ = match lost.forgotten.len() {
        0 => writeln!(
            out,
            "\nNothing of this is missing. A compaction by Epitome would have taken {tokens} tokens."
        ),
        count => writeln!(
            out,
            "\nOf these {count}, a compaction by Epitome without a model would have kept {ours}, in {tokens} tokens \
             (marked \"kept\")."
        ),
    };
    out
}
