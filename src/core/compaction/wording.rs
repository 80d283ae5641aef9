//! Fixed wording of the compaction message, by which it is recognized later.

/// Begins every composed message.
pub(super) const COMPACTED: &str = "The conversation so far was compacted.";
pub(super) const SUMMARY_OPEN: &str = "<summary>\n";
pub(super) const SUMMARY_CLOSE: &str = "\n</summary>";

/// Heading of the user's earlier messages.
pub const USER_HEAD: &str = "What the user said before, verbatim";

/// Heading of the user's last request.
pub const REQUEST_HEAD: &str = "The last request before the compaction, verbatim";

/// Heading of the tables computed from the log.
pub const CARRIED_HEAD: &str = "What the log shows, computed without a model";

/// Ends the heading for a reader who has the log.
pub(super) const PLACES: &str = ". Entries such as e12 are places in the log";

/// Opening of the text that states the goal.
pub const GOAL_HEAD: &str = "The goal of the work:\n\n<goal>\n";

/// Heading of the pinned parts.
pub const PINS_HEAD: &str = "Pinned parts of the conversation, verbatim:";

/// Marks messages that did not fit.
pub(super) const GAP: &str = "[…]";
