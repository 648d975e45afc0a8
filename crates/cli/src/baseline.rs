//! `outrider baseline`: what was measured and found good, kept to be compared with later.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use bench::baseline::{Check, Store, check, history};
use bench::load::Load;
use bench::probe::{ProbeArgs, ProbeError};
use bench::prompts::{PromptSet, VERSION};
use bench::report::{Run, Workload};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::ledger;
use crate::probe::{self, EXIT_INCONCLUSIVE, EffortFlags, WorkFlags};

#[derive(Args, Clone)]
pub(crate) struct BaselineFlags {
    #[command(subcommand)]
    command: Step,

    /// Folder of the baselines [default: outrider/baselines in $XDG_STATE_HOME or ~/.local/state]
    #[arg(long, value_name = "DIR", global = true)]
    folder: Option<PathBuf>,

    /// Print JSON instead of text
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand, Clone)]
enum Step {
    /// Add a measurement to a baseline, from a server or from a probe's JSON
    Save(Box<Save>),
    /// List the baselines
    List,
    /// Compare a server, or a probe's JSON, with what was saved last; exit code 0 the same or
    /// better, 10 worse, 12 undecided, 2 an error
    Check(Box<CheckAgainst>),
    /// Show every saved measurement of a baseline, and where the level changed
    History {
        /// Baseline
        name: String,
    },
}

#[derive(Args, Clone)]
struct Save {
    /// Baseline: letters, digits, `.`, `_` and `-`
    name: String,

    /// Server to measure
    #[arg(value_name = "URL", required_unless_present = "probe", conflicts_with = "probe")]
    url: Option<String>,

    /// JSON of `outrider probe` instead of a new measurement
    #[arg(long, value_name = "FILE")]
    probe: Option<PathBuf>,

    #[command(flatten)]
    work: WorkFlags,
    #[command(flatten)]
    effort: EffortFlags,
}

#[derive(Args, Clone)]
struct CheckAgainst {
    /// Baseline
    name: String,

    /// Server to measure, with the work that was saved
    #[arg(value_name = "URL", required_unless_present = "probe", conflicts_with = "probe")]
    url: Option<String>,

    /// JSON of `outrider probe` instead of a new measurement
    #[arg(long, value_name = "FILE")]
    probe: Option<PathBuf>,

    #[command(flatten)]
    effort: EffortFlags,
}

/// Runs a step; the exit code.
pub(crate) fn run(flags: &BaselineFlags) -> Result<u8> {
    let folder = match &flags.folder {
        Some(folder) => folder.clone(),
        None => ledger::state_folder()
            .map(|state| state.join("baselines"))
            .ok_or_else(|| anyhow!("neither XDG_STATE_HOME nor HOME is set: use --folder"))?,
    };
    let store = Store::new(&folder);
    match &flags.command {
        Step::Save(save) => self::save(&store, save, flags.json),
        Step::List => list(&store, flags.json),
        Step::Check(check) => compare(&store, check, flags.json),
        Step::History { name } => follow(&store, name, flags.json),
    }
}

/// The runs of one measurement, and what ran.
struct Measured {
    runs: Vec<Run>,
    configuration: Value,
}

enum Outcome {
    Measured(Measured),
    /// Others use the server, or no answer came in time: nothing was measured.
    Nothing,
}

fn save(store: &Store, save: &Save, json: bool) -> Result<u8> {
    let args = save.url.as_deref().map(|url| probe::args(url, &save.work, &save.effort));
    let Measured { runs, configuration } = match measured(args, save.probe.as_deref())? {
        Outcome::Measured(measured) => measured,
        Outcome::Nothing => return Ok(EXIT_INCONCLUSIVE),
    };
    for run in &runs {
        store.save(&save.name, run, configuration.clone())?;
    }
    let (entries, _) = store.entries(&save.name)?;
    let n_requests: usize = runs.iter().map(|run| run.requests.len()).sum();
    let text = if json {
        json!({"name": save.name, "saved": runs.len(), "requests": n_requests, "entries": entries.len()})
            .to_string()
    } else {
        format!(
            "saved {n_requests} requests as {}, which now has {} runs",
            save.name,
            entries.len()
        )
    };
    probe::print(&format!("{text}\n"))?;
    Ok(0)
}

fn list(store: &Store, json: bool) -> Result<u8> {
    let listed = store.list()?;
    let text = if json {
        format!("{}\n", serde_json::to_string(&listed)?)
    } else if listed.is_empty() {
        "no baselines\n".to_owned()
    } else {
        let line = |l: &bench::baseline::Listed| {
            let cut = match l.n_unreadable {
                0 => String::new(),
                n => format!(", {n} lines unreadable"),
            };
            format!(
                "{:<24} {:>4} runs, last {} ({}){cut}\n",
                l.name, l.n_entries, l.saved_at, l.workload
            )
        };
        listed.iter().map(line).collect()
    };
    probe::print(&text)?;
    Ok(0)
}

