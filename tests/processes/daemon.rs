//! Clients that share one daemon, as separate processes: everything that applies to an agent in one process,
//! and everything that only a daemon can get wrong. Each test has its own home and ends its daemon with it.

#[path = "process/desk.rs"]
mod desk;

#[path = "process/bulk.rs"]
mod bulk;
#[path = "process/ends.rs"]
mod ends;
#[path = "process/kill.rs"]
mod kill;
#[path = "process/leftovers.rs"]
mod leftovers;
#[path = "process/life.rs"]
mod life;
#[path = "process/orphans.rs"]
mod orphans;

mod deaths;
mod lives;
mod windows;

/// The arguments with which an editor starts the agent.
const ACP: &[&str] = &["acp"];
