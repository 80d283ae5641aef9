//! Decodes the stream of Responses, event by event, including the deviations of compatible servers: items without an
//! index or an id, arguments in one piece, ends of items after all deltas, items that only appear in the final event.
//! Pure.

use std::borrow::Cow;

use serde_json::{Value, json};

use super::Decode;
use super::responses_events::{ItemRef, ResponseObject, ResponsesEvent, usage};
use super::stream::{DecodeError, Unfinished, append, index_of, position, read_event, without_nulls};
use crate::{ProviderEvent, ReplyStop};
use epitome_thread::{FoundPage, HostedSearch};

/// Decodes one reply.
#[derive(Debug, Default)]
pub(super) struct ResponsesDecoder {
    prefix: String,
    /// In the order of their first events.
    items: Vec<OutputItem>,
    /// The ids of the searches that have ended, and how many of them count as searches.
    searches: Vec<String>,
    counted: u64,
    /// The text of the model's refusal.
    refusal: String,
    /// Whether any event was received.
    begun: bool,
    /// Whether the server has marked the end of the stream.
    ends: bool,
}

/// The part of an output item that has arrived.
#[derive(Debug)]
struct OutputItem {
    kind: OutputItemKind,
    /// The item's index in the reply's list, if the server sends one.
    index: Option<u32>,
    /// The item's id, and for calls the call's id; either may be empty.
    id: String,
    call_id: String,
    /// The text that has been emitted for this item.
    given: String,
    /// The summary or content index of the last thinking delta.
    part: Option<u32>,
    /// Whether another thinking part has begun since the last delta.
    gap: bool,
    done: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OutputItemKind {
    Message,
    Reasoning,
    Call,
}

/// Separates the parts of a reasoning summary into paragraphs.
const PARAGRAPH: &str = "\n\n";

impl ResponsesDecoder {
    /// `prefix` is the digest that was computed while encoding the request.
    pub(super) fn new(prefix: String) -> ResponsesDecoder {
        ResponsesDecoder { prefix, ..ResponsesDecoder::default() }
    }
}

impl Decode for ResponsesDecoder {
    fn event(&mut self, data: &str, out: &mut Vec<ProviderEvent>) -> Result<(), DecodeError> {
        // Some servers send this final event of Chat Completions.
        if data == "[DONE]" {
            self.ends = true;
            return Ok(());
        }
        let event: ResponsesEvent<'_> = read_event(data)?;
        self.begun = true;
        match event.kind.as_ref() {
            "response.output_text.delta" => self.text(&event, out),
            "response.refusal.delta" => {
                self.refusal.push_str(event.text());
                self.text(&event, out);
            }
            "response.reasoning_summary_text.delta" | "response.reasoning_text.delta" => {
                self.thinking(&event, out);
            }
            "response.reasoning_summary_part.added" => {
                if let Some(at) = self.find(OutputItemKind::Reasoning, &event.item_ref()) {
                    self.items[at].gap = true;
                }
            }
            "response.function_call_arguments.delta" => {
                if let Some(at) = self.find(OutputItemKind::Call, &event.item_ref()) {
                    self.emit(at, event.text(), out);
                }
            }
            "response.function_call_arguments.done" => {
                if let Some(at) = self.find(OutputItemKind::Call, &event.item_ref()) {
                    self.emit_rest(at, &arguments_text(&event.arguments), out);
                }
            }
            "response.output_item.added" => {
                self.began(position(&event.output_index), &event.item, out);
            }
            "response.output_item.done" => {
                self.ended(position(&event.output_index), event.item, out);
            }
            "response.completed" | "response.incomplete" | "response.failed" => {
                self.finished(event.response.unwrap_or_default(), event.kind == "response.failed", out)?;
            }
            "error" => return Err(DecodeError::Provider(data.to_owned())),
            // Some servers send errors without a type.
            _ if !event.error.is_null() => return Err(DecodeError::Provider(data.to_owned())),
            // Created, queued, in progress, compacting, ends of parts, and future kinds.
            _ => {}
        }
        Ok(())
    }

