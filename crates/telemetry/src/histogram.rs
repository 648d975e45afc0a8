//! Histograms that many threads fill without waiting for each other.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of observations by upper bound, and their sum.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [f64],
    /// One for each bound, and one for what is above all of them.
    counts: Vec<AtomicU64>,
    /// Bits of an `f64`.
    sum: AtomicU64,
}

/// One reading: `(upper bound, observations up to it)` in ascending order, the last bound infinite.
#[derive(Debug, PartialEq)]
pub struct Reading {
    /// Cumulative counts.
    pub buckets: Vec<(f64, u64)>,
    /// Sum of all observations.
    pub sum: f64,
}

impl Histogram {
    /// An empty histogram; `bounds` ascend.
    pub fn new(bounds: &'static [f64]) -> Histogram {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Histogram { bounds, counts, sum: AtomicU64::new(0f64.to_bits()) }
    }

    /// Adds `n` observations of `value`.
    pub fn observe_n(&self, value: f64, n: u64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.counts[bucket].fetch_add(n, Ordering::Relaxed);
        let add = |bits| Some((f64::from_bits(bits) + value * n as f64).to_bits());
        // The closure always answers, so there is no failure to handle.
        let _ = self.sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// Adds one observation.
    pub fn observe(&self, value: f64) {
        self.observe_n(value, 1);
    }

    /// The counts so far.
    pub fn read(&self) -> Reading {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        let mut up_to = 0;
        let buckets = bounds
            .zip(&self.counts)
            .map(|(bound, count)| {
                up_to += count.load(Ordering::Relaxed);
                (bound, up_to)
            })
            .collect();
        Reading { buckets, sum: f64::from_bits(self.sum.load(Ordering::Relaxed)) }
    }
}

/// What is observed of each request, at the place where its answer is written.
#[derive(Debug)]
pub struct RequestHistograms {
    /// From the arrival of the request to its first token, in seconds.
    pub ttft_s: Histogram,
    /// Between one token and the next, in seconds; a step's tokens share its time.
    pub itl_s: Histogram,
    /// From the arrival of the request to its end, in seconds.
    pub e2e_s: Histogram,
    /// From submission to the first scheduled row, in seconds.
    pub queue_wait_s: Histogram,
    /// Tokens of the prompt.
    pub n_prompt: Histogram,
    /// Tokens generated.
    pub n_generated: Histogram,
}

const SECONDS: &[f64] =
    &[0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0];
const STEP_SECONDS: &[f64] =
    &[0.002, 0.005, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0];
const TOKENS: &[f64] = &[
    1.0, 16.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0,
    65536.0, 131072.0, 262144.0,
];

impl Default for RequestHistograms {
    fn default() -> RequestHistograms {
        RequestHistograms {
            ttft_s: Histogram::new(SECONDS),
            itl_s: Histogram::new(STEP_SECONDS),
            e2e_s: Histogram::new(SECONDS),
            queue_wait_s: Histogram::new(SECONDS),
            n_prompt: Histogram::new(TOKENS),
            n_generated: Histogram::new(TOKENS),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_observation_counts_in_every_bucket_that_reaches_it() {
        let histogram = Histogram::new(&[1.0, 10.0]);
        histogram.observe(1.0);
        histogram.observe_n(5.0, 2);
        histogram.observe(50.0);
        let reading = histogram.read();
        assert_eq!(reading.buckets, [(1.0, 1), (10.0, 3), (f64::INFINITY, 4)]);
        assert_eq!(reading.sum, 61.0);
    }

    #[test]
    fn bounds_ascend() {
        for bounds in [SECONDS, STEP_SECONDS, TOKENS] {
            assert!(bounds.windows(2).all(|pair| pair[0] < pair[1]));
        }
    }
}
