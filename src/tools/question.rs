//! Questions to the person that are no permission: a form to fill in, or an address to go to. Who asks holds
//! a `Door`; the session shows the question to its clients and brings the answer. Data and a channel.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::sync::{mpsc, oneshot};

/// Questions that may wait for the session.
const WAITING_MAX: usize = 16;

/// Something that the person is asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Question {
    /// Why it is asked and by whom, in words.
    pub message: String,
    pub wants: Wants,
}

/// What the person is to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "mode", rename_all = "snake_case")]
pub enum Wants {
    /// To fill in a form: a JSON Schema of an object with plain fields. Never for a secret.
    Form { schema: Value },
    /// To do something at an address. The answer says only that they went there.
    Url {
        url: String,
        /// Unlike that of every other open question.
        id: String,
    },
}

/// What became of a question.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "action", content = "content", rename_all = "snake_case")]
pub enum Reply {
    /// The fields of the form; none for an address.
    Accepted(Map<String, Value>),
    /// The person said no.
    Declined,
    /// The person put it aside, or the turn was cancelled.
    Cancelled,
    /// Nobody is there whose client could show it.
    Unable,
    /// It was open for too long.
    TimedOut,
}

/// What at least one client of a session, or one client, can show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shows {
    pub forms: bool,
    pub urls: bool,
}

impl Shows {
    pub fn or(self, other: Shows) -> Shows {
        Shows { forms: self.forms || other.forms, urls: self.urls || other.urls }
    }

    pub fn can(self, wants: &Wants) -> bool {
        match wants {
            Wants::Form { .. } => self.forms,
            Wants::Url { .. } => self.urls,
        }
    }
}

/// What the session takes through the door.
pub enum Asked {
    /// A question, with who waits for its answer.
    Question { question: Question, reply: oneshot::Sender<Reply> },
    /// What the person was to do at an address is done.
    Done { id: String },
}

/// The way from who asks to the session. Cheap to clone; it keeps no session alive.
#[derive(Clone)]
pub struct Door {
    asked: mpsc::Sender<Asked>,
    shows: Arc<AtomicU8>,
}

impl Door {
    /// A door, and where its questions come out.
    pub fn new() -> (Door, mpsc::Receiver<Asked>) {
        let (asked, receiver) = mpsc::channel(WAITING_MAX);
        (Door { asked, shows: Arc::default() }, receiver)
    }

    /// What the clients that are there now can show.
    pub fn shows(&self) -> Shows {
        // It stands for itself; nothing else is told by it.
        let bits = self.shows.load(Ordering::Relaxed);
        Shows { forms: bits & 1 != 0, urls: bits & 2 != 0 }
    }

    pub fn set_shows(&self, shows: Shows) {
        self.shows.store(u8::from(shows.forms) | u8::from(shows.urls) << 1, Ordering::Relaxed);
    }

    /// Asks, and waits for what becomes of it. Dropping the future takes the question back.
    pub async fn ask(&self, question: Question) -> Reply {
        if !self.shows().can(&question.wants) {
            return Reply::Unable;
        }
        let (reply, replied) = oneshot::channel();
        if self.asked.send(Asked::Question { question, reply }).await.is_err() {
            return Reply::Unable;
        }
        // Dropped without an answer: the session ends.
        replied.await.unwrap_or(Reply::Cancelled)
    }

    /// Says that what the person was to do at an address is done.
    pub async fn done(&self, id: String) {
        // A session that is gone shows nothing any more.
        drop(self.asked.send(Asked::Done { id }).await);
    }
}

/// What of an answer fits its form: fields that the schema names, with values of their types. An error names
/// the first field that does not fit, without its value.
pub fn fitting(schema: &Value, content: Map<String, Value>) -> Result<Map<String, Value>, String> {
    let none = Map::new();
    let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&none);
    let required = schema.get("required").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let mut fitting = Map::new();
    for (name, value) in content {
        // What was not asked for is not passed on.
        let Some(property) = properties.get(&name) else { continue };
        if !is_of(property, &value) {
            return Err(format!("the field {name:?} has a value of another type than was asked for"));
        }
        fitting.insert(name, value);
    }
    match required.iter().filter_map(Value::as_str).find(|name| !fitting.contains_key(*name)) {
        Some(missing) => Err(format!("the field {missing:?} is missing")),
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
    fn an_answer_has_the_fields_that_were_asked_for() {
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
                (Err(why), Err(field)) => assert!(why.contains(field), "{why}"),
                (came, expected) => panic!("{content}: {came:?} and not {expected:?}"),
            }
        }
    }

    #[tokio::test]
    async fn who_can_be_shown_nothing_is_not_asked() {
        let (door, mut asked) = Door::new();
        let question =
            Question { message: "?".into(), wants: Wants::Form { schema: json!({"type": "object"}) } };
        assert_eq!(door.ask(question.clone()).await, Reply::Unable);
        door.set_shows(Shows { forms: true, urls: false });
        let asking = tokio::spawn(async move { door.ask(question).await });
        let Some(Asked::Question { reply, .. }) = asked.recv().await else { panic!("a question") };
        reply.send(Reply::Declined).expect("somebody waits");
        assert_eq!(asking.await.expect("no panic"), Reply::Declined);
    }
}
