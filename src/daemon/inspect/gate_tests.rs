//! Access control, case by case.

use super::*;

const PORT: u16 = 4_000;
const HOST: &str = "127.0.0.1:4000";
const ORIGIN: &str = "http://127.0.0.1:4000";
const SESSION: &str = "s_00000000000000000000";

struct Scene {
    keys: Keys,
    folder: String,
    cookie: String,
    now: Instant,
}

impl Scene {
    fn new() -> Scene {
        let keys = Keys::new().expect("random numbers");
        let cookie = keys.set_cookie(PORT).split(';').next().expect("a cookie").to_owned();
        Scene { folder: keys.folder(), cookie, keys, now: Instant::now() }
    }

    fn asks(&self, head: &Head<'_>, name: &str) -> Result<Route, Refusal> {
        let path = format!("{}{name}", self.folder);
        admit(&Head { path: &path, ..*head }, &self.keys, PORT, self.now)
    }

    /// A request from the page itself.
    fn own(&self) -> Head<'_> {
        Head { method: "GET", host: Some(HOST), cookie: Some(&self.cookie), ..Head::default() }
    }

    fn call(&self) -> Head<'_> {
        let json = Some("application/json");
        Head { method: "POST", origin: Some(ORIGIN), content_type: json, ..self.own() }
    }
}

#[test]
fn the_page_gets_what_it_needs() {
    let scene = Scene::new();
    assert_eq!(scene.asks(&scene.own(), ""), Ok(Route::Page { with_cookie: false }));
    assert!(matches!(scene.asks(&scene.own(), "page.js"), Ok(Route::Asset(_))));
    assert_eq!(scene.asks(&scene.call(), "rpc"), Ok(Route::Call));
    let query = format!("session={SESSION}&from=7");
    let events = Head { query: &query, ..scene.own() };
    let session = SessionId(SESSION.into());
    assert_eq!(scene.asks(&events, "events"), Ok(Route::Events { session, from: Seq(7) }));
    let local = "http://localhost:4000";
    let by_name = Head { host: Some("localhost:4000"), origin: Some(local), ..scene.call() };
    assert_eq!(scene.asks(&by_name, "rpc"), Ok(Route::Call));
}

#[test]
fn a_ticket_opens_the_page_once_and_nothing_else() {
    let scene = Scene::new();
    let query = format!("ticket={}", scene.keys.ticket(scene.now).expect("random numbers"));
    let link = Head { query: &query, cookie: None, site: Some("cross-site"), ..scene.own() };
    assert_eq!(scene.asks(&link, "page.js"), Err(Refusal::Unauthenticated));
    assert_eq!(scene.asks(&Head { host: Some("evil.example"), ..link }, ""), Err(Refusal::Host));
    assert_eq!(scene.asks(&link, ""), Ok(Route::Page { with_cookie: true }));
    assert_eq!(scene.asks(&link, ""), Err(Refusal::Unauthenticated));
}

#[test]
fn all_other_requests_are_refused() {
    let scene = Scene::new();
    let (own, call) = (scene.own(), scene.call());
    let rows: [(&str, Head<'_>, &str, Refusal); 16] = [
        ("no cookie", Head { cookie: None, ..own }, "", Refusal::Unauthenticated),
        ("no cookie, script", Head { cookie: None, ..own }, "page.js", Refusal::Unauthenticated),
        (
            "a wrong cookie",
            Head { cookie: Some("epitome_inspect_4000=0"), ..call },
            "rpc",
            Refusal::Unauthenticated,
        ),
        (
            "a foreign name for this machine",
            Head { host: Some("evil.example:4000"), ..own },
            "",
            Refusal::Host,
        ),
        ("another port", Head { host: Some("127.0.0.1:4001"), ..own }, "", Refusal::Host),
        ("no host", Head { host: None, ..own }, "", Refusal::Host),
        ("a foreign origin", Head { origin: Some("http://evil.example"), ..call }, "rpc", Refusal::Origin),
        ("an origin of nobody", Head { origin: Some("null"), ..call }, "rpc", Refusal::Origin),
        (
            "the other of our names",
            Head { origin: Some("http://localhost:4000"), ..call },
            "rpc",
            Refusal::Origin,
        ),
        ("a call without an origin", Head { origin: None, ..call }, "rpc", Refusal::Origin),
        ("another site's picture", Head { site: Some("cross-site"), ..own }, "page.js", Refusal::Origin),
        ("another port's page", Head { site: Some("same-site"), ..own }, "", Refusal::Unauthenticated),
        ("a form", Head { content_type: Some("text/plain"), ..call }, "rpc", Refusal::ContentType),
        ("a call by GET", own, "rpc", Refusal::NotFound),
        ("something else", own, "page.map", Refusal::NotFound),
        ("events of nothing", own, "events", Refusal::Parameters),
    ];
    for (what, head, name, refusal) in rows {
        assert_eq!(scene.asks(&head, name), Err(refusal), "{what}");
    }
    let outside = admit(&Head { path: "/page.js", ..own }, &scene.keys, PORT, scene.now);
    assert_eq!(outside, Err(Refusal::NotFound));
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "HEAD"] {
        assert_eq!(scene.asks(&Head { method, ..own }, ""), Err(Refusal::Method), "{method}");
        assert_eq!(scene.asks(&Head { method, ..own }, "page.css"), Err(Refusal::Method), "{method}");
    }
}
