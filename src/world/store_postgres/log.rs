//! One log that is open for appending, under its lease.

use std::sync::Arc;
use std::time::Duration;

use epitome_platform::blocking;
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};

use super::Shared;
use super::connections::{Connections, SqlFailure, TRY_FOR, begin, param};
use super::header_row::HeaderRow;
use epitome_store::{Header, JournalLine, Log, StoreError};
use epitome_thread::{Seq, SessionId};

/// How long an append goes on trying.
const APPEND_FOR: Duration = Duration::from_secs(20);

/// How long models are called after the database was reached for the last time.
const CALLS_FOR: Duration = Duration::from_secs(15);

const TRY_AGAIN_AFTER: Duration = Duration::from_millis(200);

pub(crate) struct OpenLog {
    shared: Arc<Shared>,
    session: SessionId,
    /// The name under which its process has it.
    pub token: String,
    pub state: Mutex<State>,
}

pub(crate) struct State {
    epoch: i64,
    /// Length of the log; 0 until it was read.
    pub bytes: u64,
    /// A line with an unknown outcome may follow.
    is_unclean: bool,
    /// When the newest statement was sent that found the log to be that of this process.
    pub confirmed: Instant,
    /// The holder of the lease, if this process has lost it.
    taken_by: Option<String>,
}

/// A line without its newline.
pub(crate) fn text(line: &[u8]) -> String {
    String::from_utf8_lossy(line.strip_suffix(b"\n").unwrap_or(line)).into_owned()
}

impl OpenLog {
    pub fn new(shared: Arc<Shared>, session: &SessionId, token: String, epoch: i64, bytes: u64) -> OpenLog {
        let state = State { epoch, bytes, is_unclean: false, confirmed: Instant::now(), taken_by: None };
        OpenLog { shared, session: session.clone(), token, state: Mutex::new(state) }
    }

    /// The lease is not this log's any longer. Returns false if that was known.
    pub fn set_lost(&self) -> bool {
        let mut state = self.state.lock();
        let is_new = state.taken_by.is_none();
        state.taken_by.get_or_insert_with(|| "another process".to_owned());
        is_new
    }

    /// Finds out who has the session that was lost.
    pub async fn find_holder(&self, connections: &Connections) {
        let id = self.session.0.clone();
        let sql = "select coalesce(holder, 'nobody') from epitome_session where id = $1";
        if let Ok(rows) = connections.query("look up a lease", sql, vec![param(id)]).await {
            let holder = rows.first().map(|row| row.get::<_, String>(0));
            self.state.lock().taken_by = Some(holder.unwrap_or_else(|| "a deletion".to_owned()));
        }
    }

    fn taken_over(&self) -> Option<StoreError> {
        let holder = self.state.lock().taken_by.clone()?;
        Some(StoreError::TakenOver { session: self.session.clone(), holder })
    }

    /// One statement; false if it wrote nothing, because the epoch or the number is another.
    async fn insert(
        &self,
        until: Instant,
        seq: i64,
        line: &str,
        header: &Header,
    ) -> Result<bool, SqlFailure> {
        let sql = "with held as (update epitome_session set entries = $3 + 1, header = $4, \
                   updated_at = $5, has_prompt = $7, archived = $8 where id = $1 and epoch = $2 and entries = $3 returning id) \
                   insert into epitome_entry (session, seq, epoch, line) select id, $3, $2, $6 from held returning seq";
        let row = HeaderRow::of(header);
        let params = [
            param(self.session.0.clone()),
            param(self.state.lock().epoch),
            param(seq),
            param(row.header),
            param(row.updated_at),
            param(line.to_owned()),
            param(header.has_prompt),
            param(header.archived),
        ];
        Ok(!self.shared.connections.query_until(until, sql, &params).await?.is_empty())
    }

