//! Collects evidence. Each collector is guarded: what it cannot read becomes a stated gap, never an error.

pub mod client;
mod folder;
pub mod gpu;
mod gpu_tables;
mod host;
pub mod launch;
pub mod live;
pub mod probe;
pub mod process;
pub mod ssh;

pub use folder::{add_text, from_folder};
pub use host::{add_log, add_log_stream, from_host};
