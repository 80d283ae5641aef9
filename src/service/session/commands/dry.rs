//! `/compact dry`: what a compaction would do now, its price, and the command that does exactly that. Pure.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::why;
use epitome_compaction::{CompactionDecision, EntryTreatment, Preview, PreviewLine};
use epitome_thread::text::{call_title, context, rounded_dollars, tokens as short};
use epitome_thread::{Change, ModelName, Origin, Seq, Thread, Usage};

/// Entries listed per treatment: the largest ones.
const LARGEST_SHOWN_MAX: usize = 5;

/// Characters of an entry's line.
const LINE_CHARS_MAX: usize = 80;

/// Entries in the JSON form; the rest are counted. A conversation may have 10,000.
const LINES_JSON_MAX: usize = 1_000;

/// In the order in which they are reported.
const FATES: [EntryTreatment; 5] = [
    EntryTreatment::Kept,
    EntryTreatment::Masked,
    EntryTreatment::Quoted,
    EntryTreatment::Shortened,
    EntryTreatment::Summarised,
];

/// Price of a call in US dollars; `None` if the prices are unknown.
pub(super) type PriceLookup<'a> = &'a dyn Fn(&ModelName, &Usage) -> Option<f64>;

/// Figures reported in addition to the preview.
pub(super) struct DryRunFigures<'a> {
    pub thread: &'a Thread,
    pub preview: &'a Preview,
    /// Tokens in context now, and after the compaction: without a model's summary, and with the longest one.
    pub now: u64,
    pub then: (u64, u64),
    /// The window, in tokens.
    pub window: u64,
    /// Tokens of the system text and the tools.
    pub frame: u64,
    pub model: Option<&'a ModelName>,
    pub writer: SummaryWriter<'a>,
    /// The summary model if it is cheaper than the session's own, or the reverse: both prices are shown.
    pub small: Option<ModelName>,
    /// Maximum length of the summary, in tokens.
    pub summary_max: u64,
    pub prices: PriceLookup<'a>,
    /// The command that performs exactly this compaction.
    pub command: String,
}

/// The model that would write the summary.
pub(super) enum SummaryWriter<'a> {
    /// The model of the conversation: the request is the last one plus an instruction, so the cache stays valid.
    Same,
    /// Another model, which reads everything uncached.
    Other(&'a ModelName),
    /// No model: the message has only the tables computed from the log.
    NoModel,
}

/// Dollars if everything that can be cached is, and if nothing is.
#[derive(Clone, Copy, Debug, PartialEq)]
struct DryRunPrice {
    cached: f64,
    fresh: f64,
}

// ── For people ─────────────────────────────────────────────────────────────────────────────────────

pub(super) fn text(facts: &DryRunFigures) -> String {
    let DryRunFigures { preview, .. } = facts;
    if let CompactionDecision::Nothing(why) = &preview.decision {
        return format!("Nothing to compact: {why}.");
    }
    let mut out = "Preview only; nothing changed, and no model was called.\n\n".to_owned();
    for fate in FATES {
        let lines = lines_with(preview, fate);
        if !lines.is_empty() {
            let _ = writeln!(out, "- {}: {}", words(fate), total(&lines));
        }
    }
    if preview.left_out_count > 0 {
        let count = why::counted(preview.left_out_count, "entry");
        let names = match preview.left_out.as_slice() {
            [] => String::new(),
            entries => format!(" ({})", why::named(entries.iter())),
        };
        let _ = writeln!(out, "- left out for lack of room: {count}, only found by recall{names}");
    }
    for fate in FATES {
        largest(facts, fate, &mut out);
    }
    out.push('\n');
    sizes(facts, &mut out);
    if matches!(preview.decision, CompactionDecision::Summarise(_)) {
        let _ = writeln!(out, "- carried over: {}", carried(&preview.carried));
    }
    prices(facts, &mut out);
    let _ = write!(out, "\nIf nothing changes, {} does exactly this ({}).", facts.command, preview.digest);
    out
}

