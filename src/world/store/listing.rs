//! The sessions in the order of listings. Where the system reports changes in the directory of the journals, the list is
//! kept, and the next listing reads only the journals that have changed. Otherwise each listing reads every journal.
//!
//! The kept list always equals one made from every journal, also after changes by other processes. The first listing of a
//! process uses the list that an earlier process has saved (`saved_listing`), if there is one.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::take;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::files::Files;
use super::header::{Header, MarkedHeader};
use super::rows::VERSION;
use super::saved_listing::{NamesMark, SESSIONS_MAX, SavedListing, SavedRow};
use super::{Listing, SessionQuery, StoreError, now, scan};
use epitome_platform::directory_watch::DirectoryWatch;
use epitome_thread::SessionId;

/// Bytes of journals that are read rather than the index, whose opening takes ten milliseconds.
const READ_BYTES_MAX: u64 = 512 * 1024;

/// The cost of opening a journal, in bytes that could be read in that time.
const OPEN_COSTS_BYTES: u64 = 8 * 1024;

/// The state that a process keeps from one listing to the next.
#[derive(Debug, Default)]
pub(super) struct KeptListing {
    is_enabled: AtomicBool,
    sessions: Mutex<Option<SortedSessions>>,
    /// The headers of sessions to which this process has appended since the last listing; their journals need not be read.
    /// `None` if no sessions are kept.
    appended: Mutex<Option<AppendedHeaders>>,
}

type AppendedHeaders = BTreeMap<SessionId, Arc<MarkedHeader>>;

#[derive(Debug, Default)]
struct SortedSessions {
    /// The headers, each with the time by which it is sorted; newest first.
    rows: Vec<(u64, Arc<MarkedHeader>)>,
    problems: Vec<(SessionId, StoreError)>,
    /// Sessions to look at in each listing, because their journal can't be read or has times of a wrong clock.
    unsettled: BTreeSet<SessionId>,
    /// The sessions from here on are not known.
    floor: Option<(u64, SessionId)>,
    /// The watch of the directory, from before the first look at the journals.
    watch: Option<DirectoryWatch>,
    /// Whether a process has saved them as they are, or has tried to.
    is_saved: bool,
}

impl KeptListing {
    /// Keeps sessions from now on: for a process that lists more than once.
    pub fn enable(&self) {
        self.is_enabled.store(true, Ordering::Relaxed);
    }

    pub fn appended(&self, header: &Arc<MarkedHeader>) {
        if let Some(appended) = &mut *self.appended.lock() {
            appended.insert(header.header.session.clone(), header.clone());
        }
    }

    pub fn page(&self, files: &Files, query: &SessionQuery) -> Result<Listing, StoreError> {
        let mut kept = self.sessions.lock();
        let renewed = self.renewed(&mut kept, files);
        let is_first = renewed.is_none();
        let sessions = renewed.or_else(|| SortedSessions::saved(files));
        let with_page = sessions.and_then(|sessions| Some((sessions.page(query)?, sessions)));
        let (headers, mut sessions) = match with_page {
            Some(found) => found,
            None => {
                let sessions = SortedSessions::look(files, self.is_enabled())?;
                (sessions.page(query).unwrap_or_default(), sessions)
            }
        };
        let problems = take(&mut sessions.problems);
        if self.is_enabled() {
            if is_first && sessions.floor.is_some() {
                look_in_background(files);
            }
            self.keep(&mut kept, sessions);
        }
        Ok(Listing { headers, problems })
    }

    /// Whether sessions are kept that are not saved. Reads no file, and does not wait for a listing.
    pub fn is_unsaved(&self) -> bool {
        let kept = self.sessions.try_lock();
        kept.is_some_and(|kept| kept.as_ref().is_some_and(|kept| !kept.is_saved || kept.is_outdated()))
    }

    /// Saves the sessions for the next process, if they are kept.
    pub fn save(&self, files: &Files) {
        let mut kept = self.sessions.lock();
        let names = NamesMark::now(&files.paths).filter(NamesMark::is_past);
        let Some(mut sessions) = self.renewed(&mut kept, files) else { return };
        if let Some(names) = names.filter(|_| !sessions.is_saved) {
            // If it fails, it would fail again.
            sessions.is_saved = true;
            if let Some(listing) = sessions.to_save(files, names) {
                listing.write(&files.paths);
            }
            // Entries appended meanwhile are not in it, and the file may not have been there to be removed.
            if sessions.is_outdated() {
                SavedListing::remove(&files.paths);
            }
        }
        sessions.problems.clear();
        self.keep(&mut kept, sessions);
    }

