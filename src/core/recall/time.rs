//! Parses and formats times for the model.

use std::str::FromStr;

use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp};

use crate::RecallError;

/// The current time and time zone, to which times in a query are relative.
#[derive(Clone, Debug)]
pub struct Clock {
    /// Milliseconds since the Unix epoch.
    pub now: u64,
    pub zone: TimeZone,
}

impl Clock {
    /// Parses a time into milliseconds since the Unix epoch: `2026-01-31`, `2026-01-31T10:00`, with or without an
    /// offset, or `2h ago`.
    pub fn time(&self, text: &str) -> Result<u64, RecallError> {
        let text = text.trim();
        let found = self.ago(text).or_else(|| self.date(text));
        found
            .and_then(|time| u64::try_from(time.as_millisecond()).ok())
            .ok_or_else(|| RecallError::Time(text.to_owned()))
    }

    pub fn show(&self, milliseconds: u64) -> String {
        let zoned = timestamp(milliseconds).to_zoned(self.zone.clone());
        zoned.strftime("%Y-%m-%d %H:%M").to_string()
    }

    fn ago(&self, text: &str) -> Option<Timestamp> {
        let span = text.strip_suffix("ago")?.trim();
        let span = Span::from_str(span).ok()?.abs();
        timestamp(self.now).to_zoned(self.zone.clone()).checked_sub(span).ok().map(|then| then.timestamp())
    }

    fn date(&self, text: &str) -> Option<Timestamp> {
        if let Ok(exact) = Timestamp::from_str(text) {
            return Some(exact);
        }
        let local = DateTime::from_str(text)
            .or_else(|_| Date::from_str(text).map(|date| date.at(0, 0, 0, 0)))
            .ok()?;
        local.to_zoned(self.zone.clone()).ok().map(|zoned| zoned.timestamp())
    }
}

fn timestamp(milliseconds: u64) -> Timestamp {
    let milliseconds = i64::try_from(milliseconds).unwrap_or(i64::MAX);
    Timestamp::from_millisecond(milliseconds).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_parsed_in_all_documented_forms() {
        // 2026-01-31T12:00:00Z, 13:00 in the zone.
        let clock = Clock { now: 1_769_860_800_000, zone: TimeZone::fixed(jiff::tz::offset(1)) };
        let hour = 3_600_000;
        for (text, wanted) in [
            ("2h ago", clock.now - 2 * hour),
            ("30 minutes ago", clock.now - hour / 2),
            ("1 day ago", clock.now - 24 * hour),
            ("2026-01-31", clock.now - 13 * hour),
            ("2026-01-31T12:00", clock.now - hour),
            ("2026-01-31 12:00:00", clock.now - hour),
            ("2026-01-31T12:00:00Z", clock.now),
            ("2026-01-31T12:00:00+02:00", clock.now - 2 * hour),
        ] {
            assert_eq!(clock.time(text).ok(), Some(wanted), "{text}");
        }
        for wrong in ["", "soon", "ago", "yesterday", "2026-13-01", "1969-01-01"] {
            assert!(
                clock.time(wrong).unwrap_err().to_string().contains("not a known form of time"),
                "{wrong}"
            );
        }
        assert_eq!(clock.show(clock.now), "2026-01-31 13:00");
    }
}
