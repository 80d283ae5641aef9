//! Compactions: by the planner alone, with a summary, and by the provider.

use epitome::compaction::{self, Budget, CompactionDecision, CompactionRequest, KeptTail, Summary};
use epitome::config::WireFormat;
use epitome::provider::ModelRequest;
use epitome::provider::wire::Purpose;
use epitome::provider::wire::encoding::Encoding;
use epitome::thread::{Change, Content, Native, OutcomeStatus, Trigger, Usage};
use epitome_scripted_model::valid;
use serde_json::{Value, json};

use super::super::service;
use super::super::step::Compaction;
use super::{Checked, Model, read};

impl Model {
    pub(super) fn compact(&mut self, asked: &Compaction) -> Checked {
        self.finish_calls(OutcomeStatus::Completed);
        let (ruler, mut budget) = (self.ruler(), self.budget(asked.window));
        budget.prune.keep_recent = asked.recent;
        let request = CompactionRequest {
            trigger: asked.trigger,
            keep: asked.keep,
            focus: asked.focus.then(|| "the tests".to_owned()),
            summary: asked.wanted,
        };
        let before = ruler.view(self.thread.view());
        let change = match compaction::decide(
            &compaction::CompactionInput::new(&ruler, &self.thread, &budget),
            &request,
        ) {
            CompactionDecision::Nothing(_) => {
                self.count("compactions without a need");
                return Ok(());
            }
            CompactionDecision::Prune(masks) => {
                compaction::pruned(&ruler, &self.thread, masks, asked.trigger)
            }
            CompactionDecision::Summarise(plan) => {
                let made_short = if asked.native { self.made_short()? } else { None };
                let written = match made_short {
                    Some(written) => written,
                    None => {
                        let text = asked.summary.map(|words| self.words(words));
                        Summary { text, ..Summary::default() }
                    }
                };
                let id = self.thread.next_message();
                match compaction::compacted(
                    &compaction::CompactionInput::new(&ruler, &self.thread, &budget),
                    &plan,
                    id,
                    written,
                ) {
                    Ok(change) => change,
                    Err(_) => {
                        self.count("compactions that gain nothing");
                        return Ok(());
                    }
                }
            }
        };
        let (what, after, trigger) = match &change {
            Change::Compacted { tokens_after, trigger, .. } => ("compactions", *tokens_after, *trigger),
            Change::Pruned { tokens_after, trigger, .. } => ("prunings", *tokens_after, *trigger),
            other => return Err(format!("a compaction is {}", other.kind())),
        };
        let is_summary = what == "compactions";
        let has_masks = matches!(&change, Change::Compacted { masks, .. } if !masks.is_empty());
        self.append(change);
        self.count(what);
        self.count_times("compactions with masks", u64::from(has_masks));
        self.count(match asked.window {
            0..=1_000 => "compactions or prunings in a window that is much too small",
            1_001..=4_000 => "compactions or prunings in a tiny window",
            4_001..=8_000 => "compactions or prunings in a small window",
            8_001..=32_000 => "compactions or prunings in a window of 32,000",
            _ => "compactions or prunings in a large window",
        });
        self.count(match trigger {
            Trigger::Manual => "compactions or prunings by hand",
            Trigger::Overflow => "compactions or prunings by an overflow",
            Trigger::Threshold => "compactions or prunings by the threshold",
            Trigger::Hook => "compactions or prunings by a hook",
            Trigger::Must => "compactions or prunings that must be",
        });
        self.is_counted(after)?;
        // A mandatory compaction, and one that the provider requested, may gain any amount. One that was requested otherwise
        // is made even if it gains nothing.
        let is_enough = match trigger {
            Trigger::Manual | Trigger::Hook if is_summary => true,
            Trigger::Threshold if is_summary => after * 10 <= before * 9,
            Trigger::Manual | Trigger::Hook | Trigger::Threshold | Trigger::Must | Trigger::Overflow => {
                after < before
            }
        };
        if !is_enough {
            return Err(format!("a change by {trigger:?} from {before} to {after} tokens"));
        }
        self.fits(&budget, after)?;
        // After a second rejection the view is made even smaller.
        if is_summary && asked.keep == KeptTail::Nothing && trigger != Trigger::Overflow {
            self.gains_nothing_more(&budget, &request)?;
        }
        Ok(())
    }

