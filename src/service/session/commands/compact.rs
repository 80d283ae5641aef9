//! Parses the arguments of `/compact`. Pure.

use super::CommandRefusal;
use super::layers::entry_named;
use epitome_thread::{Seq, Thread};

/// A parsed `/compact` command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CompactArguments {
    /// Only report what a compaction would do.
    pub dry: bool,
    /// Compact everything above this entry, and keep it and all later entries.
    pub above: Option<Seq>,
    /// The topics that the summary must preserve.
    pub focus: Option<String>,
}

impl CompactArguments {
    /// Returns the command if the entry that it names splits the view in two.
    pub(crate) fn checked(self, thread: &Thread) -> Result<CompactArguments, CommandRefusal> {
        let Some(entry) = self.above else { return Ok(self) };
        let shown = thread.view().entries();
        if entry >= thread.next_seq() || !shown.iter().any(|shown| shown.seq >= entry) {
            return Err(CommandRefusal::NothingFrom(entry));
        }
        // Entries that the newest layer put in front have higher numbers, and are compacted in any case.
        match shown.iter().any(|shown| shown.seq < entry) {
            true => Ok(self),
            false => Err(CommandRefusal::NothingBefore(entry)),
        }
    }
}

/// Parses the text after `/compact`, or explains what is wrong with it.
pub(crate) fn parse(typed: &str) -> Result<CompactArguments, CommandRefusal> {
    let (dry, rest) = match first_word(typed) {
        ("dry", rest) => (true, rest),
        _ => (false, typed),
    };
    let (above, focus) = above(rest)?;
    Ok(CompactArguments { dry, above, focus })
}

/// Parses a leading `above e40`; returns the entry and the rest.
fn above(typed: &str) -> Result<(Option<Seq>, Option<String>), CommandRefusal> {
    let focus = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let ("above", rest) = first_word(typed) else { return Ok((None, focus(typed.trim()))) };
    let (named, rest) = first_word(rest);
    match entry_named(named) {
        Some(entry) => Ok((Some(entry), focus(rest))),
        None => Err(CommandRefusal::AboveNothing(named.to_owned())),
    }
}

fn first_word(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text.find(char::is_whitespace).unwrap_or(text.len());
    (&text[..end], text[end..].trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_of_a_compaction_is_read_from_its_first_words() {
        let focus = |text: &str| Some(text.to_owned());
        for (typed, dry, above, focus) in [
            ("", false, None, None),
            ("keep the parser", false, None, focus("keep the parser")),
            ("dryly said", false, None, focus("dryly said")),
            ("dry", true, None, None),
            ("dry  keep the parser ", true, None, focus("keep the parser")),
            ("above e40", false, Some(Seq(40)), None),
            ("above E40 keep it", false, Some(Seq(40)), focus("keep it")),
            ("dry above e40 keep it", true, Some(Seq(40)), focus("keep it")),
            // A focus of several lines is kept as typed.
            ("keep\n  this", false, None, focus("keep\n  this")),
        ] {
            assert_eq!(parse(typed), Ok(CompactArguments { dry, above, focus }), "{typed:?}");
        }
        for typed in ["above", "above all", "dry above e4.1"] {
            let why = parse(typed).expect_err("no entry is named");
            assert!(why.to_string().contains("/compact above e40"), "{typed}: {why}");
        }
    }
}
