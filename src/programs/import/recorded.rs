//! Protocol transcripts, as recorded by `epitome acp --transcript`: prompts, replies, tool calls and their
//! results are converted to a log.
//!
//! A transcript contains only data that an editor received: no system prompt, signatures, hook actions or times.
//! Everything between two outcomes is one reply.

use std::collections::HashMap;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::builder::{Builder, append};
use super::{ImportContext, text, thinking};
use epitome_thread::problem::Problem;
use epitome_thread::{Change, Content, Location, OutcomeStatus, PlanPriority, PlanStep, StopReason};
use epitome_transcript::agent::{Expected, ExpectedValue};
use epitome_transcript::call_shape::CallShape;
use epitome_transcript::editor::{CallParams, EditorAct};
use epitome_transcript::names::Names;
use epitome_transcript::update::{ChunkKind, ExpectedUpdate};
use epitome_transcript::{Fixture, LineContent};
use epitome_transfer::{ImportDraft, ImportFile, ImportSource};

/// The model of a reply if the transcript names none.
const UNKNOWN: &str = "transcript/unknown";

/// A conversation in the transcript.
struct RecordedConversation {
    log: Builder,
    /// The message that the pending parts belong to.
    message: Option<String>,
    /// Announced calls without an outcome, with their state so far.
    running: HashMap<String, (Option<String>, Option<Value>)>,
    /// The chunks of a user message in a replay.
    user: Vec<Content>,
}

pub(super) fn read(
    file: ImportFile,
    text: &str,
    context: &ImportContext,
) -> Result<Vec<ImportDraft>, Problem> {
    let fixture = Fixture::parse(text).map_err(|error| file.problem(error.line, error.message))?;
    let mut names = Names::default();
    names.bind_place("$DIR", &context.cwd.display().to_string());
    let mut reader = TranscriptReader { names, context, talks: Vec::new(), asked: None };
    for line in &fixture.lines {
        let done = match &line.what {
            LineContent::Editor(_, act) => reader.editor(act),
            LineContent::Agent(_, line) | LineContent::AgentFree(_, line) => reader.agent(line),
            LineContent::Blank
            | LineContent::Comment
            | LineContent::Setup(_)
            | LineContent::Sees(_)
            | LineContent::Says(_) => Ok(()),
        };
        done.map_err(|message| file.problem(line.number, message))?;
    }
    // Conversations without messages are skipped.
    let finished = |(_, mut talk): (String, RecordedConversation)| {
        talk.flush();
        talk.log.finish(ImportSource::Transcript, file, None).ok()
    };
    let drafts: Vec<ImportDraft> = reader.talks.into_iter().filter_map(finished).collect();
    if drafts.is_empty() {
        return Err(file.problem(1, "this transcript has no messages"));
    }
    Ok(drafts)
}

struct TranscriptReader<'a> {
    names: Names,
    context: &'a ImportContext<'a>,
    /// By session name, in the order of their start.
    talks: Vec<(String, RecordedConversation)>,
    /// The session of the newest prompt, to which the next stop reason belongs.
    asked: Option<String>,
}

