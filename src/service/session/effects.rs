//! Performs the effects of a turn: model calls, tools, summaries. Makes no decisions and commits nothing; the session
//! handles the results.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::{Instant, Sleep, sleep_until};
use tracing::Span;

use epitome_provider::calls::{ReplyStream, Starting};
use epitome_provider::collect::{Collector, ModelReply};
use epitome_provider::endpoint::Endpoint;
use epitome_provider::http::Http;
use epitome_provider::wire::Purpose;
use epitome_provider::wire::encoding::{Encoded, Encoding};
use epitome_provider::{Basis, ErrorClass, ModelRequest, ProviderError, ProviderEvent, retry};
use epitome_store::StoreError;
use epitome_thread::{
    CallId, Change, Content, Entry, FOREIGN_DEPTH_MAX, Message, MessageId, ModelName, OutcomeStatus,
    PlanStep, ThoughtLevel, ToolCall, ToolOutcome, Usage, View, ViewItem, is_deeper,
};
use epitome_tokens::Ruler;
use epitome_tools::{Tool, ToolContext, ToolResult};

/// The parts of a request, separate from the thread so that they can outlive a borrow of it.
#[derive(Clone)]
pub struct RequestSnapshot {
    pub frame: Arc<Entry>,
    pub view: View,
    pub thought: ThoughtLevel,
    pub max_output: u32,
    pub cache_key: String,
    pub ruler: Ruler,
    /// The already encoded part.
    pub encoding: Encoding,
}

impl RequestSnapshot {
    /// Estimated tokens of the view and the frame.
    pub fn tokens(&self) -> u64 {
        let frame = match &self.frame.change {
            Change::Framed { system, tools } => self.ruler.frame(system, tools),
            _ => 0,
        };
        frame + self.ruler.view(&self.view)
    }

    /// The request for the current view, with an additional user message if `more` is given.
    pub fn request<'a>(&'a self, more: Option<&'a Message>) -> ModelRequest<'a> {
        let mut request = request(&self.frame, &self.view, self.thought, self.max_output, &self.cache_key);
        request.items.extend(more.map(ViewItem::User));
        request
    }
}

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

/// A model call: starting, waiting for the next attempt, or streaming.
///
/// The session polls it directly, without a task or channel, so that deltas reach the client without delay.
pub struct ModelCall {
    /// The id of the reply's message.
    pub message: MessageId,
    pub model: ModelName,
    /// Number of failed attempts.
    pub attempts: u32,
    pub collector: Collector,
    /// Whether any part of the reply was shown to the user; it can't be retried then.
    pub seen: bool,
    encoded: Encoded,
    endpoint: Endpoint,
    /// Its parent span.
    scope: Span,
    phase: Phase,
    quiet: Quiet,
}

/// A request to count the tokens before the actual request.
pub struct Counting {
    pub count: Pin<Box<dyn Future<Output = Result<u64, ProviderError>> + Send>>,
    /// Maximum number of tokens.
    pub room: u64,
}

enum Phase {
    Counting(Counting),
    Starting(Starting),
    Streaming(Box<ReplyStream>),
    Waiting { until: Instant, sleep: Pin<Box<Sleep>> },
}

/// How long no data may arrive before this is reported. It is reported again whenever that time has doubled.
const QUIET_REPORTED_AFTER: Duration = Duration::from_secs(30);

/// When data last arrived, and when silence is reported next.
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

/// An event of a model call.
pub enum ModelCallEvent {
    /// All events that have arrived.
    Events(Vec<ProviderEvent>),
    /// According to the provider's count, the request does not fit; it was not sent.
    Full,
    /// The reply is complete.
    Finished,
    Failed(ProviderError),
    /// The next attempt starts no earlier than after this duration.
    StillWaiting(Duration),
    /// No data has arrived for this duration.
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

    /// Returns the complete reply and resets the collector.
    pub fn take_reply(&mut self) -> ModelReply {
        std::mem::replace(&mut self.collector, Collector::new(&self.endpoint.name)).finish()
    }

    /// Whether it waits for its next attempt.
    pub fn is_waiting(&self) -> bool {
        matches!(self.phase, Phase::Waiting { .. })
    }

