//! Test fixtures: goldens, the scripted model, an HTTP client.

pub mod client;
pub mod scripted;
