//! The invariants of a simulated world.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use epitome::acp::from_wire::ClientTraits;
use epitome::acp::model::AcpVersion;
use epitome::acp::to_wire::Cursor;
use epitome::acp::{v1, v2};
use epitome::session::SessionEvent;
use epitome::thread::{
    CallId, Change, Content, Entry, Message, Origin, OutcomeStatus, ReplyCut, SessionId, StopReason, Thread,
    Withheld,
};

use super::process::Machine;
use super::window::{Request, Shown, Window};
use super::{DEATHS_SURVIVED, Reached, World};

/// Limits of the prompts queued in a session, and of the commands queued for it.
const PROMPTS_MAX: usize = 64;
const COMMANDS_MAX: usize = 256;

pub type Log = Arc<Vec<Arc<Entry>>>;

/// The logs as read from the disk, and the parts that windows should show. Few logs change between two checks.
#[derive(Default)]
pub struct ReadLogs {
    /// With the bytes that they were read from, by session.
    logs: BTreeMap<String, (Vec<u8>, Log)>,
    /// By session, and whether the window speaks version 2.
    shown: BTreeMap<(String, bool), (Log, Arc<Shown>)>,
}

/// The logs on the disk, as processes see them.
pub fn logs(machine: &Machine) -> BTreeMap<String, Log> {
    let known = &mut machine.read.lock().logs;
    let (store, journals) = (machine.stored(), machine.journals());
    known.retain(|session, _| journals.contains_key(session));
    for (session, bytes) in journals {
        if known.get(&session).is_some_and(|(read, _)| *read == bytes) {
            continue;
        }
        match store.read(&SessionId(session.clone())) {
            Ok(log) => known.insert(session, (bytes, Arc::new(log))),
            Err(_) => known.remove(&session),
        };
    }
    known.iter().map(|(session, (_, log))| (session.clone(), log.clone())).collect()
}

/// The places of the prompts with this text in a log.
pub fn prompts<'a>(log: &'a [Arc<Entry>], text: &'a str) -> impl Iterator<Item = usize> + 'a {
    let is_it = move |message: &Message| matches!(&message.content[..], [Content::Text { text: words }] if words == text);
    let is_prompt = move |entry: &Arc<Entry>| match &entry.change {
        Change::Said { message, origin: Origin::Person } | Change::Queued { message } => is_it(message),
        _ => false,
    };
    log.iter().enumerate().filter(move |(_, entry)| is_prompt(entry)).map(|(at, _)| at)
}

/// Number of prompts with this text whose turn ended successfully.
pub fn ended(log: &[Arc<Entry>], text: &str) -> usize {
    let end_after = |at: usize| {
        log[at..].iter().find_map(|entry| match &entry.change {
            Change::TurnEnded { reason, .. } => Some(*reason),
            _ => None,
        })
    };
    let ended_well = |at: usize| {
        let taken = log[at..].iter().position(|entry| {
            matches!(entry.change, Change::Said { origin: Origin::Queue { entry: taken }, .. } if taken == log[at].seq)
        });
        // A prompt that a crash or a failed turn left in the queue has had its answer: it is read later, or not at all.
        // A hook may stop a queued prompt, which is then not said; its turn ends all the same.
        let begins = match (&log[at].change, taken) {
            (Change::Queued { .. }, Some(taken)) => taken,
            _ => 0,
        };
        let has_left_it = |entry: &Arc<Entry>| {
            let reasons = [StopReason::Interrupted, StopReason::Failed];
            matches!(entry.change, Change::TurnEnded { reason, .. } if reasons.contains(&reason))
        };
        let is_of_command = matches!(log[at].change, Change::Queued { .. })
            && taken.is_none()
            && log[at..]
                .iter()
                .take_while(|entry| !matches!(entry.change, Change::TurnEnded { .. }))
                .any(|entry| matches!(entry.change, Change::Commanded { .. }));
        let is_withdrawn = log[at..].iter().any(|entry| match (&log[at].change, &entry.change) {
            (
                Change::Queued { message: queued },
                Change::Withheld { message, why: Withheld::Cancelled, .. },
            ) => queued.id == message.id,
            _ => false,
        });
        !is_withdrawn
            && !log[at..at + begins].iter().any(has_left_it)
            && !is_of_command
            && end_after(at + begins) == Some(StopReason::EndTurn)
    };
    prompts(log, text).filter(|at| ended_well(*at)).count()
}

