//! Expands `${NAME}` and `${NAME:-default}` in server definitions of user and repository files, as other
//! agents do, and redacts secrets from error texts. Pure.

use std::ffi::OsString;

use epitome_config::{McpServer, McpSource, McpWay, origin};

/// Shorter values are not redacted: they aren't keys, and replacing them would garble ordinary words.
const SECRET_BYTES_MIN: usize = 6;

/// A server's `way` with its variables expanded. Definitions given by a client are used unchanged. The error
/// completes a sentence and names a variable.
pub fn expanded(server: &McpServer, environment: &[(OsString, OsString)]) -> Result<McpWay, String> {
    if server.from == McpSource::Client {
        return Ok(server.way.clone());
    }
    let one = |text: &String| expand(text, environment);
    let list = |texts: &[String]| texts.iter().map(one).collect::<Result<Vec<String>, String>>();
    let pairs = |pairs: &[(String, String)]| {
        pairs.iter().map(|(name, value)| Ok((name.clone(), one(value)?))).collect::<Result<Vec<_>, String>>()
    };
    Ok(match &server.way {
        McpWay::Stdio { command, args, env } => {
            McpWay::Stdio { command: one(command)?, args: list(args)?, env: pairs(env)? }
        }
        McpWay::Http { url, headers, key_variable } => {
            McpWay::Http { url: one(url)?, headers: pairs(headers)?, key_variable: key_variable.clone() }
        }
    })
}

/// The value of a variable, if it is set, not empty and valid UTF-8.
pub fn variable(environment: &[(OsString, OsString)], name: &str) -> Option<String> {
    let (_, value) = environment.iter().find(|(key, _)| key == name)?;
    value.to_str().filter(|value| !value.is_empty()).map(str::to_owned)
}

fn expand(text: &str, environment: &[(OsString, OsString)]) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once("${") {
        out.push_str(before);
        let Some((inner, after)) = behind.split_once('}') else {
            out.push_str("${");
            rest = behind;
            continue;
        };
        let (name, otherwise) = match inner.split_once(":-") {
            Some((name, otherwise)) => (name, Some(otherwise)),
            None => (inner, None),
        };
        match (variable(environment, name), otherwise) {
            (Some(value), _) => out.push_str(&value),
            (None, Some(otherwise)) => out.push_str(otherwise),
            (None, None) => {
                return Err(format!("the variable {name}, which its definition uses, is not set"));
            }
        }
        rest = after;
    }
    out.push_str(rest);
    Ok(out)
}

/// Secrets that are redacted from every text about a server.
#[derive(Clone, Default)]
pub struct Redactor {
    /// Secrets and their replacements, the longest secrets first.
    texts: Vec<(String, String)>,
}

impl Redactor {
    pub fn of(way: &McpWay) -> Redactor {
        let mut texts: Vec<(String, String)> = Vec::new();
        let pairs = match way {
            McpWay::Stdio { env, .. } => env,
            McpWay::Http { url, headers, .. } => {
                texts.push((url.clone(), origin(url)));
                headers
            }
        };
        let values = pairs.iter().filter(|(_, value)| value.len() >= SECRET_BYTES_MIN);
        for (name, value) in values {
            texts.push((value.clone(), format!("[{name}]")));
            // `Bearer sk-…`: the last word alone is the key.
            if let Some(word) = value.split(' ').next_back().filter(|word| word.len() >= SECRET_BYTES_MIN) {
                texts.push((word.to_owned(), format!("[{name}]")));
            }
        }
        texts.sort_by_key(|(text, _)| std::cmp::Reverse(text.len()));
        Redactor { texts }
    }

    /// Adds a secret.
    pub fn and(mut self, secret: Option<&String>) -> Redactor {
        if let Some(secret) = secret.filter(|secret| secret.len() >= SECRET_BYTES_MIN) {
            self.texts.insert(0, (secret.clone(), "[key]".to_owned()));
        }
        self
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

    #[test]
    fn variables_are_expanded_and_missing_ones_reported() {
        let environment = [(OsString::from("KEY"), OsString::from("sk-1"))];
        for (text, expected) in [
            ("plain", Ok("plain")),
            ("Bearer ${KEY}!", Ok("Bearer sk-1!")),
            ("${NONE:-there}", Ok("there")),
            ("${KEY", Ok("${KEY")),
            ("$KEY", Ok("$KEY")),
            ("${NONE}", Err(())),
        ] {
            assert_eq!(expand(text, &environment).as_deref().map_err(|_| ()), expected, "{text}");
        }
    }

    #[test]
    fn errors_never_contain_secrets() {
        let way = McpWay::Http {
            url: "https://mcp.example/sk-in-the-path".to_owned(),
            headers: vec![("Authorization".to_owned(), "Bearer sk-header".to_owned())],
            key_variable: None,
        };
        let redactor = Redactor::of(&way).and(Some(&"sk-variable".to_owned()));
        let told = redactor.redact(
            "error at https://mcp.example/sk-in-the-path: Bearer sk-header, sk-header and sk-variable are no keys",
        );
        assert!(!told.contains("sk-"), "{told}");
        assert!(told.starts_with("error at https://mcp.example:"), "{told}");
    }
}
