//! Compaction in a session: planning, writing the summary, composing the entry. Submodules decide when a compaction is
//! due and how much it may replace, and show its progress to clients.

mod before_break;
mod budget;
mod prepared;
mod request;
pub(crate) mod shown;
mod when;

use tokio::sync::mpsc;

use super::NoticeSeverity;
use super::core::Core;
use super::recipes::SessionRecipes;
use super::summary::{self, SummaryAttempt, SummaryJob};
use epitome_compaction::backoff::CompactionBackoff;
use epitome_compaction::{self as compaction, CompactionDecision, CompactionPlan, Summary};
use epitome_hooks::output::Resolution;
use epitome_provider::endpoint::Endpoint;
use epitome_recipe::command::RecipeArguments;
use epitome_thread::{Change, Content, Entry, MessageId, ModelName, Seq, Trigger, Usage};

pub(super) use budget::keep_of;
use prepared::PreparedSummary;
pub use request::SummaryRequest;
pub(super) use request::without_swap;
use shown::Announced;
pub(super) use when::must_compact_at;

/// New tokens in context before old outcomes are examined again.
const EASE_TOKENS: u64 = 10_000;

/// The compaction of the running turn, and the state that outlives turns.
#[derive(Default)]
pub struct Compactor {
    backoff: CompactionBackoff,
    /// A summary written in advance.
    prepared: PreparedSummary,
    /// Tokens in context when old tool results were last considered for pruning.
    eased_at: u64,
    /// How to make the next compaction of the turn.
    request: SummaryRequest,
    /// The plan of the compaction that is made now. It is kept until its change is committed: hooks that run before that
    /// may replace it, or edit the view so that it is composed again.
    plan: Option<CompactionPlan>,
    /// The text that replaces the plan's part of the view, as far as it is written.
    written: Summary,
    /// The compaction that clients were notified of.
    announced: Option<Announced>,
    /// The pieces of the summary that is being written.
    pieces: Option<mpsc::Receiver<String>>,
    /// The summary that hooks see before it replaces the history.
    summary: Option<String>,
}

impl Compactor {
    /// Drops everything that belongs to the turn.
    pub(super) fn end_turn(&mut self) {
        let Compactor { backoff, prepared, eased_at, .. } = std::mem::take(self);
        *self = Compactor { backoff, prepared, eased_at, ..Compactor::default() };
    }

    pub(super) fn summarise_as(&mut self, request: SummaryRequest) {
        self.request = request;
    }

    /// The summary that hooks see before it replaces the history.
    pub(super) fn summary(&self) -> Option<&String> {
        self.summary.as_ref()
    }

    /// Returns the future that writes the summary for a plan. The frame must exist.
    pub(super) fn writing(
        &self,
        core: &Core,
        main: Endpoint,
        plan: &CompactionPlan,
        instruction: String,
        pieces: mpsc::Sender<String>,
    ) -> impl Future<Output = SummaryAttempt> + Send + use<> {
        let settings = core.settings.shared();
        let tokens_max = self.request.tokens_max;
        let mut snapshot = core.snapshot(tokens_max.unwrap_or(settings.compaction.max_summary_tokens));
        snapshot.view = core.thread.view().replaced_by(plan.through);
        let (http, services) = (core.services.http.clone(), core.services.clone());
        let environment = core.workspace.environment.clone();
        let focus = plan.focus.is_some();
        let streams = core.clients.shows_summaries();
        let (ruler, thread, budget, plan) =
            (core.ruler(), core.thread.clone(), self.budget(core), plan.clone());
        async move {
            let tables = compaction::tables(&ruler, &thread, &budget, &plan);
            // While the summary is written, the session would copy what it shares with the clone.
            drop(thread);
            let instruction = summary::with_tables(instruction, &tables);
            let tokens = snapshot.tokens();
            let writer = summary::writer(&services, &settings, &environment, &main, tokens).await;
            let job = SummaryJob {
                http,
                main,
                writer,
                snapshot,
                instruction,
                focus,
                streams,
                message_chars: settings.compaction.message_chars,
                time: (settings.compaction.summary_timeout, settings.compaction.timeout),
                pieces,
            };
            let attempt = summary::write(&job).await;
            if let Some(other) = &job.writer {
                let own = attempt
                    .limits
                    .iter()
                    .filter(|(model, limit)| *model == other.name && *limit < other.window);
                own.for_each(|(_, limit)| services.learned.learn_window(other, *limit));
            }
            attempt
        }
    }

    /// The prompt for the summary.
    pub(super) fn instruction(&self, core: &Core, recipes: &SessionRecipes) -> String {
        let request = &self.request;
        match (&request.instruction, &request.recipe) {
            (Some(instruction), _) => instruction.clone(),
            (None, Some(recipe)) => {
                core.render_without_shell(recipe, &request.arguments).unwrap_or_else(|| recipe.body.clone())
            }
            (None, None) => recipes.summary_instruction(core),
        }
    }

    /// The prompt for the summary, with a hook's instructions.
    fn instruction_with(&self, core: &Core, recipes: &SessionRecipes, instructions: &str) -> String {
        let recipe = self.request.recipe.clone().or_else(|| recipes.catalog().find("compact").cloned());
        let arguments = RecipeArguments { free: instructions.to_owned(), ..self.request.arguments.clone() };
        let text = recipe.and_then(|recipe| core.render_without_shell(&recipe, &arguments));
        text.unwrap_or_else(|| {
            let standard = recipes.summary_instruction(core);
            format!("{standard}\n\n## Additional instructions\n\n{instructions}")
        })
    }

