//! Test fixtures: goldens, the scripted model, an HTTP client.

pub mod scripted;
