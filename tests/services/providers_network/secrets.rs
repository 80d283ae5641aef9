//! Plants keys in every place that may contain one, and searches everything printable for them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use epitome::config::{ProviderSettings, Settings, WireFormat};
use epitome::provider::endpoint::{self, Endpoint, Secret};
use epitome::provider::http::Http;
use epitome::provider::network::Network;
use epitome::provider::{ErrorClass, ProviderError};
use epitome::thread::ModelName;
use parking_lot::Mutex;
use tokio::io::AsyncWriteExt;
use tracing_subscriber::fmt::MakeWriter;

use super::calls::{call, encoded, endpoint_of};
use super::servers::{Authority, FAR, header, listen, proxy, read_request};

/// Part of every planted secret; the beginning is searched for too, so that no truncated secret is missed.
const MARK: &str = "PLANTED";

fn env(more: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
    let own = [
        ("ANTHROPIC_API_KEY", "sk-ant-PLANTED-1"),
        ("ANTHROPIC_AUTH_TOKEN", "token-PLANTED-2"),
        (
            "ANTHROPIC_CUSTOM_HEADERS",
            "X-Tenant: tenant \"PLANTED\"/3\nCookie: a=cookie-PLANTED-4; b=PLANTED-5",
        ),
        ("OPENAI_API_KEY", "sk-PLANTED-6"),
        ("OPENAI_ORG_ID", "org-PLANTED-7"),
        ("OPENAI_PROJECT_ID", "proj-PLANTED-8"),
        ("OPENAI_CUSTOM_HEADERS", "X-Gateway: PLANTED-9"),
        ("GEMINI_KEY", "AIza-PLANTED-10"),
    ];
    own.iter().chain(more).map(|(name, value)| (name.into(), value.into())).collect()
}

/// An endpoint of every kind at this address.
fn endpoints(base: &str, more: &[(&str, &str)]) -> Vec<Endpoint> {
    let mut all = vec![("ANTHROPIC_BASE_URL", base), ("OPENAI_BASE_URL", base), ("EPITOME_LOCAL_URL", base)];
    all.extend(more);
    let gemini = ProviderSettings {
        wire: WireFormat::Gemini,
        base_url: base.into(),
        key_variable: Some("GEMINI_KEY".into()),
        headers: BTreeMap::from([("x-extra".into(), "extra-PLANTED-11".into())]),
    };
    let settings = Settings { providers: BTreeMap::from([("g".into(), gemini)]), ..Settings::default() };
    ["anthropic/claude-sonnet-5-5", "openai/gpt-5.4", "local/some-model", "g/gemini"]
        .map(|name| {
            endpoint::resolve(&ModelName(name.into()), &settings, &env(&all)).expect("all keys are set")
        })
        .into()
}

/// Everything printed so far.
#[derive(Clone, Default)]
struct Printed(Arc<Mutex<Vec<u8>>>);

impl Printed {
    fn error(&self, error: &ProviderError) {
        let text = format!("{error} {error:?} {}", error.hint.as_deref().unwrap_or_default());
        self.0.lock().extend_from_slice(text.as_bytes());
        assert_clean(&text);
    }
}

impl io::Write for Printed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Printed {
    type Writer = Printed;

    fn make_writer(&'a self) -> Printed {
        self.clone()
    }
}

fn assert_clean(text: &str) {
    for hidden in [MARK, "sk-ant", "AIza", "hunter", "UExBTlRFR", "QTEFOVEVE", "BMQU5URU"] {
        assert!(!text.contains(hidden), "{hidden} in {text}");
    }
}

/// Counts the responses, each of which has a different form and is truncated at a different position.
static TURN: AtomicUsize = AtomicUsize::new(0);

