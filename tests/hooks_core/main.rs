//! What hooks may print, what it means, what several hooks together mean, and what they are given: the
//! contract as tables.

mod chain;
mod normalise;
mod payload;
mod read;
mod settle;
mod support;
