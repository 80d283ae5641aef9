//! The cost of running a client as a front end of a daemon: memory, and latency added to a message.

use std::time::Duration;

use anyhow::Result;

use crate::driver::{Agent, Subject, end};
use crate::measures::{Effort, Stage};
use crate::processes;
use crate::table::{Row, Samples};

/// Clients that are attached at the same time.
const WINDOWS: usize = 50;

/// Time for which clients have been open when their memory is measured, so that the steady state is measured and not
/// the startup.
const LEAN_WITHIN: Duration = Duration::from_secs(13);

/// Number of requests whose median is reported.
const REQUESTS: u32 = 200;

pub fn run(stage: &Stage<'_>, effort: Effort, samples: &mut Samples) -> Result<()> {
    let windows = (0..WINDOWS).map(|_| stage.ready()).collect::<Result<Vec<Agent>>>()?;
    // A front end returns its startup memory to the OS after two seconds; a daemon checks every ten seconds whether it
    // has grown.
    std::thread::sleep(LEAN_WITHIN);
    processes::come_to_rest()?;
    let fronts = windows.iter().map(|window| processes::memory_bytes_of(window.process()));
    let fronts = fronts.collect::<Result<Vec<u64>>>()?;
    let all = processes::memory_bytes()?;
    fronts.iter().for_each(|bytes| samples.bytes(Row::MemoryFront, *bytes as f64));
    // The remaining memory is the daemon's; the floor has none.
    let daemon = all.saturating_sub(fronts.iter().sum());
    if daemon > 0 {
        samples.bytes(Row::MemoryWindows, daemon as f64);
    }
    drop(windows);
    processes::end_leftovers()?;
    if stage.subject.name == "epitome" {
        added(stage, effort, samples)?;
    }
    Ok(())
}

/// Measures the same small request with and without a front end in between.
fn added(stage: &Stage<'_>, effort: Effort, samples: &mut Samples) -> Result<()> {
    let mut command = stage.subject.command.clone();
    command.push("--standalone".into());
    let alone = Subject { command, ..stage.subject.clone() };
    let alone =
        Stage { subject: &alone, home: stage.home.clone(), workspace: stage.workspace.clone(), ..*stage };
    for _ in 0..effort.of(5) {
        let without = asked(&alone)?;
        let with = asked(stage)?;
        samples.time(Row::EchoAlone, without);
        samples.time(Row::FrontAdds, with.saturating_sub(without));
    }
    Ok(())
}

/// The median time of a request that is answered immediately.
fn asked(stage: &Stage<'_>) -> Result<Duration> {
    let mut agent = stage.ready()?;
    let mut took = (0..REQUESTS).map(|_| agent.authenticate()).collect::<Result<Vec<Duration>>>()?;
    took.sort();
    end(agent)?;
    Ok(took[took.len() / 2])
}
