//! The logs of sessions in PostgreSQL.
//!
//! ```text
//! epitome_session   one row a session: who may write it, how many entries it has, its header
//! epitome_entry     the lines of the logs, as they would be in a file, without newlines
//! epitome_blob      large bodies, by their digest
//! epitome_schema    the version of these tables
//! ```
//!
//! **One writer.** A session is written under a lease: a holder, an epoch and a time. Opening a session whose lease is
//! free or has run out raises its epoch. An append is one statement that writes only under its own epoch and while the
//! lease lasts, so a writer that was cut off for too long writes nothing, whatever it believes.
//!
//! **Unknown outcomes.** If a connection breaks during an append, nobody knows whether the line was committed. The
//! writer then raises its own epoch, which invalidates the statement if it is still on its way, removes the line, and
//! appends it again, for a limited time.
//!
//! The statements use neither LISTEN nor advisory locks nor session state, and serialization failures are repeated.

mod address;
mod connections;
mod log;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

pub use address::StoreAddress;
use connections::{Connections, SqlFailure};
use epitome_store::{
    Blobs, Header, JournalLine, Listing, Log, LogStore, Scan, StoreError, StoredLog, WholeLog,
};
use epitome_thread::SessionId;
use log::OpenLog;

/// How long a lease lasts without being renewed. A session whose process was killed can be opened after that time.
pub const LEASE: Duration = Duration::from_secs(15);

const RENEW_EVERY: Duration = Duration::from_secs(5);

const RENEW_AGAIN_AFTER: Duration = Duration::from_millis(500);

/// How often a lease is looked at while it may be that of a process that was killed.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Sessions that are listed, or lines that are stored, with one statement.
const PAGE: usize = 1_000;

/// How long the end of a process waits until its leases are given back.
const SETTLE_WAITS: Duration = Duration::from_secs(3);

/// See the module. Clones share the connections.
#[derive(Clone)]
pub struct Postgres(Arc<Shared>);

pub(crate) struct Shared {
    /// `None` only while it is dropped.
    runtime: Option<Runtime>,
    connections: Connections,
    /// The open logs by the name under which they have their lease.
    open: Mutex<BTreeMap<String, Weak<OpenLog>>>,
    /// Leases that are being given back.
    releasing: watch::Sender<usize>,
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
        let shared = Arc::new(Shared {
            connections: Connections::new(address),
            open: Mutex::default(),
            releasing: watch::Sender::new(0),
            runtime: Some(runtime),
        });
        let weak = Arc::downgrade(&shared);
        shared.spawn(async move {
            let mut pause = RENEW_EVERY;
            loop {
                tokio::time::sleep(pause).await;
                let Some(shared) = weak.upgrade() else { return };
                // After a failure there is no time to lose.
                pause = if shared.renew().await { RENEW_EVERY } else { RENEW_AGAIN_AFTER };
            }
        });
        Ok(Postgres(shared))
    }

    fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        self.0.block_on(work)
    }

    fn add(&self, session: &SessionId, token: String, epoch: i64, bytes: u64) -> Arc<OpenLog> {
        let log = Arc::new(OpenLog::new(self.0.clone(), session, token.clone(), epoch, bytes));
        self.0.open().insert(token, Arc::downgrade(&log));
        log
    }
}

