//! Notices that a server cut a request without a word: it reports far fewer tokens than were sent. Pure.
//!
//! Ollama does so at its `num_ctx`: it drops the oldest messages and answers what is left, which looks
//! like a model that forgets. Nothing else tells it but the number in its answer.

/// A report below this share of the estimate means that something was left out. Estimates are off by a
/// tenth or a fifth, also for languages that tokenize badly.
const REPORTED_SHARE_MAX: f64 = 0.6;

/// At least so many tokens must be missing: of a short request, fixed parts that a server counts in its
/// own way are a large share.
const MISSING_TOKENS_MIN: u64 = 2_048;

/// A server that cuts keeps the system text, so its report is never tiny. One that is came from a server
/// that reports only what it had not cached.
const REPORTED_TOKENS_MIN: u64 = 1_024;

/// A report may fall to this share of the one before it when whole messages are dropped; below it, the
/// server reports what it had not cached.
const FALL_SHARE_MIN: f64 = 0.5;

/// Windows are set in steps of this many tokens.
const WINDOW_STEP: u64 = 1_024;

/// The window that a server seems to have, in tokens: it reported to have read `reported` tokens of a
/// request that by estimate had `sent`, and of the one before it `before` (0 for the first). `None` where
/// it seems to have read all.
pub fn window_behind(sent: u64, reported: u64, before: u64) -> Option<u64> {
    let is_cut = (reported as f64) < sent as f64 * REPORTED_SHARE_MAX
        && sent.saturating_sub(reported) >= MISSING_TOKENS_MIN;
    let is_whole_report =
        reported >= REPORTED_TOKENS_MIN && reported as f64 >= before as f64 * FALL_SHARE_MIN;
    (is_cut && is_whole_report).then(|| reported.max(before.min(sent)).next_multiple_of(WINDOW_STEP))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_far_below_the_estimate_tells_a_window() {
        for (why, sent, reported, before, window) in [
            ("read whole", 10_000, 9_800, 8_000, None),
            ("an estimate a third too high", 10_000, 7_000, 6_000, None),
            ("Ollama's default", 9_000, 4_000, 3_900, Some(4_096)),
            ("its default at the very first call", 9_000, 4_096, 0, Some(4_096)),
            ("a long message was dropped whole", 9_000, 2_600, 4_050, Some(4_096)),
            ("a larger window", 40_000, 15_900, 14_000, Some(16_384)),
            ("too little is missing to say", 3_000, 1_500, 1_400, None),
            ("only what was not cached is reported", 30_000, 900, 28_000, None),
            ("the same with a longer message", 30_000, 5_000, 28_000, None),
            ("no report", 30_000, 0, 0, None),
        ] {
            assert_eq!(window_behind(sent, reported, before), window, "{why}");
        }
    }
}
