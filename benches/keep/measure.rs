//! The grid of what is measured: conversations by compactions by tokens by ways, and the points of each.

use std::collections::BTreeMap;

use crate::bench::generate::{Order, generate};
use crate::bench::phrases::Half;
use crate::bench::plant::Kind;
use crate::bench::session::Session;
use crate::bench::strategy::{self, Left};

/// Compactions of one conversation.
pub const COMPACTIONS: [usize; 3] = [1, 3, 10];
/// What may be carried over each time, in tokens.
pub const BUDGETS: [u64; 5] = [1_000, 2_000, 4_000, 8_000, 16_000];
/// The tokens at which it is asked whether recall finds what is lost.
const RECALL_BUDGET: u64 = 4_000;
/// Facts of each kind in a conversation.
pub const EACH: usize = 6;

/// A way of making conversations small.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    Tail,
    Masked,
    Ledger,
    /// The same, for the phrases that are held out.
    HeldOut,
}

impl Way {
    pub const ALL: [Way; 4] = [Way::Tail, Way::Masked, Way::Ledger, Way::HeldOut];

    pub fn title(self) -> &'static str {
        match self {
            Way::Tail => "tail only",
            Way::Masked => "masking, then tail",
            Way::Ledger => "ledger alone",
            Way::HeldOut => "ledger alone, held-out phrases",
        }
    }
}

/// One cell of the grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct At {
    pub way: Way,
    pub compactions: usize,
    pub budget: u64,
}

/// So many of so many.
#[derive(Clone, Copy, Debug, Default)]
pub struct Share {
    pub of: usize,
    pub held: usize,
}

impl Share {
    pub fn add(&mut self, held: bool) {
        self.of += 1;
        self.held += usize::from(held);
    }

    fn merge(&mut self, other: Share) {
        self.of += other.of;
        self.held += other.held;
    }

    pub fn percent(self) -> Option<f64> {
        (self.of > 0).then(|| self.held as f64 * 100.0 / self.of as f64)
    }
}

/// The points of one cell.
#[derive(Clone, Debug, Default)]
pub struct Score {
    pub kinds: BTreeMap<Kind, Share>,
    pub pinned: Share,
    /// Told in the first, the second and the last third of the conversation.
    pub thirds: [Share; 3],
    /// Older values, and how many are shown as current.
    pub stale: Share,
    pub tokens: Vec<u64>,
    /// Milliseconds of plan and ledger, of each compaction.
    pub took: Vec<f64>,
    /// Facts that are lost, and how many of them recall finds. Counted at some sizes only: each is a search.
    pub recalled: Share,
    pub failures: Vec<String>,
    /// The facts that were lost, for who looks into one cell.
    pub lost: Vec<String>,
}

impl Score {
    pub fn add(&mut self, session: &Session, left: &Left) {
        for fact in &session.facts {
            let held = left.carried.holds(fact);
            if let Some(recall) = left.recall.as_ref().filter(|_| !held) {
                self.recalled.add(recall.finds(fact));
            }
            self.kinds.entry(fact.kind).or_default().add(held);
            self.thirds[((fact.depth * 3.0) as usize).min(2)].add(held);
            if fact.pinned {
                self.pinned.add(held);
            }
            let stale = left.carried.stale(fact);
            let older = fact.values.len().saturating_sub(1);
            self.stale.merge(Share { of: older, held: stale });
            if !held || stale > 0 {
                let how = if held { "stale" } else { "lost" };
                let values = fact.values.join(" → ");
                self.lost.push(format!(
                    "{how} {}: {} {values} {}",
                    fact.kind.title(),
                    fact.anchor,
                    fact.about
                ));
                self.lost.extend(left.carried.around(fact).into_iter().map(|words| format!("    {words}")));
            }
        }
        self.tokens.push(left.tokens);
        self.took.extend(left.took.iter().map(|took| took.as_secs_f64() * 1e3));
    }

    pub fn all(&self) -> Share {
        let mut all = Share::default();
        self.kinds.values().for_each(|share| all.merge(*share));
        all
    }

    pub fn kind(&self, kind: Kind) -> Option<f64> {
        self.kinds.get(&kind)?.percent()
    }

    pub fn mean_tokens(&self) -> Option<u64> {
        let count = self.tokens.len() as u64;
        (count > 0).then(|| self.tokens.iter().sum::<u64>() / count)
    }
}

pub type Grid = BTreeMap<At, Score>;

/// Scores by who wrote the summary: alone, with the ledger, and the ledger without it, all at the same tokens.
pub type ByWriter = BTreeMap<String, [Score; 3]>;

/// The conversations of a run: lengths in tokens, and how many of each.
pub fn sessions(quick: bool, seed: u64, half: Half) -> Vec<Session> {
    let orders: &[(u64, u64)] =
        if quick { &[(50_000, 2)] } else { &[(50_000, 16), (100_000, 16), (200_000, 12), (400_000, 8)] };
    let mut sessions = Vec::new();
    for (tokens, count) in orders {
        for nth in 0..*count {
            let seed = seed + tokens / 1_000 * 100 + nth;
            sessions.push(generate(Order { seed, tokens: *tokens, each: EACH, half }));
        }
    }
    sessions
}

/// Fills the grid. `progress` is told of each conversation.
pub fn grid(open: &[Session], held_out: &[Session], quick: bool, progress: impl Fn(&str)) -> Grid {
    let budgets: &[u64] = if quick { &[1_000, 4_000] } else { &BUDGETS };
    let mut grid = Grid::new();
    for way in Way::ALL {
        let sessions = if way == Way::HeldOut { held_out } else { open };
        for session in sessions {
            progress(&format!("{}, {}", way.title(), session.name));
            for budget in budgets.iter().copied() {
                for compactions in COMPACTIONS {
                    let left = match way {
                        // What they leave does not depend on what they left before.
                        Way::Tail | Way::Masked if compactions > 1 => continue,
                        Way::Tail => Ok(strategy::tail(session, budget)),
                        Way::Masked => Ok(strategy::masked(session, budget)),
                        Way::Ledger | Way::HeldOut => {
                            strategy::epitome(session, compactions, budget, |_| None)
                        }
                    };
                    let score = grid.entry(At { way, compactions, budget }).or_default();
                    match left {
                        Ok(mut left) => {
                            left.recall = left.recall.filter(|_| budget == RECALL_BUDGET);
                            score.add(session, &left);
                        }
                        Err(why) => score.failures.push(why),
                    }
                }
            }
        }
    }
    for budget in budgets {
        for way in [Way::Tail, Way::Masked] {
            let Some(score) = grid.get(&At { way, compactions: 1, budget: *budget }).cloned() else {
                continue;
            };
            for compactions in [3, 10] {
                grid.insert(At { way, compactions, budget: *budget }, score.clone());
            }
        }
    }
    grid
}

/// Scores stored summaries at `budget` tokens, those that are longer cut.
pub fn of_summaries<'a>(
    summaries: impl IntoIterator<Item = (&'a str, &'a Session, &'a str)>,
    budget: u64,
) -> ByWriter {
    let mut by_writer = ByWriter::new();
    for (writer, session, summary) in summaries {
        let [alone, with_ledger, ledger] = by_writer.entry(writer.to_owned()).or_default();
        alone.add(session, &strategy::summary(summary, budget));
        for (score, text) in [(with_ledger, Some(summary.to_owned())), (ledger, None)] {
            match strategy::epitome(session, 1, budget, |_| text.clone()) {
                Ok(left) => score.add(session, &left),
                Err(why) => score.failures.push(why),
            }
        }
    }
    by_writer
}
