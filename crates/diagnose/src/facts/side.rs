//! One side of the comparison.

use std::collections::BTreeMap;

use crate::collect::gpu::GpuSnapshot;
use crate::collect::probe::Probe;
use crate::evidence::Item;
use crate::facts::InForce;
use crate::logs::{Run, Window};
use crate::quantity::Quantity;
use crate::stats::Estimate;
use dialects::benchmark::Table;

/// A number with where it comes from.
#[derive(Clone, Debug, PartialEq)]
pub struct Fact {
    /// The number and its interval.
    pub estimate: Estimate,
    /// File, probe or endpoint.
    pub source: String,
}

/// The numbers of one side.
#[derive(Clone, Debug, Default)]
pub struct Facts(BTreeMap<Quantity, Fact>);

impl Facts {
    /// Adds a number; one that is there already comes from a better source and stays.
    pub fn add(&mut self, quantity: Quantity, estimate: Option<Estimate>, source: &str) {
        if let Some(estimate) = estimate.filter(|e| e.value.is_finite()) {
            self.0.entry(quantity).or_insert_with(|| Fact { estimate, source: source.to_owned() });
        }
    }

    /// Adds a number without an interval.
    pub fn state(&mut self, quantity: Quantity, value: Option<f64>, source: &str) {
        self.add(quantity, value.map(Estimate::exact), source);
    }

    /// A number with its source.
    pub fn fact(&self, quantity: Quantity) -> Option<&Fact> {
        self.0.get(&quantity)
    }

    /// A number.
    pub fn get(&self, quantity: Quantity) -> Option<f64> {
        self.0.get(&quantity).map(|fact| fact.estimate.value)
    }
}

/// One side: what was in force, what was measured, and the numbers.
#[derive(Debug)]
pub struct SideView<'a> {
    /// The configuration in force, where one is known.
    pub in_force: Option<InForce<'a>>,
    /// The run of the server that speaks for this side, with its log's path.
    pub run: Option<(&'a str, &'a Run)>,
    /// Windows of users' requests: those that a probe made are left out where users' remain.
    pub windows: Vec<&'a Window>,
    /// Probes.
    pub probes: Vec<&'a Item<Probe>>,
    /// Benchmark tables.
    pub tables: Vec<&'a Item<Table>>,
    /// The last look at the devices.
    pub gpu: Option<(&'a str, &'a GpuSnapshot)>,
    /// The numbers.
    pub facts: Facts,
}

impl SideView<'_> {
    /// A number of this side.
    pub fn get(&self, quantity: Quantity) -> Option<f64> {
        self.facts.get(quantity)
    }

    /// The path of the log, for evidence lines.
    pub fn log(&self) -> &str {
        self.run.map_or("", |(path, _)| path)
    }

    /// Whether anything at all was measured.
    pub fn is_measured(&self) -> bool {
        !self.windows.is_empty() || !self.probes.is_empty() || !self.tables.is_empty()
    }
}
