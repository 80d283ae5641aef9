//! Subagent settings: the `[agents]` table. All of them limit the cost of one prompt, so only the user's file may set
//! them.

use std::time::Duration;

use super::file::{ConfigReader, TomlValue, fields};
use super::kind::{between, seconds};
use super::values::{max_rounds, tokens};

/// Limits on subagents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentSettings {
    /// Maximum nesting depth; 0 removes the `task` tool.
    pub max_depth: u32,
    /// Maximum number of concurrent subagents per session; others wait.
    pub max_parallel: u32,
    /// Maximum number of subagents that one prompt may start.
    pub max_per_turn: u32,
    /// Maximum model calls per subagent.
    pub max_rounds: u32,
    /// Maximum tokens per subagent: uncached input plus output.
    pub max_tokens: u64,
    /// Maximum duration of one subagent, including the time the user takes to answer its questions.
    pub timeout: Duration,
}

impl Default for AgentSettings {
    fn default() -> AgentSettings {
        AgentSettings {
            max_depth: 1,
            max_parallel: 4,
            max_per_turn: 32,
            max_rounds: 50,
            max_tokens: 1_000_000,
            timeout: Duration::from_secs(30 * 60),
        }
    }
}

impl ConfigReader<'_> {
    pub(super) fn agents(&mut self, value: &TomlValue<'_>, agents: &mut AgentSettings) {
        let Some(table) = self.table(value, "agents") else { return };
        fields!(self, table, key, value, {
            "max_depth" => self.limit(value, &mut agents.max_depth, between(0..=3, "agents")),
            "max_parallel" => self.limit(value, &mut agents.max_parallel, between(1..=16, "agents")),
            "max_per_turn" => self.limit(value, &mut agents.max_per_turn, between(0..=1_000, "agents")),
            "max_rounds" => self.limit(value, &mut agents.max_rounds, max_rounds()),
            "max_tokens" => self.limit(value, &mut agents.max_tokens, tokens()),
            "timeout_s" => self.limit(value, &mut agents.timeout, seconds(1..=86_400)),
        });
    }
}
