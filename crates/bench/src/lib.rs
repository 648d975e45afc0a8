//! Load generation and statistics against an OpenAI-compatible server.
//!
//! [`probe::probe`] measures a server and never its client: times count from the intended send time,
//! tokens come from the server's usage, and every number has an interval or says that it has none.
//! [`baseline`] keeps what was measured and tells later whether it still holds.

pub mod probe;

pub mod load;
pub mod prompts;

mod answer;
mod busy;
mod client;
pub mod sample;

pub mod observe;
pub mod stats;
pub mod summary;

pub mod baseline;
pub mod progress;
pub mod report;
pub mod stop;

pub use busy::Activity;

#[cfg(test)]
mod tests;
