//! Error messages and hints for calls without a response. They contain neither the user, password or query of a URL nor
//! header values.

use std::time::Duration;

use super::limits::{TRIED_AGAIN_MAX, format_duration};
use crate::address::{authority_of, host_of, is_loopback};
use crate::http::{CallTimeouts, is_plain, is_untrusted, reason, tls_error};
use crate::model_endpoint::Endpoint;
use crate::{ErrorClass, ProviderError, failure};

/// The error if no connection was established, or it was lost before a response.
pub(super) fn unreachable_now(
    endpoint: &Endpoint,
    error: &reqwest::Error,
    limits: CallTimeouts,
    faults: &[String],
) -> ProviderError {
    let host = host_of(&endpoint.base_url);
    let place = authority_of(&endpoint.base_url);
    let proxy = endpoint.network.variable_of(&endpoint.base_url);
    let why = match error.is_connect() && error.is_timeout() {
        true => format!("no connection within {}, the limit for one", format_duration(limits.connect)),
        // The client does not report the proxy's status.
        false => reason(error).replace("tunnel error: unsuccessful", "the proxy refused to connect to it"),
    };
    let is_refused_by_proxy = why.contains("proxy authorization required");
    let retry = ErrorClass::Retry { after: None };
    let (class, hint) = match proxy {
        _ if is_untrusted(error) => (ErrorClass::Refused, untrusted(endpoint, error, faults)),
        Some(variable) if is_refused_by_proxy => (
            ErrorClass::Refused,
            format!("The proxy wants a user and a password: {variable}=http://user:password@host:port."),
        ),
        _ if is_plain(error) => (
            ErrorClass::Refused,
            format!(
                "What listens there seems to speak plain HTTP: if it is meant to, write http:// in the base URL {}.",
                endpoint.shown_url()
            ),
        ),
        Some(variable) => (
            retry,
            format!("Check the network, and the proxy that {variable} of the editor's environment names."),
        ),
        None if is_loopback(host) => (retry, "Check that the server is running.".to_owned()),
        None => (
            retry,
            "Check the network; if it needs a proxy, set HTTPS_PROXY in the editor's environment.".to_owned(),
        ),
    };
    // If some hosts bypass the proxy, this may be one of them: only the client evaluates the list.
    let through = proxy.filter(|_| endpoint.network.direct().is_empty());
    let through = through.map(|variable| format!(" through the proxy of {variable}")).unwrap_or_default();
    let what = format!("cannot be reached at {place}{through}: {why}");
    failure::error(endpoint, class, &what, Some(hint))
}

/// The error if the request was sent but nothing was received.
pub(super) fn no_first_byte(endpoint: &Endpoint, waited: Duration) -> ProviderError {
    let class = match waited <= TRIED_AGAIN_MAX {
        true => ErrorClass::Retry { after: None },
        false => ErrorClass::Broken,
    };
    let what =
        format!("did not begin to answer within {}, the limit for its first byte", format_duration(waited));
    let hint = "Send the prompt again, or choose another model.".to_owned();
    failure::error(endpoint, class, &what, Some(hint))
}

/// The error if the request can't be sent with the current configuration. `why` is a clause.
pub(super) fn unusable(endpoint: &Endpoint, why: &str) -> ProviderError {
    let message = format!("No request can be sent to {}: {why}.", failure::subject(endpoint));
    let hint = format!("Check the configuration of {}.", endpoint.shown_url());
    ProviderError::new(ErrorClass::Refused, message).with_hint(hint).scrubbed(endpoint)
}

/// The error if the response to a request that isn't a model call was lost or is too long. `why` is a clause.
pub(super) fn unreadable(endpoint: &Endpoint, why: &str) -> ProviderError {
    let subject = failure::subject(endpoint);
    let message = format!("The answer of {subject} can't be read: {why} (model {}).", endpoint.name);
    ProviderError::new(ErrorClass::Refused, message).scrubbed(endpoint)
}

/// A hint about a certificate that is not trusted.
fn untrusted(endpoint: &Endpoint, error: &reqwest::Error, faults: &[String]) -> String {
    use rustls::CertificateError::{
        Expired, ExpiredContext, NotValidForName, NotValidForNameContext, NotValidYet, NotValidYetContext,
    };
    match tls_error(error) {
        Some(rustls::Error::InvalidCertificate(
            Expired | ExpiredContext { .. } | NotValidYet | NotValidYetContext { .. },
        )) => {
            return "Check the clock of this machine. If it is right, the certificate must be renewed."
                .to_owned();
        }
        Some(rustls::Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. })) => {
            return format!(
                "Check the host in the base URL {}. If it is right, something else in the network answers.",
                endpoint.shown_url()
            );
        }
        // A certificate made by `openssl req -x509`.
        Some(rustls::Error::InvalidCertificate(why)) if why.to_string().contains("CaUsedAsEndEntity") => {
            return "Its certificate is that of an authority (CA:TRUE). The server needs one with CA:FALSE, which may be named in \
                    SSL_CERT_FILE."
                .to_owned();
        }
        _ => {}
    }
    let mut hint = "If your network's proxy opens encrypted connections, set SSL_CERT_FILE in the editor's \
                    environment to a file with its certificate authority (PEM), and try again."
        .to_owned();
    for fault in faults {
        hint.push_str(&format!(" {fault}."));
    }
    hint
}
