//! Credentials of endpoints: the headers that authenticate each request.
//!
//! A key from the environment is fixed when the endpoint is resolved. A stored login is read when a request is sent, so
//! that a running session picks up a later `epitome login`.

use std::io;

use jiff::Timestamp;

use super::chatgpt::{self, RefreshError, TokenRefresher};
use super::cloud::aws::{AwsKeys, AwsSource, Scope, Unsigned, signature};
use super::cloud::entra::EntraSource;
use super::cloud::google::GoogleSource;
use super::endpoint::{Endpoint, KeyHeader, Secret, provider_title};
use super::http::Http;
use super::{ErrorClass, ProviderError};
use epitome_config::{LoginSecret, Logins, StoredLogin, WireFormat, origin};
use epitome_platform::blocking;

/// The source of the headers that authenticate requests. Headers from the user's settings override them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Credential {
    /// No credential, apart from headers in the user's settings.
    #[default]
    Absent,
    /// Headers with keys from the environment.
    Fixed(Vec<(String, Secret)>),
    /// A login that `epitome login` stored.
    Stored(Box<LoginSource>),
    /// Keys of an AWS account, looked up for each request, which they sign.
    Aws(Box<AwsCredential>),
    /// Google's Application Default Credentials.
    Google(Box<GoogleSource>),
    /// An application of Microsoft Entra.
    Entra(Box<EntraSource>),
}

/// Where AWS keys are looked up, and the scope of their signatures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AwsCredential {
    source: AwsSource,
    region: String,
    service: &'static str,
}

impl AwsCredential {
    /// The texts of its keys, once they are found. Services repeat them when they reject a signature.
    pub(super) fn secrets(&self) -> impl Iterator<Item = &str> {
        self.source.keys.iter().flat_map(|AwsKeys { id, secret, session }| {
            [id.as_str(), secret.expose()].into_iter().chain(session.as_ref().map(Secret::expose))
        })
    }

    /// Returns the headers that sign this request at the current time; none before the keys are found.
    pub(super) fn sign(&self, request: &Unsigned<'_>) -> Vec<(String, Secret)> {
        let scope = Scope { region: &self.region, service: self.service };
        let keys = self.source.keys.iter();
        keys.flat_map(|keys| signature(request, keys, scope, Timestamp::now())).collect()
    }
}

/// Where a provider's login is looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginSource {
    logins: Logins,
    provider: String,
}

impl Credential {
    /// The stored login of a provider; `Absent` if none is stored for the service at this base URL.
    pub(super) fn stored(logins: &Logins, provider: &str, base_url: &str) -> Credential {
        let source = Box::new(LoginSource { logins: logins.clone(), provider: provider.to_owned() });
        // An unreadable login counts as stored, so that the request fails with the reason.
        match logins.find(provider) {
            Ok(Some(login)) if is_for(&login, base_url) && login.is_usable() => Credential::Stored(source),
            // If reading isn't permitted, as in a sandbox, assume no login.
            Err(error) if error.kind() != io::ErrorKind::PermissionDenied => Credential::Stored(source),
            Ok(_) | Err(_) => Credential::Absent,
        }
    }

    /// AWS keys for the service at this base URL: that of a region, or a gateway for it.
    pub(super) fn aws(base_url: &str, variable: impl Fn(&str) -> Option<String>) -> Credential {
        let (region, service) = match Scope::of_host(base_url) {
            Some(scope) => (Some(scope.region.to_owned()), scope.service),
            None => (variable("AWS_REGION").or_else(|| variable("AWS_DEFAULT_REGION")), "bedrock"),
        };
        let region = region.unwrap_or_else(|| "us-east-1".to_owned());
        Credential::Aws(Box::new(AwsCredential { source: AwsSource::read(variable), region, service }))
    }

    pub(super) fn google(variable: impl Fn(&str) -> Option<String>) -> Credential {
        Credential::Google(Box::new(GoogleSource::read(variable)))
    }

    /// `Absent` if the environment names no application.
    pub(super) fn entra(variable: impl Fn(&str) -> Option<String>) -> Credential {
        EntraSource::read(variable).map_or(Credential::Absent, |source| Credential::Entra(Box::new(source)))
    }

    pub(super) fn is_absent(&self) -> bool {
        *self == Credential::Absent
    }

    pub fn is_stored(&self) -> bool {
        matches!(self, Credential::Stored(_))
    }

    /// The headers that are known without a lookup.
    pub(super) fn fixed(&self) -> &[(String, Secret)] {
        match self {
            Credential::Fixed(headers) => headers,
            Credential::Absent
            | Credential::Stored(_)
            | Credential::Aws(_)
            | Credential::Google(_)
            | Credential::Entra(_) => &[],
        }
    }

    /// Adds or replaces a fixed header.
    pub(super) fn set(&mut self, name: &str, value: impl Into<String>) {
        let mut headers = self.fixed().to_vec();
        headers.retain(|(existing, _)| existing != name);
        headers.push((name.to_owned(), Secret::new(value)));
        *self = Credential::Fixed(headers);
    }
}

