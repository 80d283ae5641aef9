//! The state of the chat, and what each event does to it. Pure: `update` returns what has to be done.

mod view;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agent_client_protocol::schema::MaybeUndefined;
use agent_client_protocol::v2::schema as wire;
use epitome_client::{slash_commands, with_hint};
use epitome_session_api::CommandInfo;
use epitome_thread::problem::nearest;
use ratatui::crossterm::event::{KeyCode, KeyEvent};

use crate::card::{CardAnswer, OpenCard, TYPED_AHEAD};
use crate::client::{AgentMessage, ChatRequest};
use crate::complete::{ChatCommand, commands, own_command, own_help, unknown_command};
use crate::draft::Draft;
use crate::form::FormDialog;
use crate::images::{self, PastedImages, PromptImage};
use crate::keys::{Focus, KeyAction, action};
use crate::markdown::Color;
use crate::picker::{ChatSession, Picker, PickerChoice, later_value, named_value};
use crate::transcript::{ChatTranscript, Speaker};
pub use view::draw;

/// Time for a second Ctrl+C.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);

/// Time for a second Esc.
const REWIND_WITHIN: Duration = Duration::from_secs(1);

/// The mode in which everything runs without a question.
const FULL_ACCESS: &str = "full";
const MODE_OPTION: &str = "mode";

/// The hint while the user explains a rejection.
const EXPLAIN: &str = "type what the agent should do instead · Enter sends it, Esc goes back";

/// Rows that a turn of the wheel scrolls.
const WHEEL_ROWS: isize = 3;

/// Something that happened.
#[derive(Debug)]
pub enum ChatEvent {
    Key(KeyEvent),
    Paste(String),
    /// The images that a pasted text names.
    Images {
        pasted: String,
        read: PastedImages,
    },
    /// The images of a recalled prompt, each with the word that names it.
    Recalled(Vec<(String, PromptImage)>),
    /// Up or down.
    Wheel {
        up: bool,
    },
    Agent(AgentMessage),
    /// The files of the directory, for mentions.
    Files(Vec<String>),
    /// The draft as the user's editor left it, or why it can't be edited.
    Edited(Result<String, String>),
    /// The sessions of all directories that have these words, or why they are not known.
    Found {
        words: String,
        found: Result<Vec<ChatSession>, String>,
    },
    /// The uncommitted changes, or why they are not known.
    Diff(Result<String, String>),
}

/// Something that has to be done.
#[derive(Debug, PartialEq)]
pub enum ChatEffect {
    Request(ChatRequest),
    /// Draw everything again.
    Redraw,
    /// Tell a user who looks elsewhere that a long turn has ended, or waits.
    Notify,
    /// Stop the program, until the shell continues it.
    Suspend,
    /// Keep a prompt for later chats.
    Remember(String),
    ListFiles,
    /// Read the images that a pasted text names.
    ReadImages(String),
    /// Read the images that words of a recalled prompt name.
    RecallImages(Vec<String>),
    /// Open the draft in the user's editor.
    Edit(String),
    Diff,
    /// Search the sessions of all directories.
    Search(String),
    /// Put a text into the clipboard.
    Copy(String),
    Leave,
}

/// Users who wait no longer than this still look at the screen.
const LONG_TURN: Duration = Duration::from_secs(20);

/// How a chat begins.
pub enum ChatStart {
    /// With a list of the sessions.
    Choose,
    /// With a session that is continued, or a new one, and the prompt that is sent once it is open.
    Session { session: Option<(wire::SessionId, PathBuf)>, prompt: Option<String> },
}

/// The current activity of the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SessionActivity {
    /// The session is not open yet.
    Opening,
    Idle,
    /// Working since this time.
    Working(Duration),
    /// It waits for the user.
    Asking,
    Ended,
}

/// See the module's documentation.
pub struct ChatState {
    cwd: PathBuf,
    session: Option<wire::SessionId>,
    activity: SessionActivity,
    /// Whether a session's opening is not answered yet; what is replayed before that answer has an activity of its own.
    is_opening: bool,
    transcript: ChatTranscript,
    draft: Draft,
    /// The prompt that is sent once the first session is open.
    first_prompt: Option<String>,
    /// Prompts that are not in the conversation yet.
    waiting: VecDeque<String>,
    /// Prompts that the user has taken back, and that the agent has not given back yet.
    withdrawn: Vec<String>,
    /// The user's prompts in the conversation, with the ids of their messages.
    said: Vec<(String, String)>,
    /// The files that mentions are completed with, once they have been listed.
    files: Option<Vec<String>>,
    /// The card that is rejected with what the user types now.
    explaining: Option<(u64, wire::PermissionOptionId)>,
    /// The draft that looks like a command and is none, of which the user has been warned.
    unknown: Option<String>,
    escaped: Option<Duration>,
    cards: VecDeque<OpenCard>,
    forms: VecDeque<OpenForm>,
    picker: Option<Picker>,
    /// Whether sessions are being searched. One search runs at a time.
    is_searching: bool,
    has_help: bool,
    commands: Vec<CommandInfo>,
    options: Vec<wire::SessionConfigOption>,
    title: Option<String>,
    usage: Option<wire::UsageUpdate>,
    /// A short remark for the user, until the next key.
    remark: Option<String>,
    interrupted: Option<Duration>,
    scroll: Scroll,
    lost: Option<String>,
    /// Effects that the current event has requested.
    effects: Vec<ChatEffect>,
}

