//! Sessions in a database that several machines use, with failures of each part: the primary, a daemon, a whole machine,
//! and the network of one. `cargo test --test processes fleet -- --nocapture` prints what was measured.

mod clock;
mod elsewhere;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use epitome_test_harness::agent::{Agent, agent_text, end_by, obey};
use epitome_test_harness::postgres::PostgresServer;
use epitome_test_harness::relay::Relay;
use epitome_test_harness::user::User;
use rustix::process::Signal;
use serde_json::{Value, json};

const MACHINES: usize = 3;
const WINDOWS: usize = 50;

/// How soon each window must continue, above the time of an undisturbed round.
const CONTINUES_WITHIN: Duration = Duration::from_secs(5);

/// Prompts of each window while something fails.
const PROMPTS: usize = 3;

/// The prompts of one session, from whichever window.
#[derive(Clone)]
struct Conversation {
    session: String,
    cwd: PathBuf,
    prompts: usize,
    /// The prompts that were answered.
    answered: Vec<String>,
}

/// A window of an editor.
struct Window {
    agent: Agent,
    machine: usize,
    talk: Conversation,
}

impl Window {
    fn opened(machines: &[User], machine: usize) -> Window {
        let user = &machines[machine];
        let mut agent = user.start_trusted();
        let session = user.new_session(&mut agent);
        let talk = Conversation { session, cwd: user.project(), prompts: 0, answered: Vec::new() };
        Window { agent, machine, talk }
    }

    /// A window that continues a session of another machine, with a prompt.
    fn continued(machines: &[User], machine: usize, talk: Conversation) -> Window {
        let mut agent = machines[machine].start_trusted();
        let params = json!({ "sessionId": talk.session, "cwd": talk.cwd, "mcpServers": [] });
        agent.call("session/load", params);
        let mut window = Window { agent, machine, talk };
        window.prompt().expect("it is open here");
        window
    }

    /// Sends a prompt and reads its answer; the answer if the turn did not end as usual.
    fn prompt(&mut self) -> Result<(), Value> {
        let sent = self.send();
        self.hear(sent)
    }

    fn send(&mut self) -> (u64, String) {
        self.talk.prompts += 1;
        let words = format!("say {} of {}", self.talk.prompts, self.talk.session);
        (self.agent.prompt(&self.talk.session, &words), words)
    }

    fn hear(&mut self, (id, words): (u64, String)) -> Result<(), Value> {
        let (updates, answer) = self.agent.answer(id);
        if answer["result"]["stopReason"] != "end_turn" {
            return Err(answer);
        }
        assert!(agent_text(&updates).contains(&reply_to(&words)), "{words}: {updates:#?}");
        self.talk.answered.push(words);
        Ok(())
    }
}

fn reply_to(words: &str) -> String {
    format!("You {}.", words.replacen("say", "said", 1))
}

/// All windows prompt at the same time, `PROMPTS` times. Once a third of the prompts is answered, something happens that is
/// over when it returns. Returns how long each window took from then until its next answer, at most, and the turns that
/// failed.
fn round(windows: &mut [Window], happens: impl FnOnce()) -> (Duration, Vec<Value>) {
    let (sender, answers): (Sender<(usize, Instant)>, Receiver<_>) = channel();
    let third = windows.len() * PROMPTS / 3;
    std::thread::scope(|scope| {
        let prompting: Vec<_> = windows
            .iter_mut()
            .enumerate()
            .map(|(index, window)| {
                let sender = sender.clone();
                scope.spawn(move || {
                    let mut failed = Vec::new();
                    let mut answered = 0;
                    while answered < PROMPTS {
                        assert!(failed.len() < PROMPTS, "a window does not continue: {failed:?}");
                        match window.prompt() {
                            Ok(()) => answered += 1,
                            Err(answer) => {
                                failed.push(answer);
                                continue;
                            }
                        }
                        sender.send((index, Instant::now())).expect("somebody waits for it");
                    }
                    failed
                })
            })
            .collect();
        drop(sender);
        assert_eq!(answers.iter().take(third).count(), third);
        happens();
        let over = Instant::now();
        let mut next: BTreeMap<usize, Instant> = BTreeMap::new();
        for (index, at) in answers {
            if at > over {
                next.entry(index).or_insert(at);
            }
        }
        let longest = next.values().map(|at| *at - over).max().unwrap_or_default();
        (longest, prompting.into_iter().flat_map(|thread| thread.join().expect("it prompts")).collect())
    })
}

