//! The tables of the store and the server that has them, in memory: what `src/store_postgres` is connected to in a simulation.
//!
//! It knows statements by their full text, so that none can be changed without a look at what it does here. Tests of
//! `src/store_postgres` run the same statements on a real server.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::wire::{Answer, Asked, Cell, Statement};

/// One start of a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Incarnation {
    pub daemon: usize,
    pub start: u64,
}

#[derive(Clone, Debug, Default)]
pub struct SessionRow {
    holder: Option<String>,
    process: Option<String>,
    epoch: i64,
    entries: i64,
    header: String,
    updated_at: i64,
    cwd: Option<String>,
    has_prompt: bool,
    archived: bool,
    /// Not a column: the process that has opened it last and has not given it back.
    pub owner: Option<Incarnation>,
    pub lines: BTreeMap<i64, String>,
}

#[derive(Clone, Debug)]
struct ProcessRow {
    until: Duration,
    address: Option<String>,
}

#[derive(Clone, Debug, Default)]
pub struct Tables {
    pub sessions: BTreeMap<String, SessionRow>,
    processes: BTreeMap<String, ProcessRow>,
    blobs: BTreeMap<(String, String), Vec<u8>>,
}

/// An effect of a statement that a simulation checks.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    Nothing,
    /// A line was written.
    Appended,
    /// An append under an epoch that is over wrote nothing.
    StaleRefused,
    /// A session was opened that another process had not given back.
    TakenOver,
    /// A line whose commit was uncertain was removed.
    Reclaimed,
    /// Somebody wrote to a session that it does not have.
    Violation(String),
}

const CREATE: &str = "with made as (insert into epitome_session (id, holder, process, epoch, entries, header, \
    updated_at, cwd) values ($1, $2, $3, 1, 1, $4, $5, $7) returning id) \
    insert into epitome_entry (session, seq, epoch, line) select id, 0, 1, $6 from made";
const RENEW: &str = "with renewed as (insert into epitome_process (id, lease_until, address) \
    values ($1, now() + $2::int8 * interval '1 second', $3) \
    on conflict (id) do update set lease_until = excluded.lease_until, address = excluded.address), \
    gone as (delete from epitome_process \
    where id <> $1 and lease_until < now() - interval '1 day') \
    select holder from epitome_session where process = $1";
const TAKE: &str = "update epitome_session s set epoch = epoch + 1, holder = $2, process = $3 \
    where id = $1 and (holder is null or holder = $2 or not exists (select 1 from epitome_process p \
    where p.id = s.process and p.lease_until >= now() - \
    case when s.holder = $5 and p.lease_until::text = $6 then 0 else $4::int8 end * interval '1 second')) \
    returning epoch";
const LEASE: &str = "select s.holder, p.lease_until::text, p.id, p.address from epitome_session s \
    left join epitome_process p on p.id = s.process where s.id = $1";
const RELEASE: &str = "update epitome_session set holder = null, process = null, epoch = epoch + 1 \
    where id = $1 and holder = $2";
const HOLDER: &str = "select coalesce(holder, 'nobody') from epitome_session where id = $1";
const APPEND: &str = "with held as (update epitome_session set entries = $3 + 1, header = $4, \
    updated_at = $5, has_prompt = $7, archived = $8 where id = $1 and epoch = $2 and entries = $3 returning id) \
    insert into epitome_entry (session, seq, epoch, line) select id, $3, $2, $6 from held returning seq";
const RECLAIM: &str = "update epitome_session set epoch = epoch + 1, entries = least(entries, $3) \
    where id = $1 and holder = $2 returning epoch";
const RECLAIM_LINES: &str = "delete from epitome_entry where session = $1 and seq >= $2";
const ENTRIES: &str = "select entries from epitome_session where id = $1";
const PAGE: &str = "select seq, line from epitome_entry where session = $1 and seq >= $2 and seq < $3 \
    order by seq limit $4";
const HEADER: &str = "select header from epitome_session where id = $1";
const IN_USE: &str = "select 1 from epitome_session s join epitome_process p on p.id = s.process \
    where s.id = $1 and p.lease_until >= now()";
const LIST: &str = "select id, header, updated_at from epitome_session s where ($1::text is null or cwd = $1) \
    and (not $2::bool or has_prompt) and ($3::bool is null or archived = $3) and (updated_at, id) < ($4, $5) \
    order by updated_at desc, id desc limit $6";
const PUBLISH: &str = "insert into epitome_session (id, epoch, entries, header, updated_at, cwd, has_prompt, archived) \
    values ($1, 0, $2, $3, $4, $5, $6, $7)";
