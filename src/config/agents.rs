//! Settings of the agents that the model hands work to: the `[agents]` table. All of them are bounds on what one
//! prompt may cost, so only the person's own file may have one.

use std::time::Duration;

use toml::de::DeValue;

use super::file::{Reader, Value};
use super::values::{Wrong, between, max_rounds, tokens};

/// How far agents may go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agents {
    /// Agents below one another; 0 takes the `task` tool away.
    pub max_depth: u32,
    /// Agents of one session that work at a time; the others wait.
    pub max_parallel: u32,
    /// Agents that one prompt may start.
    pub max_per_turn: u32,
    /// Model calls of one agent.
    pub max_rounds: u32,
    /// Tokens of one agent: what its model reads that no cache had, and what it writes.
    pub max_tokens: u64,
    /// How long one agent may take, with the time that a person thinks over its questions.
    pub timeout: Duration,
}

impl Default for Agents {
    fn default() -> Agents {
        Agents {
            max_depth: 1,
            max_parallel: 4,
            max_per_turn: 32,
            max_rounds: 50,
            max_tokens: 1_000_000,
            timeout: Duration::from_secs(30 * 60),
        }
    }
}

const KEYS: [&str; 6] =
    ["max_depth", "max_parallel", "max_per_turn", "max_rounds", "max_tokens", "timeout_s"];

impl Reader<'_> {
    pub(super) fn agents(&mut self, value: &Value<'_>, agents: &mut Agents) {
        let Some(table) = self.table(value, "agents") else { return };
        for (key, value) in table {
            match &**key.get_ref() {
                "max_depth" => self.set(value, &mut agents.max_depth, |value| count(value, 0..=3, "agents")),
                "max_parallel" => {
                    self.set(value, &mut agents.max_parallel, |value| count(value, 1..=16, "agents"));
                }
                "max_per_turn" => {
                    self.set(value, &mut agents.max_per_turn, |value| count(value, 0..=1_000, "agents"));
                }
                "max_rounds" => self.set(value, &mut agents.max_rounds, max_rounds),
                "max_tokens" => self.set(value, &mut agents.max_tokens, tokens),
                "timeout_s" => self.set(value, &mut agents.timeout, |value| {
                    between(value, 1..=86_400, "seconds").map(Duration::from_secs)
                }),
                other => self.unknown(key.span(), other, &KEYS),
            }
        }
    }
}

fn count(value: &DeValue<'_>, limits: std::ops::RangeInclusive<i64>, what: &str) -> Result<u32, Wrong> {
    between(value, limits, what).map(|number| u32::try_from(number).unwrap_or(u32::MAX))
}
