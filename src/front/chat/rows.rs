//! Rows of the screen: text with styles, broken at the width of the screen. Pure.

use epitome_thread::visible::visible;
use ratatui::style::{Color as Ink, Modifier, Style};
use ratatui::text::{Line, Span};
use unicode_segmentation::UnicodeSegmentation;
use unicode_width::UnicodeWidthStr;

use crate::markdown::{Color, Markdown, StyledText};

/// The characters of the bars in `/context`.
const BARS: [char; 4] = ['█', '▒', '░', '▏'];

/// The prefix of each row that belongs to a call.
const INDENT: &str = "    ";

/// The prefix of further rows of a line of code, and of an output. The blanks between two words are on the row of the
/// second one, so that a command can be read exactly: `↳ b` continues `a b`, and `↳b` continues `ab`.
const CONTINUED: &str = "↳";
const OUTPUT_CONTINUED: &str = "  ↳";

/// Columns of a tab.
const TAB: &str = "    ";

/// The style of a cell. Only the 16 colors of the terminal, which its user has chosen for its background.
pub fn ink(styles: &[Color]) -> Style {
    styles.iter().fold(Style::new(), |style, color| match color {
        Color::Bold => style.add_modifier(Modifier::BOLD),
        Color::Dim => style.add_modifier(Modifier::DIM),
        Color::Italic => style.add_modifier(Modifier::ITALIC),
        Color::Underline => style.add_modifier(Modifier::UNDERLINED),
        Color::Red => style.fg(Ink::Red),
        Color::Green => style.fg(Ink::Green),
        Color::Yellow => style.fg(Ink::Yellow),
        Color::Magenta => style.fg(Ink::Magenta),
        Color::Cyan => style.fg(Ink::Cyan),
    })
}

/// Rows that grow at their end. All text that may be wider than the screen is broken here.
#[derive(Default)]
pub struct ScreenRows {
    columns: usize,
    rows: Vec<Line<'static>>,
    /// The line at the end, if it may still grow.
    open: Option<OpenLine>,
}

#[derive(Default)]
struct OpenLine {
    /// The bytes and the width of its last row.
    bytes: usize,
    width: usize,
    /// The last position of that row at which a word begins.
    word: Option<usize>,
    /// Whether the row ends with a wide character. Those are words of their own.
    is_wide: bool,
    /// The prefix of its further rows. Known when the first one is full.
    hanging: Option<String>,
}

impl ScreenRows {
    pub fn new(columns: usize) -> ScreenRows {
        ScreenRows { columns: columns.max(1), ..ScreenRows::default() }
    }

    pub fn as_slice(&self) -> &[Line<'static>] {
        &self.rows
    }

    /// Adds prose to the last row; a newline begins another one. The text must have passed through `visible`.
    pub fn put(&mut self, text: &str, style: Style) {
        self.put_marked(text, style, None);
    }

    /// Adds text; further rows of a line begin with the mark, or are indented as the first one.
    fn put_marked(&mut self, text: &str, style: Style, mark: Option<&str>) {
        for (at, line) in text.split('\n').enumerate() {
            if at > 0 {
                self.end_row();
            }
            line.graphemes(true).for_each(|grapheme| self.put_grapheme(grapheme, style, mark));
        }
    }

    fn put_grapheme(&mut self, grapheme: &str, style: Style, mark: Option<&str>) {
        let grapheme = if grapheme == "\t" { TAB } else { grapheme };
        let (width, is_blank) = (grapheme.width(), grapheme.starts_with(' '));
        let open = self.open.get_or_insert_with(|| {
            self.rows.push(Line::default());
            OpenLine::default()
        });
        let begins_word = (open.is_wide || width > 1) && grapheme.starts_with(char::is_alphanumeric);
        if begins_word {
            open.word = Some(open.bytes);
        }
        if open.width + width > self.columns && is_blank {
            open.word = Some(open.bytes);
            if mark.is_none() {
                // At the end of a row of prose it can't be seen.
                open.width = self.columns;
                return;
            }
        }
        // A character that is wider than the screen can't be shown at all.
        if open.width + width > self.columns && open.bytes > 0 {
            self.break_row(mark);
        }
        let (Some(open), Some(row)) = (&mut self.open, self.rows.last_mut()) else { return };
        match row.spans.last_mut().filter(|span| span.style == style) {
            Some(span) => span.content.to_mut().push_str(grapheme),
            None => row.push_span(Span::styled(grapheme.to_owned(), style)),
        }
        (open.bytes, open.width) = (open.bytes + grapheme.len(), open.width + width);
        open.is_wide = width > 1;
        if is_blank {
            open.word = Some(open.bytes);
        }
    }

