//! Cutting quoted text: at characters, with a mark, and nothing else changed.

/// Stands where something was cut out of a line.
const CUT: &str = " […] ";

/// The text, or its beginning and end with a mark between them, within so many bytes.
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

/// The same on one line: line ends are shown as `⏎`. Of a long text only what can be shown is looked at.
pub(super) fn clip_line(text: &str, bytes_max: usize) -> String {
    let text = clip(text, bytes_max);
    let line: Vec<&str> = text.split('\n').map(str::trim).filter(|line| !line.is_empty()).collect();
    clip(&line.join(" ⏎ "), bytes_max)
}

/// Takes lines as long as they fit into so many bytes, each with its line end.
pub(super) struct Lines {
    left: usize,
    taken: Vec<String>,
}

impl Lines {
    pub fn within(bytes_max: usize) -> Lines {
        Lines { left: bytes_max, taken: Vec::new() }
    }

    /// Whether there was room.
    pub fn push(&mut self, line: String) -> bool {
        let Some(left) = self.left.checked_sub(line.len() + 1) else { return false };
        self.left = left;
        self.taken.push(line);
        true
    }

    pub fn left(&self) -> usize {
        self.left
    }

    pub fn is_empty(&self) -> bool {
        self.taken.is_empty()
    }

    pub fn text(self) -> String {
        self.taken.join("\n")
    }

    /// The lines from the one taken last to the first.
    pub fn text_reversed(mut self) -> String {
        self.taken.reverse();
        self.text()
    }
}
