//! Answers that contain states: they wait until the sessions are open.

use std::collections::HashSet;

use ahp::ahp_types::common::ROOT_RESOURCE_URI;
use ahp::ahp_types::state::{Snapshot, SnapshotState};
use serde_json::{Value, json};

use super::failure::{RequestFailure, not_found, too_many};
use super::host::{AhpHost, FrameSink, SESSIONS_MAX};
use super::messages::of_form;
use super::uri;
use epitome_platform::file_uri;

/// A request that waits until sessions are open, and then answers with their state.
pub struct PendingSnapshot {
    pub client: u64,
    id: Value,
    pub channels: Vec<String>,
    /// The sessions that are not open yet.
    pub opening: HashSet<String>,
    then: WaitingFor,
}

pub enum WaitingFor {
    Initialize {
        version: String,
    },
    /// `replays`: whether all sessions have been open since, so that missed actions are enough.
    Reconnect {
        last_seen: u64,
        replays: bool,
    },
    Subscribe,
}

impl<S: FrameSink> AhpHost<S> {
    /// Answers when the sessions of these channels are open.
    pub(super) fn wait(
        &mut self,
        client: u64,
        id: Value,
        channels: Vec<String>,
        then: WaitingFor,
    ) -> Result<(), RequestFailure> {
        self.clients.check_room(client, channels.len())?;
        let sessions = channels.iter().filter(|channel| *channel != ROOT_RESOURCE_URI);
        let opening: HashSet<String> = sessions
            .filter_map(|channel| uri::session_of(channel))
            .filter(|session| self.open(session))
            .collect();
        let waiting = PendingSnapshot { client, id, channels, opening, then };
        if waiting.opening.is_empty() {
            self.answer(waiting);
        } else {
            self.waiting.push(waiting);
        }
        Ok(())
    }

    fn snapshot(&self, channel: &str) -> Option<Snapshot> {
        let state = if channel == ROOT_RESOURCE_URI {
            SnapshotState::Root(Box::new(of_form(json!({ "agents": self.models.agents() }))))
        } else {
            let session = self.open_session(channel)?;
            if channel == session.chat_uri {
                SnapshotState::Chat(Box::new(session.chat.clone()))
            } else {
                SnapshotState::Session(Box::new(session.state.clone()))
            }
        };
        let from_seq = i64::try_from(self.log.last()).unwrap_or(i64::MAX);
        Some(Snapshot { resource: channel.to_owned(), state, from_seq })
    }

    /// Answers a request whose sessions are open, and lets its client follow the channels from here on.
    pub(super) fn answer(&mut self, waiting: PendingSnapshot) {
        let PendingSnapshot { client, id, channels, then, .. } = waiting;
        let snapshots: Vec<Snapshot> = channels.iter().filter_map(|channel| self.snapshot(channel)).collect();
        self.clients.follow(client, snapshots.iter().map(|snapshot| snapshot.resource.clone()));
        let result = match then {
            WaitingFor::Initialize { version } => {
                let info =
                    json!({ "name": "epitome", "title": "Epitome", "version": env!("CARGO_PKG_VERSION") });
                json!({
                    "protocolVersion": version, "serverSeq": self.log.last(), "serverInfo": info,
                    "snapshots": snapshots, "defaultDirectory": file_uri::of(&self.directory),
                })
            }
            WaitingFor::Subscribe => match snapshots.into_iter().next() {
                Some(snapshot) => json!({ "snapshot": snapshot }),
                None => {
                    let channel = channels.first().map(String::as_str).unwrap_or_default();
                    let failure = match self.sessions.len() {
                        SESSIONS_MAX.. => too_many(SESSIONS_MAX),
                        _ => not_found(channel),
                    };
                    return self.reply(client, &id, Err(failure));
                }
            },
            WaitingFor::Reconnect { last_seen, replays } => {
                let missed = if replays { self.log.since(last_seen, &channels) } else { None };
                match missed {
                    Some(actions) => {
                        let is_there = |channel: &&String| {
                            snapshots.iter().any(|snapshot| snapshot.resource == **channel)
                        };
                        let missing: Vec<&String> =
                            channels.iter().filter(|channel| !is_there(channel)).collect();
                        json!({ "type": "replay", "actions": actions, "missing": missing })
                    }
                    None => json!({ "type": "snapshot", "snapshots": snapshots }),
                }
            }
        };
        self.reply(client, &id, Ok(result));
    }
}
