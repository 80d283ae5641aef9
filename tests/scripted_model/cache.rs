//! A model of Anthropic's prompt cache, following its documentation. Pure.
//!
//! A request is a sequence of blocks: tools, system text, messages. Each cache mark stores the prefix up to
//! and including its block. A later request reads the longest stored prefix that ends at one of its own marks
//! or fewer than `LOOKBACK` blocks before it. Prefixes below the model's minimum are silently not stored.

use std::collections::HashSet;

use serde_json::Value;
use sha2::{Digest, Sha256};

use epitome_provider::models;
use epitome_thread::ModelName;

/// Number of blocks that are checked for a stored prefix, from the marked one backwards.
const LOOKBACK: usize = 20;

/// Bytes of a block per token: approximate, but the same everywhere.
const BYTES_PER_TOKEN: u64 = 4;

/// Minimum tokens of a stored prefix for unknown models.
const TOKENS_MIN_DEFAULT: u32 = 1_024;

/// Digests of all stored prefixes, of all models.
#[derive(Debug, Default)]
pub struct PromptCache(HashSet<String>);

/// How a request's tokens were billed. The fields add up to all of its tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheUse {
    pub read: u64,
    pub written: u64,
    /// Neither read nor written: after the last mark, or in a prefix too short to be stored.
    pub fresh: u64,
}

impl CacheUse {
    pub fn all(&self) -> u64 {
        self.read + self.written + self.fresh
    }
}

/// A prefix of a request that ends with a block.
struct Beginning {
    digest: String,
    tokens: u64,
    marked: bool,
}

impl PromptCache {
    /// Computes the tokens that a request reads and writes, and stores what it writes.
    pub fn take(&mut self, body: &Value) -> CacheUse {
        let beginnings = beginnings(body);
        let tokens_at = |at: Option<usize>| at.map_or(0, |at| beginnings[at].tokens);
        let marks = || (0..beginnings.len()).filter(|at| beginnings[*at].marked);
        let kept_near = |mark: usize| {
            let near = (0..=mark).rev().take(LOOKBACK);
            near.into_iter().find(|at| self.0.contains(&beginnings[*at].digest))
        };
        let read = tokens_at(marks().filter_map(kept_near).max());
        let name = ModelName(format!("anthropic/{}", body["model"].as_str().unwrap_or_default()));
        let least = models::known(&name).and_then(|known| known.cache_min).unwrap_or(TOKENS_MIN_DEFAULT);
        let worth: Vec<usize> = marks().filter(|at| beginnings[*at].tokens >= u64::from(least)).collect();
        let written = tokens_at(worth.last().copied()).saturating_sub(read);
        self.0.extend(worth.iter().map(|at| beginnings[*at].digest.clone()));
        let all = beginnings.last().map_or(0, |last| last.tokens);
        CacheUse { read, written, fresh: all - read - written }
    }
}

fn beginnings(body: &Value) -> Vec<Beginning> {
    let mut digest = Sha256::new();
    let mut bytes = 0;
    let mut found: Vec<Beginning> = Vec::new();
    let mut add = |digest: &mut Sha256, block: &Value| {
        let mut bare = block.clone();
        let marked = bare.as_object_mut().and_then(|block| block.remove("cache_control")).is_some();
        let text = bare.to_string();
        bytes += text.len() as u64;
        digest.update(&text);
        let tokens = bytes / BYTES_PER_TOKEN;
        found.push(Beginning { digest: format!("{:x}", digest.clone().finalize()), tokens, marked });
    };
    let members = |value: &Value| value.as_array().cloned().unwrap_or_default();
    digest.update(body["model"].to_string());
    for block in members(&body["tools"]).iter().chain(&members(&body["system"])) {
        add(&mut digest, block);
    }
    // A different thinking setting invalidates the messages, but not tools and system text.
    digest.update(body["thinking"].to_string());
    for message in members(&body["messages"]) {
        digest.update(message["role"].to_string());
        for block in members(&message["content"]) {
            add(&mut digest, &block);
        }
    }
    if let Some(last) = found.last_mut() {
        last.marked |= !body["cache_control"].is_null();
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A request whose one message has this many long blocks, some of them marked.
    fn request(blocks: usize, marks: &[usize]) -> Value {
        let block = |at: usize| {
            let mut block = json!({"type": "text", "text": format!("{at} {}", "word ".repeat(1_000))});
            if marks.contains(&at) {
                block["cache_control"] = json!({"type": "ephemeral"});
            }
            block
        };
        let content: Vec<Value> = (0..blocks).map(block).collect();
        json!({"model": "claude-sonnet-5-5", "messages": [{"role": "user", "content": content}]})
    }

    #[test]
    fn prefix_is_found_within_the_lookback_of_a_mark() {
        for (marks, is_found) in [(vec![20], true), (vec![21], false), (vec![1, 30], true), (vec![], false)] {
            let mut cache = PromptCache::default();
            let first = cache.take(&request(2, &[1]));
            assert_eq!((first.read, first.fresh), (0, 0));
            let second = cache.take(&request(40, &marks));
            let expected = if is_found { first.written } else { 0 };
            assert_eq!(second.read, expected, "{marks:?}");
        }
    }

    #[test]
    fn changed_thinking_and_short_prefixes_miss_the_cache() {
        let mut cache = PromptCache::default();
        let mut long = request(2, &[1]);
        assert!(cache.take(&long).written > 0);
        assert!(cache.take(&long).read > 0);
        long["thinking"] = json!({"type": "adaptive"});
        assert_eq!(cache.take(&long).read, 0);
        let short = json!({"model": "claude-sonnet-5-5", "cache_control": {"type": "ephemeral"},
            "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]});
        for _ in 0..2 {
            let used = cache.take(&short);
            assert_eq!((used.read, used.written, used.fresh), (0, 0, used.all()));
        }
    }
}
