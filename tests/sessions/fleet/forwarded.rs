//! A client's connection through a server that forwards sessions which are open at others. Its decisions are those of the
//! real one (`routes`); what `src/daemon/front/forward.rs` does with sockets is simulated here.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use epitome::acp::connection::Inline;
use epitome::daemon::front::forward::routes::{
    ClientRoute, DaemonRoute, ForwardRoutes, HOME, OWN_INITIALIZE, Unreached,
};
use epitome::daemon::messages::{FrontendMessage, MessageKind, updates_after};
use epitome::session::registry::Sessions;

use super::super::world::Reached;
use super::super::world::window::DaemonConnection;

/// Those of the real server.
const SEARCHES_MAX: u32 = 6;
const ASK_AGAIN: Duration = Duration::from_millis(500);
const GREETING_TIME_MAX: Duration = Duration::from_secs(10);

/// Shared by the window, which sends and reads lines, and the simulation, which opens links.
#[derive(Clone)]
pub struct Forwarded(Rc<RefCell<State>>);

struct State {
    routes: ForwardRoutes,
    /// The first is that to the daemon of the own server.
    links: Vec<Link>,
    /// For the client.
    shown: Vec<u8>,
    wanted: Vec<Wanted>,
    /// Whether the connection has to be begun again.
    is_over: bool,
    reached: Reached,
}

struct Link {
    daemon: usize,
    connection: Inline<Sessions>,
    written: Vec<u8>,
    greeting: Greeting,
}

enum Greeting {
    /// Since then, and for these sessions.
    Sent(Duration, Vec<String>),
    Answered,
    Late,
}

/// A session that is open at another server.
struct Wanted {
    session: String,
    address: String,
    /// When the own daemon is asked again, and why.
    again: Option<(Duration, String)>,
}

pub fn address_of(daemon: usize) -> String {
    format!("ws://node-{daemon}")
}

impl Forwarded {
    pub fn new(daemon: usize, home: Inline<Sessions>, ids_above: u64) -> Forwarded {
        let written = Vec::new();
        let home = Link { daemon, connection: home, written, greeting: Greeting::Answered };
        Forwarded(Rc::new(RefCell::new(State {
            routes: ForwardRoutes::new(ids_above, SEARCHES_MAX),
            links: vec![home],
            shown: Vec::new(),
            wanted: Vec::new(),
            is_over: false,
            reached: Reached::new(),
        })))
    }

    pub fn is_over(&self) -> bool {
        self.0.borrow().is_over
    }

    pub fn uses(&self, daemon: usize) -> bool {
        self.0.borrow().links.iter().any(|link| link.daemon == daemon && link.is_usable())
    }

    pub fn take_reached(&self) -> Reached {
        std::mem::take(&mut self.0.borrow_mut().reached)
    }

    /// Goes on with the sessions that are open elsewhere. `dial` connects to a daemon by its number, with an id above which it
    /// numbers its requests.
    pub fn go_on(&self, now: Duration, mut dial: impl FnMut(usize, u64) -> Result<Inline<Sessions>, String>) {
        let state = &mut *self.0.borrow_mut();
        state.read();
        for number in 0..state.links.len() {
            if let Greeting::Sent(since, sessions) = &mut state.links[number].greeting
                && now >= *since + GREETING_TIME_MAX
            {
                let sessions = std::mem::take(sessions);
                let link = &mut state.links[number];
                link.greeting = Greeting::Late;
                let address = address_of(link.daemon);
                let late = |session| {
                    let again = Some((now + ASK_AGAIN, "no answer in time".to_owned()));
                    Wanted { session, address: address.clone(), again }
                };
                state.wanted.extend(sessions.into_iter().map(late));
            }
        }
        for mut wanted in std::mem::take(&mut state.wanted) {
            match &wanted.again {
                Some((due, _)) if *due > now => state.wanted.push(wanted),
                Some((_, why)) => state.unreached(&wanted.session, &wanted.address, why),
                None => {
                    if let Err(why) = state.reach(&wanted, now, &mut dial) {
                        wanted.again = Some((now + ASK_AGAIN, why));
                        state.wanted.push(wanted);
                    }
                }
            }
        }
    }
}

impl DaemonConnection for Forwarded {
    fn receive(&mut self, line: &[u8]) {
        let state = &mut *self.0.borrow_mut();
        match state.routes.client_sent(line) {
            ClientRoute::To(number) => {
                if number != HOME && String::from_utf8_lossy(line).contains("\"session/prompt\"") {
                    state.count("a prompt was forwarded");
                }
                state.send(number, line);
            }
            ClientRoute::ToAll => (0..state.links.len()).for_each(|number| state.send(number, line)),
            ClientRoute::Nowhere => {}
            ClientRoute::Answer(answer) => state.shown.extend(answer),
        }
    }

