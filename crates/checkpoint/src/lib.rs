//! Checkpoints: Hugging Face folders, the hub, and typed configuration.
//!
//! [`Checkpoint::open`] checks everything that can be checked without reading a weight: the
//! configuration is one that the networks honour, and every tensor they need is in the files,
//! whole, with the shape that the configuration implies.
//! After that, [`Checkpoint::tensor`] maps one tensor at a time.

mod checkpoint;
pub mod config;
mod error;
mod fields;
mod fingerprint;
mod generation;
pub mod hub;
pub mod names;
mod rope;
mod safetensors;

pub use checkpoint::{Checkpoint, DraftHead, EmbeddedFiles, Skipped};
pub use config::ModelConfig;
pub use error::CheckpointError;
pub use generation::GenerationConfig;
pub use safetensors::{DType, Tensor};
