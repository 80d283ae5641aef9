//! `--json-schema`: replies that must be JSON matching a schema. The model is asked again a few times.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use serde_json::Value;

use crate::cli::CliError;
use crate::hooks::handlers::HandlerError;
use crate::hooks::handlers::json::{self, SCHEMA_BYTES_MAX, Validator};
use crate::thread::Content;

/// How often the model is asked again for one prompt. Each attempt is a paid reply.
const RETRIES: u32 = 3;

/// The schema of a run's replies.
pub struct ExpectedJson {
    schema: Value,
    validator: Validator,
    retries: u32,
}

/// The result of checking a reply.
#[derive(Debug, PartialEq)]
pub enum ReplyCheck {
    Fit(Value),
    /// The text that asks the model again.
    AskAgain(String),
    /// It was the last attempt. With the faults of the reply.
    Unfit(Vec<String>),
}

impl ExpectedJson {
    /// Reads the schema from an option: JSON, or the path of a file with JSON.
    pub fn read(option: &str) -> Result<ExpectedJson, CliError> {
        let wrong = |why: String| CliError::usage(format!("--json-schema: {why}"));
        let is_inline = option.trim_start().starts_with('{');
        let text = if is_inline { Ok(option.to_owned()) } else { from_file(Path::new(option)) };
        let hint = "the option takes a JSON Schema that begins with {, or a file with one";
        let text = text.map_err(|error| wrong(format!("{option} can't be read: {error} ({hint})")))?;
        let named = if is_inline { "the schema".to_owned() } else { format!("the schema in {option}") };
        let schema = serde_json::from_str(&text)
            .map_err(|error| wrong(format!("{named} is not valid JSON: {error}")))?;
        ExpectedJson::new(schema).map_err(|error| wrong(error.to_string()))
    }

    pub fn new(schema: Value) -> Result<ExpectedJson, HandlerError> {
        let validator = json::compile(&schema)?;
        Ok(ExpectedJson { schema, validator, retries: RETRIES })
    }

    /// Adds to a prompt what the model has to know about the schema.
    pub fn begin(&mut self, prompt: &mut Vec<Content>) {
        self.retries = RETRIES;
        let instruction = format!(
            "When you are done, reply with JSON that matches this JSON Schema, and with nothing else:\n{}",
            self.schema
        );
        match prompt.first_mut() {
            // A slash command is only recognized in the first text.
            Some(Content::Text { text }) => *text = format!("{text}\n\n{instruction}"),
            _ => prompt.push(Content::Text { text: instruction }),
        }
    }

    pub fn check(&mut self, reply: &str) -> ReplyCheck {
        let faults = match json::found_in(reply) {
            Ok(value) => match json::faults_of(&value, &self.validator) {
                faults if faults.is_empty() => return ReplyCheck::Fit(value),
                faults => faults,
            },
            Err(why) => vec![why.to_string()],
        };
        if self.retries == 0 {
            return ReplyCheck::Unfit(faults);
        }
        self.retries -= 1;
        ReplyCheck::AskAgain(format!(
            "The reply does not match the JSON Schema:\n- {}\n\nReply with the complete JSON, corrected, and with \
             nothing else.",
            faults.join("\n- ")
        ))
    }
}

fn from_file(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(SCHEMA_BYTES_MAX as u64 + 1).read_to_string(&mut text)?;
    match text.len() > SCHEMA_BYTES_MAX {
        true => Err(io::Error::other(format!("it has more than {SCHEMA_BYTES_MAX} bytes"))),
        false => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLOR: &str =
        r#"{"type":"object","properties":{"color":{"enum":["red","blue"]}},"required":["color"]}"#;

    #[test]
    fn the_model_is_asked_again_a_few_times() {
        let mut expected = ExpectedJson::read(COLOR).expect("a schema");
        let mut prompt = vec![Content::Text { text: "/pick one".to_owned() }];
        expected.begin(&mut prompt);
        assert!(
            matches!(&prompt[..], [Content::Text { text }] if text.starts_with("/pick one\n\n") && text.ends_with(COLOR))
        );
        for _ in 0..RETRIES {
            let ReplyCheck::AskAgain(text) = expected.check("{\"color\":\"green\"}") else {
                panic!("it is wrong")
            };
            assert!(text.contains("/color"), "{text}");
        }
        assert!(
            matches!(expected.check("I can't"), ReplyCheck::Unfit(faults) if faults[0].contains("not valid JSON"))
        );
        expected.begin(&mut prompt);
        assert!(
            matches!(expected.check("none"), ReplyCheck::AskAgain(_)),
            "each prompt has its own attempts"
        );
        let fenced = "Here it is:\n```json\n{\"color\": \"red\"}\n```\n";
        assert_eq!(expected.check(fenced), ReplyCheck::Fit(serde_json::json!({ "color": "red" })));
    }

    #[test]
    fn a_schema_that_can_not_be_used_is_an_error_before_anything_is_paid_for() {
        let directory = tempfile::tempdir().expect("a scratch directory");
        let path = |name: &str, text: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).expect("a file");
            path.display().to_string()
        };
        assert!(ExpectedJson::read(&path("good.json", COLOR)).is_ok());
        for (option, expected) in [
            (path("bad.json", "no"), "is not valid JSON"),
            ("{\"type\":".to_owned(), "the schema is not valid JSON"),
            ("{\"type\":\"colour\"}".to_owned(), "not a usable JSON Schema"),
            ("{\"$ref\":\"https://example.com/a.json\"}".to_owned(), "not a usable JSON Schema"),
            ("missing.json".to_owned(), "missing.json can't be read"),
        ] {
            let error = ExpectedJson::read(&option).err().expect("it is refused");
            assert!(error.message.contains(expected) && error.code == 2, "{option}: {error:?}");
        }
    }
}
