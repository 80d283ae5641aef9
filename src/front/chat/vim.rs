//! Vim keys for the prompt, if the settings choose them: two modes, motions, and operators with a motion. Pure.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui_textarea::{CursorMove, DataCursor, TextArea};

/// See the module's documentation. A prompt begins in insert mode.
#[derive(Default)]
pub struct VimKeys {
    is_normal: bool,
    /// The keys of a command that is not complete: an operator, or `g`.
    pending: Option<char>,
    yanked: String,
    /// Whether that is a whole line.
    is_line: bool,
}

impl VimKeys {
    /// The name of the mode, for the screen.
    pub fn mode(&self) -> &'static str {
        if self.is_normal { "NORMAL" } else { "INSERT" }
    }

    /// Carries out a key. Returns the one that the chat handles instead, if there is one.
    pub fn press(&mut self, key: KeyEvent, area: &mut TextArea<'_>) -> Option<KeyEvent> {
        let is_plain = key.modifiers.difference(KeyModifiers::SHIFT).is_empty();
        match key.code {
            KeyCode::Esc if self.pending.take().is_some() => None,
            KeyCode::Esc if !self.is_normal => {
                self.is_normal = true;
                step_back(area);
                None
            }
            KeyCode::Char('r') if self.is_normal && key.modifiers == KeyModifiers::CONTROL => {
                area.redo();
                None
            }
            // The list of keys.
            KeyCode::Char('?') if area.is_empty() => Some(key),
            KeyCode::Char(letter) if self.is_normal && is_plain => self.command(letter, area),
            KeyCode::Backspace if self.is_normal => self.command('h', area),
            _ => Some(key),
        }
    }

    fn command(&mut self, letter: char, area: &mut TextArea<'_>) -> Option<KeyEvent> {
        match (self.pending.take(), letter) {
            (None, 'd' | 'c' | 'y' | 'g') => self.pending = Some(letter),
            (None, 'j') => return Some(KeyEvent::from(KeyCode::Down)),
            (None, 'k') => return Some(KeyEvent::from(KeyCode::Up)),
            (None, 'x') => self.operate('d', 'l', area),
            (None, 'D') => self.operate('d', '$', area),
            (None, 'C') => self.operate('c', '$', area),
            (None, 'p') if self.is_line => {
                area.move_cursor(CursorMove::End);
                area.insert_str(format!("\n{}", self.yanked));
                area.move_cursor(CursorMove::Head);
            }
            (None, 'p') => {
                step(area);
                area.insert_str(&self.yanked);
                area.move_cursor(CursorMove::Back);
            }
            (None, 'u') => drop(area.undo()),
            (None, 'G') => area.move_cursor(CursorMove::Bottom),
            (Some('g'), 'g') => area.move_cursor(CursorMove::Top),
            // The beginning of a command.
            (None, ':' | '/' | '!') if area.is_empty() => {
                area.insert_char(letter);
                self.is_normal = false;
            }
            (None, 'i') => self.is_normal = false,
            (None, 'a') => {
                step(area);
                self.is_normal = false;
            }
            (None, 'I' | 'A') => {
                area.move_cursor(if letter == 'I' { CursorMove::Head } else { CursorMove::End });
                self.is_normal = false;
            }
            (None, 'o') => {
                area.move_cursor(CursorMove::End);
                area.insert_newline();
                self.is_normal = false;
            }
            (None, 'O') => {
                area.move_cursor(CursorMove::Head);
                area.insert_newline();
                area.move_cursor(CursorMove::Up);
                self.is_normal = false;
            }
            (None, motion) => move_by(motion, area),
            (Some(operator @ ('d' | 'c' | 'y')), line) if operator == line => {
                self.operate_on_line(operator, area)
            }
            (Some(operator @ ('d' | 'c' | 'y')), motion) => self.operate(operator, motion, area),
            (Some(_), _) => {}
        }
        let DataCursor(row, column) = area.cursor();
        if self.is_normal && column >= area.lines()[row].chars().count() {
            step_back(area);
        }
        None
    }

    /// Deletes, changes or yanks the text up to the end of a motion, which stays in the line.
    fn operate(&mut self, operator: char, motion: char, area: &mut TextArea<'_>) {
        let start @ DataCursor(row, column) = area.cursor();
        let length = area.lines()[row].chars().count();
        match (operator, motion) {
            (_, 'l') => step(area),
            // Vim changes a word without the blanks after it.
            ('c', 'w') | (_, 'e') if column + 1 < length => {
                area.move_cursor(CursorMove::WordEnd);
                if area.cursor().0 == row {
                    step(area);
                }
            }
            ('c', 'w') | (_, 'e') => area.move_cursor(CursorMove::End),
            _ => move_by(motion, area),
        }
        if area.cursor().0 != row {
            let is_back = area.cursor().0 < row;
            jump(area, start);
            area.move_cursor(if is_back { CursorMove::Head } else { CursorMove::End });
        }
        let end = area.cursor();
        self.cut(operator, start, end, area);
    }

    fn operate_on_line(&mut self, operator: char, area: &mut TextArea<'_>) {
        let cursor @ DataCursor(row, _) = area.cursor();
        let (line, lines) = (area.lines()[row].clone(), area.lines().len());
        let end_of = |row: usize, area: &TextArea<'_>| DataCursor(row, area.lines()[row].chars().count());
        match operator {
            'y' => {}
            'd' if row + 1 < lines => self.cut('d', DataCursor(row, 0), DataCursor(row + 1, 0), area),
            'd' if row > 0 => {
                self.cut('d', end_of(row - 1, area), end_of(row, area), area);
                area.move_cursor(CursorMove::Head);
            }
            _ => self.cut(operator, DataCursor(row, 0), end_of(row, area), area),
        }
        if operator == 'y' {
            jump(area, cursor);
        }
        (self.yanked, self.is_line) = (line, true);
    }

    fn cut(&mut self, operator: char, start: DataCursor, end: DataCursor, area: &mut TextArea<'_>) {
        if start != end {
            jump(area, start);
            area.start_selection();
            jump(area, end);
            match operator {
                'y' => area.copy(),
                _ => drop(area.cut()),
            }
            area.cancel_selection();
            (self.yanked, self.is_line) = (area.yank_text(), false);
        }
        if operator == 'y' {
            jump(area, if (end.0, end.1) < (start.0, start.1) { end } else { start });
        }
        self.is_normal &= operator != 'c';
    }
}

