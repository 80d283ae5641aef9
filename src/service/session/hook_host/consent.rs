//! The user's consent to programs of a repository: hooks are discovered when a session begins, and before the first
//! prompt the user is asked about those that are not decided yet.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::HookHost;
use crate::background::{BackgroundResult, HookDiscovery};
use crate::core::Core;
use crate::responder::QueuedPrompt;
use crate::{AskId, NoticeSeverity, PermissionRequest, SessionCommand, SessionEvent, Ticket, UserDecision};
use epitome_hooks::aside::AsideHooks;
use epitome_hooks::discover::{self, HookSearch};
use epitome_hooks::handlers::{self, HandlerContext, HandlerTable};
use epitome_hooks::run::Runner;
use epitome_hooks::servers::{self, ServerRecord};
use epitome_hooks::transcript::Transcript;
use epitome_hooks::trust::{self, TrustStore, TrustSubject, TrustVerdict};
use epitome_platform::blocking;
use epitome_provider::network::Network;
use epitome_recipe::parse::{Recipe, RecipeSource};
use epitome_recipe::render;
use epitome_thread::visible::{code, fenced};
use epitome_thread::{
    CallDisplay, CallId, Decider, OutcomeStatus, RecordedDecision, SessionId, ToolDisplay, ToolKind,
    ToolOutcome,
};

/// The state of the user's consent.
#[derive(Default)]
pub struct HookConsent {
    /// `None` until hooks have been discovered.
    trust: Option<TrustStore>,
    /// Everything that was asked about in this session, with any answer.
    asked: BTreeSet<TrustSubject>,
    /// Whether hooks may replace the histories of these conversations, by the user's answers in this session.
    conversations: BTreeMap<SessionId, bool>,
    open: Option<OpenConsent>,
    /// Number of discoveries started; results of an earlier one are ignored.
    looks: u64,
}

impl HookConsent {
    pub(crate) fn verdict(&self, item: &TrustSubject) -> Option<TrustVerdict> {
        self.trust.as_ref().map(|trust| trust.verdict(&item.path, &item.digest))
    }
}

/// An open question to the user whether to trust items of a repository, or a hook that changes another conversation.
struct OpenConsent {
    ask: AskId,
    permission: Arc<PermissionRequest>,
    /// The items; for an MCP server with its record.
    items: Vec<(TrustSubject, Option<ServerRecord>)>,
    /// The command that waits for the answer; `None` if all prompts do.
    prompt: Option<QueuedPrompt>,
    /// The conversation to be changed, and the job of the running turn that waits for the answer.
    conversation: Option<(SessionId, oneshot::Sender<UserDecision>)>,
}

/// A program of a repository that the user has neither allowed nor refused.
pub(crate) struct UntrustedItem {
    pub item: TrustSubject,
    pub record: Option<ServerRecord>,
    /// A description for the question, in Markdown.
    pub what: String,
    /// Everything that it would run, as it is written.
    pub runs: String,
}

/// Whether a repository's recipe may run its shell commands.
pub(crate) enum MayRun {
    Yes,
    No,
    /// The user must be asked.
    Unknown(TrustSubject),
}

/// The user's decisions about recipes so far.
pub(crate) struct RecipeConsent {
    /// `None` until hooks have been discovered.
    trust: Option<TrustStore>,
    roots: Vec<PathBuf>,
}

impl RecipeConsent {
    /// Whether a recipe may run its commands with the files that they name now. Blocks on disk I/O.
    pub(crate) fn covers(&self, recipe: &Recipe) -> bool {
        matches!(verdict(self.trust.as_ref(), &self.roots, recipe), Some((TrustVerdict::Trusted, _)) | None)
    }
}

impl HookHost {
    // ── Looking for hooks ──────────────────────────────────────────────────────────────────────

