//! The logs of sessions in PostgreSQL.
//!
//! ```text
//! epitome_session   one row a session: who may write it, how many entries it has, its header
//! epitome_process   one row a process that has sessions open: until when it has them, and where it serves clients
//! epitome_entry     the lines of the logs, as they would be in a file, without newlines
//! epitome_blob      large bodies, by their digest
//! epitome_policy    what is prescribed to everybody who uses it
//! epitome_schema    the version of these tables
//! ```
//!
//! **One writer.** A session has a holder and an epoch. Opening it raises the epoch, and an append is one statement that
//! writes only under its own epoch. So a writer whose session was opened elsewhere writes nothing, whatever it believes,
//! and no clock matters for that.
//!
//! **When it may be opened elsewhere.** Each process has a lease for all its sessions and renews it. A session can be opened
//! once the lease of its process has run out and was not renewed while somebody looked: when a database is reachable
//! again, all leases have run out, and those who are alive need a moment to renew them.
//!
//! **Unknown outcomes.** If a connection breaks during an append, nobody knows whether the line was committed. The
//! writer then raises its own epoch, which invalidates the statement if it is still on its way, removes the line, and
//! appends it again, for a limited time.
//!
//! The statements use neither LISTEN nor advisory locks nor session state, and serialization failures are repeated.

mod address;
mod connections;
mod header_row;
mod listing;
mod log;
mod policy;
mod tls;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use epitome_platform::blocking;
use parking_lot::Mutex;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

pub use address::{Dial, StoreAddress, StoreAddressError};
use connections::{Connections, Param, SqlFailure, TRY_FOR, param};
use epitome_store::{
    Blobs, Header, JournalLine, Listing, Log, LogStore, Scan, SessionHolder, SessionQuery, StoreError,
    StoredLog, WholeLog,
};
use epitome_thread::SessionId;
use header_row::HeaderRow;
use log::OpenLog;
pub use policy::StoredPolicy;

/// Connections at a time. Commits of several connections share a write to the server's disk.
const CONNECTIONS_MAX: usize = 8;

/// How long a lease lasts without being renewed. The sessions of a process that was killed can be opened after that time.
pub const LEASE: Duration = Duration::from_secs(4);

const RENEW_EVERY: Duration = Duration::from_secs(1);

const RENEW_AGAIN_AFTER: Duration = Duration::from_millis(500);

/// How often a lease is looked at while it may be that of a process that was killed.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// How long a lease that has run out must not be renewed while the database can be reached, before it counts as that of a
/// process that was killed.
const LOOK_FOR: Duration = Duration::from_millis(2_500);

/// A lease that ran out so long ago needs no second look.
const LONG_OVER: Duration = Duration::from_secs(30);

/// How often a log is read that lacks lines.
const READ_TRIES: u32 = 3;

/// Sessions that are listed, or lines that are stored, with one statement.
const PAGE: usize = 1_000;

/// How long it may take to store a complete log.
const PUBLISH_FOR: Duration = Duration::from_secs(10 * 60);

/// How long the end of a process waits until its leases are given back.
const SETTLE_WAITS: Duration = Duration::from_secs(3);

/// See the module. Clones share the connections.
#[derive(Clone)]
pub struct Postgres(Arc<Shared>);

pub(crate) struct Shared {
    runtime: Handle,
    /// The same, if it is its own. `None` while it is dropped.
    own_runtime: Option<Runtime>,
    connections: Connections,
    /// Renewals don't queue behind appends.
    renewals: Connections,
    /// Names this process: where it runs, for people, and what makes it unique.
    process: String,
    /// The address at which this process serves clients of other machines.
    address: Mutex<Option<String>>,
    /// The open logs by the name under which they have their lease.
    open: Mutex<BTreeMap<String, Weak<OpenLog>>>,
    /// Leases that are being given back.
    releasing: watch::Sender<usize>,
}

