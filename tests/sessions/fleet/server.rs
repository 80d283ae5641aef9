//! A database server in a simulation, and the networks between it and the daemons.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use epitome_store_postgres::StoreAddress;
use tokio::io::{AsyncWriteExt, DuplexStream};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use super::super::world::Reached;
use super::database::{BrokenRule, Effect, Incarnation, Tables};
use super::wire::{self, Answer, Asked};

/// How long a connection lasts over which nothing arrives.
const SILENT_FOR: Duration = Duration::from_secs(5);

const PIPE_BYTES: usize = 1 << 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    Open,
    /// What is sent does not arrive.
    Silent,
    /// Connections are broken.
    Refused,
}

/// What happens to one statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The connection breaks before it arrives.
    Before,
    /// The connection breaks after it was executed.
    After,
}

/// The clock of a daemon's runtime, which does not run while the daemon is stopped.
#[derive(Clone, Copy)]
pub struct DaemonClock {
    pub started: Duration,
    pub base: Instant,
}

impl DaemonClock {
    pub fn now(&self) -> Duration {
        self.started + self.base.elapsed()
    }
}

#[derive(Clone)]
pub struct Server(Arc<Mutex<State>>);

struct State {
    tables: Tables,
    now: Duration,
    rng: fastrand::Rng,
    is_calm: bool,
    broken: BrokenRule,
    links: BTreeMap<usize, Link>,
    connections: u64,
    /// The connection and the daemon that have a transaction open, and the tables before it. Others wait.
    transaction: Option<(u64, usize, Tables)>,
    /// Connections whose transaction was ended by the server.
    ended: BTreeSet<u64>,
    /// Statements that are still on their way although their client has given up.
    late: Vec<(Incarnation, Asked)>,
    reached: Reached,
    violations: Vec<String>,
    trace: Vec<String>,
}

struct Link {
    network: Network,
    /// Number of restarts of the server.
    restarts: u64,
    /// Not a `watch` channel: that wakes its receivers in random order.
    changed: Arc<Notify>,
    /// The statement to which it happens, counted from now.
    fault: Option<(u32, Fault)>,
    is_stopped: bool,
}

impl Default for Link {
    fn default() -> Link {
        let network = Network::Open;
        Link { network, restarts: 0, changed: Arc::default(), fault: None, is_stopped: false }
    }
}

