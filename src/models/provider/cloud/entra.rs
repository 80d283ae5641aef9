//! Azure: access tokens of a Microsoft Entra application, requested with its secret (OAuth client credentials).
//!
//! Tested with a scripted token server, but not with the live service.

use super::tokens::{self, TokenError};
use crate::address::{host_of, is_loopback};
use crate::http::Http;
use crate::secret::{Secret, bearer};

const AUTHORITY: &str = "https://login.microsoftonline.com";
const SCOPE: &str = "https://cognitiveservices.azure.com/.default";

/// An application, as Azure's own libraries read it from the environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntraSource {
    authority: String,
    tenant: String,
    client: String,
    secret: Secret,
}

impl EntraSource {
    /// `None` if the environment doesn't name an application with a secret.
    pub fn read(get: impl Fn(&str) -> Option<String>) -> Option<EntraSource> {
        let authority = get("AZURE_AUTHORITY_HOST").unwrap_or_else(|| AUTHORITY.to_owned());
        Some(EntraSource {
            authority: authority.trim_end_matches('/').to_owned(),
            tenant: get("AZURE_TENANT_ID")?,
            client: get("AZURE_CLIENT_ID")?,
            secret: Secret::new(get("AZURE_CLIENT_SECRET")?),
        })
    }

    /// Returns the header that authenticates a request. `rejected` is a token that the service does not accept.
    pub async fn header(&self, http: &Http, rejected: Option<&str>) -> Result<(String, Secret), TokenError> {
        let EntraSource { authority, tenant, client, secret } = self;
        if !authority.starts_with("https://") && !is_loopback(host_of(authority)) {
            return Err(format!("AZURE_AUTHORITY_HOST must begin with https://, and is {authority}").into());
        }
        let url = format!("{authority}/{tenant}/oauth2/v2.0/token");
        let fields = [
            ("grant_type", "client_credentials"),
            ("client_id", client),
            ("client_secret", secret.expose()),
            ("scope", SCOPE),
        ];
        let key = format!("{url} {client}");
        let token = tokens::cached(key, rejected, tokens::exchange(http, &url, &fields)).await?.token;
        Ok(bearer(token.expose()))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// Answers one request, and returns it.
    async fn answer(listener: &TcpListener, status: &str, body: &str) -> String {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let mut request = Vec::new();
        while !String::from_utf8_lossy(&request).contains("default") {
            let mut piece = [0; 4096];
            let read = stream.read(&mut piece).await.expect("a request");
            assert!(read > 0, "the request ended early");
            request.extend_from_slice(&piece[..read]);
        }
        let length = body.len();
        let answer =
            format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
        stream.write_all(answer.as_bytes()).await.expect("it reads");
        String::from_utf8_lossy(&request).into_owned()
    }

    fn source(authority: String, client: &str) -> EntraSource {
        let variable = |name: &str| match name {
            "AZURE_AUTHORITY_HOST" => Some(authority.clone()),
            "AZURE_TENANT_ID" => Some("unit".to_owned()),
            "AZURE_CLIENT_ID" => Some(client.to_owned()),
            "AZURE_CLIENT_SECRET" => Some("p&ss".to_owned()),
            _ => None,
        };
        EntraSource::read(variable).expect("an application")
    }

    #[tokio::test]
    async fn a_token_is_requested_once_and_refusals_are_quoted() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let authority = format!("http://{}/", listener.local_addr().expect("an address"));
        let (http, known) = (Http::new(), source(authority.clone(), "c"));
        let token = r#"{"token_type": "Bearer", "expires_in": 3599, "access_token": "t"}"#;
        let (request, header) = tokio::join!(answer(&listener, "200 OK", token), known.header(&http, None));
        let header = header.expect("a token");
        assert_eq!((header.0.as_str(), header.1.expose()), ("authorization", "Bearer t"));
        assert!(request.starts_with("POST /unit/oauth2/v2.0/token "), "{request}");
        assert!(
            request.contains("grant_type=client%5Fcredentials&client_id=c&client_secret=p%26ss&scope="),
            "{request}"
        );
        // Nothing answers any more.
        let header = known.header(&http, None).await.expect("it is kept");
        assert_eq!(header.1.expose(), "Bearer t");

        let wrong = source(authority, "other");
        let refusal =
            r#"{"error": "invalid_client", "error_description": "AADSTS7000215: Invalid client secret"}"#;
        let (_, header) =
            tokio::join!(answer(&listener, "401 Unauthorized", refusal), wrong.header(&http, None));
        let why = header.expect_err("it is refused").to_string();
        assert!(why.ends_with("gave no token: AADSTS7000215: Invalid client secret (HTTP 401)"), "{why}");
    }

    /// Regression: a token that was revoked, for example by a new login, was sent with every request until it expired. An
    /// answer that names no sensible time overflowed the clock.
    #[tokio::test]
    async fn a_rejected_token_is_replaced() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let authority = format!("http://{}", listener.local_addr().expect("an address"));
        let (http, known) = (Http::new(), source(authority, "c"));
        for (token, rejected) in [("first", None), ("second", Some("first"))] {
            let body = format!(r#"{{"expires_in": {}, "access_token": "{token}"}}"#, u64::MAX);
            let (_, header) = tokio::join!(answer(&listener, "200 OK", &body), known.header(&http, rejected));
            assert_eq!(header.expect("a token").1.expose(), format!("Bearer {token}"));
        }
        // Another call may have replaced it already. Nothing answers any more.
        let header = known.header(&http, Some("first")).await.expect("a token");
        assert_eq!(header.1.expose(), "Bearer second");
    }

    #[tokio::test]
    async fn secrets_are_not_sent_in_the_clear() {
        let source = source("http://login.example".to_owned(), "c");
        let why = source.header(&Http::new(), None).await.expect_err("it is refused").to_string();
        assert_eq!(why, "AZURE_AUTHORITY_HOST must begin with https://, and is http://login.example");
    }
}
