//! The user's files: their paths, atomic writes, and disk operations.

pub mod atomic_file;
pub mod disk;
pub mod memory;
pub mod paths;
