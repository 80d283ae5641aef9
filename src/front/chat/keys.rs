//! The effects of keys. Pure: a table for each part of the screen that can have the keyboard.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// The part of the screen that has the keyboard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Focus {
    Draft(DraftContext),
    Card,
    Picker,
    Help,
}

/// The state on which the keys of the draft depend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DraftContext {
    pub is_empty: bool,
    /// Whether completions are offered.
    pub completes: bool,
    /// Whether the cursor is in the first or last line.
    pub at_top: bool,
    pub at_bottom: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyAction {
    /// The draft handles it: text and editing.
    Edit,
    Nothing,
    Send,
    NewLine,
    DeleteToStart,
    /// Takes the selected completion.
    Complete,
    /// Earlier or later prompts.
    HistoryBack,
    HistoryForward,
    /// Lists earlier prompts of all chats.
    SearchHistory,
    /// Opens the draft in the user's editor.
    Editor,
    /// Moves the selection of a list.
    SelectPrevious,
    SelectNext,
    /// Confirms the selected entry, or the entry with this number.
    Confirm,
    ConfirmNumber(usize),
    Dismiss,
    /// Cancels the turn.
    Cancel,
    /// Clears the draft or cancels, and leaves the second time.
    Interrupt,
    /// Stops the program, until the shell continues it.
    Suspend,
    Leave,
    Help,
    Sessions,
    NextMode,
    Details,
    PageUp,
    PageDown,
    Redraw,
}

/// The keys as the help shows them.
pub const HELP: &[(&str, &str)] = &[
    ("Enter", "send; answer with the selected option"),
    ("Shift+Enter, Alt+Enter, Ctrl+J", "new line"),
    ("Tab", "complete a command, or a file after @"),
    ("Up, Down", "earlier prompts, and waiting ones to edit them; select"),
    ("Ctrl+R", "search earlier prompts of all chats"),
    ("Ctrl+G", "write the prompt in your editor"),
    ("1 … 9", "answer with this option"),
    ("Esc", "cancel the turn; close a list"),
    ("Esc Esc", "rewind to an earlier prompt"),
    ("Ctrl+C", "clear the prompt or cancel; twice: leave"),
    ("Ctrl+D", "leave, if the prompt is empty"),
    ("Ctrl+Z", "suspend, where the system can; fg continues"),
    ("PageUp, PageDown, wheel", "scroll"),
    ("Ctrl+O", "show outputs and thinking completely"),
    ("Shift+Tab", "next mode"),
    ("F2", "sessions of this directory; type to search all"),
    ("Ctrl+L", "draw the screen again"),
    ("? or F1", "this help"),
];

