//! Renders Markdown for a terminal while it streams in: emphasis, code, headings, lists, quotes, tables and links, with
//! lines wrapped at words. Pure.
//!
//! It renders what models write, line by line, and is not a complete CommonMark renderer: a line break in the source
//! is kept. Text is delayed only while its meaning may still change, and never by more than a line or a table. Every
//! character except the markup is kept. Only `Style` emits escape sequences: the text must have passed through
//! `thread::visible`.

mod inline;

use unicode_width::UnicodeWidthStr;

use super::terminal::{Color, Style};
use inline::{LINE_BYTES_MAX, StyledText, pieces};

/// Maximum number of table rows that are delayed to align columns; longer tables are aligned in parts.
const TABLE_ROWS_MAX: usize = 200;

/// Maximum length in bytes of text that is delayed until the end of an emphasis.
const HELD_BYTES_MAX: usize = 2_000;

/// A stream of Markdown.
pub struct Markdown {
    style: Style,
    columns: usize,
    /// The part of the last line that is not rendered yet.
    pending: String,
    /// Whether a part of the last line has been rendered.
    within_line: bool,
    /// The fence that ends the current code block.
    fence: Option<String>,
    table: Vec<String>,
    /// The column of the cursor.
    column: usize,
    /// Whether a space precedes the next word.
    gap: bool,
    /// Indentation of wrapped lines, in columns.
    indent: usize,
}

impl Markdown {
    pub fn new(style: Style, columns: usize) -> Markdown {
        Markdown {
            style,
            columns,
            pending: String::new(),
            within_line: false,
            fence: None,
            table: Vec::new(),
            column: 0,
            gap: false,
            indent: 0,
        }
    }

    /// Adds a piece of text and returns what can be shown.
    pub fn push(&mut self, text: &str) -> String {
        let mut out = String::new();
        self.pending.push_str(text);
        if let Some(end) = self.pending.rfind('\n') {
            let rest = self.pending.split_off(end + 1);
            let lines = std::mem::replace(&mut self.pending, rest);
            lines.split_terminator('\n').for_each(|line| self.line(line, &mut out));
        }
        self.stream(&mut out);
        out
    }

    /// Returns the delayed text and resets the state.
    pub fn finish(&mut self) -> String {
        let mut out = String::new();
        let rest = std::mem::take(&mut self.pending);
        if self.fence.is_some() {
            out.push_str(&self.style.paint(Color::Cyan, &rest));
        } else if self.within_line {
            self.words(&rest, &[], &mut out);
        } else if !rest.is_empty() && self.starts_table(&rest) {
            self.table.push(rest);
        } else if !rest.is_empty() {
            self.block(&rest, &mut out);
        }
        self.end_table(&mut out);
        *self = Markdown::new(self.style, self.columns);
        out
    }

    /// Renders a complete line, or the rest of one.
    fn line(&mut self, line: &str, out: &mut String) {
        if std::mem::take(&mut self.within_line) {
            self.words(line, &[], out);
        } else if let Some(fence) = &self.fence {
            let is_end = line.trim().starts_with(fence.as_str()) && line.trim().trim_matches('`').is_empty();
            let color = if is_end { Color::Dim } else { Color::Cyan };
            out.push_str(&self.style.paint(color, line));
            if is_end {
                self.fence = None;
            }
        } else if self.starts_table(line) {
            self.table.push(line.to_owned());
            if self.table.len() >= TABLE_ROWS_MAX {
                self.end_table(out);
            }
            return;
        } else {
            self.end_table(out);
            self.block(line, out);
        }
        self.end_line(out);
    }

    fn end_line(&mut self, out: &mut String) {
        out.push('\n');
        (self.column, self.gap, self.indent) = (0, false, 0);
    }

    fn starts_table(&self, line: &str) -> bool {
        line.trim_start().starts_with('|')
    }

    /// Renders the beginning of a line, or all of it.
    fn block(&mut self, line: &str, out: &mut String) {
        let text = line.trim_start();
        let depth = line.len() - text.len();
        let ticks: String = text.chars().take_while(|c| *c == '`').collect();
        let hashes = text.chars().take_while(|c| *c == '#').count();
        if ticks.len() >= 3 {
            out.push_str(&self.style.paint(Color::Dim, line));
            self.fence = Some(ticks);
        } else if (1..=6).contains(&hashes) && text[hashes..].starts_with(' ') {
            self.words(&text[hashes..], &[Color::Bold, Color::Underline], out);
        } else if text.len() >= 3
            && ["-", "*", "_"].iter().any(|mark| text.replace([' '], "").replace(mark, "").is_empty())
        {
            let rule = "─".repeat(self.columns.clamp(3, 40));
            out.push_str(&self.style.paint(Color::Dim, &rule));
        } else if let Some(quoted) = text.strip_prefix('>') {
            self.mark(&format!("{}│ ", " ".repeat(depth)), Color::Dim, out);
            self.words(quoted, &[Color::Dim], out);
        } else if let Some((mark, item)) = list_mark(text) {
            let shown = if mark.len() == 1 { "•" } else { mark };
            self.mark(&format!("{}{shown} ", " ".repeat(depth)), Color::Cyan, out);
            self.words(item, &[], out);
        } else {
            self.mark(&" ".repeat(depth), Color::Dim, out);
            self.words(text, &[], out);
        }
    }

    /// Writes the mark before a line's text; wrapped lines are indented by its width.
    fn mark(&mut self, mark: &str, color: Color, out: &mut String) {
        if !mark.is_empty() {
            out.push_str(&self.style.paint(color, mark));
        }
        self.indent = mark.width();
        self.column = self.indent;
    }