    /// Begins another row of the last line with the word at its end, or within a word that fills the row.
    fn break_row(&mut self, mark: Option<&str>) {
        let (Some(open), Some(row)) = (self.open.take(), self.rows.last_mut()) else { return };
        let text = row.to_string();
        let begin = open.hanging.as_ref().map_or_else(|| marks(&text), String::len);
        let is_after_words = |at: &usize| text[begin.min(*at)..*at].contains(char::is_alphanumeric);
        let last_word = open.word.filter(is_after_words);
        let end = last_word.unwrap_or(text.len());
        let blanks = text[..end].trim_end_matches(' ').len();
        let rest = match (mark, last_word) {
            (Some(_), Some(_)) => split_off(row, blanks),
            (Some(_), None) => Vec::new(),
            (None, _) => {
                let word = split_off(row, end);
                drop(split_off(row, blanks));
                word
            }
        };
        let fits = |hanging: &String| 2 * hanging.width() <= self.columns;
        let hanging = open.hanging.unwrap_or_else(|| {
            Some(mark.map_or_else(|| below(&text[..begin]), str::to_owned)).filter(fits).unwrap_or_default()
        });
        let (bytes, width) = (hanging.len(), hanging.width());
        self.rows.push(Line::default());
        if let Some(row) = self.rows.last_mut().filter(|_| bytes > 0) {
            row.push_span(Span::styled(hanging.clone(), ink(&[Color::Dim])));
        }
        self.open = Some(OpenLine { bytes, width, hanging: Some(hanging), ..OpenLine::default() });
        for span in rest {
            self.put_marked(&span.content, span.style, mark);
        }
    }

    /// Ends the last row; if it has ended already, adds an empty one.
    pub fn end_row(&mut self) {
        if self.open.take().is_none() {
            self.rows.push(Line::default());
        }
    }

    /// Adds whole lines of prose.
    pub fn prose(&mut self, text: &str, style: Style) {
        self.put(&visible(text), style);
        self.end_row();
    }

    /// Adds a whole line of prose that belongs to a call: all its rows are indented.
    pub fn indented(&mut self, text: &str, style: Style) {
        self.put(INDENT, style);
        self.prose(text, style);
    }

    /// Adds a part of a line of code. Each further row has a mark.
    pub fn put_code(&mut self, text: &str, style: Style) {
        self.put_marked(text, style, Some(CONTINUED));
    }

    /// Adds a whole line of an output or a change, which belongs to a call.
    pub fn output(&mut self, text: &str, style: Style) {
        self.output_parts(&[(text, style)]);
    }

    /// Adds a line of an output whose parts have styles of their own.
    pub fn output_parts(&mut self, parts: &[(&str, Style)]) {
        self.put(INDENT, Style::new());
        for (text, style) in parts {
            self.put_marked(&visible(text), *style, Some(OUTPUT_CONTINUED));
        }
        self.end_row();
    }
}

/// The length of the blanks and marks that a line begins with: those of quotes, lists, answers and calls.
fn marks(line: &str) -> usize {
    let text = line.trim_start_matches([' ', '│', '•', '›', '✓', '▸', '○', '●', '◐']);
    let item = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let is_item = item.len() < text.len() && (item.starts_with(". ") || item.starts_with(") "));
    line.len() - if is_item { item.len() - 2 } else { text.len() }
}

/// The text below the marks of a line. Only the bar of a quote is repeated.
fn below(marks: &str) -> String {
    marks.chars().map(|c| if c == '│' { c } else { ' ' }).collect()
}

