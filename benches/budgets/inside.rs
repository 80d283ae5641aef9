//! Measurements that are only possible inside the process: loading the vocabulary, counting tokens, encoding requests.
//! They run in the bench process with the library linked, so they have no floor and do not exist for other agents.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use epitome::config::{Settings, WireFormat};
use epitome::paths::Paths;
use epitome::provider::endpoint::{Endpoint, resolve};
use epitome::provider::wire::Purpose;
use epitome::provider::wire::encoding::Encoding;
use epitome::provider::{Basis, ModelRequest};
use epitome::store::Store;
use epitome::thread::{
    Change, Content, Entry, FORMAT_VERSION, Message, MessageId, ModelName, Origin, OutcomeStatus, Seq,
    SessionId, ThoughtLevel, Thread,
};
use epitome::tokens::{Counter, ExactCounter as _, Ruler, Vocabulary};
use epitome::tools::reaper::Reaper;
use epitome::tools::sandbox::{SandboxRules, TEMPORARY};
use epitome::tools::{ToolContext, Toolbox, Workspace};
use parking_lot::Mutex;
use serde_json::json;

use crate::measures::Effort;

/// Messages of the long thread, of about 2 KB each, like in the rows that measure complete processes.
const LONG: usize = 1_000;
const SHORT: usize = 10;
const LINE: &str = "fn line(at: usize) -> String { format!(\"{at}: some words of a file\") }\n";
const LINES: usize = 28;

/// Bytes of each kind of text per count: the maximum size of a tool's output.
const COUNTED_BYTES: usize = 60_000;

/// One model of each wire format.
const MODELS: [(WireFormat, &str); 4] = [
    (WireFormat::AnthropicMessages, "anthropic/claude-sonnet-5-5"),
    (WireFormat::OpenAiResponses, "openai/gpt-6-sol"),
    (WireFormat::OpenAiChat, "local/qwen3"),
    (WireFormat::Gemini, "gemini/gemini-3.8-flash"),
];

/// A line of the table: title, value and unit.
struct Line {
    title: String,
    value: f64,
    unit: &'static str,
}

/// Generates a text of one kind, different for each number.
type Sample = fn(usize) -> String;

/// Runs all measures and prints them.
pub fn run(effort: Effort, as_json: bool) -> Result<()> {
    let count = effort.of(10);
    let mut lines = Vec::new();
    // First, while the process is as small as an idle daemon: the time of a fork grows with its memory.
    sandbox(effort.of(200), &mut lines)?;
    appends(effort.of(2_000), &mut lines)?;
    let vocabulary = load(&mut lines)?;
    speeds(&vocabulary, count, &mut lines);
    long_thread(&vocabulary, count, &mut lines)?;
    for (wire, name) in MODELS {
        for messages in [SHORT, LONG] {
            writing(&endpoint(wire, name)?, messages, count, &mut lines)?;
        }
    }
    if as_json {
        let rows: Vec<_> = lines
            .iter()
            .map(|Line { title, value, unit }| json!({"row": title, "unit": unit, "ours": value}))
            .collect();
        println!("{}", json!({ "subject": "inside", "rows": rows }));
        return Ok(());
    }
    println!("\nInside the bench's own process (the library linked; no floor, no budget)\n");
    for Line { title, value, unit } in lines {
        println!("{title:<58} {value:>12.3} {unit}");
    }
    Ok(())
}

/// The overhead of the sandbox for a command that does nothing: median of alternating runs in this repository.
fn sandbox(count: u32, lines: &mut Vec<Line>) -> Result<()> {
    let home = tempfile::tempdir()?;
    let environment = vec![
        ("PATH".into(), std::env::var_os("PATH").unwrap_or_default()),
        ("HOME".into(), home.path().as_os_str().to_owned()),
    ];
    let workspace = Arc::new(Workspace::new(std::env::current_dir()?, Vec::new(), Arc::new(environment)));
    let tools = Toolbox::built_in(Arc::new(Reaper::with_program(env!("CARGO_BIN_EXE_epitome").into())));
    let bash = tools.get("bash").context("a built-in tool")?;
    let runtime = tokio::runtime::Runtime::new()?;
    let mut times = [Vec::new(), Vec::new()];
    for turn in 0..2 * count {
        let enabled = turn % 2 == 1;
        let rules =
            SandboxRules { enabled, temporary: TEMPORARY.map(Into::into).into(), ..SandboxRules::default() };
        let context = ToolContext { sandbox: Arc::new(rules), ..ToolContext::bare(workspace.clone()) };
        let began = Instant::now();
        let result = runtime.block_on(bash.run(json!({"command": "true"}), context));
        times[usize::from(enabled)].push(began.elapsed());
        ensure!(result.status == OutcomeStatus::Completed, "true failed: {:?}", result.content);
    }
    let median = |times: &mut Vec<Duration>| {
        times.sort();
        times[times.len() / 2].as_secs_f64() * 1_000.0
    };
    for (title, times) in
        ["bash `true` outside of the sandbox", "bash `true` in the sandbox"].iter().zip(&mut times)
    {
        lines.push(Line { title: (*title).to_owned(), value: median(times), unit: "ms" });
    }
    Ok(())
}

