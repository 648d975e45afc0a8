//! From samples to numbers: per kind of work, over the steady window, and what makes them doubtful.

use serde::{Deserialize, Serialize};

use crate::load::{GRACE, Load, Outcome};
use crate::sample::Sample;
use crate::stats::{Estimate, mann_whitney, median, median_interval, quantile, shift};

/// Confidence of every interval in a report.
pub const CONFIDENCE: f64 = 0.95;
/// Tokens per event above which gaps between events are not gaps between tokens.
const ONE_TOKEN: f64 = 1.1;
/// A drift is called one if it is this unlikely by chance and this large.
const DRIFT: (f64, f64) = (0.01, 0.05);
/// Client delay as a share of the median request time beyond which the client is the bottleneck.
const CLIENT_SHARE: f64 = 0.01;

/// Promises that a good request keeps; the ones that are not given are not asked for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Slo {
    /// Most time to the first token.
    pub ttft_s: Option<f64>,
    /// Most time per token after the first.
    pub tpot_s: Option<f64>,
    /// Most time to the last token.
    pub e2e_s: Option<f64>,
}

impl Slo {
    fn is_met(&self, sample: &Sample) -> bool {
        let within = |most: Option<f64>, value: Option<f64>| match (most, value) {
            (Some(most), Some(value)) => value <= most,
            _ => true,
        };
        within(self.ttft_s, Some(sample.ttft_s))
            && within(self.tpot_s, sample.tpot_s())
            && within(self.e2e_s, Some(sample.e2e_s))
    }
}

/// One kind of work under one load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClassSummary {
    /// Kind of work.
    pub class: String,
    /// Answered requests.
    pub n: usize,
    /// First token, in seconds.
    pub ttft_s: Option<Estimate>,
    /// First token of the answer after reasoning, in seconds.
    pub ttfo_s: Option<Estimate>,
    /// Time per token after the first, in milliseconds.
    pub tpot_ms: Option<Estimate>,
    /// Tokens per second of one stream.
    pub decode_tok_s: Option<Estimate>,
    /// Tokens per event.
    pub tokens_per_chunk: Option<f64>,
    /// Median and 99th percentile of the gaps between events, in milliseconds.
    pub chunk_gap_ms: Option<(f64, f64)>,
    /// The same between tokens; only where an event carries one token.
    pub token_gap_ms: Option<(f64, f64)>,
    /// Longest gap between two events of one answer, in seconds.
    pub longest_pause_s: Option<f64>,
    /// Last token, in seconds.
    pub e2e_s: Option<Estimate>,
    /// Accepted over drafted tokens, from servers that say so per request.
    pub draft_acceptance: Option<f64>,
}

/// The part of a load in which everything was under way.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Steady {
    /// Where it begins, since the load began.
    pub from_s: f64,
    /// Where it ends.
    pub to_s: f64,
    /// Tokens per second that arrived in it, all streams together.
    pub tok_s: f64,
}

/// Requests that kept every promise; failed ones did not.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Goodput {
    /// The promises.
    pub slo: Slo,
    /// Share of requests.
    pub share: f64,
    /// Good requests per second.
    pub per_s: f64,
}

/// Everything that one load says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// By kind of work, in the order of first appearance.
    pub classes: Vec<ClassSummary>,
    /// The steady window.
    pub steady: Option<Steady>,
    /// Requests that were good enough.
    pub goodput: Option<Goodput>,
    /// Change of speed from the first to the second half, as a share, where it is not noise.
    pub drift: Option<f64>,
}

/// Sums up one load.
pub(crate) fn summarise(outcome: &Outcome, load: Load, slo: Slo) -> Summary {
    Summary {
        classes: classes(&outcome.samples),
        steady: steady(&outcome.samples, load),
        goodput: goodput(outcome, slo),
        drift: drift(&outcome.samples),
    }
}

/// Names of the kinds of work in the order of first appearance.
pub(crate) fn class_names(samples: &[Sample]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for sample in samples {
        if !names.contains(&sample.class) {
            names.push(sample.class.clone());
        }
    }
    names
}

