//! Redacts secrets from texts about a server, and masks them in its results. Pure.

use std::ffi::OsString;
use std::sync::Arc;

use epitome_config::{McpTransport, origin};
use epitome_secrets::Masker;

/// Shorter values are not redacted: they aren't keys, and replacing them would garble ordinary words.
const SECRET_BYTES_MIN: usize = 6;

/// Secrets that are redacted from every text about a server.
#[derive(Clone, Default)]
pub struct ServerRedactor {
    /// Secrets and their replacements, the longest secrets first.
    texts: Vec<(String, String)>,
    /// Masks secrets whose names mark them as secret.
    masker: Arc<Masker>,
}

impl ServerRedactor {
    pub fn new(way: &McpTransport) -> ServerRedactor {
        let mut texts: Vec<(String, String)> = Vec::new();
        let pairs: &[(String, String)] = match way {
            McpTransport::Stdio { env, .. } => env,
            McpTransport::Http { url, headers, .. } => {
                texts.push((url.clone(), origin(url)));
                headers
            }
            McpTransport::Client { .. } => &[],
        };
        let values = pairs.iter().filter(|(_, value)| value.len() >= SECRET_BYTES_MIN);
        for (name, value) in values {
            texts.push((value.clone(), format!("[{name}]")));
            // In `Bearer sk-…`, only the last word is the key.
            if let Some(word) = value.split(' ').next_back().filter(|word| word.len() >= SECRET_BYTES_MIN) {
                texts.push((word.to_owned(), format!("[{name}]")));
            }
        }
        texts.sort_by_key(|(text, _)| std::cmp::Reverse(text.len()));
        let variables: Vec<(OsString, OsString)> =
            pairs.iter().map(|(name, value)| (name.into(), value.into())).collect();
        ServerRedactor { texts, masker: Arc::new(Masker::new(&variables)) }
    }

    /// Adds a secret.
    pub fn and(mut self, secret: Option<&String>) -> ServerRedactor {
        if let Some(secret) = secret.filter(|secret| secret.len() >= SECRET_BYTES_MIN) {
            self.texts.insert(0, (secret.clone(), "[key]".to_owned()));
        }
        self
    }

    /// Masks the secrets in a text of a result and changes nothing else: a variable may also contain a path or a word.
    pub fn mask(&self, mut text: String) -> String {
        self.masker.mask_in(&mut text);
        text
    }

    /// Replaces all secrets, and control characters except line feeds by spaces.
    pub fn redact(&self, text: &str) -> String {
        let redacted =
            self.texts.iter().fold(text.to_owned(), |text, (secret, shown)| text.replace(secret, shown));
        redacted.chars().map(|c| if c.is_control() && c != '\n' { ' ' } else { c }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: if a server printed its own key in a result, the conversation contained it unmasked.
    #[test]
    fn results_show_no_secret_of_the_server_and_keep_everything_else() {
        let env = [("MY_KEY", "made-up-key-1"), ("WORK_DIR", "/home/ann/work")];
        let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let way = McpTransport::Stdio { command: "x".to_owned(), args: Vec::new(), env };
        let masked = ServerRedactor::new(&way).mask("made-up-key-1\tin /home/ann/work".to_owned());
        assert_eq!(masked, "[secret masked: the value of MY_KEY]\tin /home/ann/work");
    }

    #[test]
    fn errors_never_contain_secrets() {
        let way = McpTransport::Http {
            url: "https://mcp.example/sk-in-the-path".to_owned(),
            headers: vec![("Authorization".to_owned(), "Bearer sk-header".to_owned())],
            key_variable: None,
        };
        let redactor = ServerRedactor::new(&way).and(Some(&"sk-variable".to_owned()));
        let redacted = redactor.redact(
            "error at https://mcp.example/sk-in-the-path: Bearer sk-header, sk-header and sk-variable are no keys",
        );
        assert!(!redacted.contains("sk-"), "{redacted}");
        assert!(redacted.starts_with("error at https://mcp.example:"), "{redacted}");
    }
}
