//! `--output-format stream-json`: the events of a session in the format that SDKs of Claude Code read.
//!
//! The lines of each prompt begin with a `system` line of the subtype `init` and end with a `result` line.
//! `docs/builders/integrate.md` documents the format; its types are those of the npm package @anthropic-ai/claude-agent-sdk.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::drive::RunEnd;
use super::partial::PartialLines;
use crate::cli::EXIT_OVER_BUDGET;
use crate::cli::overrides::foreign_mode;
use crate::cli::terminal;
use crate::session::{CommandInfo, NoticeSeverity, PermissionRequest};
use crate::thread::{
    Change, Content, Entry, Message, MessageId, Mode, OutcomeContent, OutcomeStatus, ReplyCut, Seq,
    SessionId, StopReason, ToolOutcome, ToolSpec, Trigger, Usage, text,
};
use epitome_client::{ClientEvent, ContextUsage, SessionChoices};

/// Writes one object per line.
pub struct StreamJson<'a> {
    out: Box<dyn Write + 'a>,
    session: SessionId,
    cwd: PathBuf,
    model: String,
    mode: Mode,
    tools: Vec<String>,
    commands: Vec<String>,
    is_introduced: bool,
    /// Text as it is streamed, if that is wanted.
    partial: Option<PartialLines>,
    /// Tool calls without an outcome: name and input.
    calls: BTreeMap<String, (String, Value)>,
    figures: TurnFigures,
    costs: CostFigures,
    /// The number of the next line without an entry.
    line: u64,
    /// Distinguishes these lines from those of other runs with the same session.
    run: String,
}

/// Figures of the running prompt.
struct TurnFigures {
    began: Instant,
    /// When the model was called, if it has not replied.
    asked: Option<Instant>,
    with_model: Duration,
    rounds: u32,
    /// The text of the last reply.
    text: String,
    /// The stop reason of the last reply.
    stop_reason: Option<&'static str>,
    denials: Vec<Value>,
}

impl TurnFigures {
    fn new() -> TurnFigures {
        let now = Instant::now();
        TurnFigures {
            began: now,
            asked: Some(now),
            with_model: Duration::ZERO,
            rounds: 0,
            text: String::new(),
            stop_reason: None,
            denials: Vec::new(),
        }
    }
}

/// The cost of this run, by model.
#[derive(Default)]
struct CostFigures {
    /// The cost of the session before this run, in US dollars.
    before: Option<f64>,
    now: Option<f64>,
    window: u64,
    models: BTreeMap<String, (Usage, f64)>,
}

impl CostFigures {
    fn saw(&mut self, usage: &ContextUsage, model: &str) {
        self.window = usage.size;
        let Some(cost) = usage.cost else { return };
        let new = cost - self.now.or(self.before).unwrap_or_default();
        self.now = Some(cost);
        if self.before.is_none() {
            self.before = Some(cost);
        } else if new > 0.0 {
            self.models.entry(model.to_owned()).or_default().1 += new;
        }
    }

    fn total(&self) -> f64 {
        text::rounded_dollars(self.now.unwrap_or_default() - self.before.unwrap_or_default())
    }

    fn by_model(&self) -> Value {
        let models = self.models.iter().map(|(model, (usage, dollars))| {
            let figures = json!({
                "inputTokens": uncached(usage), "outputTokens": usage.output,
                "cacheReadInputTokens": usage.cache_read, "cacheCreationInputTokens": usage.cache_write,
                "webSearchRequests": usage.searches, "costUSD": text::rounded_dollars(*dollars),
                "contextWindow": self.window, "maxOutputTokens": 0,
            });
            (model.clone(), figures)
        });
        Value::Object(models.collect())
    }
}

impl<'a> StreamJson<'a> {
    pub fn new(out: impl Write + 'a, with_partial: bool) -> StreamJson<'a> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let run = format!("{}/{}", std::process::id(), since.as_nanos());
        StreamJson {
            out: Box::new(out),
            session: SessionId(String::new()),
            cwd: PathBuf::new(),
            model: String::new(),
            mode: Mode::Ask,
            tools: Vec::new(),
            commands: Vec::new(),
            is_introduced: false,
            partial: with_partial.then(PartialLines::default),
            calls: BTreeMap::new(),
            figures: TurnFigures::new(),
            costs: CostFigures::default(),
            line: 0,
            run,
        }
    }

    /// Notes what the first line reports about the session.
    pub fn attached(&mut self, session: SessionId, cwd: PathBuf, options: &SessionChoices) {
        (self.session, self.cwd) = (session, cwd);
        self.options(options);
    }

