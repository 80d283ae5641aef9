//! Prints the events of a session for users: streamed text, one line per tool call, short diffs.
//!
//! The conversation goes to stdout; questions, notices and the progress line go to stderr.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use super::live::{PrintedOutput, fitting};
use super::shown::{EventReader, ShownPart};
use super::slash::in_shell;
use super::terminal::{self, Color, Style};
use crate::chat::form::FormDialog;
use crate::chat::markdown::Markdown;
use crate::session::{NoticeSeverity, PermissionRequest, TextKind, UserDecision};
use crate::thread::diff::{DiffLine, diff, is_comparable};
use crate::thread::text;
use crate::thread::visible::{exact, exact_line, invisible_in, shortened, unfenced, visible};
use crate::thread::{CallId, Decider, OutcomeStatus, PermissionChoice, SessionId, ToolDisplay, ToolOutcome};
use epitome_client::{ClientEvent, ContextUsage};

/// Maximum number of diff lines that are shown with a result.
const DIFF_LINES_MAX: usize = 16;

/// Maximum number of consecutive empty lines that a question shows; more are replaced by their number. All other
/// lines are shown, because users can't decide about text that was not displayed.
const EMPTY_LINES_MAX: usize = 2;

/// Number of lines from which a question states how many there are, because some may have scrolled off the screen.
const MANY_LINES: usize = 20;

/// Maximum number of lines of a failed call's text.
const FAILURE_LINES_MAX: usize = 4;

/// Maximum length of these lines, in characters.
const LINE_CHARS_MAX: usize = 160;

/// Maximum length of a title in the progress line, in characters.
const PROGRESS_TITLE_CHARS_MAX: usize = 60;

/// Time without output before the progress line appears.
const QUIET: Duration = Duration::from_millis(900);

/// Minimum time between updates of the progress while a call prints.
const REDRAW: Duration = Duration::from_millis(200);

/// Indentation of the output of a running call.
const LIVE_INDENT: &str = "    ";

/// Prints text for users.
pub struct Printer<'a> {
    out: Box<dyn Write + 'a>,
    err: Box<dyn Write + 'a>,
    style: Style,
    /// The style of stderr; the progress line needs stdout and stderr to be the same terminal.
    err_style: Style,
    began: Instant,
    last_print: Instant,
    /// Whether the cursor is within a line on stdout.
    within_line: bool,
    /// The kind of the last output; different kinds are separated by an empty line.
    last: Option<PrintedKind>,
    /// Renders replies. `None` prints them unchanged.
    markdown: Option<Markdown>,
    reader: EventReader,
    /// The session whose messages name commands of a shell; `None` if they are about slash commands.
    pub session: Option<SessionId>,
    titles: HashMap<CallId, String>,
    running: Vec<CallId>,
    usage: Option<ContextUsage>,
    live: PrintedOutput,
    /// Rows of the progress display on the screen; the cursor is in the last one.
    progress_rows: usize,
    /// When the progress was last updated.
    progress_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PrintedKind {
    Reply,
    Thinking,
    Call,
    Remark,
}

