//! Questions of a child, shown by its parent's clients. The child is simulated: the tests send its events and read the
//! commands to it.

use std::sync::{Arc, mpsc as news};
use std::time::Duration;

use serde_json::json;
use tokio::sync::mpsc;

use super::Session;
use super::suspended::REST_AFTER;
use crate::child::news::{ChildNews, NewsSender};
use crate::inbox::Channel;
use crate::services::SessionServices;
use crate::{
    AskId, Attaching, Attachment, ClientId, EventSink, Opening, PermissionRequest, Replay, SessionAnswer,
    SessionCommand, SessionEvent, SubagentEnd, Ticket, UserDecision,
};
use epitome_files::paths::Paths;
use epitome_provider::http::Http;
use epitome_recipe::watch::RecipeWatch;
use epitome_store::{Journal, Store};
use epitome_thread::{
    CallDisplay, CallId, Change, FORMAT_VERSION, OutcomeStatus, Rule, SessionId, Thread, ToolOutcome,
};
use epitome_tools::{RunningCommands, Toolbox};

/// Time limit: nothing here takes this long.
const WITHIN: Duration = Duration::from_secs(20);

struct TestClient {
    outlet: Arc<TestSink>,
    events: news::Receiver<SessionEvent>,
}

struct TestSink(parking_lot::Mutex<news::Sender<SessionEvent>>);

impl EventSink for TestSink {
    fn put(&self, _: &SessionId, out: SessionEvent) {
        drop(self.0.lock().send(out));
    }
}

impl TestClient {
    fn new() -> TestClient {
        let (sender, events) = news::channel();
        TestClient { outlet: Arc::new(TestSink(parking_lot::Mutex::new(sender))), events }
    }

    /// The next matching event.
    fn until<T>(&self, wanted: impl Fn(&SessionEvent) -> Option<T>) -> T {
        loop {
            let out = self.events.recv_timeout(WITHIN).expect("it did not come");
            if let Some(found) = wanted(&out) {
                return found;
            }
        }
    }

    fn next_permission(&self) -> (AskId, CallId) {
        self.until(|out| match out {
            SessionEvent::Ask { ask, permission } => Some((*ask, permission.call.clone())),
            _ => None,
        })
    }

    fn withdrawn(&self) -> AskId {
        self.until(|out| match out {
            SessionEvent::Withdrawn { ask } => Some(*ask),
            _ => None,
        })
    }

    fn finished(&self) -> (CallId, OutcomeStatus) {
        self.until(|out| match out {
            SessionEvent::CallFinished { outcome } => Some((outcome.call.clone(), outcome.status)),
            _ => None,
        })
    }
}

/// A live session with a simulated child.
struct Parent {
    commands: mpsc::Sender<SessionCommand>,
    news: NewsSender,
    /// Commands to the child.
    child: mpsc::Receiver<SessionCommand>,
    answers: mpsc::Sender<SessionCommand>,
    directory: tempfile::TempDir,
    runtime: tokio::runtime::Runtime,
}

impl Parent {
    fn new() -> Parent {
        let directory = tempfile::tempdir().expect("a scratch directory");
        let paths = Paths::below(&directory.path().join("home"));
        let services = SessionServices {
            store: Store::new(&paths),
            paths,
            http: Http::new(),
            learned: epitome_provider::learned::Learned::below(directory.path()),
            toolbox: Toolbox::new(Vec::new()),
            watch: RecipeWatch::new(),
            reaper: Arc::new(epitome_platform::reaper::Reaper::disabled()),
            running: RunningCommands::default(),
            languages: Default::default(),
            rulers: epitome_tokens::Rulers::default(),
            functions: epitome_hooks::functions::Functions::default(),
            suspend_after: REST_AFTER,
            ends_with_sessions: false,
            checkpoints: None,
        };
        let cwd = directory.path().to_path_buf();
        let opened = Change::Opened { format: FORMAT_VERSION, session: id("s_parent"), cwd };
        let (journal, entries) = Journal::in_memory(opened, Vec::new());
        let thread = Thread::replay(entries).expect("a log");
        let (commands, receiver) = mpsc::channel(16);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let opening = opening(&directory, 0, &TestClient::new());
        let channel = Channel::new(&commands, receiver);
        let session = Box::new(Session::new(services, thread, journal, channel, &opening));
        let sender = session.subagents.sender();
        runtime.spawn(session.run());
        let (answers, child) = mpsc::channel(16);
        Parent { commands, news: sender, child, answers, directory, runtime }
    }