    /// Handles the end of the stream; a mark after complete items substitutes for a missing final event.
    fn end(&mut self, out: &mut Vec<ProviderEvent>) -> Result<(), Unfinished> {
        if self.ends && !self.items.is_empty() && self.items.iter().all(|item| item.done) {
            return self.finished(ResponseObject::default(), false, out).map_err(|_| Unfinished::Cut);
        }
        Err(if self.begun { Unfinished::Cut } else { Unfinished::Empty })
    }
}

impl ResponsesDecoder {
    fn text(&mut self, event: &ResponsesEvent<'_>, out: &mut Vec<ProviderEvent>) {
        let at = self.find_or_add(OutputItemKind::Message, &event.item_ref());
        self.emit(at, event.text(), out);
    }

    fn thinking(&mut self, event: &ResponsesEvent<'_>, out: &mut Vec<ProviderEvent>) {
        let at = self.find_or_add(OutputItemKind::Reasoning, &event.item_ref());
        let part = position(&event.summary_index).or(position(&event.content_index));
        let item = &mut self.items[at];
        let is_new_part = std::mem::take(&mut item.gap) || item.part != part;
        item.part = part;
        if is_new_part && !item.given.is_empty() {
            self.emit(at, PARAGRAPH, out);
        }
        self.emit(at, event.text(), out);
    }

    /// Handles the start of an item. Content in the start event is repeated in deltas or at the end, so it is ignored.
    fn began(&mut self, index: Option<u32>, item: &Value, out: &mut Vec<ProviderEvent>) {
        let Some(kind) = OutputItemKind::from_item(item) else { return };
        // `CallStarted` requires a name, which may only arrive at the end of the item.
        if kind != OutputItemKind::Call || item["name"].as_str().is_some_and(|name| !name.is_empty()) {
            self.open(kind, &ItemRef::new(index, item), item, out);
        }
    }

    fn open(
        &mut self,
        kind: OutputItemKind,
        item_ref: &ItemRef<'_>,
        item: &Value,
        out: &mut Vec<ProviderEvent>,
    ) -> usize {
        let at = self.add(kind, item_ref);
        match kind {
            OutputItemKind::Reasoning => {}
            // The phase must be sent back with the message that follows.
            OutputItemKind::Message => {
                if let Some(phase) = item["phase"].as_str() {
                    out.push(ProviderEvent::ThinkingSealed { data: json!({ "phase": phase }) });
                }
            }
            OutputItemKind::Call => {
                let id = if item_ref.call_id.is_empty() { item_ref.id } else { item_ref.call_id };
                let (index, name) = (index_of(at), item["name"].as_str().unwrap_or_default());
                out.push(ProviderEvent::CallStarted { index, id: id.into(), name: name.into() });
            }
        }
        at
    }

    /// Handles the end of an item: emits the missing content, or all of it if the start was never received.
    fn ended(&mut self, index: Option<u32>, item: Value, out: &mut Vec<ProviderEvent>) {
        if item["type"] == "web_search_call" {
            return self.searched(item, out);
        }
        let Some(kind) = OutputItemKind::from_item(&item) else { return };
        let item_ref = ItemRef::new(index, &item);
        let at = self.find(kind, &item_ref).unwrap_or_else(|| self.open(kind, &item_ref, &item, out));
        if std::mem::replace(&mut self.items[at].done, true) {
            return;
        }
        match kind {
            OutputItemKind::Message => {
                if self.refusal.is_empty() {
                    self.refusal = texts(&item["content"], &["refusal"], "");
                }
                self.emit_rest(at, &texts(&item["content"], &["text", "refusal"], ""), out);
                out.extend(unnamed_sources(&item["content"], &self.items[at].given));
            }
            OutputItemKind::Call => self.emit_rest(at, &arguments_text(&item["arguments"]), out),
            OutputItemKind::Reasoning => {
                let summary = texts(&item["summary"], &["text"], PARAGRAPH);
                let thought =
                    if summary.is_empty() { texts(&item["content"], &["text"], PARAGRAPH) } else { summary };
                self.emit_rest(at, &thought, out);
                // Encrypted reasoning is sent back before the items that followed it. It can't be used if its end
                // arrives after theirs, or if the server only identifies it by an id.
                let is_newest = at + 1 == self.items.len();
                if is_newest && item["encrypted_content"].as_str().is_some_and(|content| !content.is_empty())
                {
                    let data = json!({ "prefix": self.prefix, "item": without_nulls(item) });
                    out.push(ProviderEvent::ThinkingSealed { data });
                }
            }
        }
    }

