//! Servers of several machines that share a database with a synchronous standby, and windows at each of them: in each run, one
//! thing fails while all windows prompt. Measures how long the slowest window takes to continue, and compares the logs and
//! the calls of the models with what was answered.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use epitome_scripted_model::{RecordedRequest, SeenPart};
use epitome_test_harness::agent::{Agent, agent_text, end_by, obey};
use epitome_test_harness::postgres::PostgresServer;
use epitome_test_harness::relay::Relay;
use epitome_test_harness::serve::{Server, editor, serve, token};
use epitome_test_harness::user::User;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::Run;

pub const WHAT: &str = "events of a fleet";

pub const MACHINES: usize = 3;

/// Windows of the runs of each event, in turn.
const WINDOWS: [usize; 5] = [9, 18, 9, 27, 50];

/// Users who share the windows. A server accepts only some of each.
const TOKENS: usize = 8;

/// How soon each window must continue.
const CONTINUES_WITHIN: Duration = Duration::from_secs(5);

/// How long windows prompt undisturbed, before an event and after all have continued.
const QUIET: Duration = Duration::from_millis(1_500);

/// A window that has not continued by then is stuck.
const STUCK_AFTER: Duration = Duration::from_secs(60);

/// How long the network is cut in the runs of that event, in turn.
const CUTS: [u64; 4] = [4, 9, 14, 20];

/// How long a server is stopped: longer than its lease.
const STOPPED: Duration = Duration::from_secs(8);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FleetEvent {
    PrimaryKilled,
    DaemonKilled,
    ServerKilled,
    MachineLost,
    ServerStopped,
    NetworkCut,
    HalfClosed,
    LeaseRace,
    RollingUpdate,
}

const EVENTS: [(FleetEvent, &str); 9] = [
    (FleetEvent::PrimaryKilled, "the primary is killed, and the standby promoted"),
    (FleetEvent::DaemonKilled, "a daemon is killed"),
    (FleetEvent::ServerKilled, "a server is killed with its daemon, and started again"),
    (FleetEvent::MachineLost, "a machine is lost, and its sessions are opened at the others"),
    (FleetEvent::ServerStopped, "a daemon is stopped for 8 s, and one of its sessions is opened elsewhere"),
    (FleetEvent::NetworkCut, "the network of a machine is silent for 4 to 20 s, from its return"),
    (FleetEvent::HalfClosed, "all connections to the database are half closed"),
    (FleetEvent::LeaseRace, "a machine is lost, and each of its sessions is opened at two others at once"),
    (FleetEvent::RollingUpdate, "the servers are replaced, one after the other"),
];

/// What a run has found.
#[derive(Default)]
pub struct RunResult {
    pub slowest: Duration,
    pub answered: usize,
    pub lost: usize,
    pub doubled: usize,
    pub double_calls: usize,
    /// Prompts that were answered with an error.
    pub refused: usize,
    pub faults: Vec<String>,
}

