//! Runs a program in a terminal and records its screens.

use std::io::{Read, Write};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use vt100::{Parser, Screen};

use crate::scenes::{Keys, Stage};

/// Time limit for the program.
const PATIENCE: Duration = Duration::from_secs(120);

/// Output that arrives within this time becomes one screen.
const SCREEN_EVERY: Duration = Duration::from_millis(60);

/// A screen has settled when nothing has changed for this time; only then are keys typed.
const SETTLED_AFTER: Duration = Duration::from_millis(1_500);

/// The screens of a program, each with the time at which it appeared.
pub struct Recording {
    pub size: (u16, u16),
    pub screens: Vec<(Duration, Screen)>,
}

/// Runs a shell command in a terminal of this size (columns, rows) until it ends or all keys are typed.
pub fn record(size: (u16, u16), command: &str, keys: &[Keys], stage: &Stage) -> Result<Recording> {
    let (columns, rows) = size;
    let command = format!("stty cols {columns} rows {rows}; {command}");
    let mut child = Command::new("script")
        .args(["-q", "-f", "-e", "-c", &command, "/dev/null"])
        .current_dir(stage.workspace())
        .env_clear()
        .envs(stage.environment())
        // Keep stdin open; otherwise `script` would exit.
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("`script` (util-linux) is needed to make a terminal")?;
    let from = child.stdout.take().context("its output is a pipe")?;
    let keyboard = child.stdin.take().context("its input is a pipe")?;
    let screens = screens(&pieces(from), Parser::new(rows, columns, 0), keys, keyboard);
    child.kill().ok();
    child.wait()?;
    Ok(Recording { size, screens: screens? })
}

/// The output in pieces, until it ends.
fn pieces(mut from: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (to, pieces) = channel();
    std::thread::spawn(move || {
        let mut buffer = [0; 8192];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            if to.send(buffer[..count].to_vec()).is_err() {
                break;
            }
        }
    });
    pieces
}

/// Turns the pieces into screens, at most one per `SCREEN_EVERY`.
fn screens(
    pieces: &Receiver<Vec<u8>>,
    mut parser: Parser,
    keys: &[Keys],
    mut keyboard: ChildStdin,
) -> Result<Vec<(Duration, Screen)>> {
    let began = Instant::now();
    let mut screens = Vec::new();
    let mut to_type = keys.iter().peekable();
    let mut contents = String::new();
    let mut changed = began;
    while began.elapsed() < PATIENCE {
        // A blinking cursor produces output without changing any text.
        let is_settled = changed.elapsed() >= SETTLED_AFTER;
        if let Some(next) = to_type.next_if(|next| is_settled && contents.contains(next.after)) {
            keyboard.write_all(next.typed.as_bytes()).context("its input is closed")?;
            if to_type.peek().is_none() {
                return Ok(screens);
            }
            changed = Instant::now();
        }
        let mut bytes = match pieces.recv_timeout(SCREEN_EVERY) {
            Ok(bytes) => bytes,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return Ok(screens),
        };
        let until = Instant::now() + SCREEN_EVERY;
        while let Ok(more) = pieces.recv_timeout(until.saturating_duration_since(Instant::now())) {
            bytes.extend(more);
        }
        parser.process(&bytes);
        let shown = parser.screen().contents();
        if shown != contents {
            (contents, changed) = (shown, Instant::now());
        }
        screens.push((began.elapsed(), parser.screen().clone()));
    }
    let waits = to_type.peek().map(|next| format!(" and {:?} was not shown", next.after)).unwrap_or_default();
    bail!("it did not end within {} s{waits}:\n{}", PATIENCE.as_secs(), parser.screen().contents())
}
