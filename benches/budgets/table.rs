//! Collects and prints the numbers. Nothing is judged here: budgets are printed next to the numbers for a human reader,
//! and no exit code depends on a time.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// One line of the table, in the order of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Row {
    Start,
    StartSecond,
    NewFirst,
    New,
    NewAfterTurn,
    ListFirst,
    AskFirst,
    Ask,
    DeltaFirst,
    DeltaLater,
    Answer,
    Sync,
    AnswerBesideSync,
    PromptCpu,
    FloodWall,
    FloodCpu,
    MemoryStarted,
    MemorySession,
    MemoryTurn,
    MemoryEachSession,
    MemoryFront,
    MemoryWindows,
    MemoryResting,
    MemoryLong,
    Streams,
    ChunkLate,
    LateOfOne,
    LateOfTen,
    LateOfFifty,
    EchoAlone,
    FrontAdds,
    Load,
    AskShort,
    AskLong,
    LongCpu,
    ToolFirst,
    Tool,
    Shell,
    Cancel,
    AskNoHooks,
    Script,
    HookScript,
    HookResident,
    Found,
    Exit,
    Binary,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Milliseconds,
    Megabytes,
}

use Unit::{Megabytes, Milliseconds};

impl Row {
    pub const ALL: [Row; 46] = [
        Row::Start,
        Row::StartSecond,
        Row::NewFirst,
        Row::New,
        Row::NewAfterTurn,
        Row::ListFirst,
        Row::AskFirst,
        Row::Ask,
        Row::DeltaFirst,
        Row::DeltaLater,
        Row::Answer,
        Row::Sync,
        Row::AnswerBesideSync,
        Row::PromptCpu,
        Row::FloodWall,
        Row::FloodCpu,
        Row::MemoryStarted,
        Row::MemorySession,
        Row::MemoryTurn,
        Row::MemoryEachSession,
        Row::MemoryFront,
        Row::MemoryWindows,
        Row::MemoryResting,
        Row::MemoryLong,
        Row::Streams,
        Row::ChunkLate,
        Row::LateOfOne,
        Row::LateOfTen,
        Row::LateOfFifty,
        Row::EchoAlone,
        Row::FrontAdds,
        Row::Load,
        Row::AskShort,
        Row::AskLong,
        Row::LongCpu,
        Row::ToolFirst,
        Row::Tool,
        Row::Shell,
        Row::Cancel,
        Row::AskNoHooks,
        Row::Script,
        Row::HookScript,
        Row::HookResident,
        Row::Found,
        Row::Exit,
        Row::Binary,
    ];

