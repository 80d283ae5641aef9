//! The report of a dry run for a small conversation.

use super::super::why::tests::long_story;
use super::*;
use epitome_compaction::CompactionPlan;
use epitome_compaction::CompactionRefusal;
use epitome_provider::models;
use epitome_thread::Trigger;

fn line(entry: u64, fate: EntryTreatment, tokens: u64, tokens_after: u64) -> PreviewLine {
    PreviewLine { entry: Seq(entry), fate, tokens, tokens_after }
}

fn preview(decision: CompactionDecision) -> Preview {
    Preview {
        digest: "0123456789ab".to_owned(),
        decision,
        lines: vec![
            line(7, EntryTreatment::Summarised, 20_000, 0),
            line(9, EntryTreatment::Quoted, 300, 0),
            line(15, EntryTreatment::Kept, 500, 500),
        ],
        tokens_before: 20_800,
        tokens_after: (1_500, 5_500),
        carried: "Compacted.\n\n<goal>\nShip\n</goal>\n<pinned entry=\"e2\">\nSorted.\n</pinned>\n<pinned \
                  entry=\"e3\">\nx\n</pinned>\n\n<last_request>\nAnd the folders.\n</last_request>"
            .to_owned(),
        left_out: vec![Seq(5)],
        left_out_count: 3,
    }
}

fn summarise() -> CompactionDecision {
    CompactionDecision::Summarise(CompactionPlan {
        trigger: Trigger::Manual,
        focus: None,
        revision: Seq(12),
        through: Seq(9),
        masks: Vec::new(),
    })
}

/// Per million tokens: $10 for input, $1 for cached input, $20 for output.
fn priced(_: &ModelName, usage: &Usage) -> Option<f64> {
    let fresh = usage.input - usage.cache_read;
    Some((fresh as f64 * 10.0 + usage.cache_read as f64 + usage.output as f64 * 20.0) / 1e6)
}

fn report(
    decision: CompactionDecision,
    writer: SummaryWriter<'_>,
    prices: PriceLookup<'_>,
) -> (String, Value) {
    with_figures(decision, writer, prices, |facts| (text(facts), json(facts)))
}