impl LoginSource {
    /// Returns the headers for one request to this endpoint. `rejected` is an access token that the service no longer
    /// accepts.
    async fn headers(
        &self,
        endpoint: &Endpoint,
        http: &Http,
        rejected: Option<&str>,
    ) -> Result<Vec<(String, Secret)>, ProviderError> {
        let source = self.clone();
        let login = match blocking::run(move || source.logins.find(&source.provider)).await {
            Ok(Some(login)) if is_for(&login, &endpoint.base_url) => login,
            Ok(_) => return Err(self.unusable("There is no stored login for")),
            Err(error) => {
                return Err(self.unusable(&format!("The stored login can't be read ({error}) for")));
            }
        };
        match login.secret {
            LoginSecret::ApiKey { key } => Ok(vec![key_header(endpoint, &key)]),
            LoginSecret::ChatGpt(login) => {
                let issuer = chatgpt::issuer(&endpoint.base_url)
                    .ok_or_else(|| self.unusable("The sign-in is for another service than that of"))?;
                let refresher = TokenRefresher {
                    logins: self.logins.clone(),
                    provider: self.provider.clone(),
                    issuer,
                    http: http.within(endpoint.network.clone()),
                };
                match refresher.token(&login, rejected).await {
                    Ok(token) => Ok(vec![key_header(endpoint, &token)]),
                    Err(RefreshError::SignedOut) => Err(self.unusable("The sign-in is no longer valid for")),
                    Err(RefreshError::Failed(why)) => Err(ProviderError::new(
                        ErrorClass::Retry { after: None },
                        format!("The sign-in with ChatGPT could not be renewed: {why}."),
                    )),
                }
            }
        }
    }

    fn unusable(&self, what: &str) -> ProviderError {
        ProviderError::new(ErrorClass::Auth, format!("{what} {}.", self.provider))
            .with_hint(format!("Run `epitome login {}` in a terminal.", self.provider))
    }
}

impl Endpoint {
    /// Returns a copy with the headers that authenticate one request.
    pub(super) async fn authenticated(&self, http: &Http) -> Result<Endpoint, ProviderError> {
        self.authenticated_unlike(http, None).await
    }

    async fn authenticated_unlike(
        &self,
        http: &Http,
        rejected: Option<&str>,
    ) -> Result<Endpoint, ProviderError> {
        let mut headers = match &self.credential {
            Credential::Stored(source) => source.headers(self, http, rejected).await?,
            Credential::Google(source) => {
                let found = source.headers(&http.within(self.network.clone()), rejected).await;
                found.map_err(|why| self.without_credential(&why))?
            }
            Credential::Entra(source) => {
                let found = source.header(&http.within(self.network.clone()), rejected).await;
                vec![found.map_err(|why| self.without_credential(&why))?]
            }
            Credential::Aws(aws) => {
                let (mut aws, source) = (aws.clone(), aws.source.clone());
                let keys = blocking::run(move || source.find()).await;
                aws.source.keys = Some(keys.map_err(|why| self.without_credential(&why))?);
                return Ok(Endpoint { credential: Credential::Aws(aws), ..self.clone() });
            }
            Credential::Absent | Credential::Fixed(_) => return Ok(self.clone()),
        };
        headers.extend(self.headers.iter().cloned());
        Ok(Endpoint { headers, ..self.clone() })
    }

    /// The error for a missing cloud credential; `why` is a clause.
    fn without_credential(&self, why: &str) -> ProviderError {
        let message = format!("{} can't be called: {why}.", provider_title(self.provider()));
        ProviderError::new(ErrorClass::Auth, message).scrubbed(self)
    }

    /// Returns the endpoint for a second attempt after the service rejected the credential of the first; `None` if
    /// there is no other credential to try.
    pub(super) async fn reauthenticated(&self, http: &Http, rejected: &Endpoint) -> Option<Endpoint> {
        let sent = rejected.headers.iter().find_map(|(_, value)| value.expose().strip_prefix("Bearer "));
        let renewed = self.authenticated_unlike(http, sent).await.ok()?;
        (renewed.headers != rejected.headers).then_some(renewed)
    }

    /// The headers to send; later ones replace earlier ones with the same name.
    pub(super) fn sent_headers(&self) -> impl Iterator<Item = &(String, Secret)> {
        self.credential.fixed().iter().chain(&self.headers)
    }
}

/// The header with an access token.
pub(super) fn bearer(token: &str) -> (String, Secret) {
    ("authorization".to_owned(), Secret::new(format!("Bearer {token}")))
}

/// The header that contains a key in requests to this service.
pub(super) fn key_header(endpoint: &Endpoint, key: &str) -> (String, Secret) {
    let name = match (endpoint.quirks.key_header, endpoint.wire) {
        (KeyHeader::ApiKey, _) => "api-key",
        (KeyHeader::OfFormat, WireFormat::AnthropicMessages) => "x-api-key",
        (KeyHeader::OfFormat, WireFormat::Gemini) => "x-goog-api-key",
        (KeyHeader::OfFormat, WireFormat::OpenAiChat | WireFormat::OpenAiResponses)
        | (KeyHeader::Bearer, _) => return bearer(key),
    };
    (name.to_owned(), Secret::new(key))
}

fn is_for(login: &StoredLogin, base_url: &str) -> bool {
    login.origin.eq_ignore_ascii_case(&origin(base_url))
}

#[cfg(test)]
#[path = "credential_tests.rs"]
mod tests;
