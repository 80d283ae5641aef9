//! Resource limits of processes, one process each: every request is answered, and what was answered as done is there once the
//! limit is gone.

use std::process::{Command, Stdio};

use epitome_scripted_model::{ModelStep, RecordedRequest};
use epitome_test_harness::agent::{Agent, agent_text, end_by, obey, person_said};
use epitome_test_harness::user::User;
use rustix::process::Signal;
use serde_json::{Value, json};

/// The agent with pipes, under this limit of the shell's `ulimit`.
fn limited(user: &User, limit: &str) -> Command {
    let agent = user.agent_command(&["--mode", "full"]);
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("ulimit {limit} && exec \"$0\" \"$@\"")).arg(agent.get_program());
    shell.args(agent.get_args()).current_dir(user.project()).env_clear();
    shell.envs(agent.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    shell
}

/// What an answer must be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Done,
    /// Done, or an error that says what is missing.
    Answer,
}

/// Sixty megabytes of text for `flood`.
fn model(request: &RecordedRequest) -> Vec<ModelStep> {
    match request.last_user_text().ends_with("flood") {
        true => vec![ModelStep::Flood { count: 60_000, text: "word ".repeat(200) }],
        false => obey(request),
    }
}

/// Regressions: with 20 open files, `initialize` was never answered; a reply that did not fit into the memory ended the
/// daemon with all sessions.
#[test]
fn a_limited_process_answers_everything_and_loses_nothing() {
    use Wanted::{Answer, Done};
    for (limit, wanted) in [
        ("-n 1024", Done),
        ("-n 128", Done),
        ("-n 64", Answer),
        ("-n 20", Answer),
        // Blocks of 512 or 1,024 bytes.
        ("-f 8", Answer),
        ("-f 400", Answer),
        ("-v 1000000", Done),
        ("-v 500000", Answer),
        ("-s 512", Done),
        ("-c 0", Done),
        ("-l 0", Done),
        ("-t 600", Done),
    ] {
        let user = User::with_model(model);
        let mut agent = Agent::spawn(limited(&user, limit));
        agent.call("initialize", json!({ "protocolVersion": 1 }));
        let opening = json!({ "cwd": user.project(), "mcpServers": [] });
        let id = agent.request("session/new", opening);
        let (_, made) = agent.answer(id);
        let Some(session) = made["result"]["sessionId"].as_str().map(str::to_owned) else {
            assert!(wanted == Answer && says_why(&made), "{limit}: {made}");
            continue;
        };
        let mut done = Vec::new();
        for words in ["say one", "run echo two", "flood", "say three", "run echo four"] {
            let id = agent.prompt(&session, words);
            let (_, answer) = agent.answer(id);
            match answer["result"]["stopReason"].as_str() {
                Some("end_turn") => done.push(words),
                _ if words == "flood" && wanted == Done => {
                    assert!(answer["error"].to_string().contains("longer than 16 MB"), "{limit}: {answer}");
                }
                _ => assert!(wanted == Answer && says_why(&answer), "{limit}: {words}: {answer}"),
            }
        }
        assert!(!done.contains(&"flood"), "{limit}");
        // It may have said on standard error what it lacks.
        if let Some(daemon) = user.daemon() {
            agent.hold();
            end_by(daemon, Signal::KILL);
        }
        drop(agent);

        let mut agent = user.start_trusted();
        let replay = user.load(&mut agent, &session);
        let said = person_said(&replay);
        for words in done {
            assert_eq!(said.iter().filter(|said| **said == words).count(), 1, "{limit}: {words}: {said:?}");
        }
        assert_eq!(agent_text(&agent.turn(&session, "say more").0), "You said more.", "{limit}");
    }
}

/// Whether it is an error with a sentence.
fn says_why(answer: &Value) -> bool {
    answer["error"]["message"].as_str().is_some_and(|message| message.len() > 20)
}
