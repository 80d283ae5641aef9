//! Questions to the user other than permission requests: a form to fill in, or an address to visit. The asking code
//! has a `QuestionSender`; the session displays the question in its clients and returns the answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::sync::{mpsc, oneshot};

use epitome_thread::CallId;

const WAITING_MAX: usize = 16;

/// A question to the user.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UserQuestion {
    /// The text of the question, including its source and reason.
    pub message: String,
    pub wants: QuestionKind,
    /// The tool call that asks, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<CallId>,
}

/// The kind of answer that the user has to give.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "mode", rename_all = "snake_case")]
pub enum QuestionKind {
    /// Fill in a form: a JSON Schema of an object with plain fields. Never used for secrets.
    Form { schema: Value },
    /// Do something at an address. The answer only confirms that the user went there.
    Url {
        url: String,
        /// Unique among the open questions.
        id: String,
    },
}

impl QuestionKind {
    /// A question of yes or no: a form without fields.
    pub fn consent() -> QuestionKind {
        QuestionKind::Form { schema: json!({ "type": "object", "properties": {} }) }
    }
}

/// The outcome of a question.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "action", content = "content", rename_all = "snake_case")]
pub enum QuestionReply {
    /// The fields of the form; empty for an address.
    Accepted(Map<String, Value>),
    /// The user refused.
    Declined,
    /// The user dismissed the question, or the turn was cancelled.
    Cancelled,
    /// No attached client can display it.
    Unable,
    /// The user didn't answer in time.
    TimedOut,
}

/// The kinds of questions that a client, or at least one of a session's clients, can display.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuestionSupport {
    pub forms: bool,
    pub urls: bool,
}

impl QuestionSupport {
    pub fn or(self, other: QuestionSupport) -> QuestionSupport {
        QuestionSupport { forms: self.forms || other.forms, urls: self.urls || other.urls }
    }

    pub fn can(self, wants: &QuestionKind) -> bool {
        match wants {
            QuestionKind::Form { .. } => self.forms,
            QuestionKind::Url { .. } => self.urls,
        }
    }
}

/// Messages to the session.
pub enum QuestionMessage {
    /// A question, and the channel for its answer.
    Question { question: UserQuestion, reply: oneshot::Sender<QuestionReply> },
    /// The user's task at an address is done.
    Done { id: String },
}

/// The channel from the asking side to the session. Cheap to clone; doesn't keep the session alive.
#[derive(Clone)]
pub struct QuestionSender {
    asked: mpsc::Sender<QuestionMessage>,
    shows: Arc<AtomicU8>,
}

impl QuestionSender {
    /// Creates a sender and the receiver of its messages.
    pub fn new() -> (QuestionSender, mpsc::Receiver<QuestionMessage>) {
        let (asked, receiver) = mpsc::channel(WAITING_MAX);
        (QuestionSender { asked, shows: Arc::default() }, receiver)
    }

    /// The kinds of questions that the attached clients can display.
    pub fn shows(&self) -> QuestionSupport {
        // A single value that publishes no other data, so relaxed ordering is sufficient.
        let bits = self.shows.load(Ordering::Relaxed);
        QuestionSupport { forms: bits & 1 != 0, urls: bits & 2 != 0 }
    }

    pub fn set_shows(&self, shows: QuestionSupport) {
        self.shows.store(u8::from(shows.forms) | u8::from(shows.urls) << 1, Ordering::Relaxed);
    }

    /// Asks and waits for the outcome. Dropping the future withdraws the question.
    pub async fn ask(&self, question: UserQuestion) -> QuestionReply {
        if !self.shows().can(&question.wants) {
            return QuestionReply::Unable;
        }
        let (reply, replied) = oneshot::channel();
        if self.asked.send(QuestionMessage::Question { question, reply }).await.is_err() {
            return QuestionReply::Unable;
        }
        // The channel was dropped without an answer: the session is ending.
        replied.await.unwrap_or(QuestionReply::Cancelled)
    }

    /// Reports that the user's task at an address is done.
    pub async fn done(&self, id: String) {
        // If the session is gone, there is nothing to update.
        drop(self.asked.send(QuestionMessage::Done { id }).await);
    }
}

