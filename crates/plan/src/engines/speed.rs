//! How fast a decode step can be: bytes over bandwidth, operations over arithmetic.
//!
//! A step of `batch` requests at draft depth `k` verifies `batch * (k + 1)` rows and drafts `k` times.
//! Tokens per second of one stream are accept length over step time.

use serde::Serialize;

use super::args::EngineArgs;
use super::shape::ModelShape;

/// The lower and upper end of what is expected.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Range {
    /// Lower end.
    pub lo: f64,
    /// Upper end.
    pub hi: f64,
}

/// The speed of one draft depth at one batch size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SpeedRow {
    /// Drafts per step.
    pub depth: u64,
    /// Running requests.
    pub batch: u64,
    /// Tokens committed per step and request.
    pub accept_len: Range,
    /// Time of one step in milliseconds.
    pub step_ms: Range,
    /// Tokens per second of one stream.
    pub stream_tok_s: Range,
    /// Tokens per second of all streams together.
    pub total_tok_s: Range,
    /// What takes the largest part of the step.
    pub limited_by: &'static str,
}

/// Share of the nominal bandwidth or arithmetic that engines reach in a decode step.
const EFFICIENCY: Range = Range { lo: 0.70, hi: 0.95 };
/// Time of one collective over the devices in seconds; two are needed per layer.
const COLLECTIVE_S: Range = Range { lo: 5e-6, hi: 20e-6 };
/// Launch and host time of one step in seconds.
const OVERHEAD_S: Range = Range { lo: 0.0, hi: 2e-3 };
/// First-position acceptance of trained draft heads on ordinary text where nothing was measured.
const USUAL_ACCEPTANCE: Range = Range { lo: 0.60, hi: 0.85 };

/// Expected tokens per step when drafts at the first position are accepted with rate `first`.
///
/// The rate differs from passage to passage, which a Beta distribution of this `concentration`
/// describes: after a hit the next hit is likelier. `decay` is the loss per further position of a
/// draft head that is used again on its own output.
#[must_use]
pub fn accept_length(first: f64, concentration: f64, decay: f64, depth: u64) -> f64 {
    let (mut length, mut all_accepted) = (1.0, 1.0);
    for i in 0..depth {
        let i = i as f64;
        // For huge concentrations the ratio tends to `first`; written so that it stays finite.
        let conditional = (first + i / concentration) / (1.0 + i / concentration);
        all_accepted *= conditional * decay.powf(i);
        length += all_accepted;
    }
    length
}

/// The honest range of the accept length at `depth`, from a measured first position or none.
#[must_use]
pub fn accept_length_range(acceptance: Option<f64>, depth: u64) -> Range {
    let first = acceptance.map_or(USUAL_ACCEPTANCE, |rate| Range { lo: rate, hi: rate });
    Range {
        // The same rate everywhere and a tired head, against mixed text and a steady one.
        lo: accept_length(first.lo, 1e9, 0.88, depth),
        hi: accept_length(first.hi, 2.0, 1.0, depth),
    }
}

/// What the engine adds to the model: formats, and weights that do not lie on the device.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// Bytes of KV per token on one device, target layers.
    pub kv_bytes_per_token: f64,
    /// Bytes of one recurrent-state slot on one device.
    pub state_bytes: f64,
    /// Share of the layers that the host computes.
    pub host_share: f64,
    /// Memory bandwidth of the host in GB/s.
    pub host_gb_s: f64,
}

/// One row per batch size and depth.
#[must_use]
pub fn table(args: &EngineArgs, cost: &Cost, max_running: u64) -> Vec<SpeedRow> {
    let mut rows = Vec::new();
    for batch in batches(max_running) {
        for depth in depths(args) {
            rows.push(row(args, cost, batch, depth));
        }
    }
    rows
}

/// 1, 2, 4, … up to the running limit, and the limit.
fn batches(max_running: u64) -> Vec<u64> {
    let mut batches: Vec<u64> = (0..7).map(|i| 1 << i).filter(|n| *n < max_running).collect();
    batches.push(max_running.max(1));
    batches
}

/// Usual depths and the one that was asked for; only 0 without a draft head.
fn depths(args: &EngineArgs) -> Vec<u64> {
    let mut depths = match args.model.n_mtp_layers {
        0 => vec![0],
        _ => vec![0, 1, 2, 3, 5],
    };
    depths.push(args.flags.draft_depth);
    depths.sort_unstable();
    depths.dedup();
    depths
}

fn row(args: &EngineArgs, cost: &Cost, batch: u64, depth: u64) -> SpeedRow {
    // A tree verifies more rows than depth + 1; only the asked depth has a width of its own.
    let width = match depth {
        0 => 1,
        depth if depth == args.flags.draft_depth => args.flags.verify_width(),
        depth => depth + 1,
    };
    let parts = parts(args, cost, batch as f64, (depth, width));
    let limited_by = parts.iter().max_by(|a, b| a.1.total_cmp(&b.1)).map_or("", |part| part.0);
    let ideal_s: f64 = parts.iter().map(|part| part.1).sum();
    let collectives = if args.flags.tp > 1 { 2.0 * args.model.n_layers() as f64 } else { 0.0 };
    let step_s = Range {
        lo: ideal_s / EFFICIENCY.hi + collectives * COLLECTIVE_S.lo + OVERHEAD_S.lo,
        hi: ideal_s / EFFICIENCY.lo + collectives * COLLECTIVE_S.hi + OVERHEAD_S.hi,
    };
    let accept_len = accept_length_range(args.acceptance, depth);
    let stream = Range { lo: accept_len.lo / step_s.hi, hi: accept_len.hi / step_s.lo };
    SpeedRow {
        depth,
        batch,
        accept_len,
        step_ms: Range { lo: step_s.lo * 1e3, hi: step_s.hi * 1e3 },
        stream_tok_s: stream,
        total_tok_s: Range { lo: stream.lo * batch as f64, hi: stream.hi * batch as f64 },
        limited_by,
    }
}