fn words(fate: EntryTreatment) -> &'static str {
    match fate {
        EntryTreatment::Kept => "kept unchanged",
        EntryTreatment::Masked => "shortened",
        EntryTreatment::Quoted => "quoted word for word",
        EntryTreatment::Shortened => "quoted, shortened",
        EntryTreatment::Summarised => "covered by the summary",
    }
}

fn lines_with(preview: &Preview, fate: EntryTreatment) -> Vec<&PreviewLine> {
    preview.lines.iter().filter(|line| line.fate == fate).collect()
}

fn sums(lines: &[&PreviewLine]) -> (u64, u64) {
    (lines.iter().map(|line| line.tokens).sum(), lines.iter().map(|line| line.tokens_after).sum())
}

fn total(lines: &[&PreviewLine]) -> String {
    format!("{}, {}", why::counted(lines.len(), "entry"), change(sums(lines)))
}

/// Token counts; before and after if some but not all stay.
fn change((before, after): (u64, u64)) -> String {
    match after {
        after if after == before || after == 0 => format!("{} tokens", short(before)),
        after => format!("{} → {} tokens", short(before), short(after)),
    }
}

/// Lists the largest entries of a treatment.
fn largest(facts: &DryRunFigures, fate: EntryTreatment, out: &mut String) {
    let mut lines = lines_with(facts.preview, fate);
    if lines.is_empty() {
        return;
    }
    lines.sort_by_key(|line| (std::cmp::Reverse(line.tokens), line.entry));
    let _ = writeln!(out, "\nThe largest entries that would be {}:\n", words(fate));
    for line in lines.iter().take(LARGEST_SHOWN_MAX) {
        let what = described(facts.thread, line.entry);
        let _ = writeln!(out, "- {}: {what} ({})", line.entry, change((line.tokens, line.tokens_after)));
    }
    if lines.len() > LARGEST_SHOWN_MAX {
        let rest: Vec<&PreviewLine> = lines.split_off(LARGEST_SHOWN_MAX);
        let _ = writeln!(out, "- and {}", total(&rest));
    }
}

/// An entry in one line.
fn described(thread: &Thread, seq: Seq) -> String {
    let Some(entry) = thread.entries().get(seq.0 as usize) else { return String::new() };
    let text = match &entry.change {
        Change::Said { message, origin } => {
            let who = match origin {
                Origin::Person | Origin::Queue { .. } | Origin::Recipe { .. } => "you".to_owned(),
                Origin::Hook { hook } => hook.clone(),
                Origin::Context { by } => by.clone(),
                Origin::Instructions { path } => format!("instructions in {}", path.display()),
            };
            format!("{who}: {}", message.text())
        }
        Change::Replied { message, .. } => {
            let calls: Vec<String> = message.calls().map(call_title).collect();
            match (message.text(), calls.is_empty()) {
                (text, true) => format!("reply: {text}"),
                (text, false) if text.trim().is_empty() => format!("calls: {}", calls.join(", ")),
                (text, false) => format!("reply and calls: {text}"),
            }
        }
        Change::ToolFinished { outcome } => match thread.call(&outcome.call) {
            Some(call) => format!("result of {}", call_title(call)),
            None => "result of a call".to_owned(),
        },
        Change::Compacted { .. } => "the summary so far".to_owned(),
        Change::Mutated { by, .. } | Change::Edited { by, .. } => format!("added by {by}"),
        other => other.kind().to_owned(),
    };
    why::line_of(&text, LINE_CHARS_MAX)
}

fn sizes(facts: &DryRunFigures, out: &mut String) {
    let DryRunFigures { now, then: (least, most), window, .. } = *facts;
    let _ = match least == most || matches!(facts.writer, SummaryWriter::NoModel) {
        true => writeln!(out, "- {}", context(now, least, window)),
        false => writeln!(
            out,
            "- {} without a model's summary, up to {} with a summary",
            context(now, least, window),
            short(most)
        ),
    };
}

