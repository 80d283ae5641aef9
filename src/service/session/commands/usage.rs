//! `/usage`: a session's usage, computed from its log: tokens and dollars by model, the part of agents and other
//! callers, calls, compactions and time. Pure.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use super::why::counted;
use epitome_config::Settings;
use epitome_provider::models;
use epitome_provider::spent::call_of;
use epitome_thread::text::tokens;
use epitome_thread::{Change, ModelName, Thread, Usage};
use epitome_tools::task;

/// Callers listed other than the conversation itself.
const OTHERS_MAX: usize = 20;

/// The number and usage of model calls.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Took {
    calls: usize,
    usage: Usage,
    /// US dollars of the calls whose prices are known.
    cost: Option<f64>,
}

impl Took {
    fn add(&mut self, usage: &Usage, cost: Option<f64>) {
        self.calls += 1;
        self.usage.add(usage);
        if let Some(cost) = cost {
            *self.cost.get_or_insert(0.0) += cost;
        }
    }
}

/// All totals.
#[derive(Debug, Default, PartialEq)]
struct Counted {
    all: Took,
    by_model: BTreeMap<ModelName, Took>,
    /// Totals by caller, for calls outside the conversation: agents, recipes, hooks.
    by_other: BTreeMap<String, Took>,
    summaries: Took,
    turns: usize,
    tool_calls: usize,
    agents: usize,
    compactions: usize,
    prunings: usize,
    /// The total duration of the turns.
    time: Duration,
}

pub(super) fn text(settings: &Settings, thread: &Thread) -> String {
    let all = count(settings, thread);
    if all.all.calls == 0 {
        return "No model was called in this session yet.".to_owned();
    }
    let mut out = "Usage of this session, from its log:\n\
                   \n\
                   | model | calls | tokens in | cached | out | thinking | cost |\n\
                   | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n"
        .to_owned();
    for (model, took) in &all.by_model {
        out.push_str(&row(&model.0, took));
    }
    if all.by_model.len() > 1 {
        out.push_str(&row("all", &all.all));
    }
    let _ = write!(
        out,
        "\n- {} in {}, with {}",
        counted(all.turns, "turn"),
        time(all.time),
        counted(all.tool_calls, "tool call")
    );
    if all.agents > 0 {
        let _ = write!(out, ", {} of them to agents", all.agents);
    }
    if all.compactions + all.prunings > 0 {
        let _ = write!(out, "\n- {}", counted(all.compactions, "compaction"));
        if all.summaries.calls > 0 {
            let _ = write!(out, " ({} for summaries)", in_words(&all.summaries));
        }
        if all.prunings > 0 {
            let _ = write!(out, ", old results cut {}", counted(all.prunings, "time"));
        }
    }
    if !all.by_other.is_empty() {
        out.push_str("\n- outside of the conversation itself:");
        for (by, took) in all.by_other.iter().take(OTHERS_MAX) {
            let _ = write!(out, "\n  - {by}: {}", in_words(took));
        }
        if all.by_other.len() > OTHERS_MAX {
            let _ = write!(out, "\n  - and {} more", all.by_other.len() - OTHERS_MAX);
        }
    }
    if all.all.cost.is_none() {
        out.push_str("\n- prices are not known; models.\"NAME\".price in config.toml sets them");
    }
    out
}