impl TranscriptReader<'_> {
    /// Handles an action of the editor. The error is a sentence.
    fn editor(&mut self, act: &EditorAct) -> Result<(), String> {
        let EditorAct::Call { method, params: CallParams::Value(params), .. } = act else { return Ok(()) };
        let Some(session) = params["sessionId"].as_str() else { return Ok(()) };
        match method.as_str() {
            "session/load" => {
                // The session is replayed completely, so everything recorded so far would be duplicated.
                self.talks.retain(|(known, _)| known != session);
            }
            "session/prompt" => {
                let content = self.blocks(&params["prompt"])?;
                let talk = self.talk(session);
                talk.flush();
                talk.log.prompt(content);
                self.asked = Some(session.to_owned());
            }
            _ => {}
        }
        Ok(())
    }

    fn agent(&mut self, line: &Expected) -> Result<(), String> {
        match line {
            Expected::Update { session, update } => self.update(session, update)?,
            Expected::Result { value: ExpectedValue::Stop(reason), .. } => self.turn_ended(stop(reason)),
            Expected::Error { .. } => self.turn_ended(StopReason::Failed),
            Expected::Result { .. }
            | Expected::Permission { .. }
            | Expected::Call { .. }
            | Expected::Json(_) => {}
        }
        Ok(())
    }

    fn turn_ended(&mut self, reason: StopReason) {
        if let Some(session) = self.asked.take() {
            let talk = self.talk(&session);
            talk.flush();
            talk.log.turn_ended(reason);
        }
    }

    fn update(&mut self, session: &str, update: &ExpectedUpdate) -> Result<(), String> {
        match update {
            ExpectedUpdate::Chunk { kind, message, text } => {
                let text = self.names.fill_text(text)?;
                self.talk(session).chunk(*kind, message.as_deref(), text);
            }
            ExpectedUpdate::Call { announced, call } => {
                let call = self.filled(call)?;
                self.talk(session).call(*announced, call)?;
            }
            ExpectedUpdate::Title(title) => {
                let title = self.names.fill_text(title)?;
                self.talk(session).log.title(&title);
            }
            ExpectedUpdate::Plan(steps) => {
                let steps = steps
                    .iter()
                    .map(|(status, content)| step(status, self.names.fill_text(content)?))
                    .collect::<Result<Vec<PlanStep>, String>>()?;
                let talk = self.talk(session);
                talk.flush();
                talk.log.push(Change::Planned { steps });
            }
            ExpectedUpdate::Options { values, .. } => {
                let model = values.iter().find(|(key, _)| key == "model").map(|(_, model)| model.clone());
                if let Some(model) = model {
                    self.talk(session).log.model(model);
                }
            }
            ExpectedUpdate::Json(value) => self.json(session, value)?,
            ExpectedUpdate::Compaction { status, .. } if status == "completed" => {
                self.talk(session).log.left_out("compactions (what they replaced is included in full)");
            }
            ExpectedUpdate::Compaction { .. }
            | ExpectedUpdate::Commands { .. }
            | ExpectedUpdate::Mode(_)
            | ExpectedUpdate::Usage { .. }
            | ExpectedUpdate::Notice { .. } => {}
        }
        Ok(())
    }

    /// Handles an update without shorthand: an image or file of the user, or one that is not part of a conversation.
    fn json(&mut self, session: &str, update: &Value) -> Result<(), String> {
        match update["sessionUpdate"].as_str() {
            Some("user_message_chunk") => {
                let content = self.blocks(&json!([update["content"]]))?;
                self.talk(session).user.extend(content);
            }
            Some("agent_message_chunk" | "tool_call" | "tool_call_update") => {
                self.talk(session).log.left_out("updates of an uncommon form");
            }
            Some(_) | None => {}
        }
        Ok(())
    }

    /// Parses the content blocks of a prompt.
    fn blocks(&self, blocks: &Value) -> Result<Vec<Content>, String> {
        let blocks = self.names.fill(blocks)?;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let content =
            blocks.as_array().into_iter().flatten().filter_map(|block| match block["type"].as_str() {
                Some("text") => Some(Content::Text { text: text(&block["text"])? }),
                Some("image") => Some(Content::Image {
                    mime_type: text(&block["mimeType"])?,
                    data: text(&block["data"])?,
                    uri: text(&block["uri"]),
                }),
                Some("resource_link") => {
                    Some(Content::ResourceLink { uri: text(&block["uri"])?, name: text(&block["name"])? })
                }
                Some("resource") => {
                    let resource = &block["resource"];
                    let uri = text(&resource["uri"])?;
                    match (text(&resource["text"]), text(&resource["blob"])) {
                        (Some(text), _) => Some(Content::Resource { uri, text }),
                        (None, Some(data)) => {
                            let mime_type = text(&resource["mimeType"])?;
                            Some(Content::Document { mime_type, data, name: Some(uri) })
                        }
                        (None, None) => None,
                    }
                }
                Some(_) | None => None,
            });
        Ok(content.collect())
    }

    fn filled(&self, call: &CallShape) -> Result<CallShape, String> {
        let text = |text: &Option<String>| text.as_deref().map(|text| self.names.fill_text(text)).transpose();
        let value = |value: &Option<Value>| value.as_ref().map(|value| self.names.fill(value)).transpose();
        Ok(CallShape {
            title: text(&call.title)?,
            text: text(&call.text)?,
            input: value(&call.input)?,
            output: value(&call.output)?,
            at: call.at.iter().map(|at| self.names.fill_text(at)).collect::<Result<_, _>>()?,
            ..call.clone()
        })
    }

    fn talk(&mut self, session: &str) -> &mut RecordedConversation {
        let at = self.talks.iter().position(|(known, _)| known == session).unwrap_or_else(|| {
            let mut log = Builder::new(None, None, self.context);
            log.model(UNKNOWN.to_owned());
            let talk = RecordedConversation { log, message: None, running: HashMap::new(), user: Vec::new() };
            self.talks.push((session.to_owned(), talk));
            self.talks.len() - 1
        });
        &mut self.talks[at].1
    }
}

