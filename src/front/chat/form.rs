//! A form or an address from a tool, completed line by line in the terminal. Pure.

use agent_client_protocol::v2::schema as wire;
use epitome_session_api::QuestionReply;
use serde_json::{Map, Value};

/// Maximum number of fields that are asked for. Longer forms are unsuitable for a terminal.
const FIELDS_MAX: usize = 50;

/// The answer that declines a form.
const NO: &str = "-";

/// A form that is being filled in.
#[derive(Debug)]
pub struct FormDialog {
    heading: String,
    fields: Vec<FormField>,
    at: usize,
    given: Map<String, Value>,
}

#[derive(Debug)]
struct FormField {
    name: String,
    title: String,
    required: bool,
    kind: FormFieldKind,
}

#[derive(Debug)]
enum FormFieldKind {
    Text,
    Number,
    Integer,
    YesOrNo,
    /// One of these values, each with its label.
    One(Vec<(Value, String)>),
    Some(Vec<(Value, String)>),
    /// Only Enter is expected.
    Agreement,
}

impl FormField {
    fn agreement(title: &str) -> FormField {
        let kind = FormFieldKind::Agreement;
        FormField { name: String::new(), title: title.to_owned(), required: false, kind }
    }
}

impl FormDialog {
    /// A form with the fields of a JSON Schema.
    pub fn of_schema(message: &str, schema: &Value) -> FormDialog {
        let mut fields = fields(schema);
        if fields.is_empty() {
            fields.push(FormField::agreement("Press Enter"));
        }
        FormDialog { heading: message.to_owned(), fields, at: 0, given: Map::new() }
    }

    /// Something to do at an address.
    pub fn of_address(message: &str, url: &str) -> FormDialog {
        let fields = vec![FormField::agreement("Press Enter when you are done there")];
        FormDialog { heading: format!("{message}\n{url}"), fields, at: 0, given: Map::new() }
    }

    /// The heading above the first field.
    pub fn heading(&self) -> &str {
        &self.heading
    }

    /// Whether no field has been answered yet.
    pub fn is_new(&self) -> bool {
        self.at == 0
    }

    /// The lines to show before the next answer; the answer is typed after the last one.
    pub fn prompt(&self) -> Vec<String> {
        let Some(field) = self.fields.get(self.at) else { return Vec::new() };
        let numbered = |choices: &[(Value, String)]| {
            (1..).zip(choices).map(|(number, (_, label))| format!("{number}. {label}")).collect()
        };
        let (mut lines, how): (Vec<String>, _) = match &field.kind {
            FormFieldKind::Text => (Vec::new(), ""),
            FormFieldKind::Number | FormFieldKind::Integer => (Vec::new(), "a number"),
            FormFieldKind::YesOrNo => (Vec::new(), "[y]es or [n]o"),
            FormFieldKind::One(choices) => (numbered(choices), "its number"),
            FormFieldKind::Some(choices) => (numbered(choices), "their numbers, separated by commas"),
            FormFieldKind::Agreement => (Vec::new(), ""),
        };
        let may_be_empty = !field.required && !matches!(field.kind, FormFieldKind::Agreement);
        let ways = [how, if may_be_empty { "empty for nothing" } else { "" }, "- to decline"];
        let ways: Vec<&str> = ways.into_iter().filter(|way| !way.is_empty()).collect();
        lines.push(format!("{} ({}): ", field.title, ways.join("; ")));
        lines
    }

    /// Handles a typed line; returns `Some` when the form is complete. An invalid line changes nothing.
    pub fn typed(&mut self, line: &str) -> Option<QuestionReply> {
        if line.trim() == NO {
            return Some(QuestionReply::Declined);
        }
        let field = self.fields.get(self.at)?;
        let value = match line.trim() {
            "" if matches!(field.kind, FormFieldKind::Agreement) || !field.required => None,
            "" => return None,
            line => Some(read(&field.kind, line)?),
        };
        if let Some(value) = value {
            self.given.insert(field.name.clone(), value);
        }
        self.at += 1;
        (self.at >= self.fields.len()).then(|| QuestionReply::Accepted(std::mem::take(&mut self.given)))
    }
}

fn fields(schema: &Value) -> Vec<FormField> {
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    let properties = schema["properties"].as_object().cloned().unwrap_or_default();
    let field = |(name, property): (String, Value)| {
        let text = |key: &str| property[key].as_str().map(str::trim).filter(|text| !text.is_empty());
        let title = text("title").or(text("description")).unwrap_or(&name).to_owned();
        let items = choices(&property["items"]);
        let kind = match (choices(&property), property["type"].as_str()) {
            (Some(choices), _) => FormFieldKind::One(choices),
            (None, Some("array")) => FormFieldKind::Some(items.unwrap_or_default()),
            (None, Some("boolean")) => FormFieldKind::YesOrNo,
            (None, Some("integer")) => FormFieldKind::Integer,
            (None, Some("number")) => FormFieldKind::Number,
            (None, _) => FormFieldKind::Text,
        };
        let required = required.iter().any(|required| required.as_str() == Some(&name));
        FormField { name, title, required, kind }
    };
    properties.into_iter().take(FIELDS_MAX).map(field).collect()
}

