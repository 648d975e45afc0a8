//! What other engines make of a model, a device and their flags, by their own arithmetic.
//!
//! SGLang, vLLM and llama.cpp size their pools by rules that users rarely see; our own server stands beside them.
//! Each has a file here; [`shape`] counts bytes, [`speed`] turns bytes into time.

pub mod args;
pub mod command;
pub mod device;
pub mod known;
pub mod llamacpp;
pub mod outrider;
pub mod report;
pub mod sglang;
pub mod shape;
pub mod speed;
pub mod version;
pub mod vllm;

use self::args::{Engine, EngineArgs};
use self::report::EnginePlan;

/// Bytes in one GiB, the unit that all three engines print as "GB" or "GiB".
pub const GIB: f64 = (1_u64 << 30) as f64;

/// Why an engine would not start with these flags, or why that cannot be said.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum EngineError {
    /// A text that is not what it should be: a device, a version, a number format.
    #[error("cannot read {what} {text:?}: {expected}")]
    Syntax {
        /// What was read.
        what: &'static str,
        /// The text.
        text: String,
        /// What it should look like.
        expected: &'static str,
    },
    /// A flag that the engine does not have.
    #[error("{engine} has no flag {flag} that this arithmetic knows: {hint}")]
    UnknownFlag {
        /// Engine and release.
        engine: String,
        /// As it was written.
        flag: String,
        /// What is meant, or what to do.
        hint: String,
    },
    /// A flag with a value that it does not take.
    #[error("{flag} {word}: expected {expected}")]
    Flag {
        /// As it was written.
        flag: String,
        /// Its value.
        word: String,
        /// What it takes.
        expected: String,
    },
    /// A `config.json` that lacks a field.
    #[error("config.json has no usable `{0}`")]
    Config(&'static str),
    /// The engine refuses to start, or starts and cannot serve.
    #[error("{0}")]
    Refuses(String),
}

/// What the engine would do with these arguments.
///
/// # Errors
/// When the engine would refuse to start, with the reason that it would give.
pub fn plan(args: &EngineArgs) -> Result<EnginePlan, EngineError> {
    let (tp, n) = (args.flags.tp, args.device.count);
    if tp == 0 || n < tp {
        return Err(EngineError::Refuses(format!("{tp} parallel ranks do not fit {n} devices")));
    }
    match args.engine {
        Engine::Sglang(version) => sglang::plan(args, version),
        Engine::Vllm(_) => vllm::plan(args),
        Engine::LlamaCpp => llamacpp::plan(args),
        Engine::Outrider => outrider::plan(args),
    }
}
