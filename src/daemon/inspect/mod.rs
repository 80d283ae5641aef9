//! `epitome inspect`: one page, served on loopback, for looking at sessions rather than reading them.
//!
//! ```text
//!  log ─► timeline (with meter, words) ─┐
//!      ─► entry ────────────────────────┼─► read ─► calls ─► server ◄─ gate ◄─ browser
//!  sessions ─► news ────────────────────┘                      └─ assets: page.html, page.css, *.js
//! ```
//!
//! It changes nothing: what the page may call is a list of methods that read.

mod assets;
pub mod calls;
pub mod entry;
mod gate;
mod keys;
mod meter;
mod news;
pub mod read;
pub mod server;
pub mod timeline;
mod walk;
mod words;

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

pub use keys::Keys;
pub use meter::{Point, Side};
pub use news::{Gathered, News};

use super::Daemon;
use calls::Inside;
use epitome_thread::SessionId;
use server::Room;

/// How long the page's server waits for somebody to use it again.
const IDLE_TIME_MAX: Duration = Duration::from_secs(10 * 60);

/// The daemon's page, where one is served.
#[derive(Default)]
pub struct Inspect {
    room: Mutex<Weak<Room>>,
}

impl Inspect {
    /// A link to the page, for one use; at a session, where one is given. It starts the server where there is
    /// none, on the runtime that this is called in.
    pub fn open(&self, daemon: &Arc<Daemon>, session: Option<&SessionId>) -> io::Result<String> {
        let mut room = self.room.lock().unwrap_or_else(PoisonError::into_inner);
        let open = match room.upgrade().filter(|room| room.touch()) {
            Some(open) => open,
            None => {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
                listener.set_nonblocking(true)?;
                let port = listener.local_addr()?.port();
                let listener = tokio::net::TcpListener::from_std(listener)?;
                let new = Arc::new(Room::new(Keys::new()?, port, IDLE_TIME_MAX));
                tokio::spawn(serve(daemon.clone(), listener, new.clone()));
                *room = Arc::downgrade(&new);
                new
            }
        };
        let ticket = open.keys.ticket(Instant::now())?;
        let place = session.map_or(String::new(), |session| format!("#{session}"));
        Ok(format!("http://127.0.0.1:{}{}?ticket={ticket}{place}", open.port, open.keys.folder()))
    }
}

/// Serves the page until nobody uses it, or the daemon ends.
async fn serve(daemon: Arc<Daemon>, listener: tokio::net::TcpListener, room: Arc<Room>) {
    let mut stop = daemon.stop.subscribe();
    let door = Arc::new(Inside::of(daemon.clone()));
    tokio::select! {
        () = server::serve(listener, room, door) => {}
        // The sender lives in the daemon, which is held here.
        _ = stop.wait_for(|stop| *stop) => {}
    }
}
