//! Whether a run still is what the baseline was, and when a history changed.
//!
//! A difference counts if ranks say that it is no chance (after Holm's correction over all rows) and
//! if it is larger than the machine's own noise from run to run.

use std::fmt::Write;

use serde::Serialize;

use super::{BaselineError, Entry};
use crate::report::{Run, Workload};
use crate::sample::Sample;
use crate::stats::{ChangePoint, Estimate, change_points, holm, mann_whitney, median, shift};
use crate::summary::{CONFIDENCE, class_names};

/// Fewest answers on each side for a comparison.
const FEWEST: usize = 5;
/// Probability of a false alarm over all rows of a check.
const ALPHA: f64 = 0.05;
/// Noise that is assumed where the baseline has too few runs to show its own.
const USUAL_NOISE: f64 = 0.05;
/// Least noise that is assumed: smaller differences do not matter to anybody.
const LEAST_NOISE: f64 = 0.02;
/// Fewest saved runs that show noise.
const NOISE_RUNS: usize = 3;
/// Fewest saved runs that show a change over time.
const HISTORY_RUNS: usize = 10;
/// An interval that excludes changes larger than this tells that nothing happened.
const TELLING: f64 = 0.10;
/// Answers this much longer or shorter are other answers.
const LENGTH: f64 = 0.10;

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Tokens per second of one stream; more is better.
    DecodeTokS,
    /// Time to the first token in seconds; less is better.
    TtftS,
}

impl Metric {
    const ALL: [Metric; 2] = [Metric::DecodeTokS, Metric::TtftS];

    /// What a reader calls it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Metric::DecodeTokS => "tok/s per stream",
            Metric::TtftS => "first token s",
        }
    }

    fn of(self, sample: &Sample) -> Option<f64> {
        match self {
            Metric::DecodeTokS => sample.decode_tok_s(),
            Metric::TtftS => Some(sample.ttft_s),
        }
    }

    fn values(self, run: &Run, class: &str) -> Vec<f64> {
        let of_class = run.requests.iter().filter(|sample| sample.class == class);
        of_class.filter_map(|sample| self.of(sample)).filter(|value| value.is_finite()).collect()
    }
}

/// What a comparison says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// No difference beyond chance and noise.
    Same,
    /// Better than the baseline.
    Better,
    /// Worse than the baseline.
    Worse,
    /// Too few answers, or an interval too wide to tell.
    Undecided,
}

/// One kind of work and one metric.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Kind of work.
    pub class: String,
    /// What is compared.
    pub metric: Metric,
    /// Answers in the baseline and now.
    pub n: (usize, usize),
    /// Median of the baseline and now.
    pub median: (f64, f64),
    /// Shift from the baseline to now as a share of the baseline, with its interval.
    pub change: Option<Estimate>,
    /// Probability of the difference by chance, after the correction over all rows.
    pub p: Option<f64>,
    /// Differences up to this share are the machine's own noise.
    pub noise: f64,
    /// What it says.
    pub verdict: Verdict,
}

/// A run beside its baseline.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Check {
    /// When the baseline was saved.
    pub saved_at: String,
    /// All rows.
    pub rows: Vec<Row>,
    /// The worst of the rows, or undecided.
    pub verdict: Verdict,
    /// What a reader must know.
    pub notices: Vec<String>,
}

/// Compares a run with the last one that was saved with the same workload.
///
/// # Errors
/// When none was saved, or only other workloads.
pub fn check(name: &str, entries: &[Entry], now: &Run) -> Result<Check, BaselineError> {
    let last = entries.last().ok_or_else(|| BaselineError::Missing(name.to_owned()))?;
    let comparable: Vec<&Entry> =
        entries.iter().filter(|e| difference(&e.run.workload, &now.workload).is_none()).collect();
    let Some(baseline) = comparable.last() else {
        return Err(difference(&last.run.workload, &now.workload)
            .unwrap_or_else(|| BaselineError::Missing(name.to_owned())));
    };
    let before = &baseline.run;
    let mut rows = Vec::new();
    let mut p = Vec::new();
    for class in class_names(&before.requests) {
        for metric in Metric::ALL {
            let (row, row_p) = compare(&class, metric, (before, now), &comparable);
            rows.push(row);
            p.push(row_p);
        }
    }
    judge(&mut rows, &p);
    Ok(Check {
        saved_at: baseline.saved_at.clone(),
        verdict: overall(&rows),
        notices: length_notices(before, now),
        rows,
    })
}

