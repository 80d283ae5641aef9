//! Claude Code's hooks as declared in its settings files, and when each of them runs. Pure.
//!
//! A file contains groups by event, each with a matcher and commands. Kinds of hooks and events that Claude
//! Code supports and this program does not are reported as problems; the rest of the file takes effect.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use super::claude_match::{Matcher, Rule};
use super::claude_payload::{agent_type, end_reason, event_name, start_source, trigger_name};
use super::claude_tools::tool_name;
use super::claude_words::exec_form;
pub use super::claude_words::files_named;
use super::digest::hexadecimal;
use super::event::HookEvent;
use super::hook::{FailMode, Hook, Kind, Manifest, Place, RUN_TIME_MAX, RUN_TIME_MIN};
use super::moment::{Moment, What};
use epitome_problem::{Problem, nearest, place_in};

/// Default timeout of a command.
pub const CLAUDE_RUN_TIME: Duration = Duration::from_secs(60);
/// Maximum commands per file; more are probably a mistake of a generator.
pub const COMMANDS_MAX: usize = 256;
/// Maximum length of a command line in bytes.
pub const LINE_BYTES_MAX: usize = 16 * 1024;
/// Characters of a matcher shown in a hook's name.
const LABEL_CHARS_MAX: usize = 60;

/// Claude Code's names of the supported events.
const EVENTS: [(&str, HookEvent); 10] = [
    ("SessionStart", HookEvent::SessionStart),
    ("UserPromptSubmit", HookEvent::UserMessageSend),
    ("PreToolUse", HookEvent::BeforeToolCall),
    ("PostToolUse", HookEvent::AfterToolCall),
    ("PostToolUseFailure", HookEvent::AfterToolCall),
    ("Stop", HookEvent::AgentStop),
    ("SubagentStop", HookEvent::AgentStop),
    ("PreCompact", HookEvent::PreCompact),
    ("PostCompact", HookEvent::PostCompact),
    ("SessionEnd", HookEvent::SessionEnd),
];

/// Claude Code's names of unsupported events.
const FOREIGN_EVENTS: [&str; 23] = [
    "ConfigChange",
    "CwdChanged",
    "DirectoryAdded",
    "Elicitation",
    "ElicitationResult",
    "FileChanged",
    "InstructionsLoaded",
    "MessageDisplay",
    "Notification",
    "PermissionDenied",
    "PermissionRequest",
    "PostModelSwitch",
    "PostToolBatch",
    "PreModelSwitch",
    "Setup",
    "StopFailure",
    "SubagentStart",
    "TaskCompleted",
    "TaskCreated",
    "TeammateIdle",
    "UserPromptExpansion",
    "WorktreeCreate",
    "WorktreeRemove",
];

/// Parses the hooks of a settings file. `project` is the directory in which its commands run. Invalid parts
/// are left out and reported.
///
/// The digest covers only the declaration. `files` contains the settings file first, then the paths that the
/// command line names, which may not exist: the code that reads the disk adds their contents.
pub fn parse(path: &Path, text: &str, place: Place, project: &Path) -> (Vec<Hook>, Vec<Problem>) {
    let mut reading = Reading {
        path,
        text,
        place,
        project,
        numbers: BTreeMap::new(),
        hooks: Vec::new(),
        problems: Vec::new(),
    };
    reading.file();
    (reading.hooks, reading.problems)
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

/// Whether a Claude Code hook runs at this moment. Other kinds of hooks never match.
pub fn fits(hook: &Hook, moment: &Moment) -> bool {
    let Kind::Claude { matcher, only_if, .. } = &hook.kind else { return false };
    let Some(name) = event_name(moment) else { return false };
    let registered = hook.events.iter().any(|(_, registered)| registered == name);
    let matched = || match subjects(moment) {
        Some(subjects) => Matcher::read(matcher).is_ok_and(|matcher| matcher.fits(&subjects)),
        // Such an event ignores its matcher.
        None => true,
    };
    let ruled = || match only_if.as_str() {
        "" => true,
        rule => Rule::read(rule).is_ok_and(|rule| rule.fits(moment)),
    };
    registered && matched() && ruled()
}

/// The names that a matcher is compared with: Claude Code's, then ours.
fn subjects(moment: &Moment) -> Option<[&str; 2]> {
    match &moment.what {
        What::BeforeToolCall(call) | What::AfterToolCall { call, .. } => {
            Some([tool_name(&call.tool), &call.tool])
        }
        What::SessionStart { source } => Some([start_source(source), source]),
        What::SessionEnd { reason } => Some([end_reason(reason), reason]),
        What::PreCompact { trigger, .. } | What::PostCompact { trigger, .. } => {
            Some([trigger_name(*trigger), trigger_name(*trigger)])
        }
        What::AgentStop { .. } => agent_type(moment).map(|agent| [agent, agent]),
        What::UserMessageSend { .. } | What::TurnEnd(_) => None,
    }
}

/// A part of the file as raw text, from which its position can be computed.
type Raw<'a> = &'a RawValue;

struct Reading<'a> {
    path: &'a Path,
    text: &'a str,
    place: Place,
    project: &'a Path,
    /// Number of hooks with the same event and matcher.
    numbers: BTreeMap<String, usize>,
    hooks: Vec<Hook>,
    problems: Vec<Problem>,
}