/// Plays each event whose words contain `only` this many times. Returns a table with them, too.
pub fn run(runs: usize, only: &str) -> (String, Run) {
    let began = Instant::now();
    let mut table = String::from(
        "| event | runs | windows | slowest window | answered | lost | doubled | double calls | refused |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    let mut failures = Vec::new();
    let mut amount = 0;
    for (event, words) in EVENTS.into_iter().filter(|(event, _)| format!("{event:?}").contains(only)) {
        let mut all = RunResult::default();
        for nth in 0..runs {
            let windows = WINDOWS[nth % WINDOWS.len()];
            let played = catch_unwind(AssertUnwindSafe(|| play(event, nth, windows)));
            let played = played.unwrap_or_else(|panic| {
                let text = panic.downcast_ref::<String>().cloned();
                let text =
                    text.unwrap_or_else(|| "a part of the fleet did not do what was expected".to_owned());
                RunResult { faults: vec![text], ..RunResult::default() }
            });
            let RunResult { slowest, answered, lost, doubled, double_calls, refused, faults } = played;
            eprintln!(
                "{event:?} {nth}: {windows} windows, the slowest {:.1} s, {answered} answered, {lost} lost, {doubled} doubled, \
                 {double_calls} double calls, {refused} refused",
                slowest.as_secs_f64()
            );
            all.slowest = all.slowest.max(slowest);
            all.answered += answered;
            all.lost += lost;
            all.doubled += doubled;
            all.double_calls += double_calls;
            all.refused += refused;
            let late = (slowest > CONTINUES_WITHIN).then(|| format!("the slowest window took {slowest:?}"));
            for fault in faults.into_iter().chain(late) {
                eprintln!("{event:?} {nth}: {fault}");
                failures.push(format!("{event:?} {nth}, {windows} windows: {fault}"));
            }
            amount += 1;
        }
        let RunResult { slowest, answered, lost, doubled, double_calls, refused, .. } = all;
        let (least, most) = (WINDOWS.iter().min().expect("some"), WINDOWS.iter().max().expect("some"));
        table += &format!(
            "| {words} | {runs} | {least} to {most} | {:.1} s | {answered} | {lost} | {doubled} | {double_calls} | {refused} |\n",
            slowest.as_secs_f64()
        );
    }
    let how = "cargo run -p epitome-soak -- --only fleet".to_owned();
    (table, Run { what: WHAT, how, amount, time: began.elapsed(), failures })
}

/// A machine of the fleet with its server, whose way to the database can fail.
struct Node {
    user: User,
    relay: Relay,
    server: Server,
}

impl Node {
    /// Starts the server of a machine. It accepts the tokens that `secrets` has made.
    fn start(sockets: [&PathBuf; 2], secrets: &User) -> Node {
        let relay = Relay::to(&sockets.map(PathBuf::as_path));
        let user = User::with_model(obey);
        user.write(".epitome/config.toml", &format!("mode = \"full\"\nstore = {:?}\n", relay.address()));
        let file = "data/remote-tokens.json";
        std::fs::create_dir_all(user.own().join("data")).expect("a directory");
        std::fs::copy(secrets.own().join(file), user.own().join(file)).expect("tokens can be copied");
        // Free a moment ago. The address has to be known before the server listens.
        let free = TcpListener::bind("127.0.0.1:0").expect("loopback").local_addr().expect("an address");
        let server = Node::serve(&user, &free.to_string());
        Node { user, relay, server }
    }

    fn serve(user: &User, address: &str) -> Server {
        serve(user, &["--listen", address, "--advertise", &format!("ws://{address}")])
    }

    fn daemon(&self) -> Pid {
        self.user.daemon().expect("it runs")
    }

    fn window(&self, laptop: &User, tokens: &[String]) -> Agent {
        let token = fastrand::choice(tokens).expect("there are some");
        editor(laptop, &format!("ws://{}", self.server.address), token, &[])
    }
}

/// A window and its session.
pub struct FleetWindow {
    agent: Agent,
    /// The machine whose server it was given.
    machine: usize,
    cwd: PathBuf,
    prompts: usize,
    played: SessionPrompts,
}

/// The prompts of one session.
#[derive(Default)]
pub struct SessionPrompts {
    session: String,
    sent: Vec<String>,
    answered: Vec<String>,
    refused: Vec<Value>,
}

/// A prompt of a window was answered.
pub struct Answered {
    pub window: usize,
    pub at: Instant,
}

impl FleetWindow {
    /// Sends a prompt and reads its answer, until one is not refused.
    pub fn prompt(&mut self) {
        let SessionPrompts { session, sent, answered, refused } = &mut self.played;
        loop {
            self.prompts += 1;
            let words = format!("say {} of {session}", self.prompts);
            let id = self.agent.prompt(session, &words);
            sent.push(words.clone());
            let (updates, answer) = self.agent.answer(id);
            if answer["result"]["stopReason"] == "end_turn" {
                let reply = reply_to(&words);
                assert!(agent_text(&updates).contains(&reply), "{words}: {updates:#?}");
                answered.push(words);
                return;
            }
            refused.push(answer);
            assert!(refused.len() < 200, "a window is refused again and again: {:?}", refused.last());
        }
    }

    /// How many prompts of the session were answered.
    pub fn answered(&self) -> usize {
        self.played.answered.len()
    }

    /// Closes the window. Returns what was played in its last session.
    pub fn end(mut self) -> SessionPrompts {
        self.agent.close_input();
        self.played
    }

    /// Closes the session and opens another one. Returns what was played in the first.
    pub fn renew(&mut self) -> SessionPrompts {
        let began = Instant::now();
        let mut call = |method: &str, params: Value| {
            loop {
                let id = self.agent.request(method, params.clone());
                let (_, answer) = self.agent.answer(id);
                match answer.get("result") {
                    Some(result) => break result.clone(),
                    None => assert!(
                        began.elapsed() < STUCK_AFTER,
                        "{method} is refused again and again: {answer}"
                    ),
                }
            }
        };
        call("session/close", json!({ "sessionId": self.played.session }));
        let made = call("session/new", json!({ "cwd": self.cwd, "mcpServers": [] }));
        let session = made["sessionId"].as_str().expect("a session").to_owned();
        std::mem::replace(&mut self.played, SessionPrompts { session, ..SessionPrompts::default() })
    }

    fn load(&mut self) -> Result<(), Value> {
        let params = json!({ "sessionId": self.played.session, "cwd": self.cwd, "mcpServers": [] });
        let id = self.agent.request("session/load", params);
        let (_, answer) = self.agent.answer(id);
        if answer.get("error").is_some() { Err(answer) } else { Ok(()) }
    }

    /// Prompts until it is stopped.
    fn work(mut self, window: usize, stop: &AtomicBool, report: &Sender<Answered>) -> FleetWindow {
        while !stop.load(Ordering::Relaxed) {
            self.prompt();
            // Nobody listens once all have continued.
            drop(report.send(Answered { window, at: Instant::now() }));
            std::thread::sleep(Duration::from_millis(fastrand::u64(20..200)));
        }
        self
    }
}

fn reply_to(words: &str) -> String {
    format!("You {}.", words.replacen("say", "said", 1))
}

/// The fleet of a run.
pub struct Fleet {
    primary: PostgresServer,
    standby: PostgresServer,
    nodes: Vec<Node>,
    laptop: User,
    tokens: Vec<String>,
}

/// The windows that work.
struct Working<'scope> {
    stops: Vec<&'scope AtomicBool>,
    threads: Vec<Option<ScopedJoinHandle<'scope, FleetWindow>>>,
    machines: Vec<usize>,
}

