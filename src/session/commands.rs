//! The slash commands that are no recipes: one table, and what each of them does.
//!
//! None calls a model, and each works where none is configured. What a command says is an entry of the
//! log, so that it is shown again whenever the session is.

pub(super) mod compact;
mod context;
mod dry;
mod help;
mod hooks;
mod layers;
mod mcp;
mod permissions;
mod pins;
pub(super) mod rewind;
mod usage;
pub mod why;

use super::actor::Session;
use super::work::{Background, Prompt};
use super::{Answer, CommandInfo, Out, Severity, summary, thinking};
use epitome_checkpoint::{CheckpointError, RewindReport, TurnRecord};
use epitome_compaction::{Budget, Preview};
use epitome_config::Summariser;
use epitome_provider::models;
use epitome_provider::spent::Spent;
use epitome_recipe::command;
use epitome_thread::{Change, StopReason, Usage};

/// The longest title that a person may give, in characters. Lists of sessions show one line.
const TITLE_CHARS_MAX: usize = 200;

/// The longest goal, in bytes: it is sent along again after every compaction.
const GOAL_BYTES_MAX: usize = 8 * 1024;

/// A command that Epitome carries out itself. A recipe of its name is not run by it.
pub(super) struct BuiltIn {
    name: &'static str,
    description: &'static str,
    hint: Option<&'static str>,
    /// Is given what was typed behind the name.
    run: fn(&mut Session, &str) -> Ran,
}

/// In the order in which `/help` tells of them. Their names are `command::RESERVED`.
const BUILT_IN: &[BuiltIn] = &[
    BuiltIn {
        name: "help",
        description: "List the commands, and where recipes come from",
        hint: None,
        run: Session::help,
    },
    BuiltIn {
        name: "context",
        description: "Show how full the window is, and of what",
        hint: None,
        run: Session::show_context,
    },
    BuiltIn {
        name: "usage",
        description: "Show what this session took: tokens and cost by model, agents, calls, time",
        hint: None,
        run: Session::show_usage,
    },
    BuiltIn {
        name: "goal",
        description: "Show, set or clear what the work is for; it outlives every compaction",
        hint: Some("[the goal | clear]"),
        run: Session::goal,
    },
    BuiltIn {
        name: "hooks",
        description: "Show the hooks of this session, in the order in which they run",
        hint: None,
        run: Session::show_hooks,
    },
    BuiltIn {
        name: "mcp",
        description: "Show the MCP servers of this session, how they stand, and their tools",
        hint: None,
        run: Session::show_mcp,
    },
    BuiltIn {
        name: "permissions",
        description: "Show what may run without a question, take it back, or keep it for this workspace",
        hint: Some("[forget N | forget all | keep N]"),
        run: Session::permissions,
    },
    BuiltIn {
        name: "rename",
        description: "Give this session another title",
        hint: Some("the title"),
        run: Session::rename,
    },
    BuiltIn {
        name: "undo",
        description: "Take the last compaction back, or what a hook did to the history; or an older one",
        hint: Some("[an entry, as e12]"),
        run: Session::undo,
    },
    BuiltIn {
        name: "redo",
        description: "Bring again what was taken back last, or another one",
        hint: Some("[an entry, as e12]"),
        run: Session::redo,
    },
    BuiltIn {
        name: "rewind",
        description: "Take a turn back: the files that it changed, the conversation, or both",
        hint: Some("[an entry, as e12] [files | conversation] [dry] [force] | undo"),
        run: Session::rewind,
    },
    BuiltIn {
        name: "checkpoints",
        description: "List the turns with the files that each of them changed",
        hint: None,
        run: Session::checkpoints,
    },
    BuiltIn {
        name: "history",
        description: "List what changed the history, who asked for it, and what can be undone now",
        hint: None,
        run: Session::history,
    },
    BuiltIn {
        name: "pin",
        description: "Keep an entry or some words through every compaction as they are; or list what is kept",
        hint: Some("[an entry, as e12 | some words]"),
        run: Session::pin,
    },
    BuiltIn {
        name: "unpin",
        description: "Let go of what was pinned",
        hint: Some("an entry, as e12 | all"),
        run: Session::unpin,
    },
    BuiltIn {
        name: "why",
        description: "Tell what compactions and hooks did here, who asked for it and why not",
        hint: Some("[an entry, as e12 | a hook]"),
        run: Session::why,
    },
];

/// What a command came to.
pub(super) struct Ran {
    changes: Vec<Change>,
    /// Goes into the answer's `_meta`.
    meta: Option<serde_json::Value>,
    /// What has to be done on the disk before it is known what the command comes to; the rest is nothing then.
    later: Option<Later>,
    /// A rewind of files that the changes tell of.
    told_of: Option<RewindReport>,
}

/// Work on the disk, for a command.
type Later = Box<dyn FnOnce() -> OnDisk + Send>;

/// What work on the disk came to.
pub enum OnDisk {
    Rewound(Box<rewind::Plan>, Option<Result<RewindReport, CheckpointError>>),
    Checkpoints(Result<Vec<TurnRecord>, CheckpointError>),
}

