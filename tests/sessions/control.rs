//! The control API at the level of protocol lines: each method, the protocol, and the delivery of events.

mod access;
mod in_process;
mod limits;
mod methods;
mod page;
mod process;
mod remote;
mod shell;
mod tails;
mod wire;
