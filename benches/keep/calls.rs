//! What the calls of a whole conversation cost under different managements: each request is written by the real
//! encoder, and what of it is a byte prefix of the request before is read from the provider's cache.

use anyhow::{Context, Result};
use epitome::compaction::ledger::Ledger;
use epitome::compaction::pace::{Fullness, Pace};
use epitome::compaction::{Budget, Decision, Keep, Wish, Written, compacted, decide, due, pruned};
use epitome::config::{Compaction, Prune, Settings, WireFormat};
use epitome::provider::endpoint::{Endpoint, resolve};
use epitome::provider::models::price;
use epitome::provider::wire::Purpose;
use epitome::provider::wire::encoding::Encoding;
use epitome::provider::{Basis, Request};
use epitome::thread::{Change, Mask, ModelName, Seq, ThoughtLevel, Thread, Trigger, ViewItem};
use epitome::tokens::Ruler;

use crate::bench::judge::words_of;
use crate::bench::session::{MODEL, Session, append, follow, opened, ruler};

/// The window of the simulated model: a compaction is due at 100,000 tokens.
pub const WINDOW: u64 = 125_000;
const THRESHOLD: f64 = 0.8;
const RESERVE: u64 = 8_192;

/// How a conversation is kept from growing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Management {
    Nothing,
    /// The newest of it, as much as the threshold allows, anew at each call.
    SlidingTail,
    /// Old outcomes are cut at each call.
    MaskingEachCall,
    /// Cuts in batches and compactions at the threshold, without a model.
    Epitome,
}

impl Management {
    pub const ALL: [Management; 4] =
        [Management::Nothing, Management::SlidingTail, Management::MaskingEachCall, Management::Epitome];

    pub fn title(self) -> &'static str {
        match self {
            Management::Nothing => "no management",
            Management::SlidingTail => "sliding tail",
            Management::MaskingEachCall => "masking at each call",
            Management::Epitome => "Epitome, no model's summary",
        }
    }
}

/// The calls of some conversations under one management.
#[derive(Clone, Debug, Default)]
pub struct Calls {
    pub calls: u64,
    /// Calls whose request does not begin with all of the one before.
    pub breaks: u64,
    pub bytes: u64,
    pub cached: u64,
    pub longest: u64,
    pub dollars: f64,
    pub compactions: u64,
    pub prunes: u64,
}

impl Calls {
    pub fn cached_percent(&self) -> f64 {
        self.cached as f64 * 100.0 / self.bytes.max(1) as f64
    }

    pub fn breaks_per_hundred(&self) -> f64 {
        self.breaks as f64 * 100.0 / self.calls.max(1) as f64
    }
}

pub fn simulate(sessions: &[Session], management: Management) -> Result<Calls> {
    let endpoint = endpoint()?;
    let mut calls = Calls::default();
    for session in sessions {
        one(&endpoint, session, management, &mut calls)?;
    }
    Ok(calls)
}

/// An endpoint whose requests bear no marks for caches: they would be at another place in each request.
fn endpoint() -> Result<Endpoint> {
    let environment = [("EPITOME_LOCAL_URL".into(), "http://127.0.0.1:1".into())];
    let endpoint = resolve(&ModelName("local/any".to_owned()), &Settings::default(), &environment)?;
    anyhow::ensure!(endpoint.wire == WireFormat::OpenAiChat, "a local model is spoken to otherwise");
    Ok(endpoint)
}

fn one(endpoint: &Endpoint, session: &Session, management: Management, calls: &mut Calls) -> Result<()> {
    let ruler = ruler();
    let price =
        price(&Settings::default(), &ModelName(MODEL.to_owned())).context("the model has no price")?;
    let bytes: usize =
        session.steps.iter().filter_map(|step| words_of(&step.change)).map(|words| words.len()).sum();
    let tokens_per_byte = session.tokens as f64 / bytes as f64;
    let mut thread = opened();
    let mut keeper = Keeper { ruler: ruler.clone(), ledger: Ledger::default(), pace: Pace::default() };
    let mut encoding = Encoding::default();
    let mut before: Vec<u8> = Vec::new();
    let mut masked = 0;
    for step in &session.steps {
        if let Change::Replied { message, .. } = &step.change {
            match management {
                Management::Nothing | Management::SlidingTail => {}
                Management::MaskingEachCall => mask_old(&mut thread, &mut masked),
                Management::Epitome => keeper.keep(&mut thread, calls)?,
            }
            let request = request(&ruler, &thread, management);
            let body = encoding.encode(endpoint, &request, Purpose::Reply).bytes();
            let common = common_prefix(&before, &body);
            let grew = common + common_suffix(&before[common..], &body[common..]) >= before.len();
            calls.calls += 1;
            calls.breaks += u64::from(!grew);
            calls.bytes += body.len() as u64;
            calls.cached += common as u64;
            calls.longest = calls.longest.max(body.len() as u64);
            let tokens = |bytes: usize| bytes as f64 * tokens_per_byte;
            let reply = ruler.message(message) as f64;
            calls.dollars += (tokens(common) * price.cache_read
                + tokens(body.len() - common) * price.cache_write
                + reply * price.output)
                / 1e6;
            before = body;
        }
        follow(&mut thread, std::slice::from_ref(step));
    }
    Ok(())
}

