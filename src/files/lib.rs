//! The user's files: their paths, and atomic writes.

pub mod paths;
pub mod whole;
