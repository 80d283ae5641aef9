//! Work with the real program: prompts in a few sessions, commands, and `kill -9` of the daemon now and then, after which
//! every answered prompt must be there once.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use epitome_test_harness::agent::{Agent, agent_text, obey, person_said};
use epitome_test_harness::user::User;

/// Prompts between two looks at the memory.
const LOOK_EVERY: u64 = 20;

/// A session is left for a new one after so many prompts.
const PROMPTS_MAX: usize = 200;

/// See the module.
pub struct ProgramRun {
    user: User,
    agent: Option<Agent>,
    session: String,
    /// The prompts of the session that were answered.
    answered: Vec<String>,
    prompts: u64,
    worked: Duration,
    pub latencies: Vec<Duration>,
    /// Of the daemon, in megabytes.
    pub memory: Vec<f64>,
    pub kills: u64,
    /// Prompts that were looked for after a kill.
    pub checked: u64,
    pub failures: Vec<String>,
}

impl ProgramRun {
    pub fn new() -> ProgramRun {
        ProgramRun {
            user: User::with_model(obey),
            agent: None,
            session: String::new(),
            answered: Vec::new(),
            prompts: 0,
            worked: Duration::ZERO,
            latencies: Vec::new(),
            memory: Vec::new(),
            kills: 0,
            checked: 0,
            failures: Vec::new(),
        }
    }

    pub fn time(&self) -> Duration {
        self.worked
    }

    /// Works until this time. A failure is noted, and work goes on in a new session.
    pub fn work(&mut self, until: Instant) {
        let began = Instant::now();
        while Instant::now() < until {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.prompt())) {
                let text = panic.downcast_ref::<String>().cloned();
                self.failures
                    .push(text.unwrap_or_else(|| "the program did not do what was expected".to_owned()));
                self.agent = None;
                self.answered = vec![String::new(); PROMPTS_MAX];
            }
        }
        self.worked += began.elapsed();
    }

    fn prompt(&mut self) {
        if self.agent.is_none() || self.answered.len() >= PROMPTS_MAX {
            let mut agent = self.agent.take().unwrap_or_else(|| self.user.start_trusted());
            self.session = self.user.new_session(&mut agent);
            self.answered.clear();
            self.agent = Some(agent);
        }
        self.prompts += 1;
        let words = match fastrand::u8(..10) {
            0 => format!("run echo {}", self.prompts),
            _ => format!("say {}", self.prompts),
        };
        let agent = self.agent.as_mut().expect("it was just started");
        let began = Instant::now();
        let (updates, reason) = agent.turn(&self.session, &words);
        self.latencies.push(began.elapsed());
        assert_eq!(reason, "end_turn", "{words}");
        if let Some(number) = words.strip_prefix("say ") {
            assert_eq!(agent_text(&updates), format!("You said {number}."));
        }
        self.answered.push(words);
        if self.prompts.is_multiple_of(LOOK_EVERY) {
            self.memory.extend(megabytes(self.user.worker(agent)));
        }
        if fastrand::u8(..40) == 0 {
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
        let answered: Vec<&str> =
            self.answered.iter().map(String::as_str).filter(|words| *words != "half").collect();
        assert_eq!(said, answered, "what was answered is not what the session shows");
        self.checked += answered.len() as u64;
        self.agent = Some(agent);
    }

    /// Ends the program cleanly.
    pub fn finish(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            agent.close_input();
        }
    }
}

/// The resident memory of a process.
fn megabytes(process: u32) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: f64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kilobytes / 1024.0)
}
