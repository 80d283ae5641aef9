//! `/compact`: what is asked for behind its name. Pure.

use super::layers::entry_named;
use epitome_thread::{Seq, Thread};

/// What a user wants of `/compact`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CompactSubcommand {
    /// The conversation is compacted; `focus` is what must not be lost.
    Compact { focus: Option<String> },
    /// What stands above this entry is compacted; it and all behind it stays.
    Above { entry: Seq, focus: Option<String> },
    /// Nothing is done, and what would be is told.
    Dry { above: Option<Seq>, focus: Option<String> },
}

impl CompactSubcommand {
    /// The same, if the entry that it names parts the view in two.
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
        // What the newest layer has put in front is newer by its number, and goes in any case.
        match shown.iter().any(|shown| shown.seq < *entry) {
            true => Ok(self),
            false => Err(format!("the model sees nothing before {entry}.")),
        }
    }
}

/// Reads what was typed behind `/compact`, or says what is wrong with it.
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

/// `above e40` at the beginning, and what is left.
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
            // A focus of several lines stays as it was typed.
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