    /// Title, unit and budget of the row. `README.md` explains each.
    fn describe(self) -> (&'static str, Unit, Option<f64>) {
        match self {
            Row::Start => ("start → initialize answered", Milliseconds, Some(12.0)),
            Row::StartSecond => ("  start with one running", Milliseconds, Some(4.0)),
            Row::NewFirst => ("session/new, first of a process", Milliseconds, Some(0.5)),
            Row::New => ("session/new", Milliseconds, Some(0.5)),
            Row::NewAfterTurn => ("  session/new after a first turn", Milliseconds, Some(0.5)),
            Row::ListFirst => ("session/list of 60, first of a process", Milliseconds, Some(1.5)),
            Row::AskFirst => ("prompt → model asked, first of a process", Milliseconds, Some(1.2)),
            Row::Ask => ("prompt → model asked", Milliseconds, Some(1.2)),
            Row::DeltaFirst => ("first delta → first chunk", Milliseconds, Some(0.2)),
            Row::DeltaLater => ("  later delta → its chunk", Milliseconds, Some(0.2)),
            Row::Answer => ("last delta → answer", Milliseconds, None),
            Row::Sync => ("  one fdatasync in the same directory", Milliseconds, None),
            Row::AnswerBesideSync => ("last delta → answer, less the sync", Milliseconds, Some(1.0)),
            Row::PromptCpu => ("CPU of a short prompt", Milliseconds, Some(2.0)),
            Row::FloodWall => ("20,000 deltas, wall", Milliseconds, Some(80.0)),
            Row::FloodCpu => ("20,000 deltas, CPU", Milliseconds, Some(100.0)),
            Row::MemoryStarted => ("memory idle after initialize", Megabytes, Some(10.0)),
            Row::MemorySession => ("memory idle after a first session", Megabytes, Some(10.0)),
            Row::MemoryTurn => ("memory idle after a first turn", Megabytes, Some(10.0)),
            Row::MemoryEachSession => ("memory of each further idle session", Megabytes, Some(0.1)),
            Row::MemoryFront => ("memory of a front end, of 50", Megabytes, Some(3.0)),
            Row::MemoryWindows => ("memory of the daemon with 50 idle windows", Megabytes, Some(15.0)),
            Row::MemoryResting => ("memory of each session at rest", Megabytes, Some(0.002)),
            Row::MemoryLong => ("memory of each live thread of 1 MB of text", Megabytes, Some(4.0)),
            Row::Streams => ("50 streams of 2 s, last word → last answer", Milliseconds, Some(60.0)),
            Row::ChunkLate => ("1,000 streams, delta → its chunk, 99 of 100", Milliseconds, Some(50.0)),
            Row::LateOfOne => ("1 stream, delta → its chunk, 99 of 100", Milliseconds, Some(0.8)),
            Row::LateOfTen => ("10 streams, delta → its chunk, 99 of 100", Milliseconds, Some(1.0)),
            Row::LateOfFifty => ("50 streams, delta → its chunk, 99 of 100", Milliseconds, Some(1.5)),
            Row::EchoAlone => ("  a small request in one process", Milliseconds, None),
            Row::FrontAdds => ("what a front end adds to it", Milliseconds, Some(0.04)),
            Row::Load => ("load of a thread of 1,000 messages", Milliseconds, Some(20.0)),
            Row::AskShort => ("prompt → model asked, thread of 10 messages", Milliseconds, Some(1.0)),
            Row::AskLong => ("prompt → model asked, thread of 1,000 messages", Milliseconds, Some(3.0)),
            Row::LongCpu => ("CPU of a short prompt, thread of 1,000 messages", Milliseconds, None),
            Row::ToolFirst => ("  first tool call of a process", Milliseconds, Some(1.4)),
            Row::Tool => ("tool call complete → model asked again", Milliseconds, Some(2.0)),
            Row::Shell => ("shell tool: call → model asked again", Milliseconds, Some(8.0)),
            Row::Cancel => ("cancel → answer", Milliseconds, Some(1.0)),
            Row::AskNoHooks => ("prompt → model asked, folders without hooks", Milliseconds, Some(1.2)),
            Row::Script => ("  one script that does nothing, run bare", Milliseconds, None),
            Row::HookScript => ("script hook, less the bare script", Milliseconds, Some(3.0)),
            Row::HookResident => ("resident hook", Milliseconds, Some(0.3)),
            Row::Found => ("first prompt, for 200 hooks and 500 recipes", Milliseconds, Some(50.0)),
            Row::Exit => ("stdin closed → process gone", Milliseconds, Some(10.0)),
            Row::Binary => ("size of the stripped binary", Megabytes, Some(20.0)),
        }
    }

    pub fn title(self) -> &'static str {
        self.describe().0.trim_start()
    }
}

/// Results of one subject.
#[derive(Debug, Default)]
pub struct Samples {
    values: BTreeMap<Row, Vec<f64>>,
    /// Groups that could not be measured, and why.
    pub failures: Vec<String>,
}

impl Samples {
    pub fn time(&mut self, row: Row, took: std::time::Duration) {
        self.push(row, took.as_secs_f64() * 1e3);
    }

    pub fn bytes(&mut self, row: Row, bytes: f64) {
        self.push(row, bytes / 1e6);
    }

