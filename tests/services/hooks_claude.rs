//! Hooks written for Claude Code: their settings files, payloads and outputs.

mod moments;
mod output;
mod payload;
mod scripts;
mod settings;
