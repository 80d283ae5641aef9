//! Renders Markdown for a terminal while it streams in: emphasis, code, headings, lists, quotes, tables and links, with
//! lines wrapped at words. Pure.
//!
//! It renders what models write, line by line, and is not a complete CommonMark renderer: a line break in the source
//! is kept. Text is delayed only while its meaning may still change, and never by more than a line or a table. Every
//! character except the markup is kept. The result is text with styles, which the caller turns into escape sequences or
//! cells; the input must have passed through `thread::visible`.

mod code;
mod inline;

use unicode_segmentation::UnicodeSegmentation;
use unicode_width::UnicodeWidthStr;

pub use code::{CodeColors, of_patch_line};
pub use inline::code_spans;
use inline::{LINE_BYTES_MAX, pieces};

/// A color or emphasis of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Color {
    Bold,
    Dim,
    Italic,
    Underline,
    Red,
    Green,
    Yellow,
    Magenta,
    Cyan,
}

/// Text in one style. The innermost color comes first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StyledText {
    pub text: String,
    pub styles: Vec<Color>,
    /// Whether it is a line of a code block, or the end of one.
    pub is_code: bool,
}

impl StyledText {
    fn new(text: impl Into<String>, styles: &[Color]) -> StyledText {
        StyledText { text: text.into(), styles: styles.to_vec(), is_code: false }
    }

    fn code(line: impl Into<String>) -> StyledText {
        StyledText { is_code: true, ..StyledText::new(line, &[Color::Cyan]) }
    }
}

/// Rendered text; a line ends with a piece `"\n"` without a style.
type StyledPieces = Vec<StyledText>;

/// Maximum number of table rows that are delayed to align columns; longer tables are aligned in parts.
const TABLE_ROWS_MAX: usize = 200;

/// Columns between those of a table, and the least width to which one of a table that is too wide is narrowed.
const TABLE_GAP: usize = 2;
const CELL_COLUMNS_MIN: usize = 10;

/// Maximum length in bytes of text that is delayed until the end of an emphasis.
const DELAYED_BYTES_MAX: usize = 2_000;

/// A stream of Markdown.
pub struct Markdown {
    columns: usize,
    /// Whether lines are broken here, or by the caller.
    is_broken: bool,
    /// The part of the last line that is not rendered yet.
    pending: String,
    /// Whether a part of the last line has been rendered.
    within_line: bool,
    /// The fence that ends the current code block.
    fence: Option<String>,
    /// The colors of its language, if that is known.
    code: FencedCode,
    table: Vec<String>,
    /// The column of the cursor.
    column: usize,
    /// Whether a space precedes the next word.
    gap: bool,
    /// Indentation of wrapped lines, in columns.
    indent: usize,
    /// The kind of the previous line, for indented code.
    before: LineBefore,
    /// Whether an indented line belongs to a list item.
    in_list: bool,
}

/// The code of a block.
enum FencedCode {
    Unknown,
    Patch,
    Colored(CodeColors),
}

impl FencedCode {
    fn of(language: &str) -> FencedCode {
        match CodeColors::of(language) {
            Some(colors) => FencedCode::Colored(colors),
            None if matches!(language, "diff" | "patch") => FencedCode::Patch,
            None => FencedCode::Unknown,
        }
    }

    fn line(&mut self, line: &str, out: &mut StyledPieces) {
        let colored = |text: &str, colors| StyledText { is_code: true, ..StyledText::new(text, colors) };
        match self {
            FencedCode::Unknown => out.push(StyledText::code(line)),
            FencedCode::Patch => out.push(colored(line, of_patch_line(line))),
            // An empty line is code, too.
            FencedCode::Colored(_) if line.is_empty() => out.push(StyledText::code(line)),
            FencedCode::Colored(colors) => {
                out.extend(colors.line(line).into_iter().map(|(text, color)| colored(text, color)));
            }
        }
    }
}

/// The kind of a line, as far as the next line depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineBefore {
    Blank,
    IndentedCode,
    Other,
}

