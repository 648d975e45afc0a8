//! Everything that was collected, as one value that can be saved and judged again later, offline.
//!
//! Nothing in it is raw: logs are windows, configurations are redacted settings, foreign text is one safe line.

use dialects::benchmark::Table;
use dialects::info::Info;
use dialects::metrics::Scrape;
use serde::{Deserialize, Serialize};

use crate::collect::client::{ClientChange, ClientLog};
use crate::collect::gpu::GpuSnapshot;
use crate::collect::launch::Launch;
use crate::collect::probe::Probe;
use crate::configs::{Edit, Found};
use crate::logs::LogSummary;
use dialects::info::StepTimes;

/// The name of the saved form.
pub const SCHEMA: &str = "evidence/1";

/// To which side of the comparison a piece belongs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// Taken while it was still good, or from a saved baseline.
    Before,
    /// Taken now.
    Now,
    /// Taken after a fix; never used to find the cause, only to check the prediction.
    After,
    /// Found on the host without a label.
    #[default]
    Open,
}

/// One piece of evidence with its origin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Item<T> {
    /// Which side it speaks for.
    pub side: Side,
    /// Where it comes from: a path below the collected folder, or an endpoint.
    pub source: String,
    /// The piece itself.
    pub what: T,
}

/// Everything that was collected.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// The name of this form, [`SCHEMA`].
    pub schema: String,
    /// The address of the running server, where one was asked.
    #[serde(default)]
    pub target: Option<String>,
    /// What the operator says: untrusted, one safe line.
    pub complaint: Option<String>,
    /// Notes found beside it, likewise untrusted.
    pub notes: Vec<Item<String>>,
    /// Server logs.
    pub logs: Vec<Item<LogSummary>>,
    /// Measured requests.
    pub probes: Vec<Item<Probe>>,
    /// Result tables of benchmark tools.
    pub tables: Vec<Item<Table>>,
    /// Metric snapshots.
    pub scrapes: Vec<Item<Scrape>>,
    /// Answers of information endpoints.
    pub infos: Vec<Item<Info>>,
    /// Where the time of Outrider's steps went.
    #[serde(default)]
    pub steps: Vec<Item<StepTimes>>,
    /// States of the devices.
    pub gpus: Vec<Item<GpuSnapshot>>,
    /// Configurations, from every place where one was found.
    pub configs: Vec<Found>,
    /// Dated edits of configurations.
    pub edits: Vec<Edit>,
    /// Launch records with what they measured.
    pub launches: Vec<Item<Launch>>,
    /// Logs of client programs.
    pub client_logs: Vec<Item<ClientLog>>,
    /// Changes of client programs.
    pub client_changes: Vec<Item<ClientChange>>,
    /// The model's `config.json`, where it was found.
    #[serde(default)]
    pub model: Option<serde_json::Value>,
    /// What could not be read or is missing, and why.
    pub gaps: Vec<String>,
}

impl Evidence {
    /// Nothing collected yet.
    pub fn new() -> Evidence {
        Evidence { schema: SCHEMA.to_owned(), ..Evidence::default() }
    }

    /// The saved form.
    ///
    /// # Errors
    /// When a number cannot be written as JSON.
    pub fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string(self)
    }

    /// Reads the saved form.
    ///
    /// # Errors
    /// When the text is not saved evidence of this version.
    pub fn from_json(text: &str) -> Result<Evidence, crate::Error> {
        let evidence: Evidence = serde_json::from_str(text)
            .map_err(|error| crate::Error::Evidence(error.to_string()))?;
        if evidence.schema == SCHEMA {
            Ok(evidence)
        } else {
            Err(crate::Error::Evidence(format!("schema is {:?}, not {SCHEMA:?}", evidence.schema)))
        }
    }

    /// Adds everything of another collection.
    pub fn merge(&mut self, other: Evidence) {
        self.target = self.target.take().or(other.target);
        self.complaint = self.complaint.take().or(other.complaint);
        self.notes.extend(other.notes);
        self.logs.extend(other.logs);
        self.probes.extend(other.probes);
        self.tables.extend(other.tables);
        self.scrapes.extend(other.scrapes);
        self.infos.extend(other.infos);
        self.steps.extend(other.steps);
        self.gpus.extend(other.gpus);
        self.configs.extend(other.configs);
        self.edits.extend(other.edits);
        self.launches.extend(other.launches);
        self.client_logs.extend(other.client_logs);
        self.client_changes.extend(other.client_changes);
        self.model = self.model.take().or(other.model);
        self.gaps.extend(other.gaps);
    }

    /// The pieces of one kind that speak for a side.
    pub fn of<T>(items: &[Item<T>], side: Side) -> impl Iterator<Item = &Item<T>> {
        items.iter().filter(move |item| item.side == side)
    }
}
