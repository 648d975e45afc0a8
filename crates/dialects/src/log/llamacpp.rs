//! llama.cpp's server lines.

use memchr::memmem;

use super::scan::{self, after, between, count_after, number_after};
use super::time::{self, Time};
use super::vllm::push_position;
use super::{Accept, Event, Phase, Start, Timing};
use crate::engine::Version;
use crate::factor::Factor;
use crate::redact;
use crate::value::{Value, normalise};

/// `0.33.752.855 I message`; older builds write no prefix.
pub(super) fn head(line: &[u8]) -> (Option<Time>, &[u8]) {
    let Some((time, len)) = time::since_start(line) else { return (None, line) };
    let rest = &line[len..];
    let is_level = rest.len() > 2 && b"DIWE".contains(&rest[0]) && rest[1] == b' ';
    (Some(time), if is_level { &rest[2..] } else { rest })
}

/// Whether a message has the look of llama.cpp's.
pub(super) fn looks_like(message: &[u8]) -> bool {
    const STARTS: &[&[u8]] = &[
        b"slot ",
        b"srv ",
        b"llama_",
        b"load_tensors",
        b"load:",
        b"print_info",
        b"common_",
        b"cmn ",
        b"ggml_",
        b"main:",
        b"build:",
        b"system_info",
        b"prompt eval time",
        b"eval time",
        b"total time",
        b"draft acceptance",
        b"statistics",
        b"sched_reserve",
        b"set_warmup",
        b"model loaded",
        b"llama ",
        b"graphs reused",
        b"n_decoded",
        b"n_gen",
    ];
    let trimmed = message.trim_ascii_start();
    STARTS.iter().any(|start| trimmed.starts_with(start))
}

/// Reads a line of the timing block, of drafting or of the start-up.
pub(super) fn line(message: &[u8]) -> Option<Event> {
    let task = task(message);
    let body = message.rsplit(|b| *b == b'|').next().unwrap_or(message).trim_ascii_start();
    if let Some(accept) = accept(body, task) {
        return Some(Event::Accept(accept));
    }
    for (name, phase) in [
        (&b"prompt eval time"[..], Phase::Prompt),
        (b"eval time", Phase::Eval),
        (b"total time", Phase::Total),
    ] {
        if body.starts_with(name) {
            let ms = number_after(body, b"= ")?;
            let tokens = count_after(body, b" / ")?;
            return Some(Event::Timing(Timing { task, phase, ms, tokens }));
        }
    }
    start(message).map(Event::Start)
}

/// `id  0 | task 9 |`.
fn task(message: &[u8]) -> Option<(u32, i64)> {
    let head = &message[..message.len().min(96)];
    let slot = count_after(head, b": id ")?;
    Some((slot.min(u64::from(u32::MAX)) as u32, number_after(head, b"| task ")? as i64))
}

/// `draft acceptance rate = 0.5 (150 accepted / 300 generated)` and its newer forms.
fn accept(body: &[u8], task: Option<(u32, i64)>) -> Option<Accept> {
    let rest = body.strip_prefix(b"draft acceptance")?;
    let rest = rest.strip_prefix(b" rate").unwrap_or(rest).trim_ascii_start().strip_prefix(b"=")?;
    let mut line = Accept { rate: scan::share(rest), task, ..Accept::default() };
    line.accepted = count_after(rest, b"(");
    line.drafted = after(rest, b"accepted").and_then(|rest| count_after(rest, b"/"));
    line.mean_len = [&b"mean len ="[..], b"mean acceptance length ="]
        .iter()
        .find_map(|key| number_after(rest, key))
        .map(|n| n as f32);
    let positions = between(rest, b"acceptance rate per position = (", b')')
        .or_else(|| between(rest, b"acc per pos = (", b')'));
    for value in positions.into_iter().flat_map(|list| list.split(|b| *b == b',')) {
        push_position(&mut line, value);
    }
    line.rate.is_some().then_some(line)
}

