//! Takes off what other programs put around a line: colour codes, carriage returns, journald, docker, Kubernetes, compose.

use memchr::{memchr, memmem};

use super::time::{self, Time};

/// A line without its wrappers, and the time that a wrapper gave it.
pub(super) struct Unwrapped<'a> {
    pub(super) text: &'a [u8],
    pub(super) time: Option<Time>,
}

/// Removes escapes and carriage returns; copies into `scratch` only when there is something to remove.
pub(super) fn clean<'a>(line: &'a [u8], scratch: &'a mut Vec<u8>) -> &'a [u8] {
    let line = match line.last() {
        Some(b'\r') => &line[..line.len() - 1],
        _ => line,
    };
    if memchr(0x1b, line).is_none() && memchr(b'\r', line).is_none() {
        return line;
    }
    scratch.clear();
    let mut i = 0;
    while i < line.len() {
        match line[i] {
            0x1b => i = escape_end(line, i + 1),
            b'\r' => i += 1, // a progress bar that was overwritten in place
            byte => {
                scratch.push(byte);
                i += 1;
            }
        }
    }
    scratch
}

fn escape_end(line: &[u8], mut i: usize) -> usize {
    match line.get(i) {
        Some(b'[') => {
            i += 1;
            while line.get(i).is_some_and(|byte| !(0x40..=0x7e).contains(byte)) {
                i += 1;
            }
            i + 1
        }
        Some(b']' | b'P' | b'_' | b'^' | b'X') => {
            while let Some(&byte) = line.get(i) {
                i += 1;
                if byte == 7 || (byte == 0x1b && line.get(i) == Some(&b'\\')) {
                    break;
                }
            }
            if line.get(i) == Some(&b'\\') { i + 1 } else { i }
        }
        Some(_) => i + 1,
        None => i,
    }
}

/// Docker's json-file form; returns the inner line and its time.
pub(super) fn docker_json(line: &[u8]) -> Option<(String, Option<Time>)> {
    if !line.starts_with(b"{\"log\":\"") {
        return None;
    }
    let parsed: serde_json::Value = serde_json::from_slice(line).ok()?;
    let text = parsed.get("log")?.as_str()?.trim_end_matches('\n').to_owned();
    let time = parsed
        .get("time")
        .and_then(|t| t.as_str())
        .and_then(|t| time::date_time(t.as_bytes()))
        .map(|(time, _)| time);
    Some((text, time))
}

/// Takes off prefixes, at most three of them (`compose | 2026-… stdout F line`).
pub(super) fn unwrap(mut text: &[u8]) -> Unwrapped<'_> {
    let mut when = None;
    for _ in 0..3 {
        if let Some((rest, time)) = kubernetes_or_iso(text).or_else(|| syslog(text)) {
            when = when.or(time);
            text = rest;
        } else if let Some(rest) = compose(text) {
            text = rest;
        } else {
            break;
        }
    }
    Unwrapped { text, time: when }
}

/// `2026-11-27T07:58:11.123456789Z stdout F line`, `2026-11-27T07:58:11Z line`, `2026-11-27T07:58:11+0100 host unit[1]: line`.
fn kubernetes_or_iso(text: &[u8]) -> Option<(&[u8], Option<Time>)> {
    if text.get(10) != Some(&b'T') {
        return None;
    }
    let (time, len) = time::date_time(text)?;
    let space = memchr(b' ', &text[len..])? + len;
    if space - len > 6 {
        return None;
    }
    let rest = &text[space + 1..];
    for stream in [&b"stdout F "[..], b"stderr F ", b"stdout P ", b"stderr P "] {
        if let Some(line) = rest.strip_prefix(stream) {
            return Some((line, Some(time)));
        }
    }
    Some((after_unit(rest).unwrap_or(rest), Some(time)))
}

/// `Oct 03 06:40:16 host unit[2917]: line`.
fn syslog(text: &[u8]) -> Option<(&[u8], Option<Time>)> {
    let (time, len) = time::syslog_time(text)?;
    let rest = text.get(len + 1..)?;
    Some((after_unit(rest)?, Some(time)))
}

/// `host unit[2917]: line` or `host unit: line`.
fn after_unit(text: &[u8]) -> Option<&[u8]> {
    let head = &text[..text.len().min(160)];
    let colon = memmem::find(head, b": ")?;
    let name = &head[..colon];
    let is_unit = name.iter().filter(|b| **b == b' ').count() == 1
        && !name.starts_with(b"[")
        && !name.starts_with(b"(");
    is_unit.then(|| &text[colon + 2..])
}

/// `sglang-1  | line`, as `docker compose logs` writes it.
fn compose(text: &[u8]) -> Option<&[u8]> {
    let head = &text[..text.len().min(80)];
    let bar = memmem::find(head, b"| ")?;
    let name = head[..bar].trim_ascii();
    let is_name = !name.is_empty()
        && bar > 0
        && head[bar - 1] == b' '
        && name.iter().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(b));
    is_name.then(|| &text[bar + 2..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrappers_come_off() {
        for wrapped in [
            "Oct 03 06:40:16 gpu-a sglang[2917]: [2026-10-03 06:40:16] x: y",
            "2026-10-03T06:40:16.123456789Z stdout F [2026-10-03 06:40:16] x: y",
            "2026-10-03T06:40:16.1Z [2026-10-03 06:40:16] x: y",
            "2026-10-03T06:40:16+0100 gpu-a python3[12]: [2026-10-03 06:40:16] x: y",
            "sglang-1  | [2026-10-03 06:40:16] x: y",
            "llm-1 | 2026-10-03T06:40:16Z stderr F [2026-10-03 06:40:16] x: y",
            "[2026-10-03 06:40:16] x: y",
        ] {
            assert_eq!(unwrap(wrapped.as_bytes()).text, b"[2026-10-03 06:40:16] x: y", "{wrapped}");
        }
        let llama = "slot print_timing: id  0 | task 9 | prompt eval time = 1";
        assert_eq!(unwrap(llama.as_bytes()).text, llama.as_bytes());
    }

    #[test]
    fn colours_and_returns_come_off() {
        let mut scratch = Vec::new();
        assert_eq!(clean(b"\x1b[36m(Engine)\x1b[0;0m INFO\r", &mut scratch), b"(Engine) INFO");
        assert_eq!(clean(b"\x1b]0;t\x07a\x1b", &mut scratch), b"a");
        let (line, time) = docker_json(
            br#"{"log":"[x] \"y\"\n","stream":"stderr","time":"2026-10-03T06:40:16.5Z"}"#,
        )
        .unwrap();
        assert_eq!(line, "[x] \"y\"");
        assert!(time.is_some());
    }
}
