//! Whether the engine goes on, judged from its step counter.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use telemetry::record::Snapshot;

/// An engine with work that finishes no step in this time is stuck: even a full chunk of a long
/// prompt on a slow machine is done much sooner.
const STUCK_AFTER: Duration = Duration::from_secs(120);

/// Remembers when the step counter last moved.
#[derive(Debug)]
pub struct Health(Mutex<Seen>);

#[derive(Debug)]
struct Seen {
    n_steps: u64,
    at: Instant,
}

impl Health {
    /// Nothing seen yet.
    pub fn new(now: Instant) -> Health {
        Health(Mutex::new(Seen { n_steps: 0, at: now }))
    }

    /// Whether the engine is idle or has finished a step not too long ago.
    pub fn goes_on(&self, stats: &Snapshot, now: Instant) -> bool {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = stats.gauges.n_running + stats.gauges.n_waiting == 0;
        if idle || stats.totals.n_steps != seen.n_steps {
            *seen = Seen { n_steps: stats.totals.n_steps, at: now };
        }
        now.duration_since(seen.at) < STUCK_AFTER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_engine_with_work_and_without_steps_is_stuck() {
        let start = Instant::now();
        let health = Health::new(start);
        let at = |minutes: u64| start + Duration::from_secs(60 * minutes);
        let mut stats = Snapshot::default();
        assert!(health.goes_on(&stats, at(60)), "idle");
        stats.gauges.n_running = 1;
        stats.totals.n_steps = 5;
        assert!(health.goes_on(&stats, at(61)));
        assert!(health.goes_on(&stats, at(62)));
        assert!(!health.goes_on(&stats, at(63)), "no step in two minutes");
        stats.totals.n_steps = 6;
        assert!(health.goes_on(&stats, at(64)), "it goes on again");
    }
}