/// Checked after every step.
pub fn check_always(world: &World) {
    let refusals = world.machine.model.refusals();
    assert!(refusals.is_empty(), "what was sent breaks the provider's rules: {refusals:?}");
    for live in world.process.iter().flat_map(|process| process.sessions.live_sessions()) {
        assert!(live.queued_prompts <= PROMPTS_MAX + 1, "{live:?}");
        assert!(live.waiting_events <= COMMANDS_MAX, "{live:?}");
    }
    let executions = world.machine.executions.lock();
    let twice = executions.iter().find(|(_, times)| **times > 1);
    assert!(twice.is_none(), "a call ran twice: {twice:?}");
}

/// A window shows a prefix of each message that is in the log.
pub fn check_windows_show_a_prefix(world: &World) {
    let logs = logs(&world.machine);
    for window in &world.windows {
        for (session, shown) in &window.sessions {
            let Some(log) = logs.get(session) else { continue };
            let expected = shown_of(&world.machine, session, log, window.version);
            let texts: BTreeMap<&str, &str> =
                expected.texts.iter().map(|(id, text)| (id.as_str(), text.as_str())).collect();
            let cut = cut_by_a_death(log);
            for (id, seen) in &shown.texts {
                let Some(whole) = texts.get(id.as_str()) else { continue };
                let (seen, whole) = (seen.trim_matches('\n'), whole.trim_matches('\n'));
                let is_ahead = is_part_of(id, &cut) && seen.starts_with(whole);
                assert!(
                    whole.starts_with(seen)
                        || added_by_hook(whole).is_some_and(|whole| whole.starts_with(seen))
                        || is_ahead,
                    "window {} of {session}: {id} is {seen:?}, not {whole:?}",
                    window.name
                );
            }
        }
    }
}

/// Nothing that was answered is lost, and nothing that was deleted comes back.
pub fn check_acknowledged(world: &World) {
    let logs = logs(&world.machine);
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for (session, text) in &world.acknowledged {
        *counts.entry((session, text)).or_default() += 1;
    }
    let back = world.gone.iter().find(|session| logs.contains_key(*session));
    assert!(back.is_none(), "{back:?} was deleted and is there again");
    for ((session, text), count) in counts {
        if world.deleted.contains(session) {
            continue;
        }
        let ended = logs.get(session).map_or(0, |log| ended(log, text));
        assert!(
            ended >= count,
            "{text:?} was answered {count} times in {session}, and {ended} are in its log: {:?}",
            logs.get(session).map(|log| log.iter().map(|entry| entry.change.kind()).collect::<Vec<_>>())
        );
    }
}

