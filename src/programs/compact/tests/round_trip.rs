//! Real conversations are compacted, put back in the form of each host, imported and compacted again. `EPITOME_CORPUS` names more
//! of them: a directory whose folder `sessions` has files of any agent.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use epitome_compact::{AgentTranscript, CompactError, CompactOptions, compact};
use epitome_compaction::unfold;
use epitome_import::ImportContext;
use epitome_thread::{Change, Content, Entry, Thread};

const TIME: &str = "2026-11-28T10:00:00.000Z";

/// Bytes that later words and calls, and the headings of tables about them, may add to a message.
const GROWTH_MAX: usize = 4_000;

/// A message of a host: its role, its text, its calls, and the call that it is the result of.
#[derive(Clone)]
struct Spoken {
    role: &'static str,
    text: String,
    calls: Vec<(String, String, Value)>,
    of: String,
}

fn spoken(role: &'static str, text: &str) -> Spoken {
    Spoken { role, text: text.to_owned(), calls: Vec::new(), of: String::new() }
}

/// The forms in which hosts keep a conversation.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    Chat,
    Anthropic,
    Responses,
    Pi,
    /// A line for each part of a reply.
    ClaudeCode,
}

const FORMS: [Form; 5] = [Form::Chat, Form::Anthropic, Form::Responses, Form::Pi, Form::ClaudeCode];

/// The part of the conversation that a host keeps beside the message.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kept {
    Everything,
    Nothing,
    /// As Codex does.
    WordsOfUser,
    /// As Cline does.
    FirstPair,
}

impl Form {
    /// The conversation `before`, the message if there is one, and what is said later.
    fn written(self, before: &[Spoken], message: Option<&str>, later: &[Spoken]) -> String {
        let is_request = !matches!(self, Form::Pi | Form::ClaudeCode);
        let head = json!({ "type": "session", "version": 3, "id": "s", "timestamp": TIME, "cwd": "/w" });
        let mut lines: Vec<Value> = if self == Form::Pi { vec![head] } else { Vec::new() };
        before.iter().for_each(|one| self.add(&mut lines, one));
        if let Some(text) = message {
            let (id, parent) = (format!("m{}", lines.len()), last(&lines));
            match self {
                Form::Pi if before.is_empty() => self.add(&mut lines, &spoken("user", text)),
                Form::Pi => lines.push(json!({
                    "type": "compaction", "id": id, "parentId": parent, "timestamp": TIME, "summary": text,
                    "firstKeptEntryId": id, "tokensBefore": 9000,
                })),
                Form::ClaudeCode => {
                    lines.push(json!({
                        "type": "system", "subtype": "compact_boundary", "uuid": id, "parentUuid": null,
                        "logicalParentUuid": parent, "compactMetadata": { "trigger": "auto", "preTokens": 9000 },
                        "sessionId": "s", "cwd": "/w", "timestamp": TIME,
                    }));
                    self.add(&mut lines, &spoken("user", text));
                    lines.last_mut().expect("it was added")["isCompactSummary"] = json!(true);
                }
                _ => self.add(&mut lines, &spoken("user", text)),
            }
        }
        later.iter().for_each(|one| self.add(&mut lines, one));
        match (is_request, self) {
            (true, Form::Responses) => json!({ "model": "m", "input": lines }).to_string(),
            (true, _) => json!({ "model": "m", "messages": lines }).to_string(),
            (false, _) => lines.iter().map(|line| format!("{line}\n")).collect(),
        }
    }

