//! Tests searches by providers: from a stream over the stored reply to the next request, of the same and of other
//! providers.

use serde_json::{Value, json};

use super::stream::Decoding;
use super::views_tests::{OwnedView, body, encode, text};
use crate::collect::Collector;
use crate::endpoint::{Endpoint, test_chat_endpoint, test_endpoint};
use crate::model_endpoint::ProviderSearch;
use crate::{ProviderEvent, ReplyStop};
use epitome_scripted_model::valid;
use epitome_thread::{Content, MessageId, ModelName, OutcomeStatus, SEARCH_TOOL, ToolSpec, Usage};

const SONNET: &str = "anthropic/claude-sonnet-5-5";
const SOL: &str = "openai/gpt-6-sol";
const FLASH: &str = "gemini/gemini-3.8-flash";

fn searching(model: &str) -> Endpoint {
    let search = ProviderSearch { blocked: vec!["evil.example".to_owned()] };
    Endpoint { search: Some(search), ..test_endpoint(model) }
}

fn problems(endpoint: &Endpoint, sent: &Value) -> Vec<String> {
    valid::problems(endpoint.wire, &endpoint.model, sent)
}

/// Decodes a stream of events, and returns the content and the usage of the reply.
fn reply(endpoint: &Endpoint, prefix: &str, events: &[Value]) -> (Vec<Content>, Usage, Option<ReplyStop>) {
    let mut decoding = Decoding::new(endpoint.clone(), prefix.to_owned(), None);
    let mut collector = Collector::new(&endpoint.name);
    let mut out: Vec<ProviderEvent> = Vec::new();
    for event in events {
        decoding.push(format!("data: {event}\n\n").as_bytes(), &mut out).expect("a valid stream");
    }
    decoding.end(&mut out).expect("a whole stream");
    for event in out {
        collector.feed(event);
    }
    let reply = collector.finish();
    (reply.content, reply.usage.unwrap_or_default(), reply.stop)
}

/// The stream of a reply with these blocks, each in one piece or in deltas, as Anthropic sends them.
fn anthropic(blocks: &[Value], stop: &str) -> Vec<Value> {
    let mut events = vec![json!({"type": "message_start", "message": {"usage": {"input_tokens": 9}}})];
    for (index, block) in blocks.iter().enumerate() {
        let (start, deltas) = match block["type"].as_str() {
            Some("text") => {
                let cited = block["citations"].as_array().into_iter().flatten();
                let deltas = cited.map(|citation| json!({"type": "citations_delta", "citation": citation}));
                let deltas = deltas.chain([json!({"type": "text_delta", "text": block["text"]})]);
                (json!({"type": "text", "text": ""}), deltas.collect())
            }
            Some("server_tool_use") => {
                let mut start = block.clone();
                start["input"] = json!({});
                let input = block["input"].to_string();
                let (head, tail) = input.split_at(4);
                let delta = |json: &str| json!({"type": "input_json_delta", "partial_json": json});
                (start, vec![delta(head), delta(tail)])
            }
            _ => (block.clone(), Vec::new()),
        };
        events.push(json!({"type": "content_block_start", "index": index, "content_block": start}));
        events.extend(
            deltas
                .into_iter()
                .map(|delta: Value| json!({"type": "content_block_delta", "index": index, "delta": delta})),
        );
        events.push(json!({"type": "content_block_stop", "index": index}));
    }
    let usage = json!({"output_tokens": 3, "server_tool_use": {"web_search_requests": 1}});
    events.push(json!({"type": "message_delta", "delta": {"stop_reason": stop}, "usage": usage}));
    events.push(json!({"type": "message_stop"}));
    events
}

fn called(id: &str) -> Value {
    json!({"type": "server_tool_use", "id": id, "name": "web_search", "input": {"query": "rust (lang)"}})
}

fn found(id: &str) -> Value {
    let page = |title: &str, url: &str| {
        json!({
            "type": "web_search_result", "title": title, "url": url, "encrypted_content": "c2VhbGVk", "page_age": null,
        })
    };
    json!({"type": "web_search_tool_result", "tool_use_id": id, "content": [
        page("Rust [lang]", "https://a.example/x_(y)"), page("", "https://b.example/"),
    ]})
}