fn move_by(motion: char, area: &mut TextArea<'_>) {
    match motion {
        'h' => step_back(area),
        'l' => step(area),
        'w' => area.move_cursor(CursorMove::WordForward),
        'b' => area.move_cursor(CursorMove::WordBack),
        'e' => area.move_cursor(CursorMove::WordEnd),
        '0' | '^' => area.move_cursor(CursorMove::Head),
        '$' => area.move_cursor(CursorMove::End),
        _ => {}
    }
}

/// Moves within the line.
fn step(area: &mut TextArea<'_>) {
    let DataCursor(row, column) = area.cursor();
    if column < area.lines()[row].chars().count() {
        area.move_cursor(CursorMove::Forward);
    }
}

fn step_back(area: &mut TextArea<'_>) {
    if area.cursor().1 > 0 {
        area.move_cursor(CursorMove::Back);
    }
}

fn jump(area: &mut TextArea<'_>, DataCursor(row, column): DataCursor) {
    let short = |number| u16::try_from(number).unwrap_or(u16::MAX);
    area.move_cursor(CursorMove::Jump(short(row), short(column)));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Presses keys in normal mode at the beginning of a text; `␛` is Esc. Returns the text with the cursor as `|`.
    fn after(text: &str, keys: &str) -> String {
        let mut area = TextArea::new(text.split('\n').map(str::to_owned).collect());
        let mut vim = VimKeys { is_normal: true, ..VimKeys::default() };
        for letter in keys.chars() {
            let key = match letter {
                '␛' => KeyEvent::from(KeyCode::Esc),
                '®' => KeyEvent::new(KeyCode::Char('r'), KeyModifiers::CONTROL),
                letter => KeyEvent::from(KeyCode::Char(letter)),
            };
            // The chat gives other keys to the text.
            if let Some(key) = vim.press(key, &mut area) {
                area.input(key);
            }
        }
        let DataCursor(row, column) = area.cursor();
        let mut lines = area.lines().to_vec();
        let at = lines[row].char_indices().nth(column).map_or(lines[row].len(), |(at, _)| at);
        lines[row].insert(at, '|');
        lines.join("\n")
    }

    #[test]
    fn keys_do_what_they_do_in_vim() {
        for (text, keys, expected) in [
            ("one two three", "w", "one |two three"),
            ("one two three", "wb", "|one two three"),
            ("one two three", "e", "on|e two three"),
            ("one two three", "$", "one two thre|e"),
            ("one two three", "$0", "|one two three"),
            ("one two", "lllh", "on|e two"),
            ("one\ntwo\nthree", "G", "one\ntwo\n|three"),
            ("one\ntwo\nthree", "Ggg", "|one\ntwo\nthree"),
            ("one\ntwo", "j", "one\n|two"),
            ("one\ntwo", "jk", "|one\ntwo"),
            ("ünder", "x", "|nder"),
            ("ab", "$x", "|a"),
            ("one two three", "dw", "|two three"),
            ("one two\nthree", "wdw", "one| \nthree"),
            ("one two three", "wD", "one| "),
            ("one two three", "cwtwo", "two| two three"),
            ("one two three", "wCx", "one x|"),
            ("one\ntwo\nthree", "dd", "|two\nthree"),
            ("one\ntwo", "jdd", "|one"),
            ("one", "dd", "|"),
            ("one\ntwo", "cctwo", "two|\ntwo"),
            ("one\ntwo", "yyp", "one\n|one\ntwo"),
            ("one\ntwo", "ddp", "two\n|one"),
            ("one two", "wywp", "one ttw|owo"),
            // After undo, the cursor is behind what came back, and not at its beginning.
            ("one two", "dwu", "one |two"),
            ("one two", "dwu®", "|two"),
            ("one", "ix␛", "|xone"),
            ("one", "ax", "ox|ne"),
            ("one", "$ax", "onex|"),
            ("one", "lIx", "x|one"),
            ("one", "Ax", "onex|"),
            ("one", "ox", "one\nx|"),
            ("one", "Ox", "x|\none"),
            ("", ":q", ":q|"),
            // An operator that is not completed does nothing.
            ("one two", "d␛w", "one |two"),
            ("one two", "dz", "|one two"),
        ] {
            assert_eq!(after(text, keys), expected, "{text:?} {keys}");
        }
    }
}