/// The choices of a field, if any: plain values, or values with titles.
fn choices(schema: &Value) -> Option<Vec<(Value, String)>> {
    let label = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    if let Some(plain) = schema["enum"].as_array() {
        let names = schema["enumNames"].as_array();
        let named = plain.iter().enumerate().map(|(at, value)| {
            let name = names.and_then(|names| names.get(at)).and_then(Value::as_str);
            (value.clone(), name.map_or_else(|| label(value), str::to_owned))
        });
        return Some(named.collect());
    }
    let titled = schema["oneOf"].as_array().or(schema["anyOf"].as_array())?;
    let titled = titled.iter().map(|choice| {
        let value = choice["const"].clone();
        let title = choice["title"].as_str().map_or_else(|| label(&value), str::to_owned);
        (value, title)
    });
    Some(titled.collect())
}

/// Parses a typed line; `None` if it is invalid.
fn read(kind: &FormFieldKind, line: &str) -> Option<Value> {
    match kind {
        FormFieldKind::Text => Some(line.into()),
        FormFieldKind::Integer => line.parse::<i64>().ok().map(Value::from),
        FormFieldKind::Number => {
            line.parse::<f64>().ok().filter(|number| number.is_finite()).map(Value::from)
        }
        FormFieldKind::YesOrNo => match line.to_ascii_lowercase().as_str() {
            "y" | "yes" | "true" => Some(true.into()),
            "n" | "no" | "false" => Some(false.into()),
            _ => None,
        },
        FormFieldKind::One(choices) => chosen(choices, line),
        FormFieldKind::Some(choices) => line
            .split(',')
            .map(|part| chosen(choices, part.trim()))
            .collect::<Option<Vec<Value>>>()
            .map(Value::from),
        FormFieldKind::Agreement => None,
    }
}

/// Finds a choice by its number or label.
fn chosen(choices: &[(Value, String)], typed: &str) -> Option<Value> {
    let by_words = choices.iter().find(|(_, label)| label == typed);
    let at = || typed.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
    by_words.or_else(|| choices.get(at()?)).map(|(value, _)| value.clone())
}

/// The form that a question wants; `None` for kinds that are not offered.
pub fn form_of(request: &wire::CreateElicitationRequest) -> Option<FormDialog> {
    match &request.mode {
        wire::ElicitationMode::Form(form) => {
            let schema = serde_json::to_value(&form.requested_schema).ok()?;
            Some(FormDialog::of_schema(&request.message, &schema))
        }
        wire::ElicitationMode::Url(address) => Some(FormDialog::of_address(&request.message, &address.url)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn form(schema: Value) -> FormDialog {
        FormDialog::of_schema("Which?", &schema)
    }

    fn accepted(fields: Value) -> Option<QuestionReply> {
        let Value::Object(fields) = fields else { panic!("an object") };
        Some(QuestionReply::Accepted(fields))
    }

    #[test]
    fn each_field_is_asked_for_and_read_as_what_it_is() {
        let mut form = form(json!({
            "type": "object",
            "properties": {
                "colour": {"type": "string", "title": "The colour", "enum": ["red", "blue"]},
                "count": {"type": "integer"},
                "kinds": {"type": "array", "items": {"anyOf": [{"const": "a", "title": "Apples"},
                                                               {"const": "b", "title": "Beans"}]}},
                "sure": {"type": "boolean"},
                "note": {"type": "string"},
            },
            "required": ["colour", "count", "sure"],
        }));
        assert_eq!(form.heading(), "Which?");
        assert_eq!(form.prompt(), ["1. red", "2. blue", "The colour (its number; - to decline): "]);
        for (typed, goes_on) in [("", false), ("3", false), ("green", false), ("2", true)] {
            assert_eq!(form.typed(typed), None, "{typed:?}");
            assert_eq!(form.at == 1, goes_on, "{typed:?}");
        }
        assert_eq!(form.prompt(), ["count (a number; - to decline): "]);
        assert_eq!((form.typed("many"), form.typed("7")), (None, None));
        let kinds = "kinds (their numbers, separated by commas; empty for nothing; - to decline): ";
        assert_eq!(form.prompt(), ["1. Apples", "2. Beans", kinds]);
        assert_eq!((form.typed("1, Beans"), form.typed("perhaps"), form.typed("y")), (None, None, None));
        assert_eq!(form.prompt(), ["note (empty for nothing; - to decline): "]);
        let fields = json!({"colour": "blue", "count": 7, "kinds": ["a", "b"], "sure": true});
        assert_eq!(form.typed(""), accepted(fields));
    }

    #[test]
    fn who_will_not_answer_says_so() {
        let mut form = form(json!({"properties": {"answer": {"type": "string"}}}));
        assert_eq!(form.typed("-"), Some(QuestionReply::Declined));
    }

    #[test]
    fn an_address_and_a_form_without_fields_want_a_line_end() {
        let mut there = FormDialog::of_address("Log in.", "https://login.example/a");
        assert_eq!(there.heading(), "Log in.\nhttps://login.example/a");
        assert_eq!(there.prompt(), ["Press Enter when you are done there (- to decline): "]);
        assert_eq!(there.typed("yes?"), None);
        assert_eq!(there.typed(""), accepted(json!({})));
        assert_eq!(form(json!({"type": "object"})).typed(""), accepted(json!({})));
    }
}
