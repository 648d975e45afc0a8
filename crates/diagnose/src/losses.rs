//! What got worse for somebody, measured the same way on both sides; anything else is no loss.

use crate::collect::probe;
use crate::facts::{Case, SideView};
use crate::quantity::Quantity as Q;
use crate::stats::{self, Estimate};

/// A way in which a change is felt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Felt {
    /// One stream writes more slowly.
    Stream,
    /// All streams together deliver less.
    Aggregate,
    /// The first token comes later.
    FirstToken,
    /// Streams stop in the middle.
    Pauses,
    /// Users' requests are slower although a fixed probe is not.
    Traffic,
    /// The server gets slower while it runs.
    Drift,
    /// A client counts less.
    Client,
}

impl Felt {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Felt::Stream => "stream tok/s",
            Felt::Aggregate => "tok/s of all streams",
            Felt::FirstToken => "time to first token",
            Felt::Pauses => "longest pause",
            Felt::Traffic => "users' stream tok/s",
            Felt::Drift => "tok/s since the start",
            Felt::Client => "tok/s that the client counts",
        }
    }

    /// The quantity of the report by which it is felt.
    pub fn metric(self) -> &'static str {
        match self {
            Felt::Stream => Q::DecodeTokS.name(),
            Felt::Aggregate | Felt::Client => Q::AggregateTokS.name(),
            Felt::FirstToken => Q::TtftP50.name(),
            Felt::Pauses => Q::PauseP90.name(),
            Felt::Traffic => Q::TrafficTokS.name(),
            Felt::Drift => Q::LateTokS.name(),
        }
    }

    /// The unit of its numbers.
    pub fn unit(self) -> &'static str {
        match self {
            Felt::FirstToken | Felt::Pauses => "s",
            _ => "tok/s",
        }
    }
}

/// One loss.
#[derive(Clone, Debug, PartialEq)]
pub struct Loss {
    /// How it is felt.
    pub felt: Felt,
    /// The number before.
    pub before: f64,
    /// The number now.
    pub now: f64,
    /// How much worse: the logarithm of the ratio, positive.
    pub size: f64,
}

/// Everything that was compared.
#[derive(Clone, Debug, Default)]
pub struct Losses {
    /// What got worse, the worst first.
    pub losses: Vec<Loss>,
    /// What was compared and did not get worse.
    pub equal: Vec<(Felt, f64, f64)>,
    /// The test of single requests, where both sides have them.
    pub test: Option<Test>,
}

/// A test of probed requests, one by one.
#[derive(Clone, Debug, PartialEq)]
pub struct Test {
    /// Requests before.
    pub n_before: usize,
    /// Requests now.
    pub n_now: usize,
    /// Median decode speed before.
    pub median_before: f64,
    /// Median decode speed now.
    pub median_now: f64,
    /// Two-sided p-value of the rank test.
    pub p_value: f64,
    /// Ratio of the medians, now ÷ before.
    pub ratio: Estimate,
    /// The smallest relative change that so many requests with this spread would show.
    pub detectable: f64,
}

/// Smallest loss of throughput that counts, as a share.
const LEAST_TOK_S: f64 = 0.05;
/// Smallest loss of latency that counts, as a share: waiting is noisy.
const LEAST_WAIT: f64 = 0.25;

impl Losses {
    /// The largest loss.
    pub fn worst(&self) -> Option<&Loss> {
        self.losses.first()
    }

    /// How much worse one felt thing got; 0 when it did not.
    pub fn size(&self, felt: Felt) -> f64 {
        self.losses.iter().find(|loss| loss.felt == felt).map_or(0.0, |loss| loss.size)
    }

    /// A loss relative to the largest one: 1 for the complaint itself.
    pub fn weight(&self, felt: Felt) -> f64 {
        self.worst().map_or(0.0, |worst| self.size(felt) / worst.size)
    }

    /// Whether anything could be compared at all.
    pub fn compared(&self) -> bool {
        !self.losses.is_empty() || !self.equal.is_empty()
    }

    fn take(
        &mut self,
        felt: Felt,
        before: f64,
        now: f64,
        more_is_better: bool,
        least: f64,
        certain: bool,
    ) {
        if before <= 0.0 || now <= 0.0 {
            return;
        }
        let size = if more_is_better { (before / now).ln() } else { (now / before).ln() };
        if certain && size > (1.0 + least).ln() {
            self.losses.push(Loss { felt, before, now, size });
        } else {
            self.equal.push((felt, before, now));
        }
    }
}

/// Compares what is comparable.
pub fn compare(case: &Case<'_>) -> Losses {
    let mut out = Losses::default();
    let (before, now) = (&case.before, &case.now);
    stream(case, &mut out);
    aggregate(case, &mut out);
    let same_tool = !before.tables.is_empty() && !now.tables.is_empty();
    if case.fixed_probe || same_tool {
        if let Some((b, n)) = both(before, now, Q::TtftP50) {
            out.take(Felt::FirstToken, b, n, false, LEAST_WAIT, n - b > 0.05);
        }
        if let Some((b, n)) = both(before, now, Q::PauseP90) {
            out.take(Felt::Pauses, b, n, false, LEAST_WAIT, n - b > 0.2);
        }
    }
    if let (Some(first), Some(late)) =
        (now.facts.fact(Q::FirstMinutes), now.facts.fact(Q::LateTokS))
    {
        let steady_running =
            now.get(Q::AcceptLen).is_some() || now.get(Q::Running).is_some_and(|r| r <= 1.5);
        let apart = late.estimate.hi < first.estimate.lo;
        out.take(
            Felt::Drift,
            first.estimate.value,
            late.estimate.value,
            true,
            2.0 * LEAST_TOK_S,
            apart && steady_running,
        );
    }
    if let Some((b, n)) = client_tok_s(case) {
        out.take(Felt::Client, b, n, true, LEAST_TOK_S, true);
    }
    out.losses.sort_by(|a, b| b.size.total_cmp(&a.size));
    out
}

