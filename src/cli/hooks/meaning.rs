//! Describes the requests in a hook's output in sentences.

use std::collections::BTreeMap;

use serde_json::Value;

use epitome_hooks::output::{
    CallbackRequest, HistoryAction, HistoryTail, HookOutput, PermissionDecision, RequestedEdit, ResultChange,
    Utterance,
};

/// Returns one line per request, in the order in which they would be applied; empty without requests.
pub fn meaning(output: &HookOutput) -> Vec<String> {
    let HookOutput {
        block,
        decision,
        decision_reason,
        input,
        message,
        context,
        output: result,
        output_text,
        action,
        follow_ups,
        go_on,
        notice,
        edits,
        custom_instructions,
        summary,
        halt,
        warnings,
    } = output;
    let mut lines = Vec::new();
    let mut say = |line: String| lines.push(line);
    if let Some(reason) = block {
        say(with("it is blocked", reason.as_deref()));
    }
    if let Some(decision) = decision {
        let decided = match decision {
            PermissionDecision::Allow => "it runs without asking",
            PermissionDecision::Ask => "the user is asked",
            PermissionDecision::Deny => "it is denied",
        };
        say(with(decided, decision_reason.as_deref()));
    }
    if let Some(input) = input {
        say(format!("the tool runs with {}", Value::Object(input.clone())));
    }
    if let Some(message) = message {
        say(format!("the prompt becomes: {message}"));
    }
    context.iter().for_each(|text| say(format!("added for the model: {text}")));
    if let Some(ResultChange { success, error, metadata_type, metadata }) = result {
        if let Some(success) = success {
            say(format!("the tool's result counts as {}", if *success { "a success" } else { "a failure" }));
        }
        if let Some(error) = error {
            say(format!("the tool's error becomes: {error}"));
        }
        if let Some(kind) = metadata_type {
            say(format!("the result's metadata are of type {kind}"));
        }
        if let Some(metadata) = metadata {
            say(format!("the result's metadata become {metadata}"));
        }
    }
    if let Some(text) = output_text {
        say(format!("the model reads as the tool's result: {text}"));
    }
    describe_action(action).into_iter().for_each(&mut say);
    for edit in edits.iter().flat_map(|edits| &edits.edits) {
        say(describe_edit(edit));
    }
    if let Some(text) = custom_instructions {
        say(format!("the instructions for the summary: {text}"));
    }
    if let Some(text) = summary {
        say(format!("the summary, without a model: {text}"));
    }
    follow_ups
        .iter()
        .for_each(|message| say(format!("the agent continues with: {}", describe_message(message))));
    if *go_on {
        say("the agent continues".to_owned());
    }
    if let Some(text) = notice {
        say(format!("notice for the user: {text}"));
    }
    if let Some(reason) = halt {
        say(with("the turn ends", Some(reason)));
    }
    warnings.iter().for_each(|warning| say(format!("not understood: {warning}")));
    lines
}

fn with(done: &str, reason: Option<&str>) -> String {
    match reason.filter(|reason| !reason.is_empty()) {
        Some(reason) => format!("{done}: {reason}"),
        None => done.to_owned(),
    }
}

fn describe_action(action: &HistoryAction) -> Vec<String> {
    match action {
        HistoryAction::None => Vec::new(),
        HistoryAction::Mutate { messages, preserve_recent, target } => {
            let to = target.as_ref().map(|target| format!(" of {target}")).unwrap_or_default();
            let head = format!(
                "the history{to} becomes these {} messages, followed by the newest {preserve_recent}:",
                messages.len()
            );
            [head]
                .into_iter()
                .chain(messages.iter().map(|message| format!("  {}", describe_message(message))))
                .collect()
        }
        HistoryAction::Callback(callback) => vec![describe_callback(callback)],
        HistoryAction::Swap { summary, keep } => {
            vec![format!("the history becomes this summary, {}: {summary}", describe_tail(*keep))]
        }
        HistoryAction::Compact { keep, threshold } => {
            let when = if *threshold { ", where the threshold is reached" } else { "" };
            vec![format!("the history is compacted{when}, {}", describe_tail(*keep))]
        }
    }
}

fn describe_callback(callback: &CallbackRequest) -> String {
    let CallbackRequest { name, args, target, asynchronous, text_only } = callback;
    let named = |args: &BTreeMap<String, String>| {
        args.iter().map(|(key, value)| format!(" {key}={value:?}")).collect::<String>()
    };
    format!(
        "the recipe or function {name} is called{}{}{}{}",
        if args.is_empty() { String::new() } else { format!(" with{}", named(args)) },
        target.as_ref().map(|target| format!(" for {target}")).unwrap_or_default(),
        if *asynchronous { ", in the background" } else { "" },
        if *text_only { ", and its text is added to the end of the history" } else { "" },
    )
}

fn describe_edit(edit: &RequestedEdit) -> String {
    match edit {
        RequestedEdit::Pin(part) => format!("{part} is pinned"),
        RequestedEdit::Unpin(part) => format!("{part} is not pinned any more"),
        RequestedEdit::Mask(part, text) => format!("{part} is shown as: {text}"),
        RequestedEdit::Drop(part) => format!("{part} is left out"),
        RequestedEdit::Replace(part, text) => format!("{part} becomes: {text}"),
        RequestedEdit::Append(message) => format!("appended to the history: {}", describe_message(message)),
    }
}

fn describe_tail(keep: HistoryTail) -> String {
    match keep {
        HistoryTail::Nothing => "followed by nothing".to_owned(),
        HistoryTail::Messages(count) => format!("followed by the newest {count} messages"),
        HistoryTail::Ratio(ratio) => format!("followed by the newest {:.0} % of the window", ratio * 100.0),
    }
}

fn describe_message(message: &Utterance) -> String {
    format!("{}: {}", message.role.id(), message.text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::thread::{PartId, Seq};

    #[test]
    fn what_is_asked_for_is_said_in_sentences_and_nothing_of_nothing() {
        assert_eq!(meaning(&HookOutput::default()), Vec::<String>::new());
        let output = HookOutput {
            block: Some(Some("not today".to_owned())),
            decision: Some(PermissionDecision::Ask),
            input: Some([("command".to_owned(), Value::from("ls"))].into_iter().collect()),
            context: vec!["It rains.".to_owned()],
            action: HistoryAction::Compact { keep: HistoryTail::Ratio(0.25), threshold: true },
            edits: Some(epitome_hooks::output::RequestedEdits {
                revision: None,
                edits: vec![RequestedEdit::Drop(PartId { entry: Seq(4), part: None })],
            }),
            ..HookOutput::default()
        };
        assert_eq!(
            meaning(&output),
            [
                "it is blocked: not today",
                "the user is asked",
                r#"the tool runs with {"command":"ls"}"#,
                "added for the model: It rains.",
                "the history is compacted, where the threshold is reached, followed by the newest 25 % of \
                 the window",
                "e4 is left out",
            ]
        );
    }
}
