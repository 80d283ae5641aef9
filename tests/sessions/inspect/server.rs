//! The page's server over real connections: its responses, and the requests that it rejects.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use epitome::daemon::Daemon;
use epitome::daemon::inspect::Keys;
use epitome::daemon::inspect::calls::Backend;
use epitome::daemon::inspect::server::{self, METHODS, PageState};
use epitome::paths::Paths;
use epitome::session::registry::Sessions;
use epitome::store::Store;
use epitome::thread::{Change, Content, FORMAT_VERSION, Message, MessageId, Origin, SessionId};
use epitome_test_harness::WITHIN;
use epitome_test_harness::session::{runtime, services};
use epitome_test_harness::user::User;
use serde_json::{Value, json};

/// The daemon of a home, and its page.
pub struct Served {
    pub daemon: Arc<Daemon>,
    pub runtime: tokio::runtime::Runtime,
}

impl Served {
    pub fn of(paths: &Paths) -> Served {
        let runtime = runtime();
        let services = services(paths);
        let store = services.store.clone();
        let sessions = Sessions::new(services, runtime.handle().clone());
        Served { daemon: Arc::new(Daemon::new(paths.clone(), sessions, store)), runtime }
    }

    /// A link to the page.
    pub fn link(&self, session: Option<&SessionId>) -> String {
        let _entered = self.runtime.enter();
        self.daemon.inspect.open(&self.daemon, session).expect("loopback")
    }

    /// A browser that has followed a link.
    fn browser(&self) -> Browser {
        let link = self.link(None);
        let (place, query) =
            link.strip_prefix("http://").and_then(|rest| rest.split_once('/')).expect("a link");
        let (folder, _) = query.split_once('?').expect("a ticket");
        let mut browser =
            Browser { host: place.to_owned(), folder: format!("/{folder}"), cookie: String::new() };
        let page = browser.get(&format!("/{query}"));
        assert_eq!(page.status, 200, "{}", page.body);
        let cookie = page.header("set-cookie").expect("a cookie");
        browser.cookie = cookie.split(';').next().expect("a pair").to_owned();
        browser
    }
}

struct Browser {
    host: String,
    folder: String,
    cookie: String,
}

struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.into_iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

impl Browser {
    fn get(&self, path: &str) -> Answer {
        self.send(&format!("GET {path} HTTP/1.1\r\nHost: {}\r\nCookie: {}\r\n", self.host, self.cookie), "")
    }

    fn call(&self, method: &str, params: Value) -> Answer {
        self.post(&json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string())
    }

    fn post(&self, body: &str) -> Answer {
        let Browser { host, folder, cookie } = self;
        let head = format!(
            "POST {folder}rpc HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\nCookie: {cookie}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n",
            body.len()
        );
        self.send(&head, body)
    }

