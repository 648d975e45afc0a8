//! Tensor operations on the CPU and the worker pool.
//!
//! Activations are f32, weights f32 or bf16 as stored, or of 8 or 4 bits. Every output is a fixed
//! sequence of f32 operations and exact integer sums, so it has the same bits on every instruction
//! set and with any number of rows, threads and chunks: that is what lets speculation, batching
//! and prefix reuse be exact.
//!
//! An operation is written once, as a function over sixteen lanes (`lanes`, `math`), compiled for
//! each instruction set (`isa`) and run on the pool's threads (`pool`, `cpu`). `tile` is the one
//! inner loop of float matrix products (`matrix`, `matmul`) and attention (`kv_store`,
//! `attention`); products with quantised weights (`quant`) are written over sixteen integer lanes
//! (`dot`) in the same way;
//! `conv` and `delta_net` advance the recurrent state (`state_store`).

// The one crate that may: vector instructions, tasks that write disjoint parts, huge pages.
#![allow(unsafe_code)]

mod activation;
mod attention;
#[cfg(test)]
mod attention_tests;
mod bandwidth;
mod conv;
mod cpu;
mod delta_net;
#[cfg(test)]
mod delta_net_tests;
mod dot;
mod heads;
mod isa;
mod kv_int8;
mod kv_store;
mod lanes;
mod math;
mod matmul;
mod matrix;
mod memory;
mod norm;
mod pool;
mod quant;
mod rope;
mod softmax;
mod span;
mod state_store;
#[cfg(test)]
mod testing;
mod tile;
mod weight_data;

pub use bandwidth::read_bandwidth;
pub use conv::ConvWeight;
pub use cpu::Cpu;
pub use delta_net::{DeltaInput, DeltaParams};
pub use dot::DotIsa;
pub use heads::{Fused, Heads};
pub use isa::Isa;
pub use kv_store::{KV_BLOCK, KvShape, KvStore, KvType};
pub use matrix::{Bits, Matrix, Part, WeightFormat};
pub use rope::Rope;
pub use span::Span;
pub use state_store::{DeltaShape, StateStore};
pub use weight_data::WeightData;

/// A model is moved to the thread that runs it.
const _: fn() = || {
    fn is_send<T: Send>() {}
    is_send::<(Cpu, Matrix, KvStore, StateStore)>();
};
