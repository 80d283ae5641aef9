//! Durable threads: journals are the truth, sled holds rows and headers that can be rebuilt from them.

pub mod blobs;
pub mod journal;
pub mod rows;
