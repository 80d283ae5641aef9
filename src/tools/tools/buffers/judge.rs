//! Decides whether an editor's text of a file contains unsaved changes or is only an older state of the disk.
//! Pure.
//!
//! The rules, in this order:
//!
//! 1. Same text, except for line endings, a byte order mark and the final newline: nothing is unsaved.
//! 2. The file hasn't been touched since the editor's text was known to match it (or was found to be unsaved, or was
//!    set by Epitome): the user typed any difference.
//! 3. The text was on the disk at some time in this session: it is stale.
//! 4. The file was last touched while nothing of this session was running, and not just now: the editor has noticed
//!    that change, and the user typed any difference.
//! 5. Otherwise it is uncertain, and the disk's text is used.
//!
//! "Touched" refers to the inode's change time, which a command can't reset as it can the modification time.

use epitome_platform::os::MetadataExt;
use std::collections::VecDeque;
use std::fs::Metadata;
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};

use crate::truncate::BYTE_ORDER_MARK;

/// Maximum number of states kept per file: more than one turn creates between two checks.
const STATES_MAX: usize = 32;

/// Maximum number of busy periods that are tracked separately; beyond it, the oldest are merged.
const SPANS_MAX: usize = 256;

/// Tolerance for clock differences with the file system, and for effects of a command after its end.
const SLACK: Duration = Duration::from_secs(1);

/// Time that an editor may need to notice a changed file.
const SETTLED_AFTER: Duration = Duration::from_secs(2);

/// File systems may not distinguish changes within this time.
const SETTLED: Duration = Duration::from_millis(50);

/// Differs after a change of a file, and after its replacement. Programs can set back the time of the modification, but
/// not that of the change of status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskStamp {
    device: u64,
    inode: u64,
    length: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl DiskStamp {
    pub fn of(metadata: &Metadata) -> DiskStamp {
        DiskStamp {
            device: metadata.dev(),
            inode: metadata.ino(),
            length: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// When the file was last touched; times before 1970 become 1970.
    pub fn changed(self) -> SystemTime {
        let (seconds, nanos) = self.changed.max(self.modified);
        let seconds = Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
        SystemTime::UNIX_EPOCH + seconds + Duration::from_nanos(u64::try_from(nanos).unwrap_or_default())
    }

    /// Whether another change would have another stamp.
    pub fn is_settled(&self) -> bool {
        self.changed().elapsed().is_ok_and(|age| age >= SETTLED)
    }
}

/// The known history of one file.
#[derive(Debug, Default)]
pub struct Trail {
    /// The disk state from which the editor's text is known to derive.
    pub in_step: Option<DiskStamp>,
    /// Digests of texts that were on the disk or were sent to the editor.
    states: VecDeque<[u8; 32]>,
}

impl Trail {
    pub fn on_disk(&mut self, text: &str) {
        let state = digest(text);
        if self.states.contains(&state) {
            return;
        }
        self.states.push_back(state);
        if self.states.len() > STATES_MAX {
            self.states.pop_front();
        }
    }

    pub fn was_on_disk(&self, text: &str) -> bool {
        self.states.contains(&digest(text))
    }
}

/// Periods in which something of the session was running that may have changed files.
#[derive(Debug, Default)]
pub struct Busy {
    spans: VecDeque<(SystemTime, SystemTime)>,
    since: Option<SystemTime>,
}

impl Busy {
    /// Creates the state of a session. The exact busy periods of a restored session before its restart are unknown,
    /// so all of that time counts as busy.
    pub fn since(before: Option<SystemTime>) -> Busy {
        let spans = before.map(|before| (before, SystemTime::now())).into_iter().collect();
        Busy { spans, since: None }
    }

    pub fn set(&mut self, is_busy: bool, now: impl FnOnce() -> SystemTime) {
        match (self.since, is_busy) {
            (None, true) => self.since = Some(now()),
            (Some(since), false) => {
                self.since = None;
                self.spans.push_back((since, now()));
                if self.spans.len() > SPANS_MAX
                    && let (Some((from, _)), Some(next)) = (self.spans.pop_front(), self.spans.front_mut())
                {
                    next.0 = from;
                }
            }
            (None, false) | (Some(_), true) => {}
        }
    }

    fn covers(&self, at: SystemTime) -> bool {
        let is_behind = |from: SystemTime| at + SLACK >= from;
        self.since.is_some_and(is_behind)
            || self.spans.iter().any(|(from, to)| is_behind(*from) && at <= *to + SLACK)
    }
}

/// When a file was last touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastChange {
    /// Something of the session was running at that time.
    AtWork,
    /// So recently, or at a time so implausible, that the editor may not have noticed.
    JustNow,
    /// It was some time ago, and nothing of the session was running then.
    Before,
}

pub fn when(changed: SystemTime, now: SystemTime, busy: &Busy) -> LastChange {
    if busy.covers(changed) {
        LastChange::AtWork
    } else if now.duration_since(changed).is_ok_and(|ago| ago >= SETTLED_AFTER) {
        LastChange::Before
    } else {
        LastChange::JustNow
    }
}

/// Input of the decision.
#[derive(Clone, Copy, Debug)]
pub struct Compared<'a> {
    pub editor: &'a str,
    pub disk: &'a str,
    /// Whether the file is untouched since the editor's text was known to derive from it.
    pub is_in_step: bool,
    /// Whether the editor's text was on the disk before.
    pub was_on_disk: bool,
    pub changed: LastChange,
}

