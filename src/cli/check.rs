//! `epitome check`: the conformance suite of `epitome-acp-check`.

use epitome_acp_check::{CheckArgs, check};

use super::CliError;

pub fn main(args: &CheckArgs) -> Result<i32, CliError> {
    match check(args, &mut std::io::stdout().lock()) {
        Ok(failed) => Ok(i32::from(failed > 0)),
        Err(error) => Err(CliError::usage(error.message).hint(error.hint)),
    }
}

#[cfg(test)]
mod tests {
    use crate::cli::CliCommand;
    use crate::cli::tests::{parsed, usage_error};

    #[test]
    fn the_command_and_its_options_come_after_two_hyphens() {
        let line = ["check", "--json", "a.txt", "--", "agent", "--json", "--", "x"];
        let CliCommand::Check(args) = parsed(&line).command else { panic!("not a check") };
        assert_eq!((args.json, args.files.len()), (true, 1));
        assert_eq!(args.command, ["agent", "--json", "--", "x"]);
        usage_error(&["check", "a.txt"], "COMMAND");
        usage_error(&["check", "--fast", "--", "x"], "--fast");
    }
}