    fn send(&self, head: &str, body: &str) -> Answer {
        let mut stream = self.connect();
        write!(stream, "{head}Connection: close\r\n\r\n{body}").expect("it is sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        Answer { status, head: head.to_owned(), body: body.to_owned() }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.host).expect("the page is served");
        stream.set_read_timeout(Some(WITHIN)).expect("a limit");
        stream
    }
}

/// A home with one session that has one prompt.
fn home() -> (tempfile::TempDir, Paths, SessionId) {
    let directory = tempfile::tempdir().expect("a scratch directory");
    let paths = Paths::below(&directory.path().join("home"));
    let session = stored(&paths);
    (directory, paths, session)
}

/// Stores a session that has one prompt.
fn stored(paths: &Paths) -> SessionId {
    let session = SessionId("s_00000000000000000001".into());
    let store = Store::new(paths);
    let opened = Change::Opened { format: FORMAT_VERSION, session: session.clone(), cwd: "/w".into() };
    let (mut journal, _) = store.create(&session, opened).expect("a new session");
    let content = vec![Content::Text { text: "<script>alert(1)</script>".into() }];
    let message = Message { id: MessageId(0), content, author: None };
    journal.append(Change::Said { message, origin: Origin::Person }).expect("an entry");
    drop(journal);
    store.settle();
    session
}

#[test]
fn a_link_works_once_and_sets_a_cookie() {
    let (_directory, paths, _) = home();
    let served = Served::of(&paths);
    let browser = served.browser();
    let page = browser.get(&browser.folder);
    assert_eq!(page.status, 200);
    assert!(page.body.contains("<!doctype html>") && page.header("set-cookie").is_none());
    let policy = page.header("content-security-policy").expect("a policy");
    assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    for name in ["page.js", "parts.js", "plot.js", "rounds.js", "page.css", "icon.svg"] {
        assert_eq!(browser.get(&format!("{}{name}", browser.folder)).status, 200, "{name}");
    }
    let link = served.link(None);
    let path = &link[link.find(&browser.folder).expect("the same page")..];
    let stranger =
        Browser { cookie: String::new(), folder: browser.folder.clone(), host: browser.host.clone() };
    assert_eq!(stranger.get(path).status, 200);
    let again = stranger.get(path);
    assert_eq!(again.status, 403);
    assert!(again.body.contains("was used already"), "{}", again.body);
}

#[test]
fn the_page_reads_and_changes_nothing() {
    let (_directory, paths, session) = home();
    let served = Served::of(&paths);
    let browser = served.browser();
    let list: Value = serde_json::from_str(&browser.call("sessions.list", json!({})).body).expect("JSON");
    assert_eq!(list["result"]["sessions"][0]["session"], session.0);
    let response = browser.call("sessions.timeline", json!({ "session": session }));
    let response: Value = serde_json::from_str(&response.body).expect("JSON");
    assert_eq!(response["result"]["next"], 2);
    assert_eq!(response["result"]["turns"][0]["prompt"], "<script>alert(1)</script>");
    let entry = browser.call("sessions.entry", json!({ "session": session, "entry": "e1" }));
    let entry: Value = serde_json::from_str(&entry.body).expect("JSON");
    assert_eq!(entry["result"]["seen"], "whole");
    let none = browser.call("sessions.entry", json!({ "session": session, "entry": "e9" }));
    let none: Value = serde_json::from_str(&none.body).expect("JSON");
    assert!(none["error"]["message"].as_str().is_some_and(|message| message.contains("e9")), "{none}");
    for method in [
        "sessions.delete",
        "sessions.compact",
        "sessions.cancel",
        "sessions.export",
        "stop",
        "inspect.open",
        "",
    ] {
        assert!(!METHODS.contains(&method));
        let refused = browser.call(method, json!({ "session": session }));
        assert_eq!(refused.status, 403, "{method}");
    }
    assert_eq!(browser.post("[]").status, 400);
    assert_eq!(browser.post("{\"method\": 3}").status, 400);
    let huge = format!("{{\"method\": \"status\", \"x\": \"{}\"}}", "a".repeat(100_000));
    assert_eq!(browser.post(&huge).status, 413);
}

#[test]
fn foreign_origins_and_host_names_are_refused() {
    let (_directory, paths, _) = home();
    let served = Served::of(&paths);
    let browser = served.browser();
    let Browser { host, folder, cookie } = &browser;
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"sessions.list"}"#;
    let post = |more: &str| {
        format!("POST {folder}rpc HTTP/1.1\r\nCookie: {cookie}\r\nContent-Length: {}\r\n{more}", call.len())
    };
    let json = "Content-Type: application/json\r\n";
    let rows = [
        (200, post(&format!("Host: {host}\r\nOrigin: http://{host}\r\n{json}"))),
        (403, post(&format!("Host: evil.example\r\nOrigin: http://evil.example\r\n{json}"))),
        (403, post(&format!("Host: {host}\r\nOrigin: http://evil.example\r\n{json}"))),
        (403, post(&format!("Host: {host}\r\n{json}"))),
        (403, post(&format!("Host: {host}\r\nHost: {host}\r\nOrigin: http://{host}\r\n{json}"))),
        (403, post(&format!("Host: {host}\r\nOrigin: http://{host}\r\nSec-Fetch-Site: same-site\r\n{json}"))),
        (415, post(&format!("Host: {host}\r\nOrigin: http://{host}\r\nContent-Type: text/plain\r\n"))),
    ];
    for (status, head) in rows {
        let answer = browser.send(&head, call);
        // hyper itself rejects a head with two hosts.
        assert!(
            answer.status == status || (status == 403 && answer.status == 400),
            "{} for {head}",
            answer.status
        );
        assert!(answer.header("access-control-allow-origin").is_none());
    }
    let stranger = Browser { cookie: String::new(), folder: folder.clone(), host: host.clone() };
    for path in [
        folder.clone(),
        format!("{folder}page.js"),
        format!("{folder}events?session=s_00000000000000000001&from=0"),
    ] {
        assert_eq!(stranger.get(&path).status, 403, "{path}");
    }
    assert_eq!(stranger.get("/").status, 404);
}

