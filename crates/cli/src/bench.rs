//! `outrider bench`: how fast a model runs here, beside what the memory of this machine gives.
//!
//! Offline: no server and no sampling, only passes of the network. Read bandwidth is measured
//! before every row, because it moves on shared machines.

use std::time::Instant;

use anyhow::{Result, ensure};
use kernels::{Cpu, KV_BLOCK, Span};
use model::Model;
use model::batch::{Batch, Forward};
use model::network::ModelOptions;
use serde::Serialize;

use crate::bench_speculation;
use crate::flags::BenchFlags;
use crate::source::{self, Source};

/// Everything one run measured.
#[derive(Serialize)]
struct Report {
    model: String,
    isa: String,
    threads: usize,
    weight_format: String,
    kv_type: String,
    /// Weights that a decode step reads, in bytes.
    step_weight_bytes: usize,
    load_s: f64,
    rows: Vec<Row>,
}

/// One line of the table. Medians over the repeats; `min` and `max` are of the same number.
#[derive(Serialize)]
struct Row {
    what: &'static str,
    /// Tokens already in the context of each sequence.
    depth: usize,
    n_sequences: usize,
    /// Rows of each sequence in one pass.
    n_rows: usize,
    tokens_per_s: f64,
    tokens_per_s_min: f64,
    tokens_per_s_max: f64,
    /// Time of one pass.
    pass_ms: f64,
    /// Weights, KV and recurrent state that one pass reads, and state that it writes, over its time.
    gb_per_s: f64,
    /// Read bandwidth measured beside this row.
    bandwidth_gb_per_s: f64,
}

/// Runs the measurements and prints them.
pub(crate) fn run(flags: &BenchFlags) -> Result<()> {
    if flags.speculative {
        return bench_speculation::run(flags);
    }
    let source = Source::resolve(&flags.model)?;
    let cpu = source::cpu(&flags.model)?;
    let plan = Cases::new(flags)?;
    let options = plan.options(&source, flags);
    let (isa, threads) = (source::kernels_of(&cpu), cpu.n_threads());
    let started = Instant::now();
    let model = source::load(&source, cpu, &options)?;
    let load_s = started.elapsed().as_secs_f64();
    let mut bench =
        Bench { model, repeat: flags.repeat, probe: Cpu::new(threads, source::isa(&flags.model)?) };

    let mut rows = Vec::new();
    for n in &flags.prefill.0 {
        rows.push(bench.prefill(*n));
    }
    for depth in &flags.depth {
        for n in &flags.batch.0 {
            rows.push(bench.decode(*n, *depth, flags.decode));
        }
        for n in &flags.verify.0 {
            rows.push(bench.verify(*n, *depth));
        }
    }
    let report = Report {
        model: flags.model.name().to_owned(),
        isa,
        threads,
        weight_format: bench.model.weight_format().to_string(),
        kv_type: format!("{:?}", options.kv_type).to_lowercase(),
        step_weight_bytes: bench.model.step_weight_bytes(),
        load_s,
        rows,
    };
    if flags.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print(&report);
    }
    Ok(())
}

/// The sizes that the asked-for rows need.
struct Cases {
    max_rows: usize,
    n_sequences: usize,
    positions: usize,
    max_drafts: usize,
}

impl Cases {
    fn new(flags: &BenchFlags) -> Result<Self> {
        let max = |values: &[usize]| values.iter().copied().max().unwrap_or(1);
        ensure!(flags.repeat > 0, "--repeat takes a number of at least 1");
        ensure!(flags.decode > 0, "--decode takes a number of at least 1");
        let (prefill, batch, verify) =
            (max(&flags.prefill.0), max(&flags.batch.0), max(&flags.verify.0));
        Ok(Self {
            max_rows: prefill.max(batch).max(verify).max(CHUNK),
            n_sequences: batch,
            // A row goes on where its last run ended, once for the warm-up and once a repeat.
            positions: prefill
                .max(max(&flags.depth) + (flags.repeat + 1) * flags.decode.max(VERIFY_PASSES))
                + verify,
            max_drafts: verify,
        })
    }