const PUBLISH_LINES: &str = "insert into epitome_entry (session, seq, epoch, line) \
    select $1, seq, 0, line from unnest($2::int8[], $3::text[]) as lines (seq, line)";
const DELETE: &str = "with gone as (delete from epitome_session where id = $1 \
    and (holder is null or not exists (select 1 from epitome_process p \
    where p.id = process and p.lease_until >= now())) returning id), \
    entries as (delete from epitome_entry where session in (select id from gone)), \
    blobs as (delete from epitome_blob where session in (select id from gone)) \
    select id from gone";
const PUT_BLOB: &str = "insert into epitome_blob (session, sha256, body) values ($1, $2, $3) \
    on conflict (session, sha256) do update set stored_at = now()";
const GET_BLOB: &str = "select body from epitome_blob where session = $1 and sha256 = $2";
const IS_THERE: &str = "select to_regclass('epitome_schema') is not null";
const VERSION: &str = "select coalesce(max(version), 0) from epitome_schema";
const MIGRATED: &str = "insert into epitome_schema (version) values ($1)";

/// Rules that can be broken, to see that a simulation notices.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum BrokenRule {
    #[default]
    None,
    /// Appends don't look at the epoch.
    Fence,
    /// Commits are confirmed before the standby has received them.
    Replication,
}

impl Tables {
    pub fn run(
        &mut self,
        asked: &Asked,
        by: Incarnation,
        now: Duration,
        broken: BrokenRule,
    ) -> (Answer, Effect) {
        let statement = match asked {
            // Statements that create tables, and the ends of transactions.
            Asked::Simple(_) => return (Answer::Nothing, Effect::Nothing),
            Asked::Statement(statement) => statement,
        };
        let row_of_int = |number: Option<i64>| {
            let rows = number.into_iter().map(|number| vec![Cell::Int(number)]).collect();
            (Answer::Rows(rows), Effect::Nothing)
        };
        match &statement.sql[..] {
            IS_THERE => (Answer::Rows(vec![vec![Cell::Flag(true)]]), Effect::Nothing),
            VERSION => row_of_int(Some(0)),
            MIGRATED => (Answer::Nothing, Effect::Nothing),
            CREATE => self.create(statement, by),
            RENEW => (self.renew(statement, now), Effect::Nothing),
            TAKE => self.take(statement, by, now),
            LEASE => (self.lease(statement), Effect::Nothing),
            RELEASE => {
                let holder = Some(statement.text(2));
                if let Some(row) =
                    self.sessions.get_mut(&statement.text(1)).filter(|row| row.holder == holder)
                {
                    (row.holder, row.process, row.owner) = (None, None, None);
                    row.epoch += 1;
                }
                (Answer::Nothing, Effect::Nothing)
            }
            HOLDER => {
                let row = self.sessions.get(&statement.text(1));
                let holder = row.map(|row| row.holder.clone().unwrap_or_else(|| "nobody".to_owned()));
                (texts(holder), Effect::Nothing)
            }
            APPEND => self.append(statement, by, broken),
            RECLAIM => {
                let holder = Some(statement.text(2));
                let row = self.sessions.get_mut(&statement.text(1)).filter(|row| row.holder == holder);
                row_of_int(row.map(|row| {
                    row.epoch += 1;
                    row.entries = row.entries.min(statement.int(3));
                    row.epoch
                }))
            }
            RECLAIM_LINES => {
                let lines = self.sessions.get_mut(&statement.text(1)).map(|row| &mut row.lines);
                let removed = lines.is_some_and(|lines| !lines.split_off(&statement.int(2)).is_empty());
                (Answer::Nothing, if removed { Effect::Reclaimed } else { Effect::Nothing })
            }
            ENTRIES => row_of_int(self.sessions.get(&statement.text(1)).map(|row| row.entries)),
            PAGE => (self.page(statement), Effect::Nothing),
            HEADER => {
                let row = self.sessions.get(&statement.text(1));
                (texts(row.map(|row| row.header.clone())), Effect::Nothing)
            }
            IN_USE => {
                let process = self.sessions.get(&statement.text(1)).and_then(|row| row.process.as_ref());
                row_of_int(process.filter(|process| self.is_alive(process, now)).map(|_| 1))
            }
            LIST => (self.list(statement), Effect::Nothing),
            PUBLISH => {
                let id = statement.text(1);
                if self.sessions.contains_key(&id) {
                    return (exists(), Effect::Nothing);
                }
                let row = SessionRow {
                    entries: statement.int(2),
                    header: statement.text(3),
                    updated_at: statement.int(4),
                    cwd: statement.optional(5),
                    has_prompt: statement.flag(6),
                    archived: statement.flag(7),
                    ..SessionRow::default()
                };
                self.sessions.insert(id, row);
                (Answer::Nothing, Effect::Nothing)
            }
            PUBLISH_LINES => {
                let row = self.sessions.get_mut(&statement.text(1)).expect("it was published");
                let seqs = statement.array(2).into_iter();
                let seqs = seqs.map(|seq| i64::from_be_bytes(seq.try_into().expect("it is an int8")));
                let lines = statement.array(3).into_iter();
                let lines = lines.map(|line| String::from_utf8(line).expect("it is a text"));
                row.lines.extend(seqs.zip(lines));
                (Answer::Nothing, Effect::Nothing)
            }
            DELETE => {
                let id = statement.text(1);
                let is_free = |row: &SessionRow| {
                    let process = row.process.as_ref().filter(|_| row.holder.is_some());
                    !process.is_some_and(|process| self.is_alive(process, now))
                };
                if !self.sessions.get(&id).is_some_and(is_free) {
                    return (Answer::Nothing, Effect::Nothing);
                }
                self.sessions.remove(&id);
                self.blobs.retain(|(session, _), _| *session != id);
                (texts(Some(id)), Effect::Nothing)
            }
            PUT_BLOB => {
                self.blobs.insert((statement.text(1), statement.text(2)), statement.bytes(3));
                (Answer::Nothing, Effect::Nothing)
            }
            GET_BLOB => {
                let body = self.blobs.get(&(statement.text(1), statement.text(2)));
                let rows = body.into_iter().map(|body| vec![Cell::Bytes(body.clone())]).collect();
                (Answer::Rows(rows), Effect::Nothing)
            }
            sql => panic!("the simulated database does not know this statement: {sql}"),
        }
    }

