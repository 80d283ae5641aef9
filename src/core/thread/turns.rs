//! The turns of a thread as users count them: where each begins, and whether the conversation can be rewound to
//! before it. Pure.

use super::{Change, LayerRefusal, Origin, Seq, Thread};

/// A turn that began with a prompt of the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptedTurn {
    /// Its first entry, which may be the output of prompt hooks.
    pub start: Seq,
    /// The entry that contains the prompt.
    pub prompt: Seq,
    /// The text that the user typed.
    pub text: String,
    /// Whether a rewind removed it from the conversation.
    pub is_taken_back: bool,
}

impl Thread {
    /// The first entry of the turn that an entry belongs to: the one after the previous turn's end.
    pub fn turn_start(&self, entry: Seq) -> Seq {
        let mut before = self.entries().before(entry).rev();
        let ended = before.find(|entry| matches!(entry.change, Change::TurnEnded { .. }));
        // A log begins with its `Opened` entry.
        ended.map_or(Seq(1), |ended| Seq(ended.seq.0 + 1))
    }

    /// The turns that began with a prompt of the user, oldest first.
    pub fn prompted_turns(&self) -> Vec<PromptedTurn> {
        let mut turns: Vec<PromptedTurn> = Vec::new();
        let (mut start, mut is_new) = (Seq(1), true);
        let mut active = self.active_entries().peekable();
        for entry in self.entries() {
            let is_active = active.next_if(|next| next.seq == entry.seq).is_some();
            match &entry.change {
                Change::TurnEnded { .. } => (start, is_new) = (Seq(entry.seq.0 + 1), true),
                Change::Said { message, origin } if origin.is_prompt() && is_new => {
                    is_new = false;
                    let text = match origin {
                        Origin::Recipe { typed, .. } if !typed.is_empty() => typed.clone(),
                        _ => message.text(),
                    };
                    turns.push(PromptedTurn { start, prompt: entry.seq, text, is_taken_back: !is_active });
                }
                _ => {}
            }
        }
        turns
    }

    /// Checks whether the conversation can be rewound to before this entry, which must begin a turn; if not,
    /// returns the reason.
    pub fn can_rewind(&self, to: Seq) -> Result<(), LayerRefusal> {
        if let Some(rewind) = self.rewound_by(to) {
            return Err(LayerRefusal::Rewound { to, by: self.named(rewind) });
        }
        let begins_turn = to < self.next_seq() && to > Seq(0) && self.turn_start(to) == to;
        if !begins_turn {
            return Err(LayerRefusal::NoTurn(to));
        }
        let after = self.with(Change::Rewound { to });
        self.keeps_pins(&after)?;
        self.begins_with_user(after.view())
    }
}
