//! Permissions for tool calls: decisions by rules, modes and hooks, questions that only the user can answer, and the
//! open permission prompt.

use std::path::Path;
use std::sync::Arc;

use tokio::task::AbortHandle;

use super::own_grants::OwnGrants;
use super::saved_permissions;
use super::session_permissions::SessionPermissions;
use super::{AskId, PermissionRequest, SessionEvent, UserDecision};
use epitome_config::Settings;
use epitome_files::paths::Paths;
use epitome_hooks::output::PermissionDecision;
use epitome_secrets as secrets;
use epitome_thread::problem::Problem;
use epitome_thread::visible::shortened;
use epitome_thread::{
    CallId, Change, Decider, Mode, PermissionChoice, REFUSED_BECAUSE, RecordedDecision, Rule, Thread,
    ToolCall, ToolDisplay,
};
use epitome_tools::command_line;
use epitome_tools::git_commands::is_plain;
use epitome_tools::permission::ruled;
use epitome_tools::permission::{DiskFacts, PermissionVerdict};
use epitome_tools::{Access, Toolbox, Workspace};
use epitome_turn::Permit;

/// Maximum bytes of unreadable arguments shown to the model.
const SHOWN_ARGUMENT_BYTES_MAX: usize = 200;

/// Maximum characters of the user's reason for a refusal shown to the model.
const REASON_CHARS_MAX: usize = 2_000;

/// The refusal of an edit that would replace a key in a file by its mask.
const MASK_WRITTEN: &str = "Not run: this contains a mask ([secret masked: …]) instead of a key that you \
                            were not shown. In a file, it would replace the key. Leave that part of the \
                            file as it is, or ask the user to insert the key.";

/// Denies a call if no client has a user to ask.
const NO_USER_PRESENT: &str = "This needs the user's permission, and no user is present to give it.";

/// A hook's decision about a call, the hook's name, and the reason.
pub(super) type HookDecision = (PermissionDecision, String, Option<String>);

/// The permissions of a session and its open permission prompt.
pub(super) struct Permissions {
    /// The user's permissions for the rest of the session, given in it or in one of its children.
    session: SessionPermissions,
    /// The user's saved permissions for the workspace.
    saved: saved_permissions::SavedPermissionsReader,
    /// The permissions that were given in this session on this machine.
    own: OwnGrants,
    open: Option<OpenPermission>,
    /// Whether the user has allowed a command to change a repository in this turn: further ordinary commands of Git are then
    /// allowed as well, as the prompt says.
    allows_git: bool,
}

/// A permission prompt without an answer.
struct OpenPermission {
    ask: AskId,
    call: CallId,
    /// The access that the user is asked about; a symlink replaced in the meantime would change it.
    access: Access,
    /// The rule that "always" adds, with its text.
    always: Option<(Rule, String)>,
    /// The text of the rule in a settings file that requires the question.
    because: Option<String>,
    /// The prompt as clients see it; `None` until it is shown.
    shown: Option<Arc<PermissionRequest>>,
    /// The hooks that may answer it.
    hooks: Option<AbortHandle>,
}

/// The input of a ruling besides the permissions.
pub(super) struct RulingContext<'a> {
    pub toolbox: &'a Toolbox,
    pub mode: Mode,
    /// Whether commands run in a complete sandbox; matters only in the mode `Auto`.
    pub is_sandboxed: bool,
    pub settings: &'a Settings,
    pub workspace: &'a Workspace,
    /// The user's saved rules for the workspace.
    pub saved: &'a [Rule],
    /// The only tools and command lines that the running recipe may use.
    pub allowed_tools: Option<&'a [String]>,
    pub allowed_commands: Option<&'a [String]>,
    pub by_hook: Option<&'a HookDecision>,
    /// Whether the agent is writing its closing message and may run no further call.
    pub wraps_up: bool,
    /// Whether there is no client that could be asked.
    pub is_alone: bool,
}

/// A decision about a call that needs no user, or the question for one.
pub(super) enum Ruling {
    /// Settled, with the decider, unless the call is harmless or can't run.
    Settled(Permit, Option<RecordedDecision>),
    /// The call runs, and may touch only this.
    Allowed(Access, Option<RecordedDecision>),
    AskPerson(PermissionQuestion),
}

