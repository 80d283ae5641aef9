//! A deterministic world: windows with real front ends, real connections and a simulated daemon, in one thread. A seed
//! decides who does what, how many bytes arrive, and when the daemon is killed. The session's part in a resumption
//! (`session::resumed`), the translation to updates, the outbox, the framing and the reconnecting are the real ones.
//!
//! A failure prints its seed and what happened: `EPITOME_SEED=17 cargo test --test sessions world` plays it again, and
//! `EPITOME_SEEDS=1000000` plays more.

mod daemon;
mod window;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use epitome::acp::from_wire::ClientTraits;
use epitome::acp::to_wire::Cursor;
use epitome::acp::v1;
use epitome::session::{ClientId, SessionEvent};
use epitome::thread::{Change, Content, Entry, Origin, SessionId, StopReason};
use serde_json::json;

use self::daemon::{Daemon, Logs};
use self::window::{Request, Shown, Window};

const SEEDS: u64 = 2_000;

/// Steps of a world before it comes to rest.
const STEPS: u32 = 120;

/// A request is sent again twice; at the third death of a daemon it is answered as interrupted.
const DEATHS_SURVIVED: u32 = 2;

/// Rare states that were reached, so that a world which never reaches them fails.
#[derive(Clone, Copy, Debug, Default)]
struct Reached {
    kills: u64,
    finished_behind_the_window: u64,
    interrupted: u64,
    repeated: u64,
    queued: u64,
    shared: u64,
}

impl Reached {
    fn add(&mut self, other: Reached) {
        self.kills += other.kills;
        self.finished_behind_the_window += other.finished_behind_the_window;
        self.interrupted += other.interrupted;
        self.repeated += other.repeated;
        self.queued += other.queued;
        self.shared += other.shared;
    }
}

struct World {
    rng: fastrand::Rng,
    logs: Logs,
    daemon: Option<Daemon>,
    windows: Vec<Window>,
    deaths: u32,
    clients: u64,
    prompts: u64,
    reached: Reached,
    told: Vec<String>,
}

impl World {
    async fn new(seed: u64) -> World {
        let mut rng = fastrand::Rng::with_seed(seed);
        let windows = (0..rng.usize(1..4)).map(Window::new).collect();
        let mut world = World {
            rng,
            logs: Logs::default(),
            daemon: None,
            windows,
            deaths: 0,
            clients: 0,
            prompts: 0,
            reached: Reached::default(),
            told: Vec::new(),
        };
        for at in 0..world.windows.len() {
            world.attach(at).await;
            world.send(at, "initialize", String::new(), String::new()).await;
            world.send(at, "session/new", String::new(), String::new()).await;
            world.windows[at].deliver(usize::MAX);
        }
        world
    }

    async fn attach(&mut self, at: usize) {
        let seed = self.rng.u64(..);
        let daemon = self.daemon.get_or_insert_with(|| Daemon::new(self.logs.clone(), seed)).clone();
        self.clients += 1;
        self.told.push(format!("window {at} attaches"));
        let runtime = tokio::runtime::Handle::current();
        self.windows[at].attach(&daemon, &runtime, ClientId(self.clients)).await;
    }

    async fn send(&mut self, at: usize, method: &'static str, session: String, text: String) {
        self.told.push(format!("window {at}: {method} {session} {text}"));
        let params = match method {
            "initialize" => json!({ "protocolVersion": 1 }),
            "session/new" => json!({ "cwd": "/w", "mcpServers": [] }),
            "session/load" => json!({ "sessionId": session, "cwd": "/w", "mcpServers": [] }),
            "session/prompt" => {
                json!({ "sessionId": session, "prompt": [{ "type": "text", "text": text }] })
            }
            _ => json!({}),
        };
        let request = Request { method, session, text, deaths: self.deaths };
        self.windows[at].request(params, request).await;
    }

