//! What `epitome recipes` is asked for.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::cli::{CliError, overrides};

#[derive(Debug, PartialEq, Eq)]
pub struct Request {
    pub action: Action,
    pub form: Form,
    /// Further folders with recipes.
    pub extra: Vec<PathBuf>,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    List,
    Show { name: String },
    Render { name: String, words: Vec<String> },
    Check { files: Vec<PathBuf> },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Text,
    Json,
}

impl Request {
    /// `None`: the person wants to know what there is.
    pub fn parse(arguments: Vec<OsString>) -> Result<Option<Request>, CliError> {
        use lexopt::prelude::*;
        let (mut form, mut extra, mut words) = (Form::Text, Vec::new(), Vec::new());
        let mut parser = lexopt::Parser::from_args(arguments);
        while let Some(argument) = parser.next()? {
            match argument {
                Short('h') | Long("help") => return Ok(None),
                Long("json") => form = Form::Json,
                Long(flag @ ("recipe-dir" | "fragment-dirs")) => {
                    let flag = flag.to_owned();
                    overrides::recipe_dirs(&mut extra, &flag, &mut parser)?;
                }
                Value(word) => words.push(word),
                other => return Err(other.unexpected().into()),
            }
        }
        let mut words = words.into_iter();
        let Some(command) = words.next() else {
            return Err(CliError::usage("say what to do: list, show, render or check"));
        };
        let mut name = |command: &str| {
            let name = words.next().ok_or_else(|| {
                CliError::usage(format!("`epitome recipes {command}` needs the name of a recipe"))
            })?;
            Ok::<String, CliError>(name.string()?)
        };
        let action = match command.to_str() {
            Some("list") => Action::List,
            Some("show") => Action::Show { name: name("show")? },
            Some("render") => {
                let name = name("render")?;
                let words = words.by_ref().map(|word| word.string());
                Action::Render { name, words: words.collect::<Result<_, _>>()? }
            }
            Some("check") => Action::Check { files: words.by_ref().map(PathBuf::from).collect() },
            _ => {
                let message = format!("there is no `epitome recipes {}`", command.to_string_lossy());
                return Err(CliError::usage(message));
            }
        };
        if let Some(word) = words.next() {
            return Err(CliError::usage(format!("{:?} is one argument too many", word.to_string_lossy())));
        }
        Ok(Some(Request { action, form, extra }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(arguments: &[&str]) -> Result<Request, String> {
        crate::cli::parsed(Request::parse, arguments)
    }

    #[test]
    fn arguments_are_read() {
        let words = ["base=main", "be short"].map(str::to_owned).to_vec();
        let render = Action::Render { name: "pr".to_owned(), words };
        let request = parsed(&["render", "pr", "--json", "base=main", "be short"]).expect("good arguments");
        assert_eq!((request.action, request.form), (render, Form::Json));
        let request =
            parsed(&["list", "--recipe-dir", "a", "--fragment-dirs", "b,c"]).expect("good arguments");
        assert_eq!(request.extra, ["a", "b", "c"].map(PathBuf::from));
        let request = parsed(&["check", "a.md", "b"]).expect("good arguments");
        assert_eq!(request.action, Action::Check { files: ["a.md", "b"].map(PathBuf::from).to_vec() });
    }

    #[test]
    fn arguments_that_make_no_sense_are_told() {
        for (arguments, expected) in [
            (&[][..], "say what to do"),
            (&["show"], "needs the name"),
            (&["list", "x"], "too many"),
            (&["show", "a", "b"], "too many"),
            (&["burn"], "no `epitome recipes burn`"),
            (&["list", "--yaml"], "--yaml"),
        ] {
            let error = parsed(arguments).expect_err("these arguments are wrong");
            assert!(error.contains(expected), "{arguments:?}: {error}");
        }
    }
}
