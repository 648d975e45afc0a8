//! Prometheus text: the names under which each engine exports the same quantity, through its renames.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::engine::Engine;

/// A quantity that more than one engine exports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Metric {
    Running,
    Waiting,
    KvUsage,
    StateUsage,
    KvTokens,
    GenTokS,
    PromptTokens,
    GenerationTokens,
    CachedTokens,
    PrefixQueries,
    PrefixHits,
    Preemptions,
    Evictions,
    VerifySteps,
    DecodeRounds,
    Drafted,
    Accepted,
    AcceptLenInterval,
    QueueTimeSum,
    QueueTimeCount,
    TtftSum,
    TtftCount,
    MaxRunning,
}

impl Metric {
    /// Whether it only ever grows, so that the difference of two scrapes is what happened in between.
    pub fn is_counter(self) -> bool {
        !matches!(
            self,
            Metric::Running
                | Metric::Waiting
                | Metric::KvUsage
                | Metric::StateUsage
                | Metric::KvTokens
                | Metric::GenTokS
                | Metric::AcceptLenInterval
                | Metric::MaxRunning
        )
    }
}

/// Name without prefix, the quantity, and what a reader must know about it.
const NAMES: &[(&str, Metric, &str)] = &[
    ("num_running_reqs", Metric::Running, "gauge"),
    ("num_requests_running", Metric::Running, "gauge"),
    ("requests_processing", Metric::Running, "gauge"),
    ("num_queue_reqs", Metric::Waiting, "gauge"),
    ("num_requests_waiting", Metric::Waiting, "gauge"),
    ("requests_deferred", Metric::Waiting, "gauge"),
    (
        "full_token_usage",
        Metric::KvUsage,
        "share of the KV pool held by running requests and locked prefixes",
    ),
    (
        "token_usage",
        Metric::KvUsage,
        "largest of all pools in newer SGLang; full_token_usage is preferred",
    ),
    ("kv_cache_usage_perc", Metric::KvUsage, "0 to 1 in spite of its name"),
    ("gpu_cache_usage_perc", Metric::KvUsage, "older name of kv_cache_usage_perc"),
    ("mamba_usage", Metric::StateUsage, "share of the state slots"),
    ("max_total_num_tokens", Metric::KvTokens, "size of the KV pool"),
    (
        "gen_throughput",
        Metric::GenTokS,
        "last log interval; keeps its value when idle in older SGLang",
    ),
    ("prompt_tokens_total", Metric::PromptTokens, "counter"),
    ("prompt_tokens", Metric::PromptTokens, "counter"),
    ("generation_tokens_total", Metric::GenerationTokens, "counter"),
    ("generation_tokens", Metric::GenerationTokens, "counter"),
    ("tokens_predicted_total", Metric::GenerationTokens, "counter"),
    ("cached_tokens_total", Metric::CachedTokens, "counter"),
    ("prompt_tokens_cached_total", Metric::CachedTokens, "counter"),
    ("prefix_cache_queries_total", Metric::PrefixQueries, "counter, tokens"),
    ("prefix_cache_queries", Metric::PrefixQueries, "counter, tokens"),
    ("prefix_cache_hits_total", Metric::PrefixHits, "counter, tokens"),
    ("prefix_cache_hits", Metric::PrefixHits, "counter, tokens"),
    ("num_retracted_requests_total", Metric::Preemptions, "counter"),
    ("num_retracted_reqs", Metric::Preemptions, "gauge in SGLang before the counter existed"),
    ("num_preemptions_total", Metric::Preemptions, "counter"),
    ("num_preemptions", Metric::Preemptions, "counter"),
    ("evicted_tokens_total", Metric::Evictions, "counter, tokens"),
    ("spec_verify_calls_total", Metric::VerifySteps, "counter"),
    ("spec_decode_num_drafts_total", Metric::VerifySteps, "counter"),
    ("spec_decode_num_drafts", Metric::VerifySteps, "counter"),
    ("spec_decode_num_draft_tokens_total", Metric::Drafted, "counter"),
    ("spec_decode_num_draft_tokens", Metric::Drafted, "counter"),
    (
        "spec_decode_num_accepted_tokens_total",
        Metric::Accepted,
        "counter, bonus tokens not counted",
    ),
    ("spec_decode_num_accepted_tokens", Metric::Accepted, "counter, bonus tokens not counted"),
    ("decode_rounds_total", Metric::DecodeRounds, "counter, decodes of a sequence, drafted or not"),
    ("spec_drafted_tokens_total", Metric::Drafted, "counter"),
    ("spec_accepted_tokens_total", Metric::Accepted, "counter, bonus tokens not counted"),
    ("spec_accept_length", Metric::AcceptLenInterval, "gauge of the last log interval only"),
    ("queue_time_seconds_sum", Metric::QueueTimeSum, "histogram"),
    ("queue_time_seconds_count", Metric::QueueTimeCount, "histogram"),
    ("request_queue_time_seconds_sum", Metric::QueueTimeSum, "histogram"),
    ("request_queue_time_seconds_count", Metric::QueueTimeCount, "histogram"),
    ("time_to_first_token_seconds_sum", Metric::TtftSum, "histogram"),
    ("time_to_first_token_seconds_count", Metric::TtftCount, "histogram"),
    ("max_running_requests", Metric::MaxRunning, "gauge"),
];

/// One scrape: which engine answered and the quantities found, summed over replicas where they are counts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Scrape {
    /// The engine, told by the prefix of the names.
    pub engine: Option<Engine>,
    /// The quantities.
    pub values: BTreeMap<Metric, f64>,
}

