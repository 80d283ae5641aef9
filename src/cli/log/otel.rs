//! Sends spans to a collector of OpenTelemetry: batches of JSON over HTTP (OTLP/HTTP), to the address in
//! `OTEL_EXPORTER_OTLP_ENDPOINT` (or the variable for traces), else in `telemetry.endpoint` of the settings. If the
//! collector is unreachable, or takes fewer spans than there are, only spans are lost.

use std::fmt::Debug;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::{Condvar, Mutex};
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use tracing::Subscriber;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use crate::paths::Paths;
use crate::provider::endpoint::Secret;
use crate::provider::http::Http;
use crate::provider::network::Network;
use epitome_config::Settings;
use std::io;

/// Maximum time to wait for the collector before the process exits.
const FLUSH_TIME_MAX: Duration = Duration::from_secs(2);

/// How long ended spans wait for others, unless there are `BATCH_SPANS_MAX`.
const BATCH_EVERY: Duration = Duration::from_secs(5);

const BATCH_SPANS_MAX: usize = 512;

/// Maximum number of ended spans that wait. Further ones are dropped.
const WAITING_SPANS_MAX: usize = 2048;

const SEND_TIME_MAX: Duration = Duration::from_secs(10);

const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// Maximum length of an attribute. They are names, ids and numbers.
const TEXT_CHARS_MAX: usize = 1024;

static QUEUE: OnceLock<Arc<SpanQueue>> = OnceLock::new();

/// Creates the export layer. `None` if no collector is configured.
pub(super) fn layer(paths: &Paths) -> io::Result<Option<SpanLayer>> {
    let Some(url) = url(paths) else { return Ok(None) };
    if !url.starts_with("http://") && !url.starts_with("https://") {
        return Err(io::Error::other("its address must begin with http:// or https://"));
    }
    let collector = SpanCollector {
        url,
        headers: ["OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"]
            .into_iter()
            .flat_map(pairs)
            .map(|(name, value)| (name, Secret::new(value)))
            .chain([("content-type".to_owned(), Secret::new("application/json"))])
            .collect(),
        resource: resource(),
        http: Http::new().within(Network::read(&epitome_platform::os::environment())),
    };
    let queue = Arc::<SpanQueue>::default();
    let spans = queue.clone();
    let thread = std::thread::Builder::new().name("telemetry".to_owned());
    thread.spawn(move || collector.export(&spans))?;
    // A second call, as in tests, keeps the first one.
    drop(QUEUE.set(queue.clone()));
    Ok(Some(SpanLayer(queue)))
}

/// Sends the pending spans, with a timeout.
pub(super) fn flush() {
    let Some(queue) = QUEUE.get() else { return };
    let mut state = queue.state.lock();
    state.is_ending = true;
    queue.changed.notify_all();
    // Spans that the collector did not accept in time are lost, as if it were unreachable.
    queue.changed.wait_while_for(&mut state, |state| !state.has_ended, FLUSH_TIME_MAX);
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn url(paths: &Paths) -> Option<String> {
    // Looking for the word is much faster than reading all settings.
    let is_mentioned = || {
        let files = [paths.config_file(), paths.policy_file()].map(std::fs::read);
        files.iter().flatten().any(|text| String::from_utf8_lossy(text).contains("telemetry"))
    };
    let configured = || is_mentioned().then(|| Settings::load(paths, None, |_| None).0.telemetry).flatten();
    variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT").or_else(|| {
        let base = variable("OTEL_EXPORTER_OTLP_ENDPOINT").or_else(configured)?;
        Some(format!("{}/v1/traces", base.trim_end_matches('/')))
    })
}

/// The resource of the spans: this program.
fn resource() -> Value {
    let mut attributes = SpanAttributes::default();
    attributes.set("service.name", json!({ "stringValue": "epitome" }));
    attributes.set("service.version", json!({ "stringValue": env!("CARGO_PKG_VERSION") }));
    let named = variable("OTEL_SERVICE_NAME").map(|name| ("service.name".to_owned(), name));
    for (name, value) in pairs("OTEL_RESOURCE_ATTRIBUTES").chain(named) {
        attributes.set(&name, json!({ "stringValue": value }));
    }
    json!({ "attributes": attributes.0 })
}

/// The pairs of a variable, such as `api-key=key,other=a%20value`.
fn pairs(name: &str) -> impl Iterator<Item = (String, String)> {
    let text = variable(name).unwrap_or_default();
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=')?;
        let value = percent_decode_str(value.trim()).decode_utf8_lossy().into_owned();
        Some((name.trim().to_ascii_lowercase(), value))
    };
    text.split(',').filter_map(pair).collect::<Vec<_>>().into_iter()
}

/// Records spans, and queues them when they end.
pub(super) struct SpanLayer(Arc<SpanQueue>);

struct OpenSpan {
    trace: u128,
    id: u64,
    parent: Option<u64>,
    began: SystemTime,
    attributes: SpanAttributes,
}

