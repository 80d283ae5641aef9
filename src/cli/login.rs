//! `epitome login` and `epitome logout`: store API keys of providers in private files, so that editors that are not
//! started from a shell have them too. Keys are never printed.

use std::fmt::Display;
use std::io::Read as _;
use std::time::Duration;

use serde_json::{Value, json};

use super::{CliContext as _, CliError, inspect, serve, terminal};
use crate::paths::Paths;
use crate::problem::nearest;
use crate::provider::endpoint::{self, CredentialOrigin, Endpoint, provider_title};
use crate::provider::http::Http;
use crate::provider::listing::is_near;
use crate::provider::login::{KeyCheck, check_key};
use crate::provider::sign_in::{RevokeError, SignIn, has_sign_in, needs_sign_in, revoke};
use crate::provider::{ErrorClass, ProviderError};
use epitome_config::{LoginSecret, Logins, Settings, StoredLogin, origin};

/// Maximum length of a key in bytes; real ones have about a hundred, signed tokens two thousand.
const KEY_BYTES_MAX: usize = 16 * 1024;

/// How often the provider is asked for.
const ASKED_MAX: usize = 5;

/// Time limit for a sign-in in the browser.
const SIGN_IN_TIME_MAX: Duration = Duration::from_secs(10 * 60);

/// Log in to a model provider
///
/// The key is tested with the provider and stored in a file that only you can read. A key in the environment has
/// precedence over a stored one.
#[derive(Debug, Default, clap::Args)]
#[command(after_help = "\
Providers: anthropic, openai, gemini, openrouter, chatgpt, groq, xai, mistral, deepseek, together,
fireworks, cerebras, moonshot, zai, azure, bedrock, and those in config.toml.
You sign in to openrouter and chatgpt with the browser; the others need an API key.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 cancelled.")]
pub struct LoginArgs {
    /// The provider; you are asked if it is omitted
    provider: Option<String>,
    /// Read the key from stdin
    #[arg(long)]
    key_stdin: bool,
    /// Store the key without testing it
    #[arg(long)]
    no_test: bool,
    /// Print the link for the sign-in, and don't open a browser
    #[arg(long)]
    no_browser: bool,
    /// Show for each provider where its key comes from
    #[arg(long, conflicts_with_all = ["provider", "key_stdin", "no_test", "no_browser"])]
    status: bool,
    /// Print the status as JSON
    #[arg(long, requires = "status")]
    json: bool,
}

/// Remove a stored login
///
/// A sign-in with ChatGPT is also ended at OpenAI. A key stays valid until you delete it at the provider.
#[derive(Debug, clap::Args)]
pub struct LogoutArgs {
    /// The provider
    #[arg(required_unless_present = "all")]
    provider: Option<String>,
    /// Remove all stored keys
    #[arg(long, conflicts_with = "provider")]
    all: bool,
}

pub fn main(args: LoginArgs) -> Result<i32, CliError> {
    let done = log_in(args);
    if done.is_err() {
        // A key that was pasted for this command must not reach the shell.
        terminal::forget_typed();
    }
    done
}