/// The process that has a session, and its lease.
#[derive(Clone, PartialEq)]
struct HeldLease {
    /// The name under which its process has it.
    name: String,
    /// `None` if its process is not known any longer, as the process itself.
    until: Option<String>,
    process: Option<String>,
    address: Option<String>,
}

impl Postgres {
    /// Connects when it is first used.
    pub fn new(address: StoreAddress) -> std::io::Result<Postgres> {
        // Its own threads, so that callers may block within another runtime.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("epitome-postgres")
            .enable_all()
            .build()?;
        Ok(Postgres::on(runtime.handle().clone(), Some(runtime), address))
    }

    /// Works on a simulation's runtime. Its calls must come from work in steps (`blocking::in_steps`).
    pub fn simulated(address: StoreAddress, runtime: Handle) -> Postgres {
        Postgres::on(runtime, None, address)
    }

    fn on(runtime: Handle, own_runtime: Option<Runtime>, address: StoreAddress) -> Postgres {
        let address = Arc::new(address);
        let host = epitome_platform::os::host_name();
        let shared = Arc::new(Shared {
            connections: Connections::new(address.clone(), CONNECTIONS_MAX),
            renewals: Connections::new(address, 1),
            process: format!("{host}, process {} ({})", std::process::id(), epitome_store::new_id()),
            address: Mutex::default(),
            open: Mutex::default(),
            releasing: watch::Sender::new(0),
            runtime,
            own_runtime,
        });
        let weak = Arc::downgrade(&shared);
        shared.spawn(async move {
            let mut pause = RENEW_EVERY;
            loop {
                sleep(pause).await;
                let Some(shared) = weak.upgrade() else { return };
                // After a failure there is no time to lose.
                pause = if shared.renew().await { RENEW_EVERY } else { RENEW_AGAIN_AFTER };
            }
        });
        Postgres(shared)
    }

    fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        blocking::wait(&self.0.runtime, work)
    }

    /// Runs a statement that may be repeated if its outcome is unknown.
    fn query(&self, doing: &'static str, sql: &str, params: Vec<Param>) -> Result<Vec<Row>, StoreError> {
        let (shared, sql) = (self.0.clone(), sql.to_owned());
        self.run(async move { shared.connections.query(doing, &sql, params).await })
    }

    /// Removes bodies that were stored more than a day ago and that no line names. A body is stored before its line, which
    /// is lost if the writer is killed in between. Returns how many there were.
    pub fn remove_unused_bodies(&self) -> Result<i64, StoreError> {
        let sql = "with gone as (delete from epitome_blob b where b.stored_at < now() - interval '1 day' \
                   and not exists (select 1 from epitome_entry e where e.session = b.session \
                   and position(b.sha256 in e.line) > 0) returning 1) select count(*) from gone";
        let shared = self.0.clone();
        let removed = self
            .run(async move { shared.connections.query_until(Instant::now() + PUBLISH_FOR, sql, &[]).await });
        let rows = removed.map_err(|failure| self.0.connections.error("remove unused texts", failure))?;
        Ok(rows[0].get(0))
    }

    fn add(&self, session: &SessionId, token: String, epoch: i64, bytes: u64) -> Arc<OpenLog> {
        let log = Arc::new(OpenLog::new(self.0.clone(), session, token.clone(), epoch, bytes));
        self.0.open.lock().insert(token, Arc::downgrade(&log));
        log
    }
}

