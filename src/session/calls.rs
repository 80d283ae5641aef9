//! A session's tool calls: who may run, who is asked, and what came of it.

use std::sync::Arc;

use tracing::field::Empty;
use tracing::{Instrument as _, info_span};

use super::actor::Session;
use super::work::{Done, OpenAsk};
use super::{AskId, Decision, Out, PermissionAsk};
use super::{arrival, buffers, checkpoints, effects, kept, trace};
use epitome_hooks::output::PermissionDecision;
use epitome_problem::Problem;
use epitome_recall::Log;
use epitome_secrets::{self as secrets, Masker};
use epitome_spans::Timed;
use epitome_thread::{
    Answered, CallId, Change, Decided, Decider, OutcomeStatus, PlanStep, Rule, Shown, ToolCall, ToolOutcome,
};
use epitome_tools::command_line;
use epitome_tools::permission::Verdict;
use epitome_tools::permission::ruled::{self, Hidden};
use epitome_tools::{Access, Tool, ToolContext, task};
use epitome_turn::{Answer as Told, Permit};

/// How much of unreadable arguments the model is shown, in bytes.
const SHOWN_ARGUMENT_BYTES_MAX: usize = 200;

/// What a model is told that would write a mask into a file, where the key was that it stands for.
const MASK_WRITTEN: &str = "Not run: this has a mask in it ([secret masked: …]), which stands for a key that you were \
                            not shown. Written to a file, it would take the key's place. Leave that part of the file \
                            as it is, or ask the user to put the key in.";

/// What the model is told where no client has anybody to ask.
const NOBODY_THERE: &str = "This needs the person's permission, and nobody is there to give it.";

/// How a call stands before anybody was asked.
enum Standing {
    /// With who decided, unless the call is harmless or can't run at all.
    Settled(Permit, Option<Decided>),
    AskPerson {
        access: Access,
        always: Option<(Rule, String)>,
        because: Option<String>,
    },
}

impl Session {
    pub(super) fn ask_permission(&mut self, id: CallId) {
        let kept = self.kept_rules();
        let (access, always, because) = match self.standing(&id, &kept) {
            Standing::Settled(permit, decided) => {
                self.note_decided(&id, decided);
                return self.tell(Told::Permission(id, permit));
            }
            Standing::AskPerson { access, always, because } => (access, always, because),
        };
        let Some(call) = self.effective_call(&id) else { return };
        let Some(tool) = self.services.toolbox.get(&call.name).cloned() else { return };
        let context = self.tool_context(&tool, &id);
        let look = self.editor_look(&tool, &access);
        // What an edit before it in the same reply writes is there when it is looked at.
        let entrance = self.files.enter(&Access::Read(Vec::new()));
        let ask = AskId::fresh();
        let Some(work) = &mut self.work else { return };
        work.ask = Some(OpenAsk { ask, call: id.clone(), access, always, because, shown: None });
        work.jobs.spawn(async move {
            let looked = async {
                let _turn = entrance.turn().await;
                let context = buffers::looked(look, context).await;
                tool.check(&call.input, context.clone()).await?;
                Ok(tool.preview(&call.input, context).await)
            };
            Done::Preview(id, effects::guarded(looked, || Ok(Vec::new())).await)
        });
    }

    /// What the person keeps for this workspace. A file that can't be read allows nothing, and they are told.
    fn kept_rules(&mut self) -> Arc<[Rule]> {
        self.kept_reader.read(&self.services.paths, self.thread.cwd()).unwrap_or_else(|message| {
            let path = kept::file(&self.services.paths);
            let hint = "nothing that was kept is allowed; move the file away to begin anew".to_owned();
            self.show_problems(&[Problem { path, place: None, message, hint: Some(hint) }]);
            [].into()
        })
    }

    /// Keeps who decided about a call, for its outcome.
    pub(super) fn note_decided(&mut self, id: &CallId, decided: Option<Decided>) {
        if let (Some(work), Some(decided)) = (&mut self.work, decided) {
            work.decided.insert(id.clone(), decided);
        }
    }

