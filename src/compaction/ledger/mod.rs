//! The ledger: what a conversation holds that must not be lost, found by code. Pure.

use std::collections::HashSet;

use crate::thread::{Seq, Thread};
use crate::tokens::Ruler;

/// The facts of one thread's log. It is kept up to date entry by entry and never forgets by itself.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    /// Entries of the log that are taken in.
    seen: usize,
}

/// The ledger as a model reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// Markdown; empty where there is nothing to tell.
    pub text: String,
    /// Facts in it.
    pub facts: u32,
    /// The entries of facts that there was no room for, oldest first.
    pub left_out: Vec<Seq>,
}

impl Ledger {
    /// Takes in what was appended since. The work is that of the new entries alone.
    pub fn follow(&mut self, thread: &Thread) {
        self.seen = thread.entries().len();
    }

    /// The facts that are not in the entries of `kept`, within so many tokens.
    pub fn told(&self, _ruler: &Ruler, _thread: &Thread, _kept: &HashSet<Seq>, _tokens_max: u64) -> Told {
        Told::default()
    }
}
