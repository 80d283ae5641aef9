//! Reads what a hook candidate declares, and describes candidates that are not trusted yet.

use super::claude::action::ClaudeAction;
use super::discover::{Declaration, HookCandidate, HookFinder};
use super::hook::{Hook, HookKind};
use super::manifest::{self, Given, ParsedManifest};
use super::probe::AnswerCache;
use epitome_problem::Problem;

/// Maximum characters of the description in a consent prompt.
const WHAT_CHARS_MAX: usize = 400;

impl HookFinder<'_> {
    /// Returns the hook that a candidate declares. If the declaration is invalid, reports a problem and returns `None`.
    pub fn hook(&mut self, candidate: &HookCandidate, answers: &AnswerCache) -> Option<Hook> {
        match self.read_hook(candidate, answers) {
            Ok((hook, notes)) => {
                notes.into_iter().for_each(|note| self.problem(note));
                Some(hook)
            }
            Err(problem) => {
                self.problem(problem);
                None
            }
        }
    }

    fn read_hook(
        &self,
        candidate: &HookCandidate,
        answers: &AnswerCache,
    ) -> Result<(Hook, Vec<Problem>), Problem> {
        let problem = |message: String, hint: &str| Problem {
            path: candidate.path.clone(),
            place: None,
            message,
            hint: Some(hint.to_owned()),
        };
        let answer = match &candidate.written {
            Declaration::Claude(hook) => return Ok(self.of_claude(hook, candidate)),
            Declaration::Declarative { .. } => "",
            Declaration::Executable => answers.answer(&candidate.path).map_err(|message| {
                let hint = "called with `hook` it must print the names of its events and end with 0";
                problem(message.to_owned(), hint)
            })?,
        };
        let ParsedManifest { events, manifest, mut kind, notes } = self.declared(candidate, answer)?;
        kind.resolve(self.search.environment)
            .map_err(|message| problem(message, "set it where the editor or the shell is started"))?;
        let hook = Hook {
            name: candidate.name.clone(),
            place: candidate.place,
            kind,
            events,
            manifest,
            digest: candidate.digest.clone(),
            files: candidate.files.clone(),
        };
        Ok((hook, notes))
    }

    /// A hook of a settings file with the user's overrides applied. Its matcher and command can't be overridden.
    fn of_claude(&self, hook: &Hook, candidate: &HookCandidate) -> (Hook, Vec<Problem>) {
        let mut hook = Hook { digest: candidate.digest.clone(), ..hook.clone() };
        let Some(fields) = self.search.settings.overrides.get(&hook.name) else { return (hook, Vec::new()) };
        let file = self.search.paths.config_file();
        let (manifest, notes) = manifest::overridden(hook.manifest, fields, &hook.name, &file);
        hook.manifest = manifest;
        (hook, notes)
    }

    /// Parses a candidate's declaration, from its file or its answer to `hook`.
    fn declared(&self, candidate: &HookCandidate, answer: &str) -> Result<ParsedManifest, Problem> {
        let overrides = &self.search.settings.overrides;
        let by_alias = || candidate.alias.as_ref().and_then(|alias| overrides.get(alias));
        let fields = overrides.get(&candidate.name).or_else(by_alias);
        let file = self.search.paths.config_file();
        let given = Given {
            timeout: self.search.settings.timeout,
            overrides: fields.map(|fields| (fields, file.as_path())),
            name: &candidate.name,
        };
        match &candidate.written {
            Declaration::Declarative { syntax, content } => {
                manifest::read_file(&candidate.path, content, *syntax, given)
            }
            Declaration::Executable | Declaration::Claude(_) => {
                manifest::read_answer(&candidate.path, answer, given)
            }
        }
    }

    /// Describes what an untrusted file would do. Executables are not queried.
    pub fn what(&self, candidate: &HookCandidate) -> String {
        let what = match &candidate.written {
            Declaration::Executable => "runs this file at the events that it names".to_owned(),
            Declaration::Claude(hook) => {
                let events: Vec<&str> = hook.events.iter().map(|(_, name)| name.as_str()).collect();
                described(&events.join(", "), &hook.kind)
            }
            Declaration::Declarative { .. } => match self.declared(candidate, "") {
                Err(problem) => format!("cannot be read: {}", problem.message),
                Ok(declared) => {
                    let events: Vec<&str> = declared.events.iter().map(|(event, _)| event.name()).collect();
                    described(&events.join(", "), &declared.kind)
                }
            },
        };
        match what.char_indices().nth(WHAT_CHARS_MAX) {
            None => what,
            Some((at, _)) => format!("{}… ({} more characters)", &what[..at], what[at..].chars().count()),
        }
    }
}

/// Describes what a hook does at its events.
fn described(events: &str, kind: &HookKind) -> String {
    match kind {
        HookKind::Script { .. } | HookKind::Resident { .. } => format!("runs at {events}"),
        HookKind::Declared { then } => {
            let then = serde_json::to_string(then).unwrap_or_default();
            format!("at {events}, without a program: {then}")
        }
        HookKind::Webhook { url, .. } => {
            let variables: Vec<&str> = kind.variables().into_iter().collect();
            let with = match variables.is_empty() {
                true => String::new(),
                false => format!(", with the variables {}", variables.join(", ")),
            };
            format!("at {events} posts what happens to {url}{with}")
        }
        HookKind::Claude { line, matcher, options, .. } => {
            let of = if matcher.is_empty() { String::new() } else { format!(" of {matcher}") };
            let with = match &options.action {
                ClaudeAction::Post { variables, .. } if !variables.is_empty() => {
                    format!(", with the variables {}", variables.join(", "))
                }
                ClaudeAction::Command | ClaudeAction::Prompt { .. } | ClaudeAction::Post { .. } => {
                    String::new()
                }
            };
            format!("at {events}{of} {}: {line}{with}", options.action.verb())
        }
    }
}
