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
    pub fn totals(&self) -> Result<(Amount, Amount), String> {
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
    pub fn add(&self, spent: Amount) -> Result<(), String> {
        let _lock = lock_for_change(&self.file).map_err(|error| self.failed(&error))?;
        let mut days = self.read()?;
        let today = days.days.entry(today()).or_default();
        *today = today.plus(spent);
        while days.days.len() > DAYS_MAX {
            days.days.pop_first();
        }
        let text = serde_json::to_vec_pretty(&days).map_err(|error| error.to_string())?;
        replace_in_private_directory(&self.file, &text).map_err(|error| self.failed(&error))
    }

    fn read(&self) -> Result<Days, String> {
        match std::fs::read(&self.file) {
            Ok(text) => serde_json::from_slice(&text).map_err(|error| {
                format!("{} is damaged ({error}); delete it to start over", self.file.display())
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Days::default()),
            Err(error) => Err(self.failed(&error)),
        }
    }

    fn failed(&self, error: &io::Error) -> String {
        format!("{}: {error}", self.file.display())
    }
}

fn today() -> String {
    Zoned::now().date().to_string()
}