    /// Discovers hooks on a blocking thread, and watches their locations from then on. Prompts wait for it.
    pub(crate) fn load(&mut self, core: &mut Core, sessions: mpsc::WeakSender<SessionCommand>) {
        let cwd = core.thread.cwd().to_path_buf();
        let services = core.services.clone();
        let settings = core.settings.hooks.clone();
        let workspace = core.workspace.clone();
        let servers = core.settings.mcp.servers.clone();
        let (environment, sandbox) = (core.workspace.environment.clone(), core.sandbox_rules());
        let watch = self.watch.clone();
        let known = self.consent.trust.clone();
        self.consent.looks += 1;
        let look = self.consent.looks;
        let discovery = blocking::run(move || {
            let plan = discover::watched(&cwd, &services.paths, settings.compat_dirs);
            let watch = services.watch.about_to_read(watch, plan, move || {
                // If the channel is full, the session is busy with newer events.
                if let Some(sender) = sessions.upgrade() {
                    drop(sender.try_send(SessionCommand::HooksChanged));
                }
            });
            let (trust, problem) = match known {
                Some(mut trust) => {
                    let problem = trust.reload();
                    (trust, problem)
                }
                None => TrustStore::load(&services.paths, settings.trust),
            };
            let search = HookSearch {
                paths: &services.paths,
                workspace: &workspace,
                settings: &settings,
                reaper: &services.reaper,
                sandbox: &sandbox,
                trust: &trust,
            };
            let mut found = discover::discover(&search);
            found.problems.extend(problem);
            for server in servers.iter().filter(|server| server.enabled) {
                match servers::pin(server, &services.paths.repository_roots(&cwd), &environment, &trust) {
                    Some(Ok(pinned)) => drop(found.servers.insert(server.name.clone(), pinned)),
                    Some(Err(problem)) => found.problems.push(problem),
                    None => {}
                }
            }
            Box::new(HookDiscovery { look, found, trust, watch })
        });
        core.start(discovery, BackgroundResult::HooksFound);
    }

    /// Applies the result of a discovery, unless a newer one has started. Returns whether it was applied.
    pub(crate) fn take_found(&mut self, core: &mut Core, discovery: HookDiscovery) -> bool {
        let HookDiscovery { look, found, trust, watch } = discovery;
        // It started before the last change, so it may lack what the user has allowed since.
        if look != self.consent.looks {
            return false;
        }
        tracing::debug!(session = %core.id(), hooks = found.hooks.len(), untrusted = found.untrusted.len(), "hooks found");
        let problems = found.problems.clone();
        // Files with the user's consent stay unchanged while commands run.
        let repository = found.hooks.iter().filter(|hook| hook.origin.is_repository());
        let of_hooks = repository.flat_map(|hook| hook.files.iter());
        let files = of_hooks.chain(found.servers.values().flat_map(|server| server.record.files.keys()));
        core.workspace = Arc::new(core.workspace.freezing(files.cloned().collect()));
        (self.found, self.watch, self.is_read) = (Arc::new(found), watch, true);
        self.consent.trust = Some(trust);
        core.clients.notify_problems(&problems);
        true
    }

    /// Returns the runner for hooks. Resident hooks live as long as the session.
    pub(crate) fn runner(&mut self, core: &Core) -> Arc<Runner> {
        let at =
            HandlerContext { workspace: core.workspace.clone(), functions: core.services.functions.clone() };
        // The environment is that of the client that sent the prompt.
        let http = core.services.http.within(Network::read(&core.workspace.environment));
        let runner = match &self.runner {
            Some(runner) => Runner { at, http, sandbox: core.sandbox_rules(), ..(**runner).clone() },
            None => Runner {
                session: core.id().0.clone(),
                at,
                reaper: core.services.reaper.clone(),
                sandbox: core.sandbox_rules(),
                http,
                residents: Arc::default(),
                aside: Arc::new(AsideHooks::new(self.late.sender())),
                transcript: Arc::new(Transcript::new(&core.services.paths, &core.id().0)),
                services: Arc::new(self.calls.sender()),
            },
        };
        self.runner.insert(Arc::new(runner)).clone()
    }

