//! Fills the facts of a side, the best source of each quantity first.

use dialects::metrics::Metric;
use dialects::{Engine, Factor, effective};

use super::side::SideView;
use crate::collect::launch::Launch;
use crate::collect::probe::{self, Request};
use crate::evidence::{Evidence, Item, Side};
use crate::logs::{Run, Window};
use crate::quantity::Quantity as Q;
use crate::stats;

/// Seconds after the first work in which a server counts as freshly started.
const FIRST_MINUTES_S: f64 = 120.0;

/// Measures one side.
pub(super) fn side(
    evidence: &Evidence,
    view: &mut SideView<'_>,
    side: Side,
    launch: Option<&Item<Launch>>,
) {
    probes(view);
    tables(view);
    if let Some(launch) = launch {
        let (facts, what) = (&mut view.facts, &launch.what);
        facts.state(Q::AggregateTokS, what.aggregate_tok_s, &launch.source);
        facts.state(Q::DecodeTokS, what.decode_tok_s, &launch.source);
        facts.state(Q::AcceptLen, what.accept_len, &launch.source);
    }
    log(view);
    chunks(view);
    steps(evidence, view, side);
    scrapes(evidence, view, side);
    limits(evidence, view, side);
    gpu(view);
}

/// What only the two sides together can tell.
pub(super) fn both<'a>(before: &mut SideView<'a>, now: &mut SideView<'a>, fixed_probe: bool) {
    if !fixed_probe {
        return;
    }
    for view in [before, now] {
        let fixed = view.facts.fact(Q::DecodeTokS).cloned();
        if let Some(fixed) = fixed {
            view.facts.add(Q::FixedProbeTokS, Some(fixed.estimate), &fixed.source);
        }
        if let Some(traffic) = view.facts.fact(Q::AcceptLen).cloned() {
            view.facts.add(Q::AcceptLenTraffic, Some(traffic.estimate), &traffic.source);
        }
    }
}

fn probes(view: &mut SideView<'_>) {
    let Some(first) = view.probes.first() else { return };
    let source = first.source.clone();
    let workload = first.what.workload.clone();
    let requests: Vec<Request> = probe::pooled(
        view.probes
            .iter()
            .filter(|item| item.what.workload.comparable(&workload))
            .map(|item| &item.what),
    );
    let facts = &mut view.facts;
    let speeds = probe::decode_speeds(&requests);
    facts.add(Q::DecodeTokS, stats::median_estimate(speeds.iter().copied()), &source);
    let ttft = stats::sorted(requests.iter().map(|r| r.ttft_s));
    facts.add(Q::TtftP50, stats::quantile_estimate(&ttft, 0.5), &source);
    facts.add(Q::TtftP95, stats::quantile_estimate(&ttft, 0.95), &source);
    facts.add(Q::E2eP50, stats::median_estimate(requests.iter().map(|r| r.e2e_s)), &source);
    let gaps = stats::sorted(requests.iter().filter(|r| r.max_gap_s > 0.0).map(|r| r.max_gap_s));
    facts.add(Q::PauseP50, stats::quantile_estimate(&gaps, 0.5), &source);
    facts.add(Q::PauseP90, stats::quantile_estimate(&gaps, 0.9), &source);
    facts.state(Q::TokensPerChunk, probe::tokens_per_chunk(&requests), &source);
    facts.add(Q::OutputP50, stats::median_estimate(requests.iter().map(|r| r.out)), &source);
    if let Some(concurrency) = workload.concurrency {
        let each: Vec<f64> = view
            .probes
            .iter()
            .filter(|item| item.what.workload.comparable(&workload))
            .filter_map(|item| probe::aggregate_tok_s(&item.what.requests, concurrency as usize))
            .collect();
        facts.add(Q::AggregateTokS, stats::median_estimate(each), &source);
    }
    facts.state(Q::ArrivalRate, workload.rate_per_s, &source);
}

