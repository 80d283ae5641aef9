//! Exports spans to an OpenTelemetry collector over HTTP, configured by `OTEL_EXPORTER_OTLP_ENDPOINT` (or the
//! variable for traces), else by `telemetry.endpoint` of the settings, and by the other standard variables. If the collector
//! is unreachable, only the spans are lost.

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

use crate::config::Settings;
use crate::paths::Paths;

/// Maximum time to wait for the collector before the process exits.
const FLUSH_TIME_MAX: Duration = Duration::from_secs(2);

/// The variables that set the collector's address.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"];

static PROVIDER: OnceLock<SdkTracerProvider> = OnceLock::new();

/// Creates the export layer. `None` if no collector is configured. The error explains an invalid configuration.
pub(super) fn layer<S>(paths: &Paths) -> Result<Option<impl Layer<S> + use<S>>, String>
where
    S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
{
    let is_named = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let mut exporter = SpanExporter::builder().with_http().with_protocol(Protocol::HttpBinary);
    if !ENDPOINTS.into_iter().any(is_named) {
        let Some(endpoint) = Settings::load(paths, None, |_| None).0.telemetry else { return Ok(None) };
        exporter = exporter.with_endpoint(format!("{}/v1/traces", endpoint.trim_end_matches('/')));
    }
    // The exporter's HTTP client needs a process-wide crypto provider even for plain HTTP. An error means that one is
    // installed already.
    drop(rustls::crypto::ring::default_provider().install_default());
    let exporter = exporter.build().map_err(|error| error.to_string())?;
    let resource = Resource::builder()
        .with_service_name("epitome")
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .build();
    let provider = SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build();
    let tracer = provider.tracer("epitome");
    // A second call, as in tests, keeps the first provider.
    drop(PROVIDER.set(provider));
    Ok(Some(tracing_opentelemetry::layer().with_tracer(tracer)))
}

/// Sends the pending spans, with a timeout.
pub(super) fn flush() {
    if let Some(provider) = PROVIDER.get() {
        // Spans that the collector did not accept in time are lost, as if it were unreachable.
        drop(provider.shutdown_with_timeout(FLUSH_TIME_MAX));
    }
}
