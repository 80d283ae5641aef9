//! Access control, case by case.

use super::*;

/// A request without a body.
#[derive(Clone, Copy, Debug, Default)]
struct RequestHead<'a> {
    method: &'a str,
    path: &'a str,
    query: &'a str,
    host: Option<&'a str>,
    origin: Option<&'a str>,
    site: Option<&'a str>,
    cookie: Option<&'a str>,
    content_type: Option<&'a str>,
}

impl RequestHead<'_> {
    fn request(&self) -> Request<()> {
        let mut request = Request::builder().method(self.method).uri(format!("{}?{}", self.path, self.query));
        for (name, value) in [
            (header::HOST, self.host),
            (header::ORIGIN, self.origin),
            (SITE, self.site),
            (header::COOKIE, self.cookie),
            (header::CONTENT_TYPE, self.content_type),
        ] {
            if let Some(value) = value {
                request = request.header(name, value);
            }
        }
        request.body(()).expect("a request")
    }
}

const PORT: u16 = 4_000;
const HOST: &str = "127.0.0.1:4000";
const ORIGIN: &str = "http://127.0.0.1:4000";
const SESSION: &str = "s_00000000000000000000";

struct GateFixture {
    keys: Keys,
    folder: String,
    cookie: String,
    now: Instant,
}

impl GateFixture {
    fn new() -> GateFixture {
        let keys = Keys::new().expect("random numbers");
        let cookie = keys.set_cookie(PORT).split(';').next().expect("a cookie").to_owned();
        GateFixture { folder: keys.folder(), cookie, keys, now: Instant::now() }
    }

    fn asks(&self, head: &RequestHead<'_>, name: &str) -> Result<AdmittedRequest, Refusal> {
        let path = format!("{}{name}", self.folder);
        admit(&RequestHead { path: &path, ..*head }.request(), &self.keys, PORT, self.now)
    }

    /// A request from the page itself.
    fn own_request(&self) -> RequestHead<'_> {
        RequestHead { method: "GET", host: Some(HOST), cookie: Some(&self.cookie), ..RequestHead::default() }
    }

    fn call(&self) -> RequestHead<'_> {
        let json = Some("application/json");
        RequestHead { method: "POST", origin: Some(ORIGIN), content_type: json, ..self.own_request() }
    }
}

#[test]
fn the_page_gets_what_it_needs() {
    let scene = GateFixture::new();
    assert_eq!(scene.asks(&scene.own_request(), ""), Ok(AdmittedRequest::Page { with_cookie: false }));
    assert!(matches!(scene.asks(&scene.own_request(), "page.js"), Ok(AdmittedRequest::Asset(_))));
    assert_eq!(scene.asks(&scene.call(), "rpc"), Ok(AdmittedRequest::Call));
    let query = format!("session={SESSION}&from=7");
    let events = RequestHead { query: &query, ..scene.own_request() };
    let session = SessionId(SESSION.into());
    assert_eq!(scene.asks(&events, "events"), Ok(AdmittedRequest::Events { session, from: Seq(7) }));
    let local = "http://localhost:4000";
    let by_name = RequestHead { host: Some("localhost:4000"), origin: Some(local), ..scene.call() };
    assert_eq!(scene.asks(&by_name, "rpc"), Ok(AdmittedRequest::Call));
}

#[test]
fn a_ticket_opens_the_page_once_and_nothing_else() {
    let scene = GateFixture::new();
    let query = format!("ticket={}", scene.keys.ticket(scene.now).expect("random numbers"));
    let link = RequestHead { query: &query, cookie: None, site: Some("cross-site"), ..scene.own_request() };
    assert_eq!(scene.asks(&link, "page.js"), Err(Refusal::Unauthenticated));
    assert_eq!(scene.asks(&RequestHead { host: Some("evil.example"), ..link }, ""), Err(Refusal::Host));
    assert_eq!(scene.asks(&link, ""), Ok(AdmittedRequest::Page { with_cookie: true }));
    assert_eq!(scene.asks(&link, ""), Err(Refusal::Unauthenticated));
}

#[test]
fn all_other_requests_are_refused() {
    let scene = GateFixture::new();
    let (own, call) = (scene.own_request(), scene.call());
    let rows: [(&str, RequestHead<'_>, &str, Refusal); 16] = [
        ("no cookie", RequestHead { cookie: None, ..own }, "", Refusal::Unauthenticated),
        ("no cookie, script", RequestHead { cookie: None, ..own }, "page.js", Refusal::Unauthenticated),
        (
            "a wrong cookie",
            RequestHead { cookie: Some("epitome_inspect_4000=0"), ..call },
            "rpc",
            Refusal::Unauthenticated,
        ),
        (
            "a foreign name for this machine",
            RequestHead { host: Some("evil.example:4000"), ..own },
            "",
            Refusal::Host,
        ),
        ("another port", RequestHead { host: Some("127.0.0.1:4001"), ..own }, "", Refusal::Host),
        ("no host", RequestHead { host: None, ..own }, "", Refusal::Host),
        (
            "a foreign origin",
            RequestHead { origin: Some("http://evil.example"), ..call },
            "rpc",
            Refusal::Origin,
        ),
        ("an opaque origin", RequestHead { origin: Some("null"), ..call }, "rpc", Refusal::Origin),
        (
            "the other of our names",
            RequestHead { origin: Some("http://localhost:4000"), ..call },
            "rpc",
            Refusal::Origin,
        ),
        ("a call without an origin", RequestHead { origin: None, ..call }, "rpc", Refusal::Origin),
        (
            "another site's picture",
            RequestHead { site: Some("cross-site"), ..own },
            "page.js",
            Refusal::Origin,
        ),
        ("another port's page", RequestHead { site: Some("same-site"), ..own }, "", Refusal::Unauthenticated),
        ("a form", RequestHead { content_type: Some("text/plain"), ..call }, "rpc", Refusal::ContentType),
        ("a call by GET", own, "rpc", Refusal::NotFound),
        ("something else", own, "page.map", Refusal::NotFound),
        ("events of nothing", own, "events", Refusal::Parameters),
    ];
    for (what, head, name, refusal) in rows {
        assert_eq!(scene.asks(&head, name), Err(refusal), "{what}");
    }
    let outside = RequestHead { path: "/page.js", ..own }.request();
    let outside = admit(&outside, &scene.keys, PORT, scene.now);
    assert_eq!(outside, Err(Refusal::NotFound));
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "HEAD"] {
        assert_eq!(scene.asks(&RequestHead { method, ..own }, ""), Err(Refusal::Method), "{method}");
        assert_eq!(scene.asks(&RequestHead { method, ..own }, "page.css"), Err(Refusal::Method), "{method}");
    }
}
