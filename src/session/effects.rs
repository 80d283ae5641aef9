//! Performs what a turn asks for: model calls, tools, summaries. It decides nothing and commits
//! nothing; what came of it goes back to the session.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::{Instant, Sleep, sleep_until};
use tracing::Span;

use super::log::LogSyncer;
use epitome_provider::collect::{Collector, ModelReply};
use epitome_provider::endpoint::Endpoint;
use epitome_provider::http::{Http, ReplyStream, Starting};
use epitome_provider::wire::Purpose;
use epitome_provider::wire::encoding::{Encoded, Encoding};
use epitome_provider::{Basis, ErrorClass, ModelRequest, ProviderError, ProviderEvent, retry};
use epitome_thread::{
    CallId, Change, Content, Entry, Message, MessageId, ModelName, OutcomeStatus, PlanStep, ThoughtLevel,
    ToolCall, ToolOutcome, View, ViewItem,
};
use epitome_tokens::Ruler;
use epitome_tools::{Tool, ToolContext};

/// What a request is made of, apart from the thread so that it can outlive a borrow of it.
#[derive(Clone)]
pub struct RequestSnapshot {
    pub frame: Arc<Entry>,
    pub view: View,
    pub thought: ThoughtLevel,
    pub max_output: u32,
    pub cache_key: String,
    pub ruler: Ruler,
    /// What of it was written already.
    pub encoding: Encoding,
}

impl RequestSnapshot {
    /// The tokens that the view and the frame take, by estimate.
    pub fn tokens(&self) -> u64 {
        let frame = match &self.frame.change {
            Change::Framed { system, tools } => self.ruler.frame(system, tools),
            _ => 0,
        };
        frame + self.ruler.view(&self.view)
    }

    /// The request for the view as it stands, with one more user message where `more` is given.
    pub fn request<'a>(&'a self, more: Option<&'a Message>) -> ModelRequest<'a> {
        let mut request = request(&self.frame, &self.view, self.thought, self.max_output, &self.cache_key);
        request.items.extend(more.map(ViewItem::User));
        request
    }
}

/// The request for a view.
pub fn request<'a>(
    frame: &'a Entry,
    view: &'a View,
    thought: ThoughtLevel,
    max_output: u32,
    cache_key: &'a str,
) -> ModelRequest<'a> {
    let Change::Framed { system, tools } = &frame.change else {
        unreachable!("a frame's entry holds a frame")
    };
    let basis = Some(Basis { frame: frame.seq, revision: view.revision() });
    ModelRequest { system, tools, items: view.items(), thought, max_output, cache_key, basis }
}

/// One model call: started, waiting for another try, or streaming.
///
/// The session polls it itself: no task and no channel stands between a delta and the client.
pub struct ModelCall {
    /// The id that the reply's message will have.
    pub message: MessageId,
    pub model: ModelName,
    /// Tries that failed.
    pub attempts: u32,
    pub collector: Collector,
    /// Whether a user saw anything of the reply: then it can't be tried again.
    pub seen: bool,
    encoded: Encoded,
    endpoint: Endpoint,
    /// What it belongs to, in the log.
    scope: Span,
    phase: Phase,
    quiet: Quiet,
}

/// A count of the request's tokens before it is sent.
pub struct Counting {
    pub count: Pin<Box<dyn Future<Output = Result<u64, ProviderError>> + Send>>,
    /// The tokens that it may have.
    pub room: u64,
}

enum Phase {
    Counting(Counting),
    Starting(Starting),
    Streaming(Box<ReplyStream>),
    Waiting { until: Instant, sleep: Pin<Box<Sleep>> },
}

/// How long nothing is heard of a reply before it is reported. The next reports come after twice the time each.
const QUIET_REPORTED_AFTER: Duration = Duration::from_secs(30);

/// Since when nothing is heard of a reply, and when that is reported next.
struct Quiet {
    since: Instant,
    report_at: Instant,
}

impl Quiet {
    fn from_now() -> Quiet {
        let since = Instant::now();
        Quiet { since, report_at: since + QUIET_REPORTED_AFTER }
    }

    fn report(&mut self) -> ModelCallEvent {
        let quiet = self.report_at - self.since;
        self.report_at = self.since + 2 * quiet;
        ModelCallEvent::Quiet(quiet)
    }
}

/// What a model call has to say.
pub enum ModelCallEvent {
    /// Everything that arrived.
    Events(Vec<ProviderEvent>),
    /// The provider's own count is larger than there is room for; nothing was sent.
    Full,
    /// The reply is complete.
    Finished,
    Failed(ProviderError),
    /// The next try is not before so long.
    StillWaiting(Duration),
    /// Nothing of the reply has come for so long.
    Quiet(Duration),
}

impl ModelCall {
    pub fn start(
        http: &Http,
        scope: Span,
        endpoint: Endpoint,
        encoded: Encoded,
        message: MessageId,
        counting: Option<Counting>,
    ) -> Result<ModelCall, ProviderError> {
        let phase = match counting {
            Some(counting) => Phase::Counting(counting),
            None => Phase::Starting(scope.in_scope(|| http.start(&endpoint, &encoded))?),
        };
        Ok(ModelCall {
            message,
            model: endpoint.name.clone(),
            attempts: 0,
            collector: Collector::new(&endpoint.name),
            seen: false,
            encoded,
            endpoint,
            scope,
            phase,
            quiet: Quiet::from_now(),
        })
    }

    /// The whole reply; the collector begins anew.
    pub fn take_reply(&mut self) -> ModelReply {
        std::mem::replace(&mut self.collector, Collector::new(&self.endpoint.name)).finish()
    }

