//! The prompt that is being typed, with its history and the completion of commands. Pure.

use epitome_session_api::CommandInfo;
use ratatui::crossterm::event::KeyEvent;
use ratatui::style::Style;
use ratatui_textarea::{CursorMove, TextArea, WrapMode};

use crate::complete::completions;
use crate::keys::DraftContext;
use crate::markdown::Color;
use crate::rows::ink;

/// Prompts kept for the Up key.
const HISTORY_MAX: usize = 100;

/// Bytes of a prompt. The session refuses longer ones with a reason; this only keeps a wrong paste from filling memory.
const BYTES_MAX: usize = 4 * 1024 * 1024;

/// See the module's documentation.
pub struct Draft {
    area: TextArea<'static>,
    history: Vec<String>,
    /// The shown entry of the history.
    recalled: Option<usize>,
    /// The draft before the history was entered.
    unsent: String,
    /// The selected completion.
    selected: usize,
    is_dismissed: bool,
}

impl Default for Draft {
    fn default() -> Draft {
        Draft {
            area: area(""),
            history: Vec::new(),
            recalled: None,
            unsent: String::new(),
            selected: 0,
            is_dismissed: false,
        }
    }
}

fn area(text: &str) -> TextArea<'static> {
    let mut area = TextArea::new(text.split('\n').map(str::to_owned).collect());
    area.set_wrap_mode(WrapMode::WordOrGlyph);
    area.set_cursor_line_style(Style::new());
    area.set_placeholder_text("Ask for something, / for commands, ? for help");
    area.set_placeholder_style(ink(&[Color::Dim]));
    area.move_cursor(CursorMove::Bottom);
    area.move_cursor(CursorMove::End);
    area
}

impl Draft {
    pub fn widget(&self) -> &TextArea<'static> {
        &self.area
    }

    pub fn text(&self) -> String {
        self.area.lines().join("\n")
    }

    pub fn is_empty(&self) -> bool {
        self.area.is_empty()
    }

    pub fn set(&mut self, text: &str) {
        self.area = area(text);
        (self.selected, self.is_dismissed) = (0, false);
    }

    pub fn edit(&mut self, key: KeyEvent) {
        self.area.input(key);
        self.edited();
    }

    pub fn new_line(&mut self) {
        self.area.insert_newline();
        self.edited();
    }

    pub fn delete_to_start(&mut self) {
        self.area.delete_line_by_head();
        self.edited();
    }

    /// Inserts a pasted text, in which control characters mean nothing.
    pub fn paste(&mut self, text: &str) {
        let text = text.replace("\r\n", "\n").replace('\r', "\n");
        let clean: String = text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect();
        let room = BYTES_MAX.saturating_sub(self.text().len());
        self.area.insert_str(&clean[..clean.floor_char_boundary(room)]);
        self.edited();
    }

    fn edited(&mut self) {
        (self.selected, self.is_dismissed, self.recalled) = (0, false, None);
    }

    pub fn state(&self, commands: &[CommandInfo]) -> DraftContext {
        let row = self.area.cursor().0;
        DraftContext {
            is_empty: self.is_empty(),
            completes: self.offered(commands).len() > 1 || self.completion(commands).is_some(),
            at_top: row == 0,
            at_bottom: row + 1 == self.area.lines().len(),
        }
    }

    /// The completions to show.
    pub fn offered<'a>(&self, commands: &'a [CommandInfo]) -> Vec<&'a CommandInfo> {
        if self.is_dismissed || self.recalled.is_some() || self.area.lines().len() > 1 {
            return Vec::new();
        }
        completions(&self.area.lines()[0], commands)
    }

    pub fn selected(&self) -> usize {
        self.selected
    }

    /// The draft with the selected completion, if that changes it.
    pub fn completion(&self, commands: &[CommandInfo]) -> Option<String> {
        let offered = self.offered(commands);
        let chosen = offered.get(self.selected)?;
        let space = if chosen.hint.is_some() { " " } else { "" };
        (self.area.lines()[0].get(1..) != Some(&chosen.name)).then(|| format!("/{}{space}", chosen.name))
    }

    pub fn select(&mut self, commands: &[CommandInfo], forward: bool) {
        let count = self.offered(commands).len().max(1);
        self.selected = if forward { self.selected + 1 } else { self.selected + count - 1 } % count;
    }

    pub fn dismiss(&mut self) {
        self.is_dismissed = true;
    }

    /// Adds a prompt to the history.
    pub fn remember(&mut self, text: &str) {
        if self.history.last().is_some_and(|last| last == text) || text.trim().is_empty() {
            return;
        }
        self.history.push(text.to_owned());
        if self.history.len() > HISTORY_MAX {
            self.history.remove(0);
        }
    }

    pub fn forget_history(&mut self) {
        self.history.clear();
        self.recalled = None;
    }

    pub fn back(&mut self) {
        let at = self.recalled.unwrap_or(self.history.len());
        if at == 0 {
            return;
        }
        if self.recalled.is_none() {
            self.unsent = self.text();
        }
        self.set(&self.history[at - 1].clone());
        self.recalled = Some(at - 1);
    }

    pub fn forward(&mut self) {
        let Some(at) = self.recalled else { return };
        match self.history.get(at + 1).cloned() {
            Some(later) => {
                self.set(&later);
                self.recalled = Some(at + 1);
            }
            None => {
                let unsent = std::mem::take(&mut self.unsent);
                self.set(&unsent);
                self.recalled = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_history_returns_to_what_was_being_typed() {
        let mut draft = Draft::default();
        draft.remember("one");
        draft.remember("two");
        draft.remember("two");
        draft.paste("thr");
        let mut seen = Vec::new();
        for step in ["back", "back", "back", "forward", "forward", "forward"] {
            if step == "back" {
                draft.back()
            } else {
                draft.forward()
            }
            seen.push(draft.text());
        }
        assert_eq!(seen, ["two", "one", "one", "two", "thr", "thr"]);
    }

    #[test]
    fn a_pasted_text_has_no_control_characters() {
        let mut draft = Draft::default();
        draft.paste("one\r\ntwo\rthree\x1b[2J\tend\x07");
        assert_eq!(draft.text(), "one\ntwo\nthree[2J\tend");
    }
}
