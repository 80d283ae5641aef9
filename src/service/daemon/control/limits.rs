//! Time limits of calls. Every method has one, so that a hanging disk or session costs the caller an error
//! instead of an endless wait. Only a turn may take any time.

use std::time::Duration;

use super::fault::Fault;

/// Extra time that a client allows beyond the limit, so that the daemon can report the timeout itself.
pub const GRACE: Duration = Duration::from_secs(5);

/// The limits of one daemon.
#[derive(Clone, Copy, Debug)]
pub struct MethodTimeouts {
    /// Methods that read memory, or only pass something on.
    pub quick: Duration,
    /// Methods that read one session or all headers, and opening a session.
    pub read: Duration,
    /// Changes that a session makes without a model. It may have to read its log first.
    pub change: Duration,
    /// Methods that read all sessions or write many files, and those that call programs and services, which have
    /// separate lower limits.
    pub long: Duration,
    /// A compaction, which allows 180 s for its summary, with its hooks and a turn that it may have to wait for.
    pub compact: Duration,
}

impl Default for MethodTimeouts {
    fn default() -> MethodTimeouts {
        let [quick, read, change, long, compact] = [10, 60, 60, 600, 1800].map(Duration::from_secs);
        MethodTimeouts { quick, read, change, long, compact }
    }
}

impl MethodTimeouts {
    /// Time limit of a method; `None` for a prompt, whose turn has no limit. For a subscription it limits the
    /// time until it has started.
    pub fn limit(&self, method: &str) -> Option<Duration> {
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
            // Internal methods (`port.…`) pass commands on; the results arrive elsewhere.
            _ => self.quick,
        })
    }

    /// Awaits a method's result, within the method's limit.
    pub async fn hold<T>(
        &self,
        method: &str,
        act: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        match self.limit(method) {
            Some(limit) => within(limit, method, act).await,
            None => act.await,
        }
    }
}

/// Awaits a method's result, within `limit`.
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
            METHODS.into_iter().filter(|method| MethodTimeouts::default().limit(method).is_none()).collect();
        assert_eq!(unlimited, ["sessions.prompt"]);
    }

    /// The limits in the documentation are the actual ones.
    #[test]
    fn the_documented_limits_match_the_code() {
        let docs = include_str!("../../../../docs/control.md");
        let rows = docs.lines().skip_while(|line| !line.starts_with("| limit |")).skip(2);
        let mut documented = 0;
        for row in rows.take_while(|line| line.starts_with('|')) {
            let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
            let seconds: Option<u64> = cells[0].strip_suffix(" s").and_then(|number| number.parse().ok());
            for method in cells[1].split(", ") {
                let method = method.trim_matches('`');
                assert!(METHODS.contains(&method), "{method}");
                assert_eq!(
                    MethodTimeouts::default().limit(method).map(|limit| limit.as_secs()),
                    seconds,
                    "{method}"
                );
                documented += 1;
            }
        }
        // `sessions.untail` is answered by the connection itself and has no limit.
        assert_eq!(documented, METHODS.len() - 1);
    }
}