    fn options(&self, source: &Source, flags: &BenchFlags) -> ModelOptions {
        ModelOptions {
            bits: source::bits(&flags.model),
            kv_type: source::kv_type(flags.kv_cache_dtype, source.checkpoint().config()),
            n_blocks: self.n_sequences * self.positions.div_ceil(KV_BLOCK),
            n_slots: self.n_sequences,
            max_rows: self.max_rows,
            max_drafts: self.max_drafts,
            draft: false,
        }
    }
}

/// Rows of a pass that fills a context before a measurement.
const CHUNK: usize = 512;

/// Passes of one run of a verify row.
const VERIFY_PASSES: usize = 8;

struct Bench {
    model: Model,
    repeat: usize,
    /// A pool of its own: the model's is not lent out.
    probe: Cpu,
}

impl Bench {
    fn prefill(&mut self, n: usize) -> Row {
        let blocks = tables(1, n);
        self.measure("prefill", [0, 1, n], n, |bench| {
            let started = Instant::now();
            bench.pass(&blocks, 0, n, n, 1);
            (started.elapsed().as_secs_f64(), 1)
        })
    }

    fn decode(&mut self, n_sequences: usize, depth: usize, n_tokens: usize) -> Row {
        let blocks = tables(n_sequences, depth + (self.repeat + 1) * n_tokens);
        self.fill(&blocks, depth);
        let mut pos = depth;
        self.measure("decode", [depth, n_sequences, 1], n_sequences, |bench| {
            let started = Instant::now();
            for _ in 0..n_tokens {
                bench.pass(&blocks, pos, 1, 1, n_sequences);
                pos += 1;
            }
            (started.elapsed().as_secs_f64(), n_tokens)
        })
    }

    /// One sequence, `n` rows of which only the first is certain, as a verify pass with drafts has;
    /// no draft is ever accepted.
    fn verify(&mut self, n: usize, depth: usize) -> Row {
        let blocks = tables(1, depth + (self.repeat + 1) * VERIFY_PASSES + n);
        self.fill(&blocks, depth);
        let mut pos = depth;
        self.measure("verify", [depth, 1, n], n, |bench| {
            let started = Instant::now();
            for _ in 0..VERIFY_PASSES {
                bench.pass(&blocks, pos, n, 1, 1);
                pos += 1;
            }
            (started.elapsed().as_secs_f64(), VERIFY_PASSES)
        })
    }

    fn fill(&mut self, blocks: &[Vec<u32>], depth: usize) {
        for (i, table) in blocks.iter().enumerate() {
            for pos in (0..depth).step_by(CHUNK) {
                let n = CHUNK.min(depth - pos);
                let tokens = tokens(i, pos, n, self.model.vocab_size());
                let span = span(table, i, 0, pos, n, n);
                let batch = Batch { tokens: &tokens, spans: &[span], logit_rows: &[] };
                self.model.forward(&batch, &mut |_, _| {});
            }
        }
    }

    /// One pass of `n` rows of each sequence from position `pos`; logits as serving would want them.
    fn pass(&mut self, blocks: &[Vec<u32>], pos: usize, n: usize, n_commit: usize, n_seqs: usize) {
        let vocab = self.model.vocab_size();
        let (mut all, mut spans, mut wanted) = (Vec::new(), Vec::new(), Vec::new());
        for (i, table) in blocks.iter().enumerate().take(n_seqs) {
            spans.push(span(table, i, all.len(), pos, n, n_commit));
            all.extend(tokens(i, pos, n, vocab));
            let first = if n_commit < n { all.len() - n } else { all.len() - 1 };
            wanted.extend((first as u32)..(all.len() as u32));
        }
        let batch = Batch { tokens: &all, spans: &spans, logit_rows: &wanted };
        self.model.forward(&batch, &mut |_, _| {});
    }

