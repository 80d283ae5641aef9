//! One fleet for hours, whose parts fail one after the other while all windows prompt. Two of its daemons live as long as it does:
//! their memory, descriptors and threads must not grow.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use rustix::process::Pid;

use crate::Run;
use crate::fleet::{
    Answered, Fleet, FleetEvent, FleetWindow, MACHINES, RunResult, SessionPrompts, continued,
};
use crate::long;

pub const WHAT: &str = "events of one steady fleet";

const WINDOWS: usize = 12;

/// Between two prompts of a window, in milliseconds. The log of a fleet that never rests would only show how a log grows.
const PAUSE: std::ops::Range<u64> = 300..1_500;

/// Prompts of a session until its window closes it and opens another one.
const PROMPTS_OF_SESSION: usize = 40;

/// Between two events, in seconds.
const EVENT_EVERY: std::ops::Range<u64> = 10..25;

const SAMPLE_EVERY: Duration = Duration::from_secs(10);

/// The events, in turn: none that ends the daemons of all machines. Daemons are killed at the last machine only.
const EVENTS: [FleetEvent; 4] =
    [FleetEvent::HalfClosed, FleetEvent::NetworkCut, FleetEvent::DaemonKilled, FleetEvent::ServerKilled];

/// Maximum growth of a median from the beginning to the end.
const GROWTH_MAX: f64 = 1.15;

/// The memory, descriptors and threads of a daemon at one time.
struct DaemonSample {
    megabytes: f64,
    descriptors: f64,
    threads: f64,
}

impl DaemonSample {
    /// `None` if the process has ended.
    fn of(daemon: Pid) -> Option<DaemonSample> {
        let pid = daemon.as_raw_nonzero();
        let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count() as f64;
        let number = |field| long::status(pid.get().cast_unsigned(), field);
        Some(DaemonSample {
            megabytes: number("VmRSS:")? / 1024.0,
            descriptors,
            threads: number("Threads:")?,
        })
    }
}

/// The samples of each daemon, by its machine and process.
type DaemonSamples = BTreeMap<(usize, i32), Vec<DaemonSample>>;

/// Plays for this time. Returns a table of the daemons, too.
pub fn run(time: Duration) -> (String, Run) {
    let began = Instant::now();
    let mut fleet = Fleet::start();
    let windows: Vec<FleetWindow> = (0..WINDOWS).map(|number| fleet.open(number % MACHINES)).collect();
    let stop = AtomicBool::new(false);
    let (sender, answers) = channel();
    let mut result = RunResult::default();
    let mut samples = DaemonSamples::new();
    let all: Vec<usize> = (0..WINDOWS).collect();
    let mut events = 0;
    let played: Vec<SessionPrompts> = std::thread::scope(|scope| {
        let threads: Vec<_> = windows
            .into_iter()
            .enumerate()
            .map(|(number, window)| {
                let (stop, sender) = (&stop, sender.clone());
                scope.spawn(move || work(window, number, stop, &sender))
            })
            .collect();
        while began.elapsed() < time {
            let pause = Duration::from_secs(fastrand::u64(EVENT_EVERY));
            let until = Instant::now() + pause;
            while Instant::now() < until {
                sample(&fleet, &mut samples);
                std::thread::sleep(SAMPLE_EVERY.min(until.saturating_duration_since(Instant::now())));
            }
            let event = EVENTS[events % EVENTS.len()];
            let kills = matches!(event, FleetEvent::DaemonKilled | FleetEvent::ServerKilled);
            let from = fleet.disturb(event, if kills { MACHINES - 1 } else { events });
            events += 1;
            match continued(&answers, &all, from) {
                Ok(took) => {
                    result.slowest = result.slowest.max(took);
                    eprintln!("{:?} {event:?}: {:.1} s", began.elapsed(), took.as_secs_f64());
                }
                Err(fault) => {
                    result.faults.push(format!("{event:?}: {fault}"));
                    break;
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.flat_map(|played| played.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    fleet.check_primary(&played, &mut result);
    let mut table = format!(
        "{events} events, {} sessions, {} answered prompts, {} lost, {} doubled, {} double calls, {} refused; \
         the slowest window took {:.1} s, with its pause.\n\n\
         | machine | minutes | megabytes | descriptors | threads |\n| --- | --- | --- | --- | --- |\n",
        played.len(),
        result.answered,
        result.lost,
        result.doubled,
        result.double_calls,
        result.refused,
        result.slowest.as_secs_f64()
    );
    let most = samples.values().map(Vec::len).max().unwrap_or_default();
    for ((machine, _), samples) in samples.iter().filter(|(_, samples)| samples.len() * 2 > most) {
        let cells = [
            long::ends(samples, |sample| sample.megabytes),
            long::ends(samples, |sample| sample.descriptors),
            long::ends(samples, |sample| sample.threads),
        ];
        let minutes = SAMPLE_EVERY.as_secs_f64() * samples.len() as f64 / 60.0;
        let shown = cells.map(|(before, after)| format!("{before:.0} to {after:.0}")).join(" | ");
        writeln!(table, "| {machine} | {minutes:.0} | {shown} |").expect("a text");
        for ((before, after), what) in cells.into_iter().zip(["megabytes", "descriptors", "threads"]) {
            if after > before * GROWTH_MAX {
                result
                    .faults
                    .push(format!("the daemon of machine {machine} grew from {before} to {after} {what}"));
            }
        }
    }
    // A daemon that ended without being killed would only begin a new row.
    for machine in 0..MACHINES - 1 {
        let processes = samples.keys().filter(|(of, _)| *of == machine).count();
        if processes != 1 {
            result.faults.push(format!("machine {machine} had {processes} daemons, and none was killed"));
        }
    }
    let how = format!("cargo run -p epitome-soak -- --only steady --hours {}", time.as_secs_f64() / 3600.0);
    (table, Run { what: WHAT, how, amount: events as u64, time: began.elapsed(), failures: result.faults })
}

fn sample(fleet: &Fleet, samples: &mut DaemonSamples) {
    for (machine, daemon) in fleet.daemons().enumerate() {
        // None for a moment after it was killed.
        let Some(daemon) = daemon else { continue };
        samples.entry((machine, daemon.as_raw_nonzero().get())).or_default().extend(DaemonSample::of(daemon));
    }
}

/// Prompts until it is stopped, in one session after the other. Returns what was played in each.
fn work(
    mut window: FleetWindow,
    number: usize,
    stop: &AtomicBool,
    report: &Sender<Answered>,
) -> Vec<SessionPrompts> {
    let mut all = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        if window.answered() >= PROMPTS_OF_SESSION {
            all.push(window.renew());
        }
        window.prompt();
        // Nobody listens at the end.
        drop(report.send(Answered { window: number, at: Instant::now() }));
        std::thread::sleep(Duration::from_millis(fastrand::u64(PAUSE)));
    }
    all.push(window.end());
    all
}
