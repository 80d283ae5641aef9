//! Credentials of endpoints: the headers that authenticate each request.
//!
//! A key from the environment is fixed when the endpoint is resolved. A stored login is read when a request is sent, so
//! that a running session picks up a later `epitome login`.

use std::io;

use jiff::Timestamp;

use super::cloud::aws::{AwsKeys, AwsSource, Scope, Unsigned, signature};
use super::cloud::entra::EntraSource;
use super::cloud::google::GoogleSource;
use super::secret::Secret;
use epitome_config::{Logins, StoredLogin, origin};

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

/// The source of AWS keys, and the scope of their signatures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AwsCredential {
    pub(super) source: AwsSource,
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

/// The source of a provider's login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginSource {
    pub(super) logins: Logins,
    pub(super) provider: String,
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

/// Whether a stored login is for the service at this base URL.
pub(super) fn is_for(login: &StoredLogin, base_url: &str) -> bool {
    login.origin.eq_ignore_ascii_case(&origin(base_url))
}

#[cfg(test)]
#[path = "credential_tests.rs"]
mod tests;