fn log_in(args: LoginArgs) -> Result<i32, CliError> {
    let paths = serve::paths();
    let settings = serve::settings(&paths, None);
    if args.status {
        return status(&settings, args.json);
    }
    let provider = match &args.provider {
        Some(provider) if args.key_stdin || is_named(provider, &settings) => provider.clone(),
        Some(unknown) => match terminal::keyboard() {
            None => return Err(no_provider(unknown, &settings)),
            // The user may paste the key next.
            Some(_) => {
                let CliError { message, hint, .. } = no_provider(unknown, &settings);
                note!("epitome: {message}; {}", hint.unwrap_or_default());
                choose_provider(&settings)?
            }
        },
        None => choose_provider(&settings)?,
    };
    let provider = usual_name(&provider);
    let service = service(provider, &settings)?;
    let runtime = serve::runtime()?;
    let http = Http::new();
    if args.key_stdin && needs_sign_in(provider) {
        return Err(CliError::usage(format!("{provider} has no keys: you sign in with the browser")));
    }
    let login = if has_sign_in(provider) && !args.key_stdin {
        runtime.block_on(sign_in(&http, &service, &settings.logins, !args.no_browser))?
    } else {
        let key = match args.key_stdin {
            true => Some(key_of_stdin()?),
            false => ask_for_key(provider)?,
        };
        let Some(key) = key else { return Ok(super::EXIT_CANCELLED) };
        StoredLogin::api_key(origin(&service.base_url), checked_form(&key)?)
    };
    let remark = match &login.secret {
        LoginSecret::ApiKey { .. } if args.no_test => "It was not tested.".to_owned(),
        LoginSecret::ApiKey { key } => test(provider, runtime.block_on(check_key(&http, &service, key)))?,
        LoginSecret::ChatGpt(_) => {
            "You are using your ChatGPT plan; its usage is at https://chatgpt.com/settings/usage.".to_owned()
        }
    };
    store(&paths, provider, &login)?;
    terminal::print_visible(&done(provider, &service, &settings, &remark)).map(|()| 0)
}

pub fn logout(args: LogoutArgs) -> Result<i32, CliError> {
    let logins = Logins::below(&serve::paths().data);
    let named = args.provider.as_deref().map(usual_name);
    let removable = named.map_or_else(|| logins.providers(), |provider| vec![provider.to_owned()]);
    let mut text = String::new();
    for provider in removable {
        let removed =
            logins.remove(&provider).context(format_args!("the login for {provider} can't be removed"))?;
        let Some(removed) = removed else { continue };
        let rest = match removed.login.and_then(|login| revoked(&provider, &login)) {
            Some(Ok(())) => "Its access is ended at the provider too.".to_owned(),
            Some(Err(why)) => format!(
                "Its access could not be ended at the provider ({why}): end it in ChatGPT's settings, or it expires \
                 within 30 days."
            ),
            None => "The key itself stays valid until you delete it at the provider.".to_owned(),
        };
        text.push_str(&format!("Removed the stored login for {provider}. {rest}\n"));
    }
    if text.is_empty() {
        // A mistyped name must not look like a login that is gone.
        let settings = serve::settings(&serve::paths(), None);
        if let Some(unknown) =
            named.filter(|name| *name != "local" && !providers(&settings).iter().any(|known| known == name))
        {
            return Err(no_provider(unknown, &settings));
        }
        text.push_str("There is no stored login to remove.\n");
    }
    terminal::print_visible(&text).map(|()| 0)
}

/// Revokes the tokens of a removed login; `None` if it had none.
fn revoked(provider: &str, login: &StoredLogin) -> Option<Result<(), RevokeError>> {
    let settings = serve::settings(&serve::paths(), None);
    let service = endpoint::service(provider, &settings, &serve::environment()).ok()?;
    let runtime = serve::runtime().ok()?;
    runtime.block_on(revoke(&Http::new(), &service, login))
}

/// Maps common names of vendors to the built-in providers.
fn usual_name(provider: &str) -> &str {
    match provider {
        "claude" => "anthropic",
        "google" => "gemini",
        "codex" => "chatgpt",
        other => other,
    }
}

fn providers(settings: &Settings) -> Vec<String> {
    let built_in = endpoint::built_in_providers().map(str::to_owned);
    let configured = settings.providers.keys().filter(|name| {
        *name != "local" && endpoint::built_in_providers().all(|built_in| built_in != name.as_str())
    });
    built_in.chain(configured.cloned()).collect()
}

fn service(provider: &str, settings: &Settings) -> Result<Endpoint, CliError> {
    if provider == "local" && !settings.providers.contains_key("local") {
        return Err(CliError::failed("local models need no login")
            .hint("`epitome models` lists the models of a server on this machine"));
    }
    if provider == "vertex" {
        return Err(CliError::failed("vertex has no keys to log in with").hint("Vertex AI takes Google's Application Default Credentials: run `gcloud auth application-default login`, or \
                    set GOOGLE_APPLICATION_CREDENTIALS to the file of a service account"));
    }
    endpoint::service(provider, settings, &serve::environment()).map_err(|error| {
        if error.class == ErrorClass::Auth {
            return CliError::failed(error.message).hint_if(error.hint);
        }
        no_provider(provider, settings)
    })
}

