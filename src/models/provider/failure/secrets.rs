//! Redacts credentials of providers and proxies. Servers echo requests in their errors, in several encodings.

use crate::credential::Credential;
use crate::model_endpoint::Endpoint;
use crate::{ProviderError, network};

/// Shorter values are not redacted: they aren't secrets, and redaction would garble ordinary words.
const SECRET_BYTES_MIN: usize = 6;

/// Headers that aren't secret and are useful in errors.
const PUBLIC_HEADERS: [&str; 4] = ["anthropic-version", "anthropic-beta", "content-type", "accept"];

/// Redacts the values of all sent headers, the token after `Bearer`, the keys that sign requests, and the credentials
/// in the URLs of the service and its proxies.
pub(crate) fn scrub(endpoint: &Endpoint, text: &str) -> String {
    let mut secrets: Vec<String> = Vec::new();
    for (name, value) in endpoint.sent_headers() {
        if PUBLIC_HEADERS.contains(&name.as_str()) {
            continue;
        }
        let whole = value.expose().trim();
        secrets.push(whole.to_owned());
        // `Bearer TOKEN`, `session=TOKEN; other=TOKEN`: a server may echo only a part.
        secrets.extend(whole.split([' ', ';', ',']).map(|part| {
            let part = part.trim();
            part.split_once('=')
                .filter(|(_, value)| !value.is_empty())
                .map_or(part, |(_, value)| value)
                .to_owned()
        }));
    }
    if let Credential::Aws(aws) = &endpoint.credential {
        secrets.extend(aws.secrets().map(str::to_owned));
    }
    secrets.extend(network::secrets_of(&endpoint.base_url));
    secrets.extend(endpoint.network.secrets());
    // A truncated error is read as plain text and may contain JSON escapes.
    let escaped: Vec<String> = secrets.iter().flat_map(|secret| as_json(secret)).collect();
    secrets.extend(escaped);
    secrets.retain(|secret| secret.len() >= SECRET_BYTES_MIN);
    // A secret may be a prefix of another.
    secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    secrets.dedup();
    let mut text = text.to_owned();
    for secret in secrets {
        if text.contains(&secret) {
            text = text.replace(&secret, "[secret]");
        }
    }
    text
}

impl ProviderError {
    /// Masks the secrets of this endpoint.
    pub(crate) fn scrubbed(self, endpoint: &Endpoint) -> ProviderError {
        let hint = self.hint.map(|hint| scrub(endpoint, &hint));
        ProviderError { message: scrub(endpoint, &self.message), hint, ..self }
    }
}

fn as_json(secret: &str) -> [String; 2] {
    let quoted = serde_json::Value::from(secret).to_string();
    let inside = quoted[1..quoted.len() - 1].to_owned();
    [inside.replace('/', "\\/"), inside]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::{Secret, test_endpoint};

    #[test]
    fn secrets_are_redacted_in_every_form() {
        let mut endpoint = test_endpoint("openai/gpt-5.4");
        endpoint.base_url = "https://joe:pass%21word@box/v1?key=query-key&v=1".into();
        for (name, value) in [("x-tenant", "tenant/\"secret"), ("cookie", "a=first-cookie; b=second-cookie")]
        {
            endpoint.headers.push((name.into(), Secret::new(value)));
        }
        for (text, expected) in [
            ("key sk-test-key, Bearer sk-test-key", "key [secret], [secret]"),
            (r#"x tenant/"secret"#, "x [secret]"),
            (r#"{"x":"tenant\/\"secret"#, r#"{"x":"[secret]"#),
            ("second-cookie and first-cookie", "[secret] and [secret]"),
            ("pass!word pass%21word", "[secret] [secret]"),
            ("Basic am9lOnBhc3Mhd29yZA==", "Basic [secret]"),
            ("?key=query-key&v=1", "?key=[secret]&v=1"),
        ] {
            assert_eq!(scrub(&endpoint, text), expected);
        }
    }

    /// Regression test: AWS explains a wrong signature by repeating what it signed, with the session token. Headers that
    /// sign a request are not among the endpoint's, so the token was shown and logged.
    #[tokio::test]
    async fn keys_that_sign_requests_are_redacted() {
        let keys = [
            ("AWS_ACCESS_KEY_ID", "ASIAEXAMPLE"),
            ("AWS_SECRET_ACCESS_KEY", "made-up/secret"),
            ("AWS_SESSION_TOKEN", "made-up-session=="),
        ];
        let variable =
            |name: &str| keys.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        let mut endpoint = test_endpoint("anthropic/claude-sonnet-5-5");
        endpoint.credential = Credential::aws("https://bedrock-runtime.eu-west-1.amazonaws.com", variable);
        let endpoint = endpoint.authenticated(&crate::http::Http::new()).await.expect("the keys are there");
        let text = "SignatureDoesNotMatch: x-amz-security-token:made-up-session== Credential=ASIAEXAMPLE/eu made-up\\/secret";
        let wanted = "SignatureDoesNotMatch: x-amz-security-token:[secret] Credential=[secret]/eu [secret]";
        assert_eq!(scrub(&endpoint, text), wanted);
    }
}
