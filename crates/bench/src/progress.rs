//! Where a running probe stands, as one line.

use std::fmt;
use std::io::{IsTerminal, Write};

/// Where a running load stands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Answered requests.
    pub n_done: usize,
    /// Failed requests.
    pub n_failed: usize,
    /// Requests being answered.
    pub n_in_flight: usize,
    /// Requests not yet sent.
    pub n_left: usize,
    /// Events with text since the probe began.
    pub n_chunks: u64,
    /// Time since the load began.
    pub seconds: f64,
    /// Time after which no further request is sent.
    pub seconds_most: f64,
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Progress { n_done, n_in_flight, n_left, n_chunks, seconds, seconds_most, .. } = self;
        write!(f, "{n_done} done, {n_in_flight} in flight, at most {n_left} more")?;
        if self.n_failed > 0 {
            write!(f, ", {} failed", self.n_failed)?;
        }
        write!(f, " · {n_chunks} events · {seconds:.0} of {seconds_most:.0} s")
    }
}

/// Shows progress in place on a terminal, and nothing elsewhere.
#[derive(Debug)]
pub struct TerminalLine {
    on_terminal: bool,
    shown: bool,
}

impl TerminalLine {
    /// A line on standard error.
    #[must_use]
    pub fn stderr() -> TerminalLine {
        TerminalLine { on_terminal: std::io::stderr().is_terminal(), shown: false }
    }

    /// Replaces the line; `what` names the part of the probe.
    pub fn show(&mut self, what: &str, progress: &Progress) {
        if self.on_terminal {
            // A terminal that went away is no reason to end the measurement.
            let _ = write!(std::io::stderr(), "\r\x1b[K{what}: {progress}");
            self.shown = true;
        }
    }

    /// Removes the line.
    pub fn clear(&mut self) {
        if self.shown {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
            self.shown = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Progress;

    #[test]
    fn progress_is_one_line() {
        let mut progress = Progress {
            n_done: 3,
            n_failed: 0,
            n_in_flight: 4,
            n_left: 9,
            n_chunks: 120,
            seconds: 7.4,
            seconds_most: 60.0,
        };
        let expected = "3 done, 4 in flight, at most 9 more · 120 events · 7 of 60 s";
        assert_eq!(progress.to_string(), expected);
        progress.n_failed = 1;
        assert!(progress.to_string().contains(", 1 failed"));
    }
}
