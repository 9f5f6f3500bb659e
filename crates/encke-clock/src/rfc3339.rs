//! Times of day as text.

use std::fmt;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::WallTime;

/// A text that is no time by RFC 3339, or one before 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotRfc3339;

impl fmt::Display for NotRfc3339 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("must be a time such as 2026-01-31T12:00:00Z (RFC 3339), from 1970 on")
    }
}

impl std::error::Error for NotRfc3339 {}

impl WallTime {
    /// Reads a time with its offset from UTC (RFC 3339, section 5.6). Digits of a fraction beyond a millisecond are ignored. A leap second
    /// may stand at the end of a month in UTC only (section 5.7), and counts as the last millisecond of the second before.
    ///
    /// # Errors
    /// The text has another form, names an instant that no calendar has, or one before 1970.
    pub fn from_rfc3339(text: &str) -> Result<WallTime, NotRfc3339> {
        // `time` takes any separator.
        let separator = text.as_bytes().get(DATE_BYTES);
        if !separator.is_some_and(|byte| byte.eq_ignore_ascii_case(&b'T')) {
            return Err(NotRfc3339);
        }
        let at = OffsetDateTime::parse(text, &Rfc3339).map_err(|_| NotRfc3339)?;
        let ms = u64::try_from(at.unix_timestamp_nanos().div_euclid(1_000_000));
        ms.map(WallTime::from_ms).map_err(|_| NotRfc3339)
    }
}

/// Bytes of the date, before the separator.
const DATE_BYTES: usize = "2026-01-31".len();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_rfc_3339() {
        for (text, ms) in [
            ("1970-01-01T00:00:00Z", 0),
            ("1970-01-01t00:00:01z", 1_000),
            ("1970-01-01T00:00:00.001Z", 1),
            ("1970-01-01T00:00:00.999999999Z", 999),
            ("1970-01-01T00:00:00.123456789012Z", 123),
            ("1970-01-01T01:00:00+01:00", 0),
            ("1969-12-31T16:00:00-08:00", 0),
            ("1970-01-01T23:59:00+23:59", 0),
            ("2024-02-29T00:00:00-00:00", 1_709_164_800_000),
            ("9999-12-30T00:00:00Z", 253_402_128_000_000),
            ("2016-12-31T23:59:60Z", 1_483_228_799_999),
            ("2017-01-01T00:59:60.5+01:00", 1_483_228_799_999),
            ("2016-12-31T15:59:60-08:00", 1_483_228_799_999),
        ] {
            assert_eq!(
                WallTime::from_rfc3339(text),
                Ok(WallTime::from_ms(ms)),
                "{text}"
            );
        }
        for text in [
            "",
            "0",
            "2026-01-31",
            "2026-01-31T12:00Z",
            "2026-01-31T12:00:00",
            "2026-01-31 12:00:00Z",
            "2026-01-31T12:00:00.Z",
            "2026-01-31T12:00:00,5Z",
            "2026-01-31T12:00:00+1:00",
            "2026-01-31T12:00:00+0100",
            "2026-01-31T12:00:00+01:00[Europe/Berlin]",
            "2026-01-31T12:00:00Z[UTC]",
            "20260131T120000Z",
            "+002026-01-31T12:00:00Z",
            "2026-W05-6T12:00:00Z",
            "2026-02-30T12:00:00Z",
            "2025-02-29T12:00:00Z",
            "2026-13-01T12:00:00Z",
            "2026-01-31T24:00:00Z",
            "2026-01-31T12:60:00Z",
            "2026-01-31T12:00:00+24:00",
            "2026-01-31T12:00:00-24:00",
            "2026-01-31T12:00:00+00:60",
            "2026-01-31T12:00:00+99:00",
            "1969-12-31T23:59:59Z",
            "1969-12-31T23:59:59.9999Z",
            "Sat, 31 Jan 2026 12:00:00 GMT",
            "2026-01-31T12:00:0äZ",
            "2026-01-3äT12:00:00Z",
            // No leap second can be there.
            "2016-12-31T23:59:61Z",
            "2016-12-31T23:58:60Z",
            "2016-12-30T23:59:60Z",
            "2026-01-31T12:00:60Z",
            "2016-12-31T23:59:60+01:00",
        ] {
            assert_eq!(WallTime::from_rfc3339(text), Err(NotRfc3339), "{text}");
        }
    }
}
