//! The terminal: full screen, keys and frames. It decides nothing; `state` does.

use epitome_platform::local::Stream;
use epitome_platform::signals::{EndRequests, JobControl, JobRequest};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{
    self, DisableBracketedPaste, DisableMouseCapture, EnableBracketedPaste, Event, KeyCode, KeyEvent,
    KeyEventKind, KeyModifiers, KeyboardEnhancementFlags, MouseEventKind, PopKeyboardEnhancementFlags,
    PushKeyboardEnhancementFlags,
};
use ratatui::crossterm::execute;
use ratatui::crossterm::style::Print;
use ratatui::crossterm::terminal::{EnterAlternateScreen, disable_raw_mode, enable_raw_mode};
use ratatui::style::Color as Ink;
use tokio::sync::mpsc;

use crate::client::{ChatConnection, initialize};
use crate::picker::ChatSession;
use crate::state::{ChatEffect, ChatEvent, ChatStart, ChatState, draw};
use crate::{files, history, images};

/// Minimum time between frames, and the time between frames of an animation.
const FRAME: Duration = Duration::from_millis(33);
const ANIMATION: Duration = Duration::from_millis(125);

/// Events that are handled between two frames at most, so that a flood of them can be seen.
const EVENTS_MAX: usize = 512;

/// Bytes that are put into the clipboard. Terminals ignore much more.
const COPIED_BYTES_MAX: usize = 64 * 1024;

/// Rows of the conversation that stay in the terminal after the chat.
const LEFT_ROWS_MAX: usize = 1_000;

/// Reports of what was looked up that wait.
const REPORTS_MAX: usize = 8;

/// Keys that wait.
const KEYS_MAX: usize = 256;

/// Reports clicks and the wheel, but not each movement of the mouse.
const REPORT_WHEEL: &str = "\x1b[?1000h\x1b[?1006h";

/// The options with which the chat starts.
pub struct ChatSetup {
    pub cwd: PathBuf,
    /// Whether it begins with a list of the sessions.
    pub chooses: bool,
    /// The session to continue, instead of beginning one, and its directory.
    pub session: Option<(String, PathBuf)>,
    /// The first prompt.
    pub prompt: Option<String>,
    /// Is shown until the first key.
    pub remark: Option<String>,
    /// The file with the prompts of earlier chats.
    pub history: PathBuf,
    /// Opens a text in the user's editor and returns it as it was left. Fails with a sentence.
    pub edit: fn(&str) -> Result<String, String>,
    /// Searches the sessions of all directories for words. Fails with a sentence.
    pub search: fn(&str) -> Result<Vec<ChatSession>, String>,
    pub has_colors: bool,
    /// Whether the prompt has the keys of Vim.
    pub has_vim_keys: bool,
    /// The bytes that are written to the terminal at the end of a long turn.
    pub notification: Option<&'static str>,
}

/// How the chat ended.
#[derive(Debug, PartialEq, Eq)]
pub enum ChatEnd {
    /// The session that can be continued, and the end of its conversation.
    Left { session: Option<String>, rows: Vec<String> },
    /// No model can be used before the user logs in. The screen was not touched.
    NoLogin,
    /// The daemon is gone for good.
    Lost(String),
}

/// Runs the chat over a connection to the daemon until the user leaves. Fails with a sentence.
pub fn run(daemon: Stream, setup: &ChatSetup) -> Result<ChatEnd, String> {
    let initialized = initialize(daemon)?;
    if !initialized.has_login {
        return Ok(ChatEnd::NoLogin);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("the runtime could not be started: {error}"))?;
    let ended = runtime.block_on(async {
        let failed = |error: io::Error| format!("the connection to the daemon can't be used: {error}");
        let link = ChatConnection::new(initialized).map_err(failed)?;
        let failed = |error: io::Error| format!("the terminal can't be used: {error}");
        let mut screen = FullScreen::open().map_err(failed)?;
        screen.serve(link, setup).await.map_err(failed)
    });
    runtime.shutdown_background();
    ended
}

/// The terminal in full-screen mode, until it is dropped.
struct FullScreen(DefaultTerminal);

impl FullScreen {
    fn open() -> io::Result<FullScreen> {
        // It also restores the terminal if the program panics.
        let screen = FullScreen(ratatui::try_init()?);
        report_keys()?;
        Ok(screen)
    }

    /// Restores the terminal, stops until the shell continues the program, and shows the chat again.
    fn suspend(&mut self, jobs: &JobControl) -> io::Result<()> {
        report_no_keys()?;
        self.0.show_cursor()?;
        ratatui::try_restore()?;
        let stopped = jobs.stop();
        self.enter_again()?;
        stopped
    }

    /// Gives the terminal to the user's editor.
    fn edit(
        &mut self,
        text: &str,
        edit: fn(&str) -> Result<String, String>,
    ) -> io::Result<Result<String, String>> {
        report_no_keys()?;
        self.0.show_cursor()?;
        ratatui::try_restore()?;
        let edited = edit(text);
        self.enter_again()?;
        Ok(edited)
    }