/// A question of the agent, whose fields are answered in the place of the draft.
struct OpenForm {
    number: u64,
    dialog: FormDialog,
    /// The draft before it.
    draft: String,
    appeared: Duration,
}

/// The part of the conversation that is shown.
#[derive(Debug, Default)]
struct Scroll {
    /// Rows below the screen.
    below: usize,
    /// Rows of the conversation and of the part of the screen for it, when it was last drawn.
    height: usize,
    page: usize,
}

impl Scroll {
    fn by(&mut self, rows: isize) {
        self.below = self.below.saturating_add_signed(rows).min(self.height.saturating_sub(self.page));
    }

    /// Notes the new height. The text that the user reads stays where it is.
    fn resize(&mut self, height: usize, page: usize) {
        if self.below > 0 {
            self.below = (self.below + height).saturating_sub(self.height);
        }
        (self.height, self.page) = (height, page);
        self.by(0);
    }

    /// Notes the height of the same conversation at another width. The text that the user reads stays nearby.
    fn rescale(&mut self, height: usize) {
        let below = (self.below * height + self.height / 2) / self.height.max(1);
        // A user who had scrolled up does not get to the end, where new text would scroll the conversation.
        (self.below, self.height) = (below.max(self.below.min(1)), height);
    }
}

impl ChatState {
    /// The chat in a directory, and what begins its session.
    pub fn new(cwd: PathBuf, start: ChatStart, history: &[String]) -> (ChatState, Vec<ChatEffect>) {
        let mut chat = ChatState {
            cwd,
            session: None,
            activity: SessionActivity::Opening,
            is_opening: false,
            transcript: ChatTranscript::new(80),
            draft: Draft::default(),
            first_prompt: None,
            waiting: VecDeque::new(),
            withdrawn: Vec::new(),
            said: Vec::new(),
            files: None,
            explaining: None,
            unknown: None,
            escaped: None,
            cards: VecDeque::new(),
            forms: VecDeque::new(),
            picker: None,
            is_searching: false,
            has_help: false,
            commands: commands(Vec::new()),
            options: Vec::new(),
            title: None,
            usage: None,
            remark: None,
            interrupted: None,
            scroll: Scroll::default(),
            lost: None,
            effects: Vec::new(),
        };
        history.iter().for_each(|prompt| chat.draft.remember(prompt));
        match start {
            ChatStart::Choose => {
                chat.activity = SessionActivity::Idle;
                chat.list(None);
            }
            ChatStart::Session { session, prompt } => {
                chat.first_prompt = prompt;
                chat.open(session);
            }
        }
        let begin = std::mem::take(&mut chat.effects);
        (chat, begin)
    }

    pub fn use_vim_keys(&mut self) {
        self.draft.use_vim_keys();
    }

    /// The directory of the session.
    pub fn cwd(&self) -> &Path {
        &self.cwd
    }

    /// The open session, if something was said in it.
    pub fn resumable(&self) -> Option<String> {
        self.session.as_ref().filter(|_| !self.transcript.is_empty()).map(|session| session.to_string())
    }

    /// The newest rows of the conversation, for the terminal that the chat leaves.
    pub fn last_rows(&mut self, rows_max: usize) -> Vec<String> {
        let height = self.transcript.height();
        let rows = self.transcript.rows(height.saturating_sub(rows_max), rows_max);
        rows.iter().map(|row| row.to_string().trim_end().to_owned()).collect()
    }

    /// Whether time changes the screen.
    pub fn is_animated(&self) -> bool {
        self.is_working() || self.interrupted.is_some()
    }

    fn is_working(&self) -> bool {
        matches!(self.activity, SessionActivity::Working(_))
    }

    /// Why the connection has ended.
    pub fn lost(&self) -> Option<&str> {
        self.lost.as_deref()
    }

    pub fn update(&mut self, event: ChatEvent, now: Duration) -> Vec<ChatEffect> {
        let before = self.activity;
        self.handle(event, now);
        if let SessionActivity::Working(since) = before
            && matches!(self.activity, SessionActivity::Idle | SessionActivity::Asking)
            && now.saturating_sub(since) >= LONG_TURN
        {
            self.effects.push(ChatEffect::Notify);
        }
        std::mem::take(&mut self.effects)
    }

    fn request(&mut self, request: ChatRequest) {
        self.effects.push(ChatEffect::Request(request));
    }

