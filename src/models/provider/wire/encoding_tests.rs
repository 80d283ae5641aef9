//! Tests for every wire format: the cached encoding of a conversation equals a fresh one, and requests are valid.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::abilities::Thinking;
use crate::endpoint::{test_chat_endpoint, test_endpoint};
use crate::wire::views_tests::{
    OwnedItem, OwnedView, body, call, encode, hook_requests, outcome, picture, text, thinking, views,
};
use epitome_config::{EditTools, WireFormat};
use epitome_scripted_model::valid;
use epitome_scripted_model::{CacheUse, PromptCache};
use epitome_thread::{Content, OutcomeStatus, Seq, ToolSpec};

/// Endpoints of each wire format, of compatible servers, and of models whose requirements differ from those of the
/// newest.
fn endpoints() -> Vec<Endpoint> {
    let compatible = |endpoint: Endpoint| Endpoint { own_api: false, ..endpoint };
    vec![
        test_endpoint("anthropic/claude-sonnet-5-5"),
        test_endpoint("anthropic/claude-haiku-4-5"),
        compatible(test_endpoint("anthropic/claude-sonnet-5-5")),
        test_endpoint("openai/gpt-6-sol"),
        compatible(test_endpoint("openai/qwen3")),
        test_chat_endpoint("openai/gpt-4.1"),
        compatible(test_chat_endpoint("openai/qwen3")),
        test_endpoint("gemini/gemini-2.5-flash"),
        test_endpoint("gemini/gemini-4-argon"),
    ]
}

#[test]
fn models_get_the_edit_tool_that_they_were_trained_with() {
    let tool = |name: &str| ToolSpec {
        name: name.to_owned(),
        description: "Edits.".to_owned(),
        schema: json!({"type": "object"}),
    };
    let both = [tool("apply_patch"), tool("file_edit"), tool("file_write")];
    let names = |endpoint: &Endpoint, tools: &[ToolSpec]| {
        let view = OwnedView::default().user(vec![text("edit")]);
        let mut request = view.request();
        request.tools = tools;
        let sent = body(endpoint, &request)["tools"].to_string();
        let is_sent = |name: &&str| sent.contains(&format!("\"name\":\"{name}\""));
        ["apply_patch", "file_edit", "file_write"].into_iter().filter(is_sent).collect::<Vec<_>>()
    };
    for endpoint in endpoints() {
        let usual = if endpoint.model.starts_with("gpt") { "apply_patch" } else { "file_edit" };
        assert_eq!(names(&endpoint, &both), [usual, "file_write"], "{}", endpoint.name);
        // An agent that may only use the other one.
        assert_eq!(names(&endpoint, &both[..1]), ["apply_patch"], "{}", endpoint.name);
        let all = Endpoint { edit_tools: EditTools::All, ..endpoint };
        assert_eq!(names(&all, &both).len(), 3, "{}", all.name);
    }
}

/// The choice of images to leave out depends on newer ones, but the cached encoding must equal a fresh one.
#[test]
fn a_conversation_with_many_images_is_cached_correctly() {
    let mut view = OwnedView::default();
    for round in 0..35 {
        let id = format!("c{round}");
        let mut seen = outcome(&id, OutcomeStatus::Completed, "a screenshot");
        if let Content::Image { mime_type, data, .. } = picture(2_880, 1_800) {
            seen.content.push(OutcomeContent::Image { mime_type, data });
        }
        view = view.user(vec![text("look")]).agent(vec![call(&id, json!({}))]).outcomes(vec![seen]);
    }
    for endpoint in endpoints() {
        let mut encoding = Encoding::default();
        grow(&mut encoding, &endpoint, &view, 1).expect("both are the same");
        let is_claude = Family::detect(&endpoint.model) == Family::Claude;
        assert_eq!(encoding.leaves_images_out(), is_claude, "{}", endpoint.name);
    }
}

fn any_endpoint() -> impl Strategy<Value = Endpoint> {
    prop::sample::select(endpoints())
}

