//! `outrider validate`: without the fix, with it, without it again, then with it for good; each after a restart.
//!
//! Requests are paired by their prompts. A fix that does not hold is taken back.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use bench::probe::ProbeArgs;
use bench::report::Workload;
use bench::sample::Sample;
use bench::stats::{Estimate, signed_rank, walsh};
use clap::Args;
use diagnose::evidence::{Evidence, Side};
use serde_json::json;

use super::interrupt::Interrupt;
use super::manager::Manager;
use super::source::Source;
use super::{EXIT_OK, EXIT_ROLLED_BACK, EXIT_UNDECIDED, FixSource, USUAL_START, confirm};
use crate::live::{self, ProbeBounds};
use crate::{baseline, probe};

/// A gain must be this large, as a share, to be worth a change.
const LEAST_GAIN: f64 = 0.03;
/// Probability of a false alarm below which a gain counts.
const ALPHA: f64 = 0.05;
/// Fewest pairs that can decide anything.
const FEWEST: usize = 6;

#[derive(Args, Clone)]
pub(crate) struct ValidateFlags {
    #[command(flatten)]
    source: FixSource,
    #[command(flatten)]
    bounds: ProbeBounds,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(flags: &ValidateFlags) -> ExitCode {
    crate::exit(try_run(flags))
}

fn try_run(flags: &ValidateFlags) -> Result<u8> {
    let source = Source::read(&flags.source)?;
    let Some(fix) = source.fix.as_ref().filter(|fix| !fix.set.is_empty() || !fix.unset.is_empty())
    else {
        eprintln!("no flag to validate: {}", source.summary);
        return Ok(EXIT_UNDECIDED);
    };
    let url = source
        .url
        .clone()
        .ok_or_else(|| anyhow!("the address of the server is not known: --url URL"))?;
    let args = arguments(&url, &flags.bounds, &source)?;
    let manager = Manager::find(&flags.source, &source)?;
    let question = format!(
        "restart {manager} four times and send it up to {} requests after each start, to prove {}?",
        args.runs * args.sets.len(),
        fix.command_line()
    );
    confirm(&flags.source, &question)?;
    let mut trial = Trial {
        wait: Duration::from_secs(flags.source.wait.into()),
        was_on: manager.is_on(),
        interrupt: Interrupt::watch()?,
        quantity: Quantity::of(source.symptom.as_deref()),
        manager,
        source: &source,
        args,
    };
    let outcome = trial.run();
    let (end, proof) = match outcome {
        Ok((end, proof)) => (end, Some(proof)),
        Err(_) if trial.interrupt.is_asked() => (End::Interrupted, None),
        Err(error) => (End::Failed(format!("{error:#}")), None),
    };
    let code = trial.settle(&end)?;
    report(flags.json, &trial, &end, proof.as_ref())?;
    Ok(code)
}

/// How a trial ended.
enum End {
    Holds,
    DoesNotHold(String),
    Undecided(String),
    /// The server did not come up, or a measurement failed.
    Failed(String),
    /// Somebody wanted an end.
    Interrupted,
}

/// What was measured.
struct Proof {
    /// Medians of the sides in the order of the trial.
    medians: Vec<(&'static str, f64)>,
    gain: Estimate,
    p: f64,
    n_pairs: usize,
    /// How far the two measurements without the fix lie apart, as a share.
    drift: f64,
}

struct Trial<'a> {
    manager: Manager,
    source: &'a Source,
    args: ProbeArgs,
    wait: Duration,
    was_on: bool,
    quantity: Quantity,
    interrupt: Interrupt,
}

impl Trial<'_> {
    fn run(&mut self) -> Result<(End, Proof)> {
        let first = self.side(false)?;
        let fixed = self.side(true)?;
        let second = self.side(false)?;
        let mut proof = self.compare(&[&first, &second], &[&fixed]);
        let end = judge(&proof);
        if !matches!(end, End::Holds) {
            return Ok((end, proof));
        }
        // A start may be lucky: the fix has to hold after another one as well.
        let again = self.side(true)?;
        let medians = std::mem::take(&mut proof.medians);
        proof = self.compare(&[&first, &second], &[&fixed, &again]);
        proof.medians = medians;
        proof.medians.push(("with it again", median(&again)));
        Ok((judge(&proof), proof))
    }

    /// One restart and one measurement: the quantity of each request by its prompt.
    fn side(&mut self, on: bool) -> Result<BTreeMap<String, f64>> {
        if self.interrupt.is_asked() {
            bail!("interrupted");
        }
        eprintln!("{} the fix: restarting {}", if on { "with" } else { "without" }, self.manager);
        self.manager.put(on, self.wait, Some(&self.interrupt))?;
        if on {
            self.source.holds()?;
        }
        let report = probe::measure(&self.args)?;
        if report.interrupted || self.interrupt.is_asked() {
            bail!("interrupted");
        }
        let run = report.runs.into_iter().next().ok_or_else(|| anyhow!("nothing was measured"))?;
        if let Some(failure) = run.failures.first() {
            bail!(
                "{} of {} requests failed: {}",
                run.failures.len(),
                run.failures.len() + run.requests.len(),
                failure.error
            );
        }
        Ok(self.quantity.by_prompt(&run.requests))
    }

