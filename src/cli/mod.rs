//! The command line.

pub mod acp;
pub mod check;
pub mod demo;
pub mod run;
pub mod sessions;
