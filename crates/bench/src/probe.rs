//! One probe: look whether the server is free, warm it up, send each load, repeat a few prompts.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dialects::info::{Info, StepTimes, Steps};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::busy::{Activity, activity};
use crate::client::{Client, Sampling};
use crate::load::{self, GRACE, Job, Load, Order, Outcome, Watch};
use crate::observe::Observers;
use crate::observe::log_tail::LogSource;
use crate::observe::server::ServerSide;
use crate::progress::Progress;
use crate::prompts::{self, Prompt, PromptSet};
use crate::report::{CachePass, DispatchDelay, ProbeReport, Run, SCHEMA, Workload};
use crate::sample::{Failure, Sample};
use crate::stats::median::SplitMix;
use crate::stats::{median, median_interval, quantile};
use crate::stop::Stop;
use crate::summary::{CONFIDENCE, Slo, class_names, notices, summarise};

/// What to measure, and within which bounds.
#[derive(Clone, Debug)]
pub struct ProbeArgs {
    /// Address of the server, with or without `/v1`.
    pub url: String,
    /// Model to ask for; `None` takes the first that the server lists.
    pub model: Option<String>,
    /// Bearer key.
    pub api_key: Option<String>,
    /// Kinds of work, mixed in random order and reported apart.
    pub sets: Vec<PromptSet>,
    /// Loads, one after another.
    pub loads: Vec<Load>,
    /// Most requests per kind of work and load.
    pub runs: usize,
    /// Most time per load in seconds; no request starts later.
    pub seconds: f64,
    /// A load ends early when the median decode speed of every kind of work is known this well:
    /// half the width of its interval as a share. 0 never ends early.
    pub precision: f64,
    /// Longest answer.
    pub max_tokens: u32,
    /// Temperature; `None` leaves the server's default.
    pub temperature: Option<f64>,
    /// Turns thinking on or off through the chat template; `None` leaves the server's default.
    pub thinking: Option<bool>,
    /// Promises for the goodput.
    pub slo: Slo,
    /// Whether a few prompts are repeated to see the prefix cache.
    pub cache_pass: bool,
    /// Probe although others use the server.
    pub force: bool,
    /// The server's log, to be followed meanwhile.
    pub log: Option<LogSource>,
    /// Longest silence inside an answer in seconds.
    pub idle_s: f64,
    /// Seed of the order of prompts and of random send times.
    pub seed: u64,
}

impl ProbeArgs {
    /// A bounded probe of chat on one stream: a minute and twelve answers at most.
    #[must_use]
    pub fn new(url: &str) -> ProbeArgs {
        ProbeArgs {
            url: url.to_owned(),
            model: None,
            api_key: None,
            sets: vec![PromptSet::Chat],
            loads: vec![Load::Concurrency(1)],
            runs: 12,
            seconds: 60.0,
            precision: 0.03,
            max_tokens: 256,
            temperature: Some(0.0),
            thinking: None,
            slo: Slo { ttft_s: Some(2.0), tpot_s: Some(0.1), e2e_s: None },
            cache_pass: true,
            force: false,
            log: None,
            idle_s: 60.0,
            seed: 1,
        }
    }
}

/// Why a probe did not begin.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The address is not one, or nobody answers.
    #[error("cannot reach the server: {0}")]
    Unreachable(String),
    /// Others use the server, and a probe would disturb them.
    #[error(
        "the server is busy ({} running, {} waiting, says {}); it is probed only if told so",
        .0.running, .0.waiting, .0.source
    )]
    Busy(Activity),
    /// The first request already failed.
    #[error("the server does not answer a chat request: {0}")]
    Refused(String),
    /// The client itself could not start.
    #[error("cannot start the client: {0}")]
    Client(String),
}

/// Shows where the probe stands: the part and its progress.
pub type ShowProgress<'a> = &'a mut (dyn FnMut(&str, &Progress) + Send);

/// Most warm-up requests.
const WARM_UP: usize = 4;
/// Longest warm-up answer.
const WARM_UP_TOKENS: u32 = 64;
/// Two warm-up answers this close in speed end the warm-up.
const WARM: f64 = 0.1;
/// Prompts of the cache pass, and the longest answer to one.
const CACHE_PASS: (usize, u32) = (3, 8);
/// Fewest answers per kind of work before a load may end early.
const FEWEST: usize = 6;

