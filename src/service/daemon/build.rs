//! Identifies the build of a program. Front end, daemon and shell command may be different builds, even of
//! the same version, for example when the user builds from source.

use std::sync::LazyLock;
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

use epitome_platform::process::this_program;

/// This program's version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A build of the program. Fields that older programs don't send are empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Build {
    pub version: String,
    /// Digest of the source files; copies of a build have the same.
    #[serde(default)]
    pub sources: String,
    /// Modification time of the executable, in nanoseconds since the Unix epoch. Decides which of two builds
    /// of the same version is newer.
    #[serde(default)]
    pub written_ns: u64,
}

static OWN: LazyLock<Build> = LazyLock::new(|| {
    let written = this_program().and_then(std::fs::metadata).and_then(|file| file.modified());
    let since = written.ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
    Build {
        version: VERSION.to_owned(),
        sources: env!("EPITOME_SOURCES").to_owned(),
        written_ns: u64::try_from(since.as_nanos()).unwrap_or(u64::MAX),
    }
});

impl Build {
    /// The build of this process. Must be called early: on systems where the running executable can't be
    /// distinguished from a file that has replaced it since, a later first call would describe the
    /// replacement.
    pub fn current() -> &'static Build {
        &OWN
    }

    /// Whether both are the same version, built from the same sources.
    pub fn is(&self, other: &Build) -> bool {
        self.version == other.version && self.sources == other.sources
    }

    /// Whether this build is newer than `than`: by version or, if only the sources differ, by modification
    /// time. Of two different builds, at most one is newer than the other.
    pub fn is_newer(&self, than: &Build) -> bool {
        if self.version != than.version {
            return numbers(&self.version) > numbers(&than.version);
        }
        self.sources != than.sources && self.written_ns > than.written_ns
    }

    /// Describes the build to the user, as distinct from the build `other`.
    pub fn name(&self, other: &Build) -> String {
        match (self.version == other.version, self.sources.as_str()) {
            (false, _) => format!("of version {}", self.version),
            (true, "") => format!("an older build of version {}", self.version),
            (true, sources) => format!("build {sources} of version {}", self.version),
        }
    }
}

/// The numeric parts of a version. A part that is not a number counts as 0.
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
    fn builds_of_one_version_differ_by_their_sources() {
        let (old, new) = (build("0.1.0", "a", 1), build("0.1.0", "b", 2));
        assert!(new.is_newer(&old) && !old.is_newer(&new) && !new.is(&old));
        // A copy has a later modification time but is the same build.
        let copy = build("0.1.0", "a", 9);
        assert!(copy.is(&old) && !copy.is_newer(&old) && !old.is_newer(&copy));
        // Older programs send only their version.
        let silent: Build = serde_json::from_str(r#"{"version":"0.1.0"}"#).expect("the version is enough");
        assert!(new.is_newer(&silent) && !silent.is_newer(&new) && !silent.is(&new));
        assert!(!old.is_newer(&build("0.2.0", "b", 0)), "the version counts first");
    }

    #[test]
    fn a_process_knows_its_build() {
        let own = Build::current();
        assert_eq!((own.version.as_str(), own.sources.len()), (VERSION, 16));
        assert!(own.written_ns > 0);
    }
}
