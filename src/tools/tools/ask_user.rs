//! `ask_user`: asks the user a question in a form of their editor. Never used for secrets. If no client can display a
//! form, the error tells the model to ask in its reply instead.

use serde_json::{Value, json};

use super::input;
use super::question::{QuestionKind, QuestionReply, QuestionSender, UserQuestion, fitting};
use super::schema::{self, InputKey};
use super::{BoxFuture, ParsedTool, ToolContext, ToolError, ToolResult, Workspace};
use epitome_thread::titles::words_in_title;
use epitome_thread::{CallDisplay, ToolKind, ToolSpec};

pub const NAME: &str = "ask_user";
const OPTIONS_MAX: usize = 20;
const QUESTION_CHARS_MAX: usize = 2_000;
const OPTION_CHARS_MAX: usize = 200;
const TITLE_CHARS_MAX: usize = 80;
const OTHER: &str = "other";
const ANSWER: &str = "answer";

/// The `ask_user` tool; it asks through the session's `QuestionSender`.
pub struct AskUser {
    pub questions: QuestionSender,
}

pub struct AskUserInput {
    question: String,
    options: Vec<String>,
    /// Whether several options may be chosen.
    multiple: bool,
    /// Whether a free-text answer may be given in addition to the options.
    free_text: bool,
}

fn parse(value: &Value) -> Result<AskUserInput, ToolError> {
    let options = match value.get("options") {
        None | Some(Value::Null) => Vec::new(),
        Some(options) => serde_json::from_value(options.clone())
            .map_err(|_| "`options` must be a list of texts.".to_owned())?,
    };
    let input = AskUserInput {
        question: input::text(value, "question")?,
        options,
        multiple: input::flag(value, "multiple")?,
        free_text: input::flag(value, "free_text")?,
    };
    if input.question.trim().is_empty() {
        return Err(ToolError::new("`question` is empty."));
    }
    if input.question.chars().count() > QUESTION_CHARS_MAX {
        return Err(ToolError::new(format!(
            "`question` has more than {QUESTION_CHARS_MAX} characters. Ask it shorter."
        )));
    }
    if input.options.len() > OPTIONS_MAX {
        return Err(ToolError::new(format!("`options` has more than {OPTIONS_MAX} choices. Offer fewer.")));
    }
    if input
        .options
        .iter()
        .any(|option| option.trim().is_empty() || option.chars().count() > OPTION_CHARS_MAX)
    {
        return Err(ToolError::new(format!(
            "Each of `options` is a text of 1 to {OPTION_CHARS_MAX} characters."
        )));
    }
    Ok(input)
}

impl AskUserInput {
    fn schema(&self) -> Value {
        let AskUserInput { options, multiple, free_text, .. } = self;
        let title = "Your choice";
        let answer = match (options.is_empty(), multiple) {
            (true, _) => json!({"type": "string", "title": "Your answer"}),
            (false, true) => {
                json!({"type": "array", "title": title, "items": {"type": "string", "enum": options}})
            }
            (false, false) => json!({"type": "string", "title": title, "enum": options}),
        };
        let mut properties = json!({ANSWER: answer});
        if *free_text && !options.is_empty() {
            properties[OTHER] = json!({"type": "string", "title": "Or in your own words"});
        }
        let is_required = options.is_empty() || !(*multiple || *free_text);
        let required: &[&str] = if is_required { &[ANSWER] } else { &[] };
        json!({"type": "object", "properties": properties, "required": required})
    }
}

impl ParsedTool for AskUser {
    type Call = AskUserInput;

    fn spec(&self) -> ToolSpec {
        schema::spec(
            NAME,
            "Asks the user a question in a form of their editor and waits for the answer. Use it only if you can't \
             continue without their decision. Never ask for a password, key or other secret. Without `options` they \
             answer in their own words.",
            [
                InputKey::text("question", "The question, with everything needed to decide").required(),
                InputKey::new(
                    "options",
                    json!({"type": "array", "items": {"type": "string"}, "description": "Choices to offer"}),
                ),
                InputKey::flag("multiple", "Several options may be chosen"),
                InputKey::flag("free_text", "The user may also answer in their own words"),
            ],
        )
    }

    /// Listed only if an attached client can display forms.
    fn is_listed(&self) -> bool {
        self.questions.shows().forms
    }

