//! Claude Code's hooks: this file reads them from its settings files and decides when each of them runs. Pure.
//!
//! A file contains groups by event, each with a matcher and commands. Kinds of hooks and events that Claude
//! Code supports and Epitome does not are reported as problems; the rest of the file takes effect.

pub mod action;
pub mod command_line;
mod matcher;
pub mod output;
pub mod payload;
pub mod tools;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::event::HookEvent;
use crate::hook::{
    ClaudeOptions, FailMode, Hook, HookKind, HookOrigin, Manifest, RUN_TIME_MAX, RUN_TIME_MIN,
};
use crate::hook_context::{EventData, HookContext};
use action::{ACTION_RUN_TIME, ClaudeAction, asks_at};
use epitome_recipe::plugins::Plugin;
use epitome_thread::problem::{Problem, nearest, position_in};
use matcher::{ClaudeRule, Matcher, MatcherError};
use payload::{agent_type, end_reason, event_name, start_source};

/// Default timeout of a command: ten minutes, as in Claude Code (CHANGELOG 2.1.3).
pub const CLAUDE_RUN_TIME: Duration = Duration::from_secs(600);
/// Maximum commands per file; more are probably a mistake of a generator.
pub const COMMANDS_MAX: usize = 256;
/// Maximum length of a command line in bytes.
pub const LINE_BYTES_MAX: usize = 16 * 1024;
/// Part of the names of Claude Code's small models.
const SMALL_MODEL: &str = "haiku";
/// Characters of a matcher shown in a hook's name.
const LABEL_CHARS_MAX: usize = 60;

/// Claude Code's events that Epitome does not have, with the reasons.
const NEVER_HERE: [(&str, &str); 18] = [
    ("ConfigChange", "settings are read again with each session, and changes of them are not announced"),
    ("CwdChanged", "a session keeps its directory"),
    ("DirectoryAdded", "a session keeps the directories that it was opened with"),
    ("Elicitation", "questions of MCP servers go to you alone"),
    ("ElicitationResult", "questions of MCP servers go to you alone"),
    ("FileChanged", "files are not watched for hooks"),
    ("InstructionsLoaded", "instructions are read before any hook can run"),
    ("MessageDisplay", "the editor shows messages, not Epitome"),
    ("PermissionDenied", "no model decides about permissions; use `PermissionRequest`"),
    ("PostModelSwitch", "changing the model runs no hooks"),
    ("PostToolBatch", "use `PostToolUse`, which runs after each call"),
    ("PreModelSwitch", "changing the model runs no hooks"),
    ("Setup", "there is no setup run"),
    ("TaskCreated", "a plan is written as a whole; use `TaskCompleted`, or `PostToolUse` of `TodoWrite`"),
    ("TeammateIdle", "there are no teammates: an agent ends when its work is done"),
    ("UserPromptExpansion", "use `UserPromptSubmit`, which sees the prompt that a command became"),
    ("WorktreeCreate", "agents work in the session's directory, not in worktrees"),
    ("WorktreeRemove", "agents work in the session's directory, not in worktrees"),
];

/// Claude Code's names of the supported events.
fn supported_events() -> impl Iterator<Item = (&'static str, HookEvent)> {
    let named = |event: HookEvent| event.names().iter().map(move |name| (*name, event));
    let theirs =
        HookEvent::ALL.into_iter().flat_map(named).filter(|(name, _)| name.starts_with(char::is_uppercase));
    theirs.chain([("PostToolUseFailure", HookEvent::AfterToolCall)])
}

/// Parses the hooks of a settings file. `project` is the directory in which its commands run. Invalid parts
/// are left out and reported.
///
/// The digest and the files of the hooks are filled in by the code that reads the disk.
pub fn parse(path: &Path, text: &str, origin: HookOrigin, project: &Path) -> (Vec<Hook>, Vec<Problem>) {
    parse_of(path, text, origin, project, None)
}

