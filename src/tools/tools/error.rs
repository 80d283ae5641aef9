//! Why a call cannot run, or what went wrong while it ran.

use std::error::Error;
use std::sync::Arc;

use epitome_recall::RecallError;

/// The reason why a call cannot run or has failed, in the words that the model reads: what is wrong and how to continue.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{text}")]
pub struct ToolError {
    text: String,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

impl ToolError {
    /// The call itself is wrong, or what it needs is not there.
    pub fn new(text: impl Into<String>) -> ToolError {
        ToolError { text: text.into(), source: None }
    }

    /// Another error is the cause; `text` says what it means for the call.
    pub fn caused(text: impl Into<String>, source: impl Error + Send + Sync + 'static) -> ToolError {
        ToolError { text: text.into(), source: Some(Arc::new(source)) }
    }

    /// The same error with the name of what it is about before it.
    pub fn about(self, name: &str) -> ToolError {
        self.reworded(|text| format!("{name}: {text}"))
    }

    /// The same error with other words around those that it has.
    pub fn reworded(self, words: impl FnOnce(&str) -> String) -> ToolError {
        ToolError { text: words(&self.text), source: self.source }
    }
}

/// Two errors are equal if the model reads the same.
impl PartialEq for ToolError {
    fn eq(&self, other: &ToolError) -> bool {
        self.text == other.text
    }
}

impl Eq for ToolError {}

impl From<String> for ToolError {
    fn from(text: String) -> ToolError {
        ToolError::new(text)
    }
}

impl From<ToolError> for String {
    fn from(error: ToolError) -> String {
        error.text
    }
}

impl From<RecallError> for ToolError {
    fn from(error: RecallError) -> ToolError {
        ToolError::caused(error.to_string(), error)
    }
}