/// Probes from a program without an async runtime; Ctrl-C ends it and keeps what is complete.
///
/// # Errors
/// When the probe could not begin.
pub fn run(args: &ProbeArgs, show: ShowProgress<'_>) -> Result<ProbeReport, ProbeError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| ProbeError::Client(error.to_string()))?;
    runtime.block_on(async {
        let stop = Stop::new();
        let on_signal = stop.clone();
        tokio::spawn(async move {
            if tokio::signal::ctrl_c().await.is_ok() {
                on_signal.stop();
            }
        });
        probe(args, &stop, show).await
    })
}

/// Probes a server.
///
/// # Errors
/// When the probe could not begin; what happens later is part of the report.
pub async fn probe(
    args: &ProbeArgs,
    stop: &Stop,
    show: ShowProgress<'_>,
) -> Result<ProbeReport, ProbeError> {
    let idle = Duration::from_secs_f64(args.idle_s);
    let client = Client::new(&args.url, args.api_key.clone(), idle);
    let client = Arc::new(client.map_err(ProbeError::Unreachable)?);
    let model = model(&client, args).await?;
    let configuration = configuration(&client).await;
    let mut doubts = Vec::new();
    let activity = activity(&client).await;
    match activity {
        Some(busy) if busy.running + busy.waiting > 0.0 => {
            if !args.force {
                return Err(ProbeError::Busy(busy));
            }
            doubts.push("others used the server while it was measured".to_owned());
        }
        Some(_) => {}
        None => doubts.push("the server does not say whether others use it".to_owned()),
    }
    let sampling = |max_tokens| {
        let (temperature, thinking) = (args.temperature, args.thinking);
        Arc::new(Sampling { model: model.clone(), max_tokens, temperature, thinking })
    };
    let mut prompts = Prompts::new(args);
    let short = sampling(args.max_tokens.min(WARM_UP_TOKENS));
    warm_up(&client, &short, &mut prompts, stop).await?;

    let observers = Observers::start(&client, args.log.as_ref());
    let (mut runs, mut spans) = (Vec::new(), Vec::new());
    // Steps are counted over the loads alone: warm-up and cache pass are other work.
    let before = steps(&client).await;
    let loads_began = Instant::now();
    for load in &args.loads {
        if !stop.is_stopped() {
            let full = sampling(args.max_tokens);
            let begin = Instant::now();
            observers.mark().await;
            runs.push(
                measure(args, (&client, &full), *load, &mut prompts, (stop, &mut *show)).await,
            );
            observers.mark().await;
            spans.push((begin, Instant::now()));
        }
    }
    let seconds = loads_began.elapsed().as_secs_f64();
    let grown = match before {
        Some(before) => steps(&client).await.and_then(|after| after.since(&before)),
        None => None,
    };
    let steps = grown.map(|sums| StepTimes { seconds, sums });
    let mut cache = None;
    if args.cache_pass && !stop.is_stopped() {
        let few = sampling(CACHE_PASS.1);
        match cache_pass(&client, &few, &mut prompts, stop).await {
            Ok(found) => cache = found,
            Err(error) => doubts.push(format!("the pass over the prefix cache failed: {error}")),
        }
    }
    let observed = observers.finish().await;
    for (run, span) in runs.iter_mut().zip(spans) {
        run.server = observed.server_side(span, run);
    }
    let most = args.loads.iter().map(|load| load.most_in_flight()).max().unwrap_or(1);
    if let Some(running) = observed.metrics.as_ref().and_then(|metrics| metrics.running_most)
        && running > most as f64
    {
        doubts.push(format!("{running} requests ran where the probe sent {most}: others came in"));
    }
    let interrupted = stop.is_stopped();
    Ok(ProbeReport {
        model,
        configuration,
        runs,
        steps,
        cache,
        observed,
        activity,
        interrupted,
        notices: doubts,
    })
}

/// The model to ask for.
async fn model(client: &Client, args: &ProbeArgs) -> Result<String, ProbeError> {
    let listed = client.get("/v1/models").await;
    if let Some(model) = &args.model {
        return Ok(model.clone());
    }
    let body: Value = serde_json::from_str(&listed.map_err(ProbeError::Unreachable)?)
        .map_err(|error| ProbeError::Unreachable(format!("/v1/models: {error}")))?;
    let first = body["data"][0]["id"].as_str();
    first
        .map(str::to_owned)
        .ok_or_else(|| ProbeError::Unreachable("/v1/models lists no model".to_owned()))
}

/// What the server says of itself.
async fn info(client: &Client) -> Option<Info> {
    for path in ["/server_info", "/get_server_info", "/props"] {
        let answer = client.get(path).await.ok();
        if let Some(info) = answer.and_then(|text| dialects::info::parse(&text)) {
            return Some(info);
        }
    }
    None
}