    fn handle(&mut self, event: ChatEvent, now: Duration) {
        match event {
            ChatEvent::Key(key) => {
                self.remark = None;
                self.key(key, now)
            }
            ChatEvent::Paste(text) if self.forms.is_empty() && images::are_named(&text) => {
                self.effects.push(ChatEffect::ReadImages(text));
            }
            ChatEvent::Paste(text) => self.paste(&text, now),
            ChatEvent::Images { read: PastedImages::Read(images), .. } => {
                for image in images {
                    if !self.draft.attach(image) {
                        self.remark("a prompt has no room for more images");
                    }
                }
                self.pasted(now);
            }
            ChatEvent::Images { pasted, read: PastedImages::Unusable(why) } => {
                self.paste(&pasted, now);
                self.transcript.notice(Color::Yellow, &why);
            }
            ChatEvent::Images { pasted, read: PastedImages::Absent } => self.paste(&pasted, now),
            ChatEvent::Recalled(images) => {
                images.into_iter().for_each(|(word, image)| self.draft.restore(&word, image));
            }
            ChatEvent::Files(files) => self.files = Some(files),
            ChatEvent::Edited(Ok(text)) => self.draft.set(text.trim_end()),
            ChatEvent::Diff(Ok(diff)) if diff.trim().is_empty() => {
                self.remark("there are no uncommitted changes")
            }
            ChatEvent::Diff(Ok(diff)) => {
                self.scroll.below = 0;
                let fenced = format!("```diff\n{}\n```", diff.trim_end().replace("```", "` ` `"));
                self.transcript.show_markdown(&fenced);
            }
            ChatEvent::Found { words, found } => {
                self.is_searching = false;
                match found {
                    Ok(sessions) => {
                        self.picker.iter_mut().for_each(|picker| {
                            picker.add_found(words.clone(), sessions.clone(), &self.cwd);
                        });
                        self.search();
                    }
                    Err(why) => self.remark(why),
                }
            }
            ChatEvent::Edited(Err(why)) | ChatEvent::Diff(Err(why)) => self.remark(why),
            ChatEvent::Wheel { up } => self.scroll(if up { WHEEL_ROWS } else { -WHEEL_ROWS }),
            ChatEvent::Agent(message) => self.receive(message, now),
        }
    }

    fn paste(&mut self, text: &str, now: Duration) {
        self.draft.paste(text);
        self.pasted(now);
    }

    /// A paste answers nothing. Below a card or a list, it waits in the draft.
    fn pasted(&mut self, now: Duration) {
        if let Some(card) = self.cards.front_mut() {
            card.appear(now);
            self.remark("pasted into the prompt, below this card");
        }
    }

    // ── The user ───────────────────────────────────────────────────────────────────────────────────

    fn focus(&self) -> Focus {
        match (self.has_help, self.shows_card(), &self.picker) {
            (true, ..) => Focus::Help,
            (false, true, _) => Focus::Card,
            (false, false, Some(_)) => Focus::Picker,
            (false, false, None) => Focus::Draft(self.draft.state(&self.commands, self.files())),
        }
    }

    /// Whether a card takes the place of the draft.
    fn shows_card(&self) -> bool {
        !self.cards.is_empty() && self.explaining.is_none()
    }

    fn files(&self) -> &[String] {
        self.files.as_deref().unwrap_or_default()
    }

    fn key(&mut self, key: KeyEvent, now: Duration) {
        let focus = self.focus();
        let key = match focus {
            // Esc first closes what is offered.
            Focus::Draft(draft) if !(draft.completes && key.code == KeyCode::Esc) => {
                self.draft.press_vim(key)
            }
            _ => Some(key),
        };
        let Some(key) = key else {
            self.interrupted = None;
            return;
        };
        let action = action(key, focus);
        if action != KeyAction::Interrupt {
            self.interrupted = None;
        }
        match action {
            KeyAction::Edit if focus == Focus::Picker => {
                let letter = match key.code {
                    KeyCode::Char(letter) => Some(letter),
                    _ => None,
                };
                self.picker.iter_mut().for_each(|picker| picker.filter_by(letter));
                self.search();
            }
            KeyAction::Edit => {
                self.draft.edit(key);
                if self.files.is_none() && self.draft.mention().is_some() {
                    self.files = Some(Vec::new());
                    self.effects.push(ChatEffect::ListFiles);
                }
            }
            KeyAction::SearchHistory => self.search_history(),
            KeyAction::Editor => self.effects.push(ChatEffect::Edit(self.draft.text())),
            KeyAction::NewLine => self.draft.new_line(),
            KeyAction::DeleteToStart => self.draft.delete_to_start(),
            KeyAction::Complete => self.complete(),
            KeyAction::HistoryBack if self.draft.is_empty() && self.is_busy() && !self.waiting.is_empty() => {
                self.take_back();
            }
            KeyAction::HistoryBack => {
                self.draft.back();
                self.recall_images();
            }
            KeyAction::HistoryForward => {
                self.draft.forward();
                self.recall_images();
            }
            KeyAction::SelectPrevious | KeyAction::SelectNext => {
                self.select(focus, action == KeyAction::SelectNext);
            }
            KeyAction::Dismiss => self.dismiss(focus),
            KeyAction::Help => self.has_help = true,
            KeyAction::Details => self.transcript.toggle_details(),
            KeyAction::PageUp | KeyAction::PageDown => self.turn_page(action == KeyAction::PageDown),
            // A letter that is typed while a card is open was meant for the draft, and so is what follows it at once.
            KeyAction::Nothing => self.cards.iter_mut().take(1).for_each(|card| card.appear(now)),
            KeyAction::Send => self.send(now),
            KeyAction::Confirm => self.confirm(focus, None, now),
            KeyAction::ConfirmNumber(number) => self.confirm(focus, Some(number), now),
            KeyAction::Cancel if self.explaining.is_some() => self.explaining = None,
            KeyAction::Cancel => self.escape(now),
            KeyAction::Interrupt => self.interrupt(now),
            KeyAction::Suspend => self.effects.push(ChatEffect::Suspend),
            KeyAction::Leave => self.effects.push(ChatEffect::Leave),
            KeyAction::Redraw => self.effects.push(ChatEffect::Redraw),
            KeyAction::Sessions => self.list(None),
            KeyAction::NextMode => self.next_mode(),
        }
    }