    /// Applies the user's decision; `None` if it answers another question. Returns the prompt that waited for it, and
    /// whether hooks must be discovered again.
    pub(crate) fn answer_consent(
        &mut self,
        core: &Core,
        ask: AskId,
        decision: &UserDecision,
    ) -> Option<(Option<QueuedPrompt>, bool)> {
        let open = self.consent.open.take_if(|open| open.ask == ask)?;
        core.announce(&SessionEvent::Withdrawn { ask });
        let (status, words, kept) = match decision {
            UserDecision::AllowOnce if open.conversation.is_some() => {
                (OutcomeStatus::Completed, "Allowed for this session.", None)
            }
            UserDecision::AllowOnce => {
                (OutcomeStatus::Completed, "Allowed for this session.", Some(trust::TrustDecision::Once))
            }
            UserDecision::AllowAlways => {
                (OutcomeStatus::Completed, "Allowed.", Some(trust::TrustDecision::Always))
            }
            UserDecision::RejectAlways => {
                (OutcomeStatus::Denied, "Never run.", Some(trust::TrustDecision::Never))
            }
            UserDecision::Reject
            | UserDecision::RejectBecause(_)
            | UserDecision::Dismissed
            | UserDecision::Absent => (OutcomeStatus::Denied, "Not run in this session.", None),
        };
        let mut outcome = ToolOutcome::text(open.permission.call.clone(), status, words);
        if *decision == UserDecision::Absent {
            outcome.decided = Some(RecordedDecision { allowed: false, by: Decider::Nobody });
        }
        core.announce(&SessionEvent::CallFinished { outcome: Arc::new(outcome) });
        if let (Some(trust), Some(kept)) = (&mut self.consent.trust, kept)
            && let Err(why) = trust.remember_recorded(&open.items, kept)
        {
            core.notify(NoticeSeverity::Warning, why.to_string());
        }
        if let Some((target, answer)) = open.conversation {
            if *decision != UserDecision::Absent {
                self.consent.conversations.insert(target, status == OutcomeStatus::Completed);
            }
            // The turn may have ended.
            drop(answer.send(decision.clone()));
        }
        let looks_again = open.prompt.is_none() && kept.is_some();
        self.is_read &= !looks_again;
        Some((open.prompt, looks_again))
    }

    /// The repository's hooks that the user has neither allowed nor refused, and that were not asked about yet.
    pub(crate) fn untrusted(&self) -> Vec<UntrustedItem> {
        let untrusted = self.found.untrusted.iter().map(|untrusted| UntrustedItem {
            item: TrustSubject { path: untrusted.path.clone(), digest: untrusted.digest.clone() },
            record: None,
            what: untrusted.what.clone(),
            runs: untrusted.runs.clone(),
        });
        untrusted.filter(|untrusted| !self.consent.asked.contains(&untrusted.item)).collect()
    }

    /// Asks for consent; `false` if no client is attached.
    pub(crate) fn ask_consent(
        &mut self,
        core: &Core,
        items: Vec<UntrustedItem>,
        kind: &str,
        prompt: Option<QueuedPrompt>,
    ) -> bool {
        self.consent.asked.extend(items.iter().map(|untrusted| untrusted.item.clone()));
        let count = items.len();
        if core.clients.is_empty() {
            let text =
                format!("{count} {kind} of this repository do not run: no attached client can approve them.");
            core.notify(NoticeSeverity::Warning, text);
            return false;
        }
        let ask = AskId::fresh();
        let mut text = format!(
            "This repository brings {kind} that run programs on this machine, with your rights. Allow them \
             only if you trust it. \"Always\" applies to exactly these versions; after a change you are \
             asked again.\n"
        );
        for UntrustedItem { item, what, runs, .. } in &items {
            // Nothing is cut, and the fence can't be closed by what is in it: consent covers what is shown.
            let path = code(&core.workspace.display(&item.path));
            text.push_str(&format!("\n- {path}: {what}:\n\n{}\n", fenced("", runs)));
        }
        let permission = Arc::new(PermissionRequest {
            call: CallId(format!("trust_{}", ask.0)),
            tool: "trust".to_owned(),
            input: serde_json::json!({ "what": kind, "count": count }),
            card: CallDisplay {
                title: match count {
                    1 => format!("Run 1 {} of this repository?", kind.trim_end_matches('s')),
                    count => format!("Run {count} {kind} of this repository?"),
                },
                kind: ToolKind::Other,
                locations: Vec::new(),
            },
            preview: vec![ToolDisplay::Text { text }],
            because: None,
            always: Some("these versions".to_owned()),
            never: Some("these versions".to_owned()),
            agent: None,
        });
        core.announce(&SessionEvent::Ask { ask, permission: permission.clone() });
        let items = items.into_iter().map(|untrusted| (untrusted.item, untrusted.record)).collect();
        self.consent.open = Some(OpenConsent { ask, permission, items, prompt, conversation: None });
        true
    }

