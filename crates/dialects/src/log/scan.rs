//! Small readers over bytes, written for speed: no allocation, no validation of UTF-8, no panics.

use memchr::{memchr, memmem};

/// Reads a number at the start of `bytes`, after spaces. Grouping commas are not read here.
pub(super) fn number(bytes: &[u8]) -> Option<f64> {
    let mut i = 0;
    while bytes.get(i) == Some(&b' ') {
        i += 1;
    }
    let negative = bytes.get(i) == Some(&b'-');
    if negative || bytes.get(i) == Some(&b'+') {
        i += 1;
    }
    let start = i;
    let mut mantissa: u64 = 0;
    let mut scale = 0i32;
    let mut seen_point = false;
    while let Some(&byte) = bytes.get(i) {
        match byte {
            b'0'..=b'9' => {
                if mantissa < (u64::MAX - 9) / 10 {
                    mantissa = mantissa * 10 + u64::from(byte - b'0');
                    scale -= i32::from(seen_point);
                } else {
                    scale += i32::from(!seen_point);
                }
            }
            b'.' if !seen_point => seen_point = true,
            _ => break,
        }
        i += 1;
    }
    if i == start || (i == start + 1 && seen_point) {
        return None;
    }
    let mut value = mantissa as f64;
    if matches!(bytes.get(i), Some(b'e' | b'E'))
        && let Some(text) = bytes.get(start..(i + 6).min(bytes.len()))
    {
        let end = text
            .iter()
            .position(|b| !(b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'E' | b'-' | b'+')))
            .unwrap_or(text.len());
        let parsed = std::str::from_utf8(&text[..end]).ok()?.parse::<f64>().ok()?;
        return parsed.is_finite().then_some(if negative { -parsed } else { parsed });
    }
    value = if scale < 0 {
        value / POWERS[(-scale).min(22) as usize]
    } else {
        value * POWERS[scale.min(22) as usize]
    };
    Some(if negative { -value } else { value })
}

const POWERS: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16,
    1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
];

/// Reads a whole number at the start of `bytes`, with grouping commas as in `34,952 tokens`.
pub(super) fn grouped(bytes: &[u8]) -> Option<u64> {
    let mut value: u64 = 0;
    let mut digits = 0;
    for (i, &byte) in bytes.iter().enumerate() {
        match byte {
            b' ' if digits == 0 => {}
            b'0'..=b'9' => {
                value = value.saturating_mul(10).saturating_add(u64::from(byte - b'0'));
                digits += 1;
            }
            b',' if digits > 0
                && bytes
                    .get(i + 1..i + 4)
                    .is_some_and(|next| next.iter().all(u8::is_ascii_digit)) => {}
            _ => break,
        }
    }
    (digits > 0).then_some(value)
}

/// Reads a share: `0.500` and `50.0%` are the same.
pub(super) fn share(bytes: &[u8]) -> Option<f32> {
    let value = number(bytes)?;
    let percent = bytes.iter().find(|b| !(b.is_ascii_digit() || matches!(b, b'.' | b' ' | b'-')))
        == Some(&b'%');
    Some(if percent { value / 100.0 } else { value } as f32)
}

/// What follows `key` in `bytes`.
pub(super) fn after<'a>(bytes: &'a [u8], key: &[u8]) -> Option<&'a [u8]> {
    memmem::find(bytes, key).map(|at| &bytes[at + key.len()..])
}

/// The number that follows `key`.
pub(super) fn number_after(bytes: &[u8], key: &[u8]) -> Option<f64> {
    number(after(bytes, key)?)
}

/// The whole number that follows `key`.
pub(super) fn count_after(bytes: &[u8], key: &[u8]) -> Option<u64> {
    grouped(after(bytes, key)?)
}

/// The text between `open` and `close`.
pub(super) fn between<'a>(bytes: &'a [u8], open: &[u8], close: u8) -> Option<&'a [u8]> {
    let rest = after(bytes, open)?;
    memchr(close, rest).map(|end| &rest[..end])
}

/// Walks `key: value, key: value, …`. A value may not hold a comma.
pub(super) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Fields<'a> {
        Fields { rest: bytes }
    }
}

impl<'a> Iterator for Fields<'a> {
    /// Key and value; a part without a colon has an empty key.
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        while self.rest.first() == Some(&b' ') {
            self.rest = &self.rest[1..];
        }
        if self.rest.is_empty() {
            return None;
        }
        let end = memchr(b',', self.rest).unwrap_or(self.rest.len());
        let part = &self.rest[..end];
        self.rest = self.rest.get(end + 1..).unwrap_or(&[]);
        match memchr(b':', part) {
            Some(colon) => {
                let value = &part[colon + 1..];
                Some((&part[..colon], value.strip_prefix(b" ").unwrap_or(value)))
            }
            None => Some((&[], part)),
        }
    }
}

/// `True`, `False`.
pub(super) fn boolean(bytes: &[u8]) -> Option<bool> {
    match bytes.first()? {
        b'T' | b't' => Some(true),
        b'F' | b'f' => Some(false),
        _ => None,
    }
}

/// A number as an unsigned count; negative and broken ones are `None`.
pub(super) fn count(bytes: &[u8]) -> Option<u64> {
    number(bytes).filter(|value| (0.0..1e15).contains(value)).map(|value| value as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        assert_eq!(number(b"  12.50,"), Some(12.5));
        assert_eq!(number(b"-3"), Some(-3.0));
        assert_eq!(number(b"."), None);
        assert_eq!(number(b""), None);
        assert_eq!(number(b"1e3x"), Some(1000.0));
        assert_eq!(number(b"99999999999999999999999.5"), Some(99_999_999_999_999_999_999_999.0));
        assert_eq!(grouped(b" 1,280,512 tokens"), Some(1_280_512));
        assert_eq!(grouped(b"12, 13"), Some(12));
        assert_eq!(share(b"50.0%"), share(b"0.500"));
    }

    #[test]
    fn fields() {
        let got: Vec<_> = Fields::new(b"a: 1, b, c: x: y, ").collect();
        assert_eq!(got, [(&b"a"[..], &b"1"[..]), (b"", b"b"), (b"c", b"x: y")]);
    }
}