/// Without a log, the chunks of a probe tell the decomposition: a server that streams every step sends one chunk per step.
pub(super) fn chunks(view: &mut SideView<'_>) {
    let Some(first) = view.probes.first() else { return };
    let (source, workload) = (first.source.clone(), first.what.workload.clone());
    let alike = view.probes.iter().filter(|item| item.what.workload.comparable(&workload));
    let requests = probe::pooled(alike.map(|item| &item.what));
    let interval = view
        .in_force
        .as_ref()
        .and_then(|c| c.config.number(Factor::ApiStreamInterval))
        .unwrap_or(1.0);
    if interval <= 1.0 {
        let lengths = probe::tokens_per_later_chunk(&requests);
        view.facts.add(Q::AcceptLen, stats::median_estimate(lengths), &source);
        let rates = stats::sorted(probe::chunk_rates(&requests));
        view.facts.add(Q::StepsPerS, stats::quantile_estimate(&rates, 0.5), &source);
    }
}

/// What Outrider counted over its own decode steps.
fn steps(evidence: &Evidence, view: &mut SideView<'_>, side: Side) {
    for item in Evidence::of(&evidence.steps, side) {
        let (facts, sums, source) = (&mut view.facts, &item.what.sums, &item.source);
        facts.state(Q::AcceptLen, Some(sums.accept_len()), source);
        facts.state(Q::StepsPerS, Some(1.0 / sums.step_s()), source);
        facts.state(Q::StepMs, Some(1e3 * sums.step_s()), source);
        facts.state(Q::Running, Some(sums.running()), source);
    }
}

fn tables(view: &mut SideView<'_>) {
    let Some(item) = view.tables.last() else { return };
    let (facts, table, source) = (&mut view.facts, &item.what, &item.source);
    facts.state(Q::OutputTokS, table.output_tok_s(), source);
    facts.state(Q::TpotMs, table.tpot_ms(), source);
    facts.state(Q::ItlMs, table.itl_ms(), source);
    facts.state(Q::TokensPerChunk, table.tokens_per_chunk(), source);
    facts.state(Q::AcceptLen, table.accept_len(), source);
    facts.state(Q::TtftP50, table.get("median ttft").map(|ms| ms / 1e3), source);
    facts.state(Q::AggregateTokS, table.output_tok_s(), source);
    facts.state(Q::DecodeTokS, table.tpot_ms().filter(|ms| *ms > 0.0).map(|ms| 1e3 / ms), source);
}

