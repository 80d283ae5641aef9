//! The clients of the host: who they are, what they follow, and frames to them.

use std::collections::{HashMap, HashSet};

use serde::Serialize;
use serde_json::{Value, json};

use super::failure::{RequestFailure, invalid};

/// Channels that a client follows, at most.
const CHANNELS_MAX: usize = 256;

/// Sends frames to a client.
pub trait FrameSink {
    /// Returns `false` if the client reads too slowly; it is then disconnected.
    fn send(&self, frame: String) -> bool;
}

struct AhpClient<S> {
    sink: S,
    /// The client's id, once it is initialized.
    id: Option<String>,
    channels: HashSet<String>,
}

/// See the module.
pub struct AhpClients<S>(HashMap<u64, AhpClient<S>>);

impl<S: FrameSink> AhpClients<S> {
    pub fn new() -> AhpClients<S> {
        AhpClients(HashMap::new())
    }

    pub fn add(&mut self, client: u64, sink: S) {
        self.0.insert(client, AhpClient { sink, id: None, channels: HashSet::new() });
    }

    /// Removes a client. Returns its id, unless it has another connection.
    pub fn remove(&mut self, client: u64) -> Option<String> {
        let id = self.0.remove(&client)?.id?;
        let is_elsewhere = self.0.values().any(|other| other.id.as_ref() == Some(&id));
        (!is_elsewhere).then_some(id)
    }

    /// The id of a client that is initialized.
    pub fn id(&self, client: u64) -> Option<&String> {
        self.0.get(&client)?.id.as_ref()
    }

    pub fn initialized(&mut self, client: u64, id: String) {
        if let Some(client) = self.0.get_mut(&client) {
            client.id = Some(id);
        }
    }

    /// Checks that a client can follow this many more channels.
    pub fn check_room(&self, client: u64, channels: usize) -> Result<(), RequestFailure> {
        let followed = self.0.get(&client).map_or(0, |client| client.channels.len());
        if followed + channels > CHANNELS_MAX {
            return Err(invalid(format!("a client follows {CHANNELS_MAX} channels at most")));
        }
        Ok(())
    }

    pub fn follow(&mut self, client: u64, channels: impl Iterator<Item = String>) {
        if let Some(client) = self.0.get_mut(&client) {
            client.channels.extend(channels);
        }
    }

    pub fn unfollow(&mut self, client: u64, channel: &str) {
        if let Some(client) = self.0.get_mut(&client) {
            client.channels.remove(channel);
        }
    }

    /// Whether a client follows one of these channels.
    pub fn any_follows(&self, channels: &[&str]) -> bool {
        self.0.values().any(|client| channels.iter().any(|channel| client.channels.contains(*channel)))
    }

    /// Sends a frame to those who follow a channel. Returns the clients that read too slowly.
    pub fn send_all(&self, channel: &str, frame: &str) -> Vec<u64> {
        let following = self.0.iter().filter(|(_, client)| client.channels.contains(channel));
        following.filter(|(_, client)| !client.sink.send(frame.to_owned())).map(|(key, _)| *key).collect()
    }

    /// Sends a frame; returns whether the client reads too slowly.
    pub fn send(&self, client: u64, frame: String) -> bool {
        self.0.get(&client).is_some_and(|client| !client.sink.send(frame))
    }
}

/// The frame that answers a request.
pub fn response(id: &Value, result: Result<Value, RequestFailure>) -> String {
    let frame = match result {
        Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
        Err(failure) => json!({ "jsonrpc": "2.0", "id": id, "error": failure.to_json() }),
    };
    frame.to_string()
}

pub fn notification(method: &str, params: &impl Serialize) -> String {
    #[derive(Serialize)]
    struct JsonNotification<'a, P> {
        jsonrpc: &'static str,
        method: &'a str,
        params: P,
    }
    serde_json::to_string(&JsonNotification { jsonrpc: "2.0", method, params }).unwrap_or_else(|error| {
        tracing::error!(%error, "a message could not be written as JSON");
        String::new()
    })
}
