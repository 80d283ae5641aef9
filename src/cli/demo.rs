//! To be written.

use super::CliError;
use std::ffi::OsString;

pub fn main(_arguments: Vec<OsString>) -> Result<i32, CliError> {
    Err(CliError::usage("to be written"))
}