/// A question to the user about a call.
pub(super) struct PermissionQuestion {
    pub access: Access,
    always: Option<(Rule, String)>,
    because: Option<String>,
}

/// The user's answer to a permission prompt.
pub(super) struct PermissionAnswer {
    pub call: CallId,
    pub permit: Permit,
    pub decided: RecordedDecision,
    /// The rule to add for the rest of the session.
    pub rule: Option<Rule>,
}

impl Permissions {
    /// Starts with the rules in the session's log.
    pub fn new(rules: &[Rule], own: OwnGrants) -> Permissions {
        Permissions {
            own,
            session: SessionPermissions::new(rules),
            saved: saved_permissions::SavedPermissionsReader::default(),
            open: None,
            allows_git: false,
        }
    }

    /// The turn has ended, and with it what was allowed for it.
    pub fn end_turn(&mut self) {
        self.allows_git = false;
    }

    /// Uses the parent's list of rules from now on.
    pub fn share(&mut self, session: SessionPermissions) {
        self.session = session;
    }

    /// The list of this session's rules, for a child to share.
    pub fn shared(&self) -> SessionPermissions {
        self.session.clone()
    }

    /// Returns the changes that withdraw what somebody else gave; `mode` is that of the settings.
    pub fn foreign(&self, thread: &Thread, mode: Mode) -> Vec<Change> {
        self.own.foreign(thread, mode)
    }

    /// Applies a committed change.
    pub fn apply(&self, change: &Change) {
        self.own.record(change);
        match change {
            Change::Allowed { rule } => self.session.allow(rule),
            Change::Forgotten { rule } => self.session.forget(rule),
            _ => {}
        }
    }

    /// Replaces the rules by those of the log, after entries were undone.
    pub fn follow(&self, rules: &[Rule]) {
        self.session.replace(rules);
    }

    /// The user's saved rules for this workspace. If the file can't be read, it allows nothing and a problem is
    /// returned.
    pub fn saved(&mut self, paths: &Paths, cwd: &Path) -> Result<Arc<[Rule]>, Problem> {
        self.saved.read(paths, cwd).map_err(|error| {
            let path = saved_permissions::file(paths);
            let hint = "no saved permission applies until then; move the file away to start over".to_owned();
            Problem::new(path, error.to_string()).with_hint(hint)
        })
    }

