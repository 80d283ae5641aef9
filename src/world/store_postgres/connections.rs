//! A few connections, used by one caller at a time, and what is repeated on another one.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{OnceCell, Semaphore};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row, Transaction};

use super::address::StoreAddress;
use super::tls;
use epitome_store::StoreError;

/// How long a call goes on trying, for example while a standby is promoted.
pub(crate) const TRY_FOR: Duration = Duration::from_secs(10);

/// Time limit for telling the server that an answer is not awaited any longer.
const CANCEL_FOR: Duration = Duration::from_secs(5);

const TRY_AGAIN_AFTER: Duration = Duration::from_millis(200);

const MIGRATE_TRIES: usize = 10;

/// The errors of a server if another process has created the same table or type at that moment.
const EXISTS: [SqlState; 3] =
    [SqlState::UNIQUE_VIOLATION, SqlState::DUPLICATE_TABLE, SqlState::DUPLICATE_OBJECT];

/// The statements that make the tables, in the order of their versions. Never change one; add one.
const MIGRATIONS: [&str; 5] = [
    "
    create table epitome_session (
        id text primary key,
        holder text,
        epoch bigint not null,
        lease_until timestamptz,
        entries bigint not null,
        header text not null,
        updated_at bigint not null
    );
    create index epitome_session_newest on epitome_session (updated_at desc, id desc);
    create index epitome_session_holder on epitome_session (holder) where holder is not null;
    create table epitome_entry (
        session text not null,
        seq bigint not null,
        epoch bigint not null,
        line text not null,
        primary key (session, seq)
    );
    create table epitome_blob (
        session text not null,
        sha256 text not null,
        body bytea not null,
        primary key (session, sha256)
    );
",
    // A lease is that of a process, so that renewing it costs one row. Versions that look at the dropped column can't write
    // any longer.
    "
    create table epitome_process (
        id text primary key,
        lease_until timestamptz not null
    );
    drop index epitome_session_holder;
    alter table epitome_session drop column lease_until;
    alter table epitome_session add column process text;
    create index epitome_session_process on epitome_session (process) where process is not null;
    alter table epitome_session add column cwd text;
    alter table epitome_session add column has_prompt boolean not null default false;
    alter table epitome_session add column archived boolean not null default false;
    update epitome_session set cwd = header::jsonb->>'cwd', has_prompt = (header::jsonb->>'has_prompt')::boolean,
        archived = coalesce((header::jsonb->>'archived')::boolean, false)
        where header not like '%\\u0000%';
    create index epitome_session_prompted on epitome_session (updated_at desc, id desc) where has_prompt;
    create index epitome_session_cwd on epitome_session (cwd, updated_at desc, id desc);
",
    "
    alter table epitome_blob add column stored_at timestamptz not null default now();
",
    // The address at which a process serves clients of other machines, if it does.
    "alter table epitome_process add column address text;",
    // One row, or none. Its own table, so that users can be denied to change it.
    "
    create table epitome_policy (
        is_only boolean primary key default true check (is_only),
        text text not null,
        changed_by text not null default current_user,
        changed_at timestamptz not null default now()
    );
",
];

pub(crate) type Param = (Box<dyn ToSql + Sync + Send>, Type);

pub(crate) fn param<T: SqlValue>(value: T) -> Param {
    (Box::new(value), T::TYPE)
}

pub(crate) trait SqlValue: ToSql + Sync + Send + 'static {
    const TYPE: Type;
}

impl SqlValue for String {
    const TYPE: Type = Type::TEXT;
}

impl SqlValue for i64 {
    const TYPE: Type = Type::INT8;
}

impl SqlValue for bool {
    const TYPE: Type = Type::BOOL;
}

impl SqlValue for Vec<u8> {
    const TYPE: Type = Type::BYTEA;
}

impl<T: SqlValue> SqlValue for Option<T> {
    const TYPE: Type = T::TYPE;
}

/// Begins a transaction that the server ends if its client is silent between two statements. One that was cut off would keep
/// rows locked until the server's system gives the connection up, which may take hours, and nobody could open the session.
pub(crate) async fn begin(client: &mut Client) -> Result<Transaction<'_>, SqlFailure> {
    let begun = client.transaction().await?;
    begun.batch_execute("set local idle_in_transaction_session_timeout = '3s'").await?;
    Ok(begun)
}

