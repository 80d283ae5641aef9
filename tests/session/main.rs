//! Sessions from outside, without an editor's protocol: steering, cancels, panics, compaction in small
//! windows, and restarts.

mod absent;
mod agents_shown;
mod buffers;
mod caching;
mod checkpoints;
mod child;
mod commands;
mod compaction;
// `tests/full_disk.rs` uses the rest of it.
#[allow(dead_code)]
mod desk;
mod files;
mod formats;
mod guards;
mod held;
mod hooks_callbacks;
mod hooks_cancel;
mod hooks_consent;
mod hooks_events;
mod hooks_guards;
mod hooks_history;
mod hooks_prompts;
mod hooks_services;
mod hooks_tools;
mod instructions;
mod learned;
mod mcp;
mod mcp_http;
mod mcp_server;
mod numbers;
mod permissions;
mod recall;
mod resting;
mod shared;
mod skills;
mod stage;
mod steering;
mod summaries;
mod taken;
mod tasks;
mod turns;