impl<'a> Printer<'a> {
    pub fn new(out: impl Write + 'a, style: Style, err: impl Write + 'a, err_style: Style) -> Printer<'a> {
        let now = Instant::now();
        Printer {
            out: Box::new(out),
            err: Box::new(err),
            style,
            err_style,
            began: now,
            last_print: now,
            within_line: false,
            last: None,
            markdown: None,
            reader: EventReader::default(),
            session: None,
            titles: HashMap::new(),
            running: Vec::new(),
            usage: None,
            live: PrintedOutput::default(),
            progress_rows: 0,
            progress_at: None,
        }
    }

    /// Renders the Markdown of replies, if they go to a terminal.
    pub fn rendering(mut self, columns: usize) -> Printer<'a> {
        self.markdown = self.style.is_terminal().then(|| Markdown::new(columns));
        self
    }

    /// Shows one event. The caller handles questions and answers.
    pub fn show(&mut self, event: &ClientEvent) -> io::Result<()> {
        if let ClientEvent::Entry { replay: true, .. } = event {
            return Ok(());
        }
        self.reader.read(event).into_iter().try_for_each(|part| self.part(&part))
    }

    fn in_shell<'t>(&self, text: &'t str) -> Cow<'t, str> {
        self.session.as_ref().map_or(text.into(), |session| in_shell(text, session).into())
    }

    fn part(&mut self, part: &ShownPart<'_>) -> io::Result<()> {
        match part {
            ShownPart::Text { kind, text, .. } => self.text(*kind, text),
            ShownPart::Call(call) => {
                self.titles.insert(call.id.clone(), text::call_title(call));
                Ok(())
            }
            ShownPart::CallStarted(call) => {
                self.running.push((*call).clone());
                Ok(())
            }
            ShownPart::CallProgress(call, output) => {
                self.live.printed(call, output);
                match self.progress_at {
                    Some(at) if at.elapsed() < REDRAW => Ok(()),
                    Some(_) | None => self.tick(),
                }
            }
            ShownPart::Outcome(outcome) => self.outcome(outcome),
            ShownPart::Notice(severity, text) => {
                let color = match severity {
                    NoticeSeverity::Info => Color::Dim,
                    NoticeSeverity::Warning => Color::Yellow,
                    NoticeSeverity::Error => Color::Red,
                };
                self.remark(color, &self.in_shell(text))
            }
            ShownPart::Line(line) => {
                let line = self.in_shell(line);
                self.line(PrintedKind::Call, Color::Cyan, &line)
            }
            ShownPart::Compacting(tokens) => {
                self.remark(Color::Dim, &format!("Compacting {} tokens…", text::tokens(*tokens)))
            }
            ShownPart::Usage(usage) => {
                self.usage = Some(**usage);
                Ok(())
            }
        }
    }

    /// Updates the progress: a line of numbers, and below it the newest output of running calls. Call it about once a
    /// second while there are no events.
    pub fn tick(&mut self) -> io::Result<()> {
        // If stdout is redirected, the conversation doesn't share lines with the progress.
        let in_the_way = self.style.is_terminal() && self.within_line;
        if !self.err_style.is_terminal() || in_the_way || self.last_print.elapsed() < QUIET {
            return Ok(());
        }
        let mut parts = vec![format!("{} s", self.began.elapsed().as_secs())];
        if let Some(usage) = &self.usage {
            parts.push(format!("{} of {} tokens", text::tokens(usage.used), text::round(usage.size)));
        }
        if let Some(title) = self.running.last().and_then(|call| self.titles.get(call)) {
            parts.push(shortened(title, PROGRESS_TITLE_CHARS_MAX));
        }
        let columns = terminal::columns();
        let mut rows = vec![fitting(&format!("  {}", parts.join(" · ")), columns)];
        let indented = columns.saturating_sub(LIVE_INDENT.len());
        rows.extend(self.live.lines(indented).into_iter().map(|line| format!("{LIVE_INDENT}{line}")));
        self.clear_progress()?;
        for (at, row) in rows.iter().enumerate() {
            let line_end = if at == 0 { "\r\x1b[2K" } else { "\n" };
            write!(self.err, "{line_end}{}", self.err_style.paint(Color::Dim, row))?;
        }
        self.progress_rows = rows.len();
        self.progress_at = Some(Instant::now());
        self.err.flush()
    }

    /// Prints a notice to stderr.
    pub fn remark(&mut self, color: Color, text: &str) -> io::Result<()> {
        self.begin(PrintedKind::Remark)?;
        let text = self.err_style.paint(color, &visible(text));
        writeln!(self.err, "{text}")?;
        self.err.flush()
    }

    /// Prints a permission question with everything that it asks about. The typed answer ends its line.
    pub fn question(&mut self, ask: &PermissionRequest) -> io::Result<()> {
        self.begin(PrintedKind::Call)?;
        self.out.flush()?;
        let title = text::title(&ask.tool, &ask.card);
        let heading = self.err_style.paint(Color::Bold, &format!("? {}", exact_line(&title)));
        writeln!(self.err, "{heading}")?;
        let lines = asked_lines(&ask.preview, self.err_style);
        for line in &lines {
            writeln!(self.err, "    {line}")?;
        }
        if lines.len() >= MANY_LINES {
            writeln!(self.err, "  (the {} lines above are all of it)", lines.len())?;
        }
        if is_shown_whole(&ask.preview) {
            let always = ask.always.as_ref().map(|what| format!(", [a]lways allow {}", exact_line(what)));
            let always = always.unwrap_or_default();
            write!(self.err, "  Allow? [y]es{always}, [n]o, and say why, [?]: ")?;
        } else {
            writeln!(
                self.err,
                "  This change is too long to show, so you can't allow it here. An editor can show it, and \
                 --mode accept_edits allows edits in the workspace."
            )?;
            write!(self.err, "  [n]o, and say why, [?]: ")?;
        }
        self.err.flush()
    }

    /// Explains the answers to a permission question.
    pub fn explain(&mut self, ask: &PermissionRequest) -> io::Result<()> {
        let mut lines = vec![
            "n, or Enter  refuse this call",
            "n REASON     refuse it and tell the model why, for example: n use make",
            "Ctrl-C       refuse it and cancel the turn",
        ];
        if is_shown_whole(&ask.preview) {
            let always = ask
                .always
                .as_ref()
                .map(|_| "a            allow it, and calls like it for the rest of this session");
            lines.splice(0..0, ["y            allow this call"].into_iter().chain(always));
        }
        for line in lines {
            writeln!(self.err, "    {line}")?;
        }
        self.err.flush()
    }

    /// Prints the next field of a form, with the heading before the first one. The typed answer ends its line.
    pub fn form(&mut self, form: &FormDialog) -> io::Result<()> {
        self.begin(PrintedKind::Call)?;
        self.out.flush()?;
        if form.is_new() {
            let heading = self.err_style.paint(Color::Bold, &format!("? {}", visible(form.heading())));
            writeln!(self.err, "{heading}")?;
        }
        let lines = form.prompt();
        let (last, before) =
            lines.split_last().map_or(("", &[][..]), |(last, before)| (last.as_str(), before));
        for line in before {
            writeln!(self.err, "    {}", visible(line))?;
        }
        write!(self.err, "  {}", visible(last))?;
        self.err.flush()
    }

    /// Reports a question that was answered without asking the user.
    pub fn decided(&mut self, ask: &PermissionRequest, decision: &UserDecision) -> io::Result<()> {
        if !matches!(decision, UserDecision::Dismissed | UserDecision::Absent) {
            return Ok(());
        }
        let how = match ask.tool.as_str() {
            // Neither rules nor modes answer these.
            _ if ask.because.is_some() => ask.because.as_deref().unwrap_or_default(),
            // No permission mode allows running a repository's programs, or remembering.
            "trust" if ask.input["what"] == "hooks" => {
                "To allow them: `epitome hooks trust`, or --trust-hooks for one run."
            }
            "trust" if ask.input["what"] == "conversation" => {
                "To allow them: answer this in the chat or an editor, or `hooks.cross_session = true` in config.toml."
            }
            // That command knows nothing of MCP servers and recipes.
            "trust" => "To allow them: answer this in the chat or an editor, or --trust-hooks for one run.",
            "memory" => "To let the model remember without asking: --allow memory.",
            _ => {
                "To allow such calls: --allow RULE (for example \"bash(cargo test *)\"), --mode auto (edits, and \
                 commands in the sandbox), or `[permissions] allow` in config.toml."
            }
        };
        let title = text::title(&ask.tool, &ask.card);
        let title = title.trim_end_matches('?');
        let line = format!("Denied, because there is no terminal to ask: {title}. {how}");
        self.remark(Color::Yellow, &line)
    }

    /// Clears the progress and ends the current line.
    pub fn end(&mut self) -> io::Result<()> {
        self.clear_progress()?;
        self.end_reply()?;
        self.end_line()?;
        self.out.flush()
    }

    fn text(&mut self, kind: TextKind, text: &str) -> io::Result<()> {
        let text = visible(text);
        match kind {
            TextKind::Reply => {
                self.begin(PrintedKind::Reply)?;
                let shown = match &mut self.markdown {
                    Some(markdown) => self.style.paint_all(&markdown.push(&text)).into(),
                    None => text,
                };
                return self.reply(&shown);
            }
            // Reasoning is shown only on a terminal.
            TextKind::Thinking if !self.style.is_terminal() => return Ok(()),
            TextKind::Thinking => {
                self.begin(PrintedKind::Thinking)?;
                let text = self.style.paint(Color::Dim, &text);
                self.out.write_all(text.as_bytes())?;
            }
        }
        self.within_line = !text.ends_with('\n');
        self.out.flush()
    }

    /// Prints a part of a reply.
    fn reply(&mut self, shown: &str) -> io::Result<()> {
        if !shown.is_empty() {
            self.out.write_all(shown.as_bytes())?;
            self.within_line = !shown.ends_with('\n');
        }
        self.out.flush()
    }

    /// Prints the delayed part of a reply.
    fn end_reply(&mut self) -> io::Result<()> {
        match &mut self.markdown {
            Some(markdown) => {
                let shown = self.style.paint_all(&markdown.finish());
                self.reply(&shown)
            }
            None => Ok(()),
        }
    }

    fn outcome(&mut self, outcome: &ToolOutcome) -> io::Result<()> {
        self.running.retain(|call| *call != outcome.call);
        self.live.ended(&outcome.call);
        let title = self.titles.remove(&outcome.call).unwrap_or_else(|| outcome.call.to_string());
        let color = match outcome.status {
            OutcomeStatus::Completed => Color::Green,
            OutcomeStatus::Failed => Color::Red,
            OutcomeStatus::Denied | OutcomeStatus::Interrupted => Color::Yellow,
        };
        self.begin(PrintedKind::Call)?;
        let dot = self.style.paint(color, "●");
        let by_user = outcome
            .decided
            .as_ref()
            .is_some_and(|decided| matches!(decided.by, Decider::Person { answer: PermissionChoice::No }));
        let status = if by_user { "refused by you" } else { outcome.status.id() };
        writeln!(self.out, "{dot} {} → {status}", exact_line(&title))?;
        let mut lines = shown_lines(&outcome.shown, self.style, DIFF_LINES_MAX);
        match outcome.status {
            OutcomeStatus::Completed | OutcomeStatus::Interrupted => {
                lines.truncate(if has_diff(&outcome.shown) { DIFF_LINES_MAX + 1 } else { 0 });
            }
            // The rest is for the model.
            OutcomeStatus::Failed | OutcomeStatus::Denied if by_user => lines.clear(),
            OutcomeStatus::Failed | OutcomeStatus::Denied => {
                // After the user's refusal, don't show the text for the model.
                lines = match text::refused_by_user(outcome) {
                    Some(refused) => vec![refused.to_owned()],
                    None => clipped_lines(&outcome.model_text(), FAILURE_LINES_MAX),
                };
            }
        }
        for line in lines {
            writeln!(self.out, "    {line}")?;
        }
        self.out.flush()
    }

    fn line(&mut self, kind: PrintedKind, color: Color, text: &str) -> io::Result<()> {
        self.begin(kind)?;
        let text = self.style.paint(color, &visible(text));
        writeln!(self.out, "{text}")?;
        self.out.flush()
    }

    /// Prepares for output of this kind: ends the current line if the kind changes, and separates text from other
    /// output.
    fn begin(&mut self, kind: PrintedKind) -> io::Result<()> {
        self.clear_progress()?;
        self.last_print = Instant::now();
        if self.last != Some(kind) {
            self.end_reply()?;
            self.end_line()?;
            let apart = matches!(self.last, Some(PrintedKind::Reply | PrintedKind::Thinking))
                || (self.last.is_some()
                    && kind == PrintedKind::Reply
                    && self.last != Some(PrintedKind::Remark));
            if apart && kind != PrintedKind::Remark {
                writeln!(self.out)?;
            }
            self.out.flush()?;
            self.last = Some(kind);
        }
        Ok(())
    }

    fn end_line(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.within_line) {
            writeln!(self.out)?;
        }
        Ok(())
    }

    fn clear_progress(&mut self) -> io::Result<()> {
        let rows = std::mem::take(&mut self.progress_rows);
        if rows > 0 {
            write!(self.err, "\r\x1b[2K")?;
            for _ in 1..rows {
                write!(self.err, "\x1b[1A\x1b[2K")?;
            }
            self.err.flush()?;
        }
        Ok(())
    }
}