impl<'a> Reading<'a> {
    fn file(&mut self) {
        // Some editors write a byte order mark before the text, which JSON does not allow.
        let text = self.text.trim_start_matches('\u{feff}');
        if text.trim().is_empty() {
            return;
        }
        let fields = match serde_json::from_str::<BTreeMap<String, Raw<'a>>>(text) {
            Ok(fields) => fields,
            Err(error) => {
                let place = (error.line() as u64, (error.column() as u64).max(1));
                let comment = text.lines().nth(error.line().saturating_sub(1));
                let hint = if comment.is_some_and(|line| line.trim_start().starts_with("//")) {
                    "settings files are plain JSON, which has no comments: take them out"
                } else {
                    "none of its hooks run until it is mended"
                };
                self.problems.push(Problem {
                    path: self.path.to_path_buf(),
                    place: Some(place),
                    message: format!("the settings are not valid JSON: {}", without_place(&error)),
                    hint: Some(hint.to_owned()),
                });
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
            let Some((name, event)) = EVENTS.into_iter().find(|(known, _)| *known == name) else {
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
        if FOREIGN_EVENTS.contains(&name) {
            self.report(
                first,
                format!("the hooks of `{name}` are not run: Epitome has no such moment"),
                None,
            );
            return;
        }
        let known = nearest(name, EVENTS.iter().map(|(known, _)| *known));
        let hint = known.map(|known| format!("did you mean `{known}`?"));
        self.report(first, format!("the hooks of `{name}` are not run: there is no such event"), hint);
    }

    fn group(&mut self, name: &str, event: HookEvent, entry: Raw<'a>, group: usize) {
        #[derive(Deserialize)]
        struct Group<'a> {
            matcher: Option<String>,
            #[serde(borrow, default)]
            hooks: Vec<&'a RawValue>,
        }
        let text = entry.get();
        let read: Group<'a> = match serde_json::from_str(text) {
            Ok(read) => read,
            Err(error) => {
                let message = format!("this group of `{name}` is not run: {}", without_place(&error));
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
            self.command(name, event, &matcher, command, group);
        }
    }

    fn command(&mut self, name: &str, event: HookEvent, matcher: &str, entry: Raw<'a>, group: usize) {
        let not_run = |why: &str| format!("a hook of `{name}` is not run: {why}");
        let command: Command = match serde_json::from_str(entry.get()) {
            Ok(command) => command,
            Err(error) => return self.report(entry, not_run(&without_place(&error)), None),
        };
        if command.kind != "command" {
            let why =
                format!("hooks of type `{}` are not known here, only those of type `command`", command.kind);
            return self.report(entry, not_run(&why), None);
        }
        if command.shell.as_deref().is_some_and(|shell| shell != "bash") {
            return self.report(entry, not_run("its shell is not `bash`"), None);
        }
        let line = match (&command.command, &command.args) {
            (Some(line), _) if line.trim().is_empty() => {
                return self.report(entry, not_run("its `command` is empty"), None);
            }
            (Some(line), None) => line.clone(),
            (Some(program), Some(args)) => exec_form(program, args),
            (None, _) => return self.report(entry, not_run("it has no `command`"), None),
        };
        if line.len() > LINE_BYTES_MAX || line.contains('\0') {
            let why = format!("its command is longer than {LINE_BYTES_MAX} bytes or holds a NUL");
            return self.report(entry, not_run(&why), Some("put it into a script".to_owned()));
        }
        let only_if = command.only_if.unwrap_or_default().trim().to_owned();
        if !only_if.is_empty()
            && let Err(fault) = Rule::read(&only_if)
        {
            return self.report(entry, not_run(&format!("its `if` cannot be read: {fault}")), None);
        }
        if self.hooks.len() == COMMANDS_MAX {
            let why = format!("the file has more than {COMMANDS_MAX} hooks");
            return self.report(entry, not_run(&why), None);
        }
        for (key, set) in [("once", command.once), ("async", command.runs_async || command.async_rewake)] {
            if set {
                let message = format!("`{key}` of a hook of `{name}` is not followed: ");
                let what = if key == "once" { "it runs each time" } else { "its end is waited for" };
                self.report(entry, message + what, None);
            }
        }
        let timeout = self.timeout(command.timeout, entry);
        let manifest = Manifest {
            timeout,
            fail_mode: match command.on_failure.as_deref() {
                Some("block") => FailMode::Closed,
                Some(_) | None => FailMode::Open,
            },
            exit_2_blocks: true,
            transcript: true,
            ..Manifest::default()
        };
        let mut files = vec![self.path.to_path_buf()];
        files.extend(files_named(&line, self.project));
        let hook = Hook {
            name: self.name(name, matcher),
            place: self.place,
            events: vec![(event, name.to_owned())],
            manifest,
            digest: digest([name, matcher, &only_if, &line, &timeout.as_millis().to_string()]),
            files,
            kind: Kind::Claude { line, group, matcher: matcher.to_owned(), only_if },
        };
        self.hooks.push(hook);
    }

    fn timeout(&mut self, seconds: Option<f64>, entry: Raw<'a>) -> Duration {
        let Some(seconds) = seconds else { return CLAUDE_RUN_TIME };
        let (least, most) = (RUN_TIME_MIN.as_secs_f64(), RUN_TIME_MAX.as_secs_f64());
        if (least..=most).contains(&seconds) {
            return Duration::from_secs_f64(seconds);
        }
        let bounded = if seconds > most { RUN_TIME_MAX } else { RUN_TIME_MIN };
        self.report(
            entry,
            format!("a `timeout` of {seconds} s is out of bounds; {} s are taken", bounded.as_secs_f64()),
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
        let file = match self.place {
            Place::Repository => self.path.strip_prefix(self.project).unwrap_or(self.path).to_path_buf(),
            Place::Enforced | Place::Person => {
                let tail: Vec<_> = self.path.iter().rev().take(2).collect();
                Path::new("~").join(tail.into_iter().rev().collect::<PathBuf>())
            }
        };
        format!("{label}#{number}@{}", file.display())
    }

    /// Deserializes one value of the file; reports the expected form on failure.
    fn read<T: Deserialize<'a>>(&mut self, raw: Raw<'a>, what: &str, form: &str) -> Option<T> {
        match serde_json::from_str(raw.get()) {
            Ok(value) => Some(value),
            Err(_) => {
                self.report(raw, format!("{what} must be {form}"), None);
                None
            }
        }
    }

    fn report(&mut self, raw: Raw<'a>, message: String, hint: Option<String>) {
        // A raw value is a slice of `text`, so the pointer difference is its offset.
        let offset = (raw.get().as_ptr() as usize).saturating_sub(self.text.as_ptr() as usize);
        let place = Some(place_in(self.text, offset.min(self.text.len())));
        self.problems.push(Problem { path: self.path.to_path_buf(), place, message, hint });
    }
}

/// A hook of a group, as in the file.
#[derive(Deserialize)]
struct Command {
    #[serde(rename = "type")]
    kind: String,
    command: Option<String>,
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

/// The parser's message without its position, which is reported separately.
fn without_place(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.rsplit_once(" at line ").map_or(text.clone(), |(message, _)| message.to_owned())
}

fn digest<'a>(parts: impl IntoIterator<Item = &'a str>) -> String {
    let mut sha = Sha256::new();
    for part in parts {
        // Length-prefixed, because otherwise two declarations could concatenate to the same bytes.
        sha.update((part.len() as u64).to_le_bytes());
        sha.update(part.as_bytes());
    }
    hexadecimal(&sha.finalize().into())
}
