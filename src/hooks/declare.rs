//! Reads what a hook candidate declares, and describes candidates that are not trusted yet.

use std::collections::BTreeSet;

use super::discover::{Candidate, Finder, Written};
use super::hook::{Hook, Kind};
use super::manifest::{self, Declared, Form, Given};
use super::probe::Answers;
use epitome_problem::Problem;

/// Maximum characters of the description in a consent prompt.
const WHAT_CHARS_MAX: usize = 400;

impl Finder<'_> {
    /// The hook that a candidate declares; if there is none, the reason is reported as a problem.
    pub fn hook(&mut self, candidate: &Candidate, answers: &Answers) -> Option<Hook> {
        let declared = match &candidate.written {
            Written::Claude(hook) => return Some(self.of_claude(hook, candidate)),
            Written::Declarative { .. } => self.declared(candidate, None),
            Written::Executable => match answers.answer(&candidate.path) {
                Ok(answer) => self.declared(candidate, Some(answer)),
                Err(message) => {
                    let hint = "called with `hook` it must print the names of its events and end with 0";
                    let (path, hint) = (candidate.path.clone(), Some(hint.to_owned()));
                    Err(Problem { path, place: None, message: message.to_owned(), hint })
                }
            },
        };
        let kind_and_declared =
            declared.and_then(|declared| Ok((self.kind(candidate, &declared)?, declared)));
        match kind_and_declared {
            Ok((kind, declared)) => {
                declared.notes.into_iter().for_each(|note| self.problem(note));
                Some(Hook {
                    name: candidate.name.clone(),
                    place: candidate.place,
                    kind,
                    events: declared.events,
                    manifest: declared.manifest,
                    digest: candidate.digest.clone(),
                    files: candidate.files.clone(),
                })
            }
            Err(problem) => {
                self.problem(problem);
                None
            }
        }
    }

    /// A hook of a settings file with the user's overrides applied; its matcher and command stay its own.
    fn of_claude(&mut self, hook: &Hook, candidate: &Candidate) -> Hook {
        let mut hook = Hook { digest: candidate.digest.clone(), ..hook.clone() };
        if let Some(fields) = self.search.settings.overrides.get(&hook.name) {
            let file = self.search.paths.config_file();
            let (manifest, notes) = manifest::overridden(hook.manifest, fields, &hook.name, &file);
            hook.manifest = manifest;
            notes.into_iter().for_each(|note| self.problem(note));
        }
        hook
    }

    /// What a candidate declares: in its file, or in its answer to `hook`.
    fn declared(&self, candidate: &Candidate, answer: Option<&str>) -> Result<Declared, Problem> {
        let overrides = &self.search.settings.overrides;
        let by_alias = || candidate.alias.as_ref().and_then(|alias| overrides.get(alias));
        let fields = overrides.get(&candidate.name).or_else(by_alias);
        let file = self.search.paths.config_file();
        let given = Given {
            timeout: self.search.settings.timeout,
            overrides: fields.map(|fields| (fields, file.as_path())),
            name: &candidate.name,
        };
        match (&candidate.written, answer) {
            (Written::Declarative { syntax, content }, _) => {
                manifest::read_file(&candidate.path, content, *syntax, given)
            }
            (Written::Executable | Written::Claude(_), answer) => {
                manifest::read_answer(&candidate.path, answer.unwrap_or_default(), given)
            }
        }
    }

    fn kind(&self, candidate: &Candidate, declared: &Declared) -> Result<Kind, Problem> {
        let path = candidate.path.clone();
        Ok(match &declared.form {
            Form::Script => Kind::Script { path },
            Form::Resident => Kind::Resident { path },
            Form::Result(then) => Kind::Declared { then: then.clone() },
            Form::Webhook { url, headers, secret } => {
                let resolve = |secret: &manifest::Secret| {
                    secret.resolve(self.search.environment).map_err(|message| {
                        let hint = Some("set it where the editor or the shell is started".to_owned());
                        Problem { path: path.clone(), place: None, message, hint }
                    })
                };
                let headers = headers
                    .iter()
                    .map(|(name, value)| Ok((name.clone(), resolve(value)?)))
                    .collect::<Result<_, _>>()?;
                Kind::Webhook { url: url.clone(), headers, secret: secret.as_ref().map(resolve).transpose()? }
            }
        })
    }

    /// Describes what an untrusted file would do. Executables are not queried.
    pub fn what(&self, candidate: &Candidate) -> String {
        let what = match &candidate.written {
            Written::Executable => "runs this file at the moments that it names".to_owned(),
            Written::Claude(hook) => what_of_claude(hook),
            Written::Declarative { .. } => self.what_of_declared(candidate),
        };
        match what.char_indices().nth(WHAT_CHARS_MAX) {
            None => what,
            Some((at, _)) => format!("{}… ({} more characters)", &what[..at], what[at..].chars().count()),
        }
    }

    fn what_of_declared(&self, candidate: &Candidate) -> String {
        match self.declared(candidate, None) {
            Err(problem) => format!("cannot be read: {}", problem.message),
            Ok(declared) => {
                let events: Vec<&str> = declared.events.iter().map(|(event, _)| event.name()).collect();
                let events = events.join(", ");
                match &declared.form {
                    Form::Result(then) => {
                        let then = serde_json::to_string(then).unwrap_or_default();
                        format!("at {events}, without a program: {then}")
                    }
                    Form::Webhook { url, headers, secret } => {
                        let variables: BTreeSet<&str> =
                            headers.values().chain(secret).filter_map(manifest::Secret::variable).collect();
                        let variables: Vec<&str> = variables.into_iter().collect();
                        let with = match variables.is_empty() {
                            true => String::new(),
                            false => format!(", with the variables {}", variables.join(", ")),
                        };
                        format!("at {events} posts what happens to {url}{with}")
                    }
                    Form::Script | Form::Resident => format!("runs at {events}"),
                }
            }
        }
    }
}

fn what_of_claude(hook: &Hook) -> String {
    let events: Vec<&str> = hook.events.iter().map(|(_, name)| name.as_str()).collect();
    let events = events.join(", ");
    match &hook.kind {
        Kind::Claude { line, matcher, .. } if matcher.is_empty() => format!("at {events} runs: {line}"),
        Kind::Claude { line, matcher, .. } => format!("at {events} of {matcher} runs: {line}"),
        Kind::Script { .. } | Kind::Resident { .. } | Kind::Declared { .. } | Kind::Webhook { .. } => events,
    }
}
