//! The conversation on the screen and in its scrollback: items in the order of their first update. Pure.
//!
//! Memory is bounded: the oldest items go, and a long item keeps its newest part. Everything is in the session's log.

use std::collections::VecDeque;

use agent_client_protocol::schema::MaybeUndefined;
use agent_client_protocol::v2::schema as wire;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use epitome_thread::terminal_text::Cleaner;
use ratatui::text::Line;

use crate::call::{ShownCall, left_out};
use crate::markdown::Color;
use crate::rows::{Flow, ScreenRows, ink};

/// Bytes kept of one item, and up to twice as many while it grows.
const ITEM_BYTES_MAX: usize = 256 * 1024;

/// Bytes and number of all items.
const ALL_BYTES_MAX: usize = 2 * 1024 * 1024;
const ITEMS_MAX: usize = 2_000;

/// Rows of the model's thinking that are shown without details.
const THINKING_ROWS_MAX: usize = 3;

/// Rows of a message of the user that are shown without details.
const USER_ROWS_MAX: usize = 20;

/// The id of items that the chat itself has made.
const OWN: &str = "own";

/// The author or source of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaker {
    User,
    Agent,
    Thinking,
    /// A summary that replaces the older part of the conversation for the model.
    Compaction,
    /// The chat itself, or a notice of the session.
    Notice(Color),
}

/// The conversation.
pub struct ChatTranscript {
    items: VecDeque<ShownItem>,
    columns: usize,
    /// Whether outputs and thinking are shown completely.
    details: bool,
}

struct ShownItem {
    id: String,
    content: ItemContent,
    /// The rows for the current width. `None` if it has to be rendered.
    rows: Option<Vec<Line<'static>>>,
}

enum ItemContent {
    Text {
        speaker: Speaker,
        text: String,
        /// The Markdown that is being streamed.
        flow: Option<Flow>,
    },
    Call {
        call: ShownCall,
        output: Cleaner,
    },
    Plan(Vec<(wire::PlanEntryStatus, String)>),
}

impl ChatTranscript {
    pub fn new(columns: usize) -> ChatTranscript {
        ChatTranscript { items: VecDeque::new(), columns, details: false }
    }

    pub fn clear(&mut self) {
        self.items.clear();
    }

    /// The last message of the agent.
    pub fn last_reply(&self) -> Option<String> {
        self.items.iter().rev().find_map(|item| match &item.content {
            ItemContent::Text { speaker: Speaker::Agent, text, .. }
                if item.id != OWN && !text.trim().is_empty() =>
            {
                Some(text.clone())
            }
            _ => None,
        })
    }

    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Bytes of text that are kept.
    pub fn bytes(&self) -> usize {
        self.items.iter().map(ShownItem::bytes).sum()
    }

    /// Renders everything again at this width. Returns whether it is another one.
    pub fn set_columns(&mut self, columns: usize) -> bool {
        let is_other = self.columns != columns;
        if is_other {
            self.columns = columns;
            self.render_again();
        }
        is_other
    }

    /// Shows outputs and thinking completely, or shortened again.
    pub fn toggle_details(&mut self) {
        self.details = !self.details;
        self.render_again();
    }

    fn render_again(&mut self) {
        for item in &mut self.items {
            item.forget_rows();
        }
    }

    /// Appends to a message.
    pub fn append(&mut self, speaker: Speaker, id: &str, more: &str) {
        self.text(speaker, id, more, false);
    }

    /// Sets a message.
    pub fn replace(&mut self, speaker: Speaker, id: &str, whole: &str) {
        self.text(speaker, id, whole, true);
    }

    /// Adds a line of the chat itself.
    pub fn notice(&mut self, color: Color, text: &str) {
        let speaker = Speaker::Notice(color);
        self.push("", ItemContent::Text { speaker, text: text.to_owned(), flow: None });
    }

    /// Shows Markdown that the chat itself has made, at the end.
    pub fn show_markdown(&mut self, text: &str) {
        let speaker = Speaker::Agent;
        self.push(OWN, ItemContent::Text { speaker, text: text.to_owned(), flow: None });
    }