fn no_provider(provider: &str, settings: &Settings) -> CliError {
    let providers = providers(settings);
    let hint = format!("the providers are {}", providers.join(", "));
    let known = providers.iter().map(String::as_str);
    CliError::usage(format!("there is no provider {provider:?}")).meant(provider, known, hint)
}

/// Whether a provider is known, or has a login of its own kind.
fn is_named(provider: &str, settings: &Settings) -> bool {
    let name = usual_name(provider);
    ["local", "vertex"].contains(&name) || providers(settings).iter().any(|known| known == name)
}

// ── Asking ─────────────────────────────────────────────────────────────────────────────────────────

fn choose_provider(settings: &Settings) -> Result<String, CliError> {
    let providers = providers(settings);
    let named = || CliError::usage(format!("name a provider: {}", providers.join(", ")));
    let mut keyboard = terminal::keyboard().ok_or_else(named)?;
    for (at, provider) in providers.iter().enumerate() {
        note!("  {}  {}", at + 1, provider_title(provider));
    }
    for _ in 0..ASKED_MAX {
        terminal::to_stderr(&format!("Which provider? [1-{}]: ", providers.len()));
        let typed = terminal::answer(&mut *keyboard).ok_or_else(named)?;
        let by_number = typed.parse::<usize>().ok().and_then(|number| providers.get(number.checked_sub(1)?));
        let by_name = || providers.iter().find(|provider| **provider == usual_name(&typed));
        if let Some(chosen) = by_number.or_else(by_name) {
            return Ok(chosen.clone());
        }
        match nearest(&typed, providers.iter().map(String::as_str)) {
            Some(near) => note!("There is no provider with this name; did you mean {near}?"),
            // It may be a key, which must not be repeated.
            None => note!("This is not a provider. Enter the key in the next step."),
        }
    }
    Err(named())
}

/// Explains how a vendor's subscription can be used with Epitome; as of October 2026.
fn about_subscriptions(provider: &str) -> Option<&'static str> {
    match provider {
        "anthropic" => Some(
            "Anthropic does not allow other programs to use a Claude Pro or Max subscription.\nThis takes an API key.",
        ),
        "gemini" => Some(
            "Google does not allow other programs to use a Gemini subscription or Gemini CLI's login.\nThis takes an API \
             key.",
        ),
        "openai" => Some("With a ChatGPT Plus or Pro plan, `epitome login chatgpt` signs in without a key."),
        _ => None,
    }
}

/// Asks for the key without echo; `None` if the user cancels.
fn ask_for_key(provider: &str) -> Result<Option<String>, CliError> {
    if let Some(sentence) = about_subscriptions(provider) {
        note!("{sentence}");
    }
    if let Some(page) = endpoint::key_page(provider) {
        note!("Keys are made at {page}");
    }
    let asked = terminal::hidden_line(&format!("Paste the key for {}: ", provider_title(provider)));
    asked.map_err(|error| {
        CliError::failed(format!("there is no terminal to ask on: {error}"))
            .hint(format!("`epitome login {provider} --key-stdin` reads the key from a pipe"))
    })
}

fn key_of_stdin() -> Result<String, CliError> {
    let mut text = String::new();
    let read = std::io::stdin().take(KEY_BYTES_MAX as u64 + 1).read_to_string(&mut text);
    read.context("the key can't be read from stdin")?;
    Ok(text)
}

/// Returns the key without surrounding white space. The error for a text that can't be sent doesn't quote it.
fn checked_form(key: &str) -> Result<&str, CliError> {
    let key = key.trim();
    let what = match key {
        "" => "no key was entered",
        key if key.len() > KEY_BYTES_MAX => "this is too long for a key",
        key if !key.bytes().all(|byte| byte.is_ascii_graphic()) => {
            "this is not a key: keys have no spaces and no special characters"
        }
        key => return Ok(key),
    };
    Err(CliError::failed(what).hint("nothing was stored"))
}