    /// Shows the chat again, whatever the terminal shows now, and in whichever mode it is.
    fn enter_again(&mut self) -> io::Result<()> {
        // Raw mode that is enabled already would not be set again.
        disable_raw_mode()?;
        enable_raw_mode()?;
        // The flags are on a stack. That of this screen is empty, or has the ones that were pushed before.
        execute!(io::stdout(), EnterAlternateScreen, PopKeyboardEnhancementFlags)?;
        report_keys()?;
        self.clear()
    }

    /// Draws everything again with the next frame.
    ///
    /// `Terminal::clear` would ask the terminal for the position of the cursor, and the thread that reads keys would
    /// get the answer.
    fn clear(&mut self) -> io::Result<()> {
        let size = self.0.size()?;
        self.0.resize(size.into())
    }

    async fn serve(&mut self, mut link: ChatConnection, setup: &ChatSetup) -> io::Result<ChatEnd> {
        let (mut keys, go_on) = read_keys()?;
        let (report, mut reports) = mpsc::channel(REPORTS_MAX);
        let mut ends = EndRequests::new()?;
        let mut jobs = JobControl::new()?;
        let began = Instant::now();
        let session = setup.session.clone().map(|(session, cwd)| (session.into(), cwd));
        let start = match setup.chooses {
            true => ChatStart::Choose,
            false => ChatStart::Session { session, prompt: setup.prompt.clone() },
        };
        let (mut chat, mut effects) =
            ChatState::new(setup.cwd.clone(), start, &history::load(&setup.history));
        if setup.has_vim_keys {
            chat.use_vim_keys();
        }
        if let Some(remark) = &setup.remark {
            chat.remark(remark.as_str());
        }
        // The thread that reads keys waits while the user's editor may have the terminal.
        let mut is_reader_waiting = false;
        let (mut is_changed, mut drawn) = (true, began);
        loop {
            let mut followed = Vec::new();
            for effect in std::mem::take(&mut effects) {
                match effect {
                    ChatEffect::Request(request) => link.request(request),
                    ChatEffect::Redraw => self.clear()?,
                    ChatEffect::Suspend => self.suspend(&jobs)?,
                    ChatEffect::Notify => {
                        if let Some(sequence) = setup.notification {
                            execute!(io::stdout(), Print(sequence))?;
                        }
                    }
                    ChatEffect::Remember(prompt) => {
                        if let Err(error) = history::add(&setup.history, &prompt) {
                            tracing::warn!(%error, "a prompt is not kept for later chats");
                        }
                    }
                    ChatEffect::Edit(text) => {
                        let edited = self.edit(&text, setup.edit)?;
                        followed.extend(chat.update(ChatEvent::Edited(edited), began.elapsed()));
                    }
                    ChatEffect::ReadImages(pasted) => {
                        let read = images::read_pasted(&pasted, chat.cwd());
                        let event = ChatEvent::Images { pasted, read };
                        followed.extend(chat.update(event, began.elapsed()));
                    }
                    ChatEffect::RecallImages(words) => {
                        let read = |word: String| images::read_again(&word).map(|image| (word, image));
                        let event = ChatEvent::Recalled(words.into_iter().filter_map(read).collect());
                        followed.extend(chat.update(event, began.elapsed()));
                    }
                    ChatEffect::ListFiles => {
                        look_up(&report, chat.cwd(), |cwd| ChatEvent::Files(files::list(&cwd)));
                    }
                    ChatEffect::Diff => {
                        look_up(&report, chat.cwd(), |cwd| ChatEvent::Diff(files::diff(&cwd)));
                    }
                    ChatEffect::Search(words) => {
                        let search = setup.search;
                        look_up(&report, chat.cwd(), move |_| {
                            let found = search(&words);
                            ChatEvent::Found { words, found }
                        });
                    }
                    ChatEffect::Copy(text) => {
                        let text = &text[..text.floor_char_boundary(COPIED_BYTES_MAX)];
                        execute!(io::stdout(), Print(format!("\x1b]52;c;{}\x07", BASE64.encode(text))))?;
                    }
                    ChatEffect::Leave => {
                        return Ok(match chat.lost() {
                            Some(why) => ChatEnd::Lost(why.to_owned()),
                            None => left(&mut chat),
                        });
                    }
                }
            }
            effects.extend(followed);
            if std::mem::take(&mut is_reader_waiting) {
                // Fails if the thread has ended.
                let _ = go_on.send(());
            }
            if is_changed && drawn.elapsed() >= FRAME || drawn == began {
                self.draw(&mut chat, setup.has_colors, began.elapsed())?;
                (is_changed, drawn) = (false, Instant::now());
            }
            let pause = match (is_changed, chat.is_animated()) {
                (true, _) => FRAME.saturating_sub(drawn.elapsed()),
                (false, true) => ANIMATION.saturating_sub(drawn.elapsed()),
                (false, false) => Duration::MAX,
            };
            let event = tokio::select! {
                biased;
                () = ends.recv() => return Ok(left(&mut chat)),
                request = jobs.recv() => {
                    match request {
                        JobRequest::Stop => self.suspend(&jobs)?,
                        JobRequest::Continue => self.enter_again()?,
                    }
                    None
                }
                event = keys.recv(), if link.has_room() => match event {
                    Some(event) => {
                        is_reader_waiting = matches!(&event, Some(ChatEvent::Key(key)) if is_editor(key));
                        event
                    }
                    None => return Ok(left(&mut chat)),
                },
                Some(event) = reports.recv() => Some(event),
                message = link.next() => Some(ChatEvent::Agent(message)),
                () = tokio::time::sleep(pause) => None,
            };
            is_changed = true;
            let mut next = event;
            for _ in 0..EVENTS_MAX {
                let Some(event) = next else { break };
                effects.extend(chat.update(event, began.elapsed()));
                next = link.try_next().map(ChatEvent::Agent);
            }
            effects.extend(next.into_iter().flat_map(|event| chat.update(event, began.elapsed())));
        }
    }

