//! Shared by the bench and `tests/pure/keep.rs`: conversations, ways of shortening them, and measures.

pub mod baseline;
pub mod corpus;
pub mod generated;
pub mod measure;
pub mod surprise;
pub mod ways;