fn has_diff(shown: &[ToolDisplay]) -> bool {
    shown.iter().any(|shown| matches!(shown, ToolDisplay::Diff { .. }))
}

/// Whether a question shows everything that it asks about.
pub fn is_shown_whole(preview: &[ToolDisplay]) -> bool {
    preview.iter().all(|shown| match shown {
        ToolDisplay::Text { .. } => true,
        ToolDisplay::Diff { old, new, .. } => is_comparable(old.as_deref(), new),
    })
}

/// Formats the content of a question as lines, with long runs of empty lines replaced by their number.
fn asked_lines(preview: &[ToolDisplay], style: Style) -> Vec<String> {
    let mut lines = Vec::new();
    for part in preview {
        match part {
            ToolDisplay::Text { text } => {
                let text = exact(unfenced(text));
                let all: Vec<&str> = text.lines().collect();
                for run in all.chunk_by(|one, next| one.trim().is_empty() && next.trim().is_empty()) {
                    match run.len() {
                        count if count > EMPTY_LINES_MAX => lines.push(empty_lines("", count, style)),
                        _ => lines.extend(run.iter().map(|line| (*line).to_owned())),
                    }
                }
            }
            ToolDisplay::Diff { path, old, new } => {
                lines.push(exact_line(&path.display().to_string()).into_owned());
                let all = diff(old.as_deref(), new);
                for run in all.chunk_by(|one, next| one.is_empty() && next == one) {
                    match run.len() {
                        count if count > EMPTY_LINES_MAX => {
                            lines.push(empty_lines(run[0].signed().trim_end(), count, style));
                        }
                        _ => lines.extend(run.iter().map(|line| diff_line(line, style))),
                    }
                }
            }
        }
    }
    lines
}

