//! Compacts real sessions, if available: every session, in every window and with every trigger.
//!
//! A user's session with a pasted `git log --graph` once made the fact extraction panic, and could never be compacted
//! again. Generated conversations had not contained such a text. The sessions are public, but may not be redistributed:
//! `benches/keep/fetch-corpus.py` creates the directory, and `EPITOME_CORPUS` names it (`../shared/corpus` by default).
//! If it is missing, the test prints a message and passes.

use std::path::{Path, PathBuf};

use epitome::compaction::{
    Budget, CompactionDecision, CompactionInput, CompactionRequest, KeptTail, Summary, compacted, decide,
    pruned,
};
use epitome::config::Settings;
use epitome::thread::{Change, SessionId, Thread, Trigger};
use epitome::tokens::Ruler;
use epitome_import::{ImportContext, read};

fn sessions() -> Vec<PathBuf> {
    let named = std::env::var_os("EPITOME_CORPUS").map(PathBuf::from);
    let corpus = named.unwrap_or_else(|| PathBuf::from("../shared/corpus"));
    let folder = corpus.join("sessions");
    let Ok(files) = std::fs::read_dir(&folder) else {
        println!("skipped: there are no sessions in {}", folder.display());
        return Vec::new();
    };
    let files = files.filter_map(|file| Some(file.ok()?.path()));
    files.filter(|file| file.extension().is_some_and(|extension| extension == "jsonl")).collect()
}

fn thread(file: &Path) -> Thread {
    let text = std::fs::read_to_string(file).expect("the session can be read");
    let context = ImportContext { cwd: Path::new("/w"), now: 0, read_sibling: &|_| None };
    let mut drafts = read(file, &text, &context).expect("the session can be imported");
    let name = SessionId("s_00000000000000000001".into());
    Thread::replay(drafts.remove(0).into_entries(&name)).expect("the import is a log")
}

/// The tokens of this thread after an automatic compaction in a window, and the text of the message.
fn left(thread: &Thread, window: u64, trigger: Trigger, keep: KeptTail) -> Option<(u64, String)> {
    let ruler = Ruler::for_model(None);
    let frame = 8_000.min(window / 8);
    let budget = Budget::new(&Settings::default().compaction, window, (window / 4).min(16_384), frame);
    let request = CompactionRequest { trigger, keep, focus: None, summary: false };
    let change = match decide(&CompactionInput::new(&ruler, thread, &budget), &request) {
        CompactionDecision::Nothing(_) => return None,
        CompactionDecision::Prune(masks) => pruned(&ruler, thread, masks, trigger),
        CompactionDecision::Summarise(plan) => compacted(
            &CompactionInput::new(&ruler, thread, &budget),
            &plan,
            thread.next_message(),
            Summary::default(),
        )
        .unwrap_or_else(|why| panic!("a window of {window}, {trigger:?}: {why}")),
    };
    match change {
        Change::Compacted { summary, tokens_after, .. } => {
            assert!(tokens_after <= budget.room(), "{tokens_after} of {}", budget.room());
            Some((tokens_after, summary.text()))
        }
        Change::Pruned { tokens_after, .. } => Some((tokens_after, String::new())),
        other => panic!("{} is no compaction", other.kind()),
    }
}

#[test]
fn every_real_session_can_be_compacted_in_every_window() {
    let files = sessions();
    for file in &files {
        let thread = thread(file);
        let name = file.file_stem().unwrap_or_default().to_string_lossy();
        for window in [8_192, 32_768, 65_536, 200_000] {
            for (trigger, keep) in [
                (Trigger::Manual, KeptTail::Nothing),
                (Trigger::Threshold, KeptTail::Ratio(0.4)),
                (Trigger::Must, KeptTail::Ratio(0.4)),
                (Trigger::Overflow, KeptTail::Ratio(0.4)),
            ] {
                let Some((_, message)) = left(&thread, window, trigger, keep) else { continue };
                assert!(!message.contains("Could not be computed"), "{name}: {message}");
            }
        }
    }
    println!("{} sessions", files.len());
}
