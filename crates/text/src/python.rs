//! Values as Python writes them: `json.dumps` for the `tojson` filter, `str()` for numbers.
//!
//! Chat templates were written for, and models trained on, the output of Python's `jinja2`; a
//! prompt with other separators or another form of a number is another prompt.

use std::fmt::Write;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

/// The arguments of `json.dumps` that templates use.
#[derive(Debug, Default)]
pub(crate) struct JsonStyle {
    /// What one level of indentation is; `None` writes everything on one line.
    pub indent: Option<String>,
    /// Between items and between key and value; `None` is Python's choice.
    pub separators: Option<(String, String)>,
    pub sort_keys: bool,
    pub ensure_ascii: bool,
}

impl JsonStyle {
    /// Writes `value` as JSON.
    pub(crate) fn dumps(&self, value: &Value) -> Result<String, Error> {
        let mut out = String::new();
        self.write(value, 0, &mut out)?;
        Ok(out)
    }

    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&number(value)),
            ValueKind::String => self.write_string(value.as_str().unwrap_or_default(), out),
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                out.push('{');
                for (i, key) in keys.iter().enumerate() {
                    self.write_break(i, depth + 1, out);
                    match key.as_str() {
                        Some(text) => self.write_string(text, out),
                        None => self.write_string(&number(key), out),
                    }
                    out.push_str(self.separators.as_ref().map_or(": ", |(_, colon)| colon));
                    self.write(&value.get_item(key)?, depth + 1, out)?;
                }
                self.write_end(keys.len(), depth, out);
                out.push('}');
            }
            ValueKind::Seq | ValueKind::Iterable => {
                out.push('[');
                let mut n = 0;
                for item in value.try_iter()? {
                    self.write_break(n, depth + 1, out);
                    self.write(&item, depth + 1, out)?;
                    n += 1;
                }
                self.write_end(n, depth, out);
                out.push(']');
            }
            kind => {
                let message = format!("a value of kind {kind} has no JSON form");
                return Err(Error::new(ErrorKind::InvalidOperation, message));
            }
        }
        Ok(())
    }

    /// What stands before item `i` of a container whose items are at `depth`.
    fn write_break(&self, i: usize, depth: usize, out: &mut String) {
        if i > 0 {
            let default = if self.indent.is_some() { "," } else { ", " };
            out.push_str(self.separators.as_ref().map_or(default, |(comma, _)| comma));
        }
        self.write_line(depth, out);
    }

    /// What stands before the closing bracket of a container with `n` items.
    fn write_end(&self, n: usize, depth: usize, out: &mut String) {
        if n > 0 {
            self.write_line(depth, out);
        }
    }

    fn write_line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(indent.as_str(), depth));
        }
    }

    fn write_string(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if c < ' ' || (self.ensure_ascii && ('\u{7f}'..'\u{F0000}').contains(&c)) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

/// `str()` of a value.
pub(crate) fn str(value: &Value) -> String {
    match value.kind() {
        ValueKind::Number | ValueKind::Seq | ValueKind::Map => {
            let mut out = String::new();
            write_repr(value, &mut out);
            out
        }
        _ => value.to_string(),
    }
}

/// `repr()` of a value, as containers print their items.
fn write_repr(value: &Value, out: &mut String) {
    let items = || value.try_iter().into_iter().flatten().enumerate();
    match value.kind() {
        ValueKind::Number => out.push_str(&number(value)),
        ValueKind::String => write_quoted(value.as_str().unwrap_or_default(), out),
        ValueKind::Seq => {
            out.push(if value.is_tuple() { '(' } else { '[' });
            for (i, item) in items() {
                out.push_str(if i > 0 { ", " } else { "" });
                write_repr(&item, out);
            }
            out.push_str(match (value.is_tuple(), value.len()) {
                (true, Some(1)) => ",)",
                (true, _) => ")",
                (false, _) => "]",
            });
        }
        ValueKind::Map => {
            out.push('{');
            for (i, key) in items() {
                out.push_str(if i > 0 { ", " } else { "" });
                write_repr(&key, out);
                out.push_str(": ");
                write_repr(&value.get_item(&key).unwrap_or_default(), out);
            }
            out.push('}');
        }
        _ => out.push_str(&value.to_string()),
    }
}

fn write_quoted(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote || c == '\\' => out.extend(['\\', c]),
            c if c != ' ' && (c.is_control() || c.is_whitespace()) => {
                let _ = match u32::from(c) {
                    code @ ..0x100 => write!(out, "\\x{code:02x}"),
                    code => write!(out, "\\u{code:04x}"),
                };
            }
            c => out.push(c),
        }
    }
    out.push(quote);
}

/// `str()` of a number (or of a key that is not a string).
fn number(value: &Value) -> String {
    if value.is_integer() || !value.is_number() {
        return value.to_string();
    }
    f64::try_from(value.clone()).map_or_else(|_| value.to_string(), float)
}

/// `repr()` of a Python float: the shortest digits that read back the same, with an exponent from
/// 1e16 up and below 1e-4.
fn float(x: f64) -> String {
    if x.is_nan() {
        return "NaN".into();
    }
    if x.is_infinite() {
        return if x > 0.0 { "Infinity".into() } else { "-Infinity".into() };
    }
    let scientific = format!("{x:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if x != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = x.to_string();
    if plain.contains('.') { plain } else { plain + ".0" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_python_writes_them() {
        let cases = [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.5, "0.5"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e20, "1.5e+20"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (-2.5e-7, "-2.5e-07"),
            (1e100, "1e+100"),
            (123456789.125, "123456789.125"),
            (5e-324, "5e-324"),
        ];
        for (x, want) in cases {
            assert_eq!(float(x), want);
        }
    }
}