impl Working<'_> {
    fn of_machine(&self, machine: usize) -> Vec<usize> {
        (0..self.machines.len()).filter(|window| self.machines[*window] == machine).collect()
    }

    /// Takes a window from its work, after its next answer.
    fn take(&mut self, window: usize) -> FleetWindow {
        self.stops[window].store(true, Ordering::Relaxed);
        self.threads[window]
            .take()
            .expect("it works")
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

fn play(event: FleetEvent, nth: usize, windows: usize) -> RunResult {
    let mut fleet = Fleet::start();
    let opened: Vec<FleetWindow> = (0..windows).map(|number| fleet.open(number % MACHINES)).collect();
    let stops: Vec<AtomicBool> = (0..2 * windows).map(|_| AtomicBool::new(false)).collect();
    let (sender, answers) = channel();
    let mut result = RunResult::default();
    let all = std::thread::scope(|scope| {
        let mut working = Working { stops: Vec::new(), threads: Vec::new(), machines: Vec::new() };
        let mut done: Vec<FleetWindow> = Vec::new();
        for (number, window) in opened.into_iter().enumerate() {
            let (stop, sender) = (&stops[number], sender.clone());
            working.machines.push(window.machine);
            working.stops.push(stop);
            working.threads.push(Some(scope.spawn(move || window.work(number, stop, &sender))));
        }
        std::thread::sleep(QUIET);
        let affected = fleet.happen(event, nth, &mut working, &mut done);
        match affected {
            Ok(Affected { from, windows, slowest }) => {
                result.slowest = slowest;
                match continued(&answers, &windows, from) {
                    Ok(took) => result.slowest = result.slowest.max(took),
                    Err(fault) => result.faults.push(fault),
                }
            }
            Err(fault) => result.faults.push(fault),
        }
        std::thread::sleep(QUIET);
        stops.iter().for_each(|stop| stop.store(true, Ordering::Relaxed));
        for thread in working.threads.into_iter().flatten() {
            done.push(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        done
    });
    let all: Vec<SessionPrompts> = all.into_iter().map(FleetWindow::end).collect();
    match event {
        FleetEvent::PrimaryKilled => fleet.check(&fleet.standby, &all, &mut result),
        _ => fleet.check_primary(&all, &mut result),
    }
    result
}

/// The windows that an event affects, and when they could continue.
struct Affected {
    from: Instant,
    windows: Vec<usize>,
    /// The slowest of those that were moved by hand.
    slowest: Duration,
}

/// How long the slowest of these windows took until its next answer after `from`.
pub fn continued(answers: &Receiver<Answered>, windows: &[usize], from: Instant) -> Result<Duration, String> {
    let mut first: BTreeMap<usize, Duration> = BTreeMap::new();
    while first.len() < windows.len() {
        let left = STUCK_AFTER.saturating_sub(from.elapsed());
        let Ok(answered) = answers.recv_timeout(left) else {
            let stuck: Vec<_> = windows.iter().filter(|window| !first.contains_key(window)).collect();
            return Err(format!(
                "{} windows did not continue within {STUCK_AFTER:?}: {stuck:?}",
                stuck.len()
            ));
        };
        if answered.at > from && windows.contains(&answered.window) {
            first.entry(answered.window).or_insert(answered.at - from);
        }
    }
    Ok(first.into_values().max().unwrap_or_default())
}

impl Fleet {
    /// Starts the servers of all machines, and their database with its standby.
    pub fn start() -> Fleet {
        let mut primary = PostgresServer::start().expect("PostgreSQL is installed");
        let standby = primary.standby();
        let sockets = [&primary.socket(), &standby.socket()];
        let secrets = User::new();
        let tokens = (0..TOKENS).map(|user| token(&secrets, &format!("user-{user}"), "approve")).collect();
        let nodes = (0..MACHINES).map(|_| Node::start(sockets, &secrets)).collect();
        Fleet { primary, standby, nodes, laptop: User::new(), tokens }
    }

    pub fn open(&self, machine: usize) -> FleetWindow {
        let node = &self.nodes[machine];
        let mut agent = node.window(&self.laptop, &self.tokens);
        let session = node.user.new_session(&mut agent);
        let played = SessionPrompts { session, ..SessionPrompts::default() };
        let mut window = FleetWindow { agent, machine, cwd: node.user.project(), prompts: 0, played };
        window.prompt();
        window
    }

    /// A second window of a session, at another machine. Tries until the session can be opened.
    fn moved(&self, from: FleetWindow, machine: usize) -> Result<FleetWindow, String> {
        let began = Instant::now();
        let agent = self.nodes[machine].window(&self.laptop, &self.tokens);
        let mut window = FleetWindow { agent, machine, ..from };
        while let Err(answer) = window.load() {
            if began.elapsed() > STUCK_AFTER {
                return Err(format!("a session can't be opened at another machine: {answer}"));
            }
        }
        window.prompt();
        Ok(window)
    }

    /// Lets something fail for which no window has to be moved. Returns when the windows could continue.
    pub fn disturb(&mut self, event: FleetEvent, nth: usize) -> Instant {
        let began = Instant::now();
        let victim = nth % MACHINES;
        match event {
            FleetEvent::PrimaryKilled => {
                self.primary.kill();
                let killed = Instant::now();
                self.standby.promote();
                // Windows can't continue before it, however long PostgreSQL takes.
                eprintln!("{event:?} {nth}: the promotion took {:.1} s", killed.elapsed().as_secs_f64());
                began
            }
            FleetEvent::DaemonKilled => {
                end_by(self.nodes[victim].daemon(), Signal::KILL);
                began
            }
            FleetEvent::ServerKilled => {
                let node = &mut self.nodes[victim];
                let address = node.server.address.clone();
                node.server.kill();
                end_by(node.daemon(), Signal::KILL);
                node.server = Node::serve(&node.user, &address);
                began
            }
            FleetEvent::HalfClosed => {
                self.nodes.iter().for_each(|node| node.relay.half_close());
                began
            }
            FleetEvent::NetworkCut => {
                self.nodes[victim].relay.cut();
                std::thread::sleep(Duration::from_secs(CUTS[nth % CUTS.len()]));
                self.nodes[victim].relay.heal();
                Instant::now()
            }
            FleetEvent::RollingUpdate => {
                for node in &mut self.nodes {
                    let address = node.server.address.clone();
                    node.server.signal(Signal::TERM);
                    node.server.wait();
                    node.server = Node::serve(&node.user, &address);
                }
                Instant::now()
            }
            FleetEvent::ServerStopped | FleetEvent::MachineLost | FleetEvent::LeaseRace => {
                unreachable!("windows are moved: {event:?}")
            }
        }
    }

    /// Lets it happen. Windows that were moved are in `done`.
    fn happen(
        &mut self,
        event: FleetEvent,
        nth: usize,
        working: &mut Working<'_>,
        done: &mut Vec<FleetWindow>,
    ) -> Result<Affected, String> {
        let all: Vec<usize> = (0..working.machines.len()).collect();
        let victim = nth % MACHINES;
        match event {
            FleetEvent::ServerStopped => {
                // One of its sessions is opened elsewhere, the others wait.
                let own = working.of_machine(victim);
                let mut waiting = all.clone();
                waiting.retain(|window| *window != own[0]);
                let taken = working.take(own[0]);
                let daemon = self.nodes[victim].daemon();
                let stopped = Instant::now();
                kill_process(daemon, Signal::STOP).map_err(|error| error.to_string())?;
                let moved = self.moved(taken, (victim + 1) % MACHINES);
                let slowest = stopped.elapsed();
                std::thread::sleep(STOPPED.saturating_sub(slowest));
                kill_process(daemon, Signal::CONT).map_err(|error| error.to_string())?;
                let from = Instant::now();
                done.push(moved?);
                Ok(Affected { from, windows: waiting, slowest })
            }
            FleetEvent::MachineLost | FleetEvent::LeaseRace => {
                let own = working.of_machine(victim);
                let lost: Vec<FleetWindow> = own.iter().map(|window| working.take(*window)).collect();
                let windows = all.into_iter().filter(|window| !own.contains(window)).collect();
                let from = Instant::now();
                // First: it starts another daemon, which would have the sessions.
                self.nodes[victim].server.kill();
                end_by(self.nodes[victim].daemon(), Signal::KILL);
                let fleet = &*self;
                let moving = lost.into_iter().enumerate().map(|(number, mut window)| {
                    window.agent.kill_now();
                    let to = [(victim + 1 + number % 2) % MACHINES, (victim + 2 - number % 2) % MACHINES];
                    (window, to)
                });
                let moved: Vec<Result<FleetWindow, String>> = std::thread::scope(|scope| {
                    let threads: Vec<_> = moving
                        .map(|(window, [to, rival])| {
                            scope.spawn(move || match event {
                                FleetEvent::LeaseRace => fleet.raced(window, [to, rival]),
                                _ => fleet.moved(window, to),
                            })
                        })
                        .collect();
                    threads.into_iter().map(|thread| thread.join().expect("it moves")).collect()
                });
                let slowest = from.elapsed();
                for window in moved {
                    done.push(window?);
                }
                Ok(Affected { from, windows, slowest })
            }
            _ => Ok(Affected { from: self.disturb(event, nth), windows: all, slowest: Duration::ZERO }),
        }
    }

    /// Two windows open the session of a machine that is lost at the same time, and both prompt.
    fn raced(&self, window: FleetWindow, to: [usize; 2]) -> Result<FleetWindow, String> {
        let rival = FleetWindow {
            agent: self.nodes[to[1]].window(&self.laptop, &self.tokens),
            machine: to[1],
            cwd: window.cwd.clone(),
            // Its prompts have other words.
            prompts: 1_000_000,
            played: SessionPrompts { session: window.played.session.clone(), ..SessionPrompts::default() },
        };
        let (first, second) = std::thread::scope(|scope| {
            let second = scope.spawn(|| self.moved(rival, to[1]));
            let first = self.moved(window, to[0]);
            (first, second.join().expect("it moves"))
        });
        let (mut first, mut second) = (first?, second?);
        first.prompt();
        second.prompt();
        second.agent.close_input();
        first.played.sent.append(&mut second.played.sent);
        first.played.refused.append(&mut second.played.refused);
        first.played.answered.append(&mut second.played.answered);
        Ok(first)
    }

    /// The daemon of each machine; `None` while it is not running.
    pub fn daemons(&self) -> impl Iterator<Item = Option<Pid>> {
        self.nodes.iter().map(|node| node.user.daemon())
    }

    /// Compares the primary and the calls of all models with what was answered.
    pub fn check_primary(&self, sessions: &[SessionPrompts], result: &mut RunResult) {
        self.check(&self.primary, sessions, result);
    }

    /// Compares a database and the calls of all models with what was answered.
    fn check(&self, server: &PostgresServer, sessions: &[SessionPrompts], result: &mut RunResult) {
        let table = server.sql("select session, line from epitome_entry order by session, seq");
        let mut logs: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for row in table.lines() {
            let (session, line) = row.split_once('|').expect("two columns");
            logs.entry(session).or_default().push(line);
        }
        let mut calls: BTreeMap<String, usize> = BTreeMap::new();
        for node in &self.nodes {
            for request in node.user.model().requests() {
                *calls.entry(prompt_of(&request)).or_default() += 1;
            }
        }
        for SessionPrompts { session, sent, answered, refused } in sessions {
            let log = logs.get(&**session).map(Vec::as_slice).unwrap_or_default();
            let count = |words: &str, change: &str| {
                let is_it = |line: &&&str| line.contains(change) && line.contains(words);
                log.iter().filter(is_it).count()
            };
            result.refused += refused.len();
            for words in sent {
                let said = count(&format!("\"{words}\""), "\"said\"");
                let is_answered = answered.contains(words);
                result.answered += usize::from(is_answered);
                let replied = count(&reply_to(words), "\"replied\"");
                if is_answered && (said == 0 || replied == 0) {
                    result.lost += 1;
                    result.faults.push(format!("{words} was answered, and is not in the log"));
                }
                if said > 1 || replied > 1 {
                    result.doubled += 1;
                    result.faults.push(format!("{words} is there {said} times, its reply {replied} times"));
                }
                let called = calls.get(words).copied().unwrap_or_default();
                if called > 1 {
                    result.double_calls += 1;
                    result.faults.push(format!("{words} was sent to a model {called} times"));
                }
            }
        }
    }
}

/// The prompt that a model was called for.
fn prompt_of(request: &RecordedRequest) -> String {
    let said = request.seen().into_iter().rev().find_map(|part| match part {
        SeenPart::User(text) => Some(text),
        _ => None,
    });
    let said = said.unwrap_or_default();
    said.rsplit("\n\n").next().unwrap_or_default().to_owned()
}