    fn attach(&self, client: u64) -> TestClient {
        let attached = TestClient::new();
        let (ticket, opening) = (Ticket(client), opening(&self.directory, client, &attached));
        self.send(SessionCommand::Attach(Attaching { ticket, opening, replay: Replay::Nothing }));
        attached.until(|out| {
            matches!(out, SessionEvent::Answer { answer: Ok(SessionAnswer::Attached { .. }), .. })
                .then_some(())
        });
        attached
    }

    fn send(&self, command: SessionCommand) {
        assert!(self.commands.try_send(command).is_ok(), "the session lives");
    }

    fn report(&self, news: ChildNews) {
        assert!(self.news.send(news), "the session lives");
    }

    fn ask(&self, child: &str, call: &str) {
        let permission = Arc::new(PermissionRequest {
            call: CallId(call.into()),
            tool: "bash".into(),
            input: json!({ "command": "make" }),
            card: CallDisplay { title: "make".into(), ..CallDisplay::default() },
            preview: Vec::new(),
            because: None,
            always: None,
            never: None,
            agent: None,
        });
        let answers = self.answers.downgrade();
        self.report(ChildNews::Asked { child: id(child), ask: AskId(7), permission, answers });
    }

    /// The next decision sent to the child.
    fn next_decision(&mut self) -> (AskId, UserDecision) {
        let received = async { tokio::time::timeout(WITHIN, self.child.recv()).await };
        match self.runtime.block_on(received).expect("it did not come") {
            Some(SessionCommand::Decide { ask, decision }) => (ask, decision),
            Some(_) | None => panic!("a child receives only decisions"),
        }
    }
}

fn id(name: &str) -> SessionId {
    SessionId(name.to_owned())
}

fn opening(directory: &tempfile::TempDir, client: u64, of: &TestClient) -> Opening {
    Opening {
        attachment: Attachment { client: ClientId(client), outlet: of.outlet.clone() },
        cwd: directory.path().to_path_buf(),
        directories: Vec::new(),
        mcp_servers: Vec::new(),
        environment: Arc::new(vec![("ANTHROPIC_API_KEY".into(), "sk-test-1".into())]),
        overrides: Arc::default(),
        instructions: None,
        choices: Vec::new(),
    }
}

#[test]
fn every_client_is_asked_also_one_that_comes_later_and_the_child_gets_the_answer() {
    let mut parent = Parent::new();
    let first = parent.attach(1);
    parent.ask("s_a", "s_a.c1");
    let (ask, call) = first.next_permission();
    assert_eq!(call.0, "s_a.c1");
    let second = parent.attach(2);
    assert_eq!(second.next_permission(), (ask, call.clone()));

    parent.send(SessionCommand::Decide { ask, decision: UserDecision::AllowOnce });
    assert_eq!(parent.next_decision(), (AskId(7), UserDecision::AllowOnce));
    parent.report(ChildNews::Settled { child: id("s_a"), ask: AskId(7) });
    assert_eq!((first.withdrawn(), second.withdrawn()), (ask, ask));
    let outcome = Arc::new(ToolOutcome::text(call.clone(), OutcomeStatus::Completed, "made"));
    parent.report(ChildNews::Finished { child: id("s_a"), outcome });
    assert_eq!(first.finished(), (call, OutcomeStatus::Completed));
}