    fn write(&mut self, buffer: &mut Vec<u8>) {
        let state = &mut *self.0.borrow_mut();
        state.read();
        buffer.append(&mut state.shown);
    }
}

impl Link {
    fn is_usable(&self) -> bool {
        !matches!(self.greeting, Greeting::Late)
    }
}

impl State {
    fn count(&mut self, what: &'static str) {
        *self.reached.entry(what).or_default() += 1;
    }

    fn send(&self, number: usize, line: &[u8]) {
        if let Link { connection, greeting: Greeting::Answered, .. } = &self.links[number] {
            connection.receive(line);
        }
    }

    /// Reads what the daemons have written.
    fn read(&mut self) {
        for number in 0..self.links.len() {
            let link = &mut self.links[number];
            link.connection.write(&mut link.written);
            while !self.is_over
                && let Some(lines) = next_message(&mut self.links[number].written)
            {
                self.message(number, &lines);
            }
        }
    }

    fn message(&mut self, number: usize, lines: &[u8]) {
        let message = FrontendMessage::raw(lines);
        if let Greeting::Sent(_, sessions) = &mut self.links[number].greeting {
            if message.kind == MessageKind::Response && message.id == OWN_INITIALIZE {
                let sessions = std::mem::take(sessions);
                assert!(self.routes.is_agreed(lines), "each daemon has the versions of the others");
                self.links[number].greeting = Greeting::Answered;
                sessions.iter().for_each(|session| self.reached(session, number));
            }
            return;
        }
        match self.routes.daemon_sent(number, &message) {
            DaemonRoute::Show => self.shown.extend(lines),
            DaemonRoute::Drop => {}
            DaemonRoute::Settled(session) => {
                self.shown.extend(lines);
                self.send_waiting(&session);
            }
            DaemonRoute::Elsewhere { session, address } => {
                self.wanted.push(Wanted { session, address, again: None });
            }
            DaemonRoute::BeginAgain => {
                self.count("a forwarded connection was begun again");
                self.is_over = true;
            }
        }
    }

    fn reach(
        &mut self,
        wanted: &Wanted,
        now: Duration,
        dial: &mut impl FnMut(usize, u64) -> Result<Inline<Sessions>, String>,
    ) -> Result<(), String> {
        let is_it = |link: &Link| link.is_usable() && address_of(link.daemon) == wanted.address;
        let known = (HOME + 1..self.links.len()).find(|number| is_it(&self.links[*number]));
        if let Some(number) = known {
            match &mut self.links[number].greeting {
                Greeting::Sent(_, sessions) => sessions.push(wanted.session.clone()),
                _ => self.reached(&wanted.session, number),
            }
            return Ok(());
        }
        let daemon = wanted.address.rsplit('-').next().and_then(|number| number.parse().ok());
        let daemon = daemon.expect("it is the address of a daemon");
        let connection = dial(daemon, self.routes.ids_for_next(now.as_secs()))?;
        let greeting = self.routes.greeting().expect("it has sent a request for a session");
        greeting.split_inclusive(|byte| *byte == b'\n').for_each(|line| connection.receive(line));
        let greeting = Greeting::Sent(now, vec![wanted.session.clone()]);
        self.links.push(Link { daemon, connection, written: Vec::new(), greeting });
        Ok(())
    }

    fn reached(&mut self, session: &str, number: usize) {
        if let Some(line) = self.routes.reached(session, number) {
            self.count("a request to open a session was forwarded");
            self.send(number, &line);
        }
    }

    fn unreached(&mut self, session: &str, address: &str, why: &str) {
        match self.routes.unreached(session, address, why) {
            Some(Unreached::Ask(line)) => {
                self.count("a server was not reached, and the own daemon asked again");
                self.send(HOME, &line);
            }
            Some(Unreached::GiveUp(answer)) => {
                self.shown.extend(answer);
                self.send_waiting(session);
            }
            None => {}
        }
    }

    fn send_waiting(&mut self, session: &str) {
        while let Some((number, line)) = self.routes.next_waiting(session) {
            self.send(number, &line);
        }
    }
}

/// Takes a message as the daemon wrote it: a line, or a step with its updates.
fn next_message(written: &mut Vec<u8>) -> Option<Vec<u8>> {
    let (mut end, mut left) = (0, 1);
    while left > 0 {
        let length = written[end..].iter().position(|byte| *byte == b'\n')? + 1;
        left += updates_after(&written[end..end + length]).expect("a daemon wrote it");
        left -= 1;
        end += length;
    }
    Some(written.drain(..end).collect())
}
