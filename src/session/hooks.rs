//! A session's hooks.

use super::actor::Session;
use crate::thread::{CallId, Change, StopReason};
use crate::turn::{Answer as Told, HooksAnswer};

impl Session {
    pub(super) fn greet(&mut self, said: Change) {
        self.tell(Told::Greeted { commits: vec![said], enters: true });
    }

    pub(super) fn before_tool(&mut self, call: CallId) {
        self.tell(Told::ToolSeen(call, Vec::new()));
    }

    pub(super) fn round_ended(&mut self, _last: bool) {
        self.tell(Told::Hooks(HooksAnswer::default()));
    }

    pub(super) fn would_stop(&mut self, _reason: StopReason) {
        self.tell(Told::Hooks(HooksAnswer::default()));
    }

    pub(super) fn swapped(&mut self) {
        self.tell(Told::Hooks(HooksAnswer::default()));
    }
}
