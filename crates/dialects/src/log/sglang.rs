//! SGLang's batch lines, which Outrider writes too.

use super::scan::{self, Fields};
use super::time::{self, Time};
use super::{Decode, Event, Prefill, Retract};

/// `[2026-11-27 08:09:32 DP1 TP0] message`.
pub(super) struct Head<'a> {
    pub(super) time: Time,
    pub(super) replica: u16,
    pub(super) message: &'a [u8],
}

/// Reads the prefix of a scheduler line.
pub(super) fn head(line: &[u8]) -> Option<Head<'_>> {
    let rest = line.strip_prefix(b"[")?;
    let (time, len) = time::date_time(rest)?;
    let close = rest[len..].iter().take(80).position(|b| *b == b']')? + len;
    let tags = &rest[len..close];
    let replica = tags
        .windows(3)
        .position(|w| w == b" DP")
        .and_then(|at| scan::count(&tags[at + 3..]))
        .unwrap_or(0);
    let message = &rest[close + 1..];
    Some(Head {
        time,
        replica: replica.min(u64::from(u16::MAX)) as u16,
        message: message.strip_prefix(b" ").unwrap_or(message),
    })
}

/// Reads a decode, prefill or retract line; `None` when it is something else or was cut.
pub(super) fn batch_line(message: &[u8]) -> Option<Event> {
    if let Some(rest) = message.strip_prefix(b"Decode batch") {
        return decode(body(rest)?).map(Event::Decode);
    }
    if let Some(rest) = message.strip_prefix(b"Prefill batch") {
        return prefill(body(rest)?).map(Event::Prefill);
    }
    if message.starts_with(b"KV cache pool is full. Retract requests.") {
        let requests = scan::count_after(message, b"#retracted_reqs: ")?;
        let tokens = scan::count_after(message, b"#new_tokens_gained: ");
        return Some(Event::Retract(Retract {
            requests: requests.min(u64::from(u32::MAX)) as u32,
            tokens,
        }));
    }
    None
}

/// Whether a message is one that [`batch_line`] would read if it were whole.
pub(super) fn is_batch_line(message: &[u8]) -> bool {
    message.starts_with(b"Decode batch") || message.starts_with(b"Prefill batch")
}

/// Skips `.`, `,` or ` [iter],` after the head.
fn body(rest: &[u8]) -> Option<&[u8]> {
    match rest.first()? {
        b'.' | b',' => Some(&rest[1..]),
        b' ' if rest.get(1) == Some(&b'[') => {
            let close = rest.iter().take(24).position(|b| *b == b']')?;
            Some(rest[close + 1..].strip_prefix(b",").unwrap_or(&rest[close + 1..]))
        }
        _ => None,
    }
}

fn decode(body: &[u8]) -> Option<Decode> {
    let mut line =
        Decode { trailing_comma: body.trim_ascii_end().ends_with(b","), ..Decode::default() };
    let mut running = None;
    let mut gen_tok_s = None;
    for (key, value) in Fields::new(body) {
        match key {
            b"#running-req" => running = scan::count(value),
            b"#token" | b"#full token" => line.kv_tokens = scan::number(value).map(|n| n as i64),
            b"token usage" | b"full token usage" => {
                line.kv_usage = scan::number(value).map(|n| n as f32)
            }
            b"mamba num" => line.state_slots = scan::number(value).map(|n| n as i64),
            b"mamba usage" => line.state_usage = scan::number(value).map(|n| n as f32),
            b"accept len" => line.accept_len = scan::number(value).map(|n| n as f32),
            b"accept rate" => line.accept_rate = scan::number(value).map(|n| n as f32),
            // `cpu graph` is always False and says nothing about a device.
            b"cuda graph" | b"npu graph" | b"musa graph" => line.graph = scan::boolean(value),
            b"gen throughput (token/s)" => gen_tok_s = scan::number(value),
            b"#queue-req" => line.queue = scan::count(value).map(|n| n as u32),
            _ => {}
        }
    }
    line.running = running?.min(u64::from(u32::MAX)) as u32;
    line.gen_tok_s = gen_tok_s? as f32;
    Some(line)
}

