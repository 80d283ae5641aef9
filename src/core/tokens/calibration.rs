//! The difference between a model's token count and Epitome's, learned from the usage reported by its provider. Pure.

use serde::{Deserialize, Serialize};

use super::tally::Tally;
use crate::model_name::Family;

/// The weight of a new ratio: an outlier moves the ratio by a third, and five replies replace most of the earlier
/// value.
const LEARNING_RATE: f64 = 0.3;

/// Requests with fewer tokens have a lower weight, because the provider's overhead is a large part of them.
const TEXT_TOKENS_FULL: f64 = 2_000.0;

/// No known vocabulary differs more. Nonsensical reports are clamped to this range.
const RATIO_MIN: f64 = 0.5;
const RATIO_MAX: f64 = 3.0;

/// A reported size that is smaller than our count by more than this factor is not the size of the request.
const PLAUSIBLE_FACTOR_MAX: u64 = 4;

/// Maximum number of tokens that a provider may add to a request, mostly the text around tools.
const OVERHEAD_TOKENS_MAX: u64 = 1_000;

/// A stored calibration is updated if the ratio differs by this share, or the overhead by this many tokens. Smaller
/// changes are noise, and occur with each reply.
const NEWS_RATIO_SHARE: f64 = 0.005;
const NEWS_OVERHEAD_TOKENS: u64 = 20;

/// Whether a request with this much text by our count can have the size that its provider reports.
pub(super) fn is_plausible(reported: u64, text: u64) -> bool {
    reported.saturating_mul(PLAUSIBLE_FACTOR_MAX) >= text
}

/// How a model's provider counts, relative to Epitome's count.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// The provider's tokens per token of Epitome's count.
    ratio: f64,
    /// Tokens that the provider adds to every request.
    overhead: u64,
    /// Number of replies that it was learned from.
    replies: u32,
}

impl Calibration {
    /// Returns the initial calibration of a model that has not replied yet.
    ///
    /// Only the ratios for OpenAI's models and Qwen are measured against their vocabularies. Claude's vocabulary is
    /// not public; 1.15 is reported to be too low for it. Callers that must be certain use `Ruler::at_most`, which
    /// adds a margin: a request that is a tenth smaller than expected does no harm, but a larger one may be refused.
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

    /// Whether it was learned from at least one reply of the model.
    pub fn is_learnt(&self) -> bool {
        self.replies > 0
    }

    /// Converts a part of a request to the model's tokens; at least one for anything that is sent.
    pub fn fit(&self, tally: Tally) -> u64 {
        let text = tally.text as f64 * self.ratio();
        (text.ceil() as u64).saturating_add(tally.media)
    }

    /// Tokens that every request needs in addition to its contents.
    pub fn overhead(&self) -> u64 {
        self.overhead.min(OVERHEAD_TOKENS_MAX)
    }

    /// Learns from a complete request, for which the provider reported `reported` tokens.
    ///
    /// The excess of the first request is attributed to the provider's overhead; all later ones update the ratio.
    pub fn learn(&mut self, sent: Tally, reported: u64) {
        if sent.text == 0 || reported <= sent.media || !is_plausible(reported, sent.text) {
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

    /// Whether it differs enough from a stored calibration to be stored.
    pub fn differs_from(&self, kept: &Calibration) -> bool {
        self.is_learnt() != kept.is_learnt()
            || (self.ratio() / kept.ratio() - 1.0).abs() > NEWS_RATIO_SHARE
            || self.overhead().abs_diff(kept.overhead()) > NEWS_OVERHEAD_TOKENS
    }

    /// The ratio, clamped even if it comes from a damaged file.
    fn ratio(&self) -> f64 {
        if self.ratio.is_nan() { 1.0 } else { self.ratio.clamp(RATIO_MIN, RATIO_MAX) }
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
    fn the_excess_of_the_first_request_is_the_providers_overhead() {
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
    fn images_do_not_affect_the_ratio_for_text() {
        let mut calibration = Calibration::start(Family::OpenAi);
        calibration.learn(Tally { text: 5_000, media: 1_000 }, 6_000);
        assert_eq!(calibration.fit(Tally { text: 100, media: 1_000 }), 1_100);
        // A report below the size of the image can't be for this request.
        let before = calibration;
        calibration.learn(Tally { text: 5_000, media: 1_000 }, 900);
        assert_eq!(calibration, before);
    }

    #[test]
    fn nothing_is_learnt_from_a_report_without_cached_tokens() {
        let before = Calibration::start(Family::Other);
        let mut calibration = before;
        calibration.learn(text(10_000), 12);
        assert_eq!(calibration, before);
    }

    #[test]
    fn noise_is_not_worth_storing() {
        let start = Calibration::start(Family::Claude);
        let mut kept = start;
        kept.learn(text(10_000), 12_000);
        assert!(kept.differs_from(&start) && !kept.differs_from(&kept));
        let (mut same, mut other) = (kept, kept);
        same.learn(text(10_000), 12_100);
        other.learn(text(10_000), 13_000);
        assert!(!same.differs_from(&kept) && other.differs_from(&kept));
    }

    #[test]
    fn a_calibration_survives_serialisation() {
        let mut calibration = Calibration::start(Family::Gemini);
        calibration.learn(text(9_000), 9_000);
        let kept = serde_json::to_string(&calibration).expect("plain numbers");
        assert_eq!(serde_json::from_str::<Calibration>(&kept).expect("as written"), calibration);
    }

    proptest! {
        /// For any report by a provider, and any contents of a damaged file.
        #[test]
        fn counts_are_monotonic_and_bounded(
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