    /// Shows the beginning of an incomplete line: the words whose meaning can't change any more.
    fn stream(&mut self, out: &mut String) {
        if self.fence.is_some() || !(self.within_line || is_plain_text(&self.pending)) {
            return;
        }
        // The mark of a list item is shown with its first word.
        let begin = if self.within_line { 0 } else { self.pending.len() - item_text(&self.pending).len() };
        let settled = match self.pending.len() {
            0..LINE_BYTES_MAX => inline::settled(&self.pending, HELD_BYTES_MAX),
            _ => self.pending.rfind(' '),
        };
        let Some(end) = settled.filter(|end| *end > begin) else { return };
        let rest = self.pending.split_off(end);
        let ready = std::mem::replace(&mut self.pending, rest);
        match self.within_line {
            true => self.words(&ready, &[], out),
            false => {
                self.end_table(out);
                self.block(&ready, out);
            }
        }
        self.within_line = true;
    }

    /// Writes words with line wrapping.
    fn words(&mut self, text: &str, styles: &[Color], out: &mut String) {
        // Parts of a word may differ in style, but must not be separated.
        let mut word: Vec<StyledText> = Vec::new();
        for mut piece in pieces(text) {
            piece.styles.extend_from_slice(styles);
            let StyledText { text, styles } = piece;
            let mut parts = text.split(' ');
            if let Some(first) = parts.next() {
                word.push(StyledText { text: first.to_owned(), styles: styles.clone() });
            }
            for part in parts {
                self.word(&std::mem::take(&mut word), out);
                self.gap = self.column > self.indent;
                word.push(StyledText { text: part.to_owned(), styles: styles.clone() });
            }
        }
        self.word(&word, out);
    }

    fn word(&mut self, word: &[StyledText], out: &mut String) {
        let width: usize = word.iter().map(|piece| piece.text.width()).sum();
        if width == 0 {
            return;
        }
        let gap = usize::from(std::mem::take(&mut self.gap));
        if self.column + gap + width > self.columns && self.column > self.indent {
            out.push('\n');
            out.push_str(&" ".repeat(self.indent));
            self.column = self.indent;
        } else if gap > 0 {
            out.push(' ');
            self.column += 1;
        }
        for piece in word.iter().filter(|piece| !piece.text.is_empty()) {
            out.push_str(&piece.painted(self.style));
        }
        self.column += width;
    }

    /// Writes the rows of a table with aligned columns, or unchanged if they don't fit.
    fn end_table(&mut self, out: &mut String) {
        let rows = std::mem::take(&mut self.table);
        if rows.is_empty() {
            return;
        }
        let cells: Vec<Vec<Vec<StyledText>>> = rows.iter().map(|row| cells(row)).collect();
        let count = cells.iter().map(Vec::len).max().unwrap_or_default();
        let width = |cell: &[StyledText]| cell.iter().map(|piece| piece.text.width()).sum::<usize>();
        let is_rule = |row: &str| row.contains('-') && row.chars().all(|c| "|-: ".contains(c));
        let widths: Vec<usize> = (0..count)
            .map(|at| {
                let of_rows = rows.iter().zip(&cells).filter(|(row, _)| !is_rule(row));
                of_rows.filter_map(|(_, row)| row.get(at)).map(|cell| width(cell)).max().unwrap_or_default()
            })
            .collect();
        let all: usize = widths.iter().map(|width| width + 2).sum();
        for (at, (row, cells)) in rows.iter().zip(&cells).enumerate() {
            if all > self.columns {
                out.push_str(row);
            } else if is_rule(row) {
                let rule: Vec<String> = widths.iter().map(|width| "─".repeat(*width)).collect();
                out.push_str(&self.style.paint(Color::Dim, &rule.join("  ")));
            } else {
                for (cell, wanted) in cells.iter().zip(&widths) {
                    for piece in cell {
                        let bold = (at == 0 && rows.len() > 1).then_some(Color::Bold);
                        let styles = piece.styles.iter().copied().chain(bold).collect();
                        out.push_str(&StyledText { text: piece.text.clone(), styles }.painted(self.style));
                    }
                    out.push_str(&" ".repeat(wanted - width(cell) + 2));
                }
                out.truncate(out.trim_end_matches(' ').len());
            }
            out.push('\n');
        }
    }
}

/// Splits a row into cells.
fn cells(row: &str) -> Vec<Vec<StyledText>> {
    let row = row.trim();
    let row = row.strip_prefix('|').unwrap_or(row);
    let row = row.strip_suffix('|').unwrap_or(row);
    // An escaped bar is a part of its cell.
    let row = row.replace("\\|", "\u{1}");
    row.split('|').map(|cell| pieces(cell.trim().replace('\u{1}', "|").as_str())).collect()
}

/// Splits a list item into its mark and its text.
fn list_mark(text: &str) -> Option<(&str, &str)> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let end = match text.as_bytes().get(digits)? {
        b'-' | b'*' | b'+' if digits == 0 => 1,
        b'.' | b')' if (1..=9).contains(&digits) => digits + 1,
        _ => return None,
    };
    let item = text[end..].strip_prefix(' ')?;
    Some((&text[..end], item))
}

/// Returns a line without its indentation and list mark.
fn item_text(line: &str) -> &str {
    let text = line.trim_start();
    list_mark(text).map_or(text, |(_, item)| item.trim_start())
}

/// Whether an incomplete line is certainly a paragraph or a list item.
fn is_plain_text(begin: &str) -> bool {
    item_text(begin).chars().next().is_some_and(|c| c.is_alphabetic() || !c.is_ascii())
}

#[cfg(test)]
mod tests;
