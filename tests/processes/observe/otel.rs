//! Spans arrive at a collector, which is a plain HTTP server here, before the program exits.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::sync::mpsc;

use epitome_scripted_model::ModelStep;

use epitome_test_harness::user::User;
use serde_json::Value;

/// A request to a collector: the path, the headers, and the body.
type Sent = (String, String, Vec<u8>);

/// Answers every request with 200 and forwards it.
fn collector() -> (String, mpsc::Receiver<Sent>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("it is bound"));
    let (sender, requests) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let sender = sender.clone();
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().expect("a second handle"));
                let mut line = String::new();
                while reader.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
                    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
                    let mut length = 0;
                    let mut headers = String::new();
                    loop {
                        line.clear();
                        reader.read_line(&mut line).expect("a header");
                        if line.trim().is_empty() {
                            break;
                        }
                        headers += &line.to_ascii_lowercase();
                        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                            length = value.trim().parse().expect("a number");
                        }
                    }
                    let mut body = vec![0; length];
                    reader.read_exact(&mut body).expect("a body");
                    // A finished test has dropped the receiver.
                    drop(sender.send((path, headers, body)));
                    let answer =
                        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
                    (&stream).write_all(answer.as_bytes()).expect("the exporter reads");
                    line.clear();
                }
            });
        }
    });
    (url, requests)
}

#[test]
fn spans_arrive_at_the_collector_without_message_contents() {
    let in_file = |user: &mut User, url: &str| {
        user.write(".epitome/config.toml", &format!("telemetry.endpoint = \"{url}\"\n"));
        "epitome"
    };
    sends_spans(in_file);
    sends_spans(|user, url| {
        user.set("OTEL_EXPORTER_OTLP_ENDPOINT", url);
        user.set("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20key,other=1");
        user.set("OTEL_SERVICE_NAME", "agents");
        "agents"
    });
}

fn sends_spans(configure: impl Fn(&mut User, &str) -> &'static str) {
    let (url, requests) = collector();
    let mut user = User::with_replies(vec![vec![ModelStep::Text("PLANTED reply".into())]]);
    let service = configure(&mut user, &url);
    user.run(&["run", "a PLANTED prompt"]).ok();
    let mut spans = BTreeMap::new();
    for (path, headers, body) in requests.try_iter() {
        assert_eq!(path, "/v1/traces");
        assert!(headers.contains("content-type: application/json\r\n"), "{headers}");
        assert!(service == "epitome" || headers.contains("api-key: a key\r\n"), "{headers}");
        let text = String::from_utf8(body).expect("it is text");
        assert!(!text.contains("PLANTED"), "{text}");
        let body: Value = serde_json::from_str(&text).expect("it is JSON");
        for resource in body["resourceSpans"].as_array().expect("a list") {
            assert_eq!(attribute(&resource["resource"], "service.name")["stringValue"], service);
            for scope in resource["scopeSpans"].as_array().expect("a list") {
                assert!(scope["scope"]["name"].is_string(), "{scope}");
                for span in scope["spans"].as_array().expect("a list") {
                    let id = checked(span);
                    assert!(spans.insert(id, span.clone()).is_none(), "sent twice: {span}");
                }
            }
        }
    }
    // A model call is in a round, a round is in a turn.
    let named = |name: &str| {
        let found = spans.values().find(|span| span["name"] == name);
        found.unwrap_or_else(|| panic!("no {name}: {spans:?}"))
    };
    for (inner, outer) in [("model_call", "round"), ("round", "turn")] {
        let (inner, outer) = (named(inner), named(outer));
        assert_eq!(inner["parentSpanId"], outer["spanId"], "{inner}");
        assert_eq!(inner["traceId"], outer["traceId"], "{inner}");
    }
    assert_eq!(attribute(named("turn"), "outcome")["stringValue"], "end_turn");
    assert_eq!(attribute(named("turn"), "rounds")["intValue"], "1");
}

fn attribute<'a>(of: &'a Value, key: &str) -> &'a Value {
    let mut attributes = of["attributes"].as_array().expect("a list").iter();
    let found = attributes.find(|attribute| attribute["key"] == key);
    &found.unwrap_or_else(|| panic!("no {key}: {of}"))["value"]
}

/// Asserts that a span is as the format (OTLP, encoded as JSON) requires, and returns its id.
fn checked(span: &Value) -> String {
    let hexadecimal = |name: &str, length: usize| {
        let text = span[name].as_str().unwrap_or_else(|| panic!("no {name}: {span}"));
        let is_id = text.len() == length && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        assert!(is_id && text.bytes().any(|byte| byte != b'0'), "{name}: {span}");
        text.to_owned()
    };
    hexadecimal("traceId", 32);
    if span["parentSpanId"] != "" {
        hexadecimal("parentSpanId", 16);
    }
    assert!(span["name"].as_str().is_some_and(|name| !name.is_empty()), "{span}");
    assert_eq!(span["kind"], 1, "{span}");
    let time = |name: &str| span[name].as_str().and_then(|text| text.parse::<u64>().ok());
    let (start, end) = (time("startTimeUnixNano"), time("endTimeUnixNano"));
    assert!(start.is_some() && start <= end, "{span}");
    let mut keys = BTreeSet::new();
    for attribute in span["attributes"].as_array().expect("a list") {
        assert!(keys.insert(attribute["key"].as_str().expect("a name")), "twice: {span}");
        let value = attribute["value"].as_object().expect("a value").iter().collect::<Vec<_>>();
        let [(kind, value)] = value[..] else { panic!("one kind: {span}") };
        let is_valid = match kind.as_str() {
            "stringValue" => value.is_string(),
            // 64 bits are a decimal string.
            "intValue" => value.as_str().is_some_and(|text| text.parse::<i64>().is_ok()),
            "boolValue" => value.is_boolean(),
            "doubleValue" => value.is_number(),
            _ => false,
        };
        assert!(is_valid, "{attribute}");
    }
    hexadecimal("spanId", 16)
}

#[test]
fn an_unreachable_collector_only_loses_its_spans() {
    let mut user = User::with_replies(vec![vec![ModelStep::Text("hello".into())]]);
    let unused = TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("it is bound");
    user.set("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{unused}"));
    assert!(user.run(&["run", "Hello"]).ok().contains("hello"));
}
