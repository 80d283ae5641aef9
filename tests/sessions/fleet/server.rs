//! A database in a simulation: a primary with a synchronous standby, and the networks between them and the daemons.
//!
//! A commit is executed by the primary and confirmed once the standby has received it. Others see it in between, as in
//! PostgreSQL after a wait for the standby was cancelled.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use epitome_store_postgres::StoreAddress;
use parking_lot::Mutex;
use tokio::io::{AsyncWriteExt, DuplexStream};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use super::super::world::Reached;
use super::database::{BrokenRule, Effect, Incarnation, Tables};
use super::wire::{self, Answer, Asked};

/// How long a connection lasts over which nothing arrives.
const SILENT_FOR: Duration = Duration::from_secs(5);

/// How often a connection looks whether it can go on.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(20);

/// How much the clocks of the two servers differ, at most.
const SKEW_MAX: Duration = Duration::from_secs(8);

const PIPE_BYTES: usize = 1 << 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    Open,
    /// Data that is sent does not arrive.
    Silent,
    /// Connections are broken.
    Refused,
}

/// The fate of one statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The connection breaks before it arrives.
    Before,
    /// The connection breaks after it was executed.
    After,
}

/// How a primary is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Its connections break.
    Killed,
    /// Its machine is silent.
    Silent,
    /// Nothing: it does not know that the standby was promoted. It answers what reads, and waits for the standby otherwise.
    Unfenced,
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
    /// The tables of the primary.
    tables: Tables,
    /// The tables of the standby. Without one, the primary does not wait for it.
    standby: Option<Tables>,
    /// Commits that the standby has not received yet, in order.
    unsent: VecDeque<Commit>,
    is_replicating: bool,
    /// Number of commits so far.
    commits: u64,
    /// The statements of the open transaction.
    uncommitted: Commit,
    hosts: [Host; 2],
    primary: usize,
    /// The tables of a primary that was replaced while it ran.
    replaced: Option<Tables>,
    /// The daemons that use it.
    at_replaced: BTreeSet<usize>,
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

/// The statements of a transaction that wrote something.
type Commit = Vec<Written>;

struct Written {
    asked: Asked,
    by: Incarnation,
    now: Duration,
    has_appended: bool,
}

/// One of the two servers.
struct Host {
    network: Network,
    /// How often it was started.
    starts: u64,
    /// By how much its clock is ahead.
    skew: Duration,
}

struct Link {
    network: Network,
    /// Not a `watch` channel: that wakes its receivers in random order.
    changed: Arc<Notify>,
    /// The statement to which it happens, counted from now.
    fault: Option<(u32, Fault)>,
    is_stopped: bool,
}

impl Default for Link {
    fn default() -> Link {
        let network = Network::Open;
        Link { network, changed: Arc::default(), fault: None, is_stopped: false }
    }
}

