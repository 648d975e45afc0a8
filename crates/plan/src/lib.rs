//! Bytes and times: every size the server uses, decided before it starts.

mod bytes;
pub mod engines;
mod error;
mod host;
mod options;
mod pools;
mod server;
mod units;

pub use bytes::{BLOCK_LEN, CARRY_ROWS, KvType, ModelBytes, Quantization, WeightBytes};
pub use error::PlanError;
pub use host::{Host, HostError, MemoryLimit};
pub use options::{DEFAULT_RUNNING, PlanOptions};
pub use pools::plan;
pub use server::{Limit, Plan, Setting, Unfit};