fn log(view: &mut SideView<'_>) {
    let Some((source, run)) = view.run else { return };
    let windows = std::mem::take(&mut view.windows);
    let facts = &mut view.facts;
    let each = |pick: fn(&Window) -> Option<f32>| -> Vec<f64> {
        windows.iter().filter_map(|w| pick(w)).map(f64::from).collect()
    };

    facts.add(Q::AcceptLen, stats::mean_estimate(&each(|w| w.accept_len)), source);
    // A server that does not draft commits one token per step, and its log says nothing about it.
    let steps =
        view.in_force.as_ref().and_then(|c| effective::get(&c.config, Factor::SpecNumSteps));
    if !windows.is_empty() && steps.and_then(|v| v.as_i64()) == Some(0) {
        facts.state(Q::AcceptLen, Some(1.0), source);
    }
    facts.add(Q::Running, stats::median_estimate(each(|w| Some(w.running))), source);
    facts.add(Q::Queue, stats::median_estimate(each(|w| w.queue)), source);
    facts.add(Q::KvUsage, stats::median_estimate(each(|w| w.kv_usage)), source);
    facts.state(Q::KvUsagePeak, each(|w| w.kv_usage).into_iter().reduce(f64::max), source);
    facts.add(Q::StateUsage, stats::median_estimate(each(|w| w.state_usage)), source);
    let graphs = each(|w| w.graph);
    facts.state(Q::GraphShare, stats::mean(&graphs), source);

    let believable: Vec<&Window> = believable_among(run, &windows);
    let steps = stats::sorted(believable.iter().filter_map(|w| w.steps_per_s).map(f64::from));
    facts.add(Q::StepsPerS, stats::quantile_estimate(&steps, 0.5), source);
    let step_ms = stats::sorted(steps.iter().map(|s| 1e3 / s));
    facts.add(Q::StepMs, stats::quantile_estimate(&step_ms, 0.5), source);
    facts.add(
        Q::GenTokS,
        stats::median_estimate(believable.iter().map(|w| f64::from(w.tok_s))),
        source,
    );
    let streams: Vec<f64> = believable.iter().filter_map(|w| w.stream_tok_s()).collect();
    facts.add(Q::TrafficTokS, stats::mean_estimate(&streams), source);
    facts.add(Q::DecodeTokS, stats::mean_estimate(&streams), source);
    if facts.get(Q::Running).is_some_and(|running| running <= 1.5) {
        let single = facts.fact(Q::DecodeTokS).cloned();
        facts.add(Q::SingleTokS, single.map(|fact| fact.estimate), source);
    }
    if let Some(modes) = stats::two_modes(&step_ms) {
        facts.state(Q::FastModeMs, Some(modes.low), source);
        facts.state(Q::SlowModeMs, Some(modes.high), source);
    }
    let whole = whole_log_tok_s(&windows);
    facts.state(Q::LogTokS, whole, source);
    facts.state(Q::AggregateTokS, whole, source);
    drift(&windows, facts, source);

    let prompt_tokens = run.new_tokens + run.cached_tokens;
    if run.cached_tokens > 0
        || (run.prefill_batches > 0 && run.asked.as_ref().is_none_or(|c| c.engine.like_sglang()))
    {
        facts.state(
            Q::CachedShare,
            (prompt_tokens > 0).then(|| run.cached_tokens as f64 / prompt_tokens as f64),
            source,
        );
    }
    let hits = each(|w| w.hit_rate);
    facts.state(
        Q::CachedShare,
        hits.get(hits.len() / 2..).and_then(|late| stats::median(late.iter().copied())),
        source,
    );
    facts.add(
        Q::PrefillTokS,
        stats::quantile_estimate(&stats::sorted(run.prefill_rates.iter()), 0.75),
        source,
    );
    facts.add(Q::PromptP50, stats::median_estimate(run.prompts.iter()), source);
    facts.add(Q::OutputP50, stats::median_estimate(run.outputs.iter()), source);
    facts.add(Q::Temperature, stats::median_estimate(run.temperatures.iter()), source);
    facts.state(Q::Retracted, Some((run.retracted_requests + run.preemptions) as f64), source);
    if let Some((start, end)) = run.busy_span.filter(|(start, end)| end - start >= 10.0) {
        facts.state(Q::LinesPerS, Some(run.busy_lines as f64 / (end - start)), source);
        if run.arrivals >= 8 {
            facts.state(Q::ArrivalRate, Some(run.arrivals as f64 / (end - start)), source);
        }
    }
    facts.state(Q::KvTokens, run.sizes.kv_tokens, source);
    facts.state(Q::StateSlots, run.sizes.state_slots, source);
    facts.state(Q::WeightsGib, run.sizes.weights_gib, source);
    facts.state(Q::MaxRunning, run.sizes.max_running, source);
    view.windows = windows;
}

