//! Reads a composed message back into its parts, where the log that it was made from is out of reach. Pure.
//!
//! Another agent that uses Epitome's message as its summary passes it on with the next conversation. Quoted as a whole it
//! would be nested and cut a little more each time; unfolded, its parts are composed again beside the new ones.

use std::collections::HashSet;

use epitome_thread::{Change, Entry};

use super::author::typed;
use super::calls::{is_question, user_reply};
use super::carryover::TAG;
use super::text::{LEFT_OUT, QUOTE_BYTES_MIN, said};
use super::wording::{
    CARRIED_HEAD, COMPACTED, GAP, GOAL_HEAD, PINS_HEAD, PLACES, REQUEST_HEAD, SUMMARY_CLOSE, SUMMARY_OPEN,
    USER_HEAD,
};

/// The parts of a composed message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnfoldedMessage {
    /// The summary and the tables, those of earlier messages among them; empty if there are none.
    pub summary: String,
    /// Instruction files: path and text.
    pub instructions: Vec<(String, String)>,
    pub goal: Option<String>,
    /// The user's messages, oldest first, the last request at the end.
    pub said: Vec<String>,
    pub pins: Vec<String>,
}

/// Reads a text that begins with a composed message; `None` if it does not.
pub fn unfold(text: &str) -> Option<UnfoldedMessage> {
    unfolded(text).map(|(message, _)| message)
}

/// The same, with what follows the last part that could be read.
pub(super) fn unfolded(text: &str) -> Option<(UnfoldedMessage, &str)> {
    let rest = text.trim_start().strip_prefix(COMPACTED)?;
    let heads = [CARRIED_HEAD, INSTRUCTIONS, GOAL_HEAD, USER_HEAD, PINS_HEAD, REQUEST_HEAD];
    let mut message = UnfoldedMessage::default();
    let (summary, mut rest) = match rest.split_once(SUMMARY_OPEN) {
        Some((before, after)) if !heads.iter().any(|head| before.contains(head)) => {
            after.split_once(SUMMARY_CLOSE).unwrap_or((after, ""))
        }
        Some(_) | None => ("", rest),
    };
    rest = &rest[heads.iter().filter_map(|head| rest.find(head)).min().unwrap_or(rest.len())..];
    // The new log has other entries at these places.
    let has_places = rest.strip_prefix(CARRIED_HEAD).is_some_and(|rest| rest.starts_with(PLACES));
    let note = if has_places { OTHER_PLACES } else { "" };
    let tables = element(&mut rest, CARRIED_HEAD, &format!("<{TAG}>\n"), &format!("\n</{TAG}>"));
    let tables = tables.map(|tables| format!("{note}{tables}")).unwrap_or_default();
    while let Some(file) = element(&mut rest, INSTRUCTIONS, INSTRUCTIONS, "\n</instructions>") {
        let (path, text) = file.split_once("\">\n").unwrap_or((file, ""));
        message.instructions.push((path.replace("&quot;", "\""), text.to_owned()));
    }
    message.goal = element(&mut rest, GOAL_HEAD, GOAL_HEAD, "\n</goal>").map(str::to_owned);
    if rest.starts_with(USER_HEAD)
        && let Some((_, after)) = rest.split_once("<user>\n")
    {
        rest = read_quotes(after, &mut message.said).trim_start();
    }
    if let Some(after) = rest.strip_prefix(PINS_HEAD) {
        rest = after.trim_start();
        while let Some(pinned) = element(&mut rest, "<pinned", ">\n", "\n</pinned>") {
            message.pins.push(pinned.to_owned());
        }
    }
    if rest.starts_with(REQUEST_HEAD)
        && let Some((_, after)) = rest.split_once("<last_request>\n")
        && let Some((request, after)) = after.rsplit_once("\n</last_request>")
    {
        message.said.push(request.to_owned());
        rest = after;
    }
    message.summary = merged(summary, &tables);
    Some((message, rest))
}

impl UnfoldedMessage {
    /// Leaves out the words of the user that a log has already, each as often as the log has it.
    pub fn leave_out_said(&mut self, log: &[Entry]) {
        let (mut asked, mut words) = (HashSet::new(), String::new());
        for Entry { change, .. } in log {
            asked.extend(change.calls().filter(|call| is_question(&call.name)).map(|call| &call.id));
            let text = match change {
                Change::Said { message, .. } => Some(said(&typed(&message.content)).into()),
                Change::ToolFinished { outcome } => {
                    user_reply(asked.contains(&outcome.call), outcome).map(|(_, text)| text)
                }
                _ => None,
            };
            words.extend(text.map(|text| format!("{BORDER}{}{BORDER}", lines(&text))));
        }
        let mut from = 0;
        self.said.retain(|quote| {
            // Of a message that was shortened, the beginning is compared.
            let (head, rest) = quote.split_once(LEFT_OUT).unwrap_or((quote, ""));
            let head = lines(head);
            let wanted = match rest.is_empty() {
                true if head.len() < QUOTE_BYTES_MIN => format!("{BORDER}{head}{BORDER}"),
                true => head,
                false => head.trim_end().to_owned(),
            };
            let known = words[from..].find(&wanted);
            from = known.map_or(from, |at| from + at + wanted.trim_end().len());
            known.is_none()
        });
    }
}

