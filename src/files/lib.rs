//! The user's files: their paths, atomic writes, and the disk below them.

pub mod atomic_file;
pub mod disk;
pub mod paths;
