//! The hook contract as tables: accepted output, its meaning, the combination of several hooks, and their
//! payloads.

mod chain;
mod guards;
mod normalise;
mod payload;
mod read;
mod support;
