//! One thread that owns all inference state: schedule, forward, sample, commit.

pub mod config;
pub mod error;
pub mod handle;
pub mod request;
