//! What a repository brings and the person's consent to it: hooks are looked for when a session begins,
//! and before the first prompt the person is asked about those that nobody has allowed.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::actor::Session;
use super::work::{Background, OpenConsent, Prompt};
use super::{AskId, Decision, Out, PermissionAsk, SessionCommand, Severity, Ticket};
use epitome_hooks::discover::{self, Found, Search};
use epitome_hooks::handlers::At;
use epitome_hooks::run::Runner;
use epitome_hooks::transcript::Transcript;
use epitome_hooks::trust::{self, Item, Trust, Verdict};
use epitome_provider::network::Network;
use epitome_recipe::parse::{Recipe, Source};
use epitome_recipe::render::ShellOutputs;
use epitome_thread::{CallId, Card, Decided, Decider, OutcomeStatus, Shown, ToolKind, ToolOutcome};

/// Things that a question lists by name; of more it says how many.
const LISTED_MAX: usize = 20;

/// What is known of the person's consent.
#[derive(Default)]
pub struct Consent {
    /// `None` until hooks were looked for.
    trust: Option<Trust>,
    /// What was asked about in this session, whatever the answer.
    asked: BTreeSet<Item>,
    open: Option<OpenConsent>,
    /// How often hooks were looked for; what an earlier look found is passed over.
    looks: u64,
}

impl Consent {
    pub(super) fn verdict(&self, item: &Item) -> Option<Verdict> {
        self.trust.as_ref().map(|trust| trust.verdict(&item.path, &item.digest))
    }
}

/// Whether a repository's recipe may run its shell calls.
pub(super) enum MayRun {
    Yes,
    No,
    /// The person has to be asked.
    Unknown(Item),
}

impl Session {
    // ── Looking for hooks ──────────────────────────────────────────────────────────────────────

    /// Looks for hooks, off this task, and watches their places from then on. Prompts wait for it.
    pub(super) fn load_hooks(&mut self) {
        let cwd = self.core.thread.cwd().to_path_buf();
        let services = self.core.services.clone();
        let settings = self.core.settings.hooks.clone();
        let environment = self.core.workspace.environment.clone();
        let sessions = self.inbox.sender();
        let watch = self.hooks.watch();
        let known = self.hooks.consent.trust.clone();
        self.hooks.consent.looks += 1;
        let look = self.hooks.consent.looks;
        self.core.background.spawn_blocking(move || {
            let plan = discover::watched(&cwd, &services.paths, settings.compat_dirs);
            let watch = services.watch.about_to_read(watch, plan, move || {
                // A full channel means that the session is busy with what is newer.
                if let Some(sender) = sessions.upgrade() {
                    drop(sender.try_send(SessionCommand::HooksChanged));
                }
            });
            let (trust, problem) = match known {
                Some(mut trust) => {
                    let problem = trust.reload();
                    (trust, problem)
                }
                None => Trust::load(&services.paths, settings.trust),
            };
            let search = Search {
                paths: &services.paths,
                cwd: &cwd,
                settings: &settings,
                reaper: &services.reaper,
                environment: &environment,
                trust: &trust,
            };
            let mut found = discover::discover(&search);
            found.problems.extend(problem);
            Background::Hooks(look, Box::new(found), Box::new(trust), watch)
        });
    }

    /// Takes in what a look found; prompts that waited for it may go on.
    pub(super) fn hooks_found(
        &mut self,
        look: u64,
        found: Found,
        trust: Trust,
        watch: Option<Arc<epitome_recipe::watch::Registration>>,
    ) {
        // It began before something changed: what the person allowed meanwhile is not in it.
        if look != self.hooks.consent.looks {
            return;
        }
        tracing::debug!(session = %self.core.id(), hooks = found.hooks.len(), untrusted = found.untrusted.len(), "hooks found");
        let problems = found.problems.clone();
        self.hooks.take_in(found, watch);
        self.hooks.consent.trust = Some(trust);
        self.core.show_problems(&problems);
        self.start_trusted_servers();
    }

    /// What hooks are run with. Resident ones live as long as the session.
    pub(super) fn runner(&mut self) -> Arc<Runner> {
        let at =
            At { workspace: self.core.workspace.clone(), functions: self.core.services.functions.clone() };
        // The environment is that of the editor that sent the prompt.
        let http = self.core.services.http.within(Network::read(&self.core.workspace.environment));
        let (services, session) = (&self.core.services, &self.core.id().0);
        let calls = self.hooks.calls();
        self.hooks.runner(at, http, |at, http| Runner {
            session: session.clone(),
            at,
            reaper: services.reaper.clone(),
            http,
            residents: Arc::default(),
            transcript: Arc::new(Transcript::of(&services.paths, session)),
            services: Arc::new(super::services::ServiceDoor { calls }),
        })
    }

    // ── Asking ─────────────────────────────────────────────────────────────────────────────────

