//! `export_markdown`: writes the conversation to a Markdown file of the workspace (`mode: overwrite`), or
//! appends each reply to it (`mode: append`).
//!
//! The conversation is exported as the model sees it: compacted parts appear as their summary.

use std::fmt::Write;

use super::HandlerError;
use super::{BuiltInHandler, HandlerRun, files, params};
use crate::event::HookEvent;
use crate::hook_context::HookContext;
use crate::output::HookOutput;
use epitome_thread::{Message, View, ViewItem};
use epitome_tools::{Workspace, disk};

pub const HANDLER: BuiltInHandler = BuiltInHandler {
    name: "export_markdown",
    events: &[HookEvent::TurnEnd, HookEvent::AgentStop],
    params: &["path", "mode"],
    check: |params| read(params).map(|_| None),
    qualifies: |_| true,
    run: HandlerRun::Writing(PATH, perform),
};

/// Default path of the export.
const PATH: &str = "conversation.md";

/// The beginning of an export that may be overwritten.
const HEAD: &str = "# Conversation ";

/// Maximum size of an export in bytes, below that of a file that `files::write` can read and replace. The oldest part of a
/// longer conversation is left out, with a note at the top.
const EXPORT_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Maximum bytes per tool call or result: the export is about the conversation, not about files.
const TOOL_BYTES_MAX: usize = 4 * 1024;

/// The path, and whether replies are appended.
fn read(params: &super::HandlerParams) -> Result<(&str, bool), HandlerError> {
    let appends = params::choice(params, "mode", &[("overwrite", false), ("append", true)])?;
    Ok((params::text(params, "path")?.unwrap_or(PATH), appends.unwrap_or(false)))
}

fn perform(
    params: &super::HandlerParams,
    hook_context: &HookContext,
    workspace: &Workspace,
) -> Result<HookOutput, HandlerError> {
    let (path, appends) = read(params)?;
    let round = hook_context.what.round().ok_or("there is no reply to export")?;
    let mode = hook_context.base.mode;
    let text = match appends {
        true => titled("Agent", &round.response),
        false => conversation(&hook_context.base.session, &hook_context.base.view),
    };
    match appends {
        _ if text.is_empty() => {}
        true => files::append(path, text.as_bytes(), mode, workspace)?,
        false => files::write(path, text.as_bytes(), HEAD, mode, workspace)?,
    }
    Ok(HookOutput::default())
}

fn conversation(session: &str, view: &View) -> String {
    let mut sections: Vec<String> = view.items().iter().map(section).collect();
    sections.retain(|section| !section.is_empty());
    let mut room = EXPORT_BYTES_MAX;
    let kept = sections.iter().rev().take_while(|section| match room.checked_sub(section.len()) {
        Some(left) => {
            room = left;
            true
        }
        None => false,
    });
    let left_out = sections.len() - kept.count();
    let mut text = format!("{HEAD}{session}\n\n");
    if left_out > 0 {
        let _ = write!(text, "_The oldest {left_out} parts are left out._\n\n");
    }
    text.extend(sections.drain(left_out..));
    text
}

fn section(item: &ViewItem<'_>) -> String {
    match item {
        ViewItem::User(message) | ViewItem::Summary(message) => titled("User", &message.text()),
        ViewItem::Agent(message, model) => titled(&format!("Agent ({model})"), &reply_text(message)),
        ViewItem::Outcomes(outcomes) => outcomes
            .iter()
            .map(|outcome| titled("Tool result", &disk::fenced("", cut(&outcome.model_text()))))
            .collect(),
    }
}

/// A section; empty if it has no text.
fn titled(title: &str, text: &str) -> String {
    match text.trim() {
        "" => String::new(),
        text => format!("## {title}\n\n{text}\n\n"),
    }
}

/// The text of a reply, then its tool calls.
fn reply_text(message: &Message) -> String {
    let mut text = message.text();
    for call in message.calls() {
        let input = call.input.to_string();
        let _ = write!(text, "\n\nCalls {}:\n\n{}", call.name, disk::fenced("json", cut(&input)));
    }
    text
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(TOOL_BYTES_MAX)]
}
