//! Spans for a collector of OpenTelemetry, over HTTP: where `OTEL_EXPORTER_OTLP_ENDPOINT` (or the one for traces
//! alone) names it. It reads the standard's other variables, too. A collector that is away costs nothing but its
//! spans.

use std::sync::OnceLock;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::Subscriber;
use tracing_subscriber::Layer;
use tracing_subscriber::registry::LookupSpan;

/// How long the end of the process may wait for the collector.
const FLUSH_TIME_MAX: Duration = Duration::from_secs(2);

/// The variables that name the collector.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"];

static PROVIDER: OnceLock<SdkTracerProvider> = OnceLock::new();

/// `None` where no collector is named. The error says why it can't be used as it is named.
pub(super) fn layer<S>() -> Result<Option<impl Layer<S>>, String>
where
    S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
{
    let is_named = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    if !ENDPOINTS.into_iter().any(is_named) {
        return Ok(None);
    }
    // Its client asks for the process's cryptography, also for plain HTTP. Somebody else's choice is as good.
    drop(rustls::crypto::ring::default_provider().install_default());
    let exporter = SpanExporter::builder().with_http().with_protocol(Protocol::HttpBinary).build();
    let exporter = exporter.map_err(|error| error.to_string())?;
    let resource = Resource::builder()
        .with_service_name("epitome")
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .build();
    let provider = SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build();
    let tracer = provider.tracer("epitome");
    // A second call (a test's) keeps the first.
    drop(PROVIDER.set(provider));
    Ok(Some(tracing_opentelemetry::layer().with_tracer(tracer)))
}

/// Sends what waits, within bounds.
pub(super) fn flush() {
    if let Some(provider) = PROVIDER.get() {
        // What the collector did not take in time is lost, as it would be with the collector away.
        drop(provider.shutdown_with_timeout(FLUSH_TIME_MAX));
    }
}
