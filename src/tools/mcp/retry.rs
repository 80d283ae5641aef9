//! Decides when a server that is not connected is retried: automatically after growing delays, and when a call needs
//! it. Pure.

use std::time::Duration;

/// Delays of the automatic attempts to reach a server that could not be connected.
pub const RETRY_DELAYS: [Duration; 5] = [
    Duration::from_secs(5),
    Duration::from_secs(15),
    Duration::from_secs(60),
    Duration::from_secs(5 * 60),
    Duration::from_secs(15 * 60),
];
/// Maximum consecutive attempts caused by calls; a model may call a broken server repeatedly.
const WAKES_MAX: u32 = 3;
/// Delay before such an attempt, multiplied by its number.
const WAKE_DELAY: Duration = Duration::from_millis(500);
/// A connection that lasted this long counts as healthy: the next failure counts as the first.
const HEALTHY_AFTER: Duration = Duration::from_secs(60);

/// How an attempt or a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptEnd {
    /// It could not be connected.
    Failed,
    /// The user has to log in first.
    NeedsLogin,
    /// It was connected for this long.
    Disconnected { after: Duration },
}

/// When the next attempt is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextAttempt {
    /// Delay of the automatic attempt; `None` for no attempt.
    pub automatic: Option<Duration>,
    /// Delay after a call that needs the server; `None` if calls no longer cause attempts.
    pub on_demand: Option<Duration>,
}

/// The attempts of one server.
#[derive(Debug, Default)]
pub struct RetryPolicy {
    automatic: usize,
    wakes: u32,
}

impl RetryPolicy {
    /// Plans the next attempt. A server that was connected is not restarted automatically: some exit while idle.
    pub fn next(&mut self, end: AttemptEnd) -> NextAttempt {
        let automatic = match end {
            AttemptEnd::Failed => {
                let delay = RETRY_DELAYS.get(self.automatic).copied();
                self.automatic += 1;
                delay
            }
            AttemptEnd::NeedsLogin => None,
            AttemptEnd::Disconnected { after } => {
                self.automatic = 0;
                if after >= HEALTHY_AFTER {
                    self.wakes = 0;
                }
                None
            }
        };
        let on_demand = (self.wakes < WAKES_MAX).then(|| WAKE_DELAY * (self.wakes + 1));
        NextAttempt { automatic, on_demand }
    }

    /// Records that a call has caused the attempt.
    pub fn woken(&mut self) {
        self.wakes += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disconnected(seconds: u64) -> AttemptEnd {
        AttemptEnd::Disconnected { after: Duration::from_secs(seconds) }
    }

    /// Regression: a server that was unreachable when the session began was never retried.
    #[test]
    fn a_server_that_cannot_be_connected_is_tried_again_a_bounded_number_of_times() {
        let mut policy = RetryPolicy::default();
        let delays: Vec<_> = (0..7).map(|_| policy.next(AttemptEnd::Failed).automatic).collect();
        let seconds: Vec<_> = delays.iter().flatten().map(Duration::as_secs).collect();
        assert_eq!(seconds, [5, 15, 60, 300, 900]);
        policy.next(disconnected(1));
        assert_eq!(policy.next(AttemptEnd::Failed).automatic, Some(RETRY_DELAYS[0]));
    }

    #[test]
    fn calls_restart_a_server_that_dies_at_once_three_times() {
        let mut policy = RetryPolicy::default();
        for number in 1..=3 {
            let next = policy.next(disconnected(0));
            assert_eq!(next, NextAttempt { automatic: None, on_demand: Some(WAKE_DELAY * number) });
            policy.woken();
        }
        assert_eq!(policy.next(disconnected(0)).on_demand, None);
        assert!(policy.next(disconnected(3_600)).on_demand.is_some(), "it was healthy for an hour");
    }

    #[test]
    fn a_login_is_requested_only_with_a_reason() {
        let next = RetryPolicy::default().next(AttemptEnd::NeedsLogin);
        assert_eq!((next.automatic, next.on_demand.is_some()), (None, true));
    }
}