    fn text(&mut self, speaker: Speaker, id: &str, words: &str, replaces: bool) {
        let columns = self.columns;
        let item = self.item(id, || ItemContent::Text { speaker, text: String::new(), flow: None });
        let ItemContent::Text { text, flow, .. } = &mut item.content else { return };
        if replaces {
            text.clear();
            *flow = None;
        }
        text.push_str(words);
        match (text.len() > 2 * ITEM_BYTES_MAX, &mut *flow) {
            (true, _) => {
                text.drain(..text.ceil_char_boundary(text.len() - ITEM_BYTES_MAX));
                *flow = None;
            }
            (false, Some(flow)) => flow.push(words),
            (false, None) if speaker == Speaker::Agent => {
                let mut began = Flow::new(columns);
                began.push(text);
                *flow = Some(began);
            }
            (false, None) => {}
        }
        item.rows = None;
        self.forget_old();
    }

    /// Sets the fields of a call that an update has.
    pub fn call(&mut self, update: wire::ToolCallUpdate) {
        let id = update.tool_call_id.to_string();
        let item =
            self.item(&id, || ItemContent::Call { call: ShownCall::default(), output: Cleaner::default() });
        if let ItemContent::Call { call, .. } = &mut item.content {
            call.update(update);
        }
        item.rows = None;
        self.forget_old();
    }

    /// Appends to the output of a command. A terminal has the id of its call.
    pub fn terminal_output(&mut self, id: &str, base64: &str, replaces: bool) {
        let Some(item) = self.known(id) else { return };
        if let ItemContent::Call { call, output } = &mut item.content {
            if replaces {
                call.clear_output();
                *output = Cleaner::default();
            }
            // The daemon encodes it; other data has nothing to show.
            let bytes = STANDARD.decode(base64).unwrap_or_default();
            call.printed(&output.clean(&bytes), ITEM_BYTES_MAX);
        }
        item.rows = None;
        self.forget_old();
    }

    pub fn terminal(&mut self, update: wire::TerminalUpdate) {
        let id = update.terminal_id.to_string();
        if let MaybeUndefined::Value(output) = &update.output {
            self.terminal_output(&id, &output.data, true);
        }
        let Some(item) = self.known(&id) else { return };
        if let (ItemContent::Call { call, .. }, MaybeUndefined::Value(exit)) =
            (&mut item.content, update.exit_status)
        {
            call.exited(&exit);
            item.rows = None;
        }
    }

    /// Replaces the plan, which stays where it was first shown.
    pub fn plan(&mut self, id: &str, entries: Vec<wire::PlanEntry>) {
        let steps = entries.into_iter().map(|entry| (entry.status, entry.content)).collect();
        let item = self.item(id, || ItemContent::Plan(Vec::new()));
        (item.content, item.rows) = (ItemContent::Plan(steps), None);
    }

    /// The work has ended: nothing is appended to what is shown.
    pub fn settle(&mut self) {
        for item in &mut self.items {
            if let ItemContent::Text { flow: Some(flow), .. } = &mut item.content {
                flow.finish();
                item.settle();
            }
        }
    }

    /// The number of rows of the conversation, which renders what has changed.
    pub fn height(&mut self) -> usize {
        let (columns, details) = (self.columns, self.details);
        self.items.iter_mut().map(|item| item.rendered(columns, details).len() + 1).sum()
    }

    /// The rows from `first` on, at most `count`. An empty row separates items.
    pub fn rows(&mut self, first: usize, count: usize) -> Vec<Line<'static>> {
        let (columns, details) = (self.columns, self.details);
        let (mut skipped, mut shown) = (0, Vec::with_capacity(count));
        for item in &mut self.items {
            let rows = item.rendered(columns, details);
            let height = rows.len() + 1;
            if skipped + height > first && shown.len() < count {
                let from = first.saturating_sub(skipped);
                shown.extend(
                    rows.iter().cloned().chain([Line::default()]).skip(from).take(count - shown.len()),
                );
            }
            skipped += height;
        }
        shown
    }

    fn known(&mut self, id: &str) -> Option<&mut ShownItem> {
        // Updates nearly always concern new items.
        self.items.iter_mut().rev().find(|item| item.id == id)
    }

    fn item(&mut self, id: &str, new: impl FnOnce() -> ItemContent) -> &mut ShownItem {
        match self.items.iter().rposition(|item| item.id == id) {
            Some(at) => &mut self.items[at],
            None => self.push(id, new()),
        }
    }

    fn push(&mut self, id: &str, content: ItemContent) -> &mut ShownItem {
        if let Some(last) = self.items.back_mut() {
            last.settle();
        }
        self.items.push_back(ShownItem { id: id.to_owned(), content, rows: None });
        let last = self.items.len() - 1;
        &mut self.items[last]
    }

    fn forget_old(&mut self) {
        let mut bytes = self.bytes();
        while self.items.len() > 1 && (bytes > ALL_BYTES_MAX || self.items.len() > ITEMS_MAX) {
            bytes -= self.items.pop_front().map_or(0, |item| item.bytes());
        }
    }
}

