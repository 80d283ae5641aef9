//! Sends a client's request to a provider and passes on what it answers, for a gateway.

use bytes::Bytes;
use reqwest::{Method, Response};
use tokio::time::timeout;

use super::RequestShape;
use super::logged::Logged;
use super::reply::{header, read_error};
use crate::ProviderError;
use crate::failure;
use crate::http::{CallTimeouts, Http, reason};
use crate::model_endpoint::Endpoint;

/// The headers that clients evaluate. Others may name the account.
const HEADERS: [&str; 7] =
    ["content-type", "retry-after", "retry-after-ms", "date", "x-should-retry", "request-id", "x-request-id"];

/// A provider's response. Dropping it cancels the call.
pub struct PassedReply {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    body: PassedBody,
    logged: Logged,
    limits: CallTimeouts,
}

enum PassedBody {
    Stream(Response),
    /// An error, without secrets.
    Error(Option<Bytes>),
}

impl Http {
    /// Sends a body as it is to a URL of the endpoint, with the endpoint's headers and credential. Returns once the
    /// response's headers have arrived.
    pub async fn pass_on(
        &self,
        endpoint: &Endpoint,
        url: &str,
        body: Bytes,
    ) -> Result<PassedReply, ProviderError> {
        let accept = if url == endpoint.url() { "text/event-stream" } else { "application/json" };
        let asked = RequestShape {
            method: Method::POST,
            url: url.to_owned(),
            body: Some(vec![body]),
            compressed: None,
            accept,
        };
        let mut logged = Logged::new(endpoint);
        let sending = self.sending(endpoint, asked).map_err(|error| logged.failed(error))?;
        let limits = sending.limits;
        let sent = sending.send(endpoint).await;
        let (authenticated, mut response) = sent.map_err(|error| logged.failed(error))?;
        let status = response.status().as_u16();
        logged.answered(status);
        let sent = |name| Some((name, header(response.headers(), name)?.to_owned()));
        let headers = HEADERS.into_iter().filter_map(sent).collect();
        let body = match status {
            200 => PassedBody::Stream(response),
            _ => {
                let error = failure::scrub(&authenticated, &read_error(&mut response).await);
                PassedBody::Error(Some(Bytes::from(error)))
            }
        };
        Ok(PassedReply { status, headers, body, logged, limits })
    }
}

impl PassedReply {
    /// The next bytes of the body; `None` at its end. An error is a clause.
    pub async fn next(&mut self) -> Result<Option<Bytes>, String> {
        let piece = match &mut self.body {
            PassedBody::Error(error) => error.take(),
            PassedBody::Stream(response) => match timeout(self.limits.silence, response.chunk()).await {
                Ok(Ok(piece)) => piece,
                Ok(Err(error)) => return Err(self.end("lost", reason(&error))),
                Err(_) => return Err(self.end("silent", "no more data came".to_owned())),
            },
        };
        match &piece {
            Some(piece) => self.logged.count_chunk(piece.len()),
            None => self.logged.end("finished"),
        }
        Ok(piece)
    }

    fn end(&mut self, outcome: &str, why: String) -> String {
        self.logged.end(outcome);
        why
    }
}
