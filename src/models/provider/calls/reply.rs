//! A streamed reply, read chunk by chunk, or an error response in its place.

use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use reqwest::Response;
use reqwest::header::HeaderMap;
use tokio::time::{Instant, timeout, timeout_at};

use super::limits::{TRIED_AGAIN_MAX, format_duration};
use super::logged::Logged;
use crate::budget::Reservation;
use crate::failure::{self, ErrorResponse};
use crate::http::{CallTimeouts, read_start, reason};
use crate::model_endpoint::Endpoint;
use crate::wire::stream::Decoding;
use crate::{ProviderError, ProviderEvent, retry};

/// Maximum bytes that are read of an error body.
pub const ERROR_BODY_BYTES_MAX: usize = 64 * 1024;

/// Timeout for an error body after its headers. The part that has arrived by then is reported.
const ERROR_BODY_TIME_MAX: Duration = Duration::from_secs(10);

/// How long to wait for the end of the transfer after the reply's last event. The connection can only be reused after
/// that, and a server that keeps the transfer open delays the caller no longer than this.
const END_OF_TRANSFER_MAX: Duration = Duration::from_millis(100);

/// How often a call of `ReplyStream::next` lets the connection's task run before it returns. That task passes on only one
/// chunk at a time, and a fast model sends thousands of tiny ones, each of which would otherwise take the way to the
/// client on its own.
const TURNS_MAX: u32 = 64;

/// A streamed reply. Dropping it closes the HTTP stream.
#[derive(Debug)]
pub struct ReplyStream {
    response: Response,
    decoding: Decoding,
    /// Events that have arrived and were not returned yet.
    events: Vec<ProviderEvent>,
    state: StreamState,
    limits: CallTimeouts,
    /// When the last chunk arrived.
    last_received: Instant,
    /// When the last piece of the reply arrived.
    moved_on: Instant,
    logged: Logged,
    /// Charges the cost of the call when dropped.
    reservation: Option<Reservation>,
}

#[derive(Debug)]
enum StreamState {
    Open,
    /// The last event has been returned, but the transfer may not have ended yet.
    Whole,
    /// An error that is returned after the preceding events.
    Failed(ProviderError),
    Ended,
}

impl ReplyStream {
    /// Waits for at least one event and returns all that have arrived. Returns `None` once after the final event of the
    /// reply. A stream that ends without one is an error of class `Retry`.
    ///
    /// Cancel-safe: dropping the future loses nothing, and the silence timer keeps running.
    pub async fn next(&mut self) -> Result<Option<Vec<ProviderEvent>>, ProviderError> {
        let arrived = self.arrived().await?;
        if let (Some(reservation), Some(events)) = (&mut self.reservation, &arrived) {
            events.iter().for_each(|event| reservation.received(event));
        }
        Ok(arrived)
    }

    async fn arrived(&mut self) -> Result<Option<Vec<ProviderEvent>>, ProviderError> {
        let mut turns = 0;
        loop {
            match std::mem::replace(&mut self.state, StreamState::Open) {
                StreamState::Open => {}
                StreamState::Whole => {
                    self.state = StreamState::Ended;
                    self.drain().await;
                    self.logged.end("finished");
                    return Ok(None);
                }
                StreamState::Ended => {
                    self.state = StreamState::Ended;
                    self.logged.end("finished");
                    return Ok(None);
                }
                StreamState::Failed(error) => {
                    self.state = StreamState::Ended;
                    return Err(self.logged.failed(error));
                }
            }
            let arrived = match self.events.is_empty() {
                true => timeout_at(self.silent_until(), self.response.chunk()).await,
                // Takes what has arrived, without waiting. The runtime's cooperative budget bounds how much that is
                // before other tasks run.
                false => {
                    let mut arrived = self.response.chunk().now_or_never();
                    if arrived.is_none() && turns < TURNS_MAX {
                        turns += 1;
                        let_others_run().await;
                        arrived = self.response.chunk().now_or_never();
                    }
                    match arrived {
                        Some(arrived) => Ok(arrived),
                        None => return Ok(Some(std::mem::take(&mut self.events))),
                    }
                }
            };
            let result = match arrived {
                Ok(Ok(Some(piece))) => {
                    self.last_received = Instant::now();
                    self.logged.count_chunk(piece.len());
                    let known = self.events.len();
                    let result = self.decoding.push(&piece, &mut self.events);
                    // Some services repeat the usage while the model is busy, which is not progress.
                    let is_progress = |event: &ProviderEvent| !matches!(event, ProviderEvent::Usage(_));
                    if self.events[known..].iter().any(is_progress) {
                        self.moved_on = self.last_received;
                    }
                    result
                }
                Ok(Ok(None)) => self.ended(),
                // The last event may not be marked as such, so that the reply may be complete.
                Ok(Err(error)) => self.ended().map_err(|_| {
                    self.decoding.lost(&format!("the connection was lost ({})", reason(&error)))
                }),
                Err(_) => Err(self.silence_error()),
            };
            match result {
                Err(error) => self.state = StreamState::Failed(error),
                Ok(()) if matches!(self.state, StreamState::Open) && self.decoding.is_whole() => {
                    self.state = StreamState::Whole
                }
                Ok(()) => {}
            }
            if !matches!(self.state, StreamState::Open) && !self.events.is_empty() {
                return Ok(Some(std::mem::take(&mut self.events)));
            }
        }
    }

