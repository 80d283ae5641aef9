//! The result of rendering: a prompt, or the shell calls that it needs first.

use std::collections::BTreeMap;

use super::shell_quotes::shell_quoted;

/// A command that a recipe runs in the session's directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ShellCall {
    /// A program and its arguments, run without a shell.
    Words(Vec<String>),
    /// A command line for the shell (Claude Code and Gemini commands).
    Line(String),
}

impl ShellCall {
    /// The call as a shell command line; words are quoted so that they reach the program unchanged.
    pub fn line(&self) -> String {
        match self {
            ShellCall::Words(words) => {
                words.iter().map(|word| shell_quoted(word)).collect::<Vec<_>>().join(" ")
            }
            ShellCall::Line(line) => line.clone(),
        }
    }
}

/// Output of calls: stdout and stderr, or the reason why a call failed. Both become part of the prompt.
pub type ShellOutputs = BTreeMap<ShellCall, String>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rendered {
    Done(RenderedPrompt),
    /// Run these and render again with all outputs so far. A recipe requests at most 64 calls in total.
    Needs(Vec<ShellCall>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderedPrompt {
    pub text: String,
    /// Warnings for the user: undefined variables.
    pub warnings: Vec<String>,
}