fn cited(text: &str) -> Value {
    json!({"type": "text", "text": text, "citations": [{
        "type": "web_search_result_location", "url": "https://a.example/x_(y)", "title": "Rust [lang]",
        "encrypted_index": "aW5kZXg=", "cited_text": "Rust is",
    }]})
}

fn plain(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn conversation(content: Vec<Content>) -> OwnedView {
    OwnedView::default().user(vec![text("search")]).agent(content).user(vec![text("and?")])
}

/// The service refuses results and thinking that come back altered.
#[test]
fn anthropic_gets_every_block_back_as_it_was() {
    let endpoint = searching(SONNET);
    let blocks = [
        plain("I look."),
        called("srvtoolu_1"),
        found("srvtoolu_1"),
        plain("It is "),
        cited("Rust."),
        plain(" Bye."),
    ];
    let (content, usage, stop) = reply(&endpoint, "p", &anthropic(&blocks, "end_turn"));
    assert_eq!((usage.searches, stop), (1, Some(ReplyStop::Finished)));
    let sent = body(&endpoint, &conversation(content.clone()).request());
    assert_eq!(sent["messages"][1]["content"], json!(blocks));
    assert_eq!(problems(&endpoint, &sent), Vec::<String>::new());
    let texts: Vec<&str> = content.iter().filter_map(Content::as_text).collect();
    assert_eq!(texts, ["I look.", "It is Rust. Bye."]);
    let [_, Content::Search(search), _, Content::Search(sources)] = &content[..] else {
        panic!("{content:?}")
    };
    assert_eq!(sources.sources(), "\n\nSources: [Rust lang](https://a.example/x_%28y%29)");
    let (call, outcome) = search.as_call(MessageId(7), 1).expect("a search is shown as a call");
    assert_eq!(call.card.title, "Search the web for `rust (lang)`");
    assert_eq!(outcome.status, OutcomeStatus::Completed);
}

#[test]
fn other_providers_get_text() {
    let blocks = [called("srvtoolu_1"), found("srvtoolu_1"), cited("Rust.")];
    let (content, ..) = reply(&searching(SONNET), "p", &anthropic(&blocks, "end_turn"));
    let view = conversation(content);
    let words = "[Web search for \\\"rust (lang)\\\": [Rust lang](https://a.example/x_%28y%29), ";
    let gateway = Endpoint { name: ModelName("gateway/claude-sonnet-5-5".to_owned()), ..searching(SONNET) };
    for endpoint in [searching(SOL), test_endpoint(FLASH), test_chat_endpoint("openai/gpt-5.2"), gateway] {
        let sent = body(&endpoint, &view.request());
        assert_eq!(problems(&endpoint, &sent), Vec::<String>::new());
        let (model, written) = (&endpoint.name, sent.to_string());
        assert!(written.contains(words), "{model}: {written}");
        assert!(written.contains("Sources: [Rust lang]"), "{model}: {written}");
        assert!(!written.contains("srvtoolu_1") && !written.contains("c2VhbGVk"), "{model}: {written}");
    }
}

#[test]
fn a_paused_search_goes_on_and_an_abandoned_one_is_dropped() {
    let endpoint = searching(SONNET);
    let first = [plain("I look."), called("srvtoolu_1")];
    let (paused, _, stop) = reply(&endpoint, "p", &anthropic(&first, "pause_turn"));
    assert_eq!(stop, Some(ReplyStop::Paused));
    let view = OwnedView::default().user(vec![text("search")]).agent(paused.clone());
    let sent = body(&endpoint, &view.request());
    assert_eq!(sent["messages"][1]["content"].as_array().map(Vec::len), Some(2), "{sent}");
    assert_eq!(sent["messages"][1]["content"][1]["id"], "srvtoolu_1");
    assert_eq!(problems(&endpoint, &sent), Vec::<String>::new());

    let second = [found("srvtoolu_1"), cited("Rust.")];
    let (ended, ..) = reply(&endpoint, "p", &anthropic(&second, "end_turn"));
    let view = view.agent(ended).user(vec![text("and?")]);
    let sent = body(&endpoint, &view.request());
    assert_eq!(sent["messages"][2]["content"], json!(second));
    assert_eq!(problems(&endpoint, &sent), Vec::<String>::new());

    // The user cancelled while the search was paused.
    let sent = body(&endpoint, &conversation(paused).request());
    assert_eq!(sent["messages"][1]["content"], json!([plain("I look.")]));
    assert_eq!(problems(&endpoint, &sent), Vec::<String>::new());
    let only = reply(&endpoint, "p", &anthropic(&[called("srvtoolu_2")], "pause_turn")).0;
    let sent = body(&endpoint, &conversation(only).request());
    assert_eq!(sent["messages"].as_array().map(Vec::len), Some(1), "{sent}");
    assert_eq!(problems(&endpoint, &sent), Vec::<String>::new());
}

#[test]
fn a_failed_search_says_why() {
    let error = json!({"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"});
    let failed = json!({"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": error});
    let endpoint = searching(SONNET);
    let blocks = [called("srvtoolu_1"), failed, plain("I can't.")];
    let (content, ..) = reply(&endpoint, "p", &anthropic(&blocks, "end_turn"));
    assert_eq!(
        body(&endpoint, &conversation(content.clone()).request())["messages"][1]["content"],
        json!(blocks)
    );
    let Content::Search(search) = &content[0] else { panic!("{content:?}") };
    assert_eq!(search.text(), "[Web search for \"rust (lang)\": failed (max_uses_exceeded)]");
}

/// The stream of a Responses reply that consists of these items.
fn responses(items: &[Value]) -> Vec<Value> {
    let mut events: Vec<Value> =
        vec![json!({"type": "response.created", "response": {"status": "in_progress"}})];
    for (index, item) in items.iter().enumerate() {
        let begun = json!({"type": item["type"], "id": item["id"], "status": "in_progress"});
        events.push(json!({"type": "response.output_item.added", "output_index": index, "item": begun}));
        events.push(json!({"type": "response.output_item.done", "output_index": index, "item": item}));
    }
    let response =
        json!({"status": "completed", "output": items, "usage": {"input_tokens": 9, "output_tokens": 3}});
    events.push(json!({"type": "response.completed", "response": response}));
    events
}

fn item_of_search() -> Value {
    json!({"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {
        "type": "search", "query": "rust", "sources": [{"type": "url", "url": "https://a.example/"}],
    }})
}

