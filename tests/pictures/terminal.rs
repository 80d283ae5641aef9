//! A program on a terminal, and its screens.

use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use vt100::{Parser, Screen};

use crate::scenes::Stage;

/// Maximum time that the program runs.
const PATIENCE: Duration = Duration::from_secs(120);

/// Output that arrives within this time is one screen.
const SCREEN_EVERY: Duration = Duration::from_millis(60);

/// The screens of a program, each with the time at which it appeared.
pub struct Recording {
    pub size: (u16, u16),
    pub screens: Vec<(Duration, Screen)>,
}

/// Runs a shell command on a terminal with so many columns and rows, until it ends.
pub fn record(size: (u16, u16), command: &str, stage: &Stage) -> Result<Recording> {
    let (columns, rows) = size;
    let command = format!("stty cols {columns} rows {rows}; {command}");
    let mut child = Command::new("script")
        .args(["-q", "-f", "-e", "-c", &command, "/dev/null"])
        .current_dir(stage.workspace())
        .env_clear()
        .envs(stage.environment())
        // Its input stays open, or it would end.
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("`script` (util-linux) is needed to make a terminal")?;
    let from = child.stdout.take().context("its output is a pipe")?;
    let screens = screens(&pieces(from), Parser::new(rows, columns, 0));
    child.kill().ok();
    child.wait()?;
    Ok(Recording { size, screens: screens? })
}

/// What is written, in pieces, until the end.
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

/// The screens that the pieces make, one at most in each `SCREEN_EVERY`.
fn screens(pieces: &Receiver<Vec<u8>>, mut parser: Parser) -> Result<Vec<(Duration, Screen)>> {
    let began = Instant::now();
    let mut screens = Vec::new();
    while began.elapsed() < PATIENCE {
        let mut bytes = match pieces.recv_timeout(PATIENCE.saturating_sub(began.elapsed())) {
            Ok(bytes) => bytes,
            Err(RecvTimeoutError::Timeout) => break,
            Err(RecvTimeoutError::Disconnected) => return Ok(screens),
        };
        let until = Instant::now() + SCREEN_EVERY;
        while let Ok(more) = pieces.recv_timeout(until.saturating_duration_since(Instant::now())) {
            bytes.extend(more);
        }
        parser.process(&bytes);
        screens.push((began.elapsed(), parser.screen().clone()));
    }
    bail!("it did not end within {} s:\n{}", PATIENCE.as_secs(), parser.screen().contents())
}
