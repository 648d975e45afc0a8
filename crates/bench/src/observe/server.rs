//! The server's own numbers for the seconds of one load, to stand beside the client's.

use dialects::Engine;
use dialects::log::rate::infer;
use dialects::log::{Event, Record};
use dialects::metrics::{Metric, Scrape};
use serde::{Deserialize, Serialize};

use crate::stats::median;

/// A number and who said it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stated {
    /// The number.
    pub value: f64,
    /// `log`, `metrics`, or how it was computed.
    pub source: String,
}

/// What the server said about the seconds of one load.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerSide {
    /// Requests running: the mean of the reads, or the median of the log's windows.
    pub running: Option<Stated>,
    /// Most requests waiting at once.
    pub waiting: Option<Stated>,
    /// Tokens committed per request and verify step, bonus token included.
    pub accept_len: Option<Stated>,
    /// Accepted over drafted tokens by `accept_rate_formula`.
    pub accept_rate: Option<Stated>,
    /// What the rate divides; the same words mean three quantities in three engines and releases.
    pub accept_rate_formula: Option<String>,
    /// Decode or verify steps of the engine per second.
    pub steps_per_s: Option<Stated>,
    /// Tokens per second of all streams while decoding.
    pub gen_tok_s: Option<Stated>,
    /// Largest share of the KV pool in use.
    pub kv_usage: Option<Stated>,
}

/// What is known about one load.
pub(crate) struct Seen<'a> {
    /// Reads of the metrics, the first at its begin and the last at its end.
    pub(crate) scrapes: &'a [Scrape],
    /// Records of the log.
    pub(crate) records: &'a [Record],
    /// Median decode speed of one stream, from the client.
    pub(crate) stream_tok_s: Option<f64>,
    /// Answers that came back whole: each has a first token that no decode step gave.
    pub(crate) n_answers: usize,
}

impl Seen<'_> {
    pub(crate) fn sum_up(&self) -> ServerSide {
        let log = Windows::of(self.records);
        let said = |value: Option<f64>, source: &str| {
            let value = value.filter(|value| value.is_finite())?;
            Some(Stated { value, source: source.to_owned() })
        };
        let gauge = |metric| -> Vec<f64> {
            self.scrapes.iter().filter_map(|scrape| scrape.get(metric)).collect()
        };
        let most = |values: Vec<f64>| values.into_iter().max_by(f64::total_cmp);
        let busy: Vec<f64> = gauge(Metric::Running).into_iter().filter(|n| *n > 0.0).collect();
        let mean = (!busy.is_empty()).then(|| busy.iter().sum::<f64>() / busy.len() as f64);
        let counted = self.counted();
        let accept_len = said(counted.accept_len, "metrics").or(said(log.accept_len(), "log"));
        let by_client = self.stream_tok_s.zip(accept_len.as_ref()).map(|(s, l)| s / l.value);
        let (rate, formula) = match (counted.accept_rate, log.rate()) {
            (Some(rate), _) => (said(Some(rate), "metrics"), Some(DRAFTS_ONLY)),
            (None, Some((rate, formula))) => (said(Some(rate), "log"), Some(formula)),
            (None, None) => (None, None),
        };
        ServerSide {
            running: said(mean, "metrics").or(said(median(&log.running), "log")),
            waiting: said(most(gauge(Metric::Waiting)), "metrics")
                .or(said(most(log.waiting.clone()), "log")),
            accept_rate: rate,
            accept_rate_formula: formula.map(str::to_owned),
            steps_per_s: said(median(&log.steps_per_s), "log")
                .or(said(by_client, "client tok/s ÷ accept length")),
            gen_tok_s: said(median(&log.gen_tok_s), "log"),
            kv_usage: said(most(gauge(Metric::KvUsage)), "metrics"),
            accept_len,
        }
    }

    /// What the counters grew by.
    fn counted(&self) -> Counted {
        let (Some(first), Some(last)) = (self.scrapes.first(), self.scrapes.last()) else {
            return Counted::default();
        };
        // A counter that fell has been restarted and says nothing.
        let grown = |metric| {
            let grown = last.get(metric)? - first.get(metric).unwrap_or(0.0);
            (grown >= 0.0).then_some(grown)
        };
        let ratio = |part: Option<f64>, whole: Option<f64>| {
            let whole = whole.filter(|whole| *whole > 0.0)?;
            Some(part? / whole)
        };
        let (drafted, accepted) = (grown(Metric::Drafted), grown(Metric::Accepted));
        let steps = grown(Metric::VerifySteps);
        let accept_len = match last.engine {
            Some(Engine::Outrider) => ratio(accepted, grown(Metric::DecodeRounds)).map(|r| 1.0 + r),
            Some(Engine::Sglang) => {
                let decoded = grown(Metric::GenerationTokens).map(|n| n - self.n_answers as f64);
                ratio(decoded, steps)
            }
            _ => ratio(accepted, steps).map(|r| 1.0 + r),
        };
        Counted { accept_len, accept_rate: ratio(accepted, drafted) }
    }
}

