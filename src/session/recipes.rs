//! A session's recipes: reading them, watching their files, rendering one for what was typed.

use std::sync::Arc;

use tokio::task::AbortHandle;

use super::actor::Session;
use super::work::{Background, Prompt};
use super::{CommandInfo, Out, SessionCommand, Severity, Ticket};
use crate::recipe::catalog::Catalog;
use crate::recipe::command::{self, Arguments};
use crate::recipe::parse::Recipe;
use crate::recipe::render::{self, NOT_RUN, Rendered, ShellCall, ShellOutputs, Surroundings};
use crate::tools::shell_output::shell_output;

/// The one command that is no recipe.
pub(super) const UNDO: &str = "undo";

/// A prompt whose recipe waits for what its shell calls print.
pub struct Rendering {
    pub prompt: Prompt,
    pub job: AbortHandle,
}

impl Rendering {
    pub(super) fn is_for(&self, ticket: Ticket) -> bool {
        self.prompt.responder.ticket == ticket
    }
}

/// What rendering came to.
pub(super) enum Text {
    Done(String),
    Needs(Vec<ShellCall>),
    /// A sentence for the person.
    Failed(String),
}

impl Session {
    /// Reads the recipes again, off this task, and watches their places from then on.
    pub(super) fn load_recipes(&mut self) {
        let cwd = self.thread.cwd().to_path_buf();
        let services = self.services.clone();
        let sessions = self.commands_sender();
        let watch = self.watch.clone();
        self.background.spawn_blocking(move || {
            let plan = Catalog::watched(&cwd, &services.paths, &[]);
            let watch = match watch {
                Some(watch) => {
                    watch.about_to_read();
                    watch.renew(plan);
                    Some(watch)
                }
                None => {
                    let changed = move || {
                        // A full channel means that the session is busy with what is newer.
                        if let Some(sender) = sessions.upgrade() {
                            drop(sender.try_send(SessionCommand::RecipesChanged));
                        }
                    };
                    match services.watch.register(plan, changed) {
                        Ok(watch) => Some(Arc::new(watch)),
                        Err(error) => {
                            tracing::warn!(%error, "changed recipes show at the next session");
                            None
                        }
                    }
                }
            };
            Background::Recipes(Catalog::load(&cwd, &services.paths, &[]), watch)
        });
    }

    /// The slash commands, ours among them.
    pub(super) fn command_list(&self) -> Arc<[CommandInfo]> {
        let mut list = self.catalog.commands();
        if !list.iter().any(|command| command.name == UNDO) {
            let description = "Take the last compaction back".to_owned();
            list.push(CommandInfo { name: UNDO.to_owned(), description, hint: None });
        }
        list.sort_by(|a, b| a.name.cmp(&b.name));
        list.into()
    }

    /// Renders a recipe with what its shell calls printed so far.
    pub(super) fn render(&self, recipe: &Recipe, arguments: &Arguments, outputs: &ShellOutputs) -> Text {
        let surroundings = Surroundings {
            conversation_id: self.id.0.clone(),
            cwd: self.thread.cwd().display().to_string(),
            date: jiff::Zoned::now().date().to_string(),
            go_compat: self.settings.go_compat,
        };
        match render::render(recipe, arguments, &surroundings, outputs) {
            Ok(Rendered::Done(prompt)) => {
                for warning in prompt.warnings {
                    self.announce(&Out::Notice { severity: Severity::Warning, text: warning });
                }
                Text::Done(prompt.text)
            }
            Ok(Rendered::Needs(calls)) => Text::Needs(calls),
            Err(problem) => Text::Failed(problem.to_string()),
        }
    }

    /// Runs a recipe's shell calls, off this task, and renders again with what they printed.
    pub(super) fn run_shell_calls(
        &mut self,
        prompt: Prompt,
        may_run: bool,
        calls: Vec<ShellCall>,
        mut outputs: ShellOutputs,
    ) {
        let toolbox = self.services.toolbox.clone();
        let workspace = self.workspace.clone();
        let ticket = prompt.responder.ticket;
        let job = self.background.spawn(async move {
            for call in calls {
                let output = match may_run {
                    true => shell_output(&toolbox, &workspace, &call.line()).await,
                    false => NOT_RUN.to_owned(),
                };
                outputs.insert(call, output);
            }
            Background::Shell(ticket, outputs)
        });
        self.rendering = Some(Rendering { prompt, job });
    }

    /// The instruction of `/compact`, for a compaction that nobody typed.
    pub(super) fn summary_instruction(&self) -> String {
        let built_in = Catalog::built_in();
        let recipe = self.catalog.find("compact").or_else(|| built_in.find("compact"));
        let recipe = recipe.expect("the compact recipe is built in");
        let text =
            command::bind(recipe, "").ok().map(|bound| self.render(recipe, &bound, &ShellOutputs::new()));
        match text {
            Some(Text::Done(text)) => text,
            Some(Text::Needs(_) | Text::Failed(_)) | None => recipe.body.clone(),
        }
    }
}
