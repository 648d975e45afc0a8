//! One thread that owns all inference state: schedule, forward, sample, commit.
//!
//! A request enters through `handle`, is taken in by `engine`, waits and runs in `scheduler` as the
//! `sequence` it became, and leaves by `Engine::end`. What happens in between is `step`, read top down.

mod commit;
pub mod config;
mod depth;
mod draft;
pub mod engine;
pub mod error;
pub mod handle;
mod history;
mod noise;
pub mod request;
mod sampler;
mod scheduler;
mod sequence;
mod snapshots;
mod step;
mod verify;

#[cfg(test)]
mod tests;
