//! Extracts the part of a server's stderr that explains its exit. Pure.

/// Maximum quoted lines.
const LINES_MAX: usize = 5;
/// Maximum quoted bytes.
const BYTES_MAX: usize = 500;
/// How Python begins the trace of an exception.
const TRACEBACK: &str = "Traceback (most recent call last)";

/// The last lines, without decoration: lines without letters belong to banners and frames. For a Python traceback, the
/// exception.
pub fn last_words(stderr: &str) -> String {
    let mut lines: Vec<&str> = stderr.lines().filter(|line| line.chars().any(char::is_alphabetic)).collect();
    if let Some(exception) = exception(&lines) {
        lines.drain(..exception);
    }
    let mut kept: Vec<String> = Vec::new();
    let mut bytes = 0;
    for line in lines.iter().rev().take(LINES_MAX) {
        let line = line.trim_matches(|c: char| !c.is_ascii_graphic() && !c.is_alphanumeric());
        bytes += line.len() + 1;
        if bytes > BYTES_MAX && !kept.is_empty() {
            break;
        }
        kept.push(match line.len() > BYTES_MAX {
            true => format!("{}…", &line[..line.floor_char_boundary(BYTES_MAX)]),
            false => line.to_owned(),
        });
    }
    kept.reverse();
    kept.join("\n")
}

/// Index of the line with the exception of the last traceback: the first line after its frames that is not indented.
fn exception(lines: &[&str]) -> Option<usize> {
    let trace = lines.iter().rposition(|line| line.contains(TRACEBACK))?;
    // Exception groups prefix their traces with bars.
    let indent = lines[trace].find(TRACEBACK)?;
    let is_frame = |line: &&str| line.chars().nth(indent).is_none_or(char::is_whitespace);
    let frames = lines[trace + 1..].iter().take_while(|line| is_frame(line)).count();
    Some(trace + 1 + frames).filter(|at| *at < lines.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: the first 500 bytes were quoted: the head of a traceback without its exception, or a framework's
    /// banner.
    #[test]
    fn the_last_lines_are_quoted() {
        let traceback = "starting\nTraceback (most recent call last):\n  File \"a.py\", line 3, in <module>\n    \
                         server.run()\n    ^^^^^^^^^^\nAttributeError: 'Server' has no 'list_resources'";
        let long = format!("{}\nthe end", "x".repeat(600));
        for (stderr, quoted) in [
            ("out of memory", "out of memory"),
            (traceback, "AttributeError: 'Server' has no 'list_resources'"),
            ("╭──────╮\n│ ▄▀▀ ▄▀█ │\n│  FastMCP 2  │\n╰──────╯\nno licence", "FastMCP 2\nno licence"),
            ("1\n2\na\nb\nc\nd\ne\nf", "b\nc\nd\ne\nf"),
            (&long, "the end"),
            ("", ""),
        ] {
            assert_eq!(last_words(stderr), quoted, "{stderr}");
        }
        assert!(last_words(&"ü".repeat(600)).len() < 510);
    }
}
