//! The store of a simulated daemon, which records the lines that it was asked to store and that it has confirmed.

use std::collections::BTreeMap;
use std::sync::Arc;

use epitome_store::{
    Blobs, Header, JournalLine, Listing, Log, LogStore, Scan, SessionQuery, StoreError, StoredLog, WholeLog,
};
use epitome_store_postgres::Postgres;
use epitome_thread::{Seq, SessionId};
use parking_lot::Mutex;

/// The confirmed lines of all daemons, by session and number.
pub type Confirmed = Arc<Mutex<BTreeMap<(String, u64), Vec<u8>>>>;

#[derive(Debug)]
pub struct Recorded {
    pub store: Postgres,
    pub confirmed: Confirmed,
}

struct RecordedLog {
    log: Arc<dyn Log>,
    session: SessionId,
    confirmed: Confirmed,
}

impl Recorded {
    fn log(&self, session: &SessionId, log: Arc<dyn Log>) -> Arc<dyn Log> {
        Arc::new(RecordedLog { log, session: session.clone(), confirmed: self.confirmed.clone() })
    }
}

fn confirm(confirmed: &Confirmed, session: &SessionId, seq: Seq, line: &JournalLine) {
    confirmed.lock().insert((session.0.clone(), seq.0), line.bytes.clone());
}

impl LogStore for Recorded {
    fn create(
        &self,
        session: &SessionId,
        line: &JournalLine,
        header: &Header,
    ) -> Result<Arc<dyn Log>, StoreError> {
        let log = self.store.create(session, line, header)?;
        confirm(&self.confirmed, session, Seq(0), line);
        Ok(self.log(session, log))
    }

    fn open(&self, session: &SessionId) -> Result<(Arc<dyn Log>, Scan), StoreError> {
        self.store.open(session).map(|(log, scan)| (self.log(session, log), scan))
    }

    fn read(&self, session: &SessionId) -> Result<StoredLog, StoreError> {
        self.store.read(session)
    }

    fn header(&self, session: &SessionId) -> Result<Header, StoreError> {
        self.store.header(session)
    }

    fn list(&self) -> Result<Listing, StoreError> {
        self.store.list()
    }

    fn page(&self, query: &SessionQuery) -> Result<Listing, StoreError> {
        self.store.page(query)
    }

    fn publish(&self, session: &SessionId, log: &WholeLog, header: &Header) -> Result<(), StoreError> {
        self.store.publish(session, log, header)
    }

    fn delete(&self, session: &SessionId) -> Result<(), StoreError> {
        self.store.delete(session)
    }

    fn is_in_use(&self, session: &SessionId) -> bool {
        self.store.is_in_use(session)
    }

    fn blobs(&self, session: &SessionId) -> Box<dyn Blobs> {
        self.store.blobs(session)
    }

    fn settle(&self) {
        self.store.settle();
    }

    fn advertise(&self, address: &str) {
        self.store.advertise(address);
    }
}

impl Log for RecordedLog {
    fn append(&self, seq: Seq, line: &JournalLine, header: &Header) -> Result<(), StoreError> {
        self.log.append(seq, line, header)?;
        confirm(&self.confirmed, &self.session, seq, line);
        Ok(())
    }

    fn sync(&self) -> Result<(), StoreError> {
        self.log.sync()
    }

    fn synced_bytes(&self) -> u64 {
        self.log.synced_bytes()
    }

    fn check(&self) -> Result<(), StoreError> {
        self.log.check()
    }

    fn has_failed(&self) -> bool {
        self.log.has_failed()
    }

    fn release(&self) {
        self.log.release();
    }
}
