//! Finds what a summary already contains, so that a requested compaction does not say it again next to it. Pure.

use super::carryover::{HEADINGS_OF_NAMES, HEADINGS_OF_QUOTES};

/// Shorter words of the user are quoted all the same: a "yes" is a part of many sentences. In bytes.
const QUOTE_BYTES_MIN: usize = 12;

/// The words of a summary, separated by single spaces; none if nothing is compared with it.
#[derive(Default)]
pub(super) struct SummaryWords(String);

impl SummaryWords {
    pub fn new(summary: &str) -> SummaryWords {
        SummaryWords(words(summary))
    }

    /// Whether the summary contains this text, however it is broken into lines.
    pub fn contain(&self, text: &str) -> bool {
        let text = words(text);
        text.len() >= QUOTE_BYTES_MIN && self.0.contains(&text)
    }

    /// The tables without the lines, quotes and names that the summary contains.
    pub fn missing_of(&self, tables: &str) -> String {
        if self.0.is_empty() {
            return tables.to_owned();
        }
        let mut missing: Vec<String> = Vec::new();
        // Splits at headings; a quote may contain blank lines.
        for (at, table) in format!("\n{tables}").split("\n## ").enumerate() {
            let (heading, rows) = table.split_once('\n').unwrap_or((table, ""));
            let rows = match heading {
                _ if at == 0 => table.trim().to_owned(),
                heading if HEADINGS_OF_NAMES.contains(&heading) => self.missing_names(rows),
                heading => self.missing_rows(rows.trim_end(), HEADINGS_OF_QUOTES.contains(&heading)),
            };
            if !rows.is_empty() {
                let head = if at == 0 { String::new() } else { format!("## {heading}\n") };
                missing.push(head + &rows);
            }
        }
        missing.join("\n\n")
    }

    /// Whether the summary names this file or definition, rather than a longer one.
    fn name(&self, name: &str) -> bool {
        let is_of_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '/');
        self.0.match_indices(name).any(|(at, _)| {
            !self.0[..at].ends_with(is_of_name) && !self.0[at + name.len()..].starts_with(is_of_name)
        })
    }

    fn missing_rows(&self, rows: &str, are_quotes: bool) -> String {
        let begins =
            |line: &str| if are_quotes { entry_mark(line).is_some() } else { line.starts_with("- ") };
        let mut items: Vec<String> = Vec::new();
        for line in rows.lines() {
            match items.last_mut() {
                Some(item) if !begins(line) => *item = format!("{item}\n{line}"),
                _ => items.push(line.to_owned()),
            }
        }
        items.retain(|item| {
            let text = entry_mark(item).unwrap_or(item.trim_start_matches("- "));
            let step = text.strip_prefix('[').and_then(|step| step.split_once("] "));
            !self.contain(step.map_or(text, |(_status, step)| step))
        });
        items.join("\n")
    }

    fn missing_names(&self, rows: &str) -> String {
        let (mut missing, mut note) = (Vec::new(), None);
        for row in rows.lines().filter(|row| !row.is_empty()) {
            if row.starts_with("(relative to ") {
                note = Some(row);
                continue;
            }
            let (head, names) = row.split_once(": ").unwrap_or(("", row));
            let mut all: Vec<String> = Vec::new();
            for part in names.split(", ") {
                match all.last_mut() {
                    // The note on a file has commas too.
                    Some(name) if name.contains(" (") && !name.ends_with(')') => {
                        *name += &format!(", {part}")
                    }
                    _ => all.push(part.to_owned()),
                }
            }
            let is_missing = |name: &String| {
                let name = name.split(" (").next().unwrap_or_default();
                name.contains(' ') || !self.name(name)
            };
            let names: Vec<String> = all.into_iter().filter(is_missing).collect();
            if !names.is_empty() {
                missing.extend(note.take().map(str::to_owned));
                let colon = if head.is_empty() { "" } else { ": " };
                missing.push(format!("{head}{colon}{}", names.join(", ")));
            }
        }
        missing.join("\n")
    }
}

/// The rest of a quote behind the number of its entry.
fn entry_mark(line: &str) -> Option<&str> {
    let (mark, quote) = line.split_once(": ")?;
    let entry = mark.strip_prefix("- ").unwrap_or(mark).split(' ').next()?.strip_prefix('e')?;
    entry.parse::<u64>().ok().map(|_| quote)
}

fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_summary_contains_is_left_out_of_the_tables() {
        let summary = SummaryWords::new(
            "Goal: parse groups. Changed `src/a.rs` and metadata.rs; defined Walnut.\nDone: write the\nparser. The agent \
             said: I will look at the queue first, then the rest.",
        );
        let tables = "## Plan\n- [completed] write the parser\n- [pending] print groups\n\n\
                      ## Files, newest first\n(relative to /w)\n- changed: src/a.rs (2×, e5), data.rs (e6)\n\
                      - read: src/a.rs\n\n\
                      ## Names defined in edits\n- a.rs: Walnut\n\n\
                      ## What the agent said, newest last\ne4: I will look at the queue first,\n\nthen the rest.\n\
                      e8: It is green.\n\n- all of it";
        let expected = "## Plan\n- [pending] print groups\n\n\
                        ## Files, newest first\n(relative to /w)\n- changed: data.rs (e6)\n\n\
                        ## What the agent said, newest last\ne8: It is green.\n\n- all of it";
        assert_eq!(summary.missing_of(tables), expected);
        assert_eq!(SummaryWords::default().missing_of(tables), tables);
        assert_eq!(SummaryWords::new("Nothing of it.").missing_of(tables), tables);
    }
}
