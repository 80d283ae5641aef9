//! Damaged journals.

use epitome_store::Store;
use epitome_thread::{SessionId, Thread};

/// Reads any bytes as a journal. Its intact part is in order and folds to a view.
pub fn read(bytes: &[u8]) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("journal.jsonl");
    std::fs::write(&path, bytes).expect("written");
    let name = SessionId("s_00000000000000000001".into());
    let Ok(Some(outside)) = Store::read_outside(&path, Some(&name)) else { return };
    let numbers = outside.entries.windows(2).all(|pair| pair[0].seq < pair[1].seq);
    assert!(numbers, "entries are in order");
    drop(Thread::replay(outside.entries));
}