fn prefill(body: &[u8]) -> Option<Prefill> {
    let mut line = Prefill::default();
    let (mut new_tokens, mut running) = (None, None);
    for (key, value) in Fields::new(body) {
        match key {
            b"#new-seq" => line.new_seq = scan::count(value)? as u32,
            b"#new-token" => new_tokens = scan::count(value),
            b"#cached-token" => line.cached_tokens = scan::count(value)?,
            b"token usage" | b"full token usage" => {
                line.kv_usage = scan::number(value).map(|n| n as f32)
            }
            b"mamba usage" => line.state_usage = scan::number(value).map(|n| n as f32),
            b"#running-req" => running = scan::count(value),
            b"#queue-req" => line.queue = scan::count(value)? as u32,
            b"#pending-token" => line.pending = scan::count(value),
            b"input throughput (token/s)" => {
                line.input_tok_s = scan::number(value).map(|n| n as f32)
            }
            // `cpu graph` is always False and says nothing about a device.
            b"cuda graph" | b"npu graph" | b"musa graph" => line.graph = scan::boolean(value),
            _ => {}
        }
    }
    line.new_tokens = new_tokens?;
    line.running = running? as u32;
    Some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Option<Event> {
        let head = head(line.as_bytes())?;
        batch_line(head.message)
    }

    #[test]
    fn decode_lines_of_every_age() {
        let Some(Event::Decode(old)) = parsed(
            "[2025-03-14 08:30:04 TP0] Decode batch. #running-req: 4, #token: 2048, token usage: 0.12, gen throughput (token/s): 101.50, largest-len: 7, #queue-req: 1, ",
        ) else {
            panic!()
        };
        assert_eq!(
            (old.running, old.queue, old.accept_len, old.gen_tok_s, old.trailing_comma),
            (4, Some(1), None, 101.5, true)
        );
        let Some(Event::Decode(iter)) = parsed(
            "[2025-11-01 00:00:00 DP3 TP0] Decode batch [812], #running-req: 1, #token: 9, token usage: 0.00, accept len: 2.10, accept rate: 0.53, cuda graph: False, gen throughput (token/s): 3.00, #queue-req: 0",
        ) else {
            panic!()
        };
        assert_eq!((iter.graph, iter.accept_rate), (Some(false), Some(0.53)));
        let hybrid = "[2026-05-11 23:46:31.250 TP0] Decode batch, #running-req: 1, #full token: 252, full token usage: 0.01, mamba num: 3, mamba usage: 0.43, accept len: 1.75, accept rate: 0.75, cap len: 3.00, block accept len: 2.0, cuda graph: True, gen throughput (token/s): 35.81, #queue-req: 0, est. decode TFLOPS/s (per GPU): 1.00, fwd occupancy: 97.00%";
        let Some(Event::Decode(new)) = parsed(hybrid) else { panic!() };
        assert_eq!(
            (new.kv_tokens, new.state_slots, new.state_usage, new.accept_len),
            (Some(252), Some(3), Some(0.43), Some(1.75))
        );
        assert_eq!(head(b"[2026-05-11 23:46:31 DP3 PP1 TP0] x").unwrap().replica, 3);
    }

    #[test]
    fn prefill_lines_of_every_age() {
        let Some(Event::Prefill(old)) = parsed(
            "[2025-03-14 08:30:04 TP0] Prefill batch. #new-seq: 1, #new-token: 1, #cached-token: 11, token usage: 0.00, #running-req: 0, #queue-req: 0,",
        ) else {
            panic!()
        };
        assert_eq!((old.new_tokens, old.cached_tokens, old.pending), (1, 11, None));
        let Some(Event::Prefill(new)) = parsed(
            "[2026-06-30 09:22:16] Prefill batch, #new-seq: 1, #new-token: 8, #cached-token: 255983, full token usage: 0.12, mamba usage: 0.02, #running-req: 0, #queue-req: 0, #pending-token: 0, cuda graph: False, input throughput (token/s): 9.58",
        ) else {
            panic!()
        };
        assert_eq!(
            (new.cached_tokens, new.input_tok_s, new.graph),
            (255_983, Some(9.58), Some(false))
        );
    }

    #[test]
    fn cut_lines_say_nothing() {
        let line = "[2026-05-11 23:46:31 TP0] Decode batch, #running-req: 1, #full token: 252, full token usage: 0.01, mamba num: 3, mamba usage: 0.43, accept len: 1.75, accept rate: 0.75, cuda graph: True, gen throughput (token/s): 35.81, #queue-req: 0";
        for end in 0..line.find("35.81").unwrap() {
            assert_eq!(parsed(&line[..end]), None);
        }
        assert!(matches!(
            parsed(
                "[2026-11-22 11:23:24] KV cache pool is full. Retract requests. #retracted_reqs: 1, #new_tokens_gained: 10667, #new_token_ratio: 0.0980 -> 0.2127"
            ),
            Some(Event::Retract(Retract { requests: 1, tokens: Some(10_667) }))
        ));
    }
}