    /// Decides whatever can be decided without a user.
    pub fn rule(&self, call: Option<&ToolCall>, given: &RulingContext<'_>) -> Ruling {
        let impossible = |text: String| Ruling::Settled(Permit::Impossible(text), None);
        let by_recipe = |why: String| Ruling::Settled(Permit::Denied(why), refused_by(Decider::Recipe));
        let Some(call) = call else {
            return impossible("This call is not in the conversation.".to_owned());
        };
        let Some(tool) = given.toolbox.get(&call.name) else {
            let names: Vec<String> = given.toolbox.specs().into_iter().map(|spec| spec.name).collect();
            return impossible(format!(
                "There is no tool {:?}. The tools are {}.",
                call.name,
                names.join(", ")
            ));
        };
        if let Some(text) = call.input.get("invalid_json").and_then(|text| text.as_str()) {
            let shown = &text[..text.floor_char_boundary(SHOWN_ARGUMENT_BYTES_MAX)];
            return impossible(format!(
                "The arguments are not a JSON object: {shown:?}. Call the tool again with a complete one."
            ));
        }
        if given.wraps_up {
            let why = "No more calls are run. Report now.".to_owned();
            return Ruling::Settled(Permit::Denied(why), None);
        }
        if given.allowed_tools.is_some_and(|allowed| !allowed.contains(&call.name)) {
            return by_recipe(format!("The recipe that runs may not use {}.", call.name));
        }
        let access = match tool.access(&call.input, given.workspace) {
            Ok(access) => access,
            Err(error) => return impossible(error.into()),
        };
        if matches!(access, Access::Write(_) | Access::Remember(_) | Access::Command { .. })
            && given.settings.mask_secrets
            && secrets::has_mask_in(&call.input)
        {
            return impossible(MASK_WRITTEN.to_owned());
        }
        if let (Access::Command { line, .. }, Some(listed)) = (&access, given.allowed_commands)
            && let Some(why) = command_line::refused(line, listed)
        {
            return by_recipe(why);
        }
        let judged = ruled::judge(&ruled::PermissionQuery {
            tool: &call.name,
            names: &tool.rule_names(&call.input),
            access: &access,
            mode: given.mode,
            is_sandboxed: given.is_sandboxed,
            remembered: &self.session.rules(),
            kept: given.saved,
            rules: &given.settings.permissions,
            workspace: given.workspace,
            facts: &DiskFacts::look_up(&access, given.workspace),
        });
        let ask = |access, always, because: Option<String>| match given.is_alone {
            true => Ruling::Settled(Permit::Denied(no_user(because.as_deref())), refused_by(Decider::Nobody)),
            false => Ruling::AskPerson(PermissionQuestion { access, always, because }),
        };
        // A hook's decision replaces the user's. It can't allow what the mode forbids, nor answer a question that a
        // rule in a settings file requires.
        match (judged.verdict, given.by_hook) {
            (PermissionVerdict::Allow { .. }, Some((PermissionDecision::Ask, ..))) => {
                ask(access, None, judged.because)
            }
            (PermissionVerdict::Ask { .. }, Some((PermissionDecision::Allow, hook, _)))
                if judged.because.is_none() =>
            {
                let by = Decider::Hook { hook: hook.clone() };
                Ruling::Allowed(access, Some(RecordedDecision { allowed: true, by }))
            }
            (PermissionVerdict::Ask { .. }, None)
                if self.allows_git && judged.because.is_none() && is_ordinary_git(&access) =>
            {
                let by = Decider::Person { answer: PermissionChoice::Once };
                Ruling::Allowed(access, Some(RecordedDecision { allowed: true, by }))
            }
            (PermissionVerdict::Allow { .. }, _) => Ruling::Allowed(access, judged.decided),
            (PermissionVerdict::Deny { why }, _) => Ruling::Settled(Permit::Denied(why), judged.decided),
            (PermissionVerdict::Ask { always }, _) => ask(access, always, judged.because),
        }
    }

    // ── The permission prompt ──────────────────────────────────────────────────────────────────

    /// Opens a permission prompt for a call; it is shown once its preview is available.
    pub fn open(&mut self, call: CallId, question: PermissionQuestion) {
        let PermissionQuestion { access, always, because } = question;
        let (ask, shown, hooks) = (AskId::fresh(), None, None);
        self.open = Some(OpenPermission { ask, call, access, always, because, shown, hooks });
    }

    pub fn open_ask(&self) -> Option<AskId> {
        self.open.as_ref().map(|open| open.ask)
    }

    /// The access that the user is asked about, if the open prompt is for this call.
    pub fn asked_access(&self, call: &CallId) -> Option<&Access> {
        self.open.as_ref().filter(|open| open.call == *call).map(|open| &open.access)
    }

    /// The call and the access that the user is asked about, if this prompt is open.
    pub fn asked_call(&self, ask: AskId) -> Option<(CallId, Access)> {
        let open = self.open.as_ref().filter(|open| open.ask == ask)?;
        Some((open.call.clone(), open.access.clone()))
    }

    /// Whether a hook may answer this prompt. If a rule in a settings file requires it, only the user may.
    pub fn may_be_answered_by_hook(&self, ask: AskId) -> bool {
        self.open.as_ref().is_some_and(|open| open.ask == ask && open.because.is_none())
    }

    /// Completes the prompt of a call; it is shown from now on.
    pub fn show(
        &mut self,
        call: &ToolCall,
        mut preview: Vec<ToolDisplay>,
        by_hook: Option<&HookDecision>,
    ) -> Option<SessionEvent> {
        let open = self.open.as_mut().filter(|open| open.call == call.id)?;
        if let Some((PermissionDecision::Ask, by, Some(why))) = by_hook
            && !why.trim().is_empty()
        {
            preview.insert(0, ToolDisplay::Text { text: format!("The hook {by} asks: {}", why.trim()) });
        }
        if let Some(because) = &open.because {
            preview.insert(0, ToolDisplay::Text { text: because.clone() });
        }
        open.shown = Some(Arc::new(PermissionRequest {
            call: call.id.clone(),
            tool: call.name.clone(),
            input: call.input.clone(),
            card: call.card.clone(),
            preview,
            because: open.because.clone(),
            always: open.always.as_ref().map(|(_, words)| words.clone()),
            never: None,
            agent: None,
        }));
        self.shown()
    }