fn message_with_source(text: &str) -> Value {
    let citation = |url: &str| json!({"type": "url_citation", "url": url, "title": "T", "start_index": 0, "end_index": 1});
    let annotations = [citation("https://a.example/"), citation("https://c.example/")];
    json!({"id": "msg_1", "type": "message", "status": "completed", "role": "assistant", "content": [
        {"type": "output_text", "text": text, "annotations": annotations},
    ]})
}

#[test]
fn openai_gets_its_search_back_with_the_reasoning_before_it() {
    let endpoint = searching(SOL);
    let reasoning =
        json!({"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "c2VhbGVk"});
    let items = [reasoning.clone(), item_of_search(), message_with_source("See https://a.example/.")];
    let question = OwnedView::default().user(vec![text("search")]);
    let prefix = encode(&endpoint, &question.request()).prefix;
    let (content, usage, _) = reply(&endpoint, &prefix, &responses(&items));
    assert_eq!(usage.searches, 1);
    let Some(Content::Search(sources)) = content.last() else { panic!("{content:?}") };
    assert_eq!(sources.sources(), "\n\nSources: [T](https://c.example/)", "the other one is in the text");
    let sent = body(&endpoint, &conversation(content.clone()).request());
    let input = sent["input"].as_array().expect("items");
    assert_eq!(input[1..3], [reasoning, item_of_search()]);
    assert_eq!(input[3]["content"], json!([{"type": "output_text", "text": "See https://a.example/."}]));
    assert_eq!(input.len(), 5, "{input:?}");
    assert_eq!(problems(&endpoint, &sent), Vec::<String>::new());

    // After a compaction, the reasoning can't be sent any more, and the service would miss it.
    let view = OwnedView::default().user(vec![text("other")]).agent(content).user(vec![text("and?")]);
    let sent = body(&endpoint, &view.request());
    assert_eq!(
        sent["input"][1]["content"][0]["text"],
        "[Web search for \"rust\": [https://a.example/](https://a.example/)]"
    );
    assert!(!sent.to_string().contains("ws_1"), "{sent}");
    assert_eq!(problems(&endpoint, &sent), Vec::<String>::new());
}

/// A chunk of Gemini's stream.
fn gemini_chunk(parts: &[Value], more: &Value) -> Value {
    let mut candidate = json!({"index": 0, "content": {"role": "model", "parts": parts}});
    if let (Value::Object(candidate), Value::Object(more)) = (&mut candidate, more) {
        candidate.extend(more.clone());
    }
    json!({"candidates": [candidate], "usageMetadata": {"promptTokenCount": 9, "candidatesTokenCount": 3}})
}

fn grounding() -> Value {
    json!({"finishReason": "STOP", "groundingMetadata": {
        "webSearchQueries": ["rust", "rust edition"],
        "groundingChunks": [{"web": {"uri": "https://a.example/", "title": "a.example"}}],
        "groundingSupports": [{"segment": {"endIndex": 3}, "groundingChunkIndices": [0]}],
        "searchEntryPoint": {"renderedContent": "<div></div>"},
    }})
}

fn parts_of_a_search() -> [Value; 2] {
    let kind = "GOOGLE_SEARCH_WEB";
    let call = json!({"id": "s1", "toolType": kind, "args": {"queries": ["rust", "rust edition"]}});
    let response = json!({"id": "s1", "toolType": kind, "response": {"search_suggestions": "<div></div>"}});
    [
        json!({"toolCall": call, "thoughtSignature": "c2ln"}),
        json!({"toolResponse": response, "thoughtSignature": "c2lo"}),
    ]
}

/// Two searches of one reply ran at the same time. The result of the first came after the second had begun, and was taken
/// for a third search; the first one remained without a result.
#[test]
fn parallel_searches_of_gemini_keep_their_results() {
    let endpoint = searching(FLASH);
    let named = |id: &str| {
        parts_of_a_search().map(|part| {
            let text = part.to_string().replace("\"s1\"", &format!("\"{id}\""));
            serde_json::from_str::<Value>(&text).expect("JSON")
        })
    };
    let ([first, first_result], [second, second_result]) = (named("s1"), named("s2"));
    let parts = [first.clone(), second.clone(), first_result.clone(), second_result.clone()];
    let prefix = encode(&endpoint, &OwnedView::default().user(vec![text("search")]).request()).prefix;
    let chunks = [gemini_chunk(&parts, &json!({})), gemini_chunk(&[json!({"text": "Done."})], &grounding())];
    let (content, ..) = reply(&endpoint, &prefix, &chunks);
    let searches =
        content.iter().filter(|part| matches!(part, Content::Search(search) if search.call.is_some()));
    assert!(
        searches.clone().all(|part| matches!(part, Content::Search(search) if !search.is_open)),
        "{content:?}"
    );
    assert_eq!(searches.count(), 2);
    let sent = body(&endpoint, &conversation(content).request());
    let expected = json!([first, first_result, second, second_result, {"text": "Done."}]);
    assert_eq!(sent["contents"][1]["parts"], expected);
    assert_eq!(problems(&endpoint, &sent), Vec::<String>::new());
}

#[test]
fn gemini_gets_the_parts_of_its_search_back() {
    let endpoint = searching(FLASH);
    let [call, response] = parts_of_a_search();
    let chunks = [
        gemini_chunk(std::slice::from_ref(&call), &json!({})),
        gemini_chunk(std::slice::from_ref(&response), &json!({})),
        gemini_chunk(&[json!({"text": "It is 2024."})], &json!({})),
        gemini_chunk(&[json!({"text": ""})], &grounding()),
    ];
    let question = OwnedView::default().user(vec![text("search")]);
    let prefix = encode(&endpoint, &question.request()).prefix;
    let (content, usage, _) = reply(&endpoint, &prefix, &chunks);
    assert_eq!(usage.searches, 2, "each query is paid for");
    let [Content::Search(search), Content::Text { .. }, Content::Search(sources)] = &content[..] else {
        panic!("{content:?}")
    };
    assert_eq!(search.query, "rust; rust edition");
    assert_eq!(sources.sources(), "\n\nSources: [a.example](https://a.example/)");
    let sent = body(&endpoint, &conversation(content.clone()).request());
    assert_eq!(sent["contents"][1]["parts"], json!([call, response, {"text": "It is 2024."}]));
    assert_eq!(problems(&endpoint, &sent), Vec::<String>::new());

    // After a compaction, its signatures are not valid any more.
    let view = OwnedView::default().user(vec![text("other")]).agent(content).user(vec![text("and?")]);
    let sent = body(&endpoint, &view.request());
    assert_eq!(sent["contents"][1]["parts"][0]["text"], "[Web search for \"rust; rust edition\"]");
    assert!(!sent.to_string().contains("toolCall"), "{sent}");
    assert_eq!(problems(&endpoint, &sent), Vec::<String>::new());
}

/// Google's cloud sends no parts for its searches, and refuses the field that asks for them.
#[test]
fn vertex_names_its_searches_at_the_end() {
    let mut endpoint = searching(FLASH);
    (endpoint.quirks.is_vertex, endpoint.quirks.omits) = (true, &["toolConfig"]);
    let chunks = [gemini_chunk(&[json!({"text": "It is 2024."})], &grounding())];
    let (content, ..) = reply(&endpoint, "p", &chunks);
    let [Content::Text { .. }, Content::Search(search), Content::Search(sources)] = &content[..] else {
        panic!("{content:?}")
    };
    let (_, outcome) = search.as_call(MessageId(1), 1).expect("it is shown");
    assert!(outcome.model_text().contains("https://a.example/"), "{outcome:?}");
    assert!(sources.sources().contains("https://a.example/"));
    let view = conversation(content);
    let function = ToolSpec { name: "bash".to_owned(), description: "Runs.".to_owned(), schema: json!({}) };
    let search = ToolSpec { name: SEARCH_TOOL.to_owned(), schema: Value::Null, ..function.clone() };
    let tools = [function, search];
    let mut request = view.request();
    request.tools = &tools;
    let sent = body(&endpoint, &request);
    assert_eq!(sent["tools"][1], json!({"googleSearch": {}}));
    assert!(sent["toolConfig"].is_null(), "{sent}");
    (endpoint.quirks.is_vertex, endpoint.quirks.omits) = (false, &[]);
    let sent = body(&endpoint, &request);
    assert_eq!(sent["toolConfig"], json!({"includeServerSideToolInvocations": true}));
    assert_eq!(problems(&endpoint, &sent), Vec::<String>::new());
}

#[test]
fn the_tool_has_the_form_of_the_service_or_is_left_out() {
    let tool = |schema: Value| ToolSpec {
        name: SEARCH_TOOL.to_owned(),
        description: "Searches.".to_owned(),
        schema,
    };
    let own = tool(json!({"type": "object", "properties": {"query": {"type": "string"}}}));
    let hosted = tool(Value::Null);
    let tools = |endpoint: &Endpoint, tool: &ToolSpec| {
        let view = OwnedView::default().user(vec![text("search")]);
        let tools = [tool.clone()];
        let mut request = view.request();
        request.tools = &tools;
        let sent = body(endpoint, &request);
        (sent["tools"].clone(), sent["include"].clone())
    };
    for tool in [&own, &hosted] {
        let (anthropic, _) = tools(&searching(SONNET), tool);
        assert_eq!(
            anthropic,
            json!([{"type": "web_search_20250305", "name": "web_search", "max_uses": 5, "blocked_domains": ["evil.example"]}])
        );
        let (openai, include) = tools(&searching(SOL), tool);
        assert_eq!(openai, json!([{"type": "web_search"}]));
        assert!(include.to_string().contains("web_search_call.action.sources"), "{include}");
        let (gemini, _) = tools(&searching(FLASH), tool);
        assert_eq!(gemini, json!([{"googleSearch": {}}]));
    }
    let chat = test_chat_endpoint("openai/gpt-5.2");
    for endpoint in [test_endpoint(SONNET), test_endpoint(SOL), test_endpoint(FLASH), chat] {
        let model = &endpoint.name;
        let (function, include) = tools(&endpoint, &own);
        assert!(function.to_string().contains("\"query\""), "{model}: {function}");
        assert!(!include.to_string().contains("web_search"), "{model}: {include}");
        let (none, _) = tools(&endpoint, &hosted);
        assert!(!none.to_string().contains("web_search"), "{model}: {none}");
    }
}