fn both(before: &SideView<'_>, now: &SideView<'_>, quantity: Q) -> Option<(f64, f64)> {
    before.get(quantity).zip(now.get(quantity))
}

/// Decode speed of one stream: request by request where both sides sent the same probe, else by their intervals.
fn stream(case: &Case<'_>, out: &mut Losses) {
    let (before, now) = (&case.before, &case.now);
    if case.fixed_probe {
        let speeds = |side: &SideView<'_>| {
            probe::decode_speeds(&probe::pooled(side.probes.iter().map(|item| &item.what)))
        };
        let (a, b) = (speeds(before), speeds(now));
        if let (Some(p_value), Some(ratio)) =
            (stats::mann_whitney(&a, &b), stats::median_ratio(&a, &b))
        {
            let test = Test {
                n_before: a.len(),
                n_now: b.len(),
                median_before: stats::median(a.iter().copied()).unwrap_or(f64::NAN),
                median_now: stats::median(b.iter().copied()).unwrap_or(f64::NAN),
                p_value,
                ratio,
                detectable: detectable(&a, &b),
            };
            let certain = p_value < 0.05 && ratio.hi < 1.0;
            out.take(Felt::Stream, test.median_before, test.median_now, true, LEAST_TOK_S, certain);
            out.test = Some(test);
        }
        // The users' requests may tell another story than the probe.
        if out.losses.is_empty()
            && let Some((b, n)) = both(before, now, Q::TrafficTokS)
        {
            out.take(Felt::Traffic, b, n, true, LEAST_TOK_S, apart(before, now, Q::TrafficTokS));
        }
        return;
    }
    let quantity = match (before.probes.first(), now.probes.first()) {
        // The same prompts under as much load, sampled in another way: what differs is the workload, and it counts.
        (Some(b), Some(n)) if b.what.workload.same_prompts(&n.what.workload) => Q::DecodeTokS,
        (Some(_), Some(_)) => Q::TrafficTokS,
        (None, None) => Q::DecodeTokS,
        // A probe on one side only: the logs of both sides are alike where both have one.
        _ if both(before, now, Q::TrafficTokS).is_some() => Q::TrafficTokS,
        _ => Q::DecodeTokS,
    };
    if let Some((b, n)) = both(before, now, quantity) {
        out.take(Felt::Stream, b, n, true, LEAST_TOK_S, apart(before, now, quantity));
    }
}

/// Whether the intervals of both sides lie apart.
fn apart(before: &SideView<'_>, now: &SideView<'_>, quantity: Q) -> bool {
    match (before.facts.fact(quantity), now.facts.fact(quantity)) {
        (Some(b), Some(n)) => n.estimate.hi < b.estimate.lo || n.estimate.lo > b.estimate.hi,
        _ => false,
    }
}

/// The smallest relative change of a mean that two samples of such spread show nine times out of ten.
fn detectable(a: &[f64], b: &[f64]) -> f64 {
    let spread = |x: &[f64]| {
        let mean = stats::mean(x).unwrap_or(f64::NAN);
        let variance = x.iter().map(|v| (v / mean - 1.0).powi(2)).sum::<f64>()
            / (x.len() as f64 - 1.0).max(1.0);
        variance / x.len() as f64
    };
    (1.96 + 1.28) * (spread(a) + spread(b)).sqrt()
}

/// All streams together, where as many requests wanted to run on both sides.
fn aggregate(case: &Case<'_>, out: &mut Losses) {
    let (before, now) = (&case.before, &case.now);
    let now_concurrency = now.probes.first().and_then(|item| item.what.workload.concurrency);
    let launch_concurrency = case.launch.and_then(|launch| launch.what.concurrency);
    let same_load = case.fixed_probe && now_concurrency.is_some()
        || before.probes.is_empty()
            && launch_concurrency.is_some()
            && launch_concurrency == now_concurrency;
    if same_load && let Some((b, n)) = both(before, now, Q::AggregateTokS) {
        return out.take(Felt::Aggregate, b, n, true, LEAST_TOK_S, true);
    }
    let demand =
        |side: &SideView<'_>| Some(side.get(Q::Running)? + side.get(Q::Queue).unwrap_or(0.0));
    let (Some(b_demand), Some(n_demand)) = (demand(before), demand(now)) else { return };
    // Fewer requests deliver less; that is no loss unless some of them wait.
    let comparable =
        n_demand >= 0.8 * b_demand || now.get(Q::Queue).is_some_and(|queue| queue >= 1.0);
    if comparable
        && n_demand > 1.5
        && let Some((b, n)) = both(before, now, Q::LogTokS)
    {
        out.take(Felt::Aggregate, b, n, true, LEAST_TOK_S, true);
    }
}

/// What client logs count, the earliest against the last.
pub(crate) fn client_tok_s(case: &Case<'_>) -> Option<(f64, f64)> {
    let mut logs: Vec<(f64, f64)> = case
        .evidence
        .client_logs
        .iter()
        .filter_map(|item| {
            let order = match item.side {
                crate::evidence::Side::Before => f64::NEG_INFINITY,
                crate::evidence::Side::Now => f64::INFINITY,
                _ => item.what.time?,
            };
            Some((order, item.what.tok_s()?))
        })
        .collect();
    logs.sort_by(|a, b| a.0.total_cmp(&b.0));
    (logs.len() > 1).then(|| (logs[0].1, logs[logs.len() - 1].1))
}
