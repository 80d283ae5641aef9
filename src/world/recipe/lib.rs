//! Recipes: Markdown files that become slash commands. Subagent definitions have the same format and are read
//! here too.
//!
//! `fields` reads the fields of a declaration with their positions (`lenient` those of other agents' files),
//! `parse` and `foreign` read one file into a `definition`, and `handlers` defines the names that its `hooks` may use. `render`
//! produces the prompt (requesting the shell commands whose output it needs; `expand` fills in the
//! placeholders of other agents), and `command` parses typed commands. All of these are pure. `catalog` finds the
//! files, `plugins` finds plugins of Claude Code, `watch` notices changes, `agents` finds and reads subagents;
//! only these access the disk.

pub mod agents;
pub mod catalog;
pub mod command;
mod definition;
mod expand;
pub mod fields;
mod folders;
pub mod foreign;
mod front_matter;
pub mod handlers;
mod lenient;
pub mod parse;
pub mod plugins;
pub mod render;
mod rendered;
mod shell_quotes;
pub mod shown;
pub mod template;
pub mod text_file;
pub mod walk;
pub mod watch;