/// The parts of a step in seconds at full bandwidth and arithmetic.
fn parts(
    args: &EngineArgs,
    cost: &Cost,
    batch: f64,
    (depth, width): (u64, u64),
) -> [(&'static str, f64); 5] {
    let (model, tp) = (&args.model, args.flags.tp);
    let bandwidth = args.device.bandwidth_gb_s * 1e9;
    let n_rows = batch * width as f64;
    let weights = model.read_bytes(tp, n_rows);
    let on_host = weights * cost.host_share;
    let read_s = (weights - on_host) / bandwidth;
    let compute_s = args
        .device
        .tflops
        .map_or(0.0, |tflops| n_rows * model.operations_per_token() / (tp as f64 * tflops * 1e12));
    // Reading and arithmetic overlap: the longer of the two is the time, and gives it its name.
    let (read_s, compute_s) = if read_s < compute_s { (0.0, compute_s) } else { (read_s, 0.0) };
    let kv = batch * args.load_tokens as f64 * cost.kv_bytes_per_token;
    // A plain step reads and writes the state; a verify also leaves one state per row.
    let n_states = if depth == 0 { 2 } else { 2 + width };
    let state = batch * n_states as f64 * cost.state_bytes;
    [
        ("weights", read_s),
        ("arithmetic", compute_s),
        ("KV and recurrent state", (kv + state) / bandwidth),
        ("draft head", depth as f64 * draft_bytes(model, tp) / bandwidth),
        ("weights in host memory", on_host / (cost.host_gb_s * 1e9)),
    ]
}

/// Bytes that one draft reads on one device: the draft layer and the whole head.
fn draft_bytes(model: &ModelShape, tp: usize) -> f64 {
    model.mtp_bytes(tp) + model.head_bytes() / tp as f64
}

#[cfg(test)]
mod tests {
    use super::super::args::{Engine, EngineArgs, Flags};
    use super::super::shape::tests::{qwen_27b, qwen_35b_a3b};
    use super::{Cost, accept_length, accept_length_range, row, table};

    fn args() -> EngineArgs {
        EngineArgs {
            engine: Engine::LlamaCpp,
            model: qwen_27b(),
            device: "2x48GiB@768GB/s".parse().unwrap(),
            flags: Flags { tp: 2, draft_depth: 3, ..Flags::unset() },
            observed: None,
            load_tokens: 1000,
            acceptance: Some(0.75),
        }
    }

    fn cost(args: &EngineArgs) -> Cost {
        Cost {
            kv_bytes_per_token: args.model.kv_bytes_per_token(args.flags.tp, 16, 2.0),
            state_bytes: args.model.state_bytes(args.flags.tp, 3, 2.0, 4.0),
            host_share: 0.0,
            host_gb_s: 50.0,
        }
    }

    #[test]
    fn accept_length_lies_between_a_tired_head_and_mixed_text() {
        assert!((accept_length(0.75, 1e9, 0.88, 3) - 2.53).abs() < 0.01);
        assert!((accept_length(0.75, 2.0, 1.0, 3) - 2.92).abs() < 0.01);
        assert_eq!(accept_length(0.75, 2.0, 1.0, 0), 1.0);
        assert_eq!(accept_length(0.75, 2.0, 0.9, 1), 1.75);
        let range = accept_length_range(None, 3);
        assert!(range.lo < 2.53 && range.hi > 2.92);
    }

    #[test]
    fn a_deeper_draft_costs_a_little_and_gains_more() {
        let args = args();
        // Measured on such cards: 43.8 ms at depth 1, 60 to 63 ms at depth 3 on longer texts.
        let one = row(&args, &cost(&args), 1, 1);
        assert!(one.step_ms.lo < 43.8 && 43.8 < one.step_ms.hi, "{one:?}");
        let three = row(&args, &cost(&args), 1, 3);
        assert!(three.step_ms.lo < 63.0 && 60.0 < three.step_ms.hi, "{three:?}");
        assert!(three.stream_tok_s.lo < 47.0 && 57.0 < three.stream_tok_s.hi, "{three:?}");
        assert_eq!(three.limited_by, "weights");
    }

    #[test]
    fn experts_make_wide_batches_dear() {
        let args = EngineArgs { model: qwen_35b_a3b(), ..args() };
        let dense = |batch| row(&args, &cost(&args), batch, 0).step_ms.lo;
        assert!(dense(32) > 5.0 * dense(1));
    }

    #[test]
    fn arithmetic_limits_a_slow_device_and_the_host_its_share() {
        let mut args = args();
        args.device.tflops = Some(5.0);
        assert_eq!(row(&args, &cost(&args), 32, 0).limited_by, "arithmetic");
        args.device.tflops = None;
        let cost = Cost { host_share: 0.4, ..cost(&args) };
        assert_eq!(row(&args, &cost, 1, 0).limited_by, "weights in host memory");
    }

    #[test]
    fn the_table_ends_at_the_running_limit() {
        let args = args();
        let rows = table(&args, &cost(&args), 10);
        let batches: Vec<u64> = rows.iter().map(|row| row.batch).collect();
        assert_eq!(batches.first(), Some(&1));
        assert_eq!(batches.last(), Some(&10));
        assert_eq!(rows.len(), 5 * 5);
        assert!(rows.iter().all(|row| row.stream_tok_s.lo <= row.stream_tok_s.hi));
    }
}