/// Classification of an editor's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferStatus {
    Same,
    Unsaved,
    /// It may be stale, for this reason.
    Doubtful(&'static str),
}

/// Applies the rules in the module documentation.
pub fn judge(compared: &Compared<'_>) -> BufferStatus {
    let Compared { editor, disk, is_in_step, was_on_disk, changed } = *compared;
    if same(editor, disk) {
        return BufferStatus::Same;
    }
    if is_in_step {
        return BufferStatus::Unsaved;
    }
    if was_on_disk {
        return BufferStatus::Doubtful("it was on the disk before");
    }
    match changed {
        LastChange::Before => BufferStatus::Unsaved,
        LastChange::AtWork => BufferStatus::Doubtful("the file was touched while the session was at work"),
        LastChange::JustNow => BufferStatus::Doubtful("the file was touched just now"),
    }
}

/// Whether two texts are equal apart from what editors normalize when they read a file.
pub fn same(one: &str, other: &str) -> bool {
    one == other || plain(one) == plain(other)
}

fn plain(text: &str) -> String {
    let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text).replace("\r\n", "\n");
    text.strip_suffix('\n').map(str::to_owned).unwrap_or(text)
}

fn digest(text: &str) -> [u8; 32] {
    Sha256::digest(plain(text)).into()
}

/// The parts of a file's form that the editor's text omits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextForm {
    line_ends: bool,
    mark: bool,
}

/// Converts an editor's text to its form on the disk, with the file's line endings and byte order mark.
pub fn as_on_disk(editor: String, disk: &str) -> (String, TextForm) {
    let form = TextForm {
        line_ends: disk.contains("\r\n") && !editor.contains('\r'),
        mark: disk.starts_with(BYTE_ORDER_MARK) && !editor.starts_with(BYTE_ORDER_MARK),
    };
    let mut text = if form.line_ends { editor.replace('\n', "\r\n") } else { editor };
    if form.mark {
        text.insert(0, BYTE_ORDER_MARK);
    }
    (text, form)
}

impl TextForm {
    /// Converts a text of the file to the form that the editor uses.
    pub fn in_editor(self, text: &str) -> String {
        let text = if self.mark { text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text) } else { text };
        if self.line_ends { text.replace("\r\n", "\n") } else { text.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLEAN: Compared<'static> = Compared {
        editor: "typed\n",
        disk: "saved\n",
        is_in_step: false,
        was_on_disk: false,
        changed: LastChange::Before,
    };

