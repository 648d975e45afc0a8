//! The launch ledger: what ran and what it achieved, one line at start and one at stop.
//!
//! It is what `outrider configs` and `diagnose` dig in later. A ledger that cannot be written is a
//! warning and never a reason not to serve.

use std::fs::{DirBuilder, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use dialects::ledger::{self, Hardware, Line, Measured, SCHEMA, Start, Stop, Weights};
use plan::Plan;
use serde_json::{Map, Value, json};
use telemetry::json_lines;
use telemetry::record::Totals;

use crate::flags::{Bandwidth, LedgerChoice, ModelFlags};
use crate::source;

/// What the entry of a start says beside what this file finds out itself.
pub(crate) struct Launched<'a> {
    pub(crate) arguments: &'a Map<String, Value>,
    pub(crate) plan: &'a Plan,
    pub(crate) weights: Weights,
    pub(crate) hardware: Hardware,
    pub(crate) listen: String,
}

/// The entry of a running server.
pub(crate) struct Entry {
    path: PathBuf,
    id: String,
    begin: Instant,
}

/// Appends the line of a start; `None` if none is wanted or possible.
pub(crate) fn begin(choice: Option<&LedgerChoice>, launched: Launched<'_>) -> Option<Entry> {
    let path = match choice {
        Some(LedgerChoice::None) => return None,
        Some(LedgerChoice::File(path)) => path.clone(),
        None => match state_folder() {
            Some(folder) => folder.join(ledger::FILE),
            None => {
                tracing::warn!("no launch ledger: neither XDG_STATE_HOME nor HOME is set");
                return None;
            }
        },
    };
    let now = jiff::Timestamp::now();
    let pid = std::process::id();
    let entry =
        Entry { path, id: format!("{}-{pid}", now.as_millisecond()), begin: Instant::now() };
    let argv: Vec<String> = std::env::args_os().map(|w| w.to_string_lossy().into_owned()).collect();
    let (effective, limited_by) = effective(launched.plan);
    let start = Start {
        schema: SCHEMA.to_owned(),
        id: entry.id.clone(),
        started_at: seconds(now),
        host: std::fs::read_to_string("/proc/sys/kernel/hostname")
            .map_or_else(|_| "unknown".to_owned(), |name| name.trim().to_owned()),
        pid,
        engine: dialects::Engine::Outrider.name().to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        argv: dialects::command::redacted(&argv),
        asked: launched.arguments.clone(),
        effective,
        limited_by,
        plan: sizes(launched.plan),
        weights: launched.weights,
        hardware: launched.hardware,
        listen: launched.listen,
    };
    append(&entry.path, &Line::Start(Box::new(start))).then_some(entry)
}

impl Entry {
    /// Appends the line of the stop.
    pub(crate) fn end(self, reason: String, totals: &Totals) {
        let stop = Stop {
            schema: SCHEMA.to_owned(),
            id: self.id,
            stopped_at: seconds(jiff::Timestamp::now()),
            reason,
            measured: measured(self.begin.elapsed().as_secs_f64(), totals),
        };
        append(&self.path, &Line::Stop(Box::new(stop)));
    }
}

/// The machine, and the bandwidth where it is asked for.
pub(crate) fn hardware(
    plan: &Plan,
    model: &ModelFlags,
    bandwidth: Option<Bandwidth>,
) -> anyhow::Result<Hardware> {
    let read = match bandwidth {
        None => None,
        Some(Bandwidth::Stated(gb_per_s)) => Some((gb_per_s, "stated")),
        Some(Bandwidth::Measure) => {
            let cpu = kernels::Cpu::new(plan.threads.value, source::isa(model)?);
            Some((kernels::read_bandwidth(&cpu), "measured"))
        }
    };
    let host = &plan.host;
    Ok(Hardware {
        cpu: host.cpu_name.clone(),
        features: features(&std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default()),
        n_cores: host.n_cores,
        memory_bytes: host.memory_bytes,
        read_gb_per_s: read.map(|(gb_per_s, _)| gb_per_s),
        read_gb_per_s_from: read.map(|(_, from)| from.to_owned()),
    })
}

/// Extensions that kernels use or could use, as the system names them.
const FEATURES: &[&str] = &[
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512_bf16",
    "avx512_fp16",
    "avx512_vnni",
    "avx_vnni",
    "amx_tile",
    "amx_bf16",
    "amx_int8",
    "asimd",
    "asimddp",
    "bf16",
    "i8mm",
    "sve",
    "sve2",
];

fn features(cpuinfo: &str) -> Vec<String> {
    let line = cpuinfo.lines().find(|l| l.starts_with("flags") || l.starts_with("Features"));
    let words: Vec<&str> = line.unwrap_or_default().split_whitespace().collect();
    FEATURES.iter().filter(|name| words.contains(name)).map(|name| (*name).to_owned()).collect()
}

