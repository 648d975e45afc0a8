//! The quantities of a report: one name, one unit and one definition each.

use serde::{Serialize, Serializer};

macro_rules! quantities {
    ($($variant:ident = $name:literal, [$($alias:literal),*], $unit:literal, $def:literal;)+) => {
        /// A quantity; [`Quantity::definition`] says exactly what is counted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[allow(missing_docs)]
        pub enum Quantity { $($variant,)+ }

        impl Quantity {
            /// Every quantity in the order of the table.
            pub const ALL: &'static [Quantity] = &[$(Quantity::$variant,)+];

            /// The name in reports.
            pub fn name(self) -> &'static str {
                match self { $(Quantity::$variant => $name,)+ }
            }

            /// Further names under which the JSON report repeats it, for readers who know it by them.
            pub fn aliases(self) -> &'static [&'static str] {
                match self { $(Quantity::$variant => &[$($alias),*],)+ }
            }

            /// The unit; empty for pure numbers.
            pub fn unit(self) -> &'static str {
                match self { $(Quantity::$variant => $unit,)+ }
            }

            /// What is counted.
            pub fn definition(self) -> &'static str {
                match self { $(Quantity::$variant => $def,)+ }
            }
        }
    };
}

quantities! {
    DecodeTokS = "decode_tok_s", ["decode_tok_s_p50", "stream_tok_s"], "tok/s",
        "tokens per second of one stream after its first token: the median over probed requests, else accept length × steps/s from the log";
    AcceptLen = "accept_len", [], "tokens",
        "tokens committed per request and verify step, bonus token included; 1 without speculation; the mean over log windows";
    StepsPerS = "steps_per_s", [], "1/s",
        "decode or verify steps of the engine per second: tokens/s ÷ (running × accept length), the median over windows without prefill, idling or a change in running";
    StepMs = "step_ms", [], "ms", "1000 ÷ steps per second";
    Running = "running_observed", ["running"], "requests", "requests running, the median over windows in which something ran";
    Queue = "queue_observed", ["waiting_observed", "waiting", "queue"], "requests", "requests waiting, the median over the same windows";
    GenTokS = "gen_tok_s", [], "tok/s", "tokens per second of all streams while decoding: the median over believable windows";
    AggregateTokS = "aggregate_tok_s", [], "tok/s",
        "output tokens per second of all streams over the time in which all were busy, prefill and waiting included; from a probe, a launch record, or the whole log";
    TtftP50 = "ttft_s_p50", [], "s", "time from the intended send to the first token, the median of requests; queue and prefill together";
    TtftP95 = "ttft_s_p95", [], "s", "the same at the 95th percentile";
    E2eP50 = "e2e_s_p50", [], "s", "time from the intended send to the last token, the median of requests";
    PauseP90 = "longest_pause_s_p90", ["longest_pause_s"], "s", "the longest time without a chunk inside a request, at the 90th percentile of requests";
    PauseP50 = "longest_pause_s_p50", [], "s", "the same at the median";
    TokensPerChunk = "tokens_per_chunk", [], "tokens", "output tokens per streamed chunk: above 1 a gap between chunks is no inter-token latency";
    SingleTokS = "decode_tok_s_single", [], "tok/s", "decode speed of one stream while no other runs";
    FixedProbeTokS = "fixed_probe_decode_tok_s", [], "tok/s", "decode speed of the same probe on both sides: what the server does with an unchanged workload";
    AcceptLenTraffic = "accept_len_traffic", [], "tokens", "accept length of the users' requests in the log, as against that of a probe";
    TrafficTokS = "traffic_decode_tok_s", [], "tok/s", "decode speed of one stream of the users' requests, from the log: tokens/s ÷ running over believable windows";
    LogTokS = "log_tok_s", [], "tok/s", "tokens per second of all streams over everything that the log covers, prefill and waiting included";
    CachedShare = "cached_share", ["prefix_hit_rate", "hit_rate"], "", "prompt tokens found in the prefix cache ÷ all prompt tokens";
    PrefillTokS = "prefill_tok_s", [], "tok/s", "prompt tokens computed per second by prefill batches that follow one another";
    PromptP50 = "prompt_tokens_p50", [], "tokens", "length of the prompts in the log, cached part included, the median";
    OutputP50 = "output_tokens_p50", [], "tokens", "length of the outputs, the median";
    KvTokens = "kv_pool_tokens", ["kv_tokens"], "tokens", "size of the KV pool as the log states it";
    KvUsage = "kv_usage", [], "", "share of the KV pool held by running requests, the median over windows";
    KvUsagePeak = "kv_usage_peak", [], "", "the largest share over windows";
    StateSlots = "state_slots", [], "slots", "recurrent-state slots as the log states them";
    StateUsage = "state_usage", [], "", "share of the state slots in use, the median over windows";
    MaxRunning = "effective_max_running", [], "requests", "requests that may run at once after every cap";
    WeightsGib = "weights_gib", [], "GiB", "memory of the weights on one device as the log states it";
    Retracted = "retracted_requests", [], "requests", "running requests pushed back to the queue, as the log counts them";
    GraphShare = "graph_share", [], "", "share of decode windows whose last step replayed a device graph";
    Temperature = "temperature", [], "", "sampling temperature of the requests, the median";
    LinesPerS = "log_lines_per_s", [], "1/s", "log lines per second while the server worked";
    FirstMinutes = "gen_tok_s_first_minutes", [], "tok/s", "tokens per second in the first two minutes of work after a start";
    LateTokS = "gen_tok_s_late", [], "tok/s", "tokens per second in the last third of the same run";
    FastModeMs = "step_ms_fast_mode", [], "ms", "step time in the faster of two modes within one run";
    SlowModeMs = "step_ms_slow_mode", [], "ms", "step time in the slower mode";
    ArrivalRate = "arrival_rate_per_s", ["rate_per_s"], "1/s", "requests that arrive per second";
    OutputTokS = "output_tok_s", [], "tok/s", "output tokens per second over a whole benchmark run";
    TpotMs = "tpot_ms", [], "ms", "time per output token after the first, the median of requests";
    ItlMs = "itl_ms", [], "ms", "what a benchmark prints as inter-token latency: the gap between chunks";
    GpuUtil = "gpu_utilization", [], "", "share of the time in which a device ran anything, the mean over devices";
    SmMhz = "sm_clock_mhz", [], "MHz", "clock of the arithmetic, the mean over devices";
    MemMhz = "memory_clock_mhz", [], "MHz", "clock of the device memory, the mean over devices";
    GpuTemp = "gpu_temperature_c", [], "°C", "temperature of the hottest device";
    QueueTimeS = "queue_time_s_mean", [], "s", "time that requests waited before they ran, sum ÷ count of the metric";
}

impl Quantity {
    /// Whether more of it is better (1), worse (-1), or neither (0).
    pub fn sense(self) -> i8 {
        use Quantity as Q;
        match self {
            Q::DecodeTokS
            | Q::AcceptLen
            | Q::StepsPerS
            | Q::GenTokS
            | Q::AggregateTokS
            | Q::SingleTokS
            | Q::FixedProbeTokS
            | Q::AcceptLenTraffic => 1,
            Q::TrafficTokS
            | Q::LogTokS
            | Q::CachedShare
            | Q::PrefillTokS
            | Q::LateTokS
            | Q::OutputTokS
            | Q::GraphShare => 1,
            Q::StepMs
            | Q::Queue
            | Q::TtftP50
            | Q::TtftP95
            | Q::E2eP50
            | Q::PauseP50
            | Q::PauseP90
            | Q::Retracted
            | Q::TpotMs
            | Q::QueueTimeS => -1,
            _ => 0,
        }
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_name_means_two_quantities() {
        let mut seen = HashSet::new();
        for quantity in Quantity::ALL {
            for name in std::iter::once(&quantity.name()).chain(quantity.aliases()) {
                assert!(seen.insert(*name), "{name}");
            }
        }
    }
}
