//! Sessions of aider.

use super::{Circumstances, Draft, File};
use crate::problem::Problem;

pub(super) fn read(file: File, _: &str, _: &Circumstances) -> Result<Draft, Problem> {
    Err(file.problem(1, "sessions of aider can't be read yet"))
}
