//! Durations as people write them.

use jiff::{SignedDuration, Span, SpanRelativeTo};

/// Reads a duration with its units, such as `200us`, `30s`, `1h 30m` or `7d`: a day has 24 hours, a week seven days. `None`: it is
/// none, or has units of no fixed length, which are months and years.
pub fn parse_duration(text: &str) -> Option<SignedDuration> {
    let days = || {
        let span: Span = text.parse().ok()?;
        span.to_duration(SpanRelativeTo::days_are_24_hours()).ok()
    };
    text.parse().ok().or_else(days)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_and_weeks_are_units() {
        const HOUR: i64 = 3600;
        for (text, seconds) in [
            ("30s", 30),
            ("1h 30m", HOUR + 1800),
            ("7d", 168 * HOUR),
            ("1 day", 24 * HOUR),
            ("365d", 8760 * HOUR),
            ("2w 1d 1h", 361 * HOUR),
            ("-1d", -24 * HOUR),
            ("P1DT1H", 25 * HOUR),
        ] {
            let expected = Some(SignedDuration::from_secs(seconds));
            assert_eq!(parse_duration(text), expected, "{text}");
        }
        for text in ["", "7", "d", "1 sheep", "1mo", "1y", "99999999999d", "1d x"] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }
}
