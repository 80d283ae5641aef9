//! The real binary as an editor sees it: a process, two pipes, signals, and a scripted model on loopback.
//! These tests show that the parts are connected and that processes end cleanly; each part is tested in
//! detail next to its code.

mod desk;

/// The arguments of the agent: everything in one process. `tests/processes/daemon` does the same with a daemon.
const ACP: &[&str] = &["acp", "--standalone"];

mod bulk;
mod ends;
mod kill;
mod leftovers;
mod life;
mod neighbours;
mod orphans;
