//! A session's hooks: those that were discovered, their runner, and their state.

pub(super) mod calls;
mod consent;
mod late;

use super::refusal::HookRefusal;
use std::sync::Arc;

use consent::HookConsent;
pub(super) use consent::{MayRun, RecipeConsent, UntrustedItem};

use super::called::StartedCallback;
use super::work::PendingResolution;
use calls::{ServiceCall, ServiceCalls};
use epitome_hooks::aside::LateNews;
use epitome_hooks::chain::{self, ChainLink};
use epitome_hooks::discover::FoundHooks;
use epitome_hooks::event::HookEvent;
use epitome_hooks::handlers::{self, DeclaredHandler, Fired};
use epitome_hooks::hook::{Hook, HookOrigin};
use epitome_hooks::hook_context::HookContext;
use epitome_hooks::run::Runner;
use epitome_hooks::trust::{TrustSubject, TrustVerdict};
use epitome_recipe::watch::Registration;
use late::LateHooks;

/// Maximum number of model calls and recipes that resident hooks may start in one turn.
const PAID_CALLS_MAX: u32 = 8;

/// Times that hooks may ask a model in one turn whether something is well.
const JUDGEMENTS_MAX: u32 = 100;

/// The hooks of one session.
#[derive(Default)]
pub struct HookHost {
    found: Arc<FoundHooks>,
    /// Whether the hooks were searched for.
    is_read: bool,
    watch: Option<Arc<Registration>>,
    consent: HookConsent,
    runner: Option<Arc<Runner>>,
    /// The `once` hooks that have run.
    fired: Fired,
    /// Whether the hooks for the session's start have run.
    has_started: bool,
    /// How the session began; `None` for a new one.
    source: Option<&'static str>,
    /// Additions of hooks to the system prompt, until the frame is fixed.
    contexts: Vec<String>,
    /// Requests of resident hooks to the session.
    calls: ServiceCalls,
    background_callback: Option<StartedCallback>,
    /// Results of hooks that ended in the background.
    late: LateHooks,
    turn: TurnHooks,
}

/// An event from hooks while they run.
pub enum HookNews {
    /// A request of a resident hook.
    Call(ServiceCall),
    /// A hook has ended in the background.
    Late(LateNews),
}

/// The requests of hooks to the running turn.
#[derive(Default)]
struct TurnHooks {
    /// Ends the turn after this round, or a compaction that is made before: the hook and its reason.
    halt: Option<(String, String)>,
    /// How often hooks continued after the newest prompt, and the text of the last continuation.
    continuations: u32,
    last_follow_up: Option<String>,
    /// A resident hook requested a compaction at the next safe point.
    wanted_compaction: Option<String>,
    /// Number of recipes and model calls started by resident hooks.
    paid_calls: u32,
    /// Times that they asked a model.
    judgements: u32,
    /// The round's end that waits for the job of its action. There is only one, because a round's end has one action.
    pending: Option<PendingResolution>,
}

impl HookHost {
    /// The hooks of a child; its parent's hooks for the session's start have run.
    pub(super) fn new_for_child(found: Arc<FoundHooks>) -> HookHost {
        HookHost { found, is_read: true, has_started: true, ..HookHost::default() }
    }

    /// Reduces this to the state that is kept while the session is suspended. The files are read again afterwards.
    pub(super) fn at_rest(self) -> HookHost {
        HookHost { found: Arc::default(), is_read: false, watch: None, runner: None, ..self }
    }

    /// Whether hooks have to run at the session's end.
    pub(super) fn owe_end(&self) -> bool {
        self.has_started && self.has_any_for(HookEvent::SessionEnd)
    }

    // ── The files ──────────────────────────────────────────────────────────────────────────────

    pub(super) fn found(&self) -> &FoundHooks {
        &self.found
    }

    /// The hooks for a child: all, or only those that a recipe can't disable.
    pub(super) fn for_child(&self, all: bool) -> Arc<FoundHooks> {
        if all {
            return self.found.clone();
        }
        let hooks =
            self.found.hooks.iter().filter(|hook| hook.origin == HookOrigin::Enforced).cloned().collect();
        Arc::new(FoundHooks { hooks, ..FoundHooks::default() })
    }

    pub(super) fn is_read(&self) -> bool {
        self.is_read
    }

    pub(super) fn set_read(&mut self, is_read: bool) {
        self.is_read = is_read;
    }

    /// The user's decision about something from a repository; `None` until it is known.
    pub(super) fn trusts(&self, item: &TrustSubject) -> Option<TrustVerdict> {
        self.consent.verdict(item)
    }

    // ── Selecting what runs ────────────────────────────────────────────────────────────────────

    pub(super) fn has_any_for(&self, event: HookEvent) -> bool {
        self.found.hooks.iter().any(|hook| hook.events.iter().any(|(at, _)| *at == event))
    }

    /// The scripts to run for this context. If not `all`, only those that a recipe can't disable.
    pub(super) fn scripts(&self, hook_context: &HookContext, all: bool) -> Vec<ChainLink> {
        let is_selected = |hook: &&Arc<Hook>| all || hook.origin == HookOrigin::Enforced;
        let hooks: Vec<Arc<Hook>> = self.found.hooks.iter().filter(is_selected).cloned().collect();
        chain::links(&hooks, hook_context)
    }

