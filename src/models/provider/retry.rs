//! Decides whether and when to retry a failed model call. Pure: it neither waits nor generates random numbers.

use std::time::Duration;

use super::ErrorClass;

/// Maximum attempts of one model call, including the first. With the delays below they span about 15 seconds.
pub const ATTEMPTS_MAX: u32 = 6;

/// Delay after the first failure; doubles with each further one.
pub const BACKOFF_FIRST: Duration = Duration::from_millis(500);

/// Maximum delay, unless the provider requests a longer one.
pub const BACKOFF_MAX: Duration = Duration::from_secs(8);

/// Maximum delay that a provider may request. After a longer one, the call fails instead.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

/// Returns the delay before the next attempt, or `None` to give up.
///
/// `attempt` is the number of failed attempts, from 1. `random` is in `0.0..1.0` and spreads the delays of many
/// sessions over the upper half of the back-off. The delay that the provider requests is a lower bound; above
/// `RETRY_AFTER_MAX`, the result is `None`.
pub fn delay(class: &ErrorClass, attempt: u32, random: f64) -> Option<Duration> {
    let ErrorClass::Retry { after } = class else { return None };
    let after = after.unwrap_or_default();
    if attempt >= ATTEMPTS_MAX || after > RETRY_AFTER_MAX {
        return None;
    }
    let doubled = BACKOFF_FIRST.saturating_mul(1 << attempt.saturating_sub(1).min(16));
    let backoff = doubled.min(BACKOFF_MAX).mul_f64(0.5 + 0.5 * random.clamp(0.0, 1.0));
    Some(backoff.max(after))
}

/// Interval of reminders about the remaining delay: short enough to show that the call is alive, and long enough that
/// the longest delay produces only three lines.
const REMINDED_EVERY: Duration = Duration::from_secs(15);

/// Time until the next reminder of the remaining delay, or all of it if little is left.
pub fn before_reminder(left: Duration) -> Duration {
    if left >= 2 * REMINDED_EVERY { REMINDED_EVERY } else { left }
}

/// Parses the duration at the beginning of a text: `9s`, `0.5s`, `1m2.5s`, `250ms`, `20 seconds`.
pub fn duration(text: &str) -> Option<Duration> {
    let mut rest = text.trim_start();
    let mut seconds: Option<f64> = None;
    loop {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let Ok(number) = rest[..end].trim_end_matches('.').parse::<f64>() else { break };
        let unit = rest[end..].trim_start();
        let letters = unit.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(unit.len());
        let scale = match &unit[..letters] {
            "ms" | "milliseconds" => 0.001,
            "s" | "sec" | "second" | "seconds" => 1.0,
            "m" | "min" | "minute" | "minutes" => 60.0,
            "h" | "hour" | "hours" => 3600.0,
            _ => break,
        };
        *seconds.get_or_insert(0.0) += number * scale;
        rest = &unit[letters..];
    }
    Duration::try_from_secs_f64(seconds?).ok()
}

/// The delay after which a rate limit ends, from the headers of services that send no `retry-after`: the limit that is
/// used up, as a duration, or the end of the only one, as a time in seconds or milliseconds since the epoch.
pub fn rate_limit_reset<'a>(header: impl Fn(&str) -> Option<&'a str>) -> Option<Duration> {
    let used_up = ["requests", "tokens"].into_iter().filter_map(|of| {
        let remaining = header(&format!("x-ratelimit-remaining-{of}"))?;
        (remaining.trim() == "0").then(|| duration(header(&format!("x-ratelimit-reset-{of}"))?)).flatten()
    });
    used_up.max().or_else(|| {
        let reset: f64 = header("x-ratelimit-reset")?.trim().parse().ok()?;
        let now = jiff::fmt::rfc2822::parse(header("date")?.trim()).ok()?.timestamp().as_second() as f64;
        let seconds = match reset {
            1e12.. => reset / 1000.0 - now,
            1e9.. => reset - now,
            _ => reset,
        };
        Duration::try_from_secs_f64(seconds.max(0.0)).ok()
    })
}