impl Server {
    pub fn new(seed: u64, broken: BrokenRule) -> Server {
        Server(Arc::new(Mutex::new(State {
            tables: Tables::default(),
            now: Duration::ZERO,
            rng: fastrand::Rng::with_seed(seed ^ 0xdb),
            is_calm: false,
            broken,
            links: BTreeMap::new(),
            connections: 0,
            transaction: None,
            ended: BTreeSet::new(),
            late: Vec::new(),
            reached: Reached::new(),
            violations: Vec::new(),
            trace: Vec::new(),
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a daemon connects to.
    pub fn address(&self, by: Incarnation, clock: DaemonClock) -> StoreAddress {
        let server = self.clone();
        let address = StoreAddress::parse("postgres://epitome@database/epitome?sslmode=disable", |_| None);
        address.expect("it is valid").simulated(Box::new(move || {
            let (client, stream) = tokio::io::duplex(PIPE_BYTES);
            tokio::spawn(server.clone().serve(by, clock, stream));
            Box::pin(async move { client })
        }))
    }

    // ── What a simulation does to it ───────────────────────────────────────────────────────────

    pub fn set_network(&self, daemon: usize, network: Network) {
        let mut state = self.state();
        let link = state.links.entry(daemon).or_default();
        link.network = network;
        link.changed.notify_waiters();
    }

    pub fn network(&self, daemon: usize) -> Network {
        self.state().links.entry(daemon).or_default().network
    }

    pub fn plan(&self, daemon: usize, statement: u32, fault: Fault) {
        self.state().links.entry(daemon).or_default().fault = Some((statement, fault));
    }

    pub fn set_stopped(&self, daemon: usize, is_stopped: bool) {
        self.state().links.entry(daemon).or_default().is_stopped = is_stopped;
    }

    /// The server is restarted: all connections break, and open transactions are undone.
    pub fn restart(&self) {
        let state = &mut *self.state();
        for link in state.links.values_mut() {
            link.restarts += 1;
            link.changed.notify_waiters();
        }
        state.undo();
    }

    /// A statement arrives whose client has given up.
    pub fn deliver_late(&self) -> bool {
        let mut state = self.state();
        if state.late.is_empty() || state.transaction.is_some() {
            return false;
        }
        let at = state.rng.usize(..);
        let at = at % state.late.len();
        let (by, asked) = state.late.remove(at);
        state.count("a statement arrived late");
        drop(state.execute(&asked, by));
        true
    }

    /// From now on, nothing fails and everything is fast.
    pub fn calm(&self) {
        let mut state = self.state();
        state.is_calm = true;
        state.links.values_mut().for_each(|link| link.fault = None);
    }

    pub fn advance(&self, now: Duration) {
        let mut state = self.state();
        state.now = state.now.max(now);
    }

    pub fn look<T>(&self, look: impl FnOnce(&Tables) -> T) -> T {
        let state = self.state();
        look(state.transaction.as_ref().map_or(&state.tables, |(_, _, before)| before))
    }

    pub fn take_events(&self) -> (Reached, Vec<String>, Vec<String>) {
        let state = &mut *self.state();
        let (reached, violations) = (&mut state.reached, &mut state.violations);
        (std::mem::take(reached), std::mem::take(violations), std::mem::take(&mut state.trace))
    }

    // ── A connection ───────────────────────────────────────────────────────────────────────────

    async fn serve(self, by: Incarnation, clock: DaemonClock, mut stream: DuplexStream) {
        let (id, restarts) = {
            let mut state = self.state();
            state.connections += 1;
            (state.connections, state.links.entry(by.daemon).or_default().restarts)
        };
        let connection = Connection { server: self, by, clock, id };
        tokio::select! {
            biased;
            () = connection.cut(restarts) => {}
            _ = connection.converse(&mut stream) => {}
        }
    }
}

/// One connection; dropping it ends its transaction.
struct Connection {
    server: Server,
    by: Incarnation,
    clock: DaemonClock,
    id: u64,
}

/// A statement on its way to the server or its answer on the way back.
struct Underway<'a> {
    connection: &'a Connection,
    asked: Option<Asked>,
    has_appended: bool,
}

impl Connection {
    async fn converse(&self, stream: &mut DuplexStream) -> io::Result<()> {
        wire::read_startup(stream).await?;
        self.arrived().await;
        stream.write_all(&wire::welcome()).await?;
        while let Some(asked) = wire::read(stream).await? {
            let mut underway = Underway { connection: self, asked: Some(asked.clone()), has_appended: false };
            let (delay, fault) = self.server.state().fate(self);
            sleep(delay).await;
            self.arrived().await;
            if fault == Some(Fault::Before) {
                return Ok(());
            }
            let (answer, effect) = loop {
                let done = self.server.state().try_execute(&asked, self);
                match done {
                    Some(done) => break done?,
                    // For the end of another transaction.
                    None => sleep(Duration::from_millis(5)).await,
                }
            };
            underway.asked = None;
            underway.has_appended = effect == Effect::Appended;
            if fault == Some(Fault::After) {
                return Ok(());
            }
            self.arrived().await;
            stream.write_all(&wire::written(&asked, &answer)).await?;
            underway.has_appended = false;
        }
        Ok(())
    }

    /// Returns once the network or a restart of the server has broken the connection.
    async fn cut(&self, restarts: u64) {
        loop {
            let (link, changed) = self.link();
            let changed = changed.notified();
            match link {
                (Network::Refused, _) => return,
                (_, now) if now != restarts => return,
                (Network::Silent, _) => match timeout(SILENT_FOR, changed).await {
                    Ok(()) => {}
                    Err(_) => return,
                },
                (Network::Open, _) => changed.await,
            }
        }
    }

    /// Waits while the network is silent.
    async fn arrived(&self) {
        loop {
            let (link, changed) = self.link();
            if link.0 == Network::Open {
                return;
            }
            changed.notified().await;
        }
    }

    /// The network, the number of restarts, and the signal of changes.
    fn link(&self) -> ((Network, u64), Arc<Notify>) {
        let mut state = self.server.state();
        let link = state.links.entry(self.by.daemon).or_default();
        ((link.network, link.restarts), link.changed.clone())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut state = self.server.state();
        if state.transaction.as_ref().is_some_and(|(id, ..)| *id == self.id) {
            state.undo();
        }
    }
}

impl Drop for Underway<'_> {
    fn drop(&mut self) {
        let mut state = self.connection.server.state();
        if self.has_appended {
            state.count("the answer to a commit was lost");
        }
        let has_transaction = state.transaction.as_ref().is_some_and(|(id, ..)| *id == self.connection.id);
        if let Some(asked @ Asked::Statement(_)) = self.asked.take()
            && !has_transaction
            && !state.is_calm
            && state.rng.bool()
        {
            state.late.push((self.connection.by, asked));
        }
    }
}

impl State {
    fn count(&mut self, what: &'static str) {
        *self.reached.entry(what).or_default() += 1;
    }

    fn undo(&mut self) {
        if let Some((id, _, before)) = self.transaction.take() {
            self.tables = before;
            self.ended.insert(id);
        }
    }

    /// How long a statement is underway, and what happens to it.
    fn fate(&mut self, connection: &Connection) -> (Duration, Option<Fault>) {
        let (lag, long) = (self.rng.u8(..40), self.rng.u64(500..9_000));
        // A transaction blocks one session in PostgreSQL, and all of them here.
        let blocks = self.transaction.as_ref().is_some_and(|(id, ..)| *id == connection.id);
        let delay = match lag {
            _ if self.is_calm || blocks => 0,
            0 => long,
            1..4 => 300,
            4..10 => 5,
            _ => 0,
        };
        let link = self.links.entry(connection.by.daemon).or_default();
        let fault = match &mut link.fault {
            Some((0, fault)) => {
                let fault = *fault;
                link.fault = None;
                Some(fault)
            }
            Some((left, _)) => {
                *left -= 1;
                None
            }
            None => None,
        };
        (Duration::from_millis(delay), fault)
    }

    /// `None` while another connection has a transaction open.
    fn try_execute(
        &mut self,
        asked: &Asked,
        connection: &Connection,
    ) -> Option<io::Result<(Answer, Effect)>> {
        self.now = self.now.max(connection.clock.now());
        if self.ended.remove(&connection.id) {
            return Some(Err(io::ErrorKind::ConnectionReset.into()));
        }
        if let Some((id, daemon, _)) = &self.transaction
            && *id != connection.id
        {
            // The server ends a transaction whose client is idle.
            let is_cut = |link: &Link| link.is_stopped || link.network != Network::Open;
            if !self.links.get(daemon).is_some_and(is_cut) {
                return None;
            }
            self.undo();
        }
        match asked {
            Asked::Simple(sql) if sql == "START TRANSACTION" => {
                self.transaction = Some((connection.id, connection.by.daemon, self.tables.clone()));
            }
            Asked::Simple(sql) if sql == "COMMIT" => self.transaction = None,
            Asked::Simple(sql) if sql == "ROLLBACK" => {
                if let Some((.., before)) = self.transaction.take() {
                    self.tables = before;
                }
            }
            _ => {}
        }
        Some(Ok(self.execute(asked, connection.by)))
    }

    fn execute(&mut self, asked: &Asked, by: Incarnation) -> (Answer, Effect) {
        let (answer, effect) = self.tables.run(asked, by, self.now, self.broken);
        match &effect {
            Effect::Nothing | Effect::Appended => {}
            Effect::StaleRefused => self.count("a stale append was refused"),
            Effect::TakenOver => self.count("a session was taken over"),
            Effect::Reclaimed => self.count("a line of unknown fate was removed"),
            Effect::Violation(why) => self.violations.push(why.clone()),
        }
        if effect != Effect::Nothing && effect != Effect::Appended {
            self.trace.push(format!("{:?}: {by:?}: {effect:?}", self.now));
        }
        (answer, effect)
    }
}