/// Like [`parse`], for a file of a plugin, which has the form of a settings file.
pub fn parse_of(
    path: &Path,
    text: &str,
    origin: HookOrigin,
    project: &Path,
    plugin: Option<&Plugin>,
) -> (Vec<Hook>, Vec<Problem>) {
    let mut reader = SettingsReader {
        path,
        text,
        origin,
        project,
        plugin,
        numbers: BTreeMap::new(),
        hooks: Vec::new(),
        problems: Vec::new(),
        has_timeout_remark: false,
    };
    reader.file();
    (reader.hooks, reader.problems)
}

/// Whether the file sets `disableAllHooks`. `parse` then returns no hooks; in a user's file the setting
/// applies to the hooks of all settings files.
pub fn disables_all(text: &str) -> bool {
    #[derive(Deserialize)]
    struct Switch {
        #[serde(rename = "disableAllHooks", default)]
        disable_all_hooks: bool,
    }
    serde_json::from_str::<Switch>(text).is_ok_and(|switch| switch.disable_all_hooks)
}

/// Whether a Claude Code hook runs at this event. Other kinds of hooks never match.
pub fn matches(hook: &Hook, hook_context: &HookContext) -> bool {
    let HookKind::Claude { matcher, only_if, .. } = &hook.kind else { return false };
    let Some(name) = event_name(hook_context) else { return false };
    let registered = hook.events.iter().any(|(_, registered)| registered == name);
    let matched = || match subjects(hook_context) {
        Some(subjects) => Matcher::read(matcher).is_ok_and(|matcher| matcher.matches(&subjects)),
        // Such an event ignores the matcher.
        None => true,
    };
    let ruled = || match only_if.as_str() {
        "" => true,
        rule => ClaudeRule::read(rule).is_ok_and(|rule| rule.matches(hook_context)),
    };
    registered && matched() && ruled()
}

/// The names with which a matcher is compared: Claude Code's, then Epitome's.
fn subjects(hook_context: &HookContext) -> Option<[&str; 2]> {
    let both = |name| Some([name, name]);
    match &hook_context.what {
        EventData::BeforeToolCall(call)
        | EventData::AfterToolCall { call, .. }
        | EventData::PermissionRequest(call) => Some([tools::tool_name(&call.tool), &call.tool]),
        EventData::Notification { kind, .. } | EventData::TurnFailed { kind, .. } => both(*kind),
        EventData::SubagentStart { agent, .. } => both(agent.as_str()),
        EventData::SessionStart { source } => Some([start_source(source), source]),
        EventData::SessionEnd { reason } => Some([end_reason(reason), reason]),
        EventData::AgentStop { .. } => both(agent_type(hook_context)?),
        EventData::PreCompact { trigger, .. } | EventData::PostCompact { trigger, .. } => both(trigger.id()),
        EventData::UserMessageSend { .. } | EventData::TaskCompleted { .. } | EventData::TurnEnd(_) => None,
    }
}

/// A part of the file as raw text, from which its position can be computed.
type Raw<'a> = &'a RawValue;

struct SettingsReader<'a> {
    path: &'a Path,
    text: &'a str,
    origin: HookOrigin,
    project: &'a Path,
    plugin: Option<&'a Plugin>,
    /// Number of hooks with the same event and matcher.
    numbers: BTreeMap<String, usize>,
    hooks: Vec<Hook>,
    problems: Vec<Problem>,
    has_timeout_remark: bool,
}

