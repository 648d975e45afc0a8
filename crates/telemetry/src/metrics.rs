//! What `/metrics` shows, declared once; the exposition text and `docs/metrics.md` are made from it.
//!
//! Names are SGLang's with the prefix `outrider:`, where the meaning is the same.

use std::fmt::Write;

use crate::histogram::{Histogram, RequestHistograms};
use crate::log_line::share;
use crate::record::{MAX_DEPTH, Snapshot};
use crate::window::Decoded;

/// The content type of [`render`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Everything that the metrics are read from.
pub struct Source<'a> {
    /// Value of the label `model_name`.
    pub model_name: &'a str,
    /// What the engine shows.
    pub engine: Snapshot,
    /// The last decode window of the log.
    pub decoded: Decoded,
    /// What was observed of requests.
    pub requests: &'a RequestHistograms,
    /// Positions in one KV block.
    pub block_len: usize,
    /// Most tokens of a request.
    pub context_len: usize,
    /// Most sequences that run at once.
    pub max_running_requests: usize,
}

/// One metric.
pub struct Metric {
    /// Name after the prefix.
    pub name: &'static str,
    /// What it is, with its unit.
    pub help: &'static str,
    read: Read,
}

enum Read {
    Gauge(fn(&Source<'_>) -> f64),
    Counter(fn(&Source<'_>) -> f64),
    /// A counter for each value of a label.
    CounterBy(&'static str, fn(&Source<'_>) -> Vec<(String, f64)>),
    Histogram(for<'a> fn(&Source<'a>) -> &'a Histogram),
}

const PREFIX: &str = "outrider:";

const fn gauge(name: &'static str, help: &'static str, read: fn(&Source<'_>) -> f64) -> Metric {
    Metric { name, help, read: Read::Gauge(read) }
}

const fn counter(name: &'static str, help: &'static str, read: fn(&Source<'_>) -> f64) -> Metric {
    Metric { name, help, read: Read::Counter(read) }
}

const fn counter_by(
    name: &'static str,
    label: &'static str,
    help: &'static str,
    read: fn(&Source<'_>) -> Vec<(String, f64)>,
) -> Metric {
    Metric { name, help, read: Read::CounterBy(label, read) }
}

const fn histogram(
    name: &'static str,
    help: &'static str,
    read: for<'a> fn(&Source<'a>) -> &'a Histogram,
) -> Metric {
    Metric { name, help, read: Read::Histogram(read) }
}

/// All metrics, in the order of the exposition.
pub const METRICS: &[Metric] = &[
    gauge("num_running_reqs", "Sequences that hold a slot.", |s| n(s.engine.gauges.n_running)),
    gauge("num_queue_reqs", "Requests that wait.", |s| n(s.engine.gauges.n_waiting)),
    gauge(
        "max_running_requests",
        "Most sequences that run at once.",
        |s| n(s.max_running_requests),
    ),
    gauge("context_len", "Most tokens of a request.", |s| n(s.context_len)),
    gauge("page_size", "Token positions in one KV block.", |s| n(s.block_len)),
    gauge("max_total_num_tokens", "Token positions in the KV pool.", |s| n(s.n_positions())),
    gauge("num_used_tokens", "Token positions in blocks that running sequences hold.", |s| {
        n(s.n_positions_held())
    }),
    gauge("kv_available_tokens", "Token positions in free KV blocks.", |s| n(s.n_positions_free())),
    gauge(
        "kv_evictable_tokens",
        "Token positions in blocks that only cached prefixes hold.",
        |s| n(s.engine.gauges.n_blocks_cached * s.block_len),
    ),
    gauge("full_token_usage", "Share of the KV pool that running sequences hold, 0 to 1.", |s| {
        share(s.n_positions_held(), s.n_positions())
    }),
    gauge("mamba_usage", "Share of the state slots that running sequences hold, 0 to 1.", |s| {
        share(s.engine.gauges.n_slots_used, s.engine.gauges.n_slots)
    }),
    gauge("mamba_used_slots", "Recurrent-state slots that running sequences hold.", |s| {
        n(s.engine.gauges.n_slots_used)
    }),
    gauge("mamba_evictable_slots", "Recurrent-state slots that hold snapshots of prefixes.", |s| {
        n(s.engine.gauges.n_slots_snapshot)
    }),
    gauge("mamba_available_slots", "Free recurrent-state slots.", |s| {
        let g = &s.engine.gauges;
        n(g.n_slots.saturating_sub(g.n_slots_used + g.n_slots_snapshot))
    }),
    gauge("token_usage", "The larger of full_token_usage and mamba_usage, 0 to 1.", |s| {
        let g = &s.engine.gauges;
        share(s.n_positions_held(), s.n_positions()).max(share(g.n_slots_used, g.n_slots))
    }),
    gauge(
        "gen_throughput",
        "Tokens per second of the last decode window of the log, 0 while nothing runs.",
        |s| if s.engine.gauges.n_running > 0 { s.decoded.tokens_per_s() } else { 0.0 },
    ),
    gauge(
        "cache_hit_rate",
        "Share of all prompt tokens since the start that came from the prefix cache, 0 to 1.",
        |s| {
            let t = &s.engine.totals;
            share(t.n_cached_tokens as usize, t.n_prompt_tokens as usize)
        },
    ),
    gauge(
        "spec_accept_length",
        "Tokens per decode and sequence in the last decode window: accepted drafts + 1.",
        |s| s.decoded.accept_length(),
    ),
    gauge(
        "spec_accept_rate",
        "Accepted drafts of those verified in the last decode window, 0 to 1.",
        |s| s.decoded.accept_rate(),
    ),
    gauge("spec_num_steps", "Draft depth of the last step that decoded.", |s| n(s.engine.depth)),
    counter("steps_total", "Steps of the engine.", |s| s.engine.totals.n_steps as f64),
    counter("num_requests_total", "Requests taken in.", |s| s.engine.totals.n_requests as f64),
    counter("num_refused_requests_total", "Requests refused because the queue was full.", |s| {
        s.engine.totals.n_refused as f64
    }),
    counter_by("num_finished_requests_total", "reason", "Requests that ended.", |s| {
        let t = &s.engine.totals;
        by([
            ("stop", t.n_stop),
            ("length", t.n_length),
            ("cancelled", t.n_cancelled),
            ("failed", t.n_failed),
            ("shutdown", t.n_shutdown),
        ])
    }),
    counter(
        "num_aborted_requests_total",
        "Requests whose client left or that were aborted.",
        |s| s.engine.totals.n_cancelled as f64,
    ),
    counter("num_retracted_requests_total", "Preemptions: sequences sent back to wait.", |s| {
        s.engine.totals.n_preempted as f64
    }),
    counter("prompt_tokens_total", "Tokens of the prompts of admitted requests.", |s| {
        s.engine.totals.n_prompt_tokens as f64
    }),
    counter("cached_tokens_total", "Of these, tokens that came from the prefix cache.", |s| {
        s.engine.totals.n_cached_tokens as f64
    }),
    counter("generation_tokens_total", "Tokens generated.", |s| s.engine.totals.n_generated as f64),
    counter_by(
        "realtime_tokens_total",
        "mode",
        "Tokens by how they came about; a recomputation after a preemption counts again.",
        |s| {
            let t = &s.engine.totals;
            by([
                ("prefill_compute", t.n_prefill_rows),
                ("prefill_cache", t.n_cached_tokens),
                ("decode", t.n_decode_rounds + t.n_accepted),
            ])
        },
    ),
    counter("decode_rounds_total", "Sequences that decoded, summed over steps.", |s| {
        s.engine.totals.n_decode_rounds as f64
    }),
    counter("spec_verify_calls_total", "Decodes that verified at least one draft.", |s| {
        s.engine.totals.n_verify_rounds as f64
    }),
    counter("spec_drafted_tokens_total", "Drafts verified.", |s| s.engine.totals.n_drafted as f64),
    counter("spec_accepted_tokens_total", "Drafts accepted.", |s| {
        s.engine.totals.n_accepted as f64
    }),
    counter_by(
        "spec_drafted_at_total",
        "position",
        "Decodes that verified a draft at this position, from 0.",
        |s| by_position(&s.engine.totals.n_drafted_at),
    ),
    counter_by(
        "spec_accepted_at_total",
        "position",
        "Decodes that accepted the draft at this position, from 0.",
        |s| by_position(&s.engine.totals.n_accepted_at),
    ),
    counter_by("step_seconds_total", "part", "Time in the parts of steps, seconds.", |s| {
        let t = &s.engine.totals;
        let parts = [
            ("forward", t.forward_s),
            ("draft", t.draft_s),
            ("sample", t.sample_s),
            ("other", t.other_s),
        ];
        parts.map(|(part, seconds)| (part.to_owned(), seconds)).into()
    }),
    histogram("time_to_first_token_seconds", "From arrival to the first token, seconds.", |s| {
        &s.requests.ttft_s
    }),
    histogram(
        "inter_token_latency_seconds",
        "Between one token and the next, seconds; the tokens of a step share its time.",
        |s| &s.requests.itl_s,
    ),
    histogram("e2e_request_latency_seconds", "From arrival to the end, seconds.", |s| {
        &s.requests.e2e_s
    }),
    histogram("queue_time_seconds", "From submission to the first scheduled row, seconds.", |s| {
        &s.requests.queue_wait_s
    }),
    histogram("prompt_tokens_histogram", "Tokens of a prompt.", |s| &s.requests.n_prompt),
    histogram("generation_tokens_histogram", "Tokens of an answer.", |s| &s.requests.n_generated),
];

impl Source<'_> {
    fn n_positions(&self) -> usize {
        self.engine.gauges.n_blocks * self.block_len
    }

    fn n_positions_held(&self) -> usize {
        let g = &self.engine.gauges;
        g.n_blocks_used.saturating_sub(g.n_blocks_cached) * self.block_len
    }

    fn n_positions_free(&self) -> usize {
        let g = &self.engine.gauges;
        g.n_blocks.saturating_sub(g.n_blocks_used) * self.block_len
    }
}

fn n(count: usize) -> f64 {
    count as f64
}

fn by<const N: usize>(counts: [(&str, u64); N]) -> Vec<(String, f64)> {
    counts.map(|(label, count)| (label.to_owned(), count as f64)).into()
}

/// Positions up to the deepest that was ever used; none without speculation.
fn by_position(counts: &[u64; MAX_DEPTH]) -> Vec<(String, f64)> {
    let used = counts.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
    counts[..used].iter().enumerate().map(|(i, c)| (i.to_string(), *c as f64)).collect()
}

impl Metric {
    fn kind(&self) -> &'static str {
        match self.read {
            Read::Gauge(_) => "gauge",
            Read::Counter(_) | Read::CounterBy(..) => "counter",
            Read::Histogram(_) => "histogram",
        }
    }

    fn render(&self, source: &Source<'_>, out: &mut String) -> std::fmt::Result {
        let name = format!("{PREFIX}{}", self.name);
        let labels = format!("model_name=\"{}\"", escaped(source.model_name));
        writeln!(out, "# HELP {name} {}", self.help)?;
        writeln!(out, "# TYPE {name} {}", self.kind())?;
        match &self.read {
            Read::Gauge(read) | Read::Counter(read) => {
                writeln!(out, "{name}{{{labels}}} {}", read(source))
            }
            Read::CounterBy(label, read) => read(source).into_iter().try_for_each(|(value, x)| {
                writeln!(out, "{name}{{{labels},{label}=\"{}\"}} {x}", escaped(&value))
            }),
            Read::Histogram(read) => {
                let reading = read(source).read();
                for (bound, count) in &reading.buckets {
                    let le = if bound.is_finite() { bound.to_string() } else { "+Inf".into() };
                    writeln!(out, "{name}_bucket{{{labels},le=\"{le}\"}} {count}")?;
                }
                let count = reading.buckets.last().map_or(0, |(_, count)| *count);
                writeln!(out, "{name}_sum{{{labels}}} {}", reading.sum)?;
                writeln!(out, "{name}_count{{{labels}}} {count}")
            }
        }
    }
}

/// A label value with what the format cannot hold escaped.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// The text that Prometheus scrapes.
pub fn render(source: &Source<'_>) -> String {
    let mut out = String::new();
    // Writing into a string cannot fail.
    let _ = METRICS.iter().try_for_each(|metric| metric.render(source, &mut out));
    out
}

/// The contents of `docs/metrics.md`.
pub fn document() -> String {
    let mut out = String::from(
        "# Metrics\n\n\
         <!-- Made from crates/telemetry/src/metrics.rs; a test compares. -->\n\n\
         `GET /metrics` answers in the text format of Prometheus.\n\
         Every name begins with `outrider:`; the rest is SGLang's name where the meaning is the same.\n\
         Every sample has the label `model_name`.\n\n\
         | name | kind | label | meaning |\n|---|---|---|---|\n",
    );
    for metric in METRICS {
        let label = match metric.read {
            Read::CounterBy(label, _) => format!("`{label}`"),
            _ => String::new(),
        };
        let row =
            format!("| `{}` | {} | {label} | {} |\n", metric.name, metric.kind(), metric.help);
        out.push_str(&row);
    }
    out
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn text() -> String {
        let requests = RequestHistograms::default();
        requests.ttft_s.observe(0.3);
        let mut engine = Snapshot::default();
        engine.gauges.n_blocks = 100;
        engine.gauges.n_blocks_used = 50;
        engine.gauges.n_blocks_cached = 10;
        engine.gauges.n_slots = 8;
        engine.gauges.n_slots_used = 6;
        engine.gauges.n_running = 6;
        engine.totals.n_accepted_at[1] = 7;
        engine.totals.n_stop = 3;
        render(&Source {
            model_name: "a \"quoted\" name",
            engine,
            decoded: Decoded { n_rounds: 100, n_drafted: 300, n_accepted: 150, seconds: 5.0 },
            requests: &requests,
            block_len: 64,
            context_len: 8192,
            max_running_requests: 8,
        })
    }

    /// The value of the one line that begins with `line` after the prefix.
    fn value(text: &str, line: &str) -> f64 {
        let mut found =
            text.lines().filter(|l| l.strip_prefix(PREFIX).is_some_and(|l| l.starts_with(line)));
        let first = found.next().unwrap_or_else(|| panic!("{line} is not in {text}"));
        assert_eq!(found.next(), None);
        first.rsplit(' ').next().unwrap().parse().unwrap()
    }

    #[test]
    fn values_are_read_from_the_engine() {
        let text = text();
        assert_eq!(value(&text, "num_used_tokens"), 2560.0);
        assert_eq!(value(&text, "kv_available_tokens"), 3200.0);
        assert_eq!(value(&text, "full_token_usage"), 0.4);
        assert_eq!(value(&text, "token_usage"), 0.75);
        assert_eq!(value(&text, "gen_throughput"), 50.0);
        assert_eq!(value(&text, "spec_accept_length"), 2.5);
        let escaped = r#"{model_name="a \"quoted\" name""#;
        assert_eq!(value(&text, &format!("spec_accepted_at_total{escaped},position=\"1\"}}")), 7.0);
        assert_eq!(
            value(&text, &format!("num_finished_requests_total{escaped},reason=\"stop\"}}")),
            3.0
        );
    }

    #[test]
    fn every_line_is_one_of_the_text_format() {
        let line = regex::Regex::new(
            r#"^(# (HELP|TYPE) [a-zA-Z0-9_:]+ .+|[a-zA-Z0-9_:]+\{([a-z_]+="([^"\\]|\\.)*",?)+\} ([0-9.e-]+|\+Inf))$"#,
        );
        let line = line.unwrap();
        for l in text().lines() {
            assert!(line.is_match(l), "{l}");
        }
    }

    #[test]
    fn histograms_end_with_the_count() {
        let text = text();
        let name =
            r#"time_to_first_token_seconds_bucket{model_name="a \"quoted\" name",le="+Inf"}"#;
        assert_eq!(value(&text, name), 1.0);
        assert_eq!(value(&text, "time_to_first_token_seconds_count"), 1.0);
        assert_eq!(value(&text, "time_to_first_token_seconds_sum"), 0.3);
    }

    #[test]
    fn names_are_unique_and_counters_end_in_total() {
        let mut seen = HashSet::new();
        for metric in METRICS {
            assert!(seen.insert(metric.name), "{} is there twice", metric.name);
            assert_eq!(metric.kind() == "counter", metric.name.ends_with("_total"));
            assert!(metric.help.ends_with('.'), "{}", metric.name);
        }
    }

    #[test]
    fn the_document_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(path, document()).unwrap();
        }
        let written = std::fs::read_to_string(path).unwrap();
        assert_eq!(written, document(), "run the test with UPDATE_DOCS=1 to write it anew");
    }
}
