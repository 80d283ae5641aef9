//! Connection reuse, and the transfer of a request's body.

use epitome::provider::http::Http;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::calls::{call, call_with, encoded, endpoint, endpoint_of, whole_reply};
use super::servers::{converse, header, listen, read_request, reply};

/// Answers every request on every connection; reports each accepted connection.
fn serve_all(listener: TcpListener) -> mpsc::UnboundedReceiver<()> {
    let (sender, receiver) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let _ = sender.send(());
            tokio::spawn(async move { converse(socket, &reply()).await });
        }
    });
    receiver
}

fn count(accepted: &mut mpsc::UnboundedReceiver<()>) -> usize {
    std::iter::from_fn(|| accepted.try_recv().ok()).count()
}

#[tokio::test]
async fn calls_reuse_connections_only_within_one_environment() {
    let (listener, address) = listen().await;
    let mut accepted = serve_all(listener);
    let url = format!("http://{address}/v1");
    let http = Http::new();
    let (first, second) = (endpoint(&url, &[("HOME", "/a")]), endpoint(&url, &[("NO_PROXY", "elsewhere")]));
    for _ in 0..3 {
        assert_eq!(call(&http, &first).await, Ok(whole_reply()));
    }
    assert_eq!(count(&mut accepted), 1);
    assert_eq!(call(&http, &second).await, Ok(whole_reply()));
    assert_eq!(count(&mut accepted), 1, "the other environment's");
    for endpoint in [&first, &second] {
        assert_eq!(call(&http, endpoint).await, Ok(whole_reply()));
    }
    assert_eq!(count(&mut accepted), 0, "both are still there");
    let other = endpoint_of("crate", first.wire, &url, &[]);
    assert_eq!(call(&http, &other).await, Ok(whole_reply()));
    assert_eq!(count(&mut accepted), 1, "the other provider's");
}

#[tokio::test]
async fn a_body_is_sent_with_its_length_and_a_retry_sends_the_same() {
    let (listener, address) = listen().await;
    let serving = tokio::spawn(async move {
        let mut requests = Vec::new();
        // The first attempt is interrupted.
        let (mut socket, _) = listener.accept().await.expect("the client comes");
        requests.push(read_request(&mut socket).await.expect("it asks"));
        drop(socket);
        let (socket, _) = listener.accept().await.expect("the client comes again");
        requests.extend(converse(socket, &reply()).await);
        requests
    });
    let near = endpoint(&format!("http://{address}/v1"), &[]);
    let long: &'static str = Box::leak(format!("\"{}\"", "ä".repeat(300_000)).into_boxed_str());
    let request = encoded(&["{\"messages\":[", "", long, ",", "\"b\"", "]}"]);
    let http = Http::new();
    let error = call_with(&http, &near, &request).await.expect_err("the server hung up");
    assert!(matches!(error.class, epitome::provider::ErrorClass::Retry { after: None }), "{error}");
    assert_eq!(call_with(&http, &near, &request).await, Ok(whole_reply()));
    drop(http);
    let requests = serving.await.expect("the server ends");
    assert_eq!(requests.len(), 2);
    let whole = String::from_utf8(request.bytes()).expect("it is text");
    for sent in requests {
        let (head, body) = sent.split_once("\r\n\r\n").expect("it has a head");
        assert_eq!(header(head, "content-length"), Some(request.len().to_string()));
        assert_eq!(header(head, "transfer-encoding"), None);
        assert!(body == whole, "{} bytes of {}", body.len(), whole.len());
    }
}