    pub(super) async fn open(
        endpoint: Endpoint,
        prefix: String,
        mut response: Response,
        limits: CallTimeouts,
        mut logged: Logged,
        mut reservation: Option<Reservation>,
    ) -> Result<ReplyStream, ProviderError> {
        let status = response.status().as_u16();
        logged.answered(status);
        let headers = response.headers().clone();
        let request_id = request_id(&headers);
        if status == 200 {
            let decoding = Decoding::new(endpoint, prefix, request_id.map(str::to_owned));
            let last_received = Instant::now();
            if let Some(reservation) = &mut reservation {
                reservation.answered();
            }
            return Ok(ReplyStream {
                response,
                decoding,
                events: Vec::new(),
                state: StreamState::Open,
                limits,
                last_received,
                moved_on: last_received,
                logged,
                reservation,
            });
        }
        let body = read_error(&mut response).await;
        Err(logged.failed(refusal(&endpoint, status, &headers, &body)))
    }

    /// Handles the end of the body.
    fn ended(&mut self) -> Result<(), ProviderError> {
        self.decoding.end(&mut self.events)?;
        self.state = StreamState::Ended;
        Ok(())
    }

    fn silent_until(&self) -> Instant {
        (self.last_received + self.limits.silence).min(self.moved_on + self.limits.content)
    }

    fn silence_error(&self) -> ProviderError {
        let is_alive = self.last_received + self.limits.silence > self.moved_on + self.limits.content;
        let limit = if is_alive { self.limits.content } else { self.limits.silence };
        let time = format_duration(limit);
        let why = match is_alive {
            true => format!(
                "it kept the connection alive and sent nothing of the reply for {time}, the limit of silence_s"
            ),
            false => format!("no more data came for {time}, the limit of silence"),
        };
        if limit <= TRIED_AGAIN_MAX { self.decoding.lost(&why) } else { self.decoding.broken(&why) }
    }

    /// Reads to the end of the transfer, so that the connection can be reused.
    async fn drain(&mut self) {
        let to_end = async { while let Ok(Some(_)) = self.response.chunk().await {} };
        // On a timeout the connection is closed instead.
        let _ = timeout(END_OF_TRANSFER_MAX, to_end).await;
    }
}

/// Runs the tasks that are ready. Unlike `yield_now`, it makes no system call.
async fn let_others_run() {
    let mut is_again = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut is_again, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Classifies an error response.
pub(super) fn refusal(endpoint: &Endpoint, status: u16, headers: &HeaderMap, body: &str) -> ProviderError {
    let named = |name: &str| header(headers, name);
    let reset = || (status == 429).then(|| retry::rate_limit_reset(named)).flatten();
    let failure = ErrorResponse {
        status,
        retry_after: retry::retry_after(named).or_else(reset),
        should_retry: header(headers, "x-should-retry").and_then(|value| value.parse().ok()),
        request_id: request_id(headers),
        body,
    };
    failure::classify(endpoint, &failure)
}

fn request_id(headers: &HeaderMap) -> Option<&str> {
    header(headers, "request-id").or_else(|| header(headers, "x-request-id"))
}

pub(super) fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

pub(super) async fn read_error(response: &mut Response) -> String {
    let mut body = Vec::new();
    let reading = read_start(response, ERROR_BODY_BYTES_MAX, &mut body);
    // If the body doesn't arrive, the status is sufficient.
    let _ = timeout(ERROR_BODY_TIME_MAX, reading).await;
    String::from_utf8_lossy(&body).into_owned()
}
