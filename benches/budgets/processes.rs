//! Costs of the measured processes: CPU time and memory. Linux only (`/proc`).
//!
//! An agent may delegate its work to a detached daemon, so every descendant of the bench is counted, even if its parent
//! has exited: the bench adopts orphans ([`adopt_orphans`]). One agent is measured at a time.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, waitpid};

/// How long processes may take to end after SIGTERM before they are killed.
const ENDED_WITHIN: Duration = Duration::from_secs(2);
/// Polling interval for processes to end or become idle: a process that is not a child cannot be waited for.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// A process that is still busy after this time is measured as it is.
const AT_REST_WITHIN: Duration = Duration::from_secs(3);
/// Consecutive checks without CPU use that count as idle.
const RESTFUL_LOOKS: u32 = 5;

/// Makes detached descendants children of the bench when their parents end. Call once, before the first
/// spawn.
pub fn adopt_orphans() -> Result<()> {
    set_child_subreaper(Some(getpid())).context("cannot adopt detached processes")
}

/// The CPU time that all living processes below the bench have used, including their finished threads.
pub fn cpu_time() -> Result<Duration> {
    descendants()?.into_iter().map(cpu_time_of).sum()
}

/// The CPU time used since an earlier [`cpu_time`].
pub fn cpu_time_since(before: Duration) -> Result<Duration> {
    cpu_time()?.checked_sub(before).context("a process ended while its CPU time was measured")
}

/// The memory of all processes below the bench, in bytes.
pub fn memory_bytes() -> Result<u64> {
    descendants()?.into_iter().map(|pid| memory_bytes_of(pid.unsigned_abs())).sum()
}

/// The memory of one process, in bytes: its proportional set size (PSS), to which a page that several processes share counts
/// with its part.
pub fn memory_bytes_of(pid: u32) -> Result<u64> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let kilobytes = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
    let number = kilobytes.and_then(|text| text.trim().strip_suffix("kB"));
    // A process that has exited in the meantime has no such line, and no memory.
    Ok(number.map_or(Ok(0), |text| text.trim().parse::<u64>())? * 1024)
}

/// Waits until no process below the bench uses CPU time any more, so that idle memory can be read.
pub fn come_to_rest() -> Result<()> {
    let begun = Instant::now();
    let (mut before, mut restful) = (cpu_time()?, 0);
    while restful < RESTFUL_LOOKS && begun.elapsed() < AT_REST_WITHIN {
        std::thread::sleep(LOOK_EVERY);
        let now = cpu_time()?;
        restful = if now == before { restful + 1 } else { 0 };
        before = now;
    }
    Ok(())
}

/// Ends everything that an agent left running, such as its daemon, so that the next one starts cold.
pub fn end_leftovers() -> Result<()> {
    let begun = Instant::now();
    let mut signal = Signal::TERM;
    let mut signalled: Vec<i32> = Vec::new();
    loop {
        while waitpid(None, WaitOptions::NOHANG).ok().flatten().is_some() {}
        let left = descendants()?;
        if left.is_empty() {
            return Ok(());
        }
        if begun.elapsed() > 2 * ENDED_WITHIN {
            bail!("processes {left:?} do not end");
        }
        if begun.elapsed() > ENDED_WITHIN && signal == Signal::TERM {
            signal = Signal::KILL;
            signalled.clear();
        }
        for pid in left {
            if !signalled.contains(&pid) {
                signalled.push(pid);
                if let Some(pid) = Pid::from_raw(pid) {
                    // Fails only if the process has exited in the meantime.
                    let _ = kill_process(pid, signal);
                }
            }
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// All living processes whose chain of parents leads to the bench.
fn descendants() -> Result<Vec<i32>> {
    let mut parents = BTreeMap::new();
    for entry in fs::read_dir("/proc").context("cannot list processes: is /proc mounted?")? {
        let Ok(pid) = entry?.file_name().to_string_lossy().parse::<i32>() else { continue };
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The name in parentheses may contain anything; state and parent follow it.
        let mut fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        let (Some(state), Some(Ok(parent))) = (fields.next(), fields.next().map(str::parse::<i32>)) else {
            continue;
        };
        if state != "Z" {
            parents.insert(pid, parent);
        }
    }
    let bench = getpid().as_raw_nonzero().get();
    let below = |pid: &i32| {
        let mut at = *pid;
        // A chain longer than the number of processes could only be a cycle of reused ids.
        for _ in 0..parents.len() {
            match parents.get(&at) {
                Some(parent) if *parent == bench => return true,
                Some(parent) => at = *parent,
                None => return false,
            }
        }
        false
    };
    Ok(parents.keys().copied().filter(below).collect())
}

/// `struct timespec` of 64-bit Linux.
#[repr(C)]
struct Timespec {
    seconds: i64,
    nanoseconds: i64,
}

unsafe extern "C" {
    fn clock_gettime(clock: i32, time: *mut Timespec) -> i32;
}

/// A process's CPU clock. `/proc/PID/stat` has a resolution of only 10 ms, which may exceed the cost of fifty short
/// prompts.
fn cpu_time_of(pid: i32) -> Result<Duration> {
    const CPUCLOCK_SCHED: i32 = 2;
    let mut time = Timespec { seconds: 0, nanoseconds: 0 };
    // SAFETY: `time` is a valid timespec for the duration of the call; every clock id is allowed.
    let status = unsafe { clock_gettime((!pid << 3) | CPUCLOCK_SCHED, &raw mut time) };
    if status != 0 {
        // The process has exited in the meantime: its CPU time is lost, as with any other method.
        return Ok(Duration::ZERO);
    }
    let nanoseconds = u32::try_from(time.nanoseconds).context("the kernel's clock is broken")?;
    Ok(Duration::new(u64::try_from(time.seconds)?, nanoseconds))
}