    fn display(&self, input: &Value, _: &Workspace) -> CallDisplay {
        let question = input.get("question").and_then(Value::as_str).unwrap_or_default();
        let line = question.lines().next().unwrap_or_default();
        let title: String = line.chars().take(TITLE_CHARS_MAX).collect();
        let kind = ToolKind::Other;
        let title = match title.is_empty() {
            true => "Ask you".to_owned(),
            false => format!("Ask: {}", words_in_title(kind, &title)),
        };
        CallDisplay { title, kind, locations: Vec::new() }
    }

    fn parse(&self, input: &Value, _: &Workspace) -> Result<AskUserInput, ToolError> {
        parse(input)
    }

    fn run(&self, input: AskUserInput, context: ToolContext) -> BoxFuture<ToolResult> {
        let questions = self.questions.clone();
        Box::pin(async move {
            let schema = input.schema();
            let wants = QuestionKind::Form { schema: schema.clone() };
            result_of(
                &schema,
                questions.ask(UserQuestion { message: input.question, wants, call: context.call }).await,
            )
        })
    }
}

fn result_of(schema: &Value, reply: QuestionReply) -> ToolResult {
    match reply {
        QuestionReply::Accepted(content) => match fitting(schema, content) {
            Ok(content) => {
                let of = |value: &Value| match value {
                    Value::String(text) => text.clone(),
                    Value::Array(texts) => {
                        texts.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", ")
                    }
                    other => other.to_string(),
                };
                let answers: Vec<String> = [ANSWER, OTHER]
                    .iter()
                    .filter_map(|name| content.get(*name))
                    .map(of)
                    .filter(|text| !text.trim().is_empty())
                    .collect();
                match answers.is_empty() {
                    true => ToolResult::completed("The user sent the form without an answer."),
                    false => ToolResult::completed(format!("The user answered: {}", answers.join("\n"))),
                }
            }
            Err(why) => ToolResult::failed(format!("The answer can't be used: {why}. Ask in your reply.")),
        },
        QuestionReply::Declined => ToolResult::failed(
            "The user does not want to answer this. Don't ask it again; continue with what you know, or \
             say what you would need.",
        ),
        QuestionReply::Cancelled => ToolResult::failed("The user dismissed the question without an answer."),
        QuestionReply::Unable => ToolResult::failed(
            "The user's client can't show a form. Ask in the text of your reply and end your turn; the answer is \
             their next message.",
        ),
        QuestionReply::TimedOut => ToolResult::failed(
            "Nobody answered in time. Ask in the text of your reply and end your turn, or continue with what you know.",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema(input: Value) -> Value {
        parse(&input).expect("it is right").schema()
    }

    #[test]
    fn a_question_becomes_a_form() {
        let free = schema(json!({"question": "Why?"}));
        assert_eq!(free["properties"][ANSWER]["type"], "string");
        assert_eq!(free["required"], json!([ANSWER]));
        let one = schema(json!({"question": "Which?", "options": ["a", "b"]}));
        assert_eq!(one["properties"][ANSWER]["enum"], json!(["a", "b"]));
        let some =
            schema(json!({"question": "Which?", "options": ["a", "b"], "multiple": true, "free_text": true}));
        assert_eq!(some["properties"][ANSWER]["items"]["enum"], json!(["a", "b"]));
        assert_eq!(some["properties"][OTHER]["type"], "string");
        assert_eq!(some["required"], json!([]));
    }

    #[test]
    fn replies_become_messages_for_the_model() {
        let schema = schema(json!({"question": "Which?", "options": ["a", "b"], "multiple": true}));
        let text = |reply| match result_of(&schema, reply).content.remove(0) {
            epitome_thread::OutcomeContent::Text { text } => text,
            other => panic!("text was expected: {other:?}"),
        };
        let Value::Object(both) = json!({"answer": ["a", "b"]}) else { panic!("an object") };
        assert_eq!(text(QuestionReply::Accepted(both)), "The user answered: a, b");
        let Value::Object(other) = json!({"answer": ["c"]}) else { panic!("an object") };
        assert!(text(QuestionReply::Accepted(other)).contains("can't be used"));
        assert!(text(QuestionReply::Unable).contains("in the text of your reply"));
    }
}
