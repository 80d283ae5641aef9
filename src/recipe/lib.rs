//! Recipes: Markdown files that become slash commands; and those that describe agents.
//!
//! `fields` reads the fields of a declaration with their places, `parse` one file, `handlers` knows the names
//! that its `hooks` may use. `render` makes the prompt of it (asking for the commands that it wants run),
//! `command` reads what a person typed. All of these are pure. `catalog` finds the files, `watch` notices that
//! they changed, `agents` finds and reads agents; only these three touch the disk.

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
mod walk;
pub mod watch;
