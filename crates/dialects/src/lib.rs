//! What SGLang, vLLM, llama.cpp and Outrider call things, by version.
//!
//! Text in, typed values out: flags and their aliases, defaults and meaning; command lines, units, compose files
//! and shell histories; log lines; benchmark tables; metric names; info endpoints.
//! Every number carries its definition, because the engines use the same name for different quantities.
//! This crate does no IO, never panics on any bytes, and treats everything it reads as data.

pub mod benchmark;
pub mod command;
pub mod compose;
pub mod config;
pub mod effective;
pub mod engine;
pub mod factor;
pub mod flags;
pub mod history;
pub mod info;
pub mod ledger;
pub mod log;
pub mod metrics;
pub mod pyrepr;
pub mod redact;
pub mod shell;
pub mod unit;
pub mod value;
pub mod yaml;

pub use command::{Command, find_commands, from_argv};
pub use config::{Config, Difference, Key, Setting};
pub use effective::{Effective, Why};
pub use engine::{Engine, Version};
pub use factor::{Factor, Kind};
pub use value::Value;