    /// Decides what can be decided without a person.
    fn standing(&self, id: &CallId, kept: &[Rule]) -> Standing {
        let impossible = |text: String| Standing::Settled(Permit::Impossible(text), None);
        let by_recipe = |why: String| Standing::Settled(Permit::Denied(why), refused_by(Decider::Recipe));
        let Some(call) = self.effective_call(id) else {
            return impossible("This call is not in the conversation.".to_owned());
        };
        let Some(tool) = self.services.toolbox.get(&call.name) else {
            let names: Vec<String> =
                self.services.toolbox.specs().into_iter().map(|spec| spec.name).collect();
            return impossible(format!(
                "There is no tool {:?}. The tools are {}.",
                call.name,
                names.join(", ")
            ));
        };
        if let Some(text) = call.input.get("invalid_json").and_then(|text| text.as_str()) {
            let shown = &text[..text.floor_char_boundary(SHOWN_ARGUMENT_BYTES_MAX)];
            return impossible(format!(
                "The arguments are no JSON object: {shown:?}. Call the tool again with a whole one."
            ));
        }
        if self.lineage.wraps_up() {
            return Standing::Settled(
                Permit::Denied("No call is run any more. Report now.".to_owned()),
                None,
            );
        }
        let limits = self.work.as_ref().and_then(|work| work.allowed_tools.as_ref());
        if limits.is_some_and(|allowed| !allowed.contains(&call.name)) {
            return by_recipe(format!("The recipe that runs may not use {}.", call.name));
        }
        let access = match tool.access(&call.input, &self.workspace) {
            Ok(access) => access,
            Err(text) => return impossible(text),
        };
        if matches!(access, Access::Write(_) | Access::Command { .. })
            && self.settings.mask_secrets
            && secrets::has_mask_in(&call.input)
        {
            return impossible(MASK_WRITTEN.to_owned());
        }
        let listed = self.work.as_ref().and_then(|work| work.allowed_commands.as_ref());
        if let (Access::Command { line, .. }, Some(listed)) = (&access, listed)
            && let Some(why) = command_line::refused(line, listed)
        {
            return by_recipe(why);
        }
        let remembered = self.remembered.rules();
        let judged = ruled::judge(&ruled::Asked {
            tool: &call.name,
            access: &access,
            mode: self.thread.mode(),
            remembered: &remembered,
            kept,
            rules: &self.settings.permissions,
            workspace: &self.workspace,
        });
        let by_hook = self.work.as_ref().and_then(|work| work.decisions.get(id));
        // A hook's word stands for the person's; what the mode forbids stays forbidden, and what a rule of a file
        // asks for is asked.
        match (judged.verdict, by_hook) {
            (Verdict::Allow { .. }, Some((PermissionDecision::Ask, ..))) => {
                self.asking(access, None, judged.because)
            }
            (Verdict::Ask { .. }, Some((PermissionDecision::Allow, hook, _))) if judged.because.is_none() => {
                let by = Decider::Hook { hook: hook.clone() };
                Standing::Settled(Permit::Allowed, Some(Decided { allowed: true, by }))
            }
            (Verdict::Allow { .. }, _) => Standing::Settled(Permit::Allowed, judged.decided),
            (Verdict::Deny { why }, _) => Standing::Settled(Permit::Denied(why), judged.decided),
            (Verdict::Ask { always }, _) => self.asking(access, always, judged.because),
        }
    }

    fn asking(&self, access: Access, always: Option<(Rule, String)>, because: Option<String>) -> Standing {
        if self.audience.is_empty() {
            return Standing::Settled(Permit::Denied(NOBODY_THERE.to_owned()), refused_by(Decider::Nobody));
        }
        Standing::AskPerson { access, always, because }
    }

    /// Whether the call would still touch what the person was asked about: a link on the way may have
    /// been exchanged while they thought.
    fn still_touches(&self, id: &CallId, access: &Access) -> bool {
        let now = self.effective_call(id).and_then(|call| {
            let tool = self.services.toolbox.get(&call.name)?;
            tool.access(&call.input, &self.workspace).ok()
        });
        now.as_ref() == Some(access)
    }

    /// A call that was to be asked about cannot run as things stand.
    pub(super) fn cannot_run(&mut self, id: CallId, why: String) {
        let Some(work) = &mut self.work else { return };
        if work.ask.take_if(|open| open.call == id).is_some() {
            self.tell(Told::Permission(id, Permit::Impossible(why)));
        }
    }

