//! The lines of the log, in SGLang's grammar, so that every tool that reads SGLang's log reads this one.
//!
//! The form is that of SGLang 0.5.12 and later for a hybrid model. Every function gives one line
//! without time and line break; [`stamped`] puts the time before it.
//! `#full token` and `mamba num` count what running sequences hold: cached prefixes that could be
//! evicted are not in them, as in SGLang. There are no captured graphs on a CPU, so the graph field,
//! which readers expect, is always `cpu graph: False`. `mean depth` is ours: SGLang's depth is fixed.

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::record::StepRecord;
use crate::window::Decoded;

/// Sizes of the pools, fixed at start.
#[derive(Clone, Copy, Debug)]
pub struct Pools {
    /// Positions in one KV block.
    pub block_len: usize,
    /// Whether a draft head is in use: the decode line then has the accept fields.
    pub speculates: bool,
}

/// What identifies a start: the sizes that decide how fast the server can be.
#[derive(Clone, Debug)]
pub struct Fingerprint {
    /// Token positions in the KV pool.
    pub max_total_num_tokens: usize,
    /// Most prompt rows in one step.
    pub chunked_prefill_size: usize,
    /// Most prompt tokens taken into one prefill batch.
    pub max_prefill_tokens: usize,
    /// Most sequences that run at once, as the plan has it.
    pub max_running_requests: usize,
    /// Most tokens of a request.
    pub context_len: usize,
    /// Memory that is left for other things, GiB.
    pub available_mem_gib: f64,
}

/// What the pools and the weights take.
#[derive(Clone, Debug)]
pub struct Memory {
    /// Architecture as `config.json` names it.
    pub architecture: String,
    /// Seconds that loading took.
    pub load_s: f64,
    /// Memory of the packed weights, GiB.
    pub weights_gib: f64,
    /// Memory that is left for other things, GiB.
    pub available_mem_gib: f64,
    /// Recurrent-state slots; none if the model has no linear layers.
    pub n_slots: usize,
    /// Memory of the convolution inputs of all slots, GiB.
    pub conv_gib: f64,
    /// Memory of the delta states of all slots, GiB.
    pub delta_gib: f64,
    /// Element type of keys and values.
    pub kv_dtype: &'static str,
    /// Token positions in the KV pool.
    pub n_tokens: usize,
    /// Memory of the keys, GiB; the values take the same.
    pub keys_gib: f64,
}

/// A line as it stands in the log: local time in brackets, then the message.
pub fn stamped(unix_s: f64, message: &str) -> String {
    let at = Timestamp::from_microsecond((unix_s * 1e6) as i64).unwrap_or(Timestamp::UNIX_EPOCH);
    let local = at.to_zoned_datetime(TimeZone::system());
    format!("[{}] {message}", local.strftime("%Y-%m-%d %H:%M:%S"))
}

/// The lines about memory, in the order of a start.
pub fn memory(m: &Memory) -> Vec<String> {
    let mut lines = vec![format!(
        "Load weight end. elapsed={:.2} s, type={}, avail mem={:.2} GB, mem usage={:.2} GB.",
        m.load_s, m.architecture, m.available_mem_gib, m.weights_gib
    )];
    if m.n_slots > 0 {
        lines.push(format!(
            "Mamba Cache is allocated. max_mamba_cache_size: {}, conv_state size: {:.2}GB, \
             ssm_state size: {:.2}GB ",
            m.n_slots, m.conv_gib, m.delta_gib
        ));
    }
    lines.push(format!(
        "KV Cache is allocated. dtype: {}, #tokens: {}, K size: {:.2} GB, V size: {:.2} GB",
        m.kv_dtype, m.n_tokens, m.keys_gib, m.keys_gib
    ));
    lines
}

/// The fingerprint of a start.
pub fn fingerprint(f: &Fingerprint) -> String {
    format!(
        "max_total_num_tokens={}, chunked_prefill_size={}, max_prefill_tokens={}, \
         max_running_requests={}, context_len={}, available_cpu_mem={:.2} GB",
        f.max_total_num_tokens,
        f.chunked_prefill_size,
        f.max_prefill_tokens,
        f.max_running_requests,
        f.context_len,
        f.available_mem_gib
    )
}

/// The last line of a start, after the first token was generated.
pub const READY: &str = "The server is fired up and ready to roll!";