#[derive(Default)]
struct Counted {
    accept_len: Option<f64>,
    accept_rate: Option<f64>,
}

const DRAFTS_ONLY: &str = "accepted drafts / drafts";

/// The log's windows; those that an idle gap, a prefill or a change in running spoils give no speed.
#[derive(Default)]
struct Windows {
    running: Vec<f64>,
    waiting: Vec<f64>,
    steps_per_s: Vec<f64>,
    gen_tok_s: Vec<f64>,
    /// Tokens and steps over all windows.
    tokens: f64,
    steps: f64,
    /// Accept length and rate as printed together.
    pairs: Vec<(f32, f32)>,
    /// Drafts by lines that count them.
    accepted: f64,
    drafted: f64,
}

impl Windows {
    fn of(records: &[Record]) -> Windows {
        let mut all = Windows::default();
        // What was running in the decode line before, if nothing spoiled the window since.
        let mut before: Option<f64> = None;
        // vLLM prints the length beside the window and not in it.
        let mut length = None;
        for record in records {
            match &record.event {
                Event::Prefill(_) => before = None,
                Event::Decode(decode) if decode.running > 0 => {
                    let (running, l) = (f64::from(decode.running), decode.accept_len);
                    all.window(before == Some(running), running, f64::from(decode.gen_tok_s), l);
                    all.waiting.extend(decode.queue.map(f64::from));
                    all.pairs.extend(decode.accept_len.zip(decode.accept_rate));
                    before = Some(running);
                }
                Event::Interval(interval) if interval.running > 0 => {
                    let running = f64::from(interval.running);
                    all.window(
                        before == Some(running),
                        running,
                        f64::from(interval.gen_tok_s),
                        length,
                    );
                    all.waiting.push(f64::from(interval.waiting));
                    before = Some(running);
                }
                Event::Interval(_) => before = None,
                Event::Accept(accept) => {
                    length = accept.mean_len.or(length);
                    all.accepted += accept.accepted.unwrap_or(0) as f64;
                    all.drafted += accept.drafted.unwrap_or(0) as f64;
                    if let (Some(mean), Some(n)) = (accept.mean_len, accept.steps()) {
                        all.tokens += f64::from(mean) * n;
                        all.steps += n;
                    }
                }
                _ => {}
            }
        }
        all
    }

    fn window(&mut self, clean: bool, running: f64, gen_tok_s: f64, accept_len: Option<f32>) {
        self.running.push(running);
        let length = accept_len.map_or(1.0, f64::from);
        if accept_len.is_some() {
            self.tokens += length * running;
            self.steps += running;
        }
        if clean && gen_tok_s > 0.0 {
            self.gen_tok_s.push(gen_tok_s);
            self.steps_per_s.push(gen_tok_s / (running * length));
        }
    }

    fn accept_len(&self) -> Option<f64> {
        (self.steps > 0.0).then(|| self.tokens / self.steps)
    }

    /// The rate and its formula.
    fn rate(&self) -> Option<(f64, &'static str)> {
        if self.drafted > 0.0 {
            return Some((self.accepted / self.drafted, DRAFTS_ONLY));
        }
        let rates: Vec<f64> = self.pairs.iter().map(|(_, rate)| f64::from(*rate)).collect();
        let formula = infer(&self.pairs, None)
            .map_or("as printed; these lines do not tell the formula", |found| found.def.formula());
        Some((median(&rates)?, formula))
    }
}

#[cfg(test)]
mod tests {
    use dialects::log::Parser;
    use dialects::metrics::parse;