    /// What knows the keys of whoever sent the prompt; `None` where they want no masks. It is made once for an
    /// environment.
    pub(super) fn masker(&mut self) -> Option<Arc<Masker>> {
        if !self.settings.mask_secrets {
            return None;
        }
        let environment = &self.workspace.environment;
        let (_, masker) = match self.masker_made.take() {
            Some(made) if Arc::ptr_eq(&made.0, environment) => self.masker_made.insert(made),
            Some(_) | None => {
                self.masker_made.insert((environment.clone(), Arc::new(Masker::new(environment))))
            }
        };
        Some(masker.clone())
    }

    /// What the tool has at hand for this call.
    fn tool_context(&mut self, tool: &Arc<dyn Tool>, id: &CallId) -> ToolContext {
        self.files.follow(&self.thread, &self.workspace);
        // What a hook will see first may hold what it takes out.
        let call = self.effective_call(id);
        let is_hidden = call.as_ref().is_some_and(|call| self.is_seen_before_shown(call));
        let sender = self.progress.0.clone();
        let id = id.clone();
        let masker = self.masker();
        let progress = Arc::new(move |mut output: String| {
            if is_hidden {
                return;
            }
            if let Some(masker) = &masker {
                masker.mask_in(&mut output);
            }
            // A full channel drops the piece: the outcome has the whole.
            let _ = sender.try_send((id.clone(), output));
        });
        let log = if tool.reads_log() { Log::of(&self.thread, self.recall_bytes()) } else { Log::default() };
        let name = call.map(|call| call.name).unwrap_or_default();
        ToolContext {
            workspace: self.workspace.clone(),
            hidden: Arc::new(Hidden::from(&name, &self.settings.permissions, &self.workspace)),
            progress,
            log: Arc::new(log),
            mode: self.thread.mode(),
            files: self.files.clone(),
            sees_images: self.endpoint.as_ref().is_none_or(|endpoint| endpoint.abilities.images),
            fetches_private: self.settings.fetch_private,
            agents: None,
            sandbox: self.sandbox_rules(),
            background: self.background_commands.clone(),
            unsaved: Arc::default(),
        }
    }

    pub(super) fn show_ask(&mut self, id: &CallId, mut preview: Vec<Shown>) {
        let Some(call) = self.effective_call(id) else { return };
        let open = self.work.as_ref().and_then(|work| work.ask.as_ref()).filter(|open| open.call == *id);
        if let Some(text) = open.and_then(|open| self.sandbox_remark(&open.access)) {
            preview.push(Shown::Text { text });
        }
        let Some(work) = &mut self.work else { return };
        if let Some((PermissionDecision::Ask, by, Some(why))) = work.decisions.get(id)
            && !why.trim().is_empty()
        {
            preview.insert(0, Shown::Text { text: format!("The hook {by} asks: {}", why.trim()) });
        }
        let Some(open) = work.ask.as_mut().filter(|open| open.call == *id) else { return };
        if let Some(because) = &open.because {
            preview.insert(0, Shown::Text { text: because.clone() });
        }
        let ask = open.ask;
        let permission = Arc::new(PermissionAsk {
            call: id.clone(),
            tool: call.name.clone(),
            input: call.input.clone(),
            card: call.card.clone(),
            preview,
            always: open.always.as_ref().map(|(_, words)| words.clone()),
            never: None,
            agent: None,
        });
        open.shown = Some(permission.clone());
        self.announce(&Out::Ask { ask, permission });
    }