impl Shared {
    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("it is not dropped")
    }

    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        drop(self.runtime().spawn(work));
    }

    /// Waits for work on the runtime, from any thread.
    fn block_on<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        let (answer, answered) = std::sync::mpsc::sync_channel(1);
        self.spawn(async move { drop(answer.send(work.await)) });
        answered.recv().expect("the work does not panic")
    }

    fn open(&self) -> MutexGuard<'_, BTreeMap<String, Weak<OpenLog>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Renews all leases with one statement; false if the database can't be reached.
    async fn renew(&self) -> bool {
        let logs: Vec<Arc<OpenLog>> = self.open().values().filter_map(Weak::upgrade).collect();
        if logs.is_empty() {
            return true;
        }
        let asked = std::time::Instant::now();
        let tokens: Vec<String> = logs.iter().map(|log| log.token().to_owned()).collect();
        let sql = "update epitome_session set lease_until = now() + $2::int8 * interval '1 second' \
                   where holder = any($1) returning holder";
        let renewed = self.connections.query("renew leases", sql, move || {
            vec![(Box::new(tokens.clone()), Type::TEXT_ARRAY), (Box::new(lease_seconds()), Type::INT8)]
        });
        match renewed.await {
            Ok(rows) => {
                let renewed: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
                for log in logs {
                    match renewed.iter().any(|token| token == log.token()) {
                        true => log.renewed(asked),
                        false => log.lost(&self.connections).await,
                    }
                }
                true
            }
            Err(error) => {
                tracing::warn!(%error, "leases were not renewed");
                false
            }
        }
    }

    fn release(self: &Arc<Self>, token: String) {
        self.open().remove(&token);
        self.releasing.send_modify(|count| *count += 1);
        let shared = self.clone();
        self.spawn(async move {
            let sql = "update epitome_session set holder = null where holder = $1";
            let done = shared
                .connections
                .query("give back a lease", sql, move || vec![(Box::new(token.clone()), Type::TEXT)]);
            if let Err(error) = done.await {
                tracing::warn!(%error, "a lease was not given back; it runs out");
            }
            shared.releasing.send_modify(|count| *count -= 1);
        });
    }

    async fn released(&self) {
        let mut releasing = self.releasing.subscribe();
        // The sender is owned by `self`.
        drop(releasing.wait_for(|count| *count == 0).await);
    }

    /// Who has the lease of a session, and until when; `None` if nobody has.
    async fn lease(&self, session: &SessionId) -> Result<Option<(String, String)>, StoreError> {
        let id = session.0.clone();
        let sql = "select coalesce(holder, ''), coalesce(lease_until::text, ''), \
                   coalesce(holder is not null and lease_until >= now(), false) from epitome_session where id = $1";
        let params = move || -> connections::Params { vec![(Box::new(id.clone()), Type::TEXT)] };
        let rows = self.connections.query("look up a lease", sql, params).await?;
        let row = rows.first().ok_or_else(|| StoreError::NotFound(session.clone()))?;
        Ok(row.get::<_, bool>(2).then(|| (row.get(0), row.get(1))))
    }

    async fn read(&self, session: &SessionId) -> Result<StoredLog, StoreError> {
        let id = session.0.clone();
        // One statement, and so one state of the log.
        let sql = "select s.entries, e.line from epitome_session s left join epitome_entry e on e.session = s.id \
                   where s.id = $1 order by e.seq";
        let rows = self
            .connections
            .query("read a log", sql, move || vec![(Box::new(id.clone()), Type::TEXT)])
            .await?;
        let Some(first) = rows.first() else { return Err(StoreError::NotFound(session.clone())) };
        let entries: i64 = first.get(0);
        let mut bytes = Vec::new();
        for line in rows.iter().filter_map(|row| row.get::<_, Option<&str>>(1)) {
            bytes.extend_from_slice(line.as_bytes());
            bytes.push(b'\n');
        }
        Ok(StoredLog::durable(bytes, entries as u64))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Postgres").field(&self.0.connections.place()).finish()
    }
}

pub(crate) fn lease_seconds() -> i64 {
    LEASE.as_secs() as i64
}

/// A header as JSON, and the time by which sessions are sorted.
pub(crate) fn header_row(header: &Header) -> (String, i64) {
    (serde_json::to_string(header).unwrap_or_default(), header.updated_at as i64)
}

/// The name under which this process has a lease: where it runs, for people, and what makes it unique.
fn token() -> String {
    let host = epitome_platform::os::host_name();
    format!("{host}, process {} ({})", std::process::id(), epitome_store::new_id())
}

impl LogStore for Postgres {
    fn create(
        &self,
        session: &SessionId,
        line: &JournalLine,
        header: &Header,
    ) -> Result<Arc<dyn Log>, StoreError> {
        let sql = "with made as (insert into epitome_session (id, holder, epoch, lease_until, entries, header, \
                   updated_at) values ($1, $2, 1, now() + $3::int8 * interval '1 second', 1, $4, $5) \
                   returning id) insert into epitome_entry (session, seq, epoch, line) select id, 0, 1, $6 from made";
        let (token, (header, at)) = (token(), header_row(header));
        let text = log::text_of(line);
        let (shared, id, name) = (self.0.clone(), session.0.clone(), token.clone());
        let made = self.run(async move {
            let params = move || -> connections::Params {
                vec![
                    (Box::new(id.clone()), Type::TEXT),
                    (Box::new(name.clone()), Type::TEXT),
                    (Box::new(lease_seconds()), Type::INT8),
                    (Box::new(header.clone()), Type::TEXT),
                    (Box::new(at), Type::INT8),
                    (Box::new(text.clone()), Type::TEXT),
                ]
            };
            shared.connections.query_once(sql, params).await
        });
        match made {
            Ok(_) => Ok(self.add(session, token, 1, line.bytes.len() as u64)),
            Err(SqlFailure::Sql(error)) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => {
                Err(StoreError::Exists(session.clone()))
            }
            Err(failure) => Err(self.0.connections.error("create a session", failure)),
        }
    }

