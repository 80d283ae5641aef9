//! Tests simulate calls by reserving and dropping; nothing is sent.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::FutureExt as _;

use super::*;
use crate::ReplyStop;
use crate::endpoint::test_endpoint;
use epitome_thread::{Change, Entry, FORMAT_VERSION, Seq, SessionId};

/// A budget whose user gives this answer, and the number of questions so far.
fn budget(data: &Path, limits: BudgetSettings, agrees: bool) -> (CostBudget, Arc<AtomicUsize>) {
    let settings = Settings { budget: limits, ..Settings::default() };
    let opened = Change::Opened { format: FORMAT_VERSION, session: SessionId("s".into()), cwd: "/".into() };
    let thread = Thread::replay([Arc::new(Entry { seq: Seq(0), at: 0, change: opened })]).expect("a thread");
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let ask: AskToGoOn = Box::new(move |text| {
        assert!(text.contains("left"), "{text}");
        count.fetch_add(1, Ordering::Relaxed);
        async move { agrees }.boxed()
    });
    (CostBudget::of_session(&settings, &thread, data, ask).expect("something is limited"), asked)
}

/// A call that takes a million tokens of input: $2 with this model.
async fn call(budget: &CostBudget) -> Result<(), ProviderError> {
    let endpoint = test_endpoint("anthropic/claude-sonnet-5-5");
    let mut reservation = budget.admit(&endpoint, 40_000).await?;
    reservation.answered();
    reservation.used(&Usage { input: 1_000_000, ..Usage::default() });
    reservation.used(&Usage { output: 0, ..Usage::default() });
    Ok(())
}

#[tokio::test]
async fn a_call_is_refused_when_its_estimate_exceeds_what_is_left() {
    let data = tempfile::tempdir().expect("a directory");
    let limits = BudgetSettings { session_usd: Some(3.0), ..BudgetSettings::default() };
    let (budget, asked) = budget(data.path(), limits, false);
    call(&budget).await.expect("$3 are left");
    call(&budget).await.expect("$1 is left, which is more than the estimate");
    let error = call(&budget).await.expect_err("more than all was spent");
    assert_eq!(error.class, ErrorClass::Budget);
    assert!(error.message.contains("$4.00 of $3.00 (budget.session_usd)"), "{}", error.message);
    // A further call is refused without another question.
    call(&budget).await.expect_err("it is refused too");
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    assert!(!data.path().join("spent.json").exists(), "only limits of days and months are recorded");
}

/// Regression: the time in which the user is not asked again was counted from the first refusal of a session. After a
/// later one, each of several agents asked.
#[tokio::test]
async fn after_each_refusal_further_calls_are_refused_without_a_question() {
    let data = tempfile::tempdir().expect("a directory");
    let limits = BudgetSettings { session_usd: Some(1.0), ..BudgetSettings::default() };
    let (budget, asked) = budget(data.path(), limits, false);
    call(&budget).await.expect("$1 is left, which is more than the estimate");
    for times in 1..=2 {
        for _ in 0..2 {
            call(&budget).await.expect_err("all was spent");
            assert_eq!(asked.load(Ordering::Relaxed), times);
        }
        budget.inner.state.lock().refused_at = Instant::now().checked_sub(REFUSED_FOR);
    }
}