    /// Cancels the turn. Twice in an idle session with an empty draft: lists the prompts to go back to.
    fn escape(&mut self, now: Duration) {
        if self.is_busy() || !self.draft.is_empty() {
            return self.cancel();
        }
        match self.escaped.take().is_some_and(|at| now.saturating_sub(at) <= REWIND_WITHIN) {
            true if self.said.is_empty() => self.remark("there is no prompt to go back to"),
            true => {
                let rewind = |id: &String| PickerChoice::Prompt(format!("/rewind message {id}"));
                let prompts = self.said.iter().map(|(id, text)| (text.as_str(), rewind(id)));
                self.picker = Some(Picker::of_texts(
                    "Undo this prompt and everything after it, files included",
                    prompts,
                ));
            }
            false => {
                self.escaped = Some(now);
                self.remark("Esc again to rewind to an earlier prompt");
            }
        }
    }

    fn search_history(&mut self) {
        if self.shows_card() {
            return;
        }
        let draft = |text: &String| PickerChoice::Draft(text.clone());
        let prompts = self.draft.history().iter().map(|text| (text.as_str(), draft(text)));
        let picker = Picker::of_texts("Earlier prompts", prompts);
        match picker.entries.is_empty() {
            true => self.remark("there are no earlier prompts"),
            false => self.picker = Some(picker),
        }
    }

    /// A prompt of an earlier chat has the paths of its images.
    fn recall_images(&mut self) {
        let words = images::words_of(&self.draft.text());
        if !words.is_empty() {
            self.effects.push(ChatEffect::RecallImages(words));
        }
    }

    /// Takes the newest waiting prompt back into the draft.
    fn take_back(&mut self) {
        let Some(text) = self.waiting.pop_back() else { return };
        self.draft.set(&text);
        self.withdrawn.push(text.clone());
        self.request(ChatRequest::Withdraw { text });
    }

    fn complete(&mut self) {
        if self.draft.complete_file(self.files.as_deref().unwrap_or_default()) {
            return;
        }
        if let Some(completed) = self.draft.completion(&self.commands) {
            self.draft.set(&completed);
        }
    }

    fn select(&mut self, focus: Focus, forward: bool) {
        match focus {
            Focus::Draft(_) => {
                self.draft.select(&self.commands, self.files.as_deref().unwrap_or_default(), forward);
            }
            Focus::Card => self.cards.iter_mut().take(1).for_each(|card| card.select(forward)),
            Focus::Picker => {
                if let Some(cursor) = self.picker.as_mut().and_then(|picker| picker.select(forward)) {
                    self.list(Some(cursor));
                }
            }
            Focus::Help => {}
        }
    }

    fn dismiss(&mut self, focus: Focus) {
        match focus {
            Focus::Help => self.has_help = false,
            Focus::Picker => self.picker = None,
            Focus::Draft(_) => self.draft.dismiss(),
            Focus::Card => {}
        }
    }

    fn scroll(&mut self, rows: isize) {
        match self.cards.front_mut() {
            Some(card) => card.scroll(-rows),
            None => self.scroll.by(rows),
        }
    }

    fn turn_page(&mut self, forward: bool) {
        let rows = isize::try_from(self.scroll.page).unwrap_or(1).max(2) - 1;
        match self.cards.front_mut() {
            Some(card) => card.turn_page(forward),
            None => self.scroll.by(if forward { -rows } else { rows }),
        }
    }

