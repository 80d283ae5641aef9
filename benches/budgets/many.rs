//! Many concurrent sessions: the memory of each, and whether one delays the others.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::driver::{Agent, end};
use crate::measures::{Effort, LONG_PROMPT_LINES, PROMPT, Stage};
use crate::model::{self, Reply};
use crate::processes;
use crate::table::{Row, Samples};

/// Sessions whose memory is measured.
const RESTING: u32 = 1_000;

/// Idle time before sessions are suspended, in seconds, and the time after which the last one certainly is.
const REST_AFTER: (&str, &str) = ("EPITOME_REST_S", "0.2");
const RESTS_WITHIN: Duration = Duration::from_secs(3);

/// Messages of a long thread; each pair is a prompt of 2 KB and an answer.
const LONG_MESSAGES: u32 = 1_000;

/// Streams that should end together, and their deltas.
const TOGETHER: u32 = 50;
const TOGETHER_DELTAS: (usize, Duration) = (100, Duration::from_millis(20));

/// Streams none of whose chunks may be late, and their deltas.
const CROWD: u32 = 1_000;
const CROWD_DELTAS: (usize, Duration) = (20, Duration::from_millis(500));

/// Memory per session: suspended, and with a long thread.
pub fn memory(stage: &Stage<'_>, effort: Effort, samples: &mut Samples) -> Result<()> {
    if stage.subject.name != "epitome" {
        return Ok(());
    }
    let mut agent = stage.ready_with(&[REST_AFTER])?;
    let rested = |agent: &mut Agent, count: u32| -> Result<u64> {
        for _ in 0..count {
            agent.new_session()?;
        }
        std::thread::sleep(RESTS_WITHIN);
        processes::come_to_rest()?;
        processes::memory_bytes()
    };
    let count = effort.of(RESTING);
    let before = rested(&mut agent, count)?;
    let after = rested(&mut agent, count)?;
    samples.bytes(Row::MemoryResting, after.saturating_sub(before) as f64 / f64::from(count));
    end(agent)?;

    let mut agent = stage.ready()?;
    let mut long = Vec::new();
    for _ in 0..3 {
        let (session, _) = agent.new_session()?;
        let text = "A line that a person typed. ".repeat(LONG_PROMPT_LINES);
        for _ in 0..effort.of(LONG_MESSAGES) / 2 {
            stage.short_turn(&mut agent, &session, &text)?;
        }
        long.push(session);
    }
    end(agent)?;
    let mut agent = stage.ready()?;
    agent.load_session(&long[0])?;
    processes::come_to_rest()?;
    let before = processes::memory_bytes()?;
    for session in &long[1..] {
        agent.load_session(session)?;
    }
    processes::come_to_rest()?;
    let each = processes::memory_bytes()?.saturating_sub(before) as f64 / (long.len() - 1) as f64;
    samples.bytes(Row::MemoryLong, each);
    end(agent)
}

/// Measures streams that end together, and a large number of streams none of whose chunks may be late.
pub fn streams(stage: &Stage<'_>, effort: Effort, samples: &mut Samples) -> Result<()> {
    if stage.subject.name != "epitome" {
        return Ok(());
    }
    let (behind, _) = streamed(stage, TOGETHER, TOGETHER_DELTAS)?;
    samples.time(Row::Streams, behind);
    let (_, late) = streamed(stage, effort.of(CROWD), CROWD_DELTAS)?;
    samples.time(Row::ChunkLate, late);
    Ok(())
}

/// Measures how late the chunks of few streams are.
pub fn late(stage: &Stage<'_>, _: Effort, samples: &mut Samples) -> Result<()> {
    let counts = [(Row::LateOfOne, 1), (Row::LateOfTen, 10), (Row::LateOfFifty, TOGETHER)];
    // The floor serves one prompt at a time.
    let counts = if stage.subject.durable { &counts[..] } else { &counts[..1] };
    for &(row, count) in counts {
        let (_, late) = streamed(stage, count, TOGETHER_DELTAS)?;
        samples.time(row, late);
    }
    Ok(())
}

/// Runs one stream in each of `count` sessions. Returns the time from the model's last write to the last session's
/// response, and the 99th percentile of the chunk delay.
fn streamed(
    stage: &Stage<'_>,
    count: u32,
    (deltas, every): (usize, Duration),
) -> Result<(Duration, Duration)> {
    let mut agent = stage.ready()?;
    let sessions = (0..count).map(|_| agent.new_session().map(|(session, _)| session));
    let sessions = sessions.collect::<Result<Vec<String>>>()?;
    // Opens the connections, and reads files that are only read once.
    for session in &sessions {
        stage.short_turn(&mut agent, session, PROMPT)?;
    }
    let performances: Vec<_> =
        (0..count).map(|_| stage.model.plan(Reply::Stamped { deltas, every })).collect();
    let mut open = HashSet::new();
    for session in &sessions {
        open.insert(agent.prompt(session, PROMPT)?.0);
    }
    let mut late = Vec::new();
    let answered = agent.all_answered(open, |at, text| {
        late.extend(model::stamps(text).map(|stamp| at.saturating_duration_since(stamp)));
    })?;
    ensure!(
        late.len() == deltas * count as usize,
        "{} of {} deltas came",
        late.len(),
        deltas * count as usize
    );
    let mut last = None;
    for performance in &performances {
        performance.asked()?;
        last = last.max(Some(performance.wrote()?));
    }
    late.sort();
    let behind = last.map_or(Duration::ZERO, |last| answered.saturating_duration_since(last));
    end(agent)?;
    Ok((behind, late[(late.len() * 99).div_ceil(100) - 1]))
}