impl Shared {
    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        drop(self.runtime.spawn(work));
    }

    /// Renews the lease of this process, and finds out which sessions it still has; false if the database can't be reached.
    async fn renew(self: &Arc<Self>) -> bool {
        let logs: Vec<Arc<OpenLog>> = self.open.lock().values().filter_map(Weak::upgrade).collect();
        if logs.is_empty() {
            return true;
        }
        let asked = Instant::now();
        match self.lease_process().await {
            Ok(tokens) => {
                for log in logs {
                    match tokens.contains(&log.token) {
                        true => log.state.lock().confirmed = asked,
                        // The next renewal does not wait until it is known who has the session.
                        false if log.set_lost() => {
                            let shared = self.clone();
                            self.spawn(async move { log.find_holder(&shared.connections).await });
                        }
                        false => {}
                    }
                }
                true
            }
            Err(error) => {
                tracing::warn!(%error, "the lease was not renewed");
                false
            }
        }
    }

    /// Takes or renews the lease of this process, and removes those of processes that ended long ago. Returns the names
    /// under which it has sessions.
    async fn lease_process(&self) -> Result<BTreeSet<String>, StoreError> {
        let sql = "with renewed as (insert into epitome_process (id, lease_until, address) \
                   values ($1, now() + $2::int8 * interval '1 second', $3) \
                   on conflict (id) do update set lease_until = excluded.lease_until, address = excluded.address), \
                   gone as (delete from epitome_process \
                   where id <> $1 and lease_until < now() - interval '1 day') \
                   select holder from epitome_session where process = $1";
        let address = self.address.lock().clone();
        let params = vec![param(self.process.clone()), param(LEASE.as_secs() as i64), param(address)];
        let rows = self.renewals.query("renew a lease", sql, params).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// A new name under which this process opens a session.
    fn token(&self) -> String {
        format!("{} {}", self.process, epitome_store::new_id())
    }

    /// Gives back a session, as soon as the database can be reached.
    fn release(self: &Arc<Self>, session: &SessionId, token: String) {
        self.open.lock().remove(&token);
        self.releasing.send_modify(|count| *count += 1);
        let (shared, id) = (self.clone(), session.0.clone());
        self.spawn(async move {
            // An append that is still on its way would otherwise be written although it has failed.
            let sql = "update epitome_session set holder = null, process = null, epoch = epoch + 1 \
                       where id = $1 and holder = $2";
            let params = || vec![param(id.clone()), param(token.clone())];
            while let Err(error) = shared.connections.query("give back a session", sql, params()).await {
                tracing::warn!(%error, "a session was not given back yet");
                sleep(RENEW_EVERY).await;
            }
            shared.releasing.send_modify(|count| *count -= 1);
        });
    }

    /// Waits until sessions are given back; false if that takes too long.
    async fn released(&self) -> bool {
        let mut releasing = self.releasing.subscribe();
        let released = releasing.wait_for(|count| *count == 0);
        tokio::time::timeout(SETTLE_WAITS, released).await.is_ok()
    }

    /// Opens a session for appending, under this name. Returns the epoch.
    ///
    /// A lease that ran out and was watched is taken from the process that was seen to have it. Another one may have taken the
    /// session meanwhile, and its lease may be about to be renewed.
    async fn take(&self, session: &SessionId, token: &str) -> Result<i64, StoreError> {
        let sql = "update epitome_session s set epoch = epoch + 1, holder = $2, process = $3 \
                   where id = $1 and (holder is null or holder = $2 or not exists (select 1 from epitome_process p \
                   where p.id = s.process and p.lease_until >= now() - \
                   case when s.holder = $5 and p.lease_until::text = $6 then 0 else $4::int8 end * interval '1 second')) \
                   returning epoch";
        let mut seen: Option<(HeldLease, Instant)> = None;
        loop {
            let over = seen.as_ref().filter(|(_, since)| since.elapsed() >= LOOK_FOR).map(|(lease, _)| lease);
            if over.is_some() {
                // Before a process takes a session, its own lease must be valid.
                self.lease_process().await?;
            }
            let params = vec![
                param(session.0.clone()),
                param(token.to_owned()),
                param(self.process.clone()),
                param(LONG_OVER.as_secs() as i64),
                param(over.map(|lease| lease.name.clone())),
                param(over.and_then(|lease| lease.until.clone())),
            ];
            let rows = self.connections.query("open a session", sql, params).await?;
            if let Some(row) = rows.first() {
                return Ok(row.get(0));
            }
            let Some(lease) = self.lease(session).await? else { continue };
            let (first, _) = seen.get_or_insert_with(|| (lease.clone(), Instant::now()));
            // Its holder is alive if it renews the lease. That of a process that was killed runs out.
            if self.open.lock().contains_key(&lease.name) || *first != lease {
                return Err(self.in_use(session, Some(lease)));
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// The error of a statement that creates a session.
    fn not_new(&self, session: &SessionId, doing: &'static str, failure: SqlFailure) -> StoreError {
        match failure {
            SqlFailure::Sql(error) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => {
                StoreError::Exists(session.clone())
            }
            failure => self.connections.error(doing, failure),
        }
    }

    fn in_use(&self, session: &SessionId, lease: Option<HeldLease>) -> StoreError {
        let holder = lease.filter(|lease| lease.process.as_ref() != Some(&self.process)).map(|lease| {
            // Omit the part that makes the name unique.
            let process = lease.process.map(|name| name.split(" (").next().unwrap_or_default().to_owned());
            SessionHolder { process, address: lease.address }
        });
        StoreError::InUse(session.clone(), holder.unwrap_or_default())
    }

    /// Returns the current holder of a session; `None` if there is none.
    async fn lease(&self, session: &SessionId) -> Result<Option<HeldLease>, StoreError> {
        let sql = "select s.holder, p.lease_until::text, p.id, p.address from epitome_session s \
                   left join epitome_process p on p.id = s.process where s.id = $1";
        let params = vec![param(session.0.clone())];
        let rows = self.connections.query("look up a lease", sql, params).await?;
        let row = rows.first().ok_or_else(|| StoreError::NotFound(session.clone()))?;
        Ok(row.get::<_, Option<String>>(0).map(|name| HeldLease {
            name,
            until: row.get(1),
            process: row.get(2),
            address: row.get(3),
        }))
    }

    /// Reads a log. A writer that does not know whether its last line was committed takes it back and writes it again: then
    /// lines are missing that were counted before. Those that are still missing the next times are lost.
    async fn read(&self, session: &SessionId) -> Result<StoredLog, StoreError> {
        for _ in 1..READ_TRIES {
            let (log, is_complete) = self.read_once(session).await?;
            if is_complete {
                return Ok(log);
            }
        }
        Ok(self.read_once(session).await?.0)
    }

    /// Reads a log by page. Also returns whether it has as many lines as were counted before.
    async fn read_once(&self, session: &SessionId) -> Result<(StoredLog, bool), StoreError> {
        // Fails if it was deleted in the meantime.
        let entries = self.entries(session).await?;
        let sql = "select seq, line from epitome_entry where session = $1 and seq >= $2 and seq < $3 \
                   order by seq limit $4";
        let (mut bytes, mut found, mut next) = (Vec::new(), 0, 0_i64);
        loop {
            let params = vec![param(session.0.clone()), param(next), param(entries), param(PAGE as i64)];
            let rows = self.connections.query("read a log", sql, params).await?;
            for row in &rows {
                bytes.extend_from_slice(row.get::<_, &str>(1).as_bytes());
                bytes.push(b'\n');
                next = row.get::<_, i64>(0) + 1;
            }
            found += rows.len();
            if rows.len() < PAGE {
                break;
            }
        }
        Ok((StoredLog::durable(bytes, entries as u64), found as i64 >= entries))
    }

    /// How many lines a log has.
    async fn entries(&self, session: &SessionId) -> Result<i64, StoreError> {
        let sql = "select entries from epitome_session where id = $1";
        let params = vec![param(session.0.clone())];
        let rows = self.connections.query("read a log", sql, params).await?;
        rows.first().map(|row| row.get(0)).ok_or_else(|| StoreError::NotFound(session.clone()))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(runtime) = self.own_runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Postgres").field(&self.0.connections.place()).finish()
    }
}

impl LogStore for Postgres {
    fn create(
        &self,
        session: &SessionId,
        line: &JournalLine,
        header: &Header,
    ) -> Result<Arc<dyn Log>, StoreError> {
        let sql = "with made as (insert into epitome_session (id, holder, process, epoch, entries, header, \
                   updated_at, cwd) values ($1, $2, $3, 1, 1, $4, $5, $7) returning id) \
                   insert into epitome_entry (session, seq, epoch, line) select id, 0, 1, $6 from made";
        let (token, row) = (self.0.token(), HeaderRow::of(header));
        let text = log::text(&line.bytes);
        let (shared, id, name) = (self.0.clone(), session.clone(), token.clone());
        let made: Result<_, StoreError> = self.run(async move {
            shared.lease_process().await?;
            let HeaderRow { header, updated_at, cwd } = row;
            let params = [
                param(id.0.clone()),
                param(name),
                param(shared.process.clone()),
                param(header),
                param(updated_at),
                param(text),
                param(cwd),
            ];
            let made = shared.connections.query_until(Instant::now() + TRY_FOR, sql, &params).await;
            made.map_err(|failure| shared.not_new(&id, "create a session", failure))
        });
        // Perhaps it was created nevertheless.
        made.inspect_err(|_| self.0.release(session, token.clone()))?;
        Ok(self.add(session, token, 1, line.bytes.len() as u64))
    }

    fn open(&self, session: &SessionId) -> Result<(Arc<dyn Log>, Scan), StoreError> {
        let (shared, id, token) = (self.0.clone(), session.clone(), self.0.token());
        let (postgres, name) = (self.clone(), token.clone());
        let opened: Result<_, StoreError> = self.run(async move {
            // Sessions of this process that are being given back must not be in its own way.
            shared.released().await;
            shared.lease_process().await?;
            let epoch = shared.take(&id, &name).await?;
            // The lease is renewed from now on. Reading a long log takes longer than it lasts.
            let log = postgres.add(&id, name, epoch, 0);
            Ok((log, shared.read(&id).await?))
        });
        let scanned = opened.and_then(|(log, stored)| {
            let scan = stored.scan(session, &*self.blobs(session))?;
            log.state.lock().bytes = stored.bytes.len() as u64;
            Ok((log as Arc<dyn Log>, scan))
        });
        // Perhaps it was opened nevertheless.
        scanned.inspect_err(|_| self.0.release(session, token))
    }

    fn read(&self, session: &SessionId) -> Result<StoredLog, StoreError> {
        let (shared, id) = (self.0.clone(), session.clone());
        self.run(async move { shared.read(&id).await })
    }

    fn header(&self, session: &SessionId) -> Result<Header, StoreError> {
        let sql = "select header from epitome_session where id = $1";
        let rows = self.query("look up a session", sql, vec![param(session.0.clone())])?;
        let row = rows.first().ok_or_else(|| StoreError::NotFound(session.clone()))?;
        serde_json::from_str(row.get(0)).map_err(|error| unreadable(session, &error))
    }

    fn page(&self, query: &SessionQuery) -> Result<Listing, StoreError> {
        self.list_pages(query)
    }

    fn publish(&self, session: &SessionId, log: &WholeLog, header: &Header) -> Result<(), StoreError> {
        let (row, has_prompt, archived) = (HeaderRow::of(header), header.has_prompt, header.archived);
        let lines: Vec<String> = log.bytes.split_inclusive(|byte| *byte == b'\n').map(log::text).collect();
        let (shared, id) = (self.0.clone(), session.0.clone());
        let done = self.run(async move {
            let publish = async |client: &mut Client| {
                let writing = client.transaction().await?;
                let sql = "insert into epitome_session \
                           (id, epoch, entries, header, updated_at, cwd, has_prompt, archived) \
                           values ($1, 0, $2, $3, $4, $5, $6, $7)";
                let entries = lines.len() as i64;
                let params: [(&(dyn ToSql + Sync), Type); 7] = [
                    (&id, Type::TEXT),
                    (&entries, Type::INT8),
                    (&row.header, Type::TEXT),
                    (&row.updated_at, Type::INT8),
                    (&row.cwd, Type::TEXT),
                    (&has_prompt, Type::BOOL),
                    (&archived, Type::BOOL),
                ];
                writing.query_typed(sql, &params).await?;
                let sql = "insert into epitome_entry (session, seq, epoch, line) \
                           select $1, seq, 0, line from unnest($2::int8[], $3::text[]) as lines (seq, line)";
                for (page, lines) in lines.chunks(PAGE).enumerate() {
                    let first = (page * PAGE) as i64;
                    let seqs: Vec<i64> = (first..first + lines.len() as i64).collect();
                    let params: [(&(dyn ToSql + Sync), Type); 3] =
                        [(&id, Type::TEXT), (&seqs, Type::INT8_ARRAY), (&lines, Type::TEXT_ARRAY)];
                    writing.query_typed(sql, &params).await?;
                }
                Ok(writing.commit().await?)
            };
            shared.connections.until(Instant::now() + PUBLISH_FOR, publish).await
        });
        done.map_err(|failure| self.0.not_new(session, "store a session", failure))
    }

    fn delete(&self, session: &SessionId) -> Result<(), StoreError> {
        let sql = "with gone as (delete from epitome_session where id = $1 \
                   and (holder is null or not exists (select 1 from epitome_process p \
                   where p.id = process and p.lease_until >= now())) returning id), \
                   entries as (delete from epitome_entry where session in (select id from gone)), \
                   blobs as (delete from epitome_blob where session in (select id from gone)) \
                   select id from gone";
        let (shared, id) = (self.0.clone(), session.0.clone());
        let gone = self.run(async move {
            shared.released().await;
            shared.connections.query("delete a session", sql, vec![param(id)]).await
        })?;
        match self.header(session) {
            Err(StoreError::NotFound(_)) => Ok(()),
            Ok(_) if gone.is_empty() => {
                let (shared, id) = (self.0.clone(), session.clone());
                let lease = self.run(async move { shared.lease(&id).await })?;
                Err(self.0.in_use(session, lease))
            }
            other => other.map(|_| ()),
        }
    }

    fn is_in_use(&self, session: &SessionId) -> bool {
        let sql = "select 1 from epitome_session s join epitome_process p on p.id = s.process \
             where s.id = $1 and p.lease_until >= now()";
        let rows = self.query("look up a session", sql, vec![param(session.0.clone())]);
        rows.is_ok_and(|rows| !rows.is_empty())
    }

    fn blobs(&self, session: &SessionId) -> Box<dyn Blobs> {
        Box::new(PostgresBlobs { postgres: self.clone(), session: session.clone() })
    }

    /// Others read it in the row of this process, from its next renewal on.
    fn advertise(&self, address: &str) {
        *self.0.address.lock() = Some(address.to_owned());
    }

    fn settle(&self) {
        let shared = self.0.clone();
        if !self.run(async move { shared.released().await }) {
            tracing::warn!("sessions were not given back in time; the lease runs out");
        }
    }
}

fn unreadable(session: &SessionId, error: &serde_json::Error) -> StoreError {
    StoreError::Unstorable { session: session.clone(), reason: format!("its header can't be read: {error}") }
}

/// The bodies of one session.
#[derive(Debug)]
struct PostgresBlobs {
    postgres: Postgres,
    session: SessionId,
}

impl Blobs for PostgresBlobs {
    fn put(&self, hash: &str, body: &[u8]) -> Result<(), StoreError> {
        let sql = "insert into epitome_blob (session, sha256, body) values ($1, $2, $3) on conflict (session, sha256) \
             do update set stored_at = now()";
        let params = vec![param(self.session.0.clone()), param(hash.to_owned()), param(body.to_vec())];
        self.postgres.query("store a blob", sql, params).map(drop)
    }

    fn get(&self, hash: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let sql = "select body from epitome_blob where session = $1 and sha256 = $2";
        let params = vec![param(self.session.0.clone()), param(hash.to_owned())];
        let rows = self.postgres.query("read a blob", sql, params)?;
        Ok(rows.first().map(|row| row.get(0)))
    }
}

#[cfg(test)]
mod tests;
