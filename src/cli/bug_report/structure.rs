//! The session section of a bug report: kinds of entries, sizes, roles, names of tools and models, results, times and
//! tokens. It has no content of messages, inputs, paths or titles.

use std::fmt::Write as _;

use crate::thread::{
    Change, Content, Cut, Edit, Entry, Message, Origin, OutcomeContent, Thread, Usage, Withheld, text,
};

/// The newest entries, which are listed one by one.
const ENTRIES_MAX: usize = 5_000;

pub(super) fn told(thread: &Thread) -> String {
    let entries = thread.entries();
    let mut out = format!(
        "{} entries, {} of them in the view; open calls {}, in a turn: {}\n",
        entries.len(),
        thread.view().entries().len(),
        thread.open_calls().len(),
        thread.in_turn()
    );
    let left_out = entries.len().saturating_sub(ENTRIES_MAX);
    if left_out > 0 {
        let _ = writeln!(out, "the first {left_out} are left out");
    }
    let mut before = entries.get(left_out).map_or(0, |entry| entry.at);
    for entry in &entries[left_out..] {
        let after = entry.at.saturating_sub(before);
        before = entry.at;
        let _ = writeln!(out, "{:<6} +{after} ms  {}", entry.seq.to_string(), shape(entry));
    }
    out
}

/// An entry without its content. Sizes are in bytes.
fn shape(entry: &Entry) -> String {
    let change = &entry.change;
    let kind = change.kind();
    match change {
        Change::Opened { format, .. } => format!("{kind} format={format}"),
        Change::Framed { system, tools } => {
            let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
            format!("{kind} system={} tools={}", system.len(), names.join(","))
        }
        Change::Queued { message } => format!("{kind} user {}", of_message(message)),
        Change::Said { message, origin } => {
            let from = match origin {
                Origin::Person => "person",
                Origin::Recipe { .. } => "recipe",
                Origin::Queue { .. } => "queue",
                Origin::Hook { .. } => "hook",
                Origin::Context { .. } => "context",
                Origin::Instructions { .. } => "instructions",
            };
            format!("{kind} user from={from} {}", of_message(message))
        }
        Change::Commanded { message, typed } => format!("{kind} {message} typed={}", typed.len()),
        Change::Replied { message, model, usage, cut } => {
            let cut = match cut {
                None => "",
                Some(Cut::MaxTokens) => " cut=max_tokens",
                Some(Cut::Refused { .. }) => " cut=refused",
                Some(Cut::Cancelled) => " cut=cancelled",
                Some(Cut::Broken { .. }) => " cut=broken",
                Some(Cut::WindowFull) => " cut=window_full",
                Some(Cut::Filtered { .. }) => " cut=filtered",
                Some(Cut::Other { .. }) => " cut=other",
            };
            let usage = usage.as_ref().map_or_else(String::new, of_usage);
            format!("{kind} agent {} model={model}{usage}{cut}", of_message(message))
        }
        Change::ToolFinished { outcome } => {
            let status = text::status(outcome.status);
            let parts: Vec<String> = outcome.content.iter().map(of_outcome).collect();
            let whole = outcome.whole.as_ref().map_or(0, String::len);
            format!(
                "{kind} {status} {} shown={} whole={whole} raw={}",
                parts.join(" "),
                outcome.shown.len(),
                outcome.raw.is_some()
            )
        }
        Change::Compacted {
            through,
            trigger,
            focus,
            tokens_before,
            tokens_after,
            window: _,
            model,
            usage,
            masks,
            summary,
            account,
        } => format!(
            "{kind} through={through} trigger={trigger:?} focus={} tokens={tokens_before}->{tokens_after} \
             model={} summary={} masks={} quoted={} facts={} left_out={} fallback={}{}",
            focus.is_some(),
            model.as_ref().map_or("none", |model| &model.0),
            summary.text().len(),
            masks.len(),
            account.quoted.len(),
            account.facts,
            account.left_out.len(),
            account.fallback.is_some(),
            usage.as_ref().map_or_else(String::new, of_usage)
        ),
        Change::Pruned { masks, trigger, tokens_before, tokens_after, window: _ } => {
            format!("{kind} masks={} trigger={trigger:?} tokens={tokens_before}->{tokens_after}", masks.len())
        }
        Change::Mutated { through, messages, tokens_before, tokens_after, .. } => format!(
            "{kind} through={through} messages={} tokens={tokens_before}->{tokens_after}",
            messages.len()
        ),
        Change::Edited { edits, .. } => {
            let kinds: Vec<&str> = edits.iter().map(Edit::op).collect();
            format!("{kind} {}", kinds.join(","))
        }
        Change::CallChanged { input, .. } => format!("{kind} input={}", input.to_string().len()),
        Change::Withheld { message, why, .. } => {
            let why = match why {
                Withheld::Blocked { .. } => "blocked",
                Withheld::Cancelled => "cancelled",
            };
            format!("{kind} user why={why} {}", of_message(message))
        }
        Change::Hooked { event, runs } => {
            let runs: Vec<String> =
                runs.iter().map(|run| format!("{:?} in {} ms", run.verdict, run.milliseconds)).collect();
            format!("{kind} event={event} {}", runs.join(", "))
        }
        Change::GoalSet { goal } => format!("{kind} goal={}", goal.as_ref().map_or(0, String::len)),
        Change::ThinkingDropped { through, .. } => format!("{kind} through={through}"),
        Change::Undone { entry } | Change::Redone { entry } => format!("{kind} {entry}"),
        Change::Rewound { to } => format!("{kind} to={to}"),
        Change::FilesRewound { turn, rewind, undo, files, more, left } => format!(
            "{kind} turn={turn} rewind={rewind} undo={undo} files={} left={left}",
            files.len() + *more as usize
        ),
        Change::Forked { from, through } => format!("{kind} from={from} through={through}"),
        Change::Noted { message, text } => format!("{kind} {message} text={}", text.len()),
        Change::ModelChosen { model } => format!("{kind} {model}"),
        Change::ModeChosen { mode } => format!("{kind} {}", mode.id()),
        Change::ThoughtChosen { level } => format!("{kind} {level:?}"),
        Change::Titled { title } => format!("{kind} title={}", title.len()),
        Change::Planned { steps } => format!("{kind} steps={}", steps.len()),
        Change::Allowed { .. } | Change::Forgotten { .. } => kind.to_owned(),
        Change::Spent { model, usage, .. } => format!("{kind} model={model}{}", of_usage(usage)),
        Change::TurnEnded { reason, usage, quiet_hooks } => {
            format!("{kind} {reason:?}{} quiet_hooks={quiet_hooks}", of_usage(usage))
        }
    }
}

