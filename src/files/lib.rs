//! A person's files: where they are, and how one is written so that it is whole or not there.

pub mod paths;
pub mod whole;
