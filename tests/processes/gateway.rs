//! Models of a server that other machines call without keys: `[gateway]` in the settings of a worker, and `epitome serve`
//! with tokens of the scope `work`.

mod clouds;

use std::fs::Permissions;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use epitome_scripted_model::{ModelStep, RecordedRequest, ScriptedModel};
use epitome_test_harness::agent::{agent_text, obey, stop_reason};
use epitome_test_harness::postgres::PostgresServer;
use epitome_test_harness::user::User;
use epitome_test_harness::{in_turn, text, within};
use serde_json::{Value, json};

use crate::daemon::remote::{Server, serve, token};

/// The key of the server, which nobody else may learn.
const KEY: &str = "sk-the-server-alone-has-this";

const CLAUDE: &str = "anthropic/claude-sonnet-5-5";

/// A model for each format, with the path of its requests at the provider.
const MODELS: [(&str, &str); 4] = [
    (CLAUDE, "/v1/messages"),
    ("openai/gpt-6-sol", "/v1/responses"),
    ("chat/qwen", "/v1/chat/completions"),
    ("gemini/gemini-3.8-flash", "/v1beta/models/gemini-3.8-flash:streamGenerateContent?alt=sse"),
];

/// A machine with keys whose models follow a script.
struct Machine {
    user: User,
    model: ScriptedModel,
    server: Server,
    /// A token with the scope `read`.
    reader: String,
}

impl Machine {
    fn new(script: impl FnMut(&RecordedRequest) -> Vec<ModelStep> + Send + 'static) -> Machine {
        let model = ScriptedModel::start(script).expect("loopback");
        let mut user = User::new();
        for (name, value) in [
            ("ANTHROPIC_API_KEY", KEY.to_owned()),
            ("ANTHROPIC_BASE_URL", model.base_url()),
            ("OPENAI_API_KEY", KEY.to_owned()),
            ("OPENAI_BASE_URL", model.openai_base_url()),
            ("GEMINI_API_KEY", KEY.to_owned()),
            ("GOOGLE_GEMINI_BASE_URL", model.gemini_base_url()),
            ("CHAT_KEY", KEY.to_owned()),
        ] {
            user.set(name, value);
        }
        let config = format!(
            "[providers.openai]\nwire = \"openai_responses\"\n\
             [providers.chat]\nwire = \"openai_chat\"\nbase_url = \"{}\"\nkey_variable = \"CHAT_KEY\"\n\
             [models.\"chat/qwen\"]\ncontext_window = 50000\n",
            model.openai_base_url()
        );
        user.write(".epitome/config.toml", &config);
        let reader = token(&user, "screen", "read");
        let server = serve(&user, &["--listen", "127.0.0.1:0"]);
        Machine { user, model, server, reader }
    }

    /// A machine that has no key, and a token of this one.
    fn worker(&self, token: &str) -> User {
        let worker = User::new();
        let config =
            format!("[gateway]\naddress = \"ws://{}\"\ntoken_file = \"~/work.token\"\n", self.server.address);
        worker.write(".epitome/config.toml", &config);
        worker.write("work.token", token);
        std::fs::set_permissions(worker.home().join("work.token"), Permissions::from_mode(0o600))
            .expect("it is there");
        worker
    }

    fn ready(&self) -> User {
        self.worker(&token(&self.user, "build-box", "work"))
    }

    /// Sends a request and returns the response's status, and all of it.
    fn request(&self, method: &str, path: &str, token: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.server.address).expect("it listens");
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\
             X-Api-Key: mine\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .expect("it reads");
        let mut response = String::new();
        stream.read_to_string(&mut response).expect("it answers");
        let status = response.split(' ').nth(1).and_then(|status| status.parse().ok());
        (status.unwrap_or_else(|| panic!("{response:?}")), response)
    }
}

/// Asserts that no file of a user has a text.
fn assert_nowhere(directory: &Path, secret: &str) {
    for entry in std::fs::read_dir(directory).expect("a directory").flatten() {
        let path = entry.path();
        match entry.file_type().expect("a type") {
            kind if kind.is_dir() => assert_nowhere(&path, secret),
            kind if kind.is_file() => {
                let bytes = std::fs::read(&path).expect("a file");
                let is_in = bytes.windows(secret.len()).any(|window| window == secret.as_bytes());
                assert!(!is_in, "{} has the secret", path.display());
            }
            _ => {}
        }
    }
}

