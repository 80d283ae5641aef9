//! The permissions that the user of this machine gave in a session whose log is in a database. Other users of the database
//! can write to the log, so a mode or a rule in it counts only if it is also recorded here, in a file of this machine.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use epitome_files::atomic_file::{read_private, replace_in_private_directory};
use epitome_store::{Store, grants_path};
use epitome_thread::{Change, Mode, Rule, Thread};

/// See the module.
pub(super) struct OwnGrants {
    /// `None` if nobody else can write the log.
    file: Option<PathBuf>,
    /// The session's directory.
    cwd: PathBuf,
}

/// The content of the file.
#[derive(Default, Serialize, Deserialize)]
struct Granted {
    /// The session's directory, in which the permissions apply.
    cwd: PathBuf,
    mode: Mode,
    rules: Vec<Rule>,
}

impl OwnGrants {
    pub fn of(store: &Store, data: &Path, thread: &Thread) -> OwnGrants {
        let file = store.place().map(|_| grants_path(data, thread.session()));
        OwnGrants { file, cwd: thread.cwd().to_path_buf() }
    }

    /// Records a change that was committed here. If that fails, the permission applies until the session is opened again. Blocks on the disk.
    pub fn record(&self, change: &Change) {
        let Some(file) = &self.file else { return };
        let granted = || granted(file, &self.cwd);
        let granted = match change {
            Change::ModeChosen { mode } => Granted { mode: *mode, ..granted() },
            Change::Allowed { rule } | Change::Forgotten { rule } => {
                let mut granted = granted();
                granted.rules.retain(|known| known != rule);
                granted.rules.extend(matches!(change, Change::Allowed { .. }).then(|| rule.clone()));
                granted
            }
            _ => return,
        };
        let written = serde_json::to_vec(&granted).map_err(std::io::Error::from);
        if let Err(error) = written.and_then(|bytes| replace_in_private_directory(file, &bytes)) {
            tracing::warn!(file = %file.display(), %error, "the session's permissions can't be recorded");
        }
    }

    /// Returns the changes that withdraw the permissions of a log which this user did not give. `mode`: that of the settings.
    /// Blocks on the disk.
    pub fn foreign(&self, thread: &Thread, mode: Mode) -> Vec<Change> {
        let Some(file) = &self.file else { return Vec::new() };
        let granted = granted(file, &self.cwd);
        let own = [Mode::Ask, Mode::ReadOnly, granted.mode, mode];
        let foreign_mode = (!own.contains(&thread.mode())).then_some(Change::ModeChosen { mode });
        let foreign = thread.rules().iter().filter(|rule| !granted.rules.contains(rule));
        foreign_mode.into_iter().chain(foreign.map(|rule| Change::Forgotten { rule: rule.clone() })).collect()
    }
}

