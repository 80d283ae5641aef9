//! How long the appends of this process took, as a histogram with fixed buckets.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the buckets in seconds: what files take, databases nearby, databases far away, and those that are lost.
const BOUNDS: [f64; 14] =
    [0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.5, 10.0];

/// The last one is for longer times.
static COUNTS: [AtomicU64; BOUNDS.len() + 1] = [const { AtomicU64::new(0) }; BOUNDS.len() + 1];
static NANOSECONDS: AtomicU64 = AtomicU64::new(0);

pub(super) fn record(took: Duration) {
    let bucket = BOUNDS.partition_point(|bound| *bound < took.as_secs_f64());
    COUNTS[bucket].fetch_add(1, Ordering::Relaxed);
    NANOSECONDS.fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
}

/// The times so far, including those of appends that failed.
#[derive(Debug, serde::Serialize)]
pub struct AppendTimes {
    /// The backend of the logs: `files` or `postgres`.
    pub backend: &'static str,
    /// Bounds in seconds, each with the number of appends that took at most as long.
    pub within: Vec<(f64, u64)>,
    pub count: u64,
    pub sum_seconds: f64,
}

impl AppendTimes {
    pub(super) fn now(backend: &'static str) -> AppendTimes {
        let mut count = 0;
        let mut counted = COUNTS.iter().map(|bucket| {
            count += bucket.load(Ordering::Relaxed);
            count
        });
        let within = BOUNDS.into_iter().zip(counted.by_ref()).collect();
        counted.for_each(drop);
        let sum_seconds = Duration::from_nanos(NANOSECONDS.load(Ordering::Relaxed)).as_secs_f64();
        AppendTimes { backend, within, count, sum_seconds }
    }
}
