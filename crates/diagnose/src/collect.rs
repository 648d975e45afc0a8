//! Collects evidence. Each collector is guarded: what it cannot read becomes a stated gap, never an error.

pub mod client;
mod folder;
pub mod gpu;
mod gpu_tables;
pub mod launch;
pub mod probe;

pub use folder::from_folder;