fn start(message: &[u8]) -> Option<Start> {
    let int = |factor, value: u64| Some(Start::Setting(factor, Value::Int(value as i64)));
    if let Some(rest) = after(message, b"offloaded ") {
        return Some(Start::Offload {
            layers: scan::grouped(rest)?,
            of: count_after(&rest[..rest.len().min(24)], b"/")?,
        });
    }
    if let Some(at) = memmem::find(message, b"buffer size =") {
        let head = &message[..at];
        let host = after(head, b"CPU").is_some() || after(head, b"Host").is_some();
        let kv = head.ends_with(b"KV ");
        let weights = head.ends_with(b"model ");
        return (kv || weights).then_some(()).and_then(|()| {
            Some(Start::Buffer { host, kv, mib: number_after(message, b"buffer size =")? })
        });
    }
    if memmem::find(message, b"llama_kv_cache").is_some()
        && memmem::find(message, b"size =").is_some()
    {
        let gib = number_after(message, b"size =")? / 1024.0;
        return Some(Start::KvPool { tokens: count_after(message, b"MiB (")?, gib: Some(gib) });
    }
    if memmem::find(message, b"llama_memory_recurrent").is_some()
        && memmem::find(message, b"size =").is_some()
    {
        return Some(Start::StatePool {
            slots: count_after(message, b"MiB ("),
            gib: number_after(message, b"size =")? / 1024.0,
            draft_gib: None,
        });
    }
    if let Some(rest) =
        after(message, b"llama_context: ").or_else(|| after(message, b"llama_init_from_model: "))
    {
        return match (rest.trim_ascii_start(), memmem::find(rest, b"= ")) {
            (rest, Some(_)) if rest.starts_with(b"n_ctx ") => {
                int(Factor::ModelMaxContext, count_after(rest, b"= ")?)
            }
            (rest, Some(_)) if rest.starts_with(b"n_batch") => {
                int(Factor::SchedPrefillChunk, count_after(rest, b"= ")?)
            }
            (rest, Some(_)) if rest.starts_with(b"n_ubatch") => {
                int(Factor::SchedPrefillMax, count_after(rest, b"= ")?)
            }
            (rest, Some(_)) if rest.starts_with(b"flash_attn") => {
                let word = after(rest, b"= ")?;
                Some(Start::Setting(
                    Factor::ExecAttention,
                    normalise(Factor::ExecAttention, &redact::text(&String::from_utf8_lossy(word))),
                ))
            }
            _ => None,
        };
    }
    // `statistics        draft-mtp: #calls(b,g,a) = ...`: what drafts, whatever the flags say.
    if let Some(rest) = message.strip_prefix(b"statistics ")
        && let Some(end) = memmem::find(rest, b": #calls")
    {
        let name = String::from_utf8_lossy(rest[..end].trim_ascii()).replace('_', "-");
        let method = normalise(Factor::SpecMethod, &redact::text(&name));
        return Some(Start::Setting(Factor::SpecMethod, method));
    }
    if let Some(slots) = count_after(message, b"n_slots = ") {
        return int(Factor::SchedMaxRunning, slots);
    }
    if let Some(path) = between(message, b"loading model '", b'\'') {
        let path = redact::text(&String::from_utf8_lossy(path));
        return Some(Start::Setting(Factor::ModelPath, Value::Text(path)));
    }
    if let Some(rest) = message.strip_prefix(b"build: ") {
        let number = scan::grouped(rest)?;
        return Version::parse(&format!("b{number}")).map(Start::Version);
    }
    (memmem::find(message, b"server is listening on").is_some()
        || memmem::find(message, b": listening on").is_some())
    .then_some(Start::Ready)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timing_blocks_with_and_without_prefix() {
        let (time, message) = head(b"0.33.752.862 I slot print_timing: id  0 | task 105 |        eval time =   22849.82 ms /   295 tokens (   77.46 ms per token,    12.91 tokens per second)");
        assert!(time.is_some());
        assert_eq!(
            line(message),
            Some(Event::Timing(Timing {
                task: Some((0, 105)),
                phase: Phase::Eval,
                ms: 22_849.82,
                tokens: 295
            }))
        );
        let Some(Event::Timing(bare)) =
            line(b"prompt eval time =    2012.69 ms /  2210 tokens (    0.91 ms per token)")
        else {
            panic!()
        };
        assert_eq!((bare.task, bare.phase, bare.tokens), (None, Phase::Prompt, 2210));
    }

    #[test]
    fn loading_lines() {
        assert_eq!(
            line(b"load_tensors: offloaded 41/66 layers to GPU"),
            Some(Event::Start(Start::Offload { layers: 41, of: 66 }))
        );
        assert_eq!(
            line(b"load_tensors:   CPU_Mapped model buffer size =  6402.19 MiB"),
            Some(Event::Start(Start::Buffer { host: true, kv: false, mib: 6402.19 }))
        );
        assert_eq!(
            line(b"llama_kv_cache:      CUDA0 KV buffer size =  9216.00 MiB"),
            Some(Event::Start(Start::Buffer { host: false, kv: true, mib: 9216.0 }))
        );
        assert_eq!(
            line(b"llama_kv_cache: size = 16384.00 MiB (262144 cells,  16 layers,  1/1 seqs), K (f16):  8192.00 MiB, V (f16):  8192.00 MiB"),
            Some(Event::Start(Start::KvPool { tokens: 262_144, gib: Some(16.0) }))
        );
        assert_eq!(
            line(b"llama_context: n_ctx         = 262144"),
            Some(Event::Start(Start::Setting(Factor::ModelMaxContext, Value::Int(262_144))))
        );
        assert_eq!(
            line(b"statistics        draft-mtp: #calls(b,g,a) =    1    102    102, #gen drafts =    102"),
            Some(Event::Start(Start::Setting(Factor::SpecMethod, Value::Text("mtp".into()))))
        );
        assert_eq!(line(b"statistics of something"), None);
        assert_eq!(line(b"llama_context: n_ctx_per_seq = 262144"), None);
        assert_eq!(line(b"srv    load_model: initializing, n_slots = 1, n_ctx_slot = 65536, kv_unified = 'false'"), Some(Event::Start(Start::Setting(Factor::SchedMaxRunning, Value::Int(1)))));
    }
}
