//! Limits on the cost of model calls, in money and in tokens: per session, day and month.
//!
//! A session passes its budget to the `Http` that it calls models with. Every call, whether for a turn, a summary, a
//! subagent or a hook, is checked before it is sent and charged when it ends. If a call's estimate exceeds a limit, the
//! user is asked; without approval the call fails and nothing is sent.

mod ledger;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::models::{self, PROVIDER_SEARCHES_MAX};
use super::spent::Spent;
use super::{ErrorClass, ProviderError, ProviderEvent};
use epitome_config::{BudgetSettings, Settings};
use epitome_platform::blocking;
use epitome_thread::{ModelName, Thread, Usage};
use ledger::{Ledger, LedgerError};

/// Bytes of a request or a reply per token, for estimates.
pub(crate) const BYTES_PER_TOKEN: usize = 4;

/// Expected tokens of a reply. Most have a few hundred.
const OUTPUT_EXPECTED: u32 = 2_000;

/// How long after a refusal further calls fail without asking the user again.
const REFUSED_FOR: Duration = Duration::from_secs(10);

/// Asks the user whether to continue. The text ends with the question.
pub type AskToGoOn = Box<dyn Fn(String) -> BoxFuture<'static, bool> + Send + Sync>;

/// The budget of a session and its children. Cheap to clone.
#[derive(Clone)]
pub struct CostBudget {
    inner: Arc<BudgetInner>,
}

struct BudgetInner {
    settings: Settings,
    ledger: Ledger,
    ask: AskToGoOn,
    state: Mutex<BudgetState>,
    /// Locked while the user is asked, so that concurrent calls ask only once.
    asking: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct BudgetState {
    /// Spent by the session, including earlier entries of its log.
    spent: Amount,
    /// Estimates of the session's running calls.
    reserved: Amount,
    granted: BudgetGrants,
    refused_at: Option<Instant>,
    /// The last call: the provider's cache probably has its input.
    last: Option<(ModelName, Usage)>,
}

/// A call whose cost is estimated before it is sent.
#[derive(Clone, Copy)]
pub(super) struct PlannedCall<'a> {
    pub model: &'a ModelName,
    /// Bytes of the request's text.
    pub bytes: usize,
    /// Maximum tokens of a request.
    pub window: u64,
    /// Maximum tokens of a reply.
    pub max_output: u32,
    /// Whether the provider may search the web.
    pub searches: bool,
}

/// The cost of calls. `usd` is in US dollars, `tokens` counts uncached input and output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Amount {
    pub usd: f64,
    pub tokens: u64,
}

impl Amount {
    fn plus(self, other: Amount) -> Amount {
        Amount { usd: self.usd + other.usd, tokens: self.tokens.saturating_add(other.tokens) }
    }

