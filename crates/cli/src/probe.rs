//! `outrider probe`: measure a running server from the client's side and its own, in the same seconds.

use std::io::{Write, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

use bench::load::Load;
use bench::observe::log_tail::LogSource;
use bench::probe::{self, ProbeArgs, ProbeError};
use bench::progress::TerminalLine;
use bench::prompts::PromptSet;
use bench::report::ProbeReport;
use bench::summary::Slo;
use clap::{Args, ValueEnum};

/// Nothing that was measured can be trusted, or nothing was measured in order not to disturb.
pub(crate) const EXIT_INCONCLUSIVE: u8 = 12;
/// The command itself failed.
pub(crate) const EXIT_ERROR: u8 = 2;

#[derive(Args, Clone)]
pub(crate) struct ProbeFlags {
    /// Address of an OpenAI-compatible server, with or without `/v1`
    #[arg(value_name = "URL")]
    url: String,

    #[command(flatten)]
    work: WorkFlags,
    #[command(flatten)]
    effort: EffortFlags,

    /// Write the JSON form to this file too
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Print JSON instead of the table
    #[arg(long)]
    json: bool,
}

/// What is sent: two measurements compare only if these agree.
#[derive(Args, Clone)]
pub(crate) struct WorkFlags {
    /// Kinds of work, mixed in random order and reported apart: chat, code, prose, long, agent
    #[arg(long, value_name = "SET,…", value_delimiter = ',', default_values_t = [Set::Chat], value_enum)]
    set: Vec<Set>,

    /// Requests at any time, one load after another
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = concurrency)]
    concurrency: Vec<Load>,

    /// Requests per second at random times, whatever the server does; after the loads of
    /// --concurrency, which is then not 1 by default
    #[arg(long, value_name = "R,…", value_delimiter = ',', value_parser = rate)]
    rate: Vec<Load>,

    /// Longest answer in tokens
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(2..))]
    max_tokens: u32,

    /// Temperature, or `server` for the server's own default
    #[arg(long, value_name = "T|server", default_value = "0", value_parser = temperature)]
    temperature: Temperature,
}

/// How long and how carefully, and what is looked at meanwhile.
#[derive(Args, Clone)]
pub(crate) struct EffortFlags {
    /// Most requests per kind of work and load
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = positive)]
    runs: usize,

    /// Most seconds per load; no request starts later
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0, value_parser = seconds)]
    seconds: f64,

    /// A load ends early when half the interval of the median decode speed is narrower than this
    /// share of it, for every kind of work; 0 never ends early
    #[arg(long, value_name = "SHARE", default_value_t = 0.03, value_parser = share)]
    precision: f64,

    /// Turn the model's reasoning on or off through the chat template [default: as the server has it]
    #[arg(long, value_name = "on|off", value_enum)]
    thinking: Option<Switch>,

    /// Model to ask for [default: the first that the server lists]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,

    /// Key for a server that asks for one
    #[arg(long, value_name = "KEY", env = "OUTRIDER_API_KEY", hide_env_values = true)]
    api_key: Option<String>,

    /// The server's log, followed meanwhile: a file, a unit of the journal or a container
    #[arg(long, value_name = "FILE|journal:UNIT|docker:NAME")]
    log: Option<LogSource>,

    /// A good request has its first token after this many seconds at most
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0, value_parser = seconds)]
    slo_ttft: f64,

    /// A good request takes this many seconds per further token at most
    #[arg(long, value_name = "SECONDS", default_value_t = 0.1, value_parser = seconds)]
    slo_tpot: f64,

    /// A good request has its last token after this many seconds at most [default: no limit]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    slo_e2e: Option<f64>,

    /// Leave out the second pass that shows the prefix cache
    #[arg(long)]
    no_cache_pass: bool,

    /// Probe although others use the server
    #[arg(long)]
    force: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Set {
    /// Everyday questions, short prompts
    Chat,
    /// Programming, where drafts are accepted best
    Code,
    /// Free writing, where they are accepted worst
    Prose,
    /// Questions about a document of several thousand tokens
    Long,
    /// Turns of tool-using agents
    Agent,
}

impl std::fmt::Display for Set {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.prompts().name())
    }
}