    fn is_alive(&self, process: &str, now: Duration) -> bool {
        self.processes.get(process).is_some_and(|row| row.until >= now)
    }

    fn create(&mut self, statement: &Statement, by: Incarnation) -> (Answer, Effect) {
        let id = statement.text(1);
        if self.sessions.contains_key(&id) {
            return (exists(), Effect::Nothing);
        }
        let row = SessionRow {
            holder: Some(statement.text(2)),
            process: Some(statement.text(3)),
            epoch: 1,
            entries: 1,
            header: statement.text(4),
            updated_at: statement.int(5),
            cwd: statement.optional(7),
            owner: Some(by),
            lines: BTreeMap::from([(0, statement.text(6))]),
            ..SessionRow::default()
        };
        self.sessions.insert(id, row);
        (Answer::Nothing, Effect::Appended)
    }

    fn renew(&mut self, statement: &Statement, now: Duration) -> Answer {
        let process = statement.text(1);
        let until = now + Duration::from_secs(statement.int(2) as u64);
        let day = Duration::from_secs(24 * 60 * 60);
        self.processes.retain(|id, row| *id == process || row.until + day >= now);
        self.processes.insert(process.clone(), ProcessRow { until, address: statement.optional(3) });
        let held = self.sessions.values().filter(|row| row.process.as_ref() == Some(&process));
        texts(held.filter_map(|row| row.holder.clone()))
    }

    fn take(&mut self, statement: &Statement, by: Incarnation, now: Duration) -> (Answer, Effect) {
        let (id, token) = (statement.text(1), Some(statement.text(2)));
        let (seen, until) = (statement.optional(5), statement.optional(6));
        let long_over = Duration::from_secs(statement.int(4) as u64);
        let is_free = |row: &SessionRow| {
            let has_lease = |process: &String| {
                self.processes.get(process).is_some_and(|process| {
                    let was_seen = seen.is_some() && row.holder == seen && until == Some(text_of(process));
                    process.until + if was_seen { Duration::ZERO } else { long_over } >= now
                })
            };
            row.holder.is_none() || row.holder == token || !row.process.as_ref().is_some_and(has_lease)
        };
        let is_free = self.sessions.get(&id).is_some_and(is_free);
        let Some(row) = self.sessions.get_mut(&id).filter(|_| is_free) else {
            return (Answer::Nothing, Effect::Nothing);
        };
        let effect = if row.owner.is_some_and(|owner| owner.daemon != by.daemon) {
            Effect::TakenOver
        } else {
            Effect::Nothing
        };
        row.epoch += 1;
        (row.holder, row.process, row.owner) = (token, Some(statement.text(3)), Some(by));
        (Answer::Rows(vec![vec![Cell::Int(row.epoch)]]), effect)
    }

