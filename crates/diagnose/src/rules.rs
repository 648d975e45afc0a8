//! The rules: each looks at one mechanism and says found, passed, or what is missing to judge it.

mod cache;
mod client;
mod device;
mod kernels;
mod load;
mod memory;
mod pauses;
mod restore;
mod running;
mod speculation;
mod weights;
mod workload;

use crate::facts::Case;
use crate::finding::Outcome;
use crate::losses::Losses;

/// What a rule looks at.
#[derive(Clone, Copy)]
pub struct View<'a> {
    /// Both sides with their numbers and differences.
    pub case: &'a Case<'a>,
    /// What got worse.
    pub losses: &'a Losses,
}

/// One rule.
pub struct Rule {
    /// Its name in documents and gaps.
    pub name: &'static str,
    /// What it looks for, for the document.
    pub about: &'static str,
    /// The judgement.
    pub judge: fn(View<'_>) -> Outcome,
}

/// Every rule. Of two findings that explain the same share, the earlier rule's comes first.
pub const RULES: &[Rule] = &[
    Rule {
        name: "speculation",
        about: "tokens per step and step rate against depth, branches and method",
        judge: speculation::judge,
    },
    Rule {
        name: "offload",
        about: "llama.cpp: layers that no longer fit the device",
        judge: memory::offload,
    },
    Rule {
        name: "weights",
        about: "bytes of the weights on one device against the step rate",
        judge: weights::judge,
    },
    Rule { name: "graphs", about: "decode steps without a device graph", judge: kernels::graphs },
    Rule {
        name: "over-admission",
        about: "running requests pushed out again for want of KV",
        judge: pauses::retraction,
    },
    Rule {
        name: "running-limit",
        about: "requests that wait while slots, pools or a flag hold the running count down",
        judge: running::judge,
    },
    Rule {
        name: "prefix-cache",
        about: "prompt tokens computed again that were cached before",
        judge: cache::prefix_off,
    },
    Rule {
        name: "cache-thrash",
        about: "a prefix cache that is on and no longer hits",
        judge: cache::thrash,
    },
    Rule {
        name: "prefill-chunk",
        about: "streams that stop while a chunk of a prompt is computed",
        judge: pauses::prefill_chunk,
    },
    Rule { name: "throttle", about: "clocks held down by heat or power", judge: device::throttle },
    Rule {
        name: "other-process",
        about: "somebody else on the same device",
        judge: device::other_process,
    },
    Rule {
        name: "temperature",
        about: "acceptance against the requests' temperature",
        judge: workload::temperature,
    },
    Rule {
        name: "prompt-mix",
        about: "acceptance and step rate against the prompts",
        judge: workload::prompt_mix,
    },
    Rule { name: "client", about: "requests that the client holds back", judge: client::judge },
    Rule { name: "load", about: "more requests than the same server can run", judge: load::judge },
    Rule { name: "logging", about: "host work per step for logging", judge: kernels::logging },
    Rule {
        name: "other-settings",
        about: "remaining settings that can move a component that moved",
        judge: kernels::others,
    },
    Rule {
        name: "version",
        about: "another engine version, when nothing else explains a moved component",
        judge: kernels::version,
    },
];

/// Judges by every rule.
pub fn judge_all(view: View<'_>) -> Vec<(&'static str, Outcome)> {
    RULES.iter().map(|rule| (rule.name, (rule.judge)(view))).collect()
}
