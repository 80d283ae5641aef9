//! Tests of functions that perform nothing: tables, scripts, properties, and the pages and manifests of the
//! repository itself.

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
mod thread;
mod tidy;
mod tokens;
mod turn;
mod turn_random;
