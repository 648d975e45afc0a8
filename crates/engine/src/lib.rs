//! One thread that owns all inference state: schedule, forward, sample, commit.

pub mod config;
pub mod error;
pub mod handle;
mod history;
mod noise;
pub mod request;
mod sampler;
