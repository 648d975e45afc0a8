//! Sends one load and collects what came back: a fixed concurrency, or a rate that never waits.
//!
//! Every time counts from the intended send time. Under a rate that is the schedule's time, whether
//! the server keeps up or not; under a fixed concurrency it is the moment the place became free.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};

use crate::client::{Client, Sampling};
use crate::progress::Progress;
use crate::prompts::{Message, PromptSet};
use crate::sample::{Dispatch, Failure, Sample};
use crate::stats::median::SplitMix;
use crate::stop::Stop;

/// How requests are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Load {
    /// This many at any time.
    Concurrency(usize),
    /// This many per second, at random times (Poisson), whatever the server does.
    Rate(f64),
}

impl FromStr for Load {
    type Err = String;

    /// `16` for a concurrency, `2.5/s` for a rate.
    fn from_str(text: &str) -> Result<Load, String> {
        let load = match text.strip_suffix("/s") {
            Some(rate) => rate.parse().ok().map(Load::Rate),
            None => text.parse().ok().map(Load::Concurrency),
        };
        let sane = |load: &Load| match load {
            Load::Concurrency(n) => (1..=MAX_IN_FLIGHT).contains(n),
            Load::Rate(rate) => 0.0 < *rate && *rate <= MAX_RATE,
        };
        load.filter(sane)
            .ok_or_else(|| format!("{text:?} is neither a concurrency (16) nor a rate (2.5/s)"))
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Load::Concurrency(n) => write!(f, "{n} at a time"),
            Load::Rate(rate) => write!(f, "{rate} per second"),
        }
    }
}

impl Load {
    /// Most requests that this load has in flight.
    #[must_use]
    pub fn most_in_flight(self) -> usize {
        match self {
            Load::Concurrency(n) => n,
            Load::Rate(_) => MAX_IN_FLIGHT,
        }
    }
}

/// Most requests in flight; more would measure the client.
pub const MAX_IN_FLIGHT: usize = 512;
/// Most requests per second.
const MAX_RATE: f64 = 1000.0;
/// How long requests in flight may still run when the time is over.
pub(crate) const GRACE: Duration = Duration::from_secs(20);
/// How often progress is shown.
const TICK: Duration = Duration::from_millis(250);

/// One request to send.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) class: PromptSet,
    pub(crate) prompt_id: &'static str,
    pub(crate) messages: Vec<Message>,
}

/// What is sent and when it ends.
pub(crate) struct Order {
    pub(crate) load: Load,
    pub(crate) jobs: VecDeque<Job>,
    /// No request starts after this time.
    pub(crate) seconds: f64,
    /// Seed of the send times under a rate.
    pub(crate) seed: u64,
}

/// What came back.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) samples: Vec<Sample>,
    pub(crate) failures: Vec<Failure>,
    /// Requests that were dropped in flight because the time was over.
    pub(crate) n_late: usize,
}

/// Runs the order until its jobs or its time are used up, `enough` says so, or `stop` is asked for.
pub(crate) async fn run(
    client: &Arc<Client>,
    sampling: &Arc<Sampling>,
    order: Order,
    stop: &Stop,
    watch: &mut Watch<'_>,
) -> Outcome {
    let begin = Instant::now();
    let last_start = begin + Duration::from_secs_f64(order.seconds);
    let most = order.load.most_in_flight();
    let mut pacer = Pacer::new(order.load, order.seed, begin);
    let mut jobs = order.jobs;
    let mut outcome = Outcome::default();
    let mut in_flight: JoinSet<Result<Sample, Failure>> = JoinSet::new();
    let mut ticks = tokio::time::interval(TICK);
    let mut open = true;
    loop {
        while open
            && in_flight.len() < most
            && let Some(intended) = pacer.due(Instant::now())
            && let Some(job) = jobs.pop_front()
        {
            in_flight.spawn(send(client.clone(), sampling.clone(), job, begin, intended));
        }
        open &= !jobs.is_empty();
        if in_flight.is_empty() && !open {
            return outcome;
        }
        tokio::select! {
            biased;
            // What is in flight is dropped; the report says that it was interrupted.
            () = stop.stopped() => return outcome,
            Some(done) = in_flight.join_next() => {
                outcome.record(done);
                open &= !(watch.enough)(&outcome);
            }
            () = sleep_until(pacer.next()), if open && in_flight.len() < most => {}
            () = sleep_until(last_start), if open => open = false,
            () = sleep_until(last_start + GRACE), if !open => {
                outcome.n_late = in_flight.len();
                return outcome;
            }
            _ = ticks.tick() => {
                let speed = client.n_chunks.load(Ordering::Relaxed);
                (watch.progress)(&Progress {
                    n_done: outcome.samples.len(),
                    n_failed: outcome.failures.len(),
                    n_in_flight: in_flight.len(),
                    n_left: jobs.len(),
                    n_chunks: speed,
                    seconds: begin.elapsed().as_secs_f64(),
                    seconds_most: order.seconds,
                });
            }
        }
    }
}

