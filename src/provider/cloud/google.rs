//! Google Vertex AI: access tokens from Application Default Credentials. These are the file of a service account, the
//! login of `gcloud auth application-default login`, or the metadata server of a machine in Google's cloud.
//!
//! Tested with a scripted token server, but not with a live service.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use ring::rand::SystemRandom;
use ring::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::endpoint::Secret;
use crate::http::Http;
use crate::sign_in::form;
use epitome_config::logins::now;

const SCOPE: &str = "https://www.googleapis.com/auth/cloud-platform";
const TOKEN_URL: &str = "https://oauth2.googleapis.com/token";
const GRANT: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";
const METADATA_PATH: &str = "/computeMetadata/v1/instance/service-accounts/default/token";

/// Lifetime of a signed assertion; Google accepts at most an hour.
const ASSERTION_SECONDS: u64 = 3600;
/// Tokens are renewed this long before they expire.
const RENEWED_BEFORE: Duration = Duration::from_secs(5 * 60);
const EXCHANGE_TIME_MAX: Duration = Duration::from_secs(30);
const EXCHANGE_BYTES_MAX: usize = 64 * 1024;
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// Where tokens are obtained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GoogleSource {
    /// `GOOGLE_APPLICATION_CREDENTIALS`; the file must exist.
    named: Option<PathBuf>,
    /// The default file of `gcloud`, which may not exist.
    usual: Option<PathBuf>,
    metadata_host: String,
}

/// A credentials file, in the forms that Google's tools write.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum CredentialFile {
    ServiceAccount {
        client_email: String,
        private_key: String,
        private_key_id: Option<String>,
        token_uri: Option<String>,
    },
    AuthorizedUser {
        client_id: String,
        client_secret: String,
        refresh_token: String,
        quota_project_id: Option<String>,
        token_uri: Option<String>,
    },
    #[serde(other)]
    Other,
}

/// An access token.
#[derive(Clone)]
struct AccessToken {
    token: Secret,
    /// The project that is billed for a user's own login.
    quota_project: Option<String>,
    /// Milliseconds since the epoch.
    expires: u64,
}

impl GoogleSource {
    pub fn read(get: impl Fn(&str) -> Option<String>) -> GoogleSource {
        let gcloud = get("CLOUDSDK_CONFIG").map(PathBuf::from);
        let gcloud = gcloud.or_else(|| Some(Path::new(&get("HOME")?).join(".config/gcloud")));
        GoogleSource {
            named: get("GOOGLE_APPLICATION_CREDENTIALS").map(PathBuf::from),
            usual: gcloud.map(|directory| directory.join("application_default_credentials.json")),
            metadata_host: get("GCE_METADATA_HOST").unwrap_or_else(|| "metadata.google.internal".to_owned()),
        }
    }

    /// Returns the headers that authenticate a request. The error is a clause without secrets.
    pub async fn headers(&self, http: &Http) -> Result<Vec<(String, Secret)>, String> {
        let AccessToken { token, quota_project, .. } = match self.cached() {
            Some(token) => token,
            None => {
                let _alone = EXCHANGING.lock().await;
                match self.cached() {
                    Some(token) => token,
                    None => self.keep(self.exchange(http).await?),
                }
            }
        };
        let bearer = Secret::new(format!("Bearer {}", token.expose()));
        let mut headers = vec![("authorization".to_owned(), bearer)];
        headers.extend(quota_project.map(|project| ("x-goog-user-project".to_owned(), Secret::new(project))));
        Ok(headers)
    }

    async fn exchange(&self, http: &Http) -> Result<AccessToken, String> {
        let source = self.clone();
        let file =
            tokio::task::spawn_blocking(move || source.file()).await.map_err(|error| error.to_string())??;
        let Some((path, file)) = file else { return self.of_metadata_server(http).await };
        let unreadable = |why: String| format!("{} can't be used: {why}", path.display());
        let (url, fields, quota_project) = match file {
            CredentialFile::ServiceAccount { client_email, private_key, private_key_id, token_uri } => {
                let url = token_uri.unwrap_or_else(|| TOKEN_URL.to_owned());
                let id = private_key_id.as_deref();
                let assertion = assertion(&client_email, &private_key, id, &url).map_err(unreadable)?;
                (url, vec![("grant_type", GRANT.to_owned()), ("assertion", assertion)], None)
            }
            CredentialFile::AuthorizedUser {
                client_id,
                client_secret,
                refresh_token,
                quota_project_id,
                token_uri,
            } => {
                let fields = vec![
                    ("grant_type", "refresh_token".to_owned()),
                    ("client_id", client_id),
                    ("client_secret", client_secret),
                    ("refresh_token", refresh_token),
                ];
                (token_uri.unwrap_or_else(|| TOKEN_URL.to_owned()), fields, quota_project_id)
            }
            CredentialFile::Other => {
                let known =
                    "it is neither of a service account nor of `gcloud auth application-default login`";
                return Err(unreadable(known.to_owned()));
            }
        };
        let pairs: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let headers = [("content-type".to_owned(), Secret::new("application/x-www-form-urlencoded"))];
        let body = form(&pairs).into_bytes();
        let (status, answer) = http
            .post(&url, &headers, body, EXCHANGE_BYTES_MAX, EXCHANGE_TIME_MAX)
            .await
            .map_err(|why| format!("{url} could not be asked for a token: {why}"))?;
        token_in(status, &answer, quota_project).map_err(|why| format!("{url} gave no token: {why}"))
    }