fn classes(samples: &[Sample]) -> Vec<ClassSummary> {
    let summary = |class: String| {
        let of_class: Vec<&Sample> = samples.iter().filter(|s| s.class == class).collect();
        class_summary(class, &of_class)
    };
    class_names(samples).into_iter().map(summary).collect()
}

fn class_summary(class: String, samples: &[&Sample]) -> ClassSummary {
    let estimate = |value: &dyn Fn(&Sample) -> Option<f64>| {
        let values: Vec<f64> = samples.iter().filter_map(|sample| value(sample)).collect();
        median_interval(&values, CONFIDENCE)
    };
    let gaps: Vec<f64> = samples.iter().flat_map(|sample| sample.gaps()).map(|s| s * 1e3).collect();
    let chunk_gap_ms = median(&gaps).zip(quantile(&gaps, 0.99));
    let per_chunk: Vec<f64> = samples.iter().map(|sample| sample.tokens_per_chunk()).collect();
    let tokens_per_chunk = median(&per_chunk);
    let drafts = samples.iter().filter_map(|sample| sample.drafts);
    let (drafted, accepted) = drafts.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    ClassSummary {
        class,
        n: samples.len(),
        ttft_s: estimate(&|sample| Some(sample.ttft_s)),
        ttfo_s: estimate(&|sample| sample.ttfo_s),
        tpot_ms: estimate(&|sample| Some(sample.tpot_s()? * 1e3)),
        decode_tok_s: estimate(&Sample::decode_tok_s),
        tokens_per_chunk,
        chunk_gap_ms,
        token_gap_ms: chunk_gap_ms.filter(|_| tokens_per_chunk.is_some_and(|n| n <= ONE_TOKEN)),
        longest_pause_s: samples.iter().map(|sample| sample.max_gap_s).reduce(f64::max),
        e2e_s: estimate(&|sample| Some(sample.e2e_s)),
        draft_acceptance: (drafted > 0).then(|| accepted as f64 / drafted as f64),
    }
}

/// The window in which the load was complete, without its ramps.
fn steady(samples: &[Sample], load: Load) -> Option<Steady> {
    let mut starts: Vec<f64> = samples.iter().map(|sample| sample.started_s).collect();
    let mut ends: Vec<f64> = samples.iter().map(|s| s.started_s + s.e2e_s).collect();
    starts.sort_unstable_by(f64::total_cmp);
    ends.sort_unstable_by(f64::total_cmp);
    let (from_s, to_s) = match load {
        // From the start that fills the last place to the end that leaves one for good.
        Load::Concurrency(n) => {
            let last = ends.len().checked_sub(n)?;
            (*starts.get(n - 1)?, ends[last])
        }
        // Arrivals are steady from the first to the last; the first answers fill the server.
        Load::Rate(_) => {
            let e2e: Vec<f64> = samples.iter().map(|sample| sample.e2e_s).collect();
            (starts.first()? + median(&e2e)?, *starts.last()?)
        }
    };
    let seconds = to_s - from_s;
    let tokens: f64 = samples.iter().map(|sample| tokens_between(sample, from_s, to_s)).sum();
    (seconds > 0.0).then(|| Steady { from_s, to_s, tok_s: tokens / seconds })
}

/// Tokens of the sample that arrived in the window, each event with an equal share.
fn tokens_between(sample: &Sample, from_s: f64, to_s: f64) -> f64 {
    let inside = |at: &&f64| (from_s..=to_s).contains(&(sample.started_s + **at));
    sample.arrivals.iter().filter(inside).count() as f64 * sample.tokens_per_chunk()
}

fn goodput(outcome: &Outcome, slo: Slo) -> Option<Goodput> {
    let n = outcome.samples.len() + outcome.failures.len();
    let first = outcome.samples.iter().map(|s| s.started_s).reduce(f64::min)?;
    let last = outcome.samples.iter().map(|s| s.started_s + s.e2e_s).reduce(f64::max)?;
    let n_good = outcome.samples.iter().filter(|sample| slo.is_met(sample)).count() as f64;
    (last > first).then(|| Goodput {
        slo,
        share: n_good / n as f64,
        per_s: n_good / (last - first),
    })
}