    // ── Its stages ─────────────────────────────────────────────────────────────────────────────

    /// The computation that decides what the requested compaction does; see [`Compactor::deciding`].
    pub(super) fn deciding_requested(
        &self,
        core: &mut Core,
        why: Trigger,
    ) -> impl FnOnce() -> (Seq, CompactionDecision) + Send + use<> {
        self.deciding(core, self.request.focus.clone(), why)
    }

    /// Keeps the plan of the compaction that is made now.
    pub(super) fn begin(&mut self, plan: CompactionPlan) {
        self.plan = Some(plan);
    }

    /// The plan of the compaction that is made now.
    pub(super) fn plan(&self) -> Option<&CompactionPlan> {
        self.plan.as_ref()
    }

    /// The summary of the compaction that is made now, as far as it is written.
    pub(super) fn written(&self) -> &Summary {
        &self.written
    }

    /// How the summary of the compaction that is made now was requested.
    pub(super) fn requested(&self) -> &SummaryRequest {
        &self.request
    }

    /// Applies what hooks said before the compaction.
    pub(super) fn instruct(&mut self, core: &Core, recipes: &SessionRecipes, said: Resolution) {
        if let Some(instructions) = said.custom_instructions {
            self.request.instruction = Some(self.instruction_with(core, recipes, &instructions));
            if let Some(plan) = &mut self.plan {
                plan.focus = Some(instructions.clone());
            }
            self.request.focus = Some(instructions);
        }
        let text = said.summary.map(|(_, text)| text);
        self.written = Summary { text, context: said.context, ..Summary::default() };
    }

    /// Keeps the text that replaces the plan's part of the view, with what hooks add to it.
    pub(super) fn keep_written(&mut self, summary: Summary) {
        let context = std::mem::take(&mut self.written.context);
        self.written = Summary { context, ..summary };
    }

    /// The id of the summary's message, if clients know it already.
    pub(super) fn announced_id(&self) -> Option<MessageId> {
        self.announced.as_ref().map(|announced| announced.id)
    }

    /// Hooks see this summary until it replaces the history.
    pub(super) fn show_to_hooks(&mut self, summary: String) {
        self.summary = Some(summary);
    }

    /// Notes that a compaction would have gained nothing. Returns whether they pause now.
    pub(super) fn note_no_gain(&mut self, core: &Core) -> bool {
        self.backoff.gained_nothing(&core.thread)
    }

    /// Forgets the compaction, whose change is committed.
    pub(super) fn conclude(&mut self) {
        self.forget();
        self.backoff.gained();
    }

    /// Forgets the compaction, and what was requested of it, which is not for the next one. Returns the cost of its
    /// summary.
    pub(super) fn forget(&mut self) -> Option<(ModelName, Usage)> {
        (self.summary, self.request, self.plan) = (None, SummaryRequest::default(), None);
        std::mem::take(&mut self.written).by
    }

    /// Whether the context has grown enough since the last check for old outcomes to be worth another one, which
    /// examines the entire view.
    pub(super) fn may_prune(&mut self, core: &mut Core) -> bool {
        let used = core.tokens_in_context();
        let is_worth_it = used >= self.eased_at + EASE_TOKENS;
        if is_worth_it || used < self.eased_at {
            self.eased_at = used;
        }
        is_worth_it
    }
}

impl Core {
    /// Whether a child has had no reply yet, so that it can start again with a shorter history without losing anything.
    pub(super) fn is_first_request_of_child(&self) -> bool {
        let own = self.thread.entries().iter().skip(self.lineage.own_from.0 as usize);
        self.lineage.is_child()
            && !own.into_iter().any(|entry| matches!(entry.change, Change::Replied { .. }))
    }

    /// Warns if the change removes files from the view that the model has not seen, or that its provider refused.
    pub(super) fn warn_of_unsent_files(&self, change: &Change) {
        let (Change::Compacted { trigger, .. } | Change::Pruned { trigger, .. }) = change else { return };
        let is_refused = *trigger == Trigger::Overflow;
        let entries = self.thread.view().entries().iter().rev();
        let is_seen = |change: &Change| matches!(change, Change::Replied { .. } | Change::Compacted { .. });
        let unseen = entries.take_while(|entry| is_refused || !is_seen(&entry.change));
        let Some(sent) = unseen.map(|entry| files(entry)).find(|files| !files.is_empty()) else { return };
        let mut after = self.thread.clone();
        after.apply_trial(change.clone());
        let left: Vec<&Content> = after.view().entries().iter().flat_map(|entry| files(entry)).collect();
        let lost = sent.iter().filter(|file| !left.contains(file)).count();
        if lost == 0 {
            return;
        }
        let why = match is_refused {
            true => "The request was larger than the provider accepts",
            false => "Your message is too long for the context window",
        };
        let which =
            if lost == sent.len() { "the".to_owned() } else { format!("{lost} of the {}", sent.len()) };
        self.notify(
            NoticeSeverity::Warning,
            format!(
                "{why}, so {which} attachments of your last message are no longer sent: the model only gets \
                 their names. Attach fewer or smaller files, or send them one by one."
            ),
        );
    }
}

/// The files in a message of the user, or in the message of a compaction.
fn files(entry: &Entry) -> Vec<&Content> {
    match &entry.change {
        Change::Said { message, .. } | Change::Compacted { summary: message, .. } => {
            message.content.iter().filter(|part| part.has_attached_data()).collect()
        }
        _ => Vec::new(),
    }
}
