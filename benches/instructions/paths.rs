//! The measured paths. Each is prepared once and then taken once or twice; the difference is what it costs.

use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use epitome::acp::from_wire::ClientTraits;
use epitome::acp::outbox::Outbox;
use epitome::acp::writer::UpdateWriter;
use epitome::compaction::{self, Budget, CompactionDecision, CompactionRequest, KeptTail, Summary};
use epitome::config::Settings;
use epitome::provider::collect::Collector;
use epitome::provider::endpoint::{Endpoint, resolve};
use epitome::provider::wire::Purpose;
use epitome::provider::wire::encoding::Encoding;
use epitome::provider::wire::stream::Decoding;
use epitome::provider::{Basis, ModelRequest};
use epitome::session::{SessionEvent, TextKind};
use epitome::thread::{
    Change, Content, Entry, FORMAT_VERSION, Message, MessageId, ModelName, Origin, Seq, SessionId,
    StopReason, ThoughtLevel, Thread, Trigger, Usage,
};
use epitome::tokens::Ruler;

type Take = Box<dyn FnMut() -> Result<()>>;
type Prepare = fn() -> Result<Take>;

pub const ALL: &[(&str, Prepare)] = &[
    ("a log of 20,000 entries is folded", || fold(20_000)),
    ("a compaction of a log of 2,000 entries", || compact(2_000)),
    ("a compaction of a log of 20,000 entries", || compact(20_000)),
    ("a compaction of a log of 100,000 entries", || compact(100_000)),
    ("ten turns of a log of 100,000 entries, with requests", || turns(100_000)),
    ("2,000 deltas are decoded", decode),
    ("2,000 deltas become lines for a client", show),
];

const MODEL: &str = "anthropic/claude-sonnet-5-5";
const DELTAS: usize = 2_000;
const WINDOW: u64 = 200_000;
const TEXT: &str = "The keeper of the harbour stood with a lantern and waved it slowly. ";

fn fold(entries: usize) -> Result<Take> {
    let log: Vec<_> = thread(entries)?.entries().iter().cloned().collect();
    Ok(Box::new(move || {
        black_box(Thread::replay(log.iter().cloned()).context("the log can be folded")?);
        Ok(())
    }))
}

/// What an automatic compaction does without its model.
fn compact(entries: usize) -> Result<Take> {
    let (thread, model) = (thread(entries)?, ModelName(MODEL.to_owned()));
    let budget = Budget::new(&Settings::default().compaction, WINDOW, 20_000, 5_000);
    let wish = CompactionRequest {
        trigger: Trigger::Threshold,
        keep: KeptTail::Ratio(0.2),
        focus: None,
        summary: true,
    };
    Ok(Box::new(move || {
        let ruler = Ruler::for_model(Some(&model));
        let snapshot = thread.clone();
        let CompactionDecision::Summarise(plan) =
            compaction::decide(&compaction::CompactionInput::new(&ruler, &snapshot, &budget), &wish)
        else {
            anyhow::bail!("nothing is summarized");
        };
        let written = Summary { text: Some(TEXT.repeat(20)), ..Summary::default() };
        let id = snapshot.next_message();
        let made = compaction::compacted(
            &compaction::CompactionInput::new(&ruler, &snapshot, &budget),
            &plan,
            id,
            written,
        );
        black_box(made.map_err(anyhow::Error::msg)?);
        Ok(())
    }))
}

fn turns(entries: usize) -> Result<Take> {
    let (mut thread, endpoint, mut encoding) = (thread(entries)?, endpoint()?, Encoding::default());
    encoding.encode(&endpoint, &request(&thread), Purpose::Reply);
    Ok(Box::new(move || {
        for _ in 0..10 {
            turn(&mut thread);
            black_box(encoding.encode(&endpoint, &request(&thread), Purpose::Reply));
            black_box((thread.last_compaction(), thread.pinned(), thread.rewritten()));
        }
        Ok(())
    }))
}

