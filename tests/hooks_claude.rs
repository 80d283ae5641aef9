//! Hooks written for Claude Code: their settings files, payloads and outputs.

#[path = "hooks_claude/moments.rs"]
mod moments;
#[path = "hooks_claude/output.rs"]
mod output;
#[path = "hooks_claude/payload.rs"]
mod payload;
#[path = "hooks_claude/scripts.rs"]
mod scripts;
#[path = "hooks_claude/settings.rs"]
mod settings;
