//! Properties of a thread: its view is a function of its log, however the log was created.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use epitome::thread::edits::{Replacement, check, mutation};
use epitome::thread::{
    CallDisplay, CallId, Change, Content, Entry, EntryVisibility, FORMAT_VERSION, HistoryMessage, Message,
    MessageId, ModelName, Native, Origin, OutcomeStatus, PartId, ReplayError, Role, Seq, SessionId,
    StopReason, Thread, ToolCall, ToolOutcome, Trigger, Usage, View, ViewEdit, ViewItem, Withheld,
};
use epitome::tokens::{Counter, Ruler};
use proptest::prelude::*;

/// One step of a generated conversation.
#[derive(Clone, Debug)]
enum Step {
    Said(String),
    /// A reply with this many calls, whose outcomes arrive in this order; a short order leaves calls open.
    Replied(String, Vec<usize>, Vec<usize>),
    Compacted,
    /// Replaces the history with these messages, except for this many of the newest entries.
    Mutated(Vec<(Role, String)>, usize),
    /// Tries these edits, each of the part at this index of the view; refused edits are not appended.
    Edited(Vec<(usize, Op)>),
    /// Follow-ups and context are user messages for the model.
    ForModel(String, Origin),
    Withheld(String),
    Undone,
    /// Undoes, or redoes, the layer at this index of all, if possible.
    Toggled(usize),
    ThinkingDropped,
    /// Rewinds to before the turn at this index of all, if possible.
    Rewound(usize),
    Ended,
}

#[derive(Clone, Debug)]
enum Op {
    Pin,
    Unpin,
    Mask,
    Drop,
    Replace,
    Append(Role),
}

fn edits() -> impl Strategy<Value = Vec<(usize, Op)>> {
    let op = prop_oneof![
        1 => Just(Op::Pin),
        1 => Just(Op::Unpin),
        2 => Just(Op::Mask),
        3 => Just(Op::Drop),
        1 => Just(Op::Replace),
        1 => roles().prop_map(Op::Append),
    ];
    prop::collection::vec((0..24usize, op), 1..5)
}

