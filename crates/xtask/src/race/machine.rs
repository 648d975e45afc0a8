//! What the machine gave a run: memory bandwidth, and cores that others took.

use std::fs;
use std::time::Instant;

use anyhow::{Context, Result};
use kernels::{Cpu, Isa, read_bandwidth};

use super::{Speeds, Turn};

/// Measures around the runs.
pub(crate) struct Probe {
    cpu: Cpu,
}

impl Probe {
    pub(crate) fn new(threads: usize) -> Self {
        Self { cpu: Cpu::new(threads, Isa::detect()) }
    }

    /// Runs a child process to its end and says what the machine was like.
    pub(crate) fn around(&self, run: impl FnOnce() -> Result<Speeds>) -> Result<Turn> {
        let bandwidth = read_bandwidth(&self.cpu);
        let (before, started) = (Ticks::now()?, Instant::now());
        let speeds = run()?;
        let (after, wall_s) = (Ticks::now()?, started.elapsed().as_secs_f64());
        Ok(Turn { speeds, bandwidth, foreign: after.foreign_share(&before, wall_s) })
    }
}

/// Counters of the kernel, in hundredths of a second.
#[derive(Debug, PartialEq)]
struct Ticks {
    /// All cores, everybody.
    busy: u64,
    /// This process and its children that have ended.
    own: u64,
    n_cores: usize,
}

impl Ticks {
    fn now() -> Result<Self> {
        let read = |path| fs::read_to_string(path).with_context(|| format!("cannot read {path}"));
        Self::parse(&read("/proc/stat")?, &read("/proc/self/stat")?)
            .context("/proc/stat or /proc/self/stat has an unknown form")
    }

    fn parse(stat: &str, own: &str) -> Option<Self> {
        let fields: Vec<u64> = stat
            .lines()
            .next()?
            .strip_prefix("cpu ")?
            .split_whitespace()
            .map(|field| field.parse().ok())
            .collect::<Option<_>>()?;
        // user nice system idle iowait irq softirq steal
        let busy = fields.get(..3)?.iter().sum::<u64>() + fields.get(5..8)?.iter().sum::<u64>();
        let n_cores = stat
            .lines()
            .filter(|line| {
                line.strip_prefix("cpu")
                    .is_some_and(|l| l.starts_with(|c: char| c.is_ascii_digit()))
            })
            .count();
        // The name in brackets may hold anything; the fields follow its last bracket.
        let own: Vec<&str> = own.rsplit_once(')')?.1.split_whitespace().collect();
        // utime stime cutime cstime
        let own =
            own.get(11..15)?.iter().map(|field| field.parse::<u64>().ok()).sum::<Option<_>>()?;
        Some(Self { busy, own, n_cores })
    }

    fn foreign_share(&self, before: &Ticks, wall_s: f64) -> f64 {
        let delta = |now: u64, then: u64| now.saturating_sub(then) as f64 / 100.0;
        let foreign = delta(self.busy, before.busy) - delta(self.own, before.own);
        (foreign / (wall_s * self.n_cores as f64)).clamp(0.0, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_took_is_busy_time_without_our_own() {
        let before = Ticks::parse(
            "cpu  100 0 50 1000 5 1 2 3 0 0\ncpu0 50 0\ncpu1 50 0\nintr 7\n",
            "42 (a) b) c) S 1 1 1 0 -1 4 0 0 0 0 10 5 20 5 20 0 1",
        )
        .unwrap();
        assert_eq!(before, Ticks { busy: 156, own: 40, n_cores: 2 });
        let after = Ticks { busy: 156 + 300, own: 40 + 200, n_cores: 2 };
        // One second of two cores for two seconds.
        assert_eq!(after.foreign_share(&before, 2.0), 0.25);
    }

    #[test]
    fn this_machine_can_be_read() {
        let ticks = Ticks::now().unwrap();
        assert!(ticks.n_cores > 0 && ticks.busy >= ticks.own, "{ticks:?}");
    }
}