impl ShownItem {
    fn bytes(&self) -> usize {
        match &self.content {
            ItemContent::Text { text, .. } => text.len(),
            ItemContent::Call { call, .. } => call.bytes(),
            ItemContent::Plan(steps) => steps.iter().map(|(_, step)| step.len()).sum(),
        }
    }

    fn forget_rows(&mut self) {
        self.rows = None;
        if let ItemContent::Text { flow, .. } = &mut self.content {
            *flow = None;
        }
    }

    /// Keeps the rows of a message that is complete, without what was needed to make them.
    fn settle(&mut self) {
        if let ItemContent::Text { flow, .. } = &mut self.content
            && let Some(mut whole) = flow.take()
        {
            whole.finish();
            self.rows = Some(whole.rows().to_vec());
        }
    }

    fn rendered(&mut self, columns: usize, details: bool) -> &[Line<'static>] {
        match &self.content {
            ItemContent::Text { flow: Some(flow), .. } => flow.rows(),
            content => self.rows.get_or_insert_with(|| render(content, columns, details)),
        }
    }
}

/// Renders an item that is not being streamed.
fn render(content: &ItemContent, columns: usize, details: bool) -> Vec<Line<'static>> {
    let mut rows = ScreenRows::new(columns);
    match content {
        ItemContent::Text { speaker: Speaker::Agent, text, .. } => {
            let mut flow = Flow::new(columns);
            flow.push(text);
            flow.finish();
            return flow.rows().to_vec();
        }
        ItemContent::Text { speaker: Speaker::User, text, .. } => {
            rows.prose(&format!("› {}", text.trim_end()), ink(&[Color::Cyan, Color::Bold]));
            let all = rows.as_slice();
            if !details && all.len() > USER_ROWS_MAX {
                let mut rest = ScreenRows::new(columns);
                left_out(all.len() - USER_ROWS_MAX, &mut rest);
                return [&all[..USER_ROWS_MAX], rest.as_slice()].concat();
            }
        }
        ItemContent::Text { speaker: Speaker::Thinking, text, .. } => {
            rows.prose(text.trim(), ink(&[Color::Dim, Color::Italic]));
            let all = rows.as_slice();
            let hidden = if details { 0 } else { all.len().saturating_sub(THINKING_ROWS_MAX) };
            return all[hidden..].to_vec();
        }
        ItemContent::Text { speaker: Speaker::Compaction, text, .. } => {
            let lines: Vec<&str> = text.trim().lines().collect();
            // The last line says what the compaction did.
            let hidden = if details { 0 } else { lines.len().saturating_sub(1) };
            lines[hidden..].iter().for_each(|line| rows.prose(line, ink(&[Color::Yellow])));
        }
        ItemContent::Text { speaker: Speaker::Notice(color), text, .. } => rows.prose(text, ink(&[*color])),
        ItemContent::Call { call, .. } => call.render(&mut rows, details),
        ItemContent::Plan(steps) => {
            for (status, step) in steps {
                let (mark, styles): (_, &[Color]) = match status {
                    wire::PlanEntryStatus::Completed => ("✓", &[Color::Green]),
                    wire::PlanEntryStatus::InProgress => ("▸", &[Color::Bold]),
                    _ => ("○", &[]),
                };
                rows.prose(&format!("{mark} {step}"), ink(styles));
            }
        }
    }
    rows.as_slice().to_vec()
}
