//! vLLM's lines, from 0.6 to 0.33.

use super::scan::{self, Fields, after, count_after, number_after};
use super::time::{self, Time};
use super::{Accept, Event, Interval, MOST_POSITIONS, Start};
use crate::config::Config;
use crate::engine::{Engine, Version};
use crate::factor::Factor;
use crate::pyrepr;
use crate::value::{Value, normalise};

/// `(EngineCore pid=7) INFO 04-05 06:07:08 [file.py:101] message` and its older forms.
pub(super) struct Head<'a> {
    pub(super) time: Option<Time>,
    pub(super) debug: bool,
    pub(super) message: &'a [u8],
}

/// Takes off the prefix of a vLLM line; `None` when the line has none.
pub(super) fn head(line: &[u8]) -> Option<Head<'_>> {
    let mut rest = line;
    if rest.first() == Some(&b'(') {
        let head = &rest[..rest.len().min(80)];
        let close = head.iter().position(|b| *b == b')')?;
        memchr::memmem::find(&head[..close], b"pid=")?;
        rest = rest[close + 1..].trim_ascii_start();
    }
    let level = [&b"INFO "[..], b"WARNING ", b"ERROR ", b"DEBUG ", b"CRITICAL "]
        .into_iter()
        .find(|level| rest.starts_with(level))?;
    let after_level = &rest[level.len()..];
    let (time, len) = time::month_day_time(after_level)?;
    let mut message = after_level[len..].trim_ascii_start();
    // `[file.py:101] ` or, before 0.6.4, `file.py:101] `.
    if let Some(close) = message.iter().take(80).position(|b| *b == b']')
        && message[..close].contains(&b':')
    {
        message = message[close + 1..].trim_ascii_start();
    }
    Some(Head { time: Some(time), debug: level == b"DEBUG ", message })
}

/// Reads the line per interval; also gives the engine number.
pub(super) fn interval(message: &[u8]) -> Option<(u16, Interval)> {
    let (engine, body) = match message.strip_prefix(b"Engine ") {
        Some(rest) => {
            let colon = rest.iter().take(8).position(|b| *b == b':')?;
            (scan::count(&rest[..colon])?, &rest[colon + 1..])
        }
        None => (0, message),
    };
    let mut line = Interval::default();
    let (mut gen_tok_s, mut running) = (None, None);
    for (key, value) in Fields::new(body) {
        match key {
            b"Avg prompt throughput" => line.prompt_tok_s = scan::number(value)? as f32,
            b"Avg generation throughput" => gen_tok_s = scan::number(value),
            b"Running" => running = scan::count(value),
            b"Waiting" | b"Pending" => line.waiting = scan::count(value)? as u32,
            b"Preemptions" => line.preemptions = scan::count(value).map(|n| n as u32),
            b"GPU KV cache usage" => line.kv_usage = scan::share(value),
            b"Prefix cache hit rate" => line.hit_rate = hit_rate(value),
            _ => {}
        }
    }
    line.gen_tok_s = gen_tok_s? as f32;
    line.running = running? as u32;
    Some((engine.min(u64::from(u16::MAX)) as u16, line))
}

/// `40.0%`; old versions write `GPU: 40.00%`.
fn hit_rate(value: &[u8]) -> Option<f32> {
    scan::share(value.strip_prefix(b"GPU: ").unwrap_or(value))
}

/// Reads `SpecDecoding metrics: …` and the older `Speculative metrics: …`.
pub(super) fn accept(message: &[u8]) -> Option<Accept> {
    let body = after(&message[..message.len().min(2000)], b"SpecDecoding metrics: ")
        .or_else(|| after(message, b"Speculative metrics: "))?;
    let mut line = Accept::default();
    let mut in_positions = false;
    for (key, value) in Fields::new(body) {
        if key.is_empty() {
            if in_positions {
                push_position(&mut line, value);
            }
            continue;
        }
        in_positions = false;
        match key {
            b"Mean acceptance length" => line.mean_len = scan::number(value).map(|n| n as f32),
            b"Accepted" | b"Number of accepted tokens" => line.accepted = scan::count(value),
            b"Drafted" | b"Number of draft tokens" => line.drafted = scan::count(value),
            b"Number of emitted tokens" => line.emitted = scan::count(value),
            b"Draft acceptance rate" | b"Avg Draft acceptance rate" => {
                line.rate = scan::share(value)
            }
            b"Per-position acceptance rate" => {
                in_positions = true;
                push_position(&mut line, value);
            }
            _ => {}
        }
    }
    (line.rate.is_some() || line.mean_len.is_some() || line.drafted.is_some()).then_some(line)
}

pub(super) fn push_position(line: &mut Accept, value: &[u8]) {
    if let Some(share) = scan::share(value)
        && usize::from(line.n_pos) < MOST_POSITIONS
    {
        line.per_pos[usize::from(line.n_pos)] = share;
        line.n_pos += 1;
    }
}

