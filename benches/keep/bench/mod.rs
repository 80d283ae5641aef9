//! What the bench and `tests/keep.rs` share: conversations, ways of making them small, and what is measured.

pub mod baseline;
pub mod corpus;
pub mod generated;
pub mod measure;
pub mod ways;
