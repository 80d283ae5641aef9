//! Shorthand of tool calls.

use serde_json::Value;

use super::agent::WriteDetail;
use super::book::Shorthand;
use super::names::PlaceholderKind;
use super::update::text_fits;
use super::words::{LineWord, bare, pair, quoted};

/// A tool call in shorthand: `[$C1] TOOL attributes "text"`. Only mentioned parts are compared.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CallShape {
    pub call: Option<String>,
    /// The tool's name, or the call's kind if the agent sends no names.
    pub tool: String,
    pub status: Option<String>,
    pub title: Option<String>,
    pub kind: Option<String>,
    /// `at=PATH` or `at=PATH:LINE`, once for each location.
    pub at: Vec<String>,
    /// `diff=PATH`, once for each changed file.
    pub diffs: Vec<String>,
    pub input: Option<Value>,
    pub output: Option<Value>,
    /// The complete text of its content.
    pub text: Option<String>,
}

impl CallShape {
    /// Parses a call. Also returns the bare words that are not part of it.
    pub(super) fn read(words: &[LineWord]) -> Result<(CallShape, Vec<String>), String> {
        let mut shape = CallShape::default();
        let words = match words {
            [LineWord::Bare(call), rest @ ..] if call.starts_with("$C") => {
                shape.call = Some(call.clone());
                rest
            }
            _ => words,
        };
        let [LineWord::Bare(tool), rest @ ..] = words else {
            return Err("a call begins with its tool".into());
        };
        shape.tool = tool.clone();
        let mut others = Vec::new();
        for word in rest {
            match (word.attribute(), word) {
                (Some(("title", text)), _) => shape.title = Some(text),
                (Some(("kind", text)), _) => shape.kind = Some(text),
                (Some(("at", text)), _) => shape.at.push(text),
                (Some(("diff", text)), _) => shape.diffs.push(text),
                (Some(("input", _)), LineWord::Pair(_, value)) => shape.input = Some(value.clone()),
                (Some(("output", _)), LineWord::Pair(_, value)) => shape.output = Some(value.clone()),
                (Some((key, _)), _) => return Err(format!("a call has no attribute {key}")),
                (None, LineWord::Json(Value::String(text))) => shape.text = Some(text.clone()),
                (None, LineWord::Bare(other)) => others.push(other.clone()),
                (None, _) => return Err("a call has words, attributes and one \"text\"".into()),
            }
        }
        Ok((shape, others))
    }

    pub(super) fn is_same(&self, actual: &Value, book: &mut Shorthand) -> bool {
        let id = actual["toolCallId"].as_str().unwrap_or("");
        let tool = tool_of(actual, book);
        let status = actual["status"].as_str().unwrap_or(match actual["sessionUpdate"].as_str() {
            Some("tool_call") => "pending",
            _ => "-",
        });
        self.call.as_ref().is_none_or(|call| book.names.matches_text(call, id))
            && (self.tool == "*" || self.tool == tool)
            && self.status.as_ref().is_none_or(|expected| expected == "*" || expected == status)
            && self.title.as_ref().is_none_or(|title| text_fits(title, &actual["title"], book))
            && self.kind.as_ref().is_none_or(|kind| kind == actual["kind"].as_str().unwrap_or("other"))
            && (self.at.is_empty() || texts_fit(&self.at, &locations(actual), book))
            && (self.diffs.is_empty() || texts_fit(&self.diffs, &diffs(actual), book))
            && self.input.as_ref().is_none_or(|input| book.names.matches(input, &actual["rawInput"]))
            && self.output.as_ref().is_none_or(|output| book.names.matches(output, &actual["rawOutput"]))
            && self.text.as_ref().is_none_or(|text| book.names.matches_text(text, &content_text(actual)))
    }

    pub(super) fn words_of(
        actual: &Value,
        status: Option<&str>,
        titled: bool,
        book: &mut Shorthand,
        detail: WriteDetail,
    ) -> Vec<LineWord> {
        let mut words = Vec::new();
        if let Some(id) = actual["toolCallId"].as_str().filter(|_| detail.ids) {
            words.push(LineWord::Bare(book.names.name(PlaceholderKind::Call, id)));
        }
        words.push(LineWord::Bare(tool_of(actual, book)));
        words.extend(status.map(bare));
        if let Some(title) = actual["title"].as_str().filter(|_| titled) {
            words.push(pair("title", &book.names.text_with_names(title)));
        }
        if detail.calls {
            words.extend(actual["kind"].as_str().map(|kind| pair("kind", kind)));
            words.extend(locations(actual).iter().map(|at| pair("at", &book.names.text_with_names(at))));
        }
        words.extend(diffs(actual).iter().map(|path| pair("diff", &book.names.text_with_names(path))));
        if detail.calls {
            for (key, wire) in [("input", "rawInput"), ("output", "rawOutput")] {
                let value = actual.get(wire).filter(|value| value.is_object() || value.is_array());
                words.extend(value.map(|value| LineWord::Pair(key.into(), book.names.with_names(value))));
            }
        }
        let text = content_text(actual);
        if !text.is_empty() {
            words.push(quoted(&book.names.text_with_names(&text)));
        }
        words
    }
}

fn tool_of(call: &Value, book: &Shorthand) -> String {
    let own = call["name"].as_str();
    let known = || call["toolCallId"].as_str().map(|id| book.tool(id)).filter(|tool| *tool != "other");
    own.or_else(known).or(call["kind"].as_str()).unwrap_or("other").to_owned()
}

fn locations(call: &Value) -> Vec<String> {
    let all = call["locations"].as_array();
    let text = |at: &Value| {
        let path = at["path"].as_str().unwrap_or("");
        at["line"].as_u64().map_or_else(|| path.to_owned(), |line| format!("{path}:{line}"))
    };
    all.into_iter().flatten().map(text).collect()
}

fn diffs(call: &Value) -> Vec<String> {
    let all = call["content"].as_array();
    let diffs = all.into_iter().flatten().filter(|item| item["type"] == "diff");
    diffs.filter_map(|item| item["path"].as_str().map(str::to_owned)).collect()
}

fn content_text(call: &Value) -> String {
    let all = call["content"].as_array();
    let texts = all.into_iter().flatten().filter(|item| item["type"] == "content");
    let texts: Vec<&str> = texts.filter_map(|item| item.pointer("/content/text")?.as_str()).collect();
    texts.join("\n")
}

fn texts_fit(patterns: &[String], actual: &[String], book: &mut Shorthand) -> bool {
    patterns.len() == actual.len()
        && patterns.iter().zip(actual).all(|(pattern, actual)| book.names.matches_text(pattern, actual))
}