/// The recorded permissions for a session in this directory. A file that can't be read contains none.
fn granted(file: &Path, cwd: &Path) -> Granted {
    let read = read_private(file).ok().and_then(|text| serde_json::from_str::<Granted>(&text).ok());
    let none = || Granted { cwd: cwd.to_path_buf(), ..Granted::default() };
    read.filter(|granted| granted.cwd == cwd).unwrap_or_else(none)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use epitome_thread::{Entry, FORMAT_VERSION, Seq, SessionId};

    use super::*;

    fn thread(cwd: &str, changes: &[Change]) -> Thread {
        let session = SessionId("s_1".to_owned());
        let opened = Change::Opened { format: FORMAT_VERSION, session, cwd: cwd.into() };
        let entries = (0..).zip([opened].into_iter().chain(changes.iter().cloned()));
        let entries = entries.map(|(seq, change)| Arc::new(Entry { seq: Seq(seq), at: 0, change }));
        Thread::replay(entries).expect("a log")
    }

    /// A member of a team, who could write to the tables, appended the mode `full` and a rule for a command outside of the
    /// sandbox to a colleague's log. The colleague's next session obeyed them.
    #[test]
    fn only_permissions_that_were_given_here_count() {
        let directory = tempfile::tempdir().expect("a directory");
        let at = |cwd: &str| OwnGrants { file: Some(directory.path().join("grants/s_1")), cwd: cwd.into() };
        let own = at("/w");
        let allowed = |line: &str| Change::Allowed { rule: Rule::Command { line: line.to_owned() } };
        let forgotten = |line: &str| Change::Forgotten { rule: Rule::Command { line: line.to_owned() } };
        let chosen = |mode| Change::ModeChosen { mode };
        let foreign = |cwd: &str, changes: &[Change]| at(cwd).foreign(&thread(cwd, changes), Mode::Ask);
        let planted = [chosen(Mode::Full), allowed("make")];
        assert_eq!(foreign("/w", &planted), [chosen(Mode::Ask), forgotten("make")]);
        let given = [chosen(Mode::AcceptEdits), allowed("make")];
        given.iter().for_each(|change| own.record(change));
        assert_eq!(foreign("/w", &given), []);
        assert_eq!(foreign("/w", &[chosen(Mode::ReadOnly)]), []);
        let more = [given.as_slice(), &[chosen(Mode::Full), allowed("sh x")]].concat();
        assert_eq!(foreign("/w", &more), [chosen(Mode::Ask), forgotten("sh x")]);
        assert_eq!(own.foreign(&thread("/w", &more), Mode::Full), [forgotten("sh x")]);
        // They were given for another directory.
        assert_eq!(foreign("/home/me", &given), [chosen(Mode::Ask), forgotten("make")]);
        let of_files = OwnGrants { file: None, ..own };
        assert_eq!(of_files.foreign(&thread("/w", &planted), Mode::Ask), []);
    }

    proptest::proptest! {
        // Each row is written to the disk.
        #![proptest_config(proptest::test_runner::Config::with_cases(48))]

        /// Whatever order the rows of several members come in, the log permits nothing that this user has not given, and
        /// withdrawing that is enough.
        #[test]
        fn planted_rows_permit_nothing(
            rows in proptest::collection::vec((proptest::bool::ANY, 0_usize..5, 0_usize..7), 0..24)
        ) {
            let directory = tempfile::tempdir().expect("a directory");
            let own = OwnGrants { file: Some(directory.path().join("grants/s_1")), cwd: "/w".into() };
            let line = |number: usize| ["make", "sh x", "make"][number % 3].to_owned();
            let rule = |number: usize| match number {
                0 | 1 => Rule::Command { line: line(number) },
                2 => Rule::CommandOutside { line: line(number) },
                3 => Rule::EditsInWorkspace,
                4 => Rule::Fetch { host: line(number) },
                5 => Rule::External { server: line(number), tool: line(number) },
                _ => Rule::ReadsBelow { path: "/".into() },
            };
            let (mut changes, mut given, mut mode) = (Vec::new(), Vec::new(), Mode::Ask);
            for (is_own, kind, number) in rows {
                let modes = [Mode::Ask, Mode::ReadOnly, Mode::AcceptEdits, Mode::Auto, Mode::Full];
                let change = match kind {
                    0 | 1 => Change::Allowed { rule: rule(number) },
                    2 => Change::Forgotten { rule: rule(number) },
                    _ => Change::ModeChosen { mode: modes[number % modes.len()] },
                };
                if is_own {
                    own.record(&change);
                    match &change {
                        Change::Allowed { rule } => given.push(rule.clone()),
                        Change::Forgotten { rule } => given.retain(|known| known != rule),
                        Change::ModeChosen { mode: chosen } => mode = *chosen,
                        _ => {}
                    }
                }
                changes.push(change);
            }
            let withdrawn = own.foreign(&thread("/w", &changes), Mode::Ask);
            changes.extend(withdrawn);
            let after = thread("/w", &changes);
            proptest::prop_assert!(after.rules().iter().all(|rule| given.contains(rule)), "{:?}", after.rules());
            proptest::prop_assert!([Mode::Ask, Mode::ReadOnly, mode].contains(&after.mode()), "{:?}", after.mode());
            proptest::prop_assert_eq!(own.foreign(&after, Mode::Ask), []);
        }
    }
}
