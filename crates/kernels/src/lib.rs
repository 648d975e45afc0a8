//! Tensor operations on the CPU and the worker pool.