/// Change of decode speed from the first half of the load to the second, as a share.
fn drift(samples: &[Sample]) -> Option<f64> {
    let speeds = relative_speeds(samples);
    let (first, second) = speeds.split_at(speeds.len() / 2);
    let (p, size) = (mann_whitney(first, second)?.p, shift(first, second, CONFIDENCE)?.value);
    (p < DRIFT.0 && size.abs() > DRIFT.1).then_some(size)
}

/// Decode speeds over the median of their kind of work, in the order of sending.
fn relative_speeds(samples: &[Sample]) -> Vec<f64> {
    let mut ordered: Vec<&Sample> = samples.iter().collect();
    ordered.sort_by(|a, b| a.started_s.total_cmp(&b.started_s));
    let class_median = |class: &str| {
        let of_class = samples.iter().filter(|sample| sample.class == class);
        median(&of_class.filter_map(Sample::decode_tok_s).collect::<Vec<f64>>())
    };
    let relative = |s: &&Sample| Some(s.decode_tok_s()? / class_median(&s.class)?);
    ordered.iter().filter_map(relative).collect()
}

/// What a reader of the numbers must know; no request started later than after `seconds`.
pub(crate) fn notices(outcome: &Outcome, summary: &Summary, seconds: f64) -> Vec<String> {
    let samples = &outcome.samples;
    let mut notices = Vec::new();
    let n = samples.len();
    if let Some(failure) = outcome.failures.first() {
        let n_failed = outcome.failures.len();
        notices.push(format!("{n_failed} requests failed; the first: {}", failure.error));
    }
    if outcome.n_late > 0 {
        notices.push(format!(
            "{} requests had no whole answer within {seconds:.0} s and {} s more and were dropped: more time, or shorter answers",
            outcome.n_late,
            GRACE.as_secs()
        ));
    }
    let n_estimated = samples.iter().filter(|sample| sample.estimated).count();
    if n_estimated > 0 {
        notices.push(format!(
            "the server sent no usage for {n_estimated} of {n} answers: their tokens are estimated"
        ));
    }
    let per_chunk: Vec<f64> = samples.iter().map(Sample::tokens_per_chunk).collect();
    if let Some(per_chunk) = median(&per_chunk).filter(|per_chunk| *per_chunk > ONE_TOKEN) {
        notices.push(format!(
            "an event carries {per_chunk:.2} tokens: gaps between events are not gaps between tokens"
        ));
    }
    if let Some(drift) = summary.drift {
        notices.push(format!(
            "speed drifted by {:+.0} % while it was measured: the numbers are not of one state",
            drift * 100.0
        ));
    }
    let delays: Vec<f64> = samples.iter().map(|sample| sample.dispatch_delay_s).collect();
    let e2e: Vec<f64> = samples.iter().map(|sample| sample.e2e_s).collect();
    if let (Some(delay), Some(e2e)) = (quantile(&delays, 0.99), median(&e2e))
        && delay > CLIENT_SHARE * e2e
    {
        notices.push(format!("requests left up to {:.0} ms late: the client is slow", delay * 1e3));
    }
    let excess = |s: &&Sample| s.reasoning.is_some_and(|reasoning| reasoning > s.out);
    if samples.iter().filter(excess).count() > 0 {
        notices.push("the server counts more reasoning than generated tokens".to_owned());
    }
    if (1..FEW).contains(&n) {
        notices.push(format!("{n} answers are too few for an interval"));
    }
    notices
}

/// Answers below which an interval is only the range of the values.
const FEW: usize = 6;

#[cfg(test)]
mod tests {
    use super::{Slo, notices, summarise};
    use crate::load::{Load, Outcome};
    use crate::sample::tests::sample;
    use crate::sample::{Failure, Sample};

    const SLO: Slo = Slo { ttft_s: Some(1.0), tpot_s: Some(0.2), e2e_s: None };

