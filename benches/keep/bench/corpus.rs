//! A corpus: real conversations up to their first compaction, the summary that a model wrote then, the messages that
//! followed, and manually collected facts and instructions. `benches/keep/README.md` describes the files.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use epitome::thread::{Entry, Thread};
use epitome_import::{self as transfer, ImportContext};
use regex::{Regex, RegexBuilder};
use serde::Deserialize;
use serde_json::{Value, json};

/// A message, reduced to the parts that are measured.
#[derive(Clone, Debug)]
pub enum Message {
    User(String),
    Agent(Vec<Block>),
    Result { call: String, text: String, failed: bool },
}

#[derive(Clone, Debug)]
pub enum Block {
    Text(String),
    Call { id: String, name: String, input: Value },
}

impl Message {
    /// The message as text, in which terms are searched.
    pub fn words(&self) -> String {
        match self {
            Message::User(text) => format!("USER: {text}"),
            Message::Result { text, .. } => format!("RESULT: {text}"),
            Message::Agent(blocks) => {
                let blocks = blocks.iter().map(|block| match block {
                    Block::Text(text) => text.clone(),
                    Block::Call { name, input, .. } => format!("{name} {input}"),
                });
                format!("AGENT: {}", blocks.collect::<Vec<_>>().join("\n"))
            }
        }
    }

    pub fn calls(&self) -> impl Iterator<Item = (&str, &str, &Value)> {
        let blocks = if let Message::Agent(blocks) = self { blocks.as_slice() } else { &[] };
        blocks.iter().filter_map(|block| match block {
            Block::Call { id, name, input } => Some((id.as_str(), name.as_str(), input)),
            Block::Text(_) => None,
        })
    }
}

/// The path in a call's input.
pub fn path_of(input: &Value) -> Option<&str> {
    ["file_path", "path", "notebook_path"].iter().find_map(|key| input[key].as_str())
}

pub struct Session {
    pub name: String,
    /// The agent that the session is from, and whether its repository is held back from tuning.
    pub agent: String,
    pub is_held_back: bool,
    pub messages: Vec<Message>,
    /// The same messages as an Epitome log, as created by an import.
    pub entries: Vec<Arc<Entry>>,
    /// The summary that a model wrote when the session was compacted.
    pub summary: Option<String>,
    /// The messages after the compaction.
    pub later: Vec<Message>,
}

impl Session {
    pub fn thread(&self) -> Thread {
        Thread::replay(self.entries.iter().cloned()).expect("an import makes a whole log")
    }

    /// The entire conversation as one text.
    pub fn before(&self) -> String {
        words(&self.messages)
    }

    /// A session of these messages, created through an import.
    pub fn of(name: &str, messages: Vec<Message>) -> Result<Session> {
        let entries = import(Path::new(name), &pi_lines(&messages))?;
        let (agent, later) = (String::new(), Vec::new());
        Ok(Session {
            name: name.to_owned(),
            agent,
            is_held_back: false,
            messages,
            entries,
            summary: None,
            later,
        })
    }
}

pub fn words(messages: &[Message]) -> String {
    messages.iter().map(Message::words).collect::<Vec<_>>().join("\n")
}

/// A fact that a reader of the session wrote down. It counts as kept if all patterns match close to each other.
pub struct Fact {
    pub what: String,
    pub patterns: Vec<Regex>,
}

/// Instructions of users, and the messages that contain them, some between pasted text.
#[derive(Default)]
pub struct Instructions {
    pub texts: Vec<String>,
    pub messages: Vec<String>,
}

#[derive(Default)]
pub struct Corpus {
    pub sessions: Vec<Session>,
    /// Facts by session name.
    pub facts: BTreeMap<String, Vec<Fact>>,
    pub instructions: Instructions,
    /// Sessions that could not be read, and why.
    pub faults: Vec<String>,
}

/// Repositories whose sessions are only measured: no change to a compaction is chosen by them.
const HELD_BACK: [&str; 4] =
    ["M-Thisness/M-Claude", "faucet-hq/faucet-stream", "jdx/fnox", "teslamint/entirecontext"];

/// The origin of a session, in `index.json`. A corpus without that file is from `fetch-corpus.py`.
#[derive(Deserialize)]
struct SessionOrigin {
    name: String,
    repo: String,
    agent: String,
}

