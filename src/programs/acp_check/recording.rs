//! Writes a transcript of the connection that `epitome acp --transcript` passes on line by line.

use std::fs::OpenOptions;
use std::io::{self, BufRead, Write};
use std::path::Path;

use epitome_transcript::{MessageDirection, Recorder};

/// Reads lines that begin with `>` (to the agent) or `<` (to the editor), and confirms each with a byte when it is in the
/// file.
pub fn record(path: &Path, mut lines: impl BufRead, mut confirmed: impl Write) -> io::Result<()> {
    let mut recorder = Recorder::new(OpenOptions::new().append(true).open(path)?);
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line)? > 0 {
        let direction = match line.first() {
            Some(b'>') => MessageDirection::ToAgent,
            Some(_) | None => MessageDirection::ToEditor,
        };
        let text = line.get(1..).unwrap_or_default();
        // A full disk must not end the session.
        drop(recorder.line(direction, text.strip_suffix(b"\n").unwrap_or(text)));
        confirmed.write_all(b".")?;
        confirmed.flush()?;
        line.clear();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_confirmed_when_it_is_in_the_file() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let lines = b">{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"initialize\",\"params\":{}}\n<no message\n";
        let mut confirmed = Vec::new();
        record(file.path(), &lines[..], &mut confirmed).expect("it is recorded");
        assert_eq!(confirmed, b"..");
        let text = std::fs::read_to_string(file.path()).expect("it is there");
        assert!(text.contains("editor> initialize") && text.contains("no message"), "{text}");
    }
}