impl<'a> SettingsReader<'a> {
    fn file(&mut self) {
        // Some editors write a byte order mark before the text, which JSON does not allow.
        let text = self.text.trim_start_matches('\u{feff}');
        if text.trim().is_empty() {
            return;
        }
        let fields = match serde_json::from_str::<BTreeMap<String, Raw<'a>>>(text) {
            Ok(fields) => fields,
            Err(error) => {
                let position = (error.line() as u64, (error.column() as u64).max(1));
                let comment = text.lines().nth(error.line().saturating_sub(1));
                let hint = match comment.is_some_and(|line| line.trim_start().starts_with("//")) {
                    true => "settings files are plain JSON, which has no comments: take them out",
                    false => "none of its hooks run until it is fixed",
                };
                let message = format!("the settings are not valid JSON: {}", without_position(&error));
                self.problems.push(Problem::new(self.path, message).at(position).with_hint(hint));
                return;
            }
        };
        if disables_all(text) {
            return;
        }
        let Some(hooks) = fields.get("hooks") else { return };
        let Some(events) = self.read::<BTreeMap<String, Raw<'a>>>(hooks, "`hooks`", "an object, by events")
        else {
            return;
        };
        let mut group = 0;
        for (name, groups) in events {
            let Some(groups) = self.read::<Vec<Raw<'a>>>(groups, &format!("`{name}`"), "a list of groups")
            else {
                continue;
            };
            let Some((name, event)) = supported_events().find(|(known, _)| *known == name) else {
                self.unknown_event(&name, &groups);
                continue;
            };
            for entry in groups {
                self.group(name, event, entry, group);
                group += 1;
            }
        }
    }

    fn unknown_event(&mut self, name: &str, groups: &[Raw<'a>]) {
        let Some(first) = groups.first() else { return };
        if let Some((_, why)) = NEVER_HERE.iter().find(|(known, _)| *known == name) {
            return self.report(first, format!("the hooks of `{name}` never run here: {why}"), None);
        }
        let known = nearest(name, supported_events().map(|(known, _)| known));
        let hint = known.map(|known| format!("did you mean `{known}`?"));
        self.report(first, format!("the hooks of `{name}` are not run: there is no such event"), hint);
    }

    fn group(&mut self, name: &str, event: HookEvent, entry: Raw<'a>, group: usize) {
        #[derive(Deserialize)]
        struct ClaudeGroup<'a> {
            matcher: Option<String>,
            #[serde(borrow, default)]
            hooks: Vec<&'a RawValue>,
        }
        let text = entry.get();
        let read: ClaudeGroup<'a> = match serde_json::from_str(text) {
            Ok(read) => read,
            Err(error) => {
                let message = format!("this group of `{name}` is not run: {}", without_position(&error));
                let hint = "a group is {\"matcher\": \"Bash\", \"hooks\": [{\"type\": \"command\", …}]}";
                return self.report(entry, message, Some(hint.to_owned()));
            }
        };
        let matcher = read.matcher.unwrap_or_default().trim().to_owned();
        if let Err(fault) = Matcher::read(&matcher) {
            return self.report(
                entry,
                format!("the hooks of `{name}` with this matcher are not run: {fault}"),
                Some("a matcher is a name, names with `|` between them, or a regular expression".to_owned()),
            );
        }
        for command in read.hooks {
            if let Err(why) = self.command(name, event, &matcher, command, group) {
                self.report(command, format!("a hook of `{name}` is not run: {why}"), None);
            }
        }
    }

    /// Adds one hook of a group.
    fn command(
        &mut self,
        name: &str,
        event: HookEvent,
        matcher: &str,
        entry: Raw<'a>,
        group: usize,
    ) -> Result<(), ClaudeHookError> {
        let mut command: ClaudeCommand = serde_json::from_str(entry.get())?;
        let (line, action) = command.action(event)?;
        if line.len() > LINE_BYTES_MAX || line.contains('\0') {
            return Err(ClaudeHookError::Line);
        }
        let only_if = command.only_if.unwrap_or_default().trim().to_owned();
        if !only_if.is_empty() {
            ClaudeRule::read(&only_if)?;
        }
        if self.hooks.len() == COMMANDS_MAX {
            return Err(ClaudeHookError::TooMany);
        }
        if command.once {
            self.report(
                entry,
                format!("`once` of a hook of `{name}` is not supported: it runs each time"),
                None,
            );
        }
        if command.async_rewake {
            let message = format!(
                "`asyncRewake` of a hook of `{name}` is not supported: it runs in the background, and its output waits for the next call of the model"
            );
            self.report(entry, message, None);
        }
        let default_time = match action {
            ClaudeAction::Command => CLAUDE_RUN_TIME,
            ClaudeAction::Prompt { .. } | ClaudeAction::Post { .. } => ACTION_RUN_TIME,
        };
        let options = ClaudeOptions {
            runs_async: action == ClaudeAction::Command && (command.runs_async || command.async_rewake),
            action,
            plugin: self.plugin.map(|plugin| plugin.folders.clone()),
            written_at: Some(self.position_of(entry)),
        };
        let manifest = Manifest {
            timeout: self.timeout(command.timeout, default_time, entry),
            fail_mode: match command.on_failure.as_deref() {
                Some("block") => FailMode::Closed,
                _ => FailMode::Open,
            },
            exit_2_blocks: true,
            transcript: true,
            ..Manifest::default()
        };
        let events = vec![(event, name.to_owned())];
        let name = self.name(name, matcher);
        self.hooks.push(Hook {
            name,
            origin: self.origin,
            events,
            manifest,
            digest: String::new(),
            files: vec![self.path.to_path_buf()],
            kind: HookKind::Claude { line, group, matcher: matcher.to_owned(), only_if, options },
        });
        Ok(())
    }

    fn timeout(&mut self, seconds: Option<f64>, default: Duration, entry: Raw<'a>) -> Duration {
        let Some(seconds) = seconds else { return default };
        let (least, most) = (RUN_TIME_MIN.as_secs_f64(), RUN_TIME_MAX.as_secs_f64());
        if (least..=most).contains(&seconds) {
            return Duration::from_secs_f64(seconds);
        }
        let bounded = if seconds > most { RUN_TIME_MAX } else { RUN_TIME_MIN };
        // A file with one timeout in milliseconds probably has all of them in milliseconds, so this is reported once.
        if std::mem::replace(&mut self.has_timeout_remark, true) {
            return bounded;
        }
        self.report(
            entry,
            format!("a `timeout` of {seconds} s is out of bounds; {} s are used", bounded.as_secs_f64()),
            Some(format!("it is in seconds, from {least} to {most}")),
        );
        bounded
    }

    /// `PreToolUse[Bash|Edit]#1@.claude/settings.json`: readable, and unique among the files of a session.
    fn name(&mut self, event: &str, matcher: &str) -> String {
        let label = match matcher {
            "" | "*" => event.to_owned(),
            matcher => format!("{event}[{}]", matcher.chars().take(LABEL_CHARS_MAX).collect::<String>()),
        };
        let number = self.numbers.entry(label.clone()).or_default();
        *number += 1;
        if let Some(plugin) = self.plugin {
            // A plugin may have several files of hooks.
            let name = self.path.file_name().unwrap_or_default().to_string_lossy();
            let file = if name == "hooks.json" { String::new() } else { format!("/{name}") };
            return format!("{label}#{number}@plugin {}{file}", plugin.name);
        }
        let file = if self.origin.is_repository() {
            self.path.strip_prefix(self.project).unwrap_or(self.path).to_path_buf()
        } else {
            let tail: Vec<_> = self.path.iter().rev().take(2).collect();
            Path::new("~").join(tail.into_iter().rev().collect::<PathBuf>())
        };
        format!("{label}#{number}@{}", file.display())
    }

    /// Deserializes one value of the file. Reports the expected form on failure.
    fn read<T: Deserialize<'a>>(&mut self, raw: Raw<'a>, what: &str, form: &str) -> Option<T> {
        match serde_json::from_str(raw.get()) {
            Ok(value) => Some(value),
            Err(_) => {
                self.report(raw, format!("{what} must be {form}"), None);
                None
            }
        }
    }

    fn position_of(&self, raw: Raw<'a>) -> (u64, u64) {
        // A raw value is a slice of `text`, so the pointer difference is its offset.
        let offset = (raw.get().as_ptr() as usize).saturating_sub(self.text.as_ptr() as usize);
        position_in(self.text, offset.min(self.text.len()))
    }

    fn report(&mut self, raw: Raw<'a>, message: String, hint: Option<String>) {
        let position = Some(self.position_of(raw));
        self.problems.push(Problem { position, hint, ..Problem::new(self.path, message) });
    }
}

