//! How long a call may take: every method has its limit, so that a disk that hangs or a session that is stuck
//! costs its caller an error and not its patience. Only a turn takes as long as it takes.

use std::time::Duration;

use super::fault::Fault;

/// What looks at what is in memory, or only passes something on.
const QUICK: Duration = Duration::from_secs(10);

/// What reads one session or all headers, and opening a session.
const READ: Duration = Duration::from_secs(60);

/// What a session does itself and without a model. It may first have to read its log.
const CHANGE: Duration = Duration::from_secs(60);

/// What goes through all sessions or writes many files, and what asks programs and services, which have limits
/// of their own below this one.
const LONG: Duration = Duration::from_secs(600);

/// A compaction, which gives its summary 180 s, with its hooks and the turn that it may have to wait for.
const COMPACT: Duration = Duration::from_secs(1800);

/// What a caller grants a daemon above the limit, to say itself that it is over.
pub const GRACE: Duration = Duration::from_secs(5);

/// The limits of one daemon.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub quick: Duration,
    pub read: Duration,
    pub change: Duration,
    pub long: Duration,
    pub compact: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { quick: QUICK, read: READ, change: CHANGE, long: LONG, compact: COMPACT }
    }
}

impl Limits {
    /// How long a method may take; `None` for a prompt, whose turn has no limit. Of a subscription it is the
    /// time until it has begun.
    pub fn of(&self, method: &str) -> Option<Duration> {
        Some(match method {
            "sessions.prompt" => return None,
            "sessions.compact" => self.compact,
            "sessions.search"
            | "sessions.fork"
            | "sessions.export"
            | "sessions.import"
            | "sessions.delete"
            | "sessions.rewind"
            | "sessions.checkpoints"
            | "hooks.list"
            | "models.list" => self.long,
            "sessions.new" | "sessions.set" | "sessions.undo" | "sessions.redo" | "sessions.rename" => {
                self.change
            }
            "sessions.list" | "sessions.show" | "sessions.entries" | "sessions.timeline"
            | "sessions.entry" | "sessions.tail" | "recipes.list" | "recipes.show" | "hooks.trail"
            | "port.list" => self.read,
            // Methods of the program's own (`port.…`) pass on what is answered elsewhere.
            _ => self.quick,
        })
    }

    /// Waits for what a method comes to, as long as it may take.
    pub async fn hold<T>(
        &self,
        method: &str,
        act: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        match self.of(method) {
            Some(limit) => within(limit, method, act).await,
            None => act.await,
        }
    }
}

/// Waits so long for what a method comes to.
pub async fn within<T>(
    limit: Duration,
    method: &str,
    act: impl Future<Output = Result<T, Fault>>,
) -> Result<T, Fault> {
    tokio::time::timeout(limit, act).await.unwrap_or_else(|_| Err(Fault::timed_out(method, limit)))
}

#[cfg(test)]
mod tests {
    use super::super::METHODS;
    use super::*;

    #[test]
    fn every_method_but_a_prompt_has_a_limit() {
        let unlimited: Vec<&str> =
            METHODS.into_iter().filter(|method| Limits::default().of(method).is_none()).collect();
        assert_eq!(unlimited, ["sessions.prompt"]);
    }

    /// The table of the documentation is the limits'.
    #[test]
    fn the_documented_limits_are_those_that_hold() {
        let docs = include_str!("../../../docs/control.md");
        let rows = docs.lines().skip_while(|line| !line.starts_with("| limit |")).skip(2);
        let mut documented = 0;
        for row in rows.take_while(|line| line.starts_with('|')) {
            let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
            let seconds: Option<u64> = cells[0].strip_suffix(" s").and_then(|number| number.parse().ok());
            for method in cells[1].split(", ") {
                let method = method.trim_matches('`');
                assert!(METHODS.contains(&method), "{method}");
                assert_eq!(Limits::default().of(method).map(|limit| limit.as_secs()), seconds, "{method}");
                documented += 1;
            }
        }
        // What ends a subscription is answered where it comes in.
        assert_eq!(documented, METHODS.len() - 1);
    }
}
