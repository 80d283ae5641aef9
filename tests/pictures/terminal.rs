//! A program on a terminal, and its screens.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use vt100::{Parser, Screen};

use crate::scenes::{Stage, Step};

/// Maximum wait for a text to appear or the program to end.
const PATIENCE: Duration = Duration::from_secs(120);

/// Output that arrives within this time is one screen.
const SCREEN_EVERY: Duration = Duration::from_millis(60);

/// A screen is complete if nothing was written for this long.
const QUIET: Duration = Duration::from_millis(700);

/// The screens of a program, each with the time at which it appeared.
pub struct Recording {
    pub size: (u16, u16),
    pub screens: Vec<(Duration, Screen)>,
}

pub struct Terminal {
    child: Child,
    output: Receiver<Vec<u8>>,
    parser: Parser,
    began: Instant,
    recording: Recording,
}

impl Terminal {
    /// Starts a shell command on a terminal with so many columns and rows.
    pub fn start(size: (u16, u16), command: &str, stage: &Stage) -> Result<Terminal> {
        let (columns, rows) = size;
        let command = format!("stty cols {columns} rows {rows}; {command}");
        let mut child = Command::new("script")
            .args(["-q", "-f", "-e", "-c", &command, "/dev/null"])
            .current_dir(stage.workspace())
            .env_clear()
            .envs(stage.environment())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("`script` (util-linux) is needed to make a terminal")?;
        let mut from = child.stdout.take().context("its output is a pipe")?;
        let (to, output) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 8192];
            while let Ok(count @ 1..) = from.read(&mut buffer) {
                if to.send(buffer[..count].to_vec()).is_err() {
                    break;
                }
            }
        });
        let recording = Recording { size, screens: Vec::new() };
        Ok(Terminal {
            child,
            output,
            parser: Parser::new(rows, columns, 0),
            began: Instant::now(),
            recording,
        })
    }

    pub fn perform(&mut self, step: &Step) -> Result<()> {
        match *step {
            Step::Wait(text) => {
                let until = Instant::now() + PATIENCE;
                while !self.parser.screen().contents().contains(text) {
                    if Instant::now() > until || !self.take(QUIET) {
                        bail!("{text:?} did not appear on:\n{}", self.parser.screen().contents());
                    }
                }
                self.settle();
                Ok(())
            }
            Step::Type(keys) => {
                let input = self.child.stdin.as_mut().context("its input is a pipe")?;
                input.write_all(keys.as_bytes()).and_then(|()| input.flush()).context("it reads no more")
            }
            Step::Settle => {
                self.settle();
                Ok(())
            }
            Step::ToTheEnd => {
                let until = Instant::now() + PATIENCE;
                while self.take(QUIET) {
                    if Instant::now() > until {
                        bail!("it did not end:\n{}", self.parser.screen().contents());
                    }
                }
                Ok(())
            }
        }
    }

    /// Waits until nothing was written for a moment.
    fn settle(&mut self) {
        while self.take(QUIET)
            && self.recording.screens.last().is_some_and(|(at, _)| self.began.elapsed() < *at + QUIET)
        {
        }
    }

    /// Processes what was written until now, or waits for it. `false` after the end of the program.
    fn take(&mut self, wait: Duration) -> bool {
        let mut bytes = match self.output.recv_timeout(wait) {
            Ok(bytes) => bytes,
            Err(RecvTimeoutError::Timeout) => return true,
            Err(RecvTimeoutError::Disconnected) => return false,
        };
        let until = Instant::now() + SCREEN_EVERY;
        while let Ok(more) = self.output.recv_timeout(until.saturating_duration_since(Instant::now())) {
            bytes.extend(more);
        }
        self.parser.process(&bytes);
        let screen = self.parser.screen().clone();
        self.recording.screens.push((self.began.elapsed(), screen));
        true
    }

    pub fn end(mut self) -> Recording {
        drop(self.child.stdin.take());
        self.child.kill().ok();
        self.child.wait().ok();
        self.recording
    }
}