fn roles() -> impl Strategy<Value = Role> {
    prop_oneof![Just(Role::User), Just(Role::Assistant), Just(Role::System)]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => "[a-z]{1,8}".prop_map(Step::Said),
        4 => ("[a-z]{0,8}", 0usize..4).prop_flat_map(|(text, calls)| {
            let all: Vec<usize> = (0..calls).collect();
            let order = Just(all.clone()).prop_shuffle();
            (Just(text), Just(all), order, 0..=calls).prop_map(|(text, all, order, finished)| {
                Step::Replied(text, all, order.into_iter().take(finished).collect())
            })
        }),
        1 => Just(Step::Compacted),
        1 => (prop::collection::vec((roles(), "[a-z]{1,8}"), 1..4), 0..6usize)
            .prop_map(|(messages, kept)| Step::Mutated(messages, kept)),
        3 => edits().prop_map(Step::Edited),
        1 => ("[a-z]{1,8}", any::<bool>()).prop_map(|(text, follow_up)| match follow_up {
            true => Step::ForModel(text, Origin::Hook { hook: "lint".into() }),
            false => Step::ForModel(text, Origin::Context { by: "lint".into() }),
        }),
        1 => "[a-z]{1,8}".prop_map(Step::Withheld),
        2 => Just(Step::Undone),
        2 => (0..16usize).prop_map(Step::Toggled),
        1 => Just(Step::ThinkingDropped),
        1 => (0..8usize).prop_map(Step::Rewound),
        2 => Just(Step::Ended),
    ];
    prop::collection::vec(step, 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn a_live_thread_equals_its_replay(steps in steps()) {
        let live = play(&steps);
        let cold = Thread::replay(live.entries().iter().cloned()).expect("what was applied can be replayed");
        prop_assert_eq!(shown(live.view()), shown(cold.view()));
        prop_assert_eq!(live.view().revision(), cold.view().revision());
        prop_assert_eq!(live.next_message(), cold.next_message());
        prop_assert_eq!(live.open_calls(), cold.open_calls());
        prop_assert_eq!(live.in_turn(), cold.in_turn());
        prop_assert_eq!(live.spent(), cold.spent());
        prop_assert_eq!(live.pins(), cold.pins());
    }

    #[test]
    fn an_incremental_view_equals_a_cold_fold(steps in steps()) {
        let live = play(&steps);
        let mut undone = HashSet::new();
        for entry in live.entries() {
            match entry.change {
                Change::Undone { entry } => drop(undone.insert(entry)),
                Change::Redone { entry } => drop(undone.remove(&entry)),
                _ => {}
            }
        }
        let cold = View::fold(live.entries(), &undone);
        prop_assert_eq!(shown(live.view()), shown(&cold));
        prop_assert_eq!(parts(live.view()), parts(&cold));
        prop_assert_eq!(live.view().revision(), cold.revision());
    }

    #[test]
    fn outcomes_follow_their_reply_in_the_order_of_its_calls(steps in steps()) {
        let thread = play(&steps);
        let items = thread.view().items();
        for (at, item) in items.iter().enumerate() {
            let ViewItem::Outcomes(outcomes) = item else { continue };
            let Some(ViewItem::Agent(reply, _)) = at.checked_sub(1).map(|before| &items[before]) else {
                panic!("outcomes without a reply before them")
            };
            let calls: Vec<&CallId> = reply.calls().map(|call| &call.id).collect();
            let ranks: Vec<usize> = outcomes
                .iter()
                .map(|outcome| calls.iter().position(|call| **call == outcome.call).expect("its reply's outcome"))
                .collect();
            prop_assert!(ranks.is_sorted_by(|a, b| a < b), "{ranks:?}");
        }
    }

    /// With a provider that reports no usage, the entire view would otherwise be counted at every reply.
    #[test]
    fn incremental_token_counts_equal_a_full_count(steps in steps(), reported: Vec<bool>) {
        let all = play(&steps);
        let mut thread = Thread::replay([all.entries()[0].clone()]).expect("an opened thread");
        let ruler = Ruler::for_model(None);
        let mut counter = Counter::default();
        for (at, entry) in all.entries().iter().enumerate().skip(1) {
            let mut entry = Entry::clone(entry);
            if let Change::Replied { usage, .. } = &mut entry.change
                && reported.get(at) == Some(&true)
            {
                *usage = Some(Usage { input: 1_000, output: at as u64, ..Usage::default() });
            }
            thread.apply(Arc::new(entry));
            prop_assert_eq!(counter.in_context(&ruler, &thread), ruler.in_context(&thread));
        }
    }

    /// A call and its outcome are both in the view or both absent, whatever hooks requested.
    #[test]
    fn no_call_is_separated_from_its_outcome(steps in steps()) {
        let thread = play(&steps);
        let finished: HashSet<&CallId> = thread.entries().iter().filter_map(|entry| match &entry.change {
            Change::ToolFinished { outcome } => Some(&outcome.call),
            _ => None,
        }).collect();
        let shown = |seen: fn(&Change) -> Vec<&CallId>| -> HashSet<&CallId> {
            thread.view().entries().iter().flat_map(|entry| seen(&entry.change)).collect()
        };
        let called = shown(|change| match change {
            Change::Replied { message, .. } => message.calls().map(|call| &call.id).collect(),
            _ => Vec::new(),
        });
        let answered = shown(|change| match change {
            Change::ToolFinished { outcome } => vec![&outcome.call],
            _ => Vec::new(),
        });
        prop_assert_eq!(called.intersection(&finished).copied().collect::<HashSet<_>>(), answered);
    }

    /// A valid view remains valid after any accepted edits and mutations.
    #[test]
    fn a_view_that_begins_with_the_user_still_does_after_any_edits(steps in steps()) {
        let mut begun = vec![Step::Said("begin".into())];
        begun.extend(steps);
        let thread = play(&begun);
        let first = thread.view().entries().first().map(|entry| &entry.change);
        prop_assert!(matches!(first, Some(Change::Said { .. } | Change::Compacted { .. })), "{first:?}");
    }

    #[test]
    fn a_refusal_names_the_edit_and_accepted_edits_keep_every_pin(steps in steps(), edits in edits()) {
        let mut thread = play(&steps);
        let pins = thread.pins();
        let kept = |thread: &Thread| -> Vec<Option<String>> {
            pins.iter().map(|(part, _)| thread.view().piece(*part).map(|piece| piece.text())).collect()
        };
        let (shown_before, kept_before) = (shown(thread.view()), kept(&thread));
        let asked = asked_for(&thread, &edits);
        match check(&thread, thread.view().revision(), thread.next_message(), &asked) {
            Err(why) => {
                prop_assert!(why.to_string().starts_with("edit "), "{why}");
                prop_assert_eq!(shown(thread.view()), shown_before);
            }
            Ok(edits) => {
                let is_layer = edits.iter().any(|edit| !edit.only_pins());
                let rewrites = edits.iter().any(ViewEdit::rewrites);
                let revision = thread.view().revision();
                let unpinned = edits.iter().any(|edit| matches!(edit, ViewEdit::Unpin { .. }));
                let layer = append(&mut thread, Change::Edited { by: "h".into(), edits });
                prop_assert!(unpinned || kept(&thread) == kept_before);
                prop_assert_eq!(thread.view().revision(), if rewrites { layer } else { revision });
                if is_layer {
                    prop_assert_eq!(thread.last_layer().map(|entry| entry.seq), Some(layer));
                    append(&mut thread, Change::Undone { entry: layer });
                }
                prop_assert_eq!(shown(thread.view()), shown_before);
            }
        }
    }

    /// Any number of layers, undone one after another: each time, the view equals the earlier one.
    #[test]
    fn undos_restore_the_earlier_views(steps in steps(), layers in prop::collection::vec(layer(), 1..5)) {
        let mut thread = play(&steps);
        let mut views = Vec::new();
        for layer in &layers {
            let (before, newest) = (shown(thread.view()), thread.last_layer().map(|entry| entry.seq));
            take_step(&mut thread, layer);
            if thread.last_layer().map(|entry| entry.seq) != newest {
                views.push(before);
            }
        }
        for before in views.into_iter().rev() {
            take_step(&mut thread, &Step::Undone);
            prop_assert_eq!(shown(thread.view()), before);
        }
    }

    /// For any log and any of its turns: a rewind restores the view before that turn, byte for byte, and its
    /// undo the view before the rewind.
    #[test]
    fn a_rewind_restores_the_view_before_the_turn(steps in steps(), at in 0..8usize) {
        let mut thread = play(&steps);
        let turns = thread.prompted_turns();
        let Some(turn) = turns.get(at % turns.len().max(1)) else { return Ok(()) };
        let pins = thread.pins();
        if thread.can_rewind(turn.start).is_err() {
            return Ok(());
        }
        let before = shown(thread.view());
        let rewind = append(&mut thread, Change::Rewound { to: turn.start });
        prop_assert_eq!(thread.pins(), pins);
        prop_assert_eq!(thread.last_layer().map(|layer| layer.seq), Some(rewind));
        // An older layer that was undone or redone since then keeps that state.
        let switched = thread.entries().since(turn.start).any(|entry| match entry.change {
            Change::Undone { entry } | Change::Redone { entry } => entry < turn.start,
            _ => false,
        });
        if !switched {
            let then = Thread::replay(thread.entries().before(turn.start).cloned()).expect("a log");
            prop_assert_eq!(shown(thread.view()), shown(then.view()));
        }
        if thread.can_undo(rewind).is_ok() {
            append(&mut thread, Change::Undone { entry: rewind });
            prop_assert_eq!(shown(thread.view()), before);
        }
    }

    /// For any log and any of its layers: undo and redo restore the view byte for byte, and keep later
    /// messages; a layer within another layer is refused.
    #[test]
    fn an_undo_and_its_redo_restore_the_view(steps in steps(), since in "[a-z]{1,8}", at in 0..16usize) {
        let mut thread = play(&steps);
        let layers = thread.layers();
        let holding: Vec<_> = layers.iter().filter(|layer| layer.holds).collect();
        prop_assert_eq!(holding.last().map(|layer| layer.entry), thread.last_layer().map(|entry| entry.seq));
        for layer in &layers {
            if let Some(outer) = layer.inside {
                prop_assert!(outer > layer.entry && !thread.is_undone(outer));
                prop_assert!(thread.can_undo(layer.entry).is_err() && thread.can_redo(layer.entry).is_err());
            }
        }
        let Some(layer) = holding.get(at % holding.len().max(1)).map(|layer| layer.entry) else { return Ok(()) };
        if thread.can_undo(layer).is_err() {
            return Ok(());
        }
        let before = shown(thread.view());
        append(&mut thread, Change::Undone { entry: layer });
        prop_assert_eq!(thread.last_undone(), Some(layer));
        let id = thread.next_message();
        let later = append(&mut thread, said(id, &since));
        prop_assert_eq!(thread.view().entries().last().map(|entry| entry.seq), Some(later));
        if thread.can_redo(layer).is_ok() {
            append(&mut thread, Change::Redone { entry: layer });
            let mut after = shown(thread.view());
            let last = after.pop();
            prop_assert!(last.is_some());
            prop_assert_eq!(after, before);
            prop_assert_eq!(thread.view().entries().last().map(|entry| entry.seq), Some(later));
        }
    }

    #[test]
    fn a_mutation_replaces_only_the_history_it_was_made_from(
        steps in steps(), since in "[a-z]{1,8}", kept in 0..6usize,
    ) {
        let mut thread = play(&steps);
        let spoken = spoken(&[(Role::Assistant, "so far".into())]);
        let Ok(made) = mutation(&thread, thread.view().revision(), thread.next_message(), spoken, kept) else {
            prop_assert!(!thread.open_calls().is_empty());
            return Ok(());
        };
        let behind = thread.view().kept_after(made.through).to_vec();
        let replaced = thread.view().replaced_by(made.through).entries().len();
        prop_assert_eq!(&thread.view().entries()[replaced..], behind.as_slice());
        let id = MessageId(thread.next_message().0 + made.messages.len() as u64);
        append(&mut thread, said(id, &since));
        append(&mut thread, mutated(made));
        let texts: Vec<String> =
            thread.view().pieces().iter().take(2).map(|(_, piece)| piece.text()).collect();
        prop_assert_eq!(texts, ["(The conversation goes on from here.)", "so far"]);
        let entries = thread.view().entries();
        prop_assert_eq!(&entries[2..entries.len() - 1], behind.as_slice());
        let last = thread.view().pieces().last().map(|(_, piece)| piece.text());
        prop_assert_eq!(last, Some(since));
    }

    #[test]
    fn an_undo_immediately_after_a_compaction_restores_the_view(steps in steps()) {
        let mut thread = play(&steps);
        let before = shown(thread.view());
        let compaction = compact(&mut thread);
        prop_assert_eq!(thread.view().entries().len(), 1);
        append(&mut thread, Change::Undone { entry: compaction });
        prop_assert_eq!(shown(thread.view()), before);
    }
}

