//! What client and server measured in the same seconds, and where Outrider's own step time went.

use dialects::info::Steps;

use crate::collect::probe::{self, Request};
use crate::evidence::{Evidence, Side};
use crate::facts::Case;
use crate::quantity::Quantity;

/// One number from both sides.
#[derive(Clone, Debug, PartialEq)]
pub struct Both {
    /// What it is.
    pub quantity: Quantity,
    /// As the probe's client saw it.
    pub client: Option<f64>,
    /// As the server's own counters tell it.
    pub server: Option<f64>,
}

/// The parts of one step, in seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct StepReport {
    /// A whole decode step.
    pub step_s: f64,
    /// Name and mean time of each part.
    pub parts: Vec<(&'static str, f64)>,
    /// Mean wait of a request before its first row.
    pub queue_s: Option<f64>,
    /// Bytes of weights that a step reads.
    pub bytes: Option<f64>,
    /// Bytes per second that this makes in the time of the passes.
    pub bytes_per_s: Option<f64>,
    /// Bytes per second that the machine can read, where it was measured.
    pub bandwidth: Option<f64>,
}

/// The decomposition of now, client and server side by side. Empty when only one of them was seen.
pub(super) fn both(case: &Case<'_>) -> Vec<Both> {
    let Some(first) = case.now.probes.first() else { return Vec::new() };
    let workload = &first.what.workload;
    let alike = case.now.probes.iter().filter(|item| item.what.workload.comparable(workload));
    let requests = probe::pooled(alike.map(|item| &item.what));
    let steps = now_steps(case.evidence);
    let scrape = Evidence::of(&case.evidence.scrapes, Side::Now).next().map(|item| &item.what);
    let from_log = |quantity: Quantity| {
        let fact = case.now.facts.fact(quantity)?;
        (!case.now.log().is_empty() && fact.source == case.now.log()).then_some(fact.estimate.value)
    };
    let accept_len = steps
        .map(Steps::accept_len)
        .or_else(|| scrape.and_then(dialects::metrics::Scrape::accept_len))
        .or_else(|| from_log(Quantity::AcceptLen));
    let steps_per_s =
        steps.map(|steps| 1.0 / steps.step_s()).or_else(|| from_log(Quantity::StepsPerS));
    let running = steps.map(Steps::running).or_else(|| from_log(Quantity::Running));
    let stream = accept_len.zip(steps_per_s).map(|(len, steps)| len * steps);
    let seen = Seen::of(&requests);
    let rows = [
        (Quantity::DecodeTokS, seen.map(|seen| seen.tokens / seen.seconds), stream),
        (Quantity::AcceptLen, seen.map(|seen| seen.tokens / seen.chunks), accept_len),
        (Quantity::StepsPerS, seen.map(|seen| seen.chunks / seen.seconds), steps_per_s),
        (Quantity::Running, workload.concurrency, running),
    ];
    let rows = rows.map(|(quantity, client, server)| Both { quantity, client, server });
    if stream.is_none() { Vec::new() } else { rows.to_vec() }
}

/// Sums over all requests after their first chunk, so that the product of the parts is the whole.
#[derive(Clone, Copy)]
struct Seen {
    tokens: f64,
    chunks: f64,
    seconds: f64,
}

impl Seen {
    fn of(requests: &[Request]) -> Option<Seen> {
        let mut seen = Seen { tokens: 0.0, chunks: 0.0, seconds: 0.0 };
        for request in requests.iter().filter(|r| r.chunks > 1.0 && r.e2e_s > r.ttft_s) {
            seen.tokens += request.out - 1.0;
            seen.chunks += request.chunks - 1.0;
            seen.seconds += request.e2e_s - request.ttft_s;
        }
        (seen.seconds > 0.0).then_some(seen)
    }
}

fn now_steps(evidence: &Evidence) -> Option<&Steps> {
    Evidence::of(&evidence.steps, Side::Now).next().map(|item| &item.what.sums)
}

/// Where the step time went, for a server that tells it.
pub(super) fn step(evidence: &Evidence) -> Option<StepReport> {
    let steps = now_steps(evidence)?;
    let mean = |sum: f64| sum / steps.n_steps;
    let drafts = steps.n_drafted > 0.0;
    let passes = if drafts { "verify" } else { "forward" };
    let mut parts = vec![
        ("draft", mean(steps.draft_s)),
        (passes, mean(steps.forward_s)),
        ("sample", mean(steps.sample_s)),
        ("other", mean(steps.other_s)),
    ];
    parts.retain(|(name, _)| drafts || *name != "draft");
    let bytes = Some(steps.bytes()).filter(|bytes| *bytes > 0.0);
    let passes_s = mean(steps.forward_s + steps.draft_s);
    Some(StepReport {
        step_s: steps.step_s(),
        parts,
        queue_s: (steps.n_queue_waits > 0.0).then(|| steps.queue_wait_s / steps.n_queue_waits),
        bytes,
        bytes_per_s: bytes.map(|bytes| bytes / passes_s),
        bandwidth: steps.bandwidth,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::Item;
    use dialects::info::StepTimes;

    #[test]
    fn the_parts_of_a_step_add_up() {
        let sums = Steps {
            n_steps: 100.0,
            n_rounds: 100.0,
            n_drafted: 300.0,
            n_accepted: 200.0,
            forward_s: 1.0,
            draft_s: 0.6,
            sample_s: 0.1,
            other_s: 0.3,
            queue_wait_s: 0.2,
            n_queue_waits: 4.0,
            forward_bytes: 1e6,
            draft_bytes: 1e5,
            bandwidth: Some(2e8),
        };
        let mut evidence = Evidence::new();
        let what = StepTimes { seconds: 5.0, sums };
        evidence.steps.push(Item { side: Side::Now, source: "x".to_owned(), what });
        let report = step(&evidence).unwrap();
        let sum: f64 = report.parts.iter().map(|(_, s)| s).sum();
        assert!((report.step_s - 0.02).abs() < 1e-12 && (sum - report.step_s).abs() < 1e-12);
        assert_eq!(report.queue_s, Some(0.05));
        assert_eq!(report.bytes, Some(1.3e6));
        assert!((report.bytes_per_s.unwrap() - 1.3e6 / 0.016).abs() < 1.0);
    }
}
