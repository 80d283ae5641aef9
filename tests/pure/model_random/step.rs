//! The possible next steps of a session. A step refers to things by an index modulo their current count, so
//! that a shortened sequence stays meaningful.

use epitome::compaction::Keep;
use epitome::thread::{OutcomeStatus, Role, Trigger};
use proptest::prelude::*;

#[derive(Clone, Debug)]
pub enum Step {
    Said {
        by: Speaker,
        what: What,
        words: usize,
    },
    /// The chosen model replies.
    Replied(Reply),
    /// This many of the open calls get an outcome, starting at any of them.
    Outcomes {
        first: usize,
        calls: usize,
        what: Shown,
        status: OutcomeStatus,
        words: usize,
    },
    /// A hook's edits, made for the current view or for an older one.
    Edited {
        edits: Vec<(Op, usize)>,
        stale: bool,
    },
    Mutated {
        roles: Vec<Role>,
        kept: usize,
        stale: bool,
    },
    Compacted(Compaction),
    /// Any layer that can be undone.
    Undone(usize),
    Redone(usize),
    /// The last layer is undone and redone, as by a user who compares the two.
    UndoneAndRedone,
    /// The conversation is rewound to any prompt at which that is possible.
    Rewound(usize),
    /// The user pins or unpins an entry.
    Pinned(usize),
    Chosen(usize),
    /// The user's settings change, together with a build that has a different system text and tools.
    Changed(usize),
    ThinkingDropped,
    /// An entry that is in the log but not in the view.
    Aside(usize),
    /// The process is killed; a new one reads the log.
    Killed,
}

#[derive(Clone, Copy, Debug)]
pub enum Speaker {
    Person,
    Recipe,
    Queue,
    Hook,
    Context,
    /// A changed `AGENTS.md`.
    Instructions,
}

#[derive(Clone, Copy, Debug)]
pub enum What {
    Text,
    Blank,
    Image,
    Document,
    Resource,
    Link,
}

#[derive(Clone, Copy, Debug)]
pub enum Shown {
    Text,
    /// Its middle is only in the log.
    Cut,
    Blank,
    Image,
    Document,
}

#[derive(Clone, Copy, Debug)]
pub struct Reply {
    pub thinks: Thinks,
    /// A blank text precedes the text.
    pub blank: bool,
    pub text: bool,
    pub calls: usize,
    pub words: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thinks {
    No,
    Once,
    /// Encrypted.
    Hidden,
    /// Before the text, and again before the calls.
    Twice,
}

#[derive(Clone, Copy, Debug)]
pub enum Op {
    Mask,
    Drop,
    Replace,
    Append(Role),
    Pin,
    Unpin,
}

#[derive(Clone, Debug)]
pub struct Compaction {
    pub trigger: Trigger,
    pub keep: Keep,
    /// In tokens.
    pub window: u64,
    /// Words of the model's summary; `None` if no model writes one.
    pub summary: Option<usize>,
    pub focus: bool,
    /// A summary is requested even if masks would suffice.
    pub wanted: bool,
    /// The provider compacts, if it supports that.
    pub native: bool,
    /// The newest messages, which are never masked.
    pub recent: usize,
}

/// Windows that are far too small, small, and large, in tokens.
const WINDOWS: [u64; 5] = [1_000, 4_000, 8_000, 32_000, 1_000_000];

pub fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => said(),
        16 => reply().prop_map(Step::Replied),
        10 => outcomes(),
        4 => edited(),
        1 => (prop::collection::vec(role(), 1..4), 0..4usize, rarely()).prop_map(|(roles, kept, stale)| {
            Step::Mutated { roles, kept, stale }
        }),
        5 => compaction().prop_map(Step::Compacted),
        2 => any::<usize>().prop_map(Step::Undone),
        2 => any::<usize>().prop_map(Step::Redone),
        1 => Just(Step::UndoneAndRedone),
        1 => any::<usize>().prop_map(Step::Rewound),
        1 => any::<usize>().prop_map(Step::Pinned),
        4 => any::<usize>().prop_map(Step::Chosen),
        1 => any::<usize>().prop_map(Step::Changed),
        1 => Just(Step::ThinkingDropped),
        2 => any::<usize>().prop_map(Step::Aside),
        2 => Just(Step::Killed),
    ]
}

