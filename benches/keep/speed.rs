//! Measures compaction without a model: planning, and composing the message with its tables.

use std::time::Instant;

use anyhow::{Result, bail};
use epitome::compaction::{
    Budget, CompactionDecision, CompactionInput, CompactionRequest, KeptTail, Summary, compacted, decide,
};
use epitome::config::CompactionSettings;
use epitome::thread::Trigger;

use crate::bench::corpus::Session;
use crate::bench::generated::conversation;
use crate::bench::ways::ruler;

/// Repetitions whose median is reported.
const COUNT: usize = 15;
/// Tokens of the conversations, and the maximum milliseconds for plan and message together.
const SIZES: [(u64, f64); 2] = [(200_000, 5.0), (1_000_000, 20.0)];

pub struct Time {
    pub tokens: u64,
    pub plan: f64,
    pub message: f64,
    pub wanted: f64,
}

pub fn measure() -> Result<Vec<Time>> {
    SIZES.iter().map(|(tokens, wanted)| time(*tokens, *wanted)).collect()
}

fn time(tokens: u64, wanted: f64) -> Result<Time> {
    let ruler = ruler();
    let ten = Session::of("ten turns", conversation(10))?;
    let turns = tokens * 10 / ruler.view(ten.thread().view());
    let session = Session::of("generated", conversation(turns as usize))?;
    let thread = session.thread();
    let budget = Budget::new(&CompactionSettings::default(), tokens * 5 / 4, 16_000, 0);
    let request = CompactionRequest {
        trigger: Trigger::Threshold,
        keep: KeptTail::Ratio(0.4),
        focus: None,
        summary: true,
    };
    let (mut plans, mut messages) = (Vec::new(), Vec::new());
    for _ in 0..COUNT {
        let began = Instant::now();
        let scene = CompactionInput::new(&ruler, &thread, &budget);
        let CompactionDecision::Summarise(plan) = decide(&scene, &request) else {
            bail!("the generated conversation is not compacted")
        };
        plans.push(milliseconds(began));
        let began = Instant::now();
        let change = compacted(&scene, &plan, thread.next_message(), Summary::default());
        messages.push(milliseconds(began));
        change.map_err(anyhow::Error::msg)?;
    }
    Ok(Time { tokens: ruler.view(thread.view()), plan: median(plans), message: median(messages), wanted })
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