impl Corpus {
    /// Reads these folders as one corpus.
    pub fn read_all(folders: &[PathBuf]) -> Result<Corpus> {
        let mut all = Corpus::default();
        for folder in folders {
            let Corpus { sessions, facts, instructions, faults } = Corpus::read(folder)?;
            for session in &sessions {
                ensure!(all.session(&session.name).is_none(), "two sessions are called {}", session.name);
            }
            all.sessions.extend(sessions);
            all.facts.extend(facts);
            all.instructions.texts.extend(instructions.texts);
            all.instructions.messages.extend(instructions.messages);
            all.faults.extend(faults);
        }
        Ok(all)
    }

    pub fn read(folder: &Path) -> Result<Corpus> {
        let sessions = folder.join("sessions");
        let unreadable =
            || format!("cannot read {}; benches/keep/fetch-corpus.py makes a corpus", sessions.display());
        let files = fs::read_dir(&sessions).with_context(unreadable)?;
        let mut files: Vec<PathBuf> = files.map(|file| Ok(file?.path())).collect::<Result<_>>()?;
        files.sort();
        let origins: Vec<SessionOrigin> = json_of(&folder.join("index.json"))?.unwrap_or_default();
        let mut corpus = Corpus::default();
        for file in files.iter().filter(|file| file.extension().is_some_and(|extension| extension == "jsonl"))
        {
            match session(file, &files, &origins) {
                Ok(session) => corpus.sessions.push(session),
                Err(error) => corpus.faults.push(format!("{}: {error:#}", file.display())),
            }
        }
        ensure!(!corpus.sessions.is_empty(), "{} has no session: {:?}", sessions.display(), corpus.faults);
        corpus.facts = facts(&folder.join("gold-facts.json"))?;
        for file in ["natural-instructions.json", "instructions.json"] {
            instructions(&folder.join(file), &mut corpus.instructions)?;
        }
        Ok(corpus)
    }

    pub fn session(&self, name: &str) -> Option<&Session> {
        self.sessions.iter().find(|session| session.name == name)
    }
}

fn session(file: &Path, files: &[PathBuf], origins: &[SessionOrigin]) -> Result<Session> {
    let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let origin = origins.iter().find(|origin| origin.name == name);
    let agent = origin.map_or("Claude Code", |origin| match origin.agent.as_str() {
        "claude" => "Claude Code",
        "codex" => "Codex",
        "traj" => "SWE-agent",
        other => other,
    });
    let is_held_back = origin.is_some_and(|origin| HELD_BACK.contains(&origin.repo.as_str()));
    let text = fs::read_to_string(file)?;
    let entries = import(file, &text)?;
    let lines: Vec<Value> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let said = lines.iter().filter(|line| line["type"] == "message").map(|line| &line["message"]);
    let messages = said.filter_map(|message| message_of(message, "toolResult")).collect();
    let prefix = format!("{name}.summary.");
    let is_summary =
        |file: &&PathBuf| file.file_name().is_some_and(|file| file.to_string_lossy().starts_with(&prefix));
    let summary = files.iter().find(is_summary).map(fs::read_to_string).transpose()?;
    let later = file.with_extension("later.json");
    let later = if later.exists() { fs::read_to_string(&later)? } else { String::new() };
    let later: Vec<Value> = later.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let later = later.iter().filter_map(|message| message_of(message, "tool")).collect();
    Ok(Session { name, agent: agent.to_owned(), is_held_back, messages, entries, summary, later })
}

fn import(file: &Path, text: &str) -> Result<Vec<Arc<Entry>>> {
    let circumstances = ImportContext { cwd: Path::new("/work/app"), now: 0, read_sibling: &|_| None };
    let drafts =
        transfer::read(file, text, &circumstances).map_err(|problem| anyhow::anyhow!("{problem}"))?;
    let draft = drafts.into_iter().next().context("no conversation is in it")?;
    Ok(draft.entries.into_iter().map(Arc::new).collect())
}