    fn compare(&self, off: &[&BTreeMap<String, f64>], on: &[&BTreeMap<String, f64>]) -> Proof {
        let mean = |sides: &[&BTreeMap<String, f64>], key: &String| {
            let logs: Option<Vec<f64>> =
                sides.iter().map(|side| Some(side.get(key)?.ln())).collect();
            logs.map(|logs| logs.iter().sum::<f64>() / logs.len() as f64)
        };
        let gains: Vec<f64> =
            on[0].keys().filter_map(|key| Some(mean(on, key)? - mean(off, key)?)).collect();
        let drifts: Vec<f64> = off[0]
            .keys()
            .filter_map(|key| Some(mean(&off[1..], key)? - mean(&off[..1], key)?))
            .collect();
        let nothing = Estimate { value: 0.0, lo: 0.0, hi: 0.0 };
        let gain = walsh(&gains, 0.95).unwrap_or(nothing);
        let share = |log: f64| log.exp() - 1.0;
        Proof {
            medians: vec![
                ("without the fix", median(off[0])),
                ("with it", median(on[0])),
                ("without it again", median(off[1])),
            ],
            gain: Estimate { value: share(gain.value), lo: share(gain.lo), hi: share(gain.hi) },
            p: signed_rank(&gains).unwrap_or(1.0),
            n_pairs: gains.len(),
            drift: share(walsh(&drifts, 0.95).map_or(0.0, |drift| drift.value.abs())),
        }
    }

    /// Leaves the fix where it holds; else puts back what was found.
    fn settle(&mut self, end: &End) -> Result<u8> {
        let (on, code) = match end {
            End::Holds => (true, EXIT_OK),
            End::DoesNotHold(_) => (false, EXIT_ROLLED_BACK),
            End::Failed(_) => (false, EXIT_ROLLED_BACK),
            End::Undecided(_) | End::Interrupted => (self.was_on, EXIT_UNDECIDED),
        };
        // After a failed start the server may be down although nothing has to change.
        if on != self.manager.is_on() || matches!(end, End::Failed(_) | End::Interrupted) {
            self.manager.put(on, self.wait.max(USUAL_START), None)?;
        }
        Ok(code)
    }
}

fn judge(proof: &Proof) -> End {
    let percent = |share: f64| format!("{:+.1} %", 100.0 * share);
    if proof.n_pairs < FEWEST {
        return End::Undecided(format!("only {} pairs of answers: more --runs", proof.n_pairs));
    }
    let gain = percent(proof.gain.value);
    if proof.p >= ALPHA || proof.gain.lo <= 0.0 {
        return End::DoesNotHold(format!(
            "no significant gain: {gain} ({} to {}), p = {:.3}",
            percent(proof.gain.lo),
            percent(proof.gain.hi),
            proof.p
        ));
    }
    if proof.gain.value < LEAST_GAIN || proof.gain.value <= proof.drift {
        return End::DoesNotHold(format!(
            "the gain of {gain} is no more than what two starts without the fix differ by ({})",
            percent(proof.drift.max(LEAST_GAIN))
        ));
    }
    End::Holds
}

fn median(side: &BTreeMap<String, f64>) -> f64 {
    let values: Vec<f64> = side.values().copied().collect();
    bench::stats::median(&values).unwrap_or(f64::NAN)
}

/// What a request is judged by; more is better.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Quantity {
    DecodeTokS,
    /// One divided by the seconds to the first token.
    FirstTokenPerS,
    /// One divided by the longest pause.
    PausePerS,
    /// Tokens of a request over its whole time, waiting included.
    WholeTokS,
}

impl Quantity {
    fn of(symptom: Option<&str>) -> Quantity {
        match symptom {
            Some("ttft_s_p50") => Quantity::FirstTokenPerS,
            Some("longest_pause_s_p90") => Quantity::PausePerS,
            Some("aggregate_tok_s") => Quantity::WholeTokS,
            _ => Quantity::DecodeTokS,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Quantity::DecodeTokS => "tok/s of one stream",
            Quantity::FirstTokenPerS => "1 / s to the first token",
            Quantity::PausePerS => "1 / s of the longest pause",
            Quantity::WholeTokS => "tok/s of a request, waiting included",
        }
    }

    fn of_sample(self, sample: &Sample) -> Option<f64> {
        let value = match self {
            Quantity::DecodeTokS => sample.decode_tok_s()?,
            Quantity::FirstTokenPerS => 1.0 / sample.ttft_s,
            Quantity::PausePerS => 1.0 / sample.max_gap_s,
            Quantity::WholeTokS => sample.out as f64 / sample.e2e_s,
        };
        (value.is_finite() && value > 0.0).then_some(value)
    }

