//! The tools and prompts of servers from their last connection, stored on disk: the tools of a server that starts
//! slowly are known at the first prompt of the next session.
//!
//! A file belongs to a server definition: the command line with the names of its variables, or the URL with the names
//! of its headers. Values of variables and headers are neither compared nor stored. Damaged files count as missing.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use serde_json::json;
use sha2::{Digest, Sha256};

use super::listed::RawListing;
use epitome_config::McpTransport;
use epitome_files::atomic_file::replace_in_private_directory;

/// Maximum bytes of a file; a larger listing is not stored.
const FILE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Maximum number of files; the oldest are removed.
const FILES_MAX: usize = 256;
/// How long a listing counts as recent. Servers are updated, so an old one may be wrong.
const RECENT: Duration = Duration::from_secs(24 * 60 * 60);

/// The listings in one directory. All functions block on disk I/O.
#[derive(Clone, Debug)]
pub struct ListingCache {
    folder: PathBuf,
}

impl ListingCache {
    pub fn new(folder: PathBuf) -> ListingCache {
        ListingCache { folder }
    }

    pub fn load(&self, way: &McpTransport) -> Option<RawListing> {
        let file = self.file_of(way)?;
        let size = fs::metadata(&file).ok()?.len();
        let bytes = (size <= FILE_BYTES_MAX as u64).then(|| fs::read(&file).ok()).flatten()?;
        serde_json::from_slice(&bytes).ok()
    }

    /// Whether a listing of this server was stored recently.
    pub fn is_recent(&self, way: &McpTransport) -> bool {
        let stored =
            self.file_of(way).and_then(|file| fs::metadata(file).and_then(|file| file.modified()).ok());
        // A timestamp in the future comes from a wrong clock.
        stored.is_some_and(|stored| stored.elapsed().is_ok_and(|age| age < RECENT))
    }

    /// Stores a listing. A failure only makes the next session slower.
    pub fn store(&self, way: &McpTransport, listing: &RawListing) {
        if let Err(error) = self.try_store(way, listing) {
            tracing::debug!(%error, "the tools of an MCP server could not be stored");
        }
    }

    fn try_store(&self, way: &McpTransport, listing: &RawListing) -> io::Result<()> {
        let bytes = serde_json::to_vec(listing)?;
        let Some(file) = self.file_of(way).filter(|_| bytes.len() <= FILE_BYTES_MAX) else { return Ok(()) };
        if fs::read(&file).is_ok_and(|known| known == bytes) {
            return fs::File::options().append(true).open(&file)?.set_modified(SystemTime::now());
        }
        replace_in_private_directory(&file, &bytes)?;
        self.remove_oldest()
    }

    fn remove_oldest(&self) -> io::Result<()> {
        let mut files: Vec<(SystemTime, PathBuf)> = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            files.push((entry.metadata()?.modified()?, entry.path()));
        }
        files.sort();
        for (_, file) in files.iter().take(files.len().saturating_sub(FILES_MAX)) {
            fs::remove_file(file)?;
        }
        Ok(())
    }

    /// `None` for a server that a client provides, which may have another id in each session.
    fn file_of(&self, way: &McpTransport) -> Option<PathBuf> {
        let names =
            |pairs: &[(String, String)]| pairs.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        let definition = match way {
            McpTransport::Stdio { command, args, env } => json!(["stdio", command, args, names(env)]),
            McpTransport::Http { url, headers, key_variable } => {
                json!(["http", url, names(headers), key_variable])
            }
            McpTransport::Client { .. } => return None,
        };
        Some(self.folder.join(format!("{}.json", digest(&definition.to_string()))))
    }
}

/// The file name for a definition or URL, which may contain keys.
pub fn digest(text: &str) -> String {
    format!("{:.32x}", Sha256::digest(text))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn below(folder: &Path) -> ListingCache {
        ListingCache::new(folder.join("mcp-listings"))
    }

    fn process(args: &[&str], env: &[(&str, &str)]) -> McpTransport {
        McpTransport::Stdio {
            command: "npx".to_owned(),
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            env: env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        }
    }

    #[test]
    fn a_listing_belongs_to_a_definition_and_contains_no_value_of_it() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let cache = below(folder.path());
        let way = process(&["-y", "server"], &[("KEY", "sk-1")]);
        assert_eq!(cache.load(&way), None);
        let listing = RawListing { instructions: Some("Use it.".to_owned()), ..RawListing::default() };
        cache.store(&way, &listing);
        assert_eq!(cache.load(&way), Some(listing.clone()));
        assert_eq!(cache.load(&process(&["-y", "server"], &[("KEY", "sk-2")])), Some(listing));
        assert_eq!(cache.load(&process(&["-y", "server"], &[("OTHER", "sk-1")])), None);
        assert_eq!(cache.load(&process(&["-y", "another"], &[("KEY", "sk-1")])), None);
        fs::write(cache.file_of(&way).expect("it is stored"), "damaged").expect("it can be damaged");
        assert_eq!(cache.load(&way), None);
    }

    /// A server that is started on demand, and never used, must not keep an outdated listing forever.
    #[test]
    fn a_listing_is_recent_for_a_day_after_it_was_seen() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let (cache, way) = (below(folder.path()), process(&["server"], &[]));
        assert!(!cache.is_recent(&way));
        cache.store(&way, &RawListing::default());
        assert!(cache.is_recent(&way));
        let file = fs::File::options()
            .append(true)
            .open(cache.file_of(&way).expect("it is stored"))
            .expect("it is there");
        file.set_modified(SystemTime::now() - RECENT).expect("it can be dated back");
        assert!(!cache.is_recent(&way));
        cache.store(&way, &RawListing::default());
        assert!(cache.is_recent(&way), "it was seen again, though unchanged");
    }

    #[test]
    fn old_listings_are_removed() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let cache = below(folder.path());
        for number in 0..FILES_MAX + 3 {
            cache.store(&process(&[&number.to_string()], &[]), &RawListing::default());
        }
        assert_eq!(fs::read_dir(&cache.folder).expect("a directory").count(), FILES_MAX);
    }
}