/// The session's part in this: when, and what then.
struct Keeper {
    ruler: Ruler,
    ledger: Ledger,
    pace: Pace,
}

impl Keeper {
    fn keep(&mut self, thread: &mut Thread, calls: &mut Calls) -> Result<()> {
        self.ledger.follow(thread);
        let settings = Compaction::default();
        let budget = Budget::of(&settings, WINDOW, RESERVE, self.ruler.frame_of(thread));
        if let Some(masks) = due(&self.ruler, thread, &budget) {
            self.cut(thread, masks, calls);
        }
        let used = self.ruler.view(thread.view()) + self.ruler.frame_of(thread);
        if !self.pace.is_due(&self.ruler, thread, Fullness { used, size: WINDOW, at: THRESHOLD }) {
            return Ok(());
        }
        let keep = Keep::Ratio(settings.preserve_ratio);
        let wish = Wish { trigger: Trigger::Threshold, keep, focus: None, summary: false };
        match decide(&self.ruler, thread, &budget, &wish) {
            Decision::Nothing(_) => {
                self.pace.gained_nothing(thread);
            }
            Decision::Prune(masks) => {
                self.cut(thread, masks, calls);
            }
            Decision::Summarise(plan) => {
                let id = thread.next_message();
                let none = Written::default();
                match compacted(&self.ruler, thread, &self.ledger, &budget, &plan, id, none) {
                    Ok(change) => {
                        append(thread, change);
                        self.pace.gained();
                        calls.compactions += 1;
                    }
                    Err(_) => {
                        self.pace.gained_nothing(thread);
                    }
                }
            }
        }
        Ok(())
    }
}

impl Keeper {
    fn cut(&self, thread: &mut Thread, masks: Vec<Mask>, calls: &mut Calls) {
        let change = pruned(&self.ruler, thread, masks, Trigger::Threshold);
        append(thread, change);
        calls.prunes += 1;
    }
}

/// Cuts each outcome that has just become an old one.
fn mask_old(thread: &mut Thread, done: &mut usize) {
    let rule = Prune::default();
    let view = thread.view();
    let old = view.newest(rule.keep_recent);
    let masks: Vec<Mask> = view.entries()[(*done).min(old)..old]
        .iter()
        .filter_map(|entry| match &entry.change {
            Change::ToolFinished { outcome } => {
                let text = outcome.model_text();
                let head = &text[..text.floor_char_boundary(rule.keep_chars)];
                let mask = Mask { entry: entry.seq, text: format!("[{}: cut] {head}", entry.seq) };
                (text.len() > rule.min_chars).then_some(mask)
            }
            _ => None,
        })
        .collect();
    *done = old;
    if !masks.is_empty() {
        append(thread, Change::Pruned { masks, trigger: Trigger::Hook, tokens_before: 0, tokens_after: 0 , window: None});
    }
}

fn request<'a>(ruler: &Ruler, thread: &'a Thread, management: Management) -> Request<'a> {
    let (system, tools) = thread.frame().expect("a thread of the bench has one");
    let mut items = thread.view().items();
    let basis = match management {
        Management::SlidingTail => {
            let mut taken = 0;
            let mut from = items.len();
            for (at, item) in items.iter().enumerate().rev() {
                taken += match item {
                    ViewItem::User(message) | ViewItem::Agent(message, _) => ruler.message(message),
                    ViewItem::Outcomes(outcomes) => {
                        outcomes.iter().map(|outcome| ruler.text(&outcome.model_text())).sum()
                    }
                };
                if taken as f64 > WINDOW as f64 * THRESHOLD && from < items.len() {
                    break;
                }
                if matches!(item, ViewItem::User(_)) {
                    from = at;
                }
            }
            items.drain(..from);
            None
        }
        Management::Nothing | Management::MaskingEachCall | Management::Epitome => {
            Some(Basis { frame: Seq(1), revision: thread.view().revision() })
        }
    };
    Request { system, tools, items, thought: ThoughtLevel::Off, max_output: 4_096, cache_key: "bench", basis }
}

fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    const BLOCK: usize = 4_096;
    let blocks = a.chunks_exact(BLOCK).zip(b.chunks_exact(BLOCK)).take_while(|(a, b)| a == b).count() * BLOCK;
    blocks + a[blocks..].iter().zip(&b[blocks..]).take_while(|(a, b)| a == b).count()
}

fn common_suffix(a: &[u8], b: &[u8]) -> usize {
    a.iter().rev().zip(b.iter().rev()).take_while(|(a, b)| a == b).count()
}