    fn open(&self, session: &SessionId) -> Result<(Arc<dyn Log>, Scan), StoreError> {
        let sql = "update epitome_session set epoch = epoch + 1, holder = $2, \
                   lease_until = now() + $3::int8 * interval '1 second' \
                   where id = $1 and (holder is null or holder = $2 or lease_until < now()) returning epoch";
        let (shared, id, name, token) = (self.0.clone(), session.clone(), session.0.clone(), token());
        let holder = token.clone();
        let (epoch, stored) = self.run(async move {
            // Leases of this process that are being given back must not be in its own way.
            shared.released().await;
            let params = move || -> connections::Params {
                vec![
                    (Box::new(name.clone()), Type::TEXT),
                    (Box::new(holder.clone()), Type::TEXT),
                    (Box::new(lease_seconds()), Type::INT8),
                ]
            };
            let mut first_seen = None;
            loop {
                let rows = shared.connections.query("open a session", sql, &params).await?;
                if let Some(row) = rows.first() {
                    let stored = shared.read(&id).await?;
                    return Ok((row.get::<_, i64>(0), stored));
                }
                if let Some(lease) = shared.lease(&id).await? {
                    // Its holder is alive if it renews it. That of a process that was killed runs out.
                    if shared.open().contains_key(&lease.0)
                        || *first_seen.get_or_insert_with(|| lease.clone()) != lease
                    {
                        return Err(StoreError::InUse(id));
                    }
                    tokio::time::sleep(LOOK_EVERY).await;
                }
            }
        })?;
        let bytes = stored.bytes.len() as u64;
        let log = self.add(session, token, epoch, bytes);
        match stored.scan(session, &*self.blobs(session)) {
            Ok(scan) => Ok((log, scan)),
            Err(error) => {
                log.release();
                Err(error)
            }
        }
    }

    fn read(&self, session: &SessionId) -> Result<StoredLog, StoreError> {
        let (shared, id) = (self.0.clone(), session.clone());
        self.run(async move { shared.read(&id).await })
    }

    fn header(&self, session: &SessionId) -> Result<Header, StoreError> {
        let (shared, id) = (self.0.clone(), session.0.clone());
        let sql = "select header from epitome_session where id = $1";
        let params = move || -> connections::Params { vec![(Box::new(id.clone()), Type::TEXT)] };
        let rows =
            self.run(async move { shared.connections.query("look up a session", sql, params).await })?;
        let row = rows.first().ok_or_else(|| StoreError::NotFound(session.clone()))?;
        serde_json::from_str(row.get(0)).map_err(|error| unreadable(session, &error))
    }

    fn list(&self) -> Result<Listing, StoreError> {
        let sql = "select id, header, updated_at from epitome_session \
                   where (updated_at, id) < ($1, $2) order by updated_at desc, id desc limit $3";
        let mut listing = Listing::default();
        let mut after = (i64::MAX, String::new());
        loop {
            let (shared, from) = (self.0.clone(), after.clone());
            let params = move || -> connections::Params {
                vec![
                    (Box::new(from.0), Type::INT8),
                    (Box::new(from.1.clone()), Type::TEXT),
                    (Box::new(PAGE as i64), Type::INT8),
                ]
            };
            let rows =
                self.run(async move { shared.connections.query("list sessions", sql, params).await })?;
            for row in &rows {
                let session = SessionId(row.get(0));
                match serde_json::from_str(row.get(1)) {
                    Ok(header) => listing.headers.push(header),
                    Err(error) => listing.problems.push((session.clone(), unreadable(&session, &error))),
                }
                after = (row.get(2), session.0);
            }
            if rows.len() < PAGE {
                return Ok(listing);
            }
        }
    }

