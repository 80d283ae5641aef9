//! What `epitome run` is asked for: its arguments, and the prompt out of them and of stdin.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Read};
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use crate::cli::{CliError, overrides};
use crate::session::registry::Overrides;

/// Text that is read from stdin, in bytes. More does not fit any model's window.
const STDIN_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// How long stdin may stay open before the person is told what is being waited for.
const STDIN_SILENCE: Duration = Duration::from_secs(2);

/// What the arguments ask for.
#[derive(Debug, PartialEq)]
pub struct Request {
    words: Vec<String>,
    /// Files that are sent with the prompt.
    pub attached: Vec<PathBuf>,
    pub recipe: Option<String>,
    pub session: Which,
    pub overrides: Overrides,
    pub output: Output,
    /// Whether text on stdin belongs to the prompt.
    stdin: bool,
    dry_run: bool,
    /// Whether all is done in this process, also where a daemon runs.
    pub standalone: bool,
    /// What the person should hear before anything is done.
    pub notice: Option<&'static str>,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Which {
    New,
    Newest,
    Named(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    Text,
    /// The whole stream, one object a line.
    Json,
    /// One object: what the command came to.
    Result,
}

impl Output {
    /// The same for a command that comes to one thing.
    fn result(self) -> Output {
        match self {
            Output::Text => Output::Text,
            Output::Json | Output::Result => Output::Result,
        }
    }
}

impl Request {
    /// What `epitome run` is asked for. `None`: the person wants to know what there is.
    pub fn parse(arguments: Vec<OsString>) -> Result<Option<Request>, CliError> {
        match Request::parse_any(arguments)? {
            Some(request) if request.dry_run => {
                Err(CliError::usage("--dry-run is for `epitome compact`; a prompt is always sent"))
            }
            request => Ok(request),
        }
    }

    fn parse_any(arguments: Vec<OsString>) -> Result<Option<Request>, CliError> {
        use lexopt::prelude::*;
        let mut request = Request {
            words: Vec::new(),
            attached: Vec::new(),
            recipe: None,
            session: Which::New,
            overrides: Overrides::default(),
            output: Output::Text,
            stdin: true,
            dry_run: false,
            standalone: false,
            notice: None,
        };
        let (mut follow, mut named) = (false, None);
        let mut parser = lexopt::Parser::from_args(arguments);
        while let Some(argument) = parser.next()? {
            match argument {
                Short('h') | Long("help") => return Ok(None),
                Short('r') | Long("recipe") => {
                    let name = parser.value()?.string()?;
                    request.recipe = Some(name.trim_start_matches('/').to_owned());
                }
                Long("attach" | "image") => request.attached.push(parser.value()?.into()),
                Long("follow") => follow = true,
                // The short name is that of another agent's command line.
                Long("resume" | "conversation-id") | Short('c') => {
                    if named.replace(parser.value()?.string()?).is_some() {
                        return Err(CliError::usage("one session is named twice: --resume takes one id"));
                    }
                }
                Long("json") => request.output = Output::Json,
                Long("dry-run") => request.dry_run = true,
                Long("standalone") => request.standalone = true,
                Long(name) if overrides::is_flag(name) => {
                    let name = name.to_owned();
                    overrides::set(&mut request.overrides, &name, &mut parser)?;
                }
                Value(word) => request.words.push(word.string()?),
                other => return Err(other.unexpected().into()),
            }
        }
        request.session = match (named, follow) {
            (Some(id), follow) => {
                request.notice = follow.then_some("--follow has no effect where a session is named");
                Which::Named(id)
            }
            (None, true) => Which::Newest,
            (None, false) => Which::New,
        };
        Ok(Some(request))
    }

    /// What `epitome compact` is asked for: the compact recipe, for the newest session of the directory
    /// unless another one is named.
    pub fn parse_compact(arguments: Vec<OsString>) -> Result<Option<Request>, CliError> {
        let Some(mut request) = Request::parse_any(arguments)? else { return Ok(None) };
        request.becomes("compact")?;
        if request.dry_run {
            request.words.insert(0, "dry".to_owned());
            request.output = request.output.result();
        }
        Ok(Some(request))
    }

