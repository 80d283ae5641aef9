//! The user's permissions for the rest of a session: one list, shared by the session and its children.
//!
//! The session that asked adds the rule, and every other one finds it immediately, before it is in a log. The list
//! starts as a copy of the session's log, which is what persists: a child's rule gets there through its parent.

use std::sync::Arc;

use epitome_thread::Rule;
use parking_lot::RwLock;

/// A shared list of rules; see the module. Clones share the list.
#[derive(Clone, Debug, Default)]
pub struct SessionPermissions(Arc<RwLock<Arc<[Rule]>>>);

impl SessionPermissions {
    /// Creates a separate list with these rules.
    pub fn new(rules: &[Rule]) -> SessionPermissions {
        SessionPermissions(Arc::new(RwLock::new(rules.into())))
    }

    /// The rules that apply now.
    pub fn rules(&self) -> Arc<[Rule]> {
        self.0.read().clone()
    }

    pub fn allow(&self, rule: &Rule) {
        self.change(|rules| match rules.contains(rule) {
            true => None,
            false => Some(rules.iter().chain([rule]).cloned().collect()),
        });
    }

    pub fn forget(&self, rule: &Rule) {
        self.change(|rules| Some(rules.iter().filter(|kept| *kept != rule).cloned().collect()));
    }

    pub fn replace(&self, rules: &[Rule]) {
        self.change(|_| Some(rules.into()));
    }

    fn change(&self, with: impl FnOnce(&[Rule]) -> Option<Arc<[Rule]>>) {
        let mut rules = self.0.write();
        if let Some(now) = with(&rules) {
            *rules = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_puts_in_or_takes_out_holds_for_all() {
        let rule = |line: &str| Rule::Command { line: line.into() };
        let parent = SessionPermissions::new(&[rule("make")]);
        let child = parent.clone();
        child.allow(&rule("cargo test"));
        child.allow(&rule("make"));
        assert_eq!(*parent.rules(), [rule("make"), rule("cargo test")]);
        parent.forget(&rule("make"));
        assert_eq!(*child.rules(), [rule("cargo test")]);
    }
}
