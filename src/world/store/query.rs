//! Selects the sessions of a listing.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::header::Header;
use epitome_thread::SessionId;

/// A page of the sessions, newest first. Everything, unless a field says otherwise.
#[derive(Clone, Debug, Default)]
pub struct SessionQuery {
    /// Only sessions of this directory, however it is spelled.
    pub cwd: Option<PathBuf>,
    /// Only sessions with a prompt. Editors open sessions that never get one.
    pub has_prompt: bool,
    /// Only archived sessions, or only others.
    pub archived: Option<bool>,
    /// Only sessions whose id begins with this.
    pub prefix: String,
    /// Only sessions behind this one.
    pub after: Option<(u64, SessionId)>,
    pub limit: Option<usize>,
    /// Words that are looked for in one text. A backend may leave out sessions that don't have them.
    pub words: Vec<String>,
}

impl SessionQuery {
    /// Selects from all sessions, which are sorted already.
    pub fn select(&self, headers: Vec<Header>) -> Vec<Header> {
        let mut wants = self.wants();
        let selected = headers.into_iter().filter(|header| wants(header, header.updated_at));
        selected.take(self.limit.unwrap_or(usize::MAX)).collect()
    }

    /// Whether a session that was updated at this time is selected, without regard to the limit.
    pub(super) fn wants(&self) -> impl FnMut(&Header, u64) -> bool {
        let cwd = self.cwd.as_deref().map(|cwd| cwd.canonicalize().unwrap_or_else(|_| cwd.to_path_buf()));
        // Many sessions share a directory, which is resolved once.
        let mut compared: HashMap<PathBuf, bool> = HashMap::new();
        let mut is_in = move |directory: &Path, wanted: &Path| {
            compared.get(directory).copied().unwrap_or_else(|| {
                *compared.entry(directory.to_owned()).or_insert(is_same_directory(directory, wanted))
            })
        };
        move |header, updated_at| {
            (header.has_prompt || !self.has_prompt)
                && self.archived.is_none_or(|archived| header.archived == archived)
                && header.session.0.starts_with(&self.prefix)
                && self.after.as_ref().is_none_or(|(at, id)| (updated_at, &header.session) < (*at, id))
                && cwd.as_ref().is_none_or(|cwd| is_in(&header.cwd, cwd))
        }
    }
}

/// Whether a session's directory is `directory`, which must be canonical. Editors pass directories as the user spells
/// them, so symlinks are resolved if the paths differ.
fn is_same_directory(of_session: &Path, directory: &Path) -> bool {
    of_session == directory || of_session.canonicalize().is_ok_and(|real| real == directory)
}
