//! The networks: forward over a flat batch of rows, and the draft head.

pub mod batch;