    /// Begins the lines of a prompt.
    pub fn begin(&mut self) {
        self.is_introduced = false;
        self.costs.before = self.costs.before.or(Some(0.0));
        self.figures = TurnFigures::new();
    }

    pub fn show(&mut self, event: &ClientEvent) -> io::Result<()> {
        match event {
            ClientEvent::Text { message, part, kind, text } => {
                let id = self.message_id(*message);
                let Some(partial) = &mut self.partial else { return Ok(()) };
                let events = partial.text(*message, (*part, *kind), text, (&id, &self.model));
                self.stream_events(events)
            }
            ClientEvent::Entry { entry, replay, .. } => self.entry(entry, *replay),
            ClientEvent::Usage(usage) => {
                self.costs.saw(usage, &self.model);
                Ok(())
            }
            ClientEvent::Commands(commands) => {
                self.commands = commands.iter().map(|CommandInfo { name, .. }| name.clone()).collect();
                Ok(())
            }
            ClientEvent::Options(options) => {
                self.options(options);
                Ok(())
            }
            ClientEvent::Notice { severity, text } => self.notice(*severity, text),
            ClientEvent::CallStarted { .. }
            | ClientEvent::CallProgress { .. }
            | ClientEvent::CallFinished { .. }
            | ClientEvent::Compacting { .. }
            | ClientEvent::Ask { .. }
            | ClientEvent::Question { .. }
            | ClientEvent::Withdrawn { .. }
            | ClientEvent::PromptEnded(_) => Ok(()),
        }
    }

    fn options(&mut self, options: &SessionChoices) {
        if let Some(mode) = options.mode {
            self.mode = mode;
        }
        if let Some(model) = &options.model {
            self.model.clone_from(model);
        }
    }

    fn entry(&mut self, entry: &Entry, is_replay: bool) -> io::Result<()> {
        if let Change::Framed { tools, .. } = &entry.change {
            self.tools = tools.iter().map(|ToolSpec { name, .. }| name.clone()).collect();
        }
        if is_replay {
            return Ok(());
        }
        match &entry.change {
            Change::Replied { message, model, usage, cut } => {
                self.model = model.0.clone();
                self.replied(entry.seq, message, usage.as_ref(), cut.as_ref())
            }
            Change::ToolFinished { outcome } => {
                self.figures.asked = Some(Instant::now());
                self.outcome(entry.seq, outcome)
            }
            Change::Compacted { trigger, tokens_before, tokens_after, .. } => {
                let trigger = if *trigger == Trigger::Manual { "manual" } else { "auto" };
                let metadata = json!({
                    "trigger": trigger, "pre_tokens": tokens_before, "post_tokens": tokens_after,
                });
                let line = json!({
                    "type": "system", "subtype": "compact_boundary", "compact_metadata": metadata,
                });
                self.with_uuid(line, entry.seq)
            }
            Change::Noted { text, .. } => {
                text.clone_into(&mut self.figures.text);
                self.notice(NoticeSeverity::Info, text)
            }
            _ => Ok(()),
        }
    }

    fn replied(
        &mut self,
        seq: Seq,
        message: &Message,
        usage: Option<&Usage>,
        cut: Option<&ReplyCut>,
    ) -> io::Result<()> {
        let usage = usage.copied().unwrap_or_default();
        let figures = &mut self.figures;
        figures.rounds += 1;
        figures.text = message.text();
        figures.with_model += figures.asked.take().map(|since| since.elapsed()).unwrap_or_default();
        figures.stop_reason = Some(match cut {
            None if message.calls().next().is_some() => "tool_use",
            None => "end_turn",
            Some(ReplyCut::MaxTokens) => "max_tokens",
            Some(ReplyCut::WindowFull) => "model_context_window_exceeded",
            Some(ReplyCut::Refused { .. } | ReplyCut::Filtered { .. }) => "refusal",
            Some(ReplyCut::Cancelled | ReplyCut::Broken { .. } | ReplyCut::Other { .. }) => "end_turn",
        });
        let stop_reason = figures.stop_reason;
        self.costs.models.entry(self.model.clone()).or_default().0.add(&usage);
        for call in message.calls() {
            self.calls.insert(call.id.0.clone(), (call.name.clone(), call.input.clone()));
        }
        let blocks: Vec<Value> = message.content.iter().filter_map(block).collect();
        let whole = json!({
            "id": self.message_id(message.id), "type": "message", "role": "assistant", "model": self.model,
            "content": blocks, "stop_reason": stop_reason, "stop_sequence": null, "usage": usage_json(&usage),
        });
        if let Some(partial) = &mut self.partial {
            let events = partial.end(message, &whole);
            self.stream_events(events)?;
        }
        self.with_uuid(json!({ "type": "assistant", "message": whole, "parent_tool_use_id": null }), seq)
    }

