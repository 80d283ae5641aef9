//! The figures of the daemon and of the server in the Prometheus text format.

use hyper::StatusCode;
use hyper::header::{self, HeaderValue};
use serde_json::json;
use std::sync::atomic::Ordering;

use super::{RemoteClients, RemoteResponse, ServeError, text};
use crate::control::ControlClient;

/// Answers a request for them. While no daemon runs, they are those of the server alone.
pub async fn answer(clients: &RemoteClients) -> RemoteResponse {
    let daemon = match of_daemon(clients).await {
        Ok(figures) => figures,
        Err(error) => {
            tracing::warn!(%error, "the daemon's figures are missing");
            return text(
                StatusCode::SERVICE_UNAVAILABLE,
                "The daemon reports no metrics; the log of the server says why",
            );
        }
    };
    let connections = clients.connections.lock().len();
    let refused = clients.refused.load(Ordering::Relaxed);
    let figures = format!(
        "# HELP epitome_daemon_up Whether a daemon runs.\n# TYPE epitome_daemon_up gauge\nepitome_daemon_up {}\n\
         # HELP epitome_remote_connections Connections of clients of this server.\n\
         # TYPE epitome_remote_connections gauge\nepitome_remote_connections {connections}\n\
         # HELP epitome_remote_refused_total Requests without a valid token.\n\
         # TYPE epitome_remote_refused_total counter\nepitome_remote_refused_total {refused}\n{}",
        u8::from(daemon.is_some()),
        daemon.unwrap_or_default(),
    );
    let mut response = text(StatusCode::OK, &figures);
    let format = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, format);
    response
}

/// The daemon's own figures; `None` if none runs.
async fn of_daemon(clients: &RemoteClients) -> Result<Option<String>, ServeError> {
    let runtime_dir = (clients.connector)()?.runtime_dir().clone();
    let Some(control) = ControlClient::connect(&runtime_dir).await? else {
        return Ok(None);
    };
    let figures = control.call("metrics", json!({ "format": "prometheus" })).await?;
    Ok(Some(figures["text"].as_str().unwrap_or_default().to_owned()))
}
