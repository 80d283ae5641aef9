//! Facts about a model, each known or unknown.

use serde::{Deserialize, Serialize};

use crate::abilities::{Abilities, Effort, Thinking};

/// A model in a provider's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The name as sent to the provider.
    pub name: String,
    pub facts: Facts,
    pub life: Life,
}

/// Whether a model will be shut down.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Life {
    #[default]
    Active,
    /// It will be shut down on this day, if known, as the provider writes it.
    Ending { on: Option<String> },
}

/// Facts about a model; `None` means unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Facts {
    /// Maximum tokens of a request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<u64>,
    /// Maximum tokens of a reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_output: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub images: Option<bool>,
    /// PDF documents.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub documents: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thinking: Option<Steering>,
}

/// How a model's thinking is controlled: `abilities::Thinking` in serializable form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Steering {
    None,
    Budget {
        optional: bool,
    },
    /// The providers' words, as in `Effort::word`. Unknown ones are ignored.
    Efforts(Vec<String>),
}

impl Facts {
    /// These facts, completed by the others.
    pub fn or(self, others: Facts) -> Facts {
        Facts {
            window: self.window.or(others.window),
            max_output: self.max_output.or(others.max_output),
            images: self.images.or(others.images),
            documents: self.documents.or(others.documents),
            thinking: self.thinking.or(others.thinking),
        }
    }

    /// Applies the known facts to a model's abilities.
    pub fn set_abilities(&self, abilities: &mut Abilities) {
        abilities.images = self.images.unwrap_or(abilities.images);
        abilities.documents = self.documents.unwrap_or(abilities.documents);
        if let Some(thinking) = self.thinking.as_ref().and_then(Steering::thinking) {
            abilities.thinking = thinking;
        }
    }
}

impl Steering {
    /// `None` if no effort is known here.
    pub fn thinking(&self) -> Option<Thinking> {
        match self {
            Steering::None => Some(Thinking::None),
            Steering::Budget { optional } => Some(Thinking::Budget { optional: *optional }),
            Steering::Efforts(words) => {
                let has = |effort: Effort| words.iter().any(|word| word == effort.word());
                let bits = (0..EFFORTS.len()).filter(|at| has(EFFORTS[*at]));
                let set = bits.fold(0, |set, at| set | 1 << at);
                (set != 0).then(|| Thinking::Efforts(efforts_of(set)))
            }
        }
    }
}

/// All efforts in ascending order.
const EFFORTS: [Effort; 7] =
    [Effort::None, Effort::Minimal, Effort::Low, Effort::Medium, Effort::High, Effort::XHigh, Effort::Max];

/// Every subset of the efforts: abilities refer to a `'static` slice, so that they remain small and `Copy`.
static EFFORT_SETS: [([Effort; EFFORTS.len()], usize); 1 << EFFORTS.len()] = effort_sets();

/// The efforts of a bit set; the first bit is the lowest effort.
fn efforts_of(set: usize) -> &'static [Effort] {
    let (efforts, count) = &EFFORT_SETS[set];
    &efforts[..*count]
}

const fn effort_sets() -> [([Effort; EFFORTS.len()], usize); 1 << EFFORTS.len()] {
    let mut sets = [([Effort::None; EFFORTS.len()], 0); 1 << EFFORTS.len()];
    let mut set = 0;
    while set < sets.len() {
        let mut at = 0;
        while at < EFFORTS.len() {
            if set & (1 << at) != 0 {
                let count = sets[set].1;
                sets[set].0[count] = EFFORTS[at];
                sets[set].1 = count + 1;
            }
            at += 1;
        }
        set += 1;
    }
    sets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_words_become_ordered_efforts() {
        let steering = |words: &[&str]| Steering::Efforts(words.iter().map(|word| (*word).into()).collect());
        for (steering, expected) in [
            (steering(&["max", "low", "newest"]), Some(Thinking::Efforts(&[Effort::Low, Effort::Max]))),
            (
                steering(&["none", "minimal", "low", "medium", "high", "xhigh", "max"]),
                Some(Thinking::Efforts(&EFFORTS)),
            ),
            (steering(&["newest"]), None),
            (Steering::None, Some(Thinking::None)),
            (Steering::Budget { optional: false }, Some(Thinking::Budget { optional: false })),
        ] {
            assert_eq!(steering.thinking(), expected, "{steering:?}");
        }
    }
}
