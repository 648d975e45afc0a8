//! What is summed between two lines of the log, and when a line is due.

use crate::log_line::{self, Pools};
use crate::record::StepRecord;

/// The decode steps of one window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Decoded {
    /// Decodes: sequences that decoded, summed over the steps.
    pub n_rounds: u64,
    /// Drafts verified.
    pub n_drafted: u64,
    /// Drafts accepted.
    pub n_accepted: u64,
    /// Wall time of the window: since the line before, prefills and idle time included.
    pub seconds: f64,
}

impl Decoded {
    /// Tokens that decodes gained, per round: accepted + 1. First tokens come from prefills.
    pub fn accept_length(&self) -> f64 {
        ratio((self.n_rounds + self.n_accepted) as f64, self.n_rounds as f64)
    }

    /// Drafts accepted of those verified.
    pub fn accept_rate(&self) -> f64 {
        ratio(self.n_accepted as f64, self.n_drafted as f64)
    }

    /// Drafts of a round, rounds without any included.
    pub fn mean_depth(&self) -> f64 {
        ratio(self.n_drafted as f64, self.n_rounds as f64)
    }

    /// Tokens that decodes gained per second of wall time, as SGLang measures it.
    pub fn tokens_per_s(&self) -> f64 {
        ratio((self.n_rounds + self.n_accepted) as f64, self.seconds)
    }
}

fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// Sums steps and says what to print.
#[derive(Debug)]
pub struct Windows {
    pools: Pools,
    /// Decode steps between two decode lines.
    decode_log_interval: u64,
    n_decode_steps: u64,
    decoded: Decoded,
    decode_line_unix_s: f64,
    prefill_line_unix_s: f64,
}

/// What one step gave.
#[derive(Debug, Default, PartialEq)]
pub struct Due {
    /// Lines to print, in order.
    pub lines: Vec<String>,
    /// The decode window that ended with this step.
    pub decoded: Option<Decoded>,
}

impl Windows {
    /// Windows that begin now; `decode_log_interval` is at least 1.
    pub fn new(pools: Pools, decode_log_interval: u64, now_unix_s: f64) -> Windows {
        Windows {
            pools,
            decode_log_interval: decode_log_interval.max(1),
            n_decode_steps: 0,
            decoded: Decoded::default(),
            decode_line_unix_s: now_unix_s,
            prefill_line_unix_s: now_unix_s,
        }
    }

    /// Adds one step.
    pub fn add(&mut self, step: &StepRecord) -> Due {
        let mut due = Due::default();
        let end_unix_s = step.end_unix_s();
        if step.n_preempted > 0 {
            due.lines.push(log_line::preempted(step.n_preempted));
        }
        if step.n_prefill_rows > 0 {
            let seconds = end_unix_s - self.prefill_line_unix_s;
            let rows_per_s = ratio(step.n_prefill_rows as f64, seconds);
            due.lines.push(log_line::prefill(step, &self.pools, rows_per_s));
            self.prefill_line_unix_s = end_unix_s;
        }
        if step.n_decode_sequences > 0 {
            self.decoded.n_rounds += step.n_decode_sequences as u64;
            self.decoded.n_drafted += step.n_drafted as u64;
            self.decoded.n_accepted += step.n_accepted as u64;
            self.n_decode_steps += 1;
        }
        if self.n_decode_steps == self.decode_log_interval {
            self.decoded.seconds = end_unix_s - self.decode_line_unix_s;
            due.lines.push(log_line::decode(step, &self.pools, &self.decoded));
            due.decoded = Some(std::mem::take(&mut self.decoded));
            self.n_decode_steps = 0;
            self.decode_line_unix_s = end_unix_s;
        }
        due
    }
}

impl StepRecord {
    /// When the step ended, seconds since the Unix epoch.
    pub fn end_unix_s(&self) -> f64 {
        self.start_unix_s + self.forward_s + self.draft_s + self.sample_s + self.other_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode_step(start_unix_s: f64) -> StepRecord {
        StepRecord {
            start_unix_s,
            n_decode_sequences: 2,
            n_drafted: 6,
            n_accepted: 3,
            forward_s: 0.05,
            ..StepRecord::default()
        }
    }

    fn windows(interval: u64) -> Windows {
        Windows::new(Pools { block_len: 64, speculates: true }, interval, 100.0)
    }

    #[test]
    fn a_decode_line_comes_with_every_fortieth_decode_step() {
        let mut windows = windows(40);
        for i in 1..=80 {
            let due = windows.add(&decode_step(100.0 + 0.05 * f64::from(i - 1)));
            assert_eq!(due.decoded.is_some(), i % 40 == 0, "step {i}");
            assert_eq!(due.lines.len(), usize::from(i % 40 == 0), "step {i}");
        }
    }

    #[test]
    fn throughput_counts_prefill_and_idle_time_but_not_first_tokens() {
        let mut windows = windows(2);
        let prefill = StepRecord {
            start_unix_s: 101.0,
            n_prefill_sequences: 1,
            n_prefill_rows: 100,
            n_generated: 1,
            forward_s: 1.0,
            ..StepRecord::default()
        };
        assert_eq!(windows.add(&prefill).decoded, None);
        assert_eq!(windows.add(&decode_step(102.0)).decoded, None);
        let decoded = windows.add(&decode_step(104.95)).decoded.unwrap();
        // Two steps, two sequences each, three drafts accepted in each step, from 100.0 to 105.0.
        assert!((decoded.tokens_per_s() - 10.0 / 5.0).abs() < 1e-9, "{decoded:?}");
        assert_eq!(decoded.accept_length(), 2.5);
        assert_eq!(decoded.accept_rate(), 0.5);
    }

    #[test]
    fn a_prefill_line_comes_with_every_prefill_batch() {
        let mut windows = windows(40);
        let mut step =
            StepRecord { start_unix_s: 101.5, n_prefill_rows: 300, ..Default::default() };
        step.forward_s = 0.5;
        let first = windows.add(&step);
        assert!(first.lines[0].ends_with("input throughput (token/s): 150.00"), "{first:?}");
        step.start_unix_s = 102.5;
        let second = windows.add(&step);
        assert!(second.lines[0].ends_with("input throughput (token/s): 300.00"), "{second:?}");
    }

    #[test]
    fn a_preemption_is_told() {
        let step = StepRecord { n_preempted: 2, ..StepRecord::default() };
        let lines = windows(40).add(&step).lines;
        assert_eq!(lines, ["KV cache pool is full. Retract requests. #retracted_reqs: 2"]);
    }

    #[test]
    fn an_empty_window_has_no_rates() {
        let none = Decoded::default();
        assert_eq!(
            (none.accept_length(), none.accept_rate(), none.tokens_per_s()),
            (0.0, 0.0, 0.0)
        );
    }
}
