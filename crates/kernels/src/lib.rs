//! Tensor operations on the CPU and the worker pool.

mod span;

pub use span::Span;
