//! What something measures before it is fitted to a model.

use std::iter::Sum;
use std::ops::Add;

/// A count that is not yet a model's. Tallies are added, and fitted by a `Calibration`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Tokens of text, as the embedded vocabulary counts them, or by estimate.
    pub text: u64,
    /// Tokens of images and documents, as the model's provider charges them.
    pub media: u64,
}

impl Tally {
    pub(super) fn of_text(text: u64) -> Tally {
        Tally { text, media: 0 }
    }

    pub(super) fn of_media(media: u64) -> Tally {
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
