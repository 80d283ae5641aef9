//! Takes out of a text whatever opens a provider or a proxy. Servers echo requests in their errors, in
//! several codings.

use crate::endpoint::Endpoint;
use crate::network;

/// Shorter values are no secrets, and taking them out would garble every sentence.
const SECRET_BYTES_MIN: usize = 6;

/// Headers whose values everybody may see, and that errors have a use for.
const PUBLIC_HEADERS: [&str; 4] = ["anthropic-version", "anthropic-beta", "content-type", "accept"];

/// Takes out every header's value that is sent, with the token behind `Bearer`, and what is secret in the
/// addresses of the service and of proxies.
pub(crate) fn scrub(endpoint: &Endpoint, text: &str) -> String {
    let mut secrets: Vec<String> = Vec::new();
    for (name, value) in &endpoint.headers {
        if PUBLIC_HEADERS.contains(&name.as_str()) {
            continue;
        }
        let whole = value.expose().trim();
        secrets.push(whole.to_owned());
        // `Bearer TOKEN`, `session=TOKEN; other=TOKEN`: a server may echo a part.
        secrets.extend(whole.split([' ', ';', ',']).map(|part| {
            let part = part.trim();
            part.split_once('=')
                .filter(|(_, value)| !value.is_empty())
                .map_or(part, |(_, value)| value)
                .to_owned()
        }));
    }
    secrets.extend(network::secrets_of(&endpoint.base_url));
    secrets.extend(endpoint.network.secrets());
    // An error that was cut in its middle is read as text, with JSON's own writing of some characters.
    let escaped: Vec<String> = secrets.iter().flat_map(|secret| as_json(secret)).collect();
    secrets.extend(escaped);
    secrets.retain(|secret| secret.len() >= SECRET_BYTES_MIN);
    // One may be the beginning of another.
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
    fn secrets_are_taken_out_in_every_form() {
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
}