impl RecordedConversation {
    fn chunk(&mut self, kind: ChunkKind, message: Option<&str>, words: String) {
        let is_other = message.is_some() && self.message.as_deref() != message;
        match kind {
            // The summary is complete; it summarizes chunks that were sent before.
            ChunkKind::Summary => return,
            ChunkKind::User => {
                if is_other || self.log.is_replying() {
                    self.flush();
                }
                self.message = message.map(str::to_owned);
                append(&mut self.user, text(words));
                return;
            }
            ChunkKind::Text | ChunkKind::Think => {}
        }
        if is_other || !self.user.is_empty() {
            self.flush();
        }
        self.message = message.map(str::to_owned).or(self.message.take());
        self.log.add_piece(if kind == ChunkKind::Think { thinking(words) } else { text(words) });
    }

    /// Handles a call or its update. The error is a sentence.
    fn call(&mut self, announced: bool, call: CallShape) -> Result<(), String> {
        let Some(id) = call.call.clone() else {
            return Err(
                "this call has no name ($C1), so it can't be distinguished from others; a recording has names"
                    .into(),
            );
        };
        if announced && !self.running.contains_key(&id) {
            if !self.user.is_empty() {
                self.flush();
            }
            let input = call.input.unwrap_or_else(|| json!({}));
            self.log.call(&json!(id), &json!(call.tool), &input);
            if let Some(card) = self.log.card() {
                card.title = call.title.unwrap_or_else(|| std::mem::take(&mut card.title));
                card.kind = call.kind.as_deref().and_then(named).unwrap_or(card.kind);
                if !call.at.is_empty() {
                    card.locations = call.at.iter().map(|at| location(at)).collect();
                }
            }
            self.running.insert(id.clone(), (None, None));
        }
        let Some((printed, output)) = self.running.get_mut(&id) else { return Ok(()) };
        let (printed, output) = (call.text.or(printed.take()), call.output.or(output.take()));
        let status = match call.status.as_deref() {
            Some("completed") => OutcomeStatus::Completed,
            Some("failed") => OutcomeStatus::Failed,
            Some(_) | None => {
                self.running.insert(id, (printed, output));
                return Ok(());
            }
        };
        self.running.remove(&id);
        let printed = printed.or_else(|| output.map(|output| output.to_string())).unwrap_or_default();
        self.log.outcome(Some(&id), status, vec![text(printed)], None);
        Ok(())
    }

    /// Completes the message received so far.
    fn flush(&mut self) {
        self.log.replied(None, None);
        let user = std::mem::take(&mut self.user);
        if !user.is_empty() {
            self.log.prompt(user);
        }
        self.running.clear();
        self.message = None;
    }
}

fn stop(reason: &str) -> StopReason {
    match reason {
        "max_tokens" => StopReason::MaxTokens,
        "max_turn_requests" => StopReason::MaxRounds,
        "refusal" => StopReason::Refusal,
        "cancelled" => StopReason::Cancelled,
        _ => StopReason::EndTurn,
    }
}

/// Returns the value of an enum that is written as this word.
fn named<T: DeserializeOwned>(word: &str) -> Option<T> {
    serde_json::from_value(Value::from(word)).ok()
}

/// Parses a location in a transcript: `PATH` or `PATH:LINE`.
fn location(at: &str) -> Location {
    match at.rsplit_once(':').and_then(|(path, line)| Some((path, line.parse().ok()?))) {
        Some((path, line)) => Location { path: path.into(), line: Some(line) },
        None => Location { path: at.into(), line: None },
    }
}

fn step(status: &str, content: String) -> Result<PlanStep, String> {
    let status = named(status).ok_or_else(|| format!("a step of a plan can't be {status:?}"))?;
    Ok(PlanStep { content, status, priority: PlanPriority::default() })
}
