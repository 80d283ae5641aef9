//! The control API at the level of protocol lines: each method and the protocol; and commands with a daemon.

mod access;
mod editor;
mod in_process;
mod limits;
mod methods;
mod page;
mod process;
mod remote;
mod shell;
mod wire;