    async fn step(&mut self) {
        let at = self.rng.usize(..self.windows.len());
        let session = {
            let known: Vec<&String> = self.windows[at].sessions.keys().collect();
            (!known.is_empty()).then(|| known[self.rng.usize(..known.len())].clone())
        };
        match (self.rng.u8(..100), session) {
            (0..40, _) => {
                let working = self.daemon.as_ref().map(Daemon::working).unwrap_or_default();
                if let (Some(daemon), false) = (&self.daemon, working.is_empty()) {
                    daemon.step(&working[self.rng.usize(..working.len())]);
                }
            }
            (40..65, _) => {
                let most = [1, 50, 300, usize::MAX][self.rng.usize(..4)];
                self.told.push(format!("window {at} gets {most} bytes"));
                self.windows[at].deliver(most);
            }
            (65..78, Some(session)) if self.is_open(at, &session) => {
                self.prompts += 1;
                // The same words may be sent twice.
                let number = if self.rng.u8(..4) == 0 { 0 } else { self.prompts };
                self.send(at, "session/prompt", session, format!("w{at} p{number}")).await;
            }
            (78..82, _) => self.send(at, "session/list", String::new(), String::new()).await,
            (82..86, _) => {
                let all: Vec<SessionId> = self.logs.lock().expect("no panic").keys().cloned().collect();
                let session = all[self.rng.usize(..all.len())].0.clone();
                let is_loading = self.windows[at].open.values().any(|open| {
                    open.session == session && matches!(open.method, "session/load" | "session/prompt")
                });
                // What arrives between an editor's request to load and the replay can't be told from it.
                self.windows[at].deliver(usize::MAX);
                if !is_loading && self.windows[at].is_attached() {
                    // The editor shows it from the beginning.
                    self.windows[at].sessions.insert(session.clone(), Shown::default());
                    self.reached.shared += 1;
                    self.send(at, "session/load", session, String::new()).await;
                }
            }
            (86..92, _) if self.daemon.is_some() => self.kill(),
            (92..100, _) if !self.windows[at].is_attached() => self.attach(at).await,
            _ => {}
        }
    }

    /// Whether the editor may send prompts: it has an answer to how it opened the session.
    fn is_open(&self, at: usize, session: &str) -> bool {
        !self.windows[at].open.values().any(|open| open.session == session && open.method == "session/load")
    }

    fn kill(&mut self) {
        self.told.push("the daemon is killed".to_owned());
        self.reached.kills += 1;
        self.deaths += 1;
        self.daemon = None;
        for window in &mut self.windows {
            window.lose(&mut self.rng);
            let logs = self.logs.lock().expect("no panic");
            let finished = window.open.values().filter(|open| open.method == "session/prompt").any(|open| {
                let log = logs.get(&SessionId(open.session.clone()));
                log.is_some_and(|log| finished(log, &open.text) > 0)
            });
            self.reached.finished_behind_the_window += u64::from(finished);
        }
    }

    /// Everybody finds a daemon, all turns end, and everything arrives.
    async fn rest(&mut self) {
        for at in 0..self.windows.len() {
            if !self.windows[at].is_attached() {
                self.attach(at).await;
            }
        }
        while let Some(session) = self.daemon.as_ref().and_then(|daemon| daemon.working().pop()) {
            self.daemon.as_ref().expect("it works").step(&session);
        }
        self.windows.iter_mut().for_each(|window| window.deliver(usize::MAX));
    }

    fn check(&mut self) {
        let logs = self.logs.lock().expect("no panic").clone();
        for window in &self.windows {
            assert!(window.open.is_empty(), "window {}: no answer to {:?}", window.name, window.open);
            for (request, answer) in &window.answered {
                let is_error = answer.get("error").is_some();
                if request.method != "session/prompt" {
                    let deaths = self.deaths - request.deaths;
                    assert!(!is_error || deaths > DEATHS_SURVIVED, "{request:?}: {answer}");
                    self.reached.repeated += u64::from(!is_error && deaths > 0);
                }
            }
            for (name, shown) in &window.sessions {
                let log = &logs[&SessionId(name.clone())];
                check_prompts(window, name, log, &mut self.reached);
                check_shown(window, name, shown, log);
            }
        }
    }
}

/// Prompts are answered as the log says.
fn check_prompts(window: &Window, session: &str, log: &[Arc<Entry>], reached: &mut Reached) {
    let mut ended: BTreeMap<&str, usize> = BTreeMap::new();
    for (request, answer) in &window.answered {
        if request.method == "session/prompt" && request.session == session {
            let count = ended.entry(&request.text).or_default();
            *count += usize::from(answer["result"]["stopReason"] == "end_turn");
            reached.interrupted += u64::from(answer.get("error").is_some());
        }
    }
    for (text, count) in ended {
        let finished = finished(log, text);
        assert_eq!(count, finished, "window {}: {text:?} ended {finished} times in {session}", window.name);
    }
    reached.queued += log.iter().filter(|entry| matches!(entry.change, Change::Queued { .. })).count() as u64;
}