    fn minus(self, other: Amount) -> Amount {
        Amount { usd: (self.usd - other.usd).max(0.0), tokens: self.tokens.saturating_sub(other.tokens) }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Period {
    Session,
    Day,
    Month,
}

#[derive(Clone, Copy)]
enum Unit {
    Usd,
    Tokens,
}

const LIMITS: usize = 6;

/// How often the user has extended each limit of a session.
pub type BudgetGrants = [u32; LIMITS];

/// All limits: the key in `[budget]`, the period, the unit and the amount, if it is limited.
fn limits(budget: &BudgetSettings) -> [(&'static str, Period, Unit, Option<f64>); LIMITS] {
    let tokens = |limit: Option<u64>| limit.map(|tokens| tokens as f64);
    [
        ("session_usd", Period::Session, Unit::Usd, budget.session_usd),
        ("day_usd", Period::Day, Unit::Usd, budget.day_usd),
        ("month_usd", Period::Month, Unit::Usd, budget.month_usd),
        ("session_tokens", Period::Session, Unit::Tokens, tokens(budget.session_tokens)),
        ("day_tokens", Period::Day, Unit::Tokens, tokens(budget.day_tokens)),
        ("month_tokens", Period::Month, Unit::Tokens, tokens(budget.month_tokens)),
    ]
}

impl Unit {
    fn of(self, amount: Amount) -> f64 {
        match self {
            Unit::Usd => amount.usd,
            Unit::Tokens => amount.tokens as f64,
        }
    }

    fn shown(self, amount: f64) -> String {
        match self {
            // Amounts below a cent are shown too.
            Unit::Usd if amount < 0.1 => format!("${amount:.4}"),
            Unit::Usd => format!("${amount:.2}"),
            Unit::Tokens => format!("{amount:.0} tokens"),
        }
    }
}

/// Why the estimate of a call is not reserved.
enum NotReserved {
    /// A limit does not allow the call. `at` is its index in `limits`.
    Exceeded { at: usize, text: String },
    /// The ledger of earlier costs can't be read.
    Unreadable(LedgerError),
}

impl CostBudget {
    /// The budget of a session with this log; `None` if nothing is limited. `data` is the directory of the ledger.
    pub fn of_session(
        settings: &Settings,
        thread: &Thread,
        data: &Path,
        ask: AskToGoOn,
    ) -> Option<CostBudget> {
        if limits(&settings.budget).iter().all(|(.., limit)| limit.is_none()) {
            return None;
        }
        let Spent { usage, cost } = Spent::total(settings, thread);
        let spent = Amount { usd: cost.unwrap_or(0.0), tokens: tokens(&usage) };
        let inner = BudgetInner {
            settings: settings.clone(),
            ledger: Ledger::below(data),
            ask,
            state: Mutex::new(BudgetState { spent, ..BudgetState::default() }),
            asking: tokio::sync::Mutex::default(),
        };
        Some(CostBudget { inner: Arc::new(inner) })
    }

    /// Returns the user's permissions to exceed the limits, for a session that is suspended.
    pub fn grants(&self) -> BudgetGrants {
        self.inner.state.lock().granted
    }

    /// Continues with what the user had allowed before the suspension.
    pub fn resume(&self, granted: BudgetGrants) {
        self.inner.state.lock().granted = granted;
    }

    /// Reserves the estimated cost of a call, and asks the user if a limit does not allow it.
    pub(super) async fn admit(&self, call: PlannedCall<'_>) -> Result<Reservation, ProviderError> {
        let estimate = self.estimate(call)?;
        let mut asking = None;
        loop {
            let (at, text) = match self.reserve(call.model, estimate).await {
                Ok(reservation) => return Ok(reservation),
                Err(NotReserved::Unreadable(why)) => return Err(unreadable(&why)),
                Err(NotReserved::Exceeded { at, text }) => (at, text),
            };
            // The user may answer for another call in the meantime.
            if asking.is_none() {
                asking = Some(self.inner.asking.lock().await);
                continue;
            }
            let is_final = self.inner.settings.budget.is_final;
            let refused =
                is_final || self.inner.state.lock().refused_at.is_some_and(|at| at.elapsed() < REFUSED_FOR);
            let question = format!("{text} Go on, and allow the same amount again?");
            if refused || !(self.inner.ask)(question).await {
                if !refused {
                    self.inner.state.lock().refused_at = Some(Instant::now());
                }
                return Err(used_up(&text, is_final));
            }
            let mut state = self.inner.state.lock();
            state.granted[at] = state.granted[at].saturating_add(1);
            state.refused_at = None;
        }
    }

    /// Reserves the estimate of a call if all limits allow it.
    async fn reserve(&self, model: &ModelName, estimate: Amount) -> Result<Reservation, NotReserved> {
        let (budget, model) = (self.clone(), model.clone());
        let reserving = move || budget.try_reserve(model, estimate);
        if self.limits_periods() { blocking::run(reserving).await } else { reserving() }
    }

    /// Estimates the cost of a call: its input, less what the last call left in the provider's cache, and a typical
    /// reply.
    fn estimate(&self, call: PlannedCall<'_>) -> Result<Amount, ProviderError> {
        let input = u64::try_from(call.bytes / BYTES_PER_TOKEN).unwrap_or(u64::MAX).min(call.window);
        let output = u64::from(OUTPUT_EXPECTED.min(call.max_output));
        let cache_read = match &self.inner.state.lock().last {
            Some((model, usage)) if model == call.model && usage.cache_read + usage.cache_write > 0 => {
                usage.input.min(input)
            }
            _ => 0,
        };
        let searches = if call.searches { PROVIDER_SEARCHES_MAX } else { 0 };
        let usage = Usage { input, output, cache_read, searches, ..Usage::default() };
        match self.cost(call.model, &usage) {
            Some(usd) => Ok(Amount { usd, tokens: tokens(&usage) }),
            None if !self.limits_money() => Ok(Amount { usd: 0.0, tokens: tokens(&usage) }),
            None => Err(unknown_price(call.model)),
        }
    }

    fn cost(&self, model: &ModelName, usage: &Usage) -> Option<f64> {
        models::cost(&self.inner.settings, model, usage)
    }

    fn limits_money(&self) -> bool {
        let mut limits = limits(&self.inner.settings.budget).into_iter();
        limits.any(|(_, _, unit, limit)| matches!(unit, Unit::Usd) && limit.is_some())
    }

    fn limits_periods(&self) -> bool {
        let mut limits = limits(&self.inner.settings.budget).into_iter();
        limits.any(|(_, period, _, limit)| period != Period::Session && limit.is_some())
    }

    /// Blocks if days or months are limited.
    fn try_reserve(&self, model: ModelName, estimate: Amount) -> Result<Reservation, NotReserved> {
        // Locked until the estimate is reserved: otherwise several calls could take the same remainder.
        let mut running = self.limits_periods().then(|| self.inner.ledger.running());
        let (day, month) = match &running {
            Some(running) => {
                let (day, month) = self.inner.ledger.totals().map_err(NotReserved::Unreadable)?;
                (day.plus(**running), month.plus(**running))
            }
            None => Default::default(),
        };
        let mut state = self.inner.state.lock();
        for (at, (key, period, unit, limit)) in limits(&self.inner.settings.budget).into_iter().enumerate() {
            let Some(limit) = limit else { continue };
            let spent = match period {
                Period::Session => state.spent.plus(state.reserved),
                Period::Day => day,
                Period::Month => month,
            };
            let (spent, next) = (unit.of(spent), unit.of(estimate));
            let allowed = limit * f64::from(state.granted[at].saturating_add(1));
            if spent + next > allowed {
                let whose = match period {
                    Period::Session => "This session",
                    Period::Day => "Today's sessions",
                    Period::Month => "This month's sessions",
                };
                let text = format!(
                    "{whose} spent {} of {} (budget.{key}); {} are left, and the next call takes about {}.",
                    unit.shown(spent),
                    unit.shown(allowed),
                    unit.shown((allowed - spent).max(0.0)),
                    unit.shown(next)
                );
                return Err(NotReserved::Exceeded { at, text });
            }
        }
        state.reserved = state.reserved.plus(estimate);
        state.refused_at = None;
        if let Some(running) = &mut running {
            **running = running.plus(estimate);
        }
        Ok(Reservation {
            budget: self.clone(),
            model,
            estimate,
            usage: None,
            streamed_bytes: 0,
            is_answered: false,
            is_complete: false,
        })
    }

    fn charge(&self, reservation: &Reservation) {
        let Reservation { model, estimate, is_answered, .. } = reservation;
        let usage = reservation.charged_usage();
        let spent = match &usage {
            Some(usage) => Amount { usd: self.cost(model, usage).unwrap_or(0.0), tokens: tokens(usage) },
            // The provider also charges for a reply that was interrupted before it reported its usage.
            None if *is_answered => *estimate,
            None => Amount::default(),
        };
        if self.limits_periods() {
            // Locked until both are done, so that no other session misses the call or counts it twice.
            let mut running = self.inner.ledger.running();
            if spent != Amount::default()
                && let Err(why) = self.inner.ledger.add(spent)
            {
                tracing::warn!(%why, "the cost of a model call could not be recorded");
            }
            *running = running.minus(*estimate);
        }
        let mut state = self.inner.state.lock();
        state.reserved = state.reserved.minus(*estimate);
        state.spent = state.spent.plus(spent);
        if let Some(usage) = usage {
            state.last = Some((model.clone(), usage));
        }
    }
}

impl fmt::Debug for CostBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CostBudget").field("limits", &self.inner.settings.budget).finish_non_exhaustive()
    }
}

/// The reserved estimate of a running call. Dropping it charges the actual cost.
#[derive(Debug)]
pub(super) struct Reservation {
    budget: CostBudget,
    model: ModelName,
    estimate: Amount,
    usage: Option<Usage>,
    /// Bytes of the reply's texts and calls.
    streamed_bytes: usize,
    is_answered: bool,
    is_complete: bool,
}

impl Reservation {
    /// Records that the service has begun to answer.
    pub(super) fn answered(&mut self) {
        self.is_answered = true;
    }