impl Server {
    pub fn new(seed: u64, broken: BrokenRule) -> Server {
        let mut rng = fastrand::Rng::with_seed(seed ^ 0xdb);
        let hosts = [(); 2].map(|()| {
            let skew = Duration::from_millis(rng.u64(..SKEW_MAX.as_millis() as u64));
            Host { network: Network::Open, starts: 0, skew }
        });
        Server(Arc::new(Mutex::new(State {
            tables: Tables::default(),
            standby: Some(Tables::default()),
            unsent: VecDeque::new(),
            is_replicating: true,
            commits: 0,
            uncommitted: Vec::new(),
            hosts,
            primary: 0,
            replaced: None,
            at_replaced: BTreeSet::new(),
            now: Duration::ZERO,
            rng,
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

    /// The address that a daemon connects to.
    pub fn address(&self, by: Incarnation, clock: DaemonClock) -> StoreAddress {
        let server = self.clone();
        let url = "postgres://epitome@db1,db2/epitome?sslmode=disable&target_session_attrs=read-write";
        let address = StoreAddress::parse(url, |_| None);
        address.expect("it is valid").simulated(Box::new(move |host| {
            let (client, stream) = tokio::io::duplex(PIPE_BYTES);
            tokio::spawn(server.clone().serve(by, clock, host, stream));
            Box::pin(async move { client })
        }))
    }

    // ── What a simulation does to it ───────────────────────────────────────────────────────────

    pub fn set_network(&self, daemon: usize, network: Network) {
        let mut state = self.0.lock();
        let link = state.links.entry(daemon).or_default();
        link.network = network;
        link.changed.notify_waiters();
    }

    pub fn network(&self, daemon: usize) -> Network {
        self.0.lock().links.entry(daemon).or_default().network
    }

    pub fn plan(&self, daemon: usize, statement: u32, fault: Fault) {
        self.0.lock().links.entry(daemon).or_default().fault = Some((statement, fault));
    }

    pub fn set_stopped(&self, daemon: usize, is_stopped: bool) {
        self.0.lock().links.entry(daemon).or_default().is_stopped = is_stopped;
    }

    /// The primary is restarted: all connections break, and open transactions are undone.
    pub fn restart(&self) {
        let state = &mut *self.0.lock();
        state.hosts[state.primary].starts += 1;
        state.undo();
        state.wake();
    }

    /// Whether the standby receives what the primary commits.
    pub fn set_replicating(&self, is_replicating: bool) {
        let state = &mut *self.0.lock();
        state.is_replicating = is_replicating;
        state.replicate();
    }

    pub fn is_replicating(&self) -> bool {
        self.0.lock().is_replicating
    }

    /// The standby is promoted. It has received some of the commits that were not confirmed. False without a standby.
    pub fn fail_over(&self, loss: Loss) -> bool {
        let state = &mut *self.0.lock();
        if state.standby.is_none() {
            return false;
        }
        state.undo();
        let received = state.rng.usize(..=state.unsent.len());
        let lost = state.unsent.split_off(received);
        let has_appended = |commit: &Commit| commit.iter().any(|written| written.has_appended);
        if state.unsent.iter().any(has_appended) {
            state.count("an unconfirmed line survived a failover");
        }
        if lost.iter().any(has_appended) {
            state.count("an unconfirmed line was lost in a failover");
        }
        state.receive();
        let promoted = state.standby.take().expect("there is one");
        let old = std::mem::replace(&mut state.tables, promoted);
        state.late.clear();
        state.replaced = (loss == Loss::Unfenced).then_some(old);
        state.at_replaced.clear();
        state.hosts[state.primary].network = match loss {
            Loss::Killed => Network::Refused,
            Loss::Silent => Network::Silent,
            Loss::Unfenced => Network::Open,
        };
        state.primary = 1 - state.primary;
        state.count("the standby was promoted");
        state.wake();
        true
    }

    /// The server that was lost becomes the standby of the other one. False if there is a standby.
    pub fn rejoin(&self) -> bool {
        let state = &mut *self.0.lock();
        if state.standby.is_some() {
            return false;
        }
        let committed = state.transaction.as_ref().map_or(&state.tables, |(_, _, before)| before);
        state.standby = Some(committed.clone());
        state.replaced = None;
        state.is_replicating = true;
        let host = &mut state.hosts[1 - state.primary];
        host.network = Network::Open;
        host.starts += 1;
        state.wake();
        true
    }

    /// A statement arrives whose client has given up.
    pub fn deliver_late(&self) -> bool {
        let mut state = self.0.lock();
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
        let mut state = self.0.lock();
        state.is_calm = true;
        state.links.values_mut().for_each(|link| link.fault = None);
    }

    pub fn advance(&self, now: Duration) {
        let mut state = self.0.lock();
        state.now = state.now.max(now);
    }

    pub fn look<T>(&self, look: impl FnOnce(&Tables) -> T) -> T {
        let state = self.0.lock();
        look(state.transaction.as_ref().map_or(&state.tables, |(_, _, before)| before))
    }

    pub fn take_events(&self) -> (Reached, Vec<String>, Vec<String>) {
        let state = &mut *self.0.lock();
        let (reached, violations) = (&mut state.reached, &mut state.violations);
        (std::mem::take(reached), std::mem::take(violations), std::mem::take(&mut state.trace))
    }

    // ── A connection ───────────────────────────────────────────────────────────────────────────

    async fn serve(self, by: Incarnation, clock: DaemonClock, host: usize, mut stream: DuplexStream) {
        let (id, starts) = {
            let mut state = self.0.lock();
            state.connections += 1;
            (state.connections, state.hosts[host].starts)
        };
        let connection = Connection { server: self, by, clock, host, id };
        tokio::select! {
            biased;
            () = connection.cut(starts) => {}
            _ = connection.converse(&mut stream) => {}
        }
    }
}

/// One connection; dropping it ends its transaction.
struct Connection {
    server: Server,
    by: Incarnation,
    clock: DaemonClock,
    host: usize,
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
        if !self.server.0.lock().accept(self.host, self.by.daemon) {
            return Ok(());
        }
        stream.write_all(&wire::welcome()).await?;
        while let Some(asked) = wire::read(stream).await? {
            let mut underway = Underway { connection: self, asked: Some(asked.clone()), has_appended: false };
            let (delay, fault) = self.server.0.lock().fate(self);
            sleep(delay).await;
            self.arrived().await;
            if fault == Some(Fault::Before) {
                return Ok(());
            }
            let ((answer, effect), commit) = loop {
                let (done, commit) = {
                    let mut state = self.server.0.lock();
                    let before = state.commits;
                    let done = state.try_execute(&asked, self);
                    (done, (state.commits > before).then_some(state.commits))
                };
                match done {
                    Some(done) => break (done?, commit),
                    None => sleep(LOOK_AGAIN_AFTER).await,
                }
            };
            underway.asked = None;
            underway.has_appended = effect == Effect::Appended;
            if fault == Some(Fault::After) {
                return Ok(());
            }
            while commit.is_some_and(|commit| !self.server.0.lock().is_confirmed(self.host, commit)) {
                sleep(LOOK_AGAIN_AFTER).await;
            }
            self.arrived().await;
            stream.write_all(&wire::written(&asked, &answer)).await?;
            underway.has_appended = false;
        }
        Ok(())
    }

    /// Returns once the network or a start of the server has broken the connection.
    async fn cut(&self, starts: u64) {
        loop {
            let (link, changed) = self.link();
            let changed = changed.notified();
            match link {
                (Network::Refused, _) => return,
                (_, now) if now != starts => return,
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

    /// The network, the number of starts of the server, and the signal of changes.
    fn link(&self) -> ((Network, u64), Arc<Notify>) {
        let state = &mut *self.server.0.lock();
        let (host, link) = (&state.hosts[self.host], state.links.entry(self.by.daemon).or_default());
        let network = if host.network == Network::Open { link.network } else { host.network };
        ((network, host.starts), link.changed.clone())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut state = self.server.0.lock();
        if state.transaction.as_ref().is_some_and(|(id, ..)| *id == self.id) {
            state.undo();
        }
    }
}

impl Drop for Underway<'_> {
    fn drop(&mut self) {
        let mut state = self.connection.server.0.lock();
        if self.has_appended {
            state.count("the answer to a commit was lost");
        }
        let has_transaction = state.transaction.as_ref().is_some_and(|(id, ..)| *id == self.connection.id);
        if let Some(asked @ Asked::Statement(_)) = self.asked.take()
            && !has_transaction
            && state.primary == self.connection.host
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
            self.uncommitted.clear();
            self.ended.insert(id);
        }
    }

    fn wake(&self) {
        self.links.values().for_each(|link| link.changed.notify_waiters());
    }

    /// Whether a client with `target_session_attrs=read-write` uses this server: not if it is a standby.
    fn accept(&mut self, host: usize, daemon: usize) -> bool {
        if host == self.primary && self.at_replaced.remove(&daemon) && self.replaced.is_some() {
            self.count("a daemon left a primary that had been replaced");
        }
        host == self.primary || self.replaced.is_some()
    }

    /// Whether a client of this server may learn that the commit has succeeded.
    fn is_confirmed(&self, host: usize, commit: u64) -> bool {
        let received = self.commits - self.unsent.len() as u64;
        let waits = self.standby.is_some() && self.broken != BrokenRule::Replication && received < commit;
        host == self.primary && !waits
    }

    fn commit(&mut self, commit: Commit) {
        self.commits += 1;
        if self.standby.is_some() {
            self.unsent.push_back(commit);
            self.replicate();
        }
    }

    fn replicate(&mut self) {
        if self.is_replicating {
            self.receive();
        }
    }

    /// The standby receives what was sent.
    fn receive(&mut self) {
        let Some(standby) = &mut self.standby else { return };
        for Written { asked, by, now, .. } in self.unsent.drain(..).flatten() {
            drop(standby.run(&asked, by, now, self.broken));
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

    /// `None` while another connection has a transaction open, or if a server waits that was replaced.
    fn try_execute(
        &mut self,
        asked: &Asked,
        connection: &Connection,
    ) -> Option<io::Result<(Answer, Effect)>> {
        self.now = self.now.max(connection.clock.now());
        if connection.host != self.primary {
            let now = self.now + self.hosts[connection.host].skew;
            self.at_replaced.insert(connection.by.daemon);
            let tables = self.replaced.as_mut().filter(|_| asked.only_reads())?;
            return Some(Ok(tables.run(asked, connection.by, now, self.broken)));
        }
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
            Asked::Simple(sql) if sql == "COMMIT" => {
                self.transaction = None;
                let commit = std::mem::take(&mut self.uncommitted);
                self.commit(commit);
            }
            Asked::Simple(sql) if sql == "ROLLBACK" => {
                if let Some((.., before)) = self.transaction.take() {
                    self.tables = before;
                    self.uncommitted.clear();
                }
            }
            _ => {}
        }
        Some(Ok(self.execute(asked, connection.by)))
    }

    fn execute(&mut self, asked: &Asked, by: Incarnation) -> (Answer, Effect) {
        let now = self.now + self.hosts[self.primary].skew;
        let (answer, effect) = self.tables.run(asked, by, now, self.broken);
        if matches!(asked, Asked::Statement(_)) && !asked.only_reads() {
            let has_appended = effect == Effect::Appended;
            let written = Written { asked: asked.clone(), by, now, has_appended };
            match self.transaction {
                Some(_) => self.uncommitted.push(written),
                None => self.commit(vec![written]),
            }
        }
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
