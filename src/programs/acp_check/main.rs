//! `acp-check`: checks protocol rules and runs protocol fixtures against any agent that speaks ACP on stdin and stdout.

use std::process::ExitCode;

use clap::Parser;
use epitome_acp_check::{CheckArgs, check, recording};
use epitome_platform::program::RECORD_ARGUMENT;

#[derive(Parser)]
#[command(name = "acp-check", version)]
struct CheckCli {
    #[command(flatten)]
    check: CheckArgs,
}

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    if let [first, path] = arguments.as_slice()
        && first == RECORD_ARGUMENT
    {
        let recorded = recording::record(path.as_ref(), std::io::stdin().lock(), std::io::stdout().lock());
        return ExitCode::from(u8::from(recorded.is_err()));
    }
    match check(&CheckCli::parse().check, &mut std::io::stdout().lock()) {
        Ok(counts) => ExitCode::from(u8::from(counts.failed > 0)),
        Err(error) => {
            eprintln!("acp-check: {}\nhint: {}", error.message, error.hint);
            ExitCode::from(2)
        }
    }
}
