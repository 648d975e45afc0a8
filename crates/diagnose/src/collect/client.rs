//! Client programs: what their logs count, and what changed in their code.

use serde::{Deserialize, Serialize};

use crate::stats;

/// A client's log: the numbers of its `name=value` lines.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClientLog {
    /// Median of each number by name.
    pub medians: Vec<(String, f64)>,
    /// When the first line was written, where it says.
    pub time: Option<f64>,
    /// Lines with numbers.
    pub lines: usize,
}

impl ClientLog {
    /// A number under any of several names.
    pub fn get(&self, names: &[&str]) -> Option<f64> {
        names.iter().find_map(|name| {
            self.medians.iter().find(|(known, _)| known == name).map(|(_, value)| *value)
        })
    }

    /// Requests that the client believes to be in flight.
    pub fn in_flight(&self) -> Option<f64> {
        self.get(&["in_flight", "inflight", "concurrency", "active", "running", "workers"])
    }

    /// Output tokens per second as the client counts them.
    pub fn tok_s(&self) -> Option<f64> {
        self.get(&["tok/s", "tok_s", "tokens/s", "tokens_per_s", "tps", "output_tok_s"])
    }

    /// Seconds that requests wait inside the client.
    pub fn queue_wait_s(&self) -> Option<f64> {
        self.get(&["queue_wait_p50", "queue_wait", "wait_p50", "pool_wait_p50", "pool_wait"])
    }
}

/// Reads `name=value` numbers; `None` when there are none.
pub fn parse_log(text: &str) -> Option<ClientLog> {
    let mut series: Vec<(String, Vec<f64>)> = Vec::new();
    let (mut lines, mut time) = (0, None);
    for line in text.lines().take(100_000) {
        let mut any = false;
        for word in line.split(|c: char| c.is_whitespace() || matches!(c, ',' | ';')) {
            let Some((name, value)) = word.split_once('=') else { continue };
            let digits =
                value.trim_end_matches(|c: char| c.is_ascii_alphabetic() || matches!(c, '%' | '/'));
            let Ok(number) = digits.parse::<f64>() else { continue };
            let known_name = !name.is_empty()
                && name.len() <= 40
                && name.chars().all(|c| c.is_ascii_alphanumeric() || "_/-.".contains(c));
            if !known_name || !number.is_finite() {
                continue;
            }
            let seconds = if value.ends_with("ms") { number / 1e3 } else { number };
            any = true;
            match series.iter().position(|(known, _)| known == name) {
                Some(i) => series[i].1.push(seconds),
                None if series.len() < 64 => series.push((name.to_owned(), vec![seconds])),
                None => {}
            }
        }
        if any {
            lines += 1;
            time = time.or_else(|| dialects::log::parse_iso(line.trim_start_matches('[')));
        }
    }
    (lines > 0).then(|| ClientLog {
        medians: series
            .into_iter()
            .filter_map(|(name, values)| Some((name, stats::median(values)?)))
            .collect(),
        time,
        lines,
    })
}

/// A limit in a client's code, before and after a recorded change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClientChange {
    /// The limit as the code names it.
    pub name: String,
    /// Its value before; `None` where the code had none.
    pub before: Option<f64>,
    /// Its value after; `None` where the code has none any more.
    pub now: Option<f64>,
    /// Line in the diff, from 1.
    pub line: u32,
}

/// Names under which HTTP libraries and job runners limit what is in flight.
const LIMITS: &[&str] = &[
    "max_connections",
    "maxconnections",
    "limit_per_host",
    "max_keepalive_connections",
    "pool_maxsize",
    "pool_connections",
    "maxsockets",
    "maxconnsperhost",
    "max_conns_per_host",
    "max_workers",
    "max_concurrency",
    "concurrency",
    "connector_limit",
    "limit",
    "semaphore",
];

/// Finds limits that a unified diff of a client's code changes.
pub fn parse_change(text: &str) -> Vec<ClientChange> {
    let side = |sign: char| -> Vec<(String, f64, u32)> {
        let mut out = Vec::new();
        for (i, line) in text.lines().enumerate() {
            if line.starts_with(sign) && !line.starts_with("---") && !line.starts_with("+++") {
                out.extend(
                    limits(&line[1..]).into_iter().map(|(name, value)| (name, value, i as u32 + 1)),
                );
            }
        }
        out
    };
    let (old, new) = (side('-'), side('+'));
    let mut changes: Vec<ClientChange> = Vec::new();
    for (name, now, line) in &new {
        let before = old.iter().find(|(known, _, _)| known == name).map(|(_, value, _)| *value);
        if before != Some(*now) && !changes.iter().any(|change| change.name == *name) {
            changes.push(ClientChange { name: name.clone(), before, now: Some(*now), line: *line });
        }
    }
    for (name, before, line) in &old {
        if !new.iter().any(|(known, _, _)| known == name) {
            changes.push(ClientChange {
                name: name.clone(),
                before: Some(*before),
                now: None,
                line: *line,
            });
        }
    }
    changes
}

/// `max_connections=4`, `limit: 4`, `Semaphore(32)`.
fn limits(line: &str) -> Vec<(String, f64)> {
    let lower = line.to_ascii_lowercase();
    let code = lower.split('#').next().unwrap_or("");
    let mut out: Vec<(String, f64)> = Vec::new();
    for name in LIMITS {
        for (at, _) in code.match_indices(name) {
            let before = code[..at].chars().next_back();
            let rest = code[at + name.len()..].trim_start_matches(['"', '\'', ' ']);
            let whole = before.is_none_or(|c| !c.is_ascii_alphanumeric() && c != '_');
            let Some(rest) = rest.strip_prefix(['=', ':', '(']).filter(|_| whole) else { continue };
            let digits: String =
                rest.trim_start().chars().take_while(char::is_ascii_digit).collect();
            if let Ok(value) = digits.parse::<f64>()
                && !out.iter().any(|(known, _)| known == name)
            {
                out.push(((*name).to_owned(), value));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_client_log() {
        let log = parse_log("2026-11-19 12:02:00 x: submitted=32 in_flight=32 tok/s=1034 queue_wait_p50=5.9s\n2026-11-19 12:03:00 x: in_flight=32 tok/s=1013 queue_wait_p50=6100ms\n").unwrap();
        assert_eq!(
            (log.in_flight(), log.tok_s(), log.queue_wait_s()),
            (Some(32.0), Some(1023.5), Some(6.0))
        );
        assert!(log.time.is_some());
        assert!(parse_log("nothing here").is_none());
    }

    #[test]
    fn limits_that_a_change_sets() {
        let found = parse_change(
            "--- a/x.py\n+++ b/x.py\n-client = httpx.AsyncClient(timeout=600)\n+limits = httpx.Limits(max_connections=4, max_keepalive_connections=4)\n sem = asyncio.Semaphore(32)\n",
        );
        assert_eq!(
            (found[0].name.as_str(), found[0].before, found[0].now),
            ("max_connections", None, Some(4.0))
        );
        let found = parse_change(
            "-connector = aiohttp.TCPConnector(limit=100)\n+connector = aiohttp.TCPConnector(limit=8)\n",
        );
        assert_eq!((found[0].before, found[0].now), (Some(100.0), Some(8.0)));
    }
}