impl Ran {
    fn of(changes: Vec<Change>) -> Ran {
        Ran { changes, meta: None, later: None, told_of: None }
    }

    fn later(work: Later) -> Ran {
        Ran { later: Some(work), ..Ran::of(Vec::new()) }
    }

    /// With what a machine is told of it, below the command's name.
    fn with(self, command: &str, told: serde_json::Value) -> Ran {
        Ran { meta: Some(serde_json::json!({ "epitome": { command: told } })), ..self }
    }
}

/// The command that a text is, if it is one of ours.
pub(super) fn find(typed: &str) -> Option<&'static BuiltIn> {
    let name = command::parse(typed)?.name;
    BUILT_IN.iter().find(|built_in| built_in.name == name)
}

pub(super) fn is_built_in(name: &str) -> bool {
    command::RESERVED.contains(&name)
}

/// As clients list them.
pub(super) fn listed() -> impl Iterator<Item = CommandInfo> {
    BUILT_IN.iter().map(|built_in| CommandInfo {
        name: built_in.name.to_owned(),
        description: built_in.description.to_owned(),
        hint: built_in.hint.map(str::to_owned),
    })
}

impl Session {
    /// Whether a prompt is one of these commands. They need nobody's consent.
    pub(super) fn is_built_in(&self, prompt: &Prompt) -> bool {
        self.command_in(&prompt.content).is_some_and(|(_, typed)| find(typed).is_some())
    }

    /// Carries a command out, as a turn without a model call.
    pub(super) fn run_built_in(&mut self, prompt: Prompt, built_in: &BuiltIn, typed: String) {
        self.tell_what_is_left_out(&prompt);
        let rest = command::parse(&typed).map(|typed| typed.rest.to_owned()).unwrap_or_default();
        self.carry_out(prompt, typed, |session| (built_in.run)(session, &rest));
    }

    /// Commits the command, then what it comes to, and ends the turn. What the command runs sees its own
    /// entry as the newest.
    pub(super) fn carry_out(&mut self, prompt: Prompt, typed: String, run: impl FnOnce(&mut Session) -> Ran) {
        let commanded = Change::Commanded { message: self.fresh_message(), typed };
        if let Err(error) = self.commit(commanded) {
            return prompt.responder.answer(Err(error));
        }
        let ran = run(self);
        self.finish_command(prompt, ran);
    }

    /// Commits what a command came to and ends its turn, at once or when the disk has done its part.
    fn finish_command(&mut self, prompt: Prompt, ran: Ran) {
        let Ran { changes, meta, later, told_of } = ran;
        if let Some(work) = later {
            self.rewinding = true;
            self.background.spawn(async move {
                Background::OnDisk(Box::new(prompt), tokio::task::spawn_blocking(work).await.ok())
            });
            return;
        }
        let (reason, usage) = (StopReason::EndTurn, Usage::default());
        let ended = Change::TurnEnded { reason, usage, quiet_hooks: 0 };
        for change in changes.into_iter().chain([ended]) {
            if let Err(error) = self.commit(change) {
                return prompt.responder.answer(Err(error));
            }
        }
        if let Some(report) = &told_of {
            self.told_of(report);
        }
        self.answer_when_synced(prompt.responder, Answer::TurnEnded { reason, usage, meta });
    }

    /// A command's work on the disk is done.
    pub(super) fn on_disk(&mut self, prompt: Prompt, came: Option<OnDisk>) {
        self.rewinding = false;
        let ran = match came {
            Some(OnDisk::Rewound(plan, came)) => self.rewound(*plan, came),
            Some(OnDisk::Checkpoints(Ok(turns))) => self.list_checkpoints(&turns),
            Some(OnDisk::Checkpoints(Err(error))) => self.not_rewound(&error.to_string()),
            None => self.said(format!("Not done: {}.", thinking::FAULT)),
        };
        self.finish_command(prompt, ran);
    }

    /// For commands that send the model nothing of what came beside them.
    pub(super) fn tell_what_is_left_out(&self, prompt: &Prompt) {
        if prompt.content.len() > 1 {
            let text = "Only the command was run; what came beside it was left out.".to_owned();
            self.announce(&Out::Notice { severity: Severity::Info, text });
        }
    }

    fn noted(&mut self, text: impl Into<String>) -> Change {
        Change::Noted { message: self.fresh_message(), text: text.into() }
    }

    /// A command that only says something.
    fn said(&mut self, text: impl Into<String>) -> Ran {
        Ran::of(vec![self.noted(text)])
    }

    // ── One function each ──────────────────────────────────────────────────────────────────────

    fn help(&mut self, _: &str) -> Ran {
        let built_in: Vec<CommandInfo> = listed().collect();
        let text = help::text(&built_in, self.recipes.catalog(), &self.services.paths.home);
        self.said(text)
    }

