//! The hooks of a session: which were found, what they are run with, and the person's consent to what a repository brings.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::mpsc;

use super::services::{SERVICE_CALLS_MAX, ServiceCall, ServiceDoor};
use super::work::{OpenConsent, Prompt};
use super::{AskId, Decision, Out, PermissionAsk, Ticket};
use epitome_hooks::chain::Link;
use epitome_hooks::discover::Found;
use epitome_hooks::event::HookEvent;
use epitome_hooks::handlers::{At, Fired};
use epitome_hooks::run::Runner;
use epitome_hooks::trust::{self, Item, Trust, Verdict};
use epitome_provider::http::Http;
use epitome_recipe::watch::Registration;
use epitome_thread::{CallId, Card, Decided, Decider, OutcomeStatus, Shown, ToolKind, ToolOutcome};

/// Things that a question lists by name; of more it says how many.
const LISTED_MAX: usize = 20;

/// See the module.
pub(super) struct HookHost {
    found: Arc<Found>,
    /// Whether hooks were looked for once.
    is_read: bool,
    watch: Option<Arc<Registration>>,
    runner: Option<Arc<Runner>>,
    service_calls: (mpsc::Sender<ServiceCall>, mpsc::Receiver<ServiceCall>),
    lasting: Lasting,
}

/// What lasts while the session rests.
pub(super) struct Lasting {
    fired: Fired,
    /// Whether `session_start` was announced to hooks, and how the session began.
    started: bool,
    source: &'static str,
    /// What hooks want in the system text, until it is frozen.
    start_context: Vec<String>,
    /// `None` until hooks were looked for.
    trust: Option<Trust>,
    /// What was asked about in this session, whatever the answer.
    asked: BTreeSet<Item>,
    open: Option<OpenConsent>,
    /// How often hooks were looked for; what an earlier look found is passed over.
    looks: u64,
}

/// Whether a repository's recipe may run its shell calls.
pub(super) enum MayRun {
    Yes,
    No,
    /// The person has to be asked.
    Unknown(Item),
}

/// A look for hooks that begins, with what is known before it.
pub(super) struct Look {
    pub number: u64,
    pub trust: Option<Trust>,
    pub watch: Option<Arc<Registration>>,
}

/// How the person answered a question for consent.
pub(super) struct Consented {
    pub outcome: ToolOutcome,
    /// Why the answer could not be kept.
    pub problem: Option<String>,
    /// Whether something is to be run now that was not before.
    pub changes: bool,
    /// What waited for it alone.
    pub prompt: Option<Prompt>,
}

impl HookHost {
    pub fn new() -> HookHost {
        HookHost::with(Lasting {
            fired: Fired::default(),
            started: false,
            source: "startup",
            start_context: Vec::new(),
            trust: None,
            asked: BTreeSet::new(),
            open: None,
            looks: 0,
        })
    }

    /// Goes on behind a rest: hooks are looked for again.
    pub fn with(lasting: Lasting) -> HookHost {
        HookHost {
            found: Arc::new(Found::default()),
            is_read: false,
            watch: None,
            runner: None,
            service_calls: mpsc::channel(SERVICE_CALLS_MAX),
            lasting,
        }
    }

    pub fn rest(self) -> Lasting {
        self.lasting
    }

    /// Takes a parent's hooks over. A child is a part of its parent's session, which has started.
    pub fn inherit(&mut self, found: Arc<Found>) {
        self.found = found;
        self.is_read = true;
        self.lasting.started = true;
    }

    // ── Looking for hooks ──────────────────────────────────────────────────────────────────────

    pub fn found(&self) -> &Arc<Found> {
        &self.found
    }

    pub fn are_read(&self) -> bool {
        self.is_read
    }

    /// Waits for no look: it has failed.
    pub fn give_up_reading(&mut self) {
        self.is_read = true;
    }