    /// Asks once in a session whether its hooks may replace the history of another conversation. The answer is that of the
    /// user, or that nobody is there.
    pub(crate) fn ask_about_conversation(
        &mut self,
        core: &Core,
        by: &str,
        messages: usize,
        target: &SessionId,
    ) -> oneshot::Receiver<UserDecision> {
        let (answer, decided) = oneshot::channel();
        let known = match self.consent.conversations.get(target) {
            Some(true) => Some(UserDecision::AllowOnce),
            Some(false) => Some(UserDecision::Reject),
            None if core.clients.is_empty() || self.consent.open.is_some() => Some(UserDecision::Absent),
            None => None,
        };
        if let Some(known) = known {
            drop(answer.send(known));
            return decided;
        }
        let ask = AskId::fresh();
        let text = format!(
            "The hook {} of this conversation wants to replace the history of another one, {target}, by {messages} \
             messages. Your answer applies to these two conversations until this session ends; `hooks.cross_session = \
             true` in your settings allows it everywhere.",
            code(by)
        );
        let permission = Arc::new(PermissionRequest {
            call: CallId(format!("trust_{}", ask.0)),
            tool: "trust".to_owned(),
            input: serde_json::json!({ "what": "conversation", "target": target }),
            card: CallDisplay {
                title: format!("Let a hook replace the history of {target}?"),
                kind: ToolKind::Other,
                locations: Vec::new(),
            },
            preview: vec![ToolDisplay::Text { text }],
            because: None,
            always: None,
            never: None,
            agent: None,
        });
        core.announce(&SessionEvent::Ask { ask, permission: permission.clone() });
        let conversation = Some((target.clone(), answer));
        self.consent.open =
            Some(OpenConsent { ask, permission, items: Vec::new(), prompt: None, conversation });
        decided
    }

    /// Whether the user was asked about this item in this session.
    pub(crate) fn was_asked_about(&self, item: &TrustSubject) -> bool {
        self.consent.asked.contains(item)
    }

    /// The open question, for a client that attaches later.
    pub(crate) fn open_consent(&self) -> Option<(AskId, Arc<PermissionRequest>)> {
        self.consent.open.as_ref().map(|open| (open.ask, open.permission.clone()))
    }

    /// Whether the open question blocks only the prompt of this ticket; with `None`, whether it blocks all prompts.
    pub(crate) fn consent_is_for(&self, ticket: Option<Ticket>) -> bool {
        let open = self.consent.open.as_ref();
        let open = open.filter(|open| open.conversation.is_none());
        open.is_some_and(|open| open.prompt.as_ref().map(|prompt| prompt.responder.ticket) == ticket)
    }

    /// Withdraws the open question. Returns the prompt that waited for it, which is cancelled.
    pub(crate) fn drop_consent(&mut self, core: &Core) -> Option<QueuedPrompt> {
        let open = self.consent.open.take()?;
        for (item, _) in &open.items {
            self.consent.asked.remove(item);
        }
        core.announce(&SessionEvent::Withdrawn { ask: open.ask });
        let outcome =
            ToolOutcome::text(open.permission.call.clone(), OutcomeStatus::Interrupted, "Not decided.");
        core.announce(&SessionEvent::CallFinished { outcome: Arc::new(outcome) });
        open.prompt
    }