    fn show_context(&mut self, _: &str) -> Ran {
        let facts = context::Facts {
            used: self.tokens_in_context(),
            model: self.model.endpoint().map(|endpoint| context::Window {
                model: endpoint.name.clone(),
                size: endpoint.window,
                reserve: self.reserve(),
            }),
            next: match (self.compaction_is_paused(), self.next_compaction_at()) {
                (true, _) => context::Next::Paused,
                (false, Some(tokens)) if self.is_prepared() => context::Next::Prepared(tokens),
                (false, Some(tokens)) => context::Next::At(tokens),
                (false, None) => context::Next::Never,
            },
            spent: Spent::of(&self.settings, &self.thread),
        };
        let text = context::text(&self.ruler(), &self.thread, &facts);
        self.said(text)
    }

    fn show_usage(&mut self, _: &str) -> Ran {
        let text = usage::text(&self.settings, &self.thread);
        self.said(text)
    }

    /// A `/compact` that can't be made as it is asked for.
    pub(super) fn no_compaction(&mut self, why: &str) -> Ran {
        let told = serde_json::json!({ "status": "refused", "reason": why });
        self.said(format!("Not compacted: {why}")).with("compaction", told)
    }

    /// Tells what a compaction would do.
    pub(super) fn dry_run(&mut self, preview: &Preview, budget: &Budget, command: String) -> Ran {
        let (least, most) = preview.tokens_after;
        let (now, least) = self.context_sizes((preview.tokens_before, least));
        let (_, most) = self.context_sizes((preview.tokens_before, most));
        let endpoint = self.model.endpoint();
        let other = endpoint.and_then(|endpoint| summary::writer_name(&self.settings, endpoint, now));
        let facts = dry::Facts {
            thread: &self.thread,
            preview,
            now,
            then: (least, most),
            window: self.model.window(),
            frame: budget.frame,
            model: endpoint.map(|endpoint| &endpoint.name),
            writer: match &other {
                Some(name) => dry::Writer::Other(name),
                None if self.settings.compaction.model == Summariser::Nobody => dry::Writer::Nobody,
                None => dry::Writer::Same,
            },
            small: endpoint
                .filter(|_| self.settings.compaction.model == Summariser::Cheapest)
                .and_then(|endpoint| models::small(&self.settings, Some(endpoint))),
            summary_max: budget.summary_max,
            prices: &|model, usage| models::cost(&self.settings, model, usage),
            command,
        };
        let (text, told) = (dry::text(&facts), dry::json(&facts));
        self.said(text).with("compaction", told)
    }

    fn goal(&mut self, typed: &str) -> Ran {
        let goal = match typed {
            "" => {
                let text = match self.thread.goal() {
                    Some(goal) => format!("The goal is: {goal}\n\n/goal clear ends it."),
                    None => "No goal is set. /goal and some words set one.".to_owned(),
                };
                return self.said(text);
            }
            "clear" if self.thread.goal().is_none() => return self.said("No goal is set."),
            "clear" => None,
            long if long.len() > GOAL_BYTES_MAX => {
                let text = format!(
                    "Not set: a goal has at most {GOAL_BYTES_MAX} bytes, and this has {}. Keep it short, and \
                     put the details into a file that it names.",
                    long.len()
                );
                return self.said(text);
            }
            goal => Some(goal.to_owned()),
        };
        // The entry is shown in its own words; the model is told before its next reply.
        Ran::of(vec![Change::GoalSet { goal }])
    }

    fn show_hooks(&mut self, _: &str) -> Ran {
        let text = hooks::text(self.hooks.found(), self.settings.hooks.enabled, &self.thread);
        self.said(text)
    }

    fn show_mcp(&mut self, _: &str) -> Ran {
        let waiting: Vec<String> = self.untrusted_servers().into_iter().map(|(_, what)| what).collect();
        let text = mcp::text(&self.mcp.standings(), &waiting);
        self.said(text)
    }

    fn rename(&mut self, typed: &str) -> Ran {
        let title = typed.split_whitespace().collect::<Vec<_>>().join(" ");
        let length = title.chars().count();
        if title.is_empty() {
            return self
                .said("Say the title: /rename TITLE.")
                .with("rename", serde_json::json!({ "status": "refused" }));
        }
        if length > TITLE_CHARS_MAX {
            return self
                .said(format!(
                    "Not renamed: a title has at most {TITLE_CHARS_MAX} characters, and this has {length}."
                ))
                .with("rename", serde_json::json!({ "status": "refused" }));
        }
        let noted = self.noted(format!("This session is now called: {title}"));
        let meta = serde_json::json!({ "status": "done", "title": title });
        Ran::of(vec![Change::Titled { title }, noted]).with("rename", meta)
    }

    fn why(&mut self, typed: &str) -> Ran {
        let text = why::text(&self.thread, typed);
        self.said(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_are_those_whose_names_are_reserved() {
        let mut names: Vec<String> = listed().map(|command| command.name).collect();
        names.sort();
        assert_eq!(names, command::RESERVED);
    }

    #[test]
    fn a_command_is_found_by_what_is_typed() {
        let name = |typed| find(typed).map(|built_in| built_in.name);
        assert_eq!(name("/goal ship it"), Some("goal"));
        assert_eq!(name(" /why e12"), Some("why"));
        assert_eq!(name("/goals"), None);
        assert_eq!(name("goal"), None);
    }
}
