//! `epitome token`: the tokens of clients on other machines.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use jiff::{Span, SpanRelativeTo, Timestamp};
use serde_json::json;

use super::{CliError, serve, terminal};
use crate::daemon::remote_tokens::{RemoteTokens, StoredToken};
use crate::session::AccessScope;

/// Create, list and revoke tokens of remote clients
///
/// A client of `epitome serve` needs one. Its name is shown next to the prompts that are sent with it.
#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = false)]
pub struct TokenArgs {
    #[command(subcommand)]
    command: TokenCommand,
}

#[derive(Debug, clap::Subcommand)]
enum TokenCommand {
    Create(CreateTokenArgs),
    /// List the tokens, without their secrets
    List {
        /// Print one JSON object for each token
        #[arg(long)]
        json: bool,
    },
    /// Revoke a token; its connections end within a second
    Revoke {
        /// Name of the token
        name: String,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
}

/// Create a token and print its secret, which is not stored
#[derive(Debug, clap::Args)]
struct CreateTokenArgs {
    /// Name of the person or machine
    #[arg(long)]
    name: String,
    /// What it allows: `read` to list and watch sessions; `prompt` also to create sessions, prompt and cancel; `approve`
    /// everything, such as to answer permission requests
    #[arg(long, value_parser = scopes())]
    scope: AccessScope,
    /// A directory for its sessions, also the ones below it; can be repeated [default for `prompt`: the current one]
    #[arg(long = "directory", value_name = "DIR")]
    directories: Vec<PathBuf>,
    /// How long it is valid, for example 30d or 12h [default: until it is revoked]
    #[arg(long, value_name = "TIME", value_parser = lifetime)]
    expires: Option<Duration>,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

pub fn main(TokenArgs { command }: TokenArgs) -> Result<i32, CliError> {
    let tokens = RemoteTokens::below(&serve::paths().data);
    match command {
        TokenCommand::Create(args) => {
            let directories = directories(args.scope, args.directories)?;
            let (token, secret) = tokens.create(&args.name, args.scope, directories, args.expires)?;
            if args.json {
                let mut created = as_json(&token);
                created["token"] = json!(secret);
                terminal::print(&format!("{created}\n"))?;
            } else {
                note!(
                    "the token {}, which is shown only once; put it into EPITOME_REMOTE_TOKEN:",
                    token.name
                );
                terminal::print(&format!("{secret}\n"))?;
            }
            Ok(0)
        }
        TokenCommand::List { json } => {
            let all = tokens.list()?;
            let width = all.iter().map(|token| token.name.chars().count()).max().unwrap_or_default();
            for token in all {
                let line = if json { as_json(&token).to_string() } else { as_text(&token, width) };
                terminal::print(&format!("{line}\n"))?;
            }
            Ok(0)
        }
        TokenCommand::Revoke { name, json } => {
            let is_revoked = tokens.revoke(&name)?;
            if json {
                terminal::print_json(&json!({ "name": name, "revoked": is_revoked }))?;
            }
            match is_revoked {
                true if json => Ok(0),
                true => terminal::print_visible(&format!("revoked the token {name}\n")).map(|()| 0),
                false => Err(CliError::failed(format!("there is no token {name:?}"))
                    .hint("`epitome token list` shows all")),
            }
        }
    }
}

fn as_json(token: &StoredToken) -> serde_json::Value {
    json!({
        "name": token.name,
        "scope": token.scope,
        "directories": token.directories,
        "created_at": date(token.created_at),
        "expires_at": token.expires_at.map(date),
        "expired": token.is_expired(),
    })
}

fn as_text(token: &StoredToken, width: usize) -> String {
    let end = match token.expires_at {
        None => "no expiry".to_owned(),
        Some(at) if token.is_expired() => format!("expired {}", date(at)),
        Some(at) => format!("expires {}", date(at)),
    };
    let scope = token.scope.name();
    let directories = token.directories.iter().flatten().map(|path| format!("  {}", path.display()));
    let directories: String = directories.collect();
    format!("{:width$}  {scope:7}  created {}  {end}{directories}", token.name, date(token.created_at))
}

/// The directories of a token, with links resolved.
fn directories(scope: AccessScope, given: Vec<PathBuf>) -> Result<Option<Vec<PathBuf>>, CliError> {
    let given = match scope {
        AccessScope::Prompt if given.is_empty() => vec![serve::working_directory()?],
        AccessScope::Approve if !given.is_empty() => {
            return Err(CliError::failed(
                "a token with the scope `approve` can do everything, in all directories",
            ));
        }
        AccessScope::Read | AccessScope::Prompt | AccessScope::Approve => given,
    };
    let resolve = |directory: &PathBuf| {
        let failed = |error| CliError::failed(format!("{} is not a directory: {error}", directory.display()));
        directory.canonicalize().map_err(failed)
    };
    let resolved: Vec<PathBuf> = given.iter().map(resolve).collect::<Result<_, _>>()?;
    Ok(Some(resolved).filter(|resolved| !resolved.is_empty()))
}

fn date(seconds: u64) -> String {
    let at = i64::try_from(seconds).ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
    at.map_or_else(|| seconds.to_string(), |at| at.to_string())
}

fn scopes() -> impl TypedValueParser<Value = AccessScope> {
    PossibleValuesParser::new(AccessScope::ALL.map(AccessScope::name)).map(|name| {
        AccessScope::ALL.into_iter().find(|scope| scope.name() == name).expect("a possible value")
    })
}

fn lifetime(typed: &str) -> Result<Duration, &'static str> {
    let wrong = "write it like 30d, 12h or 90m";
    let span: Span = typed.parse().map_err(|_| wrong)?;
    let duration = span.to_duration(SpanRelativeTo::days_are_24_hours()).map_err(|_| wrong)?;
    match Duration::try_from(duration) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        Ok(_) | Err(_) => Err(wrong),
    }
}