    fn message_id(&self, message: MessageId) -> String {
        format!("msg_{}_{message}", self.session)
    }

    fn outcome(&mut self, seq: Seq, outcome: &ToolOutcome) -> io::Result<()> {
        let call = self.calls.remove(&outcome.call.0);
        if let (OutcomeStatus::Denied, Some((name, input))) = (outcome.status, call) {
            self.figures.denials.push(json!({
                "tool_name": name, "tool_use_id": outcome.call.0, "tool_input": input,
            }));
        }
        let content: Vec<Value> = outcome.content.iter().map(result_block).collect();
        let result = json!({
            "type": "tool_result", "tool_use_id": outcome.call.0, "content": content,
            "is_error": outcome.status != OutcomeStatus::Completed,
        });
        let mut line = json!({
            "type": "user", "message": { "role": "user", "content": [result] }, "parent_tool_use_id": null,
        });
        if let Some(raw) = &outcome.raw {
            line["tool_use_result"] = raw.clone();
        }
        self.with_uuid(line, seq)
    }

    fn notice(&mut self, severity: NoticeSeverity, text: &str) -> io::Result<()> {
        let level = match severity {
            NoticeSeverity::Info => "info",
            NoticeSeverity::Warning | NoticeSeverity::Error => "warning",
        };
        self.line(json!({ "type": "system", "subtype": "informational", "content": text, "level": level }))
    }

    /// Writes the last line of a prompt.
    pub fn result(&mut self, end: &RunEnd, spent: &Usage) -> io::Result<()> {
        let (subtype, is_error, usage, errors) = match end {
            RunEnd::Turn { reason, .. } => {
                let (subtype, is_error) = match reason {
                    StopReason::EndTurn => ("success", false),
                    StopReason::MaxTokens | StopReason::Refusal => ("success", true),
                    StopReason::MaxRounds => ("error_max_turns", true),
                    StopReason::Cancelled | StopReason::Failed | StopReason::Interrupted => {
                        ("error_during_execution", true)
                    }
                };
                let error = (subtype != "success").then(|| text::ending(*reason).unwrap_or(reason.id()));
                (subtype, is_error, *spent, Vec::from_iter(error.map(str::to_owned)))
            }
            RunEnd::Unfit(faults) => ("error_max_structured_output_retries", true, *spent, faults.clone()),
            RunEnd::Error(error) => {
                let subtype = match error.code {
                    EXIT_OVER_BUDGET => "error_max_budget_usd",
                    _ => "error_during_execution",
                };
                (subtype, true, Usage::default(), vec![error.message.clone()])
            }
        };
        let figures = std::mem::replace(&mut self.figures, TurnFigures::new());
        let mut line = json!({
            "type": "result", "subtype": subtype, "is_error": is_error,
            "duration_ms": millis(figures.began.elapsed()), "duration_api_ms": millis(figures.with_model),
            "num_turns": figures.rounds, "stop_reason": figures.stop_reason,
            "total_cost_usd": self.costs.total(), "usage": usage_json(&usage),
            "modelUsage": self.costs.by_model(), "permission_denials": figures.denials,
        });
        if subtype == "success" {
            line["result"] = json!(figures.text);
        } else {
            line["errors"] = json!(errors);
        }
        if let RunEnd::Turn { structured: Some(value), .. } = end {
            line["structured_output"] = value.clone();
        }
        self.line(line)
    }

    /// Asks the program for permission.
    pub fn ask(&mut self, request_id: &str, asked: &PermissionRequest) -> io::Result<()> {
        let mut request = json!({
            "subtype": "can_use_tool", "tool_name": asked.tool, "input": asked.input,
            "tool_use_id": asked.call.0, "title": text::title(&asked.tool, &asked.card),
        });
        if let Some(suggestion) = suggestion(asked) {
            request["permission_suggestions"] = json!([suggestion]);
        }
        if let Some(agent) = &asked.agent {
            request["agent_id"] = json!(agent.session);
        }
        self.raw(&json!({ "type": "control_request", "request_id": request_id, "request": request }))
    }

    /// Withdraws a question to the program.
    pub fn withdraw(&mut self, request_id: &str) -> io::Result<()> {
        self.raw(&json!({ "type": "control_cancel_request", "request_id": request_id }))
    }

    /// Answers a request of the program.
    pub fn respond(&mut self, request_id: &str, answer: &Result<Value, String>) -> io::Result<()> {
        let response = match answer {
            Ok(response) => {
                json!({ "subtype": "success", "request_id": request_id, "response": response })
            }
            Err(error) => json!({ "subtype": "error", "request_id": request_id, "error": error }),
        };
        self.raw(&json!({ "type": "control_response", "response": response }))
    }