    fn send(&mut self, now: Duration) {
        if !self.forms.is_empty() {
            return self.fill(now);
        }
        if self.draft.end_line() {
            return;
        }
        // Enter completes the beginning of a command or of a file; a complete one is sent.
        if self.draft.completion(&self.commands).is_some()
            || !self.draft.offered_files(self.files()).is_empty()
        {
            return self.complete();
        }
        let text = self.draft.text().trim().to_owned();
        if let Some((card, option)) = self.explaining.take() {
            // The agent reads it before it goes on.
            if !text.is_empty() {
                self.draft.set("");
                self.prompt(text);
            }
            self.remove_card(card, now);
            return self.request(ChatRequest::Decide { card, option });
        }
        if text.is_empty() {
            return;
        }
        if let Some((command, argument)) = own_command(&text) {
            self.draft.set("");
            return self.run_own(command, argument);
        }
        if self.session.is_none() {
            return self.remark(match self.is_opening {
                true => "the session is not open yet",
                false => "no session is open · /new begins one, /sessions lists them",
            });
        }
        if let Some(why) = unknown_command(&text, &self.commands)
            && self.unknown.as_ref() != Some(&text)
        {
            self.unknown = Some(text);
            return self.remark(why);
        }
        self.draft.set("");
        self.draft.remember(&text);
        self.effects.push(ChatEffect::Remember(self.draft.with_paths(&text)));
        match text.strip_prefix('!').map(str::trim) {
            Some(command) if !command.is_empty() => self.prompt(format!("/shell {command}")),
            _ => self.prompt(text),
        }
    }

    /// Sends a prompt to the open session.
    fn prompt(&mut self, text: String) {
        let Some(session) = self.session.clone() else { return };
        self.waiting.push_back(text.clone());
        self.scroll.below = 0;
        let images = self.draft.images_of(&text);
        self.request(ChatRequest::Prompt { session, text, images, cwd: self.cwd.clone() });
    }

    fn fill(&mut self, now: Duration) {
        let form = self.forms.front_mut().filter(|form| now.saturating_sub(form.appeared) >= TYPED_AHEAD);
        let Some(form) = form else { return };
        let (before, text) = (form.dialog.prompt(), self.draft.text());
        let reply = form.dialog.typed(&text);
        let card = form.number;
        if reply.is_none() && form.dialog.prompt() == before {
            return self.remark("this is not a valid answer");
        }
        self.draft.set("");
        if let Some(reply) = reply {
            self.remove_card(card, now);
            self.request(ChatRequest::Fill { card, reply });
        }
    }

    fn run_own(&mut self, command: ChatCommand, argument: &str) {
        match command {
            ChatCommand::Quit => self.effects.push(ChatEffect::Leave),
            ChatCommand::Keys => self.has_help = true,
            ChatCommand::Sessions => self.list(None),
            ChatCommand::New => self.open(None),
            ChatCommand::Prompt(text) => self.prompt(text.to_owned()),
            ChatCommand::Diff => self.effects.push(ChatEffect::Diff),
            ChatCommand::Copy => match self.transcript.last_reply() {
                Some(reply) => {
                    self.effects.push(ChatEffect::Copy(reply));
                    self.remark("the last reply is in the clipboard, if the terminal allows it");
                }
                None => self.remark("there is no reply to copy"),
            },
            ChatCommand::Help => {
                self.transcript.notice(Color::Dim, &own_help());
                self.prompt("/help".to_owned());
            }
            ChatCommand::Option(id) => {
                let option = self.options.iter().find(|option| &*option.config_id.0 == id);
                match (&self.session, option) {
                    (Some(session), Some(option)) if argument.is_empty() => {
                        self.picker = Some(Picker::of_option(session, option));
                    }
                    (Some(session), Some(option)) => match named_value(session, option, argument) {
                        Ok(request) => self.set_option(request),
                        Err(values) => {
                            let mut picker = Picker::of_option(session, option);
                            argument.chars().for_each(|letter| picker.filter_by(Some(letter)));
                            if picker.chosen().is_some() {
                                self.picker = Some(picker);
                                return;
                            }
                            let near = nearest(argument, values.iter().map(String::as_str));
                            let near = near.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
                            self.remark(format!("{argument:?} is not offered for /{id}{near}"));
                        }
                    },
                    _ => self.remark(format!("there is nothing to choose for /{id} here")),
                }
            }
        }
    }

    /// Shows a short remark until the next key.
    pub fn remark(&mut self, words: impl Into<String>) {
        self.remark = Some(words.into());
    }

    fn list(&mut self, cursor: Option<wire::SessionListCursor>) {
        self.request(ChatRequest::List { cwd: self.cwd.clone(), cursor });
    }

    /// Searches for the words that were typed below a list of sessions, if no other search is running.
    fn search(&mut self) {
        if let Some(words) = self.picker.as_ref().and_then(Picker::wanted).filter(|_| !self.is_searching) {
            self.is_searching = true;
            self.effects.push(ChatEffect::Search(words.to_owned()));
        }
    }

    fn next_mode(&mut self) {
        let mode = self.option(&wire::SessionConfigOptionCategory::Mode);
        let Some((session, mode)) = self.session.as_ref().zip(mode) else { return };
        let later = |places| later_value(session, mode, places);
        match (later(1), later(2)) {
            // One key too many must not be enough for it.
            (Some((next, yes)), Some((_, no))) if next == FULL_ACCESS => {
                self.picker = Some(Picker::of_full_access(PickerChoice::Request(no), yes));
            }
            (Some((_, request)), _) => self.request(request),
            (None, _) => {}
        }
    }

    /// Sets an option. Whichever way full access is chosen, it takes a second choice.
    fn set_option(&mut self, request: ChatRequest) {
        match request.sets(MODE_OPTION, FULL_ACCESS) {
            true => self.picker = Some(Picker::of_full_access(PickerChoice::Nothing, request)),
            false => self.request(request),
        }
    }