/// Answers every connection with its own request, with this status, at a different offset each time.
async fn echo(status: u16, stream: bool) -> String {
    let (listener, address) = listen().await;
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                while let Some(request) = read_request(&mut socket).await {
                    let turn = TURN.fetch_add(1, Ordering::Relaxed);
                    let pad = turn * 97;
                    let text = format!("{}{request}", "x".repeat(pad % 1_000));
                    let error = serde_json::json!({ "error": { "message": text, "type": "x" } }).to_string();
                    let (kind, body) = match (stream, turn % 3) {
                        (true, _) => ("text/event-stream", format!("event: error\ndata: {error}\n\n")),
                        (false, 0) => ("text/plain", text),
                        // Truncated, so that it is invalid JSON.
                        (false, 1) => ("application/json", error[..error.len() - 3].replace('/', "\\/")),
                        (false, _) => ("application/json", error),
                    };
                    let names = ["x-api-key", "authorization", "x-goog-api-key", "host"];
                    let id = names.iter().find_map(|name| header(&request, name)).unwrap_or_default();
                    let answer = format!(
                        "HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\nx-request-id: {id}\r\ncontent-length: {}\r\n\r\n{body}",
                        body.len()
                    );
                    if socket.write_all(answer.as_bytes()).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    address.to_string()
}

/// A single test, because a subscriber applies to a thread; the runtime uses only that thread.
#[tokio::test]
async fn no_key_or_password_is_ever_printed() {
    let printed = Printed::default();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .with_writer(printed.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    // With a single subscriber, the decision whether a line is enabled is made on the first thread that
    // reaches it, and cached: that may be the thread of another test, which has no subscriber.
    let _second = tracing::Dispatch::new(tracing_subscriber::registry());
    let http = Http::new();

    // Errors of every class from servers that echo the entire request.
    for status in [200, 302, 400, 401, 402, 403, 404, 407, 408, 413, 422, 429, 500, 503, 529] {
        let address = echo(status, status == 200).await;
        let base = format!("http://joe:hunter-PLANTED-12@{address}/v1?key=PLANTED-13");
        for base in [format!("http://{address}/v1"), base] {
            // The URL ends with a query that the path is appended to; the server ignores it.
            for endpoint in endpoints(&base, &[]) {
                assert_clean(&format!("{endpoint:?} {}", endpoint.shown_url()));
                if endpoint.wire == WireFormat::Gemini && status == 200 {
                    continue;
                }
                for _ in 0..4 {
                    let error = call(&http, &endpoint).await.expect_err("it is refused");
                    printed.error(&error);
                }
            }
        }
    }

    // No listener, no such proxy, a proxy that refuses, an unknown name.
    let (at, _proxy) = proxy(([127, 0, 0, 1], 9).into(), Some("other:password")).await;
    for way in [
        format!("http://joe:hunter-PLANTED@{at}"),
        "http://joe:hunter-PLANTED@127.0.0.1:9".to_owned(),
        "socks5://joe:hunter-PLANTED@127.0.0.1:9".to_owned(),
        "ftp://joe:hunter-PLANTED@p".to_owned(),
        "http://joe:hunter#PLANTED@p".to_owned(),
        String::new(),
    ] {
        let more = [("HTTPS_PROXY", way.as_str()), ("HTTP_PROXY", way.as_str())];
        assert_clean(&format!("{:?}", Network::read(&env(&more))));
        for base in ["https://joe:hunter-PLANTED@models.test/v1?key=PLANTED", "http://models.test/v1"] {
            for endpoint in endpoints(base, &more) {
                printed.error(&call(&http, &endpoint).await.expect_err("it is nowhere"));
                let network = Network::read(&env(&more));
                let header = [("x-signature".to_owned(), Secret::new("PLANTED-signature"))];
                let hooks = http.within(network);
                let posted = hooks.post(base, &header, Vec::new(), 10, Duration::from_secs(9)).await;
                assert_clean(&posted.expect_err("it is nowhere").to_string());
            }
        }
    }

    // Headers and addresses that cannot be sent.
    for bad in ["PLANTED\u{1}", "PLANTED\n"] {
        let mut endpoint = endpoint_of("box", WireFormat::OpenAiChat, "http://127.0.0.1:9", &[]);
        endpoint.headers.push(("x-key".into(), Secret::new(bad)));
        printed.error(&call(&http, &endpoint).await.expect_err("no header can hold it"));
        endpoint.headers = vec![(bad.into(), Secret::new("x"))];
        printed.error(&call(&http, &endpoint).await.expect_err("no header can have it"));
        endpoint.base_url = format!("http://{MARK}:{MARK}@:x");
        endpoint.headers.clear();
        printed.error(&call(&http, &endpoint).await.expect_err("it is no address"));
    }

    // HTTP/2, whose library logs every frame.
    let authority = Arc::new(Authority::new(&["h2"]));
    let (listener, address) = listen().await;
    let file = authority.file();
    tokio::spawn(async move {
        let (socket, _) = listener.accept().await.expect("the client comes");
        let socket = authority.accept(socket).await.expect("it trusts us");
        // The server's own log lines are irrelevant, but it runs on the same thread.
        let mut connection = h2::server::handshake(socket).await.expect("it speaks HTTP/2");
        while let Some(Ok((_, mut respond))) = connection.accept().await {
            let response = http::Response::builder().status(401).body(()).expect("it is well formed");
            respond.send_response(response, true).expect("it is open");
        }
    });
    let file = file.to_str().expect("ours is text");
    let base = format!("https://localhost:{}/v1", address.port());
    for endpoint in endpoints(&base, &[("SSL_CERT_FILE", file)]).drain(..1) {
        let error = http.start(&endpoint, &encoded(&["{}"])).expect("it can be sent").await;
        let error = error.expect_err("it is refused");
        assert_eq!(error.class, ErrorClass::Auth, "{error}");
        printed.error(&error);
    }

    let all = String::from_utf8_lossy(&printed.0.lock()).into_owned();
    assert!(all.contains("TRACE") && all.contains("h2"), "the libraries' lines are in it too");
    let far_and_near = all.contains(FAR) && all.contains("127.0.0.1");
    assert!(far_and_near, "what was called is reported");
    for line in all.lines() {
        assert_clean(line);
    }
}