#[test]
fn new_entries_are_sent_as_events() {
    let (_directory, paths, session) = home();
    let served = Served::of(&paths);
    let browser = served.browser();
    let mut stream = browser.connect();
    let Browser { host, folder, cookie } = &browser;
    write!(
        stream,
        "GET {folder}events?session={session}&from=0 HTTP/1.1\r\nHost: {host}\r\nCookie: {cookie}\r\n\r\n"
    )
    .expect("it is sent");
    let mut seen = String::new();
    let mut bytes = [0; 1024];
    while !seen.contains("\"next\":2") {
        let count = stream.read(&mut bytes).expect("an event");
        assert!(count > 0, "it ended: {seen}");
        seen.push_str(&String::from_utf8_lossy(&bytes[..count]));
    }
    assert!(seen.contains("text/event-stream") && seen.contains("event: news\ndata: {"), "{seen}");
    let unknown = browser.get(&format!("{folder}events?session=s_0000000000000000000f&from=0"));
    assert_eq!(unknown.status, 404);
}

#[test]
fn an_unused_page_server_stops() {
    let (_directory, paths, _) = home();
    let served = Served::of(&paths);
    let ended = served.runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let port = listener.local_addr().expect("an address").port();
        let page = Arc::new(PageState::new(Keys::new().expect("random numbers"), port, Duration::ZERO));
        let backend = Arc::new(Backend::new(served.daemon.clone()));
        tokio::time::timeout(WITHIN, server::serve(listener, page.clone(), backend))
            .await
            .map(|()| page.touch())
    });
    assert_eq!(ended, Ok(false), "it takes nobody any more");
}

#[test]
fn the_page_server_stops_with_its_daemon() {
    let (_directory, paths, _) = home();
    let served = Served::of(&paths);
    let browser = served.browser();
    served.daemon.stop.send_replace(true);
    let until = Instant::now() + WITHIN;
    while TcpStream::connect(&browser.host).is_ok() {
        assert!(Instant::now() < until, "it goes on");
    }
}

#[test]
fn the_inspect_command_starts_a_daemon_that_serves_the_page() {
    let user = User::new();
    let session = stored(&user.paths());
    let printed = user.run(&["sessions", "inspect", "--json", "--no-open", &session.0[..8]]).json();
    let link = printed["url"].as_str().expect("an address");
    assert!(link.ends_with(&format!("#{session}")), "{link}");
    let (host, path) = link.strip_prefix("http://").and_then(|rest| rest.split_once('/')).expect("a link");
    let (path, _) = path.split_once('#').expect("a session");
    let browser = Browser { host: host.to_owned(), folder: String::new(), cookie: String::new() };
    assert_eq!(browser.get(&format!("/{path}")).status, 200);
}
