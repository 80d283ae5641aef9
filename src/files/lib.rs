//! The user's files: their paths, and atomic writes.

pub mod atomic_file;
pub mod paths;