    use super::{Seen, ServerSide, Stated};

    fn stated(value: Option<Stated>) -> (f64, String) {
        let stated = value.unwrap();
        ((stated.value * 1e3).round() / 1e3, stated.source)
    }

    fn seen(scrapes: &[&str], lines: &[&str], stream_tok_s: Option<f64>) -> ServerSide {
        let scrapes: Vec<_> = scrapes.iter().map(|text| parse(text)).collect();
        let (mut parser, mut records) = (Parser::new(), Vec::new());
        lines.iter().for_each(|line| parser.line(line.as_bytes(), &mut |r| records.push(r)));
        Seen { scrapes: &scrapes, records: &records, stream_tok_s, n_answers: 2 }.sum_up()
    }

    const PREFILL: &str = "[2026-11-27 08:09:57] Prefill batch, #new-seq: 1, #new-token: 541, #cached-token: 0, full token usage: 0.00, mamba usage: 0.06, #running-req: 0, #queue-req: 0, #pending-token: 0, cuda graph: False, input throughput (token/s): 44.51";

    fn decode(len: &str, rate: &str, tok_s: &str) -> String {
        format!(
            "[2026-11-27 08:09:59] Decode batch, #running-req: 1, #full token: 608, full token usage: 0.00, mamba num: 4, mamba usage: 0.06, accept len: {len}, accept rate: {rate}, cuda graph: True, gen throughput (token/s): {tok_s}, #queue-req: 3"
        )
    }

    #[test]
    fn a_log_gives_steps_from_clean_windows_and_the_formula_of_its_rate() {
        let lines = [
            PREFILL.to_owned(),
            decode("1.75", "0.75", "9.00"),
            decode("1.75", "0.75", "35.00"),
            decode("1.73", "0.72", "35.22"),
        ];
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let side = seen(&[], &lines, Some(35.0));
        let (steps, source) = stated(side.steps_per_s);
        assert!((steps - 20.18).abs() < 0.05 && source == "log", "{steps}");
        assert_eq!(stated(side.accept_len), (1.743, "log".into()));
        assert_eq!(stated(side.accept_rate), (0.75, "log".into()));
        assert_eq!(side.accept_rate_formula.as_deref(), Some("accepted drafts / drafts"));
        assert_eq!((stated(side.running).0, stated(side.waiting).0), (1.0, 3.0));
        let old = [decode("2.92", "0.73", "70.0"), decode("2.80", "0.70", "70.0")];
        let side = seen(&[], &[&old[0], &old[1]], None);
        assert!(side.accept_rate_formula.unwrap().contains("bonus"));
    }

    #[test]
    fn counters_count_steps_and_not_first_tokens() {
        let sglang = [
            "sglang:num_running_reqs 2\nsglang:generation_tokens_total 100\nsglang:spec_verify_calls_total 40\n",
            "sglang:num_running_reqs 4\nsglang:generation_tokens_total 202\nsglang:spec_verify_calls_total 80\n",
        ];
        let side = seen(&sglang, &[], Some(50.0));
        assert_eq!(stated(side.accept_len), (2.5, "metrics".into()));
        assert_eq!(stated(side.running), (3.0, "metrics".into()));
        assert_eq!(stated(side.steps_per_s), (20.0, "client tok/s ÷ accept length".into()));
        let ours = [
            "outrider:decode_rounds_total 0\noutrider:spec_accepted_tokens_total 0\noutrider:spec_drafted_tokens_total 0\n",
            "outrider:decode_rounds_total 40\noutrider:spec_accepted_tokens_total 60\noutrider:spec_drafted_tokens_total 120\n",
        ];
        let side = seen(&ours, &[], None);
        assert_eq!((stated(side.accept_len).0, stated(side.accept_rate).0), (2.5, 0.5));
        let vllm = [
            "vllm:num_requests_running 1\n",
            "vllm:spec_decode_num_drafts_total 100\nvllm:spec_decode_num_accepted_tokens_total 175\n",
        ];
        assert_eq!(stated(seen(&vllm, &[], None).accept_len).0, 2.75);
    }

    #[test]
    fn what_nobody_said_is_none() {
        assert_eq!(seen(&[], &[], None), ServerSide::default());
    }
}
