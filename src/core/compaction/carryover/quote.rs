//! Cuts quoted text at character boundaries, with a mark, changing nothing else.

/// Marks a cut within a line.
const CUT: &str = " […] ";

/// The text, or its head and tail with a mark between them, within `bytes_max`.
pub(super) fn clip(text: &str, bytes_max: usize) -> String {
    let text = text.trim();
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    let Some(room) = bytes_max.checked_sub(CUT.len()) else { return String::new() };
    let head = text.floor_char_boundary(room * 3 / 5);
    let tail = text.ceil_char_boundary(text.len() - (room - head));
    format!("{}{CUT}{}", &text[..head], &text[tail..])
}

/// Like `clip`, on one line, with line breaks shown as `⏎`. Only the visible part of a long text is processed.
pub(super) fn clip_line(text: &str, bytes_max: usize) -> String {
    let text = clip(text, bytes_max);
    let line: Vec<&str> = text.split('\n').map(str::trim).filter(|line| !line.is_empty()).collect();
    clip(&line.join(" ⏎ "), bytes_max)
}

/// Notes in parentheses, without empty ones.
pub(super) fn noted<const COUNT: usize>(notes: [String; COUNT]) -> String {
    let notes: Vec<String> = notes.into_iter().filter(|note| !note.is_empty()).collect();
    if notes.is_empty() { String::new() } else { format!(" ({})", notes.join(", ")) }
}

/// Collects lines as long as they fit into a number of bytes, including their line breaks.
pub(super) struct BoundedLines {
    left: usize,
    taken: Vec<String>,
}

impl BoundedLines {
    pub fn within(bytes_max: usize) -> BoundedLines {
        BoundedLines { left: bytes_max, taken: Vec::new() }
    }

    /// Those of these lines that fit.
    pub fn of<'l>(bytes_max: usize, all: impl IntoIterator<Item = &'l String>) -> BoundedLines {
        let mut lines = BoundedLines::within(bytes_max);
        for line in all {
            // If a long line does not fit, shorter ones after it still may.
            lines.push(line.clone());
        }
        lines
    }

    /// Adds a line; returns whether it fits.
    pub fn push(&mut self, line: String) -> bool {
        let Some(left) = self.left.checked_sub(line.len() + 1) else { return false };
        self.left = left;
        self.taken.push(line);
        true
    }

    pub fn left(&self) -> usize {
        self.left
    }

    pub fn text(self) -> String {
        self.taken.join("\n")
    }

    /// The lines in reverse order, the last one first.
    pub fn text_reversed(mut self) -> String {
        self.taken.reverse();
        self.text()
    }
}
