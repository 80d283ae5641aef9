//! Finds a model server on this machine by asking the usual addresses. It starts none.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tokio::net::TcpStream;

use super::address::{host_of, port_of, without_v1};
use super::http::Http;
use crate::thread::ModelName;

/// A server of one's own machine that listens accepts within this time.
const CONNECT_MAX: Duration = Duration::from_millis(300);

/// A server that listens lists its models within this time, also when a model is just being loaded.
const LIST_MAX: Duration = Duration::from_secs(2);

/// The most that a list of models may hold, in bytes.
const LIST_BYTES_MAX: usize = 1024 * 1024;

/// A running server and what it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalServer {
    /// With `/v1` at its end.
    pub base_url: String,
    /// `local/NAME` with the window in tokens where the server tells it. Never empty.
    pub models: Vec<(ModelName, Option<u64>)>,
}

/// The first of these addresses, with or without `/v1`, at which a server lists at least one model.
pub async fn find_local(http: &Http, urls: &[String]) -> Option<LocalServer> {
    for url in urls {
        if let Some(server) = ask(http, &format!("{}/v1", without_v1(url.trim()))).await {
            return Some(server);
        }
    }
    None
}

async fn ask(http: &Http, base_url: &str) -> Option<LocalServer> {
    let host = host_of(base_url).trim_matches(['[', ']']);
    let connect = TcpStream::connect((host, port_of(base_url)));
    tokio::time::timeout(CONNECT_MAX, connect).await.ok()?.ok()?;
    let url = format!("{base_url}/models");
    let get = http.client(&url).ok()?.get(&url).timeout(LIST_MAX);
    let mut response = get.send().await.ok().filter(|response| response.status().is_success())?;
    let mut body = Vec::new();
    while let Some(piece) = response.chunk().await.ok()? {
        body.extend_from_slice(&piece);
        if body.len() > LIST_BYTES_MAX {
            return None;
        }
    }
    let models = read_models(&body)?;
    (!models.is_empty()).then(|| LocalServer { base_url: base_url.to_owned(), models })
}

/// Reads the list of llama.cpp (`meta.n_ctx`), vLLM (`max_model_len`), LM Studio and Ollama.
fn read_models(body: &[u8]) -> Option<Vec<(ModelName, Option<u64>)>> {
    #[derive(Deserialize)]
    struct List {
        data: Option<Vec<Model>>,
    }
    #[derive(Deserialize)]
    struct Model {
        id: String,
        #[serde(default)]
        meta: Value,
        #[serde(default)]
        max_model_len: Value,
    }
    let list: List = serde_json::from_slice(body).ok()?;
    let models =
        list.data.unwrap_or_default().into_iter().filter(|model| !model.id.is_empty()).map(|model| {
            let window =
                model.meta["n_ctx"].as_u64().or(model.max_model_len.as_u64()).filter(|window| *window > 0);
            (ModelName(format!("local/{}", model.id)), window)
        });
    Some(models.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_the_known_servers_are_read() {
        let name = |name: &str| ModelName(name.into());
        for (body, expected) in [
            (
                r#"{"object":"list","data":[{"id":"qwen3.gguf","meta":{"n_ctx":32768,"n_ctx_train":262144}}]}"#,
                Some(vec![(name("local/qwen3.gguf"), Some(32_768))]),
            ),
            (
                r#"{"object":"list","data":[{"id":"org/model","max_model_len":8192}]}"#,
                Some(vec![(name("local/org/model"), Some(8_192))]),
            ),
            (
                r#"{"object":"list","data":[{"id":"llama3.2:3b","object":"model","owned_by":"library"}]}"#,
                Some(vec![(name("local/llama3.2:3b"), None)]),
            ),
            (r#"{"object":"list","data":null}"#, Some(vec![])),
            ("<html>", None),
        ] {
            assert_eq!(read_models(body.as_bytes()), expected, "{body}");
        }
    }
}
