//! Running hooks for real: processes, webhooks and resident programs, each written by its test.

mod chain;
mod process;
mod resident;
mod scripts;
mod webhook;
