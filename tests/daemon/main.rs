//! Windows that share one daemon, as whole processes: all that holds for an agent in one process, and what only a
//! daemon can get wrong. Each test has a home of its own and ends its daemon with it.

#[path = "../process/desk.rs"]
mod desk;

#[path = "../process/bulk.rs"]
mod bulk;
#[path = "../process/ends.rs"]
mod ends;
#[path = "../process/kill.rs"]
mod kill;
#[path = "../process/leftovers.rs"]
mod leftovers;
#[path = "../process/life.rs"]
mod life;
#[path = "../process/orphans.rs"]
mod orphans;

mod deaths;
mod lives;
mod windows;

/// How the agent is started: as an editor does it.
const ACP: &[&str] = &["acp"];