// ── Signing in ─────────────────────────────────────────────────────────────────────────────────────

/// Waits for the browser, or for its address if the user pastes it.
async fn sign_in(
    http: &Http,
    service: &Endpoint,
    logins: &Logins,
    opens_browser: bool,
) -> Result<StoredLogin, CliError> {
    let failed =
        |why: &dyn Display| CliError::failed(format!("the sign-in failed: {why}")).hint("nothing was stored");
    let sign_in = SignIn::begin(http, service, logins).await.map_err(|why| failed(&why))?;
    note!("Sign in at {}", sign_in.link());
    let is_open = opens_browser && inspect::open(sign_in.link());
    if opens_browser && !is_open {
        note!("No browser could be opened; open the link yourself.");
    }
    let (sender, mut pasted) = tokio::sync::mpsc::channel(1);
    if let Some(mut keyboard) = terminal::keyboard() {
        note!("If the browser is on another machine, paste the address of its last page here:");
        // The thread ends with the process.
        std::thread::spawn(move || {
            while let Some(line) = terminal::answer(&mut *keyboard) {
                if sender.blocking_send(line).is_err() {
                    break;
                }
            }
        });
    }
    let redirected = tokio::time::timeout(SIGN_IN_TIME_MAX, async {
        let browser = sign_in.redirected();
        tokio::pin!(browser);
        loop {
            tokio::select! {
                came = &mut browser => break came,
                Some(line) = pasted.recv() => match sign_in.redirect_in(&line) {
                    Some(redirected) => break Ok(redirected),
                    None => note!("That is not the address of this sign-in. Paste all of it:"),
                },
            }
        }
    });
    let late =
        |_| failed(&format_args!("nobody signed in within {} minutes", SIGN_IN_TIME_MAX.as_secs() / 60));
    let redirected = redirected.await.map_err(late)?.map_err(|why| failed(&why))?;
    sign_in.login(&redirected).await.map_err(|why| failed(&why))
}

// ── Testing and storing ────────────────────────────────────────────────────────────────────────────

/// Returns the message about the test of a key that may be stored. The error explains why it is not stored.
fn test(provider: &str, checked: KeyCheck) -> Result<String, CliError> {
    let untested =
        format!("nothing was stored; `epitome login {provider} --no-test` stores a key without a test");
    let failed = |error: ProviderError, hint: String| {
        CliError::failed(error.message.trim_end_matches('.').to_owned()).hint(hint)
    };
    match checked {
        KeyCheck::Accepted => Ok("The key works.".to_owned()),
        KeyCheck::Rejected(error) => {
            let page = endpoint::key_page(provider).map(|page| format!("; keys are made at {page}"));
            Err(failed(error, format!("nothing was stored{}", page.unwrap_or_default())))
        }
        KeyCheck::Unreachable(error) => Err(failed(error, untested)),
        KeyCheck::Unknown(error) => Ok(format!("The key could not be tested: {}", error.message)),
    }
}

fn store(paths: &Paths, provider: &str, login: &StoredLogin) -> Result<(), CliError> {
    Logins::below(&paths.data).store(provider, login).map_err(|error| {
        let what = format!("the login can't be stored in {}: {error}", paths.data.join("logins").display());
        CliError::failed(what).hint("`epitome doctor` checks the directories")
    })
}

fn done(provider: &str, service: &Endpoint, settings: &Settings, remark: &str) -> String {
    let title = provider_title(provider);
    let mut text = format!("{remark} Logged in to {title}. Open editors use it from the next prompt on.\n");
    if let CredentialOrigin::Variable(variable) = service.credential_origin() {
        text += &format!("{variable} is set in this shell and has precedence here.\n");
    }
    if settings.model.is_none() {
        text += "Try it: epitome run \"hello\"\n";
    }
    text
}

