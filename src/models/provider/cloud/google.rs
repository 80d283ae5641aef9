//! Google Vertex AI: access tokens from Application Default Credentials. These are the file of a service account, the
//! login of `gcloud auth application-default login`, or the metadata server of a machine in Google's cloud.
//!
//! Tested with a scripted token server, but not with a live service.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use ring::rand::SystemRandom;
use ring::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use serde::Deserialize;
use serde_json::{Value, json};

use super::tokens::{self, AccessToken, EXCHANGE_BYTES_MAX, EXCHANGE_TIME_MAX, TokenError, token_in};
use crate::http::Http;
use crate::secret::{Secret, bearer};
use epitome_config::logins::now;
use epitome_platform::blocking;

const SCOPE: &str = "https://www.googleapis.com/auth/cloud-platform";
const TOKEN_URL: &str = "https://oauth2.googleapis.com/token";
const GRANT: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";
const METADATA_PATH: &str = "/computeMetadata/v1/instance/service-accounts/default/token";

/// Lifetime of a signed assertion; Google accepts at most an hour.
const ASSERTION_SECONDS: u64 = 3600;
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// The sources of tokens.
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

    /// Returns the headers that authenticate a request. `rejected` is a token that the service does not accept.
    pub async fn headers(
        &self,
        http: &Http,
        rejected: Option<&str>,
    ) -> Result<Vec<(String, Secret)>, TokenError> {
        let key = format!("{:?}", (&self.named, &self.usual, &self.metadata_host));
        let exchange = self.exchange(http);
        let AccessToken { token, quota_project, .. } = tokens::cached(key, rejected, exchange).await?;
        let mut headers = vec![bearer(token.expose())];
        headers.extend(quota_project.map(|project| ("x-goog-user-project".to_owned(), Secret::new(project))));
        Ok(headers)
    }

    async fn exchange(&self, http: &Http) -> Result<AccessToken, TokenError> {
        let source = self.clone();
        let file = blocking::run(move || source.file()).await?;
        let Some((path, file)) = file else { return self.of_metadata_server(http).await };
        match file {
            CredentialFile::ServiceAccount { client_email, private_key, private_key_id, token_uri } => {
                let url = token_uri.as_deref().unwrap_or(TOKEN_URL);
                let id = private_key_id.as_deref();
                let assertion = assertion(&client_email, &private_key, id, url)
                    .map_err(|why| format!("{} can't be used: {why}", path.display()))?;
                tokens::exchange(http, url, &[("grant_type", GRANT), ("assertion", &assertion)]).await
            }
            CredentialFile::AuthorizedUser {
                client_id,
                client_secret,
                refresh_token,
                quota_project_id: quota_project,
                token_uri,
            } => {
                let fields = [
                    ("grant_type", "refresh_token"),
                    ("client_id", &client_id),
                    ("client_secret", &client_secret),
                    ("refresh_token", &refresh_token),
                ];
                let url = token_uri.as_deref().unwrap_or(TOKEN_URL);
                Ok(AccessToken { quota_project, ..tokens::exchange(http, url, &fields).await? })
            }
            CredentialFile::Other => {
                let wanted = "neither of a service account nor of `gcloud auth application-default login`";
                Err(format!("{} can't be used: it is {wanted}", path.display()).into())
            }
        }
    }

    async fn of_metadata_server(&self, http: &Http) -> Result<AccessToken, TokenError> {
        let url = format!("http://{}{METADATA_PATH}", self.metadata_host);
        let request = hyper::Request::get(&url).header("metadata-flavor", "Google").body(Vec::new());
        let request = request?;
        let answered = http.exchange(request, EXCHANGE_BYTES_MAX, EXCHANGE_TIME_MAX).await;
        let answer = answered.map_err(|why| {
            let files: Vec<String> =
                self.named.iter().chain(&self.usual).map(|file| file.display().to_string()).collect();
            format!("there is no {}, and no metadata server answers ({why})", files.join(" or "))
        })?;
        token_in(answer.status().as_u16(), answer.body())
            .map_err(|why| format!("the metadata server gave no token: {why}").into())
    }

    /// Reads the credentials file; `None` if there is none. A file named by the environment must exist. Blocks.
    fn file(&self) -> Result<Option<(PathBuf, CredentialFile)>, TokenError> {
        let Some(path) = self.named.clone().or_else(|| self.usual.clone().filter(|path| path.exists()))
        else {
            return Ok(None);
        };
        use std::io::Read as _;
        let mut text = String::new();
        let opened = std::fs::File::open(&path);
        let read = opened.and_then(|file| file.take(FILE_BYTES_MAX).read_to_string(&mut text));
        match (read, serde_json::from_str(&text)) {
            (Err(why), _) => Err(format!("{} can't be read: {why}", path.display()).into()),
            // The parser's error is left out, as it may quote a secret.
            (Ok(_), Err(_)) => {
                Err(format!("{} has not the fields of Google's credentials", path.display()).into())
            }
            (Ok(_), Ok(file)) => Ok(Some((path, file))),
        }
    }
}

/// A signed statement (RS256) that is exchanged for a token.
fn assertion(email: &str, key: &str, key_id: Option<&str>, audience: &str) -> Result<String, TokenError> {
    let issued = now() / 1000;
    let header = json!({ "alg": "RS256", "typ": "JWT", "kid": key_id });
    let claims = json!({
        "iss": email, "scope": SCOPE, "aud": audience, "iat": issued, "exp": issued + ASSERTION_SECONDS,
    });
    let part = |value: &Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
    let text = format!("{}.{}", part(&header), part(&claims));
    let inside: String = key.lines().filter(|line| !line.starts_with("-----")).collect();
    let der = BASE64_STANDARD.decode(inside.trim()).map_err(|_| "its private key is not PEM")?;
    let key = RsaKeyPair::from_pkcs8(&der)
        .map_err(|why| format!("its private key is not RSA in PKCS #8 ({why})"))?;
    let mut signature = vec![0; key.public().modulus_len()];
    key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), text.as_bytes(), &mut signature)
        .map_err(|_| "its private key can't sign")?;
    Ok(format!("{text}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature)))
}
