//! Webhooks against a small server.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use epitome::hooks::output::Ran;
use epitome::hooks::webhook::{self, Webhook};
use epitome::provider::http::Http;

use super::scripts::{AMPLE, patiently};

/// A request: its head in lower case, and its body.
type Got = (String, String);

/// Answers every request with `answer`, or never if that is empty.
fn server(answer: String) -> (String, Receiver<Got>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let (tell, got) = channel();
    std::thread::spawn(move || {
        let mut silent = Vec::new();
        for stream in listener.incoming() {
            let mut reader = BufReader::new(stream.expect("a connection"));
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                if reader.read_line(&mut head).expect("a line") == 0 {
                    return;
                }
            }
            let head = head.to_lowercase();
            let length = head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next());
            let mut body = vec![0; length.map_or(0, |length| length.parse().expect("a number"))];
            reader.read_exact(&mut body).expect("a body");
            if tell.send((head, String::from_utf8(body).expect("text"))).is_err() {
                return;
            }
            // The client may have closed the connection already.
            let _ = reader.get_mut().write_all(answer.as_bytes());
            if answer.is_empty() {
                silent.push(reader);
            }
        }
    });
    (format!("http://{address}/services/KEY"), got)
}

fn answer(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{headers}content-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
}

async fn post(url: &str, secret: Option<&str>, limit: Duration) -> Ran {
    let headers = BTreeMap::from([("Authorization".to_owned(), "Bearer HIDDEN".to_owned())]);
    let to = Webhook { url, headers: &headers, secret };
    patiently(webhook::post(&Http::new(), to, b"{\"event\":\"turn_end\"}\n".to_vec(), limit)).await
}

#[tokio::test]
async fn the_payload_is_posted_with_its_headers_and_signature() {
    let (url, got) = server(answer("200 OK", "", r#"{"blocked":true}"#));
    let ran = post(&url, Some("a secret"), AMPLE).await;
    assert_eq!(ran, Ran::Replied { status: 200, body: br#"{"blocked":true}"#.to_vec() });
    let (head, body) = got.recv().expect("a request");
    assert_eq!(body, "{\"event\":\"turn_end\"}\n");
    assert!(head.starts_with("post /services/key http/1.1"), "{head}");
    // Computed by `printf '{"event":"turn_end"}
    // ' | openssl dgst -sha256 -hmac 'a secret'`.
    let signature = "d8dff414bcc6014770be2e58c1655173ca13b6692e4691c441ce949f7712357b";
    for expected in
        ["content-type: application/json", "authorization: bearer hidden", "x-epitome-signature: sha256="]
    {
        assert!(head.contains(expected), "{head}");
    }
    assert!(head.contains(signature), "{head}");
}

#[tokio::test]
async fn a_successful_empty_response_is_no_result() {
    let (url, _got) = server("HTTP/1.1 204 No Content\r\n\r\n".to_owned());
    assert_eq!(post(&url, None, AMPLE).await, Ran::Replied { status: 204, body: Vec::new() });
}

#[tokio::test]
async fn other_responses_are_failures_that_show_no_key() {
    let (elsewhere, second) = server(answer("200 OK", "", "{}"));
    let large = "x".repeat(2 * 1024 * 1024);
    for (answer, limit, expected) in [
        (answer("500 Oops", "", "why"), AMPLE, "answered with 500"),
        (answer("302 Found", &format!("location: {elsewhere}\r\n"), ""), AMPLE, "redirects are not followed"),
        (answer("200 OK", "", &large), AMPLE, "longer than 1048576 bytes"),
        (String::new(), Duration::from_millis(200), "nothing came for too long"),
    ] {
        let (url, _got) = server(answer);
        let ran = post(&url, None, limit).await;
        let Ran::Failed(sentence) = ran else { panic!("{expected}: {ran:?}") };
        assert!(sentence.contains(expected) && sentence.contains("127.0.0.1"), "{sentence}");
        assert!(!sentence.contains("KEY") && !sentence.contains("HIDDEN"), "{sentence}");
    }
    assert!(second.try_recv().is_err(), "the redirect was followed");
    let ran = post("file:///etc/passwd", None, AMPLE).await;
    assert!(matches!(&ran, Ran::Failed(why) if why.contains("http://")), "{ran:?}");
}
