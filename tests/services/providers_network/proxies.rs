//! Proxies from the editor's environment.

use std::sync::Arc;
use std::time::Duration;

use epitome::provider::ErrorClass;
use epitome::provider::http::Http;
use epitome::provider::network::Network;
use tokio::task::JoinHandle;

use super::calls::{call, endpoint, whole_reply};
use super::servers::{Authority, FAR, converse, header, listen, proxy, reply, socks};

/// A TLS server for one connection, and the authority that signed its certificate.
async fn encrypted() -> (std::net::SocketAddr, Arc<Authority>, JoinHandle<Vec<String>>) {
    let authority = Arc::new(Authority::new(&["http/1.1"]));
    let (listener, address) = listen().await;
    let ours = authority.clone();
    let serving = tokio::spawn(async move {
        let (socket, _) = listener.accept().await.expect("the client comes");
        let socket = ours.accept(socket).await.expect("it trusts us");
        converse(socket, &reply()).await
    });
    (address, authority, serving)
}

#[tokio::test]
async fn a_tunnel_reaches_the_service_and_only_the_proxy_gets_its_password() {
    for (user, wanted) in [("", None), ("joe:pass%21word@", Some("joe:pass!word"))] {
        let (address, authority, server) = encrypted().await;
        let (at, tunnel) = proxy(address, wanted).await;
        let way = format!("http://{user}{at}");
        let file = authority.file();
        let env = [("HTTPS_PROXY", way.as_str()), ("SSL_CERT_FILE", file.to_str().expect("ours is text"))];
        let http = Http::new();
        assert_eq!(call(&http, &endpoint(&format!("https://{FAR}/v1"), &env)).await, Ok(whole_reply()));
        drop(http);
        let asked = tunnel.await.expect("the proxy ends");
        assert!(asked.starts_with(&format!("CONNECT {FAR}:443 HTTP/1.1")), "{asked}");
        assert!(!asked.contains("sk-very-secret"), "the proxy gets no key: {asked}");
        let requests = server.await.expect("the server ends");
        assert_eq!(header(&requests[0], "authorization").as_deref(), Some("Bearer sk-very-secret"));
        assert_eq!(header(&requests[0], "proxy-authorization"), None);
    }
}