/// Windows prompt or move at the same time.
fn all<W: Send, T: Send>(windows: Vec<W>, work: impl Fn(W) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let work = &work;
        let working: Vec<_> = windows.into_iter().map(|window| scope.spawn(move || work(window))).collect();
        working.into_iter().map(|thread| thread.join().expect("it works")).collect()
    })
}

fn on_machine(windows: Vec<Window>, machine: usize) -> (Vec<Window>, Vec<Window>) {
    windows.into_iter().partition(|window| window.machine == machine)
}

/// The exported sessions of a machine, by file.
fn exported(user: &User) -> BTreeMap<String, Vec<u8>> {
    let directory = user.home().join("exported");
    user.run(&["sessions", "export", "--all", &directory.to_string_lossy()]).ok();
    let files = std::fs::read_dir(&directory).expect("it was made").map(|file| file.expect("a file").path());
    let name = |path: &Path| path.file_name().expect("a name").to_string_lossy().into_owned();
    files.map(|path| (name(&path), std::fs::read(&path).expect("a file"))).collect()
}

fn machine(store: &str) -> User {
    let user = User::with_model(obey);
    user.write(".epitome/config.toml", &format!("store = {store:?}\n"));
    user
}

/// Everything that was answered is in the log once and in order, whatever fails, nothing was written by a daemon that had
/// lost a session, and all machines see the same.
#[test]
fn sessions_survive_the_loss_of_each_part() {
    let began = Instant::now();
    let Some(mut primary) = PostgresServer::start() else { return };
    let standby = primary.standby();
    let relay = Relay::to(&[&primary.socket(), &standby.socket()]);
    let direct = PostgresServer::address(&[&primary, &standby]);
    let machines: [User; MACHINES] = [machine(&direct), machine(&direct), machine(&relay.address())];
    let numbers: Vec<usize> = (0..WINDOWS).map(|number| number % MACHINES).collect();
    let mut windows: Vec<Window> = std::thread::scope(|scope| {
        let opening: Vec<_> =
            numbers.iter().map(|number| scope.spawn(|| Window::opened(&machines, *number))).collect();
        opening.into_iter().map(|thread| thread.join().expect("it opens")).collect()
    });
    let daemons: Vec<_> = machines.iter().map(|user| user.daemon().expect("it runs")).collect();
    eprintln!("{:?}: {WINDOWS} windows are open on {MACHINES} machines", began.elapsed());

    let (usual, failed) = round(&mut windows, || {});
    assert!(failed.is_empty(), "{failed:?}");
    eprintln!("{:?}: undisturbed, the next answer takes {usual:?} at most", began.elapsed());
    let in_time = |what: &str, took: Duration| {
        eprintln!("{:?}: {what}: every window continues within {took:?}", began.elapsed());
        assert!(took <= CONTINUES_WITHIN + usual, "{what}");
    };

    let (took, failed) = round(&mut windows, || {
        primary.kill();
        standby.promote();
    });
    in_time("the primary was killed and the standby promoted", took);
    assert!(failed.is_empty(), "the standby took over in time: {failed:?}");

    let (took, failed) = round(&mut windows, || end_by(daemons[0], Signal::KILL));
    in_time("a daemon was killed", took);
    let interrupted = failed.len();

    // A whole machine is gone, and its people continue on another one.
    let (mut lost, mut windows) = on_machine(windows, 1);
    lost.iter().for_each(|window| window.agent.hold());
    end_by(daemons[1], Signal::KILL);
    let gone = Instant::now();
    lost.iter_mut().for_each(|window| window.agent.kill_now());
    let lost = lost.into_iter().map(|window| window.talk).collect();
    windows.extend(all(lost, |talk| Window::continued(&machines, 2, talk)));
    in_time("a machine was lost", gone.elapsed());

    // The network of a machine is cut while its people prompt. Some of them continue on another machine.
    let (cut_off, mut windows) = on_machine(windows, 2);
    let cut = Instant::now();
    relay.cut();
    let mut waiting: Vec<_> = cut_off.into_iter().map(|mut window| (window.send(), window)).collect();
    let stale = waiting.split_off(waiting.len() / 2);
    let copies = stale.iter().map(|(_, window)| window.talk.clone()).collect();
    windows.extend(all(copies, |talk| Window::continued(&machines, 0, talk)));
    eprintln!("{:?}: sessions continue {:?} after the network was cut", began.elapsed(), cut.elapsed());
    relay.heal();
    let healed = Instant::now();
    let waiting = all(waiting, |(sent, mut window)| {
        window.hear(sent).expect("it was open here all the time");
        (healed.elapsed(), window)
    });
    in_time("the network was cut", waiting.iter().map(|(took, _)| *took).max().expect("windows"));
    let mut never = Vec::new();
    for ((id, words), mut window) in stale {
        let (_, answer) = window.agent.answer(id);
        assert!(answer["error"].to_string().contains("taken over"), "{answer}");
        never.push(words);
    }
    windows.extend(waiting.into_iter().map(|(_, window)| window));

    let (usual, failed) = round(&mut windows, || {});
    assert!(failed.is_empty(), "{failed:?}");
    eprintln!("{:?}: undisturbed, the next answer takes {usual:?} at most", began.elapsed());
    let lines = check_log(&standby, &windows, &never);
    let exports = machines.each_ref().map(exported);
    assert_eq!(exports[0].len(), WINDOWS);
    assert!(exports.iter().all(|export| *export == exports[0]), "the machines see different sessions");
    eprintln!(
        "{:?}: {lines} lines; {} answered prompts, none of them lost; {interrupted} prompts were interrupted; none \
         of {} stale prompts was written; {} folds are the same on {MACHINES} machines",
        began.elapsed(),
        windows.iter().map(|window| window.talk.answered.len()).sum::<usize>(),
        never.len(),
        exports[0].len(),
    );
}

