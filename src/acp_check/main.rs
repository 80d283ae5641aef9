//! `acp-check`: checks protocol rules and runs protocol fixtures against any agent that speaks ACP on stdin and stdout.

use std::process::ExitCode;

use clap::Parser;
use epitome_acp_check::{CheckArgs, check};

#[derive(Parser)]
#[command(name = "acp-check", version)]
struct CheckCli {
    #[command(flatten)]
    check: CheckArgs,
}

fn main() -> ExitCode {
    match check(&CheckCli::parse().check, &mut std::io::stdout().lock()) {
        Ok(failed) => ExitCode::from(u8::from(failed > 0)),
        Err(error) => {
            eprintln!("acp-check: {}\nhint: {}", error.message, error.hint);
            ExitCode::from(2)
        }
    }
}
