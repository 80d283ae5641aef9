//! Spending per day, by all sessions and processes that share a home directory: a small file guarded by a lock file.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use jiff::Zoned;
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};

use super::Amount;
use epitome_files::atomic_file::{lock_for_change, replace_in_private_directory};

/// Maximum days kept: more than any month.
const DAYS_MAX: usize = 62;

#[derive(Clone, Debug)]
pub struct Ledger {
    file: PathBuf,
    running: Arc<Mutex<Amount>>,
}

/// Keyed by local date, such as `2026-11-26`.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Days {
    days: BTreeMap<String, Amount>,
}

/// Why the spending is not known or was not recorded. Its text is a clause.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    #[error("{}: {source}", file.display())]
    File { file: PathBuf, source: io::Error },
    #[error("{} is damaged ({source}); delete it to start over", file.display())]
    Damaged { file: PathBuf, source: serde_json::Error },
    #[error(transparent)]
    Unwritable(#[from] serde_json::Error),
}

impl Ledger {
    pub fn below(data: &Path) -> Ledger {
        /// The running calls of this process, by file.
        static RUNNING: Mutex<BTreeMap<PathBuf, Weak<Mutex<Amount>>>> = Mutex::new(BTreeMap::new());
        let file = data.join("spent.json");
        let mut all = RUNNING.lock();
        all.retain(|_, running| running.strong_count() > 0);
        let running = all.get(&file).and_then(Weak::upgrade).unwrap_or_default();
        all.insert(file.clone(), Arc::downgrade(&running));
        Ledger { file, running }
    }

    /// The estimates of the running calls of all sessions of this process.
    pub fn running(&self) -> MutexGuard<'_, Amount> {
        self.running.lock()
    }

    /// Returns the spending of today and of this month. Blocks.
    pub fn totals(&self) -> Result<(Amount, Amount), LedgerError> {
        let today = today();
        let month = &today[..today.len() - "-26".len()];
        let (mut of_day, mut of_month) = (Amount::default(), Amount::default());
        for (date, spent) in self.read()?.days {
            if date == today {
                of_day = of_day.plus(spent);
            }
            if date.starts_with(month) {
                of_month = of_month.plus(spent);
            }
        }
        Ok((of_day, of_month))
    }

    /// Adds to today's total. Blocks while the small file is written.
    pub fn add(&self, spent: Amount) -> Result<(), LedgerError> {
        let _lock = lock_for_change(&self.file).map_err(|error| self.failed(error))?;
        let mut days = self.read()?;
        let today = days.days.entry(today()).or_default();
        *today = today.plus(spent);
        while days.days.len() > DAYS_MAX {
            days.days.pop_first();
        }
        let text = serde_json::to_vec_pretty(&days)?;
        replace_in_private_directory(&self.file, &text).map_err(|error| self.failed(error))
    }

    fn read(&self) -> Result<Days, LedgerError> {
        match std::fs::read(&self.file) {
            Ok(text) => serde_json::from_slice(&text)
                .map_err(|source| LedgerError::Damaged { file: self.file.clone(), source }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Days::default()),
            Err(error) => Err(self.failed(error)),
        }
    }

    fn failed(&self, source: io::Error) -> LedgerError {
        LedgerError::File { file: self.file.clone(), source }
    }
}

fn today() -> String {
    Zoned::now().date().to_string()
}
