//! Why a request was not answered, in words that contain neither the user, password or query of a URL nor header values.

use std::error::Error;
use std::io;
use std::time::Duration;

use reqwest::header::{HeaderName, InvalidHeaderName, InvalidHeaderValue};

use super::clients::ClientError;

/// Why a request was not answered. Its text completes a sentence (`… could not be reached: {}`).
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("its address is malformed")]
    Address(#[source] reqwest::Error),
    // The name is not shown, as it may be a misplaced key.
    #[error("the name of a header has invalid characters")]
    HeaderName(#[source] InvalidHeaderName),
    #[error("the value of the header {name} has invalid characters")]
    HeaderValue { name: HeaderName, source: InvalidHeaderValue },
    #[error("{}", reason(.0))]
    Transfer(#[source] reqwest::Error),
    #[error("no answer within {} s", limit.as_secs())]
    Late { limit: Duration },
    #[error("the answer is longer than {most} bytes")]
    TooLong { most: usize },
}

impl HttpError {
    /// Removes the URL, which may contain a key.
    pub(crate) fn transfer(error: reqwest::Error) -> HttpError {
        HttpError::Transfer(error.without_url())
    }
}

/// Whether the peer's certificate is not trusted.
pub(crate) fn is_untrusted(error: &reqwest::Error) -> bool {
    matches!(tls_error(error), Some(rustls::Error::InvalidCertificate(_)))
}

/// Whether the peer answered the TLS handshake with another protocol.
pub(crate) fn is_plain(error: &reqwest::Error) -> bool {
    matches!(
        tls_error(error),
        Some(rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType))
    )
}

/// Returns the innermost cause, without the URL that the client adds, which may contain a key.
pub(crate) fn reason(error: &reqwest::Error) -> String {
    if let Some(error) = tls_error(error) {
        return match error {
            rustls::Error::InvalidCertificate(why) => format!("its certificate is not trusted ({why})"),
            error => error.to_string(),
        };
    }
    if error.is_timeout() {
        return "nothing came for too long".into();
    }
    let mut cause: &dyn Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    match std::ptr::eq(cause, error as &dyn Error) {
        true if error.is_builder() => "the address or a header is not well formed".into(),
        true => "the transfer failed".into(),
        // The TLS library adds the address of its manual.
        false => cause.to_string().split(": https://docs.rs/").next().unwrap_or_default().to_owned(),
    }
}

/// Returns the underlying TLS error, which is wrapped in an I/O error.
pub(crate) fn tls_error(error: &reqwest::Error) -> Option<&rustls::Error> {
    let mut cause: Option<&(dyn Error + 'static)> = error.source();
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref() {
            return Some(error);
        }
        // `io::Error::source` skips the wrapped error and returns its source.
        cause = match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(inside) => Some(inside),
            None => error.source(),
        };
    }
    None
}