/// The delay that response headers request: `retry-after-ms`, else `retry-after` in seconds or as an HTTP date. A date
/// is relative to the response's `date`, so that no clock is needed.
pub fn retry_after<'a>(header: impl Fn(&str) -> Option<&'a str>) -> Option<Duration> {
    let number = |name: &str| header(name).and_then(|value| value.trim().parse::<f64>().ok());
    let seconds = number("retry-after-ms").map(|millis| millis / 1000.0).or_else(|| number("retry-after"));
    if let Some(seconds) = seconds {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    // `Sun, 06 Nov 1994 08:49:37 GMT`
    let date = |name: &str| {
        let date = jiff::fmt::rfc2822::parse(header(name)?.trim()).ok()?;
        Some(date.timestamp().as_second())
    };
    Some(Duration::from_secs(u64::try_from(date("retry-after")? - date("date")?).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> ErrorClass {
        ErrorClass::Retry { after: Some(Duration::from_secs(seconds)) }
    }

    #[test]
    fn delays_double_up_to_a_limit() {
        let plain = ErrorClass::Retry { after: None };
        let waits: Vec<Option<u64>> =
            (1..=6).map(|n| delay(&plain, n, 1.0).map(|wait| wait.as_millis() as u64)).collect();
        assert_eq!(waits, [Some(500), Some(1000), Some(2000), Some(4000), Some(8000), None]);
        assert_eq!(delay(&plain, 1, 0.0), Some(Duration::from_millis(250)));
    }

    #[test]
    fn provider_delay_is_honoured_up_to_a_limit() {
        assert_eq!(delay(&seconds(7), 1, 0.5), Some(Duration::from_secs(7)));
        assert_eq!(delay(&seconds(60), 1, 0.5), Some(Duration::from_secs(60)));
        assert_eq!(delay(&seconds(61), 1, 0.5), None);
    }

    #[test]
    fn long_delays_have_reminders() {
        for (seconds, expected) in [(1, vec![]), (29, vec![]), (30, vec![15]), (60, vec![45, 30, 15])] {
            let mut left = Duration::from_secs(seconds);
            let mut reminders = Vec::new();
            while !left.is_zero() {
                left -= before_reminder(left);
                reminders.extend((!left.is_zero()).then_some(left.as_secs()));
            }
            assert_eq!(reminders, expected, "{seconds}");
        }
    }

    #[test]
    fn other_failures_are_not_retried() {
        let too_long = ErrorClass::TooLong { used: None, limit: None, window: true };
        for class in [
            ErrorClass::Auth,
            too_long,
            ErrorClass::Empty,
            ErrorClass::BadReasoning,
            ErrorClass::ToolForm,
            ErrorClass::Budget,
            ErrorClass::Refused,
            ErrorClass::Broken,
        ] {
            assert_eq!(delay(&class, 1, 0.5), None);
        }
    }

    #[test]
    fn every_retry_after_format_is_parsed() {
        let date = ("date", "Sun, 06 Nov 1994 08:49:37 GMT");
        for (headers, expected) in [
            (vec![("retry-after", "2")], Some(2_000)),
            (vec![("retry-after", "1.5")], Some(1_500)),
            (vec![("retry-after", "9"), ("retry-after-ms", "250")], Some(250)),
            (vec![("retry-after", "Sun, 06 Nov 1994 08:50:07 GMT"), date], Some(30_000)),
            (vec![("retry-after", "Sun, 06 Nov 1994 08:40:00 GMT"), date], Some(0)),
            (vec![("retry-after", "soon")], None),
            (vec![("retry-after", "-1")], None),
            (vec![], None),
        ] {
            let found =
                retry_after(|name| headers.iter().find(|(key, _)| *key == name).map(|(_, value)| *value));
            assert_eq!(found.map(|wait| wait.as_millis()), expected, "{headers:?}");
        }
    }

    #[test]
    fn the_end_of_a_rate_limit_is_known_from_the_limit_that_is_used_up() {
        let date = ("date", "Sun, 06 Nov 1994 08:49:37 GMT");
        for (headers, expected) in [
            (vec![("x-ratelimit-remaining-tokens", "0"), ("x-ratelimit-reset-tokens", "7.66s")], Some(7_660)),
            (vec![("x-ratelimit-remaining-tokens", "12"), ("x-ratelimit-reset-tokens", "7.66s")], None),
            (vec![("x-ratelimit-reset", "1784111787000"), date], Some(1_000_000_010_000)),
            (vec![("x-ratelimit-reset", "30"), date], Some(30_000)),
            (vec![("x-ratelimit-reset", "30")], None),
        ] {
            let found = rate_limit_reset(|name| {
                headers.iter().find(|(key, _)| *key == name).map(|(_, value)| *value)
            });
            assert_eq!(found.map(|wait| wait.as_millis()), expected, "{headers:?}");
        }
    }
}
