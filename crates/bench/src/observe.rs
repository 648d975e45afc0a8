//! Looks at the server while it is measured, so that both sides are seen in the same seconds.
//!
//! Everything here only reads, and whatever cannot be read is a stated gap, never an error.

pub mod gpu;
pub mod log_tail;
pub mod metrics;
pub mod server;

use std::sync::Arc;
use std::time::Duration;

use dialects::metrics::Scrape;
use serde::Serialize;
use tokio::time::Instant;

use self::gpu::{GpuSummary, GpuWatch};
use self::log_tail::{LogSource, LogSummary, LogTail};
use self::metrics::{MetricsSummary, MetricsWatch};
use self::server::{Seen, ServerSide};
use crate::client::Client;
use crate::report::Run;
use crate::sample::Sample;
use crate::stats::median;

/// What was seen of the server during the load.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Observed {
    /// Its metrics.
    pub metrics: Option<MetricsSummary>,
    /// Its log.
    pub log: Option<LogSummary>,
    /// The GPUs of this host.
    pub gpus: Vec<GpuSummary>,
    /// What could not be seen, and why.
    pub gaps: Vec<String>,
}

/// The observers of a running probe.
pub(crate) struct Observers {
    log: Option<LogTail>,
    metrics: MetricsWatch,
    gpu: Option<GpuWatch>,
    gaps: Vec<String>,
}

/// When a load began and ended.
pub(crate) type Span = (Instant, Instant);

/// What an engine writes about the last steps comes this much after the last answer.
const LATE: Duration = Duration::from_millis(300);

impl Observed {
    /// What the server said about one load.
    pub(crate) fn server_side(&self, (begin, end): Span, run: &Run) -> ServerSide {
        let inside = |at: Instant, late: Duration| begin <= at && at <= end + late;
        let reads = self.metrics.iter().flat_map(|metrics| &metrics.reads);
        let scrapes: Vec<Scrape> = reads
            .filter(|(at, _)| inside(*at, Duration::ZERO))
            .map(|(_, scrape)| scrape.clone())
            .collect();
        let records: Vec<_> = self
            .log
            .iter()
            .flat_map(|log| log.records.iter().zip(&log.read_at))
            .filter(|(_, at)| inside(Instant::from_std(**at), LATE))
            .map(|(record, _)| record.clone())
            .collect();
        let speeds: Vec<f64> = run.requests.iter().filter_map(Sample::decode_tok_s).collect();
        Seen {
            scrapes: &scrapes,
            records: &records,
            stream_tok_s: median(&speeds),
            n_answers: run.requests.len(),
        }
        .sum_up()
    }
}

impl Observers {
    pub(crate) fn start(client: &Arc<Client>, source: Option<&LogSource>) -> Observers {
        let mut gaps = Vec::new();
        let log = source.and_then(|source| match LogTail::start(source) {
            Ok(tail) => Some(tail),
            Err(error) => {
                gaps.push(format!("log {source}: {error}"));
                None
            }
        });
        let gpu = match client.is_local() {
            true => GpuWatch::start(),
            false => {
                gaps.push(
                    "GPU: the server is on another machine, nvidia-smi would show this one"
                        .to_owned(),
                );
                None
            }
        };
        if gpu.is_none() && client.is_local() {
            gaps.push("GPU: nvidia-smi shows none here; a server on the CPU needs none".to_owned());
        }
        Observers { log, metrics: MetricsWatch::start(client), gpu, gaps }
    }

    /// Reads the counters now: a stretch begins or ends here.
    pub(crate) async fn mark(&self) {
        self.metrics.mark().await;
    }

    pub(crate) async fn finish(self) -> Observed {
        let mut gaps = self.gaps;
        let metrics = self.metrics.finish().await.map_err(|gap| gaps.push(gap)).ok();
        // The last lines of a log come a moment after the answer; ending a tail may block as long.
        let threads = tokio::task::spawn_blocking(move || {
            (self.log.map(LogTail::finish), self.gpu.map(GpuWatch::finish).unwrap_or_default())
        });
        let (log, gpus) = threads.await.unwrap_or_default();
        gaps.extend(log.as_ref().and_then(|log| log.gap.clone()));
        Observed { metrics, log, gpus, gaps }
    }
}
