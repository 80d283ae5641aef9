//! The measures: the work that each one gives an agent, and the two clocks that it compares. Each group starts a
//! process, asserts that the agent did the work (a fast wrong answer is a failure, not a record) and never asserts a
//! time.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::driver::{Agent, Place, Subject, end};
use crate::forwarder::LOADED_MESSAGES;
use crate::hooks;
use crate::many;
use crate::model::{CalledTool, DELTA, FLOOD_DELTAS, Model, Reply};
use crate::processes;
use crate::table::{Row, Samples};
use crate::windows;

/// Prompts between two reads of the CPU clock.
const CPU_PROMPTS: u32 = 50;

/// Stored sessions that a new process lists.
const LISTED_SESSIONS: u32 = 60;

/// How long idle sessions are opened; an agent with a process for each opens fewer of them.
const SESSIONS_WITHIN: Duration = Duration::from_secs(5);

/// Lines of a prompt of the long thread: about 2 KB, so that 1,000 messages are about 1 MB.
pub const LONG_PROMPT_LINES: usize = 72;

/// The text of every prompt.
pub const PROMPT: &str = "Say that it is done.";

/// One subject and the directories that it runs in.
pub struct Stage<'a> {
    pub subject: &'a Subject,
    pub home: PathBuf,
    pub workspace: PathBuf,
    pub model: &'a Model,
}

impl Stage<'_> {
    /// A started agent that has not received anything yet.
    pub fn start(&self) -> Result<Agent> {
        self.start_with(&[])
    }

    fn start_with(&self, more: &[(&str, &str)]) -> Result<Agent> {
        let more = more.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let place = Place {
            more,
            home: self.home.clone(),
            workspace: self.workspace.clone(),
            model_url: self.model.base_url(),
        };
        Agent::start(self.subject, place)
    }

    /// An initialized agent.
    pub fn ready(&self) -> Result<Agent> {
        self.ready_with(&[])
    }

    /// An initialized agent with additional environment variables.
    pub fn ready_with(&self, more: &[(&str, &str)]) -> Result<Agent> {
        let mut agent = self.start_with(more)?;
        agent.initialize()?;
        Ok(agent)
    }

    /// Runs one complete short turn.
    pub fn short_turn(&self, agent: &mut Agent, session: &str, text: &str) -> Result<()> {
        let (id, _) = agent.prompt(session, text)?;
        let (_, answered) = agent.stop(id, "end_turn")?;
        // A compaction may follow.
        ensure!(answered.starts_with("Done."), "the answer's text was {answered:?}");
        Ok(())
    }
}

/// How often to repeat. Groups specify the count of a full run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    Full,
    Quick,
}

impl Effort {
    pub fn of(self, full: u32) -> u32 {
        match self {
            Effort::Full => full,
            Effort::Quick => full.div_ceil(5),
        }
    }
}