    pub fn begin_look(&mut self) -> Look {
        self.lasting.looks += 1;
        Look { number: self.lasting.looks, trust: self.lasting.trust.clone(), watch: self.watch.clone() }
    }

    /// Takes in what a look found; `false` where it began before something changed: what the person allowed meanwhile is
    /// not in it.
    pub fn looked(
        &mut self,
        look: u64,
        found: Found,
        trust: Trust,
        watch: Option<Arc<Registration>>,
    ) -> bool {
        let is_newest = look == self.lasting.looks;
        if is_newest {
            self.found = Arc::new(found);
            self.is_read = true;
            self.watch = watch;
            self.lasting.trust = Some(trust);
        }
        is_newest
    }

    // ── Running ────────────────────────────────────────────────────────────────────────────────

    /// What hooks are run with. Resident ones live as long as the session.
    pub fn runner(
        &mut self,
        at: At,
        http: Http,
        first: impl FnOnce(At, Http, Arc<ServiceDoor>) -> Runner,
    ) -> Arc<Runner> {
        let runner = match &self.runner {
            Some(runner) => Runner { at, http, ..(**runner).clone() },
            None => first(at, http, Arc::new(ServiceDoor { calls: self.service_calls.0.clone() })),
        };
        self.runner.insert(Arc::new(runner)).clone()
    }

    pub fn have_residents(&self) -> bool {
        self.runner.as_ref().is_some_and(|runner| !runner.residents.is_empty())
    }

    /// The next call of a resident hook.
    pub async fn next_call(&mut self) -> Option<ServiceCall> {
        self.service_calls.1.recv().await
    }

    pub fn fired(&self) -> &Fired {
        &self.lasting.fired
    }

    pub fn invoked(&mut self) {
        self.lasting.fired.invoked();
    }

    pub fn succeeded(&mut self, event: HookEvent, link: &Link) {
        self.lasting.fired.succeeded(event, link);
    }

    /// Whether `session_start` was announced.
    pub fn have_started(&self) -> bool {
        self.lasting.started
    }

    pub fn start(&mut self) {
        self.lasting.started = true;
    }