    fn option(&self, category: &wire::SessionConfigOptionCategory) -> Option<&wire::SessionConfigOption> {
        self.options.iter().find(|option| option.category.as_ref() == Some(category))
    }

    fn confirm(&mut self, focus: Focus, number: Option<usize>, now: Duration) {
        if focus == Focus::Picker {
            return match self.picker.take().and_then(|picker| picker.chosen()) {
                Some(PickerChoice::Request(ChatRequest::Resume { session, cwd })) => {
                    self.open(Some((session, cwd)));
                }
                Some(PickerChoice::Request(request)) => self.set_option(request),
                Some(PickerChoice::FullAccess(request)) => self.request(request),
                Some(PickerChoice::Nothing) => {}
                Some(PickerChoice::Draft(text)) => {
                    self.draft.set(&text);
                    self.recall_images();
                }
                Some(PickerChoice::Prompt(text)) => self.prompt(text),
                None => {}
            };
        }
        let Some(card) = self.cards.front_mut() else { return };
        match card.answer(number, now) {
            CardAnswer::Ignored => {}
            CardAnswer::Refused(why) => self.remark(why),
            CardAnswer::Decide(option) => {
                let card = card.number();
                self.remove_card(card, now);
                self.request(ChatRequest::Decide { card, option });
            }
            CardAnswer::Explain(option) => {
                self.explaining = Some((card.number(), option));
            }
        }
    }

    fn remove_card(&mut self, number: u64, now: Duration) {
        self.cards.retain(|card| card.number() != number);
        self.explaining.take_if(|(card, _)| *card == number);
        if let Some(at) = self.forms.iter().position(|form| form.number == number)
            && let Some(form) = self.forms.remove(at)
        {
            match (at, self.forms.front_mut()) {
                (0, None) => self.draft.set(&form.draft),
                (0, Some(next)) => {
                    (next.draft, next.appeared) = (form.draft, now);
                    self.draft.set("");
                }
                _ => {}
            }
        }
        if let Some(next) = self.cards.front_mut() {
            next.appear(now);
        }
    }

    fn is_busy(&self) -> bool {
        matches!(self.activity, SessionActivity::Working(_) | SessionActivity::Asking)
    }

    fn cancel(&mut self) {
        if let Some(session) = self.session.clone().filter(|_| self.is_busy()) {
            self.request(ChatRequest::Cancel { session });
        }
    }

    fn interrupt(&mut self, now: Duration) {
        if self.interrupted.is_some_and(|at| now.saturating_sub(at) <= LEAVE_WITHIN) {
            return self.effects.push(ChatEffect::Leave);
        }
        self.interrupted = Some(now);
        self.remark("Ctrl+C again to leave");
        (self.has_help, self.picker) = (false, None);
        if self.draft.is_empty() || self.shows_card() {
            return self.cancel();
        }
        let text = self.draft.text();
        self.draft.remember(&text);
        self.draft.set("");
    }

    /// Forgets the first Ctrl+C after a while: a second one does not leave then, and nothing says that it does.
    fn forget_interrupt(&mut self, now: Duration) {
        if self.interrupted.is_some_and(|at| now.saturating_sub(at) > LEAVE_WITHIN) {
            (self.interrupted, self.remark) = (None, None);
        }
    }

    /// Opens a session in place of the current one.
    fn open(&mut self, resumed: Option<(wire::SessionId, PathBuf)>) {
        if self.is_busy() {
            return self.remark("cancel the turn first: Esc");
        }
        // Its answer would otherwise take the place of the session that is chosen now.
        if self.is_opening {
            return self.remark("a session is still being opened");
        }
        self.is_opening = true;
        if let Some(session) = self.session.take() {
            self.request(ChatRequest::Close { session });
        }
        (self.activity, self.title, self.usage) = (SessionActivity::Opening, None, None);
        self.transcript.clear();
        self.waiting.clear();
        self.said.clear();
        self.scroll = Scroll::default();
        match resumed {
            Some((session, cwd)) => {
                if cwd != self.cwd {
                    self.remark(format!("this session works in {}", cwd.display()));
                    (self.cwd, self.files) = (cwd.clone(), None);
                }
                // The conversation comes before the answer.
                self.session = Some(session.clone());
                self.request(ChatRequest::Resume { session, cwd });
            }
            None => self.request(ChatRequest::Create { cwd: self.cwd.clone() }),
        }
    }

    // ── The agent ──────────────────────────────────────────────────────────────────────────────────