    /// Raises the own epoch, so that no statement that is still on its way can write, and removes what may be committed
    /// from `seq` on. False if another process has taken over.
    async fn reclaim(&self, seq: i64) -> Result<bool, SqlFailure> {
        let id = &self.session.0;
        let reclaim = async |client: &mut Client| {
            let reclaiming = begin(client).await?;
            let sql = "update epitome_session set epoch = epoch + 1, entries = least(entries, $3) \
                       where id = $1 and holder = $2 returning epoch";
            let params: [(&(dyn ToSql + Sync), Type); 3] =
                [(id, Type::TEXT), (&self.token, Type::TEXT), (&seq, Type::INT8)];
            let rows = reclaiming.query_typed(sql, &params).await?;
            let Some(row) = rows.first() else { return Ok(None) };
            let sql = "delete from epitome_entry where session = $1 and seq >= $2";
            reclaiming.query_typed(sql, &[(id, Type::TEXT), (&seq, Type::INT8)]).await?;
            reclaiming.commit().await?;
            Ok(Some(row.get(0)))
        };
        let asked = Instant::now();
        let epoch = self.shared.connections.until(asked + TRY_FOR, reclaim).await?;
        if let Some(epoch) = epoch {
            let mut state = self.state.lock();
            (state.epoch, state.confirmed, state.is_unclean) = (epoch, asked, false);
        }
        Ok(epoch.is_some())
    }

    async fn write(&self, seq: i64, line: &str, header: &Header) -> Result<(), StoreError> {
        let doing = "append to a log";
        let until = Instant::now() + APPEND_FOR;
        let mut was_reclaimed = false;
        loop {
            if let Some(error) = self.taken_over() {
                return Err(error);
            }
            let is_unclean = self.state.lock().is_unclean;
            let failure = if is_unclean {
                match self.reclaim(seq).await {
                    Ok(true) => {
                        was_reclaimed = true;
                        continue;
                    }
                    Ok(false) => {
                        self.set_lost();
                        self.find_holder(&self.shared.connections).await;
                        continue;
                    }
                    Err(failure) => failure,
                }
            } else {
                self.state.lock().is_unclean = true;
                let asked = Instant::now();
                match self.insert(until, seq, line, header).await {
                    Ok(true) => {
                        let mut state = self.state.lock();
                        (state.confirmed, state.is_unclean) = (asked, false);
                        return Ok(());
                    }
                    // The number is another even after the log was reclaimed: rows were removed by hand.
                    Ok(false) if was_reclaimed => return Err(StoreError::Replaced(self.session.clone())),
                    Ok(false) => continue,
                    Err(failure) => failure,
                }
            };
            if !failure.is_passing() || Instant::now() >= until {
                return Err(self.shared.connections.error(doing, failure));
            }
            was_reclaimed = false;
            tokio::time::sleep(TRY_AGAIN_AFTER).await;
        }
    }
}

/// A log whose lease is given back when it is closed.
impl Log for OpenLog {
    fn append(&self, seq: Seq, line: &JournalLine, header: &Header) -> Result<(), StoreError> {
        let (text, header) = (text(&line.bytes), header.clone());
        let log = self.shared.open.lock().get(&self.token).and_then(std::sync::Weak::upgrade);
        let log = log.ok_or_else(|| StoreError::SyncFailed(self.session.clone()))?;
        blocking::wait(&self.shared.runtime, async move { log.write(seq.0 as i64, &text, &header).await })?;
        self.state.lock().bytes += line.bytes.len() as u64;
        Ok(())
    }

    /// Appended lines are committed.
    fn sync(&self) -> Result<(), StoreError> {
        self.check()
    }

    fn synced_bytes(&self) -> u64 {
        self.state.lock().bytes
    }

    fn check(&self) -> Result<(), StoreError> {
        if let Some(error) = self.taken_over() {
            return Err(error);
        }
        if self.state.lock().confirmed.elapsed() < CALLS_FOR {
            return Ok(());
        }
        let reason = format!("the lease of session {} could not be renewed", self.session);
        let place = self.shared.connections.place().to_owned();
        Err(StoreError::Unreachable { doing: "write", place, reason })
    }

    fn has_failed(&self) -> bool {
        self.state.lock().taken_by.is_some()
    }

    fn release(&self) {
        self.shared.release(&self.session, self.token.clone());
    }
}