    fn finished(
        &mut self,
        response: ResponseObject,
        failed: bool,
        out: &mut Vec<ProviderEvent>,
    ) -> Result<(), DecodeError> {
        let status = response.status.0.as_deref().unwrap_or_default();
        if failed || status == "failed" {
            let error = match &response.error {
                Value::Null => &json!({ "message": "the response failed" }),
                error => error,
            };
            return Err(DecodeError::Provider(json!({ "error": error }).to_string()));
        }
        for (index, item) in (0..).zip(response.output.0.into_iter().flatten()) {
            self.ended(Some(index), item, out);
        }
        if !response.usage.is_null() {
            out.push(ProviderEvent::Usage(usage(&response.usage, self.counted)));
        }
        let stop = match response.incomplete_details["reason"].as_str() {
            _ if !self.refusal.is_empty() => ReplyStop::Refused { reason: std::mem::take(&mut self.refusal) },
            Some("max_output_tokens") => ReplyStop::MaxTokens,
            Some("content_filter") => ReplyStop::Filtered { reason: "the provider's content filter".into() },
            Some(word) => ReplyStop::Other { reason: word.to_owned() },
            None if matches!(status, "incomplete" | "cancelled") => {
                ReplyStop::Other { reason: status.to_owned() }
            }
            None => ReplyStop::Finished,
        };
        out.push(ProviderEvent::Stopped(stop));
        Ok(())
    }

    /// Handles a search by the service, a page that it opened, or what it looked for in one.
    fn searched(&mut self, item: Value, out: &mut Vec<ProviderEvent>) {
        let id = item["id"].as_str().unwrap_or_default().to_owned();
        if self.searches.contains(&id) {
            return;
        }
        let action = &item["action"];
        let text = |name: &str| action[name].as_str().unwrap_or_default();
        let mut pages = FoundPage::read_all(action["sources"].as_array().into_iter().flatten());
        let query = match action["type"].as_str() {
            Some("open_page" | "find_in_page") => {
                pages.extend(FoundPage::read(action));
                text("pattern").to_owned()
            }
            _ => {
                self.counted += 1;
                text("query").to_owned()
            }
        };
        let failure = (item["status"] == "failed").then(|| "failed".to_owned());
        let search = HostedSearch { query, pages, failure, ..HostedSearch::new(Some(&id)) };
        self.searches.push(id);
        out.push(ProviderEvent::Searched { search, blocks: vec![without_nulls(item)] });
    }

    /// Finds the item of this kind to which an event refers. The call id takes precedence over the index, and that over
    /// the item id, which some gateways change from event to event. Without any of them, it is the newest of its kind.
    fn find(&self, kind: OutputItemKind, item_ref: &ItemRef<'_>) -> Option<usize> {
        let newest = |is: &dyn Fn(&OutputItem) -> bool| {
            self.items.iter().rposition(|item| item.kind == kind && is(item))
        };
        let has = |id: &str, item: &OutputItem| !id.is_empty() && (item.id == id || item.call_id == id);
        newest(&|item| has(item_ref.call_id, item))
            .or_else(|| {
                let is_other = |item: &OutputItem| {
                    !item_ref.call_id.is_empty()
                        && !item.call_id.is_empty()
                        && item_ref.call_id != item.call_id
                };
                newest(&|item| item_ref.index.is_some() && item.index == item_ref.index && !is_other(item))
            })
            .or_else(|| newest(&|item| has(item_ref.id, item)))
            .or_else(|| {
                newest(&|item| {
                    let no_index = item_ref.index.is_none() || item.index.is_none();
                    let no_id = item_ref.id.is_empty() || item.id.is_empty();
                    let no_call = item_ref.call_id.is_empty() || item.call_id.is_empty();
                    no_index && no_id && no_call
                })
            })
    }

