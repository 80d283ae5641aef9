//! Calls that run as a task (specification of 2025-11-25, Tasks): the server answers a call with a task, whose state is
//! polled until it has ended; then the result of the call is fetched.
//!
//! The SDK supports only the tasks of version 2026-07-28, so these are custom requests.

use std::sync::Arc;
use std::time::Duration;

use rmcp::model::{CallToolResult, ClientRequest, CustomRequest, ServerResult};
use rmcp::service::{Peer, RoleClient};
use serde_json::{Map, Value, json};

use super::call::{CallFailure, ReadyConnection, failed};
use super::server::{CALL_TIME_MAX, ENDING_WITHIN};

/// Interval between two polls of the state of a task; servers may request another.
const POLL: Duration = Duration::from_secs(1);
const POLL_MIN: Duration = Duration::from_millis(100);
const POLL_MAX: Duration = Duration::from_secs(10);

/// Cancels the task on the server when dropped, unless it has ended.
struct CancelTask {
    peer: Peer<RoleClient>,
    id: Option<String>,
}

impl Drop for CancelTask {
    fn drop(&mut self) {
        let (Some(id), Ok(runtime)) = (self.id.take(), tokio::runtime::Handle::try_current()) else { return };
        let request = custom("tasks/cancel", json!({ "taskId": id }));
        let peer = self.peer.clone();
        runtime.spawn(async move {
            // There is nothing to cancel on a server that is gone, and one that doesn't read must not block the caller.
            drop(tokio::time::timeout(ENDING_WITHIN, peer.send_request(request)).await);
        });
    }
}

fn custom(method: &str, params: Value) -> ClientRequest {
    ClientRequest::CustomRequest(CustomRequest::new(method, Some(params)))
}

impl ReadyConnection {
    /// Calls a tool as a task. `quiet` limits each of the requests that servers answer immediately.
    pub(super) async fn call_as_task(
        &self,
        tool: &str,
        arguments: Map<String, Value>,
        quiet: Duration,
        progress: Arc<dyn Fn(String) + Send + Sync>,
    ) -> Result<CallToolResult, CallFailure> {
        let kept_ms = CALL_TIME_MAX.as_millis() as u64;
        let call = json!({ "name": tool, "arguments": arguments, "task": { "ttl": kept_ms } });
        let mut task = match self.ask("tools/call", call, quiet).await? {
            ServerResult::CallToolResult(came) => return Ok(came),
            other => fields(&other).get_mut("task").map(Value::take).unwrap_or_default(),
        };
        let id = task["taskId"].as_str().map(str::to_owned);
        let id =
            id.ok_or_else(|| CallFailure::Refused("its response is neither a result nor a task".to_owned()))?;
        let mut cancel = CancelTask { peer: self.peer.clone(), id: Some(id.clone()) };
        let mut last = String::new();
        // A task that needs input requests it while its result is being fetched.
        while task["status"] == "working" {
            let message = task["statusMessage"].as_str().unwrap_or_default();
            if message != last {
                last = message.to_owned();
                progress(last.clone());
            }
            let poll = task["pollInterval"].as_u64().map_or(POLL, Duration::from_millis);
            tokio::time::sleep(poll.clamp(POLL_MIN, POLL_MAX)).await;
            task = fields(&self.ask("tasks/get", json!({ "taskId": id }), quiet).await?);
        }
        let came = self.ask("tasks/result", json!({ "taskId": id }), CALL_TIME_MAX).await;
        cancel.id = None;
        match came? {
            ServerResult::CallToolResult(came) => Ok(came),
            _ => Err(CallFailure::Refused("its response is not a tool result".to_owned())),
        }
    }

    async fn ask(&self, method: &str, params: Value, limit: Duration) -> Result<ServerResult, CallFailure> {
        let asking = self.peer.send_request(custom(method, params));
        tokio::time::timeout(limit, asking).await.map_err(|_| CallFailure::Late)?.map_err(failed)
    }
}

/// The fields of a result.
fn fields(result: &ServerResult) -> Value {
    serde_json::to_value(result).unwrap_or_default()
}
