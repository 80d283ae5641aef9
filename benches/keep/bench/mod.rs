//! KeepBench without its command line: the conversations, the facts planted in them, and the judge of what a
//! compaction leaves. Shares no code with the finder of facts that it judges, and refuses to: it knows
//! compaction by its public faces alone.

pub mod corpus;
pub mod generate;
pub mod judge;
pub mod noise;
pub mod phrases;
pub mod plant;
pub mod recorded;
pub mod session;
pub mod strategy;
pub mod values;
pub mod words;