impl Set {
    fn prompts(self) -> PromptSet {
        match self {
            Set::Chat => PromptSet::Chat,
            Set::Code => PromptSet::Code,
            Set::Prose => PromptSet::Prose,
            Set::Long => PromptSet::Long,
            Set::Agent => PromptSet::Agent,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Switch {
    /// Reason before the answer
    On,
    /// Answer at once
    Off,
}

#[derive(Clone, Copy)]
enum Temperature {
    Server,
    Given(f64),
}

fn temperature(text: &str) -> Result<Temperature, String> {
    match text {
        "server" => Ok(Temperature::Server),
        _ => text
            .parse()
            .ok()
            .filter(|t: &f64| (0.0..=2.0).contains(t))
            .map(Temperature::Given)
            .ok_or_else(|| "neither a temperature from 0 to 2 nor `server`".to_owned()),
    }
}

fn concurrency(text: &str) -> Result<Load, String> {
    let whole = text.bytes().all(|byte| byte.is_ascii_digit());
    let load = text.parse().ok().filter(|_| whole);
    load.ok_or_else(|| format!("not a whole number from 1 to {}", bench::load::MAX_IN_FLIGHT))
}

fn rate(text: &str) -> Result<Load, String> {
    let load = format!("{}/s", text.strip_suffix("/s").unwrap_or(text)).parse();
    load.map_err(|_| "not a number of requests per second above 0 and up to 1000".to_owned())
}

fn positive(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| *n > 0).ok_or_else(|| "not a whole number above 0".to_owned())
}

fn seconds(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|s: &f64| s.is_finite() && *s > 0.0 && *s <= 86_400.0);
    number.ok_or_else(|| "not a number of seconds above 0 and up to 86400".to_owned())
}

fn share(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|share: &f64| (0.0..1.0).contains(share));
    number.ok_or_else(|| "not a share from 0 to below 1".to_owned())
}

impl WorkFlags {
    /// The kinds of work and the loads that the library is asked for.
    fn apply(&self, args: &mut ProbeArgs) {
        args.sets = self.set.iter().map(|set| set.prompts()).collect();
        args.loads = [self.concurrency.as_slice(), self.rate.as_slice()].concat();
        if args.loads.is_empty() {
            args.loads.push(Load::Concurrency(1));
        }
        args.max_tokens = self.max_tokens;
        args.temperature = match self.temperature {
            Temperature::Server => None,
            Temperature::Given(value) => Some(value),
        };
    }
}

impl EffortFlags {
    /// Arguments for `url`, with the usual kind of work.
    pub(crate) fn args(&self, url: &str) -> ProbeArgs {
        ProbeArgs {
            model: self.model.clone(),
            api_key: self.api_key.clone(),
            runs: self.runs,
            seconds: self.seconds,
            precision: self.precision,
            thinking: self.thinking.map(|switch| switch == Switch::On),
            slo: Slo {
                ttft_s: Some(self.slo_ttft),
                tpot_s: Some(self.slo_tpot),
                e2e_s: self.slo_e2e,
            },
            cache_pass: !self.no_cache_pass,
            force: self.force,
            log: self.log.clone(),
            ..ProbeArgs::new(url)
        }
    }
}

/// Arguments from both groups of flags.
pub(crate) fn args(url: &str, work: &WorkFlags, effort: &EffortFlags) -> ProbeArgs {
    let mut args = effort.args(url);
    work.apply(&mut args);
    args
}

/// Probes with progress on the terminal.
pub(crate) fn measure(args: &ProbeArgs) -> Result<ProbeReport, ProbeError> {
    let mut line = TerminalLine::stderr();
    let report = probe::run(args, &mut |what, progress| line.show(what, progress));
    line.clear();
    report
}

/// Probes and prints.
pub(crate) fn run(flags: &ProbeFlags) -> ExitCode {
    let report = match measure(&args(&flags.url, &flags.work, &flags.effort)) {
        Ok(report) => report,
        Err(error) => return failed(&error),
    };
    let json = report.json();
    if let Some(path) = &flags.out
        && let Err(error) = std::fs::write(path, format!("{json}\n"))
    {
        eprintln!("error: cannot write --out {}: {error}", path.display());
        return ExitCode::from(EXIT_ERROR);
    }
    let text = if flags.json { format!("{json}\n") } else { report.text() };
    if let Err(error) = print(&text) {
        eprintln!("error: {error}");
        return ExitCode::from(EXIT_ERROR);
    }
    if report.is_sound() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_INCONCLUSIVE) }
}

/// Says why nothing was measured.
pub(crate) fn failed(error: &ProbeError) -> ExitCode {
    if let ProbeError::Busy(_) = error {
        eprintln!("error: {error}: --force");
        return ExitCode::from(EXIT_INCONCLUSIVE);
    }
    eprintln!("error: {error}");
    ExitCode::from(EXIT_ERROR)
}

/// Text to standard output; a reader that went away is no error.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    match stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}
