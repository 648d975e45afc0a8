//! Warnings that matter, with the numbers in them. One table; a line that no needle touches costs one search.

use std::sync::LazyLock;

use memchr::memmem;
use regex::bytes::Regex;

use super::scan::{number, number_after};

/// A line that an operator should see.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Warning {
    /// What it says.
    pub kind: WarningKind,
    /// A number before, or asked for, where the line has one.
    pub from: Option<f64>,
    /// The number that took its place.
    pub to: Option<f64>,
}

macro_rules! warnings {
    ($($variant:ident, $says:literal, [$($needle:literal),+];)+) => {
        /// Kinds of warnings; [`WarningKind::says`] tells each in plain words.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[allow(missing_docs)]
        pub enum WarningKind { $($variant,)+ }

        impl WarningKind {
            /// The warning in plain words.
            pub fn says(self) -> &'static str {
                match self { $(WarningKind::$variant => $says,)+ }
            }
        }

        const NEEDLES: &[(&str, WarningKind)] = &[$($(($needle, WarningKind::$variant),)+)+];
    };
}

warnings! {
    RunningReset, "no running limit was given, so speculation set it to 48 and reserved state for as many",
        ["Max running requests is reset to"];
    RunningCappedByState, "the state slots allow fewer running requests than asked",
        ["is capped to"];
    RunningReducedByKv, "the KV pool allows fewer running requests than asked",
        ["max_running_requests was reduced from"];
    OverlapOff, "the overlap scheduler is off because the state strategy cannot go with it",
        ["Disabling overlap schedule since", "Overlap scheduler is disabled"];
    PrefixCacheOff, "the prefix cache was switched off because speculation cannot go with it here",
        ["Disabling radix cache since"];
    SpecRefused, "speculation and the prefix cache do not go together with this state strategy",
        ["is not compatible with radix cache when using"];
    SpecSynchronous, "speculation runs without overlap",
        ["Spec v1 is used", "Non-overlap (synchronous) spec v2 is used"];
    DraftTokensAdjusted, "the number of draft tokens was set to steps + 1",
        ["speculative_num_draft_tokens is adjusted to"];
    OutOfStateSlots, "the state pool was full",
        ["Not enough space for mamba cache", "Not enough space for mamba ping pong", "state cache is too small to serve"];
    OutOfMemory, "memory did not suffice",
        ["Not enough memory. Please try", "Loaded weights leave no GPU memory", "CUDA out of memory", "torch.OutOfMemoryError", "Not enough GPU memory for hybrid"];
    GraphCaptureFailed, "capturing graphs failed",
        ["Capture cuda graph failed"];
    GraphsOff, "steps run without device graphs",
        ["Cudagraph is disabled", "Enforce eager set", "CUDA graph is disabled", "cudagraph_mode is set to NONE", "Disable cuda graph", "cuda graph is disabled"];
    Upcast, "weights were cast to a wider number type",
        ["Upcasting torch."];
    Downcast, "weights were cast to another number type",
        ["Downcasting torch.", "Casting torch."];
    AdaptiveSteps, "the draft depth changed while running",
        ["Adaptive spec params updated: steps"];
    HealthFailed, "the health check got no answer",
        ["Health check failed"];
    PromptReprocessed, "a prompt was computed again in full because no usable state was kept",
        ["forcing full prompt re-processing"];
    FitReduced, "the model did not fit, so layers were left on the host",
        ["cannot meet free memory target"];
    ContextReduced, "the context was made smaller to fit",
        ["context size reduced", "n_ctx_per_seq", "decreasing max_model_len"];
    KvTooSmall, "the KV pool is smaller than the longest request allowed",
        ["larger than the maximum number of tokens that can be stored in KV cache"];
    Preempted, "running requests were preempted for lack of KV",
        ["is preempted by"];
    KvLimitIgnored, "the asked KV size was larger than what fits and was ignored",
        ["max_total_tokens=", "is larger than the profiled value"];
    DraftInactive, "drafting was asked for and is not active",
        ["speculative decoding is not supported", "no implementations specified for speculative decoding"];
    CustomAllreduceOff, "the engine's own all-reduce is off",
        ["Custom allreduce is disabled", "custom allreduce is disabled"];
    Throttled, "the device reports throttling",
        ["thermal slowdown", "HW Thermal Slowdown"];
}

static ANY: LazyLock<Regex> = LazyLock::new(|| {
    let pattern =
        NEEDLES.iter().map(|(needle, _)| regex::escape(needle)).collect::<Vec<_>>().join("|");
    Regex::new(&pattern).expect("escaped constants")
});

/// Reads a warning.
pub(super) fn line(message: &[u8]) -> Option<Warning> {
    let message = &message[..message.len().min(4096)];
    let found = ANY.find(message)?;
    let kind = NEEDLES
        .iter()
        .find(|(needle, _)| needle.as_bytes() == found.as_bytes())
        .map(|(_, kind)| *kind)?;
    let rest = &message[found.end()..];
    let (from, to) = match kind {
        WarningKind::RunningCappedByState => {
            // Only the line about running requests; other things are capped too.
            memmem::find(&message[..found.start()], b"max_running_requests")?;
            (None, number(rest))
        }
        WarningKind::RunningReset | WarningKind::DraftTokensAdjusted => (None, number(rest)),
        WarningKind::RunningReducedByKv => {
            (number_after(rest, b"the requested"), number_after(rest, b" to"))
        }
        WarningKind::AdaptiveSteps => (number(rest), number_after(rest, b"-> ")),
        WarningKind::KvLimitIgnored => {
            memmem::find(message, b"is larger than the profiled value")?;
            (number_after(message, b"max_total_tokens="), None)
        }
        WarningKind::ContextReduced if found.as_bytes() == b"n_ctx_per_seq" => {
            memmem::find(message, b"not be utilized")
                .or_else(|| memmem::find(message, b"< n_ctx_train"))?;
            (number_after(message, b"n_ctx_per_seq ("), number_after(message, b"n_ctx_train ("))
        }
        _ => (None, None),
    };
    Some(Warning { kind, from, to })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_taken_along() {
        let capped = line(b"max_running_requests is capped to 7 by the mamba state cache (max_mamba_cache_size=37, 5 state slots per request).").unwrap();
        assert_eq!((capped.kind, capped.to), (WarningKind::RunningCappedByState, Some(7.0)));
        let reduced = line(b"max_running_requests was reduced from the requested 64 to 12 (per dp worker) due to the available KV cache capacity").unwrap();
        assert_eq!((reduced.from, reduced.to), (Some(64.0), Some(12.0)));
        let steps =
            line(b"Adaptive spec params updated: steps 3 -> 1 (ema_accept_len=1.20)").unwrap();
        assert_eq!((steps.from, steps.to), (Some(3.0), Some(1.0)));
        assert!(line(b"the queue is capped to 3").is_none());
        assert!(line(b"nothing here").is_none());
        assert_eq!(
            line(b"WARNING Upcasting torch.bfloat16 to torch.float32.").unwrap().kind,
            WarningKind::Upcast
        );
    }
}
