//! Tests the search services against a server on loopback.

use std::ffi::OsString;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

fn env(variables: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
    variables.iter().map(|(name, value)| (name.into(), value.into())).collect()
}

fn query(domains: &[&str]) -> SearchQuery {
    let domains = domains.iter().map(|domain| (*domain).to_owned()).collect();
    SearchQuery { words: "rust fmt".to_owned(), domains }
}

/// A server that answers one request, and returns what it received.
async fn server(status: u16, answer: Value) -> (String, tokio::task::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let base = format!("http://{}", listener.local_addr().expect("an address"));
    let answering = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a client");
        let mut received = String::new();
        let mut piece = [0; 4096];
        loop {
            let read = stream.read(&mut piece).await.expect("a request");
            received.push_str(&String::from_utf8_lossy(&piece[..read]));
            let Some((head, body)) = received.split_once("\r\n\r\n") else { continue };
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= length.map_or(0, |length| length.parse().expect("a number")) {
                break;
            }
        }
        let body = answer.to_string();
        let head = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all((head + &body).as_bytes()).await.expect("an answer");
        received
    });
    (base, answering)
}

/// The services' documented requests and answers.
#[tokio::test]
async fn every_service_gets_its_own_request_and_is_understood() {
    let searxng = json!({ "query": "q", "results": [
        { "url": "https://a.example/1", "title": "One", "content": "first", "engine": "x", "publishedDate": null },
        { "url": "https://sub.a.example/2", "title": "Two", "content": "second", "publishedDate": "2026-01-02" },
        { "url": "https://nota.example/3", "title": "Three" }
    ], "unresponsive_engines": [] });
    let brave = json!({ "type": "search", "query": { "original": "q" }, "web": { "results": [
        { "title": "One", "url": "https://a.example/1", "description": "first" },
        { "title": "Two", "url": "https://sub.a.example/2", "description": "second", "age": "2026-01-02" }
    ] } });
    let tavily = json!({ "query": "q", "results": [
        { "title": "One", "url": "https://a.example/1", "content": "first", "score": 0.9 },
        { "title": "Two", "url": "https://sub.a.example/2", "content": "second", "published_date": "2026-01-02" }
    ] });
    let exa = json!({ "requestId": "r", "results": [
        { "id": "1", "title": "One", "url": "https://a.example/1", "text": "first" },
        { "id": "2", "title": "Two", "url": "https://sub.a.example/2", "text": "second", "publishedDate": "2026-01-02" }
    ] });
    let domains = ["a.example", "b.example"];
    let sites = "q=rust+fmt+%28site%3Aa.example+OR+site%3Ab.example%29";
    for (choice, variable, answer, wanted) in [
        (
            SearchChoice::Searxng,
            "SEARXNG_URL",
            searxng,
            vec![format!("GET /search?{sites}&format=json HTTP")],
        ),
        (
            SearchChoice::Brave,
            "BRAVE_API_KEY",
            brave,
            vec![format!("GET /res/v1/web/search?{sites}&count=10"), "x-subscription-token: k-1".to_owned()],
        ),
        (
            SearchChoice::Tavily,
            "TAVILY_API_KEY",
            tavily,
            vec![
                "POST /search".to_owned(),
                "authorization: Bearer k-1".to_owned(),
                r#""include_domains":["a.example","b.example"]"#.to_owned(),
                r#""query":"rust fmt""#.to_owned(),
            ],
        ),
        (
            SearchChoice::Exa,
            "EXA_API_KEY",
            exa,
            vec![
                "POST /search".to_owned(),
                "x-api-key: k-1".to_owned(),
                r#""includeDomains":["a.example","b.example"]"#.to_owned(),
                r#""numResults":10"#.to_owned(),
            ],
        ),
    ] {
        let (base, received) = server(200, answer).await;
        let value = if variable == "SEARXNG_URL" { base.as_str() } else { "k-1" };
        let found = SearchService::find(choice, &env(&[(variable, value)])).expect("it is configured");
        let service = SearchService { base: Url::parse(&base).expect("a URL"), ..found.expect("a service") };
        let results = service.search(&query(&domains)).await.expect("results");
        let result = |title: &str, url: &str, text: &str, date: Option<&str>| SearchResult {
            title: title.to_owned(),
            url: url.to_owned(),
            text: text.to_owned(),
            date: date.map(str::to_owned),
        };
        let two = result("Two", "https://sub.a.example/2", "second", Some("2026-01-02"));
        assert_eq!(results, [result("One", "https://a.example/1", "first", None), two], "{choice:?}");
        let received = received.await.expect("a request");
        for part in wanted {
            assert!(received.contains(&part), "{choice:?}: {part} in {received}");
        }
    }
}