    async fn of_metadata_server(&self, http: &Http) -> Result<AccessToken, String> {
        let url = format!("http://{}{METADATA_PATH}", self.metadata_host);
        let request = hyper::Request::get(&url).header("metadata-flavor", "Google").body(Vec::new());
        let request = request.map_err(|error| error.to_string())?;
        let answered = http.exchange(request, EXCHANGE_BYTES_MAX, EXCHANGE_TIME_MAX).await;
        let answer = answered.map_err(|why| {
            let files: Vec<String> =
                self.named.iter().chain(&self.usual).map(|file| file.display().to_string()).collect();
            format!("there is no {}, and no metadata server answers ({why})", files.join(" or "))
        })?;
        token_in(answer.status().as_u16(), answer.body(), None)
            .map_err(|why| format!("the metadata server gave no token: {why}"))
    }

    /// Reads the credentials file; `None` if there is none. A file named by the environment must exist. Blocks.
    fn file(&self) -> Result<Option<(PathBuf, CredentialFile)>, String> {
        let Some(path) = self.named.clone().or_else(|| self.usual.clone().filter(|path| path.exists()))
        else {
            return Ok(None);
        };
        use std::io::Read as _;
        let mut text = String::new();
        let opened = std::fs::File::open(&path);
        let read = opened.and_then(|file| file.take(FILE_BYTES_MAX).read_to_string(&mut text));
        read.map_err(|error| format!("{} can't be read: {error}", path.display()))?;
        // The parser's error is not shown, as it may quote a secret.
        let file = serde_json::from_str(&text)
            .map_err(|_| format!("{} has not the fields of Google's credentials", path.display()))?;
        Ok(Some((path, file)))
    }

    fn cached(&self) -> Option<AccessToken> {
        let tokens = TOKENS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let least = now() + u64::try_from(RENEWED_BEFORE.as_millis()).unwrap_or(0);
        tokens.get(&self.key()).filter(|token| token.expires > least).cloned()
    }

    fn keep(&self, token: AccessToken) -> AccessToken {
        let mut tokens = TOKENS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        tokens.retain(|_, token| token.expires > now());
        tokens.insert(self.key(), token.clone());
        token
    }

    fn key(&self) -> String {
        format!("{:?}", (&self.named, &self.usual, &self.metadata_host))
    }
}

/// The tokens of this process, by source. Expired ones are removed, so the map has at most one token per source in use.
static TOKENS: Mutex<BTreeMap<String, AccessToken>> = Mutex::new(BTreeMap::new());

/// Locked while a token is requested, so that concurrent requests use the same one.
static EXCHANGING: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// A signed statement (RS256) that is exchanged for a token.
fn assertion(email: &str, key: &str, key_id: Option<&str>, audience: &str) -> Result<String, String> {
    let issued = now() / 1000;
    let header = json!({ "alg": "RS256", "typ": "JWT", "kid": key_id });
    let claims = json!({
        "iss": email, "scope": SCOPE, "aud": audience, "iat": issued, "exp": issued + ASSERTION_SECONDS,
    });
    let part = |value: &Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
    let text = format!("{}.{}", part(&header), part(&claims));
    let inside: String = key.lines().filter(|line| !line.starts_with("-----")).collect();
    let der = BASE64_STANDARD.decode(inside.trim()).map_err(|_| "its private key is not PEM".to_owned())?;
    let key = RsaKeyPair::from_pkcs8(&der)
        .map_err(|why| format!("its private key is not RSA in PKCS #8 ({why})"))?;
    let mut signature = vec![0; key.public().modulus_len()];
    key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), text.as_bytes(), &mut signature)
        .map_err(|_| "its private key can't sign".to_owned())?;
    Ok(format!("{text}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature)))
}

/// Parses the response of a token server. The error is a clause.
fn token_in(status: u16, body: &[u8], quota_project: Option<String>) -> Result<AccessToken, String> {
    let answer: Value = serde_json::from_slice(body).unwrap_or_default();
    let text = |name: &str| answer[name].as_str().filter(|text| !text.is_empty());
    match (status, text("access_token")) {
        (200, Some(token)) => {
            let seconds = answer["expires_in"].as_u64().unwrap_or(ASSERTION_SECONDS);
            let expires = now() + seconds.saturating_mul(1000);
            Ok(AccessToken { token: Secret::new(token), quota_project, expires })
        }
        _ => {
            let why = text("error_description").or(text("error")).unwrap_or("the answer has no token");
            Err(format!("{why} (HTTP {status})"))
        }
    }
}
