//! Measures the cost of distance: `cargo test --release --test processes distance -- --ignored --nocapture`.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use epitome_test_harness::agent::{Agent, is_answer, is_question, obey};
use epitome_test_harness::serve::{certificate, editor, remote_agent, serve, token};
use epitome_test_harness::user::User;
use serde_json::{Value, json};

/// How long the network takes in each direction.
const ONE_WAY: Duration = Duration::from_millis(50);

/// Prompts over each way.
const PROMPTS: usize = 100;

/// Passes on bytes to a server, each after `ONE_WAY`. Returns its port. The handshake of TCP is not delayed.
fn slow_network(server: &str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    let server = server.to_owned();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let Ok(server) = TcpStream::connect(&server) else { continue };
            for stream in [&client, &server] {
                stream.set_nodelay(true).expect("it is open");
            }
            pass_slowly(&client, &server);
            pass_slowly(&server, &client);
        }
    });
    port
}

fn pass_slowly(from: &TcpStream, to: &TcpStream) {
    let (mut from, mut to) = (from.try_clone().expect("open"), to.try_clone().expect("open"));
    let (sender, pieces) = channel::<(Instant, Vec<u8>)>();
    std::thread::spawn(move || {
        let mut bytes = vec![0; 64 * 1024];
        while let Ok(read @ 1..) = from.read(&mut bytes) {
            if sender.send((Instant::now() + ONE_WAY, bytes[..read].to_vec())).is_err() {
                return;
            }
        }
    });
    std::thread::spawn(move || {
        for (due, piece) in pieces {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&piece).is_err() {
                return;
            }
        }
        drop(to.shutdown(Shutdown::Write));
    });
}

fn print_round_trips(what: &str, began: Instant) {
    let took = began.elapsed();
    println!("{what}: {:.1} round trips, {} ms", took.div_duration_f64(2 * ONE_WAY), took.as_millis());
}

/// A window 100 ms away. Printed, and not asserted, because a busy machine adds to each number.
#[test]
#[ignore = "a measurement"]
fn round_trips_of_a_distant_window() {
    let (build, laptop) = (User::with_model(obey), User::new());
    let secret = token(&build, "anna", "approve");
    let path = |name: &str| certificate(name).to_str().expect("text").to_owned();
    let (chain, key, ca) = (path("server.pem"), path("server.key"), path("ca.pem"));
    let encrypted = ["--listen", "127.0.0.1:0", "--tls-cert", &chain, "--tls-key", &key];
    for (scheme, arguments, trust) in
        [("ws", &encrypted[..2], &[][..]), ("wss", &encrypted[..], &["--tls-ca", ca.as_str()][..])]
    {
        println!("{scheme}://");
        let server = serve(&build, arguments);
        let address = format!("{scheme}://localhost:{}", slow_network(&server.address));
        let start = || {
            let began = Instant::now();
            let agent = Agent::spawn(remote_agent(&laptop, &address, &secret, trust));
            (began, agent)
        };
        let (began, mut agent) = start();
        agent.call("initialize", json!({ "protocolVersion": 1 }));
        print_round_trips("  the start, to the answer to initialize", began);
        let began = Instant::now();
        let session = build.new_session(&mut agent);
        print_round_trips("  session/new", began);
        let began = Instant::now();
        agent.turn(&session, "say hello");
        print_round_trips("  session/prompt, to its answer", began);
        let began = Instant::now();
        let prompt = agent.prompt(&session, "run echo hello");
        let asked = agent.until("a question", is_question).pop().expect("the question");
        print_round_trips("  session/prompt, to the permission request", began);
        let began = Instant::now();
        agent.decide(&asked, "allow_once");
        agent.answer(prompt);
        print_round_trips("  the decision, to the answer to the prompt", began);
        for number in 0..40 {
            agent.turn(&session, &format!("say {number} {}", "words ".repeat(200)));
        }
        let (began, mut second) = start();
        second.call("initialize", json!({ "protocolVersion": 1 }));
        print_round_trips("  a second window: the start", began);
        let began = Instant::now();
        let (history, _) = build.try_load(&mut second, &session);
        print_round_trips(&format!("  session/load with {} messages", history.len()), began);
        // Editors need not wait for the answer to initialize.
        let (began, mut eager) = start();
        eager.request("initialize", json!({ "protocolVersion": 1 }));
        let opening = json!({ "cwd": build.project(), "mcpServers": [] });
        let opened = eager.request("session/new", opening);
        eager.answer(opened);
        print_round_trips("  the start, with initialize and session/new at once", began);
    }
}

/// One way from a prompt to the model.
struct Way {
    name: &'static str,
    agent: Agent,
    session: String,
    to_model: Vec<Duration>,
    to_answer: Vec<Duration>,
}

impl Way {
    fn new(name: &'static str, user: &User, mut agent: Agent) -> Way {
        let session = user.new_session(&mut agent);
        Way { name, agent, session, to_model: Vec::new(), to_answer: Vec::new() }
    }

    fn prompt(&mut self, arrivals: &Receiver<Instant>) {
        let began = Instant::now();
        let id = self.agent.prompt(&self.session, "say hello");
        self.agent.until("the answer", |message: &Value| is_answer(message, id));
        self.to_answer.push(began.elapsed());
        self.to_model.push(arrivals.recv().expect("the model was called") - began);
    }
}

fn share(times: &[Duration], percent: usize) -> f64 {
    let mut times = times.to_vec();
    times.sort();
    times[times.len() * percent / 100].as_secs_f64() * 1e3
}

/// From a prompt to the arrival of the request at the model, over each way on loopback, in alternation.
#[test]
#[ignore = "a measurement"]
fn from_a_prompt_to_the_model() {
    let (sender, arrivals) = channel();
    let build = User::with_model(move |request| {
        sender.send(Instant::now()).expect("the test listens");
        obey(request)
    });
    let laptop = User::new();
    let anna = token(&build, "anna", "approve");
    let server = serve(&build, &["--listen", "127.0.0.1:0"]);
    let address = format!("ws://{}", server.address);
    let mut ways = [
        Way::new("pipes", &build, build.start()),
        Way::new("epitome acp --remote", &build, editor(&laptop, &address, &anna, &[])),
    ];
    // The first prompts of each open connections.
    for _ in 0..5 {
        ways.iter_mut().for_each(|way| way.prompt(&arrivals));
    }
    ways.iter_mut().for_each(|way| {
        way.to_model.clear();
        way.to_answer.clear();
    });
    for _ in 0..PROMPTS {
        ways.iter_mut().for_each(|way| way.prompt(&arrivals));
    }
    println!("ms: to the model, median and 90 of 100; to the answer, median");
    for Way { name, to_model, to_answer, .. } in &ways {
        let (median, most) = (share(to_model, 50), share(to_model, 90));
        println!("{name}: {median:.2} {most:.2}; {:.2}", share(to_answer, 50));
    }
}
