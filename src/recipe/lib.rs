//! Recipes: Markdown files that become slash commands. Subagent definitions have the same format and are read
//! here too.
//!
//! `fields` reads the fields of a declaration with their positions, `parse` reads one file, and `handlers`
//! defines the names that its `hooks` may use. `render` produces the prompt (requesting the shell commands
//! whose output it needs), and `command` parses typed commands. All of these are pure. `catalog` finds the
//! files, `watch` notices changes, `agents` finds and reads subagents; only these three access the disk.

pub mod agents;
pub mod catalog;
pub mod command;
pub mod fields;
mod foreign;
mod front_matter;
pub mod handlers;
pub mod parse;
mod places;
pub mod render;
pub mod shown;
pub mod template;
pub mod walk;
pub mod watch;