/// Compares the tables with what was answered; returns the number of lines.
fn check_log(server: &PostgresServer, windows: &[Window], never: &[String]) -> usize {
    let table = server.sql("select session, epoch, line from epitome_entry order by session, seq");
    let mut logs: BTreeMap<&str, Vec<(u64, Value)>> = BTreeMap::new();
    for row in table.lines() {
        let [session, epoch, line] =
            row.splitn(3, '|').collect::<Vec<_>>().try_into().expect("three columns");
        let line = serde_json::from_str(line).expect("JSON");
        logs.entry(session).or_default().push((epoch.parse().expect("a number"), line));
    }
    assert_eq!(logs.len(), windows.len());
    for window in windows {
        let log = &logs[&*window.talk.session];
        let numbers = log.iter().map(|(_, line)| line["seq"].as_u64());
        assert!(numbers.eq((0..log.len() as u64).map(Some)), "each line is there once: {log:#?}");
        assert!(log.is_sorted_by_key(|(epoch, _)| *epoch), "a stale daemon has written: {log:#?}");
        let text: Vec<String> = log.iter().map(|(_, line)| line.to_string()).collect();
        let mut at = 0;
        for words in &window.talk.answered {
            let quoted = format!("\"{words}\"");
            let is_it = |nth: &usize| log[*nth].1["change"] == "said" && text[*nth].contains(&quoted);
            let said: Vec<usize> = (0..text.len()).filter(is_it).collect();
            let [said] = said[..] else { panic!("{words} is there {} times", said.len()) };
            assert!(said >= at, "{words} is not where it was said");
            let reply = reply_to(words);
            assert!(text[said..].iter().any(|line| line.contains(&reply)), "{reply} is lost");
            at = said;
        }
        assert!(
            never.iter().all(|words| !table.contains(&format!("\"{words}\""))),
            "a stale prompt was written"
        );
    }
    table.lines().count()
}
