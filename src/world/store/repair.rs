//! Makes damaged sessions writable again, and rebuilds the index. Nothing that was written is deleted or rewritten:
//! the acceptance of a loss is an entry of the log, and damaged lines stay in the file.

use super::check::leftovers;
use super::disk::OpenMode;
use super::health::{IndexState, Rebuilt, Repair, Repaired};
use super::index::OldIndex;
use super::index_thread::RebuildError;
use super::{DiskResultExt, Store, StoreError, entries, files, now};
use epitome_platform::holder::holder;
use epitome_thread::{Change, SessionId};

impl Store {
    /// Repairs what can be repaired: a damaged session continues without the lost entries, a wrong index is rebuilt,
    /// and leftovers are deleted. Open sessions are not touched, and reported.
    pub fn repair(&self) -> Result<Repair, StoreError> {
        self.only_files("repair the journals")?;
        let (mut done, mut refused) = (Vec::new(), Vec::new());
        for session in self.paths.sessions()? {
            match self.repair_journal(&session) {
                Ok(repaired) => done.extend(repaired),
                Err(error) => refused.push(self.refusal(&session, &error)),
            }
        }
        for path in leftovers(&self.paths)? {
            self.paths.remove_file(&path)?;
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let what = format!("the leftover {name} of an interrupted write was deleted");
            done.push(Repaired { session: None, what, kept: None });
        }
        let mut health = self.check()?;
        match health.index {
            IndexState::Damaged { .. } | IndexState::Disagrees { .. } => {
                match self.index.rebuild(OldIndex::Aside) {
                    Ok(Rebuilt { sessions, kept, .. }) => {
                        let what = format!("the index was rebuilt from the journals of {sessions} sessions");
                        done.push(Repaired { session: None, what, kept });
                    }
                    Err(reason) => {
                        let what = format!("the index was not rebuilt: {reason}");
                        refused.push(Repaired { session: None, what, kept: None });
                    }
                }
                health = self.check()?;
            }
            IndexState::Absent
            | IndexState::Agrees { .. }
            | IndexState::Elsewhere { .. }
            | IndexState::Unknown { .. } => {}
        }
        Ok(Repair { done, refused, health })
    }

    /// Rewrites the index to reclaim space. The old one is removed once the new one is in place.
    pub fn compact_index(&self) -> Result<Rebuilt, RebuildError> {
        self.only_files("rewrite the index")?;
        self.index.rebuild(OldIndex::Nothing)
    }

    /// The process that has a session open, if the system provides that information.
    pub fn holder(&self, session: &SessionId) -> Option<String> {
        SessionId::parse(&session.0)?;
        holder(&self.paths.journal(session))
    }

    /// `None` if nothing was wrong with it.
    fn repair_journal(&self, session: &SessionId) -> Result<Option<Repaired>, StoreError> {
        // Most journals are sound, and an open session only matters if its journal is not.
        match self.read_with_damage(session) {
            // Nothing can restore a body.
            Ok((_, None | Some(StoreError::BodiesLost { .. })))
            | Err(StoreError::NotFound(_) | StoreError::FutureFormat { .. }) => {
                return Ok(None);
            }
            Ok((_, Some(_))) => {}
            Err(StoreError::Unreadable(_)) => return self.move_away(session).map(Some),
            Err(error) => return Err(error),
        }
        let (mut journal, _) = self.load(session)?;
        let Some(acceptance) = journal.acceptance() else { return Ok(None) };
        let Change::DamageAccepted { places, entries: lost } = acceptance else { return Ok(None) };
        journal.append(acceptance)?;
        journal.syncer().sync()?;
        let what = format!(
            "session {session} continues: {} lost at {places} damaged places; what is left there stays in its journal",
            entries(lost)
        );
        tracing::warn!(%session, places, lost, "the damage of a log was accepted");
        self.index.catch_up(session);
        Ok(Some(Repaired { session: Some(session.clone()), what, kept: None }))
    }

    /// Renames a journal without an intact line, so that it is kept and no longer listed.
    fn move_away(&self, session: &SessionId) -> Result<Repaired, StoreError> {
        let path = self.paths.journal(session);
        let file = self.paths.disk.open(&path, OpenMode::Append).doing("open", &path)?;
        files::lock(&*file, session, &path)?;
        let name = format!("{session}.damaged-{}", now());
        let kept = self.paths.journals().join(&name);
        self.paths.disk.link(&path, &kept).doing("keep", &kept)?;
        self.paths.sync_directory(&self.paths.journals())?;
        self.paths.remove_file(&path)?;
        self.paths.sync_directory(&self.paths.journals())?;
        self.index.catch_up(session);
        let what = format!(
            "no line of session {session} is intact, so it is no longer listed; its journal is kept as {name}"
        );
        Ok(Repaired { session: Some(session.clone()), what, kept: Some(kept) })
    }

    fn refusal(&self, session: &SessionId, error: &StoreError) -> Repaired {
        let what = match error {
            StoreError::InUse(..) => {
                let who = self.holder(session).unwrap_or_else(|| "another process".to_owned());
                format!("session {session} is damaged, and open in {who}: close it there and repair again")
            }
            error => format!("session {session} was not repaired: {error}"),
        };
        Repaired { session: Some(session.clone()), what, kept: None }
    }
}