/// An entry of a log, on the disk of the temporary directory: written on another thread and awaited, as by a session, over
/// written on the session's own. The absolute times say more about the disk.
fn appends(count: u32, lines: &mut Vec<Line>) -> Result<()> {
    let home = tempfile::tempdir()?;
    let store = Store::new(&Paths::below(home.path()));
    let session = epitome::store::new_id();
    let opened = Change::Opened { format: FORMAT_VERSION, session: session.clone(), cwd: "/w".into() };
    let (journal, _) = store.create(&session, opened)?;
    let (mut head, writer) = journal.split();
    let writer = Arc::new(Mutex::new(writer));
    let runtime = tokio::runtime::Runtime::new()?;
    let mut times = [Vec::new(), Vec::new()];
    for number in 0..2 * count {
        let text = "x".repeat(512);
        let message =
            Message { id: MessageId(number.into()), content: vec![Content::Text { text }], author: None };
        let entry = head.stage(Change::Said { message, origin: Origin::Person })?;
        let writer = writer.clone();
        let write = move || writer.lock().write(&entry);
        let (written, took) = match number % 2 {
            0 => timed(write),
            _ => timed(|| {
                runtime
                    .block_on(async { tokio::task::spawn_blocking(write).await.expect("it does not panic") })
            }),
        };
        written?;
        times[number as usize % 2].push(took);
    }
    let [inline, awaited] = times.map(median);
    push(lines, "a log entry of 512 bytes, awaited / inline", awaited / inline, "x");
    Ok(())
}

fn load(lines: &mut Vec<Line>) -> Result<Arc<Vocabulary>> {
    let before = resident()?;
    let began = Instant::now();
    let vocabulary = Vocabulary::load().context("the vocabulary")?;
    let took = began.elapsed();
    push(lines, "load of the vocabulary", milliseconds(took), "ms");
    push(lines, "RSS of this process without it", before, "MB");
    push(lines, "  with it", resident()?, "MB");
    Ok(Arc::new(vocabulary))
}

/// Each repetition counts a different text, so that cached words are only those that real text repeats.
fn speeds(vocabulary: &Vocabulary, count: u32, lines: &mut Vec<Line>) {
    let kinds: [(&str, Sample); 5] = [
        ("prose", |at| {
            format!("The {at}th keeper of the harbour stood with a lantern and waved it slowly. ")
        }),
        ("code", |at| format!("    let value_{at} = self.samples.get({at}).map_or(0.0, |s| s.value);\n")),
        ("JSON", |at| format!("{{\"id\":{at},\"name\":\"user-{at}\",\"tags\":[\"a\",\"b\"],\"ok\":true}},")),
        ("Chinese", |at| format!("港口的灯光在雾里显得很远，第{at}个守夜人提着灯站在那里。")),
        ("base64", |at| format!("{:016x}", (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))),
    ];
    for (kind, text) in kinds {
        let mut best = Duration::MAX;
        let mut bytes = 0;
        for repetition in 0..count as usize {
            let text: String =
                (0..).map(|at| text(at + repetition * 10_000)).take(COUNTED_BYTES / 16).collect();
            let text = &text[..text.floor_char_boundary(COUNTED_BYTES)];
            let began = Instant::now();
            std::hint::black_box(vocabulary.count(text));
            best = best.min(began.elapsed());
            bytes = text.len();
        }
        push(lines, &format!("counting {kind}"), bytes as f64 / 1e6 / best.as_secs_f64(), "MB/s");
    }
}

fn long_thread(vocabulary: &Arc<Vocabulary>, count: u32, lines: &mut Vec<Line>) -> Result<()> {
    let ruler = Ruler::for_model(Some(&ModelName(MODELS[0].1.to_owned()))).exact(Some(vocabulary.clone()));
    let (mut cold, mut whole, mut next) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..count {
        let mut thread = thread(LONG)?;
        let mut counter = Counter::default();
        cold.push(timed(|| counter.at_most(&ruler, &thread)).1);
        // Each call counts a bounded amount and estimates the rest; repeat until nothing is estimated.
        whole.push(timed(|| while counter.request(&ruler, &thread).is_none() {}).1);
        say(&mut thread, LONG);
        next.push(timed(|| counter.at_most(&ruler, &thread)).1);
    }
    push(lines, "count of a thread of 1,000 messages, cold", median(cold), "ms");
    push(lines, "  until all of it is exact", median(whole), "ms");
    push(lines, "  with one message more", median(next), "ms");
    Ok(())
}