/// One prefill batch. `rows_per_s` is of this batch: its rows over the time since the last one.
pub fn prefill(step: &StepRecord, pools: &Pools, rows_per_s: f64) -> String {
    let g = &step.gauges;
    format!(
        "Prefill batch, #new-seq: {}, #new-token: {}, #cached-token: {}, full token usage: {:.2}, \
         mamba usage: {:.2}, #running-req: {}, #queue-req: {}, cpu graph: False, \
         input throughput (token/s): {rows_per_s:.2}",
        step.n_prefill_sequences,
        step.n_prefill_rows,
        step.n_cached_tokens,
        share(held_tokens(step, pools), g.n_blocks * pools.block_len),
        share(g.n_slots_used, g.n_slots),
        step.n_decode_sequences,
        g.n_waiting,
    )
}

/// One window of decode steps, which ended with `step`.
pub fn decode(step: &StepRecord, pools: &Pools, window: &Decoded) -> String {
    let g = &step.gauges;
    let n_tokens = held_tokens(step, pools);
    let accept = if pools.speculates {
        format!(
            "accept len: {:.2}, accept rate: {:.2}, mean depth: {:.2}, ",
            window.accept_length(),
            window.accept_rate(),
            window.mean_depth(),
        )
    } else {
        String::new()
    };
    format!(
        "Decode batch, #running-req: {}, #full token: {n_tokens}, full token usage: {:.2}, \
         mamba num: {}, mamba usage: {:.2}, {accept}cpu graph: False, \
         gen throughput (token/s): {:.2}, #queue-req: {}",
        step.n_decode_sequences,
        share(n_tokens, g.n_blocks * pools.block_len),
        g.n_slots_used,
        share(g.n_slots_used, g.n_slots),
        window.tokens_per_s(),
        g.n_waiting,
    )
}

/// Running sequences were pushed back to the queue for want of blocks.
pub fn preempted(n: usize) -> String {
    format!("KV cache pool is full. Retract requests. #retracted_reqs: {n}")
}

/// Token positions in blocks that running sequences hold.
fn held_tokens(step: &StepRecord, pools: &Pools) -> usize {
    let g = &step.gauges;
    g.n_blocks_used.saturating_sub(g.n_blocks_cached) * pools.block_len
}