/// Effective values and what set them, under the names of the flags.
fn effective(plan: &Plan) -> (Map<String, Value>, Map<String, Value>) {
    let (mut values, mut limits) = (Map::new(), Map::new());
    let mut set = |name: &str, value: usize, limit: Option<plan::Limit>| {
        values.insert(name.to_owned(), json!(value));
        if let Some(limit) = limit {
            limits.insert(name.to_owned(), json!(limit.to_string()));
        }
    };
    for (name, setting) in [
        ("context_length", plan.context_length),
        ("max_running_requests", plan.max_running_requests),
        ("chunked_prefill_size", plan.chunked_prefill_size),
        ("max_mamba_cache_size", plan.n_slots),
        ("threads", plan.threads),
    ] {
        set(name, setting.value, Some(setting.limit));
    }
    set("max_total_tokens", plan.max_total_tokens(), Some(plan.n_blocks.limit));
    set("max_queued_requests", plan.max_queued_requests, None);
    set("speculative_num_steps", plan.draft_depth, None);
    values.insert("kv_cache_dtype".to_owned(), json!(plan.kv_type.sglang_name()));
    (values, limits)
}

fn sizes(plan: &Plan) -> Map<String, Value> {
    let sizes = [
        ("budget_bytes", plan.budget_bytes),
        ("weight_bytes", plan.weight_bytes()),
        ("scratch_bytes", plan.scratch_bytes),
        ("replay_bytes", plan.replay_bytes),
        ("state_bytes", plan.state_bytes()),
        ("kv_bytes", plan.kv_bytes()),
        ("total_bytes", plan.total_bytes()),
    ];
    sizes.into_iter().map(|(name, bytes)| (name.to_owned(), json!(bytes))).collect()
}

fn measured(uptime_s: f64, t: &Totals) -> Measured {
    let ratio = |part: f64, whole: f64| (whole > 0.0).then(|| part / whole);
    let busy_s = t.forward_s + t.draft_s + t.sample_s + t.other_s;
    // Positions that no draft reached say nothing.
    let n_positions = t.n_drafted_at.iter().rposition(|n| *n > 0).map_or(0, |last| last + 1);
    Measured {
        uptime_s,
        busy_s,
        n_requests: t.n_requests,
        n_failed: t.n_failed + t.n_refused,
        n_prompt_tokens: t.n_prompt_tokens,
        n_cached_tokens: t.n_cached_tokens,
        n_generated_tokens: t.n_generated,
        decode_tok_s: ratio(t.n_itl as f64, t.itl_s),
        busy_tok_s: ratio(t.n_generated as f64, busy_s),
        accept_len: ratio((t.n_decode_rounds + t.n_accepted) as f64, t.n_decode_rounds as f64),
        accept_rate: ratio(t.n_accepted as f64, t.n_drafted as f64),
        drafted_at: t.n_drafted_at[..n_positions].to_vec(),
        accepted_at: t.n_accepted_at[..n_positions].to_vec(),
    }
}

/// Where this program keeps what it remembers: below `$XDG_STATE_HOME` or the usual folder of the
/// home; relative values of the variables do not count.
pub(crate) fn state_folder() -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    Some(state?.join(ledger::FOLDER))
}

/// Whether the line is in the file; if not, a warning says why.
fn append(path: &Path, line: &Line) -> bool {
    let written = try_append(path, &ledger::write(line));
    if let Err(error) = &written {
        tracing::warn!("launch ledger {}: {error}; the server runs without", path.display());
    }
    written.is_ok()
}

fn try_append(path: &Path, line: &[u8]) -> std::io::Result<()> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let mut file =
        OpenOptions::new().create(true).read(true).append(true).mode(0o600).open(path)?;
    json_lines::append(&mut file, line)
}

fn seconds(time: jiff::Timestamp) -> String {
    jiff::Timestamp::from_second(time.as_second()).unwrap_or(time).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_features_that_matter_are_kept() {
        let cpuinfo =
            "processor\t: 0\nflags\t\t: fpu avx2 fma sse2 avx512_vnni\nflags\t\t: other\n";
        assert_eq!(features(cpuinfo), ["avx2", "fma", "avx512_vnni"]);
        assert!(features("").is_empty());
    }

    #[test]
    fn a_cut_line_costs_only_itself() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/launches.jsonl");
        try_append(&path, b"one\n").unwrap();
        std::fs::write(&path, "one\ncu").unwrap();
        try_append(&path, b"two\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one\ncu\ntwo\n");
    }

    #[test]
    fn sums_become_rates_and_nothing_becomes_none() {
        let mut totals =
            Totals { n_decode_rounds: 10, n_accepted: 15, n_drafted: 30, ..Totals::default() };
        (totals.n_drafted_at[0], totals.n_drafted_at[2]) = (10, 10);
        let all = measured(2.0, &totals);
        assert_eq!((all.accept_len, all.accept_rate), (Some(2.5), Some(0.5)));
        assert_eq!(all.drafted_at, [10, 0, 10]);
        let none = measured(1.0, &Totals::default());
        assert_eq!((none.accept_len, none.decode_tok_s, none.drafted_at.len()), (None, None, 0));
    }
}
