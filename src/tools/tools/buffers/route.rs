//! Decides how the text of a file is written: by this process, or through the user's editor. Pure.

use epitome_config::EditorWrites;

use super::EditorSupport;

/// How a text is written to its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteRoute {
    /// This process writes the file, by descriptor.
    Disk,
    /// The editor gets the text, because it has unsaved text of the file; nothing else may write the file.
    Buffer,
    /// The editor writes the file, so that the user can review the change there. If the file does not contain the
    /// text afterwards, this process writes it.
    Review,
}

/// The editor's knowledge of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EditorText {
    Unsaved,
    /// The text on the disk.
    Same,
    /// There is no such file on the disk.
    NoFile,
    /// The editor was not queried, did not answer, or has a text that may be an older state of the file.
    Unknown,
}

/// Input of the decision.
#[derive(Clone, Copy, Debug)]
pub struct WriteFacts {
    pub setting: EditorWrites,
    pub offers: EditorSupport,
    pub text: EditorText,
    /// Whether the path that is sent to the editor leads to the file without a link below the workspace's directory.
    pub is_direct: bool,
    /// Whether a command is running in the workspace, which could create a link there before the editor writes.
    pub command_runs: bool,
    /// Whether the text is short enough for an editor.
    pub fits: bool,
}

/// Decides how a text is written. An editor resolves the path itself and can't be restricted to a descriptor, so it
/// is used only if nothing can be swapped on the path in the meantime, and only for a file whose text it is known to
/// have.
pub fn route(facts: &WriteFacts) -> WriteRoute {
    if facts.text == EditorText::Unsaved {
        return WriteRoute::Buffer;
    }
    let is_wanted = facts.offers.writes
        && match facts.setting {
            EditorWrites::Auto => facts.offers.reviews_writes,
            EditorWrites::Always => true,
            EditorWrites::Never => false,
        };
    let is_known = facts.text != EditorText::Unknown;
    match is_wanted && is_known && facts.is_direct && !facts.command_runs && facts.fits {
        true => WriteRoute::Review,
        false => WriteRoute::Disk,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZED: EditorSupport = EditorSupport { reads: true, writes: true, reviews_writes: true };
    const OTHER: EditorSupport = EditorSupport { reviews_writes: false, ..ZED };
    const READS: EditorSupport = EditorSupport { writes: false, ..ZED };
    const REVIEWED: WriteFacts = WriteFacts {
        setting: EditorWrites::Auto,
        offers: ZED,
        text: EditorText::Same,
        is_direct: true,
        command_runs: false,
        fits: true,
    };

    #[test]
    fn an_editor_writes_what_its_user_reviews_unless_something_could_get_in_the_way() {
        use EditorWrites::{Always, Never};
        use WriteRoute::{Buffer, Disk, Review};
        for (facts, expected, story) in [
            (REVIEWED, Review, "a clean file in Zed"),
            (WriteFacts { text: EditorText::NoFile, ..REVIEWED }, Review, "a new file in Zed"),
            (WriteFacts { offers: OTHER, ..REVIEWED }, Disk, "an editor that reviews by diffs"),
            (WriteFacts { offers: OTHER, setting: Always, ..REVIEWED }, Review, "the same, if always"),
            (
                WriteFacts { offers: READS, setting: Always, ..REVIEWED },
                Disk,
                "an editor that takes no edits",
            ),
            (WriteFacts { setting: Never, ..REVIEWED }, Disk, "the user wants none of it"),
            (WriteFacts { text: EditorText::Unknown, ..REVIEWED }, Disk, "a text that may be stale"),
            (WriteFacts { is_direct: false, ..REVIEWED }, Disk, "a link on the way"),
            (WriteFacts { command_runs: true, ..REVIEWED }, Disk, "a command could put a link there"),
            (WriteFacts { fits: false, ..REVIEWED }, Disk, "a text of many megabytes"),
            (
                WriteFacts { text: EditorText::Unsaved, setting: Never, command_runs: true, ..REVIEWED },
                Buffer,
                "unsaved text is never overwritten on the disk",
            ),
        ] {
            assert_eq!(route(&facts), expected, "{story}");
        }
    }
}
