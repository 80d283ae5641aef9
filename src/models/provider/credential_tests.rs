//! Tests which credential is used, and what happens when it changes while a session runs.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;
use crate::endpoint::{EnvironmentPairs, choose, configured, resolve};
use crate::http::Http;
use crate::login::{KeyCheck, check_key};
use epitome_config::Settings;
use epitome_thread::ModelName;

fn env(pairs: &[(&str, &str)]) -> Vec<(std::ffi::OsString, std::ffi::OsString)> {
    pairs.iter().map(|(name, value)| (name.into(), value.into())).collect()
}

/// Settings with a stored key for Anthropic's service at this URL.
fn logged_in(data: &tempfile::TempDir, at: &str, key: &str) -> Settings {
    let logins = Logins::below(data.path());
    logins.store("anthropic", &StoredLogin::api_key(origin(at), key)).expect("it is written");
    Settings { logins, ..Settings::default() }
}

async fn key_sent(settings: &Settings, env: &EnvironmentPairs) -> Result<String, ProviderError> {
    let endpoint = resolve(&ModelName("anthropic/claude-sonnet-5-5".into()), settings, env)?;
    let endpoint = endpoint.authenticated(&Http::new()).await?;
    let key = endpoint.sent_headers().find(|(name, _)| name == "x-api-key");
    Ok(key.expect("a key is sent").1.expose().to_owned())
}

#[tokio::test]
async fn the_environment_has_precedence_over_a_stored_login() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let settings = logged_in(&data, "https://api.anthropic.com", "stored");
    assert_eq!(key_sent(&settings, &[]).await.as_deref(), Ok("stored"));
    let both = env(&[("ANTHROPIC_API_KEY", "of-the-environment")]);
    assert_eq!(key_sent(&settings, &both).await.as_deref(), Ok("of-the-environment"));
    assert_eq!(configured(&settings, &[]), Ok(()));
    let chosen = choose(&settings, &[]);
    assert_eq!(
        chosen,
        crate::endpoint::ConfiguredModel::Named(ModelName("anthropic/claude-sonnet-5-5".into()))
    );
}

/// A repository's `.envrc` may set `ANTHROPIC_BASE_URL`.
#[tokio::test]
async fn a_stored_key_is_sent_to_its_own_service_only() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let settings = logged_in(&data, "https://api.anthropic.com", "stored");
    let elsewhere = env(&[("ANTHROPIC_BASE_URL", "https://evil.example")]);
    let endpoint = resolve(&ModelName("anthropic/claude-sonnet-5-5".into()), &settings, &elsewhere);
    assert!(endpoint.expect("a gateway may need no key").credential.is_absent());
}

#[tokio::test]
async fn a_damaged_login_is_reported_with_what_to_do() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let settings = logged_in(&data, "https://api.anthropic.com", "stored");
    std::fs::write(data.path().join("logins/anthropic.json"), "sk-made-up").expect("it is written");
    let error = key_sent(&settings, &[]).await.expect_err("it is no login");
    assert_eq!(error.message, "The stored login can't be read (it does not contain a login) for anthropic.");
    assert_eq!(error.hint.as_deref(), Some("Run `epitome login anthropic` in a terminal."));
}

/// Answers each request with a list of models if its key is `good`, else with a rejection that contains the key.
/// Returns the base URL.
async fn service_with_a_key() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has free ports");
    let address = listener.local_addr().expect("it is bound");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = vec![0; 8 * 1024];
            let count = stream.read(&mut head).await.unwrap_or_default();
            let head = String::from_utf8_lossy(&head[..count]).into_owned();
            let key = head.lines().find_map(|line| line.strip_prefix("x-api-key: ")).unwrap_or_default();
            let (status, body) = match key {
                "good" => ("200 OK", r#"{"data":[{"id":"claude-x"}]}"#.to_owned()),
                bad => (
                    "401 Unauthorized",
                    format!(
                        r#"{{"type":"error","error":{{"type":"authentication_error","message":"invalid {bad}"}}}}"#
                    ),
                ),
            };
            let answer = format!(
                "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            );
            drop(stream.write_all(answer.as_bytes()).await);
        }
    });
    format!("http://{address}")
}

/// Regression: a user whose key was revoked logged in again, and the open session used the old key until the editor was
/// restarted.
#[tokio::test]
async fn a_login_in_another_process_counts_from_the_next_request_on() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let base = service_with_a_key().await;
    let settings = logged_in(&data, &base, "revoked-key");
    let env = env(&[("ANTHROPIC_BASE_URL", &base)]);
    let endpoint =
        resolve(&ModelName("anthropic/claude-sonnet-5-5".into()), &settings, &env).expect("a key is stored");
    let ask = async || crate::listing::list(&Http::new(), &endpoint).await;
    assert!(ask().await.is_err(), "the key is revoked");
    logged_in(&data, &base, "good");
    assert_eq!(ask().await.expect("the new key is sent").len(), 1);
    // If the key changes between reading it and the response, the rejected request is sent again with the new one.
    let old = endpoint.authenticated(&Http::new()).await.expect("a key is stored");
    assert!(endpoint.reauthenticated(&Http::new(), &old).await.is_none(), "there is no other key to try");
    logged_in(&data, &base, "newer");
    assert!(endpoint.reauthenticated(&Http::new(), &old).await.is_some());
}

#[tokio::test]
async fn a_key_is_tested_against_the_list_of_models() {
    let base = service_with_a_key().await;
    let env = env(&[("ANTHROPIC_BASE_URL", &base)]);
    let service = crate::endpoint::service("anthropic", &Settings::default(), &env).expect("it is built in");
    let check = async |key: &str| check_key(&Http::new(), &service, key).await;
    assert_eq!(check("good").await, KeyCheck::Accepted);
    let KeyCheck::Rejected(error) = check("planted-bad-key").await else { panic!("the key is wrong") };
    assert!(error.message.contains("invalid [secret]"), "{error:?}");
    let down = crate::endpoint::service(
        "anthropic",
        &Settings::default(),
        &[("ANTHROPIC_BASE_URL".into(), "http://127.0.0.1:9".into())],
    );
    let checked = check_key(&Http::new(), &down.expect("it is built in"), "good").await;
    assert!(matches!(checked, KeyCheck::Unreachable(_)), "{checked:?}");
}