    /// The order of the prompts is the same in every measurement: the n-th use of a prompt meets its n-th use.
    fn by_prompt(self, samples: &[Sample]) -> BTreeMap<String, f64> {
        let mut samples: Vec<&Sample> = samples.iter().collect();
        samples.sort_by(|a, b| a.started_s.total_cmp(&b.started_s));
        let mut uses: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        let mut out = BTreeMap::new();
        for sample in samples {
            let n = uses.entry((&sample.class, &sample.prompt_id)).or_insert(0);
            *n += 1;
            if let Some(value) = self.of_sample(sample) {
                out.insert(format!("{}/{}/{n}", sample.class, sample.prompt_id), value);
            }
        }
        out
    }
}

/// The probe of the diagnosis again: the same work, every request of it.
fn arguments(url: &str, flags: &ProbeBounds, source: &Source) -> Result<ProbeArgs> {
    let mut args = live::arguments(&live::base(url)?, flags);
    let probed = source
        .evidence
        .iter()
        .find_map(|evidence| Evidence::of(&evidence.probes, Side::Now).next())
        .map(|item| &item.what.workload);
    if let Some(work) = probed {
        let workload = Workload {
            id: work.id.clone(),
            concurrency: json!(work.concurrency.map_or(1, |n| n as u64)),
            rate_per_s: work.rate_per_s,
            temperature: work.temperature,
            thinking: false,
            max_tokens: work.max_tokens.map_or(args.max_tokens, |n| n as u32),
        };
        // Other prompts than this version has: then the usual ones.
        args = baseline::same_work(args.clone(), &workload).unwrap_or(args);
    }
    args.precision = 0.0;
    Ok(args)
}

fn report(as_json: bool, trial: &Trial<'_>, end: &End, proof: Option<&Proof>) -> Result<()> {
    let (verdict, reason) = match end {
        End::Holds => ("holds", "the fix stays in force".to_owned()),
        End::DoesNotHold(why) => ("does_not_hold", format!("{why}; taken back")),
        End::Undecided(why) => ("undecided", format!("{why}; what was found is back")),
        End::Failed(why) => ("failed", format!("{why}; the fix is taken back")),
        End::Interrupted => ("interrupted", "what was found is back".to_owned()),
    };
    if as_json {
        let document = json!({
            "schema": "validation/1",
            "verdict": verdict,
            "reason": reason,
            "quantity": trial.quantity.name(),
            "medians": proof.map(|proof| proof.medians.iter().map(|(name, value)| json!({"side": name, "median": value})).collect::<Vec<_>>()),
            "gain": proof.map(|proof| json!([proof.gain.lo, proof.gain.value, proof.gain.hi])),
            "p": proof.map(|proof| proof.p),
            "pairs": proof.map(|proof| proof.n_pairs),
            "drift": proof.map(|proof| proof.drift),
            "in_force": trial.manager.is_on(),
            "way_back": trial.manager.way_back(),
        });
        return probe::print(&format!("{document:#}\n"));
    }
    let mut out = String::new();
    if let Some(proof) = proof {
        out += &format!("{}, medians\n", trial.quantity.name());
        for (name, value) in &proof.medians {
            out += &format!("  {name:<18} {value:>9.2}\n");
        }
        out += &format!(
            "gain {:+.1} % ({:+.1} to {:+.1}), p = {:.4}, {} pairs\n",
            100.0 * proof.gain.value,
            100.0 * proof.gain.lo,
            100.0 * proof.gain.hi,
            proof.p,
            proof.n_pairs
        );
    }
    out += &format!("{}: {reason}\n", verdict.replace('_', " "));
    if trial.manager.is_on() {
        out += &format!("the way back: {}\n", trial.manager.way_back());
    }
    probe::print(&out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proof(lo: f64, value: f64, p: f64, drift: f64) -> Proof {
        let gain = Estimate { value, lo, hi: value + 0.1 };
        Proof { medians: Vec::new(), gain, p, n_pairs: 10, drift }
    }

    #[test]
    fn only_a_sure_gain_beyond_the_noise_holds() {
        assert!(matches!(judge(&proof(0.3, 0.5, 0.002, 0.05)), End::Holds));
        assert!(matches!(judge(&proof(-0.1, 0.2, 0.2, 0.01)), End::DoesNotHold(_)), "not sure");
        assert!(matches!(judge(&proof(0.1, 0.2, 0.002, 0.3)), End::DoesNotHold(_)), "drift");
        assert!(matches!(judge(&proof(0.005, 0.01, 0.002, 0.0)), End::DoesNotHold(_)), "tiny");
        let few = Proof { n_pairs: 3, ..proof(0.3, 0.5, 0.25, 0.0) };
        assert!(matches!(judge(&few), End::Undecided(_)));
    }
}
