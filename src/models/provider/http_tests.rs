//! Requests as a service sees them.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::*;
use crate::endpoint::{test_chat_endpoint, test_endpoint};

/// A service that answers with these statuses, one after the other.
#[derive(Debug)]
struct Service {
    statuses: Mutex<Vec<u16>>,
    requests: Mutex<Vec<SimulatedRequest>>,
}

impl SimulatedNetwork for Service {
    fn answer(&self, request: SimulatedRequest) -> BoxFuture<'static, SimulatedResponse> {
        self.requests.lock().push(request);
        let status = self.statuses.lock().remove(0);
        let (_, body) = mpsc::channel(1);
        std::future::ready(SimulatedResponse { status, headers: Vec::new(), body }).boxed()
    }
}

/// The encoding and the decoded body of each request with which a text is sent to a service that answers so, until all
/// its statuses were sent.
async fn requests(endpoint: &Endpoint, text: &str, statuses: &[u16]) -> Vec<(Option<String>, String)> {
    let service = Arc::new(Service { statuses: Mutex::new(statuses.to_vec()), requests: Mutex::default() });
    let http = Http::new().simulated(service.clone());
    while !service.statuses.lock().is_empty() {
        let (url, body) = (endpoint.url(), Some(vec![Bytes::from(text.to_owned())]));
        let asked = RequestShape { method: Method::POST, url, body, compressed: None, accept: "*/*" };
        let sending = http.sending(endpoint, asked).expect("it can be sent");
        sending.send(endpoint).await.expect("it is answered");
    }
    let decoded = |request: &SimulatedRequest| {
        let named = |(name, value): &(String, String)| (name == "content-encoding").then(|| value.clone());
        let encoding = request.headers.iter().find_map(named);
        let body = match &encoding {
            Some(_) => zstd::decode_all(&request.body[..]).expect("zstd"),
            None => request.body.clone(),
        };
        (encoding, String::from_utf8(body).expect("text"))
    };
    service.requests.lock().iter().map(decoded).collect()
}

#[tokio::test]
async fn long_requests_of_a_plan_are_compressed() {
    let plan = Endpoint { is_plan: true, ..test_endpoint("openai/gpt-5") };
    let (long, short) = ("a long conversation ".repeat(1_000), "a short one");
    let zstd = || Some("zstd".to_owned());
    assert_eq!(requests(&plan, &long, &[200]).await, [(zstd(), long.clone())]);
    assert_eq!(requests(&plan, short, &[200]).await, [(None, short.to_owned())]);
    // The service doesn't take it any longer.
    let plain = || (None, long.clone());
    assert_eq!(requests(&plan, &long, &[415, 200, 200]).await, [(zstd(), long.clone()), plain(), plain()]);
    let other = test_chat_endpoint("openai/gpt-5");
    assert_eq!(requests(&other, &long, &[200]).await, [(None, long)]);
}

#[test]
fn only_the_root_of_a_service_with_tls_is_contacted_in_advance() {
    let root = |url: &str| root_of(url).map(String::from);
    assert_eq!(
        root("https://me:secret@api.test:8443/v1?key=secret"),
        Some("https://api.test:8443/".to_owned())
    );
    assert_eq!(root("http://localhost:11434/v1"), None);
    assert_eq!(root("api.test"), None);
}
