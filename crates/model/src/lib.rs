//! The networks: forward over a flat batch of rows, and the draft head.
//!
//! [`Model`] is the real implementation of [`batch::Forward`]; `block` is one decoder layer,
//! `network` runs all of them, `draft_head` the multi-token-prediction layer behind them.

pub mod batch;
pub mod load;
pub mod network;

mod block;
mod draft_head;
mod scratch;
mod weights;

#[cfg(test)]
mod tests;

pub use network::Model;