/// What looks at a running load from outside.
pub(crate) struct Watch<'a> {
    /// Whether the measurement is precise enough.
    pub(crate) enough: &'a mut (dyn FnMut(&Outcome) -> bool + Send),
    /// Shows where the load stands.
    pub(crate) progress: &'a mut (dyn FnMut(&Progress) + Send),
}

impl Outcome {
    fn record(&mut self, done: Result<Result<Sample, Failure>, JoinError>) {
        match done {
            Ok(Ok(sample)) => self.samples.push(sample),
            Ok(Err(failure)) => self.failures.push(failure),
            // A panic in a request is a bug of this client; it must not look like a good server.
            Err(error) => self.failures.push(Failure {
                class: String::new(),
                prompt_id: String::new(),
                started_s: 0.0,
                error: error.to_string(),
            }),
        }
    }
}

/// One request, from its intended send time to its last token.
async fn send(
    client: Arc<Client>,
    sampling: Arc<Sampling>,
    job: Job,
    begin: Instant,
    intended: Instant,
) -> Result<Sample, Failure> {
    let started_s = intended.duration_since(begin).as_secs_f64();
    let failure = |error: String| Failure {
        class: job.class.name().to_owned(),
        prompt_id: job.prompt_id.to_owned(),
        started_s,
        error,
    };
    let (answer, delay_s) =
        client.chat(&job.messages, &sampling, intended).await.map_err(failure)?;
    Sample::new((job.class, job.prompt_id), Dispatch { started_s, delay_s }, answer)
        .ok_or_else(|| failure("the answer has no tokens".to_owned()))
}

/// Decides when the next request is due.
enum Pacer {
    /// As soon as a place is free.
    WhenFree,
    /// By a schedule.
    Rate { per_s: f64, random: SplitMix, next: Instant },
}

impl Pacer {
    fn new(load: Load, seed: u64, begin: Instant) -> Pacer {
        match load {
            Load::Concurrency(_) => Pacer::WhenFree,
            Load::Rate(per_s) => Pacer::Rate { per_s, random: SplitMix(seed), next: begin },
        }
    }

    /// The intended send time of a request that is due at `now`, if one is.
    fn due(&mut self, now: Instant) -> Option<Instant> {
        match self {
            Pacer::WhenFree => Some(now),
            Pacer::Rate { next, .. } if *next > now => None,
            Pacer::Rate { per_s, random, next } => {
                let intended = *next;
                // Exponential gaps; the schedule never looks at the server.
                let gap = -(1.0 - random.unit()).ln() / *per_s;
                *next = intended + Duration::from_secs_f64(gap);
                Some(intended)
            }
        }
    }

    /// When to look again.
    fn next(&self) -> Instant {
        match self {
            // A free place is filled as soon as a request ends; there is nothing to wait for.
            Pacer::WhenFree => Instant::now() + TICK,
            Pacer::Rate { next, .. } => *next,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::{Load, Pacer};

    #[test]
    fn loads_are_read() {
        assert_eq!("16".parse(), Ok(Load::Concurrency(16)));
        assert_eq!("2.5/s".parse(), Ok(Load::Rate(2.5)));
        for text in ["", "0", "-1", "1000", "0/s", "x/s", "inf/s", "nan/s", "1.5"] {
            assert!(text.parse::<Load>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_rate_keeps_its_schedule_when_the_client_is_late() {
        let begin = Instant::now();
        let due_by = |step: Duration| {
            let mut pacer = Pacer::new(Load::Rate(50.0), 7, begin);
            let mut times = Vec::new();
            for i in 1..=(10_000 / step.as_millis() as u32) {
                while let Some(intended) = pacer.due(begin + step * i) {
                    times.push(intended);
                }
            }
            times
        };
        let (eager, late) = (due_by(Duration::from_millis(1)), due_by(Duration::from_secs(2)));
        assert_eq!(eager, late, "the intended times do not depend on when they are looked at");
        assert!((450..550).contains(&eager.len()), "{} in 10 s at 50 per second", eager.len());
    }
}