/// Returns what a key does.
pub fn action(key: KeyEvent, focus: Focus) -> KeyAction {
    let ctrl = key.modifiers.contains(KeyModifiers::CONTROL);
    let alt = key.modifiers.contains(KeyModifiers::ALT);
    let shift = key.modifiers.contains(KeyModifiers::SHIFT);
    match (key.code, ctrl) {
        (KeyCode::Char('c'), true) => return KeyAction::Interrupt,
        (KeyCode::Char('z'), true) => return KeyAction::Suspend,
        (KeyCode::Char('o'), true) => return KeyAction::Details,
        (KeyCode::Char('l'), true) => return KeyAction::Redraw,
        (KeyCode::Char('r'), true) => return KeyAction::SearchHistory,
        (KeyCode::Char('g'), true) => return KeyAction::Editor,
        (KeyCode::PageUp, _) => return KeyAction::PageUp,
        (KeyCode::PageDown, _) => return KeyAction::PageDown,
        _ => {}
    }
    match focus {
        Focus::Help => KeyAction::Dismiss,
        Focus::Card => match key.code {
            KeyCode::Up | KeyCode::BackTab => KeyAction::SelectPrevious,
            KeyCode::Down | KeyCode::Tab => KeyAction::SelectNext,
            KeyCode::Enter => KeyAction::Confirm,
            KeyCode::Char(digit @ '1'..='9') if !ctrl && !alt => {
                KeyAction::ConfirmNumber(usize::from(digit as u8 - b'1'))
            }
            KeyCode::Esc => KeyAction::Cancel,
            _ => KeyAction::Nothing,
        },
        Focus::Picker => match key.code {
            KeyCode::Up => KeyAction::SelectPrevious,
            KeyCode::Down => KeyAction::SelectNext,
            KeyCode::Enter => KeyAction::Confirm,
            KeyCode::Esc => KeyAction::Dismiss,
            // Finds an entry.
            KeyCode::Char(_) if !ctrl && !alt => KeyAction::Edit,
            KeyCode::Backspace => KeyAction::Edit,
            _ => KeyAction::Nothing,
        },
        Focus::Draft(draft) => match key.code {
            KeyCode::Enter if shift || alt => KeyAction::NewLine,
            KeyCode::Enter => KeyAction::Send,
            KeyCode::Char('j') if ctrl => KeyAction::NewLine,
            KeyCode::Char('u') if ctrl => KeyAction::DeleteToStart,
            KeyCode::Char('d') if ctrl && draft.is_empty => KeyAction::Leave,
            KeyCode::Char('?') if draft.is_empty => KeyAction::Help,
            KeyCode::F(1) => KeyAction::Help,
            KeyCode::F(2) => KeyAction::Sessions,
            KeyCode::BackTab => KeyAction::NextMode,
            KeyCode::Tab if draft.completes => KeyAction::Complete,
            KeyCode::Tab => KeyAction::Nothing,
            KeyCode::Up if draft.completes => KeyAction::SelectPrevious,
            KeyCode::Down if draft.completes => KeyAction::SelectNext,
            KeyCode::Up if draft.at_top => KeyAction::HistoryBack,
            KeyCode::Down if draft.at_bottom => KeyAction::HistoryForward,
            KeyCode::Esc if draft.completes => KeyAction::Dismiss,
            KeyCode::Esc => KeyAction::Cancel,
            _ => KeyAction::Edit,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(code: KeyCode, modifiers: KeyModifiers) -> KeyEvent {
        KeyEvent::new(code, modifiers)
    }

    #[test]
    fn the_page_names_all_keys_and_commands() {
        let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/chat.md");
        let page = std::fs::read_to_string(page).expect("the page is there");
        let keys = HELP.iter().flat_map(|(keys, _)| keys.split([',']).flat_map(|key| key.split(" or ")));
        let commands = crate::complete::commands(Vec::new());
        let commands = commands.iter().map(|command| format!("`/{}`", command.name));
        for named in keys.map(|key| key.trim().to_owned()).chain(commands) {
            assert!(page.contains(&named), "{named} is missing in docs/chat.md");
        }
    }

    #[test]
    fn keys_do_what_terminal_chats_do() {
        const NONE: KeyModifiers = KeyModifiers::NONE;
        const CTRL: KeyModifiers = KeyModifiers::CONTROL;
        let line = DraftContext { at_top: true, at_bottom: true, ..DraftContext::default() };
        let draft = Focus::Draft(line);
        let empty = Focus::Draft(DraftContext { is_empty: true, ..line });
        let completing = Focus::Draft(DraftContext { completes: true, ..line });
        let several = Focus::Draft(DraftContext::default());
        for (code, modifiers, focus, expected) in [
            (KeyCode::Enter, NONE, draft, KeyAction::Send),
            (KeyCode::Enter, KeyModifiers::SHIFT, draft, KeyAction::NewLine),
            (KeyCode::Enter, KeyModifiers::ALT, draft, KeyAction::NewLine),
            (KeyCode::Char('j'), CTRL, draft, KeyAction::NewLine),
            (KeyCode::Char('j'), NONE, draft, KeyAction::Edit),
            (KeyCode::Esc, NONE, draft, KeyAction::Cancel),
            (KeyCode::Esc, NONE, completing, KeyAction::Dismiss),
            (KeyCode::Char('c'), CTRL, draft, KeyAction::Interrupt),
            (KeyCode::Char('c'), CTRL, Focus::Card, KeyAction::Interrupt),
            (KeyCode::Char('z'), CTRL, draft, KeyAction::Suspend),
            (KeyCode::Char('z'), CTRL, Focus::Card, KeyAction::Suspend),
            (KeyCode::Char('z'), NONE, draft, KeyAction::Edit),
            (KeyCode::Char('d'), CTRL, empty, KeyAction::Leave),
            (KeyCode::Char('d'), CTRL, draft, KeyAction::Edit),
            (KeyCode::Up, NONE, draft, KeyAction::HistoryBack),
            (KeyCode::Up, NONE, several, KeyAction::Edit),
            (KeyCode::Up, NONE, completing, KeyAction::SelectPrevious),
            (KeyCode::Tab, NONE, completing, KeyAction::Complete),
            (KeyCode::Tab, NONE, draft, KeyAction::Nothing),
            (KeyCode::Char('?'), NONE, empty, KeyAction::Help),
            (KeyCode::Char('?'), NONE, draft, KeyAction::Edit),
            (KeyCode::F(1), NONE, draft, KeyAction::Help),
            (KeyCode::PageUp, NONE, Focus::Card, KeyAction::PageUp),
            (KeyCode::Char('1'), NONE, Focus::Card, KeyAction::ConfirmNumber(0)),
            (KeyCode::Char('1'), NONE, draft, KeyAction::Edit),
            // A letter that was meant for the draft answers nothing.
            (KeyCode::Char('y'), NONE, Focus::Card, KeyAction::Nothing),
            (KeyCode::Enter, NONE, Focus::Card, KeyAction::Confirm),
            (KeyCode::Esc, NONE, Focus::Picker, KeyAction::Dismiss),
            (KeyCode::Char('x'), NONE, Focus::Help, KeyAction::Dismiss),
        ] {
            assert_eq!(action(key(code, modifiers), focus), expected, "{code:?} {modifiers:?} {focus:?}");
        }
    }
}