#[test]
fn messages_after_a_compaction_survive_its_undo() {
    let mut thread = play(&[Step::Said("one".into()), Step::Replied("two".into(), vec![], vec![])]);
    let compaction = compact(&mut thread);
    let id = thread.next_message();
    append(&mut thread, said(id, "three"));
    append(&mut thread, Change::Undone { entry: compaction });
    let texts: Vec<String> = thread
        .view()
        .items()
        .iter()
        .map(|item| match item {
            ViewItem::User(message) | ViewItem::Summary(message) | ViewItem::Agent(message, _) => {
                message.text()
            }
            ViewItem::Outcomes(_) => String::new(),
        })
        .collect();
    assert_eq!(texts, ["one", "two", "three"]);
}

/// Whether the view has only grown since this entry.
fn is_unchanged_since(thread: &Thread, seq: Seq) -> bool {
    thread.newest_unchanged(|entry| (entry.seq == seq).then_some(())).is_some()
}

#[test]
fn undoing_a_compaction_restores_the_context_of_an_earlier_reply() {
    let mut thread = play(&[Step::Said("one".into()), Step::Replied("two".into(), vec![], vec![])]);
    let first = thread.entries().last().expect("a reply").seq;
    assert!(is_unchanged_since(&thread, first));
    let compaction = compact(&mut thread);
    assert!(!is_unchanged_since(&thread, first));
    let id = thread.next_message();
    append(&mut thread, said(id, "three"));
    let second = thread.entries().last().expect("an entry").seq;
    assert!(is_unchanged_since(&thread, second));
    append(&mut thread, Change::Undone { entry: compaction });
    assert!(is_unchanged_since(&thread, first));
    assert!(!is_unchanged_since(&thread, second));
}

