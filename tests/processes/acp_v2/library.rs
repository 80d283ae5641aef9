//! The client of the protocol's own library in version 2.

use std::process::Stdio;
use std::sync::Arc;

use agent_client_protocol::schema::ProtocolVersion;
use agent_client_protocol::v2::schema as wire;
use epitome_test_harness::agent::obey;
use parking_lot::Mutex;
use serde_json::Value;
use tokio_util::compat::{TokioAsyncReadCompatExt, TokioAsyncWriteCompatExt};

#[test]
fn a_session_with_the_reference_client() {
    let user = super::user(obey);
    let updates: Arc<Mutex<Vec<Value>>> = Arc::default();
    let seen = updates.clone();
    let (ended, mut end) = tokio::sync::mpsc::unbounded_channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut command = tokio::process::Command::from(user.agent_command(&[]));
        let mut child = command.stderr(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let streams = agent_client_protocol::ByteStreams::new(input.compat_write(), output.compat());
        agent_client_protocol::Client
            .v2()
            .on_receive_notification(
                async move |notification: wire::UpdateSessionNotification, _connection| {
                    if let wire::SessionUpdate::StateUpdate(wire::StateUpdate::Idle(idle)) =
                        &notification.update
                    {
                        drop(ended.send(idle.stop_reason.clone()));
                    }
                    seen.lock().push(serde_json::to_value(notification.update).unwrap());
                    Ok(())
                },
                agent_client_protocol::on_receive_notification!(),
            )
            .on_receive_request(
                async move |request: wire::RequestPermissionRequest, responder, _connection| {
                    let is_allowing = |option: &&wire::PermissionOption| {
                        option.kind == wire::PermissionOptionKind::AllowOnce
                    };
                    let allow = request.options.iter().find(is_allowing).unwrap().option_id.clone();
                    responder.respond(wire::RequestPermissionResponse::new(
                        wire::RequestPermissionOutcome::Selected(wire::SelectedPermissionOutcome::new(allow)),
                    ))
                },
                agent_client_protocol::on_receive_request!(),
            )
            .connect_with(streams, async |connection: agent_client_protocol::v2::ConnectionTo<_>| {
                let info = wire::Implementation::new("test", "1.0.0");
                let initialize = wire::InitializeRequest::new(ProtocolVersion::V2, info);
                let answer = connection.send_request(initialize).block_task().await?;
                assert!(answer.capabilities.session.is_some());
                let new = wire::NewSessionRequest::new(user.project());
                let session = connection.send_request(new).block_task().await?.session_id;
                for words in ["say one", "run echo hi", "/compact", "/undo", "say two"] {
                    let prompt = wire::PromptRequest::new(session.clone(), vec![words.into()]);
                    let accepted = connection.send_request(prompt).block_task().await?;
                    assert!(!accepted.message_id.to_string().is_empty());
                    assert_eq!(end.recv().await.unwrap(), Some(wire::StopReason::EndTurn), "{words}");
                }
                let close = wire::CloseSessionRequest::new(session);
                connection.send_request(close).block_task().await?;
                Ok(())
            })
            .await
            .unwrap();
        let ended = child.wait_with_output().await.unwrap();
        assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
    });
    let updates = updates.lock();
    let of_kind = |kind: &str| updates.iter().filter(|update| update["sessionUpdate"] == kind).count();
    assert_eq!(of_kind("user_message"), 5);
    assert!(of_kind("terminal_update") >= 2, "a terminal begins and ends");
}
