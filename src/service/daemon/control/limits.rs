//! Time limits of calls. Every method has one, so that a hanging disk or session costs the caller an error
//! instead of an endless wait.

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
    /// Time limit of a method.
    pub fn limit(&self, method: &str) -> Duration {
        match method {
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
            "sessions.set" | "sessions.undo" | "sessions.redo" | "sessions.rename" => self.change,
            "sessions.list" | "sessions.show" | "sessions.entries" | "sessions.timeline"
            | "sessions.entry" | "recipes.list" | "recipes.show" | "hooks.trail" => self.read,
            _ => self.quick,
        }
    }

    /// Awaits a method's result, within the method's limit.
    pub async fn hold<T>(
        &self,
        method: &str,
        act: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        let limit = self.limit(method);
        tokio::time::timeout(limit, act).await.unwrap_or_else(|_| Err(Fault::timed_out(method, limit)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::METHODS;
    use super::*;

    /// The limits in the documentation are the actual ones.
    #[test]
    fn the_documented_limits_match_the_code() {
        let docs = include_str!("../../../../docs/builders/control.md");
        let rows = docs.lines().skip_while(|line| !line.starts_with("| limit |")).skip(2);
        let mut documented = 0;
        for row in rows.take_while(|line| line.starts_with('|')) {
            let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
            let seconds = cells[0].strip_suffix(" s").and_then(|number| number.parse().ok());
            let seconds: u64 = seconds.unwrap_or_else(|| panic!("{row}"));
            for method in cells[1].split(", ") {
                let method = method.trim_matches('`');
                assert!(METHODS.contains(&method), "{method}");
                assert_eq!(MethodTimeouts::default().limit(method).as_secs(), seconds, "{method}");
                documented += 1;
            }
        }
        assert_eq!(documented, METHODS.len());
    }
}
