//! The scripted model without a server: answers a process with a simulated network, at times that its caller chooses.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use epitome_provider::http::{SimulatedNetwork, SimulatedRequest, SimulatedResponse};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::encode::{Piece, Reply};
use super::http::Head;
use super::refusal::Refusal;
use super::{Answer, ModelStep, RecordedRequest, Shared, Strictness, answer};

/// Returns the delay before the next piece of a reply, and the maximum size of that piece in bytes.
type Pace = Box<dyn FnMut() -> (Duration, usize) + Send>;

/// See the module's documentation. Clones share one model.
#[derive(Clone)]
pub struct SimulatedModel {
    shared: Arc<Shared>,
    pace: Arc<Mutex<Pace>>,
}

impl SimulatedModel {
    /// `script` is called for each model call, in order, and returns the steps of the reply.
    pub fn new(
        script: impl FnMut(&RecordedRequest) -> Vec<ModelStep> + Send + 'static,
        pace: impl FnMut() -> (Duration, usize) + Send + 'static,
    ) -> SimulatedModel {
        let shared = Arc::new(Shared::new(Box::new(script), Strictness::Refuses));
        SimulatedModel { shared, pace: Arc::new(Mutex::new(Box::new(pace))) }
    }

    /// Why requests were rejected that violate their provider's rules.
    pub fn refusals(&self) -> Vec<String> {
        self.shared.refusals.lock().clone()
    }

    /// The number of model calls so far.
    pub fn calls(&self) -> usize {
        self.shared.requests.lock().len()
    }
}

impl SimulatedNetwork for SimulatedModel {
    fn answer(&self, request: SimulatedRequest) -> BoxFuture<'static, SimulatedResponse> {
        let model = self.clone();
        Box::pin(async move {
            let SimulatedRequest { method, url, headers, body } = request;
            let path = url.splitn(4, '/').nth(3).map_or("/".to_owned(), |path| format!("/{path}"));
            let head = Head { method, path, headers, keep_alive: true };
            let pace = || model.pace.lock()();
            tokio::time::sleep(pace().0).await;
            let (status, headers, pieces) = match answer(&head, &body, &model.shared) {
                Answer::Plain(value) => (200, Vec::new(), vec![whole(&value)]),
                Answer::Reply(Reply::Refused(Refusal { status, headers, body })) => {
                    let headers = headers.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
                    (status, headers, vec![whole(&body)])
                }
                Answer::Reply(Reply::Stream(pieces)) => {
                    (200, vec![("content-type".to_owned(), "text/event-stream".to_owned())], pieces)
                }
            };
            let (sender, body) = mpsc::channel(1);
            let playing = model.clone();
            tokio::spawn(async move { playing.play(pieces, sender).await });
            SimulatedResponse { status, headers, body }
        })
    }
}

impl SimulatedModel {
    /// Sends the pieces until the last one, or until the receiver is dropped.
    async fn play(&self, pieces: Vec<Piece>, to: mpsc::Sender<io::Result<Bytes>>) {
        for piece in pieces {
            match piece {
                Piece::Bytes(bytes) => {
                    let mut rest = Bytes::from(bytes);
                    while !rest.is_empty() {
                        let (delay, most) = self.pace.lock()();
                        tokio::time::sleep(delay).await;
                        let some = rest.split_to(most.clamp(1, rest.len()));
                        if to.send(Ok(some)).await.is_err() {
                            return;
                        }
                    }
                }
                Piece::Wait | Piece::Hang => return to.closed().await,
                Piece::Cut => {
                    let lost = io::Error::from(io::ErrorKind::ConnectionReset);
                    return drop(to.send(Err(lost)).await);
                }
            }
        }
    }
}

impl std::fmt::Debug for SimulatedModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SimulatedModel")
    }
}

fn whole(value: &serde_json::Value) -> Piece {
    Piece::Bytes(value.to_string().into_bytes())
}
