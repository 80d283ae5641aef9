//! Recipes: Markdown files that become slash commands.

pub mod catalog;
pub mod command;
pub mod parse;
pub mod render;
