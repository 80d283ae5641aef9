//! Limits on a session's allocations. An allocation for each piece of a stream, or more of them the longer a
//! conversation is, shows in these numbers on any machine.

use epitome::thread::StopReason;
use epitome_scripted_model::ModelStep;
use epitome_test_harness::session::TestSession;
use epitome_test_harness::{allocations, own_process, text};

/// Upper bounds, a little above what was measured (835 and 1): neither the threads' order nor how the network cuts a
/// stream is the same in each run.
const FOR_A_PROMPT_MAX: u64 = 900;
const FOR_A_DELTA_MAX: u64 = 2;

const PROMPTS: u64 = 20;
const DELTAS: usize = 2_000;

#[test]
fn a_prompt_and_a_delta_allocate_a_bounded_number_of_times() {
    own_process::alone(
        concat!(module_path!(), "::a_prompt_and_a_delta_allocate_a_bounded_number_of_times"),
        || {
            let mut test = TestSession::with(|request| match request.last_user_text() {
                prompt if prompt.contains("Flood") => {
                    vec![ModelStep::Flood { count: DELTAS, text: "many words ".into() }]
                }
                _ => vec![text("Done.")],
            });
            let spent = |test: &mut TestSession, prompt: &str, times: u64| {
                let before = allocations::count();
                (0..times).for_each(|_| assert_eq!(test.ask(prompt), StopReason::EndTurn));
                (allocations::count() - before) / times
            };
            // The first one connects, and fixes the frame.
            spent(&mut test, "Go", 1);
            let early = spent(&mut test, "Go", PROMPTS);
            let flood = spent(&mut test, "Flood", 1);
            let late = spent(&mut test, "Go", PROMPTS);
            let each_delta = flood.saturating_sub(early) / DELTAS as u64;
            println!("allocations: {early} a prompt, {late} some prompts later, {each_delta} a delta");
            assert!(early <= FOR_A_PROMPT_MAX, "{early} a prompt");
            assert!(each_delta <= FOR_A_DELTA_MAX, "{each_delta} a delta");
            // A log that is twice as long costs no prompt more.
            assert!(late <= early + early / 10, "{early} a prompt first, {late} later");
        },
    );
}