    /// What `epitome undo` and the like are asked for: the command of this name.
    pub fn parse_own(name: &str, arguments: Vec<OsString>) -> Result<Option<Request>, CliError> {
        let Some(mut request) = Request::parse(arguments)? else { return Ok(None) };
        request.becomes(name)?;
        if ["history", "checkpoints"].contains(&name) && !request.words.is_empty() {
            let text = format!("`epitome {name}` takes no words: {:?}", request.words.join(" "));
            return Err(CliError::usage(text));
        }
        request.output = request.output.result();
        // Whoever calls them in a script may leave stdin open.
        request.stdin = false;
        Ok(Some(request))
    }

    /// Makes it a run of one command, on the newest session of the directory unless another one is named.
    fn becomes(&mut self, command: &str) -> Result<(), CliError> {
        if self.recipe.replace(command.to_owned()).is_some() {
            let text = format!("{command} has its recipe; `epitome run -r` runs another one");
            return Err(CliError::usage(text));
        }
        if self.session == Which::New {
            self.session = Which::Newest;
        }
        Ok(())
    }

    /// The prompt's text: the words, behind them what stdin has where it is no terminal.
    pub fn prompt(&self) -> Result<String, CliError> {
        let stdin = io::stdin();
        let piped = if !self.stdin || stdin.is_terminal() { String::new() } else { read_stdin()? };
        self.prompt_with(&piped)
    }