/// Measures that share a process, and the rows that they fill.
pub struct Group {
    pub name: &'static str,
    pub rows: &'static [Row],
    /// How often floor and subject alternate, so that a slow phase of the machine affects both.
    pub turns: u32,
    pub run: fn(&Stage<'_>, Effort, &mut Samples) -> Result<()>,
}

pub const GROUPS: [Group; 16] = [
    Group { name: "start", rows: &[Row::Start, Row::StartSecond, Row::Exit], turns: 5, run: start },
    Group { name: "session", rows: &[Row::NewFirst, Row::New, Row::NewAfterTurn], turns: 5, run: session },
    Group { name: "list", rows: &[Row::ListFirst], turns: 3, run: list },
    Group {
        name: "prompt",
        rows: &[
            Row::AskFirst,
            Row::Ask,
            Row::DeltaFirst,
            Row::DeltaLater,
            Row::Answer,
            Row::Sync,
            Row::AnswerBesideSync,
            Row::PromptCpu,
        ],
        turns: 5,
        run: prompt,
    },
    Group { name: "flood", rows: &[Row::FloodWall, Row::FloodCpu], turns: 5, run: flood },
    Group {
        name: "memory",
        rows: &[Row::MemoryStarted, Row::MemorySession, Row::MemoryTurn, Row::MemoryEachSession],
        turns: 1,
        run: memory,
    },
    Group {
        name: "windows",
        rows: &[Row::MemoryFront, Row::MemoryWindows, Row::EchoAlone, Row::FrontAdds],
        turns: 1,
        run: windows::run,
    },
    Group { name: "many", rows: &[Row::MemoryResting, Row::MemoryLong], turns: 1, run: many::memory },
    Group { name: "streams", rows: &[Row::Streams, Row::ChunkLate], turns: 1, run: many::streams },
    Group { name: "load", rows: &[Row::Load], turns: 3, run: load },
    Group { name: "long", rows: &[Row::AskShort, Row::AskLong, Row::LongCpu], turns: 3, run: long },
    Group {
        name: "late",
        rows: &[Row::LateOfOne, Row::LateOfTen, Row::LateOfFifty],
        turns: 3,
        run: many::late,
    },
    Group { name: "tool", rows: &[Row::ToolFirst, Row::Tool, Row::Shell], turns: 5, run: tool },
    Group { name: "cancel", rows: &[Row::Cancel], turns: 5, run: cancel },
    Group {
        name: "hooks",
        rows: &[Row::AskNoHooks, Row::Script, Row::HookScript, Row::HookResident],
        turns: 5,
        run: hooks::run,
    },
    Group { name: "found", rows: &[Row::Found], turns: 3, run: hooks::found },
];

fn start(stage: &Stage<'_>, effort: Effort, samples: &mut Samples) -> Result<()> {
    for _ in 0..effort.of(10) {
        let mut first = stage.start()?;
        let answered = first.initialize()?;
        samples.time(Row::Start, answered - first.started);

        let mut second = stage.start()?;
        let answered = second.initialize()?;
        samples.time(Row::StartSecond, answered - second.started);

        samples.time(Row::Exit, second.exit()?);
        samples.time(Row::Exit, first.exit()?);
        processes::end_leftovers()?;
    }
    Ok(())
}

fn session(stage: &Stage<'_>, effort: Effort, samples: &mut Samples) -> Result<()> {
    for _ in 0..effort.of(5) {
        let mut agent = stage.ready()?;
        samples.time(Row::NewFirst, agent.new_session()?.1);
        for _ in 0..9 {
            samples.time(Row::New, agent.new_session()?.1);
        }
        let (session, _) = agent.new_session()?;
        stage.short_turn(&mut agent, &session, PROMPT)?;
        for _ in 0..10 {
            samples.time(Row::NewAfterTurn, agent.new_session()?.1);
        }
        end(agent)?;
    }
    Ok(())
}

/// Sessions of one short turn each, listed by a new process.
fn list(stage: &Stage<'_>, effort: Effort, samples: &mut Samples) -> Result<()> {
    if !stage.subject.durable {
        return Ok(());
    }
    let mut agent = stage.ready()?;
    for _ in 0..LISTED_SESSIONS {
        let (session, _) = agent.new_session()?;
        stage.short_turn(&mut agent, &session, PROMPT)?;
    }
    end(agent)?;
    for _ in 0..effort.of(5) {
        let mut agent = stage.ready()?;
        samples.time(Row::ListFirst, agent.list_sessions()?);
        end(agent)?;
    }
    Ok(())
}

fn prompt(stage: &Stage<'_>, effort: Effort, samples: &mut Samples) -> Result<()> {
    let sync = sync_cost(stage, samples)?;
    for _ in 0..effort.of(3) {
        let mut agent = stage.ready()?;
        let (session, _) = agent.new_session()?;
        for number in 0..effort.of(10) {
            let performance = stage.model.plan(Reply::Stepped(3));
            let (id, sent) = agent.prompt(&session, PROMPT)?;
            let asked = performance.asked()?;
            samples.time(if number == 0 { Row::AskFirst } else { Row::Ask }, asked - sent);
            for row in [Row::DeltaFirst, Row::DeltaLater] {
                performance.go_on()?;
                let shown = agent.chunk()?;
                samples.time(row, shown - performance.wrote()?);
            }
            performance.go_on()?;
            let (answered, text) = agent.stop(id, "end_turn")?;
            ensure!(text == DELTA, "the last delta's text was {text:?}");
            let took = answered - performance.wrote()?;
            samples.time(Row::Answer, took);
            let without = if stage.subject.durable { took.saturating_sub(sync) } else { took };
            samples.time(Row::AnswerBesideSync, without);
        }
        let (session, _) = agent.new_session()?;
        let before = processes::cpu_time()?;
        for _ in 0..CPU_PROMPTS {
            stage.short_turn(&mut agent, &session, PROMPT)?;
        }
        samples.time(Row::PromptCpu, processes::cpu_time_since(before)? / CPU_PROMPTS);
        end(agent)?;
    }
    Ok(())
}

/// Measures one synced append of the size of a journal entry in the agent's home. Records it as a separate row for both
/// subjects and returns the median.
fn sync_cost(stage: &Stage<'_>, samples: &mut Samples) -> Result<Duration> {
    let path = stage.home.join("sync-probe");
    let mut file = File::options().create(true).append(true).open(&path)?;
    let mut costs = Vec::new();
    for _ in 0..20 {
        file.write_all(&[b'x'; 512])?;
        let begun = Instant::now();
        file.sync_data().context("cannot sync in the temporary directory")?;
        costs.push(begun.elapsed());
        samples.time(Row::Sync, begun.elapsed());
    }
    fs::remove_file(path)?;
    costs.sort();
    Ok(costs[costs.len() / 2])
}

fn flood(stage: &Stage<'_>, effort: Effort, samples: &mut Samples) -> Result<()> {
    let mut agent = stage.ready()?;
    for _ in 0..effort.of(4) {
        let (session, _) = agent.new_session()?;
        let before = processes::cpu_time()?;
        let performance = stage.model.plan(Reply::Flood);
        let (id, _) = agent.prompt(&session, PROMPT)?;
        let (answered, text) = agent.stop(id, "end_turn")?;
        performance.asked()?;
        samples.time(Row::FloodWall, answered - performance.wrote()?);
        samples.time(Row::FloodCpu, processes::cpu_time_since(before)?);
        ensure!(text == DELTA.repeat(FLOOD_DELTAS), "{} bytes of the flood arrived", text.len());
    }
    end(agent)
}

fn memory(stage: &Stage<'_>, effort: Effort, samples: &mut Samples) -> Result<()> {
    let sessions = effort.of(1_000);
    let idle = || {
        processes::come_to_rest()?;
        processes::memory_bytes().map(|bytes| bytes as f64)
    };
    for _ in 0..effort.of(3) {
        let mut agent = stage.ready()?;
        samples.bytes(Row::MemoryStarted, idle()?);
        let (session, _) = agent.new_session()?;
        samples.bytes(Row::MemorySession, idle()?);
        stage.short_turn(&mut agent, &session, PROMPT)?;
        let before = idle()?;
        samples.bytes(Row::MemoryTurn, before);
        let (mut opened, begun) = (0, Instant::now());
        while opened < sessions && begun.elapsed() < SESSIONS_WITHIN {
            agent.new_session()?;
            opened += 1;
        }
        samples.bytes(Row::MemoryEachSession, (idle()? - before).max(0.0) / f64::from(opened));
        end(agent)?;
    }
    Ok(())
}

fn load(stage: &Stage<'_>, effort: Effort, samples: &mut Samples) -> Result<()> {
    let session = thread_of_messages(stage)?;
    for _ in 0..effort.of(4) {
        // A fresh process each time, as when a user opens an old conversation.
        let mut agent = stage.ready()?;
        let (took, chunks) = agent.load_session(&session)?;
        let expected = LOADED_MESSAGES / 2;
        ensure!(chunks >= expected, "{chunks} of {expected} answers were replayed");
        samples.time(Row::Load, took);
        end(agent)?;
    }
    Ok(())
}

/// Builds a thread of [`LOADED_MESSAGES`] messages by prompting, which requires only the protocol from the agent, and
/// ends the agent.
fn thread_of_messages(stage: &Stage<'_>) -> Result<String> {
    let mut agent = stage.ready()?;
    let (session, _) = agent.new_session()?;
    for _ in 0..LOADED_MESSAGES / 2 {
        stage.short_turn(&mut agent, &session, PROMPT)?;
    }
    end(agent)?;
    Ok(session)
}

/// Compares a call in a short thread with one in a long thread, whose older messages were already encoded for the
/// previous calls.
fn long(stage: &Stage<'_>, effort: Effort, samples: &mut Samples) -> Result<()> {
    let text = "A line that a person typed. ".repeat(LONG_PROMPT_LINES);
    let asked = |agent: &mut Agent, session: &str, row: Row, samples: &mut Samples| -> Result<()> {
        let performance = stage.model.plan(Reply::Short);
        let (id, sent) = agent.prompt(session, PROMPT)?;
        samples.time(row, performance.asked()? - sent);
        agent.stop(id, "end_turn").map(drop)
    };
    let mut agent = stage.ready()?;
    for _ in 0..effort.of(20) {
        let (session, _) = agent.new_session()?;
        for _ in 0..5 {
            stage.short_turn(&mut agent, &session, &text)?;
        }
        asked(&mut agent, &session, Row::AskShort, samples)?;
    }
    let (session, _) = agent.new_session()?;
    for _ in 0..LOADED_MESSAGES / 2 {
        stage.short_turn(&mut agent, &session, &text)?;
    }
    for _ in 0..effort.of(20) {
        asked(&mut agent, &session, Row::AskLong, samples)?;
    }
    let before = processes::cpu_time()?;
    for _ in 0..CPU_PROMPTS {
        stage.short_turn(&mut agent, &session, PROMPT)?;
    }
    samples.time(Row::LongCpu, processes::cpu_time_since(before)? / CPU_PROMPTS);
    end(agent)
}

fn tool(stage: &Stage<'_>, effort: Effort, samples: &mut Samples) -> Result<()> {
    let file = stage.workspace.join("notes.txt");
    fs::write(&file, "A line to be read.\n".repeat(20))?;
    let mut agent = stage.ready()?;
    let (session, _) = agent.new_session()?;
    let path = file.to_str().context("the temporary directory's name is not UTF-8")?;
    let calls = [(Row::Tool, CalledTool::ReadFile, path), (Row::Shell, CalledTool::Shell, "true")];
    for (row, tool, argument) in calls {
        for number in 0..effort.of(10) {
            let calling = stage.model.plan(Reply::Call(tool, argument.to_owned()));
            let ending = stage.model.plan(Reply::Short);
            let (id, _) = agent.prompt(&session, PROMPT)?;
            agent.stop(id, "end_turn")?;
            calling.asked()?;
            let row = if number == 0 && row == Row::Tool { Row::ToolFirst } else { row };
            samples.time(row, ending.asked()? - calling.wrote()?);
        }
    }
    end(agent)
}

fn cancel(stage: &Stage<'_>, effort: Effort, samples: &mut Samples) -> Result<()> {
    let mut agent = stage.ready()?;
    let (session, _) = agent.new_session()?;
    for _ in 0..effort.of(10) {
        let _hanging = stage.model.plan(Reply::Hang);
        let (id, _) = agent.prompt(&session, PROMPT)?;
        agent.chunk()?;
        let cancelled = agent.cancel(&session)?;
        let (answered, _) = agent.stop(id, "cancelled")?;
        samples.time(Row::Cancel, answered - cancelled);
    }
    end(agent)
}
