//! `epitome hooks`: which hooks there are, which of a repository's may run, what one would do, and what
//! they did.

mod log;
mod meaning;
mod try_out;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::terminal::{self, harmless};
use super::{CliError, serve};
use crate::config::{Settings, Trust as Policy};
use crate::hooks::discover::{Found, Search, Untrusted, discover};
use crate::hooks::shown::{self, kind, word};
use crate::hooks::trust::{Decision, Item, Trust};
use crate::paths::Paths;
use crate::problem::Problem;
use crate::tools::reaper::Reaper;

/// Digits of a digest that are shown: enough to tell two versions apart.
const DIGEST_SHOWN: usize = 12;

const HELP: &str = "\
epitome hooks: what runs at moments of a session

  epitome hooks list [--json]
        the hooks of this directory in their order, what waits for your word, what is skipped and why
  epitome hooks trust [NAME|PATH...] [--never] [--yes]
        let hooks of this repository run, in their present version; without a name all that wait.
        --never refuses them; --yes where nobody can be asked
  epitome hooks test NAME EVENT [--payload FILE|-] [--json]
        run one hook with a sample payload, or with the given one, and show how its result is read;
        nothing of the result is done
  epitome hooks log [SESSION | --newest] [--json]
        what hooks did and asked for in a session, and what was made of it; --newest, the default, is
        the newest session of this directory

Hooks of a repository never run before you allow them, and ask again when they change.
";