    #[test]
    fn difference_is_unsaved_unless_it_may_be_an_older_state() {
        use LastChange::{AtWork, Before, JustNow};
        for (in_step, was_there, changed, is_unsaved, story) in [
            (false, false, Before, true, "the user saved it an hour ago and typed on"),
            (false, false, AtWork, false, "a command changed it before anybody looked"),
            (false, false, JustNow, false, "another program changed it, and the editor is slow"),
            (false, true, Before, false, "an older state, which the editor still shows"),
            (false, true, AtWork, false, "a command changed what was read before"),
            (true, false, AtWork, true, "it was read in this turn, then the user typed"),
            (true, false, JustNow, true, "our edit went through the editor just now"),
            (true, true, AtWork, true, "the user took back what they had typed and saved"),
        ] {
            let compared = Compared { is_in_step: in_step, was_on_disk: was_there, changed, ..CLEAN };
            assert_eq!(judge(&compared) == BufferStatus::Unsaved, is_unsaved, "{story}");
        }
    }

    #[test]
    fn editor_normalization_is_not_a_difference() {
        for (editor, disk) in
            [("a\nb\n", "a\r\nb\r\n"), ("a\nb", "a\nb\n"), ("a\n", "\u{feff}a\n"), ("", ""), ("", "\n")]
        {
            let compared = Compared { editor, disk, changed: LastChange::AtWork, ..CLEAN };
            assert_eq!(judge(&compared), BufferStatus::Same, "{editor:?} {disk:?}");
        }
    }

    #[test]
    fn text_is_converted_to_the_editors_form() {
        for (editor, disk, on_disk) in [
            ("a\nB\n", "a\r\nb\r\n", "a\r\nB\r\n"),
            ("a\r\nB\r\n", "a\r\nb\r\n", "a\r\nB\r\n"),
            ("a\nB\n", "\u{feff}a\nb\n", "\u{feff}a\nB\n"),
            ("a\nB\n", "a\nb\n", "a\nB\n"),
        ] {
            let (text, form) = as_on_disk(editor.to_owned(), disk);
            assert_eq!((text.as_str(), form.in_editor(&text).as_str()), (on_disk, editor));
        }
    }

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn change_time_is_classified_by_busy_periods() {
        let mut busy = Busy::default();
        for (is_busy, second) in [(true, 100), (true, 110), (false, 120), (false, 130), (true, 200)] {
            busy.set(is_busy, || at(second));
        }
        for (touched, expected) in [
            (90, LastChange::Before),
            (99, LastChange::AtWork),
            (115, LastChange::AtWork),
            (121, LastChange::AtWork),
            (125, LastChange::Before),
            (205, LastChange::AtWork),
        ] {
            assert_eq!(when(at(touched), at(300), &busy), expected, "{touched}");
        }
        assert_eq!(when(at(150), at(151), &busy), LastChange::JustNow);
        assert_eq!(when(at(160), at(151), &busy), LastChange::JustNow, "the file's clock is ahead");
    }

    #[test]
    fn busy_periods_are_merged_beyond_the_limit() {
        let mut busy = Busy::default();
        for turn in 0..2 * SPANS_MAX as u64 {
            busy.set(true, || at(turn * 100));
            busy.set(false, || at(turn * 100 + 10));
        }
        assert_eq!(busy.spans.len(), SPANS_MAX);
        for turn in 0..2 * SPANS_MAX as u64 {
            assert!(busy.covers(at(turn * 100 + 5)));
        }
        assert!(!busy.covers(at(2 * SPANS_MAX as u64 * 100 - 50)));
    }

    #[test]
    fn earlier_disk_states_are_recognised() {
        let mut trail = Trail::default();
        trail.on_disk("one\r\n");
        assert!(trail.was_on_disk("one\n") && !trail.was_on_disk("two\n"));
        for state in 0..STATES_MAX {
            trail.on_disk(&format!("{state}"));
        }
        assert!(!trail.was_on_disk("one\n"), "it was let go");
    }
}