/// The first field in which two workloads differ.
fn difference(before: &Workload, now: &Workload) -> Option<BaselineError> {
    let text = |value: &dyn std::fmt::Debug| format!("{value:?}");
    let fields = [
        ("prompts", text(&before.id), text(&now.id)),
        ("concurrency", before.concurrency.to_string(), now.concurrency.to_string()),
        ("rate", text(&before.rate_per_s), text(&now.rate_per_s)),
        ("temperature", text(&before.temperature), text(&now.temperature)),
        ("thinking", text(&before.thinking), text(&now.thinking)),
        ("max_tokens", text(&before.max_tokens), text(&now.max_tokens)),
    ];
    fields
        .into_iter()
        .find(|(_, before, now)| before != now)
        .map(|(what, before, now)| BaselineError::DifferentWorkload { what, before, now })
}

/// One row without a verdict, and its uncorrected probability.
fn compare(
    class: &str,
    metric: Metric,
    (before, now): (&Run, &Run),
    history: &[&Entry],
) -> (Row, Option<f64>) {
    let (x, y) = (metric.values(before, class), metric.values(now, class));
    let enough = x.len() >= FEWEST && y.len() >= FEWEST;
    let middle = (median(&x).unwrap_or(0.0), median(&y).unwrap_or(0.0));
    let relative = |e: Estimate| Estimate {
        value: e.value / middle.0,
        lo: e.lo / middle.0,
        hi: e.hi / middle.0,
    };
    let change = shift(&x, &y, CONFIDENCE).filter(|_| enough && middle.0 > 0.0).map(relative);
    let p = mann_whitney(&x, &y).filter(|_| change.is_some()).map(|test| test.p);
    let row = Row {
        class: class.to_owned(),
        metric,
        n: (x.len(), y.len()),
        median: middle,
        change,
        p: None,
        noise: noise(class, metric, history),
        verdict: Verdict::Undecided,
    };
    (row, p)
}

/// The spread of the medians from run to run, as a share.
fn noise(class: &str, metric: Metric, history: &[&Entry]) -> f64 {
    let medians: Vec<f64> =
        history.iter().filter_map(|entry| median(&metric.values(&entry.run, class))).collect();
    let Some(middle) = median(&medians).filter(|m| *m > 0.0 && medians.len() >= NOISE_RUNS) else {
        return USUAL_NOISE;
    };
    let distances: Vec<f64> = medians.iter().map(|value| (value - middle).abs()).collect();
    // The median distance, scaled to a standard deviation; two of them hold 95 %.
    let spread = 2.0 * 1.4826 * median(&distances).unwrap_or(0.0) / middle;
    spread.max(LEAST_NOISE)
}

/// Gives every row its verdict.
fn judge(rows: &mut [Row], p: &[Option<f64>]) {
    let mut corrected = holm(&p.iter().flatten().copied().collect::<Vec<f64>>()).into_iter();
    for (row, p) in rows.iter_mut().zip(p) {
        row.p = p.and_then(|_| corrected.next());
        row.verdict = match (row.p, row.change) {
            (Some(p), Some(change)) => verdict(row.metric, p, change, row.noise),
            _ => Verdict::Undecided,
        };
    }
}

fn verdict(metric: Metric, p: f64, change: Estimate, noise: f64) -> Verdict {
    let better = if metric == Metric::DecodeTokS { change.value } else { -change.value };
    if p < ALPHA && change.value.abs() > noise {
        if better > 0.0 { Verdict::Better } else { Verdict::Worse }
    } else if change.lo.abs().max(change.hi.abs()) <= TELLING.max(2.0 * noise) {
        Verdict::Same
    } else {
        Verdict::Undecided
    }
}