fn count(settings: &Settings, thread: &Thread) -> Counted {
    let mut counted = Counted::default();
    let mut began = None;
    for entry in thread.entries() {
        if let Some((model, usage)) = call_of(&entry.change) {
            let cost = models::cost(settings, model, usage);
            counted.all.add(usage, cost);
            counted.by_model.entry(model.clone()).or_default().add(usage, cost);
            match &entry.change {
                Change::Spent { by, .. } => counted.by_other.entry(by.clone()).or_default().add(usage, cost),
                Change::Compacted { .. } => counted.summaries.add(usage, cost),
                _ => {}
            }
        }
        match &entry.change {
            change if change.is_said_by_user() => {
                began.get_or_insert(entry.at);
            }
            Change::Replied { message, .. } => {
                counted.agents += message.calls().filter(|call| call.name == task::NAME).count();
            }
            Change::ToolFinished { .. } => counted.tool_calls += 1,
            Change::Compacted { .. } => counted.compactions += 1,
            Change::Pruned { .. } => counted.prunings += 1,
            Change::TurnEnded { .. } => {
                // A command alone is not a turn.
                if let Some(began) = began.take() {
                    counted.turns += 1;
                    counted.time += Duration::from_millis(entry.at.saturating_sub(began));
                }
            }
            _ => {}
        }
    }
    counted
}

fn row(name: &str, took: &Took) -> String {
    let Took { calls, usage, cost } = took;
    let cost = cost.map_or("unknown".to_owned(), |cost| format!("${cost:.4}"));
    format!(
        "| {name} | {calls} | {} | {} | {} | {} | {cost} |\n",
        tokens(usage.input),
        tokens(usage.cache_read),
        tokens(usage.output),
        tokens(usage.thinking)
    )
}

fn in_words(took: &Took) -> String {
    format!("{}, {}", counted(took.calls, "call"), epitome_thread::text::spent(&took.usage, took.cost))
}

fn time(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3_600, seconds % 3_600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::super::why::tests::thread;
    use super::*;
    use epitome_thread::{Content, Message, MessageId, Origin, StopReason};

    fn message(text: &str) -> Message {
        Message { id: MessageId(0), content: vec![Content::Text { text: text.to_owned() }], author: None }
    }

    fn usage(input: u64, output: u64) -> Usage {
        Usage { input, output, cache_read: input / 2, ..Usage::default() }
    }

    fn replied(model: &str, input: u64, output: u64) -> Change {
        let (model, usage) = (ModelName(model.to_owned()), Some(usage(input, output)));
        Change::Replied { message: message("Well."), model, usage, cut: None }
    }

    fn ended() -> Change {
        Change::TurnEnded {
            reason: StopReason::EndTurn,
            usage: Usage::default(),
            quiet_hooks: 0,
            failure: None,
        }
    }

    #[test]
    fn usage_is_listed_by_model_and_by_caller() {
        let said = || Change::Said { message: message("Go"), origin: Origin::Person };
        let spent = |by: &str| Change::Spent {
            model: ModelName("local/small".to_owned()),
            usage: usage(500, 50),
            by: by.to_owned(),
        };
        let log = vec![
            said(),
            replied("local/large", 1_000, 100),
            spent("explore"),
            spent("explore"),
            replied("local/large", 3_000, 200),
            ended(),
            Change::Commanded { message: MessageId(9), typed: "/usage".to_owned() },
            ended(),
        ];
        let report = text(&Settings::default(), &thread(log));
        for line in [
            "| local/large | 2 | 4.0k | 2.0k | 300 | 0 | unknown |",
            "| local/small | 2 | 1.0k | 500 | 100 | 0 | unknown |",
            "| all | 4 | 5.0k | 2.5k | 400 | 0 | unknown |",
            "- 1 turn in ",
            "  - explore: 2 calls, 1.0k tokens in (50 % from the cache), 100 out",
        ] {
            assert!(report.contains(line), "{line:?} is missing in\n{report}");
        }
    }

    #[test]
    fn a_session_without_a_model_call_says_so() {
        assert_eq!(
            text(&Settings::default(), &thread(Vec::new())),
            "No model was called in this session yet."
        );
    }

    #[test]
    fn times_are_shown_in_their_two_largest_units() {
        for (seconds, expected) in [(7, "7 s"), (200, "3 min 20 s"), (7_380, "2 h 3 min")] {
            assert_eq!(time(Duration::from_secs(seconds)), expected);
        }
    }
}