/// Checked once the world is at rest.
pub fn check_at_rest(world: &mut World) {
    check_always(world);
    world.take_answers();
    check_acknowledged(world);
    check_files(world);
    let panics = super::PANICS.take();
    assert!(panics.is_empty(), "{panics:?}");
    let logs = logs(&world.machine);
    let mut reached = std::mem::take(&mut world.reached);
    for log in logs.values() {
        let thread = Thread::replay(log.iter().cloned()).expect("a log can be folded");
        assert!(
            thread.open_calls().is_empty() || thread.in_turn(),
            "a call without an outcome: {:?}",
            thread.open_calls()
        );
        check_outcomes(log);
        check_prompts_are_there_once(log);
        let forks = log.iter().filter(|entry| matches!(entry.change, Change::Forked { .. })).count();
        *reached.entry("a fork of a fork").or_default() += u64::from(forks > 1);
        let tasks = tasks(log);
        log.iter().for_each(|entry| note(&entry.change, &tasks, &mut reached));
    }
    for window in &world.windows {
        assert!(window.open.is_empty(), "window {}: no answer to {:?}", window.name, window.open);
        for (request, answer) in &window.answered {
            let error = answer.get("error").map(|error| error["message"].to_string());
            let deaths = world.deaths - request.deaths;
            if let Some(error) = &error {
                let may_fail =
                    matches!(request.method, "session/prompt" | "session/set_mode" | "session/fork")
                        || may_be_refused(world, &logs, request)
                        || world.had_fault
                        || deaths > DEATHS_SURVIVED;
                assert!(may_fail, "{request:?}: {answer}");
                for (words, what) in [
                    ("can't be written", "a write failed"),
                    ("could not be synced", "a sync failed"),
                    ("Interrupted", "an answer said that the turn was interrupted"),
                ] {
                    *reached.entry(what).or_default() += u64::from(error.contains(words));
                }
            } else if request.method != "session/prompt" && deaths > 0 {
                *reached.entry("a request was repeated").or_default() += 1;
            }
            let what = match request.method {
                "session/delete" => Some("a session was deleted"),
                "session/archive" => Some("a session was archived"),
                "session/set_title" => Some("a title was set"),
                _ => None,
            };
            if let Some(what) = what.filter(|_| error.is_none()) {
                *reached.entry(what).or_default() += 1;
            }
            match answer["result"]["stopReason"].as_str() {
                Some("cancelled") => *reached.entry("a prompt was cancelled").or_default() += 1,
                Some("end_turn") if request.was_lost => {
                    *reached.entry("a lost prompt was done by the next daemon").or_default() += 1;
                }
                _ => {}
            }
        }
        let is_version_2 = window.version == AcpVersion::V2;
        if !world.had_fault && !is_version_2 {
            // Also of sessions that the window has archived since.
            logs.iter().for_each(|(session, log)| check_prompts(window, session, log));
        }
        for (session, shown) in &window.sessions {
            let Some(log) = logs.get(session) else {
                // Clients of version 2 see subagents as sessions.
                let may_miss = world.had_fault || is_version_2 || world.deleted.contains(session);
                assert!(may_miss, "{session} is not there");
                continue;
            };
            if is_version_2 {
                *reached.entry("a client followed the state").or_default() += 1;
                assert!(
                    matches!(shown.state.as_str(), "" | "idle"),
                    "window {} of {session}: {}",
                    window.name,
                    shown.state
                );
            }
            // A session that could not be resumed because of a disk fault is not shown; its window has an error
            // instead.
            let may_have_lost_it = world.had_fault && world.deaths > 0;
            // Its windows are not shown what others do with it later.
            let was_archived = world.archived.contains(session);
            if !window.partial.contains(session) && !may_have_lost_it && !was_archived {
                let expected = shown_of(&world.machine, session, log, window.version);
                check_shown(window, session, (shown, &*expected), log, &mut reached);
            }
        }
    }
    reached.retain(|_, times| *times > 0);
    world.reached = reached;
}

/// Whether the request may fail because its session is deleted, still ends, or is that of an agent, which is not stored.
fn may_be_refused(world: &World, logs: &BTreeMap<String, Log>, request: &Request) -> bool {
    let ends = world.deleted.contains(&request.session) || world.archived.contains(&request.session);
    (ends || !logs.contains_key(&request.session))
        && matches!(
            request.method,
            "session/load" | "session/delete" | "session/archive" | "session/unarchive" | "session/set_title"
        )
}

fn note(change: &Change, tasks: &BTreeSet<CallId>, reached: &mut Reached) {
    let what = match change {
        Change::Queued { .. } => "a prompt was queued",
        Change::Compacted { .. } => "a compaction",
        Change::Undone { .. } => "an undo",
        Change::Forked { .. } => "a fork",
        Change::FilesRewound { .. } => "files were rewound",
        Change::Mutated { .. } => "the history was replaced",
        Change::Replied { cut: Some(ReplyCut::Broken { reason }), .. }
            if reason.contains("process ended") =>
        {
            "an interrupted reply was kept"
        }
        Change::Replied { cut: Some(_), .. } => "a reply was cut",
        Change::Withheld { why: Withheld::Cancelled, .. } => "a queued prompt was withdrawn",
        Change::TurnEnded { reason: StopReason::Failed, .. } => "a turn failed",
        Change::ToolFinished { outcome } if tasks.contains(&outcome.call) => match outcome.status {
            OutcomeStatus::Interrupted => "an agent was interrupted",
            _ => "a task had ended",
        },
        Change::ToolFinished { outcome } if outcome.status == OutcomeStatus::Interrupted => {
            "a call was interrupted"
        }
        Change::ToolFinished { outcome } if outcome.status == OutcomeStatus::Denied => "a call was refused",
        _ => return,
    };
    *reached.entry(what).or_default() += 1;
}

