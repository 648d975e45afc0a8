//! What was measured and found good, kept to be compared with later.
//!
//! A baseline is a file of JSON lines that is only ever appended to, one line per saved run with
//! every request in it, so that later tests have samples to rank and not only means.

mod check;
mod store;

pub use check::{Check, History, Metric, Row, Verdict, check, history};
pub use store::{Entry, Listed, Store};

/// Why a baseline cannot be kept or compared.
#[derive(Debug, thiserror::Error)]
pub enum BaselineError {
    /// A name that could be a path or an option.
    #[error("{0:?} is not a baseline name: letters, digits, '.', '_' and '-', at most 64")]
    Name(String),
    /// Nothing was saved under the name.
    #[error("there is no baseline {0:?}")]
    Missing(String),
    /// Other work was measured, so a difference would say nothing.
    #[error("the workload differs in {what}: {before} then, {now} now")]
    DifferentWorkload {
        /// The field.
        what: &'static str,
        /// Its saved value.
        before: String,
        /// Its present value.
        now: String,
    },
    /// The files cannot be read or written.
    #[error("{path}: {source}")]
    Io {
        /// File or folder.
        path: String,
        /// What the system says.
        source: std::io::Error,
    },
}

#[cfg(test)]
mod tests;