/// How many prompts with these words have a turn that ended well.
fn finished(log: &[Arc<Entry>], text: &str) -> usize {
    let is_it = |message: &epitome::thread::Message| matches!(&message.content[..], [Content::Text { text: words }] if words == text);
    let is_prompt = |entry: &Arc<Entry>| match &entry.change {
        Change::Said { message, origin: Origin::Person } | Change::Queued { message } => is_it(message),
        _ => false,
    };
    let ended_well = |at: usize| {
        let end = log[at..].iter().find_map(|entry| match &entry.change {
            Change::TurnEnded { reason, .. } => Some(*reason),
            _ => None,
        });
        end == Some(StopReason::EndTurn)
    };
    log.iter().enumerate().filter(|(at, entry)| is_prompt(entry) && ended_well(*at)).count()
}

/// A window shows the log: the whole text of each message once, in order, and the outcome of each call.
fn check_shown(window: &Window, session: &str, shown: &Shown, log: &[Arc<Entry>]) {
    let mut expected = Shown::default();
    let (mut cursor, mut updates) = (Cursor::new(&SessionId(session.to_owned())), Vec::new());
    for entry in log {
        let own = false;
        let out = SessionEvent::Entry { entry: entry.clone(), replay: false, own };
        cursor.translate(out, &ClientTraits::default(), &mut updates);
    }
    for update in updates {
        v1::project(update, &mut |update| {
            expected.take(&serde_json::to_value(update).expect("an update is JSON"));
        });
    }
    let who = format!("window {} of {session}", window.name);
    let texts: BTreeMap<&str, &str> =
        shown.texts.iter().map(|(id, text)| (id.as_str(), text.as_str())).collect();
    let own = format!("w{} ", window.name);
    let mut order = Vec::new();
    for (id, text) in &expected.texts {
        match texts.get(id.as_str()) {
            Some(seen) => {
                assert_eq!(
                    seen.trim_matches('\n'),
                    text.trim_matches('\n'),
                    "{who}: {id}; {:?}",
                    log.iter().map(|entry| entry.change.kind()).collect::<Vec<_>>()
                );
                // A replay shows a prompt that a crash left in the queue where it was queued.
                if !text.starts_with('w') {
                    order.push(id.as_str());
                }
            }
            None => assert!(text.starts_with(&own), "{who}: {id} is missing: {text:?}"),
        }
    }
    let seen: Vec<&str> =
        shown.texts.iter().map(|(id, _)| id.as_str()).filter(|id| order.contains(id)).collect();
    assert_eq!(seen, order, "{who}");
    assert_eq!(shown.calls, expected.calls, "{who}");
}

fn play(seed: u64, runtime: &tokio::runtime::Runtime) -> Reached {
    runtime.block_on(async {
        let mut world = World::new(seed).await;
        let played = async {
            for _ in 0..STEPS {
                world.step().await;
            }
            world.rest().await;
            world.check();
        };
        let played = futures_util::FutureExt::catch_unwind(AssertUnwindSafe(played)).await;
        if let Err(panic) = played {
            eprintln!("seed {seed}:\n{}", world.told.join("\n"));
            std::panic::resume_unwind(panic);
        }
        world.reached
    })
}

#[test]
fn windows_agree_with_the_log_whatever_dies() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    if let Some(seed) = number("EPITOME_SEED") {
        play(seed, &runtime);
        return;
    }
    let mut reached = Reached::default();
    for seed in 0..number("EPITOME_SEEDS").unwrap_or(SEEDS) {
        match catch_unwind(AssertUnwindSafe(|| play(seed, &runtime))) {
            Ok(one) => reached.add(one),
            Err(_) => panic!("EPITOME_SEED={seed} plays it again"),
        }
    }
    let Reached { kills, finished_behind_the_window, interrupted, repeated, queued, shared } = reached;
    let rare = [kills, finished_behind_the_window, interrupted, repeated, queued, shared];
    assert!(rare.iter().all(|count| *count > 0), "a state was never reached: {reached:?}");
}
