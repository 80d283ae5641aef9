//! What was found in one entry. Who reads an entry looks at its text alone and notes what it tells; only then one
//! after the other is put into the store, in the order of the log. Pure.

use super::calls::Action;
use super::fact::{Fact, Source, Value};
use super::names::{self, Named};
use super::printed::Ended;
use super::store::Store;
use super::{ending, outcomes};
use crate::thread::Seq;

/// The finds of an entry, in the order of its text.
#[derive(Clone, Debug, Default)]
pub(super) struct Notes {
    notes: Vec<Note>,
    /// Facts that there was no room for.
    pub beyond: u64,
}

#[derive(Clone, Debug)]
enum Note {
    Fact(Fact),
    Names {
        names: Vec<Named>,
        source: Source,
    },
    /// Values that hold no longer.
    Ended {
        olds: Vec<String>,
        now: Vec<Value>,
        by: Seq,
    },
    /// The person took something back.
    Revoked {
        line: String,
        source: Source,
    },
    /// Something was said to be done.
    Done {
        line: String,
        source: Source,
    },
    /// What was done to a file.
    Touched {
        name: String,
        path: String,
        action: Action,
        source: Source,
    },
    /// A command was run, or a file was looked at or changed: what errors it had may be gone.
    Ran {
        origin: String,
        ended: Ended,
        by: Seq,
    },
}

impl Notes {
    pub fn add(&mut self, fact: Fact) {
        self.notes.push(Note::Fact(fact));
    }

    pub fn name(&mut self, names: Vec<Named>, source: Source) {
        if !names.is_empty() {
            self.notes.push(Note::Names { names, source });
        }
    }

    /// What has one of these values has it no longer.
    pub fn end_values(&mut self, olds: &[String], now: &[Value], by: Seq) {
        if !olds.is_empty() {
            self.notes.push(Note::Ended { olds: olds.to_vec(), now: now.to_vec(), by });
        }
    }

    pub fn revoke(&mut self, line: &str, source: Source) {
        self.notes.push(Note::Revoked { line: line.to_owned(), source });
    }

    pub fn finish(&mut self, line: &str, source: Source) {
        self.notes.push(Note::Done { line: line.to_owned(), source });
    }

    pub fn touch(&mut self, name: &str, path: &str, action: Action, source: Source) {
        self.notes.push(Note::Touched { name: name.to_owned(), path: path.to_owned(), action, source });
    }

    pub fn solve(&mut self, origin: &str, ended: Ended, by: Seq) {
        self.notes.push(Note::Ran { origin: origin.to_owned(), ended, by });
    }

    /// Puts all of it into the store.
    pub fn keep(self, store: &mut Store) {
        store.beyond += self.beyond;
        for note in self.notes {
            match note {
                Note::Fact(fact) => store.add(fact),
                Note::Names { names, source } => names::keep(store, names, source),
                Note::Ended { olds, now, by } => store.end_values(&olds, &now, by),
                Note::Revoked { line, source } => ending::revoke(store, &line, source),
                Note::Done { line, source } => ending::finish(store, &line, source),
                Note::Touched { name, path, action, source } => {
                    outcomes::touch(store, &name, path, action, source)
                }
                Note::Ran { origin, ended, by } => outcomes::solve(store, &origin, ended, by),
            }
        }
    }
}
