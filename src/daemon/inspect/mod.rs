//! `epitome inspect`: a page for looking at sessions.

pub mod entry;
pub mod meter;
pub mod timeline;
mod words;
