//! Hooks written for Claude Code: their settings files, what they are given, and what they answer.

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
