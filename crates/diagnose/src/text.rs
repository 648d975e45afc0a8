//! Small helpers for tables and numbers that people read.

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// A number with about three significant digits and no more than it deserves.
pub fn number(x: f64) -> String {
    if !x.is_finite() {
        return "?".to_owned();
    }
    let a = x.abs();
    if a >= 100_000.0 && x.fract() == 0.0 {
        return grouped(x);
    }
    let text = match a {
        a if a >= 100.0 => format!("{x:.0}"),
        a if a >= 10.0 => format!("{x:.1}"),
        a if a >= 0.1 || a == 0.0 => format!("{x:.2}"),
        _ => format!("{x:.3}"),
    };
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// `242 028`: a large count in groups of three.
fn grouped(x: f64) -> String {
    let digits = format!("{:.0}", x.abs());
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    if x < 0.0 { format!("-{out}") } else { out }
}

/// A change as a signed percentage.
pub fn change(before: f64, now: f64) -> String {
    format!("{:+.0} %", (now / before - 1.0) * 100.0)
}

/// A share as a percentage.
pub fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// A time as a date with minutes, in the zone of its writer.
pub fn date(seconds: f64) -> String {
    let at = Timestamp::from_second(seconds as i64).unwrap_or(Timestamp::UNIX_EPOCH);
    at.to_zoned_datetime(TimeZone::UTC).strftime("%Y-%m-%d %H:%M").to_string()
}

/// Pads cells to the width of their column; the last column is left ragged. `right` marks columns of numbers.
pub fn table(rows: &[Vec<String>], right: &[bool]) -> String {
    let n = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..n).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let pad = widths[column] - cell.chars().count();
            if column > 0 {
                line.push_str("  ");
            }
            if right.get(column).copied().unwrap_or(false) {
                line.push_str(&" ".repeat(pad));
                line.push_str(cell);
            } else {
                line.push_str(cell);
                line.push_str(&" ".repeat(pad));
            }
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// The first `most` characters of a text, with a sign that there was more.
pub fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(most.saturating_sub(1)).collect();
    short.push('…');
    short
}

/// Breaks a text into lines of at most `width` characters at its spaces.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().expect("there is always a line");
        if !last.is_empty() && last.chars().count() + 1 + word.chars().count() > width {
            lines.push(word.to_owned());
        } else {
            if !last.is_empty() {
                last.push(' ');
            }
            last.push_str(word);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        for (x, text) in [
            (42.06, "42.1"),
            (3.009, "3.01"),
            (22.0, "22"),
            (743_739.0, "743 739"),
            (0.004, "0.004"),
            (1968.4, "1968"),
            (0.0, "0"),
            (-0.5, "-0.5"),
        ] {
            assert_eq!(number(x), text);
        }
        assert_eq!(change(66.0, 42.0), "-36 %");
    }

    #[test]
    fn tables_line_up() {
        let rows = [vec!["a".into(), "1".into(), "x".into()], vec!["bbb".into(), "10".into()]];
        assert_eq!(table(&rows, &[false, true]), "a     1  x\nbbb  10\n");
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
    }
}
