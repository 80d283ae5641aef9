//! What the user allowed for the rest of a session: one list, which the session and all that work for it go by.
//!
//! Whoever was asked puts the rule in, and whoever asks next finds it there, before any log has it. It is made of the
//! session's log when the session begins, and the log is what lasts: a child's rule gets there through its parent.

use std::sync::{Arc, PoisonError, RwLock};

use epitome_thread::Rule;

/// See the module. Clones are the same list.
#[derive(Clone, Debug, Default)]
pub struct SessionPermissions(Arc<RwLock<Arc<[Rule]>>>);

impl SessionPermissions {
    /// A list of its own, with these rules.
    pub fn new(rules: &[Rule]) -> SessionPermissions {
        SessionPermissions(Arc::new(RwLock::new(rules.into())))
    }

    /// The rules that hold now.
    pub fn rules(&self) -> Arc<[Rule]> {
        // Nothing that could panic runs under this lock.
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// From now on this holds.
    pub fn allow(&self, rule: &Rule) {
        self.change(|rules| match rules.contains(rule) {
            true => None,
            false => Some(rules.iter().chain([rule]).cloned().collect()),
        });
    }

    /// From now on this holds no more.
    pub fn forget(&self, rule: &Rule) {
        self.change(|rules| Some(rules.iter().filter(|kept| *kept != rule).cloned().collect()));
    }

    /// From now on only these hold.
    pub fn replace(&self, rules: &[Rule]) {
        self.change(|_| Some(rules.into()));
    }

    fn change(&self, with: impl FnOnce(&[Rule]) -> Option<Arc<[Rule]>>) {
        let mut rules = self.0.write().unwrap_or_else(PoisonError::into_inner);
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