    // ── Recipes with shell calls ───────────────────────────────────────────────────────────────

    /// Whether this version of a recipe may run its commands. The user's own recipes need no consent.
    pub(crate) fn recipe_may_run(&self, core: &Core, recipe: &Recipe) -> MayRun {
        let roots = core.services.paths.repository_roots(core.thread.cwd());
        match verdict(self.consent.trust.as_ref(), &roots, recipe) {
            None | Some((TrustVerdict::Trusted, _)) => MayRun::Yes,
            Some((TrustVerdict::Unknown, Some(item))) if !self.consent.asked.contains(&item) => {
                MayRun::Unknown(item)
            }
            Some((TrustVerdict::Unknown | TrustVerdict::Refused, _)) => MayRun::No,
        }
    }

    /// The handlers of a recipe, without those that write files if it came with the repository and the user has not
    /// allowed it.
    pub(crate) fn handlers_that_may_run(
        &self,
        core: &mut Core,
        recipe: &Recipe,
        named: &BTreeMap<String, String>,
    ) -> HandlerTable {
        let (table, problems) = core.handlers_of(recipe, named);
        core.clients.notify_problems(&problems);
        let writes = handlers::writes(&table).next().is_some();
        if !writes || matches!(self.recipe_may_run(core, recipe), MayRun::Yes) {
            return table;
        }
        let text = format!(
            "The handlers of /{} that write files do nothing: it came with the repository and is not approved.",
            recipe.id
        );
        core.notify(NoticeSeverity::Warning, text);
        handlers::without_writes(table)
    }

    /// The decisions so far, for skills that the model calls later.
    pub(crate) fn recipe_consent(&self, core: &Core) -> RecipeConsent {
        let roots = core.services.paths.repository_roots(core.thread.cwd());
        RecipeConsent { trust: self.consent.trust.clone(), roots }
    }

    /// Asks whether a recipe may run its commands while the prompt waits. Returns the prompt if no client is attached.
    pub(crate) fn ask_for_recipe(
        &mut self,
        core: &Core,
        item: TrustSubject,
        recipe: &Recipe,
        prompt: QueuedPrompt,
    ) -> Option<QueuedPrompt> {
        let does =
            if render::shell_calls(recipe).is_empty() { "writes files for" } else { "runs the commands of" };
        let what = format!("{does} {}", code(&format!("/{}", recipe.id)));
        let runs = card(core, recipe);
        if core.clients.is_empty() {
            self.consent.asked.insert(item);
            return Some(prompt);
        }
        self.ask_consent(
            core,
            vec![UntrustedItem { item, record: None, what, runs }],
            "recipes",
            Some(prompt),
        );
        None
    }
}

/// Everything in a recipe that decides what it runs and which files it writes without the model, for its card.
fn card(core: &Core, recipe: &Recipe) -> String {
    let calls: Vec<String> = render::shell_calls(recipe).into_iter().map(str::to_owned).collect();
    let defaults = recipe.defaults().filter(|_| !calls.is_empty());
    let defaults: Vec<String> =
        defaults.map(|(name, default)| format!("{name} = {default} (unless given)")).collect();
    let (table, _) = core.handlers_of(recipe, &BTreeMap::new());
    let writes =
        handlers::writes(&table).map(|(event, name, path)| format!("at {event}: {name} writes {path}"));
    calls.into_iter().chain(defaults).chain(writes).collect::<Vec<_>>().join("\n")
}

/// The decision about a repository's recipe as it is now; `None` for other recipes, which need none.
fn verdict(
    trust: Option<&TrustStore>,
    roots: &[PathBuf],
    recipe: &Recipe,
) -> Option<(TrustVerdict, Option<TrustSubject>)> {
    let RecipeSource::Repository(path) = &recipe.source else { return None };
    let (Some(trust), Ok(digest)) = (trust, trust::recipe_digest(path, recipe, roots)) else {
        return Some((TrustVerdict::Refused, None));
    };
    Some((trust.verdict(path, &digest), Some(TrustSubject { path: path.clone(), digest })))
}