fn writing(endpoint: &Endpoint, messages: usize, count: u32, lines: &mut Vec<Line>) -> Result<()> {
    let mut times = [Vec::new(), Vec::new()];
    let mut bytes = [(0, 0); 2];
    for _ in 0..count {
        let mut thread = thread(messages)?;
        let mut encoding = Encoding::default();
        for turn in 0..2 {
            let write = || encoding.encode(endpoint, &request(&thread), Purpose::Reply);
            let (encoded, took) = timed(write);
            times[turn].push(took);
            // The comma before the first message is written but not sent.
            bytes[turn] = (encoded.fresh, encoded.len().saturating_sub(encoded.fresh));
            ensure!(!encoded.is_empty(), "nothing was written");
            say(&mut thread, messages);
            reply(&mut thread, endpoint);
            say(&mut thread, messages + 1);
        }
    }
    let wire = endpoint.wire.id();
    for (turn, how) in ["cold", "with what is new"].into_iter().enumerate() {
        let title = format!("{wire}, {messages} messages, {how}");
        // It never blocks, so the minimum is its CPU time.
        let best = times[turn].iter().copied().fold(f64::MAX, f64::min);
        push(lines, &format!("{title}: CPU"), best, "ms");
        push(lines, "  bytes written", bytes[turn].0 as f64 / 1e3, "KB");
        push(lines, "  bytes kept", bytes[turn].1 as f64 / 1e3, "KB");
    }
    Ok(())
}

fn endpoint(wire: WireFormat, name: &str) -> Result<Endpoint> {
    let keys =
        ["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY"].map(|name| (name.into(), "k".into()));
    let local = [("EPITOME_LOCAL_URL".into(), "http://127.0.0.1:1".into())];
    let environment: Vec<_> = keys.into_iter().chain(local).collect();
    let endpoint = resolve(&ModelName(name.to_owned()), &Settings::default(), &environment)?;
    ensure!(endpoint.wire == wire, "{name} is spoken to otherwise");
    Ok(endpoint)
}

/// A conversation of `messages` messages, alternating between user and agent, the last one from the user.
fn thread(messages: usize) -> Result<Thread> {
    let session = SessionId("s_00000000000000000001".to_owned());
    let opened = Change::Opened { format: FORMAT_VERSION, session, cwd: "/w".into() };
    let opened = Arc::new(Entry { seq: Seq(0), at: 0, change: opened });
    let mut thread = Thread::replay([opened]).map_err(|error| anyhow::anyhow!("{error}"))?;
    append(&mut thread, Change::Framed { system: LINE.repeat(LINES), tools: Vec::new() });
    let endpoint = endpoint(MODELS[0].0, MODELS[0].1)?;
    for at in 0..messages / 2 {
        say(&mut thread, at);
        reply(&mut thread, &endpoint);
    }
    say(&mut thread, messages);
    Ok(thread)
}

fn say(thread: &mut Thread, at: usize) {
    let message = message(thread, format!("{at}: {}", LINE.repeat(LINES)));
    append(thread, Change::Said { message, origin: Origin::Person });
}

fn reply(thread: &mut Thread, endpoint: &Endpoint) {
    let message = message(thread, LINE.repeat(LINES));
    append(thread, Change::Replied { message, model: endpoint.name.clone(), usage: None, cut: None });
}

fn message(thread: &Thread, text: String) -> Message {
    Message { id: thread.next_message(), content: vec![Content::Text { text }], author: None }
}

fn append(thread: &mut Thread, change: Change) {
    let seq = thread.next_seq();
    thread.apply(Arc::new(Entry { seq, at: 0, change }));
}

/// The request that a session would build for its next call.
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

fn push(lines: &mut Vec<Line>, title: &str, value: f64, unit: &'static str) {
    lines.push(Line { title: title.to_owned(), value, unit });
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let began = Instant::now();
    let done = work();
    (done, milliseconds(began.elapsed()))
}

fn milliseconds(took: Duration) -> f64 {
    took.as_secs_f64() * 1e3
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The resident memory of this process, in megabytes.
fn resident() -> Result<f64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let kilobytes = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix("kB"));
    Ok(kilobytes.context("there is no VmRSS")?.trim().parse::<f64>()? * 1024.0 / 1e6)
}