    fn is_enabled(&self) -> bool {
        self.is_enabled.load(Ordering::Relaxed)
    }

    fn renewed(&self, kept: &mut Option<SortedSessions>, files: &Files) -> Option<SortedSessions> {
        let sessions = kept.take()?;
        let appended = self.appended.lock().as_mut().map(take).unwrap_or_default();
        sessions.renewed(files, &appended)
    }

    fn keep(&self, kept: &mut Option<SortedSessions>, sessions: SortedSessions) {
        let is_kept = sessions.watch.is_some();
        *kept = is_kept.then_some(sessions);
        let mut appended = self.appended.lock();
        *appended = if is_kept { Some(appended.take().unwrap_or_default()) } else { None };
    }
}

impl SortedSessions {
    /// Looks at all journals. Headers come from sled where it is up to date, or from the journals if that is faster.
    fn look(files: &Files, is_kept: bool) -> Result<SortedSessions, StoreError> {
        let watch = if is_kept { watch(files) } else { None };
        let mut sessions = SortedSessions { watch, ..SortedSessions::default() };
        let found = files.paths.session_files()?;
        let costs = found.iter().map(|(_, stat)| stat.bytes + OPEN_COSTS_BYTES).sum::<u64>();
        // A process that ends soon may as well bring the index up to date.
        let reads_index = !is_kept || costs > READ_BYTES_MAX;
        let known = if reads_index { files.index.headers() } else { Arc::default() };
        let now = now();
        sessions.rows.reserve(found.len());
        // Both are sorted by session.
        let mut rows = known.iter().peekable();
        for (session, stat) in found {
            while let Some((deleted, _)) = rows.next_if(|(row, _)| **row < session) {
                files.index.catch_up(deleted);
            }
            let row = rows.next_if(|(row, _)| **row == session).map(|(_, marked)| marked);
            let header = match row.filter(|marked| marked.mark.bytes == stat.bytes) {
                Some(marked) => Ok(marked.clone()),
                None => scan::read_header(&files.paths, &session).map(|marked| {
                    if reads_index {
                        files.index.catch_up(&session);
                    }
                    Arc::new(marked)
                }),
            };
            sessions.add(session, header, stat.changed_at, now);
        }
        rows.for_each(|(deleted, _)| files.index.catch_up(deleted));
        sessions.sort();
        Ok(sessions)
    }

    /// The sessions that an earlier process has saved.
    fn saved(files: &Files) -> Option<SortedSessions> {
        let watch = watch(files)?;
        let SavedListing { rows, unsettled, floor, .. } = SavedListing::read(&files.paths)?;
        let rows = rows.into_iter().map(|row| (row.marked.header.updated_at, Arc::new(row.marked))).collect();
        let problems = Vec::new();
        let saved = SortedSessions { rows, problems, unsettled, floor, watch: Some(watch), is_saved: true };
        saved.renewed(files, &AppendedHeaders::new())
    }

    /// `None` if one of them is gone.
    fn to_save(&self, files: &Files, names: NamesMark) -> Option<SavedListing> {
        let floor = self.rows.get(SESSIONS_MAX).map(key).or_else(|| self.floor.clone());
        let newest = self.rows.iter().take(SESSIONS_MAX).map(|(_, marked)| marked);
        let settled = newest.filter(|marked| !self.unsettled.contains(&marked.header.session));
        let rows = settled.map(|marked| {
            let stat = files.paths.disk.stat(&files.paths.journal(&marked.header.session)).ok()?;
            Some(SavedRow { marked: MarkedHeader::clone(marked), journal: (stat.bytes, stat.touched_at) })
        });
        let rows = rows.collect::<Option<_>>()?;
        Some(SavedListing { version: VERSION, names, rows, unsettled: self.unsettled.clone(), floor })
    }