#[test]
fn a_redo_restores_the_context_of_its_layer() {
    let mut thread = play(&[Step::Said("one".into()), Step::Replied("two".into(), vec![], vec![])]);
    let first = thread.entries().last().expect("a reply").seq;
    let compaction = compact(&mut thread);
    append(&mut thread, Change::Undone { entry: compaction });
    let id = thread.next_message();
    let between = append(&mut thread, said(id, "three"));
    append(&mut thread, Change::Redone { entry: compaction });
    assert!(is_unchanged_since(&thread, compaction));
    assert!(!is_unchanged_since(&thread, between) && !is_unchanged_since(&thread, first));
}

/// A provider's token count and signature of a reply are valid as long as nothing before it changes.
#[test]
fn an_edit_invalidates_the_context_of_a_reply_unless_it_only_adds() {
    let at = PartId { entry: Seq(1), part: None };
    let content = vec![Content::Text { text: "instead".into() }];
    let message = Message { id: MessageId(9), content: content.clone(), author: None };
    let cases = [
        (ViewEdit::Mask { at, note: String::new() }, false),
        (ViewEdit::Drop { at }, false),
        (ViewEdit::Replace { at, content }, false),
        (ViewEdit::Append { role: Role::User, message }, true),
        (ViewEdit::Pin { at }, true),
        (ViewEdit::Unpin { at }, true),
    ];
    for (edit, still) in cases {
        let mut thread = play(&[Step::Said("one".into()), Step::Replied("two".into(), vec![], vec![])]);
        let reply = thread.entries().last().expect("a reply").seq;
        let layer = append(&mut thread, Change::Edited { by: "h".into(), edits: vec![edit.clone()] });
        assert_eq!(is_unchanged_since(&thread, reply), still, "{edit:?}");
        append(&mut thread, Change::Undone { entry: layer });
        assert!(is_unchanged_since(&thread, reply), "{edit:?}");
    }
}

