//! A tool call as the chat shows it: its title, status, and a part of what it changed or printed. Pure.

use agent_client_protocol::schema::MaybeUndefined;
use agent_client_protocol::v2::schema as wire;
use epitome_thread::terminal_text::drawn;
use epitome_thread::visible::{unfenced, visible, visible_line};
use ratatui::style::Style;

use crate::markdown::{CodeColors, Color, code_spans, of_patch_line};
use crate::rows::{ScreenRows, ink};

/// Lines shown without details: of a diff, and of an output, from its end.
const DIFF_LINES_MAX: usize = 16;
const OUTPUT_LINES_MAX: usize = 5;

/// See the module's documentation.
#[derive(Default)]
pub struct ShownCall {
    title: String,
    kind: Option<wire::ToolKind>,
    status: Option<wire::ToolCallStatus>,
    content: Vec<wire::ToolCallContent>,
    /// The output of its command, as text.
    printed: String,
    exit: Option<String>,
}

impl ShownCall {
    pub fn update(&mut self, update: wire::ToolCallUpdate) {
        if let MaybeUndefined::Value(title) = update.title {
            self.title = title;
        }
        if let MaybeUndefined::Value(kind) = update.kind {
            self.kind = Some(kind);
        }
        if let MaybeUndefined::Value(status) = update.status {
            self.status = Some(status);
        }
        match update.content {
            MaybeUndefined::Value(content) => self.content = content,
            MaybeUndefined::Null => self.content.clear(),
            MaybeUndefined::Undefined => {}
        }
    }

    pub fn printed(&mut self, text: &str, bytes_max: usize) {
        self.printed.push_str(text);
        if self.printed.len() > 2 * bytes_max {
            self.printed.drain(..self.printed.ceil_char_boundary(self.printed.len() - bytes_max));
        }
    }

    pub fn clear_output(&mut self) {
        self.printed.clear();
    }

    pub fn exited(&mut self, exit: &wire::TerminalExitStatus) {
        self.exit = match (&exit.signal, exit.exit_code) {
            (Some(signal), _) => Some(format!("ended by {signal}")),
            (None, Some(0) | None) => None,
            (None, Some(code)) => Some(format!("exit code {code}")),
        };
    }

    pub fn bytes(&self) -> usize {
        let content = self.content.iter().map(|part| match part {
            wire::ToolCallContent::Diff(diff) => diff.patch.as_ref().map_or(0, |patch| patch.text.len()),
            part => text_of(part).map_or(0, str::len),
        });
        self.printed.len() + content.sum::<usize>()
    }

    /// The title with a mark for the status, and below it the content; only a part of it without `details`.
    pub fn render(&self, rows: &mut ScreenRows, details: bool) {
        let (mark, color, words) = match &self.status {
            Some(wire::ToolCallStatus::Completed) => ("●", Color::Green, ""),
            Some(wire::ToolCallStatus::Failed) => ("●", Color::Red, " → failed"),
            Some(wire::ToolCallStatus::Cancelled) => ("●", Color::Yellow, " → cancelled"),
            Some(wire::ToolCallStatus::InProgress) => ("◐", Color::Cyan, " …"),
            Some(_) | None => ("○", Color::Dim, ""),
        };
        rows.put(mark, ink(&[color]));
        rows.put(" ", Style::new());
        self.render_title(rows);
        rows.prose(words, ink(&[color]));
        for part in &self.content {
            self.render_path(part, rows);
            render_part(part, rows, details);
        }
        tail(drawn(&self.printed).trim_end(), rows, details);
        if let Some(exit) = &self.exit {
            rows.indented(exit, ink(&[Color::Yellow]));
        }
    }

    /// Whether a text of the content is the title, as for most commands.
    pub fn repeats_title(&self) -> bool {
        self.content.iter().filter_map(text_of).any(|text| unfenced(text) == self.title)
    }

    /// All lines of what a permission request shows, which is more than is shown of a call. Returns false if a change
    /// is too long to be shown.
    pub fn render_request(&self, rows: &mut ScreenRows) -> bool {
        for part in &self.content {
            self.render_path(part, rows);
            match text_of(part) {
                Some(text) => request_lines(text, rows),
                None => render_part(part, rows, true),
            }
        }
        self.content
            .iter()
            .all(|part| !matches!(part, wire::ToolCallContent::Diff(diff) if diff.patch.is_none()))
    }

    /// The files of a change. The title names an only one.
    fn render_path(&self, part: &wire::ToolCallContent, rows: &mut ScreenRows) {
        use wire::DiffChangeOperation::{Add, Copy, Delete, Modify, Move};
        let wire::ToolCallContent::Diff(diff) = part else { return };
        let is_change = |part: &&wire::ToolCallContent| matches!(part, wire::ToolCallContent::Diff(_));
        let is_only = self.content.iter().filter(is_change).count() == 1;
        for change in &diff.changes {
            let paths = match &change.operation {
                Add(file) | Delete(file) | Modify(file) => vec![&file.path],
                Move(files) | Copy(files) => vec![&files.old_path, &files.path],
                _ => continue,
            };
            let is_named = |path: &&wire::AbsolutePath| {
                path.0.file_name().is_some_and(|name| self.title.contains(&*name.to_string_lossy()))
            };
            if !(is_only && paths.iter().all(is_named)) {
                let paths: Vec<String> = paths.iter().map(|path| path.0.display().to_string()).collect();
                rows.output(&visible_line(&paths.join(" → ")), ink(&[Color::Bold]));
            }
        }
    }

