//! The control API, by its lines: each method, the wire itself, and who hears what.

mod desk;
mod limits;
mod methods;
mod page;
mod process;
mod remote;
mod shell;
mod tails;
mod wire;
