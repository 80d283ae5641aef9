//! `sessions.tail`: follows a session. Sends its log first, as fast as the client reads, then live events
//! from a bounded queue, so that the session never waits for the client.

use std::sync::Arc;

use jsonrpsee::core::to_json_raw_value;
use jsonrpsee::{Extensions, PendingSubscriptionSink, SubscriptionSink};
use jsonrpsee_types::Params;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::caller;
use super::fault::Fault;
use super::params::{EntryName, SessionName, read, spawn_blocking};
use super::queue::{ClientQueue, ClientQueues, QueuedEvent};
use super::wire::stopped;
use crate::Daemon;
use crate::attachments::fresh_client;
use epitome_session::{Attachment, ClientId, NoticeSeverity, QuestionSupport, SessionEvent};
use epitome_store::StoreError;
use epitome_thread::{Entry, Seq, SessionId};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TailParams {
    session: SessionName,
    /// First entry to send; the complete log if absent.
    from: Option<EntryName>,
    /// Kinds of questions, besides permission requests, that this client will answer.
    #[serde(default)]
    questions: Vec<Showable>,
}

/// A kind of question, in ACP's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Showable {
    Form,
    Url,
}

/// Serves one subscription until it is ended, its connection closes, or it lags.
pub async fn tail(
    params: Params<'static>,
    pending: PendingSubscriptionSink,
    daemon: Arc<Daemon>,
    subscription_guard: Extensions,
) {
    let begun = match read::<TailParams>("sessions.tail", params.as_str()) {
        Ok(wanted) => daemon.control.limits.hold("sessions.tail", begin(&daemon, wanted)).await,
        Err(fault) => Err(fault),
    };
    let (session, from, shows, (entries, damage)) = match begun {
        Ok(begun) => begun,
        Err(fault) => return pending.reject(fault).await,
    };
    let Ok(sink) = pending.accept().await else { return };
    let queues = caller(&subscription_guard).map(|caller| caller.queues).unwrap_or_default();
    let mut sender = TailSender { queues, sink, session: session.clone(), next: from, shows };
    // An error means that the client is gone.
    drop(sender.send_all(&daemon, entries, damage).await);
    drop(subscription_guard);
}

async fn begin(
    daemon: &Arc<Daemon>,
    wanted: TailParams,
) -> Result<(SessionId, Seq, QuestionSupport, LogSnapshot), Fault> {
    let session = wanted.session.find_blocking(daemon).await?;
    let (store, name) = (daemon.store.clone(), session.clone());
    let log = spawn_blocking(daemon, move || Ok(store.read_with_damage(&name)?)).await?;
    let can = |kind| wanted.questions.contains(&kind);
    let shows = QuestionSupport { forms: can(Showable::Form), urls: can(Showable::Url) };
    Ok((session, wanted.from.map_or(Seq(0), |from| from.0), shows, log))
}

type LogSnapshot = (Vec<Arc<Entry>>, Option<StoreError>);

struct ClientGone;

struct TailSender {
    queues: Arc<ClientQueues>,
    sink: SubscriptionSink,
    session: SessionId,
    /// The next entry to send to the client.
    next: Seq,
    shows: QuestionSupport,
}

impl TailSender {
    async fn send_all(
        &mut self,
        daemon: &Arc<Daemon>,
        entries: Vec<Arc<Entry>>,
        damage: Option<StoreError>,
    ) -> Result<(), ClientGone> {
        for entry in entries {
            if entry.seq >= self.next {
                self.send(&SessionEvent::Entry { entry, replay: true, own: false }).await?;
            }
        }
        if let Some(damage) = damage {
            self.send(&SessionEvent::Notice { severity: NoticeSeverity::Warning, text: damage.to_string() })
                .await?;
        }
        let queue = Arc::new(ClientQueue::default());
        queue.set_shows(self.shows);
        self.queues.add(&queue);
        let watching = Watching::begin(daemon, &self.session, self.next, queue.clone()).await;
        let _watching = match watching {
            Ok(watching) => watching,
            Err(fault) => {
                let data = json!({ "severity": "error", "text": fault.message });
                return self.send_other("notice", data).await;
            }
        };
        let mut stop = daemon.stop.subscribe();
        loop {
            let next = tokio::select! {
                next = queue.next() => next,
                () = self.sink.closed() => return Err(ClientGone),
                () = stopped(&mut stop) => return Ok(()),
            };
            match next {
                QueuedEvent::Item(_, out) => self.send(&out).await?,
                QueuedEvent::Lagged => {
                    let data = json!({ "from": self.next.to_string() });
                    return self.send_other("lagged", data).await;
                }
            }
        }
    }

    async fn send(&mut self, out: &SessionEvent) -> Result<(), ClientGone> {
        #[derive(Serialize)]
        struct TailItem<'a> {
            session: &'a SessionId,
            #[serde(flatten)]
            out: &'a SessionEvent,
        }
        if let SessionEvent::Entry { entry, .. } = out {
            self.next = self.next.max(Seq(entry.seq.0 + 1));
        }
        self.send_item(&TailItem { session: &self.session, out }).await
    }

    /// Sends an item that does not originate from the session.
    async fn send_other(&mut self, kind: &str, data: Value) -> Result<(), ClientGone> {
        self.send_item(&json!({ "session": self.session, "type": kind, "data": data })).await
    }

    async fn send_item(&self, item: &impl Serialize) -> Result<(), ClientGone> {
        // All items are serializable as JSON.
        let item = to_json_raw_value(item).map_err(|_| ClientGone)?;
        self.sink.send(item).await.map_err(|_| ClientGone)
    }
}

/// Marks the session as followed until dropped.
struct Watching {
    daemon: Arc<Daemon>,
    session: SessionId,
    client: ClientId,
}

impl Watching {
    async fn begin(
        daemon: &Arc<Daemon>,
        session: &SessionId,
        from: Seq,
        queue: Arc<ClientQueue>,
    ) -> Result<Watching, Fault> {
        let client = fresh_client();
        let watching = Watching { daemon: daemon.clone(), session: session.clone(), client };
        daemon.control.add_follower(session);
        let (watched, session) = (daemon.clone(), session.clone());
        let attachment = Attachment { client, outlet: queue };
        spawn_blocking(daemon, move || Ok(watched.sessions.watch(&session, from, attachment)?)).await?;
        Ok(watching)
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.daemon.sessions.unwatch(self.client);
        self.daemon.control.remove_follower(&self.session);
    }
}