impl Scrape {
    /// One quantity.
    pub fn get(&self, metric: Metric) -> Option<f64> {
        self.values.get(&metric).copied()
    }

    /// What was counted since an earlier scrape of the same server; gauges are those of this one. A counter that fell
    /// was restarted and says nothing.
    pub fn since(&self, earlier: &Scrape) -> Scrape {
        let grown = |(&metric, &value): (&Metric, &f64)| {
            let before = if metric.is_counter() { earlier.get(metric).unwrap_or(0.0) } else { 0.0 };
            (value >= before).then_some((metric, value - before))
        };
        Scrape { engine: self.engine, values: self.values.iter().filter_map(grown).collect() }
    }

    /// Accept length over the life of the counters: tokens per verify step, bonus included. The first token of a request
    /// comes from its prefill and is left out where the requests are counted.
    pub fn accept_len(&self) -> Option<f64> {
        if let Some(rounds) = self.get(Metric::DecodeRounds).filter(|&n| n > 0.0) {
            return Some(1.0 + self.get(Metric::Accepted)? / rounds);
        }
        let steps = self.get(Metric::VerifySteps).filter(|&n| n > 0.0)?;
        match self.engine? {
            Engine::Sglang | Engine::Outrider => {
                let generated = self.get(Metric::GenerationTokens)?;
                let first = self.get(Metric::TtftCount).filter(|n| *n < generated);
                Some((generated - first.unwrap_or(0.0)) / steps)
            }
            _ => Some(1.0 + self.get(Metric::Accepted)? / steps),
        }
    }
}

/// What a reader must know about a metric, by its bare name.
pub fn note(name: &str) -> Option<&'static str> {
    NAMES.iter().find(|(known, _, _)| *known == name).map(|(_, _, note)| *note)
}

/// Reads Prometheus text. Lines that are not samples of a known quantity are passed over.
pub fn parse(text: &str) -> Scrape {
    let mut scrape = Scrape::default();
    for line in text.lines() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let name_end = line.find(['{', ' ']).unwrap_or(line.len());
        let Some((prefix, bare)) =
            line[..name_end].split_once([':', '_']).filter(|(prefix, _)| is_prefix(prefix))
        else {
            continue;
        };
        let after_labels = match line[name_end..].strip_prefix('{') {
            Some(labels) => labels.rfind('}').map_or("", |end| &labels[end + 1..]),
            None => &line[name_end..],
        };
        let Some(value) =
            after_labels.split_whitespace().next().and_then(|word| word.parse::<f64>().ok())
        else {
            continue;
        };
        let Some((_, metric, _)) = NAMES.iter().find(|(known, _, _)| *known == bare) else {
            continue;
        };
        scrape.engine = scrape.engine.or(engine_of(prefix));
        if !value.is_finite() {
            continue;
        }
        let is_share = matches!(
            metric,
            Metric::KvUsage | Metric::StateUsage | Metric::AcceptLenInterval | Metric::KvTokens
        );
        let slot = scrape.values.entry(*metric).or_insert(0.0);
        *slot = if is_share { slot.max(value) } else { *slot + value };
    }
    scrape
}

fn is_prefix(prefix: &str) -> bool {
    engine_of(prefix).is_some()
}

fn engine_of(prefix: &str) -> Option<Engine> {
    match prefix {
        "sglang" => Some(Engine::Sglang),
        "vllm" => Some(Engine::Vllm),
        "llamacpp" => Some(Engine::LlamaCpp),
        "outrider" => Some(Engine::Outrider),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renamed_metrics_are_one_quantity() {
        let old = parse("vllm:gpu_cache_usage_perc{model_name=\"q\"} 0.06\n");
        let new = parse(
            "# TYPE x gauge\nvllm:kv_cache_usage_perc{model_name=\"q\",engine=\"0\"} 0.06 1700000000\n",
        );
        assert_eq!(old, new);
        assert_eq!(new.get(Metric::KvUsage), Some(0.06));
    }

    #[test]
    fn accept_length_from_counters() {
        let vllm = parse(
            "vllm:spec_decode_num_drafts_total 100\nvllm:spec_decode_num_accepted_tokens_total 175\n",
        );
        assert_eq!(vllm.accept_len(), Some(2.75));
        let sglang = parse(
            "sglang:spec_verify_calls_total{tp_rank=\"0\"} 100\nsglang:generation_tokens_total 275\nsglang:foo NaN\n",
        );
        assert_eq!(sglang.accept_len(), Some(2.75));
    }

    #[test]
    fn what_happened_between_two_scrapes() {
        let at = |running, tokens, steps, requests| {
            parse(&format!(
                "sglang:num_running_reqs {running}\nsglang:generation_tokens_total {tokens}\n\
                 sglang:spec_verify_calls_total {steps}\nsglang:time_to_first_token_seconds_count {requests}\n"
            ))
        };
        let between = at(3, 1310, 540, 20).since(&at(9, 1000, 440, 10));
        assert_eq!(between.get(Metric::Running), Some(3.0));
        assert_eq!(between.get(Metric::GenerationTokens), Some(310.0));
        assert_eq!(between.accept_len(), Some(3.0), "ten first tokens came from prefills");
        let restarted = at(0, 10, 4, 1).since(&at(0, 1000, 440, 10));
        assert_eq!(restarted.get(Metric::GenerationTokens), None);
    }

    #[test]
    fn replicas_add_up() {
        let scrape = parse(
            "sglang:num_running_reqs{dp_rank=\"0\"} 3\nsglang:num_running_reqs{dp_rank=\"1\"} 4\n",
        );
        assert_eq!(scrape.get(Metric::Running), Some(7.0));
    }
}