    fn lease(&self, statement: &Statement) -> Answer {
        let Some(row) = self.sessions.get(&statement.text(1)) else { return Answer::Nothing };
        let process = row.process.as_ref().and_then(|id| Some((id.clone(), self.processes.get(id)?)));
        let until = process.as_ref().map(|(_, process)| text_of(process));
        let address = process.as_ref().and_then(|(_, process)| process.address.clone());
        let cells = [row.holder.clone(), until, process.map(|(id, _)| id), address];
        Answer::Rows(vec![cells.into_iter().map(Cell::Text).collect()])
    }

    fn append(&mut self, statement: &Statement, by: Incarnation, broken: BrokenRule) -> (Answer, Effect) {
        let (id, epoch, seq) = (statement.text(1), statement.int(2), statement.int(3));
        let Some(row) = self.sessions.get_mut(&id) else { return (Answer::Nothing, Effect::Nothing) };
        let is_stale = row.epoch != epoch;
        if (is_stale && broken != BrokenRule::Fence) || row.entries != seq {
            let effect = if is_stale { Effect::StaleRefused } else { Effect::Nothing };
            return (Answer::Nothing, effect);
        }
        if row.lines.contains_key(&seq) {
            return (exists(), Effect::Nothing);
        }
        let effect = match row.owner == Some(by) {
            true => Effect::Appended,
            false => Effect::Violation(format!("{by:?} wrote {seq} of {id}, which {:?} has", row.owner)),
        };
        row.entries = seq + 1;
        (row.header, row.updated_at) = (statement.text(4), statement.int(5));
        (row.has_prompt, row.archived) = (statement.flag(7), statement.flag(8));
        row.lines.insert(seq, statement.text(6));
        (Answer::Rows(vec![vec![Cell::Int(seq)]]), effect)
    }

    fn page(&self, statement: &Statement) -> Answer {
        let Some(row) = self.sessions.get(&statement.text(1)) else { return Answer::Nothing };
        let lines = row.lines.range(statement.int(2)..statement.int(3)).take(statement.int(4) as usize);
        let rows = lines.map(|(seq, line)| vec![Cell::Int(*seq), Cell::Text(Some(line.clone()))]);
        Answer::Rows(rows.collect())
    }

    fn list(&self, statement: &Statement) -> Answer {
        let (cwd, after) = (statement.optional(1), (statement.int(4), statement.text(5)));
        let archived = statement.optional(3).map(|flag| flag.as_bytes() == [1]);
        let wanted = |(id, row): &(&String, &SessionRow)| {
            (cwd.is_none() || row.cwd == cwd)
                && (!statement.flag(2) || row.has_prompt)
                && archived.is_none_or(|archived| row.archived == archived)
                && (row.updated_at, *id) < (after.0, &after.1)
        };
        let mut rows: Vec<_> = self.sessions.iter().filter(wanted).collect();
        rows.sort_by_key(|(id, row)| std::cmp::Reverse((row.updated_at, (*id).clone())));
        let rows = rows.into_iter().take(statement.int(6) as usize).map(|(id, row)| {
            vec![
                Cell::Text(Some(id.clone())),
                Cell::Text(Some(row.header.clone())),
                Cell::Int(row.updated_at),
            ]
        });
        Answer::Rows(rows.collect())
    }

    /// The lines of each session, as a file would have them.
    pub fn journals(&self) -> BTreeMap<String, Vec<u8>> {
        let journal = |row: &SessionRow| row.lines.values().flat_map(|line| [line, "\n"]).collect::<String>();
        self.sessions.iter().map(|(id, row)| (id.clone(), journal(row).into_bytes())).collect()
    }

    /// The bodies of a session, by their digest.
    pub fn blobs_of(&self, session: &str) -> BTreeMap<String, Vec<u8>> {
        let own = self.blobs.iter().filter(|((of, _), _)| of == session);
        own.map(|((_, hash), body)| (hash.clone(), body.clone())).collect()
    }

    /// The sessions with a row whose number of entries is not that of its lines.
    pub fn torn(&self) -> BTreeSet<&String> {
        let is_torn = |row: &SessionRow| !(0..row.entries).eq(row.lines.keys().copied());
        self.sessions.iter().filter(|(_, row)| is_torn(row)).map(|(id, _)| id).collect()
    }
}

fn texts(texts: impl IntoIterator<Item = String>) -> Answer {
    Answer::Rows(texts.into_iter().map(|text| vec![Cell::Text(Some(text))]).collect())
}

fn exists() -> Answer {
    let message = "duplicate key value violates unique constraint".to_owned();
    Answer::Error { code: "23505", message }
}

/// The end of a lease, as PostgreSQL would write it.
fn text_of(process: &ProcessRow) -> String {
    format!("{:?}", process.until)
}
