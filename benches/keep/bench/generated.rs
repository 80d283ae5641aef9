//! Conversations of any length, for timing and for a smoke test. Retention measured on them means little,
//! because they are repetitive.

use serde_json::json;

use super::corpus::{Block, Message};

/// Files that the agent works through, again and again.
const FILES: usize = 40;

/// The user's request in a turn.
pub fn request(turn: usize) -> String {
    format!("Please look at module_{} and keep its limit at {} items, not more.", turn % FILES, 100 + turn)
}

/// A conversation of `turns` turns: in each the user asks, and the agent reads, edits, tests and answers.
pub fn conversation(turns: usize) -> Vec<Message> {
    let mut messages = Vec::new();
    for turn in 0..turns {
        let path = format!("/work/app/src/module_{}.rs", turn % FILES);
        let limit = 100 + turn;
        messages.push(Message::User(request(turn)));
        let mut call =
            |step: usize, name: &str, said: &str, input: serde_json::Value, result: String, failed: bool| {
                let id = format!("call_{turn}_{step}");
                let said = Some(Block::Text(said.to_owned())).filter(|_| !said.is_empty());
                let call = Block::Call { id: id.clone(), name: name.to_owned(), input };
                messages.push(Message::Agent(said.into_iter().chain([call]).collect()));
                messages.push(Message::Result { call: id, text: result, failed });
            };
        let line =
            |nth: usize| format!("{nth:>5}  let value_{nth} = source.read({}, limit)?;", nth * 7 + turn);
        let listing = (0..60).map(line).collect::<Vec<_>>().join("\n");
        call(0, "Read", "I read it first.", json!({"file_path": path}), listing, false);
        let edit = json!({"file_path": path, "old_string": format!("LIMIT: usize = {};", limit - 1),
            "new_string": format!("LIMIT: usize = {limit};")});
        call(1, "Edit", "", edit, "The file was updated.".to_owned(), false);
        let failed = turn % 5 == 4;
        let verdict = if failed { "FAILED: 1 of 12" } else { "ok: 12 passed" };
        let output = format!("{}\ntest result: {verdict}", "test module::reads_values ... ok\n".repeat(11));
        let command = json!({"command": format!("cargo test module_{}", turn % FILES)});
        call(2, "Bash", "Now the tests.", command, output, failed);
        let answer = format!("`module_{}` now has the limit {limit}; the tests say {verdict}.", turn % FILES);
        messages.push(Message::Agent(vec![Block::Text(answer)]));
    }
    messages
}
