//! Looks at the server while it is measured, so that both sides are seen in the same seconds.
//!
//! Everything here only reads, and whatever cannot be read is a stated gap, never an error.

pub mod gpu;
pub mod log_tail;
pub mod metrics;

use std::sync::Arc;

use serde::Serialize;

use self::gpu::{GpuSummary, GpuWatch};
use self::log_tail::{LogSource, LogSummary, LogTail};
use self::metrics::{MetricsSummary, MetricsWatch};
use crate::client::Client;

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
        Observers { log, metrics: MetricsWatch::start(client), gpu: GpuWatch::start(), gaps }
    }

    pub(crate) async fn finish(self) -> Observed {
        let mut gaps = self.gaps;
        let metrics = self.metrics.finish().await.map_err(|gap| gaps.push(gap)).ok();
        // The last lines of a log come a moment after the answer; ending a tail may block as long.
        let threads = tokio::task::spawn_blocking(move || {
            (self.log.map(LogTail::finish), self.gpu.map(GpuWatch::finish).unwrap_or_default())
        });
        let (log, gpus) = threads.await.unwrap_or_default();
        Observed { metrics, log, gpus, gaps }
    }
}
