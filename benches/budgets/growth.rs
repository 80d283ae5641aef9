//! How cost grows: with the length of one conversation, and with the number of stored ones.
//!
//! Both are built by prompting, which requires nothing of the agent but the protocol. Automatic compaction stays on: a
//! conversation of 100,000 entries has been compacted many times, and the cost of that is part of the cost of a prompt.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::json;

use crate::driver::{Agent, end};
use crate::measures::{LONG_PROMPT_LINES, PROMPT, Stage};
use crate::model::Reply;
use crate::processes;
use crate::progress;

/// Turns of a conversation at which it is measured. A turn is four entries of Epitome's log: the last one has 100,000.
const TURNS: [u32; 5] = [25, 250, 1_000, 5_000, 25_000];
/// Turns before each of these over which the CPU time is averaged, at most half of all. At least one compaction is among
/// 500 prompts of 2 KB with a window of 200,000 tokens.
const AVERAGED: u32 = 500;
/// Numbers of stored sessions at which they are listed.
const STORED: [u32; 4] = [10, 100, 1_000, 10_000];
/// Prompts and listings whose median is shown.
const SAMPLES: usize = 20;

/// Measures a subject and prints two tables, or one JSON object. Conversations of more turns and larger numbers of
/// sessions than `most` are left out.
pub fn run(stage: &Stage<'_>, most: (u32, u32), as_json: bool) -> Result<()> {
    let (most_turns, most_stored) = most;
    let lengths: Vec<u32> = TURNS.into_iter().filter(|turns| *turns <= most_turns).collect();
    let conversations = conversation(stage, &lengths)?;
    let numbers: Vec<u32> = STORED.into_iter().filter(|number| *number <= most_stored).collect();
    let stored = stored(stage, &numbers)?;
    progress("");
    if as_json {
        let rows = |columns: &[&'static str], rows: &[Vec<f64>]| -> Vec<_> {
            let row = |row: &Vec<f64>| {
                columns.iter().copied().zip(row.iter().copied()).collect::<std::collections::BTreeMap<_, _>>()
            };
            rows.iter().map(row).collect()
        };
        let object = json!({
            "subject": stage.subject.name,
            "conversation": rows(&CONVERSATION, &conversations),
            "stored": rows(&LISTED, &stored),
        });
        println!("{object}");
    } else {
        println!("\n{}: one conversation, by its turns\n", stage.subject.name);
        table(&CONVERSATION, &conversations);
        println!("\n{}: stored sessions, by their number\n", stage.subject.name);
        table(&LISTED, &stored);
    }
    Ok(())
}

const CONVERSATION: [&str; 6] =
    ["turns", "CPU of a prompt ms", "prompt → model ms", "load ms", "load CPU ms", "memory MB"];
const LISTED: [&str; 6] =
    ["sessions", "start ms", "session/new ms", "first list ms", "later list ms", "memory MB"];

/// The first measure is drawn too, as a bar of proportional length.
fn table(columns: &[&str], rows: &[Vec<f64>]) {
    let most = rows.iter().map(|row| row[1]).fold(f64::MIN_POSITIVE, f64::max);
    println!("{}", columns.iter().map(|column| format!("{column:>19}")).collect::<String>());
    for row in rows {
        let cells: String = row.iter().map(|value| format!("{:>19}", shown(*value))).collect();
        println!("{cells}  {}", "█".repeat((row[1] / most * 30.0).ceil() as usize));
    }
}

fn shown(value: f64) -> String {
    if value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

/// A model with a window of 200,000 tokens; another agent has its own.
const WINDOW: [(&str, &str); 1] = [("EPITOME_MODEL", "anthropic/claude-sonnet-4-5")];

/// One conversation, measured whenever it has one of these numbers of turns, and loaded by a new process each time.
fn conversation(stage: &Stage<'_>, lengths: &[u32]) -> Result<Vec<Vec<f64>>> {
    let text = "A line that a person typed. ".repeat(LONG_PROMPT_LINES);
    let mut agent = stage.ready_with(&WINDOW)?;
    let (session, _) = agent.new_session()?;
    let (mut turns, mut rows) = (0, Vec::new());
    for length in lengths {
        let averaged = AVERAGED.min(length / 2);
        while turns < length - averaged {
            stage.short_turn(&mut agent, &session, &text)?;
            turns += 1;
            if turns % 100 == 0 {
                progress(&format!("a conversation of {turns} turns"));
            }
        }
        let before = processes::cpu_time()?;
        while turns < *length {
            stage.short_turn(&mut agent, &session, &text)?;
            turns += 1;
        }
        let each = processes::cpu_time_since(before)? / averaged;
        let mut asked = Vec::new();
        for _ in 0..SAMPLES {
            let performance = stage.model.plan(Reply::Short);
            let (id, sent) = agent.prompt(&session, PROMPT)?;
            asked.push(performance.asked()? - sent);
            agent.stop(id, "end_turn")?;
        }
        end(agent)?;

        agent = stage.ready_with(&WINDOW)?;
        let before = processes::cpu_time()?;
        let (took, chunks) = agent.load_session(&session)?;
        ensure!(chunks > 0, "nothing was replayed of {turns} turns");
        processes::come_to_rest()?;
        let cpu = processes::cpu_time_since(before)?;
        let memory = processes::memory_bytes()? as f64 / 1e6;
        rows.push(vec![f64::from(*length), ms(each), median(asked), ms(took), ms(cpu), memory]);
    }
    end(agent)?;
    Ok(rows)
}

/// Sessions of one short turn each, listed by a new process whenever there are this many.
fn stored(stage: &Stage<'_>, numbers: &[u32]) -> Result<Vec<Vec<f64>>> {
    let (mut count, mut rows) = (1, Vec::new());
    for number in numbers {
        let mut agent = stage.ready()?;
        while count < *number {
            let (session, _) = agent.new_session()?;
            stage.short_turn(&mut agent, &session, PROMPT)?;
            count += 1;
            if count % 100 == 0 {
                progress(&format!("{count} stored sessions"));
            }
        }
        end(agent)?;
        let (mut starts, mut firsts, mut later, mut news) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut memory = 0.0;
        for _ in 0..SAMPLES / 4 {
            let begun = Instant::now();
            let mut agent: Agent = stage.ready()?;
            starts.push(begun.elapsed());
            firsts.push(agent.list_sessions()?);
            for _ in 0..SAMPLES / 4 {
                later.push(agent.list_sessions()?);
            }
            news.push(agent.new_session()?.1);
            processes::come_to_rest()?;
            memory = processes::memory_bytes()? as f64 / 1e6;
            end(agent)?;
        }
        rows.push(vec![
            f64::from(*number),
            median(starts),
            median(news),
            median(firsts),
            median(later),
            memory,
        ]);
    }
    Ok(rows)
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    ms(times[times.len() / 2])
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
