//! Statistics over few, skewed, noisy samples: medians, ranks and resampling, no means.
//!
//! Callers pass finite numbers; every function answers `None` where there are too few of them.

pub mod change;
mod distribution;
pub mod median;
pub mod rank;

pub use change::{ChangePoint, change_points};
pub use median::{Estimate, median, median_interval, quantile};
pub use rank::{RankTest, holm, mann_whitney, shift, signed_rank, walsh};

#[cfg(test)]
mod tests;