fn decode() -> Result<Take> {
    let endpoint = endpoint()?;
    let delta = "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\
                 \"delta\":{\"type\":\"text_delta\",\"text\":\"twenty characters.. \"}}\n\n";
    let start = "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\
                 \"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n";
    Ok(Box::new(move || {
        let mut decoding = Decoding::new(endpoint.clone(), String::new(), None);
        let mut collector = Collector::new(&endpoint.name);
        let (mut events, mut shown) = (Vec::new(), 0);
        for piece in std::iter::once(start).chain(std::iter::repeat_n(delta, DELTAS)) {
            decoding.push(piece.as_bytes(), &mut events).map_err(|error| anyhow::anyhow!("{error:?}"))?;
            shown += events.drain(..).filter_map(|event| collector.feed(event)).count();
        }
        ensure!(shown == DELTAS, "{shown} pieces");
        Ok(())
    }))
}

/// Each delta is taken by the writer before the next one comes.
fn show() -> Result<Take> {
    let session = SessionId("s_00000000000000000001".to_owned());
    Ok(Box::new(move || {
        let (outbox, mut writer) = (Outbox::new(0), UpdateWriter::default());
        let (mut items, mut lines) = (VecDeque::new(), Vec::new());
        let traits = ClientTraits::default();
        for _ in 0..DELTAS {
            let text = "twenty characters.. ".to_owned();
            let message = MessageId(1);
            outbox.put(&session, SessionEvent::Text { message, part: 0, kind: TextKind::Reply, text });
            outbox.take(&mut items).context("the outbox is open")?;
            items.drain(..).for_each(|item| writer.write(item, &traits, &outbox, &mut lines));
            ensure!(!lines.is_empty(), "nothing was written");
            lines.clear();
        }
        Ok(())
    }))
}

fn endpoint() -> Result<Endpoint> {
    let environment = vec![("ANTHROPIC_API_KEY".into(), "k".into())];
    Ok(resolve(&ModelName(MODEL.to_owned()), &Settings::default(), &environment)?)
}

/// A log of turns, compacted as often as in a window of 200,000 tokens.
fn thread(entries: usize) -> Result<Thread> {
    let session = SessionId("s_00000000000000000001".to_owned());
    let opened = Change::Opened { format: FORMAT_VERSION, session, cwd: "/w".into() };
    let opened = Arc::new(Entry { seq: Seq(0), at: 0, change: opened });
    let mut thread = Thread::replay([opened]).context("the log can be folded")?;
    append(&mut thread, Change::Framed { system: TEXT.repeat(20), tools: Vec::new() });
    while thread.entries().len() < entries {
        turn(&mut thread);
        // The last part is left for the measured compaction.
        if thread.view().entries().len() > 600 && thread.entries().len() + 500 < entries {
            let through = Seq(thread.next_seq().0 - 100);
            let summary = message(&thread, TEXT.repeat(20));
            append(
                &mut thread,
                Change::Compacted {
                    through,
                    summary,
                    trigger: Trigger::Threshold,
                    focus: None,
                    tokens_before: 150_000,
                    tokens_after: 10_000,
                    window: Some(WINDOW),
                    model: None,
                    usage: None,
                    masks: Vec::new(),
                    account: Default::default(),
                },
            );
        }
    }
    Ok(thread)
}

fn turn(thread: &mut Thread) {
    let said = message(thread, TEXT.repeat(30));
    append(thread, Change::Said { message: said, origin: Origin::Person });
    let replied = message(thread, TEXT.repeat(3));
    let model = ModelName(MODEL.to_owned());
    append(thread, Change::Replied { message: replied, model, usage: None, cut: None });
    let ended = Change::TurnEnded {
        reason: StopReason::EndTurn,
        usage: Usage::default(),
        quiet_hooks: 0,
        failure: None,
    };
    append(thread, ended);
}

fn message(thread: &Thread, text: String) -> Message {
    Message { id: thread.next_message(), content: vec![Content::Text { text }], author: None }
}

fn append(thread: &mut Thread, change: Change) {
    let seq = thread.next_seq();
    thread.apply(Arc::new(Entry { seq, at: 0, change }));
}

fn request(thread: &Thread) -> ModelRequest<'_> {
    let (system, tools) = thread.frame().expect("the thread has one");
    ModelRequest {
        system,
        tools,
        items: thread.view().items(),
        thought: ThoughtLevel::Off,
        max_output: 4_096,
        cache_key: "bench",
        basis: Some(Basis { frame: Seq(1), revision: thread.view().revision() }),
    }
}