    fn add(self, lines: &mut Vec<Value>, one: &Spoken) {
        let Spoken { role, text, calls, of } = one;
        let (is_reply, is_result) = (*role == "assistant", *role == "tool");
        let parts = |kind: &str, call: &dyn Fn(&(String, String, Value)) -> Value| -> Vec<Value> {
            let text = (!text.is_empty()).then(|| json!({ "type": kind, "text": text }));
            text.into_iter().chain(calls.iter().map(call)).collect()
        };
        let used =
            |(id, name, input): &_| json!({ "type": "tool_use", "id": id, "name": name, "input": input });
        let result = json!([{ "type": "tool_result", "tool_use_id": of, "content": text }]);
        match self {
            Form::Chat => {
                let called = |(id, name, input): &(String, String, Value)| json!({ "id": id, "type": "function", "function": { "name": name, "arguments": input.to_string() } });
                let calls: Vec<Value> = calls.iter().map(called).collect();
                let mut line = json!({ "role": role, "content": text });
                if is_result {
                    line["tool_call_id"] = json!(of);
                } else if !calls.is_empty() {
                    line["tool_calls"] = json!(calls);
                }
                lines.push(line);
            }
            Form::Anthropic if is_result => lines.push(json!({ "role": "user", "content": result })),
            Form::Anthropic => lines.push(json!({ "role": role, "content": parts("text", &used) })),
            Form::Responses if is_result => {
                lines.push(json!({ "type": "function_call_output", "call_id": of, "output": text }));
            }
            Form::Responses => {
                if !text.is_empty() {
                    let kind = if is_reply { "output_text" } else { "input_text" };
                    lines.push(json!({ "type": "message", "role": role, "content": [{ "type": kind, "text": text }] }));
                }
                lines.extend(calls.iter().map(|(id, name, input)| {
                    json!({ "type": "function_call", "call_id": id, "name": name, "arguments": input.to_string() })
                }));
            }
            Form::Pi => {
                let called = |(id, name, input): &(String, String, Value)| json!({ "type": "toolCall", "id": id, "name": name, "arguments": input });
                let mut message = json!({ "role": role, "content": parts("text", &called) });
                if is_reply {
                    (message["provider"], message["model"], message["stopReason"]) =
                        ("x".into(), "x".into(), "stop".into());
                } else if is_result {
                    message["role"] = json!("toolResult");
                    message["toolCallId"] = json!(of);
                }
                let (id, parent) = (format!("m{}", lines.len()), last(lines));
                lines.push(json!({ "type": "message", "id": id, "parentId": parent, "timestamp": TIME, "message": message }));
            }
            Form::ClaudeCode => {
                let parts = if is_result { vec![result[0].clone()] } else { parts("text", &used) };
                let reply = format!("msg_{}", lines.len());
                for part in parts {
                    let (id, parent) = (format!("m{}", lines.len()), last(lines));
                    let kind = if is_reply { "assistant" } else { "user" };
                    let mut message = json!({ "role": kind, "content": [part] });
                    if is_reply {
                        (message["id"], message["model"]) = (json!(reply), "claude".into());
                    }
                    lines.push(json!({
                        "type": kind, "uuid": id, "parentUuid": parent, "sessionId": "s", "cwd": "/w",
                        "timestamp": TIME, "message": message,
                    }));
                }
            }
        }
    }
}

/// The id of the newest line.
fn last(lines: &[Value]) -> Value {
    let id = lines.last().map(|line| if line["uuid"].is_null() { &line["id"] } else { &line["uuid"] });
    id.filter(|id| id.as_str() != Some("s")).cloned().unwrap_or_default()
}

/// A conversation as its messages.
fn messages(entries: &[Entry]) -> Vec<Spoken> {
    let mut all = Vec::new();
    for entry in entries {
        match &entry.change {
            Change::Said { message, .. } => all.push(spoken("user", &message.text())),
            Change::Replied { message, .. } => {
                let texts = message.content.iter().filter_map(Content::as_text).collect::<Vec<_>>();
                let calls =
                    message.calls().map(|call| (call.id.0.clone(), call.name.clone(), call.input.clone()));
                all.push(Spoken { calls: calls.collect(), ..spoken("assistant", &texts.join("\n\n")) });
            }
            Change::ToolFinished { outcome } => {
                all.push(Spoken { of: outcome.call.0.clone(), ..spoken("tool", &outcome.model_text()) });
            }
            _ => {}
        }
    }
    all.retain(|one| !one.text.trim().is_empty() || !one.calls.is_empty() || one.role == "tool");
    all
}

fn context<'a>() -> ImportContext<'a> {
    ImportContext { cwd: Path::new("/w"), now: 0, read_sibling: &|_| None }
}

struct Made {
    text: String,
    /// The user's messages in it, and whether all of them are there word for word.
    said: Vec<String>,
    is_whole: bool,
}

fn made(form: Form, text: &str) -> Option<Made> {
    let is_request = !matches!(form, Form::Pi | Form::ClaudeCode);
    let path = Path::new("session.jsonl");
    let cwd = Path::new("/w");
    let transcript = AgentTranscript { path, text, cwd, is_request, read_sibling: &|_| None, before: None };
    let options = CompactOptions { max_tokens: Some(60_000), ..CompactOptions::default() };
    match compact(&transcript, &options) {
        Ok(made) => {
            let (_, body) = made.message.split_once('\n').expect("a first line");
            let said = unfold(body).expect("a message of Epitome").said;
            let is_whole = made.shortened == 0 && made.left_out == 0;
            Some(Made { said, is_whole, text: made.message })
        }
        Err(CompactError::NoGain(_)) => None,
        Err(error) => panic!("{form:?}: {error}"),
    }
}

