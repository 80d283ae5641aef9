//! Encrypted connections: trusted certificates, and HTTP/2.

use bytes::Bytes;
use epitome::provider::ErrorClass;
use epitome::provider::http::Http;
use tokio::sync::oneshot;

use super::calls::{call, call_with, encoded, endpoint, whole_reply};
use super::servers::{Authority, EVENTS, converse, listen, reply};

#[tokio::test]
async fn a_custom_authority_is_trusted_through_any_of_its_variables() {
    let authority = Authority::new(&["http/1.1"]);
    let (listener, address) = listen().await;
    let (file, folder) = (authority.file(), authority.folder.path().to_owned());
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            if let Ok(socket) = authority.accept(socket).await {
                converse(socket, &reply()).await;
            }
        }
    });
    let url = format!("https://localhost:{}/v1", address.port());
    for (variable, path) in [
        ("SSL_CERT_FILE", &file),
        ("SSL_CERT_DIR", &folder),
        ("NODE_EXTRA_CA_CERTS", &file),
        ("REQUESTS_CA_BUNDLE", &file),
    ] {
        let path = path.to_str().expect("a temporary path is UTF-8");
        let endpoint = endpoint(&url, &[(variable, path)]);
        assert_eq!(call(&Http::new(), &endpoint).await, Ok(whole_reply()), "{variable}");
    }
}

#[tokio::test]
async fn an_unknown_authority_is_refused_with_a_hint_what_to_set() {
    let authority = Authority::new(&["http/1.1"]);
    let (listener, address) = listen().await;
    let file = authority.file();
    let pem = std::fs::read(&file).expect("it was written");
    std::fs::write(&file, "nothing yet").expect("it can be written");
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            if let Ok(socket) = authority.accept(socket).await {
                converse(socket, &reply()).await;
            }
        }
    });
    let url = format!("https://localhost:{}/v1", address.port());
    let http = Http::new();
    let bare = call(&http, &endpoint(&url, &[])).await.expect_err("nobody knows the authority");
    assert_eq!(bare.class, ErrorClass::Refused, "another try would not help");
    assert!(bare.message.contains("certificate is not trusted (UnknownIssuer)"), "{bare}");
    assert!(bare.hint.as_ref().is_some_and(|hint| hint.contains("set SSL_CERT_FILE")), "{bare:?}");

    let named = endpoint(&url, &[("SSL_CERT_FILE", file.to_str().expect("a temporary path is UTF-8"))]);
    let empty = call(&http, &named).await.expect_err("there is no certificate in the file");
    let hint = empty.hint.expect("it says what to do");
    assert!(hint.contains(&format!("SSL_CERT_FILE names {}", file.display())), "{hint}");

    // The file is read again, so the agent need not be restarted.
    std::fs::write(&file, pem).expect("it can be written");
    assert_eq!(call(&http, &named).await, Ok(whole_reply()));
}

#[tokio::test]
async fn http_2_is_used_if_offered_and_dropping_a_reply_resets_its_stream() {
    let authority = Authority::new(&["h2", "http/1.1"]);
    let (listener, address) = listen().await;
    let file = authority.file();
    let (sender, receiver) = oneshot::channel();
    let server = tokio::spawn(async move {
        let (socket, _) = listener.accept().await.expect("the client comes");
        let socket = authority.accept(socket).await.expect("it trusts us");
        let mut connection = h2::server::handshake(socket).await.expect("it speaks HTTP/2");
        // A complete reply.
        let (request, mut respond) = connection.accept().await.expect("it asks").expect("well");
        let (head, mut body) = request.into_parts();
        let mut sent = Vec::new();
        let reading = async {
            while let Some(Ok(piece)) = body.data().await {
                sent.extend_from_slice(&piece);
            }
            let response = http::Response::builder().header("content-type", "text/event-stream");
            let response = response.body(()).expect("it is well formed");
            let mut stream = respond.send_response(response, false).expect("it is open");
            stream.send_data(Bytes::from_static(EVENTS.as_bytes()), true).expect("it is open");
        };
        tokio::select! {
            () = reading => {}
            _ = std::future::poll_fn(|context| connection.poll_closed(context)) => panic!("closed early"),
        }
        // An interrupted reply.
        let (_, mut respond) = connection.accept().await.expect("it asks again").expect("well");
        let response = http::Response::builder().header("content-type", "text/event-stream");
        let response = response.body(()).expect("it is well formed");
        let mut stream = respond.send_response(response, false).expect("it is open");
        let first = &EVENTS.as_bytes()[..EVENTS.find("\n\n").expect("it has events") + 2];
        stream.send_data(Bytes::from_static(first), false).expect("it is open");
        let reset = tokio::select! {
            reset = std::future::poll_fn(|context| stream.poll_reset(context)) => reset.ok(),
            _ = std::future::poll_fn(|context| connection.poll_closed(context)) => None,
        };
        sender.send(reset).expect("the test waits");
        (head, sent)
    });
    let url = format!("https://localhost:{}/v1", address.port());
    let endpoint = endpoint(&url, &[("SSL_CERT_FILE", file.to_str().expect("a temporary path is UTF-8"))]);
    let (http, request) = (Http::new(), encoded(&["{\"model\"", ":\"m\"}"]));
    assert_eq!(call_with(&http, &endpoint, &request).await, Ok(whole_reply()));

    let starting = http.start(&endpoint, &request).expect("it can be sent");
    let mut stream = starting.await.expect("it is answered");
    assert!(stream.next().await.is_ok_and(|events| events.is_some()));
    drop(stream);
    assert_eq!(receiver.await.expect("the server ends"), Some(h2::Reason::CANCEL));
    let (head, sent) = server.await.expect("the server ends");
    assert_eq!(head.version, http::Version::HTTP_2);
    assert_eq!(head.headers["content-length"], "13");
    assert_eq!(sent, b"{\"model\":\"m\"}");
}
