//! The real program: prompts in one session, and `kill -9` of the daemon now and then, after which every answered prompt
//! must be there once.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use epitome_test_harness::agent::{Agent, agent_text, obey, person_said};
use epitome_test_harness::user::User;

use crate::Run;

pub const WHAT: &str = "kills of the daemon";

/// A session is left for a new one after this many prompts.
const PROMPTS_MAX: usize = 200;

/// Prompts between two kills, on average.
const KILL_EVERY: u8 = 10;

struct KilledProgram {
    user: User,
    agent: Option<Agent>,
    session: String,
    /// The prompts of the session that were answered.
    answered: Vec<String>,
    kills: u64,
    /// Prompts that were answered in all sessions.
    all_answered: u64,
    /// Prompts that were looked for after a kill.
    checked: u64,
}

/// Works until this time. After a failure, work continues in a new session.
pub fn run(until: Instant) -> Run {
    let began = Instant::now();
    let mut program = KilledProgram {
        user: User::with_model(obey),
        agent: None,
        session: String::new(),
        answered: Vec::new(),
        kills: 0,
        all_answered: 0,
        checked: 0,
    };
    let mut failures = Vec::new();
    let mut number = 0;
    while Instant::now() < until {
        number += 1;
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| program.prompt(number))) {
            let text = panic.downcast_ref::<String>().cloned();
            failures.push(text.unwrap_or_else(|| "the program did not do what was expected".to_owned()));
            program.agent = None;
        }
    }
    if let Some(mut agent) = program.agent.take() {
        agent.close_input();
    }
    let KilledProgram { kills: amount, all_answered, checked, .. } = program;
    let how = format!("{all_answered} prompts were answered, and looked for {checked} times");
    Run { what: WHAT, how, amount, time: began.elapsed(), failures }
}

impl KilledProgram {
    fn prompt(&mut self, number: u64) {
        if self.agent.is_none() || self.answered.len() >= PROMPTS_MAX {
            let mut agent = self.agent.take().unwrap_or_else(|| self.user.start_trusted());
            self.session = self.user.new_session(&mut agent);
            self.answered.clear();
            self.agent = Some(agent);
        }
        let words = match fastrand::u8(..10) {
            0 => format!("run echo {number}"),
            _ => format!("say {number}"),
        };
        let agent = self.agent.as_mut().expect("it was just started");
        let (updates, reason) = agent.turn(&self.session, &words);
        assert_eq!(reason, "end_turn", "{words}");
        if words.starts_with("say") {
            assert_eq!(agent_text(&updates), format!("You said {number}."));
        }
        self.answered.push(words);
        self.all_answered += 1;
        if fastrand::u8(..KILL_EVERY) == 0 {
            self.kill();
        }
    }

    /// Kills the daemon, sometimes in the middle of a reply, and compares what the next one shows.
    fn kill(&mut self) {
        let mut agent = self.agent.take().expect("it works");
        if fastrand::bool() {
            agent.prompt(&self.session, "half");
        }
        self.user.kill(agent);
        self.kills += 1;
        let mut agent = self.user.start_trusted();
        let replay = self.user.load(&mut agent, &self.session);
        let said: Vec<&str> = person_said(&replay).into_iter().filter(|words| *words != "half").collect();
        assert_eq!(said, self.answered, "what was answered is not what the session shows");
        self.checked += said.len() as u64;
        self.agent = Some(agent);
    }
}