fn counts(words: &[String]) -> HashMap<String, usize> {
    let mut counts = HashMap::new();
    for text in words {
        // Hosts change the white space at the ends of texts.
        *counts.entry(text.trim().to_owned()).or_default() += 1;
    }
    counts
}

/// A message was recognized by the number of entries that it stands for. Where an importer joined replies that another one had
/// counted apart, its conversation seemed to be missing, so the message was taken apart beside it, and each word of the user
/// was in the next one twice.
#[test]
fn a_message_is_recognized_in_every_form() {
    let mut sessions = vec![PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../../benches/keep/own/sessions/tidelog.jsonl"
    ))];
    if let Some(corpus) = std::env::var_os("EPITOME_CORPUS") {
        let folder = std::fs::read_dir(Path::new(&corpus).join("sessions")).expect("a corpus");
        let files = folder.map(|file| file.expect("an entry").path());
        sessions.extend(files.filter(|file| file.extension().is_some_and(|end| end == "jsonl")));
    }
    let later = [
        spoken("user", "Then count the gulls of the second harbour as well."),
        spoken("assistant", &"I counted them, and there were many. ".repeat(60)),
    ];
    let mut tried = 0;
    for (at, file) in sessions.iter().enumerate() {
        let text = std::fs::read_to_string(file).expect("a session");
        let draft = epitome_import::read_foreign(file, &text, &context()).expect("it is read");
        let before = messages(&draft.entries);
        // Each message is put back in another form than the one that it was made from, too.
        for (from, to) in
            FORMS.iter().enumerate().flat_map(|(nth, to)| [(FORMS[(nth + at) % 5], *to), (*to, *to)])
        {
            let Some(first) = made(from, &from.written(&before, None, &[])) else { continue };
            for kept in [Kept::Everything, Kept::Nothing, Kept::WordsOfUser, Kept::FirstPair] {
                let kept_messages: Vec<Spoken> = match kept {
                    Kept::Everything => before.clone(),
                    Kept::Nothing => Vec::new(),
                    Kept::WordsOfUser => before.iter().filter(|one| one.role == "user").cloned().collect(),
                    Kept::FirstPair => {
                        before.iter().take(2).map(|one| Spoken { calls: Vec::new(), ..one.clone() }).collect()
                    }
                };
                let host = to.written(&kept_messages, Some(&first.text), &later);
                let case = format!("{}, {from:?} to {to:?}, {kept:?}", file.display());
                let draft = epitome_import::read(Path::new("x.jsonl"), &host, &context())
                    .expect("it is read")
                    .remove(0);
                let thread =
                    Thread::replay(draft.entries.into_iter().map(std::sync::Arc::new)).expect("a log");
                let is_marked = |entry: &Entry| matches!(&entry.change, Change::Said { message, .. } if message.text().contains("[Epitome message"));
                let is_native = matches!(to, Form::Pi | Form::ClaudeCode);
                assert!(!is_native || !thread.entries().iter().any(|entry| is_marked(entry)), "{case}");

                let second = made(to, &host).expect("a size is named");
                tried += 1;
                for once in ["[Epitome message", "The conversation so far was compacted."] {
                    assert_eq!(
                        second.text.matches(once).count(),
                        first.text.matches(once).count(),
                        "{case}: {}",
                        second.text
                    );
                }
                if first.is_whole && second.is_whole {
                    let mut expected = first.said.clone();
                    expected.push(later[0].text.clone());
                    let (found, expected) = (counts(&second.said), counts(&expected));
                    for (text, count) in &expected {
                        assert_eq!(found.get(text), Some(count), "{case}: {text}");
                    }
                    assert_eq!(found.len(), expected.len(), "{case}: {:?}", found.keys());
                }
                if kept == Kept::Everything {
                    let without = made(to, &to.written(&before, None, &later)).expect("a size is named");
                    assert_eq!(second.text, without.text, "{case}: as if the message had never been there");
                } else {
                    let grown = second.text.len().saturating_sub(first.text.len());
                    assert!(grown < GROWTH_MAX, "{case}: {} became {}", first.text.len(), second.text.len());
                }
            }
        }
    }
    assert!(tried > 0);
}