/// Stands between two messages.
const BORDER: char = '\0';

/// The lines of a text, each between line breaks: programs that pass a text on may change the white space around them.
fn lines(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    format!("\n{}\n", lines.collect::<Vec<_>>().join("\n"))
}

/// Precedes tables with places in another log.
const OTHER_PLACES: &str = "(Entries such as e12 are places in an earlier session.)\n";

const INSTRUCTIONS: &str = "<instructions path=\"";

/// Takes the text of the first element of this kind from a text that begins with `head`.
fn element<'a>(rest: &mut &'a str, head: &str, open: &str, close: &str) -> Option<&'a str> {
    let (_, inner) = rest.starts_with(head).then(|| rest.split_once(open)).flatten()?;
    let (inner, after) = inner.split_once(close)?;
    *rest = after.trim_start();
    Some(inner)
}

/// Reads the quotes of the user's messages, and of what programs sent as such, and returns what follows them. A message may
/// contain the tags of a quote, so its end is only where another quote, a gap or the end of all of them follows.
fn read_quotes<'a>(mut rest: &'a str, quotes: &mut Vec<String>) -> &'a str {
    const TAGS: [(&str, &str); 2] = [("<said", "\n</said>\n"), ("<not_by_user", "\n</not_by_user>\n")];
    loop {
        if let Some(after) = rest.strip_prefix(GAP) {
            rest = after.trim_start_matches('\n');
        } else if let Some((_, close)) = TAGS.iter().find(|(open, _)| rest.starts_with(open))
            && let Some((_, text)) = rest.split_once(">\n")
        {
            let ends = text.match_indices(close).find(|(at, _)| {
                let after = &text[at + close.len()..];
                ["<said", "<not_by_user", GAP, "</user>"].iter().any(|next| after.starts_with(next))
            });
            let Some((end, _)) = ends else { return rest };
            quotes.push(text[..end].to_owned());
            rest = &text[end + close.len()..];
        } else {
            return rest.strip_prefix("</user>").unwrap_or(rest);
        }
    }
}

/// The tables of a message and of the earlier ones that its summary has: under each heading the lines of both, each once. What
/// was newest at that time is left out.
fn merged(older: &str, newer: &str) -> String {
    let mut merged = sections(newer);
    for (heading, lines) in sections(older) {
        match merged.iter_mut().find(|(known, _)| *known == heading) {
            Some((_, known)) => {
                let seen: HashSet<&str> = known.iter().copied().collect();
                let older = lines.into_iter().filter(|line| !seen.contains(line));
                // The order in which a reader goes through them.
                let at = if heading.ends_with(NEWEST_LAST) { 0 } else { known.len() };
                known.splice(at..at, older.collect::<Vec<_>>());
            }
            None => merged.push((heading, lines)),
        }
    }
    // A summary that a model wrote has no heading before its first line.
    merged.sort_by_key(|(heading, _)| !heading.is_empty());
    let section = |(heading, lines): (&str, Vec<&str>)| {
        let heading = (!heading.is_empty()).then_some(heading);
        heading.into_iter().chain(lines).collect::<Vec<_>>().join("\n")
    };
    merged.into_iter().map(section).collect::<Vec<_>>().join("\n\n")
}

/// Begins the headings of tables about the end of a conversation.
const NEWEST: &str = "## Newest ";

/// Ends the headings of tables whose oldest line comes first.
const NEWEST_LAST: &str = "newest last";

/// The lines of a text under its headings, without blank lines and what was newest; the first heading may be empty.
fn sections(text: &str) -> Vec<(&str, Vec<&str>)> {
    let mut sections: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        match (line.starts_with("## "), sections.last_mut()) {
            (false, Some((_, lines))) => lines.push(line),
            (false, None) => sections.push(("", vec![line])),
            (true, _) => sections.push((line, Vec::new())),
        }
    }
    sections.retain(|(heading, _)| !heading.starts_with(NEWEST));
    sections
}

#[cfg(test)]
mod tests {
    use super::*;
    use epitome_thread::{Content, Message, MessageId, Origin, Seq};

    /// A "yes" was left out if a longer message that the host had kept had such a line.
    #[test]
    fn a_short_message_is_known_only_as_a_whole() {
        let said = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let log = |texts: &[&str]| -> Vec<Entry> {
            let entry = |text: &&str| {
                let content = vec![Content::Text { text: (*text).to_owned() }];
                let message = Message { id: MessageId(0), content, author: None };
                Entry { seq: Seq(0), at: 0, change: Change::Said { message, origin: Origin::Person } }
            };
            texts.iter().map(entry).collect()
        };
        let left = |quotes: &[&str], texts: &[&str]| {
            let mut message = UnfoldedMessage { said: said(quotes), ..UnfoldedMessage::default() };
            message.leave_out_said(&log(texts));
            message.said
        };
        assert_eq!(left(&["yes"], &["Answers:\nyes\nno"]), ["yes"]);
        assert_eq!(left(&["yes", "yes"], &["Go on.", " yes \n"]), ["yes"]);
        assert_eq!(left(&["Never push to main."], &["Rules:\nNever push to main.\nBe brief."]), said(&[]));
    }
}
