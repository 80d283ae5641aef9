//! A simulated network without sockets, for tests in which a seed determines which bytes arrive when.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http_body::{Body, Frame};
use reqwest::header::HeaderMap;
use tokio::sync::mpsc;

use super::RequestShape;

/// Answers requests in place of the network.
pub trait SimulatedNetwork: std::fmt::Debug + Send + Sync {
    /// Returns the response once its headers have arrived.
    fn answer(&self, request: SimulatedRequest) -> BoxFuture<'static, SimulatedResponse>;
}

/// A request as a server sees it.
#[derive(Debug)]
pub struct SimulatedRequest {
    pub method: String,
    pub url: String,
    /// Names are lower case.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

/// A response whose body arrives in pieces. An error represents a lost connection.
#[derive(Debug)]
pub struct SimulatedResponse {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: mpsc::Receiver<io::Result<Bytes>>,
}

pub(super) async fn answer(
    network: &dyn SimulatedNetwork,
    asked: &RequestShape,
    headers: &HeaderMap,
) -> reqwest::Response {
    let headers =
        headers.iter().map(|(name, value)| (name.to_string(), value.to_str().unwrap_or_default().to_owned()));
    let request = SimulatedRequest {
        method: asked.method.to_string(),
        url: asked.url.clone(),
        headers: headers.collect(),
        body: match (&asked.compressed, &asked.body) {
            (Some(compressed), _) => compressed.to_vec(),
            (None, Some(pieces)) => pieces.concat(),
            (None, None) => Vec::new(),
        },
    };
    let SimulatedResponse { status, headers, body } = network.answer(request).await;
    let mut response = hyper::Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(name, value);
    }
    let response =
        response.body(reqwest::Body::wrap(Pieces(body))).expect("a simulation sends valid headers");
    response.into()
}

struct Pieces(mpsc::Receiver<io::Result<Bytes>>);

impl Body for Pieces {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.0.poll_recv(context).map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}