/// Asserts that the service would accept this view's request.
fn taken(endpoint: &Endpoint, view: &OwnedView) -> Result<(), TestCaseError> {
    let body = body(endpoint, &view.request());
    let problems = valid::problems(endpoint.wire, &endpoint.model, &body);
    prop_assert!(problems.is_empty(), "{} {:?}: {:#?}\n{}", endpoint.name, endpoint.wire, problems, body);
    Ok(())
}

/// The messages of a request without cache marks, which move from request to request and aren't part of the content.
fn messages(endpoint: &Endpoint, view: &OwnedView) -> Vec<Value> {
    fn unmarked(value: &Value) -> Value {
        match value {
            Value::Object(fields) => {
                let fields = fields.iter().filter(|(name, _)| *name != "cache_control");
                Value::Object(fields.map(|(name, value)| (name.clone(), unmarked(value))).collect())
            }
            Value::Array(items) => items.iter().map(unmarked).collect(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
        }
    }
    let body = body(endpoint, &view.request());
    let list = match endpoint.wire {
        WireFormat::AnthropicMessages | WireFormat::OpenAiChat => &body["messages"],
        WireFormat::OpenAiResponses => &body["input"],
        WireFormat::Gemini => &body["contents"],
    };
    list.as_array().expect("messages are a list").iter().map(unmarked).collect()
}

fn basis(revision: u64) -> Option<Basis> {
    Some(Basis { frame: Seq(1), revision: Seq(revision) })
}

/// Encodes, in order, every prefix of the view after which a model could be called.
fn grow(
    encoding: &mut Encoding,
    endpoint: &Endpoint,
    view: &OwnedView,
    revision: u64,
) -> Result<(), TestCaseError> {
    for end in 1..=view.items.len() {
        let beginning = OwnedView { items: view.items[..end].to_vec(), tools: view.tools.clone() };
        let request = ModelRequest { basis: basis(revision), ..beginning.request() };
        let kept = encoding.encode(endpoint, &request, Purpose::Reply);
        let fresh = encode(endpoint, &request);
        let (kept_text, fresh_text) = (kept.bytes(), fresh.bytes());
        let [kept_text, fresh_text] = [&kept_text, &fresh_text].map(|bytes| String::from_utf8_lossy(bytes));
        prop_assert_eq!(kept_text, fresh_text, "{:?}", endpoint.wire);
        prop_assert_eq!(kept.prefix, fresh.prefix);
    }
    Ok(())
}

proptest! {
    #[test]
    fn any_view_gives_a_valid_request(endpoint in any_endpoint(), view in views(false)) {
        let view = view.answerable();
        taken(&endpoint, &view)?;
        taken(&endpoint, &view.of_own(&endpoint))?;
    }

    /// A faulty log must not make its conversation unusable.
    #[test]
    fn lost_or_orphaned_outcomes_give_a_valid_request(endpoint in any_endpoint(), view in views(true)) {
        taken(&endpoint, &view.of_own(&endpoint).answerable())?;
    }

    /// No edit or history from a hook results in a view that the service rejects.
    #[test]
    fn view_edited_by_hooks_gives_a_valid_request(
        endpoint in any_endpoint(), view in views(false), (edits, history, kept) in hook_requests(),
    ) {
        taken(&endpoint, &view.of_own(&endpoint).edited(&edits, &history, kept).answerable())?;
    }

    /// Content that was sent once remains unchanged: it is in the provider's cache, and thinking is bound to it.
    #[test]
    fn appending_changes_nothing_before(endpoint in any_endpoint(), view in views(false)) {
        let view = view.of_own(&endpoint).answerable();
        let before = messages(&endpoint, &view);
        let after = messages(&endpoint, &view.agent(vec![text("Yes.")]).user(vec![text("more")]));
        prop_assert_eq!(before.as_slice(), &after[..before.len()]);
    }

    /// A conversation that grows, is rewritten by a hook and grows again is sent as if nothing were cached.
    #[test]
    fn cached_encoding_equals_fresh_encoding(
        endpoint in any_endpoint(), view in views(true), (edits, history, kept) in hook_requests(),
        other in views(false),
    ) {
        let view = view.of_own(&endpoint);
        let mut encoding = Encoding::default();
        grow(&mut encoding, &endpoint, &view, 1)?;
        grow(&mut encoding, &endpoint, &view.edited(&edits, &history, kept), 2)?;
        grow(&mut encoding, &endpoint, &other, 3)?;
    }
}

/// Regression: if a model of OpenAI or Gemini wrote a blank line before its call, the line was dropped from the reply
/// together with the reasoning bound to it.
#[test]
fn accepted_blank_text_is_sent_back_with_its_thinking() {
    for endpoint in endpoints() {
        let before = OwnedView::default().with_tools().user(vec![text("look")]);
        let part =
            OwnedView::default().user(vec![text("x")]).agent(vec![thinking("anthropic", "m", json!({}))]);
        // A signature for exactly this position.
        let own = before.clone().agent(agent_parts(&part)).of_own(&endpoint);
        let seal = || agent_parts(&own).remove(0);
        let reply = vec![text("\n\n"), seal(), call("c1", json!({}))];
        let view = before.agent(reply).outcomes(vec![outcome("c1", OutcomeStatus::Completed, "done")]);
        taken(&endpoint, &view).expect("the service takes it");
        let sent = messages(&endpoint, &view)[1..].iter().map(Value::to_string).collect::<String>();
        let (has_blank, has_seal) =
            (sent.contains(r#""\n\n""#), ["\"s\"", "Z0FB", "c2ln"].iter().any(|seal| sent.contains(seal)));
        let expected = match endpoint.wire {
            // It rejects blank texts.
            WireFormat::AnthropicMessages => (false, true),
            WireFormat::OpenAiResponses | WireFormat::Gemini => (true, true),
            WireFormat::OpenAiChat => (false, false),
        };
        assert_eq!((has_blank, has_seal), expected, "{} {sent}", endpoint.name);
    }
}

/// Regression: a hook replaced the view with an empty history, the user undid the prompt, and a call was made for a
/// view without entries, which crashed the process. A reply with only blank text also leaves an empty view.
/// An imported conversation had calls of another agent's tools, whose names the services refuse. Each request with it
/// failed.
#[test]
fn calls_have_names_that_services_accept() {
    fn names(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                found.extend(fields.get("name").and_then(Value::as_str).map(str::to_owned));
                fields.values().for_each(|value| names(value, found));
            }
            Value::Array(values) => values.iter().for_each(|value| names(value, found)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    let long = "a".repeat(65);
    for (name, sent) in [
        ("mcp.my server/a.b", "mcp_my_server_a_b"),
        ("", "unnamed"),
        (long.as_str(), &long[1..]),
        ("Grün", "Gr_n"),
        ("mcp__files__read-2", "mcp__files__read-2"),
    ] {
        let mut part = call("t1", json!({}));
        if let Content::Call(call) = &mut part {
            call.name = name.to_owned();
        }
        let view = OwnedView::default().user(vec![text("Look.")]).agent(vec![part]).outcomes(vec![outcome(
            "t1",
            OutcomeStatus::Completed,
            "done",
        )]);
        for endpoint in endpoints() {
            let mut found = Vec::new();
            names(&body(&endpoint, &view.request()), &mut found);
            // Gemini's format names the tool in its result too.
            let count = if endpoint.wire == WireFormat::Gemini { 2 } else { 1 };
            assert_eq!(found, vec![sent; count], "{endpoint:?}");
        }
    }
}

#[test]
fn empty_view_gives_a_valid_request() {
    for endpoint in endpoints() {
        for view in [OwnedView::default(), OwnedView::default().agent(vec![text(" ")])] {
            taken(&endpoint, &view).unwrap_or_else(|why| panic!("{why}"));
            // Nothing that was cached for it may affect a later request.
            let later = OwnedView::default().user(vec![text("go")]);
            let mut encoding = Encoding::default();
            encoding.encode(&endpoint, &view.request(), Purpose::Reply);
            let goes_on = encoding.encode(&endpoint, &later.request(), Purpose::Reply);
            let fresh = Encoding::default().encode(&endpoint, &later.request(), Purpose::Reply);
            assert_eq!(goes_on.bytes(), fresh.bytes(), "{}", endpoint.name);
        }
    }
}

/// The parts of a view's only reply.
fn agent_parts(view: &OwnedView) -> Vec<Content> {
    let reply = view.items.iter().find_map(|item| match item {
        OwnedItem::Agent(message, _) => Some(message.content.clone()),
        OwnedItem::User(_) | OwnedItem::Outcomes(_) => None,
    });
    reply.expect("it has a reply")
}

/// Compatible servers require alternating roles, because of the templates of local models.
#[test]
fn consecutive_replies_are_merged_for_compatible_servers() {
    let endpoint = Endpoint { own_api: false, ..test_chat_endpoint("openai/qwen3") };
    let view = OwnedView::default()
        .user(vec![text("a")])
        .user(vec![text("b")])
        .agent(vec![text("c")])
        .agent(vec![text("d")])
        .user(vec![text("e")]);
    let roles: Vec<Value> =
        messages(&endpoint, &view).iter().map(|message| message["role"].clone()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "user"]);
}

/// Adds a round of a long session: a reply with two calls, and their outcomes.
fn with_round(view: OwnedView, round: usize) -> OwnedView {
    let ids = [format!("a{round}"), format!("b{round}")];
    view.agent(vec![text("I look."), call(&ids[0], json!({"at": round})), call(&ids[1], json!({}))]).outcomes(
        ids.iter().map(|id| outcome(id, OutcomeStatus::Completed, &"output ".repeat(100))).collect(),
    )
}

#[test]
fn call_encodes_only_new_turns() {
    for endpoint in endpoints() {
        let mut encoding = Encoding::default();
        let mut view = OwnedView::default().with_tools().user(vec![text("go")]);
        let mut most = 0;
        for round in 0..200 {
            view = with_round(view, round);
            let request = ModelRequest { basis: basis(1), ..view.request() };
            let encoded = encoding.encode(&endpoint, &request, Purpose::Reply);
            most = most.max(encoded.fresh);
            if round == 199 {
                assert_eq!(encoded.bytes(), encode(&endpoint, &request).bytes(), "{:?}", endpoint.wire);
                assert!(encoded.len() > 200 * 1_400);
                // The turns were joined, so that a body has few pieces.
                assert!(encoded.body.len() < 64, "{} pieces", encoded.body.len());
            }
        }
        // Only the ends of the body, a reply and two outcomes are encoded.
        assert!(most < 4_000, "{most} bytes were written for one call of {:?}", endpoint.wire);
    }
}

#[test]
fn other_model_or_basis_is_encoded_afresh() {
    let view = with_round(OwnedView::default().user(vec![text("go")]), 0);
    let mut encoding = Encoding::default();
    let mut one = test_endpoint("anthropic/claude-sonnet-5-5");
    let request = |revision| ModelRequest { basis: basis(revision), ..view.request() };
    let fresh = |encoding: &mut Encoding, endpoint: &Endpoint, revision| {
        encoding.encode(endpoint, &request(revision), Purpose::Reply).fresh
    };
    let whole = fresh(&mut encoding, &one, 1);
    let again = fresh(&mut encoding, &one, 1);
    assert!(again < whole, "the older turns are kept");
    assert_eq!(fresh(&mut encoding, &one, 2), whole);
    one.own_api = false;
    assert!(fresh(&mut encoding, &one, 2) > again);
}

#[test]
fn end_of_the_previous_request_has_a_cache_mark() {
    let marked = |endpoint: &Endpoint| -> Vec<(usize, usize)> {
        let view = with_round(with_round(OwnedView::default().user(vec![text("go")]), 0), 1);
        let body = body(endpoint, &view.request());
        let messages = body["messages"].as_array().expect("a list").iter().enumerate();
        let blocks = messages.flat_map(|(at, message)| {
            let blocks = message["content"].as_array().expect("a list").iter().enumerate();
            blocks
                .filter(|(_, block)| block.get("cache_control").is_some())
                .map(move |(nth, _)| (at, nth))
                .collect::<Vec<_>>()
        });
        blocks.collect()
    };
    let mut endpoint = test_endpoint("anthropic/claude-sonnet-5-5");
    // The newest turn is marked by a field of the request.
    assert_eq!(marked(&endpoint), [(2, 1)]);
    endpoint.own_api = false;
    assert_eq!(marked(&endpoint), [(2, 1), (4, 1)]);
}

fn is_budgeted(endpoint: &Endpoint) -> bool {
    matches!(endpoint.abilities.thinking, Thinking::Budget { .. })
}

/// Each request reads everything that the previous one contained from the cache, even if a round has more calls than
/// the service's lookback, and writes the rest.
#[test]
fn round_with_many_calls_reads_the_rest_from_the_cache() {
    const CALLS: usize = 30;
    // Budgeted thinking is disabled in rounds that did not begin with it, which invalidates the cached messages.
    let is_read = |one: &Endpoint| one.wire == WireFormat::AnthropicMessages && !is_budgeted(one);
    for endpoint in endpoints().into_iter().filter(is_read) {
        let mut cache = PromptCache::default();
        let mut encoding = Encoding::default();
        let long = "A long question. ".repeat(200);
        let mut view = OwnedView::default().with_tools().user(vec![text(&long)]);
        let mut before = CacheUse::default();
        for round in 0..50 {
            let request = ModelRequest { basis: basis(1), ..view.request() };
            let encoded = encoding.encode(&endpoint, &request, Purpose::Reply);
            let body: Value = serde_json::from_slice(&encoded.bytes()).expect("JSON");
            let used = cache.take(&body);
            assert_eq!(
                (used.read, used.fresh),
                (before.all(), 0),
                "round {round}, own: {}",
                endpoint.own_api
            );
            assert!(used.written > 0);
            before = used;
            let ids: Vec<String> = (0..CALLS).map(|nth| format!("c{round}_{nth}")).collect();
            let calls = ids.iter().map(|id| call(id, json!({"at": round})));
            view = view.agent(std::iter::once(text("I look.")).chain(calls).collect());
            let done = |id: &String| outcome(id, OutcomeStatus::Completed, "output");
            view = view.outcomes(ids.iter().map(done).collect());
        }
    }
}

/// No request changes the beginning of an earlier one: caches of all formats compare bytes, apart from cache marks.
#[test]
fn each_request_starts_with_the_previous_bytes() {
    for endpoint in endpoints() {
        let mut encoding = Encoding::default();
        let mut view = OwnedView::default().with_tools().user(vec![text("go")]);
        let mut before = String::new();
        for round in 0..100 {
            let request = ModelRequest { basis: basis(1), ..view.request() };
            let encoded = encoding.encode(&endpoint, &request, Purpose::Reply).bytes();
            let body = String::from_utf8(encoded).expect("text");
            let body = body.replace(r#","cache_control":{"type":"ephemeral"}"#, "");
            let list = body.strip_suffix("]}").expect("the list of messages is last");
            let list = match is_budgeted(&endpoint) {
                true => list.split_once(r#","messages":["#).map_or(list, |(_, messages)| messages),
                false => list,
            };
            assert!(list.starts_with(&before), "round {round} of {:?}", endpoint.wire);
            assert!(list.len() > before.len());
            before = list.to_owned();
            view = with_round(view, round);
        }
    }
}

/// Regression: the base64 of an image was estimated as text, so that a screenshot of 2 MB used up a budget of one dollar.
#[test]
fn images_and_documents_cost_what_their_tokens_do() {
    let data = "A".repeat(2_000_000);
    for endpoint in endpoints() {
        let image = Content::Image { mime_type: "image/png".into(), data: data.clone(), uri: None };
        let document =
            Content::Document { mime_type: "application/pdf".into(), data: data.clone(), name: None };
        for (part, priced_max) in [(image, 20_000), (document, 250_000)] {
            let view = OwnedView::default().user(vec![text("look"), part]);
            let encoded = encode(&endpoint, &view.request());
            assert!(encoded.priced < priced_max, "{}: {}", endpoint.name, encoded.priced);
        }
        let view = OwnedView::default().user(vec![text(&data)]);
        let encoded = encode(&endpoint, &view.request());
        assert_eq!(encoded.priced, encoded.len());
    }
}