#[test]
fn a_second_outcome_of_a_call_is_not_in_the_view() {
    let mut thread = play(&[Step::Replied("go".into(), vec![0], vec![0])]);
    let before = shown(thread.view());
    let call = thread.entries().iter().find_map(|entry| match &entry.change {
        Change::ToolFinished { outcome } => Some(outcome.call.clone()),
        _ => None,
    });
    append(&mut thread, outcome(&call.expect("one call finished").0));
    assert_eq!(shown(thread.view()), before);
}

#[test]
fn invalid_logs_are_refused_with_a_specific_error() {
    assert_eq!(Thread::replay([]).expect_err("no entry"), ReplayError::Empty);
    let entry = Arc::new(Entry { seq: Seq(0), at: 0, change: Change::Titled { title: "x".into() } });
    assert_eq!(Thread::replay([entry]).expect_err("no opening"), ReplayError::NotOpened);

    let future = Change::Opened { format: FORMAT_VERSION + 1, session: session(), cwd: PathBuf::from("/w") };
    let entry = Arc::new(Entry { seq: Seq(0), at: 0, change: future });
    let found = FORMAT_VERSION + 1;
    assert_eq!(Thread::replay([entry]).expect_err("a future log"), ReplayError::Future { found });

    let mut entries: Vec<_> =
        play(&[Step::Said("one".into()), Step::Said("two".into())]).entries().iter().cloned().collect();
    entries.remove(1);
    let gap = ReplayError::Gap { expected: Seq(1), found: Seq(2) };
    assert_eq!(Thread::replay(entries).expect_err("a hole"), gap);
}

/// The storage format is a contract with every existing journal: this text must remain readable forever.
#[test]
fn a_stored_entry_of_format_1_keeps_its_meaning() {
    let stored = r#"{"seq":3,"at":1790000000000,"change":"said","message":{"id":2,"content":[{"type":"text","text":"hi"}]},"origin":{"from":"recipe","recipe":"init","typed":"/init"}}"#;
    let entry: Entry = serde_json::from_str(stored).expect("a stored entry");
    let origin = Origin::Recipe { recipe: "init".into(), typed: "/init".into() };
    let message =
        Message { id: MessageId(2), content: vec![Content::Text { text: "hi".into() }], author: None };
    assert_eq!(entry, Entry { seq: Seq(3), at: 1_790_000_000_000, change: Change::Said { message, origin } });
    assert_eq!(serde_json::to_string(&entry).expect("an entry is JSON"), stored);
}

/// The usage of subagents and callbacks was not logged, so a user who reopened a session no longer saw it in the
/// totals.
#[test]
fn usage_outside_the_conversation_is_stored_and_counted() {
    let stored = r#"{"seq":1,"at":1790000000000,"change":"spent","model":"a/b","usage":{"input":7,"output":2,"cache_read":0,"cache_write":0,"thinking":0},"by":"explore"}"#;
    let entry: Entry = serde_json::from_str(stored).expect("a stored entry");
    let usage = Usage { input: 7, output: 2, ..Usage::default() };
    let change = Change::Spent { model: ModelName("a/b".into()), usage, by: "explore".into() };
    assert_eq!(entry, Entry { seq: Seq(1), at: 1_790_000_000_000, change });
    assert_eq!(serde_json::to_string(&entry).expect("an entry is JSON"), stored);
    let mut thread = play(&[]);
    thread.apply(Arc::new(entry));
    assert_eq!((thread.spent(), thread.in_turn(), thread.view().entries().len()), (usage, false, 0));
}

fn play(steps: &[Step]) -> Thread {
    let opened = Change::Opened { format: FORMAT_VERSION, session: session(), cwd: PathBuf::from("/w") };
    let mut thread =
        Thread::replay([Arc::new(Entry { seq: Seq(0), at: 0, change: opened })]).expect("an opened thread");
    for step in steps {
        take_step(&mut thread, step);
    }
    thread
}

