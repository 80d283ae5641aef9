//! The tables, in Markdown of at most a hundred columns, and the same for a program.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::bench::plant::Kind;
use crate::calls::{Calls, Management};
use crate::measure::{At, BUDGETS, ByWriter, COMPACTIONS, Grid, Score, Way};
use crate::speed::Line;

/// What the whole is judged at.
const BUDGET: u64 = 4_000;

/// The head of a table by kind.
const KINDS_HEAD: &str = "\
    | way | path | decis. | rejec. | pend. | constr. | error | ident. | newest | all | stale |\n\
    | --- | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: |\n";

/// What was wanted, and what was measured.
struct Target {
    title: String,
    wanted: f64,
    /// Whether `wanted` is the least; else it is the most.
    at_least: bool,
    open: Option<f64>,
    held_out: Option<f64>,
}

/// Everything that was measured.
pub struct Report {
    pub grid: Grid,
    pub calls: Vec<(Management, Calls)>,
    pub speed: Vec<Line>,
    /// Summaries of models that are stored in a corpus, by writer; empty without one.
    pub stored: ByWriter,
    /// Those of a real model that were recorded here, at so many tokens.
    pub recorded: ByWriter,
    pub recorded_budget: u64,
    /// The grid of a corpus' sessions with planted facts, and what they are; `None` without one.
    pub real: Option<(String, Grid)>,
    pub about: String,
}

impl Report {
    /// All tables.
    pub fn markdown(&self) -> String {
        let mut text = String::from("# KeepBench\n\n");
        let _ = writeln!(text, "{}\n", self.about);
        text.push_str("## Targets\n\n");
        text.push_str(&self.targets());
        for compactions in COMPACTIONS {
            let _ = writeln!(text, "\n## Kept at 4,000 tokens after {}, in per cent\n", times(compactions));
            text.push_str(&self.by_kind(compactions));
        }
        text.push_str("\n## All kinds together, by what may be carried over\n\n");
        text.push_str(&self.by_budget());
        text.push_str("\n## By where the fact was told, at 4,000 tokens\n\n");
        text.push_str(&self.by_depth());
        if let Some((about, grid)) = &self.real {
            let _ = writeln!(text, "\n## Real sessions with planted facts, at 4,000 tokens\n\n{about}\n");
            text.push_str(&of_real(grid));
        }
        text.push_str("\n## The calls of whole conversations\n\n");
        text.push_str(&self.of_calls());
        text.push_str("\n## Time\n\n");
        text.push_str(&self.of_time());
        text
    }

    /// What the README shows.
    pub fn short(&self) -> String {
        let mut text = String::from(
            "![Planted facts that are kept, by kind and over the number of compactions](docs/keepbench.svg)\n\n\
             Kept of planted facts at 4,000 tokens after ten compactions, in per cent ([all results]\
             (benches/keep/RESULTS.md)):\n\n",
        );
        text.push_str(&self.by_kind(10));
        text.push('\n');
        text.push_str(&self.targets());
        text
    }

    fn score(&self, way: Way, compactions: usize, budget: u64) -> Option<&Score> {
        self.grid.get(&At { way, compactions, budget })
    }

    fn by_kind(&self, compactions: usize) -> String {
        let mut text = String::from(KINDS_HEAD);
        for way in Way::ALL {
            kinds_row(&mut text, way.title(), self.score(way, compactions, BUDGET));
        }
        if compactions == 1 {
            for (writer, scores) in &self.stored {
                kinds_row(&mut text, &format!("summary of {writer}"), Some(&scores[0]));
                kinds_row(&mut text, &format!("{writer} with ledger"), Some(&scores[1]));
            }
        }
        if self.stored.is_empty() || compactions > 1 {
            for writer in ["frontier model 1", "frontier model 2"] {
                kinds_row(&mut text, writer, None);
                kinds_row(&mut text, &format!("{writer} with ledger"), None);
            }
        }
        if compactions == 1 {
            if self.recorded.is_empty() {
                kinds_row(&mut text, "a recorded model", None);
            } else {
                let _ = writeln!(
                    text,
                    "\nOf other, short conversations, whose summaries a real model wrote, at {} tokens:\n",
                    self.recorded_budget
                );
                text.push_str(KINDS_HEAD);
                for (writer, [alone, with_ledger, ledger]) in &self.recorded {
                    kinds_row(&mut text, writer, Some(alone));
                    kinds_row(&mut text, "the same with ledger", Some(with_ledger));
                    kinds_row(&mut text, "ledger alone", Some(ledger));
                }
            }
        }
        text
    }