    /// Repeats a measurement that answers with seconds and passes; the first run warms up.
    fn measure(
        &mut self,
        what: &'static str,
        [depth, n_sequences, n_rows]: [usize; 3],
        tokens_per_pass: usize,
        mut run: impl FnMut(&mut Self) -> (f64, usize),
    ) -> Row {
        run(self);
        let (mut pass_s, mut bandwidth) = (Vec::new(), Vec::new());
        for _ in 0..self.repeat {
            bandwidth.push(kernels::read_bandwidth(&self.probe));
            let (seconds, passes) = run(self);
            pass_s.push(seconds / passes as f64);
        }
        let pass = median(&mut pass_s);
        let rate = |seconds: f64| tokens_per_pass as f64 / seconds;
        let bytes = self.model.step_weight_bytes()
            + n_sequences * self.model.sequence_bytes(depth + n_rows);
        Row {
            what,
            depth,
            n_sequences,
            n_rows,
            tokens_per_s: rate(pass),
            tokens_per_s_min: rate(pass_s[pass_s.len() - 1]),
            tokens_per_s_max: rate(pass_s[0]),
            pass_ms: pass * 1e3,
            gb_per_s: bytes as f64 / pass / 1e9,
            bandwidth_gb_per_s: median(&mut bandwidth),
        }
    }
}

fn span(
    blocks: &[u32],
    slot: usize,
    row: usize,
    pos: usize,
    n_rows: usize,
    n_commit: usize,
) -> Span<'_> {
    Span { row, n_rows, pos, blocks, slot: slot as u32, n_replay: 0, n_commit }
}

/// Block tables of `n` sequences with room for `positions` each.
fn tables(n: usize, positions: usize) -> Vec<Vec<u32>> {
    let each = positions.div_ceil(KV_BLOCK) as u32;
    (0..n as u32).map(|i| (i * each..(i + 1) * each).collect()).collect()
}

/// Arbitrary but fixed token ids.
fn tokens(sequence: usize, pos: usize, n: usize, vocab: usize) -> Vec<u32> {
    let mix = |i: usize| (i.wrapping_mul(2_654_435_761) >> 7) % vocab;
    (0..n).map(|i| mix(sequence * 1_000_003 + pos + i) as u32).collect()
}

/// Sorts and takes the middle.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let mid = values.len() / 2;
    if values.len() % 2 == 1 { values[mid] } else { (values[mid - 1] + values[mid]) / 2.0 }
}

fn print(report: &Report) {
    println!(
        "{} on {} threads of {}, weights {}, KV {}, {:.0} MB of weights a step, loaded in {:.1} s\n",
        report.model,
        report.threads,
        report.isa,
        report.weight_format,
        report.kv_type,
        report.step_weight_bytes as f64 / 1e6,
        report.load_s
    );
    println!(
        "{:<8} {:>6} {:>5} {:>5}  {:>9}  {:>19}  {:>9}  {:>6} {:>6} {:>6}",
        "what",
        "depth",
        "seqs",
        "rows",
        "tok/s",
        "(min .. max)",
        "ms/pass",
        "GB/s",
        "read",
        "share"
    );
    for row in &report.rows {
        // A pass of many rows is bound by arithmetic; bytes over time says nothing about it.
        let bound_by_memory = row.what != "prefill";
        let share = row.gb_per_s / row.bandwidth_gb_per_s * 100.0;
        println!(
            "{:<8} {:>6} {:>5} {:>5}  {:>9.1}  {:>19}  {:>9.2}  {:>6} {:>6.1} {:>6}",
            row.what,
            row.depth,
            row.n_sequences,
            row.n_rows,
            row.tokens_per_s,
            format!("({:.1} .. {:.1})", row.tokens_per_s_min, row.tokens_per_s_max),
            row.pass_ms,
            if bound_by_memory { format!("{:.1}", row.gb_per_s) } else { "-".to_owned() },
            row.bandwidth_gb_per_s,
            if bound_by_memory { format!("{share:.0} %") } else { "-".to_owned() },
        );
    }
    println!(
        "\ntok/s are medians over the repeats. GB/s counts the weights, the KV and the recurrent state that \
         a pass touches;\n\"read\" is the read bandwidth of this machine measured beside the row.",
    );
}
