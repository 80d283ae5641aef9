//! The real binary as an editor meets it: a process, two pipes, signals, and a scripted model on
//! loopback. These tests show that the wires connect and that ends are clean; what each part does in
//! detail is tested beside the part.

mod desk;

/// How the agent is started: all in one process. `tests/daemon` does the same with a daemon.
const ACP: &[&str] = &["acp", "--standalone"];

mod bulk;
mod ends;
mod kill;
mod leftovers;
mod life;
mod neighbours;
mod orphans;