/// Attributes in the form in which they are sent.
#[derive(Default)]
struct SpanAttributes(Vec<Value>);

#[derive(Default)]
struct SpanQueue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct QueueState {
    spans: Vec<Value>,
    is_ending: bool,
    has_ended: bool,
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for SpanLayer {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id).filter(|span| span.metadata().target().starts_with("epitome"))
        else {
            // Spans of libraries are left out: they may belong to the sending of spans.
            return;
        };
        let above = span.scope().skip(1).find_map(|above| {
            above.extensions().get::<OpenSpan>().map(|above| (above.trace, Some(above.id)))
        });
        let (trace, parent) = above.unwrap_or_else(|| (fastrand::u128(1..), None));
        let mut open = OpenSpan {
            trace,
            id: fastrand::u64(1..),
            parent,
            began: SystemTime::now(),
            attributes: SpanAttributes::default(),
        };
        attributes.record(&mut open.attributes);
        span.extensions_mut().insert(open);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(open) = span.extensions_mut().get_mut::<OpenSpan>()
        {
            values.record(&mut open.attributes);
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        if let Some(span) = context.span(&id)
            && let Some(open) = span.extensions_mut().remove::<OpenSpan>()
        {
            self.0.push(open.ended(span.name()));
        }
    }
}

impl OpenSpan {
    fn ended(self, name: &str) -> Value {
        let nanoseconds = |time: SystemTime| {
            time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos()).to_string()
        };
        json!({
            "traceId": format!("{:032x}", self.trace),
            "spanId": format!("{:016x}", self.id),
            "parentSpanId": self.parent.map_or(String::new(), |id| format!("{id:016x}")),
            "name": name,
            // Internal.
            "kind": 1,
            "startTimeUnixNano": nanoseconds(self.began),
            "endTimeUnixNano": nanoseconds(SystemTime::now()),
            "attributes": self.attributes.0,
            "status": {},
        })
    }
}

impl SpanAttributes {
    fn set(&mut self, name: &str, value: Value) {
        self.0.retain(|known| known["key"] != name);
        self.0.push(json!({ "key": name, "value": value }));
    }
}

impl Visit for SpanAttributes {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.set(field.name(), json!({ "doubleValue": value }));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field.name(), json!({ "intValue": value.to_string() }));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.record_i64(field, i64::try_from(value).unwrap_or(i64::MAX));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field.name(), json!({ "boolValue": value }));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let value: String = value.chars().take(TEXT_CHARS_MAX).collect();
        self.set(field.name(), json!({ "stringValue": value }));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

impl SpanQueue {
    fn push(&self, span: Value) {
        let mut state = self.state.lock();
        if state.spans.len() < WAITING_SPANS_MAX {
            state.spans.push(span);
        }
        if state.spans.len() == 1 || state.spans.len() == BATCH_SPANS_MAX {
            self.changed.notify_all();
        }
    }

    /// Waits for spans; `None` once all are sent that were there at the end of the process.
    fn next_batch(&self) -> Option<Vec<Value>> {
        let mut state = self.state.lock();
        self.changed.wait_while(&mut state, |state| state.spans.is_empty() && !state.is_ending);
        let is_short = |state: &mut QueueState| state.spans.len() < BATCH_SPANS_MAX && !state.is_ending;
        self.changed.wait_while_for(&mut state, is_short, BATCH_EVERY);
        let count = state.spans.len().min(BATCH_SPANS_MAX);
        if count == 0 {
            state.has_ended = true;
            self.changed.notify_all();
            return None;
        }
        Some(state.spans.drain(..count).collect())
    }
}

struct SpanCollector {
    url: String,
    headers: Vec<(String, Secret)>,
    resource: Value,
    http: Http,
}

impl SpanCollector {
    fn export(&self, queue: &SpanQueue) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let Ok(runtime) = runtime.inspect_err(|error| tracing::warn!(%error, "no spans are sent")) else {
            return;
        };
        let mut is_reachable = true;
        while let Some(spans) = queue.next_batch() {
            let sent = runtime.block_on(self.send(spans));
            // Once, not with each batch.
            if let (Err(error), true) = (&sent, is_reachable) {
                tracing::warn!(%error, "the collector of OpenTelemetry takes no spans");
            }
            is_reachable = sent.is_ok();
        }
    }

    async fn send(&self, spans: Vec<Value>) -> io::Result<()> {
        let scope = json!({ "name": "epitome", "version": env!("CARGO_PKG_VERSION") });
        let scoped = json!([{ "scope": scope, "spans": spans }]);
        let body = json!({ "resourceSpans": [{ "resource": self.resource, "scopeSpans": scoped }] });
        let body = body.to_string().into_bytes();
        let sent = self.http.post(&self.url, &self.headers, body, ANSWER_BYTES_MAX, SEND_TIME_MAX).await;
        match sent.map_err(io::Error::other)? {
            (200..300, _) => Ok(()),
            (status, _) => Err(io::Error::other(format!("it answers with HTTP {status}"))),
        }
    }
}
