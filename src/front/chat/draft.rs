//! The prompt that is being typed, with its history and the completion of commands. Pure.

use agent_client_protocol::v2::schema as wire;
use epitome_platform::file_uri;
use epitome_session_api::CommandInfo;
use epitome_thread::terminal_text::Cleaner;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::Style;
use ratatui_textarea::{CursorMove, DataCursor, TextArea, WrapMode};

use crate::complete::{completions, matching_files};
use crate::images::PromptImage;
use crate::keys::DraftContext;
use crate::markdown::Color;
use crate::rows::ink;
use crate::vim::VimKeys;

/// Prompts kept for the Up key.
pub const HISTORY_MAX: usize = 1_000;

/// Longer pastes are shown as one line.
const PASTED_LINES_MAX: usize = 8;
const PASTED_BYTES_MAX: usize = 2_000;

/// Images that are kept for prompts of this chat.
const IMAGES_MAX: usize = 16;

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
    /// Long texts, in place of which the area has a line that names them.
    pasted: Vec<(String, String)>,
    /// Images with the texts that stand for them in prompts, the newest last.
    images: Vec<(String, PromptImage)>,
    /// The keys of Vim, if the settings choose them.
    vim: Option<VimKeys>,
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
            pasted: Vec::new(),
            images: Vec::new(),
            vim: None,
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

    /// The prompt, with the complete pasted texts.
    pub fn text(&self) -> String {
        let text = self.area.lines().join("\n");
        self.pasted.iter().fold(text, |text, (name, pasted)| text.replacen(name, pasted, 1))
    }

    pub fn is_empty(&self) -> bool {
        self.area.is_empty()
    }

    pub fn set(&mut self, text: &str) {
        self.pasted.clear();
        self.area = area(&self.shortened(text.to_owned()));
        (self.selected, self.is_dismissed) = (0, false);
    }

    /// A long text's name in the area; the text itself if it is short.
    fn shortened(&mut self, text: String) -> String {
        let lines = text.lines().count();
        if lines <= PASTED_LINES_MAX && text.len() <= PASTED_BYTES_MAX {
            return text;
        }
        let name = format!("[pasted text {}: {lines} lines]", self.pasted.len() + 1);
        self.pasted.push((name.clone(), text));
        name
    }

    /// Ends the line if it ends in a backslash, for terminals that report no other key for it. Returns whether it did.
    pub fn end_line(&mut self) -> bool {
        let DataCursor(row, column) = self.area.cursor();
        let is_end = self.area.lines()[row].chars().count() == column;
        let ends = is_end && self.area.lines()[row].ends_with('\\') && self.area.delete_char();
        if ends {
            self.new_line();
        }
        ends
    }

    pub fn use_vim_keys(&mut self) {
        self.vim = Some(VimKeys::default());
    }

    /// The mode of Vim, if its keys are used.
    pub fn vim_mode(&self) -> Option<&'static str> {
        self.vim.as_ref().map(VimKeys::mode)
    }

    /// Carries out a key of Vim. Returns the key that the chat handles, if this is none.
    pub fn press_vim(&mut self, key: KeyEvent) -> Option<KeyEvent> {
        let Some(vim) = &mut self.vim else { return Some(key) };
        let left = vim.press(key, &mut self.area);
        if left.is_none() {
            self.edited();
        }
        left
    }

    pub fn edit(&mut self, key: KeyEvent) {
        // The placeholder of an image or of a long text is removed at once.
        let marker = match (key.code, key.modifiers) {
            (KeyCode::Backspace, KeyModifiers::NONE) => self.marker_before_cursor(),
            _ => 0,
        };
        for _ in 1..marker {
            self.area.delete_char();
        }
        self.area.input(key);
        self.edited();
    }

    /// The characters of the marker that ends at the cursor.
    fn marker_before_cursor(&self) -> usize {
        let before = self.before_cursor();
        let markers =
            self.pasted.iter().map(|(name, _)| name).chain(self.images.iter().map(|(name, _)| name));
        markers.filter(|name| before.ends_with(*name)).map(|name| name.chars().count()).max().unwrap_or(0)
    }

    /// The line of the cursor up to it.
    fn before_cursor(&self) -> &str {
        let DataCursor(row, column) = self.area.cursor();
        let line = self.area.lines().get(row).map_or("", String::as_str);
        &line[..line.char_indices().nth(column).map_or(line.len(), |(at, _)| at)]
    }

    /// Adds an image to the prompt at the cursor, where its name stands for it. Returns whether there was room.
    pub fn attach(&mut self, image: PromptImage) -> bool {
        let marker = self.keep(image);
        let has_room = marker.is_some();
        self.area.insert_str(marker.map(|marker| format!("{marker} ")).unwrap_or_default());
        self.edited();
        has_room
    }

    /// Puts an image in place of the word that names it in a recalled prompt.
    pub fn restore(&mut self, word: &str, image: PromptImage) {
        let (text, recalled) = (self.text(), self.recalled);
        if text.contains(word)
            && let Some(marker) = self.keep(image)
        {
            self.set(&text.replacen(word, &marker, 1));
            self.recalled = recalled;
        }
    }

    /// Keeps an image for this prompt, and returns what stands for it, if there is room.
    fn keep(&mut self, image: PromptImage) -> Option<String> {
        let text = self.text();
        self.images.retain(|(_, known)| known.path != image.path);
        if self.images.len() == IMAGES_MAX {
            match self.images.iter().position(|(marker, _)| !text.contains(marker)) {
                Some(unused) => drop(self.images.remove(unused)),
                None => return None,
            }
        }
        let is_free = |marker: &String| self.images.iter().all(|(known, _)| known != marker);
        let first = std::iter::once(format!("[image {}]", image.name()));
        let further = (2..).map(|number| format!("[image {} {number}]", image.name()));
        let marker = first.chain(further).find(is_free)?;
        self.images.push((marker.clone(), image));
        Some(marker)
    }

    /// The images of a prompt.
    pub fn images_of(&self, prompt: &str) -> Vec<wire::ContentBlock> {
        let named = self.images.iter().filter(|(marker, _)| prompt.contains(marker));
        named.map(|(_, image)| image.block.clone()).collect()
    }

    /// A prompt with the paths of its images, for later chats.
    pub fn with_paths(&self, prompt: &str) -> String {
        self.images.iter().fold(prompt.to_owned(), |prompt, (marker, image)| {
            let path = image.path.to_string_lossy();
            // One word, by which a later chat finds the image.
            let word = if path.contains(char::is_whitespace) {
                file_uri::of(&image.path)
            } else {
                path.into_owned()
            };
            prompt.replace(marker, &word)
        })
    }

    pub fn new_line(&mut self) {
        self.area.insert_newline();
        self.edited();
    }

    pub fn delete_to_start(&mut self) {
        self.area.delete_line_by_head();
        self.edited();
    }

    /// Inserts a pasted text, without the control characters and the colors that a terminal showed it with.
    pub fn paste(&mut self, text: &str) {
        let text = text.replace("\r\n", "\n").replace('\r', "\n");
        let clean = Cleaner::default().clean(text.as_bytes());
        let room = BYTES_MAX.saturating_sub(self.text().len());
        let shown = self.shortened(clean[..clean.floor_char_boundary(room)].to_owned());
        self.area.insert_str(shown);
        self.edited();
    }

    fn edited(&mut self) {
        (self.selected, self.is_dismissed, self.recalled) = (0, false, None);
    }

    pub fn state(&self, commands: &[CommandInfo], files: &[String]) -> DraftContext {
        let row = self.area.cursor().0;
        let has_commands = self.offered(commands).len() > 1 || self.completion(commands).is_some();
        DraftContext {
            is_empty: self.is_empty(),
            completes: has_commands || !self.offered_files(files).is_empty(),
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

    /// What follows the `@` of the word before the cursor.
    pub fn mention(&self) -> Option<&str> {
        if self.is_dismissed || self.recalled.is_some() {
            return None;
        }
        self.before_cursor().rsplit(char::is_whitespace).next()?.strip_prefix('@')
    }

    pub fn offered_files<'a>(&self, files: &'a [String]) -> Vec<&'a str> {
        self.mention().map(|typed| matching_files(typed, files)).unwrap_or_default()
    }

    /// Completes the mention with the selected file. Returns whether there is one.
    pub fn complete_file(&mut self, files: &[String]) -> bool {
        let chosen = self.offered_files(files).get(self.selected).map(|file| format!("{file} "));
        let typed = self.mention().map_or(0, |typed| typed.chars().count());
        let Some(chosen) = chosen else { return false };
        for _ in 0..typed {
            self.area.delete_char();
        }
        self.area.insert_str(chosen);
        self.edited();
        true
    }

    pub fn select(&mut self, commands: &[CommandInfo], files: &[String], forward: bool) {
        let count = self.offered(commands).len().max(self.offered_files(files).len()).max(1);
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

    /// Earlier prompts, the newest last.
    pub fn history(&self) -> &[String] {
        &self.history
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
    fn a_long_paste_is_one_line_until_it_is_sent() {
        let mut draft = Draft::default();
        let long = "line\n".repeat(2_000);
        draft.paste("see ");
        draft.paste(&long);
        assert_eq!(draft.widget().lines(), ["see [pasted text 1: 2000 lines]"]);
        assert_eq!(draft.text(), format!("see {long}"));
        draft.set(&long);
        assert_eq!((draft.widget().lines().len(), draft.text()), (1, long));
    }

    #[test]
    fn a_mention_is_completed_where_it_stands() {
        let files = vec!["src/main.rs".to_owned()];
        let mut draft = Draft::default();
        draft.paste("see @main");
        assert_eq!(draft.offered_files(&files), ["src/main.rs"]);
        assert!(draft.complete_file(&files));
        assert_eq!(draft.text(), "see @src/main.rs ");
        assert!(!draft.complete_file(&files));
    }

    /// The output of a compiler, pasted with its colors, was sent with `[31m` in front of each error.
    #[test]
    fn a_pasted_text_has_no_control_characters() {
        let mut draft = Draft::default();
        draft.paste("one\r\ntwo\rthree\x1b[2J\tend\x07 \x1b[1;31merror\x1b[0m[E0308]");
        assert_eq!(draft.text(), "one\ntwo\nthree\tend error[E0308]");
    }
}