    fn find_or_add(&mut self, kind: OutputItemKind, item_ref: &ItemRef<'_>) -> usize {
        self.find(kind, item_ref).unwrap_or_else(|| self.add(kind, item_ref))
    }

    fn add(&mut self, kind: OutputItemKind, item_ref: &ItemRef<'_>) -> usize {
        self.items.push(OutputItem {
            kind,
            index: item_ref.index,
            id: item_ref.id.to_owned(),
            call_id: item_ref.call_id.to_owned(),
            given: String::new(),
            part: None,
            gap: false,
            done: false,
        });
        self.items.len() - 1
    }

    fn emit(&mut self, at: usize, text: &str, out: &mut Vec<ProviderEvent>) {
        if text.is_empty() {
            return;
        }
        let item = &mut self.items[at];
        item.given.push_str(text);
        let text = text.to_owned();
        append(
            out,
            match item.kind {
                OutputItemKind::Message => ProviderEvent::Text(text),
                OutputItemKind::Reasoning => ProviderEvent::Thinking(text),
                OutputItemKind::Call => ProviderEvent::CallArguments { index: index_of(at), json: text },
            },
        );
    }

    /// Emits the rest of `whole` after the text that was already emitted. If `whole` starts differently, nothing is
    /// emitted, because earlier output can't be retracted.
    fn emit_rest(&mut self, at: usize, whole: &str, out: &mut Vec<ProviderEvent>) {
        let given = &self.items[at].given;
        if let Some(rest) = whole.strip_prefix(given.as_str()) {
            self.emit(at, rest, out);
        }
    }
}

impl OutputItemKind {
    /// `None` for kinds of items that are never requested.
    fn from_item(item: &Value) -> Option<OutputItemKind> {
        match item["type"].as_str()? {
            "message" => Some(OutputItemKind::Message),
            "reasoning" => Some(OutputItemKind::Reasoning),
            "function_call" => Some(OutputItemKind::Call),
            _ => None,
        }
    }
}

/// The cited pages of a text that does not name them itself.
fn unnamed_sources(content: &Value, text: &str) -> Option<ProviderEvent> {
    let parts = content.as_array().into_iter().flatten();
    let annotations = parts.filter_map(|part| part["annotations"].as_array()).flatten();
    let mut pages =
        FoundPage::read_all(annotations.filter(|annotation| annotation["type"] == "url_citation"));
    pages.retain(|page| !text.contains(&page.url));
    let search = HostedSearch { pages, ..HostedSearch::new(None) };
    (!search.pages.is_empty()).then(|| ProviderEvent::Searched { search, blocks: Vec::new() })
}

/// Joins the texts in the fields with these names of a list of parts.
fn texts(parts: &Value, names: &[&str], between: &str) -> String {
    let parts = parts.as_array().into_iter().flatten();
    let texts = parts.filter_map(|part| names.iter().find_map(|name| part[*name].as_str()));
    texts.filter(|text| !text.is_empty()).collect::<Vec<&str>>().join(between)
}

fn arguments_text(arguments: &Value) -> Cow<'_, str> {
    match arguments {
        Value::String(text) => text.into(),
        Value::Null => "".into(),
        // Complete arguments that were not serialized to a string.
        whole => whole.to_string().into(),
    }
}
