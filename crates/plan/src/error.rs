//! Why there is no plan, and which flag to change.

use crate::units::Bytes;

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// A flag has a value that means nothing here.
    #[error("{flag}: {problem}")]
    Flag {
        /// As typed.
        flag: &'static str,
        /// What is wrong, and what would be right.
        problem: String,
    },
    /// Weights and buffers alone are more than the budget.
    #[error(
        "the weights take {} and the buffers {} but the budget is {} ({} of {} that this process may \
         use); {advice}",
        Bytes(*.weights), Bytes(*.scratch), Bytes(*.budget), .fraction, Bytes(*.memory)
    )]
    Weights {
        /// Bytes of the packed weights.
        weights: u64,
        /// Bytes of the activation buffers.
        scratch: u64,
        /// Bytes that all parts together may take.
        budget: u64,
        /// Share of the memory.
        fraction: f64,
        /// Bytes that this process may use.
        memory: u64,
        /// Which flags would help.
        advice: String,
    },
    /// The recurrent-state slots that were asked for leave too little, or do not fit.
    #[error(
        "{n_slots} recurrent-state slots of {} take {} but {} are left beside weights, buffers and \
         the KV of one request; {advice}",
        Bytes(*.slot), Bytes(.slot.saturating_mul(*.n_slots as u64)), Bytes(*.left)
    )]
    Slots {
        /// Slots wanted.
        n_slots: usize,
        /// Bytes of one.
        slot: u64,
        /// Bytes that are left for them.
        left: u64,
        /// Which flags would help.
        advice: String,
    },
    /// One request of the wanted length does not fit.
    #[error(
        "a context of {context} tokens needs {} of KV but {} are left; {advice}",
        Bytes(*.needs), Bytes(*.left)
    )]
    Context {
        /// Tokens of the request.
        context: usize,
        /// Bytes of its KV.
        needs: u64,
        /// Bytes that are left for KV.
        left: u64,
        /// The longest context that would fit, 0 if none.
        fits: usize,
        /// Which flags would help.
        advice: String,
    },
}
