//! The replies of the simulated model: mostly valid, sometimes with faults that real services have had.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use epitome_scripted_model::{ModelStep, ScriptedStop, SimulatedModel};
use serde_json::{Value, json};

/// How the prompt of an agent begins.
const PART: &str = "part";

/// How a prompt ends that wants files to be written.
pub const WRITES: &str = "writes";

/// A model that misbehaves as determined by the seed, until `is_calm` is set.
pub fn model(seed: u64, is_calm: Arc<AtomicBool>) -> SimulatedModel {
    let (mut rng, mut pace) = (fastrand::Rng::with_seed(seed), fastrand::Rng::with_seed(!seed));
    let misbehaves = rng.u8(..3) > 0;
    let (mut words, mut calls) = (0, 0);
    let pieces = *pace.choice(&[40, 400, 4_000]).expect("there are some");
    SimulatedModel::new(
        move |request| {
            words += 1;
            if is_calm.load(Ordering::Relaxed) {
                return vec![ModelStep::Text(format!("calm {words}"))];
            }
            let mut steps = Vec::new();
            let text = |rng: &mut fastrand::Rng| {
                ModelStep::Text(format!("reply {words} {}", "word ".repeat(rng.usize(..40))))
            };
            if misbehaves && rng.u8(..8) == 0 {
                return misbehaviour(&mut rng, text(&mut fastrand::Rng::with_seed(words)));
            }
            if rng.u8(..6) == 0 {
                steps.push(ModelStep::Think(format!("thought {words}")));
            }
            if rng.u8(..4) > 0 {
                steps.push(text(&mut rng));
            }
            let prompt = request.last_user_text();
            if prompt.ends_with(WRITES) && rng.u8(..3) > 0 {
                calls += 1;
                steps.push(ModelStep::Call { name: "write".to_owned(), input: write(&mut rng, calls) });
            } else if prompt.starts_with(PART) && rng.u8(..4) > 0 {
                calls += 1;
                let input = json!({ "number": calls, "ms": 30, "asks": true });
                steps.push(ModelStep::Call { name: "work".to_owned(), input });
            } else if rng.u8(..5) < 2 || steps.is_empty() {
                for _ in 0..rng.u8(1..4) {
                    calls += 1;
                    let (name, input) = call(&mut rng, calls);
                    steps.push(ModelStep::Call { name: name.to_owned(), input });
                }
            }
            steps
        },
        move || {
            let delay = *pace.choice(&[0, 0, 1, 5, 40]).expect("there are some");
            (Duration::from_millis(delay), pace.usize(1..=pieces))
        },
    )
}

fn call(rng: &mut fastrand::Rng, number: u64) -> (&'static str, Value) {
    match rng.u8(..16) {
        0 => ("no_such_tool", json!({})),
        1 | 2 => ("task", json!({ "description": "some of it", "prompt": format!("{PART} {number}") })),
        3..6 => ("write", write(rng, number)),
        _ => {
            let input = json!({
                "number": number,
                "ms": *rng.choice(&[0, 1, 30, 2_000]).expect("there are some"),
                "asks": rng.u8(..3) == 0,
                "fails": rng.u8(..6) == 0,
                "bytes": *rng.choice(&[0, 10, 5_000]).expect("there are some"),
            });
            ("work", input)
        }
    }
}

fn write(rng: &mut fastrand::Rng, number: u64) -> Value {
    let text = format!("written by {number}\n").repeat(rng.usize(1..400));
    json!({ "number": number, "path": format!("f{}.txt", rng.u8(..3)), "text": text })
}

fn misbehaviour(rng: &mut fastrand::Rng, text: ModelStep) -> Vec<ModelStep> {
    let error = |status, retry_after| ModelStep::Error { status, retry_after, message: None };
    match rng.u8(..14) {
        0 => vec![error(429, Some(2))],
        1 => vec![error(529, None)],
        2 => vec![error(500, None)],
        3 => vec![error(400, None)],
        4 => vec![error(401, None)],
        5 => vec![ModelStep::Overflow],
        6 => vec![text, ModelStep::Cut],
        7 => vec![ModelStep::Cut],
        8 => vec![text, ModelStep::Hang],
        9 => vec![ModelStep::Hang],
        10 => Vec::new(),
        11 => vec![text, ModelStep::Stop(ScriptedStop::MaxTokens)],
        12 => vec![text, ModelStep::Stop(ScriptedStop::Refusal("no".to_owned()))],
        _ => vec![text, error(529, None)],
    }
}
