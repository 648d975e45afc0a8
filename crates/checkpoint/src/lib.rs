//! Checkpoints: Hugging Face folders, GGUF files, the hub, and typed configuration.
//!
//! [`Checkpoint::open`] checks everything that can be checked without reading a weight: the
//! configuration is one that the networks honour, and every tensor they need is in the files,
//! whole, with the shape that the configuration implies.
//! After that, [`Checkpoint::tensor`] maps one tensor at a time.

mod checkpoint;
pub mod config;
mod decode;
mod dtype;
mod error;
mod fields;
mod files;
mod fingerprint;
mod found;
mod fp8;
mod generation;
mod gguf;
pub mod hub;
pub mod names;
mod restore;
mod rope;
mod safetensors;
mod shard;
mod tensor;

pub use checkpoint::{Checkpoint, DraftHead, Skipped};
pub use config::ModelConfig;
pub use dtype::DType;
pub use error::CheckpointError;
pub use files::EmbeddedFiles;
pub use fp8::Fp8;
pub use generation::GenerationConfig;
pub use tensor::Tensor;
