//! The server's own metrics, read once a second.

use std::sync::Arc;
use std::time::Duration;

use dialects::metrics::{Metric, Scrape, parse};
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::client::Client;

/// Time between two reads.
const INTERVAL: Duration = Duration::from_secs(1);
/// Most reads that are kept: a probe is shorter than this by far.
const MOST: usize = 7200;

/// What the metrics said between the first and the last read.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct MetricsSummary {
    /// Number of reads.
    pub n: usize,
    /// Time between the first and the last one.
    pub seconds: f64,
    /// Most requests running at a read.
    pub running_most: Option<f64>,
    /// Most requests waiting at a read.
    pub waiting_most: Option<f64>,
    /// Largest share of the KV pool in use.
    pub kv_usage_most: Option<f64>,
    /// Largest share of the recurrent states in use.
    pub state_usage_most: Option<f64>,
    /// Tokens generated in between.
    pub generated_tokens: Option<f64>,
    /// Prompt tokens in between.
    pub prompt_tokens: Option<f64>,
    /// Prompt tokens from the cache in between.
    pub cached_tokens: Option<f64>,
    /// Verify steps in between.
    pub verify_steps: Option<f64>,
    /// Tokens per verify step in between, bonus included; from counters, not from a gauge.
    pub accept_len: Option<f64>,
    /// Requests that lost their place in between.
    pub preemptions: Option<f64>,
    /// Every read.
    #[serde(skip)]
    pub(crate) reads: Vec<Read>,
}

/// One read.
pub(crate) type Read = (Instant, Scrape);

/// Reads the metrics until it is finished.
pub(crate) struct MetricsWatch {
    end: oneshot::Sender<()>,
    marks: mpsc::Sender<oneshot::Sender<()>>,
    task: JoinHandle<Result<Vec<Read>, String>>,
}

impl MetricsWatch {
    pub(crate) fn start(client: &Arc<Client>) -> MetricsWatch {
        let (end, ended) = oneshot::channel();
        let (marks, marked) = mpsc::channel(1);
        let task = tokio::spawn(watch(client.clone(), ended, marked));
        MetricsWatch { end, marks, task }
    }

    /// Reads now, so that what follows is told apart from what came before.
    pub(crate) async fn mark(&self) {
        let (done, is_done) = oneshot::channel();
        // A watch that has ended reads no more: both sides fail, which is all there is to say.
        if self.marks.send(done).await.is_ok() {
            let _ = is_done.await;
        }
    }

    /// Reads once more and sums up.
    pub(crate) async fn finish(self) -> Result<MetricsSummary, String> {
        // If the task is gone already, its result says why.
        let _ = self.end.send(());
        let reads = self.task.await.map_err(|error| format!("metrics: {error}"))??;
        let summary = summarise(&reads);
        Ok(MetricsSummary { reads, ..summary })
    }
}

async fn watch(
    client: Arc<Client>,
    mut ended: oneshot::Receiver<()>,
    mut marked: mpsc::Receiver<oneshot::Sender<()>>,
) -> Result<Vec<Read>, String> {
    let mut reads = Vec::new();
    let mut ticks = tokio::time::interval(INTERVAL);
    loop {
        let (last, mark) = tokio::select! {
            _ = &mut ended => (true, None),
            Some(mark) = marked.recv() => (false, Some(mark)),
            _ = ticks.tick() => (false, None),
        };
        match client.get("/metrics").await {
            Ok(text) if reads.len() < MOST => reads.push((Instant::now(), parse(&text))),
            Ok(_) => {}
            // A server without metrics is not asked again; one that misses a beat is.
            Err(error) if reads.is_empty() => return Err(error),
            Err(_) => {}
        }
        if let Some(mark) = mark {
            // Whoever asked may have given up.
            let _ = mark.send(());
        }
        if last {
            return Ok(reads);
        }
    }
}

fn summarise(reads: &[Read]) -> MetricsSummary {
    let (Some((begin, first)), Some((end, last))) = (reads.first(), reads.last()) else {
        return MetricsSummary::default();
    };
    let most =
        |metric| reads.iter().filter_map(|(_, scrape)| scrape.get(metric)).max_by(f64::total_cmp);
    let delta = difference(first, last);
    MetricsSummary {
        n: reads.len(),
        seconds: end.duration_since(*begin).as_secs_f64(),
        running_most: most(Metric::Running),
        waiting_most: most(Metric::Waiting),
        kv_usage_most: most(Metric::KvUsage),
        state_usage_most: most(Metric::StateUsage),
        generated_tokens: delta.get(Metric::GenerationTokens),
        prompt_tokens: delta.get(Metric::PromptTokens),
        cached_tokens: delta.get(Metric::CachedTokens),
        verify_steps: delta.get(Metric::VerifySteps),
        accept_len: delta.accept_len(),
        preemptions: delta.get(Metric::Preemptions),
        reads: Vec::new(),
    }
}

/// What was counted between two reads; a counter that fell has been restarted and says nothing.
fn difference(first: &Scrape, last: &Scrape) -> Scrape {
    let grown = |(metric, value): (&Metric, &f64)| {
        let before = first.get(*metric).unwrap_or(0.0);
        (*value >= before).then_some((*metric, value - before))
    };
    Scrape { engine: last.engine, values: last.values.iter().filter_map(grown).collect() }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use dialects::metrics::parse;
    use tokio::time::Instant;

    use super::summarise;

    #[test]
    fn counters_are_compared_and_gauges_peak() {
        let begin = Instant::now();
        let read = |seconds, running, tokens, steps| {
            let text = format!(
                "sglang:num_running_reqs {running}\nsglang:generation_tokens_total {tokens}\n\
                 sglang:spec_verify_calls_total {steps}\n"
            );
            (begin + Duration::from_secs(seconds), parse(&text))
        };
        let summary =
            summarise(&[read(0, 0, 1000, 900), read(1, 5, 1100, 940), read(2, 1, 1280, 1000)]);
        assert_eq!((summary.n, summary.seconds), (3, 2.0));
        assert_eq!(summary.running_most, Some(5.0));
        assert_eq!(summary.generated_tokens, Some(280.0));
        assert_eq!(summary.accept_len, Some(2.8), "from the difference, not the lifetime");
        assert_eq!(summary.waiting_most, None);
    }

    #[test]
    fn a_restarted_counter_says_nothing() {
        let now = Instant::now();
        let read = |tokens| (now, parse(&format!("sglang:generation_tokens_total {tokens}\n")));
        assert_eq!(summarise(&[read(1000), read(10)]).generated_tokens, None);
        assert_eq!(summarise(&[]).n, 0);
    }
}