    fn push(&mut self, row: Row, value: f64) {
        self.values.entry(row).or_default().push(value);
    }

    fn summary(&self, row: Row) -> Option<Summary> {
        Summary::of(self.values.get(&row)?)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Summary {
    median: f64,
    min: f64,
    p90: f64,
    count: usize,
}

impl Summary {
    /// `None` if there are no values. If there are few, the p90 is the maximum.
    fn of(values: &[f64]) -> Option<Summary> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let min = *sorted.first()?;
        let at_most = |hundredths: usize| sorted[(sorted.len() * hundredths).div_ceil(100).max(1) - 1];
        Some(Summary { median: at_most(50), min, p90: at_most(90), count: sorted.len() })
    }
}

/// The results of both subjects in one pass over the measures.
pub struct Pass<'a> {
    /// `empty store`, or its size.
    pub store: &'a str,
    /// The name of the subject that takes the place of the floor.
    pub floor_name: &'a str,
    pub floor: &'a Samples,
    pub ours: &'a Samples,
    pub name: &'a str,
}

/// Prints the table for a human reader. Rows without a sample on either side are omitted.
pub fn print(pass: &Pass<'_>) {
    println!("\n{} beside {}, {}\n", pass.name, pass.floor_name, pass.store);
    println!(
        "{:<43} {:>9} {:>9} | {:>9} {:>9} {:>9} | {:>7} {:>4}",
        "", "budget", pass.floor_name, "median", "min", "p90", "ratio", "n"
    );
    for row in Row::ALL {
        let (floor, ours) = (pass.floor.summary(row), pass.ours.summary(row));
        if floor.is_none() && ours.is_none() {
            continue;
        }
        let (title, unit, budget) = row.describe();
        let show = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), |value| shown(value, unit));
        println!(
            "{title:<43} {:>9} {:>9} | {:>9} {:>9} {:>9} | {:>7} {:>4}",
            show(budget),
            show(floor.map(|summary| summary.median)),
            show(ours.map(|summary| summary.median)),
            show(ours.map(|summary| summary.min)),
            show(ours.map(|summary| summary.p90)),
            ratio(floor, ours).map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.1}")),
            ours.or(floor).map_or(0, |summary| summary.count),
        );
    }
    for (name, samples) in [(pass.floor_name, pass.floor), (pass.name, pass.ours)] {
        for failure in &samples.failures {
            println!("not measured ({name}): {failure}");
        }
    }
}

/// The same table as one JSON object.
pub fn json(pass: &Pass<'_>) -> Value {
    let summary = |summary: Option<Summary>| {
        summary.map(|Summary { median, min, p90, count }| {
            json!({ "median": median, "min": min, "p90": p90, "count": count })
        })
    };
    let rows = Row::ALL.into_iter().filter_map(|row| {
        let (floor, ours) = (pass.floor.summary(row), pass.ours.summary(row));
        let (_, unit, budget) = row.describe();
        (floor.is_some() || ours.is_some()).then(|| {
            json!({
                "row": row.title(),
                "unit": match unit { Milliseconds => "ms", Megabytes => "MB" },
                "budget": budget,
                "floor": summary(floor),
                "ours": summary(ours),
                "ratio": ratio(floor, ours),
            })
        })
    });
    json!({
        "subject": pass.name, "store": pass.store, "rows": rows.collect::<Vec<_>>(),
        "failures": { "floor": pass.floor.failures, "ours": pass.ours.failures },
    })
}

fn ratio(floor: Option<Summary>, ours: Option<Summary>) -> Option<f64> {
    let (floor, ours) = (floor?.median, ours?.median);
    (floor > 0.0).then_some(ours / floor)
}

fn shown(value: f64, unit: Unit) -> String {
    let digits = if value < 0.995 { 3 } else { 1 };
    match unit {
        Milliseconds => format!("{value:.digits$} ms"),
        Megabytes => format!("{value:.digits$} MB"),
    }
}
