//! Running built-in commands: as a turn without a model call.

use super::Session;
use super::session_state::commit_prompt;
use crate::SessionAnswer;
use crate::WorkerFault;
use crate::background::BackgroundResult;
use crate::commands::on_disk::DiskResult;
use crate::commands::{
    BuiltInCommand, CommandContext, CommandOutcome, control_server, find, report_unsent_attachments, rewind,
    shell,
};
use crate::core::Core;
use crate::inbox::InboxPause;
use crate::responder::QueuedPrompt;
use epitome_recipe::command;
use epitome_thread::{Change, StopReason, Usage};

impl Session {
    /// Whether a prompt is a built-in command, which needs no consent.
    pub(super) fn is_built_in(&self, prompt: &QueuedPrompt) -> bool {
        self.command_in(&prompt.content).is_some_and(|(_, typed)| find(typed).is_some())
    }

    /// Runs a command, as a turn without a model call.
    pub(super) fn run_built_in(&mut self, prompt: QueuedPrompt, built_in: &BuiltInCommand, typed: String) {
        report_unsent_attachments(&self.core, &prompt);
        let rest = command::parse(&typed).map(|typed| typed.rest.to_owned()).unwrap_or_default();
        let controlled = control_server(&mut self.core, &mut self.mcp, built_in, &rest);
        if controlled.is_some() {
            self.list_mcp_prompts();
        }
        self.carry_out(prompt, typed, |core, context| match controlled {
            Some(text) => CommandOutcome::text(text),
            None => built_in.run(core, context, &rest),
        });
    }

    /// Commits the command, then its result, and ends the turn. While it runs, its own entry is the newest one.
    pub(super) fn carry_out(
        &mut self,
        prompt: QueuedPrompt,
        typed: String,
        run: impl FnOnce(&mut Core, &CommandContext<'_>) -> CommandOutcome,
    ) {
        self.begin_foreground();
        let commanded = Change::Commanded { message: self.core.fresh_message(), typed };
        let mut prompt = prompt;
        if let Err(error) = commit_prompt(&mut self.core, vec![&mut prompt.responder], commanded) {
            return prompt.responder.answer(Err(error));
        }
        let Session { core, recipes, hooks, mcp, compactor, questions, .. } = self;
        let ran = run(core, &CommandContext { recipes, hooks, mcp, compactor, questions });
        self.finish_command(prompt, ran);
    }

    /// Commits the result of a command and ends its turn, after its disk work if it has any.
    fn finish_command(&mut self, prompt: QueuedPrompt, ran: CommandOutcome) {
        let CommandOutcome { changes, text, meta, later, stop, rewound_files } = ran;
        if let Some(work) = later {
            let on_disk = self.core.start(work, |came| BackgroundResult::CommandOnDisk(prompt, came));
            self.inbox.stop_with(stop);
            return self.inbox.pause_for(on_disk.id(), InboxPause::Command);
        }
        let (reason, usage) = (StopReason::EndTurn, Usage::default());
        let ended = Change::TurnEnded { reason, usage, quiet_hooks: 0, failure: None };
        let note = text.map(|text| self.core.note(text));
        for change in changes.into_iter().chain(note).chain([ended]) {
            if let Err(error) = self.core.commit(change) {
                self.end_command(StopReason::Failed, Some(error.clone()));
                return prompt.responder.answer(Err(error));
            }
        }
        self.end_command(reason, None);
        if let Some(report) = &rewound_files {
            self.core.mark_reported(report);
        }
        self.core.log.save_thread(&self.core.thread);
        self.core.answer_when_synced(prompt.responder, Ok(SessionAnswer::TurnEnded { reason, usage, meta }));
    }

    /// Continues a command after its disk work.
    pub(super) fn command_on_disk(&mut self, prompt: QueuedPrompt, came: Option<DiskResult>) {
        self.inbox.resume();
        let ran = match came {
            Some(DiskResult::Rewound(plan, came)) => rewind::rewound(&mut self.core, *plan, came),
            Some(DiskResult::Checkpoints(Ok(turns))) => rewind::list_checkpoints(&mut self.core, &turns),
            Some(DiskResult::Checkpoints(Err(error))) => rewind::not_rewound(&error.to_string()),
            Some(DiskResult::Worktree((text, meta))) => CommandOutcome::text(text).with("worktree", meta),
            Some(DiskResult::Shell(mut run)) => {
                if let Some(masker) = self.tools.masker(&self.core) {
                    masker.mask_in(&mut run.output);
                }
                shell::ran(&mut self.core, run)
            }
            None => CommandOutcome::text(format!("Not done: {}.", WorkerFault)),
        };
        self.finish_command(prompt, ran);
    }
}