fn of_message(message: &Message) -> String {
    let parts: Vec<String> = message
        .content
        .iter()
        .map(|part| match part {
            Content::Text { text } => format!("text={}", text.len()),
            Content::Thinking { text, native } => {
                format!("thinking={} native={}", text.len(), native.is_some())
            }
            Content::Image { data, .. } => format!("image={}", data.len()),
            Content::Document { data, .. } => format!("document={}", data.len()),
            Content::Resource { text, .. } => format!("resource={}", text.len()),
            Content::ResourceLink { .. } => "resource_link".to_owned(),
            Content::Call(call) => format!("call={} input={}", call.name, call.input.to_string().len()),
        })
        .collect();
    format!("{} {}", message.id, parts.join(" "))
}

fn of_outcome(part: &OutcomeContent) -> String {
    match part {
        OutcomeContent::Text { text } => format!("text={}", text.len()),
        OutcomeContent::Image { data, .. } => format!("image={}", data.len()),
        OutcomeContent::Document { data, .. } => format!("document={}", data.len()),
    }
}

fn of_usage(usage: &Usage) -> String {
    let Usage { input, output, cache_read, cache_write, thinking } = usage;
    format!(
        " input={input} output={output} cache_read={cache_read} cache_write={cache_write} thinking={thinking}"
    )
}