    fn draw(&mut self, chat: &mut ChatState, has_colors: bool, now: Duration) -> io::Result<()> {
        self.0.draw(|frame| {
            draw(chat, frame, now);
            if !has_colors {
                for cell in &mut frame.buffer_mut().content {
                    (cell.fg, cell.bg) = (Ink::Reset, Ink::Reset);
                }
            }
        })?;
        Ok(())
    }
}

impl Drop for FullScreen {
    fn drop(&mut self) {
        // Errors are ignored: the terminal is gone.
        drop(report_no_keys());
        ratatui::restore();
        drop(io::stdout().flush());
    }
}

/// Asks for pastes, the wheel, and keys that differ. A terminal that doesn't know one of these ignores it.
fn report_keys() -> io::Result<()> {
    let disambiguate = KeyboardEnhancementFlags::DISAMBIGUATE_ESCAPE_CODES;
    execute!(
        io::stdout(),
        EnableBracketedPaste,
        PushKeyboardEnhancementFlags(disambiguate),
        Print(REPORT_WHEEL)
    )
}

fn report_no_keys() -> io::Result<()> {
    execute!(io::stdout(), PopKeyboardEnhancementFlags, DisableMouseCapture, DisableBracketedPaste)
}

/// The end of a chat that the user has left.
fn left(chat: &mut ChatState) -> ChatEnd {
    ChatEnd::Left { session: chat.resumable(), rows: chat.last_rows(LEFT_ROWS_MAX) }
}

/// Looks something up on a thread of its own, and reports it.
fn look_up(
    report: &mpsc::Sender<ChatEvent>,
    cwd: &Path,
    look: impl FnOnce(PathBuf) -> ChatEvent + Send + 'static,
) {
    let (report, cwd) = (report.clone(), cwd.to_path_buf());
    // The chat may have ended meanwhile.
    tokio::task::spawn_blocking(move || drop(report.blocking_send(look(cwd))));
}

/// Whether a key may open the user's editor, which then reads the keys.
fn is_editor(key: &KeyEvent) -> bool {
    key.code == KeyCode::Char('g') && key.modifiers.contains(KeyModifiers::CONTROL)
}

/// Reads keys on a thread. `None` is a change that only has to be drawn, such as another size. After a key that may open
/// an editor, it waits until it is told to go on.
fn read_keys() -> io::Result<(mpsc::Receiver<Option<ChatEvent>>, std::sync::mpsc::Sender<()>)> {
    let (sender, keys) = mpsc::channel(KEYS_MAX);
    let (go_on, waits) = std::sync::mpsc::channel();
    std::thread::Builder::new().name("chat-keys".to_owned()).spawn(move || {
        // Reading fails when the terminal is gone, and sending when the chat has ended.
        while let Ok(event) = event::read() {
            let event = match event {
                Event::Key(key) if key.kind != KeyEventKind::Release => Some(ChatEvent::Key(key)),
                Event::Paste(text) => Some(ChatEvent::Paste(text)),
                Event::Mouse(mouse) => match mouse.kind {
                    MouseEventKind::ScrollUp => Some(ChatEvent::Wheel { up: true }),
                    MouseEventKind::ScrollDown => Some(ChatEvent::Wheel { up: false }),
                    _ => continue,
                },
                Event::Resize(..) => None,
                Event::Key(_) | Event::FocusGained | Event::FocusLost => continue,
            };
            let opens_editor = matches!(&event, Some(ChatEvent::Key(key)) if is_editor(key));
            if sender.blocking_send(event).is_err() || opens_editor && waits.recv().is_err() {
                return;
            }
        }
    })?;
    Ok((keys, go_on))
}