fn take_step(thread: &mut Thread, step: &Step) {
    match step {
        Step::Said(text) => {
            let id = thread.next_message();
            append(thread, said(id, text));
        }
        Step::Replied(text, calls, finished) => {
            let id = thread.next_message();
            let name = |call: &usize| format!("{id}_{call}");
            let native =
                Some(Native { provider: "a".into(), model: "b".into(), data: serde_json::json!({}) });
            let thinking = Content::Thinking { text: "hm".into(), native };
            let mut content = vec![thinking, Content::Text { text: text.clone() }];
            content.extend(calls.iter().map(|call| {
                Content::Call(ToolCall {
                    id: CallId(name(call)),
                    name: "tool".into(),
                    input: serde_json::json!({}),
                    card: CallDisplay::default(),
                })
            }));
            let usage = Usage { input: 10, output: 1, ..Usage::default() };
            let message = Message { id, content, author: None };
            let model = ModelName("a/b".into());
            append(thread, Change::Replied { message, model, usage: Some(usage), cut: None });
            for call in finished {
                append(thread, outcome(&name(call)));
            }
        }
        Step::Compacted => {
            compact(thread);
        }
        Step::Mutated(messages, kept) => {
            let spoken = spoken(messages);
            let revision = thread.view().revision();
            if let Ok(made) = mutation(thread, revision, thread.next_message(), spoken, *kept) {
                append(thread, mutated(made));
            }
        }
        Step::Edited(edits) => {
            let asked = asked_for(thread, edits);
            let revision = thread.view().revision();
            if let Ok(edits) = check(thread, revision, thread.next_message(), &asked) {
                append(thread, Change::Edited { by: "h".into(), edits });
            }
        }
        Step::ForModel(text, origin) => {
            let content = vec![Content::Text { text: text.clone() }];
            let message = Message { id: thread.next_message(), content, author: None };
            append(thread, Change::Said { message, origin: origin.clone() });
        }
        Step::Withheld(text) => {
            let content = vec![Content::Text { text: text.clone() }];
            let message = Message { id: thread.next_message(), content, author: None };
            let note = MessageId(message.id.0 + 1);
            append(thread, Change::Withheld { message, note, why: Withheld::Cancelled });
        }
        Step::Undone => {
            if let Some(entry) = thread.last_layer().map(|entry| entry.seq) {
                append(thread, Change::Undone { entry });
            }
        }
        Step::Toggled(place) => {
            let layers = thread.layers();
            let Some(layer) = layers.get(place % layers.len().max(1)) else { return };
            if layer.holds && thread.can_undo(layer.entry).is_ok() {
                append(thread, Change::Undone { entry: layer.entry });
            } else if thread.can_redo(layer.entry).is_ok() {
                append(thread, Change::Redone { entry: layer.entry });
                // A rewind to the first turn, redone: the user continues, as after the rewind itself.
                if thread.view().is_empty() {
                    take_step(thread, &Step::Said("again".into()));
                }
            }
        }
        Step::ThinkingDropped => {
            let through = thread.entries().last().expect("a thread has entries").seq;
            append(thread, Change::ThinkingDropped { through, why: "no".into() });
        }
        Step::Rewound(place) => {
            let turns = thread.prompted_turns();
            let Some(turn) = turns.get(place % turns.len().max(1)) else { return };
            if thread.can_rewind(turn.start).is_ok() {
                append(thread, Change::Rewound { to: turn.start });
                // If nothing is left, the user continues.
                take_step(thread, &Step::Said("again".into()));
            }
        }
        Step::Ended => {
            append(
                thread,
                Change::TurnEnded {
                    reason: StopReason::EndTurn,
                    usage: Usage::default(),
                    quiet_hooks: 0,
                    failure: None,
                },
            );
        }
    }
}

fn layer() -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => Just(Step::Compacted),
        1 => (prop::collection::vec((roles(), "[a-z]{1,8}"), 1..4), 0..6usize)
            .prop_map(|(messages, kept)| Step::Mutated(messages, kept)),
        3 => edits().prop_map(Step::Edited),
    ]
}

fn spoken(messages: &[(Role, String)]) -> Vec<HistoryMessage> {
    let spoken = messages.iter().map(|(role, text)| {
        let content = vec![Content::Text { text: text.clone() }];
        HistoryMessage { role: *role, message: Message { id: MessageId(0), content, author: None } }
    });
    spoken.collect()
}

fn mutated(made: Replacement) -> Change {
    let Replacement { through, messages } = made;
    Change::Mutated { through, messages, by: "h".into(), tokens_before: 10, tokens_after: 1, window: None }
}