fn compare(store: &Store, flags: &CheckAgainst, json: bool) -> Result<u8> {
    let (entries, n_unreadable) = store.entries(&flags.name)?;
    let last = entries
        .last()
        .ok_or_else(|| anyhow!("the baseline {:?} has no readable runs", flags.name))?;
    let args = match &flags.url {
        Some(url) => Some(same_work(flags.effort.args(url), &last.run.workload)?),
        None => None,
    };
    let Measured { runs, .. } = match measured(args, flags.probe.as_deref())? {
        Outcome::Measured(measured) => measured,
        Outcome::Nothing => return Ok(EXIT_INCONCLUSIVE),
    };
    let checks: Vec<Check> =
        runs.iter().map(|run| check(&flags.name, &entries, run)).collect::<Result<_, _>>()?;
    let mut text = if json {
        format!("{}\n", serde_json::to_string(&checks)?)
    } else {
        checks.iter().map(Check::text).collect()
    };
    if n_unreadable > 0 && !json {
        text += &format!("note: {n_unreadable} lines of the baseline cannot be read\n");
    }
    probe::print(&text)?;
    // Worse beats undecided, which beats the rest.
    let codes: Vec<u8> = checks.iter().map(Check::exit_code).collect();
    Ok(if codes.contains(&10) { 10 } else { codes.into_iter().max().unwrap_or(EXIT_INCONCLUSIVE) })
}

fn follow(store: &Store, name: &str, json: bool) -> Result<u8> {
    let (entries, _) = store.entries(name)?;
    let all = history(&entries);
    let text = if json {
        format!("{}\n", serde_json::to_string(&all)?)
    } else {
        all.iter().map(|history| history.text()).collect()
    };
    probe::print(&text)?;
    Ok(0)
}

/// Measures a server, or reads what was measured.
fn measured(args: Option<ProbeArgs>, file: Option<&Path>) -> Result<Outcome> {
    let (runs, configuration) = match (args, file) {
        (Some(args), _) => match probe::measure(&args) {
            Ok(report) if report.interrupted => bail!("interrupted: nothing was kept"),
            Ok(report) => {
                report.notices.iter().for_each(|notice| eprintln!("note: {notice}"));
                (report.runs, report.configuration)
            }
            Err(error @ ProbeError::Busy(_)) => {
                probe::failed(&error);
                return Ok(Outcome::Nothing);
            }
            Err(error) => return Err(error.into()),
        },
        (None, Some(path)) => read(path)?,
        (None, None) => bail!("give a URL, or --probe FILE"),
    };
    if let Some(run) = runs.iter().find(|run| run.requests.is_empty()) {
        let why =
            format!("no request of {} was answered: {}", run.workload.id, run.notices.join("; "));
        // A server that fails is an error; of one that only takes longer than it was given, nothing is known.
        if file.is_some() || !run.failures.is_empty() {
            bail!(why);
        }
        eprintln!("error: {why}");
        return Ok(Outcome::Nothing);
    }
    Ok(Outcome::Measured(Measured { runs, configuration }))
}

/// The runs in the JSON form of a probe.
fn read(path: &Path) -> Result<(Vec<Run>, Value)> {
    let name = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?;
    let mut report: Value =
        serde_json::from_str(&text).with_context(|| format!("{name} is not JSON"))?;
    let more = report["more"].as_array().cloned().unwrap_or_default();
    let configuration = report["configuration"].take();
    let runs = std::iter::once(report).chain(more).map(serde_json::from_value);
    let runs = runs.collect::<Result<Vec<Run>, _>>();
    let runs = runs.with_context(|| format!("{name} is not the JSON of `outrider probe`"))?;
    Ok((runs, configuration))
}

/// The work of a saved run, so that the new one compares.
pub(crate) fn same_work(mut args: ProbeArgs, workload: &Workload) -> Result<ProbeArgs> {
    let unknown = || anyhow!("the baseline was measured with other prompts: {}", workload.id);
    let names = workload.id.strip_suffix(&format!("-{VERSION}")).ok_or_else(unknown)?;
    args.sets = names
        .split('+')
        .map(|name| name.parse::<PromptSet>().map_err(|_| unknown()))
        .collect::<Result<_>>()?;
    args.loads = vec![match (workload.rate_per_s, workload.concurrency.as_u64()) {
        (Some(rate), _) => Load::Rate(rate),
        (None, Some(n)) => Load::Concurrency(n as usize),
        (None, None) => return Err(unknown()),
    }];
    args.max_tokens = workload.max_tokens;
    args.temperature = workload.temperature;
    Ok(args)
}