fn overall(rows: &[Row]) -> Verdict {
    let any = |verdict| rows.iter().any(|row| row.verdict == verdict);
    if any(Verdict::Worse) {
        Verdict::Worse
    } else if rows.is_empty() || any(Verdict::Undecided) {
        Verdict::Undecided
    } else if any(Verdict::Better) {
        Verdict::Better
    } else {
        Verdict::Same
    }
}

/// Other answers are another workload, even under the same prompts.
fn length_notices(before: &Run, now: &Run) -> Vec<String> {
    let mut notices = Vec::new();
    for class in class_names(&before.requests) {
        let length = |run: &Run| {
            let of_class = run.requests.iter().filter(|sample| sample.class == class);
            median(&of_class.map(|sample| sample.out as f64).collect::<Vec<f64>>())
        };
        if let (Some(x), Some(y)) = (length(before), length(now))
            && (y / x - 1.0).abs() > LENGTH
        {
            notices.push(format!("{class}: answers had {x:.0} tokens then and have {y:.0} now"));
        }
    }
    notices
}

impl Check {
    /// What the command exits with: 0 same or better, 10 worse, 12 undecided.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self.verdict {
            Verdict::Same | Verdict::Better => 0,
            Verdict::Worse => 10,
            Verdict::Undecided => 12,
        }
    }

    /// A table for people.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = format!("against the baseline of {}\n", self.saved_at);
        for row in &self.rows {
            let change = row.change.map_or("too few answers".to_owned(), |change| {
                let [value, lo, hi] = [change.value, change.lo, change.hi].map(|x| x * 100.0);
                format!("{value:+.1} % ({lo:+.1} to {hi:+.1}), noise {:.1} %", row.noise * 100.0)
            });
            let p = row.p.map_or(String::new(), |p| format!(", p = {p:.3}"));
            // Writing to a string cannot fail.
            let _ = writeln!(
                out,
                "  {:<6} {:<17} {:>9.3} -> {:>9.3}  {change}{p}: {:?}",
                row.class,
                row.metric.name(),
                row.median.0,
                row.median.1,
                row.verdict
            );
        }
        for notice in &self.notices {
            let _ = writeln!(out, "note: {notice}");
        }
        out
    }
}

/// A metric over all saved runs of one workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct History {
    /// Kind of work.
    pub class: String,
    /// What is followed.
    pub metric: Metric,
    /// When each run was saved, and its median.
    pub points: Vec<(String, f64)>,
    /// Where the level changed; indices into `points`.
    pub changes: Vec<ChangePoint>,
    /// Whether there are enough runs to look for changes.
    pub enough: bool,
}

/// The medians of the runs whose workload is that of the last, and where they changed.
#[must_use]
pub fn history(entries: &[Entry]) -> Vec<History> {
    let Some(last) = entries.last() else { return Vec::new() };
    let same = |entry: &&Entry| difference(&entry.run.workload, &last.run.workload).is_none();
    let comparable: Vec<&Entry> = entries.iter().filter(same).collect();
    let mut all = Vec::new();
    for class in class_names(&last.run.requests) {
        for metric in Metric::ALL {
            let point = |entry: &&Entry| {
                Some((entry.saved_at.clone(), median(&metric.values(&entry.run, &class))?))
            };
            let points: Vec<(String, f64)> = comparable.iter().filter_map(point).collect();
            let series: Vec<f64> = points.iter().map(|(_, value)| *value).collect();
            let enough = series.len() >= HISTORY_RUNS;
            let changes = if enough { change_points(&series) } else { Vec::new() };
            all.push(History { class: class.clone(), metric, points, changes, enough });
        }
    }
    all
}

impl History {
    /// A few lines for people.
    #[must_use]
    pub fn text(&self) -> String {
        let n = self.points.len();
        let mut out = format!("{} {}: {n} runs\n", self.class, self.metric.name());
        if !self.enough {
            out.push_str(&format!("  changes are looked for from {HISTORY_RUNS} runs on\n"));
        }
        for change in &self.changes {
            let at = self.points.get(change.at).map_or("", |(saved_at, _)| saved_at);
            let (before, after) = (change.before, change.after);
            out.push_str(&format!("  {before:.3} -> {after:.3} at {at}\n"));
        }
        out
    }
}
