//! The report: one value, shown as text, JSON, Markdown and HTML.

mod build;
mod notices;
mod sides;

pub use build::build;
pub(crate) use build::value;
pub use sides::{Both, StepReport};

use dialects::{Engine, Kind};
use serde_json::Value as Json;

use crate::finding::{Fix, Prediction};
use crate::losses::{Loss, Test};
use crate::quantity::Quantity;
use crate::rank::Suspect;
use crate::stats::Estimate;

/// The verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The server, or its machine, got worse.
    Regression,
    /// Other requests are sent.
    WorkloadChange,
    /// More requests come than the server can run.
    Capacity,
    /// The server is as it was; the client is not.
    NoServerRegression,
    /// Nothing got worse.
    NoRegression,
    /// The evidence does not suffice.
    Inconclusive,
}

impl Verdict {
    /// The name in the JSON report.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Regression => "regression",
            Verdict::WorkloadChange => "workload_change",
            Verdict::Capacity => "capacity",
            Verdict::NoServerRegression => "no_server_regression",
            Verdict::NoRegression => "no_regression",
            Verdict::Inconclusive => "inconclusive",
        }
    }

    /// The verdict that a cause of some kind gives.
    pub fn of_cause(kind: Kind) -> Verdict {
        match kind {
            Kind::Config | Kind::Environment => Verdict::Regression,
            Kind::Workload => Verdict::WorkloadChange,
            Kind::Client => Verdict::NoServerRegression,
            Kind::Load => Verdict::Capacity,
        }
    }
}

/// One number of the report on both sides.
#[derive(Clone, Debug)]
pub struct Row {
    /// What it is.
    pub quantity: Quantity,
    /// Before, with its source.
    pub before: Option<(Estimate, String)>,
    /// Now, with its source.
    pub now: Option<(Estimate, String)>,
    /// Further keys of the JSON report.
    pub extra: Vec<(&'static str, Json)>,
}

/// The whole report.
#[derive(Clone, Debug)]
pub struct Report {
    /// The verdict.
    pub verdict: Verdict,
    /// One sentence.
    pub summary: String,
    /// Exit code of the command.
    pub exit_code: u8,
    /// The engine that serves, with its version where known.
    pub engine: Engine,
    /// Its version.
    pub version: Option<String>,
    /// The model.
    pub model: Option<String>,
    /// The address of the server, where a running one was asked.
    pub target: Option<String>,
    /// Requests that want to run now.
    pub demand: f64,
    /// What the operator said, one safe line.
    pub complaint: Option<String>,
    /// Whether the first suspect is named as the cause.
    pub has_cause: bool,
    /// A short name of the way in which the cause acts, or of what made somebody believe in a loss that is none.
    pub mechanism: Option<&'static str>,
    /// The same in one sentence.
    pub how: Option<String>,
    /// The quantity by which the loss is felt.
    pub symptom: Option<&'static str>,
    /// When it changed, as far as the traces tell.
    pub timing: Vec<String>,
    /// The suspects in rank order.
    pub suspects: Vec<Suspect>,
    /// What got worse.
    pub losses: Vec<Loss>,
    /// The numbers.
    pub rows: Vec<Row>,
    /// The decomposition of now, client and server side by side.
    pub sides: Vec<Both>,
    /// Where the step time went, for a server that tells it.
    pub step: Option<StepReport>,
    /// Layers on the device before and now, for llama.cpp.
    pub offloaded: Option<(Option<String>, Option<String>)>,
    /// The test of single requests.
    pub test: Option<Test>,
    /// What to change.
    pub fix: Option<Fix>,
    /// What the change should give.
    pub predicted: Option<Prediction>,
    /// What was measured after a fix, where the evidence has it.
    pub validated: Vec<(String, f64, String)>,
    /// What it costs elsewhere.
    pub costs: Vec<String>,
    /// What a reader should know besides.
    pub notices: Vec<String>,
    /// What the report claims, in the fewest words.
    pub claims: Vec<String>,
    /// The cheapest next test, when something is undecided.
    pub next_test: Option<String>,
    /// What could not be judged or read.
    pub gaps: Vec<String>,
    /// Where the configurations of both sides were found.
    pub places: (Option<String>, Option<String>),
    /// Settings that differ, before and now, with what a difference can do.
    pub differences: Vec<(String, Json, Json, &'static str)>,
}

impl Report {
    /// A row of the report.
    pub fn row(&self, quantity: Quantity) -> Option<&Row> {
        self.rows.iter().find(|row| row.quantity == quantity)
    }

    /// A number on both sides.
    pub fn both(&self, quantity: Quantity) -> Option<(f64, f64)> {
        let row = self.row(quantity)?;
        Some((row.before.as_ref()?.0.value, row.now.as_ref()?.0.value))
    }

    /// A number now.
    pub fn now(&self, quantity: Quantity) -> Option<f64> {
        self.row(quantity)?.now.as_ref().map(|(estimate, _)| estimate.value)
    }
}
