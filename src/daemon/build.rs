//! Which build of the program a process is. Window, daemon and shell may be of different ones, also where the
//! version is the same, as with who builds it from its sources.

use std::sync::LazyLock;
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

use super::start;

/// This program's version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// One build. What older programs don't tell of theirs is empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Build {
    pub version: String,
    /// A digest of its sources: copies of one build have the same.
    #[serde(default)]
    pub sources: String,
    /// When its file was written, in nanoseconds since 1970. It says which of two builds of one version is the newer.
    #[serde(default)]
    pub written_ns: u64,
}

static OWN: LazyLock<Build> = LazyLock::new(|| {
    let written = start::this_program().and_then(std::fs::metadata).and_then(|file| file.modified());
    let since = written.ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
    Build {
        version: VERSION.to_owned(),
        sources: env!("EPITOME_SOURCES").to_owned(),
        written_ns: u64::try_from(since.as_nanos()).unwrap_or(u64::MAX),
    }
});

impl Build {
    /// That of this process. Where the system can't tell a running program from what has replaced its file since, it
    /// must be asked for first at the start.
    pub fn own() -> &'static Build {
        &OWN
    }

    /// Whether both are made of the same.
    pub fn is(&self, other: &Build) -> bool {
        self.version == other.version && self.sources == other.sources
    }

    /// Whether it is newer than another: by version, and where that is the same and the sources are not, by time.
    /// Of two different builds one at most is newer than the other.
    pub fn is_newer(&self, than: &Build) -> bool {
        if self.version != than.version {
            return numbers(&self.version) > numbers(&than.version);
        }
        self.sources != than.sources && self.written_ns > than.written_ns
    }

    /// How a person is told of it, beside another.
    pub fn name(&self, beside: &Build) -> String {
        match (self.version == beside.version, self.sources.as_str()) {
            (false, _) => format!("of version {}", self.version),
            (true, "") => format!("an older build of version {}", self.version),
            (true, sources) => format!("build {sources} of version {}", self.version),
        }
    }
}

/// A version's parts. What is no number counts as none.
fn numbers(version: &str) -> Vec<u64> {
    let release = version.split(['-', '+']).next().unwrap_or_default();
    release.split('.').map(|part| part.parse().unwrap_or(0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build(version: &str, sources: &str, written_ns: u64) -> Build {
        Build { version: version.to_owned(), sources: sources.to_owned(), written_ns }
    }

    #[test]
    fn versions_are_compared_by_number() {
        for (version, than, newer) in [
            ("0.1.1", "0.1.0", true),
            ("0.10.0", "0.9.9", true),
            ("1.0", "0.9.9", true),
            ("0.1.0", "0.1.0", false),
            ("0.1.0-rc.1", "0.1.0", false),
            ("nonsense", "0.1.0", false),
        ] {
            assert_eq!(build(version, "a", 2).is_newer(&build(than, "a", 1)), newer, "{version} {than}");
        }
    }

    #[test]
    fn builds_of_one_version_are_told_apart_by_what_they_are_made_of() {
        let (old, new) = (build("0.1.0", "a", 1), build("0.1.0", "b", 2));
        assert!(new.is_newer(&old) && !old.is_newer(&new) && !new.is(&old));
        // A copy is written later and is the same.
        let copy = build("0.1.0", "a", 9);
        assert!(copy.is(&old) && !copy.is_newer(&old) && !old.is_newer(&copy));
        // One that tells nothing is from before there was anything to tell.
        let silent: Build = serde_json::from_str(r#"{"version":"0.1.0"}"#).expect("the version is enough");
        assert!(new.is_newer(&silent) && !silent.is_newer(&new) && !silent.is(&new));
        assert!(!old.is_newer(&build("0.2.0", "b", 0)), "the version counts first");
    }

    #[test]
    fn a_process_knows_its_build() {
        let own = Build::own();
        assert_eq!((own.version.as_str(), own.sources.len()), (VERSION, 16));
        assert!(own.written_ns > 0);
    }
}