/// Why a hook of a group can't run.
#[derive(Debug, thiserror::Error)]
enum ClaudeHookError {
    #[error("{}", without_position(.0))]
    Parse(#[from] serde_json::Error),
    #[error("its text is longer than {LINE_BYTES_MAX} bytes or contains a NUL; put a command into a script")]
    Line,
    #[error("its `if` cannot be read: {0}")]
    If(#[from] MatcherError),
    #[error("the file has more than {COMMANDS_MAX} hooks")]
    TooMany,
    #[error("it has no `{0}`")]
    Missing(&'static str),
    #[error("its `{0}` is empty")]
    Empty(&'static str),
    #[error("its shell is not `bash`")]
    Shell,
    #[error("a model can't decide anything at this event")]
    NothingToDecide,
    #[error("its `url` begins with neither http:// nor https://")]
    Url,
    #[error("hooks of type `{0}` are not supported, only those of type `command`, `prompt` and `http`")]
    Kind(String),
}

/// A hook of a group, as in the file.
#[derive(Deserialize)]
struct ClaudeCommand {
    #[serde(rename = "type")]
    kind: String,
    command: Option<String>,
    prompt: Option<String>,
    model: Option<String>,
    url: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(rename = "allowedEnvVars", default)]
    allowed_variables: Vec<String>,
    args: Option<Vec<String>>,
    timeout: Option<f64>,
    shell: Option<String>,
    #[serde(rename = "if")]
    only_if: Option<String>,
    #[serde(rename = "onFailure")]
    on_failure: Option<String>,
    #[serde(default)]
    once: bool,
    #[serde(rename = "async", default)]
    runs_async: bool,
    #[serde(rename = "asyncRewake", default)]
    async_rewake: bool,
}

impl ClaudeCommand {
    /// The text of the hook, and the action that uses it.
    fn action(&mut self, event: HookEvent) -> Result<(String, ClaudeAction), ClaudeHookError> {
        let given = |text: Option<String>, name: &'static str| match text {
            Some(text) if text.trim().is_empty() => Err(ClaudeHookError::Empty(name)),
            Some(text) => Ok(text),
            None => Err(ClaudeHookError::Missing(name)),
        };
        match self.kind.as_str() {
            "command" => {
                if self.shell.as_deref().is_some_and(|shell| shell != "bash") {
                    return Err(ClaudeHookError::Shell);
                }
                let line = given(self.command.take(), "command")?;
                let line =
                    self.args.take().map_or(line.clone(), |args| command_line::quoted_line(&line, &args));
                Ok((line, ClaudeAction::Command))
            }
            "prompt" if !asks_at(event) => Err(ClaudeHookError::NothingToDecide),
            "prompt" => {
                let small = self.model.as_deref().is_none_or(|model| model.contains(SMALL_MODEL));
                Ok((given(self.prompt.take(), "prompt")?, ClaudeAction::Prompt { small }))
            }
            "http" => {
                let url = given(self.url.take(), "url")?;
                if !["http://", "https://"].iter().any(|scheme| url.starts_with(scheme)) {
                    return Err(ClaudeHookError::Url);
                }
                let headers = std::mem::take(&mut self.headers);
                let variables = std::mem::take(&mut self.allowed_variables);
                Ok((url, ClaudeAction::Post { headers, variables }))
            }
            kind => Err(ClaudeHookError::Kind(kind.to_owned())),
        }
    }
}

/// The parser's message without its position, which is reported separately.
fn without_position(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.rsplit_once(" at line ").map_or(text.clone(), |(message, _)| message.to_owned())
}