    fn receive(&mut self, message: AgentMessage, now: Duration) {
        match message {
            AgentMessage::Update(notification) => {
                // Others are those of subagents, and of a session that was just closed.
                if self.session.as_ref() == Some(&notification.session_id) {
                    self.show(notification.update, now);
                }
            }
            AgentMessage::Card { card, request } => {
                self.cards.push_back(OpenCard::new(card, *request, now));
                self.picker = None;
            }
            AgentMessage::Form { card, form } => {
                let draft = if self.forms.is_empty() { self.draft.text() } else { String::new() };
                if self.forms.is_empty() {
                    self.draft.set("");
                }
                self.forms.push_back(OpenForm { number: card, dialog: form, draft, appeared: now });
                self.picker = None;
            }
            AgentMessage::CardWithdrawn(card) => self.remove_card(card, now),
            AgentMessage::Opened { session, options, commands: offered } => {
                self.is_opening = false;
                self.session = Some(session);
                self.options = options;
                self.commands = commands(offered);
                if self.activity == SessionActivity::Opening {
                    self.activity = SessionActivity::Idle;
                }
                self.transcript.settle();
                if let Some(text) = self.first_prompt.take() {
                    self.effects.push(ChatEffect::Remember(text.clone()));
                    self.prompt(text);
                }
            }
            AgentMessage::OpenFailed(why) => {
                self.is_opening = false;
                (self.session, self.activity) = (None, SessionActivity::Idle);
                self.transcript
                    .notice(Color::Red, &format!("{why}\n/new begins a session, /sessions lists them."));
            }
            AgentMessage::Options(options) => self.options = options,
            AgentMessage::Sessions { sessions, is_next: true, cursor } => {
                // The list may have been closed since.
                let next = Picker::of_sessions(sessions, cursor, &self.cwd);
                if let Some(picker) = self.picker.as_mut().filter(|picker| picker.is_loading) {
                    picker.extend(next);
                    picker.select(true);
                }
            }
            AgentMessage::Sessions { sessions, cursor, .. } => {
                self.picker = Some(Picker::of_sessions(sessions, cursor, &self.cwd));
            }
            AgentMessage::PromptFailed { text, .. } if self.withdrawn.contains(&text) => {
                self.withdrawn.retain(|withdrawn| *withdrawn != text);
            }
            AgentMessage::PromptFailed { text, why } => {
                self.no_longer_waits(&text);
                self.transcript.notice(Color::Red, &why);
                // Several may come back, and the user may be typing.
                let before = self.draft.text();
                self.draft.set(&if before.is_empty() { text } else { format!("{before}\n{text}") });
            }
            AgentMessage::Failed(why) => {
                // It can be requested again.
                self.picker.iter_mut().for_each(|picker| picker.is_loading = false);
                self.transcript.notice(Color::Red, &why);
            }
            AgentMessage::Ended(why) => {
                self.activity = SessionActivity::Ended;
                self.cards.clear();
                self.forms.clear();
                self.transcript.notice(Color::Red, &why);
                self.lost = Some(why);
            }
        }
    }

    fn no_longer_waits(&mut self, text: &str) {
        if let Some(at) = self.waiting.iter().position(|waiting| waiting == text) {
            self.waiting.remove(at);
        }
    }

    fn show(&mut self, update: wire::SessionUpdate, now: Duration) {
        use wire::SessionUpdate;
        match update {
            SessionUpdate::UserMessage(message) => {
                let MaybeUndefined::Value(content) = message.content else { return };
                let author = match &message.meta {
                    MaybeUndefined::Value(meta) => meta.get("epitome").and_then(|own| own["author"].as_str()),
                    _ => None,
                };
                let text = match author {
                    Some(author) => format!("{author}: {}", text_of(&content)),
                    None => text_of(&content),
                };
                let typed = typed(&content);
                self.no_longer_waits(typed.trim());
                if let Some(at) = self.withdrawn.iter().position(|text| text == typed.trim()) {
                    self.withdrawn.remove(at);
                    self.remark("the agent has already read this prompt");
                }
                // That of a command that was typed with `!` is in the history in that form.
                if !typed.starts_with("/shell ") {
                    self.draft.remember(typed.trim());
                }
                if !typed.starts_with('/') && !self.said.iter().any(|(id, _)| *id == *message.message_id.0) {
                    self.said.push((message.message_id.0.to_string(), typed.trim().to_owned()));
                }
                self.transcript.replace(Speaker::User, &message.message_id.0, &text);
            }
            SessionUpdate::UserMessageChunk(chunk) => self.append(Speaker::User, &chunk),
            SessionUpdate::AgentMessage(message) => {
                self.replace(Speaker::Agent, &message.message_id.0, message.content);
            }
            SessionUpdate::AgentMessageChunk(chunk) => self.append(Speaker::Agent, &chunk),
            SessionUpdate::AgentThought(thought) => {
                self.replace(Speaker::Thinking, &thought.message_id.0, thought.content);
            }
            SessionUpdate::AgentThoughtChunk(chunk) => self.append(Speaker::Thinking, &chunk),
            SessionUpdate::StateUpdate(state) => self.state(state, now),
            SessionUpdate::ToolCallUpdate(call) => self.transcript.call(call),
            SessionUpdate::TerminalUpdate(terminal) => self.transcript.terminal(terminal),
            SessionUpdate::TerminalOutputChunk(chunk) => {
                self.transcript.terminal_output(&chunk.terminal_id.0, &chunk.data, false);
            }
            SessionUpdate::PlanUpdate(plan) => {
                if let wire::PlanUpdateContent::Items(items) = plan.plan {
                    self.transcript.plan(&items.plan_id.0, items.entries);
                }
            }
            SessionUpdate::AvailableCommandsUpdate(update) => {
                self.commands = commands(slash_commands(update.available_commands));
            }
            SessionUpdate::ConfigOptionUpdate(update) => self.options = update.config_options,
            SessionUpdate::SessionInfoUpdate(info) => {
                if let MaybeUndefined::Value(title) = info.title {
                    self.title = Some(title);
                }
            }
            SessionUpdate::UsageUpdate(usage) => self.usage = Some(usage),
            SessionUpdate::Notice(notice) => {
                let color = match notice.severity {
                    wire::NoticeSeverity::Error => Color::Red,
                    wire::NoticeSeverity::Warning => Color::Yellow,
                    _ => Color::Dim,
                };
                let lines = [notice.title, notice.description.unwrap_or_default()];
                self.transcript.notice(color, lines.join("\n").trim_end());
            }
            SessionUpdate::CompactionUpdate(update) => self.compaction(update),
            SessionUpdate::SubagentUpdate(agent) => {
                let id = agent.session_id.to_string();
                if let MaybeUndefined::Value(title) = agent.title {
                    let text = format!("▸ subagent: {title}");
                    self.transcript.replace(Speaker::Notice(Color::Dim), &id, &text);
                }
            }
            // The complete summary follows; a plan is never removed; and future updates.
            _ => {}
        }
    }

