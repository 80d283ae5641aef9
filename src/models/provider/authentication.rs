//! Authenticates requests: looks a credential up when a request is sent, and renews one that the service rejected.

use std::error::Error;

use super::chatgpt::{self, RefreshError, TokenRefresher};
use super::credential::{Credential, LoginSource, is_for};
use super::http::Http;
use super::model_endpoint::Endpoint;
use super::resolve::provider_title;
use super::secret::Secret;
use super::{ErrorClass, ProviderError};
use epitome_config::LoginSecret;
use epitome_platform::blocking;

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
            LoginSecret::ApiKey { key } => Ok(vec![endpoint.key_header(&key)]),
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
                    Ok(token) => Ok(vec![endpoint.key_header(&token)]),
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
                found.map_err(|why| self.without_credential(&*why))?
            }
            Credential::Entra(source) => {
                let found = source.header(&http.within(self.network.clone()), rejected).await;
                vec![found.map_err(|why| self.without_credential(&*why))?]
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

    /// The error for a missing cloud credential; the text of `why` is a clause.
    fn without_credential(&self, why: &dyn Error) -> ProviderError {
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
}