// ── Status ─────────────────────────────────────────────────────────────────────────────────────────

fn status(settings: &Settings, as_json: bool) -> Result<i32, CliError> {
    let environment = serve::environment();
    let rows: Vec<Value> = providers(settings)
        .iter()
        .filter_map(|provider| Some((provider, endpoint::service(provider, settings, &environment).ok()?)))
        .map(|(provider, service)| row(provider, &service, settings))
        .collect();
    if as_json {
        return terminal::print_pretty(&rows).map(|()| 0);
    }
    let text = |row: &Value, field: &str| row[field].as_str().unwrap_or_default().to_owned();
    let width = rows.iter().map(|row| text(row, "provider").chars().count()).max().unwrap_or(0);
    let lines: String = rows
        .iter()
        .map(|row| {
            let from = match text(row, "source").as_str() {
                "environment" => format!("key in the environment variable {}", text(row, "variable")),
                "stored" => format!("stored login, since {}", text(row, "since")),
                "configured" => "header in config.toml".to_owned(),
                "cloud" => format!("the credentials of {}", text(row, "cloud")),
                "unreadable" => "the stored login can't be read: log in again".to_owned(),
                "not_needed" => {
                    format!("no key, as a server on this machine needs none ({})", text(row, "service"))
                }
                _ => "no key".to_owned(),
            };
            format!("{:width$}  {from}\n", text(row, "provider"))
        })
        .collect();
    terminal::print_visible(&format!(
        "{lines}An editor that is not started from this shell may have another environment.\n"
    ))
    .map(|()| 0)
}

/// Returns the origin of a provider's credential, never the credential.
fn row(provider: &str, service: &Endpoint, settings: &Settings) -> Value {
    let mut row = json!({ "provider": provider, "title": provider_title(provider) });
    match service.credential_origin() {
        CredentialOrigin::Absent if is_near(service) => {
            row["source"] = json!("not_needed");
            row["service"] = json!(origin(&service.base_url));
        }
        CredentialOrigin::Absent => row["source"] = json!("none"),
        CredentialOrigin::Configured => row["source"] = json!("configured"),
        CredentialOrigin::Cloud(cloud) => {
            row["source"] = json!("cloud");
            row["cloud"] = json!(cloud);
        }
        CredentialOrigin::Variable(variable) => {
            row["source"] = json!("environment");
            row["variable"] = json!(variable);
        }
        CredentialOrigin::Stored => match settings.logins.find(provider) {
            Ok(Some(login)) => {
                row["source"] = json!("stored");
                row["since"] = json!(day(login.stored_at));
                row["service"] = json!(login.origin);
            }
            Ok(None) | Err(_) => row["source"] = json!("unreadable"),
        },
    }
    row
}

/// Formats the date of a time in milliseconds since the epoch.
fn day(milliseconds: u64) -> String {
    let time = jiff::Timestamp::from_millisecond(i64::try_from(milliseconds).unwrap_or(i64::MAX));
    time.unwrap_or_default().strftime("%Y-%m-%d").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::tests::{parsed, usage_error};

    #[test]
    fn options_that_exclude_each_other_are_refused() {
        parsed(&["login"]);
        parsed(&["login", "--status", "--json"]);
        parsed(&["logout", "--all"]);
        parsed(&["acp", "--standalone", "login"]);
        usage_error(&["login", "--json"], "--status");
        usage_error(&["login", "openai", "--status"], "cannot be used with");
        usage_error(&["logout"], "PROVIDER");
    }

    #[test]
    fn what_is_not_a_key_is_refused_without_being_quoted() {
        assert_eq!(checked_form(" sk-made-up\n").expect("white space is ignored"), "sk-made-up");
        for wrong in ["", " \n", "two words", "schlüssel", "a\u{1b}[2Jb"] {
            let error = checked_form(wrong).expect_err("it is no key");
            let is_quoted = !wrong.trim().is_empty() && error.message.contains(wrong.trim());
            assert!(!is_quoted, "{}", error.message);
        }
    }
}