    /// The open prompt, if it is shown.
    pub fn shown(&self) -> Option<SessionEvent> {
        let open = self.open.as_ref()?;
        Some(SessionEvent::Ask { ask: open.ask, permission: open.shown.clone()? })
    }

    /// These hooks may answer the open prompt.
    pub fn set_hooks(&mut self, hooks: Option<AbortHandle>) {
        if let Some(open) = &mut self.open {
            open.hooks = hooks;
        }
    }

    /// Withdraws the open prompt, because the turn is cancelled, and ends its hooks.
    pub fn withdraw(&mut self) -> Option<SessionEvent> {
        let open = self.open.take()?;
        if let Some(hooks) = &open.hooks {
            hooks.abort();
        }
        Some(SessionEvent::Withdrawn { ask: open.ask })
    }

    /// Drops the prompt of a call that can't run; returns whether it was open.
    pub fn drop_permission(&mut self, call: &CallId) -> bool {
        self.open.take_if(|open| open.call == *call).is_some()
    }

    /// Handles an answer; returns `None` if it is late or unknown. `is_same`: whether the call would still touch what
    /// the user was asked about.
    pub fn answer(&mut self, ask: AskId, decision: &UserDecision, is_same: bool) -> Option<PermissionAnswer> {
        let OpenPermission { call, access, always, because, .. } =
            self.open.take_if(|open| open.ask == ask)?;
        let person = |answer| Decider::Person { answer };
        let mut rule = None;
        let (permit, by) = match decision {
            UserDecision::AllowOnce | UserDecision::AllowAlways if !is_same => {
                let why = "The files changed while the user decided.".to_owned();
                (Permit::Denied(why), person(PermissionChoice::TooLate))
            }
            UserDecision::AllowOnce => (Permit::Allowed, person(PermissionChoice::Once)),
            UserDecision::AllowAlways => {
                rule = always.map(|(rule, _)| rule);
                let answer = if rule.is_some() { PermissionChoice::Always } else { PermissionChoice::Once };
                (Permit::Allowed, person(answer))
            }
            UserDecision::RejectBecause(reason) => {
                let reason = shortened(reason.trim(), REASON_CHARS_MAX);
                let why = format!("{REFUSED_BECAUSE}{reason}");
                (Permit::Denied(why), person(PermissionChoice::No))
            }
            UserDecision::Reject | UserDecision::RejectAlways => {
                let why = "The user refused this call. Don't try the same again; find another way or ask \
                           what they want.";
                (Permit::Denied(why.to_owned()), person(PermissionChoice::No))
            }
            UserDecision::Dismissed => (
                Permit::Denied("The user did not allow this call.".to_owned()),
                person(PermissionChoice::Dismissed),
            ),
            UserDecision::Absent => (Permit::Denied(no_user(because.as_deref())), Decider::Nobody),
        };
        let changes_git = matches!(access, Access::Command { changes_git: true, .. });
        self.allows_git |= changes_git && is_ordinary_git(&access) && permit == Permit::Allowed;
        let decided = RecordedDecision { allowed: permit == Permit::Allowed, by };
        Some(PermissionAnswer { call, permit, decided, rule })
    }
}

/// The refusal of a call about which nobody can be asked, with the rule that requires the question.
fn no_user(because: Option<&str>) -> String {
    because.map_or_else(|| NO_USER_PRESENT.to_owned(), |because| format!("{NO_USER_PRESENT} {because}"))
}

fn refused_by(by: Decider) -> Option<RecordedDecision> {
    Some(RecordedDecision { allowed: false, by })
}

/// Whether an access is a line of ordinary commands of Git in the sandbox.
fn is_ordinary_git(access: &Access) -> bool {
    matches!(access, Access::Command { line, confined: true, .. } if is_plain(line))
}
