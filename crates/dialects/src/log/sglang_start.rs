//! SGLang's start-up lines.

use super::scan::{self, after, count_after, number_after};
use super::{Event, Start};
use crate::config::Config;
use crate::engine::{Engine, Version};
use crate::pyrepr;

/// Reads a start-up line.
pub(super) fn start_line(message: &[u8]) -> Option<Event> {
    start(message).map(Event::Start)
}

fn start(message: &[u8]) -> Option<Start> {
    if let Some(rest) = message.strip_prefix(b"server_args=") {
        return arguments(rest);
    }
    if message.starts_with(b"Load weight begin") {
        return number_after(message, b"avail mem=").map(Start::FreeBefore);
    }
    if message.starts_with(b"Load weight end") {
        let quant = scan::between(message, b"quant=", b',')
            .map(|q| String::from_utf8_lossy(q).into_owned());
        return Some(Start::Weights {
            gib: number_after(message, b"mem usage=")?,
            free_gib: number_after(message, b"avail mem="),
            quant,
        });
    }
    if message.starts_with(b"Mamba Cache is allocated") {
        let gib = number_after(message, b"conv_state size: ")?
            + number_after(message, b"ssm_state size: ")?;
        let draft = number_after(message, b"intermediate_ssm_state_cache size: ");
        let window = number_after(message, b"intermediate_conv_window_cache size: ").unwrap_or(0.0);
        return Some(Start::StatePool {
            slots: count_after(message, b"max_mamba_cache_size: "),
            gib,
            draft_gib: draft.map(|gib| gib + window),
        });
    }
    if let Some(at) =
        memchr::memmem::find(&message[..message.len().min(64)], b"KV Cache is allocated")
    {
        // A pool of sliding-window layers is not the one that limits a request's length.
        if message[..at].starts_with(b"SWA") {
            return None;
        }
        let tokens = count_after(message, b"#tokens: ")?;
        let halves = number_after(message, b", K size: ")
            .zip(number_after(message, b"V size: "))
            .map(|(k, v)| k + v);
        return Some(Start::KvPool { tokens, gib: halves.or(number_after(message, b"KV size: ")) });
    }
    if message.starts_with(b"max_total_num_tokens=") {
        return Some(Start::Limits {
            kv_tokens: count_after(message, b"max_total_num_tokens=")?,
            max_running: count_after(message, b"max_running_requests=")?,
            context: count_after(message, b"context_len=")?,
            prefill_chunk: number_after(message, b"chunked_prefill_size=").map(|n| n as i64),
            free_gib: number_after(message, b"available_gpu_mem="),
        });
    }
    if message.starts_with(b"Capture ") {
        return graphs(message);
    }
    if message.starts_with(b"The server is fired up and ready to roll!") {
        return Some(Start::Ready);
    }
    version(message).map(Start::Version)
}

/// `server_args={…}` of newer versions and `server_args=ServerArgs(…)` of older ones.
fn arguments(rest: &[u8]) -> Option<Start> {
    let text = String::from_utf8_lossy(rest);
    let serde_json::Value::Object(dump) = pyrepr::parse(&text)? else { return None };
    // Outrider writes the same line; it names its threads and knows no parallel ranks.
    let is_outrider = dump.contains_key("threads") && !dump.contains_key("tp_size");
    let engine = if is_outrider { Engine::Outrider } else { Engine::Sglang };
    let mut config = Config::new(engine);
    config.set_dump(&dump);
    config.whole = true;
    Some(Start::Args { config: Box::new(config), resolved: false })
}

/// `Capture target verify CUDA graph begin. backend=full, num_tokens_per_req=4, …`, `… end. bs=[1, 2, 4], …`,
/// `Capture cuda graph bs [1, 2, 4]`. Graphs of the draft model say nothing about the target's steps.
fn graphs(message: &[u8]) -> Option<Start> {
    if message.starts_with(b"Capture draft")
        || after(message, b"prefill").is_some()
        || after(message, b"piecewise").is_some()
    {
        return None;
    }
    let tokens_per_request = count_after(message, b"num_tokens_per_req=");
    let sizes =
        scan::between(message, b"bs=[", b']').or_else(|| scan::between(message, b"bs [", b']'));
    let max_batch =
        sizes.and_then(|sizes| sizes.split(|b| *b == b',').filter_map(scan::count).max());
    (tokens_per_request.is_some() || max_batch.is_some())
        .then_some(Start::Graphs { tokens_per_request, max_batch })
}