fn rarely() -> impl Strategy<Value = bool> {
    prop::bool::weighted(0.1)
}

/// Most texts are short, some take a large part of a small window.
fn words() -> impl Strategy<Value = usize> {
    prop_oneof![24 => 1..30usize, 4 => 40..300usize, 1 => 1_000..2_000usize]
}

fn role() -> impl Strategy<Value = Role> {
    prop_oneof![Just(Role::User), Just(Role::Assistant), Just(Role::System)]
}

fn said() -> impl Strategy<Value = Step> {
    let by = prop_oneof![
        6 => Just(Speaker::Person),
        1 => Just(Speaker::Recipe),
        1 => Just(Speaker::Queue),
        1 => Just(Speaker::Hook),
        1 => Just(Speaker::Context),
        1 => Just(Speaker::Instructions),
    ];
    let what = prop_oneof![
        8 => Just(What::Text),
        1 => Just(What::Blank),
        1 => Just(What::Image),
        1 => Just(What::Document),
        1 => Just(What::Resource),
        1 => Just(What::Link),
    ];
    (by, what, words()).prop_map(|(by, what, words)| Step::Said { by, what, words })
}

fn reply() -> impl Strategy<Value = Reply> {
    let thinks = prop_oneof![
        1 => Just(Thinks::No),
        4 => Just(Thinks::Once),
        1 => Just(Thinks::Hidden),
        2 => Just(Thinks::Twice),
    ];
    (thinks, any::<bool>(), any::<bool>(), 0..4usize, 1..60usize).prop_map(
        |(thinks, blank, text, calls, words)| Reply { thinks, blank, text: text || calls == 0, calls, words },
    )
}

fn outcomes() -> impl Strategy<Value = Step> {
    let what = prop_oneof![
        6 => Just(Shown::Text),
        2 => Just(Shown::Cut),
        1 => Just(Shown::Blank),
        1 => Just(Shown::Image),
        1 => Just(Shown::Document),
    ];
    let status = prop_oneof![
        5 => Just(OutcomeStatus::Completed),
        1 => Just(OutcomeStatus::Failed),
        1 => Just(OutcomeStatus::Denied),
        1 => Just(OutcomeStatus::Interrupted),
    ];
    // Only old and long outcomes can be masked.
    let words = prop_oneof![8 => words(), 1 => 300..900usize];
    (any::<usize>(), 1..4usize, what, status, words)
        .prop_map(|(first, calls, what, status, words)| Step::Outcomes { first, calls, what, status, words })
}

fn edited() -> impl Strategy<Value = Step> {
    let op = prop_oneof![
        2 => Just(Op::Mask),
        2 => Just(Op::Drop),
        2 => Just(Op::Replace),
        1 => role().prop_map(Op::Append),
        2 => Just(Op::Pin),
        1 => Just(Op::Unpin),
    ];
    (prop::collection::vec((op, any::<usize>()), 1..4), rarely())
        .prop_map(|(edits, stale)| Step::Edited { edits, stale })
}

fn compaction() -> impl Strategy<Value = Compaction> {
    let trigger = prop_oneof![
        Just(Trigger::Manual),
        Just(Trigger::Overflow),
        Just(Trigger::Threshold),
        Just(Trigger::Hook),
        Just(Trigger::Must),
    ];
    let keep = prop_oneof![
        Just(Keep::Nothing),
        (0..5usize).prop_map(Keep::Messages),
        (0.0..0.8f64).prop_map(Keep::Ratio),
    ];
    let window = prop::sample::select(WINDOWS.to_vec());
    let summary = prop::option::weighted(0.7, 1..200usize);
    (trigger, keep, window, summary, any::<bool>(), any::<bool>(), any::<bool>(), 0..8usize).prop_map(
        |(trigger, keep, window, summary, focus, wanted, native, recent)| Compaction {
            trigger,
            keep,
            window,
            summary,
            focus,
            wanted,
            native,
            recent,
        },
    )
}
