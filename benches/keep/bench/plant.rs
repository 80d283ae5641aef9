//! A fact that is planted into a conversation, and how a text shows that it holds it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::phrases::{self, Half, fill};
use super::values;
use super::words::{Names, camel};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Kind {
    Path,
    Decision,
    Rejected,
    Pending,
    Constraint,
    Error,
    Identifier,
    Superseded,
}

impl Kind {
    pub const ALL: [Kind; 8] = [
        Kind::Path,
        Kind::Decision,
        Kind::Rejected,
        Kind::Pending,
        Kind::Constraint,
        Kind::Error,
        Kind::Identifier,
        Kind::Superseded,
    ];

    pub fn title(self) -> &'static str {
        match self {
            Kind::Path => "paths",
            Kind::Decision => "decisions",
            Kind::Rejected => "rejected",
            Kind::Pending => "pending",
            Kind::Constraint => "constraints",
            Kind::Error => "errors",
            Kind::Identifier => "identifiers",
            Kind::Superseded => "newest values",
        }
    }

    pub fn of_title(title: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.title() == title)
    }

    /// Who tells facts of this kind, fact by fact.
    pub fn voices(self) -> [Voice; 6] {
        use Voice::{Agent as A, Person as P, Tool as T};
        match self {
            Kind::Path => [P, A, T, P, A, T],
            Kind::Decision => [P, A, P, A, A, P],
            Kind::Rejected => [A, P, A, A, P, A],
            Kind::Pending => [P, A, T, P, A, P],
            Kind::Constraint => [P, P, P, P, P, P],
            Kind::Error => [T, T, P, T, T, A],
            Kind::Identifier => [P, A, T, P, A, A],
            Kind::Superseded => [P, A, P, T, A, P],
        }
    }
}

/// Who says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Voice {
    Person,
    Agent,
    /// A tool's call or what it printed.
    Tool,
}

impl Voice {
    fn prefix(self) -> &'static str {
        match self {
            Voice::Person => "P ",
            Voice::Agent | Voice::Tool => "A ",
        }
    }
}

/// What a text must hold to hold the fact. The anchor stands for this fact alone in the whole conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fact {
    pub kind: Kind,
    /// A path, a name, an id, or the exact line of an error.
    pub anchor: String,
    /// What must stand near the anchor, word by word as far as the measure asks.
    pub about: String,
    /// Values of a subject, oldest first; the last one holds. Only of `Superseded`.
    pub values: Vec<String>,
    pub pinned: bool,
    /// Where it is told, or its newest value, as a share of the conversation.
    pub depth: f64,
}

/// A fact, where it is told and how.
#[derive(Clone, Debug)]
pub struct Plant {
    pub fact: Fact,
    /// One, or for values one each.
    pub mentions: Vec<Mention>,
}

/// One telling of a fact.
#[derive(Clone, Debug)]
pub struct Mention {
    pub voice: Voice,
    /// Where in the conversation, as a share of it.
    pub depth: f64,
    /// The sentence; of tools what is in `act`.
    pub text: String,
    pub act: Act,
}

/// What a tool does to tell a fact.
#[derive(Clone, Debug, PartialEq)]
pub enum Act {
    None,
    /// A file is changed.
    Edit {
        path: String,
        old: String,
        new: String,
    },
    /// A command fails with this line.
    Fail {
        line: String,
    },
    /// A command's last line of output.
    Print {
        line: String,
    },
    /// A task is put on the list.
    Todo {
        task: String,
    },
}

/// Plants `each` facts of each kind; of constraints and decisions the first is pinned.
pub fn plant(names: &mut Names, half: Half, each: usize) -> Vec<Plant> {
    let mut plants = Vec::new();
    for (row, kind) in Kind::ALL.into_iter().enumerate() {
        let first_phrase = names.rng.usize(..64);
        for at in 0..each {
            let voice = kind.voices()[at % 6];
            let zone = (at + row + at / 3) % 3;
            let depth = [0.02, 0.36, 0.69][zone] + names.rng.f64() * 0.27;
            let mut source = Source { names, half, phrase: first_phrase + at };
            let mut plant = match kind {
                Kind::Superseded => source.superseded(voice, depth),
                other => source.single(other, voice, depth),
            };
            plant.fact.pinned =
                at == 0 && matches!(kind, Kind::Constraint | Kind::Decision) && voice == Voice::Person;
            plants.push(plant);
        }
    }
    plants
}

struct Source<'a> {
    names: &'a mut Names,
    half: Half,
    /// Counts through the phrases, so that no two facts of a kind and voice share one before all were used.
    phrase: usize,
}

