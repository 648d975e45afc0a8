//! What a probe found: `probe/1` JSON that diagnoses and baselines read, and a table for people.

use std::fmt::Write;

use dialects::info::StepTimes;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::busy::Activity;
use crate::observe::Observed;
use crate::observe::server::{ServerSide, Stated};
use crate::sample::{Failure, Sample};
use crate::stats::Estimate;
use crate::summary::{ClassSummary, Slo, Summary};

/// Name and version of the JSON form.
pub const SCHEMA: &str = "probe/1";

/// What was sent; two runs are comparable only if these are equal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    /// The prompt sets and their version.
    pub id: String,
    /// Requests at any time, or `open loop` under a rate.
    pub concurrency: Value,
    /// Requests per second under a rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(default)]
    pub rate_per_s: Option<f64>,
    /// Temperature, `null` for the server's default.
    pub temperature: Option<f64>,
    /// Whether the model reasoned before most answers.
    pub thinking: bool,
    /// Longest answer.
    pub max_tokens: u32,
}

/// How much later than intended requests were sent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DispatchDelay {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
}

/// One load on one server: the form that others read too.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// [`SCHEMA`].
    pub schema: String,
    /// When it began, in UTC.
    pub taken_at: String,
    /// Address of the server.
    pub target: String,
    /// What was sent.
    pub workload: Workload,
    /// One object per answered request.
    pub requests: Vec<Sample>,
    /// Lateness of the client.
    pub dispatch_delay_s: Option<DispatchDelay>,
    /// Requests without an answer.
    #[serde(default)]
    pub failures: Vec<Failure>,
    /// The numbers.
    pub summary: Summary,
    /// What the server said about the same seconds.
    #[serde(default)]
    pub server: ServerSide,
    /// What a reader must know.
    #[serde(default)]
    pub notices: Vec<String>,
}

/// The same prompts sent a second time: what the prefix cache does.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CachePass {
    /// Prompts that were repeated.
    pub n: usize,
    /// Median time to the first token when nothing was cached.
    pub cold_ttft_s: f64,
    /// The same for the repetition.
    pub warm_ttft_s: f64,
    /// Share of prompt tokens that came from the cache in the repetition, if the server says.
    pub cached_share: Option<f64>,
}

/// Everything that a probe found.
#[derive(Clone, Debug)]
pub struct ProbeReport {
    /// The model, as the server calls it.
    pub model: String,
    /// What the server says that it runs with, by factor; `null` if it does not say.
    pub configuration: Value,
    /// One per load, in the order of sending.
    pub runs: Vec<Run>,
    /// Where the time of Outrider's own steps went under these loads.
    pub steps: Option<StepTimes>,
    /// The pass over the prefix cache.
    pub cache: Option<CachePass>,
    /// The server's side in the same seconds.
    pub observed: Observed,
    /// Requests of others before the probe.
    pub activity: Option<Activity>,
    /// Whether it was ended from outside.
    pub interrupted: bool,
    /// What a reader must know of the probe as a whole.
    pub notices: Vec<String>,
}

impl ProbeReport {
    /// The first run in the common form, with everything else under further names.
    #[must_use]
    pub fn json(&self) -> Value {
        let mut runs = self.runs.iter().map(|run| json!(run));
        let mut report = runs.next().unwrap_or_else(|| json!({ "schema": SCHEMA, "requests": [] }));
        report["model"] = json!(self.model);
        report["configuration"] = self.configuration.clone();
        report["steps"] = json!(self.steps);
        report["cache"] = json!(self.cache);
        report["observed"] = json!(self.observed);
        report["activity"] = json!(self.activity);
        report["interrupted"] = json!(self.interrupted);
        report["probe_notices"] = json!(self.notices);
        report["more"] = runs.collect();
        report
    }

    /// Whether the numbers can be trusted: the probe ran to its end, requests were answered under
    /// every load, and the speed did not drift meanwhile.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let steady = |run: &Run| !run.requests.is_empty() && run.summary.drift.is_none();
        !self.interrupted && !self.runs.is_empty() && self.runs.iter().all(steady)
    }

    /// A table for people, 100 columns wide.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = self.write_text(&mut out);
        out
    }

    fn write_text(&self, out: &mut String) -> std::fmt::Result {
        let target = self.runs.first().map_or("", |run| &run.target);
        writeln!(out, "{} at {target}", self.model)?;
        for run in &self.runs {
            write_run(out, run)?;
        }
        if let Some(cache) = &self.cache {
            let share = cache.cached_share.map_or("the server does not say".to_owned(), |share| {
                format!("{:.0} % of the prompt tokens", share * 100.0)
            });
            writeln!(
                out,
                "\nprefix cache: first token {:.0} ms cold, {:.0} ms repeated; cached: {share}",
                cache.cold_ttft_s * 1e3,
                cache.warm_ttft_s * 1e3
            )?;
        }
        self.write_observed(out)?;
        for notice in &self.notices {
            writeln!(out, "note: {notice}")?;
        }
        if self.interrupted {
            writeln!(out, "note: interrupted; these are the answers that were complete")?;
        }
        Ok(())
    }

    fn write_observed(&self, out: &mut String) -> std::fmt::Result {
        let number = |value: Option<f64>| value.map_or("–".to_owned(), |v| format!("{v:.2}"));
        if let Some(metrics) = &self.observed.metrics {
            writeln!(
                out,
                "\nserver metrics: running at most {}, waiting at most {}, accept length {}",
                number(metrics.running_most),
                number(metrics.waiting_most),
                number(metrics.accept_len)
            )?;
        }
        if let Some(log) = &self.observed.log {
            let (n, n_decode) = (log.n_lines, log.n_decode);
            let accept_len = number(log.accept_len);
            writeln!(
                out,
                "server log: {n} lines, {n_decode} about decoding, accept length {accept_len}"
            )?;
            for warning in &log.warnings {
                writeln!(out, "  warns: {warning}")?;
            }
        }
        for gpu in &self.observed.gpus {
            writeln!(
                out,
                "GPU {}: {} % busy, {} MiB, {}–{} MHz, {} W, {} °C",
                gpu.index,
                number(gpu.utilization),
                number(gpu.memory_mib),
                number(gpu.sm_mhz_least),
                number(gpu.sm_mhz_most),
                number(gpu.power_w),
                number(gpu.temperature_c)
            )?;
        }
        for gap in &self.observed.gaps {
            writeln!(out, "not seen: {gap}")?;
        }
        Ok(())
    }
}