    /// The provider's own compaction of the conversation, if the chosen model supports one.
    fn made_short(&mut self) -> Checked<Option<Summary>> {
        let endpoint = self.endpoints[self.chosen].clone();
        self.number += 1;
        let item = service::short(endpoint.wire, self.number).filter(|_| endpoint.native_compaction);
        let Some((item, (system, tools))) = item.zip(self.thread.frame()) else { return Ok(None) };
        let request = ModelRequest {
            system,
            tools,
            items: self.thread.view().items(),
            thought: self.thought,
            max_output: 32_000,
            cache_key: "s",
            basis: None,
        };
        let purpose = Purpose::Compact { instruction: None };
        let encoded = Encoding::default().encode(&endpoint, &request, purpose);
        let body: Value = serde_json::from_slice(&encoded.bytes()).map_err(|error| error.to_string())?;
        self.service.check_short(endpoint.wire, &endpoint.name.0, &body)?;
        // OpenAI's has a separate endpoint, with different fields than a reply's and without tools.
        if endpoint.wire == WireFormat::AnthropicMessages {
            let problems = valid::problems(endpoint.wire, &endpoint.model, &body);
            if !problems.is_empty() {
                return Err(format!("{} refuses: {problems:#?}\n{body}", endpoint.name));
            }
            self.service.check(endpoint.wire, &endpoint.name.0, &body)?;
        }
        self.service.made_short(&endpoint.name.0, &item);
        self.count("items made by a provider");
        let by = Some((endpoint.name.clone(), Usage::default()));
        let (text, native) = match endpoint.wire {
            WireFormat::AnthropicMessages => {
                let text = item["content"].as_str().map(str::to_owned);
                (text, read(&endpoint, encoded.prefix, &service::stream_short(&item))?)
            }
            // Its answer is not streamed, and contains nothing readable.
            WireFormat::OpenAiResponses | WireFormat::OpenAiChat | WireFormat::Gemini => {
                let (provider, model) = (endpoint.provider().to_owned(), endpoint.model.clone());
                let native = Native { provider, model, data: json!({ "compaction": item }) };
                (None, vec![Content::Thinking { text: String::new(), native: Some(native) }])
            }
        };
        Ok(Some(Summary { text, native, by, ..Summary::default() }))
    }

    /// A conversation that was compacted completely is not compacted again.
    fn gains_nothing_more(&mut self, budget: &Budget, request: &CompactionRequest) -> Checked {
        let ruler = self.ruler();
        let plan = match compaction::decide(
            &compaction::CompactionInput::new(&ruler, &self.thread, budget),
            request,
        ) {
            CompactionDecision::Nothing(_) => {
                self.count("compactions that are final");
                return Ok(());
            }
            CompactionDecision::Prune(masks) => return Err(format!("behind a compaction {masks:?} is cut")),
            CompactionDecision::Summarise(plan) => plan,
        };
        let (id, written) = (self.thread.next_message(), Summary::default());
        match compaction::compacted(
            &compaction::CompactionInput::new(&ruler, &self.thread, budget),
            &plan,
            id,
            written,
        ) {
            Ok(_) => Err("a compacted view is compacted again".to_owned()),
            Err(_) => {
                self.count("compactions that are final");
                Ok(())
            }
        }
    }

    /// The token count in a change equals that of the view.
    pub(super) fn is_counted(&mut self, recorded: u64) -> Checked {
        let counted = self.ruler().view(self.thread.view());
        if counted != recorded {
            return Err(format!("the change records {recorded} tokens, the view takes {counted}"));
        }
        Ok(())
    }

    /// The result of a compaction fits. It is not made if pins alone exceed a smaller window.
    fn fits(&mut self, budget: &Budget, after: u64) -> Checked {
        if after > budget.room() {
            return Err(format!("{after} tokens in a room of {}", budget.room()));
        }
        self.count("compactions that fit");
        Ok(())
    }
}