    fn prompt_with(&self, piped: &str) -> Result<String, CliError> {
        let words = self.words.join(" ");
        let parts = [words.trim(), piped.trim_end()];
        let said: Vec<&str> = parts.into_iter().filter(|part| !part.trim().is_empty()).collect();
        let said = said.join("\n\n");
        match &self.recipe {
            Some(recipe) => Ok(format!("/{recipe} {said}").trim_end().to_owned()),
            None if said.is_empty() && self.attached.is_empty() => {
                Err(CliError::usage("there is no prompt: give it as an argument or on stdin"))
            }
            None => Ok(said),
        }
    }
}

/// Reads stdin to its end. A pipe that nobody closes would look like a hang, so after a while the
/// person is told what is waited for.
fn read_stdin() -> Result<String, CliError> {
    let (sender, receiver) = mpsc::sync_channel(1);
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = io::stdin().lock().take(STDIN_BYTES_MAX + 1).read_to_end(&mut bytes);
        drop(sender.send(read.map(|_| bytes)));
    });
    let read = receiver.recv_timeout(STDIN_SILENCE).or_else(|_| {
        eprintln!("epitome: waiting for the end of stdin (use </dev/null where it has nothing to say)");
        receiver.recv()
    });
    let bytes = read
        .unwrap_or_else(|_| Err(io::Error::other("the reading thread ended")))
        .map_err(|error| CliError::failed(format!("stdin can't be read: {error}"), None))?;
    if bytes.len() as u64 > STDIN_BYTES_MAX {
        let megabytes = STDIN_BYTES_MAX / (1024 * 1024);
        let hint = Some("put it into a file and name the file in the prompt".to_owned());
        return Err(CliError::failed(format!("stdin has more than {megabytes} MiB"), hint));
    }
    String::from_utf8(bytes).map_err(|_| {
        let hint = Some("put it into a file and name the file in the prompt".to_owned());
        CliError::failed("what stdin has is no UTF-8 text", hint)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Settings, Threshold, Trust};

    fn parsed(arguments: &[&str]) -> Result<Request, String> {
        crate::cli::parsed(Request::parse, arguments)
    }

    #[test]
    fn a_recipe_run_is_the_prompt_that_a_person_would_type() {
        let request = parsed(&["-r", "compact", "--follow", "keep", "the plan"]).expect("good arguments");
        assert_eq!(request.session, Which::Newest);
        assert_eq!(request.prompt_with("").expect("a prompt"), "/compact keep the plan");
        let request = parsed(&["-r", "/compact"]).expect("good arguments");
        assert_eq!(request.prompt_with("").expect("a prompt"), "/compact");
    }

    #[test]
    fn what_is_piped_in_follows_the_prompt() {
        let request = parsed(&["explain", "this"]).expect("good arguments");
        assert_eq!(request.prompt_with("a\nb\n").expect("a prompt"), "explain this\n\na\nb");
        let request = parsed(&[]).expect("good arguments");
        assert_eq!(request.prompt_with("only this\n").expect("a prompt"), "only this");
        assert_eq!(request.prompt_with(" \n").expect_err("nothing was said").code, 2);
    }

    #[test]
    fn files_may_be_all_that_is_sent() {
        let request = parsed(&["--image", "a.png", "--attach", "b.pdf"]).expect("good arguments");
        assert_eq!(request.attached, [PathBuf::from("a.png"), PathBuf::from("b.pdf")]);
        assert_eq!(request.prompt_with("").expect("a prompt without words"), "");
    }

    #[test]
    fn a_session_that_is_named_beats_the_newest_and_says_so() {
        for flag in ["--resume", "--conversation-id", "-c"] {
            let request = parsed(&[flag, "s_1", "x"]).expect("good arguments");
            assert_eq!((request.session, request.notice), (Which::Named("s_1".to_owned()), None), "{flag}");
            let request = parsed(&["--follow", flag, "s_1", "x"]).expect("good arguments");
            assert_eq!(request.session, Which::Named("s_1".to_owned()), "{flag}");
            assert!(request.notice.is_some_and(|notice| notice.contains("--follow")), "{flag}");
        }
    }

    #[test]
    fn flags_hold_above_the_settings() {
        let flags = ["--no-hooks", "--trust-hooks", "--disable-auto-compact", "--compact-ratio", "0.7", "x"];
        let settings = parsed(&flags).expect("good arguments").overrides.over(Settings::default());
        assert!(!settings.hooks.enabled && !settings.compaction.auto);
        assert_eq!(settings.hooks.trust, Trust::Run);
        assert_eq!(settings.compaction.threshold, Threshold::Ratio(0.7));
        let untouched = parsed(&["x"]).expect("good arguments").overrides.over(Settings::default());
        assert_eq!(untouched, Settings::default());
    }

    #[test]
    fn compact_is_the_recipe_on_the_newest_session_or_a_named_one() {
        let compact = |arguments: &[&str]| crate::cli::parsed(Request::parse_compact, arguments);
        let request = compact(&["the", "parser"]).expect("good arguments");
        assert_eq!(request.session, Which::Newest);
        assert_eq!(request.prompt_with("").expect("a prompt"), "/compact the parser");
        let request = compact(&["-c", "s_1"]).expect("good arguments");
        assert_eq!(request.session, Which::Named("s_1".to_owned()));
        assert!(compact(&["-r", "review"]).is_err());
    }

    #[test]
    fn a_dry_run_is_what_slash_compact_dry_is_and_comes_to_one_object() {
        let compact = |arguments: &[&str]| crate::cli::parsed(Request::parse_compact, arguments);
        let request = compact(&["--dry-run", "--json", "above", "e4"]).expect("good arguments");
        assert_eq!(request.prompt_with("").expect("a prompt"), "/compact dry above e4");
        assert_eq!(request.output, Output::Result);
        assert_eq!(compact(&["--json"]).expect("good arguments").output, Output::Json);
        assert!(parsed(&["--dry-run", "x"]).expect_err("a prompt is sent").contains("epitome compact"));
    }

    #[test]
    fn commands_of_a_session_are_prompts_to_the_newest_one() {
        let own = |name: &str, arguments: &[&str]| {
            crate::cli::parsed(|arguments| Request::parse_own(name, arguments), arguments)
        };
        let request = own("undo", &["e12"]).expect("good arguments");
        assert_eq!((&request.session, request.stdin), (&Which::Newest, false));
        assert_eq!(request.prompt_with("").expect("a prompt"), "/undo e12");
        let request =
            own("pin", &["--resume", "s_1", "never", "force push", "--json"]).expect("good arguments");
        assert_eq!((&request.session, request.output), (&Which::Named("s_1".to_owned()), Output::Result));
        assert_eq!(request.prompt_with("").expect("a prompt"), "/pin never force push");
        assert!(!request.standalone && own("undo", &["--standalone"]).expect("good arguments").standalone);
        assert!(own("redo", &["-r", "compact"]).is_err());
        assert!(own("history", &["e12"]).is_err_and(|error| error.contains("\"e12\"")));
    }

    #[test]
    fn arguments_that_make_no_sense_are_told() {
        let cases: [(&[&str], &str); 6] = [
            (&["--resume", "s_1", "-c", "s_2", "x"], "named twice"),
            (&["--compact-ratio", "80", "x"], "a number from 0 to 1"),
            (&["--mode", "wild", "x"], "there are ask, accept_edits, read_only, full"),
            (&["--model", "gpt", "x"], "provider/name"),
            (&["--colour", "x"], "--colour"),
            (&["--resume"], "--resume"),
        ];
        for (arguments, expected) in cases {
            let error = parsed(arguments).expect_err("these arguments are wrong");
            assert!(error.contains(expected), "{arguments:?}: {error}");
        }
    }
}