/// What the server says that it runs with, by factor and redacted; `null` if it does not say.
async fn configuration(client: &Client) -> Value {
    let Some(info) = info(client).await else { return Value::Null };
    let settings = info.config.settings.iter();
    let mut all: serde_json::Map<String, Value> =
        settings.map(|(key, setting)| (key.to_string(), json!(setting.value))).collect();
    all.insert("engine.name".to_owned(), json!(info.config.engine.name()));
    if let Some(version) = &info.config.version {
        all.insert("engine.version".to_owned(), json!(version.to_string()));
    }
    Value::Object(all)
}

/// What Outrider has counted of its steps so far.
async fn steps(client: &Client) -> Option<Steps> {
    info(client).await?.state.steps
}

/// Prompts in a random but repeatable order, each with a salt of its own.
struct Prompts {
    sets: Vec<(PromptSet, Vec<Prompt>, usize)>,
    random: SplitMix,
    /// Differs from probe to probe, so that nothing of an earlier one is in a cache.
    nonce: u64,
    n_salts: u64,
}

impl Prompts {
    fn new(args: &ProbeArgs) -> Prompts {
        let mut random = SplitMix(args.seed);
        let shuffled = |set: &PromptSet| {
            let mut prompts = set.prompts();
            random.shuffle(&mut prompts);
            (*set, prompts, 0)
        };
        let sets = args.sets.iter().map(shuffled).collect();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_nanos() as u64);
        Prompts { sets, random, nonce: SplitMix(now).next() & 0xFFFF_FFFF, n_salts: 0 }
    }

    /// The next prompt of one set.
    fn next(&mut self, set: usize) -> Job {
        self.n_salts += 1;
        let salt = format!("{:08x}-{:04}", self.nonce, self.n_salts);
        let (class, prompts, at) = &mut self.sets[set];
        let prompt = &prompts[*at % prompts.len()];
        *at += 1;
        Job { class: *class, prompt_id: prompt.id, messages: prompt.salted(&salt) }
    }

    /// `n` prompts of every set, the sets mixed in each round.
    fn rounds(&mut self, n: usize) -> VecDeque<Job> {
        let mut jobs = VecDeque::new();
        let mut order: Vec<usize> = (0..self.sets.len()).collect();
        for _ in 0..n {
            self.random.shuffle(&mut order);
            for set in &order {
                jobs.push_back(self.next(*set));
            }
        }
        jobs
    }
}

/// Seconds that a request by itself may take, before the usual grace.
const SINGLE_S: f64 = 120.0;

/// One request by itself.
async fn single(
    (client, sampling): (&Arc<Client>, &Arc<Sampling>),
    job: Job,
    stop: &Stop,
) -> Option<Result<Sample, Failure>> {
    let jobs = VecDeque::from([job]);
    let order = Order { load: Load::Concurrency(1), jobs, seconds: SINGLE_S, seed: 0 };
    let mut watch = Watch { enough: &mut |_| false, progress: &mut |_| {} };
    let outcome = load::run(client, sampling, order, stop, &mut watch).await;
    let failure = outcome.failures.into_iter().next().map(Err);
    outcome.samples.into_iter().next().map(Ok).or(failure)
}

/// Short answers until two in a row are equally fast.
async fn warm_up(
    client: &Arc<Client>,
    sampling: &Arc<Sampling>,
    prompts: &mut Prompts,
    stop: &Stop,
) -> Result<(), ProbeError> {
    let mut before: Option<f64> = None;
    for _ in 0..WARM_UP {
        let speed = match single((client, sampling), prompts.next(0), stop).await {
            Some(Err(failure)) => return Err(ProbeError::Refused(failure.error)),
            Some(Ok(sample)) => sample.decode_tok_s(),
            None if stop.is_stopped() => return Ok(()),
            None => {
                let most = SINGLE_S + GRACE.as_secs_f64();
                return Err(ProbeError::Refused(format!("no whole answer within {most:.0} s")));
            }
        };
        match (before, speed) {
            (Some(before), Some(speed)) if (speed / before - 1.0).abs() < WARM => return Ok(()),
            _ => before = speed,
        }
    }
    Ok(())
}