/// Why a call failed.
#[derive(Debug)]
pub(crate) enum SqlFailure {
    Sql(tokio_postgres::Error),
    Late,
    Silent,
    Newer(i64),
}

impl From<tokio_postgres::Error> for SqlFailure {
    fn from(error: tokio_postgres::Error) -> SqlFailure {
        SqlFailure::Sql(error)
    }
}

impl SqlFailure {
    /// Whether another attempt may succeed.
    pub fn is_passing(&self) -> bool {
        match self {
            SqlFailure::Sql(error) => match error.code() {
                None => !std::error::Error::source(error).is_some_and(tls::is_permanent),
                // Errors of a server that is ending or starting, or is a standby.
                Some(code) => [
                    SqlState::T_R_SERIALIZATION_FAILURE,
                    SqlState::T_R_DEADLOCK_DETECTED,
                    SqlState::ADMIN_SHUTDOWN,
                    SqlState::CRASH_SHUTDOWN,
                    SqlState::CANNOT_CONNECT_NOW,
                    SqlState::READ_ONLY_SQL_TRANSACTION,
                    SqlState::TOO_MANY_CONNECTIONS,
                    // See `begin`.
                    SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT,
                ]
                .contains(code),
            },
            SqlFailure::Silent => true,
            SqlFailure::Late | SqlFailure::Newer(_) => false,
        }
    }
}

/// A connection, which ends when it is dropped.
struct DatabaseConnection {
    client: Client,
    /// Moves the bytes of the client.
    task: AbortHandle,
    address: Arc<StoreAddress>,
    /// Its place in the address.
    host: usize,
    /// Whether the server works on a statement.
    is_busy: bool,
}

impl Drop for DatabaseConnection {
    fn drop(&mut self) {
        if !self.is_busy {
            return;
        }
        self.address.leave(self.host);
        let Ok(runtime) = Handle::try_current() else { return };
        // Without this, the server would go on waiting, for a lock or a standby, and would count the connection until then.
        let (task, cancel, tls) = (self.task.clone(), self.client.cancel_token(), self.address.tls().clone());
        runtime.spawn(async move {
            drop(timeout(CANCEL_FOR, cancel.cancel_query(tls)).await);
            task.abort();
        });
    }
}

pub(crate) struct Connections {
    address: Arc<StoreAddress>,
    idle: Mutex<Vec<DatabaseConnection>>,
    places: Semaphore,
    migrated: OnceCell<()>,
}

impl Connections {
    /// At most so many at a time.
    pub fn new(address: Arc<StoreAddress>, most: usize) -> Connections {
        let places = Semaphore::new(most);
        Connections { address, idle: Mutex::default(), places, migrated: OnceCell::new() }
    }

    pub fn place(&self) -> &str {
        self.address.place()
    }

    pub fn error(&self, doing: &'static str, failure: SqlFailure) -> StoreError {
        let reason = match failure {
            SqlFailure::Sql(error) => match (error.as_db_error(), std::error::Error::source(&error)) {
                (Some(answer), _) => answer.message().to_owned(),
                (None, Some(cause)) => tls::explain(&error, cause),
                (None, None) => error.to_string(),
            },
            SqlFailure::Late => format!("there was no answer within {} s", TRY_FOR.as_secs()),
            SqlFailure::Silent => "no host accepted a connection in time".to_owned(),
            SqlFailure::Newer(found) => format!(
                "its tables have version {found}, and this Epitome knows versions up to {}",
                MIGRATIONS.len()
            ),
        };
        StoreError::Unreachable { doing, place: self.place().to_owned(), reason }
    }

