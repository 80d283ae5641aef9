//! Hooks written for other agents run unmodified: the real binary, a home with scripts in the forms that users of
//! kodelet and Claude Code write, and a scripted model on loopback.
//!
//! Each test checks three views: the requests to the model, the client's messages, and the log with its
//! trail. The scripts only need a POSIX shell with grep and sed, except for those that kodelet's documents print.

mod project;

mod answers;
mod claude;
mod compaction;
mod consent;
mod kodelet;
mod printed;
