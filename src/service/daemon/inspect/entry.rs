//! Details of one log entry: its texts, truncated, and whether and why the model sees it. Pure.

use serde::Serialize;

use epitome_session::why;
use epitome_thread::{
    Change, Content, EntryPart, EntryVisibility, Message, OutcomeContent, Role, Seq, Thread, ToolOutcome,
    describe,
};

/// Longest text shown, in bytes; longer ones are truncated and their full length reported.
const TEXT_BYTES_MAX: usize = 64 * 1024;

const BLOCKS_MAX: usize = 64;

/// Details of an entry.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EntryDetails {
    pub entry: Seq,
    /// Milliseconds since the Unix epoch.
    pub at: u64,
    /// The kind of change, by its name in the journal.
    pub kind: &'static str,
    pub seen: SeenByModel,
    /// The entry that changed it or removed it from the view.
    pub by: Option<Seq>,
    /// The explanation that `/why` gives.
    pub why: String,
    pub blocks: Vec<TextBlock>,
    /// Number of texts omitted because of the limit.
    pub blocks_left_out: usize,
}

/// How much of an entry the model sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SeenByModel {
    Whole,
    Changed,
    Left,
    Never,
}

/// One text of an entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TextBlock {
    pub label: String,
    pub text: String,
    /// Length of the full text in bytes.
    pub bytes: usize,
    /// Whether `text` is truncated.
    pub cut: bool,
}

/// Returns the details of an entry; `None` if it does not exist.
pub fn look(thread: &Thread, seq: Seq) -> Option<EntryDetails> {
    let entry = thread.entries().get(usize::try_from(seq.0).ok()?)?;
    let (seen, by) = match thread.fate(seq) {
        EntryVisibility::NeverShown => (SeenByModel::Never, None),
        EntryVisibility::Whole => (SeenByModel::Whole, None),
        EntryVisibility::Changed { by } => (SeenByModel::Changed, Some(by)),
        EntryVisibility::Left { by } => (SeenByModel::Left, Some(by)),
    };
    let mut blocks = blocks_of(&entry.change);
    if seen == SeenByModel::Changed {
        let now = thread.view().entries().iter().filter(|shown| shown.seq == seq);
        blocks.extend(now.flat_map(|shown| blocks_of(&shown.change)).map(|block| TextBlock {
            label: format!("as the model sees it now · {}", block.label),
            ..block
        }));
    }
    let blocks_left_out = blocks.len().saturating_sub(BLOCKS_MAX);
    blocks.truncate(BLOCKS_MAX);
    Some(EntryDetails {
        entry: seq,
        at: entry.at,
        kind: entry.change.kind(),
        seen,
        by,
        why: why::text(thread, &seq.to_string()),
        blocks,
        blocks_left_out,
    })
}

fn blocks_of(change: &Change) -> Vec<TextBlock> {
    let blocks: Vec<TextBlock> = describe(change).parts.into_iter().flat_map(part_blocks).collect();
    match blocks.is_empty() {
        true => vec![block("as it is stored", &stored(change))],
        false => blocks,
    }
}

fn part_blocks(part: EntryPart<'_>) -> Vec<TextBlock> {
    match part {
        EntryPart::Prompt(message, _) | EntryPart::Reply(message) | EntryPart::Summary(message) => {
            message_blocks(message)
        }
        EntryPart::Spoken(role, message) => history_message_blocks(role, message),
        EntryPart::Outcome(outcome) => outcome_blocks(outcome),
        EntryPart::Mask(mask) => vec![block(&format!("{} is shown as", mask.entry), &mask.text)],
        EntryPart::Typed(text) => vec![block("typed", text)],
        EntryPart::Notice(text) => vec![block("shown to the user", text)],
        EntryPart::SystemPrompt(text) => vec![block("system text", text)],
        EntryPart::Tool(tool) => {
            let text = format!("{}\n\n{}", tool.description, pretty(&tool.schema));
            vec![block(&format!("tool {}", tool.name), &text)]
        }
        // The JSON form is more informative for these.
        EntryPart::Edit(_) | EntryPart::Input(_) | EntryPart::Run(_) => Vec::new(),
    }
}

fn history_message_blocks(role: Role, message: &Message) -> Vec<TextBlock> {
    let role = role.id();
    let blocks = message_blocks(message).into_iter();
    blocks.map(|block| TextBlock { label: format!("{role} · {}", block.label), ..block }).collect()
}

fn message_blocks(message: &Message) -> Vec<TextBlock> {
    let of_content = |content: &Content| match content {
        Content::Text { text } => block("text", text),
        Content::Thinking { text, native } if text.is_empty() && native.is_some() => {
            block("thinking", "(sealed: only its provider can read it)")
        }
        Content::Thinking { text, .. } => block("thinking", text),
        Content::Image { mime_type, data, uri } => file("image", mime_type, data, uri.as_deref()),
        Content::Document { mime_type, data, name } => file("document", mime_type, data, name.as_deref()),
        Content::Resource { uri, text } => block(&format!("file {uri}"), text),
        Content::ResourceLink { uri, name } => block("link", &format!("{name}\n{uri}")),
        Content::Search(search) => block("search", &search.text()),
        Content::Call(call) => block(&format!("call {} ({})", call.name, call.id), &pretty(&call.input)),
    };
    message.content.iter().map(of_content).collect()
}

fn outcome_blocks(outcome: &ToolOutcome) -> Vec<TextBlock> {
    let given = outcome.content.iter().map(|content| match content {
        OutcomeContent::Text { text } => block("what the model was given", text),
        OutcomeContent::Image { mime_type, data } => file("image", mime_type, data, None),
        OutcomeContent::Document { mime_type, data, name } => {
            file("document", mime_type, data, name.as_deref())
        }
    });
    let whole = outcome.whole.iter().map(|whole| block("all of it, as it came", whole));
    given.chain(whole).collect()
}

/// Describes a file by name and size instead of showing its bytes.
fn file(what: &str, mime_type: &str, data: &str, name: Option<&str>) -> TextBlock {
    let bytes = data.len() / 4 * 3;
    let named = name.map_or(String::new(), |name| format!("{name}, "));
    block(what, &format!("{named}{mime_type}, about {bytes} bytes"))
}

fn block(label: &str, text: &str) -> TextBlock {
    let end = text.floor_char_boundary(TEXT_BYTES_MAX);
    TextBlock {
        label: label.to_owned(),
        text: text[..end].to_owned(),
        bytes: text.len(),
        cut: end < text.len(),
    }
}

fn pretty(value: &serde_json::Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_else(|_| value.to_string())
}

fn stored(change: &Change) -> String {
    serde_json::to_value(change).map_or_else(|error| error.to_string(), |value| pretty(&value))
}
