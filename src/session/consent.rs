//! What a repository brings and the person's consent to it: hooks are looked for when a session begins,
//! and before the first prompt the person is asked about those that nobody has allowed.

use std::sync::Arc;

use super::actor::Session;
use super::hook_host::{Look, MayRun};
use super::work::{Background, Prompt};
use super::{AskId, Decision, Out, SessionCommand, Severity};
use epitome_hooks::discover::{self, Found, Search};
use epitome_hooks::handlers::At;
use epitome_hooks::run::Runner;
use epitome_hooks::transcript::Transcript;
use epitome_hooks::trust::{self, Item, Trust};
use epitome_provider::network::Network;
use epitome_recipe::parse::{Recipe, Source};
use epitome_recipe::render::ShellOutputs;

impl Session {
    // ── Looking for hooks ──────────────────────────────────────────────────────────────────────

    /// Looks for hooks, off this task, and watches their places from then on. Prompts wait for it.
    pub(super) fn load_hooks(&mut self) {
        let cwd = self.thread.cwd().to_path_buf();
        let services = self.services.clone();
        let settings = self.settings.hooks.clone();
        let environment = self.workspace.environment.clone();
        let sessions = self.commands_sender();
        let Look { number, trust, watch } = self.hooks.begin_look();
        self.background.spawn_blocking(move || {
            let plan = discover::watched(&cwd, &services.paths, settings.compat_dirs);
            let watch = services.watch.about_to_read(watch, plan, move || {
                // A full channel means that the session is busy with what is newer.
                if let Some(sender) = sessions.upgrade() {
                    drop(sender.try_send(SessionCommand::HooksChanged));
                }
            });
            let (trust, problem) = match trust {
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
            Background::Hooks(number, Box::new(found), Box::new(trust), watch)
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
        let (hooks, untrusted, problems) = (found.hooks.len(), found.untrusted.len(), found.problems.clone());
        if !self.hooks.looked(look, found, trust, watch) {
            return;
        }
        tracing::debug!(session = %self.id, hooks, untrusted, "hooks found");
        self.show_problems(&problems);
        self.start_trusted_servers();
    }

    /// What hooks are run with. Resident ones live as long as the session.
    pub(super) fn runner(&mut self) -> Arc<Runner> {
        let at = At { workspace: self.workspace.clone(), functions: self.services.functions.clone() };
        // The environment is that of the editor that sent the prompt.
        let http = self.services.http.within(Network::read(&self.workspace.environment));
        self.hooks.runner(at, http, |at, http, services| Runner {
            session: self.id.0.clone(),
            at,
            reaper: self.services.reaper.clone(),
            http,
            residents: Arc::default(),
            transcript: Arc::new(Transcript::of(&self.services.paths, &self.id.0)),
            services,
        })
    }

    // ── Asking ─────────────────────────────────────────────────────────────────────────────────

    /// Whether prompts have to wait: hooks are looked for, or the person is asked about them.
    pub(super) fn waits_for_hooks(&mut self) -> bool {
        if self.work.is_some() || self.waiting.is_empty() || self.lineage.is_child() {
            return false;
        }
        if !self.hooks.are_read() || self.hooks.open().is_some() {
            return true;
        }
        // Our own commands run nothing of the repository's.
        if self.waiting.front().is_some_and(|prompt| self.is_built_in(prompt)) {
            return false;
        }
        let mut new: Vec<(Item, String)> = self
            .hooks
            .found()
            .untrusted
            .iter()
            .map(|untrusted| {
                let item = Item { path: untrusted.path.clone(), digest: untrusted.digest.clone() };
                (item, format!("{} ({})", untrusted.what, self.workspace.display(&untrusted.path)))
            })
            .collect();
        self.hooks.retain_unasked(&mut new);
        if !new.is_empty() {
            return self.ask_consent(new, "hooks", None);
        }
        let mut servers = self.untrusted_servers();
        self.hooks.retain_unasked(&mut servers);
        if !servers.is_empty() {
            return self.ask_consent(servers, "MCP servers", None);
        }
        self.waits_for_servers()
    }

    /// Shows the question; `false` where nobody is there to answer it.
    fn ask_consent(&mut self, items: Vec<(Item, String)>, kind: &str, prompt: Option<Prompt>) -> bool {
        if self.clients.is_empty() {
            self.hooks.note_asked(items.iter().map(|(item, _)| item));
            let count = items.len();
            let text =
                format!("{count} {kind} of this repository do not run: nobody is there to allow them.");
            self.say(Severity::Warning, text);
            return false;
        }
        let question = self.hooks.ask(items, kind, prompt);
        self.announce(&question);
        true
    }

    /// Takes a decision in; `false` if it is about something else.
    pub(super) fn consented(&mut self, ask: AskId, decision: &Decision) -> bool {
        let Some(consented) = self.hooks.consented(ask, decision) else { return false };
        self.announce(&Out::Withdrawn { ask });
        self.announce(&Out::CallFinished { outcome: Arc::new(consented.outcome) });
        if let Some(why) = consented.problem {
            self.say(Severity::Warning, why);
        }
        match consented.prompt {
            Some(prompt) => self.begin_command(prompt, ShellOutputs::new()),
            None if consented.changes => self.load_hooks(),
            None => {}
        }
        true
    }

    /// Takes an open question back: the prompt that waited for it is cancelled.
    pub(super) fn drop_consent(&mut self) -> Option<Prompt> {
        let (ask, outcome, prompt) = self.hooks.drop_consent()?;
        self.announce(&Out::Withdrawn { ask });
        self.announce(&Out::CallFinished { outcome: Arc::new(outcome) });
        prompt
    }

    // ── Recipes with shell calls ───────────────────────────────────────────────────────────────

    /// What the person has said of this version of a recipe's commands. Their own need no consent.
    pub(super) fn recipe_may_run(&self, recipe: &Recipe) -> MayRun {
        let Source::Repository(path) = &recipe.source else { return MayRun::Yes };
        let roots = self.services.paths.repository_roots(self.thread.cwd());
        match trust::recipe_digest(path, &recipe.body, &roots) {
            Ok(digest) => self.hooks.may_run(Item { path: path.clone(), digest }),
            Err(_) => MayRun::No,
        }
    }

    /// Asks whether a recipe may run its commands; the prompt waits. Gives it back where nobody is there.
    pub(super) fn ask_for_recipe(&mut self, item: Item, recipe: &Recipe, prompt: Prompt) -> Option<Prompt> {
        let what = format!("the commands of /{} ({})", recipe.id, self.workspace.display(&item.path));
        if self.clients.is_empty() {
            self.hooks.note_asked([&item]);
            return Some(prompt);
        }
        self.ask_consent(vec![(item, what)], "recipes", Some(prompt));
        None
    }
}