    /// Records reported usage; later reports replace earlier ones, except for zero fields.
    pub(super) fn used(&mut self, later: &Usage) {
        let usage = self.usage.get_or_insert_default();
        usage.update(later);
    }

    /// Records what arrives of a reply.
    pub(super) fn received(&mut self, event: &ProviderEvent) {
        match event {
            ProviderEvent::Usage(usage) => self.used(usage),
            ProviderEvent::Text(text)
            | ProviderEvent::Thinking(text)
            | ProviderEvent::CallArguments { json: text, .. } => self.streamed_bytes += text.len(),
            ProviderEvent::Stopped(_) => self.is_complete = true,
            ProviderEvent::TextEnded
            | ProviderEvent::ThinkingSealed { .. }
            | ProviderEvent::Searched { .. }
            | ProviderEvent::CallStarted { .. } => {}
        }
    }

    /// The usage to charge. If a reply is interrupted, the last report may be from its start, before most of its output.
    fn charged_usage(&self) -> Option<Usage> {
        let reported = self.usage?;
        let streamed = u64::try_from(self.streamed_bytes / BYTES_PER_TOKEN).unwrap_or(u64::MAX);
        let output = if self.is_complete { reported.output } else { reported.output.max(streamed) };
        Some(Usage { output, ..reported })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let budget = self.budget.clone();
        budget.charge(self);
    }
}

/// Uncached input and output, the same measure as `agents.max_tokens`.
fn tokens(usage: &Usage) -> u64 {
    usage.input.saturating_sub(usage.cache_read).saturating_add(usage.output)
}

fn used_up(text: &str, is_final: bool) -> ProviderError {
    let hint = match is_final {
        true => "Nothing was sent. The policy of this machine limits what may be spent.",
        false => {
            "Nothing was sent. Raise the limit in [budget] of config.toml or with --max-cost, then go on."
        }
    };
    ProviderError::new(ErrorClass::Budget, format!("The budget is used up. {text}")).with_hint(hint)
}

fn unknown_price(model: &ModelName) -> ProviderError {
    let message = format!("The budget limits money, and the price of {} is not known.", model);
    ProviderError::new(ErrorClass::Budget, message).with_hint(format!(
        "Set price = {{ input = …, output = … }} in [models.\"{model}\"] of config.toml (US dollars per million tokens), \
         or limit tokens instead of money: session_tokens in [budget]."
    ))
}

fn unreadable(why: &LedgerError) -> ProviderError {
    let message = format!("What was spent today can't be read, so the budget can't be kept: {why}.");
    ProviderError::new(ErrorClass::Budget, message)
}

#[cfg(test)]
#[path = "budget/tests.rs"]
mod tests;
