//! Time stamps of log lines, as seconds; nothing here knows time zones.

use serde::{Deserialize, Serialize};

/// What the seconds of a stamp count from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Clock {
    /// Seconds since 1970 in the zone of the writer.
    Date,
    /// A stamp without a year, as vLLM writes it: seconds as if the year were 1972, which has a 29 February.
    NoYear,
    /// Since the process started, as llama.cpp writes it.
    SinceStart,
}

/// When a line was written.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Time {
    /// Seconds.
    pub s: f64,
    /// Since when.
    pub clock: Clock,
}

/// Days from 1970-01-01 to a date of the Gregorian calendar.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year - era * 400;
    let of_year = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// A date's place in the year, on the clock of stamps without a year: two stamps of which one has no year compare so.
pub fn within_year(date: Time) -> f64 {
    if date.clock != Clock::Date {
        return date.s;
    }
    let (day, seconds) = ((date.s / 86_400.0).floor(), date.s.rem_euclid(86_400.0));
    // The inverse of `days`, by the same eras of 400 years.
    let shifted = day as i64 + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted - era * 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let part = (5 * of_year + 2) / 153;
    let day = of_year - (153 * part + 2) / 5 + 1;
    let month = if part < 10 { part + 3 } else { part - 9 };
    days(1972, month, day) as f64 * 86_400.0 + seconds
}

fn two(bytes: &[u8], at: usize) -> Option<i64> {
    let (a, b) = (*bytes.get(at)?, *bytes.get(at + 1)?);
    (a.is_ascii_digit() && b.is_ascii_digit())
        .then(|| i64::from(a - b'0') * 10 + i64::from(b - b'0'))
}

/// `HH:MM:SS` with an optional fraction; returns seconds and length.
fn clock(bytes: &[u8]) -> Option<(f64, usize)> {
    let (h, m, s) = (two(bytes, 0)?, two(bytes, 3)?, two(bytes, 6)?);
    if bytes[2] != b':' || bytes[5] != b':' || h > 23 || m > 59 || s > 60 {
        return None;
    }
    let mut seconds = (h * 3600 + m * 60 + s) as f64;
    let mut len = 8;
    if matches!(bytes.get(8), Some(b'.' | b',')) && bytes.get(9).is_some_and(u8::is_ascii_digit) {
        let digits = bytes[9..].iter().take_while(|b| b.is_ascii_digit()).count();
        let mut unit = 0.1;
        for &byte in &bytes[9..9 + digits.min(9)] {
            seconds += f64::from(byte - b'0') * unit;
            unit *= 0.1;
        }
        len = 9 + digits;
    }
    Some((seconds, len))
}

fn date(year: i64, month: i64, day: i64, seconds: f64, clock: Clock) -> Option<Time> {
    ((1..=12).contains(&month) && (1..=31).contains(&day))
        .then(|| Time { s: days(year, month, day) as f64 * 86_400.0 + seconds, clock })
}

/// `2026-11-27 08:09:32.123` or with a `T`; returns the length read.
pub(super) fn date_time(bytes: &[u8]) -> Option<(Time, usize)> {
    if bytes.get(4) != Some(&b'-')
        || bytes.get(7) != Some(&b'-')
        || !matches!(bytes.get(10), Some(b' ' | b'T'))
    {
        return None;
    }
    let year = two(bytes, 0)? * 100 + two(bytes, 2)?;
    let (seconds, len) = clock(&bytes[11..])?;
    Some((date(year, two(bytes, 5)?, two(bytes, 8)?, seconds, Clock::Date)?, 11 + len))
}

/// `11-28 10:00:00`, as vLLM writes it.
pub(super) fn month_day_time(bytes: &[u8]) -> Option<(Time, usize)> {
    if bytes.get(2) != Some(&b'-') || bytes.get(5) != Some(&b' ') {
        return None;
    }
    let (seconds, len) = clock(&bytes[6..])?;
    Some((date(1972, two(bytes, 0)?, two(bytes, 3)?, seconds, Clock::NoYear)?, 6 + len))
}

