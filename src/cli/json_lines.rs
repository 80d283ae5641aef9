//! The events of a session as JSON lines. `epitome run --help` documents the format; fields are never removed.

use std::io::{self, Write};

use serde_json::{Map, Value, json};

use super::printer::line;
use super::streamed::Streamed;
use crate::session::{NoticeSeverity, PermissionRequest, SessionEvent, TextKind, UsageNow, UserDecision};
use crate::thread::{Change, Entry, HookRun, MessageId, SessionId, ToolCall, ToolOutcome, Usage, text};

/// Writes one object per line.
pub struct JsonLines<'a> {
    out: Box<dyn Write + 'a>,
    streamed: Streamed,
}

impl<'a> JsonLines<'a> {
    pub fn new(out: impl Write + 'a) -> JsonLines<'a> {
        JsonLines { out: Box::new(out), streamed: Streamed::default() }
    }

    pub fn show(&mut self, out: &SessionEvent) -> io::Result<()> {
        match out {
            SessionEvent::Text { message, part, kind, text } => {
                self.streamed.saw(*message, *part, *kind, text.len());
                self.write(&text_event(*message, *kind, text))
            }
            SessionEvent::Entry { replay: true, .. } => Ok(()),
            SessionEvent::Entry { entry, .. } => {
                if let Change::Compacted { .. } = &entry.change {
                    self.compacted(entry)?;
                }
                self.entry(&entry.change)
            }
            SessionEvent::Usage(UsageNow { used, size, cost, last: _ }) => {
                let mut line = json!({ "type": "usage", "used": used, "size": size });
                if let Some(cost) = cost {
                    line["cost"] = json!(text::rounded_dollars(*cost));
                }
                self.write(&line)
            }
            SessionEvent::Notice { severity, text } => self.notice(*severity, text),
            SessionEvent::CallStarted { .. }
            | SessionEvent::CallProgress { .. }
            | SessionEvent::CallFinished { .. }
            | SessionEvent::Seen(_)
            | SessionEvent::Subagent(_)
            | SessionEvent::Compaction { .. }
            | SessionEvent::Commands(_)
            | SessionEvent::Options(_)
            | SessionEvent::Ask { .. }
            | SessionEvent::Question { .. }
            | SessionEvent::QuestionDone { .. }
            | SessionEvent::Wish { .. }
            | SessionEvent::Withdrawn { .. }
            | SessionEvent::State(_)
            | SessionEvent::Inserted { .. }
            | SessionEvent::TerminalEnded { .. }
            | SessionEvent::Answer { .. } => Ok(()),
        }
    }

    pub fn decided(&mut self, ask: &PermissionRequest, decision: &UserDecision) -> io::Result<()> {
        let (word, by) = match decision {
            UserDecision::AllowOnce => ("allow_once", "person"),
            UserDecision::AllowAlways => ("allow_always", "person"),
            UserDecision::RejectAlways => ("reject_always", "person"),
            UserDecision::Reject | UserDecision::RejectBecause(_) => ("reject", "person"),
            UserDecision::Dismissed | UserDecision::Absent => ("reject", "nobody"),
        };
        let title = text::title(&ask.tool, &ask.card);
        let mut line = json!({
            "type": "permission", "id": ask.call.0, "name": ask.tool, "title": title,
            "decision": word, "by": by,
        });
        if let UserDecision::RejectBecause(reason) = decision {
            line["reason"] = json!(reason);
        }
        self.write(&line)
    }

    /// Writes the last line. `ended` is the stop reason, or the error and its hint; `result` the result of a command.
    pub fn done(
        &mut self,
        session: &SessionId,
        ended: Result<&str, (&str, Option<&str>)>,
        usage: &Usage,
        result: &Map<String, Value>,
    ) -> io::Result<()> {
        let mut line = json!({ "type": "done", "session": session.0 });
        for (name, value) in result {
            line[name] = value.clone();
        }
        match ended {
            Ok(reason) => {
                line["reason"] = json!(reason);
                line["usage"] = json!(usage);
            }
            Err((error, hint)) => {
                line["reason"] = json!("failed");
                line["error"] = json!(error);
                if let Some(hint) = hint {
                    line["hint"] = json!(hint);
                }
            }
        }
        self.write(&line)
    }

    fn call(&mut self, call: &ToolCall) -> io::Result<()> {
        self.write(&json!({
            "type": "tool_call", "id": call.id.0, "name": call.name, "title": text::call_title(call),
            "input": call.input,
        }))
    }

    fn entry(&mut self, change: &Change) -> io::Result<()> {
        match change {
            Change::Replied { message, cut, .. } => {
                for (kind, missing) in self.streamed.missing(message) {
                    self.write(&text_event(message.id, kind, &missing))?;
                }
                for call in message.calls() {
                    self.call(call)?;
                }
                for (call, outcome) in message.searches() {
                    self.call(&call)?;
                    self.outcome(&outcome)?;
                }
                match cut {
                    Some(cut) => self.notice(NoticeSeverity::Warning, &text::cut_words(cut)),
                    None => Ok(()),
                }
            }
            Change::ToolFinished { outcome } => self.outcome(outcome),
            Change::Hooked { runs, .. } => runs.iter().try_for_each(|run| self.hook(run)),
            change => match line(change) {
                Some(line) => self.notice(NoticeSeverity::Info, &line),
                None => Ok(()),
            },
        }
    }

    /// Writes the numbers of a compaction; the notice that follows has them as text.
    fn compacted(&mut self, entry: &Entry) -> io::Result<()> {
        let Change::Compacted { trigger, tokens_before, tokens_after, account, .. } = &entry.change else {
            return Ok(());
        };
        let mut line = account.counts();
        line["type"] = json!("compaction");
        line["entry"] = json!(entry.seq.to_string());
        line["trigger"] = json!(trigger);
        line["pre_tokens"] = json!(tokens_before);
        line["post_tokens"] = json!(tokens_after);
        self.write(&line)
    }

    fn outcome(&mut self, outcome: &ToolOutcome) -> io::Result<()> {
        self.write(&json!({
            "type": "tool_result", "id": outcome.call.0, "status": text::status(outcome.status),
            "text": outcome.model_text(),
        }))
    }

    fn hook(&mut self, run: &HookRun) -> io::Result<()> {
        self.write(&json!({
            "type": "hook", "hook": run.hook, "event": run.event, "asked": run.asked,
            "verdict": run.verdict, "remarks": run.remarks,
        }))
    }

    fn notice(&mut self, severity: NoticeSeverity, text: &str) -> io::Result<()> {
        self.write(&json!({ "type": "notice", "severity": severity, "text": text }))
    }

    fn write(&mut self, line: &Value) -> io::Result<()> {
        writeln!(self.out, "{line}")?;
        self.out.flush()
    }
}

fn text_event(message: MessageId, kind: TextKind, text: &str) -> Value {
    let kind = match kind {
        TextKind::Reply => "text",
        TextKind::Thinking => "thinking",
    };
    json!({ "type": kind, "message": message.to_string(), "text": text })
}
