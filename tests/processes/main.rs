//! Tests of the built program as a user or an editor starts it.

#![expect(clippy::duplicate_mod, reason = "the tests of an agent run without a daemon and with one")]

mod acp_v2;
mod ahp;
mod chat;
mod cli;
mod config;
mod daemon;
mod distance;
mod docs;
mod fleet;
mod hooks_unchanged;
mod login;
mod mcp_servers;
mod observe;
mod other_agents;
mod packaging;
mod policy;
mod process;
mod programs;
mod protocol;
mod terminal;
mod worktrees;

// The example handler of CONTRIBUTING.md uses the module paths of its own crate.
use epitome::hooks::{self, event, hook_context, output};