/// `Oct 03 06:40:16`, as syslog and journald write it.
pub(super) fn syslog_time(bytes: &[u8]) -> Option<(Time, usize)> {
    const MONTHS: &[u8; 36] = b"JanFebMarAprMayJunJulAugSepOctNovDec";
    let name = bytes.get(..3)?;
    let month = MONTHS.chunks(3).position(|month| month == name)? as i64 + 1;
    if bytes.get(3) != Some(&b' ') || bytes.get(6) != Some(&b' ') {
        return None;
    }
    let day = match (bytes[4], bytes[5]) {
        (b' ', d) if d.is_ascii_digit() => i64::from(d - b'0'),
        _ => two(bytes, 4)?,
    };
    let (seconds, len) = clock(&bytes[7..])?;
    Some((date(1972, month, day, seconds, Clock::NoYear)?, 7 + len))
}

/// llama.cpp's `m.ss.mmm.uuu ` since the start; returns the length read, the following space included.
pub(super) fn since_start(bytes: &[u8]) -> Option<(Time, usize)> {
    let mut parts = [0u64; 4];
    let mut n = 0;
    let mut i = 0;
    while n < 4 {
        let digits = bytes[i..].iter().take_while(|b| b.is_ascii_digit()).count();
        if digits == 0 || digits > 9 {
            return None;
        }
        parts[n] = bytes[i..i + digits].iter().fold(0, |value, b| value * 10 + u64::from(b - b'0'));
        n += 1;
        i += digits;
        match bytes.get(i) {
            Some(b'.') if n < 4 => i += 1,
            Some(b' ') if n >= 2 => break,
            _ => return None,
        }
    }
    let s =
        parts[0] as f64 * 60.0 + parts[1] as f64 + parts[2] as f64 * 1e-3 + parts[3] as f64 * 1e-6;
    Some((Time { s, clock: Clock::SinceStart }, i + 1))
}

/// Reads `2026-11-27T08:12:00Z` and the like as seconds since 1970, an offset taken into account.
pub fn parse_iso(text: &str) -> Option<f64> {
    let bytes = text.trim().as_bytes();
    let (time, len) = date_time(bytes)?;
    let rest = &bytes[len..];
    let sign = match rest.first() {
        Some(b'+') => -1.0,
        Some(b'-') => 1.0,
        _ => return Some(time.s),
    };
    let hours = two(rest, 1)?;
    let minutes = two(rest, if rest.get(3) == Some(&b':') { 4 } else { 3 }).unwrap_or(0);
    Some(time.s + sign * (hours * 3600 + minutes * 60) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps() {
        let t = date_time(b"2026-11-27 08:09:32]").unwrap();
        assert_eq!((t.0.s, t.1), (1_795_766_972.0, 19));
        assert_eq!(
            date_time(b"1970-01-01T00:00:01.250Z").unwrap(),
            (Time { s: 1.25, clock: Clock::Date }, 23)
        );
        assert!(date_time(b"2026-13-01 00:00:00").is_none());
        assert!(date_time(b"2026-1").is_none());
        let (oct, nov) = (
            syslog_time(b"Oct  3 06:40:16 host").unwrap().0,
            month_day_time(b"11-03 06:40:16 [x").unwrap().0,
        );
        assert_eq!(nov.s - oct.s, 31.0 * 86_400.0);
        let llama = since_start(b"2.54.596.228 I slot").unwrap();
        assert!((llama.0.s - 174.596_228).abs() < 1e-9 && llama.1 == 13);
        assert!(since_start(b"0.07.1 I").is_some());
        assert!(since_start(b"12 x").is_none());
        let dated = date_time(b"2026-11-03 06:40:16").unwrap().0;
        assert_eq!(within_year(dated), nov.s);
        assert_eq!(within_year(nov), nov.s);
        assert_eq!(parse_iso("1970-01-01T02:00:00+02:00"), Some(0.0));
    }
}
