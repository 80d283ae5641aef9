//! Rows of the screen: text with styles, broken at the width of the screen. Pure.

use epitome_thread::visible::visible;
use ratatui::style::{Color as Ink, Modifier, Style};
use ratatui::text::{Line, Span};
use unicode_segmentation::UnicodeSegmentation;
use unicode_width::UnicodeWidthStr;

use crate::markdown::{Color, Markdown, StyledText};

/// The characters of the bars in `/context`.
const BARS: [char; 4] = ['█', '▒', '░', '▏'];

/// In front of each row of what belongs to a call.
const INDENT: &str = "    ";

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
        Color::Cyan => style.fg(Ink::Cyan),
    })
}

/// Rows that grow at their end.
#[derive(Default)]
pub struct ScreenRows {
    columns: usize,
    rows: Vec<Line<'static>>,
    /// The width of the last row, if it may still grow.
    open: Option<usize>,
    /// What the rows of a broken line begin with, except the first.
    hanging: &'static str,
}

impl ScreenRows {
    pub fn new(columns: usize) -> ScreenRows {
        ScreenRows { columns: columns.max(1), ..ScreenRows::default() }
    }

    pub fn as_slice(&self) -> &[Line<'static>] {
        &self.rows
    }

    /// Adds text to the last row; a newline begins another one. The text must have passed through `visible`.
    pub fn put(&mut self, text: &str, style: Style) {
        for (at, line) in text.split('\n').enumerate() {
            if at > 0 {
                self.end_row();
            }
            if !line.is_empty() {
                self.put_line(line, style);
            }
        }
    }

    fn put_line(&mut self, line: &str, style: Style) {
        for grapheme in line.graphemes(true) {
            let grapheme = if grapheme == "\t" { TAB } else { grapheme };
            // A character that is wider than the screen can't be shown at all.
            let width = grapheme.width();
            let used = match self.open {
                Some(used) if used + width <= self.columns => used,
                Some(_) if self.hanging.len() + width <= self.columns => {
                    self.rows.push(Line::from(Span::styled(self.hanging, style)));
                    self.hanging.len()
                }
                Some(_) | None => {
                    self.rows.push(Line::default());
                    0
                }
            };
            self.open = Some(used + width);
            let Some(row) = self.rows.last_mut() else { continue };
            match row.spans.last_mut().filter(|span| span.style == style) {
                Some(span) => span.content.to_mut().push_str(grapheme),
                None => row.push_span(Span::styled(grapheme.to_owned(), style)),
            }
        }
    }

    /// Ends the last row; if it has ended already, adds an empty one.
    pub fn end_row(&mut self) {
        if self.open.take().is_none() {
            self.rows.push(Line::default());
        }
    }

    /// Adds whole lines that are broken between words where possible.
    pub fn prose(&mut self, text: &str, style: Style) {
        for line in visible(text).split('\n') {
            for (at, word) in line.split(' ').enumerate() {
                match self.open {
                    Some(used) if used + 1 + word.width() > self.columns => self.open = None,
                    Some(_) | None if at > 0 => self.put(" ", style),
                    Some(_) | None => {}
                }
                self.put(word, style);
            }
            self.end_row();
        }
    }

    /// Adds whole lines.
    pub fn line(&mut self, text: &str, style: Style) {
        self.put(&visible(text), style);
        self.end_row();
    }

    /// Adds a whole line that belongs to a call: all its rows are indented.
    pub fn indented(&mut self, text: &str, style: Style) {
        self.put(INDENT, style);
        self.hanging = INDENT;
        self.line(text, style);
        self.hanging = "";
    }
}

/// A paragraph of Markdown that streams in, as rows.
pub struct Flow {
    markdown: Markdown,
    rows: ScreenRows,
}

impl Flow {
    pub fn new(columns: usize) -> Flow {
        Flow { markdown: Markdown::new(columns), rows: ScreenRows::new(columns) }
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
    fn lines_are_broken_between_characters_that_belong_together() {
        for (text, columns, expected) in [
            ("abcdef", 4, vec!["abcd", "ef"]),
            ("日本語", 5, vec!["日本", "語"]),
            ("e\u{301}e\u{301}e\u{301}", 2, vec!["e\u{301}e\u{301}", "e\u{301}"]),
            ("שלום עולם", 5, vec!["שלום ", "עולם"]),
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

    /// The second row of a long line of output began at the edge of the screen, like text of the agent.
    #[test]
    fn all_rows_of_a_line_of_output_are_indented() {
        for (text, columns, expected) in [
            ("abcdefgh", 8, vec!["    abcd", "    efgh"]),
            ("日本語", 8, vec!["    日本", "    語"]),
            ("", 8, vec!["    "]),
            // Too narrow for an indent.
            ("abc", 3, vec!["   ", " ab", "c"]),
        ] {
            let mut rows = ScreenRows::new(columns);
            rows.indented(text, Style::new());
            rows.line("end", Style::new());
            let expected: Vec<&str> = expected.into_iter().chain(["end"]).collect();
            assert_eq!(texts(rows.as_slice()), expected, "{text:?}");
        }
    }

    #[test]
    fn prose_is_broken_between_words() {
        for (text, expected) in [
            ("one two three", vec!["one two", "three"]),
            ("a longestword", vec!["a", "longest", "word"]),
            ("one\n\ntwo", vec!["one", "", "two"]),
            ("日本 日本", vec!["日本", "日本"]),
        ] {
            let mut rows = ScreenRows::new(7);
            rows.prose(text, Style::new());
            assert_eq!(texts(rows.as_slice()), expected, "{text:?}");
        }
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
