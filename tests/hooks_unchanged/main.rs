//! Hooks that were written for other agents, run as they are: the real binary, a home with scripts in
//! the spellings that kodelet's and Claude Code's users write, and a scripted model on loopback.
//!
//! Each test asks three witnesses: what the model was sent, what the client saw, and what the store and
//! its trail kept. The scripts need a POSIX shell with grep and sed, and nothing else.

mod desk;
mod editor;

mod answers;
mod claude;
mod compaction;
mod consent;
mod kodelet;