#[tokio::test]
async fn a_user_who_agrees_allows_the_same_amount_again() {
    let data = tempfile::tempdir().expect("a directory");
    let limits = BudgetSettings { session_usd: Some(3.0), ..BudgetSettings::default() };
    let (budget, asked) = budget(data.path(), limits, true);
    for _ in 0..4 {
        call(&budget).await.expect("the user agrees");
    }
    assert_eq!(asked.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn days_and_months_count_all_sessions() {
    let data = tempfile::tempdir().expect("a directory");
    for limits in [
        BudgetSettings { day_usd: Some(2.5), ..BudgetSettings::default() },
        BudgetSettings { month_tokens: Some(2_500_000), ..BudgetSettings::default() },
    ] {
        let (first, _) = budget(data.path(), limits.clone(), false);
        let (second, _) = budget(data.path(), limits, false);
        call(&first).await.expect("nothing was spent before, or only a million tokens");
        if second.inner.settings.budget.day_usd.is_some() {
            call(&second).await.expect("$0.50 are left");
            call(&second).await.expect_err("$4 were spent");
            std::fs::write(data.path().join("spent.json"), "{}").expect("a new day");
        } else {
            call(&second).await.expect("1,500,000 tokens are left");
            call(&second).await.expect("500,000 are left");
            call(&first).await.expect_err("three million were spent");
        }
    }
}

/// Regression: concurrent calls could each spend the same remainder.
#[tokio::test]
async fn running_calls_reserve_their_estimate() {
    let data = tempfile::tempdir().expect("a directory");
    let limits = BudgetSettings { session_usd: Some(2.5), ..BudgetSettings::default() };
    let (budget, _) = budget(data.path(), limits, false);
    let endpoint = test_endpoint("anthropic/claude-sonnet-5-5");
    // 900,000 tokens.
    let first = budget.admit(&endpoint, 3_600_000).await.expect("$2.50 are left");
    budget.admit(&endpoint, 3_600_000).await.expect_err("the first call takes $1.80 of it");
    drop(first);
    tokio::time::pause();
    budget.inner.state.lock().refused_at = None;
    budget.admit(&endpoint, 3_600_000).await.expect("the first call was never sent, so it cost nothing");
}

/// Regression test: the limit of a day was checked against finished calls and the session's own running ones, so two
/// sessions could each spend the same remainder. While a call was charged, it was briefly in neither.
#[tokio::test]
async fn running_calls_of_other_sessions_count_for_the_day() {
    let data = tempfile::tempdir().expect("a directory");
    let limits = BudgetSettings { day_usd: Some(2.5), ..BudgetSettings::default() };
    let (first, _) = budget(data.path(), limits.clone(), false);
    let (second, _) = budget(data.path(), limits, false);
    let endpoint = test_endpoint("anthropic/claude-sonnet-5-5");
    let running = first.admit(&endpoint, 3_600_000).await.expect("$2.50 are left");
    let error =
        second.admit(&endpoint, 3_600_000).await.expect_err("the other session's call takes $1.80 of it");
    assert!(error.message.contains("of $2.50 (budget.day_usd)"), "{}", error.message);
    drop(running);
    second.inner.state.lock().refused_at = None;
    second.admit(&endpoint, 3_600_000).await.expect("the first call was never sent, so it cost nothing");
}

/// Regression test: Anthropic reports usage at the start of a reply, with hardly any output, and again at its end. A
/// reply that was cancelled in between cost almost nothing, so a session could exceed its budget many times.
#[tokio::test]
async fn the_output_of_an_interrupted_reply_is_estimated_from_what_arrived() {
    let data = tempfile::tempdir().expect("a directory");
    let limits = BudgetSettings { session_tokens: Some(1_000_000), ..BudgetSettings::default() };
    let (budget, _) = budget(data.path(), limits, false);
    let endpoint = test_endpoint("anthropic/claude-sonnet-5-5");
    let reported = |output| ProviderEvent::Usage(Usage { input: 1_000, output, ..Usage::default() });
    let written = [
        ProviderEvent::Thinking("x".repeat(20_000)),
        ProviderEvent::Text("x".repeat(16_000)),
        ProviderEvent::CallArguments { index: 0, json: "x".repeat(4_000) },
    ];
    for (end, total) in [
        (vec![], 11_000),
        // A complete reply costs what the provider reports.
        (vec![reported(8_000), ProviderEvent::Stopped(ReplyStop::Finished)], 11_000 + 9_000),
    ] {
        let mut reservation = budget.admit(&endpoint, 4_000).await.expect("it is allowed");
        reservation.answered();
        let events = [reported(1)].into_iter().chain(written.clone()).chain(end);
        events.for_each(|event| reservation.received(&event));
        drop(reservation);
        assert_eq!(budget.inner.state.lock().spent.tokens, total);
    }
}

#[tokio::test]
async fn money_can_only_be_limited_where_prices_are_known() {
    let data = tempfile::tempdir().expect("a directory");
    let mut endpoint = test_endpoint("anthropic/claude-sonnet-5-5");
    endpoint.name = ModelName("somewhere/unheard-of".into());
    let (money, _) =
        budget(data.path(), BudgetSettings { day_usd: Some(1.0), ..BudgetSettings::default() }, true);
    let error = money.admit(&endpoint, 400).await.expect_err("its price is not known");
    assert!(error.hint.is_some_and(|hint| hint.contains("[models.\"somewhere/unheard-of\"]")));
    let limits = BudgetSettings { session_tokens: Some(3_000), ..BudgetSettings::default() };
    let (tokens, _) = budget(data.path(), limits, false);
    tokens.admit(&endpoint, 400).await.expect("tokens are known");
}

#[tokio::test]
async fn a_damaged_record_of_the_day_stops_calls() {
    let data = tempfile::tempdir().expect("a directory");
    std::fs::write(data.path().join("spent.json"), "{").expect("a file");
    let (budget, _) =
        budget(data.path(), BudgetSettings { day_usd: Some(9.0), ..BudgetSettings::default() }, true);
    let error = call(&budget).await.expect_err("what was spent is not known");
    assert!(error.message.contains("delete it to start over"), "{}", error.message);
}
