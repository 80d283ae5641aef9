//! Performs a compaction and checks the properties of its result.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, LazyLock};

use epitome::compaction::{
    Budget, CompactionDecision, CompactionInput, CompactionPlan, CompactionRefusal, CompactionRequest,
    Preview, Summary, compacted, decide, due, preview, pruned,
};
use epitome::config::{Settings, WireFormat};
use epitome::provider::endpoint::{Endpoint, resolve};
use epitome::provider::wire::Purpose;
use epitome::provider::wire::encoding::Encoding;
use epitome::provider::{Basis, ModelRequest};
use epitome::thread::{Change, Content, Entry, Mask, ModelName, Origin, Seq, ThoughtLevel, Thread, Trigger};
use epitome::tokens::Ruler;
use epitome_scripted_model::valid;
use serde_json::Value;

use super::history::History;
use super::step::Compaction;

/// One in this many results is checked against all four services.
const ALL_SERVICES_ONE_IN: usize = 32;

/// Returns an error with this message unless the condition is true.
macro_rules! ensure {
    ($holds:expr, $($said:tt)+) => {
        if !$holds {
            return Err(format!($($said)+));
        }
    };
}

type Checked<T = ()> = Result<T, String>;

impl History {
    pub fn compact(&mut self, asked: &Compaction, window: u64) -> Checked {
        let (ruler, mut budget, request) =
            (Ruler::for_model(None), self.budget(window), History::request(asked));
        let before = self.thread.clone();
        let was = ruler.view(before.view());
        budget.used = asked.reported.map(|percent| (budget.frame + was) * percent / 100);
        if budget.used.is_some() {
            self.count("with a count of the provider's");
        }
        let decision = decide(&CompactionInput::new(&ruler, &before, &budget), &request);
        // In a small window no compaction pays off.
        if budget.window > 20_000 {
            self.check_due(&before, &budget, &request)?;
        }
        let change = match decision {
            CompactionDecision::Nothing(_) => {
                let must = request.trigger == Trigger::Must && was > budget.room();
                ensure!(!must, "what does not fit is left as it is");
                self.count("nothing to do");
                return Ok(());
            }
            CompactionDecision::Prune(masks) => pruned(&ruler, &before, masks, request.trigger),
            CompactionDecision::Summarise(plan) => {
                let text = asked.summary.map(|bytes| self.text(bytes));
                let made = self.made(&before, &budget, &plan, text.clone());
                if asked.again {
                    ensure!(
                        made == self.made(&before, &budget, &plan, text),
                        "the same gives something else"
                    );
                }
                match made {
                    Ok(change) => change,
                    Err(why) => {
                        let by_pins = matches!(why, CompactionRefusal::Pins { .. });
                        ensure!(by_pins || why == CompactionRefusal::NoGain && was <= budget.room(), "{why}");
                        self.count(match by_pins {
                            true => "refusals because of pins",
                            false => "refusals without a gain",
                        });
                        return Ok(());
                    }
                }
            }
        };
        if asked.again {
            self.check_preview(&before, &budget, &request)?;
        }
        self.append(change.clone());
        self.count(match change {
            Change::Pruned { .. } => "prunings",
            _ => "compactions",
        });
        self.count(&format!("by {:?}", request.trigger));
        self.count(&format!("in a window of {window}"));
        self.check(&before, &change, &budget, &request)?;
        if asked.again {
            self.check_is_final(&before, &change, &budget, &request)?;
        }
        self.check_requests(asked.service)
    }

    fn made(
        &self,
        before: &Thread,
        budget: &Budget,
        plan: &CompactionPlan,
        text: Option<String>,
    ) -> Result<Change, CompactionRefusal> {
        let written = Summary { text, ..Summary::default() };
        compacted(
            &CompactionInput::new(&Ruler::for_model(None), before, budget),
            plan,
            before.next_message(),
            written,
        )
    }