impl Source<'_> {
    fn phrase(&mut self, file: &'static str, voice: &str) -> &'static str {
        let phrases = phrases::of(file, voice, self.half);
        phrases[self.phrase % phrases.len()]
    }

    fn single(&mut self, kind: Kind, voice: Voice, depth: f64) -> Plant {
        let ident = self.names.planted_ident();
        let number = (self.names.rng.u32(11..97) * 10 + 7).to_string();
        let mut slots = BTreeMap::from([("ident", ident.clone()), ("num", number)]);
        let mut act = Act::None;
        let (file, anchor, about) = match kind {
            Kind::Path => {
                let path = self.names.planted_path();
                let what = self.names.pick(values::WHATS_OF_FILES).to_owned();
                slots.extend([("path", path.clone()), ("what", what)]);
                if voice == Voice::Tool {
                    let (old, new) = (self.names.ident(), self.names.ident());
                    act = Act::Edit { path: path.clone(), old, new };
                }
                (phrases::PATH, path, String::new())
            }
            Kind::Decision => {
                let (choice, other, reason) = self.names.pick(values::DECISIONS);
                let (choice, reason) = (fill(choice, &slots), fill(reason, &slots));
                slots.extend([("choice", choice), ("other", other.to_owned()), ("reason", reason.clone())]);
                (phrases::DECISION, ident, reason)
            }
            Kind::Rejected => {
                let (approach, reason) = self.names.pick(values::REJECTED);
                let (approach, reason) = (fill(approach, &slots), fill(reason, &slots));
                slots.extend([("approach", approach), ("reason", reason.clone())]);
                (phrases::REJECTED, ident, reason)
            }
            Kind::Pending => {
                let task = fill(self.names.pick(values::TASKS), &slots);
                slots.insert("task", task.clone());
                if voice == Voice::Tool {
                    act = Act::Todo { task: task.clone() };
                }
                (phrases::PENDING, ident, task)
            }
            Kind::Constraint => {
                let rule = fill(self.phrase(phrases::CONSTRAINT, ""), &slots);
                (phrases::CONSTRAINT, ident, rule)
            }
            Kind::Error => {
                slots.insert("path", self.names.path());
                let template = self.phrase(phrases::ERROR, "");
                // Names of types are written otherwise than those of things.
                let line = fill(&template.replace("{Ident}", &camel(&ident)), &slots);
                if voice == Voice::Tool {
                    act = Act::Fail { line: line.clone() };
                }
                (phrases::ERROR, line, String::new())
            }
            Kind::Identifier => {
                let (what, id) = values::identifier(self.names);
                slots.extend([("what", what.to_owned()), ("id", id.clone())]);
                if voice == Voice::Tool {
                    act = Act::Print { line: format!("{what}: {id}") };
                }
                (phrases::IDENTIFIER, id, what.to_owned())
            }
            Kind::Superseded => unreachable!("it has values of its own"),
        };
        let text = match kind {
            Kind::Constraint => about.clone(),
            Kind::Error => values::around_error(self.names, voice, &anchor),
            _ => fill(self.phrase(file, voice.prefix()), &slots),
        };
        let fact = Fact { kind, anchor, about, values: Vec::new(), pinned: false, depth };
        Plant { fact, mentions: vec![Mention { voice, depth, text, act }] }
    }

    /// Two to four values in the course of time, the newest at `depth`.
    fn superseded(&mut self, voice: Voice, depth: f64) -> Plant {
        let ident = self.names.planted_ident();
        let (subject, unit) = self.names.pick(values::SUBJECTS);
        let subject = subject.replace("{ident}", &ident);
        let depth = depth.max(0.12);
        let count = 2 + self.names.rng.usize(..3);
        let mut plain: Vec<String> = Vec::new();
        let mut mentions = Vec::new();
        for at in 0..count {
            let value = loop {
                let value = unit.value(self.names);
                if !plain.contains(&value) {
                    break value;
                }
            };
            let newest = at + 1 == count;
            let earlier =
                self.names.pick(&[Voice::Person, Voice::Agent, Voice::Agent, Voice::Person, Voice::Tool]);
            let voice = if newest { voice } else { earlier };
            let old = plain.last().map(|old| unit.shown(old)).unwrap_or_default();
            let slots =
                BTreeMap::from([("subject", subject.clone()), ("value", unit.shown(&value)), ("old", old)]);
            let file = if at == 0 { phrases::FIRST } else { phrases::CHANGE };
            self.phrase += 1;
            let text = fill(self.phrase(file, voice.prefix()), &slots);
            let act = match (voice, plain.last()) {
                (Voice::Tool, old) => Act::Edit {
                    path: self.names.path(),
                    old: old.map_or_else(|| format!("# {ident}"), |old| format!("{ident} = {old}")),
                    new: format!("{ident} = {value}"),
                },
                (Voice::Person | Voice::Agent, _) => Act::None,
            };
            let share = (at + 1) as f64 / count as f64;
            let depth = if newest { depth } else { depth * share - 0.01 * (count - at) as f64 };
            mentions.push(Mention { voice, depth: depth.max(0.01), text, act });
            plain.push(value);
        }
        let fact = Fact {
            kind: Kind::Superseded,
            anchor: ident,
            about: String::new(),
            values: plain,
            pinned: false,
            depth,
        };
        Plant { fact, mentions }
    }
}