    fn by_budget(&self) -> String {
        let mut text = String::from(
            "| way | compactions | 1k | 2k | 4k | 8k | 16k | tokens at 4k | ms, median | recall |\n\
             | --- | --: | --: | --: | --: | --: | --: | --: | --: | --: |\n",
        );
        for way in Way::ALL {
            let counts: &[usize] = match way {
                Way::Tail | Way::Masked => &[1],
                Way::Ledger | Way::HeldOut => &COMPACTIONS,
            };
            for compactions in counts {
                let cells: Vec<String> = BUDGETS
                    .iter()
                    .map(|budget| {
                        shown(self.score(way, *compactions, *budget).and_then(|s| s.all().percent()))
                    })
                    .collect();
                let score = self.score(way, *compactions, BUDGET);
                let tokens = score.and_then(Score::mean_tokens).map_or("–".to_owned(), |t| t.to_string());
                let took = score.map_or("–".to_owned(), |score| format!("{:.1}", median(&score.took)));
                let recall = shown(score.and_then(|score| score.recalled.percent()));
                let compactions = match way {
                    Way::Tail | Way::Masked => "any".to_owned(),
                    Way::Ledger | Way::HeldOut => compactions.to_string(),
                };
                let _ = writeln!(
                    text,
                    "| {} | {compactions} | {} | {tokens} | {took} | {recall} |",
                    way.title(),
                    cells.join(" | ")
                );
            }
        }
        text.push_str(
            "\nrecall: of the facts that are lost at 4,000 tokens, how many per cent the recall tool finds by\ntheir name and \
             reads back.\n",
        );
        text
    }

    fn by_depth(&self) -> String {
        let mut text = String::from(
            "| way | compactions | first third | second third | last third |\n| --- | --: | --: | --: | --: |\n",
        );
        for way in Way::ALL {
            for compactions in [1, 10] {
                let score = self.score(way, compactions, BUDGET);
                let third = |at: usize| shown(score.and_then(|score| score.thirds[at].percent()));
                let cells = [0, 1, 2].map(third).join(" | ");
                let _ = writeln!(text, "| {} | {compactions} | {cells} |", way.title());
            }
        }
        text
    }

    fn of_calls(&self) -> String {
        let mut text = String::from(
            "| management | calls | cached % | breaks in 100 | longest KB | price % | compactions | cuts |\n\
             | --- | --: | --: | --: | --: | --: | --: | --: |\n",
        );
        let unmanaged = self.calls.first().map_or(0.0, |(_, calls)| calls.dollars);
        for (management, calls) in &self.calls {
            let price = if unmanaged > 0.0 { calls.dollars * 100.0 / unmanaged } else { 0.0 };
            let _ = writeln!(
                text,
                "| {} | {} | {:.1} | {:.1} | {} | {price:.0} | {} | {} |",
                management.title(),
                calls.calls,
                calls.cached_percent(),
                calls.breaks_per_hundred(),
                calls.longest / 1_000,
                calls.compactions,
                calls.prunes
            );
        }
        text
    }

    fn of_time(&self) -> String {
        let mut text = String::from("| what | median | target |\n| --- | --: | --: |\n");
        for Line { title, value, unit, target } in &self.speed {
            let target = target.map_or("–".to_owned(), |target| format!("{target:.0} {unit}"));
            let _ = writeln!(text, "| {title} | {value:.2} {unit} | {target} |");
        }
        text
    }

    fn targets(&self) -> String {
        let mut text = String::from(
            "| target | wanted | measured | held-out | met |\n| --- | --: | --: | --: | --- |\n",
        );
        for Target { title, wanted, at_least, open, held_out } in self.measured() {
            let met = |value: Option<f64>| {
                value.map(|value| if at_least { value >= wanted } else { value <= wanted })
            };
            let word = match (met(open), met(held_out)) {
                (None, _) => "not measured",
                (Some(true), None | Some(true)) => "yes",
                (Some(true), Some(false)) => "not for the held-out",
                (Some(false), _) => "no",
            };
            let sign = if at_least { "≥" } else { "≤" };
            let shown = |value: Option<f64>| value.map_or("–".to_owned(), |value| format!("{value:.1}"));
            let _ = writeln!(
                text,
                "| {title} | {sign} {wanted} | {} | {} | {word} |",
                shown(open),
                shown(held_out)
            );
        }
        text
    }

