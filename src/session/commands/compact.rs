//! Parses the arguments of `/compact`. Pure.

use super::layers::entry_named;
use epitome_thread::{Seq, Thread};

/// A parsed `/compact` command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CompactSubcommand {
    /// Compact the conversation; `focus` is what the summary must preserve.
    Compact { focus: Option<String> },
    /// Compact everything above this entry, and keep it and all later entries.
    Above { entry: Seq, focus: Option<String> },
    /// Only report what a compaction would do.
    Dry { above: Option<Seq>, focus: Option<String> },
}

impl CompactSubcommand {
    /// Returns the command if the entry that it names splits the view in two.
    pub(crate) fn checked(self, thread: &Thread) -> Result<CompactSubcommand, String> {
        let (CompactSubcommand::Above { entry, .. } | CompactSubcommand::Dry { above: Some(entry), .. }) =
            &self
        else {
            return Ok(self);
        };
        let shown = thread.view().entries();
        if *entry >= thread.next_seq() || !shown.iter().any(|shown| shown.seq >= *entry) {
            return Err(format!("the model sees nothing at {entry} or after it."));
        }
        // Entries that the newest layer put in front have higher numbers, and are compacted in any case.
        match shown.iter().any(|shown| shown.seq < *entry) {
            true => Ok(self),
            false => Err(format!("the model sees nothing before {entry}.")),
        }
    }
}

/// Parses the text after `/compact`, or explains what is wrong with it.
pub(crate) fn parse(typed: &str) -> Result<CompactSubcommand, String> {
    match first_word(typed) {
        ("dry", rest) => {
            let (above, focus) = above(rest)?;
            Ok(CompactSubcommand::Dry { above, focus })
        }
        _ => match above(typed)? {
            (Some(entry), focus) => Ok(CompactSubcommand::Above { entry, focus }),
            (None, focus) => Ok(CompactSubcommand::Compact { focus }),
        },
    }
}

/// Parses a leading `above e40`; returns the entry and the rest.
fn above(typed: &str) -> Result<(Option<Seq>, Option<String>), String> {
    let focus = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let ("above", rest) = first_word(typed) else { return Ok((None, focus(typed.trim()))) };
    let (named, rest) = first_word(rest);
    match entry_named(named) {
        Some(entry) => Ok((Some(entry), focus(rest))),
        None => Err(format!(
            "`above` needs the first entry that stays, as in /compact above e40; {named:?} is none. `epitome \
             sessions show` has the numbers. If \"above\" is the first word of your focus, begin with \
             another one."
        )),
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
        for (typed, wanted) in [
            ("", CompactSubcommand::Compact { focus: None }),
            ("keep the parser", CompactSubcommand::Compact { focus: focus("keep the parser") }),
            ("dryly said", CompactSubcommand::Compact { focus: focus("dryly said") }),
            ("dry", CompactSubcommand::Dry { above: None, focus: None }),
            (
                "dry  keep the parser ",
                CompactSubcommand::Dry { above: None, focus: focus("keep the parser") },
            ),
            ("above e40", CompactSubcommand::Above { entry: Seq(40), focus: None }),
            ("above E40 keep it", CompactSubcommand::Above { entry: Seq(40), focus: focus("keep it") }),
            (
                "dry above e40 keep it",
                CompactSubcommand::Dry { above: Some(Seq(40)), focus: focus("keep it") },
            ),
            // A focus of several lines is kept as typed.
            ("keep\n  this", CompactSubcommand::Compact { focus: focus("keep\n  this") }),
        ] {
            assert_eq!(parse(typed), Ok(wanted), "{typed:?}");
        }
        for typed in ["above", "above all", "dry above e4.1"] {
            let why = parse(typed).expect_err("no entry is named");
            assert!(why.contains("/compact above e40"), "{typed}: {why}");
        }
    }
}