/// `SGLang version: 0.5.12`, `Outrider 0.1.0`.
fn version(message: &[u8]) -> Option<Version> {
    let rest = after(message, b"SGLang version: ")
        .or_else(|| after(message, b"sglang version: "))
        .or_else(|| message.strip_prefix(b"Outrider "))?;
    Version::parse(&String::from_utf8_lossy(&rest[..rest.len().min(40)]))
}

/// Lines without numbers that any use is known for.
pub(super) fn is_harmless(message: &[u8]) -> bool {
    const KNOWN: &[&[u8]] = &[
        b"INFO:",
        b"Memory pool end",
        b"Capture ",
        b"Init torch distributed",
        b"Tree cache initialized",
        b"Ignore import error",
        b"Loading safetensors",
        b"Multi-thread loading",
        b"Using ",
        b"Attention backend",
        b"Endpoint ",
        b"End of warmup",
        b"Set cuda",
        b"The following error message",
        b"Detected ",
        b"Watchdog",
        b"Gracefully exiting",
        b"Registering",
        b"Attempting to load",
        b"Load weight",
        b"Setting ",
        b"KV Cache is allocated",
        b"SWA KV Cache",
        b"No chat template",
        b"Cache flushed",
        b"Freeze GC",
        b"Beginning of",
    ];
    KNOWN.iter().any(|known| message.starts_with(known))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::factor::Factor;
    use crate::value::Value;

    #[test]
    fn the_header_in_both_forms() {
        for line in [
            &b"server_args={'model_path': '/m', 'speculative_num_steps': 1, 'disable_radix_cache': True, 'api_key': 'x', 'mem_fraction_static': 0.85}"[..],
            b"server_args=ServerArgs(model_path='/m', speculative_num_steps=1, disable_radix_cache=True, mem_fraction_static=0.85)",
        ] {
            let Some(Start::Args { config, .. }) = start(line) else { panic!() };
            assert_eq!(config.get(Factor::SpecNumSteps), Some(&Value::Int(1)));
            assert_eq!(config.get(Factor::CachePrefix), Some(&Value::Bool(false)));
            assert!(config.whole && config.settings.len() == 4);
        }
    }

    #[test]
    fn pools_and_limits() {
        assert_eq!(
            start(b"Mamba Cache is allocated. max_mamba_cache_size: 37, conv_state size: 0.10GB, ssm_state size: 5.34GB intermediate_ssm_state_cache size: 4.53GB intermediate_conv_window_cache size: 0.06GB "),
            Some(Start::StatePool { slots: Some(37), gib: 0.10 + 5.34, draft_gib: Some(4.53 + 0.06) })
        );
        let Some(Start::KvPool { tokens, gib: Some(gib) }) = start(b"KV Cache is allocated. dtype: torch.bfloat16, #tokens: 327630, K size: 10.00 GB, V size: 10.00 GB") else { panic!() };
        assert_eq!((tokens, gib), (327_630, 20.0));
        assert_eq!(
            start(b"max_total_num_tokens=19122, chunked_prefill_size=4096, max_prefill_tokens=16384, max_running_requests=1, context_len=262144, available_gpu_mem=7.31 GB"),
            Some(Start::Limits { kv_tokens: 19_122, max_running: 1, context: 262_144, prefill_chunk: Some(4096), free_gib: Some(7.31) })
        );
        assert_eq!(
            start(b"Capture target verify CUDA graph end. bs=[1, 2, 4, 7], elapsed=12.61 s"),
            Some(Start::Graphs { tokens_per_request: None, max_batch: Some(7) })
        );
        assert_eq!(
            start(b"Capture draft verify CUDA graph end. bs=[1, 2, 4, 7], elapsed=12.61 s"),
            None
        );
    }
}