    fn check_due(&mut self, before: &Thread, budget: &Budget, request: &CompactionRequest) -> Checked {
        let ruler = Ruler::for_model(None);
        let Some(masks) = due(&ruler, before, budget) else { return Ok(()) };
        let change = pruned(&ruler, before, masks, request.trigger);
        let Change::Pruned { tokens_before, tokens_after, .. } = change else {
            return Err(format!("{} is no pruning", change.kind()));
        };
        ensure!(tokens_after + 20_000 <= tokens_before, "{tokens_before} to {tokens_after} tokens");
        self.count("prunings that pay by themselves");
        Ok(())
    }

    /// A dry run shows exactly the bytes that would be committed.
    fn check_preview(&mut self, before: &Thread, budget: &Budget, request: &CompactionRequest) -> Checked {
        let ruler = Ruler::for_model(None);
        let decision = decide(&CompactionInput::new(&ruler, before, budget), request);
        let shown = preview(&ruler, before, budget, request);
        let again = preview(&ruler, before, budget, request);
        ensure!(shown == again, "{shown:?} is shown, and then {again:?}");
        self.count("previews");
        let Preview { tokens_before, tokens_after, .. } = shown;
        ensure!(tokens_before == ruler.view(before.view()), "{tokens_before} tokens are shown");
        let CompactionDecision::Summarise(plan) = &decision else {
            ensure!(shown.decision == decision, "{:?} is shown of {decision:?}", shown.decision);
            return Ok(());
        };
        match self.made(before, budget, plan, None) {
            Ok(Change::Compacted { summary, tokens_after: after, .. }) => {
                ensure!(shown.decision == decision, "{:?} is shown of {decision:?}", shown.decision);
                ensure!(summary.text() == shown.carried, "{} is not\n{}", shown.carried, summary.text());
                ensure!(after == tokens_after.0, "{after} tokens, and {} are shown", tokens_after.0);
                // A hook's history may be larger than any summary.
                let view = before.view().entries();
                let head = view.iter().take_while(|entry| entry.seq == view[0].seq);
                let head: u64 = head.map(|entry| ruler.entry(entry)).sum();
                // After a rejected request the view is made as small as possible.
                let is_roomy = request.trigger != Trigger::Overflow
                    && head * 4 <= budget.room()
                    && tokens_after.1 > tokens_after.0
                    && tokens_after.1 * 2 <= budget.room()
                    && tokens_after.1 * 10 <= tokens_before * 9;
                let other = self.made(before, budget, plan, Some("So far.".to_owned()));
                if let Ok(Change::Compacted { summary: other, .. }) = other
                    && is_roomy
                    // The words of the user that a hook's text contains are quoted once a model's summary replaces it.
                    && !other.text().contains("as a hook left it")
                {
                    let same = summary.content[1..] == other.content[1..];
                    ensure!(same, "{summary:?}\nand with a summary {other:?}");
                    self.count("messages that are the same whatever the summary");
                }
                Ok(())
            }
            Ok(other) => Err(format!("{} is no compaction", other.kind())),
            Err(why) => {
                ensure!(matches!(shown.decision, CompactionDecision::Nothing(_)), "{why} is not shown");
                Ok(())
            }
        }
    }

