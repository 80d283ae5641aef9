//! Running hooks for real: processes, webhooks and resident programs, each written by its test.

#[path = "hooks_run/chain.rs"]
mod chain;
#[path = "hooks_run/process.rs"]
mod process;
#[path = "hooks_run/resident.rs"]
mod resident;
#[path = "hooks_run/scripts.rs"]
mod scripts;
#[path = "hooks_run/webhook.rs"]
mod webhook;