/// A prompt whose text was sent once is in the log once.
pub fn check_prompts_are_there_once(log: &[Arc<Entry>]) {
    let own = log.iter().rposition(|entry| matches!(entry.change, Change::Forked { .. })).unwrap_or(0);
    let mut known = BTreeSet::new();
    for entry in &log[own..] {
        if let Change::Said { message, origin: Origin::Person | Origin::Queue { .. } } = &entry.change
            && let [Content::Text { text }] = &message.content[..]
            && text.starts_with('w')
            && !text.ends_with(" p0")
        {
            assert!(known.insert(text.clone()), "{}: {text:?} is there twice", entry.seq);
        }
    }
}

/// The content of each file was written by a call, and rewinds leave no temporary files.
pub fn check_files(world: &World) {
    let written = world.machine.written.lock();
    for file in std::fs::read_dir(world.machine.project()).expect("it is there").flatten() {
        let name = file.file_name().to_string_lossy().into_owned();
        assert!(!name.starts_with('.'), "{name} was left behind");
        let text = std::fs::read_to_string(file.path()).expect("it can be read");
        assert!(written.contains(&text), "nobody wrote {text:?} into {name}");
    }
}

/// Each call has one outcome, after the reply that made it.
pub fn check_outcomes(log: &[Arc<Entry>]) {
    let (mut made, mut ended) = (BTreeSet::new(), BTreeSet::new());
    for entry in log {
        match &entry.change {
            Change::Replied { message, .. } => made.extend(message.calls().map(|call| call.id.clone())),
            Change::ToolFinished { outcome } => {
                assert!(made.contains(&outcome.call), "{}: nobody made {:?}", entry.seq, outcome.call);
                assert!(ended.insert(outcome.call.clone()), "{}: {:?} ended twice", entry.seq, outcome.call);
            }
            _ => {}
        }
    }
}

/// Responses to prompts agree with the log.
fn check_prompts(window: &Window, session: &str, log: &[Arc<Entry>]) {
    // Prompts from before a fork were sent to another session.
    let own = log.iter().rposition(|entry| matches!(entry.change, Change::Forked { .. })).unwrap_or(0);
    let log = &log[own..];
    let mut answered: BTreeMap<&str, usize> = BTreeMap::new();
    for (request, answer) in &window.answered {
        let is_prompt = request.method == "session/prompt" && !request.text.starts_with('/');
        if is_prompt && request.session == session {
            let count = answered.entry(&request.text).or_default();
            *count += usize::from(answer["result"]["stopReason"] == "end_turn");
        }
    }
    for (text, count) in answered {
        let ended = ended(log, text);
        let answers = || {
            let of_text = window.answered.iter().filter(|(request, _)| request.text == text);
            of_text.map(|(_, answer)| answer.to_string()).collect::<Vec<_>>()
        };
        let kinds = || log.iter().map(|entry| entry.change.kind()).collect::<Vec<_>>();
        // A prompt that a crash left in the queue has its answer, and is read with a later one.
        let is_kept = |answer: &String| answer.contains("read with your next prompt");
        let kept = answers().iter().filter(|answer| is_kept(answer)).count();
        assert!(
            count <= ended && ended <= count + kept,
            "window {}: {text:?} ended {ended} times in {session}; answers: {:?}; log: {:?}",
            window.name,
            answers(),
            kinds()
        );
    }
}

/// The expected content of a window that has seen the complete log.
pub fn shown_of(machine: &Machine, session: &str, log: &Log, version: AcpVersion) -> Arc<Shown> {
    let known = &mut machine.read.lock().shown;
    let key = (session.to_owned(), version == AcpVersion::V2);
    match known.get(&key) {
        Some((of, shown)) if Arc::ptr_eq(of, log) => shown.clone(),
        Some(_) | None => {
            let shown = Arc::new(translated(session, log, version));
            known.insert(key, (log.clone(), shown.clone()));
            shown
        }
    }
}

