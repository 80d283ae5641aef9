//! `epitome acp`: speaks the Agent Client Protocol on stdin and stdout, for as long as the editor does.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use tokio::signal::unix::{SignalKind, signal};

use super::{CliError, overrides, serve};
use crate::acp::connection::{Closer, Connection, Direction, Tap};
use crate::acp::server::Parts;
use crate::config::Settings;
use crate::paths::Paths;
use crate::provider::endpoint;
use crate::session::ClientId;
use crate::session::registry::{Overrides, Sessions};
use crate::transcript::Recorder;

struct Flags {
    overrides: Overrides,
    transcript: Option<PathBuf>,
}

pub fn main(arguments: Vec<OsString>) -> Result<i32, CliError> {
    let flags = read(arguments)?;
    let paths = serve::paths();
    serve::log_to_file(&paths);
    let tap = flags.transcript.as_deref().map(record).transpose()?;
    let (reader, writer) = ends().map_err(|error| {
        let hint = "start it from an editor, or with pipes".to_owned();
        CliError::failed(format!("stdin and stdout can't be used: {error}"), Some(hint))
    })?;
    let runtime = serve::runtime()?;
    let overrides = Arc::new(flags.overrides);
    let sessions = serve::sessions(paths.clone(), runtime.handle());
    let environment = serve::environment();
    let parts = Parts {
        sessions,
        runtime: runtime.handle().clone(),
        client: ClientId(1),
        environment,
        overrides: overrides.clone(),
        configured: Box::new(move || is_configured(&paths, &overrides)),
    };
    let connection = Connection::open(writer, parts, tap);
    close_on_signal(&runtime, connection.closer());
    connection.read(reader);
    connection.closer().close();
    // Not by the end of main: the runtime would wait for work that nobody wants any more.
    std::process::exit(0)
}

fn read(arguments: Vec<OsString>) -> Result<Flags, CliError> {
    use lexopt::prelude::Long;
    let mut flags = Flags { overrides: Overrides::default(), transcript: None };
    let mut parser = lexopt::Parser::from_args(arguments);
    while let Some(argument) = parser.next()? {
        match argument {
            Long("transcript") => flags.transcript = Some(PathBuf::from(parser.value()?)),
            // One process does all, for now in any case.
            Long("standalone") => {}
            Long(name) if overrides::is_flag(name) => {
                let name = name.to_owned();
                overrides::set(&mut flags.overrides, &name, &mut parser)?;
            }
            other => return Err(other.unexpected().into()),
        }
    }
    Ok(flags)
}

/// Our two ends of the wire, blocking and without a buffer of the standard library's between.
fn ends() -> io::Result<(File, File)> {
    let reader = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let writer = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    for end in [&reader, &writer] {
        // Some editors hand over the ends as they use them themselves.
        let flags = fcntl_getfl(end)?;
        if flags.contains(OFlags::NONBLOCK) {
            fcntl_setfl(end, flags - OFlags::NONBLOCK)?;
        }
    }
    Ok((reader, writer))
}

fn is_configured(paths: &Paths, overrides: &Overrides) -> bool {
    let (settings, _) = Settings::load(paths, None, |name| std::env::var_os(name));
    endpoint::is_configured(&overrides.over(settings), &serve::environment())
}

/// Editors end us by TERM; what runs is recorded, and the exit is an orderly one.
fn close_on_signal(runtime: &tokio::runtime::Runtime, closer: Closer<Sessions>) {
    for kind in [SignalKind::terminate(), SignalKind::hangup(), SignalKind::interrupt()] {
        let closer = closer.clone();
        runtime.spawn(async move {
            let Ok(mut signals) = signal(kind) else { return };
            if signals.recv().await.is_some() {
                // Closing waits, which no thread of the runtime may.
                std::thread::spawn(move || {
                    closer.close();
                    std::process::exit(0);
                });
            }
        });
    }
}

fn record(path: &Path) -> Result<Tap, CliError> {
    // As private as the journals: it holds what is said.
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
    let file = file.map_err(|error| {
        CliError::failed(format!("the transcript {} can't be written: {error}", path.display()), None)
    })?;
    let mut recorder = Recorder::new(file);
    Ok(Box::new(move |direction, line| {
        let direction = match direction {
            Direction::FromClient => crate::transcript::Direction::ToAgent,
            Direction::ToClient => crate::transcript::Direction::ToEditor,
        };
        // A full disk must not end the session that is recorded.
        drop(recorder.line(direction, line));
    }))
}
