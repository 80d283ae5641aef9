//! Why a handler cannot be declared so, or has failed.

use std::io;

use crate::functions::FunctionError;
use epitome_tools::ToolError;

/// Why a handler cannot be declared so, or has failed: a clause for the trail.
#[derive(Debug, thiserror::Error)]
pub enum HandlerError {
    /// Its parameters are wrong, or the event has nothing for it.
    #[error("{0}")]
    Refused(String),
    #[error("cannot {what} {path}: {source}")]
    File { what: &'static str, path: String, source: io::Error },
    #[error(transparent)]
    Disk(#[from] ToolError),
    #[error(transparent)]
    Function(#[from] FunctionError),
}

impl HandlerError {
    pub fn new(why: impl Into<String>) -> HandlerError {
        HandlerError::Refused(why.into())
    }
}

impl From<String> for HandlerError {
    fn from(why: String) -> HandlerError {
        HandlerError::Refused(why)
    }
}

impl From<&str> for HandlerError {
    fn from(why: &str) -> HandlerError {
        HandlerError::Refused(why.to_owned())
    }
}