    /// The title of a command or an edit is shown as it is. Others have names in code spans.
    pub fn render_title(&self, rows: &mut ScreenRows) {
        let title = visible_line(&self.title);
        match self.kind {
            Some(wire::ToolKind::Execute | wire::ToolKind::Edit) => rows.put_code(&title, Style::new()),
            _ => with_code(&title, rows),
        }
    }
}

fn text_of(part: &wire::ToolCallContent) -> Option<&str> {
    match part {
        wire::ToolCallContent::Content(content) => match &content.content {
            wire::ContentBlock::Text(text) => Some(&text.text),
            _ => None,
        },
        _ => None,
    }
}

/// Shows a text of a permission request: sentences, one of which may begin in bold, and fenced code. Code is exact, and
/// is indented so that it can't pose as a sentence.
fn request_lines(text: &str, rows: &mut ScreenRows) {
    let text = text.trim_matches('\n');
    let inner = unfenced(text);
    // A line of fences within a single block does not end it.
    let (inner, mut fence) = if inner.len() < text.len() { (inner, "\n") } else { (text, "") };
    for line in inner.lines() {
        let ticks = &line[..line.len() - line.trim_start_matches('`').len()];
        if fence.is_empty() && ticks.len() >= 3 {
            fence = ticks;
        } else if fence.is_empty() {
            let line = visible(line);
            let (bold, rest) =
                line.strip_prefix("**").and_then(|line| line.split_once("**")).unwrap_or(("", &line));
            rows.put(bold, ink(&[Color::Bold]));
            with_code(rest, rows);
            rows.end_row();
        } else if line == fence {
            fence = "";
        } else {
            rows.output(line, ink(&[Color::Cyan]));
        }
    }
}

/// Shows a line that may have code spans.
fn with_code(line: &str, rows: &mut ScreenRows) {
    for piece in code_spans(line) {
        rows.put(&piece.text, ink(&piece.styles));
    }
}

fn render_part(part: &wire::ToolCallContent, rows: &mut ScreenRows, details: bool) {
    match part {
        wire::ToolCallContent::Content(content) => match &content.content {
            wire::ContentBlock::Text(text) => tail(&text.text, rows, details),
            wire::ContentBlock::Image(image) => {
                rows.indented(&format!("[image: {}]", image.mime_type), ink(&[Color::Dim]));
            }
            _ => {}
        },
        wire::ToolCallContent::Diff(diff) => match &diff.patch {
            Some(patch) => render_patch(&patch.text, language_of(diff), rows, details),
            None => rows.indented("a change that is too long to show", ink(&[Color::Dim])),
        },
        // The output of a terminal is shown with its call.
        _ => {}
    }
}

/// The colors of the file that a change changes, if it is only one.
fn language_of(diff: &wire::Diff) -> Option<CodeColors> {
    use wire::DiffChangeOperation::{Add, Delete, Modify};
    match &diff.changes[..] {
        [change] => match &change.operation {
            Add(file) | Delete(file) | Modify(file) => CodeColors::of(file.path.0.extension()?.to_str()?),
            _ => None,
        },
        _ => None,
    }
}

/// Shows the changed lines of a patch with the lines around them. Changed lines keep their color, and only what stands
/// out in their code is marked.
fn render_patch(patch: &str, mut colors: Option<CodeColors>, rows: &mut ScreenRows, details: bool) {
    let mut lines = patch.lines().skip_while(|line| !line.starts_with("@@"));
    for line in lines.by_ref().take(if details { usize::MAX } else { DIFF_LINES_MAX }) {
        let (base, mark) = (ink(of_patch_line(line)), line.chars().next());
        let Some((colors, mark)) = colors.as_mut().zip(mark.filter(|mark| matches!(mark, '+' | '-' | ' ')))
        else {
            rows.output(line, base);
            continue;
        };
        let style = |color: &[Color]| match (mark, color) {
            (' ', _) => ink(color),
            (_, [Color::Magenta]) => base.patch(ink(&[Color::Bold])),
            (_, [Color::Dim]) => base.patch(ink(&[Color::Dim])),
            _ => base,
        };
        let parts = colors.line(&line[1..]).into_iter().map(|(text, color)| (text, style(color)));
        rows.output_parts(&std::iter::once((&line[..1], base)).chain(parts).collect::<Vec<_>>());
    }
    left_out(lines.count(), rows);
}

/// Shows the last lines of an output.
fn tail(text: &str, rows: &mut ScreenRows, details: bool) {
    let text = unfenced(text);
    let hidden = if details { 0 } else { text.lines().count().saturating_sub(OUTPUT_LINES_MAX) };
    left_out(hidden, rows);
    for line in text.lines().skip(hidden) {
        rows.output(line, ink(&[Color::Dim]));
    }
}

/// Says that lines are not shown without details.
pub fn left_out(lines: usize, rows: &mut ScreenRows) {
    if lines > 0 {
        let plural = if lines == 1 { "" } else { "s" };
        rows.indented(&format!("… {lines} more line{plural} (Ctrl+O)"), ink(&[Color::Dim]));
    }
}
