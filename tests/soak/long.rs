//! One session as long as a week of work: replies, commands, files that are written, and compactions. The time of a
//! prompt and the daemon's memory must not grow with the session.

use std::time::{Duration, Instant};

use epitome_scripted_model::{ModelStep, RecordedRequest};
use epitome_test_harness::agent::{obey, wants_summary};
use epitome_test_harness::text;
use epitome_test_harness::user::User;

use crate::Run;

pub const WHAT: &str = "prompts of one session";

/// Prompts between two compactions.
const COMPACT_EVERY: u32 = 50;

/// The share of the session that warms up, and the share at either end of the rest that is compared.
const WARM_UP: f64 = 0.2;
const COMPARED: f64 = 0.2;

/// Maximum growth of the medians from the one end to the other. Other programs may slow the machine down.
const MEMORY_GROWTH_MAX: f64 = 1.10;
const LATENCY_GROWTH_MAX: f64 = 1.5;

/// The latency and memory of a prompt.
pub struct Sample {
    pub latency: Duration,
    /// Resident memory of the daemon after it.
    pub megabytes: f64,
}

/// Sends this many prompts to one session.
pub fn run(prompts: u32) -> (Vec<Sample>, Run) {
    let began = Instant::now();
    let user = User::with_model(work);
    let mut agent = user.start_trusted();
    let session = user.new_session(&mut agent);
    let daemon = user.worker(&agent);
    let (mut samples, mut failures) = (Vec::new(), Vec::new());
    for number in 0..prompts {
        let words = match number % 10 {
            _ if number % COMPACT_EVERY == COMPACT_EVERY - 1 => "/compact".to_owned(),
            3 => format!("run echo {number} > out-{}.txt", number % 7),
            7 => format!("run seq {}", 200 + number % 50),
            _ => format!("say {number} {}", "and some more words ".repeat((number % 50) as usize)),
        };
        let began = Instant::now();
        let (_, reason) = agent.turn(&session, &words);
        let latency = began.elapsed();
        if reason != "end_turn" {
            failures.push(format!("prompt {number} ended with {reason}: {words}"));
        }
        samples.push(Sample { latency, megabytes: status(daemon, "VmRSS:").unwrap_or_default() / 1024.0 });
    }
    failures.extend(growth("memory", &samples, MEMORY_GROWTH_MAX, |sample| sample.megabytes));
    failures.extend(growth("the time of a prompt", &samples, LATENCY_GROWTH_MAX, |sample| {
        sample.latency.as_secs_f64()
    }));
    agent.close_input();
    user.end_daemon();
    let how = format!("compacted every {COMPACT_EVERY} prompts");
    (samples, Run { what: WHAT, how, amount: prompts.into(), time: began.elapsed(), failures })
}

/// As asked; a summary where one is wanted.
fn work(request: &RecordedRequest) -> Vec<ModelStep> {
    match wants_summary(request) {
        true => vec![text("<summary>\nWhat was done so far.\n</summary>")],
        false => obey(request),
    }
}

/// The medians after the warm-up and at the end.
pub fn ends<S>(samples: &[S], of: impl Fn(&S) -> f64) -> (f64, f64) {
    let count = samples.len();
    let share = |part: f64| (count as f64 * part) as usize;
    let (from, length) = (share(WARM_UP), share(COMPARED).max(1));
    let median = |samples: &[S]| {
        let mut values: Vec<f64> = samples.iter().map(&of).collect();
        values.sort_unstable_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or_default()
    };
    (median(&samples[from..(from + length).min(count)]), median(&samples[count - length..]))
}

fn growth(what: &str, samples: &[Sample], most: f64, of: impl Fn(&Sample) -> f64) -> Option<String> {
    let (before, after) = ends(samples, of);
    let growth = after / before.max(f64::MIN_POSITIVE);
    let message = || format!("{what} grew from {before:.3} to {after:.3}, {growth:.2} times");
    (growth > most).then(message)
}

/// The number in a field of a process's status, such as `VmRSS:` in kilobytes; `None` if it has ended.
pub fn status(process: u32, field: &str) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    line.split_whitespace().next()?.parse().ok()
}
