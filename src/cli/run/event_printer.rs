//! How the events of a run are printed.

use std::io::{self, Write as _};
use std::path::PathBuf;

use serde_json::{Map, Value, json};

use super::drive::{RunEnd, RunFigures, unfit};
use super::stream_json::StreamJson;
use crate::cli::CliError;
use crate::cli::json_lines::JsonLines;
use crate::cli::printer::Printer;
use crate::cli::terminal::{Color, Style};
use crate::session::{PermissionRequest, UserDecision};
use crate::thread::{SessionId, Usage, text};
use epitome_client::{ClientEvent, SessionChoices};

/// How events are shown.
pub enum EventPrinter {
    Text(Box<Printer<'static>>),
    Json(JsonLines<'static>),
    /// Only the result, as one object, with the text of the last reply.
    Result,
    /// Only the reply, as JSON that matches the expected schema.
    Value,
    /// The format of SDKs.
    Stream(Box<StreamJson<'static>>),
}

impl EventPrinter {
    pub fn show(&mut self, out: &ClientEvent) -> io::Result<()> {
        match self {
            EventPrinter::Text(printer) => printer.show(out),
            EventPrinter::Json(lines) => lines.show(out),
            EventPrinter::Stream(lines) => lines.show(out),
            EventPrinter::Result | EventPrinter::Value => Ok(()),
        }
    }

    /// The session is open.
    pub fn attached(&mut self, session: SessionId, cwd: PathBuf, options: &SessionChoices) {
        match self {
            EventPrinter::Text(printer) => printer.session = printer.session.as_ref().map(|_| session),
            EventPrinter::Stream(lines) => lines.attached(session, cwd, options),
            EventPrinter::Json(_) | EventPrinter::Result | EventPrinter::Value => {}
        }
    }

    /// A prompt is sent.
    pub fn begin(&mut self) {
        if let EventPrinter::Stream(lines) = self {
            lines.begin();
        }
    }

    pub fn decided(&mut self, permission: &PermissionRequest, decision: &UserDecision) -> io::Result<()> {
        match self {
            EventPrinter::Text(printer) => printer.decided(permission, decision),
            EventPrinter::Json(lines) => lines.decided(permission, decision),
            // The result lists the calls that were denied.
            EventPrinter::Result | EventPrinter::Value | EventPrinter::Stream(_) => Ok(()),
        }
    }

    /// Prints text that the user must see in every format.
    pub fn on_stderr(&mut self, print: impl FnOnce(&mut Printer<'_>) -> io::Result<()>) -> io::Result<()> {
        if let EventPrinter::Text(printer) = self {
            return print(printer);
        }
        print(&mut Printer::new(io::sink(), Style::Plain, io::stderr(), Style::for_stderr()))
    }

    /// Prints a notice, which is for users only.
    pub fn remark(&mut self, text: &str) -> io::Result<()> {
        if let EventPrinter::Text(printer) = self {
            printer.remark(Color::Dim, text)?;
        }
        Ok(())
    }

    /// Prints the end of a prompt. The caller reports errors to users.
    pub fn finish(&mut self, end: &RunEnd, figures: &RunFigures<'_>) -> io::Result<()> {
        match self {
            EventPrinter::Text(printer) => finish_text(printer, end, figures),
            EventPrinter::Json(lines) => finish_lines(lines, end, figures),
            EventPrinter::Stream(lines) => lines.result(end, figures.spent),
            EventPrinter::Value => match end {
                RunEnd::Turn { structured: Some(value), .. } => writeln!(io::stdout(), "{value}"),
                RunEnd::Turn { reason, .. } => match text::ending(*reason) {
                    Some(words) => self.on_stderr(|printer| printer.remark(Color::Yellow, words)),
                    None => Ok(()),
                },
                RunEnd::Unfit(_) | RunEnd::Error(_) => Ok(()),
            },
            EventPrinter::Result => match end {
                RunEnd::Turn { reason, result, structured } => {
                    let mut object =
                        Map::from_iter([("session".to_owned(), Value::from(figures.session.0.as_str()))]);
                    if result.0.is_empty() {
                        object.insert("reason".to_owned(), reason.id().into());
                        object.insert("text".to_owned(), figures.reply.into());
                        object.insert("usage".to_owned(), json!(figures.spent));
                        object.insert("cost".to_owned(), json!(figures.cost));
                    }
                    if let Some(value) = structured {
                        object.insert("structured_output".to_owned(), value.clone());
                    }
                    object.extend(result.0.clone());
                    writeln!(io::stdout(), "{}", Value::Object(object))
                }
                RunEnd::Unfit(faults) => print_failure(figures.session, &unfit(faults)),
                RunEnd::Error(error) => print_failure(figures.session, error),
            },
        }
    }
}

/// Prints the one object of a run that failed. Without it, `… --output json | jq -r .text` would end with nothing and 0.
fn print_failure(session: &SessionId, error: &CliError) -> io::Result<()> {
    let mut object = json!({ "session": session, "reason": "failed", "error": error.message });
    if let Some(hint) = &error.hint {
        object["hint"] = hint.as_str().into();
    }
    writeln!(io::stdout(), "{object}")
}

fn finish_text(printer: &mut Printer<'_>, end: &RunEnd, figures: &RunFigures<'_>) -> io::Result<()> {
    printer.end()?;
    if let RunEnd::Turn { reason, .. } = end
        && let Some(words) = text::ending(*reason)
    {
        printer.remark(Color::Yellow, words)?;
    }
    if Style::for_stderr().is_terminal() {
        let session = figures.session;
        let mut line = String::new();
        if let RunEnd::Turn { .. } = end
            && *figures.spent != Usage::default()
        {
            line = format!("\n{}", text::spent(figures.spent, None));
            if let Some(cost) = figures.cost {
                line.push_str(&format!(" · the session so far: ${cost:.4}"));
            }
        }
        line.push_str(&format!("\nsession {session} · continue with: epitome run --resume {session} \"…\""));
        printer.remark(Color::Dim, &line)?;
    }
    printer.end()
}

fn finish_lines(lines: &mut JsonLines<'_>, end: &RunEnd, figures: &RunFigures<'_>) -> io::Result<()> {
    let (session, spent) = (figures.session, figures.spent);
    match end {
        RunEnd::Turn { reason, result, structured } => {
            let mut fields = result.0.clone();
            if let Some(value) = structured {
                fields.insert("structured_output".to_owned(), value.clone());
            }
            lines.done(session, Ok(reason.id()), spent, &fields)
        }
        RunEnd::Unfit(faults) => lines.done(session, Err((&unfit(faults).message, None)), spent, &Map::new()),
        RunEnd::Error(error) => {
            let ended = Err((error.message.as_str(), error.hint.as_deref()));
            lines.done(session, ended, &Usage::default(), &Map::new())
        }
    }
}