/// Splits a row at a byte of its text.
fn split_off(row: &mut Line<'static>, at: usize) -> Vec<Span<'static>> {
    let (mut skipped, mut rest) = (0, Vec::new());
    for span in std::mem::take(&mut row.spans) {
        let (before, after) = span.content.split_at(at.saturating_sub(skipped).min(span.content.len()));
        skipped += span.content.len();
        for (part, spans) in [(before, &mut row.spans), (after, &mut rest)] {
            if !part.is_empty() {
                spans.push(Span::styled(part.to_owned(), span.style));
            }
        }
    }
    rest
}

/// A paragraph of Markdown that streams in, as rows.
pub struct Flow {
    markdown: Markdown,
    rows: ScreenRows,
}

impl Flow {
    pub fn new(columns: usize) -> Flow {
        Flow { markdown: Markdown::unbroken(columns), rows: ScreenRows::new(columns) }
    }

    pub fn rows(&self) -> &[Line<'static>] {
        self.rows.as_slice()
    }

    pub fn push(&mut self, text: &str) {
        let pieces = self.markdown.push(&visible(text));
        self.put(&pieces);
    }

    /// Shows what was delayed until its meaning is certain.
    pub fn finish(&mut self) {
        let pieces = self.markdown.finish();
        self.put(&pieces);
    }

    fn put(&mut self, pieces: &[StyledText]) {
        for piece in pieces {
            match piece.styles[..] {
                [Color::Cyan] if piece.text.ends_with(BARS) => {
                    self.rows.put(&fitting_bar(&piece.text, self.rows.columns), ink(&piece.styles));
                }
                _ if piece.is_code => self.rows.put_code(&piece.text, ink(&piece.styles)),
                _ => self.rows.put(&piece.text, ink(&piece.styles)),
            }
        }
    }
}

/// Shortens the bar at the end of a line so that the line fits. All bars of a plot are shortened by the same factor.
pub fn fitting_bar(line: &str, columns: usize) -> String {
    /// Columns of a whole bar.
    const WHOLE: usize = 40;
    let label = line.trim_end_matches(BARS);
    let (space, bar) = (columns.saturating_sub(label.width()), &line[label.len()..]);
    if space >= WHOLE {
        return line.to_owned();
    }
    let shown = (bar.chars().count() * space).div_ceil(WHOLE);
    label.chars().chain(bar.chars().take(shown)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(rows: &[Line<'_>]) -> Vec<String> {
        rows.iter().map(|row| row.spans.iter().map(|span| span.content.as_ref()).collect()).collect()
    }

    #[test]
    fn words_that_fill_a_row_are_broken_between_characters_that_belong_together() {
        for (text, columns, expected) in [
            ("abcdef", 4, vec!["abcd", "ef"]),
            ("日本語", 5, vec!["日本", "語"]),
            ("e\u{301}e\u{301}e\u{301}", 2, vec!["e\u{301}e\u{301}", "e\u{301}"]),
            ("שלום עולם", 5, vec!["שלום", "עולם"]),
            ("👩\u{200d}💻👩\u{200d}💻", 3, vec!["👩\u{200d}💻", "👩\u{200d}💻"]),
            ("a\n\nb\n", 4, vec!["a", "", "b"]),
            ("\na", 4, vec!["", "a"]),
            ("a\tb", 80, vec!["a    b"]),
        ] {
            let mut rows = ScreenRows::new(columns);
            rows.put(text, Style::new());
            assert_eq!(texts(rows.as_slice()), expected, "{text:?}");
        }
    }

    /// Regression: lists, quotes and answers continued at the edge of the screen, and long commands, outputs and titles
    /// were broken within words.
    #[test]
    fn prose_is_broken_between_words() {
        for (text, columns, expected) in [
            ("one two three", 7, vec!["one two", "three"]),
            ("a longestword", 7, vec!["a", "longest", "word"]),
            ("one\n\ntwo", 7, vec!["one", "", "two"]),
            ("one two   ", 7, vec!["one two"]),
            ("one\ttwo", 5, vec!["one", "two"]),
            ("日本 日本", 7, vec!["日本 日", "本"]),
            // Between wide characters, but not in front of punctuation.
            ("a 日本語。", 8, vec!["a 日本", "語。"]),
            ("a 日本abc", 7, vec!["a 日本", "abc"]),
            ("• one two three", 9, vec!["• one two", "  three"]),
            ("  12. one two", 12, vec!["  12. one", "      two"]),
            ("› 1. Allow always", 12, vec!["› 1. Allow", "     always"]),
            ("│ one two", 7, vec!["│ one", "│ two"]),
            ("• longestword", 7, vec!["• longe", "  stwor", "  d"]),
            // Too narrow for the indent.
            ("      one", 7, vec!["      o", "ne"]),
        ] {
            let mut rows = ScreenRows::new(columns);
            rows.prose(text, Style::new());
            assert_eq!(texts(rows.as_slice()), expected, "{text:?}");
        }
    }

    #[test]
    fn words_keep_their_styles_when_they_move_to_the_next_row() {
        let mut rows = ScreenRows::new(8);
        let (bold, dim) = (ink(&[Color::Bold]), ink(&[Color::Dim]));
        rows.put("one ", Style::new());
        rows.put("tw", bold);
        rows.put("o-three", dim);
        assert_eq!(texts(rows.as_slice()), ["one", "two-thre", "e"]);
        let styles: Vec<Style> = rows.as_slice()[1].spans.iter().map(|span| span.style).collect();
        assert_eq!(styles, [bold, dim]);
    }

    /// The second row of a long line of output began at the edge of the screen, like text of the agent, and later in the
    /// column of the first row, like another line.
    #[test]
    fn further_rows_of_a_line_of_code_or_output_are_marked() {
        for (text, columns, output, code) in [
            ("abcdefgh", 8, vec!["    abcd", "  ↳efgh"], vec!["abcdefgh"]),
            ("日本語", 8, vec!["    日本", "  ↳語"], vec!["日本語"]),
            ("abc def", 9, vec!["    abc", "  ↳ def"], vec!["abc def"]),
            ("abc  def", 8, vec!["    abc", "  ↳  def"], vec!["abc  def"]),
            ("rm a b", 6, vec!["    rm", "  ↳ a", "  ↳ b"], vec!["rm a b"]),
            ("ab cdefgh", 8, vec!["    ab", "  ↳ cdef", "  ↳gh"], vec!["ab", "↳ cdefgh"]),
            ("", 8, vec!["    "], vec![""]),
            // Too narrow for a mark.
            ("abc", 3, vec!["   ", "abc"], vec!["abc"]),
        ] {
            for (expected, is_output) in [(output, true), (code, false)] {
                let mut rows = ScreenRows::new(columns);
                match is_output {
                    true => rows.output(text, Style::new()),
                    false => {
                        rows.put_code(text, Style::new());
                        rows.end_row();
                    }
                }
                rows.prose("end", Style::new());
                let expected: Vec<&str> = expected.into_iter().chain(["end"]).collect();
                assert_eq!(texts(rows.as_slice()), expected, "{text:?}");
            }
        }
    }

    #[test]
    fn markdown_is_broken_by_what_it_is() {
        let mut flow = Flow::new(10);
        flow.push("> one two three\n\n- one two three\n\n```\none two three\n```\nlongestword, end");
        flow.finish();
        let expected = [
            "│ one two",
            "│ three",
            "",
            "• one two",
            "  three",
            "",
            "```",
            "one two",
            "↳ three",
            "```",
            "longestwor",
            "d, end",
        ];
        assert_eq!(texts(flow.rows()), expected);
    }

    #[test]
    fn rows_do_not_depend_on_the_pieces_that_a_text_arrives_in() {
        let text = "# Title\n\nSome **bold** words and 日本語\n\n- one\n- two\n\n```\ncode\n```\nend";
        let rows_of = |chars: usize| {
            let mut flow = Flow::new(12);
            let all: Vec<char> = text.chars().collect();
            all.chunks(chars).for_each(|piece| flow.push(&piece.iter().collect::<String>()));
            flow.finish();
            texts(flow.rows())
        };
        let whole = rows_of(1_000);
        assert!(whole.contains(&"• one".to_owned()), "{whole:?}");
        for chars in [1, 2, 5] {
            assert_eq!(rows_of(chars), whole, "in pieces of {chars}");
        }
    }

    #[test]
    fn escape_sequences_are_shown_and_not_sent() {
        let mut flow = Flow::new(40);
        flow.push("\x1b[2J\x1b]0;owned\x07\u{202e}x\n");
        let shown = texts(flow.rows()).concat();
        assert!(!shown.contains(char::is_control), "{shown:?}");
        assert!(shown.contains("\\u{1b}[2J") && shown.contains("\\u{202e}"), "{shown:?}");
    }

    #[test]
    fn bars_of_a_plot_fit_the_screen() {
        let bar = |label: &str, length: usize| format!("{label}{}", "█".repeat(length));
        for (line, columns, expected) in [
            (bar("    replies  40 %  ", 40), 80, bar("    replies  40 %  ", 40)),
            (bar("    replies  40 %  ", 40), 39, bar("    replies  40 %  ", 20)),
            (bar("    replies  40 %  ", 1), 39, bar("    replies  40 %  ", 1)),
            (bar("a long label", 10), 5, "a long label".to_owned()),
        ] {
            assert_eq!(fitting_bar(&line, columns), expected, "{columns}");
        }
    }
}
