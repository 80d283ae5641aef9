//! Errors of the SDK as sentences, without the names of its types. The texts may still contain secrets. Pure.

use std::error::Error;

use rmcp::ServiceError;
use rmcp::service::ClientInitializeError;

/// Errors of the SDK that only say which part of it has failed.
const EMPTY_WORDS: [&str; 4] = ["Client error: ", "Transport send error: ", "Auth error: ", "Io error: "];
/// How the HTTP client begins an error without a response.
const NOT_SENT: &str = "error sending request";
/// Statuses with which servers of the older transport answer a POST to its address.
const SSE_STATUSES: [&str; 3] = ["404", "405", "400"];

/// Why a server could not be initialized; completes a sentence.
pub fn initialize_reason(error: &ClientInitializeError) -> String {
    match error {
        ClientInitializeError::ConnectionClosed(_) => "it ended before it answered".to_owned(),
        ClientInitializeError::TransportError { error, .. } => sentence(error.error.as_ref()),
        ClientInitializeError::JsonRpcError(error) => format!("it refused the connection: {}", error.message),
        ClientInitializeError::ExpectedInitResponse(_)
        | ClientInitializeError::ExpectedInitResult(_)
        | ClientInitializeError::ConflictInitResponseId(..)
        | ClientInitializeError::UncorrelatedErrorResponse { .. } => {
            "its first message does not follow the protocol".to_owned()
        }
        other => sentence(other),
    }
}

/// Why an HTTP server could not be initialized. An address of the older transport is recognized by its path or status.
pub fn http_initialize_reason(error: &ClientInitializeError, url: &str) -> String {
    let why = initialize_reason(error);
    let path = url.split(['?', '#']).next().unwrap_or_default().trim_end_matches('/');
    let is_refused = SSE_STATUSES.iter().any(|status| why.contains(&format!("HTTP {status}")));
    let is_old = is_refused && (path.ends_with("/sse") || why.contains("HTTP 405"));
    match is_old {
        true => format!(
            "{why}. Its address looks like one of the older SSE transport, which is not supported: use its \
             address for streamable HTTP, which often ends in /mcp"
        ),
        false => why,
    }
}

/// Why a request has no response.
pub fn service_reason(error: &ServiceError) -> String {
    match error {
        ServiceError::McpError(error) => error.message.to_string(),
        ServiceError::TransportSend(error) => sentence(error.error.as_ref()),
        ServiceError::TransportClosed => "it closed the connection".to_owned(),
        ServiceError::Cancelled { .. } => "it cancelled the request".to_owned(),
        ServiceError::UnexpectedResponse => "its response does not fit the request".to_owned(),
        other => sentence(other),
    }
}

/// An error and its causes, joined by colons.
fn sentence(error: &dyn Error) -> String {
    let mut text = String::new();
    let mut next = Some(error);
    while let Some(cause) = next {
        add(&mut text, cause.to_string());
        next = cause.source();
    }
    text
}

fn add(text: &mut String, mut cause: String) {
    for words in EMPTY_WORDS {
        while let Some(rest) = cause.strip_prefix(words) {
            cause = rest.to_owned();
        }
    }
    if cause.starts_with(NOT_SENT) {
        cause = "it cannot be reached".to_owned();
    }
    // `Transport [crate::module::Type<…>] error: …`
    if let Some((_, rest)) = cause.split_once("] error: ").filter(|(before, _)| before.contains("::")) {
        return add(text, rest.to_owned());
    }
    if !text.contains(&cause) {
        let between = if text.is_empty() { "" } else { ": " };
        text.push_str(between);
        text.push_str(&cause);
    }
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use super::*;

    #[derive(Debug)]
    struct Failure(&'static str, Option<Box<Failure>>);

    impl fmt::Display for Failure {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Failure {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref().map(|cause| cause as &(dyn Error + 'static))
        }
    }

    /// The model read "Transport [rmcp::transport::worker::WorkerTransport<…>] error: Client error: …".
    #[test]
    fn errors_name_no_types() {
        let refused = Failure("Connection refused (os error 111)", None);
        let request =
            Failure("error sending request for url (http://127.0.0.1:1/mcp)", Some(Box::new(refused)));
        let client = Failure(
            "Client error: error sending request for url (http://127.0.0.1:1/mcp)",
            Some(Box::new(request)),
        );
        let dynamic = Failure(
            "Transport [rmcp::transport::Worker<x>] error: Client error: error sending request",
            Some(Box::new(client)),
        );
        let send = Failure(
            "Transport send error: Transport [rmcp::transport::Worker<x>] error: Client error: error sending request",
            Some(Box::new(dynamic)),
        );
        assert_eq!(sentence(&send), "it cannot be reached: Connection refused (os error 111)");
    }

    #[test]
    fn an_address_of_the_older_transport_is_recognized() {
        let error = |words: &'static str| ClientInitializeError::TransportError {
            error: rmcp::transport::DynamicTransportError::from_parts(
                "x",
                std::any::TypeId::of::<()>(),
                Box::new(Failure(words, None)),
            ),
            context: "x".into(),
        };
        for (words, url, is_old) in [
            ("unexpected server response: HTTP 405 Method Not Allowed", "http://x/y", true),
            ("unexpected server response: HTTP 404 Not Found", "http://x/sse?key=1", true),
            ("unexpected server response: HTTP 404 Not Found", "http://x/mcp", false),
            ("unexpected server response: HTTP 500", "http://x/sse", false),
        ] {
            assert_eq!(http_initialize_reason(&error(words), url).contains("SSE"), is_old, "{words} {url}");
        }
    }
}