/// Edits of the parts at these indices, some of which do not exist.
fn asked_for(thread: &Thread, edits: &[(usize, Op)]) -> Vec<ViewEdit> {
    let parts: Vec<PartId> = thread.view().pieces().iter().map(|(part, _)| *part).collect();
    let edit = |(place, op): &(usize, Op)| {
        let at = parts.get(place % (parts.len() + 1)).copied();
        let at = at.unwrap_or(PartId { entry: Seq(0), part: None });
        let content = vec![Content::Text { text: "instead".into() }];
        match op {
            Op::Pin => ViewEdit::Pin { at },
            Op::Unpin => ViewEdit::Unpin { at },
            Op::Mask => ViewEdit::Mask { at, note: "long".into() },
            Op::Drop => ViewEdit::Drop { at },
            Op::Replace => ViewEdit::Replace { at, content },
            Op::Append(role) => {
                ViewEdit::Append { role: *role, message: Message { id: MessageId(0), content, author: None } }
            }
        }
    };
    edits.iter().map(edit).collect()
}

fn compact(thread: &mut Thread) -> Seq {
    let through = thread.entries().last().expect("an entry").seq;
    let summary = Message {
        id: thread.next_message(),
        content: vec![Content::Text { text: "summary".into() }],
        author: None,
    };
    append(
        thread,
        Change::Compacted {
            through,
            summary,
            trigger: Trigger::Manual,
            focus: None,
            tokens_before: 10,
            tokens_after: 1,
            window: None,
            model: None,
            usage: None,
            masks: Vec::new(),
            account: Default::default(),
        },
    )
}

fn append(thread: &mut Thread, change: Change) -> Seq {
    let seq = thread.next_seq();
    thread.apply(Arc::new(Entry { seq, at: 0, change }));
    seq
}

fn said(id: MessageId, text: &str) -> Change {
    let message = Message { id, content: vec![Content::Text { text: text.to_owned() }], author: None };
    Change::Said { message, origin: Origin::Person }
}

fn outcome(call: &str) -> Change {
    Change::ToolFinished {
        outcome: ToolOutcome::text(CallId(call.into()), OutcomeStatus::Completed, "output"),
    }
}

fn session() -> SessionId {
    SessionId("s_00000000000000000000".into())
}

/// Everything that the model sees.
fn shown(view: &View) -> Vec<Entry> {
    view.entries().iter().map(|entry| Entry::clone(entry)).collect()
}

/// The parts as hooks refer to them, and their texts.
fn parts(view: &View) -> Vec<(PartId, String)> {
    view.pieces().iter().map(|(part, piece)| (*part, piece.text())).collect()
}

/// A log written by another program marked an entry as undone before that entry existed. The live view contained the
/// compaction that was appended later under that number, but a fold of the same log omitted it.
#[test]
fn an_undo_does_not_apply_to_future_entries() {
    let opened = Change::Opened { format: FORMAT_VERSION, session: session(), cwd: PathBuf::from("/w") };
    let mut thread = Thread::replay(vec![Arc::new(Entry { seq: Seq(0), at: 0, change: opened })]).unwrap();
    append(&mut thread, said(MessageId(1), "hello"));
    append(&mut thread, Change::Undone { entry: Seq(3) });
    assert_eq!(compact(&mut thread), Seq(3));
    assert!(!thread.is_undone(Seq(3)));
    assert_eq!(thread.fate(Seq(1)), EntryVisibility::Left { by: Seq(3) });
    assert_eq!(shown(thread.view())[0].seq, Seq(3));
}

/// The text of a background callback arrived between two turns and opened a turn in the log that no prompt had started.
/// At the next load the session reported an interrupted turn.
#[test]
fn a_hook_message_between_turns_begins_no_turn() {
    let opened =
        Change::Opened { format: FORMAT_VERSION, session: SessionId("s_1".into()), cwd: PathBuf::from("/w") };
    let message =
        Message { id: MessageId(0), content: vec![Content::Text { text: "Seen.".into() }], author: None };
    let said = Change::Said { message, origin: Origin::Hook { hook: "h".into() } };
    let entries = [opened, said]
        .into_iter()
        .zip(0..)
        .map(|(change, seq)| Arc::new(Entry { seq: Seq(seq), at: 0, change }));
    assert!(!Thread::replay(entries).expect("a log").in_turn());
}

