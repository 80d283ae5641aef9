//! Settings for the environment of programs: the `[environment]` table. Only the user's file may contain it: a
//! repository must not decide which keys its programs get.

use epitome_secrets::exposure::CommandVariables;
use serde_json::json;

use super::file::{ConfigReader, TomlValue, fields};
use super::kind::Kind;
use super::values::{ValueError, is_variable, names, variable, wrong_type};

/// The environment variable with the token for a server, if no file is named. Programs do not get it.
pub const REMOTE_TOKEN_VARIABLE: &str = "EPITOME_REMOTE_TOKEN";

/// The variables that programs get in addition to those that are not secret.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExposureSettings {
    pub commands: CommandVariables,
    /// Variables with API keys of providers that the user's hooks get.
    pub hooks: Vec<String>,
}

impl ConfigReader<'_> {
    pub(super) fn exposure(&mut self, value: &TomlValue<'_>, exposure: &mut ExposureSettings) {
        let Some(table) = self.table(value, "environment") else { return };
        fields!(self, table, key, value, {
            "commands" => self.set(value, &mut exposure.commands, commands()),
            "hooks" => self.set(value, &mut exposure.hooks, variables()),
        });
    }
}

fn commands() -> Kind<CommandVariables> {
    let schema = json!({ "anyOf": [{ "enum": ["no_secrets", "all"] }, variables().schema()] });
    let written = |commands: &CommandVariables| match commands {
        CommandVariables::All => json!("all"),
        CommandVariables::NoSecrets { except } if except.is_empty() => json!("no_secrets"),
        CommandVariables::NoSecrets { except } => json!(except),
    };
    Kind::new(schema, written, |value| match value.as_str() {
        Some("no_secrets") => Ok(CommandVariables::default()),
        Some("all") => Ok(CommandVariables::All),
        Some(_) => {
            let message = "environment.commands must be \"no_secrets\", \"all\" or a list of names";
            Err(ValueError::new(message).hint("for example commands = [\"GH_TOKEN\"]"))
        }
        None if value.as_array().is_some() => {
            variables().read(value).map(|except| CommandVariables::NoSecrets { except })
        }
        None => Err(wrong_type("\"no_secrets\", \"all\" or a list of names", value)),
    })
}

/// Names of variables. The error doesn't quote a name, because it may be a misplaced key.
fn variables() -> Kind<Vec<String>> {
    let schema = json!({ "type": "array", "items": variable().schema() });
    Kind::plain(schema, names).checked(|names| {
        let error = || ValueError::new("not the name of an environment variable");
        let hint = "names have letters, digits and _; the value stays in the environment";
        (!names.iter().all(|name| is_variable(name))).then(|| error().hint(hint))
    })
}
