//! Anthropic's web search: the tool, the blocks of searches and of texts with sources, and what is sent back of them.
//! The service wants all of these blocks back exactly as it sent them. Pure.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::ProviderEvent;
use crate::search::{PROVIDER_SEARCHES_MAX, ProviderSearch};
use epitome_thread::{Content, FoundPage, HostedSearch, SEARCH_TOOL};

/// The version that all models with web search have. The later ones also run code to filter results.
const TOOL_VERSION: &str = "web_search_20250305";

pub(super) fn tool(search: &ProviderSearch) -> Value {
    let mut tool = json!({ "type": TOOL_VERSION, "name": SEARCH_TOOL, "max_uses": PROVIDER_SEARCHES_MAX });
    if !search.blocked.is_empty() {
        tool["blocked_domains"] = json!(search.blocked);
    }
    tool
}

/// A search that has begun. `input` is the streamed JSON, which may be empty.
pub(super) fn begun(mut block: Value, input: &str) -> ProviderEvent {
    if let Ok(input) = serde_json::from_str::<Value>(input) {
        block["input"] = input;
    }
    let search = HostedSearch {
        query: block["input"]["query"].as_str().unwrap_or_default().to_owned(),
        is_open: true,
        ..HostedSearch::new(block["id"].as_str())
    };
    ProviderEvent::Searched { search, blocks: vec![block] }
}

/// The result of a search.
pub(super) fn result(block: Value) -> ProviderEvent {
    let content = &block["content"];
    let pages = FoundPage::read_all(content.as_array().into_iter().flatten());
    let failure = content["error_code"].as_str().map(str::to_owned);
    let search = HostedSearch { pages, failure, ..HostedSearch::new(block["tool_use_id"].as_str()) };
    ProviderEvent::Searched { search, blocks: vec![block] }
}

/// The sources of consecutive texts; `None` if no text has any.
pub(super) fn sources(texts: Vec<Value>) -> Option<ProviderEvent> {
    let cited = texts.iter().filter_map(|text| text["citations"].as_array()).flatten();
    let pages = FoundPage::read_all(cited);
    let search = HostedSearch { pages, ..HostedSearch::new(None) };
    (!search.pages.is_empty()).then_some(ProviderEvent::Searched { search, blocks: texts })
}

/// The searches of a turn that can be sent back: those with a result, and those that the model still runs.
pub(super) struct Searches<'a> {
    called: BTreeSet<&'a str>,
    answered: BTreeSet<&'a str>,
}

impl<'a> Searches<'a> {
    pub(super) fn of_turn(replies: &'a [Vec<&Content>]) -> Searches<'a> {
        let all = || replies.iter().flatten().filter_map(|part| own_blocks(part)).flatten();
        let ids = |name: &'static str| all().filter_map(move |block| block[name].as_str()).collect();
        Searches { called: ids("id"), answered: ids("tool_use_id") }
    }

    /// Appends the blocks of a search to those of its reply. `is_own` is whether this service made them; others get
    /// text. A text whose sources are sent back is replaced by its original blocks.
    pub(super) fn put(&self, search: &HostedSearch, is_own: bool, is_newest: bool, out: &mut Vec<Value>) {
        let blocks =
            search.native.as_ref().filter(|_| is_own).and_then(|native| native.data["blocks"].as_array());
        match (blocks, &search.call) {
            (Some(blocks), None) => {
                let text = |block: &Value| block["text"].as_str().unwrap_or_default().to_owned();
                let whole: String = blocks.iter().map(text).collect();
                if out.last().is_some_and(|last| last["type"] == "text" && last["text"] == whole) {
                    out.pop();
                    out.extend(blocks.iter().filter(|block| !text(block).trim().is_empty()).cloned());
                }
            }
            (Some(blocks), Some(_)) => {
                let is_paired = |block: &&Value| match block["tool_use_id"].as_str() {
                    Some(id) => self.called.contains(id),
                    None => is_newest || block["id"].as_str().is_some_and(|id| self.answered.contains(id)),
                };
                let from = out.len();
                out.extend(blocks.iter().filter(is_paired).cloned());
                if out.len() == from {
                    out.push(json!({ "type": "text", "text": search.text() }));
                }
            }
            (None, _) => out.push(json!({ "type": "text", "text": search.text() })),
        }
    }
}

fn own_blocks(part: &Content) -> Option<&Vec<Value>> {
    match part {
        Content::Search(search) => search.native.as_ref()?.data["blocks"].as_array(),
        _ => None,
    }
}