fn empty_lines(sign: &str, count: usize, style: Style) -> String {
    style.paint(Color::Dim, &format!("{sign}⋯ {count} empty lines"))
}

/// Formats a tool's display content as lines: diffs with signs and colors, texts unchanged.
pub fn shown_lines(shown: &[ToolDisplay], style: Style, lines_max: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for part in shown {
        match part {
            ToolDisplay::Text { text } => lines.extend(visible(unfenced(text)).lines().map(str::to_owned)),
            ToolDisplay::Diff { old, new, .. } => {
                lines.extend(diff(old.as_deref(), new).iter().map(|line| diff_line(line, style)));
            }
        }
    }
    limited(lines, lines_max)
}

/// Formats one line of a diff in color.
pub fn diff_line(line: &DiffLine, style: Style) -> String {
    let signed = line.signed();
    let signed = if invisible_in(&signed).is_empty() { visible(&signed) } else { exact(&signed) };
    match line {
        DiffLine::Added(_) => style.paint(Color::Green, &signed),
        DiffLine::Removed(_) => style.paint(Color::Red, &signed),
        DiffLine::Same(_) | DiffLine::Gap | DiffLine::TooLong { .. } => style.paint(Color::Dim, &signed),
    }
}

fn clipped_lines(text: &str, lines_max: usize) -> Vec<String> {
    let text = visible(text);
    limited(text.lines().map(|line| shortened(line, LINE_CHARS_MAX)).collect(), lines_max)
}

fn limited(mut lines: Vec<String>, lines_max: usize) -> Vec<String> {
    if lines.len() > lines_max {
        let more = lines.len() - lines_max;
        lines.truncate(lines_max);
        lines.push(format!("… {more} more lines"));
    }
    lines
}

#[cfg(test)]
#[path = "printer_tests.rs"]
mod tests;
