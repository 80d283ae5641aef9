//! How a model's own count differs from ours, learnt from what its provider reports. Pure.

use serde::{Deserialize, Serialize};

use super::tally::Tally;
use crate::family::Family;

/// How much of a new ratio is taken over from one reply: an outlier moves it by a third, and five replies
/// hide what was before.
const LEARNING_RATE: f64 = 0.3;

/// Requests smaller than this, in tokens, teach less: what a provider adds by itself is a large part.
const TEXT_TOKENS_FULL: f64 = 2_000.0;

/// No vocabulary is known to be further from ours. A provider that reports nonsense is held to this.
const RATIO_MIN: f64 = 0.5;
const RATIO_MAX: f64 = 3.0;

/// What a provider adds to a request by itself (the words around tools, mostly), in tokens, at most.
const OVERHEAD_TOKENS_MAX: u64 = 1_000;

/// What is kept is written anew where the ratio is another one by this share, or the addition by so many
/// tokens: less is noise, and each reply brings some.
const NEWS_RATIO_SHARE: f64 = 0.005;
const NEWS_OVERHEAD_TOKENS: u64 = 20;

/// How a model's provider counts, against our count.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// Its tokens for one of ours.
    ratio: f64,
    /// Tokens that it adds to every request.
    overhead: u64,
    /// Replies that it was learnt from.
    replies: u32,
}

impl Calibration {
    /// What is known of a model that has not answered yet.
    ///
    /// Only those of OpenAI's models and of Qwen are measured, against their vocabularies. Claude's is not
    /// public; 1.15 is reported to be too low for it. `Ruler::at_most` has the margin for who must be sure:
    /// a request that is a tenth smaller than expected does no harm, one that is larger may be refused.
    pub fn start(family: Family) -> Calibration {
        let ratio = match family {
            Family::OpenAi | Family::Qwen => 1.0,
            Family::Claude => 1.3,
            Family::Gemini | Family::Mistral => 1.1,
            Family::Chinese | Family::Llama => 1.05,
            Family::Other => 1.2,
        };
        Calibration { ratio, overhead: 0, replies: 0 }
    }

    /// Whether an answer of the model was seen.
    pub fn is_learnt(&self) -> bool {
        self.replies > 0
    }

    /// The model's tokens for something of a request; never none for something that is sent.
    pub fn fit(&self, tally: Tally) -> u64 {
        let text = tally.text as f64 * self.ratio();
        (text.ceil() as u64).saturating_add(tally.media)
    }

    /// Tokens that every request takes beside what is in it.
    pub fn overhead(&self) -> u64 {
        self.overhead.min(OVERHEAD_TOKENS_MAX)
    }

    /// Learns from a whole request, of which its provider reports so many tokens.
    ///
    /// What the first one has too much is the provider's own addition, and all later ones tell the ratio.
    pub fn learn(&mut self, sent: Tally, reported: u64) {
        if sent.text == 0 || reported <= sent.media {
            return;
        }
        let text = sent.text as f64;
        if self.replies == 0 {
            self.overhead = reported.saturating_sub(self.fit(sent)).min(OVERHEAD_TOKENS_MAX);
        }
        let of_text = reported.saturating_sub(sent.media).saturating_sub(self.overhead()) as f64;
        let observed = (of_text / text).clamp(RATIO_MIN, RATIO_MAX);
        let rate = if self.replies == 0 { 1.0 } else { LEARNING_RATE };
        let rate = rate * (text / TEXT_TOKENS_FULL).min(1.0);
        self.ratio = self.ratio() + rate * (observed - self.ratio());
        self.replies = self.replies.saturating_add(1);
    }

    /// Whether it counts otherwise than one that was kept.
    pub fn is_news_beside(&self, kept: &Calibration) -> bool {
        self.is_learnt() != kept.is_learnt()
            || (self.ratio() / kept.ratio() - 1.0).abs() > NEWS_RATIO_SHARE
            || self.overhead().abs_diff(kept.overhead()) > NEWS_OVERHEAD_TOKENS
    }

    /// As it is within bounds, also where it comes from a file.
    fn ratio(&self) -> f64 {
        match self.ratio.is_nan() {
            true => 1.0,
            false => self.ratio.clamp(RATIO_MIN, RATIO_MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(tokens: u64) -> Tally {
        Tally { text: tokens, media: 0 }
    }

    #[test]
    fn what_the_first_request_has_too_much_is_the_providers_own() {
        let mut calibration = Calibration::start(Family::OpenAi);
        calibration.learn(text(8_000), 8_400);
        assert_eq!((calibration.overhead(), calibration.fit(text(1_000))), (400, 1_000));
    }

    #[test]
    fn a_ratio_is_learnt_from_one_reply_and_refined_by_more() {
        let mut calibration = Calibration::start(Family::Claude);
        calibration.learn(text(10_000), 11_500);
        assert_eq!((calibration.overhead(), calibration.fit(text(1_000))), (0, 1_150));
        for _ in 0..20 {
            calibration.learn(text(10_000), 12_000);
        }
        assert!((1_195..=1_200).contains(&calibration.fit(text(1_000))));
    }

    #[test]
    fn images_teach_nothing_about_text() {
        let mut calibration = Calibration::start(Family::OpenAi);
        calibration.learn(Tally { text: 5_000, media: 1_000 }, 6_000);
        assert_eq!(calibration.fit(Tally { text: 100, media: 1_000 }), 1_100);
        // A report below what the image alone takes is not one of this request.
        let before = calibration;
        calibration.learn(Tally { text: 5_000, media: 1_000 }, 900);
        assert_eq!(calibration, before);
    }

    #[test]
    fn noise_is_not_worth_keeping() {
        let start = Calibration::start(Family::Claude);
        let mut kept = start;
        kept.learn(text(10_000), 12_000);
        assert!(kept.is_news_beside(&start) && !kept.is_news_beside(&kept));
        let (mut same, mut other) = (kept, kept);
        same.learn(text(10_000), 12_100);
        other.learn(text(10_000), 13_000);
        assert!(!same.is_news_beside(&kept) && other.is_news_beside(&kept));
    }

    #[test]
    fn it_is_kept_and_read_again() {
        let mut calibration = Calibration::start(Family::Gemini);
        calibration.learn(text(9_000), 9_000);
        let kept = serde_json::to_string(&calibration).expect("plain numbers");
        assert_eq!(serde_json::from_str::<Calibration>(&kept).expect("as written"), calibration);
    }

    proptest! {
        /// Whatever a provider reports, and whatever a damaged file holds.
        #[test]
        fn a_count_grows_with_what_is_sent_and_stays_within_bounds(
            ratio in any::<f64>(),
            overhead: u64,
            reports in prop::collection::vec((any::<u32>(), any::<u64>()), 0..8),
            (less, more) in (0u64..1 << 40, 0u64..1 << 40),
        ) {
            let mut calibration = Calibration { ratio, overhead, replies: 0 };
            for (sent, reported) in reports {
                calibration.learn(text(u64::from(sent)), reported);
            }
            let (less, more) = (less.min(more), less.max(more));
            prop_assert!(calibration.fit(text(less)) <= calibration.fit(text(more)));
            prop_assert!(calibration.fit(text(1)) >= 1);
            prop_assert!(calibration.fit(text(more)) <= more * 3);
            prop_assert!(calibration.overhead() <= OVERHEAD_TOKENS_MAX);
        }
    }
}