    /// Whether prompts have to wait: hooks are looked for, or the person is asked about them.
    pub(super) fn waits_for_hooks(&mut self) -> bool {
        if self.work.is_some() || !self.inbox.has_prompts() || self.core.lineage.is_child() {
            return false;
        }
        if !self.hooks.is_read() || self.hooks.consent.open.is_some() {
            return true;
        }
        // Our own commands run nothing of the repository's.
        if self.inbox.first().is_some_and(|prompt| self.is_built_in(prompt)) {
            return false;
        }
        let new: Vec<(Item, String)> = self
            .hooks
            .found()
            .untrusted
            .iter()
            .map(|untrusted| {
                let item = Item { path: untrusted.path.clone(), digest: untrusted.digest.clone() };
                (item, format!("{} ({})", untrusted.what, self.core.workspace.display(&untrusted.path)))
            })
            .filter(|(item, _)| !self.hooks.consent.asked.contains(item))
            .collect();
        if !new.is_empty() {
            return self.ask_consent(new, "hooks", None);
        }
        let mut servers = self.mcp.untrusted(&self.core, &self.hooks);
        servers.retain(|(item, _)| !self.hooks.consent.asked.contains(item));
        if !servers.is_empty() {
            return self.ask_consent(servers, "MCP servers", None);
        }
        self.waits_for_servers()
    }

    /// Shows the question; `false` where nobody is there to answer it.
    fn ask_consent(&mut self, items: Vec<(Item, String)>, kind: &str, prompt: Option<Prompt>) -> bool {
        self.hooks.consent.asked.extend(items.iter().map(|(item, _)| item.clone()));
        let count = items.len();
        if self.core.clients.is_empty() {
            let text =
                format!("{count} {kind} of this repository do not run: nobody is there to allow them.");
            self.core.say(Severity::Warning, text);
            return false;
        }
        let ask = AskId::fresh();
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
        self.core.announce(&Out::Ask { ask, permission: permission.clone() });
        let items = items.into_iter().map(|(item, _)| item).collect();
        self.hooks.consent.open = Some(OpenConsent { ask, permission, items, prompt });
        true
    }

    /// Shows an open question to a client that comes later.
    pub(super) fn open_consent(&self) -> Option<(AskId, Arc<PermissionAsk>)> {
        self.hooks.consent.open.as_ref().map(|open| (open.ask, open.permission.clone()))
    }

    /// Takes a decision in; `false` if it is about something else.
    pub(super) fn consented(&mut self, ask: AskId, decision: &Decision) -> bool {
        let Some(open) = self.hooks.consent.open.take_if(|open| open.ask == ask) else { return false };
        self.core.announce(&Out::Withdrawn { ask });
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
        self.core.announce(&Out::CallFinished { outcome: Arc::new(outcome) });
        if let (Some(trust), Some(kept)) = (&mut self.hooks.consent.trust, kept)
            && let Err(why) = trust.remember(&open.items, kept)
        {
            self.core.say(Severity::Warning, why);
        }
        match open.prompt {
            Some(prompt) => self.begin_command(prompt, ShellOutputs::new()),
            None if kept.is_some() => {
                self.hooks.set_read(false);
                self.load_hooks();
            }
            None => {}
        }
        true
    }

    /// Whether the open question holds up this prompt alone; with `None`, all prompts.
    pub(super) fn consent_is_for(&self, ticket: Option<Ticket>) -> bool {
        let open = self.hooks.consent.open.as_ref();
        open.is_some_and(|open| open.prompt.as_ref().map(|prompt| prompt.responder.ticket) == ticket)
    }

    /// Takes an open question back: the prompt that waited for it is cancelled.
    pub(super) fn drop_consent(&mut self) -> Option<Prompt> {
        let open = self.hooks.consent.open.take()?;
        for item in &open.items {
            self.hooks.consent.asked.remove(item);
        }
        self.core.announce(&Out::Withdrawn { ask: open.ask });
        let outcome =
            ToolOutcome::text(open.permission.call.clone(), OutcomeStatus::Interrupted, "Not decided.");
        self.core.announce(&Out::CallFinished { outcome: Arc::new(outcome) });
        open.prompt
    }

    // ── Recipes with shell calls ───────────────────────────────────────────────────────────────

    /// What the person has said of this version of a recipe's commands. Their own need no consent.
    pub(super) fn recipe_may_run(&self, recipe: &Recipe) -> MayRun {
        let Source::Repository(path) = &recipe.source else { return MayRun::Yes };
        let roots = self.core.services.paths.repository_roots(self.core.thread.cwd());
        let (Some(trust), Ok(digest)) =
            (&self.hooks.consent.trust, trust::recipe_digest(path, &recipe.body, &roots))
        else {
            return MayRun::No;
        };
        let item = Item { path: path.clone(), digest };
        match trust.verdict(&item.path, &item.digest) {
            Verdict::Trusted => MayRun::Yes,
            Verdict::Refused => MayRun::No,
            Verdict::Unknown if self.hooks.consent.asked.contains(&item) => MayRun::No,
            Verdict::Unknown => MayRun::Unknown(item),
        }
    }

    /// Asks whether a recipe may run its commands; the prompt waits. Gives it back where nobody is there.
    pub(super) fn ask_for_recipe(&mut self, item: Item, recipe: &Recipe, prompt: Prompt) -> Option<Prompt> {
        let what = format!("the commands of /{} ({})", recipe.id, self.core.workspace.display(&item.path));
        if self.core.clients.is_empty() {
            self.hooks.consent.asked.insert(item);
            return Some(prompt);
        }
        self.ask_consent(vec![(item, what)], "recipes", Some(prompt));
        None
    }
}
