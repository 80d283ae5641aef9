//! The page to look at sessions: what it tells of a log, whom its server lets in, and how it looks in a browser.

mod browser;
mod data;
mod server;
mod story;