    /// Runs a statement that may be repeated if its outcome is unknown.
    pub async fn query(
        &self,
        doing: &'static str,
        sql: &str,
        params: Vec<Param>,
    ) -> Result<Vec<Row>, StoreError> {
        let until = Instant::now() + TRY_FOR;
        let mut before = None;
        loop {
            let failure = match self.query_until(until, sql, &params).await {
                Ok(rows) => return Ok(rows),
                // Why the attempts before failed says more than that there was no time for another.
                Err(SqlFailure::Late) => before.take().unwrap_or(SqlFailure::Late),
                Err(failure) if failure.is_passing() && Instant::now() < until => {
                    before = Some(failure);
                    sleep(TRY_AGAIN_AFTER).await;
                    continue;
                }
                Err(failure) => failure,
            };
            return Err(self.error(doing, failure));
        }
    }

    /// Runs a statement, once.
    pub async fn query_until(
        &self,
        until: Instant,
        sql: &str,
        params: &[Param],
    ) -> Result<Vec<Row>, SqlFailure> {
        let params = params.iter().map(|(value, kind)| (&**value as &(dyn ToSql + Sync), kind.clone()));
        let params: Vec<_> = params.collect();
        self.until(until, async |client| Ok(client.query_typed(sql, &params).await?)).await
    }

    /// Works on a connection, once.
    pub async fn until<T>(
        &self,
        until: Instant,
        work: impl AsyncFnOnce(&mut Client) -> Result<T, SqlFailure>,
    ) -> Result<T, SqlFailure> {
        let done = timeout_at(until, async {
            // It is never closed.
            let _place = self.places.acquire().await;
            self.migrated.get_or_try_init(|| self.migrate_with_others()).await?;
            let mut connection = self.connection().await?;
            connection.is_busy = true;
            // If the answer is not awaited any longer, the connection is dropped here.
            let done = work(&mut connection.client).await;
            connection.is_busy = false;
            // One to a server that ends or has become a standby is of no use.
            let is_useful = done.as_ref().err().is_none_or(|failure| !failure.is_passing());
            if is_useful && !connection.client.is_closed() {
                self.idle.lock().push(connection);
            }
            done
        });
        done.await.unwrap_or_else(|_| {
            // The other connections may lead to the same server, which may be hung.
            self.idle.lock().clear();
            Err(SqlFailure::Late)
        })
    }

    async fn connection(&self) -> Result<DatabaseConnection, SqlFailure> {
        let idle = || self.idle.lock().pop();
        while let Some(connection) = idle() {
            if !connection.client.is_closed() {
                return Ok(connection);
            }
        }
        let (client, connection, host) = self.address.connect().await?;
        let task = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to the database has ended");
            }
        });
        let (task, address) = (task.abort_handle(), self.address.clone());
        Ok(DatabaseConnection { client, task, address, host, is_busy: false })
    }

    /// Another process may create the same tables at this moment. One of them fails and finds them when it tries again.
    async fn migrate_with_others(&self) -> Result<(), SqlFailure> {
        for _ in 1..MIGRATE_TRIES {
            match self.migrate().await {
                Err(SqlFailure::Sql(error)) if error.code().is_some_and(|code| EXISTS.contains(code)) => {
                    sleep(TRY_AGAIN_AFTER).await
                }
                done => return done,
            }
        }
        self.migrate().await
    }

    async fn migrate(&self) -> Result<(), SqlFailure> {
        let mut connection = self.connection().await?;
        connection.is_busy = true;
        // Users who may not create tables can use those that are there.
        let is_there = connection.client.query_typed("select to_regclass('epitome_schema') is not null", &[]);
        if !is_there.await?[0].get::<_, bool>(0) {
            let create = "create table if not exists epitome_schema (version bigint primary key)";
            connection.client.batch_execute(create).await?;
        }
        let migrating = connection.client.transaction().await?;
        let row = migrating.query_typed("select coalesce(max(version), 0) from epitome_schema", &[]).await?;
        let found: i64 = row[0].get(0);
        if found > MIGRATIONS.len() as i64 {
            return Err(SqlFailure::Newer(found));
        }
        for (version, sql) in (1_i64..).zip(MIGRATIONS).skip(found as usize) {
            migrating
                .query_typed("insert into epitome_schema (version) values ($1)", &[(&version, Type::INT8)])
                .await?;
            migrating.batch_execute(sql).await?;
        }
        migrating.commit().await?;
        connection.is_busy = false;
        Ok(())
    }
}