    /// The answer to `initialize`.
    pub fn introduction(&self, commands: &[CommandInfo], models: &[Value]) -> Value {
        let commands: Vec<Value> = commands
            .iter()
            .map(|command| {
                json!({
                    "name": command.name, "description": command.description,
                    "argumentHint": command.hint.as_deref().unwrap_or_default(),
                })
            })
            .collect();
        json!({
            "commands": commands, "agents": [], "models": models, "account": {},
            "output_style": "default", "available_output_styles": ["default"],
            "claude_code_version": env!("CARGO_PKG_VERSION"),
        })
    }

    fn introduce(&mut self) -> io::Result<()> {
        if std::mem::replace(&mut self.is_introduced, true) {
            return Ok(());
        }
        self.line(json!({
            "type": "system", "subtype": "init", "cwd": self.cwd, "model": self.model, "tools": self.tools,
            "mcp_servers": [], "permissionMode": foreign_mode(self.mode), "slash_commands": self.commands,
            "apiKeySource": "none", "output_style": "default", "skills": [], "plugins": [], "agents": [],
            "claude_code_version": env!("CARGO_PKG_VERSION"),
        }))
    }

    fn stream_events(&mut self, events: Vec<Value>) -> io::Result<()> {
        let line = |event| json!({ "type": "stream_event", "event": event, "parent_tool_use_id": null });
        events.into_iter().try_for_each(|event| self.line(line(event)))
    }

    fn with_uuid(&mut self, line: Value, seq: Seq) -> io::Result<()> {
        let uuid = seq.uuid_in(&self.session.0);
        self.identified(line, uuid)
    }

    fn line(&mut self, line: Value) -> io::Result<()> {
        self.line += 1;
        let uuid = Seq(self.line).uuid_in(&self.run);
        self.identified(line, uuid)
    }

    fn identified(&mut self, mut line: Value, uuid: String) -> io::Result<()> {
        self.introduce()?;
        line["session_id"] = json!(self.session);
        line["uuid"] = json!(uuid);
        self.raw(&line)
    }

    fn raw(&mut self, line: &Value) -> io::Result<()> {
        writeln!(self.out, "{}", terminal::json_line(line)?)?;
        self.out.flush()
    }
}

/// The rule that "always" would remember, in the form in which a program returns it to agree.
pub fn suggestion(asked: &PermissionRequest) -> Option<Value> {
    let always = asked.always.as_ref()?;
    Some(json!({
        "type": "addRules", "rules": [{ "toolName": asked.tool, "ruleContent": always }],
        "behavior": "allow", "destination": "session",
    }))
}

/// A part of a reply. Signatures of thinking belong to its provider and are not shown.
fn block(content: &Content) -> Option<Value> {
    match content {
        Content::Text { text } => Some(json!({ "type": "text", "text": text, "citations": null })),
        Content::Thinking { text, .. } => {
            Some(json!({ "type": "thinking", "thinking": text, "signature": "" }))
        }
        Content::Call(call) => {
            Some(json!({ "type": "tool_use", "id": call.id.0, "name": call.name, "input": call.input }))
        }
        Content::Search(search) => Some(json!({ "type": "text", "text": search.text(), "citations": null })),
        // A model's reply has none of these.
        Content::Image { .. }
        | Content::Document { .. }
        | Content::Resource { .. }
        | Content::ResourceLink { .. } => None,
    }
}

fn result_block(content: &OutcomeContent) -> Value {
    let source = |mime_type, data| json!({ "type": "base64", "media_type": mime_type, "data": data });
    match content {
        OutcomeContent::Text { text } => json!({ "type": "text", "text": text }),
        OutcomeContent::Image { mime_type, data } => {
            json!({ "type": "image", "source": source(mime_type, data) })
        }
        OutcomeContent::Document { mime_type, data, .. } => {
            json!({ "type": "document", "source": source(mime_type, data) })
        }
    }
}

fn usage_json(usage: &Usage) -> Value {
    json!({
        "input_tokens": uncached(usage), "output_tokens": usage.output,
        "cache_read_input_tokens": usage.cache_read, "cache_creation_input_tokens": usage.cache_write,
    })
}

/// Input tokens that were neither read from nor written to a cache; here `input` includes both.
fn uncached(usage: &Usage) -> u64 {
    usage.input.saturating_sub(usage.cache_read).saturating_sub(usage.cache_write)
}

fn millis(duration: Duration) -> u64 {
    duration.as_millis().try_into().unwrap_or(u64::MAX)
}
