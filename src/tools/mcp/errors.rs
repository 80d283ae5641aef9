//! Formats errors of the SDK as sentences, without the names of its types. The texts may still contain secrets. Pure.

use std::error::Error;

use rmcp::ServiceError;
use rmcp::service::ClientInitializeError;

/// Prefixes by the SDK that only name the component that failed.
const EMPTY_WORDS: [&str; 4] = ["Client error: ", "Transport send error: ", "Auth error: ", "Io error: "];
/// How the HTTP client begins an error without a response.
const NOT_SENT: &str = "error sending request";
/// HTTP statuses with which servers of the older transport answer a POST to their URL.
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

/// Whether a server refuses the first message as servers of the older transport do.
pub fn is_refused_post(why: &str) -> bool {
    SSE_STATUSES.iter().any(|status| why.contains(&format!("HTTP {status}")))
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

    /// Regression: the model read "Transport [rmcp::transport::worker::WorkerTransport<…>] error: Client error: …".
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
}
