//! MCP servers that a client provides over its own connection, with the client and the server side of the protocol's own
//! library.

use std::process::Stdio;
use std::sync::Arc;

use agent_client_protocol::mcp_server::{McpOutcome, McpRequest, McpRequestContext, McpServer, McpService};
use agent_client_protocol::schema::ProtocolVersion;
use agent_client_protocol::v1::schema::McpError;
use agent_client_protocol::v2::schema as wire;
use agent_client_protocol::{Agent as AgentRole, NullRun};
use epitome_scripted_model::RecordedRequest;
use epitome_test_harness::agent::{Agent, end_by};
use epitome_test_harness::{call, text};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio_util::compat::{TokioAsyncReadCompatExt, TokioAsyncWriteCompatExt};

use super::INVALID_PARAMS;

const VERSION: &str = "2026-07-28";

fn discovered() -> Value {
    json!({
        "resultType": "complete", "supportedVersions": [VERSION], "capabilities": { "tools": {} },
        "ttlMs": 0, "cacheScope": "private",
    })
}

fn tools() -> Value {
    let schema =
        json!({ "type": "object", "properties": { "a": { "type": "integer" }, "b": { "type": "integer" } } });
    json!({
        "resultType": "complete", "ttlMs": 0, "cacheScope": "private",
        "tools": [{ "name": "add", "description": "Adds two numbers.", "inputSchema": schema }],
    })
}

fn said(words: &str) -> Value {
    json!({ "resultType": "complete", "content": [{ "type": "text", "text": words }] })
}

/// Adds numbers, once its progress is shown, and records its requests.
struct Adder {
    methods: Arc<Mutex<Vec<String>>>,
    shown: Arc<Notify>,
}

impl McpService<AgentRole> for Adder {
    fn execute(
        &self,
        request: McpRequest,
        context: McpRequestContext<AgentRole>,
    ) -> BoxFuture<'static, Result<McpOutcome, agent_client_protocol::Error>> {
        self.methods.lock().push(request.method.clone());
        let shown = self.shown.clone();
        async move {
            let params = Value::Object(request.params.unwrap_or_default());
            Ok(McpOutcome::Result(match request.method.as_str() {
                "server/discover" => discovered(),
                "tools/list" => tools(),
                "tools/call" => {
                    let progress = json!({
                        "progressToken": params["_meta"]["progressToken"], "progress": 1, "message": "halfway",
                    });
                    let progress = progress.as_object().cloned();
                    context.send_notification("notifications/progress", progress).await?;
                    shown.notified().await;
                    let number = |name: &str| params["arguments"][name].as_i64().unwrap_or_default();
                    said(&format!("The sum is {}.", number("a") + number("b")))
                }
                other => return Ok(McpOutcome::Error(McpError::new(-32601, format!("no {other}")))),
            }))
        }
        .boxed()
    }
}

/// A model that calls the tool once, and then repeats the result.
fn adds(request: &RecordedRequest) -> Vec<epitome_scripted_model::ModelStep> {
    match request.number % 2 {
        0 => vec![call("mcp__calculator__add", json!({ "a": 2, "b": 3 }))],
        _ => vec![text("Done.")],
    }
}

/// The daemon is replaced between two prompts: the next one gets the server from the same client.
#[test]
fn the_model_calls_a_tool_of_the_client() {
    let user = super::user(adds);
    let (methods, shown): (Arc<Mutex<Vec<String>>>, Arc<Notify>) = Default::default();
    let adder = Adder { methods: methods.clone(), shown: shown.clone() };
    let (ended, mut end) = tokio::sync::mpsc::unbounded_channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut command = tokio::process::Command::from(user.agent_command(&["--mode", "full"]));
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
                    if serde_json::to_string(&notification.update).unwrap().contains("halfway") {
                        shown.notify_one();
                    }
                    Ok(())
                },
                agent_client_protocol::on_receive_notification!(),
            )
            .connect_with(streams, async |connection: agent_client_protocol::v2::ConnectionTo<_>| {
                let info = wire::Implementation::new("test", "1.0.0");
                let initialize = wire::InitializeRequest::new(ProtocolVersion::V2, info);
                let answer = connection.send_request(initialize).block_task().await?;
                let offered = serde_json::to_value(&answer.capabilities).unwrap();
                assert_eq!(offered["session"]["mcp"]["acp"], json!({}));
                let server = McpServer::new_service("calculator", adder, NullRun);
                let new = wire::NewSessionRequest::new(user.project());
                let opened = connection.build_session_from(new).with_mcp_server(server)?;
                let session = opened.start_session().block_task().await?.response.session_id;
                for turn in 0..2 {
                    let prompt = wire::PromptRequest::new(session.clone(), vec!["Add.".into()]);
                    connection.send_request(prompt).block_task().await?;
                    // A new daemon repeats the state of the session.
                    while user.model().requests().len() < 2 * (turn + 1) {
                        let reason = end.recv().await.unwrap();
                        assert!(matches!(reason, None | Some(wire::StopReason::EndTurn)), "{reason:?}");
                    }
                    if turn == 0 {
                        end_by(user.daemon().expect("a daemon serves"), Signal::KILL);
                    }
                }
                Ok(())
            })
            .await
            .unwrap();
    });
    let requests = user.model().requests();
    assert_eq!(requests.len(), 4);
    for answered in [&requests[1], &requests[3]] {
        assert!(answered.body.to_string().contains("The sum is 5."), "{}", answered.body);
    }
    let methods = methods.lock();
    assert_eq!(methods.iter().filter(|method| *method == "tools/call").count(), 2, "{methods:?}");
    assert!(!methods.iter().any(|method| method == "initialize"), "{methods:?}");
}

