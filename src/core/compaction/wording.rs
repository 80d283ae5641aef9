//! Fixed wording of the compaction message, by which it is recognized later.

/// Begins every composed message.
pub(super) const COMPACTED: &str = "The conversation so far was compacted.";
pub(super) const SUMMARY_OPEN: &str = "<summary>\n";
pub(super) const SUMMARY_CLOSE: &str = "\n</summary>";

/// Heading of the user's earlier messages.
pub const USER_HEAD: &str = "What the user said before, verbatim";

/// Heading of the user's last request.
pub const REQUEST_HEAD: &str = "The last request before the compaction, verbatim";