    fn measured(&self) -> Vec<Target> {
        let both = |what: &dyn Fn(&Score) -> Option<f64>, compactions: usize| {
            let of = |way| self.score(way, compactions, BUDGET).and_then(what);
            (of(Way::Ledger), of(Way::HeldOut))
        };
        let mut rows = Vec::new();
        for compactions in [1, 10] {
            let (open, held_out) = both(&|score| score.pinned.percent(), compactions);
            rows.push(Target {
                title: format!("pinned facts, after {}", times(compactions)),
                wanted: 100.0,
                at_least: true,
                open,
                held_out,
            });
            let (open, held_out) = both(&|score| score.kind(Kind::Constraint), compactions);
            rows.push(Target {
                title: format!("constraints, after {}", times(compactions)),
                wanted: 100.0,
                at_least: true,
                open,
                held_out,
            });
        }
        for (compactions, wanted) in [(1, 95.0), (10, 90.0)] {
            let (open, held_out) = both(&|score| score.all().percent(), compactions);
            rows.push(Target {
                title: format!("planted facts, after {}", times(compactions)),
                wanted,
                at_least: true,
                open,
                held_out,
            });
        }
        for compactions in [1, 10] {
            let (open, held_out) = both(&|score| score.stale.percent(), compactions);
            rows.push(Target {
                title: format!("old values shown as current, after {}", times(compactions)),
                wanted: 2.0,
                at_least: false,
                open,
                held_out,
            });
        }
        let ours = self.calls.iter().find(|(management, _)| *management == Management::Epitome);
        let breaks = ours.map(|(_, calls)| calls.breaks_per_hundred());
        rows.push(Target {
            title: "prefix breaks in 100 calls".to_owned(),
            wanted: 3.0,
            at_least: false,
            open: breaks,
            held_out: None,
        });
        for line in &self.speed {
            if let Some(target) = line.target {
                rows.push(Target {
                    title: format!("ms: {}", line.title),
                    wanted: target,
                    at_least: false,
                    open: Some(line.value),
                    held_out: None,
                });
            }
        }
        rows
    }

    /// All of it as one object.
    pub fn json(&self) -> Value {
        let cell = |(at, score): (&At, &Score)| {
            let kinds: serde_json::Map<String, Value> = score
                .kinds
                .iter()
                .map(|(kind, share)| (kind.title().to_owned(), json!(share.percent())))
                .collect();
            json!({
                "way": at.way.title(),
                "compactions": at.compactions,
                "budget": at.budget,
                "kinds": kinds,
                "all": score.all().percent(),
                "pinned": score.pinned.percent(),
                "stale": score.stale.percent(),
                "tokens": score.mean_tokens(),
                "tokens_most": score.tokens.iter().max(),
                "ms": median(&score.took),
                "recalled": score.recalled.percent(),
                "failures": score.failures,
            })
        };
        let calls = self.calls.iter().map(|(management, calls)| {
            json!({
                "management": management.title(),
                "calls": calls.calls,
                "cached_percent": calls.cached_percent(),
                "breaks_per_hundred": calls.breaks_per_hundred(),
                "dollars": calls.dollars,
                "compactions": calls.compactions,
                "cuts": calls.prunes,
            })
        });
        let speed = self.speed.iter().map(
            |line| json!({"row": line.title, "value": line.value, "unit": line.unit, "target": line.target}),
        );
        let mut all = json!({
            "cells": self.grid.iter().map(cell).collect::<Vec<_>>(),
            "calls": calls.collect::<Vec<_>>(),
            "speed": speed.collect::<Vec<_>>(),
        });
        if let Some((_, grid)) = &self.real {
            all["real"] = grid.iter().map(cell).collect();
        }
        all
    }
}

fn of_real(grid: &Grid) -> String {
    let mut text = KINDS_HEAD.replace("| way |", "| way, compactions, sessions |");
    for (At { way, compactions, .. }, score) in grid.iter().filter(|(at, _)| at.budget == BUDGET) {
        // What these two leave does not depend on it.
        if *compactions == 1 || !matches!(way, Way::Tail | Way::Masked) {
            kinds_row(
                &mut text,
                &format!("{}, {compactions}, {}", way.title(), score.tokens.len()),
                Some(score),
            );
        }
    }
    text.push_str("\nA session that is too short for so many compactions is not in the row.\n");
    text
}

fn kinds_row(text: &mut String, title: &str, score: Option<&Score>) {
    let Some(score) = score else {
        let _ = writeln!(text, "| {title} | not measured{} |", " |".repeat(9));
        return;
    };
    let cells: Vec<String> = Kind::ALL.iter().map(|kind| shown(score.kind(*kind))).collect();
    let (all, stale) = (shown(score.all().percent()), shown(score.stale.percent()));
    let _ = writeln!(text, "| {title} | {} | {all} | {stale} |", cells.join(" | "));
}

fn shown(percent: Option<f64>) -> String {
    percent.map_or("–".to_owned(), |percent| format!("{percent:.0}"))
}

fn times(compactions: usize) -> String {
    match compactions {
        1 => "one compaction".to_owned(),
        3 => "three compactions".to_owned(),
        10 => "ten compactions".to_owned(),
        other => format!("{other} compactions"),
    }
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
