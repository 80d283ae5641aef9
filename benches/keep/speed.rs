//! How long plan and ledger take, and what one more entry takes in threads of different lengths.

use std::time::Instant;

use epitome::compaction::ledger::Ledger;
use epitome::compaction::{Budget, Decision, Keep, Scene, Wish, Written, compacted_in, decided};
use epitome::config::Compaction;
use epitome::thread::Trigger;

use crate::bench::generate::{Order, generate};
use crate::bench::phrases::Half;
use crate::bench::session::{follow, opened, ruler};

/// One line of the table.
#[derive(Clone, Debug)]
pub struct Line {
    pub title: String,
    pub value: f64,
    pub unit: &'static str,
    pub target: Option<f64>,
}

pub fn measure(quick: bool) -> Vec<Line> {
    let mut lines = Vec::new();
    let sizes: &[(u64, &str, f64)] =
        if quick { &[(200_000, "200k", 10.0)] } else { &[(200_000, "200k", 10.0), (1_000_000, "1M", 60.0)] };
    for (tokens, name, target) in sizes {
        whole(*tokens, name, *target, if quick { 3 } else { 15 }, &mut lines);
    }
    for entries in [100, 1_000, 10_000] {
        if quick && entries > 1_000 {
            continue;
        }
        one_more(entries, &mut lines);
    }
    lines
}

fn whole(tokens: u64, name: &str, target: f64, count: usize, lines: &mut Vec<Line>) {
    let session = generate(Order { seed: 4_711, tokens, each: 6, half: Half::Open });
    let mut thread = opened();
    follow(&mut thread, &session.steps);
    let ruler = ruler();
    let budget = Budget::of(&Compaction::default(), tokens * 5 / 4, 16_000, 0);
    let wish = Wish { trigger: Trigger::Threshold, keep: Keep::Ratio(0.4), focus: None, summary: true };
    let mut times: [Vec<f64>; 3] = Default::default();
    for _ in 0..count {
        let began = Instant::now();
        let mut ledger = Ledger::default();
        ledger.follow(&thread);
        times[0].push(milliseconds(began));
        let began = Instant::now();
        let scene = Scene::of(&ruler, &thread, &budget);
        let decision = decided(&scene, &wish);
        times[1].push(milliseconds(began));
        let Decision::Summarise(plan) = decision else { continue };
        let began = Instant::now();
        let id = thread.next_message();
        let made = compacted_in(&scene, &ledger, &plan, id, Written::default());
        times[2].push(milliseconds(began));
        std::hint::black_box(made.is_ok());
    }
    let [ledger, plan, message] = times.map(median);
    let mut push = |title: String, value, target| lines.push(Line { title, value, unit: "ms", target });
    push(format!("plan and ledger, {name} tokens, ledger made anew"), ledger + plan + message, Some(target));
    push("  of that, the ledger from nothing".to_owned(), ledger, None);
    push("  of that, the plan".to_owned(), plan, None);
    push("  of that, the message, ledger told and counted".to_owned(), message, None);
}

/// The time of taking in one entry more, in a thread of so many.
fn one_more(entries: usize, lines: &mut Vec<Line>) {
    const MORE: usize = 200;
    const TOKENS_OF_AN_ENTRY: u64 = 1_500;
    let tokens = (entries + MORE) as u64 * TOKENS_OF_AN_ENTRY;
    let steps = generate(Order { seed: 815, tokens, each: 2, half: Half::Open }).steps;
    assert!(steps.len() >= entries + MORE, "{} entries of {tokens} tokens", steps.len());
    let mut thread = opened();
    follow(&mut thread, &steps[..entries]);
    let mut ledger = Ledger::default();
    ledger.follow(&thread);
    let mut times = Vec::new();
    for step in &steps[entries..entries + MORE] {
        let began = Instant::now();
        follow(&mut thread, std::slice::from_ref(step));
        ledger.follow(&thread);
        times.push(milliseconds(began) * 1e3);
    }
    let title = format!("one entry more, thread of {entries} entries");
    lines.push(Line { title, value: median(times), unit: "µs", target: None });
}

fn milliseconds(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1e3
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
