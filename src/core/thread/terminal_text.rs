//! Plain text from what a command writes to a terminal.

/// Applies carriage returns as a terminal does: a progress bar becomes a single line instead of thousands.
pub fn drawn(text: &str) -> String {
    if !text.contains('\r') {
        return text.to_string();
    }
    let mut shown = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let (line, end) = match line.strip_suffix('\n') {
            Some(line) => (line.trim_end_matches('\r'), "\n"),
            None => (line.trim_end_matches('\r'), ""),
        };
        shown.push_str(line.rsplit('\r').next().unwrap_or(line));
        shown.push_str(end);
    }
    shown
}

/// A text without escape sequences, and without control characters other than line ends and tabs.
pub fn plain(text: String) -> String {
    if text.contains(char::is_control) { Cleaner::default().clean(text.as_bytes()) } else { text }
}

/// Converts a byte stream to text: invalid UTF-8 becomes U+FFFD, terminal escape sequences and control
/// characters are removed. The input may be split anywhere.
#[derive(Default)]
pub struct Cleaner {
    /// The start of an incomplete character.
    partial: Vec<u8>,
    state: EscapeState,
}

/// State of the escape sequence parser (ECMA-48).
#[derive(Clone, Copy, Default)]
enum EscapeState {
    #[default]
    Text,
    /// After ESC.
    Escape,
    /// After ESC and an intermediate byte: one more byte ends the sequence.
    Intermediate,
    /// In `ESC [ … letter`.
    Control,
    /// In a string (`ESC ] …`), up to BEL or `ESC \`.
    Message,
    /// After an ESC within a string.
    StringEscape,
}

impl Cleaner {
    pub fn clean(&mut self, bytes: &[u8]) -> String {
        let joined;
        let bytes = if self.partial.is_empty() {
            bytes
        } else {
            self.partial.extend_from_slice(bytes);
            joined = std::mem::take(&mut self.partial);
            &joined
        };
        let mut text = String::with_capacity(bytes.len());
        let mut chunks = bytes.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            for character in chunk.valid().chars() {
                self.put(character, &mut text);
            }
            let invalid = chunk.invalid();
            if invalid.is_empty() {
                continue;
            }
            let unfinished = chunks.peek().is_none()
                && matches!(std::str::from_utf8(invalid), Err(e) if e.error_len().is_none());
            if unfinished {
                self.partial = invalid.to_vec();
            } else {
                self.put(char::REPLACEMENT_CHARACTER, &mut text);
            }
        }
        text
    }

    /// Ends the stream; an incomplete character becomes U+FFFD.
    pub fn finish(&mut self) -> String {
        let partial = std::mem::take(&mut self.partial);
        if partial.is_empty() { String::new() } else { char::REPLACEMENT_CHARACTER.to_string() }
    }

    fn put(&mut self, character: char, text: &mut String) {
        self.state = match (self.state, character) {
            (EscapeState::Message, '\u{7}') => EscapeState::Text,
            (EscapeState::Message, '\u{1b}') => EscapeState::StringEscape,
            (EscapeState::Message, _) => EscapeState::Message,
            (EscapeState::StringEscape, '\\') => EscapeState::Text,
            // Anything else starts a new sequence.
            (EscapeState::StringEscape | EscapeState::Escape, '[') => EscapeState::Control,
            (EscapeState::StringEscape | EscapeState::Escape, ']' | 'P' | 'X' | '^' | '_') => {
                EscapeState::Message
            }
            (EscapeState::StringEscape | EscapeState::Escape, ' '..='/') => EscapeState::Intermediate,
            (EscapeState::StringEscape | EscapeState::Escape | EscapeState::Intermediate, _) => {
                EscapeState::Text
            }
            (EscapeState::Control, '\u{40}'..='\u{7e}') => EscapeState::Text,
            (EscapeState::Control, '\u{20}'..='\u{3f}') => EscapeState::Control,
            (EscapeState::Text, '\u{1b}') | (EscapeState::Control, '\u{1b}') => EscapeState::Escape,
            // Not an escape sequence: continue with text.
            (EscapeState::Text | EscapeState::Control, character) => {
                if !character.is_control() || matches!(character, '\n' | '\t' | '\r') {
                    text.push(character);
                }
                EscapeState::Text
            }
        };
    }
}