pub fn main(arguments: Vec<OsString>) -> Result<i32, CliError> {
    let Some(request) = Request::parse(arguments)? else {
        terminal::print(HELP)?;
        return Ok(0);
    };
    let paths = serve::paths();
    super::log::to_file(&paths);
    match request {
        Request::List { form } => list(&Here::of_cwd(paths)?, form),
        Request::Trust { names, decision, consent } => {
            trust(&Here::of_cwd(paths)?, &names, decision, consent)
        }
        Request::Test { name, event, payload, form } => {
            try_out::test(&Here::of_cwd(paths)?, &name, &event, payload.as_deref(), form)
        }
        Request::Log { session, form } => log::log(&paths, session.as_deref(), form),
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Request {
    List {
        form: Form,
    },
    Trust {
        names: Vec<String>,
        decision: Decision,
        consent: Consent,
    },
    Test {
        name: String,
        event: String,
        payload: Option<PathBuf>,
        form: Form,
    },
    /// `None`: the newest of this directory.
    Log {
        session: Option<String>,
        form: Form,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Text,
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Consent {
    Ask,
    Given,
}

impl Request {
    /// `None`: the person wants to know what there is.
    fn parse(arguments: Vec<OsString>) -> Result<Option<Request>, CliError> {
        use lexopt::prelude::*;
        let (mut words, mut flags, mut payload) = (Vec::new(), Vec::new(), None);
        let mut parser = lexopt::Parser::from_args(arguments);
        while let Some(argument) = parser.next()? {
            match argument {
                Short('h') | Long("help") => return Ok(None),
                Long("payload") => payload = Some(PathBuf::from(parser.value()?)),
                Long(flag) if ["json", "never", "yes", "newest"].contains(&flag) => {
                    flags.push(flag.to_owned())
                }
                Value(word) => words.push(word.string()?),
                other => return Err(other.unexpected().into()),
            }
        }
        if words.is_empty() {
            return Err(CliError::usage("say what to do: list, trust, test or log"));
        }
        let verb = words.remove(0);
        let given = |flag: &str| flags.iter().any(|known| known == flag);
        let form = if given("json") { Form::Json } else { Form::Text };
        let mut words = words.into_iter();
        let (request, allowed): (Request, &[&str]) = match verb.as_str() {
            "list" => (Request::List { form }, &["json"]),
            "trust" => {
                let decision = if given("never") { Decision::Never } else { Decision::Always };
                let consent = if given("yes") { Consent::Given } else { Consent::Ask };
                (Request::Trust { names: words.by_ref().collect(), decision, consent }, &["never", "yes"])
            }
            "test" => {
                let (Some(name), Some(event)) = (words.next(), words.next()) else {
                    return Err(CliError::usage(
                        "test needs a hook and an event: epitome hooks test NAME EVENT",
                    ));
                };
                (Request::Test { name, event, payload: payload.take(), form }, &["json"])
            }
            "log" => {
                let session = words.next();
                if session.is_some() && given("newest") {
                    return Err(CliError::usage("give a session or --newest, not both"));
                }
                (Request::Log { session, form }, &["json", "newest"])
            }
            other => return Err(CliError::usage(format!("there is no `epitome hooks {other}`"))),
        };
        if let Some(flag) = flags.iter().find(|flag| !allowed.contains(&flag.as_str())) {
            return Err(CliError::usage(format!("`epitome hooks {verb}` has no --{flag}")));
        }
        if payload.is_some() {
            return Err(CliError::usage(format!("`epitome hooks {verb}` has no --payload")));
        }
        match words.next() {
            Some(word) => Err(CliError::usage(format!("{word:?} is one argument too many"))),
            None => Ok(Some(request)),
        }
    }
}

/// The directory that a command is about, and what holds there.
struct Here {
    paths: Paths,
    cwd: PathBuf,
    settings: Settings,
    /// Of the settings and of the store of consent.
    problems: Vec<Problem>,
    environment: Arc<Vec<(OsString, OsString)>>,
    trust: Trust,
    reaper: Arc<Reaper>,
}

impl Here {
    fn of_cwd(paths: Paths) -> Result<Here, CliError> {
        let cwd = std::env::current_dir()
            .map_err(|error| CliError::failed(format!("this directory can't be found: {error}"), None))?;
        let (settings, mut problems) = Settings::load(&paths, Some(&cwd), |name| std::env::var_os(name));
        let (trust, problem) = Trust::load(&paths, settings.hooks.trust);
        problems.extend(problem);
        let environment = serve::environment();
        let reaper = Arc::new(Reaper::of_this_executable());
        Ok(Here { paths, cwd, settings, problems, environment, trust, reaper })
    }

    fn find(&self) -> Found {
        let mut found = discover(&Search {
            paths: &self.paths,
            cwd: &self.cwd,
            settings: &self.settings.hooks,
            reaper: &self.reaper,
            environment: &self.environment,
            trust: &self.trust,
        });
        found.problems.splice(0..0, self.problems.iter().cloned());
        found
    }
}

fn list(place: &Here, form: Form) -> Result<i32, CliError> {
    let found = place.find();
    let text = match form {
        Form::Json => format!("{}\n", shown::found(&found)),
        Form::Text if !place.settings.hooks.enabled => {
            "Hooks are switched off (hooks.enabled in the settings).\n".to_owned()
        }
        Form::Text => text_of(&found),
    };
    terminal::print(&text)?;
    Ok(0)
}

fn text_of(found: &Found) -> String {
    let mut out = String::new();
    if found.hooks.is_empty() && found.untrusted.is_empty() {
        out.push_str("There are no hooks here.\n");
    }
    for hook in &found.hooks {
        let events: Vec<&str> = hook.events.iter().map(|(event, _)| event.name()).collect();
        let _ = writeln!(out, "{}  {}", harmless(&hook.name), events.join(", "));
        let path = hook.files.first().map_or_else(String::new, |path| path.display().to_string());
        let _ = writeln!(
            out,
            "    {} · {} · {} · {}",
            word(hook.place),
            kind(hook),
            short(&hook.digest),
            harmless(&path)
        );
        if !hook.manifest.description.is_empty() {
            let _ = writeln!(out, "    {}", harmless(&hook.manifest.description));
        }
    }
    if !found.untrusted.is_empty() {
        out.push_str("\nWaiting for your word (`epitome hooks trust`):\n");
        found.untrusted.iter().for_each(|item| out.push_str(&waiting(item)));
    }
    if !found.skipped.is_empty() {
        out.push_str("\nSkipped:\n");
        for skipped in &found.skipped {
            let _ = writeln!(
                out,
                "  {}: {}",
                harmless(&skipped.path.display().to_string()),
                harmless(&skipped.reason)
            );
        }
    }
    if !found.problems.is_empty() {
        out.push_str("\nProblems:\n");
        for problem in &found.problems {
            let _ = writeln!(out, "  {}", harmless(&problem.to_string()));
        }
    }
    out
}

fn waiting(item: &Untrusted) -> String {
    let mut out = format!("  {}  {}\n", harmless(&item.name), short(&item.digest));
    let _ = writeln!(out, "    {}", harmless(&item.what));
    for file in &item.files {
        let _ = writeln!(out, "    {}", harmless(&file.display().to_string()));
    }
    out
}

fn short(digest: &str) -> &str {
    digest.get(..DIGEST_SHOWN).unwrap_or(digest)
}

fn trust(place: &Here, names: &[String], decision: Decision, consent: Consent) -> Result<i32, CliError> {
    match place.settings.hooks.trust {
        Policy::Ask => {}
        Policy::Run => eprintln!("note: hooks.trust is run, so hooks of a repository run without a word"),
        Policy::Never => eprintln!("note: hooks.trust is never, so no hook of a repository runs"),
    }
    let found = place.find();
    let chosen = chosen(&place.cwd, &found.untrusted, names)?;
    if chosen.is_empty() {
        terminal::print("Nothing waits for your word.\n")?;
        return Ok(0);
    }
    chosen.iter().for_each(|item| eprint!("{}", waiting(item)));
    let question = match decision {
        Decision::Never => "Never run these?",
        Decision::Always | Decision::Once => "Let these run, until they change?",
    };
    if consent == Consent::Ask {
        let Some(mut keyboard) = terminal::keyboard() else {
            let hint = Some("--yes decides where nobody can be asked".to_owned());
            return Err(CliError::failed("this has to be confirmed, and there is no terminal", hint));
        };
        if !terminal::confirm(&mut *keyboard, question) {
            return Err(CliError::failed("nothing was decided", None));
        }
    }
    let items: Vec<Item> =
        chosen.iter().map(|item| Item { path: item.path.clone(), digest: item.digest.clone() }).collect();
    let mut trust = place.trust.clone();
    trust.remember(&items, decision).map_err(|message| CliError::failed(message, None))?;
    let what = match decision {
        Decision::Never => "refused",
        Decision::Always | Decision::Once => "allowed",
    };
    terminal::print(
        &chosen.iter().map(|item| format!("{what} {}\n", harmless(&item.name))).collect::<String>(),
    )?;
    Ok(0)
}

/// What of the waiting a name or path means; without any, all.
fn chosen<'a>(
    cwd: &Path,
    waiting: &'a [Untrusted],
    names: &[String],
) -> Result<Vec<&'a Untrusted>, CliError> {
    let mut chosen: Vec<&Untrusted> = Vec::new();
    if names.is_empty() {
        return Ok(waiting.iter().collect());
    }
    for name in names {
        let path = cwd.join(name).canonicalize().ok();
        let means =
            |item: &&Untrusted| item.name == *name || path.is_some() && item.path.canonicalize().ok() == path;
        let meant: Vec<&Untrusted> = waiting.iter().filter(means).collect();
        if meant.is_empty() {
            let hint = Some("`epitome hooks list` shows what waits".to_owned());
            return Err(CliError::failed(format!("no hook {name} waits for your word"), hint));
        }
        chosen.extend(meant);
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::super::parsed;
    use super::*;

    #[test]
    fn requests_are_read() {
        let parse = |arguments: &[&str]| parsed(Request::parse, arguments);
        assert_eq!(parse(&["list", "--json"]), Ok(Request::List { form: Form::Json }));
        let trust =
            Request::Trust { names: vec!["a".into()], decision: Decision::Never, consent: Consent::Given };
        assert_eq!(parse(&["trust", "a", "--never", "--yes"]), Ok(trust));
        assert_eq!(parse(&["log"]), Ok(Request::Log { session: None, form: Form::Text }));
        for (arguments, message) in [
            (&[][..], "say what to do: list, trust, test or log"),
            (&["test", "a"], "test needs a hook and an event: epitome hooks test NAME EVENT"),
            (&["list", "--never"], "`epitome hooks list` has no --never"),
            (&["list", "--payload", "x"], "`epitome hooks list` has no --payload"),
            (&["log", "s_1", "--newest"], "give a session or --newest, not both"),
            (&["list", "x"], "\"x\" is one argument too many"),
            (&["lst"], "there is no `epitome hooks lst`"),
        ] {
            assert_eq!(parse(arguments), Err(message.to_owned()), "{arguments:?}");
        }
    }
}