    /// Whether journals have changed since the last look.
    fn is_outdated(&self) -> bool {
        self.watch.as_ref().is_some_and(DirectoryWatch::has_changes)
    }

    /// Looks at the sessions that have changed; `None` if it is not known which ones have.
    fn renewed(mut self, files: &Files, appended: &AppendedHeaders) -> Option<SortedSessions> {
        let names = self.watch.as_ref()?.changed()?;
        let now = now();
        // The clock was set back.
        if self.rows.first().is_some_and(|(at, _)| *at > now) {
            return None;
        }
        let mut changed = take(&mut self.unsettled);
        // A journal, or the mark of its sync.
        changed.extend(names.iter().filter_map(|name| SessionId::parse(name.to_str()?.split('.').next()?)));
        changed.extend(appended.keys().cloned());
        if changed.is_empty() {
            return Some(self);
        }
        self.is_saved = false;
        self.rows.retain(|(_, marked)| !changed.contains(&marked.header.session));
        for session in changed {
            let Ok(stat) = files.paths.disk.stat(&files.paths.journal(&session)) else { continue };
            let header = match appended.get(&session).filter(|marked| marked.mark.bytes == stat.bytes) {
                Some(marked) => Ok(marked.clone()),
                None => scan::read_header(&files.paths, &session).map(Arc::new),
            };
            self.add(session, header, stat.changed_at, now);
        }
        self.sort();
        if let Some(floor) = &self.floor {
            let known = self.rows.partition_point(|row| key(row) > *floor);
            self.rows.truncate(known);
        }
        Some(self)
    }

    fn add(
        &mut self,
        session: SessionId,
        header: Result<Arc<MarkedHeader>, StoreError>,
        changed_at: u64,
        now: u64,
    ) {
        match header {
            Ok(marked) => {
                let Header { updated_at, created_at, .. } = marked.header;
                // A wrong clock must not keep a session at the top of the list forever.
                let times = [updated_at, changed_at, created_at];
                let at = times.into_iter().find(|time| *time <= now).unwrap_or(0);
                if at != updated_at {
                    self.unsettled.insert(session);
                }
                self.rows.push((at, marked));
            }
            Err(StoreError::NotFound(_)) => {}
            Err(problem) => {
                self.unsettled.insert(session.clone());
                self.problems.push((session, problem));
            }
        }
    }

    /// Fast if few rows are not in their place.
    fn sort(&mut self) {
        self.rows.sort_by(|(a, of_a), (b, of_b)| (b, &of_b.header.session).cmp(&(a, &of_a.header.session)));
    }

    /// Only the headers of the page are copied. `None` if sessions are needed that are not known.
    fn page(&self, query: &SessionQuery) -> Option<Vec<Header>> {
        let mut wants = query.wants();
        let limit = query.limit.unwrap_or(usize::MAX);
        let rows = self.rows.iter().filter(|(at, marked)| wants(&marked.header, *at));
        let page = rows.take(limit).map(|(at, marked)| Header { updated_at: *at, ..marked.header.clone() });
        let page: Vec<Header> = page.collect();
        (self.floor.is_none() || page.len() == limit).then_some(page)
    }
}

/// Looks at all journals after a response that relied on what an earlier process has saved.
fn look_in_background(files: &Files) {
    let files = files.clone();
    let started = std::thread::Builder::new().name("epitome-listing".into()).spawn(move || {
        let mut kept = files.listed.sessions.lock();
        *kept = SortedSessions::look(&files, true).ok().filter(|sessions| sessions.watch.is_some());
        // The next listing reports them.
        kept.iter_mut().for_each(|sessions| sessions.problems.clear());
    });
    if let Err(error) = started {
        tracing::debug!(%error, "the other sessions are looked at when they are needed");
    }
}

/// The place of a session in the order of listings.
fn key((at, marked): &(u64, Arc<MarkedHeader>)) -> (u64, SessionId) {
    (*at, marked.header.session.clone())
}

fn watch(files: &Files) -> Option<DirectoryWatch> {
    let watch = DirectoryWatch::new(&files.paths.journals());
    watch.inspect_err(|error| tracing::debug!(%error, "each listing looks at every journal")).ok()
}

#[cfg(test)]
#[path = "listing_tests.rs"]
mod tests;