fn with_figures<T>(
    decision: CompactionDecision,
    writer: SummaryWriter<'_>,
    prices: PriceLookup<'_>,
    report: impl FnOnce(&DryRunFigures<'_>) -> T,
) -> T {
    let (thread, preview) = (long_story(), preview(decision));
    let model = ModelName("anthropic/claude".into());
    let small = match &writer {
        SummaryWriter::Other(name) => Some((*name).clone()),
        SummaryWriter::Same | SummaryWriter::NoModel => None,
    };
    report(&DryRunFigures {
        thread: &thread,
        preview: &preview,
        now: 23_000,
        then: (2_700, 6_700),
        window: 100_000,
        frame: 1_200,
        model: Some(&model),
        writer,
        small,
        summary_max: 4_000,
        prices,
        command: "/compact above e15".to_owned(),
    })
}

#[test]
fn a_compaction_before_a_break_is_offered_if_it_saves_a_tenth_of_the_next_request() {
    let small = ModelName("local/small".into());
    let offer_of = |decision, writer, prices: PriceLookup<'_>| with_figures(decision, writer, prices, offer);
    // The next request costs $0.23, and $0.067 after a compaction; the summary by the same model $0.103 from the cache.
    let text = offer_of(summarise(), SummaryWriter::NoModel, &priced).expect("it is free");
    assert!(
        text.contains("then cost $0.23; after a compaction now, for $0.00, it would cost $0.07"),
        "{text}"
    );
    let dear = |_: &ModelName, usage: &Usage| Some(usage.input as f64 / 1e6);
    for (offered, writer, prices) in [
        (true, SummaryWriter::Same, &priced as PriceLookup<'_>),
        // It reads everything at the full price.
        (false, SummaryWriter::Other(&small), &priced),
        // Two cents are not worth an interruption, and unknown prices none.
        (false, SummaryWriter::NoModel, &dear),
        (false, SummaryWriter::NoModel, &|_, _| None),
    ] {
        assert_eq!(offer_of(summarise(), writer, prices).is_some(), offered);
    }
    let nothing = CompactionDecision::Nothing(CompactionRefusal::NothingLeft);
    assert_eq!(offer_of(nothing, SummaryWriter::NoModel, &priced), None);
}

#[test]
fn a_dry_run_shows_the_new_view_its_cost_and_the_command() {
    let (text, json) = report(summarise(), SummaryWriter::Same, &priced);
    assert_eq!(
        text,
        "Preview only; nothing changed, and no model was called.\n\
         \n\
         - kept unchanged: 1 entry, 500 tokens\n\
         - quoted word for word: 1 entry, 300 tokens\n\
         - covered by the summary: 1 entry, 20.0k tokens\n\
         - left out for lack of room: 3 entries, only found by recall (e5)\n\
         \n\
         The largest entries that would be kept unchanged:\n\
         \n\
         - e15: shrink: A hook's context (500 tokens)\n\
         \n\
         The largest entries that would be quoted word for word:\n\
         \n\
         - e9: you: And the folders. (300 tokens)\n\
         \n\
         The largest entries that would be covered by the summary:\n\
         \n\
         - e7: the summary so far (20.0k tokens)\n\
         \n\
         - context 23.0k → 2.7k of 100k without a model's summary, up to 6.7k with a summary\n\
         - carried over: the goal, 2 pins, your last request\n\
         - the summary: $0.1030 with the cache, $0.3100 without\n\
         - the next request as it is: $0.0230 with the cache, $0.2300 without\n\
         - the next request after compacting: $0.0562 with the cache, $0.0670 without\n\
         \n\
         If nothing changes, /compact above e15 does exactly this (0123456789ab)."
    );
    assert_eq!((&json["status"], &json["digest"]), (&json!("dry_run"), &json!("0123456789ab")));
    assert_eq!((&json["pre_tokens"], &json["post_tokens"]), (&json!(23_000), &json!(2_700)));
    assert_eq!(json["summarised"], json!({ "entries": 1, "tokens": 20_000, "tokens_after": 0 }));
    assert_eq!(json["left_out"], json!(3));
    assert_eq!(
        json["entries"][2],
        json!({ "entry": "e15", "fate": "kept", "tokens": 500, "tokens_after": 500 })
    );
    assert_eq!(json["dollars"]["summary"]["fresh"], json!(0.31));
}

#[test]
fn another_model_reads_everything_uncached_and_no_model_costs_nothing() {
    let small = ModelName("local/small".into());
    let (text, _) = report(summarise(), SummaryWriter::Other(&small), &priced);
    assert!(text.contains("- the summary by local/small: $0.3100\n"), "{text}");
    // The price of the alternative.
    assert!(
        text.contains("- by anthropic/claude it would cost $0.1030 with the cache, $0.3100 without\n"),
        "{text}"
    );
    let (text, json) = report(summarise(), SummaryWriter::NoModel, &priced);
    assert!(!text.contains("- the summary: ") && json["dollars"]["summary"].is_null(), "{text}");
}

#[test]
fn a_price_that_is_not_known_is_not_made_up() {
    let settings = epitome_config::Settings::default();
    let unknown = |_: &ModelName, usage: &Usage| models::cost(&settings, &ModelName("local/x".into()), usage);
    let (text, json) = report(summarise(), SummaryWriter::Same, &unknown);
    assert_eq!(text.matches("unknown").count(), 1, "{text}");
    assert_eq!(json["dollars"], json!({ "summary": null, "next": null, "next_then": null }));
}

#[test]
fn what_gains_nothing_says_so() {
    let (text, json) =
        report(CompactionDecision::Nothing(CompactionRefusal::NoGain), SummaryWriter::Same, &priced);
    let why = CompactionRefusal::NoGain.to_string();
    assert_eq!(text, format!("Nothing to compact: {why}."));
    assert_eq!(json, json!({ "status": "nothing_to_do", "reason": why }));
}

#[test]
fn what_is_cut_without_a_summary_asks_no_model() {
    let (text, json) = report(CompactionDecision::Prune(Vec::new()), SummaryWriter::Same, &priced);
    assert!(!text.contains("- the summary: ") && !text.contains("carried"), "{text}");
    assert_eq!(json["decision"], "prune");
}
