//! Finds a running model server by probing URLs. Starts none.

use std::time::Duration;

use tokio::net::TcpStream;

use super::address::{beneath, host_of, port_of, without_v1};
use super::http::Http;
use super::listing::{self, ListedModel};
use epitome_thread::ModelName;

/// Timeout for connecting to a local server.
const CONNECT_MAX: Duration = Duration::from_millis(300);

/// Timeout for its model list; sufficient even while the server loads a model.
const LIST_MAX: Duration = Duration::from_secs(2);

/// Maximum bytes of a model list.
const LIST_BYTES_MAX: usize = 1024 * 1024;

/// A running server and its models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalServer {
    /// Ends with `/v1`.
    pub base_url: String,
    /// Never empty.
    pub models: Vec<ListedModel>,
}

impl LocalServer {
    /// The model to use if none is chosen.
    pub fn first_model(&self) -> Option<ModelName> {
        self.models.first().map(ListedModel::local_name)
    }
}

/// Returns the server at the first of these URLs, with or without `/v1`, that lists at least one model.
pub async fn find_local(http: &Http, urls: &[String]) -> Option<LocalServer> {
    for url in urls {
        if let Some(server) = ask(http, &beneath(&without_v1(url.trim()), "/v1")).await {
            return Some(server);
        }
    }
    None
}

async fn ask(http: &Http, base_url: &str) -> Option<LocalServer> {
    let host = host_of(base_url).trim_matches(['[', ']']);
    let connect = TcpStream::connect((host, port_of(base_url)));
    tokio::time::timeout(CONNECT_MAX, connect).await.ok()?.ok()?;
    let listed = http.get(&beneath(base_url, "/models"), LIST_BYTES_MAX, LIST_MAX).await;
    let (_, body) = listed.ok().filter(|(status, _)| *status == 200)?;
    let models = listing::read_compatible(&body)?;
    (!models.is_empty()).then(|| LocalServer { base_url: base_url.to_owned(), models })
}