/// Newer models refuse to continue a message of the assistant.
#[test]
fn a_view_knows_whether_it_ends_with_the_agent() {
    let text = |text: &str| vec![Content::Text { text: text.into() }];
    let message = |content| Message { id: MessageId(0), content, author: None };
    let said = Change::Said { message: message(text("Go")), origin: Origin::Person };
    let replied = |content| Change::Replied {
        message: message(content),
        model: ModelName("a/b".into()),
        usage: None,
        cut: None,
    };
    let call = ToolCall {
        id: CallId("c".into()),
        name: "t".into(),
        input: serde_json::json!({}),
        card: CallDisplay::default(),
    };
    let calling = replied(vec![Content::Call(call)]);
    let done = Change::ToolFinished {
        outcome: ToolOutcome::text(CallId("c".into()), OutcomeStatus::Completed, "x"),
    };
    let spoken = |role| HistoryMessage { role, message: message(text("words")) };
    let mutated = |roles: &[Role]| Change::Mutated {
        through: Seq(2),
        messages: roles.iter().copied().map(spoken).collect(),
        by: "h".into(),
        tokens_before: 0,
        tokens_after: 0,
        window: None,
    };
    let appended = Change::Edited {
        by: "h".into(),
        edits: vec![ViewEdit::Append { role: Role::Assistant, message: message(text("words")) }],
    };
    for (changes, ends) in [
        (vec![], false),
        (vec![said.clone()], false),
        (vec![said.clone(), replied(text("Yes"))], true),
        (vec![said.clone(), calling.clone(), done.clone()], false),
        (vec![said.clone(), replied(text("Yes")), mutated(&[Role::User, Role::Assistant])], true),
        (vec![said.clone(), replied(text("Yes")), mutated(&[Role::User])], false),
        (vec![said, calling, done, appended], true),
    ] {
        let opened = Change::Opened {
            format: FORMAT_VERSION,
            session: SessionId("s_1".into()),
            cwd: PathBuf::from("/w"),
        };
        let words = format!("{changes:?}");
        let all = std::iter::once(opened).chain(changes).zip(0..);
        let entries = all.map(|(change, seq)| Arc::new(Entry { seq: Seq(seq), at: 0, change }));
        assert_eq!(Thread::replay(entries).expect("a log").view().ends_with_agent(), ends, "{words}");
    }
}

/// The provider decides which thinking it accepts, and may reject it later: newer Claude models reject thinking after
/// any prefix other than the one it was generated for.
#[test]
fn dropped_thinking_is_still_shown_but_no_longer_sent() {
    let mut thread = play(&[Step::Said("think".into())]);
    let native = Some(Native { provider: "a".into(), model: "b".into(), data: serde_json::json!({}) });
    let reply = |thread: &mut Thread| {
        let thinking = Content::Thinking { text: "hm".into(), native: native.clone() };
        let content = vec![thinking, Content::Text { text: "Yes.".into() }];
        let message = Message { id: thread.next_message(), content, author: None };
        append(thread, Change::Replied { message, model: ModelName("a/b".into()), usage: None, cut: None })
    };
    let sealed = |thread: &Thread| -> Vec<bool> {
        let items = thread.view().items();
        let contents = items.iter().filter_map(|item| match item {
            ViewItem::Agent(message, _) => Some(&message.content[0]),
            ViewItem::User(_) | ViewItem::Summary(_) | ViewItem::Outcomes(_) => None,
        });
        contents
            .map(|content| match content {
                Content::Thinking { text, native } if text == "hm" => native.is_some(),
                other => panic!("{other:?} is not what was thought"),
            })
            .collect()
    };
    let through = reply(&mut thread);
    let dropped = append(&mut thread, Change::ThinkingDropped { through, why: "no".into() });
    reply(&mut thread);
    assert_eq!(sealed(&thread), [false, true], "what came later is the provider's own again");
    assert_eq!(thread.view().revision(), dropped);
    let again = Thread::replay(thread.entries().iter().cloned()).expect("it folds");
    assert_eq!(sealed(&again), [false, true]);
}

/// A provider that rejects its own compaction would reject every request from then on.
#[test]
fn a_native_compaction_is_dropped_together_with_thinking() {
    let mut thread = play(&[Step::Said("go".into())]);
    let native =
        Native { provider: "a".into(), model: "b".into(), data: serde_json::json!({"compaction": {}}) };
    let text = Content::Text { text: "So far.".into() };
    let content = vec![Content::Thinking { text: String::new(), native: Some(native) }, text.clone()];
    let summary = Message { id: thread.next_message(), content, author: None };
    let through = Seq(thread.next_seq().0 - 1);
    let through = append(
        &mut thread,
        Change::Compacted {
            through,
            summary,
            trigger: Trigger::Manual,
            focus: None,
            tokens_before: 10,
            tokens_after: 1,
            window: None,
            model: None,
            usage: None,
            masks: Vec::new(),
            account: Default::default(),
        },
    );
    append(&mut thread, Change::ThinkingDropped { through, why: "no".into() });
    let items = thread.view().items();
    let [ViewItem::Summary(message)] = items.as_slice() else { panic!("{items:?}") };
    assert_eq!(message.content, [Content::Thinking { text: String::new(), native: None }, text]);
}