#[tokio::test]
async fn a_refusal_says_what_to_do() {
    for (choice, variable, status, answer, wanted) in [
        (
            SearchChoice::Searxng,
            "SEARXNG_URL",
            403,
            json!({}),
            "add json to search.formats in its settings.yml.",
        ),
        (SearchChoice::Searxng, "SEARXNG_URL", 200, json!([]), "answered in an unknown form"),
        (
            SearchChoice::Brave,
            "BRAVE_API_KEY",
            401,
            json!({}),
            "refused the key in BRAVE_API_KEY (status 401).",
        ),
        (
            SearchChoice::Tavily,
            "TAVILY_API_KEY",
            432,
            json!({}),
            "no searches left for the key in TAVILY_API_KEY",
        ),
        (SearchChoice::Exa, "EXA_API_KEY", 429, json!({}), "had too many requests"),
        (SearchChoice::Exa, "EXA_API_KEY", 500, json!({}), "answered with status 500."),
    ] {
        let (base, _received) = server(status, answer).await;
        let value = if variable == "SEARXNG_URL" { base.as_str() } else { "k-1" };
        let found = SearchService::find(choice, &env(&[(variable, value)])).expect("it is configured");
        let service = SearchService { base: Url::parse(&base).expect("a URL"), ..found.expect("a service") };
        let why = service.search(&query(&[])).await.expect_err("a refusal");
        assert!(why.contains(wanted) && why.contains(service.name()) && !why.contains("k-1"), "{why}");
    }
}

#[test]
fn a_service_needs_a_choice_and_its_variable() {
    let all = env(&[("BRAVE_API_KEY", "b"), ("EXA_API_KEY", "e"), ("TAVILY_API_KEY", " ")]);
    let name = |choice, env: &[(OsString, OsString)]| {
        SearchService::find(choice, env).map(|found| found.map(|service| service.name()))
    };
    assert_eq!(name(SearchChoice::Brave, &all), Ok(Some("Brave Search")));
    assert_eq!(name(SearchChoice::Tavily, &all), Err("its key is missing; set TAVILY_API_KEY".to_owned()));
    assert_eq!(name(SearchChoice::Searxng, &all), Err("its address is missing; set SEARXNG_URL".to_owned()));
    for choice in [SearchChoice::Off, SearchChoice::Auto, SearchChoice::Provider] {
        assert_eq!(name(choice, &all), Ok(None), "{choice:?}: keys are no choice");
    }
    let own = env(&[("SEARXNG_URL", "http://127.0.0.1:8888/searx/")]);
    let service = SearchService::find(SearchChoice::Auto, &own).expect("an address").expect("a service");
    assert_eq!(
        (service.address().as_str(), service.host().as_str()),
        ("http://127.0.0.1:8888/searx", "127.0.0.1:8888")
    );
    for bad in ["searx.example", "file:///etc/passwd", "http://"] {
        let why = name(SearchChoice::Auto, &env(&[("SEARXNG_URL", bad)])).expect_err(bad);
        assert!(why.starts_with("SEARXNG_URL is not an address"), "{why}");
    }
}

#[tokio::test]
async fn a_password_in_the_address_of_a_server_is_sent_as_a_header_and_never_shown() {
    let (base, received) = server(200, json!({ "results": [] })).await;
    let with_login = base.replace("http://", "http://me:p%40ss@");
    let service = SearchService::find(SearchChoice::Auto, &env(&[("SEARXNG_URL", &with_login)]));
    let service = service.expect("an address").expect("a service");
    assert_eq!(service.address(), base);
    assert_eq!(service.search(&query(&[])).await, Ok(Vec::new()));
    let received = received.await.expect("a request");
    assert!(received.contains("authorization: Basic bWU6cEBzcw=="), "{received}");
}