    /// The handlers and scripts to run for this context, in order, including the handlers of the running recipe.
    pub(super) fn links(
        &self,
        hook_context: &HookContext,
        declared: Option<&[DeclaredHandler]>,
        all: bool,
    ) -> Vec<ChainLink> {
        handlers::plan(declared, self.scripts(hook_context, all), hook_context, &self.fired)
    }

    pub(super) fn has_residents(&self) -> bool {
        self.runner.as_ref().is_some_and(|runner| !runner.residents.is_empty())
    }

    /// Whether hooks run in the background. They end with the runner.
    pub(super) fn has_any_aside(&self) -> bool {
        self.runner.as_ref().is_some_and(|runner| runner.aside.running() > 0)
    }

    // ── State while they run ───────────────────────────────────────────────────────────────────

    /// A recipe is being invoked: its `once` hooks may run again.
    pub(super) fn invoked(&mut self) {
        self.fired.invoked();
    }

    /// A handler or script marked `once` is not run again during this invocation.
    pub(super) fn succeeded(
        &mut self,
        event: HookEvent,
        name: &str,
        declared: Option<&Vec<DeclaredHandler>>,
    ) {
        let handlers = declared.into_iter().flatten().filter_map(|origin| match origin {
            DeclaredHandler::Handler(handler) => Some(ChainLink::Handler(handler.clone())),
            DeclaredHandler::External { .. } | DeclaredHandler::Script { .. } => None,
        });
        let scripts = self.found.hooks.iter().cloned().map(ChainLink::Hook);
        if let Some(link) = handlers.chain(scripts).find(|link| link.name() == name) {
            self.fired.succeeded(event, &link);
        }
    }

    pub(super) async fn next_news(&mut self) -> Option<HookNews> {
        tokio::select! {
            call = self.calls.next() => call.map(HookNews::Call),
            news = self.late.next() => news.map(HookNews::Late),
        }
    }

    pub(super) fn late(&mut self) -> &mut LateHooks {
        &mut self.late
    }

    pub(super) fn background_callback(&mut self) -> &mut Option<StartedCallback> {
        &mut self.background_callback
    }

    pub(super) fn has_background_callback(&self) -> bool {
        self.background_callback.is_some()
    }

    // ── What they requested of the running turn ────────────────────────────────────────────────

    /// The turn is to end after this round, unless another hook has said so before.
    pub(super) fn request_halt(&mut self, halt: Option<(String, String)>) {
        let earlier = self.turn.halt.take();
        self.turn.halt = earlier.or(halt);
    }

    /// The hook that ends the turn, and its reason.
    pub(super) fn take_halt(&mut self) -> Option<(String, String)> {
        self.turn.halt.take()
    }

    /// How often hooks continued after the newest prompt, and the text of the last continuation.
    pub(super) fn continuations(&self) -> (u32, Option<&String>) {
        (self.turn.continuations, self.turn.last_follow_up.as_ref())
    }

    /// Hooks continue the turn with this text.
    pub(super) fn count_continuation(&mut self, text: String) {
        self.turn.continuations += 1;
        self.turn.last_follow_up = (!text.is_empty()).then_some(text);
    }

    /// A prompt enters the view, which hooks may continue as often as the one before.
    pub(super) fn forget_continuations(&mut self) {
        (self.turn.continuations, self.turn.last_follow_up) = (0, None);
    }

    /// A resident hook requests a compaction at the next safe point.
    pub(super) fn want_compaction(&mut self, hook: &str) {
        self.turn.wanted_compaction = Some(hook.to_owned());
    }

    pub(super) fn take_wanted_compaction(&mut self) -> Option<String> {
        self.turn.wanted_compaction.take()
    }

    /// Counts a recipe or a model call that a resident hook starts.
    pub(super) fn count_paid_call(&mut self) -> Result<(), HookRefusal> {
        self.turn.paid_calls += 1;
        match self.turn.paid_calls {
            ..=PAID_CALLS_MAX => Ok(()),
            _ => Err(HookRefusal::TooManyPaidCalls(PAID_CALLS_MAX)),
        }
    }

    /// Counts a call of a model that decides for a hook.
    pub(super) fn count_judgement(&mut self) -> Result<(), HookRefusal> {
        self.turn.judgements += 1;
        match self.turn.judgements {
            ..=JUDGEMENTS_MAX => Ok(()),
            _ => Err(HookRefusal::TooManyJudgements(JUDGEMENTS_MAX)),
        }
    }

    /// Keeps a round's end that waits for the job of its action.
    pub(super) fn keep_pending(&mut self, pending: PendingResolution) {
        self.turn.pending = Some(pending);
    }

    pub(super) fn take_pending(&mut self) -> Option<PendingResolution> {
        self.turn.pending.take()
    }

    pub(super) fn end_turn(&mut self) {
        self.turn = TurnHooks::default();
    }

    // ── The session's start ────────────────────────────────────────────────────────────────────

    pub(super) fn has_started(&self) -> bool {
        self.has_started
    }

    pub(super) fn set_started(&mut self) {
        self.has_started = true;
    }

    pub(super) fn source(&self) -> &'static str {
        self.source.unwrap_or("startup")
    }

    pub(super) fn set_source(&mut self, source: &'static str) {
        self.source = Some(source);
    }

    pub(super) fn add_context(&mut self, text: String) {
        self.contexts.push(text);
    }

    pub(super) fn take_contexts(&mut self) -> Vec<String> {
        std::mem::take(&mut self.contexts)
    }
}