/// Regression: a certificate for another host, as the login page of a network has it, was described in the notation of
/// the TLS library, and the advice was to trust its authority.
#[tokio::test]
async fn a_certificate_for_another_host_is_refused_with_both_names() {
    let authority = Authority::new(&["http/1.1"]);
    let file = authority.file();
    let (listener, address) = listen().await;
    tokio::spawn(async move {
        let (socket, _) = listener.accept().await.expect("the client comes");
        drop(authority.accept(socket).await);
    });
    let (at, _proxy) = proxy(address, None).await;
    let way = format!("http://{at}");
    let env = [("HTTPS_PROXY", way.as_str()), ("SSL_CERT_FILE", file.to_str().expect("ours is text"))];
    let error = call(&Http::new(), &endpoint("https://elsewhere.test/v1", &env)).await;
    let error = error.expect_err("the certificate is for other hosts");
    assert_eq!(error.class, ErrorClass::Refused, "another try would not help");
    assert!(error.message.contains("elsewhere.test") && error.message.contains(FAR), "{error}");
    assert!(!error.message.contains('{'), "{error}");
    assert!(
        error.hint.as_ref().is_some_and(|hint| hint.contains("base URL https://elsewhere.test")),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_missing_proxy_password_causes_a_hint_what_to_set() {
    for scheme in ["http", "https"] {
        let (at, _proxy) = proxy(([127, 0, 0, 1], 9).into(), Some("joe:password")).await;
        let way = format!("http://joe:wrong-password@{at}");
        let env = [("HTTPS_PROXY", way.as_str()), ("http_proxy", way.as_str())];
        let error = call(&Http::new(), &endpoint(&format!("{scheme}://{FAR}/v1"), &env)).await;
        let error = error.expect_err("the proxy refuses");
        assert_eq!(error.class, ErrorClass::Refused, "{error}");
        let hint = error.hint.as_deref().unwrap_or_default();
        let variable = if scheme == "https" { "HTTPS_PROXY" } else { "http_proxy" };
        assert!(hint.contains(&format!("{variable}=http://user:password@host:port")), "{hint}");
        assert!(!format!("{error:?}").contains("wrong-password"), "{error:?}");
    }
}

#[tokio::test]
async fn a_plain_http_call_is_forwarded_by_the_proxy() {
    let (listener, address) = listen().await;
    tokio::spawn(async move {
        let (socket, _) = listener.accept().await.expect("the proxy comes");
        converse(socket, &reply()).await
    });
    let (at, serving) = proxy(address, None).await;
    let http = Http::new();
    let far = endpoint(&format!("http://{FAR}/v1"), &[("all_proxy", &format!("http://{at}"))]);
    assert_eq!(call(&http, &far).await, Ok(whole_reply()));
    drop(http);
    let asked = serving.await.expect("the proxy ends");
    assert!(asked.starts_with(&format!("POST http://{FAR}/v1/chat/completions HTTP/1.1")), "{asked}");
}

#[tokio::test]
async fn a_socks_proxy_reaches_the_service() {
    let (listener, address) = listen().await;
    tokio::spawn(async move {
        let (socket, _) = listener.accept().await.expect("the proxy comes");
        converse(socket, &reply()).await
    });
    let (at, serving) = socks(address).await;
    let http = Http::new();
    let way = format!("socks5h://joe:password@{at}");
    assert_eq!(
        call(&http, &endpoint(&format!("http://{FAR}/v1"), &[("ALL_PROXY", &way)])).await,
        Ok(whole_reply())
    );
    drop(http);
    assert_eq!(serving.await.expect("the proxy ends"), ("joe".to_owned(), "password".to_owned()));
}

/// Port 9 of this machine has no listener, so a call through this proxy fails.
const NO_PROXY_THERE: &str = "http://127.0.0.1:9";

#[tokio::test]
async fn loopback_is_reached_without_a_proxy() {
    let (listener, address) = listen().await;
    tokio::spawn(async move {
        let (socket, _) = listener.accept().await.expect("the client comes");
        converse(socket, &reply()).await
    });
    let near = endpoint(&format!("http://{address}/v1"), &[("ALL_PROXY", NO_PROXY_THERE)]);
    assert_eq!(call(&Http::new(), &near).await, Ok(whole_reply()));
}

#[tokio::test]
async fn hosts_in_no_proxy_are_reached_directly() {
    // The name has no address, so the error shows which route was used.
    for (no_proxy, through_proxy) in [
        ("", true),
        ("other.test", true),
        (FAR, false),
        (".test", false),
        ("*.test", false),
        ("*", false),
        ("models.test:443", true),
        ("models.test:80", false),
    ] {
        let env = [("HTTP_PROXY", NO_PROXY_THERE), ("NO_PROXY", no_proxy)];
        let error = call(&Http::new(), &endpoint(&format!("http://{FAR}/v1"), &env)).await;
        let error = error.expect_err("neither way leads there");
        assert_eq!(error.message.contains("refused"), through_proxy, "NO_PROXY={no_proxy}: {error}");
    }
}

#[tokio::test]
async fn a_webhook_uses_the_sessions_proxy() {
    let (listener, address) = listen().await;
    tokio::spawn(async move {
        let (socket, _) = listener.accept().await.expect("the proxy comes");
        converse(socket, &reply()).await
    });
    let (at, serving) = proxy(address, None).await;
    let env = [("HTTP_PROXY".into(), format!("http://{at}").into())];
    let http = Http::new().within(Network::read(&env));
    let url = format!("http://{FAR}/hook");
    let posted = http.post(&url, &[], b"{}".to_vec(), 1_000, Duration::from_secs(9)).await;
    assert!(matches!(posted, Ok((200, _))), "{posted:?}");
    drop(http);
    assert!(serving.await.expect("the proxy ends").starts_with(&format!("POST http://{FAR}/hook ")));
}

#[tokio::test]
async fn an_invalid_proxy_url_error_only_names_its_variable() {
    for address in ["http://joe:pass#word@p:1", "ftp://joe:password@p"] {
        let far = endpoint(&format!("https://{FAR}/v1"), &[("HTTPS_PROXY", address)]);
        let error = call(&Http::new(), &far).await.expect_err("there is no such proxy");
        assert_eq!(error.class, ErrorClass::Refused, "{error}");
        assert!(error.message.contains("HTTPS_PROXY") && !error.message.contains("pass"), "{error}");
    }
}