/// A field of an answer that does not conform to its form, by its name.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    #[error("the field {0:?} has a value of another type than was asked for")]
    OtherType(String),
    #[error("the field {0:?} is missing")]
    Missing(String),
}

/// Returns the part of an answer that conforms to the form: fields that the schema names, with values of
/// their types. An error names the first offending field, without its value.
pub fn fitting(schema: &Value, content: Map<String, Value>) -> Result<Map<String, Value>, AnswerError> {
    let none = Map::new();
    let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&none);
    let required = schema.get("required").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let mut fitting = Map::new();
    for (name, value) in content {
        // Fields that weren't asked for are dropped.
        let Some(property) = properties.get(&name) else { continue };
        if !is_of(property, &value) {
            return Err(AnswerError::OtherType(name));
        }
        fitting.insert(name, value);
    }
    match required.iter().filter_map(Value::as_str).find(|name| !fitting.contains_key(*name)) {
        Some(missing) => Err(AnswerError::Missing(missing.to_owned())),
        None => Ok(fitting),
    }
}

fn is_of(property: &Value, value: &Value) -> bool {
    let of_type = match property.get("type").and_then(Value::as_str) {
        Some("string") => value.is_string(),
        Some("number") => value.is_number(),
        Some("integer") => {
            value.as_i64().is_some() || value.as_f64().is_some_and(|number| number.fract() == 0.0)
        }
        Some("boolean") => value.is_boolean(),
        Some("array") => value.as_array().is_some_and(|items| items.iter().all(Value::is_string)),
        Some(_) | None => true,
    };
    let one_of = |choices: &[Value], value: &Value| {
        choices.iter().any(|choice| choice == value || choice.get("const") == Some(value))
    };
    let list = |at: &Value, key: &str| at.get(key).and_then(Value::as_array).cloned();
    let offered = list(property, "enum").or_else(|| list(property, "oneOf"));
    let items = property.get("items").and_then(|items| list(items, "enum").or_else(|| list(items, "anyOf")));
    let is_offered = offered.is_none_or(|choices| one_of(&choices, value))
        && items.is_none_or(|choices| {
            value.as_array().is_none_or(|values| values.iter().all(|value| one_of(&choices, value)))
        });
    of_type && is_offered
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn answers_are_validated_against_the_schema() {
        let schema = json!({
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "count": {"type": "integer"},
                "colour": {"type": "string", "enum": ["red", "blue"]},
                "kinds": {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}},
            },
            "required": ["name"],
        });
        for (content, expected) in [
            (json!({"name": "x"}), Ok(json!({"name": "x"}))),
            (json!({"name": "x", "count": 2, "extra": 1}), Ok(json!({"name": "x", "count": 2}))),
            (json!({"name": "x", "kinds": ["a"]}), Ok(json!({"name": "x", "kinds": ["a"]}))),
            (json!({"count": 2}), Err("name")),
            (json!({"name": 7}), Err("name")),
            (json!({"name": "x", "count": 2.5}), Err("count")),
            (json!({"name": "x", "colour": "green"}), Err("colour")),
            (json!({"name": "x", "kinds": ["c"]}), Err("kinds")),
        ] {
            let Value::Object(fields) = content.clone() else { panic!("an object") };
            match (fitting(&schema, fields), expected) {
                (Ok(fitting), Ok(expected)) => assert_eq!(Value::Object(fitting), expected),
                (Err(why), Err(field)) => assert!(why.to_string().contains(field), "{why}"),
                (came, expected) => panic!("{content}: {came:?} and not {expected:?}"),
            }
        }
    }

    #[tokio::test]
    async fn clients_that_cannot_display_forms_are_not_asked() {
        let (questions, mut asked) = QuestionSender::new();
        let question = UserQuestion {
            message: "?".into(),
            wants: QuestionKind::Form { schema: json!({"type": "object"}) },
            call: None,
        };
        assert_eq!(questions.ask(question.clone()).await, QuestionReply::Unable);
        questions.set_shows(QuestionSupport { forms: true, urls: false });
        let asking = tokio::spawn(async move { questions.ask(question).await });
        let Some(QuestionMessage::Question { reply, .. }) = asked.recv().await else { panic!("a question") };
        reply.send(QuestionReply::Declined).expect("somebody waits");
        assert_eq!(asking.await.expect("no panic"), QuestionReply::Declined);
    }
}
