//! A session's parent, and what a child shares with it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use epitome_hooks::handlers::HandlerTable;
use epitome_hooks::output::Utterance;
use epitome_thread::{ModelName, Origin, Seq, SessionId, Usage};

/// A session's place among its parents and children. The default is a session with clients.
#[derive(Clone, Debug, Default)]
pub struct Lineage {
    /// 0 for a session with clients, 1 for its children.
    pub depth: u32,
    /// The recipe or agent that a child runs, named in permission requests, errors and payloads of hooks. Empty for a
    /// session with clients.
    pub recipe: String,
    pub callback_args: BTreeMap<String, String>,
    pub parent: Option<SessionId>,
    /// The only command lines that it may run, as patterns with `*`; `None` for no restriction. The user is asked
    /// nevertheless.
    pub allowed_commands: Option<Vec<String>>,
    /// Handlers that its recipe declares for events of its run.
    pub handlers: HandlerTable,
    /// The description of an agent's role, which follows the common system prompt; `None` if it is not an agent.
    pub role: Option<String>,
    /// It was stopped and is wrapping up: no further tool calls are run.
    pub wraps_up: Arc<AtomicBool>,
    /// The first of its own entries; those before it were given to it.
    pub own_from: Seq,
    /// The collector of histories that its hooks leave for its parent.
    pub handed: Handover,
    /// The cost of a running model call, for its parent if it is stopped meanwhile.
    pub running: RunningCost,
}

impl Lineage {
    pub fn is_child(&self) -> bool {
        self.parent.is_some()
    }

    /// Whether it is a child with its own conversation, instead of a continuation of its parent's.
    pub fn is_agent(&self) -> bool {
        self.role.is_some()
    }

    pub(super) fn wraps_up(&self) -> bool {
        self.wraps_up.load(Ordering::Relaxed)
    }

    /// The origin of its prompts.
    pub fn origin(&self) -> Origin {
        match self.is_child() && !self.is_agent() {
            true => Origin::Recipe { recipe: self.recipe.clone(), typed: String::new() },
            false => Origin::Person,
        }
    }
}

/// The cost of a child's running model call so far.
#[derive(Clone, Debug, Default)]
pub struct RunningCost(Arc<Mutex<Option<(ModelName, Usage)>>>);

impl RunningCost {
    pub fn set(&self, cost: Option<(ModelName, Usage)>) {
        *self.0.lock() = cost;
    }

    pub(super) fn take(&self) -> Option<(ModelName, Usage)> {
        self.0.lock().take()
    }
}

/// A history that a hook of a callback's run made for the conversation that called it.
#[derive(Clone, Debug, PartialEq)]
pub struct HandedHistory {
    pub by: String,
    pub messages: Vec<Utterance>,
    pub preserve_recent: usize,
}

/// Collects the histories that a callback's run leaves for the conversation that called it.
#[derive(Clone, Debug, Default)]
pub struct Handover(Arc<Mutex<Vec<HandedHistory>>>);

impl Handover {
    pub(super) fn put(&self, handed: HandedHistory) {
        self.0.lock().push(handed);
    }

    pub(super) fn take(&self) -> Vec<HandedHistory> {
        std::mem::take(&mut *self.0.lock())
    }
}