    fn check(
        &mut self,
        before: &Thread,
        change: &Change,
        budget: &Budget,
        request: &CompactionRequest,
    ) -> Checked {
        let ruler = Ruler::for_model(None);
        let (was, is) = (ruler.view(before.view()), ruler.view(self.thread.view()));
        let counted = |recorded: (u64, u64)| match recorded == (was, is) {
            true => Ok(()),
            false => Err(format!("{recorded:?} is recorded instead of {was} and {is} tokens")),
        };
        match change {
            Change::Compacted { tokens_before, tokens_after, account, summary, masks, .. } => {
                counted((*tokens_before, *tokens_after))?;
                ensure!(is <= budget.room(), "{is} tokens in a room of {}", budget.room());
                let gains = match request.trigger {
                    Trigger::Must | Trigger::Overflow => is < was,
                    Trigger::Threshold => is * 10 <= was * 9,
                    // What is requested is done, even if the conversation is too short to gain anything.
                    Trigger::Manual | Trigger::Hook => true,
                };
                ensure!(gains, "from {was} to {is} tokens by {:?}", request.trigger);
                if !masks.is_empty() {
                    self.count("compactions with masks");
                }
                self.check_kept(before, masks, 1)?;
                self.check_protected(before, &summary.text(), &account.left_out)?;
                self.check_quoted(before, &summary.text(), &account.quoted)?;
                let view = self.thread.view();
                let shares = [account.kept, account.masked, account.summarised];
                let entries: u32 = shares.iter().map(|share| share.entries).sum();
                let kept: HashSet<Seq> = view.entries().iter().map(|entry| entry.seq).collect();
                let quoted = [account.quoted.as_slice(), &account.shortened].concat();
                let is_quoted = |seq: &Seq| !kept.contains(seq) && quoted.contains(seq);
                let quoted = before.view().entries().iter().filter(|entry| is_quoted(&entry.seq)).count();
                let all = before.view().entries().len();
                ensure!(
                    entries as usize + quoted == all,
                    "{entries} and {quoted} of {all} are accounted for"
                );
            }
            Change::Pruned { tokens_before, tokens_after, masks, .. } => {
                counted((*tokens_before, *tokens_after))?;
                ensure!(is < was, "from {was} to {is} tokens");
                let (now, then) = (self.thread.view().entries().len(), before.view().entries().len());
                ensure!(now == then, "{now} entries of {then}");
                self.check_kept(before, masks, 0)?;
            }
            other => return Err(format!("{} is no compaction", other.kind())),
        }
        Ok(())
    }

    /// A compacted conversation is not compacted again immediately.
    fn check_is_final(
        &mut self,
        before: &Thread,
        change: &Change,
        budget: &Budget,
        request: &CompactionRequest,
    ) -> Checked {
        let ruler = Ruler::for_model(None);
        let mut budget = budget.clone();
        let views = (ruler.view(before.view()), ruler.view(self.thread.view()));
        budget.used = budget.used.map(|used| ruler.in_context_then(before, used, views));
        if request.trigger != Trigger::Overflow && matches!(change, Change::Compacted { .. }) {
            let request = CompactionRequest { summary: true, ..request.clone() };
            let again = decide(&CompactionInput::new(&ruler, &self.thread, &budget), &request);
            ensure!(matches!(again, CompactionDecision::Nothing(_)), "it is compacted twice: {again:?}");
            self.count("compactions that are final");
        }
        Ok(())
    }

    /// All entries after the first `new` ones are unchanged, masks excepted.
    fn check_kept(&self, before: &Thread, masks: &[Mask], new: usize) -> Checked {
        let masked: HashSet<Seq> = masks.iter().map(|mask| mask.entry).collect();
        let pinned: HashSet<Seq> = before.pinned().iter().map(|part| part.entry).collect();
        let kept = &self.thread.view().entries()[new..];
        let old = before.view().entries();
        ensure!(kept.len() <= old.len(), "{} entries of {}", kept.len(), old.len());
        for (now, then) in kept.iter().rev().zip(old.iter().rev()) {
            ensure!(now.seq == then.seq, "{} is where {} was", now.seq, then.seq);
            if masked.contains(&now.seq) {
                ensure!(!pinned.contains(&now.seq), "{} is pinned and masked", now.seq);
            } else {
                ensure!(Arc::ptr_eq(now, then) || now == then, "{now:?} was {then:?}");
            }
        }
        Ok(())
    }

