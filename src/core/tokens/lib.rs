//! Token counting: with the embedded vocabulary if it is loaded, otherwise by an estimate from character classes,
//! scaled for each model by the usage that its provider reports. Anything that is sent counts as at least one token.

mod adjust;
mod calibration;
mod counter;
mod estimate;
mod media;
pub mod model_name;
mod ruler;
#[expect(clippy::disallowed_methods, reason = "unpacks the vocabulary on a thread")]
mod rulers;
mod tally;
mod vocabulary;

pub use calibration::Calibration;
pub use counter::{Count, Counter};
pub use estimate::estimate;
pub use media::{document_tokens, image_sides, image_tokens};
pub use ruler::{ExactCounter, Ruler};
pub use rulers::Rulers;
pub use tally::Tally;
pub use vocabulary::{Vocabulary, VocabularyError};
