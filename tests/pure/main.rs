//! Tests without side effects: tables, scripts, properties, and the repository's own pages and manifests.

mod compaction_random;
mod contributing;
mod editors;
mod fuzz;
mod golden;
mod hooks_core;
mod keep;
mod model_random;
mod other_agents;
mod real_sessions;
mod recipes;
mod requirements;
mod rewritten;
mod thread;
mod tidy;
mod tokens;
mod turn;
mod turn_random;