    /// How the session began.
    pub fn source(&self) -> &'static str {
        self.lasting.source
    }

    pub fn set_source(&mut self, source: &'static str) {
        self.lasting.source = source;
    }

    pub fn add_start_context(&mut self, text: String) {
        self.lasting.start_context.push(text);
    }

    pub fn take_start_context(&mut self) -> Vec<String> {
        std::mem::take(&mut self.lasting.start_context)
    }

    // ── Consent ────────────────────────────────────────────────────────────────────────────────

    /// What the person has said of something of a repository's; `None` until that is known.
    pub fn trusts(&self, item: &Item) -> Option<Verdict> {
        self.lasting.trust.as_ref().map(|trust| trust.verdict(&item.path, &item.digest))
    }

    /// Whether a recipe's commands may run in this version.
    pub fn may_run(&self, item: Item) -> MayRun {
        match self.trusts(&item) {
            Some(Verdict::Trusted) => MayRun::Yes,
            Some(Verdict::Unknown) if !self.lasting.asked.contains(&item) => MayRun::Unknown(item),
            Some(Verdict::Refused | Verdict::Unknown) | None => MayRun::No,
        }
    }

    /// Leaves only what was not asked about.
    pub fn retain_unasked(&self, items: &mut Vec<(Item, String)>) {
        items.retain(|(item, _)| !self.lasting.asked.contains(item));
    }

    /// Notes that there is nobody to ask about these.
    pub fn note_asked<'i>(&mut self, items: impl IntoIterator<Item = &'i Item>) {
        self.lasting.asked.extend(items.into_iter().cloned());
    }

    /// Opens the question whether something of a repository may run; `prompt` waits for it alone.
    pub fn ask(&mut self, items: Vec<(Item, String)>, kind: &str, prompt: Option<Prompt>) -> Out {
        self.note_asked(items.iter().map(|(item, _)| item));
        let (ask, count) = (AskId::fresh(), items.len());
        let mut text = format!(
            "This repository brings {kind} that run programs on this machine, with your rights. Allow them only if \
             you trust it. \"Always\" holds for exactly these versions; a changed one asks again.\n"
        );
        for (_, what) in items.iter().take(LISTED_MAX) {
            text.push_str(&format!("\n- {what}"));
        }
        if count > LISTED_MAX {
            text.push_str(&format!("\n- and {} more (epitome hooks list shows all)", count - LISTED_MAX));
        }
        let permission = Arc::new(PermissionAsk {
            call: CallId(format!("trust_{}", ask.0)),
            tool: "trust".to_owned(),
            input: serde_json::json!({ "what": kind, "count": count }),
            card: Card {
                title: match count {
                    1 => format!("Run 1 {} of this repository?", kind.trim_end_matches('s')),
                    count => format!("Run {count} {kind} of this repository?"),
                },
                kind: ToolKind::Other,
                locations: Vec::new(),
            },
            preview: vec![Shown::Text { text }],
            always: Some("these versions".to_owned()),
            never: Some("these versions".to_owned()),
            agent: None,
        });
        let items = items.into_iter().map(|(item, _)| item).collect();
        self.lasting.open = Some(OpenConsent { ask, permission: permission.clone(), items, prompt });
        Out::Ask { ask, permission }
    }

    /// The open question, for a client that comes later.
    pub fn open(&self) -> Option<(AskId, Arc<PermissionAsk>)> {
        self.lasting.open.as_ref().map(|open| (open.ask, open.permission.clone()))
    }

    /// Whether the open question holds up this prompt alone; with `None`, all prompts.
    pub fn consent_is_for(&self, ticket: Option<Ticket>) -> bool {
        let open = self.lasting.open.as_ref();
        open.is_some_and(|open| open.prompt.as_ref().map(|prompt| prompt.responder.ticket) == ticket)
    }

    /// Takes a decision in; `None` if it is about something else.
    pub fn consented(&mut self, ask: AskId, decision: &Decision) -> Option<Consented> {
        let open = self.lasting.open.take_if(|open| open.ask == ask)?;
        let (status, words, kept) = match decision {
            Decision::AllowOnce => {
                (OutcomeStatus::Completed, "Allowed for this session.", Some(trust::Decision::Once))
            }
            Decision::AllowAlways => (OutcomeStatus::Completed, "Allowed.", Some(trust::Decision::Always)),
            Decision::RejectAlways => (OutcomeStatus::Denied, "Never run.", Some(trust::Decision::Never)),
            Decision::Reject | Decision::Dismissed | Decision::Absent => {
                (OutcomeStatus::Denied, "Not run in this session.", None)
            }
        };
        let mut outcome = ToolOutcome::text(open.permission.call.clone(), status, words);
        if *decision == Decision::Absent {
            outcome.decided = Some(Decided { allowed: false, by: Decider::Nobody });
        }
        let problem = match (&mut self.lasting.trust, kept) {
            (Some(trust), Some(kept)) => trust.remember(&open.items, kept).err(),
            _ => None,
        };
        let changes = open.prompt.is_none() && kept.is_some();
        self.is_read &= !changes;
        Some(Consented { outcome, problem, changes, prompt: open.prompt })
    }

    /// Takes the open question back, which may be asked again: its id, the outcome that clients are shown of it, and the
    /// prompt that waited for it.
    pub fn drop_consent(&mut self) -> Option<(AskId, ToolOutcome, Option<Prompt>)> {
        let open = self.lasting.open.take()?;
        self.lasting.asked.retain(|item| !open.items.contains(item));
        let call = open.permission.call.clone();
        Some((open.ask, ToolOutcome::text(call, OutcomeStatus::Interrupted, "Not decided."), open.prompt))
    }
}