/// Reads a start-up line.
pub(super) fn start(message: &[u8]) -> Option<Event> {
    let fact = if let Some(rest) =
        after(&message[..message.len().min(64)], b"vLLM API server version ")
    {
        Start::Version(Version::parse(&String::from_utf8_lossy(rest))?)
    } else if message.starts_with(b"non-default args: ") || message.starts_with(b"args: Namespace(")
    {
        arguments(message)?
    } else if message.starts_with(b"Initializing a V")
        || message.starts_with(b"Initializing an LLM engine")
    {
        engine_line(message)?
    } else if message.starts_with(b"Model loading took ")
        || message.starts_with(b"model weights take ")
    {
        Start::Weights {
            gib: number_after(message, b"took ").or_else(|| number_after(message, b"take "))?,
            free_gib: None,
            quant: None,
        }
    } else if let Some(tokens) = count_after(message, b"GPU KV cache size: ") {
        Start::KvPool { tokens, gib: None }
    } else if let Some(tokens) = count_after(message, b"Setting attention block size to ") {
        Start::Setting(Factor::CacheBlock, Value::Int(tokens as i64))
    } else if let Some(tokens) = count_after(message, b"Using max model len ") {
        Start::Setting(Factor::ModelMaxContext, Value::Int(tokens as i64))
    } else if message.starts_with(b"Application startup complete") {
        Start::Ready
    } else {
        return None;
    };
    Some(Event::Start(fact))
}

fn arguments(message: &[u8]) -> Option<Start> {
    let text = String::from_utf8_lossy(message);
    let dump = text.split_once(": ").map(|(_, dump)| dump)?;
    let serde_json::Value::Object(dump) = pyrepr::parse(dump)? else { return None };
    let mut config = Config::new(Engine::Vllm);
    config.set_dump(&dump);
    Some(Start::Args { config: Box::new(config), resolved: false })
}

/// `Initializing a V1 LLM engine (v0.33.0) with config: model='…', dtype=torch.bfloat16, …`.
fn engine_line(message: &[u8]) -> Option<Start> {
    let text = String::from_utf8_lossy(message);
    let (head, arguments) = text.split_once("with config: ")?;
    let mut config = Config::new(Engine::Vllm);
    config.version =
        head.split_once('(').and_then(|(_, rest)| Version::parse(rest.trim_start_matches('v')));
    config.set_dump(&pyrepr::parse_keywords(arguments));
    Some(Start::Args { config: Box::new(config), resolved: true })
}

/// Lines that are known and carry nothing that is used.
pub(super) fn is_harmless(message: &[u8]) -> bool {
    const KNOWN: &[&[u8]] = &[
        b"Resolved architecture",
        b"Available KV cache memory",
        b"Graph capturing finished",
        b"Starting vLLM",
        b"Route: ",
        b"Started server",
        b"Waiting for application",
        b"Maximum concurrency",
        b"Chunked prefill",
        b"Automatically detected platform",
        b"Using ",
        b"Loading ",
        b"Starting to load model",
        b"Available routes",
        b"Defaulting to",
        b"Asynchronous scheduling",
        b"init engine",
        b"torch.compile takes",
        b"Capturing CUDA graph",
        b"Cache the graph",
        b"Dynamo bytecode",
        b"Compiling a graph",
        b"Uvicorn running",
        b"Supported tasks",
    ];
    KNOWN.iter().any(|known| message.starts_with(known))
}

/// `Upcasting torch.bfloat16 to torch.float32.`
pub(super) fn upcast_target(message: &[u8]) -> Option<Value> {
    let rest = after(&message[..message.len().min(120)], b" to torch.")?;
    let end = rest.iter().position(|b| !b.is_ascii_alphanumeric()).unwrap_or(rest.len());
    Some(normalise(Factor::ModelDtype, &String::from_utf8_lossy(&rest[..end])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_of_every_age() {
        for line in [
            "(EngineCore_DP0 pid=7) INFO 04-05 06:07:08 [metrics.py:101] x",
            "INFO 04-05 06:07:08 [metrics.py:101] x",
            "INFO 04-05 06:07:08 metrics.py:101] x",
            "(Worker_TP0 pid=7) WARNING 04-05 06:07:08 [metrics.py:101] x",
        ] {
            assert_eq!(head(line.as_bytes()).unwrap().message, b"x", "{line}");
        }
        assert!(head(b"INFO:     127.0.0.1").is_none());
    }

    #[test]
    fn the_engine_line_is_the_effective_configuration() {
        let line = b"Initializing a V1 LLM engine (v0.33.0) with config: model='/m', speculative_config=SpeculativeConfig(method='mtp', model='/m', num_spec_tokens=3), dtype=torch.float32, max_seq_len=65536, tensor_parallel_size=2, enforce_eager=False, enable_prefix_caching=True";
        let Some(Event::Start(Start::Args { config, resolved: true })) = start(line) else {
            panic!()
        };
        assert_eq!(config.version, Version::parse("0.33.0"));
        assert_eq!(config.get(Factor::SpecNumSteps), Some(&Value::Int(3)));
        assert_eq!(config.get(Factor::ModelDtype), Some(&"float32".into()));
        assert_eq!(config.get(Factor::ModelMaxContext), Some(&Value::Int(65_536)));
        assert_eq!(config.get(Factor::ExecCudaGraph), Some(&Value::Bool(true)));
        assert_eq!(config.get(Factor::ParTp), Some(&Value::Int(2)));
    }

    #[test]
    fn sizes() {
        let Some(Event::Start(Start::KvPool { tokens, .. })) = start(b"GPU KV cache size: 806,400 tokens, Maximum concurrency for 65,536 tokens per request: 12.30x") else { panic!() };
        assert_eq!(tokens, 806_400);
        assert_eq!(
            upcast_target(b"Upcasting torch.bfloat16 to torch.float32."),
            Some("float32".into())
        );
    }
}