/// Parses a message of pi's, or a line of the later messages, which use a different role for results.
fn message_of(value: &Value, result: &str) -> Option<Message> {
    let content = value.get("content").or_else(|| value.get("text"))?;
    let blocks = match content {
        Value::String(text) => vec![json!({"type": "text", "text": text})],
        other => other.as_array()?.clone(),
    };
    let texts: Vec<&str> = blocks.iter().filter_map(|block| block["text"].as_str()).collect();
    match value["role"].as_str()? {
        "user" => Some(Message::User(texts.join("\n"))),
        "assistant" => Some(Message::Agent(blocks.iter().filter_map(block_of).collect())),
        role if role == result => Some(Message::Result {
            call: value.get("toolCallId").or_else(|| value.get("id"))?.as_str()?.to_owned(),
            text: texts.join("\n"),
            failed: ["isError", "failed", "err"].iter().any(|key| value[key] == true),
        }),
        _ => None,
    }
}

fn block_of(block: &Value) -> Option<Block> {
    match block["type"].as_str()? {
        "text" => Some(Block::Text(block["text"].as_str()?.to_owned())),
        "toolCall" => Some(Block::Call {
            id: block["id"].as_str()?.to_owned(),
            name: block["name"].as_str()?.to_owned(),
            input: block["arguments"].clone(),
        }),
        _ => None,
    }
}

/// The messages in pi's format, which an import reads.
fn pi_lines(messages: &[Message]) -> String {
    let time = "2026-01-01T00:00:00.000Z";
    let mut lines =
        vec![json!({"type": "session", "version": 3, "id": "kept", "timestamp": time, "cwd": "/work/app"})];
    for (at, message) in messages.iter().enumerate() {
        let text = |text: &str| json!({"type": "text", "text": text});
        let message = match message {
            Message::User(said) => json!({"role": "user", "content": [text(said)]}),
            Message::Result { call, text: output, failed } => {
                json!({"role": "toolResult", "toolCallId": call, "content": [text(output)], "isError": failed})
            }
            Message::Agent(blocks) => {
                let blocks = blocks.iter().map(|block| match block {
                    Block::Text(said) => text(said),
                    Block::Call { id, name, input } => {
                        json!({"type": "toolCall", "id": id, "name": name, "arguments": input})
                    }
                });
                let stop = if message.calls().next().is_some() { "toolUse" } else { "stop" };
                let content: Vec<Value> = blocks.collect();
                json!({"role": "assistant", "content": content, "provider": "a", "model": "m", "stopReason": stop})
            }
        };
        let parent = at.checked_sub(1).map(|parent| parent.to_string());
        lines.push(json!({"type": "message", "id": at.to_string(), "parentId": parent, "timestamp": time, "message": message}));
    }
    lines.iter().map(|line| format!("{line}\n")).collect()
}

fn facts(file: &Path) -> Result<BTreeMap<String, Vec<Fact>>> {
    #[derive(Deserialize)]
    struct Written {
        what: String,
        all_of: Vec<String>,
    }
    let facts: BTreeMap<String, Vec<Written>> = json_of(file)?.unwrap_or_default();
    let compiled = |pattern: &String| {
        RegexBuilder::new(pattern)
            .case_insensitive(true)
            .dot_matches_new_line(true)
            .build()
            .context(file.display().to_string())
    };
    let fact = |fact: Written| {
        let patterns = fact.all_of.iter().map(compiled).collect::<Result<_>>()?;
        Ok(Fact { what: fact.what, patterns })
    };
    let facts = facts
        .into_iter()
        .map(|(name, facts)| Ok((name, facts.into_iter().map(fact).collect::<Result<_>>()?)));
    facts.collect()
}

fn instructions(file: &Path, instructions: &mut Instructions) -> Result<()> {
    #[derive(Deserialize)]
    struct Written {
        text: String,
        /// Pasted text before and after it in the message.
        #[serde(default)]
        paste: [String; 2],
        /// The tool whose question or call it answers.
        tool: Option<String>,
    }
    let written: Vec<Written> = json_of(file)?.unwrap_or_default();
    for Written { text, paste: [before, after], .. } in written.into_iter().filter(|one| one.tool.is_none()) {
        let parts = [before.as_str(), &text, &after];
        let parts = parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>();
        instructions.messages.push(parts.join("\n"));
        instructions.texts.push(text);
    }
    Ok(())
}

/// `None` if the file does not exist.
fn json_of<T: for<'de> Deserialize<'de>>(file: &Path) -> Result<Option<T>> {
    if !file.exists() {
        return Ok(None);
    }
    let text = fs::read_to_string(file)?;
    serde_json::from_str(&text).with_context(|| file.display().to_string()).map(Some)
}