#[test]
fn a_machine_without_keys_prompts_through_the_server_in_every_format() {
    let machine = Machine::new(obey);
    let secret = token(&machine.user, "build-box", "work");
    let worker = machine.worker(&secret);
    let models = worker.run(&["models", "--json"]).json();
    let names: Vec<&str> =
        models.as_array().expect("a list").iter().filter_map(|model| model["name"].as_str()).collect();
    for (model, path) in MODELS {
        assert!(names.contains(&model), "{model}: {names:?}");
        let said = worker.run(&["run", "--model", model, "say hello"]).ok();
        assert!(said.contains("You said hello."), "{model}: {said}");
        let request = machine.model.requests().pop().expect("a request");
        assert_eq!(request.path, path, "{model}");
        let sent = ["x-api-key", "authorization", "x-goog-api-key"].map(|name| request.header(name));
        let sent: String = sent.into_iter().flatten().collect();
        assert_eq!(sent.trim_start_matches("Bearer "), KEY, "{model}");
    }
    // What the server knows about a model is known here, too.
    let qwen = models.as_array().expect("a list").iter().find(|model| model["name"] == "chat/qwen");
    assert_eq!(qwen.expect("it is offered")["window"]["tokens"], 50_000);
    let doctor = worker.run(&["doctor"]).out;
    assert!(doctor.contains("accepts the token and offers"), "{doctor}");
    worker.end_daemon();
    assert_nowhere(&worker.home(), KEY);
    assert_nowhere(&machine.user.own(), &secret);
    let (status, figures) = machine.request("GET", "/metrics", &machine.reader, "");
    assert!(status == 200 && figures.contains("epitome_gateway_calls_total 4\n"), "{figures}");
}

/// A request that Anthropic takes, with other fields.
fn body(fields: Value) -> String {
    let mut body = json!({
        "model": "claude-sonnet-5-5", "max_tokens": 100, "stream": true,
        "messages": [{ "role": "user", "content": [{ "type": "text", "text": "say hello" }] }],
    });
    body.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
    body.to_string()
}

const CALL: &str = "/gateway/anthropic%2Fclaude-sonnet-5-5/v1/messages";

#[test]
fn a_client_reaches_only_what_the_server_offers() {
    let machine = Machine::new(obey);
    let (work, read) = (token(&machine.user, "box", "work"), machine.reader.clone());
    let plain = body(json!({}));
    let (status, answer) = machine.request("POST", CALL, &work, &plain);
    assert!(status == 200 && answer.contains("You said "), "{answer}");
    let twice = plain.replacen('{', "{\"model\":\"claude-opus-5-5\",", 1);
    for (method, path, token, body, expected, why) in [
        ("GET", "/gateway", "epitome-wrong", "", 401, "valid bearer token"),
        ("GET", "/gateway", read.as_str(), "", 403, "scope `work`"),
        ("POST", CALL, read.as_str(), plain.as_str(), 403, "scope `work`"),
        ("POST", "/acp", work.as_str(), "{}", 403, "nothing but to be a worker"),
        ("GET", "/metrics", work.as_str(), "", 403, "nothing but to be a worker"),
        ("POST", "/gateway/anthropic%2Fnobody/v1/messages", work.as_str(), plain.as_str(), 404, "not offer"),
        (
            "POST",
            "/gateway/anthropic%2Fclaude-sonnet-5-5/v1/files",
            work.as_str(),
            plain.as_str(),
            404,
            "no such",
        ),
        (
            "POST",
            "/gateway/anthropic%2Fclaude-sonnet-5-5/v1/messages?beta=true",
            work.as_str(),
            plain.as_str(),
            404,
            "no such",
        ),
        (
            "POST",
            "/gateway/anthropic%2Fclaude-sonnet-5-5/../../v1/files",
            work.as_str(),
            plain.as_str(),
            404,
            "no such",
        ),
        ("POST", CALL, work.as_str(), &body(json!({ "model": "claude-opus-5-5" })), 400, "claude-opus-5-5"),
        ("POST", CALL, work.as_str(), &body(json!({ "service_tier": "priority" })), 400, "service_tier"),
        ("POST", CALL, work.as_str(), twice.as_str(), 400, "occurs twice"),
        ("POST", CALL, work.as_str(), "no JSON", 400, "no request"),
        ("DELETE", CALL, work.as_str(), "", 405, "POST calls one"),
    ] {
        let (status, answer) = machine.request(method, path, token, body);
        assert!(status == expected && answer.contains(why), "{method} {path} {body}: {answer}");
    }
    let requests = machine.model.requests();
    assert_eq!(requests.len(), 1, "nothing else reached the provider");
    assert_eq!(requests[0].header("x-api-key"), Some(KEY), "a client's header is not passed on");
    assert_eq!(requests[0].bytes, plain.as_bytes(), "the body is passed on unchanged");
}

