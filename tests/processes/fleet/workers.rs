//! Workers with the same name whose sessions are in a database: one takes the place of another.

use epitome_test_harness::agent::{agent_text, end_by};
use epitome_test_harness::postgres::PostgresServer;
use epitome_test_harness::user::User;
use rustix::process::Signal;
use serde_json::json;

use super::machine;
use crate::daemon::remote::{editor, serve, token};
use crate::daemon::workers::RunningWorker;

#[test]
fn a_worker_takes_the_place_of_one_that_vanishes() {
    let Some(database) = PostgresServer::start() else { return };
    let store = PostgresServer::address(&[&database]);
    let [a, b] = [machine(&store), machine(&store)];
    let server_machine = User::new();
    let (anna, work) = (token(&server_machine, "anna", "approve"), token(&server_machine, "box", "work"));
    let server = serve(&server_machine, &["--listen", "127.0.0.1:0"]);
    let address = format!("ws://{}", server.address);
    // The files are shared between both.
    let shared = a.project();
    let shared = shared.to_str().expect("text");
    let start = |user: &User| RunningWorker::start(user, &address, &work, &["--directory", shared]);
    let worker_a = start(&a);
    let laptop = User::new();
    let mut agent = editor(&laptop, &address, &anna, &["--worker", "build-box"]);
    let session = agent.call("session/new", json!({ "cwd": shared, "mcpServers": [] }));
    let session = session["sessionId"].as_str().expect("an id");
    let _worker_b = start(&b);
    agent.turn(session, "say hello");
    assert!(b.model().requests().is_empty(), "the first worker is used as long as it is there");

    // Only the process of the worker dies. Its daemon has the session, and the window waits for it, at the other worker,
    // until the daemon can be reached again.
    let prompt = agent.prompt(session, "half");
    agent.hear("The first half, ");
    drop(worker_a);
    let worker_a = start(&a);
    a.model().release();
    // An error if that takes more than a few seconds.
    let (_, answer) = agent.answer(prompt);
    eprintln!("after the worker was started again: {answer}");
    let (said, _) = agent.turn(session, "say more");
    assert!(agent_text(&said).ends_with("You said more."), "{said:?}");
    assert!(b.model().requests().is_empty(), "the session is still that of the first worker's daemon");

    // The machine is lost.
    let prompt = agent.prompt(session, "half");
    agent.hear("The first half, ");
    end_by(a.daemon().expect("it runs"), Signal::KILL);
    drop(worker_a);
    let (_, answer) = agent.answer(prompt);
    assert!(answer.to_string().contains("send it again"), "{answer}");
    let (said, _) = agent.turn(session, "say again");
    assert_eq!(agent_text(&said), "You said again.");
    assert!(!b.model().requests().is_empty(), "the session is that of the second worker now");
    a.model().release();
}
