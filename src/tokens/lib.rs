//! Counting tokens: with the embedded vocabulary where it is loaded, else by an estimate from the classes
//! of characters; fitted to each model by what its provider reported. Never zero for anything that is sent.

mod adjust;
mod calibration;
mod counter;
mod estimate;
pub mod family;
mod media;
mod ruler;
#[expect(
    clippy::disallowed_methods,
    reason = "the vocabulary is unpacked on a thread, and put away when unused"
)]
mod rulers;
mod tally;
mod vocabulary;

pub use calibration::Calibration;
pub use counter::{Count, Counter};
pub use estimate::estimate;
pub use ruler::Ruler;
pub use rulers::Rulers;
pub use tally::Tally;
pub use vocabulary::{Vocabulary, VocabularyError};
