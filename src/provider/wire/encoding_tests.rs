//! That what is kept of a conversation is what would be written anew.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::provider::endpoint::{test_chat_endpoint, test_endpoint};
use crate::provider::scripted::{CacheUse, PromptCache};
use crate::provider::wire::test_views::{OwnedView, call, hooks_wishes, outcome, text, views};
use crate::thread::{OutcomeStatus, Seq};

/// An endpoint of each wire format, and of servers that are only compatible.
fn endpoints() -> Vec<Endpoint> {
    let mut gateway = test_endpoint("anthropic/claude-sonnet-5-5");
    gateway.own_api = false;
    let mut compatible = test_endpoint("openai/gpt-4.1");
    compatible.wire = WireFormat::OpenAiChat;
    compatible.own_api = false;
    let own = ["anthropic/claude-sonnet-5-5", "openai/gpt-6-sol", "gemini/gemini-4-argon"].map(test_endpoint);
    own.into_iter().chain([test_chat_endpoint("openai/gpt-4.1"), gateway, compatible]).collect()
}

fn basis(revision: u64) -> Option<Basis> {
    Some(Basis { frame: Seq(1), revision: Seq(revision) })
}

fn cold(endpoint: &Endpoint, request: &Request<'_>) -> Encoded {
    Encoding::default().encode(endpoint, request, Purpose::Reply)
}

/// Encodes every beginning of the view that a model could be asked with, one after another.
fn grow(
    encoding: &mut Encoding,
    endpoint: &Endpoint,
    view: &OwnedView,
    revision: u64,
) -> Result<(), TestCaseError> {
    for end in 1..=view.items.len() {
        let beginning = OwnedView { items: view.items[..end].to_vec(), tools: view.tools.clone() };
        let request = Request { basis: basis(revision), ..beginning.request() };
        let kept = encoding.encode(endpoint, &request, Purpose::Reply);
        let anew = cold(endpoint, &request);
        let (kept_text, anew_text) = (kept.bytes(), anew.bytes());
        let [kept_text, anew_text] = [&kept_text, &anew_text].map(|bytes| String::from_utf8_lossy(bytes));
        prop_assert_eq!(kept_text, anew_text, "{:?}", endpoint.wire);
        prop_assert_eq!(kept.prefix, anew.prefix);
    }
    Ok(())
}

proptest! {
    /// A conversation that grows, is rewritten by a hook and grows on is sent as if nothing were kept.
    #[test]
    fn what_is_kept_is_what_would_be_written(
        view in views(true), (edits, history, kept) in hooks_wishes(), other in views(false),
    ) {
        for endpoint in endpoints() {
            let mut encoding = Encoding::default();
            grow(&mut encoding, &endpoint, &view, 1)?;
            grow(&mut encoding, &endpoint, &view.edited(&edits, &history, kept), 2)?;
            grow(&mut encoding, &endpoint, &other, 3)?;
        }
    }
}

/// A round of a long session: a reply with two calls, and what came of them.
fn with_round(view: OwnedView, round: usize) -> OwnedView {
    let ids = [format!("a{round}"), format!("b{round}")];
    view.agent(vec![text("I look."), call(&ids[0], json!({"at": round})), call(&ids[1], json!({}))]).outcomes(
        ids.iter().map(|id| outcome(id, OutcomeStatus::Completed, &"output ".repeat(100))).collect(),
    )
}

#[test]
fn a_call_writes_what_is_new_and_keeps_the_rest() {
    for endpoint in endpoints() {
        let mut encoding = Encoding::default();
        let mut view = OwnedView::default().with_tools().user(vec![text("go")]);
        let mut most = 0;
        for round in 0..200 {
            view = with_round(view, round);
            let request = Request { basis: basis(1), ..view.request() };
            let encoded = encoding.encode(&endpoint, &request, Purpose::Reply);
            most = most.max(encoded.fresh);
            if round == 199 {
                assert_eq!(encoded.bytes(), cold(&endpoint, &request).bytes(), "{:?}", endpoint.wire);
                assert!(encoded.len() > 200 * 1_400);
                // The turns were joined, so that a body has few pieces.
                assert!(encoded.body.len() < 64, "{} pieces", encoded.body.len());
            }
        }
        // The ends of the body, a reply and two outcomes.
        assert!(most < 4_000, "{most} bytes were written for one call of {:?}", endpoint.wire);
    }
}

#[test]
fn another_model_or_basis_writes_anew() {
    let view = with_round(OwnedView::default().user(vec![text("go")]), 0);
    let mut encoding = Encoding::default();
    let mut one = test_endpoint("anthropic/claude-sonnet-5-5");
    let request = |revision| Request { basis: basis(revision), ..view.request() };
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
fn the_end_of_the_request_before_is_marked_for_the_cache() {
    let marked = |endpoint: &Endpoint| -> Vec<(usize, usize)> {
        let view = with_round(with_round(OwnedView::default().user(vec![text("go")]), 0), 1);
        let body: Value = serde_json::from_slice(&cold(endpoint, &view.request()).bytes()).expect("JSON");
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
    // The newest one is a field of the request.
    assert_eq!(marked(&endpoint), [(2, 1)]);
    endpoint.own_api = false;
    assert_eq!(marked(&endpoint), [(2, 1), (4, 1)]);
}

/// Each request reads from the cache all that the one before it had, also where a round has more calls than
/// the service looks back for, and writes all the rest.
#[test]
fn a_round_of_many_calls_costs_only_what_is_new() {
    const CALLS: usize = 30;
    let anthropic = endpoints().into_iter().filter(|one| one.wire == WireFormat::AnthropicMessages);
    for endpoint in anthropic {
        let mut cache = PromptCache::default();
        let mut encoding = Encoding::default();
        let long = "A long question. ".repeat(200);
        let mut view = OwnedView::default().with_tools().user(vec![text(&long)]);
        let mut before = CacheUse::default();
        for round in 0..50 {
            let request = Request { basis: basis(1), ..view.request() };
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

/// No request of a conversation changes what an earlier one began with: all formats are read from the cache
/// by their bytes. Marks are no part of them.
#[test]
fn each_request_goes_on_from_the_bytes_of_the_one_before() {
    for endpoint in endpoints() {
        let mut encoding = Encoding::default();
        let mut view = OwnedView::default().with_tools().user(vec![text("go")]);
        let mut before = String::new();
        for round in 0..100 {
            let request = Request { basis: basis(1), ..view.request() };
            let encoded = encoding.encode(&endpoint, &request, Purpose::Reply).bytes();
            let body = String::from_utf8(encoded).expect("text");
            let body = body.replace(r#","cache_control":{"type":"ephemeral"}"#, "");
            let list = body.strip_suffix("]}").expect("the list of messages is last");
            assert!(list.starts_with(&before), "round {round} of {:?}", endpoint.wire);
            assert!(list.len() > before.len());
            before = list.to_owned();
            view = with_round(view, round);
        }
    }
}