/// Answers the requests to a server until a message is wanted.
fn serve_until(agent: &mut Agent, call_answer: &Value, is_wanted: impl Fn(&Value) -> bool) -> Value {
    loop {
        let message = agent.until("a message", |_| true).pop().expect("it was read");
        if is_wanted(&message) {
            return message;
        }
        if message["method"] != "mcp/message" {
            continue;
        }
        assert_eq!(message["params"]["serverId"], "calc-1");
        let inner = match message["params"]["method"].as_str().expect("a method") {
            "server/discover" => json!({ "result": { "result": discovered() } }),
            "tools/list" => json!({ "result": { "result": tools() } }),
            "tools/call" => call_answer.clone(),
            other => panic!("{other}"),
        };
        let mut answer = json!({ "jsonrpc": "2.0", "id": message["id"] });
        answer.as_object_mut().unwrap().extend(inner.as_object().unwrap().clone());
        agent.send(&answer);
    }
}

/// The server's own errors, those of the client that carries them, and a client that has gone: each is a result of the
/// call that the model can work with.
#[test]
fn each_way_to_fail_is_a_result_for_the_model() {
    for (answer, expected) in [
        (
            json!({ "result": { "error": { "code": 7, "message": "too large" } } }),
            "refused the call: too large",
        ),
        (
            json!({ "error": { "code": -33001, "message": "the server is gone" } }),
            "could not pass it on: the server is gone",
        ),
        (json!({ "result": { "result": said("Five.") } }), "Five."),
        (json!({ "result": {} }), "the answer has no result"),
    ] {
        let user = super::user(adds);
        let mut agent = Agent::spawn(user.agent_command(&["--mode", "full"]));
        let offered = agent.call("initialize", json!({ "protocolVersion": 1 }));
        assert_eq!(offered["agentCapabilities"]["mcpCapabilities"]["acp"], true);
        for server in [
            json!({ "type": "acp", "name": "calculator" }),
            json!({ "type": "acp", "name": "calculator", "serverId": "" }),
        ] {
            let id = agent.request("session/new", json!({ "cwd": user.project(), "mcpServers": [server] }));
            assert_eq!(agent.answer(id).1["error"]["code"], INVALID_PARAMS);
        }
        let server = json!({ "type": "acp", "name": "calculator", "serverId": "calc-1" });
        let opened = agent.call("session/new", json!({ "cwd": user.project(), "mcpServers": [server] }));
        let session = opened["sessionId"].as_str().expect("an id").to_owned();
        let id = agent.prompt(&session, "Add.");
        let ended = serve_until(&mut agent, &answer, |message| {
            message["id"] == id && message.get("method").is_none()
        });
        assert_eq!(ended["result"]["stopReason"], "end_turn");
        let asked = user.model().requests().pop().expect("a call").body.to_string();
        assert!(asked.contains(expected), "{expected}: {asked}");
    }
}

/// Another window keeps the session; the tools of the one that has gone fail at once.
#[test]
fn a_client_that_has_gone_takes_its_servers_with_it() {
    let user = super::user(adds);
    let mut agent = Agent::spawn(user.agent_command(&["--mode", "full"]));
    agent.call("initialize", json!({ "protocolVersion": 1 }));
    let server = json!({ "type": "acp", "name": "calculator", "serverId": "calc-1" });
    let opened = agent.call("session/new", json!({ "cwd": user.project(), "mcpServers": [server.clone()] }));
    let session = opened["sessionId"].as_str().expect("an id").to_owned();
    let id = agent.prompt(&session, "Add.");
    let answer = json!({ "result": { "result": said("Five.") } });
    serve_until(&mut agent, &answer, |message| message["id"] == id && message.get("method").is_none());
    let mut other = user.start();
    user.load(&mut other, &session);
    agent.close_input();
    agent.ended_unread();
    assert_eq!(other.turn(&session, "Add.").1, "end_turn");
    let asked = user.model().requests().pop().expect("a call").body.to_string();
    assert!(asked.contains("does not provide it any more"), "{asked}");
    // A client that opens the session with the same servers takes the place of the one that has gone.
    let mut again = Agent::spawn(user.agent_command(&[]));
    again.call("initialize", json!({ "protocolVersion": 1 }));
    let load = json!({ "sessionId": session, "cwd": user.project(), "mcpServers": [server] });
    again.call("session/load", load);
    other.prompt(&session, "Add.");
    serve_until(&mut again, &answer, |message| message["params"]["update"]["content"]["text"] == "Done.");
    let asked = user.model().requests().pop().expect("a call").body.to_string();
    assert!(asked.contains("Five."), "{asked}");
}
