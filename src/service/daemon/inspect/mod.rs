//! `epitome sessions inspect`: a web page, served on loopback, that visualizes sessions.
//!
//! ```text
//!  log ─► timeline (with meter) ────────┐
//!      ─► entry ────────────────────────┼─► read ─► calls ─► server ◄─ gate ◄─ browser
//!  sessions ─► news ────────────────────┘                      └─ assets: page.html, page.css, *.js
//! ```
//!
//! It is read-only: the page may call only methods that read.

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
mod timeline_builder;

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

pub use keys::Keys;
pub use meter::{ContextPoint, Side};
pub use news::{ActivityOutlet, News};

use super::Daemon;
use calls::Backend;
use epitome_thread::SessionId;
use server::PageState;

/// Time after which the unused page's server stops.
const IDLE_TIME_MAX: Duration = Duration::from_secs(10 * 60);

/// The daemon's page, if it is being served.
#[derive(Default)]
pub struct Inspect {
    page: Mutex<Weak<PageState>>,
}

impl Inspect {
    /// Returns a single-use link to the page, or to a session on it. Starts the server if it is not running,
    /// on the current runtime.
    pub fn open(&self, daemon: &Arc<Daemon>, session: Option<&SessionId>) -> io::Result<String> {
        let mut page = self.page.lock();
        let open = match page.upgrade().filter(|page| page.touch()) {
            Some(open) => open,
            None => {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
                listener.set_nonblocking(true)?;
                let port = listener.local_addr()?.port();
                let listener = tokio::net::TcpListener::from_std(listener)?;
                let new = Arc::new(PageState::new(Keys::new()?, port, IDLE_TIME_MAX));
                tokio::spawn(serve(daemon.clone(), listener, new.clone()));
                *page = Arc::downgrade(&new);
                new
            }
        };
        let ticket = open.keys.ticket(Instant::now())?;
        let place = session.map_or(String::new(), |session| format!("#{session}"));
        Ok(format!("http://127.0.0.1:{}{}?ticket={ticket}{place}", open.port, open.keys.folder()))
    }
}

/// Serves the page until it is unused for a while or the daemon stops.
async fn serve(daemon: Arc<Daemon>, listener: tokio::net::TcpListener, page: Arc<PageState>) {
    let mut stop = daemon.stop.subscribe();
    let backend = Arc::new(Backend::new(daemon.clone()));
    tokio::select! {
        () = server::serve(listener, page, backend) => {}
        // The sender is owned by the daemon, which this function keeps alive.
        _ = stop.wait_for(|stop| *stop) => {}
    }
}