impl Markdown {
    pub fn new(columns: usize) -> Markdown {
        Markdown {
            columns,
            is_broken: true,
            pending: String::new(),
            within_line: false,
            fence: None,
            code: FencedCode::Unknown,
            table: Vec::new(),
            column: 0,
            gap: false,
            indent: 0,
            before: LineBefore::Blank,
            in_list: false,
        }
    }

    /// Lines that are wider than the screen stay as they are. Only tables and rules depend on its width.
    pub fn unbroken(columns: usize) -> Markdown {
        Markdown { is_broken: false, ..Markdown::new(columns) }
    }

    /// Adds a piece of text and returns what can be shown.
    pub fn push(&mut self, text: &str) -> Vec<StyledText> {
        let mut out = Vec::new();
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
    pub fn finish(&mut self) -> Vec<StyledText> {
        let mut out = Vec::new();
        let rest = std::mem::take(&mut self.pending);
        if self.fence.is_some() {
            self.code.line(&rest, &mut out);
        } else if self.within_line {
            self.words(&rest, &[], &mut out);
        } else if !rest.is_empty() && self.starts_table(&rest) {
            self.table.push(rest);
            self.end_table(&mut out);
        } else {
            self.end_table(&mut out);
            if !rest.is_empty() {
                self.block(&rest, &mut out);
            }
        }
        *self = Markdown { is_broken: self.is_broken, ..Markdown::new(self.columns) };
        out
    }

    /// Renders a complete line, or the rest of one.
    fn line(&mut self, line: &str, out: &mut StyledPieces) {
        if std::mem::take(&mut self.within_line) {
            self.words(line, &[], out);
        } else if let Some(fence) = &self.fence {
            let is_end = line.trim().starts_with(fence.as_str()) && line.trim().trim_matches('`').is_empty();
            if is_end {
                out.push(StyledText::new(line, &[Color::Dim]));
                self.fence = None;
            } else {
                self.code.line(line, out);
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
        if line.trim().is_empty() {
            self.before = LineBefore::Blank;
        }
    }

    fn end_line(&mut self, out: &mut StyledPieces) {
        out.push(StyledText::new("\n", &[]));
        (self.column, self.gap, self.indent) = (0, false, 0);
    }

    fn starts_table(&self, line: &str) -> bool {
        line.trim_start().starts_with('|')
    }

    /// Whether a line is code because of its indentation: after an empty line and outside of lists.
    fn is_indented_code(&self, line: &str) -> bool {
        line.starts_with("    ") && !self.in_list && self.before != LineBefore::Other
    }

    /// Renders the beginning of a line, or all of it.
    fn block(&mut self, line: &str, out: &mut StyledPieces) {
        if self.is_indented_code(line) && !line.trim().is_empty() {
            self.before = LineBefore::IndentedCode;
            out.push(StyledText::code(line));
            return;
        }
        let text = line.trim_start();
        let depth = line.len() - text.len();
        self.before = LineBefore::Other;
        self.in_list = list_mark(text).is_some() || (self.in_list && (depth > 0 || text.is_empty()));
        let ticks: String = text.chars().take_while(|c| *c == '`').collect();
        let hashes = text.chars().take_while(|c| *c == '#').count();
        if ticks.len() >= 3 {
            out.push(StyledText::new(line, &[Color::Dim]));
            let info = text[ticks.len()..].trim();
            let is_name = |c: char| c.is_alphanumeric() || matches!(c, '+' | '#' | '-' | '_');
            self.code = FencedCode::of(&info[..info.find(|c| !is_name(c)).unwrap_or(info.len())]);
            self.fence = Some(ticks);
        } else if (1..=6).contains(&hashes) && text[hashes..].starts_with(' ') {
            self.words(&text[hashes..], &[Color::Bold, Color::Underline], out);
        } else if text.len() >= 3
            && ["-", "*", "_"].iter().any(|mark| text.replace([' '], "").replace(mark, "").is_empty())
        {
            let rule = "─".repeat(self.columns.clamp(3, 40));
            out.push(StyledText::new(rule, &[Color::Dim]));
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
    fn mark(&mut self, mark: &str, color: Color, out: &mut StyledPieces) {
        if !mark.is_empty() {
            out.push(StyledText::new(mark, &[color]));
        }
        self.indent = mark.width();
        self.column = self.indent;
    }

    /// Shows the beginning of an incomplete line: the words whose meaning can't change any more.
    fn stream(&mut self, out: &mut StyledPieces) {
        let is_plain = || is_plain_text(&self.pending) && !self.is_indented_code(&self.pending);
        if self.fence.is_some() || !(self.within_line || is_plain()) {
            return;
        }
        // The mark of a list item is shown with its first word.
        let begin = if self.within_line { 0 } else { self.pending.len() - item_text(&self.pending).len() };
        let settled = match self.pending.len() {
            0..LINE_BYTES_MAX => inline::settled(&self.pending, DELAYED_BYTES_MAX),
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
    fn words(&mut self, text: &str, styles: &[Color], out: &mut StyledPieces) {
        // Parts of a word may differ in style, but must not be separated.
        let mut word: Vec<StyledText> = Vec::new();
        for mut piece in pieces(text) {
            piece.styles.extend_from_slice(styles);
            let StyledText { text, styles, .. } = piece;
            let mut parts = text.split(' ');
            if let Some(first) = parts.next() {
                word.push(StyledText::new(first, &styles));
            }
            for part in parts {
                self.word(&std::mem::take(&mut word), out);
                self.gap = self.column > self.indent;
                word.push(StyledText::new(part, &styles));
            }
        }
        self.word(&word, out);
    }

    fn word(&mut self, word: &[StyledText], out: &mut StyledPieces) {
        let width: usize = word.iter().map(|piece| piece.text.width()).sum();
        if width == 0 {
            return;
        }
        let gap = usize::from(std::mem::take(&mut self.gap));
        if self.is_broken && self.column + gap + width > self.columns && self.column > self.indent {
            out.push(StyledText::new("\n", &[]));
            out.push(StyledText::new(" ".repeat(self.indent), &[]));
            self.column = self.indent;
        } else if gap > 0 {
            out.push(StyledText::new(" ", &[]));
            self.column += 1;
        }
        out.extend(word.iter().filter(|piece| !piece.text.is_empty()).cloned());
        self.column += width;
    }

    /// Writes the rows of a table with aligned columns. Cells of a table that is too wide are broken.
    fn end_table(&mut self, out: &mut StyledPieces) {
        let rows = std::mem::take(&mut self.table);
        let is_rule = |at: usize| rows[at].contains('-') && rows[at].chars().all(|c| "|-: ".contains(c));
        // One line is no table.
        if (0..rows.len()).filter(|at| !is_rule(*at)).count() < 2 {
            rows.iter().for_each(|row| out.extend([StyledText::new(row, &[]), StyledText::new("\n", &[])]));
            return;
        }
        let cells: Vec<TableRow> = rows.iter().map(|row| cells(row)).collect();
        let count = cells.iter().map(Vec::len).max().unwrap_or_default();
        let of_column = |column: usize| {
            let of_rows = cells.iter().enumerate().filter(|(at, _)| !is_rule(*at));
            of_rows
                .filter_map(|(_, row)| row.get(column))
                .map(|cell| width_of(cell))
                .max()
                .unwrap_or_default()
        };
        let natural: Vec<usize> = (0..count).map(of_column).collect();
        let Some(widths) = fitting(&natural, self.columns) else {
            let columns = if self.is_broken { self.columns } else { usize::MAX };
            return fields(&cells, is_rule, columns, out);
        };
        let rule: Vec<String> = widths.iter().map(|width| "─".repeat(*width)).collect();
        let rule = [StyledText::new(rule.join("  "), &[Color::Dim]), StyledText::new("\n", &[])];
        for (at, cells) in cells.iter().enumerate() {
            if is_rule(at) {
                out.extend(rule.clone());
                continue;
            }
            // Rows of several lines could not be told apart.
            if at > 0 && widths != natural && !is_rule(at - 1) {
                out.extend(rule.clone());
            }
            let bold = (at == 0).then_some(Color::Bold);
            let broken: Vec<TableRow> =
                cells.iter().zip(&widths).map(|(cell, width)| broken(cell, *width)).collect();
            for line in 0..broken.iter().map(Vec::len).max().unwrap_or_default().max(1) {
                // Spaces are written before the next text, so that none end the row.
                let mut gap = 0;
                for (cell, wanted) in broken.iter().zip(&widths) {
                    let cell = cell.get(line).map(Vec::as_slice).unwrap_or_default();
                    if !cell.is_empty() && gap > 0 {
                        out.push(StyledText::new(" ".repeat(std::mem::take(&mut gap)), &[]));
                    }
                    out.extend(cell.iter().map(|piece| styled(piece, bold)));
                    gap += wanted.saturating_sub(width_of(cell)) + TABLE_GAP;
                }
                out.push(StyledText::new("\n", &[]));
            }
        }
    }
}

/// The cells of a row, or the lines of a cell.
type TableRow = Vec<StyledPieces>;

fn width_of(pieces: &[StyledText]) -> usize {
    pieces.iter().map(|piece| piece.text.width()).sum()
}

fn styled(piece: &StyledText, more: Option<Color>) -> StyledText {
    StyledText { styles: piece.styles.iter().copied().chain(more).collect(), ..piece.clone() }
}

/// The widths at which the columns of a table fit: the widest ones are narrowed. `None` if no word would fit into them.
fn fitting(widths: &[usize], columns: usize) -> Option<Vec<usize>> {
    let narrowed = |most: usize| widths.iter().map(move |width| most.min(*width));
    let room = columns.saturating_sub(TABLE_GAP * widths.len().saturating_sub(1));
    let most = (CELL_COLUMNS_MIN.min(columns)..=columns)
        .rev()
        .find(|most| narrowed(*most).sum::<usize>() <= room)?;
    Some(narrowed(most).collect())
}

/// Breaks a cell into lines, between words where there are any.
fn broken(cell: &[StyledText], columns: usize) -> TableRow {
    let mut all: Vec<(&str, &StyledText)> = Vec::new();
    cell.iter().for_each(|piece| all.extend(piece.text.graphemes(true).map(|grapheme| (grapheme, piece))));
    let mut rest = &all[..];
    let mut lines = TableRow::new();
    while !rest.is_empty() {
        let mut used = 0;
        let fits = rest.iter().take_while(|(grapheme, _)| {
            used += grapheme.width();
            used <= columns
        });
        let fits = fits.count().max(1);
        let last_blank = || rest[..=fits].iter().rposition(|(grapheme, _)| *grapheme == " ");
        let end = if fits == rest.len() { None } else { last_blank().filter(|at| *at > 0) }.unwrap_or(fits);
        let line = rest[..end].chunk_by(|(_, one), (_, next)| std::ptr::eq(*one, *next));
        let text =
            |part: &[(&str, &StyledText)]| part.iter().map(|(grapheme, _)| *grapheme).collect::<String>();
        lines.push(line.map(|part| StyledText::new(text(part), &part[0].1.styles)).collect());
        rest = &rest[end..];
        while let [(" ", _), more @ ..] = rest {
            rest = more;
        }
    }
    lines
}

/// Writes each row of a table that is too wide as lines, with the heading of its column in front of each cell.
fn fields(rows: &[TableRow], is_rule: impl Fn(usize) -> bool, columns: usize, out: &mut StyledPieces) {
    let shown = rows.iter().enumerate().skip(1).filter(|(at, _)| !is_rule(*at));
    for (number, (_, row)) in shown.enumerate() {
        if number > 0 {
            out.push(StyledText::new("\n", &[]));
        }
        for (column, cell) in row.iter().enumerate().filter(|(_, cell)| !cell.is_empty()) {
            let heading = rows[0].get(column).map(Vec::as_slice).unwrap_or_default();
            let mut line: StyledPieces =
                heading.iter().map(|piece| styled(piece, Some(Color::Bold))).collect();
            if !line.is_empty() {
                line.push(StyledText::new(": ", &[]));
            }
            line.extend(cell.iter().cloned());
            for mut row in broken(&line, columns) {
                out.append(&mut row);
                out.push(StyledText::new("\n", &[]));
            }
        }
    }
}

/// Splits a row into cells.
fn cells(row: &str) -> TableRow {
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