    fn publish(&self, session: &SessionId, log: &WholeLog, header: &Header) -> Result<(), StoreError> {
        let (header, at) = header_row(header);
        let lines: Vec<String> = log.bytes.split_inclusive(|byte| *byte == b'\n').map(log::text).collect();
        let (shared, id) = (self.0.clone(), session.0.clone());
        let done = self.run(async move {
            let work = connections::works(move |client: &mut tokio_postgres::Client| {
                let (id, header, lines) = (id.clone(), header.clone(), lines.clone());
                Box::pin(async move {
                    let writing = client.transaction().await?;
                    let sql = "insert into epitome_session (id, epoch, entries, header, updated_at) \
                               values ($1, 0, $2, $3, $4)";
                    let entries = lines.len() as i64;
                    let params: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 4] =
                        [(&id, Type::TEXT), (&entries, Type::INT8), (&header, Type::TEXT), (&at, Type::INT8)];
                    writing.query_typed(sql, &params).await?;
                    let sql = "insert into epitome_entry (session, seq, epoch, line) \
                               select $1, seq, 0, line from unnest($2::int8[], $3::text[]) as lines (seq, line)";
                    for (page, lines) in lines.chunks(PAGE).enumerate() {
                        let first = (page * PAGE) as i64;
                        let seqs: Vec<i64> = (first..first + lines.len() as i64).collect();
                        let params: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 3] =
                            [(&id, Type::TEXT), (&seqs, Type::INT8_ARRAY), (&lines, Type::TEXT_ARRAY)];
                        writing.query_typed(sql, &params).await?;
                    }
                    Ok(writing.commit().await?)
                })
            });
            shared.connections.once(&work).await
        });
        done.map_err(|failure| match failure {
            SqlFailure::Sql(error) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => {
                StoreError::Exists(session.clone())
            }
            failure => self.0.connections.error("store a session", failure),
        })
    }

    fn delete(&self, session: &SessionId) -> Result<(), StoreError> {
        let sql = "with gone as (delete from epitome_session where id = $1 \
                   and (holder is null or lease_until < now()) returning id), \
                   entries as (delete from epitome_entry where session in (select id from gone)), \
                   blobs as (delete from epitome_blob where session in (select id from gone)) \
                   select id from gone";
        let (shared, id) = (self.0.clone(), session.0.clone());
        let gone = self.run(async move {
            shared.released().await;
            let params = move || -> connections::Params { vec![(Box::new(id.clone()), Type::TEXT)] };
            shared.connections.query("delete a session", sql, params).await
        })?;
        match self.header(session) {
            Err(StoreError::NotFound(_)) => Ok(()),
            Ok(_) if gone.is_empty() => Err(StoreError::InUse(session.clone())),
            other => other.map(|_| ()),
        }
    }

    fn is_in_use(&self, session: &SessionId) -> bool {
        let (shared, id) = (self.0.clone(), session.0.clone());
        let sql =
            "select 1 from epitome_session where id = $1 and holder is not null and lease_until > now()";
        let params = move || -> connections::Params { vec![(Box::new(id.clone()), Type::TEXT)] };
        let rows = self.run(async move { shared.connections.query("look up a session", sql, params).await });
        rows.is_ok_and(|rows| !rows.is_empty())
    }

    fn blobs(&self, session: &SessionId) -> Box<dyn Blobs> {
        Box::new(PostgresBlobs { postgres: self.clone(), session: session.clone() })
    }

    fn settle(&self) {
        let shared = self.0.clone();
        let settled = self.run(async move { tokio::time::timeout(SETTLE_WAITS, shared.released()).await });
        if settled.is_err() {
            tracing::warn!("leases were not given back in time; they run out");
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
        let sql =
            "insert into epitome_blob (session, sha256, body) values ($1, $2, $3) on conflict do nothing";
        let (shared, id) = (self.postgres.0.clone(), self.session.0.clone());
        let (hash, body) = (hash.to_owned(), body.to_vec());
        let params = move || -> connections::Params {
            vec![
                (Box::new(id.clone()), Type::TEXT),
                (Box::new(hash.clone()), Type::TEXT),
                (Box::new(body.clone()), Type::BYTEA),
            ]
        };
        self.postgres
            .run(async move { shared.connections.query("store a blob", sql, params).await })
            .map(drop)
    }

    fn get(&self, hash: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let sql = "select body from epitome_blob where session = $1 and sha256 = $2";
        let (shared, id, hash) = (self.postgres.0.clone(), self.session.0.clone(), hash.to_owned());
        let params = move || -> connections::Params {
            vec![(Box::new(id.clone()), Type::TEXT), (Box::new(hash.clone()), Type::TEXT)]
        };
        let rows =
            self.postgres.run(async move { shared.connections.query("read a blob", sql, params).await })?;
        Ok(rows.first().map(|row| row.get(0)))
    }
}

#[cfg(test)]
mod server;
#[cfg(test)]
mod tests;