    /// `n` answers one after another, each 2 s with 11 tokens in 11 events from 0.5 s on.
    fn row(n: usize) -> Vec<Sample> {
        let arrivals: Vec<f64> = (0..11).map(|i| 0.5 + 0.15 * f64::from(i)).collect();
        (0..n).map(|i| sample(2.0 * i as f64, &arrivals, Some(11))).collect()
    }

    fn outcome(samples: Vec<Sample>) -> Outcome {
        Outcome { samples, ..Outcome::default() }
    }

    #[test]
    fn one_stream() {
        let outcome = outcome(row(8));
        let summary = summarise(&outcome, Load::Concurrency(1), SLO);
        let class = &summary.classes[0];
        assert_eq!((class.class.as_str(), class.n), ("chat", 8));
        let speed = class.decode_tok_s.unwrap();
        assert!((speed.value - 10.0 / 1.5).abs() < 1e-9);
        assert!(speed.relative_half_width() < 1e-9);
        assert_eq!(class.ttft_s.unwrap().value, 0.5);
        assert!(class.token_gap_ms.is_some(), "one token per event");
        assert_eq!(summary.drift, None);
        let steady = summary.steady.unwrap();
        assert_eq!((steady.from_s, steady.to_s), (0.0, 16.0));
        assert!((steady.tok_s - 88.0 / 16.0).abs() < 1e-9);
        assert!(notices(&outcome, &summary, 30.0).is_empty());
    }

    #[test]
    fn the_steady_window_has_no_ramps() {
        // Two streams; the second starts late and the first ends early.
        let arrivals: Vec<f64> = (1..=10).map(f64::from).collect();
        let samples = vec![sample(0.0, &arrivals, Some(30)), sample(4.0, &arrivals, Some(30))];
        let steady = summarise(&outcome(samples), Load::Concurrency(2), SLO).steady.unwrap();
        assert_eq!((steady.from_s, steady.to_s), (4.0, 10.0));
        // 7 events of the first and 6 of the second, 3 tokens each, in 6 s.
        assert!((steady.tok_s - 13.0 * 3.0 / 6.0).abs() < 1e-9);
        assert_eq!(summarise(&outcome(row(1)), Load::Concurrency(4), SLO).steady, None);
    }

    #[test]
    fn failed_and_slow_requests_are_not_good() {
        let mut outcome = outcome(row(6));
        outcome.samples[0].ttft_s = 1.5;
        outcome.failures.push(Failure {
            class: "chat".into(),
            prompt_id: "tides".into(),
            started_s: 0.0,
            error: "503".into(),
        });
        let summary = summarise(&outcome, Load::Concurrency(1), SLO);
        assert!((summary.goodput.unwrap().share - 5.0 / 7.0).abs() < 1e-9);
        assert!(notices(&outcome, &summary, 30.0)[0].contains("1 requests failed; the first: 503"));
    }

    #[test]
    fn a_drift_is_noticed_and_noise_is_not() {
        let mut samples = row(20);
        for (i, sample) in samples.iter_mut().enumerate() {
            // Halfway through, answers take a third longer.
            let slower = if i < 10 { 1.0 } else { 1.33 };
            sample.e2e_s = 0.5 + 1.5 * slower + 0.001 * ((i * 7) % 10) as f64;
        }
        let outcome = outcome(samples);
        let summary = summarise(&outcome, Load::Concurrency(1), SLO);
        assert!(summary.drift.unwrap() < -0.2);
        assert!(notices(&outcome, &summary, 30.0)[0].contains("drifted"));
    }

    #[test]
    fn doubts_are_said() {
        let mut samples = row(7);
        for sample in &mut samples {
            (sample.out, sample.estimated, sample.dispatch_delay_s) = (33, true, 0.1);
            sample.reasoning = Some(40);
        }
        let outcome = Outcome { samples, n_late: 2, ..Outcome::default() };
        let summary = summarise(&outcome, Load::Concurrency(1), SLO);
        assert_eq!(summary.classes[0].token_gap_ms, None);
        let text = notices(&outcome, &summary, 30.0).join("\n");
        for part in [
            "2 requests had no whole answer within 30 s",
            "estimated",
            "3.00 tokens",
            "late",
            "reasoning",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }
}
