//! Servers that stop responding.

use std::time::Duration;

use epitome::provider::ErrorClass;
use epitome::provider::http::{CallTimeouts, Http};
use tokio::io::AsyncWriteExt;

use super::calls::{call, encoded, endpoint};
use super::servers::{EVENTS, listen, read_request};

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(50);

fn limited(first_byte: Duration, silence: Duration) -> Http {
    Http::new().with_limits(CallTimeouts { connect: LONG, first_byte, silence, content: LONG })
}

/// Reads one request, sends this beginning of a response, and keeps the connection open.
async fn says(beginning: String) -> (String, tokio::task::JoinHandle<()>) {
    let (listener, address) = listen().await;
    let serving = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.expect("the client comes");
        read_request(&mut socket).await.expect("it asks");
        socket.write_all(beginning.as_bytes()).await.expect("the client reads");
        // Returns when the client disconnects.
        assert_eq!(read_request(&mut socket).await, None);
    });
    (format!("http://{address}/v1"), serving)
}

#[tokio::test]
async fn a_server_that_never_answers_times_out() {
    let (url, serving) = says(String::new()).await;
    let error = call(&limited(SHORT, LONG), &endpoint(&url, &[])).await.expect_err("nothing came");
    assert_eq!(error.class, ErrorClass::Retry { after: None });
    assert!(
        error.message.contains("did not begin to answer within 50 ms, the limit for its first byte"),
        "{error}"
    );
    serving.await.expect("the connection is closed");
}

#[tokio::test]
async fn a_server_that_stalls_times_out_and_its_text_is_kept() {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
    let first = EVENTS.split_once("\n\n").expect("it has events").0;
    for (beginning, said) in [(format!("{head}: ping\n\n"), 0), (format!("{head}{first}\n\n"), 1)] {
        let (url, serving) = says(beginning).await;
        let endpoint = endpoint(&url, &[]);
        let starting = limited(LONG, SHORT).start(&endpoint, &encoded(&["{}"])).expect("it can be sent");
        let mut stream = starting.await.expect("it is answered");
        for _ in 0..said {
            assert!(stream.next().await.is_ok_and(|events| events.is_some()));
        }
        let error = stream.next().await.expect_err("nothing more came");
        assert_eq!(error.class, ErrorClass::Retry { after: None });
        assert!(error.message.contains("no more data came for 50 ms, the limit of silence"), "{error}");
        drop(stream);
        serving.await.expect("the connection is closed");
    }
}

/// Regression: a stream that had died behind a proxy sent pings for seven minutes, until the user canceled the turn.
/// Each byte had restarted the idle timeout.
#[tokio::test]
async fn pings_do_not_keep_a_dead_stream_alive() {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
    let (listener, address) = listen().await;
    let serving = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.expect("the client comes");
        read_request(&mut socket).await.expect("it asks");
        socket.write_all(head.as_bytes()).await.expect("the client reads");
        // Until the client disconnects.
        while socket.write_all(b": ping\n\n").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    let endpoint = endpoint(&format!("http://{address}/v1"), &[]);
    let http = Http::new().with_limits(CallTimeouts {
        connect: LONG,
        first_byte: LONG,
        silence: LONG,
        content: SHORT,
    });
    let starting = http.start(&endpoint, &encoded(&["{}"])).expect("it can be sent");
    let mut stream = starting.await.expect("it is answered");
    let error = stream.next().await.expect_err("nothing of the reply came");
    assert_eq!(error.class, ErrorClass::Retry { after: None });
    assert!(error.message.contains("sent nothing of the reply for 50 ms, the limit of silence_s"), "{error}");
    drop(stream);
    serving.await.expect("the connection is closed");
}

#[tokio::test]
async fn repeated_polling_does_not_extend_the_silence_limit() {
    // A session polls the stream again after every command that it receives.
    let (url, _serving) = says("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n".to_owned()).await;
    let endpoint = endpoint(&url, &[]);
    let starting = limited(LONG, SHORT).start(&endpoint, &encoded(&["{}"])).expect("it can be sent");
    let mut stream = starting.await.expect("it is answered");
    let error = loop {
        // Far below the limit each time.
        if let Ok(Err(error)) = tokio::time::timeout(Duration::from_millis(1), stream.next()).await {
            break error;
        }
    };
    assert!(error.message.contains("the limit of silence"), "{error}");
}

#[tokio::test]
async fn a_proxy_that_never_answers_hits_the_connect_timeout() {
    let (listener, address) = listen().await;
    let limits = CallTimeouts { connect: SHORT, first_byte: LONG, silence: LONG, content: LONG };
    let env = [("HTTPS_PROXY", format!("http://{address}"))];
    let env: Vec<(&str, &str)> = env.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let far = endpoint("https://models.test/v1", &env);
    let error = call(&Http::new().with_limits(limits), &far).await.expect_err("there is no tunnel");
    assert!(error.message.contains("no connection within 50 ms, the limit for one"), "{error}");
    assert!(error.hint.is_some_and(|hint| hint.contains("HTTPS_PROXY")));
    drop(listener);
}
