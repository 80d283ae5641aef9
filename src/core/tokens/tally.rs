//! Token counts before they are scaled to a model.

use std::iter::Sum;
use std::ops::Add;

/// A count that is not yet scaled to a model. Tallies can be added, and are scaled by a `Calibration`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Tokens of text, counted with the embedded vocabulary or estimated.
    pub text: u64,
    /// Tokens of images and documents, as charged by the model's provider.
    pub media: u64,
}

impl Tally {
    pub(super) fn from_text(text: u64) -> Tally {
        Tally { text, media: 0 }
    }

    pub(super) fn from_media(media: u64) -> Tally {
        Tally { text: 0, media }
    }
}

impl Add for Tally {
    type Output = Tally;

    fn add(self, more: Tally) -> Tally {
        Tally { text: self.text + more.text, media: self.media + more.media }
    }
}

impl Sum for Tally {
    fn sum<I: Iterator<Item = Tally>>(tallies: I) -> Tally {
        tallies.fold(Tally::default(), Add::add)
    }
}
