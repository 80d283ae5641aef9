//! A hook at every event of a recipe's turn. It answers as hooks may: with nothing, a refusal, another history or more
//! work. Sometimes it fails, or never returns.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use epitome_hooks::functions::Functions;
use epitome_hooks::hook_context::{EventData, HookContext};
use epitome_hooks::output::{HistoryAction, HookOutput, Utterance};
use epitome_thread::Role;
use parking_lot::Mutex;

/// The slash command of the recipe that declares the handler.
pub const COMMAND: &str = "/hooked";

pub const RECIPE: &str = "---
description: Work under hooks
hooks:
  user_message_send: world
  before_tool_call: world
  after_tool_call: world
  turn_end: world
  agent_stop: world
  pre_compact: world
---
hooked {{.ARGUMENTS}}
";

/// The acts of the hooks, in order.
pub type HookActs = Arc<Mutex<Vec<&'static str>>>;

/// The hook, until `is_calm` makes it do nothing.
pub fn functions(seed: u64, is_calm: Arc<AtomicBool>, acts: HookActs) -> Functions {
    let rng = Arc::new(Mutex::new(fastrand::Rng::with_seed(seed ^ 0x400c)));
    let mut functions = Functions::default();
    functions.register_handler("world", move |_, context| {
        let choice = if is_calm.load(Ordering::Relaxed) { None } else { Some(choose(&rng, &context)) };
        let acts = acts.clone();
        async move {
            let (act, answer) = choice.unwrap_or(("a hook had no wish", Answer::Output(Box::default())));
            acts.lock().push(act);
            match answer {
                Answer::Output(output) => Ok(*output),
                Answer::Dies => Err("it died".into()),
                Answer::Hangs => std::future::pending().await,
            }
        }
    });
    functions
}

enum Answer {
    Output(Box<HookOutput>),
    Dies,
    Hangs,
}

fn choose(rng: &Mutex<fastrand::Rng>, context: &HookContext) -> (&'static str, Answer) {
    let mut rng = rng.lock();
    let output = HookOutput::default;
    let said = |text: &str| Utterance { role: Role::User, text: text.to_owned() };
    let (act, output) = match (rng.u8(..10), &context.what) {
        (0, _) => return ("a hook died", Answer::Dies),
        (1, _) => return ("a hook hung", Answer::Hangs),
        (2, _) => ("a hook blocked", HookOutput { block: Some(Some("not now".to_owned())), ..output() }),
        (3, _) => ("a hook added context", HookOutput { context: vec!["a fact".to_owned()], ..output() }),
        (4 | 5, EventData::TurnEnd(_) | EventData::AgentStop { .. }) => {
            let messages = vec![said("all that was before")];
            let action = HistoryAction::Mutate { messages, preserve_recent: rng.usize(..3), target: None };
            ("a hook replaced the history", HookOutput { action, ..output() })
        }
        (6, EventData::AgentStop { .. }) => {
            ("a hook wanted more work", HookOutput { follow_ups: vec![said("and this")], ..output() })
        }
        (4, EventData::AfterToolCall { .. }) => {
            ("a hook rewrote a result", HookOutput { output_text: Some("hidden".to_owned()), ..output() })
        }
        (4, _) => ("a hook ended the turn", HookOutput { halt: Some("enough".to_owned()), ..output() }),
        _ => ("a hook had no wish", output()),
    };
    (act, Answer::Output(Box::new(output)))
}
