//! Local stand-in.
use super::{handlers::Handler, hook::Hook};
use std::sync::Arc;
#[derive(Clone, Debug, PartialEq)]
pub enum Link {
    Hook(Arc<Hook>),
    Handler(Arc<Handler>),
}