    fn replace(&mut self, speaker: Speaker, id: &str, content: MaybeUndefined<Vec<wire::ContentBlock>>) {
        match content {
            MaybeUndefined::Value(content) => self.transcript.replace(speaker, id, &text_of(&content)),
            MaybeUndefined::Null => self.transcript.replace(speaker, id, ""),
            MaybeUndefined::Undefined => {}
        }
    }

    fn append(&mut self, speaker: Speaker, chunk: &wire::ContentChunk) {
        let text = text_of(std::slice::from_ref(&chunk.content));
        self.transcript.append(speaker, &chunk.message_id.0, &text);
    }

    fn state(&mut self, state: wire::StateUpdate, now: Duration) {
        match state {
            wire::StateUpdate::Idle(idle) => {
                self.activity = SessionActivity::Idle;
                self.transcript.settle();
                match idle.stop_reason {
                    Some(wire::StopReason::Error(stopped)) => {
                        let why = stopped.error.map(|error| with_hint(&error.message, error.data.as_ref()));
                        let why = why.unwrap_or_else(|| "The turn failed".to_owned());
                        self.transcript.notice(Color::Red, &why);
                    }
                    // A reply that ends within a sentence doesn't say why.
                    Some(wire::StopReason::Cancelled) => self.transcript.notice(Color::Yellow, "Cancelled"),
                    _ => {}
                }
            }
            wire::StateUpdate::RequiresAction(_) => self.activity = SessionActivity::Asking,
            // An unknown state is one of work.
            _ if self.is_working() => {}
            _ => self.activity = SessionActivity::Working(now),
        }
    }

    fn compaction(&mut self, update: wire::CompactionUpdate) {
        let words = match (update.status, update.summary, update.error) {
            (wire::CompactionStatus::Completed, MaybeUndefined::Value(summary), _) => {
                let blocks: Vec<String> =
                    summary.iter().map(|block| text_of(std::slice::from_ref(block))).collect();
                blocks.join("\n")
            }
            (wire::CompactionStatus::Completed, ..) => "Compacted".to_owned(),
            (wire::CompactionStatus::Failed, _, MaybeUndefined::Value(why)) => {
                format!("The compaction failed: {why}")
            }
            (wire::CompactionStatus::Failed, ..) => "The compaction failed".to_owned(),
            (wire::CompactionStatus::Cancelled, ..) => "The compaction was cancelled".to_owned(),
            _ => "Compacting…".to_owned(),
        };
        self.transcript.replace(Speaker::Compaction, &update.compaction_id.0, &words);
    }
}

/// The text of a message that was typed.
fn typed(content: &[wire::ContentBlock]) -> String {
    let text = |block: &wire::ContentBlock| match block {
        wire::ContentBlock::Text(text) => Some(text.text.clone()),
        _ => None,
    };
    content.iter().filter_map(text).collect()
}

/// The text of a message; other content is named.
fn text_of(content: &[wire::ContentBlock]) -> String {
    let said = typed(content);
    let shown = |block: &wire::ContentBlock| match block {
        wire::ContentBlock::Text(text) => text.text.clone(),
        wire::ContentBlock::Image(image) => {
            let marker = format!("[image {}", images::name_of(image));
            // The text may name it already.
            if said.contains(&marker) { String::new() } else { format!(" {marker}]") }
        }
        wire::ContentBlock::ResourceLink(link) => format!(" [{}]", link.name),
        wire::ContentBlock::Resource(_) => " [attached file]".to_owned(),
        _ => "[not shown]".to_owned(),
    };
    content.iter().map(shown).collect()
}

#[cfg(test)]
mod tests;