/// The believable windows of a run that are among the given ones; all of the run's when none is.
fn believable_among<'a>(run: &'a Run, windows: &[&'a Window]) -> Vec<&'a Window> {
    let all = run.believable();
    let among: Vec<&Window> = all
        .iter()
        .copied()
        .filter(|w| windows.iter().any(|other| std::ptr::eq(*w, *other)))
        .collect();
    if among.is_empty() { all } else { among }
}

/// Tokens over time of everything that the log covers. SGLang's windows have equal numbers of steps and unequal times, so
/// their tokens are in proportion to running × accept length; vLLM's have equal times.
fn whole_log_tok_s(windows: &[&Window]) -> Option<f64> {
    let equal_times = windows.iter().all(|w| w.prompt_tok_s.is_some());
    let (mut tokens, mut seconds) = (0.0, 0.0);
    for window in windows.iter().filter(|w| w.tok_s > 0.0) {
        let made = if equal_times {
            f64::from(window.tok_s)
        } else {
            f64::from(window.running * window.accept_len.unwrap_or(1.0))
        };
        tokens += made * f64::from(window.n);
        seconds += made / f64::from(window.tok_s) * f64::from(window.n);
    }
    (seconds > 0.0).then(|| tokens / seconds)
}

/// Speed just after the start against speed late in the same run, where the run is long enough to tell.
fn drift(windows: &[&Window], facts: &mut super::side::Facts, source: &str) {
    let Some(start) = windows.iter().find_map(|w| w.t) else { return };
    let Some(end) = windows.iter().rev().find_map(|w| w.t) else { return };
    let between = |from: f64, to: f64| -> Vec<f64> {
        windows
            .iter()
            .filter(|w| w.t.is_some_and(|t| t >= from && t <= to) && w.running > 0.0)
            .map(|w| f64::from(w.tok_s))
            .collect()
    };
    let first = between(start, start + FIRST_MINUTES_S);
    let late = between(end - (end - start) / 3.0, end);
    if end - start >= 2.0 * FIRST_MINUTES_S && first.len() >= 3 && late.len() >= 3 {
        facts.add(Q::FirstMinutes, stats::median_estimate(first), source);
        facts.add(Q::LateTokS, stats::median_estimate(late), source);
    }
}

fn scrapes(evidence: &Evidence, view: &mut SideView<'_>, side: Side) {
    for item in evidence
        .scrapes
        .iter()
        .filter(|item| item.side == side || (side == Side::Now && item.side == Side::Open))
    {
        let (facts, scrape, source) = (&mut view.facts, &item.what, &item.source);
        facts.state(Q::Running, scrape.get(Metric::Running), source);
        facts.state(Q::Queue, scrape.get(Metric::Waiting), source);
        facts.state(Q::KvUsage, scrape.get(Metric::KvUsage), source);
        facts.state(Q::StateUsage, scrape.get(Metric::StateUsage), source);
        facts.state(Q::KvTokens, scrape.get(Metric::KvTokens), source);
        facts.state(Q::MaxRunning, scrape.get(Metric::MaxRunning), source);
        facts.state(Q::Retracted, scrape.get(Metric::Preemptions), source);
        facts.state(Q::AcceptLen, scrape.accept_len(), source);
        let mean_wait = scrape
            .get(Metric::QueueTimeSum)
            .zip(scrape.get(Metric::QueueTimeCount))
            .filter(|(_, n)| *n > 0.0)
            .map(|(s, n)| s / n);
        facts.state(Q::QueueTimeS, mean_wait, source);
        let hits = scrape
            .get(Metric::PrefixHits)
            .zip(scrape.get(Metric::PrefixQueries))
            .filter(|(_, n)| *n > 0.0)
            .map(|(hits, n)| hits / n);
        facts.state(Q::CachedShare, hits, source);
    }
}

/// Limits that endpoints and configurations state.
fn limits(evidence: &Evidence, view: &mut SideView<'_>, side: Side) {
    for item in evidence
        .infos
        .iter()
        .filter(|item| item.side == side || (side == Side::Now && item.side == Side::Open))
    {
        let (facts, state, source) = (&mut view.facts, &item.what.state, &item.source);
        facts.state(Q::MaxRunning, state.max_running, source);
        facts.state(Q::KvTokens, state.kv_tokens, source);
        facts.state(Q::WeightsGib, state.weights_gib, source);
    }
    let asked = view
        .in_force
        .as_ref()
        .filter(|c| c.config.engine != Engine::Sglang)
        .and_then(|c| c.config.number(Factor::SchedMaxRunning));
    view.facts.state(Q::MaxRunning, asked, "configuration");
    let temperature = view.probes.first().and_then(|item| item.what.workload.temperature);
    if let Some(item) = view.probes.first() {
        let source = item.source.clone();
        view.facts.state(Q::Temperature, temperature, &source);
    }
}

fn gpu(view: &mut SideView<'_>) {
    let Some((source, gpu)) = view.gpu else { return };
    let facts = &mut view.facts;
    facts.state(Q::GpuUtil, gpu.mean(|g| g.utilization), source);
    facts.state(Q::SmMhz, gpu.mean(|g| g.sm_mhz), source);
    facts.state(Q::MemMhz, gpu.mean(|g| g.memory_mhz), source);
    facts.state(
        Q::GpuTemp,
        gpu.gpus.iter().filter_map(|g| g.temperature_c).reduce(f64::max),
        source,
    );
}
