//! Spans arrive at a collector, which is a plain HTTP server here, before the program exits.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::sync::mpsc;

use epitome_scripted_model::ModelStep;

use epitome_test_harness::user::User;

/// Answers every request with 200 and forwards its path and body.
fn collector() -> (String, mpsc::Receiver<(String, Vec<u8>)>) {
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
                    loop {
                        line.clear();
                        reader.read_line(&mut line).expect("a header");
                        if line.trim().is_empty() {
                            break;
                        }
                        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                            length = value.trim().parse().expect("a number");
                        }
                    }
                    let mut body = vec![0; length];
                    reader.read_exact(&mut body).expect("a body");
                    // A finished test has dropped the receiver.
                    drop(sender.send((path, body)));
                    let answer = "HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n";
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
    };
    sends_spans(in_file);
    sends_spans(|user, url| user.set("OTEL_EXPORTER_OTLP_ENDPOINT", url));
}

fn sends_spans(configure: impl Fn(&mut User, &str)) {
    let (url, requests) = collector();
    let mut user = User::with_replies(vec![vec![ModelStep::Text("PLANTED reply".into())]]);
    configure(&mut user, &url);
    user.run(&["run", "a PLANTED prompt"]).ok();
    let mut all = Vec::new();
    for (path, body) in requests.try_iter() {
        assert_eq!(path, "/v1/traces");
        all.extend(body);
    }
    let text = String::from_utf8_lossy(&all).into_owned();
    for wanted in ["service.name", "epitome", "turn", "round", "model_call", "outcome", "end_turn"] {
        assert!(text.contains(wanted), "{wanted} is not in {text:?}");
    }
    assert!(!text.contains("PLANTED"), "{text:?}");
}

#[test]
fn an_unreachable_collector_only_loses_its_spans() {
    let mut user = User::with_replies(vec![vec![ModelStep::Text("hello".into())]]);
    let unused = TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("it is bound");
    user.set("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("http://{unused}"));
    assert!(user.run(&["run", "Hello"]).ok().contains("hello"));
}
