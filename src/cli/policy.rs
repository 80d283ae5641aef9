//! `epitome store policy`: the policy in the database that has the sessions.

use std::path::PathBuf;

#[cfg(feature = "postgres")]
use super::CliContext as _;
#[cfg(feature = "postgres")]
use super::terminal;
use super::{CliError, serve};
#[cfg(feature = "postgres")]
use crate::thread::visible::visible;
use epitome_config::Settings;
#[cfg(feature = "postgres")]
use epitome_config::{CONFIG_BYTES_MAX, check_policy_of_store};

/// Show or change the policy of the database
///
/// It applies to everybody whose sessions are in this database, see docs/operators/policy.md.
#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = false)]
pub struct PolicyArgs {
    #[command(subcommand)]
    command: PolicyCommand,
}

#[derive(Debug, clap::Subcommand)]
enum PolicyCommand {
    /// Print the policy, and on stderr who has set it
    Show,
    /// Check a policy, and store it in place of the current one
    Set {
        /// A file like policy.toml
        file: PathBuf,
    },
    /// Remove the policy
    Remove,
}

pub fn main(PolicyArgs { command }: PolicyArgs) -> Result<i32, CliError> {
    let paths = serve::paths();
    let Some(address) = Settings::load(&paths, None, |_| None).0.store else {
        return Err(CliError::failed("the sessions are not in a database").hint(format!(
            "set `store` in {} (docs/operators/fleet.md); the policy of this machine is {}",
            paths.config_file().display(),
            paths.policy_file().display()
        )));
    };
    run(command, &address).map(|()| 0)
}

#[cfg(not(feature = "postgres"))]
fn run(_: PolicyCommand, _: &str) -> Result<(), CliError> {
    Err(CliError::failed(serve::WITHOUT_DATABASES))
}

#[cfg(feature = "postgres")]
fn run(command: PolicyCommand, address: &str) -> Result<(), CliError> {
    let (database, place) = serve::database_at(address)?;
    match command {
        PolicyCommand::Show => match database.policy()? {
            Some(policy) => {
                note!("epitome: set by {} in {place}", policy.changed);
                terminal::print_visible(&policy.text)?;
            }
            None => note!("epitome: there is no policy in {place}"),
        },
        PolicyCommand::Set { file } => {
            // It may be a pipe.
            let text =
                std::fs::read_to_string(&file).context(format_args!("{} can't be read", file.display()))?;
            if text.len() as u64 > CONFIG_BYTES_MAX {
                let (file, length) = (file.display(), text.len());
                return Err(CliError::failed(format!(
                    "{file} has {length} bytes, and a policy at most {CONFIG_BYTES_MAX}"
                )));
            }
            let problems = check_policy_of_store(&place, &text);
            if !problems.is_empty() {
                let list: Vec<String> = problems.iter().map(|problem| format!("  {problem}")).collect();
                let message = format!("{} was not stored:\n{}", file.display(), list.join("\n"));
                return Err(CliError::failed(visible(&message)));
            }
            database.set_policy(Some(&text))?;
            note!(
                "epitome: the policy is in {place}; running daemons apply it to new sessions within 5 seconds"
            );
        }
        PolicyCommand::Remove => {
            database.set_policy(None)?;
            note!("epitome: there is no policy in {place} any longer");
        }
    }
    Ok(())
}