fn write_run(out: &mut String, run: &Run) -> std::fmt::Result {
    let load = match run.workload.rate_per_s {
        Some(rate) => format!("{rate} requests per second"),
        None => format!("{} at a time", run.workload.concurrency),
    };
    writeln!(out, "\n{} · {load} · {} answers", run.workload.id, run.requests.len())?;
    writeln!(
        out,
        "  {:<6} {:>4} {:>19} {:>19} {:>19} {:>9} {:>10}",
        "class", "n", "tok/s per stream", "first token ms", "ms per token", "pause ms", "tok/event"
    )?;
    for class in &run.summary.classes {
        write_class(out, class)?;
    }
    if let Some(steady) = &run.summary.steady {
        let seconds = steady.to_s - steady.from_s;
        writeln!(out, "  all streams together {:.1} tok/s over {seconds:.1} s", steady.tok_s)?;
    }
    if let Some(goodput) = &run.summary.goodput {
        let Slo { ttft_s, tpot_s, e2e_s } = goodput.slo;
        let promises = [("first token", ttft_s), ("per token", tpot_s), ("last token", e2e_s)];
        let stated = promises.iter().filter_map(|(name, s)| Some(format!("{name} ≤ {} s", (*s)?)));
        writeln!(
            out,
            "  good requests {:.0} %, {:.2} per second ({})",
            goodput.share * 100.0,
            goodput.per_s,
            stated.collect::<Vec<_>>().join(", ")
        )?;
    }
    write_gaps(out, &run.summary.classes)?;
    write_server(out, &run.server)?;
    for notice in &run.notices {
        writeln!(out, "  note: {notice}")?;
    }
    Ok(())
}

/// Gaps between events, and answers that begin with reasoning.
fn write_gaps(out: &mut String, classes: &[ClassSummary]) -> std::fmt::Result {
    for class in classes {
        if let Some((p50, p99)) = class.chunk_gap_ms {
            let kind = if class.token_gap_ms.is_some() { "tokens" } else { "events" };
            let (name, p50, p99) = (&class.class, digits(p50), digits(p99));
            write!(out, "  {name}: {p50} ms between {kind}, {p99} ms at the 99th percentile")?;
            if let (Some(answer), Some(token)) = (class.ttfo_s, class.ttft_s)
                && answer.value > token.value
            {
                write!(out, "; answer after reasoning at {} ms", digits(answer.value * 1e3))?;
            }
            writeln!(out)?;
        }
    }
    Ok(())
}

/// The server's numbers for the same seconds.
fn write_server(out: &mut String, server: &ServerSide) -> std::fmt::Result {
    let number = |name: &str, stated: &Option<Stated>| {
        let Stated { value, source } = stated.as_ref()?;
        Some(format!("{name} {} [{source}]", digits(*value)))
    };
    let parts: Vec<String> = [
        number("accept length", &server.accept_len),
        number("steps/s", &server.steps_per_s),
        number("running", &server.running),
        number("waiting at most", &server.waiting),
        number("tok/s", &server.gen_tok_s),
    ]
    .into_iter()
    .flatten()
    .collect();
    if !parts.is_empty() {
        writeln!(out, "  server: {}", parts.join(", "))?;
    }
    if let (Some(rate), Some(formula)) = (&server.accept_rate, &server.accept_rate_formula) {
        writeln!(out, "  server: accept rate {:.2} = {formula} [{}]", rate.value, rate.source)?;
    }
    Ok(())
}

fn write_class(out: &mut String, class: &ClassSummary) -> std::fmt::Result {
    let cell = |estimate: Option<Estimate>, factor: f64| match estimate {
        Some(Estimate { value, lo, hi }) => {
            let [value, lo, hi] = [value, lo, hi].map(|x| digits(x * factor));
            format!("{value} ({lo}–{hi})")
        }
        None => "–".to_owned(),
    };
    writeln!(
        out,
        "  {:<6} {:>4} {:>19} {:>19} {:>19} {:>9} {:>10}",
        class.class,
        class.n,
        cell(class.decode_tok_s, 1.0),
        cell(class.ttft_s, 1e3),
        cell(class.tpot_ms, 1.0),
        class.longest_pause_s.map_or("–".to_owned(), |pause| digits(pause * 1e3)),
        class.tokens_per_chunk.map_or("–".to_owned(), |n| format!("{n:.2}")),
    )
}

/// Three digits that matter.
fn digits(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