/// Two children may use the same ids for their questions.
#[test]
fn questions_of_two_children_are_distinguished() {
    let mut parent = Parent::new();
    let client = parent.attach(1);
    parent.ask("s_a", "s_a.c1");
    parent.ask("s_b", "s_b.c1");
    let ((of_a, _), (of_b, _)) = (client.next_permission(), client.next_permission());
    assert_ne!(of_a, of_b);
    parent.report(ChildNews::Settled { child: id("s_b"), ask: AskId(7) });
    assert_eq!(client.withdrawn(), of_b);
    parent.send(SessionCommand::Decide { ask: of_b, decision: UserDecision::AllowOnce });
    parent.send(SessionCommand::Decide { ask: of_a, decision: UserDecision::Reject });
    assert_eq!(parent.next_decision(), (AskId(7), UserDecision::Reject), "what was settled is not passed on");
}

#[test]
fn a_child_that_is_gone_leaves_no_card_and_no_running_call() {
    let parent = Parent::new();
    let client = parent.attach(1);
    parent.ask("s_a", "s_a.c1");
    let (ask, call) = client.next_permission();
    parent.report(ChildNews::Ended { child: id("s_a"), end: SubagentEnd::Unknown });
    assert_eq!(client.withdrawn(), ask);
    assert_eq!(client.finished(), (call, OutcomeStatus::Interrupted));
}

#[test]
fn a_session_that_ends_takes_the_cards_of_its_children_back() {
    let parent = Parent::new();
    let client = parent.attach(1);
    parent.ask("s_a", "s_a.c1");
    let (ask, _) = client.next_permission();
    parent.send(SessionCommand::End);
    assert_eq!(client.withdrawn(), ask);
}

#[test]
fn without_a_client_the_answer_is_no() {
    let mut parent = Parent::new();
    parent.ask("s_a", "s_a.c1");
    assert_eq!(parent.next_decision(), (AskId(7), UserDecision::Absent));
}

#[test]
fn a_childs_card_stays_until_no_client_has_anybody_to_ask() {
    let mut parent = Parent::new();
    let clients = [parent.attach(1), parent.attach(2)];
    let absent = |ask, client| SessionCommand::Absent { ask, client: ClientId(client) };
    parent.ask("s_a", "s_a.c1");
    let (ask, _) = clients[0].next_permission();
    parent.send(absent(ask, 1));
    parent.send(SessionCommand::Decide { ask, decision: UserDecision::AllowOnce });
    assert_eq!(parent.next_decision(), (AskId(7), UserDecision::AllowOnce));
    parent.report(ChildNews::Settled { child: id("s_a"), ask: AskId(7) });
    assert_eq!(clients[0].withdrawn(), ask);

    parent.ask("s_b", "s_b.c1");
    let (ask, _) = clients[0].next_permission();
    parent.send(absent(ask, 1));
    parent.send(absent(ask, 2));
    assert_eq!(parent.next_decision(), (AskId(7), UserDecision::Absent));
    parent.report(ChildNews::Settled { child: id("s_b"), ask: AskId(7) });
    assert_eq!(clients[0].withdrawn(), ask);
}

#[test]
fn what_was_always_allowed_for_a_child_holds_for_its_parent() {
    let parent = Parent::new();
    let client = parent.attach(1);
    let rule = Rule::Command { line: "make".into() };
    for _ in 0..2 {
        parent.report(ChildNews::Allowed { rule: rule.clone() });
    }
    parent.ask("s_a", "s_a.c1");
    let mut rules = 0;
    client.next_permission();
    let later = TestClient::new();
    let (ticket, opening) = (Ticket(2), opening(&parent.directory, 2, &later));
    parent.send(SessionCommand::Attach(Attaching { ticket, opening, replay: Replay::Everything }));
    loop {
        match later.until(|out| Some(out.clone())) {
            SessionEvent::Entry { entry, .. } => {
                rules +=
                    usize::from(matches!(&entry.change, Change::Allowed { rule: kept } if *kept == rule));
            }
            SessionEvent::Answer { .. } => break,
            _ => {}
        }
    }
    assert_eq!(rules, 1, "it is in the log once");
}