    fn check_protected(&mut self, before: &Thread, carried: &str, left_out: &[Seq]) -> Checked {
        let kept: HashSet<Seq> = self.thread.view().entries().iter().map(|entry| entry.seq).collect();
        for (part, pinned) in before.pins() {
            ensure!(kept.contains(&part.entry) || carried.contains(&pinned), "the pin {part} is lost");
            self.count("pins");
        }
        let mut newest: BTreeMap<String, &Arc<Entry>> = BTreeMap::new();
        for entry in before.entries() {
            match &entry.change {
                Change::Said { origin: Origin::Instructions { path }, .. } => {
                    newest.insert(path.display().to_string(), entry);
                }
                Change::Said { origin, .. } if origin.is_prompt() => {
                    newest.insert("last request".to_owned(), entry);
                }
                _ => {}
            }
        }
        for (what, entry) in newest {
            let Change::Said { message, origin } = &entry.change else { continue };
            if kept.contains(&entry.seq) || left_out.contains(&entry.seq) || before.is_rewritten(entry.seq) {
                continue;
            }
            let text = message.text();
            // Naming the attachments uses up a part of the bytes that are quoted.
            let whole_below = if message.content.len() > 1 { 256 } else { 512 };
            let may_be_cut = origin.is_prompt() && text.len() > whole_below;
            let head = &text[..text.floor_char_boundary(200.min(text.len()))];
            let is_there = if may_be_cut { carried.contains(head) } else { carried.contains(&text) };
            ensure!(is_there, "{what} is lost: {text}");
            self.count(if origin.is_prompt() { "last requests" } else { "files of instructions" });
        }
        Ok(())
    }

    /// Each message that is reported as quoted verbatim is in the message verbatim.
    fn check_quoted(&mut self, before: &Thread, carried: &str, quoted: &[Seq]) -> Checked {
        for entry in quoted.iter().filter_map(|seq| before.entries().get(seq.0 as usize)) {
            let Change::Said { message, origin: Origin::Person | Origin::Queue { .. } } = &entry.change
            else {
                continue;
            };
            let mut texts = message.content.iter().filter_map(Content::as_text);
            let is_there = before.is_rewritten(entry.seq) || texts.all(|text| carried.contains(text));
            ensure!(is_there, "{} is not quoted word for word: {}", entry.seq, message.text());
            self.count("messages quoted word for word");
        }
        Ok(())
    }

    /// A service accepts a request with the view.
    fn check_requests(&mut self, pick: usize) -> Checked {
        if self.thread.view().ends_with_agent() {
            return Ok(());
        }
        let all = pick.is_multiple_of(ALL_SERVICES_ONE_IN);
        for (at, endpoint) in ENDPOINTS.iter().enumerate() {
            if !all && at != pick % ENDPOINTS.len() {
                continue;
            }
            let (system, tools) = self.thread.frame().ok_or("it is not framed")?;
            let frame = self.thread.frame_entry().ok_or("it is not framed")?.seq;
            let revision = self.thread.view().revision();
            let request = ModelRequest {
                system,
                tools,
                items: self.thread.view().items(),
                thought: ThoughtLevel::Medium,
                max_output: 32_000,
                cache_key: "s",
                basis: Some(Basis { frame, revision }),
            };
            let encoded = Encoding::default().encode(endpoint, &request, Purpose::Reply);
            let body: Value = serde_json::from_slice(&encoded.bytes()).map_err(|error| error.to_string())?;
            let problems = valid::problems(endpoint.wire, &endpoint.model, &body);
            ensure!(problems.is_empty(), "{}: {problems:#?}\n{body}", endpoint.name);
            self.count(&format!("requests by {:?}", endpoint.wire));
        }
        Ok(())
    }
}

/// A model of each wire format.
static ENDPOINTS: LazyLock<Vec<Endpoint>> = LazyLock::new(endpoints);

fn endpoints() -> Vec<Endpoint> {
    let table = [
        ("anthropic/claude-sonnet-5-5", WireFormat::AnthropicMessages),
        ("openai/gpt-6-sol", WireFormat::OpenAiResponses),
        ("openai/gpt-4.1", WireFormat::OpenAiChat),
        ("gemini/gemini-4-argon", WireFormat::Gemini),
    ];
    let env = ["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY"].map(|key| (key.into(), "k".into()));
    let model = |(name, wire): (&str, _)| {
        let endpoint =
            resolve(&ModelName(name.into()), &Settings::default(), &env).expect("all keys are set");
        Endpoint { wire, ..endpoint }
    };
    table.map(model).into()
}