fn translated(session: &str, log: &[Arc<Entry>], version: AcpVersion) -> Shown {
    let mut expected = Shown::default();
    let traits = match version {
        AcpVersion::V1 => ClientTraits::default(),
        AcpVersion::V2 => ClientTraits::from_initialize(None, AcpVersion::V2),
    };
    let (mut cursor, mut updates) = (Cursor::new(&SessionId(session.to_owned())), Vec::new());
    for entry in log {
        let out = SessionEvent::Entry { entry: entry.clone(), replay: false, own: false };
        cursor.translate(out, &traits, &mut updates);
    }
    for update in updates {
        match version {
            AcpVersion::V1 => v1::project(update, &mut |update| {
                expected.take(&serde_json::to_value(update).expect("an update is JSON"));
            }),
            AcpVersion::V2 => v2::project(update, &mut |update| {
                expected.take(&serde_json::to_value(update).expect("an update is JSON"));
            }),
        }
    }
    expected
}

/// Ids of replies whose log contains less text than was shown: the text of the last second before a daemon's death.
fn cut_by_a_death(log: &[Arc<Entry>]) -> BTreeSet<String> {
    let cut = log.iter().filter_map(|entry| match &entry.change {
        Change::Replied { message, cut: Some(ReplyCut::Broken { reason }), .. }
            if reason.contains("process ended") =>
        {
            Some(message.id.to_string())
        }
        _ => None,
    });
    cut.collect()
}

/// The words of a message that a hook added. Version 1 shows them as a line of the agent in the running turn, after the
/// hook's name, and as a message when the session is loaded.
fn added_by_hook(line: &str) -> Option<&str> {
    Some(line.strip_prefix("↻ ")?.split_once(": ")?.1)
}

/// Whether the id is that of a part of one of the messages.
fn is_part_of(id: &str, messages: &BTreeSet<String>) -> bool {
    id.split('.').next().is_some_and(|message| messages.contains(message))
}

/// A window shows the log: the complete text of each message once, in order, and the outcome of each call.
pub fn check_shown(
    window: &Window,
    session: &str,
    (shown, expected): (&Shown, &Shown),
    log: &[Arc<Entry>],
    reached: &mut Reached,
) {
    let who = format!("window {} of {session}", window.name);
    let texts: BTreeMap<&str, &str> =
        shown.texts.iter().map(|(id, text)| (id.as_str(), text.as_str())).collect();
    // The editor itself shows the prompts that it sent.
    let own = format!("w{} ", window.name);
    let shows_own = window.version == AcpVersion::V2;
    let is_own = |text: &str| !shows_own && (text.starts_with(&own) || text.starts_with('/'));
    let cut = cut_by_a_death(log);
    let mut order = Vec::new();
    for (id, text) in &expected.texts {
        match texts.get(id.as_str()) {
            Some(seen) => {
                let (seen, text) = (seen.trim_matches('\n'), text.trim_matches('\n'));
                let is_same = seen == text
                    || added_by_hook(text) == Some(seen)
                    || is_part_of(id, &cut) && seen.starts_with(text);
                let kinds: Vec<_> = log.iter().map(|entry| entry.change.kind()).collect();
                assert!(is_same, "{who}: {id} is {seen:?}, not {text:?}; {kinds:?}");
                // A replay shows a prompt that a crash left in the queue at the position where it was queued.
                if !text.starts_with('w') && !text.starts_with('/') {
                    order.push(id.as_str());
                }
            }
            None => assert!(is_own(text), "{who}: {id} is missing: {text:?}"),
        }
    }
    let seen: Vec<&str> =
        shown.texts.iter().map(|(id, _)| id.as_str()).filter(|id| order.contains(id)).collect();
    assert_eq!(seen, order, "{who}");
    let (own, of_agents): (BTreeMap<_, _>, BTreeMap<_, _>) =
        shown.calls.clone().into_iter().partition(|(call, _)| expected.calls.contains_key(call));
    assert_eq!(own, expected.calls, "{who}");
    // Calls of subagents are shown where the user was asked about them.
    assert!(of_agents.is_empty() || !tasks(log).is_empty(), "{who}: nobody made {of_agents:?}");
    *reached.entry("a call of an agent was asked about").or_default() += of_agents.len() as u64;
}

/// The calls that started a subagent.
fn tasks(log: &[Arc<Entry>]) -> BTreeSet<CallId> {
    let calls = log.iter().flat_map(|entry| match &entry.change {
        Change::Replied { message, .. } => message.calls().collect::<Vec<_>>(),
        _ => Vec::new(),
    });
    calls.filter(|call| call.name == "task").map(|call| call.id.clone()).collect()
}
