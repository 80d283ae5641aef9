//! Reads what a hook candidate declares, and describes candidates that are not trusted yet.

use serde_json::{Map, Value};

use super::discover::{Declaration, HookCandidate, HookFinder};
use super::hook::{Hook, HookKind};
use super::manifest::{self, Given, ParsedManifest};
use super::probe::AnswerCache;
use epitome_thread::problem::Problem;
use epitome_thread::visible::code;

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
        let problem = |message: &str, hint| Problem::new(&candidate.path, message).with_hint(hint);
        let answer = match &candidate.written {
            Declaration::Claude(hook) => return Ok(self.of_claude(hook, candidate)),
            Declaration::Declarative { .. } => "",
            Declaration::Executable => answers.answer(&candidate.path).map_err(|message| {
                problem(
                    &message.to_string(),
                    "called with `hook` it must print the names of its events and end with 0",
                )
            })?,
        };
        let ParsedManifest { events, manifest, mut kind, notes } = self.declared(candidate, answer)?;
        kind.resolve(&self.search.workspace.environment).map_err(|message| {
            problem(&message.to_string(), "set it where the editor or the shell is started")
        })?;
        let hook = Hook {
            name: candidate.name.clone(),
            origin: candidate.origin,
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

    /// The fields that replace those of a candidate. The administrator's hooks keep theirs: without its events, a hook would
    /// be switched off.
    fn overrides(&self, candidate: &HookCandidate) -> Option<&Map<String, Value>> {
        if candidate.path.starts_with(self.search.paths.policy_hooks()) {
            return None;
        }
        let overrides = &self.search.settings.overrides;
        let by_alias = || candidate.alias.as_ref().and_then(|alias| overrides.get(alias));
        overrides.get(&candidate.name).or_else(by_alias)
    }

    /// Parses a candidate's declaration, from its file or its answer to `hook`.
    fn declared(&self, candidate: &HookCandidate, answer: &str) -> Result<ParsedManifest, Problem> {
        let fields = self.overrides(candidate);
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

    /// Describes what an untrusted file would do: when, in Markdown, and what it runs, without a cut. Executables are not
    /// queried.
    pub fn what(&self, candidate: &HookCandidate) -> (String, String) {
        match &candidate.written {
            Declaration::Executable => {
                ("runs at the events that it names".to_owned(), candidate.path.display().to_string())
            }
            Declaration::Claude(hook) => {
                let events: Vec<&str> = hook.events.iter().map(|(_, name)| name.as_str()).collect();
                described(&events.join(", "), &hook.kind)
            }
            Declaration::Declarative { .. } => match self.declared(candidate, "") {
                Err(problem) => ("cannot be read".to_owned(), problem.message),
                Ok(declared) => {
                    let events: Vec<&str> = declared.events.iter().map(|(event, _)| event.name()).collect();
                    described(&events.join(", "), &declared.kind)
                }
            },
        }
    }
}

/// When a hook runs, and what it runs.
fn described(events: &str, kind: &HookKind) -> (String, String) {
    let events = code(events);
    let variables: Vec<String> = kind.variables().into_iter().map(code).collect();
    let with = match variables.is_empty() {
        true => String::new(),
        false => format!(", with the values of your variables {}", variables.join(", ")),
    };
    match kind {
        HookKind::Script { path } | HookKind::Resident { path } => {
            (format!("runs at {events}"), path.display().to_string())
        }
        HookKind::Declared { then } => {
            let then = serde_json::to_string_pretty(then).unwrap_or_default();
            (format!("acts at {events}, without a program"), then)
        }
        HookKind::Webhook { url, .. } => (format!("posts what happens at {events}{with}"), url.clone()),
        HookKind::Claude { line, matcher, options, .. } => {
            let of = if matcher.is_empty() { String::new() } else { format!(" of {}", code(matcher)) };
            (format!("{} at {events}{of}{with}", options.action.verb()), line.clone())
        }
    }
}