/// A part of a pool; an empty pool is not full.
pub fn share(part: usize, whole: usize) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use regex::Regex;

    use super::*;
    use crate::record::Gauges;

    /// One expression for the decode lines of all SGLang versions.
    const DECODE: &str = concat!(
        r"^\[(?P<ts>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{3})?)",
        r"(?P<rank>(?: (?:DP|PP|ATTN_CP|MOE_DP|TP|EP)\d+)*)\] ",
        r"Decode batch(?:\.|(?: \[(?P<iter>\d+)\])?,)\s#running-req: (?P<run>\d+), ",
        r"(?:#token: (?P<tok>-?\d+), token usage: (?P<tu>-?[\d.]+), ",
        r"|#full token: (?P<ftok>-?\d+), full token usage: (?P<ftu>-?[\d.]+), )",
        r"(?:#swa token: (?P<swa>-?\d+), swa token usage: (?P<swau>-?[\d.]+), )?",
        r"(?:mamba num: (?P<mn>-?\d+), mamba usage: (?P<mu>-?[\d.]+), )?",
        r"(?:#gpu token: .*?cpu token usage: [\d.]+, )?",
        r"(?:accept len: (?P<al>[\d.]+), )?(?:accept rate: (?P<ar>[\d.]+), )?",
        r"(?:cap len: [\d.]+, )?(?:block accept len: [\d.]+, )?(?P<rest>.*?)",
        r"(?:(?:cuda|cpu|npu|musa) graph: (?P<graph>True|False), )?",
        r"gen throughput \(token/s\): (?P<tps>[\d.]+)(?:, largest-len: \d+)?, ",
        r"#queue-req: (?P<q>\d+)",
    );

    /// The prefill lines of a hybrid model, 0.5.10 and later.
    const PREFILL: &str = concat!(
        r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] Prefill batch, #new-seq: (\d+), #new-token: (\d+), ",
        r"#cached-token: (\d+), full token usage: ([\d.]+), mamba usage: ([\d.]+), ",
        r"#running-req: (\d+), #queue-req: (\d+)(?:, #pending-token: \d+)?, ",
        r"(?:cuda|cpu|npu|musa) graph: (?:True|False), input throughput \(token/s\): ([\d.]+)$",
    );

    fn pools(speculates: bool) -> Pools {
        Pools { block_len: 64, speculates }
    }

    fn step() -> StepRecord {
        StepRecord {
            gauges: Gauges {
                n_waiting: 2,
                n_blocks_used: 50,
                n_blocks: 100,
                n_blocks_cached: 10,
                n_slots_used: 3,
                n_slots: 6,
                ..Gauges::default()
            },
            n_prefill_sequences: 2,
            n_prefill_rows: 700,
            n_cached_tokens: 128,
            n_decode_sequences: 3,
            ..StepRecord::default()
        }
    }

    fn window() -> Decoded {
        Decoded { n_rounds: 120, n_drafted: 360, n_accepted: 216, seconds: 4.0 }
    }

    /// Named groups of the decode line that `speculates` gives.
    fn parse(speculates: bool) -> Vec<(String, Option<String>)> {
        let line = stamped(1_796_000_000.25, &decode(&step(), &pools(speculates), &window()));
        let regex = Regex::new(DECODE).unwrap();
        let found = regex.captures(&line).unwrap_or_else(|| panic!("not understood: {line}"));
        let value = |name| found.name(name).map(|m| m.as_str().to_owned());
        regex.capture_names().flatten().map(|name| (name.to_owned(), value(name))).collect()
    }

    fn assert_groups(groups: &[(String, Option<String>)], want: &[(&str, Option<&str>)]) {
        for (name, value) in want {
            let found = groups.iter().find(|(n, _)| n == name).expect(name);
            assert_eq!(found.1.as_deref(), *value, "{name}");
        }
    }

    #[test]
    fn the_decode_line_is_understood_as_sglang_s() {
        let want = [
            ("run", Some("3")),
            ("ftok", Some("2560")),
            ("ftu", Some("0.40")),
            ("mn", Some("3")),
            ("mu", Some("0.50")),
            ("al", Some("2.80")),
            ("ar", Some("0.60")),
            ("graph", Some("False")),
            ("rest", Some("mean depth: 3.00, ")),
            ("tps", Some("84.00")),
            ("q", Some("2")),
        ];
        assert_groups(&parse(true), &want);
    }

    #[test]
    fn without_speculation_the_decode_line_has_no_accept_fields() {
        assert_groups(&parse(false), &[("al", None), ("ar", None), ("tps", Some("84.00"))]);
    }

    #[test]
    fn the_prefill_line_is_understood_as_sglang_s() {
        let line = stamped(1_796_000_000.0, &prefill(&step(), &pools(true), 350.0));
        let found = Regex::new(PREFILL).unwrap().captures(&line).expect(&line);
        let values: Vec<&str> = found.iter().skip(1).flatten().map(|m| m.as_str()).collect();
        assert_eq!(values, ["2", "700", "128", "0.40", "0.50", "3", "2", "350.00"]);
    }

    #[test]
    fn the_fingerprint_has_sglang_s_names_in_its_order() {
        let line = fingerprint(&Fingerprint {
            max_total_num_tokens: 32768,
            chunked_prefill_size: 512,
            max_prefill_tokens: 16384,
            max_running_requests: 8,
            context_len: 8192,
            available_mem_gib: 11.5,
        });
        assert_eq!(
            line,
            "max_total_num_tokens=32768, chunked_prefill_size=512, max_prefill_tokens=16384, \
             max_running_requests=8, context_len=8192, available_cpu_mem=11.50 GB"
        );
    }

    #[test]
    fn the_state_line_is_left_out_for_a_model_without_state() {
        let mut m = Memory {
            architecture: "Qwen3_5ForCausalLM".into(),
            load_s: 0.5,
            weights_gib: 1.5,
            available_mem_gib: 10.0,
            n_slots: 6,
            conv_gib: 0.01,
            delta_gib: 0.25,
            kv_dtype: "float32",
            n_tokens: 32768,
            keys_gib: 0.5,
        };
        let lines = memory(&m);
        assert_eq!(
            lines[1],
            "Mamba Cache is allocated. max_mamba_cache_size: 6, conv_state size: 0.01GB, \
             ssm_state size: 0.25GB "
        );
        assert!(lines[2].ends_with("#tokens: 32768, K size: 0.50 GB, V size: 0.50 GB"));
        m.n_slots = 0;
        assert_eq!(memory(&m).len(), 2);
    }

    #[test]
    fn an_empty_pool_is_not_full() {
        assert_eq!(share(0, 0), 0.0);
        assert_eq!(share(1, 4), 0.25);
    }
}