    /// Tries again after a while.
    pub fn retry_after(&mut self, delay: Duration) {
        self.attempts += 1;
        self.quiet = Quiet::from_now();
        self.collector = Collector::new(&self.endpoint.name);
        let sleep = Box::pin(tokio::time::sleep(retry::before_reminder(delay)));
        self.phase = Phase::Waiting { until: Instant::now() + delay, sleep };
    }

    /// Waits for the next news. Dropping the future loses nothing.
    pub async fn step(&mut self, http: &Http) -> ModelCallEvent {
        loop {
            match &mut self.phase {
                Phase::Counting(Counting { count, room }) => {
                    // Without a count the provider says itself whether it takes the request.
                    if let Ok(tokens) = count.await
                        && tokens > *room
                    {
                        let room = *room;
                        tracing::info!(model = %self.model, tokens, room, "the request does not fit");
                        return ModelCallEvent::Full;
                    }
                    match self.scope.in_scope(|| http.start(&self.endpoint, &self.encoded)) {
                        Ok(starting) => self.phase = Phase::Starting(starting),
                        Err(error) => return ModelCallEvent::Failed(error),
                    }
                }
                Phase::Starting(starting) => tokio::select! {
                    biased;
                    started = starting => match started {
                        Ok(stream) => self.phase = Phase::Streaming(Box::new(stream)),
                        Err(error) => return ModelCallEvent::Failed(error),
                    },
                    () = sleep_until(self.quiet.report_at) => return self.quiet.report(),
                },
                Phase::Streaming(stream) => {
                    return tokio::select! {
                        biased;
                        events = stream.next() => match events {
                            Ok(Some(events)) => {
                                self.quiet = Quiet::from_now();
                                ModelCallEvent::Events(events)
                            }
                            Ok(None) => ModelCallEvent::Finished,
                            Err(error) => ModelCallEvent::Failed(error),
                        },
                        () = sleep_until(self.quiet.report_at) => self.quiet.report(),
                    };
                }
                Phase::Waiting { until, sleep } => {
                    sleep.as_mut().await;
                    let left = until.saturating_duration_since(Instant::now());
                    if !left.is_zero() {
                        sleep.as_mut().reset(Instant::now() + retry::before_reminder(left));
                        return ModelCallEvent::StillWaiting(left);
                    }
                    self.quiet = Quiet::from_now();
                    match self.scope.in_scope(|| http.start(&self.endpoint, &self.encoded)) {
                        Ok(starting) => self.phase = Phase::Starting(starting),
                        Err(error) => return ModelCallEvent::Failed(error),
                    }
                }
            }
        }
    }
}

/// Runs one tool call. What writes or executes waits until the log that tells of it is on disk.
pub async fn run_tool(
    tool: Arc<dyn Tool>,
    call: ToolCall,
    context: ToolContext,
    sync_first: Option<LogSyncer>,
) -> (ToolOutcome, Option<Vec<PlanStep>>) {
    if let Some(syncer) = sync_first
        && let Err(error) = syncer.sync().await
    {
        let text = format!("Not run: the session's log can't be written ({error}).");
        return (ToolOutcome::text(call.id, OutcomeStatus::Failed, text), None);
    }
    let result = tool.run(call.input, context).await;
    let outcome = ToolOutcome {
        call: call.id,
        status: result.status,
        content: result.content,
        shown: result.shown,
        locations: result.locations,
        raw: result.raw,
        whole: result.whole,
        decided: None,
    };
    (outcome, result.plan)
}

/// A request that stands alone, written.
pub fn encode(endpoint: &Endpoint, request: &ModelRequest<'_>) -> Encoded {
    Encoding::default().encode(endpoint, request, Purpose::Reply)
}

/// Bytes of text that take half of a window, at three bytes a token: the rest is the instruction's and
/// the answer's.
pub fn half_of(window: u64) -> usize {
    usize::try_from(window.saturating_mul(3) / 2).unwrap_or(usize::MAX)
}

/// Runs a job to its end; a panic of ours comes to what `otherwise` says, so that whoever waits for the
/// job goes on.
pub async fn guarded<T>(job: impl Future<Output = T>, otherwise: impl FnOnce() -> T) -> T {
    AssertUnwindSafe(job).catch_unwind().await.unwrap_or_else(|_| {
        tracing::error!("a job of a turn panicked");
        otherwise()
    })
}

/// What a model call comes to whose decoder panicked.
pub fn panicked() -> ModelCallEvent {
    ModelCallEvent::Failed(internal_error())
}

/// A provider's answer met a fault of ours.
pub fn internal_error() -> ProviderError {
    ProviderError {
        class: ErrorClass::Broken,
        message:
            "reading the model's answer failed with an internal error of Epitome; its log has the details"
                .to_owned(),
        hint: None,
    }
}

/// Makes ids of a reply's calls unique in their thread and well formed for every provider.
pub fn name_calls(content: &mut [Content], is_known: impl Fn(&str) -> bool, message: MessageId) {
    let mut given: Vec<CallId> = Vec::new();
    for (index, content) in content.iter_mut().enumerate() {
        let Content::Call(call) = content else { continue };
        let id = &call.id.0;
        let well_formed = !id.is_empty()
            && id.len() <= 64
            && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-');
        if !well_formed || is_known(id) || given.contains(&call.id) {
            call.id = CallId(format!("call_{message}_{index}"));
        }
        given.push(call.id.clone());
    }
}