    /// Schedules the next attempt. Returns the usage that the provider has reported for this one.
    pub fn retry_after(&mut self, delay: Duration) -> Option<Usage> {
        self.attempts += 1;
        self.quiet = Quiet::from_now();
        let spent = self.take_reply().usage;
        let sleep = Box::pin(tokio::time::sleep(retry::before_reminder(delay)));
        self.phase = Phase::Waiting { until: Instant::now() + delay, sleep };
        spent
    }

    fn begin(&mut self, http: &Http) -> Result<(), ProviderError> {
        let starting = self.scope.in_scope(|| http.start(&self.endpoint, &self.encoded))?;
        self.phase = Phase::Starting(starting);
        Ok(())
    }

    /// Waits for the next event. Cancel-safe.
    pub async fn step(&mut self, http: &Http) -> ModelCallEvent {
        loop {
            match &mut self.phase {
                Phase::Counting(Counting { count, room }) => {
                    // If the count fails, the provider decides whether to accept the request.
                    if let Ok(tokens) = count.await
                        && tokens > *room
                    {
                        let room = *room;
                        tracing::info!(model = %self.model, tokens, room, "the request does not fit");
                        return ModelCallEvent::Full;
                    }
                    if let Err(error) = self.begin(http) {
                        return ModelCallEvent::Failed(error);
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
                    if let Err(error) = self.begin(http) {
                        return ModelCallEvent::Failed(error);
                    }
                }
            }
        }
    }
}

/// Runs a tool call. A call that writes or executes something waits until its log entry is on disk.
pub async fn run_tool(
    tool: Arc<dyn Tool>,
    call: ToolCall,
    context: ToolContext,
    synced: Result<(), Arc<StoreError>>,
) -> (ToolOutcome, Option<Vec<PlanStep>>) {
    if let Err(error) = synced {
        let text = format!("Not run: the session's log can't be written ({error}).");
        return (ToolOutcome::text(call.id, OutcomeStatus::Failed, text), None);
    }
    let mut result = tool.run(call.input, context).await;
    let plan = result.plan.take();
    (outcome(call.id, result), plan)
}

/// The result of a tool as the outcome of a call.
pub fn outcome(call: CallId, result: ToolResult) -> ToolOutcome {
    ToolOutcome {
        call,
        status: result.status,
        content: result.content,
        shown: result.shown,
        locations: result.locations,
        raw: result.raw.filter(|raw| !is_deeper(raw, FOREIGN_DEPTH_MAX)),
        whole: result.whole,
        decided: None,
    }
}

/// Encodes a request that is not part of a conversation.
pub fn encode(endpoint: &Endpoint, request: &ModelRequest<'_>) -> Encoded {
    Encoding::default().encode(endpoint, request, Purpose::Reply)
}

/// The bytes of text that fill half of a window of tokens, at three bytes per token. The other half is for the
/// instruction and the answer.
pub fn half_of(window: u64) -> usize {
    usize::try_from(window.saturating_mul(3) / 2).unwrap_or(usize::MAX)
}

/// Runs a job. If it panics, returns the value of `otherwise`, so that waiting code continues.
pub async fn guarded<T>(job: impl Future<Output = T>, otherwise: impl FnOnce() -> T) -> T {
    AssertUnwindSafe(job).catch_unwind().await.unwrap_or_else(|_| {
        tracing::error!("a job of a turn panicked");
        otherwise()
    })
}

/// An internal error while processing a provider's answer.
pub fn internal_error() -> ProviderError {
    let text = "reading the model's answer failed with an internal error of Epitome; its log has the details";
    ProviderError::new(ErrorClass::Broken, text)
}

/// Longest id of a call that is kept, in bytes. Some gateways put signatures into ids.
const CALL_ID_BYTES_MAX: usize = 8 * 1024;

/// Makes the ids of a reply's calls unique in their thread. Models expect the ids that they have given, so others are kept;
/// an encoder replaces what its format does not accept.
pub fn name_calls(content: &mut [Content], is_known: impl Fn(&str) -> bool, message: MessageId) {
    let mut given: Vec<CallId> = Vec::new();
    for (index, content) in content.iter_mut().enumerate() {
        let Content::Call(call) = content else { continue };
        let id = &call.id.0;
        let well_formed =
            (1..=CALL_ID_BYTES_MAX).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic());
        if !well_formed || is_known(id) || given.contains(&call.id) {
            call.id = CallId(format!("call_{message}_{index}"));
        }
        given.push(call.id.clone());
    }
}
