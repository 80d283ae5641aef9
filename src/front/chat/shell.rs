//! The terminal: full screen, keys and frames. It decides nothing; `state` does.

use epitome_platform::local::Stream;
use epitome_platform::signals::{EndRequests, JobControl, JobRequest};
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{
    self, DisableBracketedPaste, DisableMouseCapture, EnableBracketedPaste, Event, KeyEventKind,
    KeyboardEnhancementFlags, MouseEventKind, PopKeyboardEnhancementFlags, PushKeyboardEnhancementFlags,
};
use ratatui::crossterm::execute;
use ratatui::crossterm::style::Print;
use ratatui::crossterm::terminal::{EnterAlternateScreen, disable_raw_mode, enable_raw_mode};
use ratatui::style::Color as Ink;
use tokio::sync::mpsc;

use crate::client::{ChatConnection, initialize};
use crate::state::{ChatEffect, ChatEvent, ChatState, draw};

/// Minimum time between frames, and the time between frames of an animation.
const FRAME: Duration = Duration::from_millis(33);
const ANIMATION: Duration = Duration::from_millis(125);

/// Events that are handled between two frames at most, so that a flood of them can be seen.
const EVENTS_MAX: usize = 512;

/// Keys that wait.
const KEYS_MAX: usize = 256;

/// Reports clicks and the wheel, but not each movement of the mouse.
const REPORT_WHEEL: &str = "\x1b[?1000h\x1b[?1006h";

/// The options with which the chat starts.
pub struct ChatSetup {
    pub cwd: PathBuf,
    /// The session to continue, instead of beginning one.
    pub session: Option<String>,
    /// The first prompt.
    pub prompt: Option<String>,
    pub has_colors: bool,
    /// The bytes that are written to the terminal at the end of a long turn.
    pub notification: Option<&'static str>,
}

/// How the chat ended.
#[derive(Debug, PartialEq, Eq)]
pub enum ChatEnd {
    Left,
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
        let mut keys = read_keys()?;
        let mut ends = EndRequests::new()?;
        let mut jobs = JobControl::new()?;
        let began = Instant::now();
        let (mut chat, mut effects) =
            ChatState::new(setup.cwd.clone(), setup.session.clone().map(Into::into), setup.prompt.clone());
        let (mut is_changed, mut drawn) = (true, began);
        loop {
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
                    ChatEffect::Leave => {
                        return Ok(chat.lost().map_or(ChatEnd::Left, |why| ChatEnd::Lost(why.to_owned())));
                    }
                }
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
                () = ends.recv() => return Ok(ChatEnd::Left),
                request = jobs.recv() => {
                    match request {
                        JobRequest::Stop => self.suspend(&jobs)?,
                        JobRequest::Continue => self.enter_again()?,
                    }
                    None
                }
                event = keys.recv(), if link.has_room() => match event {
                    Some(event) => event,
                    None => return Ok(ChatEnd::Left),
                },
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

/// Reads keys on a thread. `None` is a change that only has to be drawn, such as another size.
fn read_keys() -> io::Result<mpsc::Receiver<Option<ChatEvent>>> {
    let (sender, keys) = mpsc::channel(KEYS_MAX);
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
            if sender.blocking_send(event).is_err() {
                return;
            }
        }
    })?;
    Ok(keys)
}