/// The parts of the compaction message that no model wrote, recognized by their opening tags.
fn carried(text: &str) -> String {
    let count = |tag: &str| text.lines().filter(|line| line.starts_with(tag)).count();
    let named = |count: usize, one: &str, many: &str| match count {
        0 => None,
        1 => Some(format!("1 {one}")),
        count => Some(format!("{count} {many}")),
    };
    let parts = [
        named(count("<instructions path="), "file of instructions", "files of instructions"),
        (count("<goal>") > 0).then(|| "the goal".to_owned()),
        named(count("<said entry="), "message of yours", "messages of yours"),
        named(count("<pinned entry="), "pin", "pins"),
        (count("<last_request>") > 0).then(|| "your last request".to_owned()),
        (count("<carried_over>") > 0).then(|| "the tables computed from the log".to_owned()),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if parts.is_empty() { "nothing".to_owned() } else { parts.join(", ") }
}

fn prices(facts: &DryRunFigures, out: &mut String) {
    let mut prices = Vec::new();
    if !matches!(facts.writer, SummaryWriter::NoModel)
        && matches!(facts.preview.decision, CompactionDecision::Summarise(_))
    {
        let by = match facts.writer {
            SummaryWriter::Other(name) => format!(" by {name}"),
            SummaryWriter::Same | SummaryWriter::NoModel => String::new(),
        };
        prices.push((format!("the summary{by}:"), summary_price(facts, &facts.writer)));
        if let Some(small) = &facts.small {
            let (name, other) = match (&facts.writer, facts.model) {
                (SummaryWriter::Other(_), Some(main)) => (main, SummaryWriter::Same),
                _ => (small, SummaryWriter::Other(small)),
            };
            prices.push((format!("by {name} it would cost"), summary_price(facts, &other)));
        }
    }
    let (now, then) = next_prices(facts);
    prices.push(("the next request as it is:".to_owned(), now));
    prices.push(("the next request after compacting:".to_owned(), then));
    if prices.iter().all(|(_, price)| price.is_none()) {
        out.push_str("- prices unknown\n");
        return;
    }
    for (what, price) in prices {
        let _ = writeln!(out, "- {what} {}", dollars(price));
    }
}

fn dollars(price: Option<DryRunPrice>) -> String {
    match price {
        Some(DryRunPrice { cached, fresh }) if (cached - fresh).abs() < f64::EPSILON => {
            format!("${fresh:.4}")
        }
        Some(DryRunPrice { cached, fresh }) => format!("${cached:.4} with the cache, ${fresh:.4} without"),
        None => "price unknown".to_owned(),
    }
}

/// The price from which a request is worth an offer, in US dollars.
const OFFER_DOLLARS_MIN: f64 = 0.10;

/// What a summary and the request after it may cost, compared with the request without them. All further requests are shorter
/// too: in 63 recorded sessions with 191 breaks, this rule saved 20 % of the money, and a half instead of it 2 %.
const OFFER_PART_MAX: f64 = 0.9;

/// Offers a compaction while the provider still has the conversation in its cache; `None` if prices are unknown, or if it would save
/// less than a tenth of what the next request costs after a break.
pub(super) fn offer(facts: &DryRunFigures) -> Option<String> {
    let (Some(now), Some(then)) = next_prices(facts) else { return None };
    let summary = match &facts.writer {
        SummaryWriter::NoModel => 0.0,
        writer => summary_price(facts, writer)?.cached,
    };
    let is_summarized = matches!(facts.preview.decision, CompactionDecision::Summarise(_));
    let pays = now.fresh >= OFFER_DOLLARS_MIN && then.fresh + summary <= now.fresh * OFFER_PART_MAX;
    (is_summarized && pays).then(|| {
        format!(
            "The provider will soon forget this conversation. The next request would then cost ${:.2}; after a compaction now, \
             for ${summary:.2}, it would cost ${:.2}.",
            now.fresh, then.fresh
        )
    })
}

// ── Prices ─────────────────────────────────────────────────────────────────────────────────────────

/// The price of the call that writes the summary, at its maximum length.
fn summary_price(facts: &DryRunFigures, writer: &SummaryWriter) -> Option<DryRunPrice> {
    let main = facts.model?;
    let fresh = Usage { input: facts.now, output: facts.summary_max, ..Usage::default() };
    match writer {
        SummaryWriter::NoModel => None,
        SummaryWriter::Other(name) => {
            let fresh = (facts.prices)(name, &fresh)?;
            Some(DryRunPrice { cached: fresh, fresh })
        }
        SummaryWriter::Same => price(facts, main, fresh, facts.now),
    }
}

/// Prices of the next request's input, without and with the compaction. After a changed history, only the
/// system text and the tools can come from the cache.
fn next_prices(facts: &DryRunFigures) -> (Option<DryRunPrice>, Option<DryRunPrice>) {
    let Some(model) = facts.model else { return (None, None) };
    let input = |tokens| Usage { input: tokens, ..Usage::default() };
    let now = price(facts, model, input(facts.now), facts.now);
    (now, price(facts, model, input(facts.then.1), facts.frame))
}

fn price(facts: &DryRunFigures, model: &ModelName, fresh: Usage, cached: u64) -> Option<DryRunPrice> {
    let with_cache = Usage { cache_read: cached.min(fresh.input), ..fresh };
    Some(DryRunPrice { cached: (facts.prices)(model, &with_cache)?, fresh: (facts.prices)(model, &fresh)? })
}

// ── For machines ───────────────────────────────────────────────────────────────────────────────────

pub(super) fn json(facts: &DryRunFigures) -> Value {
    let DryRunFigures { preview, .. } = facts;
    let decision = match &preview.decision {
        CompactionDecision::Nothing(why) => {
            return json!({ "status": "nothing_to_do", "reason": why.to_string() });
        }
        CompactionDecision::Prune(_) => "prune",
        CompactionDecision::Summarise(_) => "summarise",
    };
    let mut report = json!({
        "status": "dry_run", "decision": decision, "digest": preview.digest, "command": facts.command,
        "pre_tokens": facts.now, "post_tokens": facts.then.0, "post_tokens_max": facts.then.1,
    });
    for fate in FATES {
        let lines = lines_with(preview, fate);
        let (tokens, tokens_after) = sums(&lines);
        report[id(fate)] = json!({ "entries": lines.len(), "tokens": tokens, "tokens_after": tokens_after });
    }
    report["left_out"] = json!(preview.left_out_count);
    let line = |line: &PreviewLine| {
        json!({
            "entry": line.entry.to_string(), "fate": id(line.fate), "tokens": line.tokens,
            "tokens_after": line.tokens_after,
        })
    };
    report["entries"] = preview.lines.iter().take(LINES_JSON_MAX).map(line).collect();
    report["entries_left_out"] = json!(preview.lines.len().saturating_sub(LINES_JSON_MAX));
    let (now, then) = next_prices(facts);
    let price = |price: Option<DryRunPrice>| {
        price.map(
            |price| json!({ "cached": rounded_dollars(price.cached), "fresh": rounded_dollars(price.fresh) }),
        )
    };
    report["dollars"] = json!({ "summary": price(summary_price(facts, &facts.writer)), "next": price(now), "next_then": price(then) });
    report
}

fn id(fate: EntryTreatment) -> &'static str {
    match fate {
        EntryTreatment::Kept => "kept",
        EntryTreatment::Masked => "masked",
        EntryTreatment::Quoted => "quoted",
        EntryTreatment::Shortened => "shortened",
        EntryTreatment::Summarised => "summarised",
    }
}

#[cfg(test)]
#[path = "dry_tests.rs"]
mod tests;