/// One load, from the first request to the summary.
async fn measure(
    args: &ProbeArgs,
    (client, sampling): (&Arc<Client>, &Arc<Sampling>),
    load: Load,
    prompts: &mut Prompts,
    (stop, show): (&Stop, ShowProgress<'_>),
) -> Run {
    let taken_at = now_utc();
    // A rate runs its whole schedule: its tail is what it is for.
    let (places, may_end_early) = match load {
        Load::Concurrency(n) => (n, true),
        Load::Rate(_) => (1, false),
    };
    // Two fillings of the places at least, or there is no steady window.
    let rounds = args.runs.max((2 * places).div_ceil(prompts.sets.len().max(1)));
    let order =
        Order { load, jobs: prompts.rounds(rounds), seconds: args.seconds, seed: args.seed };
    let n_classes = args.sets.len();
    let mut enough = |outcome: &Outcome| {
        let samples = &outcome.samples;
        may_end_early
            && samples.len() >= 2 * places
            && is_narrow(samples, n_classes, args.precision)
    };
    let what = load.to_string();
    let mut progress = |progress: &Progress| show(&what, progress);
    let mut watch = Watch { enough: &mut enough, progress: &mut progress };
    let outcome = load::run(client, sampling, order, stop, &mut watch).await;
    let summary = summarise(&outcome, load, args.slo);
    let notices = notices(&outcome, &summary, args.seconds);
    let delays: Vec<f64> = outcome.samples.iter().map(|s| s.dispatch_delay_s).collect();
    let delay = median(&delays).zip(quantile(&delays, 0.99));
    Run {
        schema: SCHEMA.to_owned(),
        taken_at,
        target: client.target(),
        workload: workload(args, load, &outcome),
        requests: outcome.samples,
        dispatch_delay_s: delay.map(|(p50, p99)| DispatchDelay { p50, p99 }),
        failures: outcome.failures,
        summary,
        server: ServerSide::default(),
        notices,
    }
}

/// Whether the median decode speed of every kind of work is known precisely enough.
fn is_narrow(samples: &[Sample], n_classes: usize, precision: f64) -> bool {
    let names = class_names(samples);
    let narrow = |class: &String| {
        let of_class = samples.iter().filter(|sample| sample.class == *class);
        let speeds: Vec<f64> = of_class.filter_map(Sample::decode_tok_s).collect();
        speeds.len() >= FEWEST
            && median_interval(&speeds, CONFIDENCE)
                .is_some_and(|interval| interval.relative_half_width() < precision)
    };
    names.len() == n_classes && names.iter().all(narrow)
}

fn workload(args: &ProbeArgs, load: Load, outcome: &Outcome) -> Workload {
    let names: Vec<&str> = args.sets.iter().map(|set| set.name()).collect();
    // Most of them: a model may skip it or begin it once, and that makes no other workload.
    let n_reasoned = outcome.samples.iter().filter(|sample| sample.reasoned).count();
    let (concurrency, rate_per_s) = match load {
        Load::Concurrency(n) => (json!(n), None),
        Load::Rate(rate) => (json!("open loop"), Some(rate)),
    };
    Workload {
        id: format!("{}-{}", names.join("+"), prompts::VERSION),
        concurrency,
        rate_per_s,
        temperature: args.temperature,
        thinking: 2 * n_reasoned > outcome.samples.len(),
        max_tokens: args.max_tokens,
    }
}

/// Sends a few prompts twice each, alone: the second time their prefix may be cached.
async fn cache_pass(
    client: &Arc<Client>,
    sampling: &Arc<Sampling>,
    prompts: &mut Prompts,
    stop: &Stop,
) -> Result<Option<CachePass>, String> {
    let (mut cold, mut warm, mut shares) = (Vec::new(), Vec::new(), Vec::new());
    // The last set: where several are given, they are usually named from short to long.
    let set = prompts.sets.len() - 1;
    for _ in 0..CACHE_PASS.0 {
        let job = prompts.next(set);
        for times in [&mut cold, &mut warm] {
            match single((client, sampling), job.clone(), stop).await {
                Some(Ok(sample)) => {
                    times.push(sample.ttft_s);
                    let cached = sample.cached.filter(|_| sample.prompt > 0);
                    shares.push(cached.map(|cached| cached as f64 / sample.prompt as f64));
                }
                Some(Err(failure)) => return Err(failure.error),
                None => return Ok(None),
            }
        }
    }
    let repeated: Option<Vec<f64>> = shares.into_iter().skip(1).step_by(2).collect();
    let cached_share = repeated.and_then(|shares| median(&shares));
    Ok(median(&cold).zip(median(&warm)).map(|(cold_ttft_s, warm_ttft_s)| CachePass {
        n: warm.len(),
        cold_ttft_s,
        warm_ttft_s,
        cached_share,
    }))
}

/// The present second in UTC.
pub(crate) fn now_utc() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs());
    jiff::Timestamp::from_second(seconds as i64).unwrap_or_default().to_string()
}