/// Regression: the process that calls models for others knew only the policy of its machine, so others could call what the
/// policy in the database forbids.
#[test]
fn a_policy_in_the_database_counts_for_what_is_offered() {
    let Some(database) = PostgresServer::start() else { return };
    let machine = Machine::new(obey);
    let store = PostgresServer::address(&[&database]);
    machine.user.write(".epitome/config.toml", &format!("store = {store:?}\n"));
    machine.user.write("project/policy.toml", "policy.models = [\"gemini/*\"]\n");
    machine.user.run(&["store", "policy", "set", "policy.toml"]).ok();
    let server = serve(&machine.user, &["--listen", "127.0.0.1:0"]);
    let machine = Machine { server, ..machine };
    let work = token(&machine.user, "box", "work");
    let (status, list) = machine.request("GET", "/gateway", &work, "");
    assert!(status == 200 && list.contains("gemini/") && !list.contains("anthropic/"), "{list}");
    let (status, answer) = machine.request("POST", CALL, &work, &body(json!({})));
    assert!(status == 404 && answer.contains("not offer"), "{answer}");
}

#[test]
fn a_token_that_is_not_accepted_is_explained() {
    let machine = Machine::new(obey);
    let worker = machine.worker("epitome-wrong");
    for ran in [worker.run(&["run", "say hello"]), worker.run(&["models"])] {
        assert!(ran.code != Some(0) && ran.err.contains("does not accept the token"), "{ran:?}");
        assert!(ran.err.contains("`epitome token list` on the server"), "{ran:?}");
    }
    let doctor = worker.run(&["doctor"]);
    assert!(doctor.code == Some(1) && doctor.out.contains("does not accept the token"), "{doctor:?}");
    // Once the token is correct, the next prompt of the same session works.
    let mut agent = worker.start();
    let session = worker.new_session(&mut agent);
    let prompt = agent.prompt(&session, "say hello");
    let (_, refused) = agent.answer(prompt);
    assert!(refused["error"]["message"].as_str().is_some_and(|why| why.contains("token")), "{refused}");
    std::fs::write(worker.home().join("work.token"), token(&machine.user, "box", "work"))
        .expect("it is ours");
    let (said, _) = agent.turn(&session, "say hello");
    assert_eq!(agent_text(&said), "You said hello.");
}

#[test]
fn a_cancelled_turn_and_a_revoked_token_end_the_call_at_the_provider() {
    let machine = Machine::new(obey);
    let worker = machine.ready();
    let mut agent = worker.start();
    let session = worker.new_session(&mut agent);
    let prompt = agent.prompt(&session, "hang");
    within("the request", || (machine.model.requests().len() == 1).then_some(()));
    agent.cancel(&session);
    let (_, answer) = agent.answer(prompt);
    assert_eq!(stop_reason(&answer), "cancelled");
    within("the end of the call", || (machine.model.given_up() == 1).then_some(()));

    let prompt = agent.prompt(&session, "half");
    agent.hear("The first half, ");
    machine.user.run(&["token", "revoke", "build-box"]).ok();
    within("the end of the call", || (machine.model.given_up() == 2).then_some(()));
    let (rest, _) = agent.answer(prompt);
    assert!(!agent_text(&rest).contains("the second half"), "{rest:?}");
    assert!(rest.iter().any(|it| it.to_string().contains("the connection was lost")), "{rest:?}");
    let prompt = agent.prompt(&session, "say hello");
    let (_, answer) = agent.answer(prompt);
    assert!(answer.to_string().contains("The token of [gateway] in config.toml"), "{answer}");
}

#[test]
fn an_error_of_the_provider_comes_through_with_the_time_to_wait() {
    let limited = || ModelStep::Error {
        status: 429,
        retry_after: Some(1),
        message: Some(format!("too many requests with the key {KEY}")),
    };
    let replies = vec![vec![limited()], vec![limited()], vec![text("Here I am.")]];
    let machine = Machine::new(in_turn(replies));
    let work = token(&machine.user, "box", "work");
    let (status, answer) = machine.request("POST", CALL, &work, &body(json!({})));
    assert!(status == 429 && answer.contains("retry-after: 1\r\n"), "{answer}");
    assert!(answer.contains("too many requests with the key [secret]"), "{answer}");
    let worker = machine.worker(&work);
    let said = worker.run(&["run", "--model", CLAUDE, "hello"]).ok();
    assert!(said.contains("Here I am."), "{said}");
}