    pub(super) fn decided(&mut self, ask: AskId, decision: Decision) {
        if self.consented(ask, &decision) || self.decided_for_child(ask, &decision) {
            return;
        }
        let Some(work) = &mut self.work else { return };
        let Some(open) = work.ask.take_if(|open| open.ask == ask) else { return };
        self.announce(&Out::Withdrawn { ask });
        let person = |answer| Decider::Person { answer };
        let (permit, by) = match decision {
            Decision::AllowOnce | Decision::AllowAlways if !self.still_touches(&open.call, &open.access) => {
                let why = "What this call would touch changed while the person was asked.".to_owned();
                (Permit::Denied(why), person(Answered::TooLate))
            }
            Decision::AllowOnce => (Permit::Allowed, person(Answered::Once)),
            Decision::AllowAlways => {
                let answer = if open.always.is_some() { Answered::Always } else { Answered::Once };
                if let Some((rule, _)) = open.always
                    && let Err(error) = self.commit(Change::Allowed { rule })
                {
                    return self.abandon(&error);
                }
                (Permit::Allowed, person(answer))
            }
            Decision::Reject | Decision::RejectAlways => {
                let why = "The person said no to this call. Don't try the same again; go another way or ask what they \
                           want."
                    .to_owned();
                (Permit::Denied(why), person(Answered::No))
            }
            Decision::Dismissed => (
                Permit::Denied("The person did not allow this call.".to_owned()),
                person(Answered::Dismissed),
            ),
            Decision::Absent => (Permit::Denied(NOBODY_THERE.to_owned()), Decider::Nobody),
        };
        let allowed = permit == Permit::Allowed;
        self.note_decided(&open.call, Some(Decided { allowed, by }));
        self.tell(Told::Permission(open.call, permit));
    }

    pub(super) fn run_tool(&mut self, id: CallId) {
        let Some(call) = self.effective_call(&id) else { return };
        let Some(tool) = self.services.toolbox.get(&call.name).cloned() else { return };
        self.mark_started(&id);
        self.announce(&Out::CallStarted { call: id.clone() });
        let access = tool.access(&call.input, &self.workspace);
        let reads = matches!(access, Ok(Access::Read(_) | Access::Nothing));
        self.tell_sandbox_gap(access.as_ref());
        let kept = self.kept(&access);
        let sync_first = (!reads).then(|| self.journal.syncer());
        let agents = tool.starts_agents().then(|| self.agents_for(&id, task::read(&call.input).ok()));
        let context = ToolContext { agents, ..self.tool_context(&tool, &id) };
        // Once more behind a card: the person may have typed while it was open.
        let look = access.as_ref().ok().and_then(|access| self.editor_look(&tool, access));
        let entrance = self.files.enter(&access.unwrap_or(Access::Nothing));
        let masker = self.masker();
        let Some(work) = &mut self.work else { return };
        let span =
            info_span!(parent: work.trace.scope(), "tool", call = %id, name = call.name, outcome = Empty);
        let mut timed = Timed::new(span.clone());
        let job = async move {
            let run = async {
                let _turn = entrance.turn().await;
                let context = buffers::looked(look, context).await;
                checkpoints::around(kept, effects::run_tool(tool, call, context, sync_first)).await
            };
            let (mut outcome, plan) = effects::guarded(run, || (fault_of_ours(id.clone()), None)).await;
            // Here and not on the session's task: an outcome may have some megabytes.
            if let Some(masker) = masker {
                arrival::mask(&mut outcome, &masker);
            }
            timed.end(trace::outcome(outcome.status));
            Done::Tool(id, Box::new(outcome), plan)
        };
        work.jobs.spawn(job.instrument(span));
    }

    /// A call as it is run: with the input that a hook gave it, where one did.
    fn effective_call(&self, id: &CallId) -> Option<ToolCall> {
        let call = self.thread.call(id)?;
        match self.thread.input_of(id) {
            Some((input, card)) => {
                Some(ToolCall { input: input.clone(), card: card.clone(), ..call.clone() })
            }
            None => Some(call.clone()),
        }
    }

    pub(super) fn tool_done(
        &mut self,
        call: &CallId,
        outcome: Box<ToolOutcome>,
        plan: Option<Vec<PlanStep>>,
    ) {
        self.tell_checkpoint_troubles();
        if let Some(steps) = plan
            && let Err(error) = self.commit(Change::Planned { steps })
        {
            return self.abandon(&error);
        }
        if let Some(work) = &mut self.work {
            work.running_agents.remove(call);
        }
        // What an agent spent is told before it ends, and what a call printed before its outcome.
        self.hear_children();
        self.hear_progress();
        self.tell(Told::Ran(outcome));
    }
}

fn refused_by(by: Decider) -> Option<Decided> {
    Some(Decided { allowed: false, by })
}

/// The outcome of a call whose tool panicked.
fn fault_of_ours(call: CallId) -> ToolOutcome {
    let text = "The tool failed by a fault of Epitome's own; the log has the details.";
    ToolOutcome::text(call, OutcomeStatus::Failed, text)
}
