//! Epitome: a coding-agent daemon for editors, with compaction that you can trust.

pub mod acp;
pub mod cli;
pub mod compaction;
pub mod config;
pub mod paths;
pub mod problem;
pub mod provider;
pub mod recipe;
pub mod session;
pub mod store;
pub mod thread;
pub mod tokens;
pub mod tools;
pub mod transcript;
pub mod turn;
