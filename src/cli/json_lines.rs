//! The events of a session as JSON lines. `epitome run --help` documents the format; fields are never removed.

use std::io::{self, Write};

use serde_json::{Map, Value, json};

use super::shown::{EventReader, ShownPart};
use super::terminal;
use crate::session::{NoticeSeverity, PermissionRequest, TextKind, UserDecision};
use crate::thread::{Change, Entry, HookRun, SessionId, ToolCall, ToolOutcome, Usage, text};
use epitome_client::{ClientEvent, ContextUsage};

/// Writes one object per line.
pub struct JsonLines<'a> {
    out: Box<dyn Write + 'a>,
    reader: EventReader,
}

impl<'a> JsonLines<'a> {
    pub fn new(out: impl Write + 'a) -> JsonLines<'a> {
        JsonLines { out: Box::new(out), reader: EventReader::default() }
    }

    pub fn show(&mut self, event: &ClientEvent) -> io::Result<()> {
        if let ClientEvent::Entry { entry, replay } = event {
            match &entry.change {
                _ if *replay => return Ok(()),
                Change::Hooked { runs, .. } => return runs.iter().try_for_each(|run| self.hook(run)),
                Change::Compacted { .. } => self.compacted(entry)?,
                _ => {}
            }
        }
        self.reader.read(event).into_iter().try_for_each(|part| self.part(&part))
    }

    fn part(&mut self, part: &ShownPart<'_>) -> io::Result<()> {
        match part {
            ShownPart::Text { message, kind, text } => {
                let kind = match kind {
                    TextKind::Reply => "text",
                    TextKind::Thinking => "thinking",
                };
                self.write(&json!({ "type": kind, "message": message.to_string(), "text": text }))
            }
            ShownPart::Call(call) => self.call(call),
            ShownPart::Outcome(outcome) => self.outcome(outcome),
            ShownPart::Notice(severity, text) => self.notice(*severity, text),
            ShownPart::Line(line) => self.notice(NoticeSeverity::Info, line),
            ShownPart::Usage(ContextUsage { used, size, cost }) => {
                let mut line = json!({ "type": "usage", "used": used, "size": size });
                if let Some(cost) = cost {
                    line["cost"] = json!(text::rounded_dollars(*cost));
                }
                self.write(&line)
            }
            ShownPart::CallStarted(_) | ShownPart::CallProgress(..) | ShownPart::Compacting(_) => Ok(()),
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
            "type": "tool_result", "id": outcome.call.0, "status": outcome.status.id(),
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
        writeln!(self.out, "{}", terminal::json_line(line)?)?;
        self.out.flush()
    }
}
